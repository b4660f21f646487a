"""The start of an attempt: whose the run is, where it begins, and what the operator says when it is told what lies there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.world import MODEL_FILE, RUN, attempt_on, open_world, point, reference_to, state, states, store_root, writer
from trainer_runtime.channel.messages import Proceed
from trainer_runtime.checkpoint.documents import is_verified
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.fences import create_fence, read_fences
from trainer_runtime.checkpoint.keeping.inventory import Inventory, find_newest_change, read_inventory
from trainer_runtime.checkpoint.opening import find_start, open_run
from trainer_runtime.contract.assignment import Assignment, ResumePoint
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.manifest import Fence, Parent
from trainer_runtime.errors import ConfigurationError, Fenced, Refused, StoreUnavailable
from trainer_runtime.store.posix import PosixStore


def committed(store: PosixStore, *steps: int) -> list[CheckpointRecord]:
    """Make attempt 1 with a checkpoint at each step."""
    with attempt_on(store) as attempt:
        return [attempt.saved(step, [state(float(step))]) for step in steps]


def test_an_empty_run_starts_from_nothing_as_attempt_one_on_every_rank(store: PosixStore) -> None:
    opened = open_world([store] * 3)
    assert [(one.writer.attempt, one.writer.rank, one.resume, one.parents) for one in opened] == [(1, rank, None, ()) for rank in range(3)]
    (fence,) = read_fences(store, RUN)
    assert (fence.attempt, fence.job_uid, fence.pod_uid, fence.resume) == (1, "job-a", "pod-0", None)
    assert store.list(f"{RUN}/tmp") == (), "the probe was taken away"


def test_without_an_operator_every_rank_starts_from_the_newest_verified_one(store: PosixStore) -> None:
    records = committed(store, 10, 20)
    opened = open_world([store] * 3)
    for one in opened:
        assert one.writer.attempt == 2
        assert one.resume == point(records[1])
        assert one.parents == (Parent(20, 1, records[1].manifest_sha256, "resume"),)
    assert read_fences(store, RUN)[-1].resume == point(records[1])


def test_a_committed_one_that_was_not_verified_is_verified_and_used(store: PosixStore) -> None:
    records = committed(store, 10, 20)
    mark = f"{RUN}/steps/0000000020-00000001/verified.json"
    store.remove(mark)
    (opened,) = open_world([store])
    assert opened.resume == point(records[1])
    assert store.exists(mark)


class Telling(PosixStore):
    """A store that remembers in which order things were changed in it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.changed: list[str] = []

    def create(self, path: str, data: bytes) -> None:
        self.changed.append(path)
        super().create(path, data)

    def move(self, path: str, to: str) -> None:
        self.changed.append(path)
        super().move(path, to)

    def remove(self, path: str) -> None:
        self.changed.append(path)
        super().remove(path)


NEWEST = f"{RUN}/steps/0000000020-00000001"
MARK = f"{NEWEST}/verified.json"
FOUND = [
    pytest.param(lambda store: None, 20, [], id="marked"),
    pytest.param(lambda store: store.remove(MARK), 20, [MARK], id="not marked"),
    pytest.param(lambda store: (store.remove(MARK), store.create(MARK, b"")), 20, [MARK] * 3, id="a mark that was cut off"),
    pytest.param(lambda store: (store.remove(MARK), store.remove(f"{NEWEST}/{MODEL_FILE}")), 10, [], id="damaged and not marked"),
]


@pytest.mark.parametrize(("make", "start", "changes"), FOUND)
def test_an_attempt_changes_nothing_in_the_run_before_its_fence(
    store: PosixStore, make: Callable[[PosixStore], object], start: int, changes: list[str]
) -> None:
    committed(store, 10, 20)
    make(store)
    telling = Telling(store_root(store))
    (opened,) = open_world([telling])
    assert opened.resume is not None
    assert opened.resume.step == start
    assert [path for path in telling.changed if "/tmp/probe-" not in path] == [f"{RUN}/fences/00000002", *changes]
    assert is_verified(store, reference_to(store, CheckpointRecord(RUN, start, 1, "", opened.resume.manifest_sha256, Level.VERIFIED)))


@pytest.mark.parametrize(("make", "start", "changes"), FOUND)
def test_whoever_only_asks_where_an_attempt_would_start_changes_nothing(
    store: PosixStore, make: Callable[[PosixStore], object], start: int, changes: list[str]
) -> None:
    del changes
    committed(store, 10, 20)
    make(store)
    telling = Telling(store_root(store))
    resume = find_start(telling, RUN, None, False, None, is_alone=True)
    assert resume is not None
    assert resume.step == start
    assert telling.changed == []


