"""Attempts of one or more ranks for the tests: real stores, real engines, the ranks as threads that share one exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.engine import Engine, SaveResult
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.keeping.snapshots import keep_snapshots, name_snapshots
from trainer_runtime.checkpoint.opening import Hold, Opened, open_run
from trainer_runtime.checkpoint.persister.joining import join
from trainer_runtime.checkpoint.persister.messages import Hello
from trainer_runtime.checkpoint.persister.server import Server
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract import environment
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import JobIdentity
from trainer_runtime.state.attachments import Attachment
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore

RUN = "run"
WAIT_SECONDS = 60.0
MODEL_FILE = "data/00000-model-0.safetensors"
"""What rank 0 writes of the model in `state`."""


@dataclass
class Attempt:
    """One attempt's ranks, by rank."""

    opened: list[Opened]
    engines: list[Engine]
    records: list[list[CheckpointRecord]]

    def save(self, step: int, snapshots: Sequence[Snapshot], tags: tuple[str, ...] = ()) -> list[SaveResult]:
        """Stage on every rank, then return every rank's result."""
        for engine, snapshot in zip(self.engines, snapshots, strict=True):
            engine.stage(snapshot, step=step, epoch=0, samples=step * 8, strict={}, tags=tags)
        return self.results()

    def results(self) -> list[SaveResult]:
        return self.results_of(range(len(self.engines)))

    def results_of(self, ranks: Iterable[int]) -> list[SaveResult]:
        """Return how the save in flight ended on these ranks."""
        results = [self.engines[rank].wait(WAIT_SECONDS) for rank in ranks]
        assert all(result is not None for result in results), "a save was still in flight"
        return [result for result in results if result is not None]

    def saved(self, step: int, snapshots: Sequence[Snapshot], tags: tuple[str, ...] = ()) -> CheckpointRecord:
        """Save, insist that it was verified on every rank, and return the record."""
        results = self.save(step, snapshots, tags)
        for result in results:
            assert result.error is None, result.error
        record = results[0].record
        assert record is not None
        return record


def writer(rank: int = 0, world_size: int = 1, attempt: int = 0, job: str = "job-a") -> Writer:
    return Writer(JobIdentity("team", "train", job), f"pod-{rank}", f"worker-{rank}", rank, world_size, attempt)


def open_world(
    stores: Sequence[Store],
    *,
    attempt: int = 0,
    job: str = "job-a",
    resume: ResumePoint | None = None,
    fresh: bool = False,
    hold: Hold | None = None,
    resume_from: ResumePoint | None = None,
    probe_seconds: float = 10.0,
) -> list[Opened]:
    """Open the run on every rank at once; raises what rank 0 raised."""
    exchange = LocalExchange()

    def open_rank(rank: int) -> Opened:
        who = writer(rank, len(stores), attempt, job)
        return open_run(
            stores[rank],
            RUN,
            who,
            exchange,
            resume,
            fresh,
            hold if rank == 0 else None,
            resume_from=resume_from,
            probe_seconds=probe_seconds,
            open_seconds=60,
        )

    with ThreadPoolExecutor(len(stores)) as pool:
        return [job.result() for job in [pool.submit(open_rank, rank) for rank in range(len(stores))]]


