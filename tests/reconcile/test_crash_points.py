"""The test hook that kills the operator: exact about its wish, and nothing at all without one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from rtj_operator.reconcile.crash_points import CRASH_AT, STEPS, CrashPoints


def test_without_a_wish_no_step_ends_the_process() -> None:
    crash = CrashPoints.from_environment({})
    for step in STEPS:
        crash.reached(step)


@pytest.mark.parametrize("wish", ["somewhere", "after_status:x", ":2"], ids=["no such step", "no integer", "no step"])
def test_a_wish_that_cannot_be_met_names_the_variable_and_the_steps(wish: str) -> None:
    with pytest.raises(ValueError, match=f"{CRASH_AT}: .*after_create_pod"):
        CrashPoints.from_environment({CRASH_AT: wish})


def test_the_wished_step_kills_at_the_wished_time_and_no_other() -> None:
    code = (
        "from rtj_operator.reconcile.crash_points import CrashPoints\n"
        "crash = CrashPoints.from_environment()\n"
        "crash.reached('after_create_pod'); crash.reached('after_status'); print('one', flush=True)\n"
        "crash.reached('after_status'); print('two', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={CRASH_AT: "after_status:2"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")
