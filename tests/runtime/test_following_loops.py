"""Loops that follow one another in one script, with work between them that draws random numbers: a run that is resumed at any of their
steps goes on bit for bit, whether its first loops are over, end at that step, or are left in the middle."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import trainer_runtime as tr

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it under torch 2.15

SAMPLES, BATCH = 12, 4
"""An epoch has 3 steps."""


class Script:
    """One launch of a script with several loops, and what it did: losses, what was drawn between the loops, every leaf at the end."""

    def __init__(self, store: Path, make_loader: Callable[..., Any]) -> None:
        store.mkdir(exist_ok=True)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.losses: dict[int, str] = {}
        self.between: list[str] = []
        self.leaves: dict[str, str] = {}
        self.run = tr.attach(model=self.model, optimizer=self.optimizer, data=make_loader(), store=store, save_every_steps=1000)

    def learn(self, x: torch.Tensor) -> None:
        noise = random.random() + float(np.random.rand())
        loss = self.model(x * (1 + 0.01 * noise)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses[self.run.global_step + 1] = float(loss.detach()).hex()

    def evaluate(self) -> None:
        """What stands between two loops: a loader that is shuffled, and a draw of each generator."""
        (first, *_others) = DataLoader(TensorDataset(torch.arange(20)), batch_size=20, shuffle=True)
        self.between.append(repr((first, torch.rand(1), random.random(), np.random.rand())))

    def end(self) -> Script:
        """End the launch, and remember how everything stands."""
        self.run.close()
        self.leaves = _digests(self)
        return self


def _digests(script: Script) -> dict[str, str]:
    """Return the SHA-256 of every leaf by name, and of every generator's state."""
    leaves = {name: tensor.numpy().tobytes() for name, tensor in script.model.state_dict().items()}
    for index, parameter in enumerate(script.model.parameters()):
        slots = script.optimizer.state[parameter].items()
        leaves |= {f"{index}/{slot}": value.numpy().tobytes() for slot, value in slots}
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    leaves["numpy"] = numpy_state["state"]["key"].tobytes() + repr(numpy_state["state"]["pos"]).encode()
    leaves["torch"] = torch.get_rng_state().numpy().tobytes()
    leaves["python"] = repr(random.getstate()).encode()
    leaves["counters"] = repr((script.run.global_step, script.run.epoch)).encode()
    return {name: hashlib.sha256(data).hexdigest() for name, data in leaves.items()}


Loop = Callable[[tr.Run], Iterator[Any]]
MakeLoader = Callable[..., Any]


def by_steps(*ends: int) -> tuple[Loop, ...]:
    """Loops that end at steps."""
    return tuple(lambda run, end=end: run.steps(max_steps=end) for end in ends)


def by_epochs(*ends: int) -> tuple[Loop, ...]:
    """Loops that end with epochs."""
    return tuple(lambda run, end=end: run.steps(epochs=end) for end in ends)


def of_another_shape(*ends: int) -> tuple[Loop, ...]:
    """Loops written with `Run.step`, each with its own `Run.finish`."""

    def walk(run: tr.Run, end: int) -> Iterator[Any]:
        while run.global_step < end:
            with run.step():
                yield run.next_batch()
        run.finish()

    return tuple(lambda run, end=end: walk(run, end) for end in ends)


def own_sampler(workers: int = 0) -> Any:
    samples = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(samples), batch_sampler=tr.ResumableSampler(SAMPLES, batch_size=BATCH), num_workers=workers)


def torchdata_loader(workers: int = 0) -> Any:
    samples = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    return StatefulDataLoader(TensorDataset(samples), batch_size=BATCH, shuffle=True, num_workers=workers)


@dataclass(frozen=True)
class Stop:
    """Where a launch ends. ``by_loop``: with what the loop's end saves; otherwise with what is saved at the boundary of ``step``."""

    step: int
    by_loop: bool = False


def walk_through(script: Script, loops: tuple[Loop, ...], stop: Stop | None = None) -> Script:
    """Walk through the loops, with an evaluation after each. From ``stop`` on do nothing."""
    for loop in loops:
        for (x,) in loop(script.run):
            if stop is not None and script.run.global_step == stop.step:
                return script.end()
            script.learn(x)
            if stop is not None and script.run.global_step + 1 == stop.step and not stop.by_loop:
                script.run.save(block=True)
        if stop is not None and script.run.global_step == stop.step:
            return script.end()
        script.evaluate()
    return script.end()


@dataclass(frozen=True)
class Case:
    """Loops, and where the launches before the last one stop."""

    loops: tuple[Loop, ...]
    stops: tuple[Stop, ...]


CASES = {
    "ends within epochs": Case(by_steps(2, 5, 7), (Stop(2), Stop(4), Stop(6), Stop(7))),
    "an end with the epoch's last step": Case(by_steps(3, 5), (Stop(3), Stop(4))),
    "an end that saves by itself": Case(by_steps(3, 5), (Stop(3, by_loop=True),)),
    "ends of epochs": Case(by_epochs(1, 2, 3), (Stop(3), Stop(5), Stop(6))),
    "ends of epochs that save by themselves": Case(by_epochs(1, 2, 3), (Stop(3, by_loop=True), Stop(6, by_loop=True))),
    "another shape": Case(of_another_shape(2, 5, 7), (Stop(2), Stop(4), Stop(6))),
}
LOADERS = {"own sampler": own_sampler, "torchdata": torchdata_loader}


@pytest.mark.parametrize("make_loader", LOADERS.values(), ids=LOADERS.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_run_that_is_stopped_again_and_again_is_the_same_bit_for_bit(tmp_path: Path, make_loader: MakeLoader, case: Case) -> None:
    assert_the_same(tmp_path, make_loader, case)


@pytest.mark.parametrize("make_loader", LOADERS.values(), ids=LOADERS.keys())
def test_so_it_is_when_workers_fetch(tmp_path: Path, make_loader: MakeLoader) -> None:
    assert_the_same(tmp_path, lambda: make_loader(2), Case(by_steps(2, 4), (Stop(2), Stop(3))))


def assert_the_same(folder: Path, make_loader: MakeLoader, case: Case) -> None:
    whole = walk_through(Script(folder / "whole", make_loader), case.loops)
    losses: dict[int, str] = {}
    resumed_from = None
    for stop in (*case.stops, None):
        launch = walk_through(Script(folder / "stopped", make_loader), case.loops, stop)
        assert (launch.run.resumed_from and launch.run.resumed_from.step) == resumed_from
        losses |= launch.losses
        assert losses == {step: loss for step, loss in whole.losses.items() if step in losses}
        resumed_from = stop and stop.step
    assert losses == whole.losses
    assert launch.between[-1] == whole.between[-1]
    assert launch.leaves == whole.leaves
