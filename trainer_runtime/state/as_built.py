"""What a strict resume compares: the script's objects as they were when it handed them over, in plain JSON types.

As built, not as they are: the same script builds the same objects, whatever step the run stands at. What differs, and which word allows it,
is `strict`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from trainer_runtime.state import ddp, model, names, rng, sharding, strict, tree
from trainer_runtime.state.attachments import Attachment
from trainer_runtime.state.data import DataSource
from trainer_runtime.state.model import World
from trainer_runtime.state.optimizer import OptimizerState


def describe(
    *,
    world: World,
    modules: Mapping[str, nn.Module],
    optimizers: Iterable[OptimizerState],
    schedulers: Mapping[str, Any],
    objects: Mapping[str, Any],
    data: DataSource,
    config: Any,
    tokenizer: Iterable[Attachment],
) -> dict[str, Any]:
    """Return everything but the tensors' own names, shapes and dtypes. ``objects``: whatever else has state, by keyword."""
    described = {state.prefix: state.describe() for state in optimizers}
    return {
        "world_size": world.size,
        "optimizer": {
            prefix: {"class": one["class"], "groups": [strict.describe_names(group["parameters"]) for group in one["groups"]]}
            for prefix, one in described.items()
        },
        "hyperparameters": {
            prefix: [{key: tree.encode(value, f"{prefix} {key}") for key, value in group["hyper"].items()} for group in one["groups"]]
            for prefix, one in described.items()
        },
        "scheduler": {keyword: _describe_scheduler(keyword, value) for keyword, value in schedulers.items()},
        "objects": {
            **{keyword: _class_of(names.unwrap(value)) for keyword, value in modules.items() if keyword != "model"},
            **{keyword: _class_of(value) for keyword, value in objects.items()},
        },
        "rng": rng.kinds(rng.gather()),
        "data": data.describe(),
        "config": config,
        "tokenizer": {file.name: file.sha256 for file in tokenizer},
        "determinism": strict.describe_determinism(),
        "mesh": _describe_meshes(modules),
        "ddp": {keyword: words for keyword, module in modules.items() if (words := ddp.describe(module))},
    }


def _describe_meshes(modules: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Return, by module, mesh and placements, which parameters are sharded so: ``{"model": {"dp=2,tp=2": {"S(0)R": {…}}}}``."""
    described = {
        keyword: {
            mesh: {places: strict.describe_names(held) for places, held in by_placement.items()}
            for mesh, by_placement in sharding.describe(model.every_parameter(module)).items()
        }
        for keyword, module in modules.items()
    }
    return {keyword: meshes for keyword, meshes in described.items() if meshes}


def _describe_scheduler(keyword: str, scheduler: Any) -> dict[str, Any]:
    _tensors, skeleton = tree.flatten(scheduler.state_dict(), keyword)
    return {
        "class": _class_of(scheduler),
        "as_built": {str(key): tree.encode(value, f"{keyword}/{key}") for key, value in skeleton.items()},
    }


def _class_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
