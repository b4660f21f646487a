"""Whatever changes between two saves, the later snapshot is the one that a state would give which remembers nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import tree
from trainer_runtime.state.data import open_source
from trainer_runtime.state.gather import TrainingState
from trainer_runtime.state.leaves import Leaf, Snapshot
from trainer_runtime.state.model import World


class Net(nn.Module):
    """A part that two optimizers train, and one that nobody does, with something of every kind."""

    count: torch.Tensor
    one: Any
    two: Any

    def __init__(self) -> None:
        super().__init__()
        self.trained: Any = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
        self.other: Any = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 3, bias=False)})
        self.other["c"].weight = self.other["b"].weight
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("quantised", torch.zeros(4, dtype=torch.int8))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    @property
    def a(self) -> Any:
        return self.other["a"]

    @property
    def b(self) -> Any:
        return self.other["b"]


class Script:
    """What a script gives to attach()."""

    def __init__(self, model: Any = None, world: World | None = None) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.model = self.net if model is None else model(self.net)
        self.adam = torch.optim.AdamW(self.net.trained[0].parameters(), lr=0.1)
        self.sgd = torch.optim.SGD(self.net.trained[1].parameters(), lr=0.1, momentum=0.9)
        self.ema: Any = AveragedModel(self.net.trained)
        self.world = world or World()
        self.data = open_source(None, self.world)
        self.step()
        self.state = self.attached()

    def attached(self) -> TrainingState:
        more = {"optimizer": self.adam, "second": self.sgd, "ema": self.ema}
        return TrainingState(model=self.model, data=self.data, world=self.world, more=more)

    def step(self) -> None:
        for parameter in self.net.trained.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.adam.step()
        self.sgd.step()
        self.adam.zero_grad()
        self.sgd.zero_grad()
        self.ema.update_parameters(self.net.trained)

    @property
    def slots(self) -> Any:
        return self.adam.state[self.net.trained[0].weight]


def assert_same(one: Snapshot, other: Snapshot) -> None:
    assert [without_tensor(leaf) for leaf in one.leaves] == [without_tensor(leaf) for leaf in other.leaves]
    for left, right in zip(one.leaves, other.leaves, strict=True):
        assert memory_of(left.tensor) == memory_of(right.tensor), left.name
        assert not left.tensor.requires_grad and type(left.tensor) is torch.Tensor, left.name
    assert [tree.encode(value) for value in one.objects.values()] == [tree.encode(value) for value in other.objects.values()]
    assert list(one.objects) == list(other.objects)


def without_tensor(leaf: Leaf) -> tuple[Any, ...]:
    name, _tensor, *rest = leaf
    return name, *rest


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.tolist()


Change = Callable[[Script], object]


def set_slot(name: str, value: Any) -> Change:
    return lambda script: script.slots.update({name: value})


def forget_names(*names: str) -> Change:
    return lambda script: [script.slots.pop(name) for name in names]


def as_parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone())


def swap_children(script: Script) -> None:
    script.net.other["a"], script.net.other["b"] = script.net.b, script.net.a


def rename_child(script: Script) -> None:
    script.net.other["z"] = script.net.other.pop("c")


def add_neighbours(script: Script) -> None:
    script.net.one, script.net.two = nn.Module(), nn.Module()
    script.net.one.register_parameter("held", nn.Parameter(torch.ones(2)))


def move_parameter(script: Script) -> None:
    """What the modules hold, laid end to end, stays the same."""
    script.net.two.register_parameter("held", script.net.one._parameters.pop("held"))


def rename_parameter(script: Script) -> None:
    script.net.a.gain = script.net.a._parameters.pop("weight")


def make_buffer_of_parameter(script: Script) -> None:
    frozen = script.net._parameters.pop("frozen")
    script.net.register_buffer("frozen", frozen)


def change_in_place(script: Script) -> None:
    with torch.no_grad():
        script.net.frozen.add_(1)
        script.net.count.add_(1)
        script.net.a.weight.mul_(2)


def tie_by_memory(script: Script) -> None:
    script.net.b.bias.data = script.net.a.bias.data


def tie_new_objects(script: Script) -> None:
    script.net.b.bias = nn.Parameter(script.net.a.bias.data)


def untie_by_memory(script: Script) -> None:
    """Both are one object: now a second one has memory of its own."""
    script.net.other["c"].weight = as_parameter(script.net.b.weight)


def other_memory(script: Script) -> None:
    for module in script.net.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values()]:
            if tensor is not None:
                tensor.data = tensor.data.clone()


def set_memory(script: Script) -> None:
    other = torch.arange(3.0)
    script.net.count.set_(other.untyped_storage(), 0, other.size(), other.stride())


class WithExtra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"extra": self.in_features}

    def set_extra_state(self, state: Any) -> None:
        del state


class Holder(nn.Module):
    """Has a child of the name that a wrapper's has."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


