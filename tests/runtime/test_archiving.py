"""The archive gets what belongs there, in its own time, and whatever goes wrong with it is said and harms nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, directory_of, flip, point, state, store_root, writer
from tests.store import servers
from tests.store.hostile import CLOSE, Trouble, hostile_s3
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints, propose_deletions, read_held
from trainer_runtime.checkpoint.keeping.inventory import list_committed, read_inventory
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Level, Tier
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.loop import archiving
from trainer_runtime.loop.archiving import MAX_WAITING, Archivist
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore
from trainer_runtime.store.s3.api import Limits


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
    store: Store, door: Door, every_steps: int | None, attempt: int = 1, rank: int = 0, looks: list[ArchiveLook] | None = None
) -> Iterator[tuple[Archivist, list[CheckpointRecord]]]:
    """``looks``: takes what is told of each look."""
    records: list[CheckpointRecord] = []
    looks = [] if looks is None else looks
    porter = Archivist(store, RUN, writer(rank, attempt=attempt), door.open, every_steps, records.append, looks.append)
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
    assert [record.tagged for record in records] == [False, True, False]
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


def test_how_each_look_ended_is_told(store: PosixStore, archive: PosixStore) -> None:
    save(store, 2)
    door, looks = Door(archive, locked=True), list[ArchiveLook]()
    with archivist(store, door, 2, looks=looks) as (porter, _):
        for locked in (True, True, False, False):
            door.locked = locked
            porter.look()
            wait(porter._looks, timeout=60)
    assert looks == [ArchiveLook(1, "the archive is away"), ArchiveLook(2, "the archive is away"), ArchiveLook(), ArchiveLook()]


def damage(store: PosixStore, archive: PosixStore, first: CheckpointRecord) -> None:
    flip(directory_of(store, first) / "data" / "00000-model-0.safetensors", 5000)


def put_another_under_its_name(store: PosixStore, archive: PosixStore, first: CheckpointRecord) -> None:
    with attempt_on(archive) as attempt:
        attempt.saved(first.step, [state(7.0)])


def let_its_data_be_unreadable(store: PosixStore, archive: PosixStore, first: CheckpointRecord) -> None:
    file = directory_of(store, first) / "data" / "00000-model-0.safetensors"
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (damage, "model-0.safetensors: chunk 0"),
        (put_another_under_its_name, "holds another checkpoint"),
        (let_its_data_be_unreadable, "cannot read"),
    ],
)
def test_one_that_cannot_be_copied_does_not_keep_later_ones_from_the_archive(
    store: PosixStore,
    archive: PosixStore,
    caplog: pytest.LogCaptureFixture,
    trouble: Callable[[PosixStore, PosixStore, CheckpointRecord], None],
    message: str,
) -> None:
    first, *_later = save(store, 2, 4, 6)
    trouble(store, archive, first)
    with archivist(store, Door(archive), 2) as (porter, records):
        porter.look()
        porter.close()
        assert porter.failures == 1
    assert [record.step for record in records] == [4, 6]
    assert message in caplog.text


def test_a_damaged_checkpoint_is_not_kept_for_the_archive(store: PosixStore, archive: PosixStore) -> None:
    (first,) = save(store, 2)
    damage(store, archive, first)
    with archivist(store, Door(archive), 2) as (porter, _):
        porter.look()
        porter.close()
        assert not porter.waiting(read_held(store, RUN)), "it will not get better by waiting"


def test_a_commit_in_the_archive_that_nobody_can_decide_keeps_nothing_from_it(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 2, 4)
    servers.give_credentials(monkeypatch)
    with hostile_s3() as server:
        bucket = servers.store_at(server.endpoint, "bucket", limits=Limits(connect=1.0, answer=1.0, request=0.6, first=0.6))
        assert bucket.capabilities.checks_parts
        server.troubles.append(Trouble("PutObject", CLOSE, times=1000, key_has=f"{StepName(2, 1)}/manifest.json"))
        for copied in ([4], []):
            with archivist(store, Door(bucket), 2) as (porter, records):
                porter.look()
                porter.close()
                assert ([record.step for record in records], porter.failures) == (copied, 1)
        assert "the commit was sent and may yet count" in caplog.text
        server.troubles.clear()
        with archivist(store, Door(bucket), 2) as (porter, records):
            porter.look()
            porter.close()
            assert ([record.step for record in records], porter.failures) == ([2], 0)


def test_retention_waits_for_copies_but_not_for_more_than_a_few(store: PosixStore, archive: PosixStore) -> None:
    save(store, 1, 2, 4, 6, 8)
    with archivist(store, Door(archive), 2) as (porter, _):
        assert sorted(name.step for name in porter.waiting(read_held(store, RUN))) == [4, 6, 8][-MAX_WAITING:]
        porter.look()
        porter.close()
        assert not porter.waiting(read_held(store, RUN))


class Endless(PosixStore):
    """An archive that is read back for as long as the test likes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_reading, self.may_go_on = threading.Event(), threading.Event()

    def read_back(self, path: str, block: int) -> Iterator[memoryview]:
        self.is_reading.set()
        assert self.may_go_on.wait(60)
        return super().read_back(path, block)


