"""For how long a save stops training: ours, a plain copy of the same bytes, and DCP's asynchronous save in two ways.

    python -m benchmarks.save_stall [--json] [--repeats 7] [--gigabytes 2]

`memcpy_s` copies into warm memory, with as many threads. `dcp_async_default_s` is `async_save` as people call it;
`dcp_async_reused_stager_s` passes one long-lived stager. Each round gives ours a fresh attempt and each of DCP's ways a fresh process, and
takes the first save (`first_save_s`, `dcp_…_first_s`) and the second. Every save has ended before the next begins, and a second passes
before each stall and copy, as training does between two saves: what the last save left to be done is over by then.
All are given the state as a ready list of tensors: what `attach` takes to gather a live training state, per tensor, is in none of them.

DCP's default allocates the copy anew, so its time depends on what memory costs on the machine just then: the ratio moves with that.
`fresh_memory_s` says what touching as many fresh bytes costs beside it.
"""

from __future__ import annotations

import mmap
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks import measuring, saving

MEMCPY_BAR = 1.2
"""Most that ours, and the first one of an attempt, may take of a plain copy's time."""
DCP_BAR = 10.0
"""Least by which ours is below DCP's default."""


PEER_SECONDS = 600.0
"""For how long one round of a peer may take."""


class Contest:
    """The contestants, each called once per round; a call returns the seconds for which the caller stood still in a second save."""

    def __init__(self, directory: Path, gigabytes: float) -> None:
        self._directory = directory
        self._gigabytes = gigabytes
        self._state = saving.make_state(gigabytes)
        self._snapshot = saving.snapshot_of(self._state)
        self._copy = torch.zeros(saving.size_of(self._state) // 4)
        self._parts = list(self._copy.split([tensor.numel() for tensor in self._state.values()]))
        self.first: dict[str, list[float]] = {"first_save_s": [], "dcp_async_default_first_s": [], "dcp_async_reused_stager_first_s": []}

    def ours(self) -> float:
        """A fresh attempt's first save, kept apart, then its second."""
        attempt = saving.Saving(self._directory / "ours")
        attempt.engine.prepare(self._snapshot)
        saving.settle()
        self.first["first_save_s"].append(attempt.stage(self._snapshot))
        attempt.wait()
        saving.settle()
        seconds = attempt.stage(self._snapshot)
        attempt.wait()
        attempt.close()
        saving.forget(self._directory / "ours")
        return seconds

    def memcpy(self) -> float:
        """Copy the same bytes once more."""

        def copy() -> None:
            for part, tensor in zip(self._parts, self._state.values(), strict=True):
                part.copy_(tensor.view(-1))

        copy()
        saving.settle()
        return saving.timed(copy)

    def fresh_memory(self) -> float:
        """Touch as many bytes of memory that nobody had before."""
        with mmap.mmap(-1, saving.size_of(self._state)) as memory:
            ours = torch.frombuffer(memory, dtype=torch.float32)
            saving.settle()
            seconds = saving.timed(ours.zero_)
            del ours
        return seconds

    def dcp_async_default(self) -> float:
        """`async_save` with nothing but a place."""
        return self._dcp("dcp_async_default_first_s", reuses_stager=False)

    def dcp_async_reused_stager(self) -> float:
        """`async_save` with a stager that was used before."""
        return self._dcp("dcp_async_reused_stager_first_s", reuses_stager=True)

    def _dcp(self, name: str, reuses_stager: bool) -> float:
        spawn = multiprocessing.get_context("spawn")
        receiver, sender = spawn.Pipe(duplex=False)
        with saving.scratch(str(self._directory)) as directory:
            process = spawn.Process(target=dcp_stalls, args=(directory, self._gigabytes, reuses_stager, sender))
            process.start()
            sender.close()
            if not receiver.poll(PEER_SECONDS):
                process.kill()
                raise TimeoutError(f"DCP's two saves did not end within {PEER_SECONDS:.0f} s")
            first, second = receiver.recv()
            process.join(PEER_SECONDS)
        self.first[name].append(first)
        return float(second)


def dcp_stalls(directory: Path, gigabytes: float, reuses_stager: bool, sender: Connection) -> None:
    """Send the stalls of the first and the second asynchronous save of a process that makes no others."""
    state = saving.make_state(gigabytes)
    stager = DefaultStager(StagingOptions(False, False, False, False)) if reuses_stager else None
    with saving.alone_in_a_group(directory):
        sender.send([_dcp_stall(state, directory / f"dcp{number}", stager) for number in range(2)])


def _dcp_stall(state: dict[str, torch.Tensor], path: Path, stager: DefaultStager | None) -> float:
    futures: list[Any] = []
    saving.settle()
    seconds = saving.timed(lambda: futures.append(dcp.async_save(state, checkpoint_id=path, async_stager=stager)))
    futures[0].result()
    saving.forget(path)
    return seconds


def main() -> int:
    """Measure, print a table and one JSON line."""
    given = saving.options(__doc__).parse_args()
    with saving.scratch(given.directory) as directory:
        contest = Contest(directory, given.gigabytes)
        results = measuring.take_turns(
            {
                "ours_s": contest.ours,
                "memcpy_s": contest.memcpy,
                "dcp_async_default_s": contest.dcp_async_default,
                "dcp_async_reused_stager_s": contest.dcp_async_reused_stager,
                "fresh_memory_s": contest.fresh_memory,
            },
            given.repeats,
        )
    results |= contest.first
    values: dict[str, Any] = {
        "gigabytes": given.gigabytes,
        "tensors": saving.TENSORS,
        "threads": torch.get_num_threads(),
        "repeats": given.repeats,
        **{name: measuring.spread(measured) for name, measured in results.items()},
        "bars": [
            measuring.bar("ours / memcpy", measuring.ratio(results["ours_s"], results["memcpy_s"]), at_most=MEMCPY_BAR),
            measuring.bar("first save / memcpy", measuring.ratio(results["first_save_s"], results["memcpy_s"]), at_most=MEMCPY_BAR),
            measuring.bar(
                "dcp.async_save as people call it / ours",
                measuring.ratio(results["dcp_async_default_s"], results["ours_s"]),
                at_least=DCP_BAR,
            ),
        ],
    }
    measuring.publish("save_stall", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
