from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import ddp


@pytest.fixture(scope="module", autouse=True)
def gloo() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrap(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)), **options)


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 1),
        ({"gradient_as_bucket_view": True}, 1),
        ({"static_graph": True}, 2),
        ({"find_unused_parameters": True}, 0),
    ],
    ids=str,
)
def test_each_kind_gets_the_passes_it_needs_and_trains_on(options: dict[str, Any], passes: int) -> None:
    wrapper = wrap(**options)
    assert ddp.warm_up(wrapper) == passes
    wrapper(torch.ones(4, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in wrapper.parameters())


def test_the_warm_up_leaves_values_buffers_gradients_and_random_numbers_alone() -> None:
    wrapper = wrap()
    before = {name: value.clone() for name, value in wrapper.state_dict().items()}
    random_state = torch.get_rng_state()
    ddp.warm_up(wrapper)
    assert all(torch.equal(value, before[name]) for name, value in wrapper.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in wrapper.parameters())


def test_hooks_of_the_script_do_not_see_the_warm_up() -> None:
    wrapper = wrap()
    calls = []
    wrapper.module.register_forward_hook(lambda *_arguments: calls.append(1))
    ddp.warm_up(wrapper)
    assert calls == []


def test_a_model_without_ddp_needs_nothing() -> None:
    assert ddp.warm_up(nn.Linear(2, 2)) == 0
    assert ddp.describe(nn.Linear(2, 2)) == {}


def test_attaching_in_the_middle_of_training_is_refused() -> None:
    wrapper = wrap()
    wrapper(torch.ones(4, 3)).sum().backward()
    with pytest.raises(ConfigurationError, match="before the first backward"):
        ddp.warm_up(wrapper)


def test_a_sparse_embedding_is_refused_by_name() -> None:
    wrapper = DistributedDataParallel(nn.Sequential(nn.Embedding(3, 2, sparse=True)))
    with pytest.raises(ConfigurationError, match="sparse embedding 0"):
        ddp.warm_up(wrapper)


def test_a_hook_with_a_state_of_its_own_is_refused_by_its_class() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    wrapper = wrap()
    wrapper.register_comm_hook(PowerSGDState(None), powerSGD_hook)
    with pytest.raises(ConfigurationError, match="PowerSGDState"):
        ddp.warm_up(wrapper)


class Twice(nn.Module):
    """Uses its layer in two recomputed parts: two gradients for each parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        once: torch.Tensor = checkpoint(self.layer, x, use_reentrant=True)
        twice: torch.Tensor = checkpoint(self.layer, 2 * x, use_reentrant=True)
        return once + twice


def test_a_static_graph_whose_parameters_are_used_twice_is_refused_after_its_first_step() -> None:
    wrapper = DistributedDataParallel(Twice(), static_graph=True)
    watch = ddp.StaticGraphWatch(wrapper)
    wrapper(torch.ones(2, 3, requires_grad=True)).sum().backward()
    with pytest.raises(ConfigurationError, match=r"layer\.(weight|bias) got 2 gradients in 1 forward"):
        watch.check()


def test_a_static_graph_that_uses_each_parameter_once_passes() -> None:
    wrapper = wrap(static_graph=True)
    watch = ddp.StaticGraphWatch(wrapper)
    for _ in range(2):
        wrapper(torch.ones(4, 3)).sum().backward()
    watch.check()
