"""A checkpoint in memory, as a restore sees it: the real snapshot, its objects through their JSON, its tensors as copies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainer_runtime.contract.manifest import TensorEntry
from trainer_runtime.state import tree
from trainer_runtime.state.leaves import Leaf, Snapshot

WORDS = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


class MemorySource:
    """Of a world of one."""

    def __init__(self, snapshot: Snapshot, strict: Mapping[str, Any]) -> None:
        self.strict = json.loads(json.dumps(strict))
        self._objects = {name: json.dumps(tree.encode(value, name)) for name, value in snapshot.objects.items()}
        self._bytes = {leaf.name: leaf.tensor.clone() for leaf in snapshot.leaves}
        self.tensors = {
            leaf.name: TensorEntry(leaf.name, WORDS[leaf.tensor.dtype], tuple(leaf.tensor.shape), (), leaf.requires_grad, leaf.alias_of)
            for leaf in snapshot.leaves
        }

    def drop(self, name: str) -> None:
        """Lose an object."""
        del self._objects[name]

    def objects(self, rank: int) -> dict[str, Any]:
        return {name: tree.decode(json.loads(text), name) for name, text in self._objects.items()}

    def fill(self, leaves: Sequence[Leaf], rank: int, *, exact: bool = True) -> None:
        if exact:
            assert {leaf.name for leaf in leaves} == set(self.tensors)
        for leaf in leaves:
            leaf.tensor.copy_(self._bytes[leaf.name])
