"""Canonical names: what a parameter is called whatever wraps its module, so that a checkpoint fits with and without DDP or torch.compile.

Wrappers are recognised by what they are, never by a name alone: a user's own attribute may be called ``module``. It renames nothing in the
live model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_COMPILED_CHILD: Final = "_orig_mod"
_RECOMPUTED_CHILD: Final = "_checkpoint_wrapped_module"


def unwrap(module: nn.Module) -> nn.Module:
    """Return what a wrapper wraps, through any number of wrappers; a module that is no wrapper is returned as it is."""
    while (child := _wrapped_child(module)) is not None:
        wrapped = module._modules[child]
        assert wrapped is not None, "a wrapper wraps something"
        module = wrapped
    return module


def walk(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield every module below ``module`` with its canonical prefix (``""`` or ``"layers.0."``), wrappers left out, in registration order.

    A module that is registered in two places is yielded in both: its parameters have two names.
    """
    module = unwrap(module)
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from walk(child, f"{prefix}{name}.")


def every_module(root: nn.Module) -> list[nn.Module]:
    """Return every module of the tree, wrappers too, level by level; one that is registered in two places is there twice. It costs a
    quarter of what ``modules()`` costs, for questions that are asked in every save."""
    found: list[nn.Module] = []
    level = [root]
    while level:
        found += level
        level = [child for module in level for child in module._modules.values() if child is not None]
    return found


def wrappers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, DistributedDataParallel]]:
    """Yield every DDP wrapper with the canonical prefix of what it wraps; ``module`` itself may be one."""
    child = _wrapped_child(module)
    if isinstance(module, DistributedDataParallel):
        yield prefix, module
    for name, inner in module._modules.items():
        if inner is not None:
            yield from wrappers(inner, prefix if name == child else f"{prefix}{name}.")


def canonical(module: nn.Module, raw_name: str) -> str:
    """Turn a name of ``module.state_dict()`` into the canonical one. torch's wrapper for recomputing leaves itself out of the name."""
    parts = raw_name.split(".")
    kept: list[str] = []
    current: nn.Module | None = module
    for part in parts:
        while current is not None and part not in current._modules and _RECOMPUTED_CHILD in current._modules:
            current = current._modules[_RECOMPUTED_CHILD]
        if current is not None and part == _wrapped_child(current):
            current = current._modules[part]
            continue
        kept.append(part)
        current = current._modules.get(part) if current is not None else None
    return ".".join(kept)


def _wrapped_child(module: nn.Module) -> str | None:
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        return "module"
    for child in (_COMPILED_CHILD, _RECOMPUTED_CHILD):
        if child in module._modules:
            return child
    return None