def add_holder(script: Script) -> None:
    script.net.one = Holder()


def make_wrapper_of_holder(script: Script) -> None:
    """The tree stays what it was, and the names do not."""
    script.net.one.__class__ = nn.DataParallel


def change_class(script: Script) -> None:
    script.net.a.__class__ = WithExtra


def clear_slots(script: Script) -> None:
    script.adam.state.clear()


def clear_and_step(script: Script) -> None:
    script.adam.state.clear()
    script.step()


def replace_slot(script: Script) -> None:
    script.slots["exp_avg"] = script.slots["exp_avg"].clone()


def turn_slots(script: Script) -> None:
    """The same slots in another order."""
    items = list(script.slots.items())
    script.slots.clear()
    script.slots.update(reversed(items))


def turn_equal_slots(script: Script) -> None:
    """As before, of slots that nothing but their names tells apart."""
    script.slots["exp_avg"] = script.slots.pop("exp_avg")


def give_slots_away(script: Script) -> None:
    """From one parameter of a shape to the other, which had none."""
    weight, bias = script.net.trained[1].weight, script.net.trained[1].bias
    script.sgd.state.pop(bias)
    script.state.snapshot({})
    script.sgd.state[bias] = script.sgd.state.pop(weight)


def give_one_slot_away(script: Script) -> None:
    weight, bias = script.net.trained[1].weight, script.net.trained[1].bias
    script.sgd.state[weight]["more"], script.sgd.state[bias] = torch.ones(3), {}
    script.state.snapshot({})
    script.sgd.state[bias]["more"] = script.sgd.state[weight].pop("more")


def forget_versions(script: Script) -> None:
    """An inference tensor has none."""
    with torch.inference_mode():
        script.net.quantised = torch.zeros(4, dtype=torch.int8)


def swap_slots(script: Script) -> None:
    script.slots["exp_avg"], script.slots["exp_avg_sq"] = script.slots["exp_avg_sq"], script.slots["exp_avg"]


def drop_one_parameters_slots(script: Script) -> None:
    del script.adam.state[script.net.trained[0].bias]


def swap_trained_parameters(script: Script) -> None:
    """Each keeps its slots and its group, and is called what the other was called."""
    linear, norm = script.net.trained
    linear.bias, norm.bias = norm.bias, linear.bias


def replace_trained_parameter(script: Script) -> None:
    old, new = script.net.trained[0].weight, as_parameter(script.net.trained[0].weight)
    script.net.trained[0].weight = new
    script.adam.param_groups[0]["params"][0] = new
    script.adam.state[new] = script.adam.state.pop(old)


def rename_trained(script: Script) -> None:
    script.net.one = script.net._modules.pop("trained")


def hand_trained_to_another_module(script: Script) -> None:
    """It goes by the name that it has in the first module which holds it."""
    script.ema.held = script.net.trained[1].bias
    script.net.trained[1].bias = None


def parametrize_trained(script: Script) -> None:
    nn.utils.parametrize.register_parametrization(script.net.trained[0], "weight", nn.Identity())


def train_newcomer_of_same_id(script: Script) -> None:
    """Python gives the id of what was dropped to what is made next."""
    bias = script.net.trained[0].bias
    identity = id(bias)
    del script.adam.state[bias]
    script.adam.param_groups[0]["params"] = [script.net.trained[0].weight]
    script.net.trained[0].bias = None
    values, others = torch.ones(3), []
    del bias
    newcomer = nn.Parameter(values)  # of nothing new but itself: a tensor made here would take the place that has come free
    while id(newcomer) != identity:
        others.append(newcomer)
        newcomer = nn.Parameter(values)
        assert len(others) < 100_000, "no newcomer has the id"
    script.net.newcomer = newcomer
    script.adam.add_param_group({"params": [newcomer]})
    script.adam.state[newcomer] = {"exp_avg": torch.ones(3)}


def add_group(script: Script) -> None:
    script.adam.add_param_group({"params": [script.net.a.weight], "lr": 0.5})


def keep_gradient(script: Script) -> None:
    script.net.trained[0].bias.grad = torch.zeros(3)


