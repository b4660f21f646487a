"""What ten thousand small tensors cost: gathering and staging them, a verified save, and a verified restore, beside DCP's save and load.

    python -m benchmarks.many_small [--json] [--repeats 7] [--tensors 10000]

Training stands still for `gather_us_per_tensor` and then, at once, for `stage_us_per_tensor`: of a live state, a model's weights of 16 x 16
and AdamW's three slots of each, after a step that changed values and nothing else. For the rest, each tensor has 256 float32 elements, and
both sides are given a ready list, which nothing has looked at since the last save: staging it is `stage_ready_us_per_tensor`. `save_s` runs
until the checkpoint is proven; DCP proves nothing. A second passes before each save, as training does between two.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from benchmarks import measuring, saving
from trainer_runtime.checkpoint.engine import collector_paused
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.state.data import open_source
from trainer_runtime.state.gather import TrainingState
from trainer_runtime.state.model import World
from trainer_runtime.store.posix import PosixStore

TENSORS = 10_000
ELEMENTS = 256
SIDE = 16
SLOTS = 3
STAGE_BAR_US = 1.0
GATHER_BAR_US = 1.5


class Contest:
    """The contestants, each called once per round; a call returns seconds."""

    def __init__(self, directory: Path, tensors: int) -> None:
        self._directory = directory
        self._state = {f"tensor{number:05d}": torch.randn(ELEMENTS) for number in range(tensors)}
        self._snapshot = saving.snapshot_of(self._state)
        self._attempt = saving.Saving(directory / "ours")
        self._store = PosixStore(directory / "ours")
        self._point: ResumePoint | None = None
        self._number = 0
        self.stage_seconds: list[float] = []

    def ours_save(self) -> float:
        def save() -> None:
            self.stage_seconds.append(self._attempt.stage(self._snapshot))
            record = self._attempt.wait().record
            assert record is not None
            self._point = ResumePoint(record.step, record.attempt, record.uri, record.manifest_sha256)

        saving.settle()
        return saving.timed(save)

    def ours_load(self) -> float:
        point = self._point
        assert point is not None
        return saving.timed(lambda: open_checkpoint(self._store, point).fill(self._snapshot.leaves, 0))

    def dcp_save(self) -> float:
        self._number += 1
        saving.settle()
        return saving.timed(lambda: dcp.save(self._state, checkpoint_id=self._directory / f"dcp{self._number}", no_dist=True))

    def dcp_load(self) -> float:
        return saving.timed(lambda: dcp.load(self._state, checkpoint_id=self._directory / f"dcp{self._number}", no_dist=True))

    def close(self) -> None:
        self._attempt.close()


class Live:
    """A state that is trained and saved: ``tensors`` in all, of a model and of its optimizer."""

    def __init__(self, directory: Path, tensors: int) -> None:
        model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(tensors // (1 + SLOTS))))
        self._optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self._optimizer.step()
        self._state = TrainingState(model=model, data=open_source(None, World()), world=World(), more={"optimizer": self._optimizer})
        self._attempt = saving.Saving(directory)
        self.gather_us: list[float] = []
        self.stage_us: list[float] = []

    def save(self) -> None:
        """Take a step, gather, stage, and wait until the checkpoint is proven; note what the two take, in microseconds by tensor."""
        saving.settle()
        self._optimizer.step()
        with collector_paused():  # as in a save
            began = time.perf_counter()
            snapshot = self._state.snapshot({})
            gathered = time.perf_counter() - began
        staged = self._attempt.stage(snapshot)
        self._attempt.wait()
        for seconds, noted in ((gathered, self.gather_us), (staged, self.stage_us)):
            noted.append(seconds / len(snapshot.leaves) * 1e6)

    def close(self) -> None:
        """End the attempt."""
        self._attempt.close()


def main() -> int:
    """Measure, print a table and one JSON line."""
    parser = saving.options(__doc__, gigabytes=None)
    parser.add_argument("--tensors", type=int, default=TENSORS)
    given = parser.parse_args()
    with saving.scratch(given.directory) as directory:
        live = Live(directory / "live", given.tensors)
        for _ in range(1 + given.repeats):
            live.save()
        live.close()
        contest = Contest(directory, given.tensors)
        contest.ours_save(), contest.dcp_save()
        results = measuring.take_turns({"save_s": contest.ours_save, "dcp_save_s": contest.dcp_save}, given.repeats)
        contest.ours_load(), contest.dcp_load()
        results |= measuring.take_turns({"load_s": contest.ours_load, "dcp_load_s": contest.dcp_load}, given.repeats)
        contest.close()
    gather_us, stage_us = live.gather_us[1:], live.stage_us[1:]
    stage_ready_us = [seconds / given.tensors * 1e6 for seconds in contest.stage_seconds[1:]]
    values: dict[str, Any] = {
        "tensors": given.tensors,
        "repeats": given.repeats,
        "gather_us_per_tensor": measuring.spread(gather_us),
        "stage_us_per_tensor": measuring.spread(stage_us),
        "stage_ready_us_per_tensor": measuring.spread(stage_ready_us),
        **{name: measuring.spread(seconds) for name, seconds in results.items()},
        "bars": [
            measuring.bar("microseconds gathered per tensor", measuring.median(gather_us), at_most=GATHER_BAR_US),
            measuring.bar("microseconds staged per tensor", measuring.median(stage_us), at_most=STAGE_BAR_US),
        ],
    }
    measuring.publish("many_small", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
