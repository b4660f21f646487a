"""torchdata's StatefulDataLoader under our loop: real loaders, over epoch ends, resumed twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import rng
from trainer_runtime.state.data import DataSource, UnpromisedSource, open_source
from trainer_runtime.state.model import World

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it under torch 2.15

DATASET = TensorDataset(torch.arange(10))
BATCH = 2
"""An epoch has 5 batches."""
BATCHES = 17


class Counting(IterableDataset[int]):
    """A stream whose iterator knows its place."""

    def __iter__(self) -> Iterator[int]:
        return Counter()


class Counter:
    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        if self.position == 10:
            raise StopIteration
        self.position += 1
        return self.position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[[int], Any]] = {
    "in order": lambda workers: StatefulDataLoader(DATASET, batch_size=BATCH, num_workers=workers),
    "shuffled": lambda workers: StatefulDataLoader(DATASET, batch_size=BATCH, shuffle=True, num_workers=workers),
    "shuffled by a generator": lambda workers: StatefulDataLoader(
        DATASET, batch_size=BATCH, shuffle=True, generator=generator(), num_workers=workers
    ),
    "StatefulDistributedSampler": lambda workers: StatefulDataLoader(
        DATASET, batch_size=BATCH, sampler=StatefulDistributedSampler(DATASET, 1, 0, seed=3), num_workers=workers
    ),
    "torch's DistributedSampler": lambda workers: StatefulDataLoader(
        DATASET, batch_size=BATCH, sampler=DistributedSampler(DATASET, 1, 0, seed=3), num_workers=workers
    ),
    "a stream": lambda workers: StatefulDataLoader(Counting(), batch_size=BATCH, num_workers=workers),
}


class Process:
    """One process as the loop sees it: seeded by its script, data and random numbers taken up in the loop's order."""

    def __init__(self, make: Callable[[], Any], saved: tuple[Any, Any, Any, bool] | None) -> None:
        torch.manual_seed(1 if saved is None else 77)
        self.source: DataSource = open_source(make(), World())
        self.source.gather(World())  # attach() looks whether everything can be saved
        self.iterator: Iterator[Any] | None = None
        self._rng = None
        if saved is not None:
            tensors, objects, self._rng, is_iterating = saved
            self.source.restore(World(), objects, tensors)
            if not is_iterating:
                self._restore_rng()

    def use(self, batches: int) -> list[list[int]]:
        used: list[list[int]] = []
        while len(used) < batches:
            if self.iterator is None:
                self.iterator = self.source.iterate()
                self._restore_rng()
            batch = next(self.iterator, None)
            if batch is None:
                self.iterator = None
                self.source.finish_epoch()
                continue
            used.append((batch[0] if isinstance(batch, list) else batch).tolist())
            self.source.advance()
        return used

    def end_epoch(self) -> None:
        """Go over the epoch's end without beginning the next one, as a loop of so many epochs does."""
        assert self.iterator is not None
        assert next(self.iterator, None) is None
        self.iterator = None
        self.source.finish_epoch()

    def save(self) -> tuple[Any, Any, Any, bool]:
        tensors, objects = self.source.gather(World())
        return {name: tensor.clone() for name, tensor in tensors.items()}, objects, rng.gather(), self.iterator is not None

    def _restore_rng(self) -> None:
        if self._rng is not None:
            rng.restore(self._rng)
            self._rng = None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_two_resumes_over_epoch_ends_give_the_batches_of_an_uninterrupted_run(kind: str, workers: int) -> None:
    cuts = [(0, 3), (2, 2), (5, 6), (3, 5)] if workers == 0 else [(2, 2), (5, 6)]
    expected = Process(lambda: LOADERS[kind](workers), None).use(BATCHES)
    for first, second in cuts:
        saved = None
        used: list[list[int]] = []
        for batches in (first, second, BATCHES - first - second):
            process = Process(lambda: LOADERS[kind](workers), saved)
            used += process.use(batches)
            saved = process.save()
        assert used == expected, f"cuts after {first} and {second} more"


@pytest.mark.parametrize("kind", LOADERS)
def test_a_save_between_two_epochs_is_the_beginning_of_the_next(kind: str) -> None:
    expected = Process(lambda: LOADERS[kind](0), None).use(BATCHES)
    first = Process(lambda: LOADERS[kind](0), None)
    used = first.use(5)
    first.end_epoch()
    assert used + Process(lambda: LOADERS[kind](0), first.save()).use(BATCHES - 5) == expected


def test_asking_for_the_position_before_the_loop_draws_no_random_number() -> None:
    source = open_source(LOADERS["shuffled by a generator"](0), World())
    before = torch.get_rng_state()
    source.gather(World())
    assert torch.equal(torch.get_rng_state(), before)


class Forgetful(IterableDataset[int]):
    """A stream that begins anew whenever it is iterated."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


class ForgetfulList(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2, 3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StatefulDataLoader(DATASET, sampler=RandomSampler(DATASET)), "StatefulDataLoader has torch's RandomSampler"),
        (lambda: StatefulDataLoader(DATASET, sampler=RandomSampler(DATASET, generator=generator())), "shuffle=True gives the loader"),
        (lambda: StatefulDataLoader(DATASET, sampler=WeightedRandomSampler([1.0] * 10, 10)), "torch's WeightedRandomSampler"),
        (lambda: StatefulDataLoader(Forgetful()), "reads Forgetful, whose __iter__ is a generator function"),
        (lambda: StatefulDataLoader(ForgetfulList()), "reads ForgetfulList, whose iterator .list_iterator. has no state_dict"),
    ],
    ids=["random sampler", "random sampler with a generator", "weighted sampler", "generator function", "iterator without state"],
)
def test_what_nothing_helps_is_refused_by_name_unless_allowed(
    make: Callable[[], Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = make()
    with pytest.raises(ConfigurationError, match=message):
        open_source(data, World())
    assert isinstance(open_source(data, World(), allowed=True), UnpromisedSource)
    assert "a resume begins the epoch anew" in caplog.text


def test_the_loaders_own_random_sampler_would_go_wrong_without_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hole is real, and these tests can see it."""
    monkeypatch.setattr("trainer_runtime.state.stateful.StatefulLoaderSource._set_generators", lambda *_arguments: None)
    expected = Process(lambda: LOADERS["shuffled by a generator"](0), None).use(BATCHES)
    first = Process(lambda: LOADERS["shuffled by a generator"](0), None)
    used = first.use(2)
    used += Process(lambda: LOADERS["shuffled by a generator"](0), first.save()).use(BATCHES - 2)
    assert used[:5] == expected[:5]
    assert used != expected


def test_the_description_names_sampler_and_workers() -> None:
    described = open_source(StatefulDataLoader(DATASET, batch_size=BATCH, sampler=SequentialSampler(DATASET)), World()).describe()
    assert described["sampler"] == "torch.utils.data.sampler.SequentialSampler"
    assert (described["kind"].rpartition(".")[2], described["workers"], described["batch_size"]) == ("StatefulDataLoader", 0, BATCH)