CHANGES: dict[str, list[Change]] = {
    "nothing": [lambda script: None],
    "values": [Script.step],
    "a child is added": [lambda script: script.net.other.update({"d": nn.Linear(3, 3)})],
    "a child is replaced": [lambda script: script.net.other.update({"a": nn.Linear(3, 3)})],
    "a child is removed": [lambda script: script.net.other.pop("c"), lambda script: script.net.other.pop("b")],
    "a child is None": [
        lambda script: script.net.register_module("spare", None),
        lambda script: setattr(script.net, "spare", nn.Linear(1, 1)),
    ],
    "two children change places": [swap_children],
    "a child is renamed": [rename_child],
    "a child is wrapped": [lambda script: script.net.other.update({"a": nn.DataParallel(script.net.a)})],
    "a child's class has extra state": [change_class],
    "a child's class becomes a wrapper's": [add_holder, make_wrapper_of_holder],
    "a weight is parametrized": [lambda script: nn.utils.parametrize.register_parametrization(script.net.a, "weight", nn.Identity())],
    "a parameter is replaced": [lambda script: setattr(script.net.a, "weight", as_parameter(script.net.a.weight))],
    "a parameter is added": [lambda script: script.net.register_parameter("new", nn.Parameter(torch.ones(2)))],
    "a parameter is removed": [lambda script: delattr(script.net.a, "bias")],
    "a parameter is None": [lambda script: setattr(script.net.a, "bias", None)],
    "a parameter is renamed": [rename_parameter],
    "a parameter moves to a neighbour": [add_neighbours, move_parameter],
    "a parameter becomes a buffer": [make_buffer_of_parameter],
    "a buffer is replaced": [lambda script: setattr(script.net, "count", script.net.count + 1)] * 2,
    "a buffer is added": [lambda script: script.net.register_buffer("new", torch.ones(2))],
    "a buffer is removed": [lambda script: delattr(script.net, "count")],
    "a buffer is not persistent any more": [lambda script: script.net._non_persistent_buffers_set.add("count")],
    "another buffer is not persistent": [
        lambda script: script.net._non_persistent_buffers_set.add("count"),
        lambda script: script.net._non_persistent_buffers_set.remove("cache"),
    ],
    "a parameter is frozen": [lambda script: script.net.a.weight.requires_grad_(False)],
    "a parameter is not frozen any more": [lambda script: script.net.frozen.requires_grad_(True)],
    "a frozen parameter changes": [change_in_place] * 2,
    "a frozen tensor counts no changes": [forget_versions],
    "a dtype": [lambda script: script.net.a.double(), lambda script: script.net.half()],
    "a buffer has not one byte per element any more": [
        lambda script: setattr(script.net, "quantised", script.net.quantised.to(torch.int16)),
        lambda script: setattr(script.net, "quantised", script.net.quantised.to(torch.int8)),
    ],
    "a shape": [lambda script: setattr(script.net.a.weight, "data", torch.ones(2, 3))],
    "strides": [lambda script: setattr(script.net.a.weight, "data", script.net.a.weight.data.t().contiguous().t())],
    "the memory of everything": [other_memory] * 2,
    "the memory of a buffer": [set_memory],
    "a tie appears by object": [lambda script: setattr(script.net.a, "weight", script.net.b.weight)],
    "a tie appears by memory": [tie_by_memory, other_memory],
    "a tie appears by memory under a new object": [tie_new_objects],
    "a tie vanishes": [untie_by_memory],
    "a gradient is kept": [
        keep_gradient,
        lambda script: script.net.a.weight.backward(torch.ones(3, 3)),
        lambda script: script.net.zero_grad(),
    ],
    "another module of the script changes": [lambda script: setattr(script.ema.module[0].weight, "data", torch.ones(3, 3))],
    "slots vanish and come back": [clear_slots, Script.step],
    "slots are empty": [lambda script: script.slots.clear()],
    "slots are made anew": [clear_and_step],
    "one parameter's slots vanish": [drop_one_parameters_slots],
    "a slot is replaced": [replace_slot],
    "slots stand in another order": [turn_slots],
    "slots that look alike stand in another order": [turn_equal_slots],
    "two slots change places": [swap_slots],
    "slots go to another parameter": [give_slots_away],
    "one slot goes to another parameter": [give_one_slot_away],
    "a slot is added": [set_slot("more", torch.ones(2)), Script.step],
    "a slot is removed": [forget_names("exp_avg"), forget_names("exp_avg_sq", "step")],
    "a slot's dtype": [set_slot("exp_avg", torch.ones(3, 3, dtype=torch.float64))],
    "a slot's shape": [set_slot("exp_avg", torch.ones(3))],
    "a slot's memory": [lambda script: setattr(script.slots["exp_avg"], "data", torch.ones(3, 3))],
    "a slot is a parameter": [set_slot("exp_avg", nn.Parameter(torch.ones(3, 3)))],
    "a slot has a gradient": [lambda script: script.slots["exp_avg"].requires_grad_(True)],
    "a slot becomes a number": [set_slot("step", 3)],
    "a tensor and a number change places": [
        lambda script: script.slots.update(one=torch.ones(1), two=3),
        lambda script: script.slots.update(one=3, two=torch.ones(1)),
    ],
    "numbers that are equal and not the same": [set_slot("extra", value) for value in (1, True, 1.0, 0.0, -0.0, None, "1", 2, 3)],
    "a slot becomes a list": [set_slot("extra", [torch.ones(2), 1]), set_slot("extra", [torch.ones(3), 2])],
    "a slot becomes an array": [set_slot("extra", np.ones(2)), set_slot("extra", np.float32(1))],
    "a slot has a name that is not text": [
        set_slot("more", 1),
        lambda script: script.slots.update({1: 2}),
        lambda script: script.slots.pop(1),
    ],
    "hyper-parameters": [
        lambda script: script.adam.param_groups[0].update(lr=0.5),
        lambda script: script.sgd.param_groups[0].update(lr=torch.ones(1)),
    ],
    "a group is added": [add_group, lambda script: script.adam.state.update({script.net.a.weight: {"step": torch.ones(1)}})],
    "parameters of a group change places": [
        lambda script: script.adam.param_groups[0]["params"].reverse(),
        lambda script: script.sgd.param_groups[0]["params"].reverse(),
    ],
    "trained parameters change places": [swap_trained_parameters] * 2,
    "a trained parameter is replaced": [replace_trained_parameter] * 2,
    "a trained parameter's module is renamed": [rename_trained],
    "a trained parameter goes to another module": [hand_trained_to_another_module],
    "a trained weight is parametrized": [parametrize_trained],
    "a new parameter has the id of one that was dropped": [train_newcomer_of_same_id],
    "the other optimizer": [lambda script: script.sgd.state.clear(), Script.step],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_after_every_change_a_snapshot_is_that_of_a_state_which_remembers_nothing(changes: list[Change]) -> None:
    script = Script()
    for change in changes:
        script.state.snapshot({})
        change(script)
        for _ in range(2):
            assert_same(script.state.snapshot({}), script.attached().snapshot({}))


FAULTS: dict[str, tuple[torch.Tensor, str]] = {
    "conjugated": (torch.tensor([1 + 2j]).conj(), "negates"),
    "negated": (torch.tensor([1 + 2j]).conj().imag, "negates"),
    "expanded": (torch.ones(1).expand(3), "expanded"),
    "sparse": (torch.ones(3).to_sparse(), "sparse"),
    "without memory": (torch.empty(3, device="meta"), "meta"),
}


@pytest.mark.parametrize(("tensor", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_tensor_that_cannot_be_saved_any_more_is_refused(tensor: torch.Tensor, message: str) -> None:
    script = Script()
    script.net.count = torch.ones(tensor.shape, dtype=tensor.dtype)
    script.state.snapshot({})
    script.net.count = tensor
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=message):
            script.state.snapshot({})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_that_takes_a_buffers_place_is_refused() -> None:
    script = Script()
    script.state.snapshot({})
    script.net.count = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="count is a nested tensor"):
            script.state.snapshot({})


def test_a_tensor_that_is_conjugated_where_it_lies_is_refused() -> None:
    script = Script()
    script.net.count = torch.tensor([1 + 2j])
    script.state.snapshot({})
    script.net.count.data = script.net.count.data.conj()
    with pytest.raises(ConfigurationError, match="negates"):
        script.state.snapshot({})


def test_a_trained_parameter_that_no_module_holds_any_more_is_refused() -> None:
    script = Script()
    script.state.snapshot({})
    script.net.trained[0].bias = None
    with pytest.raises(ConfigurationError, match=r"optim: parameter 1 of group 0, shape \(3,\), is not in any module"):
        script.state.snapshot({})


def test_state_that_belongs_to_no_parameter_is_refused_whenever_it_appears() -> None:
    script = Script()
    script.state.snapshot({})
    state: Any = script.adam.state
    state["calls"] = {"count": 1}
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="keys that are not parameters: 'calls'"):
            script.state.snapshot({})


