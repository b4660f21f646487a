"""No wait of ours fails because a descriptor has a high number: select() is refused by the linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_wait_by_select_is_refused() -> None:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--no-cache", "--stdin-filename", "trainer_runtime/channel/client.py", "-"]
    found = subprocess.run(
        command, cwd=ROOT, input="import select\n\nselect.select([], [], [])\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert "TID251 `select.select` is banned: it raises for descriptors from 1024 on" in found.stdout