def test_an_attempt_that_does_not_get_the_run_marks_nothing(store: PosixStore) -> None:
    class Late(PosixStore):
        def create(self, path: str, data: bytes) -> None:
            if "/fences/" in path:
                create_fence(store, RUN, Fence(2, "job-b", "pod", "nonce", None, None))
            super().create(path, data)

    committed(store, 10)
    mark = f"{RUN}/steps/0000000010-00000001/verified.json"
    store.remove(mark)
    with pytest.raises(Fenced):
        open_world([Late(store_root(store))])
    assert not store.exists(mark)


def test_an_assigned_resume_point_is_taken_and_recorded(store: PosixStore) -> None:
    records = committed(store, 10, 20)
    (opened,) = open_world([store], attempt=5, resume=point(records[0]))
    assert (opened.writer.attempt, opened.resume) == (5, point(records[0]))
    assert read_fences(store, RUN)[-1].resume_run is None


def test_a_run_that_should_be_empty_is_refused_with_its_inventory_and_not_fenced(store: PosixStore) -> None:
    committed(store, 10, 20)
    with pytest.raises(Refused, match=r"startFresh\nstep 20 of attempt 1: verified (.*)\nstep 10 of attempt 1: verified"):
        open_world([store] * 2, attempt=2)
    assert [fence.attempt for fence in read_fences(store, RUN)] == [1]


def test_start_fresh_abandons_what_was_there(store: PosixStore) -> None:
    committed(store, 10)
    with attempt_on(store, attempt=2, fresh=True) as attempt:
        assert attempt.opened[0].resume is None
        record = attempt.saved(5, [state(5.0)])
    (opened,) = open_world([store])
    assert opened.resume == point(record)


def test_an_older_attempt_cannot_start_any_more(store: PosixStore) -> None:
    (record,) = committed(store, 10)
    open_world([store], attempt=7, resume=point(record))
    with pytest.raises(Fenced, match="owned by attempt 7") as caught:
        open_world([store], attempt=6, resume=point(record))
    assert caught.value.highest_fence == 7


def test_the_operator_is_told_what_lies_there_before_anything_is_created(store: PosixStore) -> None:
    records = committed(store, 10, 20)
    told: list[Inventory] = []

    def hold(found: Inventory) -> Proceed | None:
        told.append(found)
        assert [fence.attempt for fence in read_fences(store, RUN)] == [1]
        return Proceed(assignment(2))

    open_world([store] * 2, attempt=2, resume=point(records[1]), hold=hold)
    (found,) = told
    assert [(record.step, record.level) for record in found.records] == [(20, Level.VERIFIED), (10, Level.VERIFIED)]
    assert found.highest is not None
    assert (found.highest.attempt, found.highest.job_uid) == (1, "job-a")


def assignment(attempt: int) -> Assignment:
    return Assignment(attempt, 0, 1, 1, "127.0.0.1", 29500, "id")


ANSWERS = [
    pytest.param(Proceed(assignment(3)), 0, "attempt 3 supersedes attempt 2", id="superseded"),
    pytest.param(Proceed(assignment(2)), 0, None, id="told to go on although the store is newer"),
    pytest.param(None, 0, "holds a newer checkpoint .step 20. than the assigned one .step 10.", id="no answer and the store is newer"),
    pytest.param(Proceed(None), 0, "holds a newer checkpoint", id="an answer without orders and the store is newer"),
    pytest.param(None, 1, None, id="no answer and nothing newer"),
]


@pytest.mark.parametrize(("answer", "assigned", "fenced"), ANSWERS)
def test_what_the_operators_answer_leads_to(store: PosixStore, answer: Proceed | None, assigned: int, fenced: str | None) -> None:
    records = committed(store, 10, 20)
    resume = point(records[assigned])
    if fenced is None:
        (opened,) = open_world([store], attempt=2, resume=resume, hold=lambda found: answer)
        assert opened.resume == resume
    else:
        with pytest.raises(Fenced, match=fenced):
            open_world([store], attempt=2, resume=resume, hold=lambda found: answer)
        assert [fence.attempt for fence in read_fences(store, RUN)] == [1]


@pytest.mark.parametrize("answer", [pytest.param(None, id="no answer"), pytest.param(Proceed(None), id="an answer without orders")])
@pytest.mark.parametrize("attempt", [1, 2])
def test_another_jobs_run_is_not_entered_without_the_operators_word(store: PosixStore, answer: Proceed | None, attempt: int) -> None:
    records = committed(store, 10)
    with pytest.raises(Fenced, match="owned by attempt 1 of job job-a") as caught:
        open_world([store], attempt=attempt, job="job-b", resume=point(records[0]), hold=lambda found: answer)
    assert (caught.value.highest_fence, caught.value.fence_job_uid) == (1, "job-a")
    assert [fence.attempt for fence in read_fences(store, RUN)] == [1]


