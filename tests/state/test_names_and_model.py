from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import model, names
from trainer_runtime.state.model import World


class Tied(nn.Module):
    """A user's own attribute is called ``module``; the head shares the embedding's weight; one buffer is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.module = nn.Linear(3, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(1), persistent=False)


OWN_NAMES = ["frozen", "steps", "embedding.weight", "module.weight", "module.bias", "head.weight"]


@pytest.fixture(scope="module")
def gloo() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(kind: str) -> nn.Module:
    plain: Any = Tied()
    if kind == "ddp":
        return DistributedDataParallel(plain)
    if kind == "compiled":
        return cast(nn.Module, torch.compile(plain))
    if kind == "ddp of compiled":
        return DistributedDataParallel(torch.compile(plain))
    if kind == "compiled ddp":
        return cast(nn.Module, torch.compile(DistributedDataParallel(plain)))
    if kind == "recomputed":
        return checkpoint_wrapper(plain)
    if kind == "recomputed compiled":
        return checkpoint_wrapper(cast(nn.Module, torch.compile(plain)))
    if kind == "compiled recomputed":
        return cast(nn.Module, torch.compile(checkpoint_wrapper(plain)))
    if kind == "recomputed, a part compiled":
        plain.module = torch.compile(plain.module)
        return checkpoint_wrapper(plain)
    return DataParallel(plain) if kind == "data parallel" else plain


KINDS = [
    "plain",
    "ddp",
    "compiled",
    "ddp of compiled",
    "compiled ddp",
    "data parallel",
    "recomputed",
    "recomputed compiled",
    "compiled recomputed",
    "recomputed, a part compiled",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("gloo")
def test_names_are_the_same_whatever_wraps_the_model(kind: str) -> None:
    leaves = model.model_leaves(wrapped(kind), World())
    assert [leaf.name for leaf in leaves] == [f"model/{name}" for name in OWN_NAMES]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("gloo")
def test_state_dict_names_become_canonical_and_only_wrappers_are_taken_out(kind: str) -> None:
    module = wrapped(kind)
    assert sorted(names.canonical(module, raw) for raw in module.state_dict()) == sorted(OWN_NAMES)
    model.check_complete(module)


@pytest.mark.usefixtures("gloo")
def test_a_wrapped_part_of_a_model_is_named_by_its_place() -> None:
    whole = nn.Sequential(nn.Linear(2, 2), DistributedDataParallel(nn.Linear(2, 2)))
    assert [leaf.name for leaf in model.model_leaves(whole, World())] == [
        "model/0.weight",
        "model/0.bias",
        "model/1.weight",
        "model/1.bias",
    ]
    assert [name for name, _wrapper in names.wrappers(whole)] == ["1."]


def test_a_tied_weight_is_listed_as_an_alias_of_its_first_name() -> None:
    leaves = {leaf.name: leaf for leaf in model.model_leaves(Tied(), World())}
    assert leaves["model/head.weight"].alias_of == "model/embedding.weight"
    assert [name for name, leaf in leaves.items() if leaf.alias_of] == ["model/head.weight"]


def test_a_frozen_parameter_is_saved_and_said_to_be_frozen() -> None:
    leaves = {leaf.name: leaf.requires_grad for leaf in model.model_leaves(Tied(), World())}
    assert (leaves["model/frozen"], leaves["model/module.weight"], leaves["model/steps"]) == (False, True, False)


def test_a_buffer_that_is_not_persistent_is_named_among_what_is_not_saved() -> None:
    assert model.non_persistent_buffers(Tied()) == ("model/cache",)


def test_what_nobody_synchronises_is_each_ranks_own() -> None:
    leaves = model.model_leaves(nn.BatchNorm1d(2), World(1, 3))
    assert {leaf.replicated for leaf in leaves} == {False}
    assert all(leaf.name.startswith("rank00001/model/") for leaf in leaves)


@pytest.mark.usefixtures("gloo")
def test_under_ddp_parameters_are_shared_and_buffers_are_each_ranks_own() -> None:
    leaves = model.model_leaves(DistributedDataParallel(nn.BatchNorm1d(2)), World(1, 3))
    assert [(leaf.name, leaf.replicated) for leaf in leaves][:3] == [
        ("model/weight", True),
        ("model/bias", True),
        ("rank00001/model/running_mean", False),
    ]


def test_a_model_on_the_meta_device_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="weight lies on the meta device"):
        model.model_leaves(nn.Linear(2, 2, device="meta"), World())


class Hidden(nn.Linear):
    """Puts something into its state_dict that is neither parameter nor buffer."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "scale": torch.ones(1)}


def test_state_that_would_be_lost_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"at scale .*get_extra_state"):
        model.check_complete(Hidden(2, 2))


class Counting(nn.Linear):
    """Keeps a count by the way that torch gives for it."""

    count = 0

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_extra_state_goes_out_and_back() -> None:
    first, second = Counting(2, 2), Counting(2, 2)
    first.count = 7
    model.check_complete(nn.Sequential(first))
    states = model.extra_states(nn.Sequential(first))
    assert states == {"model/0._extra_state": {"count": 7}}
    model.load_extra_states(nn.Sequential(second), states)
    assert second.count == 7


def test_what_training_should_not_change_is_marked_with_torchs_count_of_its_changes() -> None:
    module = nn.Linear(3, 2)
    module.weight.requires_grad_(False)
    module.register_buffer("quantised", torch.zeros(4, dtype=torch.int8))
    module.register_buffer("running", torch.zeros(4))
    before = module.weight._version
    with torch.no_grad():
        module.weight.add_(1)
    found = {leaf.name: leaf.frozen_version for leaf in model.model_leaves(module, World())}
    assert found == {"model/weight": before + 1, "model/bias": None, "model/quantised": 0, "model/running": None}
