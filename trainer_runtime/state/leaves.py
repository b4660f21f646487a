"""What a checkpoint holds, as a flat list of named leaves: the value that `state` gathers and `checkpoint` stages and fills.

A leaf's name is its identity for ever: names are canonical (no ``module.`` of DDP, no ``_orig_mod.`` of torch.compile), optimizer slots are
named by their parameter, and what differs from rank to rank carries its rank. It is not a nested state dict: nothing here is positional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch

from trainer_runtime.errors import ConfigurationError


class Kind(str, Enum):
    """Which data file a leaf goes to."""

    MODEL = "model"
    OPTIM = "optim"
    EXTRA = "extra"


@dataclass(frozen=True)
class Shard:
    """Which block of a tensor this rank holds, of a tensor that all ranks hold together."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    """Where the block begins in the whole tensor, in elements along each axis; its shape is the leaf's tensor's."""
    replicas: tuple[int, ...]
    """Ranks that hold this same block, this one among them, in the same order on all of them."""


class Leaf(NamedTuple):
    """One live tensor. Saving copies from it, restoring copies into it; the checkpoint never keeps the reference. A tuple, because one is
    made for every tensor in every save: that takes a third of a frozen dataclass's time.

    ``name``: ``model/<parameter or buffer>``, ``optim/<parameter>/<slot>``, ``<kind>/…`` for other objects, and
    ``rank<5 digits>/…`` for a value that belongs to one rank alone.
    """

    name: str
    tensor: torch.Tensor
    """What lies in this rank's memory, always a plain tensor: of a sharded one its local block."""
    kind: Kind
    replicated: bool
    """True: every rank holds the same bytes, and any one of them may write them. False: this rank's own, or sharded."""
    requires_grad: bool = False
    alias_of: str | None = None
    """Name of the leaf whose storage this one shares (tied weights); an alias is listed and its bytes are written once."""
    shard: Shard | None = None
    """None: ``tensor`` is whole."""
    frozen_version: int | None = None
    """Of a tensor that training is not expected to change: torch's count of its changes. Such a tensor is stored once for all checkpoints
    that hold the same bytes. It is still looked at in every save; one that did change is written like any other."""

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return tuple(self.tensor.shape) if self.shard is None else self.shard.global_shape


def refuse_freed(leaf: Leaf) -> None:
    """Raise ConfigurationError, naming the leaf, when its memory was freed: sharding libraries do that to a parameter behind its back, and
    reading it would end the process without an error."""
    if leaf.tensor.untyped_storage().nbytes() == 0 < leaf.tensor.nbytes:
        raise ConfigurationError(f"{leaf.name}: its memory was freed, so there is nothing to save")


@dataclass(frozen=True)
class Snapshot:
    """All that this rank contributes to one checkpoint, at one step boundary."""

    leaves: tuple[Leaf, ...]
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Values that are not tensors, by name (same naming rule), as Python values that `state.tree` can encode. Replicated ones are written
    by rank 0, rank-qualified ones by their rank."""
