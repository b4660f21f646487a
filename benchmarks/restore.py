"""How long a verified restore takes, beside `torch.distributed.checkpoint`'s load, which proves nothing; and what a reshard costs.

    python -m benchmarks.restore [--json] [--repeats 7] [--gigabytes 2]

`cold`: the files' pages are dropped from the page cache before each load (what a hypervisor caches below that stays). `warm`: they are all
in it. Destinations exist and were touched before, on both sides. `reshard_amplification`: bytes fetched from the storage, as the kernel
counts them for this process, by the bytes that two ranks need of what four saved in rows. `rows_to_columns`: four processes load columns of
what they saved in rows; the slowest of them counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from benchmarks import measuring, resharding, saving
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.store.posix import PosixStore

RESTORE_BAR = 1.0
"""Most that a verified restore may take of the time of DCP's load, cold and warm."""
AMPLIFICATION_BAR = 1.02
COLUMNS_BAR = 1.0


class Contest:
    """Two checkpoints of one state, ours and DCP's; a call loads one into tensors that exist, and returns seconds."""

    def __init__(self, directory: Path, gigabytes: float, before: Callable[[Path], None]) -> None:
        self._directory, self._before = directory, before
        self._state = saving.make_state(gigabytes)
        attempt = saving.Saving(directory / "ours")
        attempt.stage(saving.snapshot_of(self._state))
        record = attempt.wait().record
        attempt.close()
        assert record is not None
        self._point = ResumePoint(record.step, record.attempt, record.uri, record.manifest_sha256)
        self._store = PosixStore(directory / "ours")
        dcp.save(self._state, checkpoint_id=directory / "dcp", no_dist=True)
        self._leaves = saving.snapshot_of(self._state).leaves

    def ours(self) -> float:
        self._before(self._directory)
        return saving.timed(lambda: open_checkpoint(self._store, self._point).fill(self._leaves, 0))

    def dcp(self) -> float:
        self._before(self._directory)
        return saving.timed(lambda: dcp.load(self._state, checkpoint_id=self._directory / "dcp", no_dist=True))


def drop_pages(directory: Path) -> None:
    """Have the kernel forget the files below ``directory``; written pages are synced first, or it would keep them."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def keep_pages(_directory: Path) -> None:
    """What stands before a warm load."""


def fetched_bytes() -> int:
    """Bytes that this process has had fetched from storage so far."""
    return next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("read_bytes"))


def amplification(directory: Path, gigabytes: float) -> float:
    """Have two ranks restore what four saved in rows; return bytes fetched by bytes needed."""
    state = saving.make_state(gigabytes)
    point = resharding.write_rows(PosixStore(directory), state, ranks=4)
    drop_pages(directory)
    needed, fetched = 0, 0
    for rank in range(2):
        leaves = resharding.cut(state, axis=0, rank=rank, ranks=2)
        needed += sum(leaf.tensor.nbytes for leaf in leaves)
        before = fetched_bytes()
        open_checkpoint(PosixStore(directory), point).fill(leaves, rank)
        fetched += fetched_bytes() - before
        drop_pages(directory)
    return fetched / needed


def main() -> int:
    """Measure, print a table and one JSON line."""
    given = saving.options(__doc__).parse_args()
    torch.set_num_threads(1)
    values: dict[str, Any] = {"gigabytes": given.gigabytes, "tensors": saving.TENSORS, "repeats": given.repeats}
    bars = []
    for name, before in (("cold", drop_pages), ("warm", keep_pages)):
        with saving.scratch(given.directory) as directory:
            contest = Contest(directory, given.gigabytes, before)
            contest.ours(), contest.dcp()
            results = measuring.take_turns({"ours_s": contest.ours, "dcp_load_s": contest.dcp}, given.repeats)
        values |= {f"{name}_{key}": measuring.spread(seconds) for key, seconds in results.items()}
        share = measuring.ratio(results["ours_s"], results["dcp_load_s"])
        bars.append(measuring.bar(f"{name}: ours / dcp.load", share, at_most=RESTORE_BAR))
    with saving.scratch(given.directory) as directory:
        values["reshard_amplification"] = round(amplification(directory, given.gigabytes), 4)
        bars.append(measuring.bar("reshard amplification, rows 4 -> 2", values["reshard_amplification"], at_most=AMPLIFICATION_BAR))
    with saving.scratch(given.directory) as directory:
        results = resharding.rows_to_columns(directory, given.gigabytes, given.repeats)
        values |= {f"rows_to_columns_{key}": measuring.spread(seconds) for key, seconds in results.items()}
        share = measuring.ratio(results["ours_s"], results["dcp_load_s"])
        bars.append(measuring.bar("rows -> columns: ours / dcp.load", share, at_most=COLUMNS_BAR))
    measuring.publish("restore", {**values, "bars": bars})
    return 0


if __name__ == "__main__":
    sys.exit(main())
