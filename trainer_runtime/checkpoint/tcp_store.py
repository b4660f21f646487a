"""The exchange of a start: over the TCPStore that torchrun gave the attempt, by a client connection of our own.

It lives as long as the ranks do, so nothing that must outlive them goes through it.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist

from trainer_runtime.errors import ExchangeTimeout


class StoreExchange:
    """The exchange over a torch.distributed store.

    A TCPStore client serves one call at a time and a blocked wait holds it, so waits are short polls and the lock is released between them.
    It takes text and gives the bytes of that text in UTF-8, so every byte goes through it as one character.
    """

    _POLL_SECONDS = 0.05
    _ONE_CHARACTER_PER_BYTE = "latin-1"

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            self._store.set(key, value.decode(self._ONE_CHARACTER_PER_BYTE))

    def get(self, key: str, deadline_seconds: float) -> bytes:
        waited = 0.0
        while True:
            with self._lock:
                if self._store.check([key]):
                    return self._store.get(key).decode().encode(self._ONE_CHARACTER_PER_BYTE)
            if waited >= deadline_seconds:
                raise ExchangeTimeout(f"waited {deadline_seconds:.0f} s for {key!r}")
            self._pause.wait(self._POLL_SECONDS)
            waited += self._POLL_SECONDS


def connect(host: str, port: int, prefix: str, timeout_seconds: float) -> StoreExchange:
    """Open an own client to the TCPStore of the attempt at ``host:port`` and keep to keys below ``prefix``."""
    client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_seconds))
    return StoreExchange(dist.PrefixStore(prefix, client))
