"""The script of test_emergency: three ranks, one of which is told to end with too little time left, and then one that fails."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from tests.runtime.together_job import attach, exit_of
from trainer_runtime.contract.environment import GRACE_SECONDS
from trainer_runtime.loop import ending
from trainer_runtime.loop.conductor import ENDING_SECONDS

LITTLE_SECONDS = ENDING_SECONDS + 1e-6
"""Nothing is left of it for a save, however quick saves are."""


def train(name: str, act_at_step_5: Callable[[], None]) -> None:
    """Train on, with a checkpoint of step 3; ``act_at_step_5`` is called in the loop's turn after that step."""
    model, optimizer, run = attach(name)
    for number in run.steps(max_steps=1000):
        model(torch.full((4, 3), float(number)) * torch.arange(4.0)[:, None]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.global_step == 2:
            run.save(block=True)
        if run.global_step == 5:
            act_at_step_5()


def main(output: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def ask_rank_1() -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def fail_on_rank_1() -> None:
        if rank == 1:
            raise ValueError("rank 1 fails")

    with mock.patch.dict(os.environ, {GRACE_SECONDS: str(LITTLE_SECONDS)} if rank == 1 else {}):
        ended = exit_of(lambda: train("no-time", ask_rank_1))
    ending._SIGTERM.at = None  # one for the process, and this one was answered
    (output / f"{rank}.json").write_text(json.dumps(ended))
    train("failing", fail_on_rank_1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
