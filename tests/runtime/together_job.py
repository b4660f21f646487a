"""The script of test_together: three ranks find things that only one of them can see, and must all do the same about it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainer_runtime as tr

OTHER_WORLD = ("worldSize", "determinism")
"""With another world size DDP is there or not, too."""


def attach(name: str, **keywords: Any) -> tuple[nn.Module, torch.optim.Optimizer, tr.Run]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, tr.attach(model=model, optimizer=optimizer, run=name, store=Path("store"), **keywords)


def train(name: str, until: int, each_step: Callable[[int], None] = lambda step: None, **keywords: Any) -> tr.Run:
    model, optimizer, run = attach(name, **keywords)
    for number in run.steps(max_steps=until):
        shift = dist.get_rank() if dist.is_initialized() else 0
        model(torch.full((4, 3), float(number + shift)) * torch.arange(4.0)[:, None]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        each_step(run.global_step)
    run.close()
    return run


def exit_of(act: Callable[[], Any]) -> list[Any]:
    try:
        act()
    except SystemExit as problem:
        return [problem.code, str(problem.__cause__ or "")]
    return [None, ""]


def damage_rank_2(step: int) -> None:
    """Flip a byte of a file that only rank 2 reads."""
    if dist.get_rank() == 0:
        (file,) = Path("store", "damaged", "steps").glob(f"{step:010d}-*/data/00002-model-0.safetensors")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    dist.barrier()


def from_step(run: tr.Run) -> int | None:
    return run.resumed_from.step if run.resumed_from else None


def main_alone(output: Path, name: str, until: int) -> None:
    """One process: the other world size."""
    (output / f"{name}.json").write_text(json.dumps(from_step(train(name, until, allow=OTHER_WORLD))))


def main(output: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    result: dict[str, Any] = {}

    train("damaged", 2)
    train("damaged", 4)
    damage_rank_2(4)
    result["damaged"] = from_step(train("damaged", 4))
    result["grown"] = from_step(train("grown", 4, allow=OTHER_WORLD))
    train("shrunk", 2)

    train("config", 1, config={"depth": 1})
    result["config"] = exit_of(lambda: attach("config", config={"depth": 2 if rank == 1 else 1}))

    train("tagged", 6, save_every_steps=2)
    result["tagged"] = sorted(path.name for path in Path("store", "tagged", "steps").iterdir())

    def ask_on_rank_1(step: int) -> None:
        if rank == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    result["stopped"] = exit_of(lambda: train("stopped", 1000, ask_on_rank_1))
    result["stopped at"] = sorted(path.name for path in Path("store", "stopped", "steps").iterdir())
    (output / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main_alone(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))
