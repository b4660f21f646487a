"""Which job is looked at next: one entry per job, never two passes of one job at once, and every wish to look later kept.

It holds keys, not reasons: a pass finds out by itself what there is to do.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from typing import Final

Key = tuple[str, str]
"""Namespace and name of a job."""

RETRY_SECONDS: Final = (0.1, 5.0)
"""First and longest wait after a pass that failed; doubled each time, with jitter down to half."""


class WorkQueue:
    """A keyed, de-duplicating, delayed queue for one event loop.

    A key that is added while it is worked on is handed out again when that pass is done. Of several delays the shortest counts.
    """

    def __init__(self, retry_seconds: tuple[float, float] = RETRY_SECONDS, jitter: Callable[[], float] = random.random) -> None:
        self._retry_seconds = retry_seconds
        self._jitter = jitter
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._working: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Ask for a pass of ``key`` in ``delay`` seconds at the latest."""
        due = self._now() + max(0.0, delay)
        known = self._due.get(key)
        if known is not None and known <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._changed.set()

    def retry(self, key: Key) -> float:
        """Ask for a pass after one that failed; returns the wait in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        first, longest = self._retry_seconds
        delay = min(longest, first * 2.0 ** min(failures, 16)) * (0.5 + 0.5 * self._jitter())
        self.add(key, delay)
        return delay

    def succeeded(self, key: Key) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """Drop a key whose job is gone."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    async def get(self) -> Key:
        """Wait for the next key that is due and is not worked on; `done` must follow."""
        while True:
            self._changed.clear()
            key, wait = self._next()
            if key is not None:
                del self._due[key]
                self._working[key] = self._now()
                return key
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """Say that the pass of ``key`` is over."""
        del self._working[key]
        due = self._due.get(key)
        if due is not None:
            heapq.heappush(self._heap, (due, key))
        self._changed.set()

    def due_count(self) -> int:
        """Return how many keys are due now and wait for a worker."""
        now = self._now()
        return sum(1 for key, due in self._due.items() if due <= now and key not in self._working)

    def oldest_wait(self) -> float:
        """Seconds for which the key that has been due longest has waited for a worker, or the longest pass runs; 0.0 for none."""
        now = self._now()
        waiting = [now - due for key, due in self._due.items() if key not in self._working]
        return max([0.0, *waiting, *(now - since for since in self._working.values())])

    def _next(self) -> tuple[Key | None, float | None]:
        """Return a key to hand out, or how long to sleep until one is due (None: until something changes)."""
        now = self._now()
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due or key in self._working:
                heapq.heappop(self._heap)  # superseded, or handed back to the heap by done()
                continue
            if due > now:
                return None, due - now
            heapq.heappop(self._heap)
            return key, None
        return None, None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
