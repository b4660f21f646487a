from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.data import (
    DataSource,
    ResumableSampler,
    SamplerSource,
    StepCounter,
    UnpromisedSource,
    open_source,
)
from trainer_runtime.state.model import World
from trainer_runtime.state.stateful import StatefulSource


def epoch_of(samplers: list[ResumableSampler]) -> list[list[int]]:
    """All ranks' batches of one epoch, step by step."""
    return [[index for batch in step for index in batch] for step in zip(*samplers, strict=True)]


@given(length=st.integers(1, 60), world=st.integers(1, 5), batch=st.integers(1, 6), shuffle=st.booleans(), epoch=st.integers(0, 3))
def test_an_epoch_gives_every_sample_and_every_rank_as_many(length: int, world: int, batch: int, shuffle: bool, epoch: int) -> None:
    samplers = [ResumableSampler(length, batch, rank=rank, world=world, shuffle=shuffle) for rank in range(world)]
    for sampler in samplers:
        sampler.epoch = epoch
    batches = [list(sampler) for sampler in samplers]
    assert len({tuple(len(batch) for batch in rank) for rank in batches}) == 1
    assert len(batches[0]) == len(samplers[0])
    drawn = [index for rank in batches for step in rank for index in step]
    assert set(drawn) == set(range(length))
    assert len(drawn) < length + world


@given(length=st.integers(1, 60), world=st.integers(1, 4), batch=st.integers(1, 5), steps=st.integers(0, 40), rank=st.integers(0, 3))
def test_a_resumed_sampler_gives_exactly_what_was_left(length: int, world: int, batch: int, steps: int, rank: int) -> None:
    rank %= world
    whole = ResumableSampler(length, batch, rank=rank, world=world, seed=5)
    expected = []
    for _ in range(4):
        expected += list(whole)
        whole.finish_epoch()
    first = ResumableSampler(length, batch, rank=rank, world=world, seed=5)
    steps = min(steps, len(expected))
    seen = []
    iterator = iter(first)
    for _ in range(steps):
        batch_seen = next(iterator, None)
        if batch_seen is None:
            first.finish_epoch()
            iterator = iter(first)
            batch_seen = next(iterator)
        seen.append(batch_seen)
        first.advance()
    second = ResumableSampler(length, batch, rank=rank, world=world, seed=5)
    second.load_state_dict(first.state_dict())
    while second.epoch < 4:
        seen += list(second)
        second.finish_epoch()
    assert seen == expected


def test_the_position_counts_finished_steps_and_not_what_was_taken() -> None:
    sampler = ResumableSampler(20, 2, rank=0, world=2, seed=1)
    iterator = iter(sampler)
    for _ in range(4):
        next(iterator)
    assert sampler.advance() == 4
    assert sampler.state_dict() == {"epoch": 0, "cursor": 4}


def test_the_last_step_of_an_epoch_counts_what_is_left() -> None:
    sampler = ResumableSampler(10, 2, rank=0, world=2)
    assert [sampler.advance() for _ in range(3)] == [4, 4, 2]


def test_drop_last_leaves_the_rest_out() -> None:
    samplers = [ResumableSampler(11, 2, rank=rank, world=2, drop_last=True, shuffle=False) for rank in range(2)]
    assert epoch_of(samplers) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_epochs_and_seeds_have_orders_of_their_own_and_draw_from_nobody() -> None:
    before = torch.get_rng_state()
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        sampler = ResumableSampler(30, 30, rank=0, world=1, seed=seed)
        sampler.epoch = epoch
        orders.append(tuple(next(iter(sampler))))
    assert len(set(orders)) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_another_world_size_goes_on_at_the_same_sample() -> None:
    three = [ResumableSampler(24, 2, rank=rank, world=3, seed=2) for rank in range(3)]
    used = epoch_of(three)[0]
    three[0].advance()
    two = [ResumableSampler(24, 3, rank=rank, world=2, seed=2) for rank in range(2)]
    for sampler in two:
        sampler.load_state_dict(three[0].state_dict())
    left = [index for step in epoch_of(two) for index in step]
    assert sorted(used + left) == list(range(24))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset_len": 0, "batch_size": 1}, "dataset_len 0"),
        ({"dataset_len": 5, "batch_size": 0}, "batch_size 0"),
        ({"dataset_len": "5", "batch_size": 1}, "dataset_len '5' is not a whole number"),
        ({"dataset_len": 5, "batch_size": 0.5}, "batch_size 0.5 is not a whole number"),
        ({"dataset_len": 5, "batch_size": 1, "rank": 2, "world": 2}, "rank 2 in 0..1"),
        ({"dataset_len": 5, "batch_size": 3, "rank": 0, "world": 2, "drop_last": True}, "leaves nothing"),
    ],
    ids=["no samples", "no batch", "samples in words", "half a batch", "rank outside", "everything dropped"],
)
def test_a_sampler_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ResumableSampler(**arguments)


