"""Ways in which other programs' resumed training was not the same training, tried out here: see tests/known for the reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import trainer_runtime as tr
from tests.runtime.training import Training
from trainer_runtime.errors import Refused

Make = Callable[[Any], torch.optim.Optimizer]


class Script:
    """A training script whose parts can be chosen. ``more``: keywords of attach()."""

    def __init__(self, store: Path, make: Make = torch.optim.AdamW, workers: int = 0, is_frozen: bool = False, **more: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.model[0].requires_grad_(not is_frozen)
        self.optimizer = make(self.model.parameters())
        samples = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
        self.loader = DataLoader(
            TensorDataset(samples),
            batch_sampler=tr.ResumableSampler(20, batch_size=4),
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.more = {name: value(self) for name, value in more.items()}
        self.run = tr.attach(model=self.model, optimizer=self.optimizer, data=self.loader, store=store, **self.more)

    def train(self, until: int, after_step: Callable[[Script], None] = lambda script: None, *, leave_at: int | None = None) -> Script:
        """Train to ``until`` steps, or leave the loop in the turn that begins with ``leave_at``, and close."""
        for (x,) in self.run.steps(max_steps=until):
            loss = self.model(x).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))
            self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
            after_step(self)
            if self.run.global_step == leave_at:
                break
        self.run.close()
        return self

    def slots(self) -> dict[str, dict[str, torch.Tensor]]:
        state = self.optimizer.state
        return {name: state[parameter] for name, parameter in self.model.named_parameters() if parameter in state}


def equal_models(left: nn.Module, right: nn.Module) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left.state_dict().values(), right.state_dict().values(), strict=True))


def test_a_seed_that_is_set_after_attach_does_not_move_the_random_numbers(store: Path) -> None:
    whole = Training(store, run="whole").train(6)
    Training(store).train(3)
    resumed = Training(store)
    torch.manual_seed(1234)  # what setting up a loader often does
    assert resumed.train(6).losses == {step: loss for step, loss in whole.losses.items() if step > 3}


def test_epochs_after_a_resume_are_whole_also_with_workers_that_stay(store: Path) -> None:
    Script(store, workers=1).train(3)
    resumed = Script(store, workers=1)
    epochs = [resumed.run.epoch for _ in resumed.run.steps(epochs=3)]
    resumed.run.close()
    assert [epochs.count(epoch) for epoch in range(3)] == [2, 5, 5]


def test_counting_the_loop_oneself_changes_nothing(store: Path) -> None:
    Script(store).train(3)
    resumed = Script(store)
    steps = [(number, resumed.run.global_step) for number, _batch in enumerate(resumed.run.steps(max_steps=6))]
    resumed.run.close()
    assert steps == [(0, 3), (1, 4), (2, 5)]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda script: torch.optim.lr_scheduler.OneCycleLR(script.optimizer, max_lr=0.1, total_steps=40),
    "warm-up, then cosine": lambda script: torch.optim.lr_scheduler.SequentialLR(
        script.optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(script.optimizer, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingLR(script.optimizer, T_max=10),
        ],
        milestones=[4],
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_the_learning_rate_goes_on_as_if_nothing_had_been(store: Path, make: Callable[[Any], Any]) -> None:
    def advance(script: Script) -> None:
        script.more["scheduler"].step()

    whole = Script(store, run=lambda script: "whole", scheduler=make).train(9, advance)
    rates = [rate for until in (4, 5, 9) for rate in Script(store, scheduler=make).train(until, advance).rates]
    assert rates == whole.rates
    assert len(set(rates)) > 2


def test_an_average_of_the_weights_goes_on_and_does_not_become_the_weights(store: Path) -> None:
    """Also when it lies in the model while the checkpoint is asked for."""

    def average(script: Script) -> Any:
        return AveragedModel(script.model)

    def evaluate(script: Script) -> None:
        ema = script.more["ema"]
        ema.update_parameters(script.model)
        kept = {name: value.clone() for name, value in script.model.state_dict().items()}
        script.model.load_state_dict(ema.module.state_dict())
        if script.run.global_step == 2:
            script.run.save()
        script.model.load_state_dict(kept)

    whole = Script(store, run=lambda script: "whole", ema=average).train(6, evaluate)
    Script(store, ema=average).train(6, evaluate, leave_at=3)
    resumed = Script(store, ema=average).train(6, evaluate)
    assert equal_models(resumed.model, whole.model)
    assert equal_models(resumed.more["ema"], whole.more["ema"])
    assert resumed.more["ema"].n_averaged == 6
    assert len(resumed.losses) == 3


def test_slots_of_parameters_that_were_frozen_meanwhile_are_kept(store: Path) -> None:
    def freeze(script: Script) -> None:
        if script.run.global_step == 1:
            script.model[0].requires_grad_(False)

    first = Script(store).train(4, freeze)
    resumed = Script(store, is_frozen=True)
    assert set(resumed.slots()) == set(first.slots()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for name, slots in first.slots().items():
        assert {key: value.tolist() for key, value in slots.items()} == {k: v.tolist() for k, v in resumed.slots()[name].items()}
    resumed.run.close()


def test_an_optimizer_without_slots_gains_none(store: Path) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    first = Script(store, make).train(3)
    resumed = Script(store, make)
    assert resumed.optimizer.state_dict() == first.optimizer.state_dict()
    resumed.run.close()


def test_a_group_key_that_the_checkpoint_does_not_have_is_named_and_can_be_allowed(store: Path) -> None:
    """As a newer version of an optimizer brings one."""

    def newer(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters)
        optimizer.param_groups[0]["cautious"] = True
        return optimizer

    Script(store).train(2)
    with pytest.raises(SystemExit) as caught:
        Script(store, newer)
    assert isinstance(caught.value.__cause__, Refused)
    assert "hyperparameters.optim[0].cautious" in str(caught.value.__cause__)
    resumed = Script(store, newer, allow=lambda script: ("hyperparameters",)).train(3)
    assert resumed.optimizer.param_groups[0]["cautious"] is True
