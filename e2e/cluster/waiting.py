"""The only way anything here waits: for a condition, until a deadline, with words for what was missing."""

from __future__ import annotations

import time
from collections.abc import Callable

from e2e.cluster.errors import ClusterError

POLL_SECONDS = 0.1


def wait_until(condition: Callable[[], bool], what: str, seconds: float, missing: Callable[[], str] | None = None) -> None:
    """Return once `condition()` is true.

    `what` completes the sentence "waited N s for ...". `missing`, if given, is asked at the deadline for details (a log's end, a status).
    Raises ClusterError at the deadline.
    """
    if not is_reached(condition, seconds):
        details = f"\n{missing()}" if missing else ""
        raise ClusterError(f"waited {seconds:g} s for {what}{details}")


def is_reached(condition: Callable[[], bool], seconds: float) -> bool:
    """Say whether `condition()` became true within `seconds`: for the few waits whose end is no error."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
