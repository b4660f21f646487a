"""Tables of what can be wrong with a checkpoint's files, and with the program that wants to load one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import MODEL_FILE, flip, shared
from trainer_runtime.state.leaves import Kind, Leaf


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


DAMAGES = [
    pytest.param(MODEL_FILE, lambda path: flip(path, 4096 + 40), id="a flipped bit in the data"),
    pytest.param(MODEL_FILE, lambda path: flip(path, 20), id="a flipped bit in the header"),
    pytest.param(MODEL_FILE, lambda path: flip(path, 0), id="a flipped bit in the header's length"),
    pytest.param("data/00000-optim-0.safetensors", cut, id="a data file that lost its last byte"),
    pytest.param("data/00000-extra-0.safetensors", remove, id="a data file that is gone"),
    pytest.param("ranks/00000.json", lambda path: flip(path, 30), id="a flipped bit in an index"),
    pytest.param("ranks/00000.json", cut, id="an index that lost its last byte"),
    pytest.param("ranks/00000.json", remove, id="an index that is gone"),
    pytest.param("manifest.json", lambda path: flip(path, 30), id="a flipped bit in the manifest"),
    pytest.param("manifest.json", remove, id="a manifest that is gone"),
]
"""A file of a checkpoint, and what happens to it."""


def cast(leaf: Leaf, dtype: torch.dtype) -> Leaf:
    return shared(leaf.name, leaf.tensor.to(dtype))


LIVE_DIFFERENCES = [
    pytest.param(lambda leaves: [cast(leaves[0], torch.float64), *leaves[1:]], "dtype is F32 in the checkpoint and F64", id="wider dtype"),
    pytest.param(lambda leaves: [cast(leaves[0], torch.bfloat16), *leaves[1:]], "dtype is F32 in the checkpoint and BF16", id="narrower"),
    pytest.param(lambda leaves: leaves[1:], "model/weight: in the checkpoint and not in this program", id="extra in the checkpoint"),
    pytest.param(lambda leaves: [*leaves, shared("model/new", torch.zeros(1))], "model/new: not in the checkpoint", id="missing"),
    pytest.param(
        lambda leaves: [shared("model/weight", torch.zeros(16, 64)), *leaves[1:]],
        "shape is [64, 16] in the checkpoint and [16, 64]",
        id="shape",
    ),
    pytest.param(
        lambda leaves: [*leaves, Leaf("model/head", leaves[0].tensor, Kind.MODEL, True, alias_of="model/weight")],
        "model/head: not in the checkpoint",
        id="a tie that was not saved",
    ),
]
"""What becomes of the leaves of `world.state`, and what is said about that."""
