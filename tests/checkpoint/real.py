"""Ranks with the real persister process, for tests that kill one or the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.checkpoint.world import RUN, WAIT_SECONDS, only, open_world, shared
from trainer_runtime.checkpoint.engine import Engine
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.persister.joining import Joined, join
from trainer_runtime.checkpoint.persister.messages import Hello
from trainer_runtime.contract import environment
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.state.leaves import Snapshot
from trainer_runtime.store.posix import PosixStore

MEGABYTES = 24
"""Enough that a save takes a moment, little enough that many of them take none."""


def weights(value: float) -> Snapshot:
    return only(shared("model/w", torch.full((MEGABYTES, 1024, 256), value)), shared("model/bias", torch.full((8,), value)))


def environ() -> Mapping[str, str]:
    return {name: text for name, text in os.environ.items() if name != environment.PERSISTER}


@contextmanager
def engine_on(root: Path, on_record: Callable[[CheckpointRecord], None] = lambda record: None) -> Iterator[tuple[Engine, Joined]]:
    """Open the run and give a world of one its engine and a persister process of its own."""
    store = PosixStore(root)
    (opened,) = open_world([store])
    hello = Hello(opened.writer, 0, store.uri, RUN, WAIT_SECONDS)
    joined: list[Joined] = []

    def connect(told: Callable[[CheckpointRecord], None], ended: Callable[..., None]) -> Joined:
        joined.append(join(hello, LocalExchange(), None, told, ended, environ()))
        return joined[0]

    engine = Engine(join=connect, writer=opened.writer, on_record=on_record, parents=opened.parents)
    try:
        yield engine, joined[0]
    finally:
        engine.close(WAIT_SECONDS)


@contextmanager
def two_workers_on(root: Path, second: Mapping[str, str] | None = None) -> Iterator[list[tuple[Engine, Joined]]]:
    """Two ranks, each with a persister process of its own as on two pods, which speak over rank 0's exchange. ``second``: the environment
    in which rank 1 finds another persister."""
    store = PosixStore(root)
    opened = open_world([store, store])
    start = LocalExchange()

    def engine_of(rank: int) -> tuple[Engine, Joined]:
        hello = Hello(opened[rank].writer, 0, store.uri, RUN, WAIT_SECONDS)
        joined: list[Joined] = []

        def connect(told: Callable[[CheckpointRecord], None], ended: Callable[..., None]) -> Joined:
            joined.append(join(hello, start, "127.0.0.1", told, ended, second if rank == 1 and second is not None else environ()))
            return joined[0]

        engine = Engine(join=connect, writer=opened[rank].writer, on_record=lambda record: None, parents=opened[rank].parents)
        return engine, joined[0]

    with ThreadPoolExecutor(2) as pool:
        workers = [job.result() for job in [pool.submit(engine_of, rank) for rank in range(2)]]
    try:
        yield workers
    finally:
        for engine, _joined in workers:
            engine.close(WAIT_SECONDS)


def save(engine: Engine, step: int) -> None:
    """Stage ``step`` and return."""
    engine.stage(weights(float(step)), step=step, epoch=0, samples=step, strict={})


def saved(engine: Engine, step: int) -> CheckpointRecord:
    """Save ``step`` and insist that it is verified."""
    save(engine, step)
    result = engine.wait(WAIT_SECONDS)
    assert result is not None, "the save was still in flight"
    assert result.error is None, result.error
    assert result.record is not None
    return result.record


def stage_and_wait(root: str, answer: Connection) -> None:
    """Be a rank that staged step 2 and now trains on until it is killed; say the process ids of the rank and its persister."""
    with engine_on(Path(root)) as (engine, joined):
        saved(engine, 1)
        save(engine, 2)
        answer.send((os.getpid(), joined.link.pid))
        answer.recv()
