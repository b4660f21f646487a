"""When the API server could not be reached, so that silence during that time is held against nobody.

One failed request is no outage: a restart of one API server behind a load balancer cuts connections all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

OUTAGE_AFTER: Final = timedelta(seconds=5)
"""Failures without one success in between, for that long, are an outage. Shorter than a node's lease, longer than a reconnect."""


def utc_now() -> datetime:
    """Return the present time, aware and UTC."""
    return datetime.now(UTC)


class OutageTracker:
    """Fed with every request's outcome; says when the last outage ended."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._failing_since: datetime | None = None
        self._last_ended: datetime | None = None

    def failed(self) -> None:
        """Note that a request got no answer, or an answer that the server has trouble."""
        if self._failing_since is None:
            self._failing_since = self._clock()

    def succeeded(self) -> None:
        """Note that a request was answered."""
        if self._failing_since is None:
            return
        now = self._clock()
        if now - self._failing_since >= OUTAGE_AFTER:
            self._last_ended = now
        self._failing_since = None

    def until(self) -> datetime | None:
        """Return when the last outage ended, now while one lasts, None when there was none."""
        now = self._clock()
        if self._failing_since is not None and now - self._failing_since >= OUTAGE_AFTER:
            return now
        return self._last_ended
