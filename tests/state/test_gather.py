from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.state.memory_source import WORDS, MemorySource
from trainer_runtime.contract.allow import Allow
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.data import open_source
from trainer_runtime.state.gather import TrainingState
from trainer_runtime.state.model import World


class Meter:
    """Counts, in a tensor and a number."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros(2), 0

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "count": (self.count,)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, (self.count,) = state["total"], state["count"]


class Script:
    """What a training script builds, and one step of it."""

    def __init__(self, seed: int = 0, **changes: Any) -> None:
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 6)
        self.model = nn.Sequential(self.first, nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, changes.get("out", 1)))
        self.optimizer = changes.get("optimizer", torch.optim.AdamW)(self.model.parameters(), lr=changes.get("lr", 0.1))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=changes.get("gamma", 0.5))
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.meter = Meter()
        self.generator = torch.Generator().manual_seed(seed)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        more = {name: getattr(self, name) for name in ("optimizer", "scheduler", "ema", "meter", "generator", "scaler")}
        more = {name: value for name, value in more.items() if name not in changes.get("without", ())}
        self.state = TrainingState(
            model=self.model, data=open_source(None, World()), world=World(), more=more, config=changes.get("config")
        )

    def step(self) -> float:
        loss = self.model(torch.randn(5, 4, generator=self.generator)).pow(2).mean() * random.random()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.ema.update_parameters(self.model)
        self.meter.count += 1
        self.meter.total += loss.detach()
        self.state.data.advance()
        return float(loss.detach())

    def save(self) -> MemorySource:
        return MemorySource(self.state.snapshot({"iterating": True}), self.state.describe())


def resumed(source: MemorySource, script: Script, allowed: frozenset[Allow] = frozenset()) -> Script:
    found = script.state.compare(source, WORDS)
    words = frozenset(difference.allow for difference in found if difference.allow)
    assert words <= allowed, found
    rng = script.state.restore(source, words)
    if rng is not None:
        script.state.restore_rng(rng)
    return script


@pytest.mark.parametrize("done", [0, 1, 5])
def test_a_restored_script_goes_on_bit_for_bit_with_everything_it_has(done: int) -> None:
    first = Script()
    for _ in range(done):
        first.step()
    source = first.save()
    expected = [first.step() for _ in range(6)]
    second = resumed(source, Script(seed=99))
    assert [second.step() for _ in range(6)] == expected
    assert second.save().objects(0) == first.save().objects(0)
    assert all(torch.equal(left, right) for left, right in zip(first.ema.parameters(), second.ema.parameters(), strict=True))
    assert (second.meter.count, second.meter.total.tolist()) == (first.meter.count, first.meter.total.tolist())
    assert second.scheduler.get_last_lr() == first.scheduler.get_last_lr()


def test_taking_a_snapshot_changes_nothing() -> None:
    script = Script()
    script.step()
    before = script.save().objects(0)
    for _ in range(3):
        script.state.snapshot({"iterating": True})
    assert script.save().objects(0) == before


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"out": 2}, Allow.STRUCTURE),
        ({"optimizer": torch.optim.Adam}, Allow.OPTIMIZER),
        ({"lr": 0.2}, Allow.HYPER_PARAMETERS),
        ({"gamma": 0.1}, Allow.SCHEDULER),
        ({"without": ("scheduler",)}, Allow.SCHEDULER),
        ({"without": ("meter",)}, Allow.OBJECTS),
        ({"config": {"depth": 2}}, Allow.CONFIG),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_script_that_is_not_the_same_differs_and_can_be_allowed(changes: dict[str, Any], word: Allow) -> None:
    first = Script()
    first.step()
    source = first.save()
    other = Script(**changes)
    found = {difference.allow for difference in other.state.compare(source, WORDS)}
    assert word in found
    resumed(source, other, allowed=frozenset(Allow)).step()


def test_allowed_hyper_parameters_are_the_scripts() -> None:
    first = Script()
    first.step()
    second = resumed(first.save(), Script(lr=0.2, without=("scheduler",)), allowed=frozenset(Allow))
    assert second.optimizer.param_groups[0]["lr"] == 0.2


def test_a_warm_start_takes_the_weights_alone() -> None:
    first = Script()
    for _ in range(3):
        first.step()
    second = Script(seed=5, lr=0.7, without=("meter", "ema"))
    assert second.state.compare(first.save(), WORDS, weights_only=True) == []
    assert second.state.restore(first.save(), frozenset(), weights_only=True) is None
    assert all(
        torch.equal(left, right) for left, right in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    )
    assert not second.optimizer.state
    assert second.meter.count == 0


def test_a_warm_start_may_train_other_parameters() -> None:
    source = Script().save()
    second = Script(seed=5)
    second.first.requires_grad_(False)
    assert second.state.compare(source, WORDS, weights_only=True) == []


def test_a_rank_whose_random_numbers_were_not_saved_is_told_so() -> None:
    source = Script().save()
    source.drop("rank00000/rng")
    (difference,) = Script().state.compare(source, WORDS)
    assert (difference.where, difference.saved, difference.allow) == ("rng of rank 0", "", Allow.RNG)
    resumed(source, Script(), allowed=frozenset({Allow.RNG})).step()


def test_gradients_are_none_after_a_restore_or_zeros_where_the_script_keeps_them() -> None:
    first = Script()
    first.step()
    first.first.weight.grad = torch.ones_like(first.first.weight)
    second = resumed(first.save(), Script())
    assert second.first.bias.grad is None
    assert second.first.weight.grad is not None
    assert not second.first.weight.grad.any()


def test_gradients_that_wait_for_the_optimizer_are_no_boundary() -> None:
    script = Script()
    script.step()
    assert script.state.is_between_steps()
    script.model(torch.ones(2, 4)).sum().backward()
    assert not script.state.is_between_steps()
    script.optimizer.step()
    assert script.state.is_between_steps()


def test_what_cannot_be_saved_is_refused_by_its_keyword() -> None:
    with pytest.raises(ConfigurationError, match=r"meter: a dict has no state_dict\(\)"):
        TrainingState(model=nn.Linear(1, 1), data=open_source(None, World()), world=World(), more={"meter": {}})
