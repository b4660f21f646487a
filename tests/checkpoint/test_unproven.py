"""A step that was committed and not proven: the next try proves what is there, every rank its part, and nothing else ever counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.checkpoint.world import (
    MODEL_FILE,
    RUN,
    WAIT_SECONDS,
    assert_equal,
    attempt_on,
    flip,
    open_world,
    point,
    state,
    states,
    store_root,
)
from trainer_runtime.checkpoint.commit import About, Writer
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.job import Part, SaveJob, StagedFile
from trainer_runtime.checkpoint.outcome import pack_error
from trainer_runtime.checkpoint.persist import Persister
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.layout import MANIFEST
from trainer_runtime.errors import CheckpointDamaged, CommitUndecided, RuntimeProblem, SaveFailed, StoreUnavailable
from trainer_runtime.store.base import NotInStore
from trainer_runtime.store.posix import PosixStore

STEP = f"{RUN}/steps/0000000001-00000001"
RANK_1_FILE = "data/00001-extra-0.safetensors"


class Failing(PosixStore):
    """A store that nothing can be read back from while it ``is_away``, and whose cache denies a manifest ``denials`` times."""

    is_away = False
    denials = 0
    written = 0

    def read_back(self, path: str, block_bytes: int) -> Iterator[memoryview]:
        if self.is_away:
            raise StoreUnavailable("it is away for a moment")
        return super().read_back(path, block_bytes)

    def read(self, path: str) -> bytes:
        if path == f"{STEP}/{MANIFEST}" and self.denials > 0:
            self.denials -= 1
            raise NotInStore(path)
        return super().read(path)

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        self.written += 1
        super().write_file(path, image, size)


@pytest.fixture
def failing(store: PosixStore) -> Failing:
    return Failing(store_root(store))


RANKS = 2
CACHES = pytest.mark.parametrize("denials", [0, RANKS], ids=["seen at once", "seen by the commit alone"])


@CACHES
def test_a_step_that_could_not_be_proven_is_proven_by_the_next_save_of_it(failing: Failing, denials: int) -> None:
    with attempt_on(failing, RANKS) as attempt:
        failing.is_away = True
        for result in attempt.save(1, states(1.0, RANKS)):
            assert isinstance(result.error, StoreUnavailable)
        failing.is_away, failing.denials, failing.written = False, denials, 0
        record = attempt.saved(1, states(2.0, RANKS))
        assert (failing.written > 0) == (denials > 0)
        levels = [record.level for record in attempt.records[1]]
    assert levels == [Level.COMMITTED, Level.COMMITTED, Level.VERIFIED]
    assert failing.exists(f"{STEP}/verified.json")
    assert failing.list(f"{RUN}/tmp") == (), "what the second try wrote is given back"
    live = state(0.0)
    open_checkpoint(failing, point(record)).fill(live.leaves, 0)
    assert_equal(live, state(1.0))


@CACHES
@pytest.mark.parametrize("tags", [("stage-end",), ()], ids=["tagged", "not tagged"])
def test_the_records_of_a_step_that_was_committed_before_tell_its_own_tags(failing: Failing, denials: int, tags: tuple[str, ...]) -> None:
    with attempt_on(failing, RANKS) as attempt:
        failing.is_away = True
        attempt.save(1, states(1.0, RANKS), tags=tags)
        failing.is_away, failing.denials = False, denials
        attempt.saved(1, states(1.0, RANKS))
        told = [record.tagged for records in attempt.records for record in records]
    assert told == [bool(tags)] * 3 * RANKS


@CACHES
def test_a_step_that_is_damaged_is_not_proven_by_what_the_next_save_of_it_staged(failing: Failing, denials: int) -> None:
    with attempt_on(failing, RANKS) as attempt:
        failing.is_away = True
        attempt.save(1, states(1.0, RANKS))
        flip(store_root(failing) / STEP / RANK_1_FILE, 1000)
        failing.is_away, failing.denials = False, denials
        for result in attempt.save(1, states(1.0, RANKS)):
            assert isinstance(result.error, CheckpointDamaged)
            assert RANK_1_FILE in str(result.error)
    assert not failing.exists(f"{STEP}/verified.json")


@CACHES
def test_a_step_that_is_committed_without_a_tag_is_not_passed_off_as_one_with_it(failing: Failing, denials: int) -> None:
    with attempt_on(failing, RANKS) as attempt:
        failing.is_away = True
        attempt.save(1, states(1.0, RANKS), tags=("best",))
        failing.is_away, failing.denials = False, denials
        for result in attempt.save(1, states(1.0, RANKS), tags=("best", "final")):
            assert isinstance(result.error, SaveFailed)
            assert "step 1 is committed already, without the tag final" in str(result.error)
        attempt.saved(1, states(1.0, RANKS), tags=("best",))


class Nothing:
    """Staged bytes that nobody may ask for."""

    def image(self, file: StagedFile) -> memoryview:
        raise AssertionError(file)

    def await_window(self, window: int, deadline_seconds: float) -> None:
        raise AssertionError(window)


def persist_again(store: PosixStore, writers: list[Writer], exchange: LocalExchange) -> list[CheckpointRecord | RuntimeProblem]:
    """Have every rank's persister take over the save of step 1, in which it has nothing to write, and return how it ended."""

    def persist(who: Writer) -> CheckpointRecord | RuntimeProblem:
        persister = Persister(store, RUN, who, exchange, lambda record: None, WAIT_SECONDS)
        try:
            return persister.persist(SaveJob(About(1, 0, 8), (), 0, 0), Part((), (), ""), Nothing(), again=True)
        except RuntimeProblem as problem:
            return problem

    with ThreadPoolExecutor(len(writers)) as pool:
        return list(pool.map(persist, writers))