DATASET = TensorDataset(torch.arange(12))


def loader(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(DATASET, batch_sampler=ResumableSampler(12, 2, rank=0, world=1, seed=9), num_workers=workers)


def finish(source: DataSource, batches: int) -> list[list[int]]:
    """Use ``batches`` batches as the loop does, over the ends of epochs."""
    used: list[list[int]] = []
    iterator = source.iterate()
    while len(used) < batches:
        batch = next(iterator, None)
        if batch is None:
            source.finish_epoch()
            iterator = source.iterate()
            continue
        used.append(batch[0].tolist())
        source.advance()
    return used


def moved(source: DataSource, target: DataSource) -> DataSource:
    tensors, objects = source.gather(World())
    target.restore(World(), objects, tensors)
    return target


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cuts", [(0, 4), (4, 6), (6, 3), (6, 6), (5, 13)], ids=str)
def test_two_resumes_give_the_batches_of_an_uninterrupted_run(workers: int, cuts: tuple[int, int]) -> None:
    expected = finish(open_source(loader(), World()), sum(cuts) + 8)
    source = open_source(loader(workers), World())
    used = finish(source, cuts[0])
    source = moved(source, open_source(loader(workers), World()))
    used += finish(source, cuts[1])
    source = moved(source, open_source(loader(workers), World()))
    used += finish(source, 8)
    assert used == expected
    assert source.samples == 2 * len(expected)


class Stateful:
    """A stream that counts for itself."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < 5:
            self.position += 1
            yield torch.tensor([[self.position]])
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": torch.tensor(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = int(state["position"])


def test_an_iterable_with_a_state_of_its_own_is_taken_at_its_word() -> None:
    source = open_source(Stateful(), World(1, 3))
    assert isinstance(source, StatefulSource)
    expected = finish(open_source(Stateful(), World()), 12)
    used = finish(source, 7)
    used += finish(moved(source, open_source(Stateful(), World())), 5)
    assert used == expected


def test_without_data_the_loop_counts_steps() -> None:
    source = open_source(None, World())
    assert isinstance(source, StepCounter)
    iterator = source.iterate()
    assert [next(iterator), next(iterator)] == [0, 1]
    source.advance()
    assert next(moved(source, open_source(None, World())).iterate()) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(DATASET, batch_size=2), "DataLoader has no state_dict"),
        ([1, 2, 3], "list has no state_dict"),
        (DataLoader(DATASET, sampler=ResumableSampler(12, 2, rank=0, world=1)), "ResumableSampler as sampler="),
    ],
    ids=["plain loader", "list", "sampler in the wrong place"],
)
def test_what_cannot_promise_its_position_is_refused_by_name_unless_allowed(data: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_source(data, World())
    allowed = open_source(data, World(), allowed=True)
    assert isinstance(allowed, UnpromisedSource)
    assert not allowed.exact


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (ResumableSampler(12, 2, rank=1, world=2), "for rank 1 of 2, this is rank 0 of 1"),
        (ResumableSampler(10, 2, rank=0, world=1), "for 10 samples, the dataset has 12"),
    ],
    ids=["another rank", "another length"],
)
def test_a_sampler_for_something_else_is_refused(sampler: ResumableSampler, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_source(DataLoader(DATASET, batch_sampler=sampler), World())


class WithoutLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_that_does_not_say_how_long_it_is_is_refused_by_name() -> None:
    loader = DataLoader(WithoutLength(), batch_sampler=ResumableSampler(10, 2, rank=0, world=1))
    with pytest.raises(ConfigurationError, match="data: the dataset, a WithoutLength, has no __len__"):
        open_source(loader, World(), allowed=False)


def test_the_description_holds_what_decides_the_order() -> None:
    source = open_source(loader(), World())
    assert isinstance(source, SamplerSource)
    described = source.describe()
    assert described["dataset"] == {"type": "torch.utils.data.dataset.TensorDataset", "length": 12}
    assert (described["batch_size"], described["seed"], described["shuffle"], described["drop_last"]) == (2, 9, True, False)