def test_another_jobs_run_is_taken_over_on_the_operators_word(store: PosixStore) -> None:
    records = committed(store, 10)
    (opened,) = open_world([store], attempt=2, job="job-b", resume=point(records[0]), hold=lambda found: Proceed(assignment(2)))
    assert opened.resume == point(records[0])
    assert read_fences(store, RUN)[-1].job_uid == "job-b"


def test_an_inventory_says_what_was_abandoned(store: PosixStore) -> None:
    records = committed(store, 10, 20)
    with attempt_on(store, attempt=2, resume=point(records[0])) as attempt:
        attempt.saved(15, [state(15.0)])
    found = [(record.step, record.abandoned) for record in read_inventory(store, RUN).records]
    assert found == [(15, False), (10, False), (20, True)]


def test_without_any_fence_nothing_counts_as_abandoned(store: PosixStore) -> None:
    committed(store, 10)
    store.remove(f"{RUN}/fences")
    assert [record.abandoned for record in read_inventory(store, RUN).records] == [False]


CHANGES = [
    pytest.param("fences/00000002", id="a fence"),
    pytest.param("steps/0000000020-00000001/verified.json", id="a checkpoint's mark"),
    pytest.param("tmp/0000000030-00000001/data/00000-model-0.safetensors", id="a save in flight"),
]


@pytest.mark.parametrize("path", CHANGES)
def test_when_a_run_last_changed(store: PosixStore, tmp_path: Path, path: str) -> None:
    committed(store, 10, 20)
    store.remove(f"{RUN}/{path}")
    store.create(f"{RUN}/{path}", b"x")
    root = Path(store.uri.removeprefix("file://")) / RUN
    for old in root.rglob("*"):
        os.utime(old, (1000.0, 1000.0))
    os.utime(root / path if "tmp" in path or "fences" in path else (root / path).parent, (5000.0, 5000.0))
    assert find_newest_change(store, RUN) == 5000.0


def test_the_probe_of_a_start_is_no_change_of_the_run(store: PosixStore) -> None:
    committed(store, 10)
    before = find_newest_change(store, RUN)
    store.create(f"{RUN}/tmp/probe-0123", b"x")
    assert find_newest_change(store, RUN) == before


def test_an_empty_run_never_changed(store: PosixStore) -> None:
    assert find_newest_change(store, RUN) is None


def test_a_resume_point_whose_fence_is_not_here_means_another_store(store: PosixStore) -> None:
    with pytest.raises(StoreUnavailable, match="has no fence of attempt 4"):
        open_world([store], attempt=5, resume=ResumePoint(10, 4, f"{store.uri}/{RUN}/steps/0000000010-00000004", "0" * 64))
    assert store.list("") == (), "nothing was created"


def test_a_store_that_fails_ends_the_start_on_every_rank_at_once(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(StoreUnavailable, match="is the volume mounted"):
        open_world([store] * 3, attempt=1)


def test_a_fence_that_cannot_be_read_stops_the_start(store: PosixStore) -> None:
    store.create(f"{RUN}/fences/00000001", b"{}")
    with pytest.raises(StoreUnavailable, match="fences/00000001: this fence cannot be read"):
        open_world([store])


@pytest.mark.parametrize("run", ["", "Upper", "a/b", "..", "a..b", "-a", "x" * 129])
def test_a_run_name_that_is_not_one_is_refused(store: PosixStore, run: str) -> None:
    with pytest.raises(ConfigurationError, match="run: .* is not allowed"):
        open_run(store, run, writer(), LocalExchange(), None, False, None)


def test_ranks_whose_first_rank_is_silent_do_not_wait_for_ever(store: PosixStore) -> None:
    with pytest.raises(StoreUnavailable, match="rank 0 did not open the run: waited 0 s for 'open/result'"):
        open_run(store, RUN, writer(rank=1, world_size=2), LocalExchange(), None, False, None, probe_seconds=0.01, open_seconds=0.01)


def test_the_next_attempt_of_several_ranks_goes_on_where_the_last_one_was(store: PosixStore) -> None:
    with attempt_on(store, ranks=3) as attempt:
        attempt.saved(1, states(1.0, 3))
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(2, states(2.0, 3))
    assert (record.step, record.attempt) == (2, 2)