@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_a_rank_that_has_no_index_proves_its_part_by_the_committed_one(failing: Failing, is_damaged: bool) -> None:
    """Committed by one process; in the next one this rank had told the others that it failed."""
    with attempt_on(failing, RANKS) as attempt:
        failing.is_away = True
        attempt.save(1, states(1.0, RANKS))
        writers = [opened.writer for opened in attempt.opened]
    failing.is_away = False
    if is_damaged:
        flip(store_root(failing) / STEP / RANK_1_FILE, 1000)
    exchange = LocalExchange()
    exchange.put("save/0000000001-00000001/index/1", pack_error(SaveFailed("no space left")))

    ends = persist_again(failing, writers, exchange)

    assert failing.exists(f"{STEP}/verified.json") != is_damaged
    assert all(isinstance(end, CheckpointDamaged if is_damaged else CheckpointRecord) for end in ends), ends


def test_a_save_that_is_done_again_takes_a_manifest_away_before_anything_else(store: PosixStore) -> None:
    removed: list[str] = []

    class Telling(PosixStore):
        def remove(self, path: str) -> None:
            removed.append(path.rpartition("/")[2])
            super().remove(path)

    telling = Telling(store_root(store))
    (opened,) = open_world([store])
    store.create(f"{RUN}/tmp/0000000001-00000001/{MANIFEST}", b"{}")
    (end,) = persist_again(telling, [opened.writer], LocalExchange())
    assert isinstance(end, CheckpointRecord), end
    assert removed == [MANIFEST, "00000.json"]


def test_a_commit_that_does_not_come_back_leaves_the_files_that_it_may_yet_commit(store: PosixStore) -> None:
    release, renamed = threading.Event(), threading.Event()

    class Hanging(PosixStore):
        def _rename(self, source: Path, target: Path) -> None:
            assert release.wait(WAIT_SECONDS)
            super()._rename(source, target)
            renamed.set()

    with attempt_on(Hanging(store_root(store)), RANKS, deadline_seconds=2.0) as attempt:
        for result in attempt.save(1, states(1.0, RANKS)):
            assert isinstance(result.error, CommitUndecided), result.error
            assert "committing: file://" in str(result.error)
        release.set()
        assert renamed.wait(WAIT_SECONDS)
    assert store.exists(f"{STEP}/{MODEL_FILE}") and store.exists(f"{STEP}/{RANK_1_FILE}")
