"""What the benchmarks of saving share: a training state, our engine with its persister process, and the peers it is measured against."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import measuring
from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.engine import Engine, SaveResult
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.opening import open_run
from trainer_runtime.checkpoint.persister.joining import Joined, join
from trainer_runtime.checkpoint.persister.messages import Hello
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.manifest import JobIdentity
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.open import open_store

TENSORS = 330
GIGABYTES = 2.0
RUN = "benchmark"
WAIT_SECONDS = 600.0
SETTLE_SECONDS = 1.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def options(
    description: str | None, *, gigabytes: float | None = GIGABYTES, repeats: int | None = measuring.REPEATS
) -> argparse.ArgumentParser:
    """Return the parser of a benchmark that saves: how much (None: it says so itself), how often, and on which disk."""
    parser = measuring.options(description, repeats=repeats)
    if gigabytes is not None:
        parser.add_argument("--gigabytes", type=float, default=gigabytes, help=f"size of the state in 10^9 bytes (default {gigabytes})")
    parser.add_argument("--directory", help="on which disk; default: where temporary files go")
    return parser


def make_state(gigabytes: float, tensors: int = TENSORS) -> dict[str, torch.Tensor]:
    """A model and two optimizer slots of each weight, all float32: ``gigabytes`` (10^9 bytes) in ``tensors`` tensors."""
    rows = max(1, int(gigabytes * 1e9 / tensors / 4 / 1024))
    return {f"tensor{number:05d}": torch.randn(rows, 1024) for number in range(tensors)}


def size_of(state: dict[str, torch.Tensor]) -> int:
    """Bytes."""
    return sum(tensor.nbytes for tensor in state.values())


def snapshot_of(state: dict[str, torch.Tensor]) -> Snapshot:
    """The state as our engine takes it: a third is the model, the rest are optimizer slots."""
    kinds = [Kind.MODEL, Kind.OPTIM, Kind.OPTIM]
    return Snapshot(tuple(Leaf(name, tensor, kinds[index % 3], True) for index, (name, tensor) in enumerate(state.items())))


class Saving:
    """One attempt in a world of one, with the persister as a process of its own, as `attach` sets it up."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        store = open_store(directory.as_uri())
        opened = open_run(store, RUN, Writer(JobIdentity(), "", "benchmark", 0, 1, 0), LocalExchange(), None, False, None)
        hello = Hello(opened.writer, 0, store.uri, RUN, WAIT_SECONDS)
        self._joined: list[Joined] = []

        def connect(on_record: Any, on_ended: Any) -> Joined:
            self._joined.append(join(hello, LocalExchange(), None, on_record, on_ended))
            return self._joined[0]

        self.on_record: Callable[[CheckpointRecord], None] = lambda record: None
        self.engine = Engine(join=connect, writer=opened.writer, on_record=lambda record: self.on_record(record), parents=opened.parents)
        self.step = opened.resume.step if opened.resume is not None else 0

    @property
    def persister_pid(self) -> int:
        """Process id of the persister; 0 while there is none."""
        return self._joined[0].link.pid or 0

    def stage(self, snapshot: Snapshot) -> float:
        """Begin the next save; return the seconds for which training stood still."""
        self.step += 1
        began = time.perf_counter()
        self.engine.stage(snapshot, step=self.step, epoch=0, samples=0, strict={})
        return time.perf_counter() - began

    def wait(self) -> SaveResult:
        """Wait until the save in flight is verified. Raises the save's own error."""
        result = self.engine.wait(WAIT_SECONDS)
        assert result is not None, "the save did not end"
        if result.error is not None:
            raise result.error
        return result

    def close(self) -> None:
        """End the attempt."""
        self.engine.close(WAIT_SECONDS)


@contextmanager
def scratch(parent: str | None) -> Iterator[Path]:
    """A directory that is gone afterwards. ``parent``: on which disk; None: where temporary files go."""
    directory = Path(mkdtemp(prefix="rtj-benchmark-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def alone_in_a_group(directory: Path) -> Iterator[None]:
    """The process group that DCP's asynchronous save asks for, with this process as its only rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(directory / "rendezvous"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, with that of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _CLOCK_TICKS


def timed(act: Callable[[], object]) -> float:
    """Seconds that ``act`` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def settle() -> None:
    """Let what the last save left to be done (giving memory back, writing to the disk) come to its end, as training does between two."""
    time.sleep(SETTLE_SECONDS)


def forget(path: Path) -> None:
    """Remove what was written and have the disk done with it, so that the next run does not pay for it."""
    shutil.rmtree(path, ignore_errors=True)
    os.sync()
