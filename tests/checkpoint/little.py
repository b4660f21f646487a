"""Ranks with little memory, for the tests of windows: a state of several of them, and a store in which something happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from tests.checkpoint.world import RUN, WAIT_SECONDS, Attempt, only, point, shared
from trainer_runtime.checkpoint.engine import SaveResult
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore

KIB = 1024
WINDOW = 256 * KIB
Limit = Callable[[int], None]
"""Sets how many bytes a rank may stage at a time."""


def weights(value: float, rank: int = 0) -> Snapshot:
    """About 800 KiB: one large tensor, some smaller ones, and many that are gathered."""
    large = torch.arange(96 * 1024.0).reshape(96, 1024) + value
    middle = [shared(f"optim/{number}/exp_avg", torch.full((64, 300), value + number), Kind.OPTIM) for number in range(5)]
    small = [shared(f"model/norm/{number:02d}", torch.full((7,), value - number)) for number in range(40)]
    own = Leaf(f"rank{rank:05d}/rng", torch.full((9,), rank, dtype=torch.uint8), Kind.EXTRA, False)
    return only(shared("model/w", large), *middle, *small, own, scheduler={"epoch": value})


def restored(store: PosixStore, record: CheckpointRecord, rank: int = 0) -> Snapshot:
    live = weights(-1.0, rank)
    open_checkpoint(store, point(record)).fill(live.leaves, rank)
    return live


def nothing_is_left(store: PosixStore) -> bool:
    return store.list(f"{RUN}/tmp") == () and store.list(f"{RUN}/steps") == ()


class Watching(PosixStore):
    """Something is done before a data file is written, which is told how many were written before."""

    def __init__(self, root: Path, act: Callable[[int], None]) -> None:
        super().__init__(root)
        self._act = act
        self._lock = threading.Lock()
        self.written = 0

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        with self._lock:
            self.written += 1
            count = self.written - 1
        self._act(count)
        super().write_file(path, image, size)


def staged_at_once(attempt: Attempt, step: int) -> list[SaveResult]:
    """Stage on every rank in a thread of its own, as ranks do: in windows, one waits for its persister while the others stage."""
    threads = [
        threading.Thread(
            target=lambda rank=rank: attempt.engines[rank].stage(weights(float(step), rank), step=step, epoch=0, samples=0, strict={})
        )
        for rank in range(len(attempt.engines))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    return attempt.results()
