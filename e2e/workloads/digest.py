"""SHA-256 of everything that decides how training goes on: the oracle of "bitwise equal".

It reads the live objects itself and shares no code with the runtime, so that what the runtime forgets to save is seen here.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn


class Losses(list[float]):
    """The loss of every step so far; part of a run's state, so that the series goes on after a resume."""

    def state_dict(self) -> dict[str, list[float]]:
        """As `attach` wants it."""
        return {"losses": list(self)}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """As `attach` wants it."""
        self[:] = state["losses"]


def of_tensor(tensor: Tensor) -> str:
    """SHA-256 over dtype, shape and bytes."""
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return hashlib.sha256(head + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def of_value(value: Any) -> str:
    """SHA-256 of plain Python values; the pickle is only hashed, never read."""
    return hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()


def of_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, str]:
    """One digest per slot, named by parameter, and one per group of hyper-parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    leaves = {}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            leaves[f"optimizer/{names[id(parameter)]}/{slot}"] = of_tensor(value) if isinstance(value, Tensor) else of_value(value)
    for number, group in enumerate(optimizer.param_groups):
        leaves[f"optimizer/group{number}"] = of_value(sorted((key, repr(value)) for key, value in group.items() if key != "params"))
    return leaves


def of_random_numbers() -> dict[str, str]:
    """One digest per generator of this process."""
    name, keys, *rest = numpy.random.get_state()
    return {
        "rng/python": of_value(random.getstate()),
        "rng/numpy": of_value((name, numpy.asarray(keys).tolist(), rest)),
        "rng/torch": of_tensor(torch.get_rng_state()),
    }


def write(
    folder: Path,
    rank: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    sampler: Any,
    losses: list[float],
) -> None:
    """Write ``<folder>/rank<rank>.json``: one digest per leaf, and the losses as exact hexadecimal floats."""
    leaves = {f"model/{name}": of_tensor(value) for name, value in model.state_dict().items()}
    leaves |= of_optimizer(optimizer, model) | of_random_numbers()
    leaves["scheduler"] = of_value(sorted((key, repr(value)) for key, value in scheduler.state_dict().items()))
    leaves["data position"] = of_value(sorted((key, repr(value)) for key, value in sampler.state_dict().items()))
    series = [loss.hex() for loss in losses]
    leaves["losses"] = of_value(series)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps({"leaves": leaves, "losses": series}, indent=1, sort_keys=True))


def read(folder: Path) -> dict[str, str]:
    """Every leaf of every rank under ``folder``, as ``rank0/…`` names. Empty when nothing was written."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("rank*.json")):
        found |= {f"{path.stem}/{name}": value for name, value in json.loads(path.read_text())["leaves"].items()}
    return found


def combined(leaves: dict[str, str]) -> str:
    """One SHA-256 over all names and digests."""
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()
