"""How the ranks of one attempt tell each other about a save: small values under names, each wait with a deadline.

It is never the training's process groups: a save that fails must not desynchronise their collectives. Keys carry the attempt (the caller's
prefix), so that a rank of an older attempt cannot answer. Across machines a start speaks through `tcp_store`, a save through the
persisters' own `persister.exchange`, which outlives the ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from trainer_runtime.errors import ExchangeTimeout


class Exchange(Protocol):
    """A write-once map shared by all ranks of the attempt. Thread-safe."""

    def put(self, key: str, value: bytes) -> None:
        """Publish ``value``; the caller writes a key once."""

    def get(self, key: str, deadline_seconds: float) -> bytes:
        """Return the value, waiting for it. Raises ExchangeTimeout, naming the key, after ``deadline_seconds``."""


class SaveExchange(Exchange, Protocol):
    """What a save needs besides: to hear of a rank's end while it waits for the rank, and to forget what every rank has read."""

    def get_first(self, keys: Sequence[str], deadline_seconds: float) -> tuple[str, bytes]:
        """Return the first of ``keys`` that has a value, and the value, waiting for any. Raises ExchangeTimeout, naming the first key."""

    def find(self, key: str) -> bytes | None:
        """Return the value, or None when there is none now."""

    def forget(self, prefix: str) -> None:
        """Drop every key that begins with ``prefix``; otherwise the map would grow with every save."""


class LocalExchange:
    """The map itself: the exchange of a world of one process, and what the persister of rank 0 serves to the others."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, deadline_seconds: float) -> bytes:
        return self.get_first([key], deadline_seconds)[1]

    def get_first(self, keys: Sequence[str], deadline_seconds: float) -> tuple[str, bytes]:
        with self._changed:
            if not self._changed.wait_for(lambda: any(key in self._values for key in keys), timeout=deadline_seconds):
                raise ExchangeTimeout(f"waited {deadline_seconds:.0f} s for {keys[0]!r}")
            key = next(key for key in keys if key in self._values)
            return key, self._values[key]

    def find(self, key: str) -> bytes | None:
        with self._changed:
            return self._values.get(key)

    def forget(self, prefix: str) -> None:
        with self._changed:
            for key in [key for key in self._values if key.startswith(prefix)]:
                del self._values[key]
