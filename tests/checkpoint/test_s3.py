"""The engine on S3: the promises that it keeps on files, on a server that keeps objects as files (gofakes3), and on one that is hostile."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.checkpoint import victim
from tests.checkpoint.world import RUN, attempt_on, open_world, point, state, states
from tests.store import servers
from tests.store.hostile import CLOSE, LOSE, Hostile, Trouble, hostile_s3
from trainer_runtime.channel.messages import Proceed
from trainer_runtime.checkpoint.commit import About, commit
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints, sweep
from trainer_runtime.checkpoint.keeping.inventory import Inventory, list_committed, read_inventory
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import RankIndex
from trainer_runtime.errors import CheckpointDamaged, CommitUndecided, Fenced, Refused
from trainer_runtime.store.base import AlreadyInStore
from trainer_runtime.store.s3.store import S3Store

DATA = "attempts/00000001/0000000001/data/00000-model-0.safetensors"
DAY = 24 * 3600.0


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.gofakes3(tmp_path_factory.mktemp("gofakes3")) as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    servers.give_credentials(monkeypatch)


class Bucket:
    """A bucket of one's own, and what somebody does to it behind the store's back."""

    def __init__(self, endpoint: str) -> None:
        self.name = servers.new_bucket(endpoint)
        self.endpoint = endpoint
        self._client = servers.client(endpoint)

    def store(self) -> S3Store:
        return servers.store_at(self.endpoint, self.name, "team")

    def flip(self, path: str, offset: int) -> None:
        key = f"team/{RUN}/{path}"
        data = bytearray(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())
        data[offset] ^= 1
        self._client.put_object(Bucket=self.name, Key=key, Body=bytes(data))

    def delete(self, path: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=f"team/{RUN}/{path}")

    def objects(self) -> list[str]:
        """Return the keys of the run."""
        found = self._client.list_objects_v2(Bucket=self.name, Prefix=f"team/{RUN}/").get("Contents", ())
        return [item["Key"].removeprefix(f"team/{RUN}/") for item in found]


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    return Bucket(endpoint)


@pytest.fixture
def store(bucket: Bucket) -> S3Store:
    return bucket.store()


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    with hostile_s3() as server:
        yield server


def values_at(store: S3Store, resume: ResumePoint | CheckpointRecord, rank: int = 0) -> Any:
    live = state(0.0, rank=rank)
    where = resume if isinstance(resume, ResumePoint) else point(resume)
    open_checkpoint(store, where).fill(live.leaves, rank)
    return live


def assert_equal(store: S3Store, resume: ResumePoint | CheckpointRecord, value: float, rank: int = 0) -> None:
    for leaf, wanted in zip(values_at(store, resume, rank).leaves, state(value, rank=rank).leaves, strict=True):
        assert torch.equal(leaf.tensor, wanted.tensor), leaf.name


def test_what_was_saved_is_resumed_from_on_every_rank_and_the_keys_are_as_documented(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store, ranks=2) as attempt:
        attempt.saved(1, states(1.0, 2))
        record = attempt.saved(2, states(2.0, 2))
    assert record.uri == f"s3://{bucket.name}/team/{RUN}/steps/0000000002-00000001"
    later = bucket.store()
    for opened in open_world([later, later]):
        assert opened.resume == point(record)
    for rank in range(2):
        assert_equal(later, record, 2.0, rank)
    kinds = {"/".join(key.split("/")[:-1]) for key in bucket.objects()}
    assert kinds == {
        "attempts/00000001/0000000001/data",
        "attempts/00000001/0000000001/ranks",
        "attempts/00000001/0000000002/data",
        "attempts/00000001/0000000002/ranks",
        "fences",
        "steps/0000000001-00000001",
        "steps/0000000002-00000001",
    }


def test_a_flipped_byte_is_found_before_anything_is_loaded(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    bucket.flip(DATA, 5000)
    live = state(0.0)
    with pytest.raises(CheckpointDamaged, match=r"s3://.*/00000-model-0.safetensors: chunk 0 .* is not what was staged"):
        open_checkpoint(store, point(record)).fill(live.leaves, 0)
    assert all(torch.equal(leaf.tensor, wanted.tensor) for leaf, wanted in zip(live.leaves, state(0.0).leaves, strict=True))


@pytest.mark.parametrize(
    ("path", "named"),
    [
        pytest.param(DATA, "00000-model-0.safetensors: is missing", id="data"),
        pytest.param("attempts/00000001/0000000001/ranks/00000.json", "ranks/00000.json", id="rank index"),
        pytest.param("steps/0000000001-00000001/manifest.json", "manifest.json", id="manifest"),
    ],
)
def test_a_missing_object_is_damage_and_is_named(bucket: Bucket, store: S3Store, path: str, named: str) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    bucket.delete(path)
    with pytest.raises(CheckpointDamaged, match=named):
        values_at(bucket.store(), record)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as attempt:
        records = [attempt.saved(step, [state(float(step))]) for step in (1, 2)]
    bucket.delete("steps/0000000002-00000001/verified.json")
    bucket.flip(DATA.replace("0000000001/data", "0000000002/data"), 5000)
    (opened,) = open_world([bucket.store()])
    assert opened.resume == point(records[0])
    assert "0000000002-00000001" in opened.passed_over[0]


def test_an_object_damaged_on_its_way_fails_the_save_and_is_never_marked_verified(hostile: Hostile) -> None:
    hostile.checks_checksums = False
    store = servers.store_at(hostile.endpoint, "bucket")
    with attempt_on(store) as attempt:
        hostile.damages = "-model-"
        (result,) = attempt.save(1, [state(1.0)])
        assert isinstance(result.error, CheckpointDamaged)
        hostile.damages = None
        attempt.saved(2, [state(2.0)])
    reference = find_reference(store, RUN, StepName(1, 1))
    assert reference is None or not is_verified(store, reference)


def test_a_zombie_cannot_commit_and_what_it_wrote_is_nobodys(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as zombie:
        record = zombie.saved(1, [state(1.0)])
        with attempt_on(bucket.store()) as successor:
            assert successor.opened[0].resume == point(record)
            (result,) = zombie.save(2, [state(2.0)])
            assert isinstance(result.error, Fenced)
            successor.saved(2, [state(-2.0)])
    assert read_inventory(store, RUN).lineage.on == (StepName(1, 1), StepName(2, 2))


def test_a_zombie_that_commits_all_the_same_is_abandoned(bucket: Bucket, store: S3Store) -> None:
    """A check of the fences and a commit cannot be one act, on S3 neither."""
    with attempt_on(store) as zombie:
        zombie.saved(1, [state(1.0)])
        open_world([bucket.store()])
        store.create(f"{RUN}/tmp/{StepName(2, 1)}/data/x", b"late")
        store.commit(f"{RUN}/tmp/{StepName(2, 1)}", f"{RUN}/steps/{StepName(2, 1)}", "manifest.json", b"{}")
    found = read_inventory(store, RUN)
    assert (found.lineage.on, found.lineage.abandoned) == ((StepName(1, 1),), (StepName(2, 1),))


def test_the_operator_is_told_what_lies_in_the_bucket_before_anything_is_changed_there(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    told: list[Inventory] = []

    def hold(found: Inventory) -> Proceed | None:
        told.append(found)
        assert [key for key in bucket.objects() if key.startswith("fences/")] == ["fences/00000001"]
        return None

    (opened,) = open_world([bucket.store()], attempt=2, resume=point(record), hold=hold)
    assert opened.writer.attempt == 2
    (inventory,) = told
    assert [(found.uri, found.level) for found in inventory.records] == [(record.uri, Level.VERIFIED)]


def test_of_attempts_that_begin_at_once_the_one_with_the_highest_fence_owns_the_run(bucket: Bucket) -> None:
    def begin(_number: int) -> int | None:
        try:
            (opened,) = open_world([bucket.store()])
        except Fenced:
            return None  # another was there first, or came on top before this one had begun
        return opened.writer.attempt

    with ThreadPoolExecutor(4) as pool:
        begun = [attempt for attempt in pool.map(begin, range(4)) if attempt is not None]
    fences = read_inventory(bucket.store(), RUN).fences
    assert len(set(begun)) == len(begun), "no number is given twice"
    assert set(begun) <= {fence.attempt for fence in fences}
    assert max(begun) == fences[-1].attempt


def test_of_two_processes_that_commit_one_step_exactly_one_succeeds(bucket: Bucket, store: S3Store) -> None:
    (opened,) = open_world([store])
    index = dumps(RankIndex(0, (), (), ())).encode()

    def run(try_: int) -> bool:
        own = bucket.store()
        staging = f"{RUN}/tmp/{StepName(1, 1)}.{try_}"
        own.create(f"{staging}/ranks/00000.json", index)
        try:
            commit(own, RUN, staging, opened.writer, About(1, try_, 0), (index,))
        except AlreadyInStore:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(run, range(1, 4)))
    assert won.count(True) == 1
    reference = find_reference(store, RUN, StepName(1, 1))
    assert reference is not None
    verify_checkpoint(store, reference)


def test_a_run_that_holds_checkpoints_does_not_start_from_nothing(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
    bucket.delete("fences/00000001")
    with pytest.raises(Refused, match="nothing says where to start"):
        open_world([bucket.store()])


def test_what_is_deleted_frees_its_room_a_day_later_and_nothing_else_is_touched(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as attempt:
        for step in (1, 2, 3):
            record = attempt.saved(step, [state(float(step))])
        owner = attempt.opened[0].writer
        delete_checkpoints(store, RUN, owner, [StepName(1, 1)])
        delete_checkpoints(store, RUN, owner, [StepName(1, 1)])  # a grant may come twice
        assert list_committed(store, RUN) == (StepName(2, 1), StepName(3, 1))
        assert DATA in bucket.objects()
        (grave,) = store.list(f"{RUN}/trash")
        deleted_at = store.modified_at(f"{RUN}/trash/{grave}")
        sweep(store, RUN, owner, deleted_at + DAY - 1)
        assert DATA in bucket.objects()
        sweep(store, RUN, owner, deleted_at + DAY + 1)
        assert not [key for key in bucket.objects() if key.startswith(("trash/", "attempts/00000001/0000000001"))]
    assert_equal(bucket.store(), record, 3.0)


def test_what_an_older_attempt_left_in_flight_goes_to_the_trash_after_a_day(bucket: Bucket, store: S3Store) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
    store.create(f"{RUN}/tmp/{StepName(9, 1)}/data/x", b"left behind")
    (opened,) = open_world([bucket.store()])
    left_at = store.modified_at(f"{RUN}/tmp/{StepName(9, 1)}")
    sweep(store, RUN, opened.writer, left_at + DAY - 1)
    assert store.list(f"{RUN}/tmp") == (str(StepName(9, 1)),)
    sweep(store, RUN, opened.writer, left_at + DAY + 1)
    assert store.list(f"{RUN}/tmp") == ()
    sweep(store, RUN, opened.writer, left_at + 3 * DAY)
    assert "attempts/00000001/0000000009/data/x" not in bucket.objects()
    assert list_committed(store, RUN) == (StepName(1, 1),)


def test_a_save_whose_commit_is_lost_on_the_way_is_committed_all_the_same(hostile: Hostile) -> None:
    store = servers.store_at(hostile.endpoint, "bucket")
    with attempt_on(store) as attempt:
        hostile.troubles += [Trouble("PutObject", LOSE, 2, key_has="manifest.json"), Trouble("PutObject", 503, 2, key_has="data")]
        record = attempt.saved(1, [state(1.0)])
    assert_equal(store, record, 1.0)


def test_a_commit_that_nobody_can_tell_keeps_its_data_on_every_rank(hostile: Hostile) -> None:
    store = servers.store_at(hostile.endpoint, "bucket", limits=servers.QUICK_TO_GIVE_UP)
    with attempt_on(store, ranks=2) as attempt:
        hostile.troubles.append(Trouble("PutObject", CLOSE, 10_000, key_has="manifest.json"))
        for result in attempt.save(1, states(1.0, 2)):
            assert isinstance(result.error, CommitUndecided)
        hostile.troubles.clear()
        assert len([key for key in hostile.objects if "attempts/00000001/0000000001/data" in key]) >= 2
        attempt.saved(2, states(2.0, 2))


def test_a_save_costs_few_requests(hostile: Hostile) -> None:
    store = servers.store_at(hostile.endpoint, "bucket")
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        hostile.requests.clear()
        attempt.saved(2, [state(2.0)])
    files = 3
    assert hostile.requests.count("PutObject") == files + len(("index", "manifest", "verified mark"))
    assert len(hostile.requests) <= 3 * files + 9, hostile.requests


def test_a_kill_at_any_write_of_a_save_leaves_whole_checkpoints_only(bucket: Bucket, store: S3Store) -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([victim.__name__])
    with attempt_on(store) as attempt:
        attempt.saved(1, [victim.weights(1.0)])
    newest = 1
    for step, (fatal, before) in enumerate([(1, True), (2, False), (3, True), (3, False), (4, True)], 2):
        process = forks.Process(target=victim.die_in_save_on_s3, args=(dict(os.environ), bucket.endpoint, bucket.name, step, fatal, before))
        process.start()
        process.join(60)
        assert process.exitcode == -9, f"write {fatal} was not reached"
        later = bucket.store()
        newest = step if (fatal, not before) >= (3, True) else newest  # data, index, then the commit
        assert victim.check_store(later) == newest, f"killed {'before' if before else 'after'} write {fatal}"


def test_a_worker_of_another_job_is_told_of_the_fence(bucket: Bucket, store: S3Store) -> None:
    open_world([store], attempt=3)
    with pytest.raises(Fenced, match="is owned by attempt 3"):
        open_world([bucket.store()], attempt=2, job="job-b", hold=None)
