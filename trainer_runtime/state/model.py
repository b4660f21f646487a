"""A module's parameters and buffers as leaves: canonical names, aliases of tied weights, and whose value each one is.

It only lists what is there; no tensor is copied and nothing is registered. State that a module keeps outside parameters and buffers must
come through ``get_extra_state``; anything else is refused by name, because it would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import names, sharding
from trainer_runtime.state.leaves import Kind, Leaf

_EXTRA_STATE = "_extra_state"


@dataclass(frozen=True)
class World:
    """Which rank this is, of how many."""

    rank: int = 0
    size: int = 1

    def own(self, name: str) -> str:
        """Return ``name`` qualified by this rank."""
        return f"rank{self.rank:05d}/{name}"


def every_parameter(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return every parameter once, by its first canonical name."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for prefix, module in names.walk(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), (f"{prefix}{name}", parameter))
    return list(found.values())


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return every parameter that gets gradients, once, by its first canonical name."""
    return [(name, parameter) for name, parameter in every_parameter(model) if parameter.requires_grad]


def replicated_parameters(model: nn.Module, world: World) -> set[int]:
    """Return ``id(parameter)`` of those that every rank holds equal: all in a world of one, else those that DDP synchronises.

    What nobody synchronises is each rank's own, and stored once per rank: one rank's value for all would be silently wrong.
    """
    if world.size == 1:
        return {id(parameter) for parameter in model.parameters()}
    found: set[int] = set()
    for prefix, wrapper in names.wrappers(model):
        ignored = wrapper.parameters_to_ignore
        for name, parameter in wrapper.module.named_parameters():
            if name not in ignored:
                if sharding.is_sharded(parameter):
                    raise ConfigurationError(
                        f"model: {prefix}{name} is a DTensor under DistributedDataParallel; who holds which block cannot be told. "
                        "Use fully_shard on a mesh with a replicated dimension"
                    )
                found.add(id(parameter))
    return found


def model_leaves(model: nn.Module, world: World, prefix: str = "model") -> tuple[Leaf, ...]:
    """Return every parameter and persistent buffer of ``model``, ``<prefix>/<canonical name>``. Of a sharded one this rank's block.

    In a world of several ranks buffers are each rank's own, even under DDP: it broadcasts rank 0's at the *start* of a forward, so between
    two steps they differ.
    Raises ConfigurationError for a tensor that cannot be filled in place: one without memory, or whose elements share it.
    """
    replicated = replicated_parameters(model, world)
    leaves: list[Leaf] = []
    seen: dict[Any, str] = {}
    for name, tensor, is_parameter in tensors(model):
        local = sharding.local_part(tensor)
        fault = _find_fault(local)
        if fault is not None:
            raise ConfigurationError(f"{prefix}: {name} {fault}")
        plain = f"{prefix}/{name}"
        shard = sharding.find_shard(tensor, plain, world.size)
        is_shared = shard is None and (id(tensor) in replicated if is_parameter else world.size == 1)
        own = plain if is_shared or shard is not None else world.own(plain)
        identity = _identity(tensor)
        alias = seen.get(identity) if identity is not None else None
        if identity is not None:
            seen.setdefault(identity, own)
        frozen = _frozen_version(tensor, is_parameter)
        leaves.append(Leaf(own, local, Kind.MODEL, is_shared, bool(tensor.requires_grad), alias, shard, frozen))
    return tuple(leaves)


def extra_states(model: nn.Module, prefix: str = "model") -> dict[str, Any]:
    """Return what modules give by ``get_extra_state``, by canonical name."""
    if not any(map(_gives_extra_state, set(map(type, names.every_module(model))))):
        return {}
    return {f"{prefix}/{where}{_EXTRA_STATE}": module.get_extra_state() for where, module in names.walk(model) if _has_extra_state(module)}


def load_extra_states(model: nn.Module, states: dict[str, Any], prefix: str = "model") -> None:
    """Give each module its extra state back."""
    for where, module in names.walk(model):
        if _has_extra_state(module):
            module.set_extra_state(states[f"{prefix}/{where}{_EXTRA_STATE}"])


def non_persistent_buffers(model: nn.Module, prefix: str = "model") -> tuple[str, ...]:
    """Return the names of buffers that the model itself says not to save; the manifest lists them."""
    if not any(module._non_persistent_buffers_set for module in names.every_module(model)):
        return ()
    return tuple(
        f"{prefix}/{where}{name}"
        for where, module in names.walk(model)
        for name in module._buffers
        if name in module._non_persistent_buffers_set
    )


def check_complete(model: nn.Module, keyword: str = "model") -> None:
    """Raise ConfigurationError when ``state_dict()`` holds what parameters, buffers and extra states do not, or the other way round."""
    ours = {name for name, _tensor, _is_parameter in tensors(model)}
    ours |= {f"{where}{_EXTRA_STATE}" for where, module in names.walk(model) if _has_extra_state(module)}
    theirs = {names.canonical(model, raw) for raw in model.state_dict()}
    if ours != theirs:
        odd = sorted(ours ^ theirs)
        raise ConfigurationError(
            f"{keyword}: state_dict() differs from the parameters and buffers at {', '.join(odd[:5])} ({len(odd)} in all); "
            "state that is neither must come through get_extra_state()"
        )


def tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield every parameter and persistent buffer, in the order of `model_leaves`: canonical name, tensor, whether it is a parameter."""
    for prefix, module in names.walk(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{prefix}{name}", parameter, True
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}{name}", buffer, False


def _frozen_version(tensor: torch.Tensor, is_parameter: bool) -> int | None:
    """Return the version of a tensor that training is not expected to change: a parameter without gradient, or a buffer of one byte per
    element, which is how quantised weights are kept."""
    expected = not tensor.requires_grad and (is_parameter or tensor.dtype.itemsize == 1)
    return tensor._version if expected and not tensor.is_inference() else None


def _find_fault(tensor: torch.Tensor) -> str | None:
    if hasattr(tensor, "__tensor_flatten__"):
        return f"is a {type(tensor).__name__}, a tensor made of other tensors; keep those as parameters and buffers of their own"
    if tensor.is_nested:
        return "is a nested tensor, which has no shape; keep the tensors that it is made of as buffers of their own"
    if tensor.is_meta:
        return "lies on the meta device and has no values; materialise the model before attach()"
    if tensor.layout is not torch.strided:
        return f"is a {tensor.layout} tensor; only dense ones can be saved: keep its indices and values as tensors of their own"
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return "is an expanded tensor, whose elements share memory and cannot be restored one by one; register a clone() of it"
    if tensor.is_conj() or tensor.is_neg():
        return "is a view that negates what lies in memory; register resolve_conj().resolve_neg() of it"
    return None


def _has_extra_state(module: nn.Module) -> bool:
    return _gives_extra_state(type(module))


def _gives_extra_state(kind: type[nn.Module]) -> bool:
    return kind.get_extra_state is not nn.Module.get_extra_state


def _identity(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what two tensors share when they are the same memory seen the same way; None for an empty one, which shares with nobody."""
    if sharding.is_sharded(tensor):
        return (id(tensor),)  # a rank whose block is empty must see the same ties as the others
    if tensor.numel() == 0:
        return None
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
