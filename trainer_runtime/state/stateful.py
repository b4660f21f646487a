"""Data that keeps its own position: any iterable with ``state_dict`` and ``load_state_dict``, and torchdata's StatefulDataLoader.

The former is taken at its word. The latter is known well enough to be helped where it goes wrong, and refused by name where nothing helps.
torchdata is not imported: a loader is recognised by where its class comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from trainer_runtime.state import rng, tree
from trainer_runtime.state.model import World

POSITION: Final = "data"
"""Name of the position among a checkpoint's objects."""
_TORCHDATA: Final = "torchdata.stateful_dataloader"
_FORGETFUL_SAMPLERS: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""torch's samplers that draw a new order whenever they are iterated and cannot say which one it was."""


class StatefulSource:
    """Any iterable with ``state_dict`` and ``load_state_dict``. Its position is each rank's own."""

    exact = True
    gives_again = False

    def __init__(self, data: Any, world: World) -> None:
        self._data = data
        self.epoch = 0
        self.samples = 0
        self._batch_size = int(getattr(data, "batch_size", None) or 1)
        self._step_samples = self._batch_size * world.size

    def iterate(self) -> Iterator[Any]:
        return iter(self._data)

    def advance(self) -> None:
        self.samples += self._step_samples

    def finish_epoch(self) -> None:
        self.epoch += 1

    def describe(self) -> dict[str, Any]:
        return {
            "kind": f"{type(self._data).__module__}.{type(self._data).__qualname__}",
            "dataset": describe_dataset(getattr(self._data, "dataset", None)),
            "batch_size": self._batch_size,
        }

    def gather(self, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, skeleton = tree.flatten(self._state(), world.own(f"{POSITION}.state"))
        return tensors, {world.own(POSITION): {"epoch": self.epoch, "samples": self.samples, "state": skeleton}}

    def restore(self, world: World, objects: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        position = objects[world.own(POSITION)]
        self.epoch, self.samples = position["epoch"], position["samples"]
        self._take_up(tree.unflatten(position["state"], tensors))

    def _state(self) -> Any:
        return self._data.state_dict()

    def _take_up(self, state: Any) -> None:
        self._data.load_state_dict(state)


class StatefulLoaderSource(StatefulSource):
    """torchdata's StatefulDataLoader, with three cares.

    Its ``state_dict`` makes an iterator when there is none, which draws random numbers and starts workers: between two epochs, and before
    the first, the position is the epoch's number and the generators alone. With ``num_workers=0`` and a generator, a resumed epoch is right
    and the *next* one is not, because making the resumed iterator advances the generator: its state is saved beside the loader's and put
    back after the iterator exists. And a sampler with ``set_epoch`` is told the epoch, so that no script has to do it at the right moment.
    """

    def __init__(self, data: Any, world: World) -> None:
        super().__init__(data, world)
        self._is_iterating = False
        self._keeps_own_state = isinstance(data.dataset, IterableDataset) or _is_stateful(data.dataset)
        self._pending: dict[str, Any] | None = None
        """What was restored and not iterated yet."""

    def iterate(self) -> Iterator[Any]:
        set_epoch = getattr(getattr(self._data, "sampler", None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(self.epoch)
        pending, self._pending = self._pending, None
        if pending is not None and pending["loader"] is None:
            self._set_generators(pending)  # nothing was iterated yet: the iterator draws what it would have drawn
        iterator: Iterator[Any] = iter(self._data)
        if pending is not None and pending["loader"] is not None and self._data.num_workers == 0:
            self._set_generators(pending)
        self._is_iterating = True
        return iterator

    def finish_epoch(self) -> None:
        super().finish_epoch()
        self._is_iterating = self._keeps_own_state

    def describe(self) -> dict[str, Any]:
        sampler = getattr(self._data, "sampler", None)
        return super().describe() | {
            "sampler": f"{type(sampler).__module__}.{type(sampler).__qualname__}",
            "workers": self._data.num_workers,
            "drop_last": bool(self._data.drop_last),
        }

    def _state(self) -> dict[str, Any]:
        if self._pending is not None:
            return self._pending
        loader = self._data.state_dict() if self._is_iterating else None
        return {"loader": loader, "generators": [rng.torch_bytes(generator.get_state()) for generator in self._generators()]}

    def _take_up(self, state: dict[str, Any]) -> None:
        self._pending = state
        if state["loader"] is not None:
            self._data.load_state_dict(state["loader"])

    def _set_generators(self, state: dict[str, Any]) -> None:
        for generator, saved in zip(self._generators(), state["generators"], strict=True):
            generator.set_state(rng.torch_tensor(saved))

    def _generators(self) -> list[torch.Generator]:
        """Return the loader's and its sampler's own generators, each once."""
        owners = (self._data, getattr(self._data, "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        unique = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}
        return list(unique.values())


def open_stateful(data: Any, world: World) -> StatefulSource:
    """Return how ``data``, which has ``state_dict`` and ``load_state_dict``, is counted."""
    return StatefulLoaderSource(data, world) if _is_torchdata(data) else StatefulSource(data, world)


def find_stateful_problem(data: Any) -> str | None:
    """Return why such data cannot promise to go on exactly where it was, or None.

    Only of torchdata's loader more is known than its word.
    """
    if not _is_torchdata(data):
        return None
    name = type(data).__qualname__
    sampler = getattr(data, "sampler", None)
    if type(sampler) in _FORGETFUL_SAMPLERS:
        return (
            f"{name} has torch's {type(sampler).__qualname__}, which is known to order the epochs after a resume wrongly; "
            "shuffle=True gives the loader a sampler that knows its place"
        )
    dataset = data.dataset
    if not isinstance(dataset, IterableDataset):
        return None
    kind = type(dataset)
    if inspect.isgeneratorfunction(kind.__iter__):
        return f"{name} reads {kind.__qualname__}, whose __iter__ is a generator function and cannot be put back to its place"
    iterator = iter(dataset)
    if not _is_stateful(iterator):
        return f"{name} reads {kind.__qualname__}, whose iterator ({type(iterator).__qualname__}) has no state_dict() and load_state_dict()"
    return None


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Return type, length and, where the dataset has one, its fingerprint. The samples themselves are not read."""
    described: dict[str, Any] = {"type": f"{type(dataset).__module__}.{type(dataset).__qualname__}"}
    if hasattr(dataset, "__len__"):
        described["length"] = len(dataset)
    for attribute in ("fingerprint", "_fingerprint"):
        value = getattr(dataset, attribute, None)
        if isinstance(value, str):
            described["fingerprint"] = value
            break
    return described


def _is_torchdata(data: Any) -> bool:
    return any(kind.__module__.startswith(_TORCHDATA) for kind in type(data).__mro__)


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
