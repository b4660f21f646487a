"""Waits end at their deadline and say what they waited for; builds never run twice at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.build import single_flight
from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import is_reached, wait_until


def test_a_wait_that_fails_says_what_was_missing() -> None:
    with pytest.raises(ClusterError, match="waited 0 s for rain\nthe sky is blue"):
        wait_until(lambda: False, "rain", 0, lambda: "the sky is blue")


def test_a_condition_is_asked_until_it_is_true() -> None:
    answers = iter([False, False, True])
    assert is_reached(lambda: next(answers), 10)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(["sh", "-c", "echo no room >&2; exit 3"], "ended with 3: no room", id="fails"),
        pytest.param(["no-such-program"], "no-such-program is not installed", id="missing"),
        pytest.param(["sleep", "60"], "did not end within 0.1 s", id="hangs"),
    ],
)
def test_a_program_that_goes_wrong_is_an_error_in_its_own_words(argv: list[str], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        run(*argv, seconds=0.1 if argv[0] == "sleep" else 30)


HOLDER = """
import sys
from pathlib import Path
from e2e.cluster.build import single_flight
with single_flight(Path(sys.argv[1]), "build"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_free_again_when_its_holder_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "tool.lock"
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    with single_flight(lock, "build"):
        assert lock.exists()
