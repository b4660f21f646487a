"""The storm's own books: a process that outlives its rank is found, whether anybody told of it or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.kill_storm import MARK, find_persisters

WAIT_SECONDS = 60.0


def test_a_persister_is_left_over_until_it_ends(tmp_path: Path) -> None:
    environ = {**os.environ, MARK: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ, text=True) as process:
        assert find_persisters(tmp_path) == {process.pid}
        assert find_persisters(tmp_path.parent) == set()
        process.communicate("\n", timeout=WAIT_SECONDS)
        assert find_persisters(tmp_path) == set()
