"""The archive gets what belongs there, in its own time, and whatever goes wrong with it is said and harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, directory_of, flip, point, state, writer
from trainer_runtime.checkpoint.cleaning import read_held
from trainer_runtime.checkpoint.inventory import list_committed, read_inventory
from trainer_runtime.contract.beat import CheckpointRecord, Level, Tier
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.loop.archiving import MAX_WAITING, Archivist
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    (tmp_path / "store").mkdir()
    (tmp_path / "archive").mkdir()
    return PosixStore(tmp_path / "store")


@pytest.fixture
def archive(store: PosixStore, tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "archive")


class Door:
    """Opens the archive, once it is not locked."""

    def __init__(self, archive: Store, locked: bool = False) -> None:
        self.archive, self.locked = archive, locked

    def open(self) -> Store:
        if self.locked:
            raise StoreUnavailable("the archive is away")
        return self.archive


@contextmanager
def archivist(
    store: Store, door: Door, every_steps: int | None, attempt: int = 1, rank: int = 0
) -> Iterator[tuple[Archivist, list[CheckpointRecord]]]:
    records: list[CheckpointRecord] = []
    porter = Archivist(store, RUN, writer(rank, attempt=attempt), door.open, every_steps, records.append)
    try:
        yield porter, records
    finally:
        porter.close()


def save(store: Store, *steps: int, tagged: int | None = None) -> list[CheckpointRecord]:
    with attempt_on(store) as attempt:
        return [attempt.saved(step, [state(float(step))], tags=("stage-end",) if step == tagged else ()) for step in steps]


def test_every_nth_and_every_tagged_checkpoint_is_copied_and_told(store: PosixStore, archive: PosixStore) -> None:
    save(store, 1, 2, 3, 4, tagged=3)
    with archivist(store, Door(archive), 2) as (porter, records):
        porter.look()
        porter.close()
    assert [name.step for name in list_committed(archive, RUN)] == [2, 3, 4]
    assert [(record.step, record.level, record.tier) for record in records] == [(step, Level.VERIFIED, Tier.ARCHIVE) for step in (2, 3, 4)]
    assert read_inventory(archive, RUN).lineage.on == list_committed(archive, RUN), "the fences are there as well"


def test_what_an_abandoned_attempt_wrote_is_not_archived(store: PosixStore, archive: PosixStore) -> None:
    base, _later = save(store, 2, 4)
    with attempt_on(store, attempt=2, resume=point(base)) as attempt:
        attempt.saved(6, [state(6.0)])
    with archivist(store, Door(archive), 2, attempt=2) as (porter, _):
        porter.look()
        porter.close()
    assert [name.step for name in list_committed(archive, RUN)] == [2, 6]


def test_a_failing_archive_is_a_warning_with_a_count_and_is_made_up_for_later(
    store: PosixStore, archive: PosixStore, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 2)
    door = Door(archive, locked=True)
    for failures in (1, 2):
        with archivist(store, door, 2) as (porter, records):
            porter.failures = failures - 1
            porter.look()
            porter.close()
            assert (porter.failures, records) == (failures, [])
    assert "archiving failed 2 times in a row: the archive is away" in caplog.text
    door.locked = False
    with archivist(store, door, 2) as (porter, records):
        porter.look()
        porter.close()
        assert (porter.failures, len(records)) == (0, 1)


def test_a_damaged_checkpoint_does_not_keep_later_ones_from_the_archive(
    store: PosixStore, archive: PosixStore, caplog: pytest.LogCaptureFixture
) -> None:
    first, _second = save(store, 2, 4)
    flip(directory_of(store, first) / "data" / "00000-model-0.safetensors", 5000)
    with archivist(store, Door(archive), 2) as (porter, _):
        porter.look()
        porter.close()
        assert not porter.waiting(read_held(store, RUN)), "it will not get better by waiting"
    assert [name.step for name in list_committed(archive, RUN)] == [4]
    assert "chunk 0" in caplog.text


def test_retention_waits_for_copies_but_not_for_more_than_a_few(store: PosixStore, archive: PosixStore) -> None:
    save(store, 1, 2, 4, 6, 8)
    with archivist(store, Door(archive), 2) as (porter, _):
        assert sorted(name.step for name in porter.waiting(read_held(store, RUN))) == [4, 6, 8][-MAX_WAITING:]
        porter.look()
        porter.close()
        assert not porter.waiting(read_held(store, RUN))


def test_only_rank_0_archives(store: PosixStore, archive: PosixStore) -> None:
    save(store, 2)
    with archivist(store, Door(archive), 2, rank=1) as (porter, _):
        porter.look()
        porter.close()
    assert list_committed(archive, RUN) == ()


def test_a_superseded_attempt_archives_nothing(store: PosixStore, archive: PosixStore, caplog: pytest.LogCaptureFixture) -> None:
    (record,) = save(store, 2)
    with attempt_on(store, attempt=2, resume=point(record)), archivist(store, Door(archive), 2, attempt=1) as (porter, _):
        porter.look()
        porter.close()
    assert list_committed(archive, RUN) == ()
    assert "owned by attempt 2" in caplog.text
