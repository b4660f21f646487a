"""A test hook: the operator kills itself with SIGKILL at a named step of a pass, so that a test can prove that it converges afterwards.

Set RTJ_OPERATOR_CRASH_AT to ``<step>`` or ``<step>:<n>`` (the n-th time the step is reached, counted from 1). Unset, nothing happens.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Final

CRASH_AT: Final = "RTJ_OPERATOR_CRASH_AT"
STEPS: Final = (
    "before_status",
    "after_status",
    "after_create_service",
    "after_create_pod",
    "after_delete_pod",
    "after_patch_node",
    "after_delete_job",
    "before_events",
    "after_events",
)
"""Every step that can be named, in the order of a pass."""


class CrashPoints:
    """Counts steps and ends the process at the wished one."""

    def __init__(self, step: str = "", times: int = 1) -> None:
        self._step = step
        self._times = times
        self._reached: Counter[str] = Counter()

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> CrashPoints:
        """Read the wish. Raises ValueError for a step that does not exist."""
        wish = environment.get(CRASH_AT, "")
        if not wish:
            return CrashPoints()
        step, _, times = wish.partition(":")
        if step not in STEPS or not (times or "1").isdigit():
            raise ValueError(f"{CRASH_AT}: {wish!r} is not <step> or <step>:<n> with a step of {', '.join(STEPS)}")
        return CrashPoints(step, int(times or "1"))

    def reached(self, step: str) -> None:
        """Note that a step was reached; does not return at the wished one."""
        if not self._step:
            return
        self._reached[step] += 1
        if step == self._step and self._reached[step] == self._times:
            os.kill(os.getpid(), signal.SIGKILL)