def test_the_end_of_a_run_breaks_off_a_copy_that_is_being_read_back(
    store: PosixStore, archive: PosixStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 2)
    endless = Endless(store_root(archive))
    monkeypatch.setattr(archiving, "CLOSE_SECONDS", 0.0)
    looks: list[ArchiveLook] = []
    with archivist(store, Door(endless), 2, looks=looks) as (porter, records):
        porter.look()
        assert endless.is_reading.wait(60)
        porter.close()
        told = tuple(looks)
        endless.may_go_on.set()
        wait(porter._looks, timeout=60)
    assert records == []
    (look,) = looks
    assert told == (look,), "told while there is somebody to tell, and once"
    assert (look.failures, look.reason) == (1, archiving.ENDED_TOO_SOON)
    assert "the run ended before the copy did" in caplog.text
    with archivist(store, Door(archive), 2) as (porter, records):
        porter.look()
        wait(porter._looks, timeout=60)
    assert [record.step for record in records] == [2], "the next attempt proves what is there"


class Slow(PosixStore):
    """An archive in which something happens while each file is written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meanwhile: Callable[[], object] = lambda: None

    def write_blocks(self, path: str, blocks: Iterable[memoryview], size: int) -> None:
        self.meanwhile()
        super().write_blocks(path, blocks, size)


def test_what_is_being_copied_stays_however_many_are_saved_meanwhile(store: PosixStore, archive: PosixStore) -> None:
    slow = Slow(store_root(archive))
    save(store, 2, 4, 6, 8, 10)
    with archivist(store, Door(slow), 2) as (porter, records):

        def tidy() -> None:
            held = read_held(store, RUN)
            names = propose_deletions(store, RUN, held, Keep(last=1), porter.waiting(held), now=0.0)
            delete_checkpoints(store, RUN, writer(attempt=1), names)

        slow.meanwhile = tidy
        porter.look()
        porter.close()
        assert porter.failures == 0
    assert [record.step for record in records] == [2, 6, 8, 10], "4 was one too many to wait for"


def test_what_is_deleted_while_it_is_copied_is_said_so(store: PosixStore, archive: PosixStore, caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow(store_root(archive))
    save(store, 2, 4)
    slow.meanwhile = lambda: delete_checkpoints(store, RUN, writer(attempt=1), [StepName(2, 1)])
    with archivist(store, Door(slow), 2) as (porter, records):
        porter.look()
        porter.close()
    assert [record.step for record in records] == [4]
    assert "was deleted while it was copied" in caplog.text


def test_the_archive_collects_no_rubbish(store: PosixStore, archive: PosixStore) -> None:
    save(store, 2)
    archive.create(f"{RUN}/tmp/{StepName(2, 1)}.0-ab/data/x", b"of an earlier attempt's copier")
    os.utime(store_root(archive) / RUN / "tmp" / f"{StepName(2, 1)}.0-ab", (0, 0))
    with archivist(store, Door(archive), 2) as (porter, _):
        porter.look()
        porter.close()
    assert archive.list(f"{RUN}/tmp") == ()


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
