"""What a checkpoint holds, as a flat list of named leaves: the value that `state` gathers and `checkpoint` stages and fills.

A leaf's name is its identity for ever: names are canonical (no ``module.`` of DDP, no ``_orig_mod.`` of torch.compile), optimizer slots are
named by their parameter, and what differs from rank to rank carries its rank. It is not a nested state dict: nothing here is positional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch


class Kind(str, Enum):
    """Which data file a leaf goes to."""

    MODEL = "model"
    OPTIM = "optim"
    EXTRA = "extra"


@dataclass(frozen=True)
class Leaf:
    """One live tensor. Saving copies from it, restoring copies into it; the checkpoint never keeps the reference.

    ``name``: ``model/<parameter or buffer>``, ``optim/<parameter>/<slot>``, ``<kind>/…`` for other objects, and
    ``rank<5 digits>/…`` for a value that belongs to one rank alone.
    """

    name: str
    tensor: torch.Tensor
    kind: Kind
    replicated: bool
    """True: every rank holds the same bytes, and any one of them may write them. False: this rank's own."""
    requires_grad: bool = False
    alias_of: str | None = None
    """Name of the leaf whose storage this one shares (tied weights); an alias is listed and its bytes are written once."""


@dataclass(frozen=True)
class Snapshot:
    """All that this rank contributes to one checkpoint, at one step boundary."""

    leaves: tuple[Leaf, ...]
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Values that are not tensors, by name (same naming rule), as Python values that `state.tree` can encode. Replicated ones are written
    by rank 0, rank-qualified ones by their rank."""