def test_what_did_not_change_is_not_worked_out_again() -> None:
    script = Script()
    first = script.state.snapshot({})
    script.step()
    other_memory(script)
    second = script.state.snapshot({})
    assert all(left.name is right.name for left, right in zip(first.leaves, second.leaves, strict=True))
    for name in ("optim.slots", "optim.second.slots"):
        assert tree.encode(first.objects[name]) is tree.encode(second.objects[name])


def test_nothing_that_the_script_drops_is_kept_alive() -> None:
    script = Script()
    owner = np.ones(9, dtype=np.float32)
    script.net.a.weight.data = torch.from_numpy(owner).view(3, 3)
    for _ in range(2):
        script.state.snapshot({})
    dropped = [weakref.ref(found) for found in (script.slots["exp_avg"], script.net.count, script.net.b, script.net.b.bias, owner)]
    del owner
    script.net.a.weight.data = torch.zeros(3, 3)
    script.net.count = torch.zeros(3)
    script.net.other["b"] = nn.Linear(3, 3)
    clear_and_step(script)
    gc.collect()
    assert [found() for found in dropped] == [None] * 5


class Marked(torch.Tensor):
    """A tensor class of the script's own."""


@pytest.mark.parametrize("place", ["module", "slot"])
def test_a_tensor_class_that_is_not_known_is_looked_at_in_every_save(place: str) -> None:
    script = Script()
    for size in (2, 3):
        tensor = torch.ones(size).as_subclass(Marked)
        if place == "module":
            script.net.count = tensor
        else:
            script.slots["more"] = tensor
        found = {leaf.name: leaf.tensor for leaf in script.state.snapshot({}).leaves}
        assert found["model/count" if place == "module" else "optim/trained.0.weight/more"].shape == (size,)


