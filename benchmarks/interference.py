"""What writing a checkpoint in the background takes from training that goes on beside it: ours, and DCP's in a thread and in a process.

    python -m benchmarks.interference [--json] [--repeats 7] [--gigabytes 2]

The loop is bound by Python and dispatch, as a trainer's host side is, and has one thread. `kept_*` is the share of its step rate that is
left while the save is in flight, the time for which the save stops it included; `steps_lost_*` counts the steps that were not made until
the save had ended. Ours ends when every byte was read back and proven, DCP's when it was written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from benchmarks import measuring, saving

BASELINE_SECONDS = 1.0
STEPS_BAR = 1.0
"""Least by which ours loses fewer steps than either of DCP's ways."""


class Trainer:
    """A small model that takes one optimizer step after the other."""

    def __init__(self) -> None:
        self._model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), foreach=True)
        self._batch = torch.randn(16, 64)

    def step(self) -> None:
        """One step."""
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()

    def train_while(self, goes_on: Callable[[], bool]) -> tuple[int, float]:
        """Train as long as ``goes_on``; return steps and seconds."""
        steps, began = 0, time.perf_counter()
        while goes_on():
            self.step()
            steps += 1
        return steps, time.perf_counter() - began

    def rate(self) -> float:
        """Steps per second with nothing beside it."""
        end = time.perf_counter() + BASELINE_SECONDS
        steps, seconds = self.train_while(lambda: time.perf_counter() < end)
        return steps / seconds


class Contest:
    """The contestants. Each call saves beside training, and measures the undisturbed rate just before and just after."""

    def __init__(self, directory: Path, gigabytes: float) -> None:
        self._directory = directory
        self._state = saving.make_state(gigabytes)
        self._snapshot = saving.snapshot_of(self._state)
        self._trainer = Trainer()
        self._thread_stager = DefaultStager(StagingOptions(False, False, False, False))
        self._process_stager = DefaultStager(StagingOptions(False, True, False, False))
        self._number = 0
        self.lost: dict[str, list[float]] = {"ours": [], "dcp_thread": [], "dcp_process": []}

    def ours(self) -> float:
        """Stage, then train on until the checkpoint is verified."""
        attempt = saving.Saving(self._directory / "ours")
        attempt.engine.prepare(self._snapshot)

        def begin() -> Callable[[], bool]:
            attempt.stage(self._snapshot)
            return lambda: attempt.engine.busy

        kept = self._beside("ours", begin)
        attempt.wait()
        attempt.close()
        saving.forget(self._directory / "ours")
        return kept

    def dcp_thread(self) -> float:
        """`async_save` in a thread, with a stager that was used before."""
        return self._dcp("dcp_thread", async_stager=self._thread_stager)

    def dcp_process(self) -> float:
        """`async_save` in a process, with a stager in shared memory that was used before."""
        kind = AsyncCheckpointerType.PROCESS
        return self._dcp("dcp_process", async_stager=self._process_stager, async_checkpointer_type=kind)

    def warm_up(self) -> None:
        """Let the stagers allocate what they reuse, and the process start."""
        for contestant in (self.dcp_thread, self.dcp_process):
            contestant()
        for lost in self.lost.values():
            lost.clear()

    def _dcp(self, name: str, **more: Any) -> float:
        self._number += 1
        path = self._directory / f"dcp{self._number}"
        futures: list[Any] = []

        def begin() -> Callable[[], bool]:
            futures.append(dcp.async_save(self._state, checkpoint_id=path, **more))
            return lambda: not futures[0].done()

        kept = self._beside(name, begin)
        futures[0].result()
        saving.forget(path)
        return kept

    def _beside(self, name: str, begin: Callable[[], Callable[[], bool]]) -> float:
        saving.settle()
        before = self._trainer.rate()
        began = time.perf_counter()
        goes_on = begin()
        steps, _ = self._trainer.train_while(goes_on)
        seconds = time.perf_counter() - began
        rate = (before + self._trainer.rate()) / 2
        self.lost[name].append(rate * seconds - steps)
        return steps / seconds / rate


def main() -> int:
    """Measure, print a table and one JSON line."""
    given = saving.options(__doc__).parse_args()
    torch.set_num_threads(1)
    with saving.scratch(given.directory) as directory, saving.alone_in_a_group(directory):
        contest = Contest(directory, given.gigabytes)
        contest.warm_up()
        kept = measuring.take_turns(
            {"ours": contest.ours, "dcp_thread": contest.dcp_thread, "dcp_process": contest.dcp_process}, given.repeats
        )
    values: dict[str, Any] = {"gigabytes": given.gigabytes, "repeats": given.repeats, "threads": torch.get_num_threads()}
    for name, shares in kept.items():
        values[f"kept_{name}"] = measuring.spread(shares, 3)
        values[f"steps_lost_{name}"] = measuring.spread(contest.lost[name], 0)
    ours = measuring.median(contest.lost["ours"])
    values["bars"] = [
        measuring.bar(f"steps that {name} loses more than ours", measuring.median(contest.lost[name]) - ours, at_least=STEPS_BAR)
        for name in ("dcp_thread", "dcp_process")
    ]
    measuring.publish("interference", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
