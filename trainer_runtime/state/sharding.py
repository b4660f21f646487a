"""Which block of a sharded tensor lies on this rank: DTensor seen as plain memory and a place in the whole. Nothing is gathered.

A DTensor whose mesh holds every rank is a tensor that the ranks hold together: each gives its block under the tensor's one name, and ranks
that hold the same block share the writing of it. A DTensor on a part of the ranks (a norm that only the data-parallel dimension shards, a
pipeline stage) is each rank's own block: nobody promises that the same name on other ranks means the same tensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import nn

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import names
from trainer_runtime.state.leaves import Shard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Say whether this is a DTensor. torch's module for them is not imported for the question: that costs every rank half a second, and
    before somebody has imported it there are none."""
    kind = find_class()
    return kind is not None and isinstance(tensor, kind)


def find_class() -> type[torch.Tensor] | None:
    """Return DTensor; None: nobody has imported it yet."""
    module = sys.modules.get("torch.distributed.tensor")
    return None if module is None else module.DTensor


def gather_nothing(module: nn.Module) -> None:
    """Let ``fully_shard`` put its sharded parameters back where a forward without a backward (an evaluation) left gathered ones."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        for child in names.every_module(module):
            if isinstance(child, fsdp.FSDPModule):
                child.reshard()


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies in this rank's memory, as a plain tensor that shares it."""
    detached = tensor.detach()
    return detached.to_local() if is_sharded(detached) else detached


def local_parts(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return `local_part` of each, but that a plain tensor is given as it is, with its gradient if it has one."""
    kind = find_class()
    if kind not in set(map(type, tensors)):
        return tensors
    with torch.no_grad():  # so a DTensor hands its block out as it is
        return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]


def find_shard(tensor: torch.Tensor, name: str, world_size: int) -> Shard | None:
    """Return the place of this rank's block, or None for a plain tensor and for a DTensor on a part of the ranks.

    Raises ConfigurationError, naming the tensor, when the block is no rectangle of the whole, or a sum that is not finished.
    """
    if not is_sharded(tensor):
        return None
    mesh, placements, shape = tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape)
    place = _place(mesh, placements, shape)
    if isinstance(place, str):
        raise ConfigurationError(f"{name}: {place}")
    found = tuple(local_part(tensor).shape)
    if found != place.shape:
        raise ConfigurationError(f"{name}: its block on this rank has shape {found}, but its placements {placements} say {place.shape}")
    return Shard(shape, place.offset, place.replicas) if mesh.size() == world_size else None


def lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two DTensors have the same shape and are cut over the same ranks in the same way."""
    if not (is_sharded(one) and is_sharded(other)):
        return False
    places = [(tensor.shape, tensor.device_mesh, tuple(tensor.placements)) for tensor in (one, other)]
    return places[0] == places[1]


def describe(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, dict[str, list[str]]]:
    """Return mesh -> placements -> names of the sharded tensors: ``{"dp=2,tp=2": {"S(0)R": ["0.weight"]}}``."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, tensor in named:
        if is_sharded(tensor):
            mesh = tensor.device_mesh
            words = mesh.mesh_dim_names or [f"dim{number}" for number in range(mesh.ndim)]
            key = ",".join(f"{word}={mesh.size(number)}" for number, word in enumerate(words))
            places = "".join(_word(placement) for placement in tensor.placements)
            found.setdefault(key, {}).setdefault(places, []).append(name)
    return found


def empty_like(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor of the parameter's shape, layout and placements."""
    return torch.empty_like(parameter, dtype=dtype, requires_grad=False).detach()


class _Place(NamedTuple):
    """Which block of a tensor this rank holds, and which ranks hold the same one."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    replicas: tuple[int, ...]


@lru_cache(maxsize=4096)
def _place(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> _Place | str:
    """Return the place, or why there is none. Remembered, because a save asks for every tensor again."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return "is sharded over a mesh that this rank is not part of"
    held = [list(range(extent)) for extent in shape]
    for dimension, placement in enumerate(placements):
        if placement.is_partial():
            return f"is a sum over ranks that is not finished ({placement}); it has no value yet"
        if not placement.is_replicate():
            factor = getattr(placement, "split_factor", 1)
            held[placement.dim] = _split(held[placement.dim], mesh.size(dimension), coordinate[dimension], factor)
    if any(rows and rows != list(range(rows[0], rows[0] + len(rows))) for rows in held):
        return f"its placements {placements} leave rows on this rank that do not lie together"
    offset = tuple(rows[0] if rows else extent for rows, extent in zip(held, shape, strict=True))
    return _Place(tuple(len(rows) for rows in held), offset, _replicas(mesh, placements, coordinate))


def _split(held: list[int], parts: int, part: int, factor: int) -> list[int]:
    """Return the part of ``held`` that falls to one coordinate of a mesh dimension, as torch.chunk cuts. ``factor``: of a tensor that an
    inner dimension has cut into so many pieces before (``fully_shard`` over tensor parallelism), each piece is cut."""
    size = max(1, math.ceil(len(held) / factor))
    pieces = [held[begin : begin + size] for begin in range(0, len(held), size)]
    return [row for piece in pieces for row in _chunk(piece, parts, part)]


def _chunk(held: list[int], parts: int, part: int) -> list[int]:
    size = math.ceil(len(held) / parts)
    return held[part * size : (part + 1) * size]


def _replicas(mesh: Any, placements: Iterable[Any], coordinate: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks that differ from this one only along dimensions on which the tensor is replicated."""
    place = tuple(slice(None) if placement.is_replicate() else at for placement, at in zip(placements, coordinate, strict=True))
    return tuple(int(rank) for rank in mesh.mesh[place].flatten().tolist())


def _word(placement: Any) -> str:
    if placement.is_replicate():
        return "R"
    factor = getattr(placement, "split_factor", 1)
    return f"S({placement.dim})" if factor == 1 else f"S({placement.dim},{factor})"
