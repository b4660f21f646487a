"""Where training stands in its data, counted in what finished steps used: never in what a loader's workers have fetched ahead.

`ResumableSampler` is the default and exact by construction: one global cursor, an order that depends on seed and epoch alone, no random
number drawn from anybody. Any other iterable that has ``state_dict`` and ``load_state_dict`` is `stateful`'s matter. What cannot promise
an exact resume is refused by name. It does not look into datasets: random numbers that worker processes draw (augmentations with
num_workers > 0) repeat only if the dataset derives them from the sample's index.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Final, Protocol

import torch
from torch.utils.data import DataLoader, Sampler

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.model import World
from trainer_runtime.state.stateful import POSITION, describe_dataset, find_stateful_problem, open_stateful

_EPOCH_SEED_STRIDE: Final = 1_000_003
"""Keeps (seed, epoch) and (seed + 1, epoch - 1) from meeting: epochs stay below it."""

log = logging.getLogger("trainer_runtime")


class ResumableSampler(Sampler[list[int]]):
    """A batch sampler with a global cursor: ``DataLoader(dataset, batch_sampler=ResumableSampler(len(dataset), batch_size=8))``.

    Each epoch has one order of all samples; step t of all ranks together takes the next ``world x batch_size`` of it. At the end of an
    epoch the rest is shared out evenly, padded from the epoch's beginning so that every rank gets as many; ``drop_last=True`` drops it.

    ``batch_size``: samples per rank and step. ``seed``, ``shuffle``: the order. ``rank``, ``world``: default RANK and WORLD_SIZE, else 0
    and 1. Raises ConfigurationError for values out of range.
    """

    def __init__(
        self,
        dataset_len: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.dataset_len = _whole("dataset_len", dataset_len)
        self.batch_size = _whole("batch_size", batch_size)
        self.rank = _whole("rank", int(os.environ.get("RANK", "0")) if rank is None else rank)
        self.world = _whole("world", int(os.environ.get("WORLD_SIZE", "1")) if world is None else world)
        self.seed = _whole("seed", seed)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.cursor = 0
        """Samples of this epoch, over all ranks, that finished steps have used."""
        if self.dataset_len < 1 or self.batch_size < 1 or not 0 <= self.rank < self.world:
            raise ConfigurationError(
                f"ResumableSampler: dataset_len {dataset_len} and batch_size {batch_size} must be >= 1, "
                f"rank {self.rank} in 0..{self.world - 1}"
            )
        if drop_last and self.dataset_len < self._stride:
            raise ConfigurationError(f"ResumableSampler: drop_last leaves nothing of {dataset_len} samples for {self.world} x {batch_size}")

    @property
    def epoch_samples(self) -> int:
        """Samples that an epoch uses, padding not counted."""
        return self.dataset_len - self.dataset_len % self._stride if self.drop_last else self.dataset_len

    def __len__(self) -> int:
        return -(-self.epoch_samples // self._stride)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for start in range(self.cursor, self.epoch_samples, self._stride):
            yield self._share(order, order[start : min(start + self._stride, self.epoch_samples)])

    def advance(self) -> int:
        """Count one finished batch of every rank; return how many samples that were."""
        used = min(self._stride, self.epoch_samples - self.cursor)
        self.cursor += used
        return used

    def finish_epoch(self) -> None:
        """Go on to the next epoch. The iterator of this one must have ended."""
        self.epoch += 1
        self.cursor = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.cursor = state["epoch"], state["cursor"]

    @property
    def _stride(self) -> int:
        return self.world * self.batch_size

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.dataset_len))
        generator = torch.Generator().manual_seed(self.seed * _EPOCH_SEED_STRIDE + self.epoch)
        order: list[int] = torch.randperm(self.dataset_len, generator=generator).tolist()
        return order

    def _share(self, order: list[int], taken: list[int]) -> list[int]:
        """Return this rank's part of one step's samples; a short last step is padded to equal parts."""
        each = -(-len(taken) // self.world)
        padding = each * self.world - len(taken)
        filled = taken + [order[index % len(order)] for index in range(padding)]
        return filled[self.rank * each : (self.rank + 1) * each]


class DataSource(Protocol):
    """What the loop needs of its data."""

    samples: int
    """Samples over all ranks and epochs that finished steps have used."""

    @property
    def epoch(self) -> int:
        """Epochs finished."""

    @property
    def exact(self) -> bool:
        """False: allowed by the user although it cannot promise its position."""

    @property
    def gives_again(self) -> bool:
        """Whether its position counts finished steps alone, so that a new iterator gives again what no step used."""

    def iterate(self) -> Iterator[Any]:
        """Open the iterator of the present epoch at the present position."""

    def advance(self) -> None:
        """Count one finished batch."""

    def finish_epoch(self) -> None:
        """The iterator ended: go on to the next epoch."""

    def describe(self) -> dict[str, Any]:
        """Return what must be the same at a resume: kind, dataset, sizes, order."""

    def gather(self, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the position as tensors and objects by name."""

    def restore(self, world: World, objects: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Take up a position that ``gather`` returned."""


class SamplerSource:
    """A DataLoader whose batch sampler is ours. The position is one value for all ranks."""

    exact = True
    gives_again = True

    def __init__(self, loader: DataLoader[Any], sampler: ResumableSampler) -> None:
        self._loader, self._sampler = loader, sampler
        self.samples = 0

    @property
    def epoch(self) -> int:
        return self._sampler.epoch

    def iterate(self) -> Iterator[Any]:
        return iter(self._loader)

    def advance(self) -> None:
        self.samples += self._sampler.advance()

    def finish_epoch(self) -> None:
        self._sampler.finish_epoch()

    def describe(self) -> dict[str, Any]:
        sampler = self._sampler
        return {
            "kind": "ResumableSampler",
            "dataset": describe_dataset(self._loader.dataset),
            "length": sampler.dataset_len,
            "batch_size": sampler.batch_size,
            "seed": sampler.seed,
            "shuffle": sampler.shuffle,
            "drop_last": sampler.drop_last,
        }

    def gather(self, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {}, {POSITION: {**self._sampler.state_dict(), "samples": self.samples}}

    def restore(self, world: World, objects: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        position = objects[POSITION]
        self._sampler.load_state_dict(position)
        self.samples = position["samples"]


class StepCounter:
    """No data given: the loop gets the number of the step it makes, and the script draws its batch from that."""

    exact = True
    gives_again = True

    def __init__(self) -> None:
        self.epoch = 0
        self.samples = 0

    def iterate(self) -> Iterator[Any]:
        number = self.samples
        while True:
            yield number
            number += 1

    def advance(self) -> None:
        self.samples += 1

    def finish_epoch(self) -> None:
        raise AssertionError("a step counter does not end")

    def describe(self) -> dict[str, Any]:
        return {"kind": "step numbers"}

    def gather(self, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {}, {POSITION: {"samples": self.samples}}

    def restore(self, world: World, objects: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        self.samples = objects[POSITION]["samples"]


class UnpromisedSource:
    """An iterable whose position cannot be kept, used because the user allowed it. A resume begins its epoch anew."""

    exact = False
    gives_again = False

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.epoch = 0
        self.samples = 0

    def iterate(self) -> Iterator[Any]:
        return iter(self._data)

    def advance(self) -> None:
        self.samples += 1

    def finish_epoch(self) -> None:
        self.epoch += 1

    def describe(self) -> dict[str, Any]:
        return {"kind": f"{type(self._data).__module__}.{type(self._data).__qualname__}, position not kept"}

    def gather(self, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {}, {POSITION: {"epoch": self.epoch, "samples": self.samples}}

    def restore(self, world: World, objects: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        self.epoch, self.samples = objects[POSITION]["epoch"], objects[POSITION]["samples"]


def open_source(data: Any, world: World, allowed: bool = False) -> DataSource:
    """Return how ``data`` is counted. ``allowed``: the user allowed a source that cannot promise its position.

    Raises ConfigurationError, naming the loader and what to use instead, for one that cannot.
    """
    if data is None:
        return StepCounter()
    sampler = getattr(data, "batch_sampler", None)
    if isinstance(data, DataLoader) and isinstance(sampler, ResumableSampler):
        _check_sampler(data, sampler, world)
        return SamplerSource(data, sampler)
    problem = _find_problem(data)
    if problem is None:
        return open_stateful(data, world)
    if not allowed:
        raise ConfigurationError(
            f"data: {problem}. Use DataLoader(dataset, batch_sampler=trainer_runtime.ResumableSampler(len(dataset), batch_size=...)), "
            "or accept that a resume begins the epoch anew with allow=('data',)"
        )
    log.warning("data: %s; allowed: a resume begins the epoch anew", problem)
    return UnpromisedSource(data)


def _check_sampler(loader: DataLoader[Any], sampler: ResumableSampler, world: World) -> None:
    if (sampler.rank, sampler.world) != (world.rank, world.size):
        raise ConfigurationError(
            f"data: the sampler is for rank {sampler.rank} of {sampler.world}, this is rank {world.rank} of {world.size}; leave rank= and "
            "world= out of ResumableSampler to have them right"
        )
    if not isinstance(loader.dataset, Sized):
        raise ConfigurationError(f"data: the dataset, a {type(loader.dataset).__qualname__}, has no __len__, so its epoch has no end")
    length = len(loader.dataset)
    if length != sampler.dataset_len:
        raise ConfigurationError(f"data: the sampler is for {sampler.dataset_len} samples, the dataset has {length}")


def _find_problem(data: Any) -> str | None:
    """Return why ``data`` cannot promise to go on exactly where it was, or None."""
    name = type(data).__qualname__
    if isinstance(getattr(data, "sampler", None), ResumableSampler):
        return f"{name} has a ResumableSampler as sampler=, but it yields whole batches"
    if not (callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))):
        return f"{name} has no state_dict() and load_state_dict(), so its position cannot be saved"
    return find_stateful_problem(data)


def _whole(name: str, value: Any) -> int:
    """Return a plain int, so that a numpy number does not find its way into a manifest."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigurationError(f"ResumableSampler: {name} {value!r} is not a whole number") from None