@contextmanager
def attempt_on(
    store: Store,
    ranks: int = 1,
    *,
    deadline_seconds: float = 30.0,
    on_record: Callable[[CheckpointRecord], None] | None = None,
    local: Path | None = None,
    ranks_here: int = 1,
    attachments: Mapping[str, Sequence[Attachment]] | None = None,
    **opening: Any,
) -> Iterator[Attempt]:
    """Open the run and give every rank its engine. ``ranks_here``: among how many ranks each thinks that it shares its memory."""
    opened = open_world([store] * ranks, **opening)
    keep_snapshots(store, RUN, attachments or {})
    exchange = LocalExchange()
    records: list[list[CheckpointRecord]] = [[] for _ in range(ranks)]

    def listener(rank: int) -> Callable[[CheckpointRecord], None]:
        def listen(record: CheckpointRecord) -> None:
            records[rank].append(record)
            if rank == 0 and on_record is not None:
                on_record(record)

        return listen

    with persister_of(store) as dial_persister, ThreadPoolExecutor(ranks) as pool:

        def engine_of(rank: int) -> Engine:
            hello = Hello(opened[rank].writer, rank, "", RUN, deadline_seconds, local=None if local is None else str(local))
            master = "127.0.0.1" if ranks > 1 else None
            return Engine(
                join=lambda on_record, on_ended: join(hello, exchange, master, on_record, on_ended, dial_persister),
                writer=opened[rank].writer,
                on_record=listener(rank),
                parents=opened[rank].parents,
                snapshots=name_snapshots(attachments or {}),
                software={"torch": torch.__version__},
                ranks_here=ranks_here,
            )

        engines = [job.result() for job in [pool.submit(engine_of, rank) for rank in range(ranks)]]
        try:
            yield Attempt(opened, engines, records)
        finally:
            for engine in engines:
                engine.close(WAIT_SECONDS)


@contextmanager
def persister_of(store: Store) -> Iterator[dict[str, str]]:
    """Run the persister's server in this process, with a store of the test's, and yield the environment in which a rank finds it."""
    with TemporaryDirectory(prefix="rtj-test-") as directory:
        path = f"{directory}/persister"
        server = Server(path, lambda url, s3: store, lambda hello, record: None, lambda: None)
        try:
            yield {environment.PERSISTER: path}
            server.wait_until_idle(WAIT_SECONDS)
        finally:
            server.close()


def state(value: float, *, rank: int = 0, rows: int = 64) -> Snapshot:
    """A small training state: shared weights and slots filled with ``value``, and one tensor and one number that are this rank's own."""
    weight = torch.full((rows, 16), value)
    leaves = (
        Leaf("model/weight", weight, Kind.MODEL, True, requires_grad=True),
        Leaf("model/bias", torch.full((16,), value, dtype=torch.bfloat16), Kind.MODEL, True, requires_grad=True),
        Leaf("optim/weight/exp_avg", torch.full((rows, 16), -value), Kind.OPTIM, True),
        Leaf("optim/weight/step", torch.tensor(value), Kind.OPTIM, True),
        Leaf(f"rank{rank:05d}/rng/torch", torch.full((32,), rank, dtype=torch.uint8), Kind.EXTRA, False),
    )
    return Snapshot(leaves, {"scheduler": {"last_epoch": value}, f"rank{rank:05d}/data": {"cursor": rank + 100}})


def states(value: float, ranks: int) -> list[Snapshot]:
    return [state(value, rank=rank) for rank in range(ranks)]


def only(*leaves: Leaf, **objects: Any) -> Snapshot:
    return Snapshot(leaves, objects)


def shared(name: str, tensor: torch.Tensor, kind: Kind = Kind.MODEL) -> Leaf:
    return Leaf(name, tensor, kind, True)


def point(record: CheckpointRecord) -> ResumePoint:
    return ResumePoint(record.step, record.attempt, record.uri, record.manifest_sha256)


def directory_of(store: PosixStore, record: CheckpointRecord) -> Path:
    return Path(record.uri.removeprefix("file://"))


def store_root(store: PosixStore) -> Path:
    return Path(store.uri.removeprefix("file://"))


def take_back(run: Path, name: StepName, grave: Path, file: Path) -> Iterator[Path]:
    """Take back a deleted checkpoint, and first the ``file`` of frozen/ or snapshots/ that went too, as docs/storage.md says. Yields after
    each move."""
    file.touch()
    for source, to in [
        (file, run / file.parent.name / file.name),
        (grave / "manifest.json", grave / "checkpoint" / "manifest.json"),
        (grave / "checkpoint", run / "steps" / str(name)),
    ]:
        yield source.rename(to)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def reference_to(store: PosixStore, record: CheckpointRecord) -> Reference:
    return Reference(store.uri, RUN, StepName(record.step, record.attempt), record.manifest_sha256)


def assert_equal(found: Snapshot, wanted: Snapshot) -> None:
    for leaf, other in zip(found.leaves, wanted.leaves, strict=True):
        assert torch.equal(leaf.tensor, other.tensor), leaf.name
