"""When the operator saw what a machine says with a clock of its own: a clock that is ahead must not keep a dead node alive.

It is what Kubernetes' own node controller does with leases: a time that changes is news, and the news is dated by who sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime


class Sightings:
    """One time for each thing that states one, by the operator's clock."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[datetime, datetime]] = {}

    def note(self, key: str, stated: datetime | None) -> None:
        """Take what ``key`` states now; None: nothing any more.

        The first time is believed unless it lies ahead: an operator that comes back must see for how long a node was silent meanwhile.
        Each other one is dated now, whatever it is.
        """
        if stated is None:
            self._seen.pop(key, None)
            return
        known = self._seen.get(key)
        if known is None or known[0] != stated:
            now = self._clock()
            self._seen[key] = (stated, now if known is not None else min(stated, now))

    def at(self, key: str) -> datetime | None:
        """Return the time of what ``key`` last stated; None when it states nothing."""
        known = self._seen.get(key)
        return known[1] if known else None
