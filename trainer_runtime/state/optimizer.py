"""Optimizer state by parameter name. ``state_dict()`` is positional: two parameters of one shape that swap places swap their moments.

Nothing here runs ``optimizer.step()`` to make slots appear: that changes training. A save before the first step has no slots and restores
to none; a restore makes exactly the slots that were saved, with their dtype, shape and device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import sharding, tree
from trainer_runtime.state.leaves import Kind, Leaf
from trainer_runtime.state.model import World

_NOT_HYPER_PARAMETERS = ("params", "param_names")
_SHARDED = "ZeroRedundancyOptimizer"


@dataclass(frozen=True)
class OptimizerState:
    """One optimizer seen through its parameters' names. ``prefix`` begins the names of its leaves and objects."""

    optimizer: Optimizer
    names: dict[int, str]
    """First canonical name by ``id(parameter)``. Whoever made this keeps it up to date: an id says nothing of a parameter that the script
    put in another's place since."""
    replicated: set[int]
    """Parameters that every rank holds equal: their slots are equal too. Kept up to date as ``names`` is."""
    world: World
    prefix: str = "optim"

    def check(self) -> None:
        """Raise ConfigurationError for an optimizer whose state cannot be promised, naming what is in the way."""
        kind = type(self.optimizer)
        if kind.__name__ == _SHARDED:
            raise ConfigurationError(f"{self.prefix}: {_SHARDED} keeps slots on one rank only and is not supported; use fully_shard")
        extra = sorted(set(self.optimizer.state_dict()) - {"state", "param_groups"})
        if extra:
            raise ConfigurationError(f"{self.prefix}: {kind.__qualname__}.state_dict() has keys that are not known: {', '.join(extra)}")
        self.check_names()

    def check_names(self) -> None:
        """Raise ConfigurationError for a parameter that has no name, because no module holds it."""
        for index, group in enumerate(self.optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) not in self.names:
                    raise ConfigurationError(
                        f"{self.prefix}: parameter {position} of group {index}, shape {tuple(parameter.shape)}, is not in any module given "
                        "to attach(); build the optimizer from model.parameters() after the model is wrapped and moved"
                    )

    def describe(self) -> dict[str, Any]:
        """Return class, and per group its parameters' names and hyper-parameters as they are now: what a strict resume compares."""
        return {
            "class": f"{type(self.optimizer).__module__}.{type(self.optimizer).__qualname__}",
            "groups": [
                {"parameters": self.names_of(group["params"]), "hyper": {key: _plain(value) for key, value in _hyper(group).items()}}
                for group in self.optimizer.param_groups
            ],
        }

    def gather_slots(self) -> tuple[list[Leaf], dict[str, Any]]:
        """Return slots as leaves, in their order, and the objects that say which slots there are. Changes nothing.

        Raises ConfigurationError for state that belongs to no parameter.
        """
        keys: Iterable[object] = self.optimizer.state
        strangers = [repr(key) for key in keys if not isinstance(key, torch.Tensor)]
        if strangers:
            raise ConfigurationError(
                f"{self.prefix}: {type(self.optimizer).__qualname__}.state has keys that are not parameters: {', '.join(strangers[:5])} "
                f"({len(strangers)} in all); what belongs to no parameter is saved when it is kept in param_groups"
            )
        leaves: list[Leaf] = []
        shared: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for parameter in self.parameters():
            slots = self.optimizer.state.get(parameter)
            if slots is None:
                continue
            name, is_shared = self.names[id(parameter)], id(parameter) in self.replicated
            base = f"{self.prefix}/{name}"
            own_base = base if is_shared else self.world.own(base)
            skeleton: dict[Any, Any] = {}
            for key, slot in slots.items():
                if isinstance(slot, torch.Tensor) and sharding.is_sharded(slot):
                    leaf = self._sharded_slot(tree.child_path(name, key), slot, parameter)
                    leaves.append(leaf)
                    skeleton[key] = tree.reference_to(leaf.name, slot, parameter.device)
                else:
                    tensors, skeleton[key] = tree.flatten(slot, tree.child_path(own_base, key), parameter.device)
                    leaves.extend(Leaf(path, tensor, Kind.OPTIM, is_shared) for path, tensor in tensors.items())
            (shared if is_shared else own)[name] = skeleton
        return leaves, {f"{self.prefix}.slots": shared, self.world.own(f"{self.prefix}.slots"): own}

    def gather_groups(self) -> tuple[list[Leaf], dict[str, Any]]:
        """Return what the groups hold: hyper-parameters that are tensors as leaves, and the object that has everything. Changes nothing."""
        name = self.world.own(f"{self.prefix}.groups")
        tensors, skeleton = tree.flatten([_hyper(group) for group in self.optimizer.param_groups], name, self._device())
        leaves = [Leaf(leaf, tensor, Kind.OPTIM, replicated=False) for leaf, tensor in tensors.items()]
        names = [self.names_of(group["params"]) for group in self.optimizer.param_groups]
        return leaves, {name: [{"names": held, **hyper} for held, hyper in zip(names, skeleton, strict=True)]}

    def allocate(self, objects: dict[str, Any]) -> list[tuple[Leaf, torch.Tensor]]:
        """Return an empty tensor for every one that the checkpoint holds for this optimizer, each with the leaf to fill it through; the
        tensors are for ``install``."""
        by_name = {self.names[id(parameter)]: parameter for parameter in self.parameters()}
        allocated = [
            self._empty_slot(reference, by_name[name])
            for key in (f"{self.prefix}.slots", self.world.own(f"{self.prefix}.slots"))
            for name, skeleton in objects[key].items()
            for reference in tree.references(skeleton)
        ]
        for reference in tree.references(objects[self.world.own(f"{self.prefix}.groups")]):
            tensor = tree.allocate(reference, self._device())
            allocated.append((Leaf(reference.name, tensor, Kind.OPTIM, replicated=False), tensor))
        return allocated

    def install(self, objects: dict[str, Any], tensors: dict[str, torch.Tensor], keep_hyper_parameters: bool = False) -> None:
        """Replace slots and group values by the checkpoint's. ``keep_hyper_parameters``: the groups' values stay as the script set them."""
        by_name = {self.names[id(parameter)]: parameter for parameter in self.parameters()}
        self.optimizer.state.clear()
        for key in (f"{self.prefix}.slots", self.world.own(f"{self.prefix}.slots")):
            for name, skeleton in objects[key].items():
                self.optimizer.state[by_name[name]] = tree.unflatten(skeleton, tensors)
        if keep_hyper_parameters:
            return
        groups = tree.unflatten(objects[self.world.own(f"{self.prefix}.groups")], tensors)
        for group, saved in zip(self.optimizer.param_groups, groups, strict=True):
            for key, value in saved.items():
                if key != "names":
                    group[key] = value

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all groups, in their order."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def names_of(self, parameters: Iterable[torch.Tensor]) -> list[str]:
        """Return the canonical names of parameters."""
        return list(map(self.names.__getitem__, map(id, parameters)))

    def _sharded_slot(self, path: str, slot: torch.Tensor, parameter: torch.Tensor) -> Leaf:
        """Return the leaf of a slot that lies as its parameter lies: only such a slot can be made again without asking the optimizer."""
        if not sharding.lie_alike(slot, parameter):
            raise ConfigurationError(f"{path}: is a DTensor whose shape or placements are not its parameter's; it cannot be saved")
        name = f"{self.prefix}/{path}"
        shard = sharding.find_shard(slot, name, self.world.size)
        own = name if shard is not None else self.world.own(name)
        return Leaf(own, sharding.local_part(slot), Kind.OPTIM, replicated=False, shard=shard)

    def _empty_slot(self, reference: tree.TensorRef, parameter: torch.Tensor) -> tuple[Leaf, torch.Tensor]:
        """Make a slot of the parameter's own shape in its memory layout, as optimizers do: fused kernels want equal strides."""
        if reference.device == tree.OWN_DEVICE and reference.shape == tuple(parameter.shape) and reference.dtype in tree.DTYPES:
            tensor = sharding.empty_like(parameter, tree.DTYPES[reference.dtype])
        else:
            tensor = tree.allocate(reference, parameter.device)
        shard = sharding.find_shard(tensor, reference.name, self.world.size)
        is_shared = shard is None and reference.name.startswith(f"{self.prefix}/")
        return Leaf(reference.name, sharding.local_part(tensor), Kind.OPTIM, is_shared, shard=shard), tensor

    def _device(self) -> torch.device:
        parameters = self.parameters()
        return parameters[0].device if parameters else torch.device("cpu")


def check_schedulers(states: Iterable[OptimizerState]) -> None:
    """Raise ConfigurationError for a learning rate scheduler that drives one of the optimizers. For a script that gave none to attach().

    Its position would be lost at a resume, and making it sets the rate back. torch marks the optimizers that one drives.
    """
    if any(getattr(state.optimizer.step, "_wrapped_by_lr_sched", False) for state in states):
        raise ConfigurationError(
            "scheduler: a learning rate scheduler drives the optimizer and was not given to attach(), so a resume would begin its "
            "schedule anew; make it before attach() and give it as scheduler="
        )


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NOT_HYPER_PARAMETERS}


def _plain(value: Any) -> Any:
    """Return a tensor hyper-parameter (capturable lr) as its number, so that it can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value
