from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.leaves import Leaf
from trainer_runtime.state.model import World, every_parameter
from trainer_runtime.state.optimizer import OptimizerState

Make = Callable[[Any], torch.optim.Optimizer]

MAKERS: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "adamw capturable lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


def names_by_id(module: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in every_parameter(module)}


def seen(module: nn.Module, optimizer: torch.optim.Optimizer, world: World | None = None) -> OptimizerState:
    by_id = names_by_id(module)
    return OptimizerState(optimizer, by_id, set(by_id), world or World())


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def gathered(state: OptimizerState) -> tuple[list[Leaf], dict[str, Any]]:
    (slots, described), (values, groups) = state.gather_slots(), state.gather_groups()
    return slots + values, described | groups


def copied(source: OptimizerState, target: OptimizerState) -> None:
    leaves, objects = gathered(source)
    saved = {leaf.name: leaf.tensor.clone() for leaf in leaves}
    empty = target.allocate(objects)
    assert {leaf.name for leaf, _tensor in empty} == set(saved)
    for leaf, _tensor in empty:
        assert (leaf.tensor.dtype, leaf.tensor.shape, leaf.tensor.device) == (
            saved[leaf.name].dtype,
            saved[leaf.name].shape,
            saved[leaf.name].device,
        )
        leaf.tensor.copy_(saved[leaf.name])
    target.install(objects, {leaf.name: tensor for leaf, tensor in empty})


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("steps", [0, 3])
def test_an_optimizer_goes_on_bit_for_bit_in_a_new_process(make: Make, steps: int) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(5, 4), nn.Linear(5, 4)
    first_optimizer, second_optimizer = make(first.parameters()), make(second.parameters())
    train(first, first_optimizer, steps)
    second.load_state_dict(first.state_dict())
    copied(seen(first, first_optimizer), seen(second, second_optimizer))
    train(first, first_optimizer, 3)
    train(second, second_optimizer, 3)
    assert all(torch.equal(left, right) for left, right in zip(first.parameters(), second.parameters(), strict=True))


def test_a_save_before_the_first_step_has_no_slots_and_makes_none() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    leaves, _objects = gathered(seen(module, optimizer))
    assert leaves == []
    assert not optimizer.state


def test_slots_follow_their_parameter_when_the_order_changes() -> None:
    a, other_a = nn.Linear(3, 3), nn.Linear(3, 3)
    first, second = nn.ModuleDict({"a": a, "b": nn.Linear(3, 3)}), nn.ModuleDict({"b": nn.Linear(3, 3), "a": other_a})
    first_optimizer, second_optimizer = torch.optim.Adam(first.parameters()), torch.optim.Adam(second.parameters())
    train(first, first_optimizer, 2)
    copied(seen(first, first_optimizer), seen(second, second_optimizer))
    assert torch.equal(second_optimizer.state[other_a.weight]["exp_avg"], first_optimizer.state[a.weight]["exp_avg"])


def test_slots_are_named_by_their_parameter() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.5, lr=1.0)
    train(module, optimizer, 1)
    leaves, _objects = gathered(seen(module, optimizer))
    assert [leaf.name for leaf in leaves] == ["optim/weight/momentum_buffer", "optim/bias/momentum_buffer"]


def test_groups_are_listed_by_parameter_names_with_their_hyper_parameters() -> None:
    module = nn.Linear(2, 2)
    groups = [{"params": [module.bias], "weight_decay": 0.0}, {"params": [module.weight], "weight_decay": 0.5}]
    described = seen(module, torch.optim.AdamW(groups)).describe()
    assert [(group["parameters"], group["hyper"]["weight_decay"]) for group in described["groups"]] == [(["bias"], 0.0), (["weight"], 0.5)]


def test_the_scripts_hyper_parameters_stay_when_that_is_allowed() -> None:
    module = nn.Linear(2, 2)
    saved, live = torch.optim.SGD(module.parameters(), lr=0.5), torch.optim.SGD(module.parameters(), lr=0.25)
    _leaves, objects = gathered(seen(module, saved))
    seen(module, live).install(objects, {}, keep_hyper_parameters=True)
    assert live.param_groups[0]["lr"] == 0.25
    seen(module, live).install(objects, {})
    assert live.param_groups[0]["lr"] == 0.5


def test_what_only_this_rank_holds_carries_its_rank() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters())
    train(module, optimizer, 1)
    state = OptimizerState(optimizer, names_by_id(module), {id(module.weight)}, World(2, 3))
    leaves, _objects = gathered(state)
    assert {leaf.name.split("/")[0] for leaf in leaves if leaf.replicated} == {"optim"}
    assert {leaf.name.split("/")[2] for leaf in leaves if not leaf.replicated} == {"bias"}
    assert all(leaf.name.startswith("rank00002/") for leaf in leaves if not leaf.replicated)


def test_a_parameter_of_no_module_is_refused_with_its_place() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([module.weight, nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(ConfigurationError, match=r"parameter 1 of group 0, shape \(3,\)"):
        seen(module, optimizer).check()


class Counting(torch.optim.SGD):
    """Keeps something beside slots and groups."""

    def state_dict(self) -> Any:
        return {**super().state_dict(), "counter": 1}


def test_state_that_belongs_to_no_parameter_is_refused_by_name() -> None:
    module = nn.Linear(2, 2)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.state["calls"] = {"count": 1}
    with pytest.raises(ConfigurationError, match=r"optim: SGD\.state has keys that are not parameters: 'calls' \(1 in all\)"):
        seen(module, optimizer).gather_slots()


def test_an_optimizer_with_state_of_its_own_kind_is_refused_by_name() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match="keys that are not known: counter"):
        seen(module, Counting(module.parameters(), lr=0.1)).check()
