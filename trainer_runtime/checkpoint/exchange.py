"""How the ranks of one attempt tell each other about a save: small values under names, each wait with a deadline.

It is never the training's process groups: a save that fails must not desynchronise their collectives. Keys carry the attempt (the caller's
prefix), so that a rank of an older attempt cannot answer.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from trainer_runtime.errors import ExchangeTimeout


class Exchange(Protocol):
    """A write-once map shared by all ranks of the attempt. Thread-safe: the writer thread and the training thread both use it."""

    def put(self, key: str, value: bytes) -> None:
        """Publish ``value``; the caller writes a key once."""

    def get(self, key: str, deadline_seconds: float) -> bytes:
        """Return the value, waiting for it. Raises ExchangeTimeout, naming the key, after ``deadline_seconds``."""

    def delete(self, key: str) -> None:
        """Forget a value that its only reader has; otherwise the map would grow with every save."""


class LocalExchange:
    """The exchange of a world of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, deadline_seconds: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout=deadline_seconds):
                raise ExchangeTimeout(f"waited {deadline_seconds:.0f} s for {key!r}")
            return self._values[key]

    def delete(self, key: str) -> None:
        with self._changed:
            self._values.pop(key, None)


class StoreExchange:
    """The exchange over a torch.distributed store (a client connection of our own to the attempt's TCPStore).

    A TCPStore client serves one call at a time and a blocked wait holds it, so waits are short polls and the lock is released between them.
    """

    _POLL_SECONDS = 0.05

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            self._store.set(key, value)  # type: ignore[arg-type]  # bytes work; the stub says str

    def get(self, key: str, deadline_seconds: float) -> bytes:
        waited = 0.0
        while True:
            with self._lock:
                if self._store.check([key]):
                    return bytes(self._store.get(key))
            if waited >= deadline_seconds:
                raise ExchangeTimeout(f"waited {deadline_seconds:.0f} s for {key!r}")
            self._pause.wait(self._POLL_SECONDS)
            waited += self._POLL_SECONDS

    def delete(self, key: str) -> None:
        with self._lock:
            self._store.delete_key(key)


def connect(host: str, port: int, prefix: str, timeout_seconds: float) -> StoreExchange:
    """Open an own client to the TCPStore of the attempt at ``host:port`` and keep to keys below ``prefix``."""
    client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_seconds))
    return StoreExchange(dist.PrefixStore(prefix, client))