@pytest.fixture(scope="module")
def gloo() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("gloo")
def test_what_ddp_ignores_is_looked_at_in_every_save() -> None:
    script = Script(DistributedDataParallel, World(0, 2))
    script.state.snapshot({})
    assert isinstance(script.model, DistributedDataParallel)
    for name in ("other.a.weight", "other.b.weight", "trained.0.weight"):
        script.model.parameters_to_ignore.add(name)
        assert_same(script.state.snapshot({}), script.attached().snapshot({}))
        assert f"rank00000/model/{name}" in {leaf.name for leaf in script.state.snapshot({}).leaves}
    assert "rank00000/optim/trained.0.weight/exp_avg" in {leaf.name for leaf in script.state.snapshot({}).leaves}


def shard(net: Net) -> Net:
    mesh = init_device_mesh("cpu", (1,))
    for part in (net.a, net):
        fully_shard(part, mesh=mesh)
    return net


def look_with_whole_parameters(script: Script) -> None:
    """An evaluation: a forward that leaves gathered parameters behind."""
    with torch.no_grad():
        script.net.a(torch.ones(1, 3))


def freeze_sharded(script: Script) -> None:
    script.net.b.weight.requires_grad_(False)


SHARDED: dict[str, list[Change]] = {
    "values": [Script.step],
    "slots vanish and come back": [clear_slots, Script.step],
    "parameters are gathered": [look_with_whole_parameters] * 2,
    "a parameter is frozen": [freeze_sharded],
    "a slot is not sharded any more": [lambda script: script.slots.update(exp_avg=torch.ones(3, 3))],
    "a slot's block is another": [lambda script: script.slots.update(exp_avg=script.slots["exp_avg"] + 1)],
    "a buffer is added": [lambda script: script.net.register_buffer("new", torch.ones(2))],
}


@pytest.mark.parametrize("changes", SHARDED.values(), ids=SHARDED.keys())
@pytest.mark.usefixtures("gloo")
def test_after_every_change_a_snapshot_of_shards_is_that_of_a_state_which_remembers_nothing(changes: list[Change]) -> None:
    script = Script(shard)
    assert any(leaf.shard is not None for leaf in script.state.snapshot({}).leaves)
    for change in changes:
        script.state.snapshot({})
        change(script)
        for _ in range(2):
            assert_same(script.state.snapshot({}), script.attached().snapshot({}))


@pytest.mark.usefixtures("gloo")
def test_a_slot_that_does_not_lie_as_its_parameter_any_more_is_refused() -> None:
    """On one rank a shard and a copy of the whole are the same memory."""
    script = Script(shard)
    script.state.snapshot({})
    script.slots["exp_avg"] = script.slots["exp_avg"].redistribute(placements=[Replicate()])
    with pytest.raises(ConfigurationError, match="placements are not its parameter's"):
        script.state.snapshot({})


@pytest.mark.usefixtures("gloo")
def test_shards_that_did_not_change_are_not_worked_out_again() -> None:
    script = Script(shard)
    first = script.state.snapshot({})
    script.step()
    second = script.state.snapshot({})
    assert all(left.name is right.name for left, right in zip(first.leaves, second.leaves, strict=True))
