"""For how long a save stops training: ours, a plain copy of the same bytes, and DCP's asynchronous save in two ways.

    python -m benchmarks.save_stall [--json] [--repeats 7] [--gigabytes 2]

`memcpy_s` copies into warm memory, with as many threads. `dcp_async_default_s` is `async_save` as people call
it; `dcp_async_reused_stager_s` passes one long-lived stager. Each round ends every save before the next begins, and a second passes before
each stall and copy, as training does between two saves: what the last save left to be done is over by then.
All are given the state as a ready list of tensors: what `attach` takes to gather a live training state, per tensor, is in none of them.
"""

from __future__ import annotations

import sys
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


class Contest:
    """The contestants, each called once per round; a call returns the seconds for which the caller stood still."""

    def __init__(self, directory: Path, gigabytes: float) -> None:
        self._directory = directory
        self._state = saving.make_state(gigabytes)
        self._snapshot = saving.snapshot_of(self._state)
        self._copy = torch.zeros(saving.size_of(self._state) // 4)
        self._parts = list(self._copy.split([tensor.numel() for tensor in self._state.values()]))
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._number = 0
        self.first: list[float] = []

    def ours(self) -> float:
        """A fresh attempt's first save, kept apart, then its second."""
        attempt = saving.Saving(self._directory / "ours")
        attempt.engine.prepare(self._snapshot)
        saving.settle()
        self.first.append(attempt.stage(self._snapshot))
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

    def dcp_async_default(self) -> float:
        """`async_save` with nothing but a place."""
        return self._dcp()

    def dcp_async_reused_stager(self) -> float:
        """`async_save` with a stager that was used before."""
        return self._dcp(async_stager=self._stager)

    def _dcp(self, **more: Any) -> float:
        self._number += 1
        path = self._directory / f"dcp{self._number}"
        futures: list[Any] = []
        saving.settle()
        seconds = saving.timed(lambda: futures.append(dcp.async_save(self._state, checkpoint_id=path, **more)))
        futures[0].result()
        saving.forget(path)
        return seconds


def main() -> int:
    """Measure, print a table and one JSON line."""
    given = saving.options(__doc__).parse_args()
    with saving.scratch(given.directory) as directory, saving.alone_in_a_group(directory):
        contest = Contest(directory, given.gigabytes)
        contest.dcp_async_reused_stager()  # the stager's first use allocates what it reuses
        results = measuring.take_turns(
            {
                "ours_s": contest.ours,
                "memcpy_s": contest.memcpy,
                "dcp_async_default_s": contest.dcp_async_default,
                "dcp_async_reused_stager_s": contest.dcp_async_reused_stager,
            },
            given.repeats,
        )
    results["first_save_s"] = contest.first
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
