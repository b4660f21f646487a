"""What must never happen to a checkpoint: each test is one of those, made to happen as far as it can be."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import (
    RUN,
    attempt_on,
    directory_of,
    flip,
    only,
    open_world,
    point,
    shared,
    state,
    states,
)
from trainer_runtime.checkpoint import persist
from trainer_runtime.checkpoint.cleaning import delete_checkpoints, propose_deletions
from trainer_runtime.checkpoint.inventory import read_inventory
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.restore import open_checkpoint
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import digest
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Fenced, Refused, SaveFailed, StoreUnavailable
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore

DATA = "data/00000-model-0.safetensors"


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


DAMAGES = [
    pytest.param(DATA, lambda path: flip(path, 4096 + 40), id="a flipped bit in the data"),
    pytest.param(DATA, lambda path: flip(path, 20), id="a flipped bit in the header"),
    pytest.param(DATA, lambda path: flip(path, 0), id="a flipped bit in the header's length"),
    pytest.param("data/00000-optim-0.safetensors", cut, id="a data file that lost its last byte"),
    pytest.param("data/00000-extra-0.safetensors", remove, id="a data file that is gone"),
    pytest.param("ranks/00000.json", lambda path: flip(path, 30), id="a flipped bit in an index"),
    pytest.param("ranks/00000.json", cut, id="an index that lost its last byte"),
    pytest.param("ranks/00000.json", remove, id="an index that is gone"),
    pytest.param("manifest.json", lambda path: flip(path, 30), id="a flipped bit in the manifest"),
    pytest.param("manifest.json", remove, id="a manifest that is gone"),
]


@pytest.mark.parametrize(("file", "damage"), DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_file_and_leaves_the_model_untouched(
    store: PosixStore, file: str, damage: Callable[[Path], None]
) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    damage(directory_of(store, record) / file)

    live = state(7.0)
    with pytest.raises(CheckpointDamaged) as caught:
        open_checkpoint(store, point(record)).fill(live.leaves, 0)

    assert caught.value.checkpoint.file == file
    assert (caught.value.checkpoint.step, caught.value.checkpoint.manifest_sha256) == (1, record.manifest_sha256)
    for leaf, before in zip(live.leaves, state(7.0).leaves, strict=True):
        assert torch.equal(leaf.tensor, before.tensor)


@pytest.mark.parametrize(("file", "damage"), [*DAMAGES, pytest.param(DATA, grow, id="a data file with a byte too many")])
def test_a_checkpoint_damaged_before_it_was_verified_is_passed_over_for_the_older_one(
    store: PosixStore, file: str, damage: Callable[[Path], None]
) -> None:
    with attempt_on(store) as attempt:
        older = attempt.saved(1, [state(1.0)])
        newer = attempt.saved(2, [state(2.0)])
    (directory_of(store, newer) / "verified.json").unlink()
    damage(directory_of(store, newer) / file)

    (opened,) = open_world([store])

    assert opened.resume == point(older)


def test_bytes_that_change_between_commit_and_verify_fail_the_save(store: PosixStore) -> None:
    def spoil(record: CheckpointRecord) -> None:
        if record.level is Level.COMMITTED:
            flip(directory_of(store, record) / DATA, 5000)

    with attempt_on(store, on_record=spoil) as attempt:
        (result,) = attempt.save(1, [state(1.0)])

    assert isinstance(result.error, CheckpointDamaged)
    assert DATA in str(result.error)
    assert [record.level for record in attempt.records[0]] == [Level.COMMITTED]
    assert not store.exists(f"{RUN}/steps/0000000001-00000001/verified.json")


def test_a_rank_that_cannot_write_fails_the_save_on_every_rank_and_nothing_is_committed(store: PosixStore) -> None:
    small, large = states(1.0, 3), states(2.0, 3)
    with attempt_on(store, ranks=3) as attempt:
        older = attempt.saved(1, small)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        try:
            results = attempt.save(2, large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert all("larger than the limit for files" in str(result.error) for result in results)
        assert all(result.record is None for result in results)
        assert store.list(f"{RUN}/steps") == ("0000000001-00000001",)
        assert store.list(f"{RUN}/tmp") == ()

        attempt.saved(2, large)  # the same step again, once there is room
    verify_checkpoint(store, Reference(store.uri, RUN, StepName(1, 1), older.manifest_sha256))


def test_a_rank_that_hangs_costs_this_save_alone_and_only_until_the_deadline(store: PosixStore) -> None:
    with attempt_on(store, ranks=3, deadline_seconds=0.5) as attempt:
        for rank in (0, 1):  # rank 2 never stages
            attempt.engines[rank].stage(state(1.0, rank=rank), step=1, epoch=0, samples=0, strict={})
        for result in attempt.results_of((0, 1)):
            assert isinstance(result.error, SaveFailed)
            assert "rank 2 did not hand in its part of the save within" in str(result.error)
        assert store.list(f"{RUN}/steps") == ()

    with attempt_on(store, ranks=3) as attempt:
        attempt.saved(2, states(2.0, 3))


def test_a_rank_that_hears_nothing_of_the_committer_deletes_nothing_that_may_yet_be_committed(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist, "ANSWER_SECONDS", 0.2)
    with attempt_on(store, ranks=2, deadline_seconds=0.2) as attempt:
        attempt.engines[1].stage(state(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        (result,) = attempt.results_of([1])
        assert "rank 0 did not say how the save ended" in str(result.error)
        assert store.list(f"{RUN}/tmp/0000000001-00000001/ranks") == ("00001.json",)


def test_five_failed_saves_in_a_row_are_an_error_in_the_training_thread(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        (engine,) = attempt.engines
        store.create(f"{RUN}/fences/00000009", store.read(f"{RUN}/fences/00000001").replace(b'"attempt":1', b'"attempt":9'))
        for step in range(1, 6):
            (result,) = attempt.save(step, [state(1.0)])
            assert isinstance(result.error, Fenced)
        with pytest.raises(SaveFailed, match="the last 5 saves failed"):
            engine.stage(state(1.0), step=6, epoch=0, samples=0, strict={})


LIVE_DIFFERENCES = [
    pytest.param(lambda leaves: [cast(leaves[0], torch.float64), *leaves[1:]], "dtype is F32 in the checkpoint and F64", id="wider dtype"),
    pytest.param(lambda leaves: [cast(leaves[0], torch.bfloat16), *leaves[1:]], "dtype is F32 in the checkpoint and BF16", id="narrower"),
    pytest.param(lambda leaves: leaves[1:], "model/weight: in the checkpoint and not in this program", id="extra in the checkpoint"),
    pytest.param(lambda leaves: [*leaves, shared("model/new", torch.zeros(1))], "model/new: not in the checkpoint", id="missing"),
    pytest.param(
        lambda leaves: [shared("model/weight", torch.zeros(16, 64)), *leaves[1:]],
        "shape is [64, 16] in the checkpoint and [16, 64]",
        id="shape",
    ),
    pytest.param(
        lambda leaves: [*leaves, Leaf("model/head", leaves[0].tensor, Kind.MODEL, True, alias_of="model/weight")],
        "model/head: not in the checkpoint",
        id="a tie that was not saved",
    ),
]


def cast(leaf: Leaf, dtype: torch.dtype) -> Leaf:
    return shared(leaf.name, leaf.tensor.to(dtype))


@pytest.mark.parametrize(("change", "message"), LIVE_DIFFERENCES)
def test_a_program_that_differs_is_refused_and_never_cast_or_skipped(
    store: PosixStore, change: Callable[[list[Leaf]], list[Leaf]], message: str
) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    live = change(list(state(7.0).leaves))

    with pytest.raises(Refused, match="does not fit this program") as caught:
        open_checkpoint(store, point(record)).fill(live, 0)

    assert message in str(caught.value)
    assert float(live[1].tensor.flatten()[0]) != 1.0


def test_every_rank_gets_its_own_values_back(store: PosixStore) -> None:
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(4, states(4.0, 3))
    for rank in range(3):
        live = state(0.0, rank=rank)
        live.leaves[-1].tensor.fill_(99)
        checkpoint = open_checkpoint(store, point(record))
        checkpoint.fill(live.leaves, rank)
        for leaf, wanted in zip(live.leaves, state(4.0, rank=rank).leaves, strict=True):
            assert torch.equal(leaf.tensor, wanted.tensor), leaf.name
        assert checkpoint.objects(rank) == {"scheduler": {"last_epoch": 4.0}, f"rank{rank:05d}/data": {"cursor": rank + 100}}


UNRANKED = [
    pytest.param(Leaf("rng/torch", torch.zeros(1), Kind.EXTRA, False), "must be named rank00000/", id="own value, shared name"),
    pytest.param(Leaf("rank00001/rng", torch.zeros(1), Kind.EXTRA, False), "must be named rank00000/", id="another rank's name"),
    pytest.param(Leaf("rank00000/rng", torch.zeros(1), Kind.EXTRA, True), "said to be the same on all ranks", id="shared value, own name"),
]


@pytest.mark.parametrize(("leaf", "message"), UNRANKED)
def test_one_ranks_value_cannot_stand_for_all(store: PosixStore, leaf: Leaf, message: str) -> None:
    with attempt_on(store) as attempt, pytest.raises(ConfigurationError, match=message):
        attempt.save(1, [only(leaf)])


def test_what_changes_right_after_staging_does_not_reach_the_checkpoint(store: PosixStore) -> None:
    live = state(1.0)
    with attempt_on(store) as attempt:
        attempt.engines[0].stage(live, step=1, epoch=0, samples=0, strict={})
        for leaf in live.leaves:
            leaf.tensor.fill_(9)
        (result,) = attempt.results()
    assert result.record is not None
    open_checkpoint(store, point(result.record)).fill(live.leaves, 0)
    for leaf, wanted in zip(live.leaves, state(1.0).leaves, strict=True):
        assert torch.equal(leaf.tensor, wanted.tensor), leaf.name


def test_a_half_filled_stage_is_never_written(store: PosixStore) -> None:
    gone = torch.ones(64)
    broken = only(shared("model/a", torch.ones(64)), shared("model/b", gone))
    with attempt_on(store) as attempt:
        attempt.saved(1, [broken])
        gone.untyped_storage().resize_(0)
        with pytest.raises(ConfigurationError, match="model/b: its memory was freed"):
            attempt.engines[0].stage(broken, step=2, epoch=0, samples=0, strict={})
        assert not attempt.engines[0].busy
        assert store.list(f"{RUN}/steps") == ("0000000001-00000001",)
        attempt.saved(3, [state(3.0)])


def test_a_changed_structure_never_meets_an_old_plan(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [only(shared("model/w", torch.ones(8)))])
        record = attempt.saved(2, [only(shared("model/w", torch.full((4,), 1e300, dtype=torch.float64)))])
    live = torch.zeros(4, dtype=torch.float64)
    open_checkpoint(store, point(record)).fill([shared("model/w", live)], 0)
    assert live.tolist() == [1e300] * 4


def test_ranks_that_hold_different_shared_tensors_fail_the_save(store: PosixStore) -> None:
    snapshots = states(1.0, 2)
    snapshots[1] = Snapshot((*snapshots[1].leaves, shared("model/extra", torch.ones(4))), snapshots[1].objects)
    with attempt_on(store, ranks=2) as attempt:
        results = attempt.save(1, snapshots)
    assert all("rank 1 and rank 0 hold different shared tensors" in str(result.error) for result in results)
    assert store.list(f"{RUN}/steps") == ()


def test_two_saves_never_overlap(store: PosixStore) -> None:
    with attempt_on(store, ranks=2, deadline_seconds=5) as attempt:
        attempt.engines[0].stage(state(1.0), step=1, epoch=0, samples=0, strict={})  # in flight until rank 1 hands in its part
        assert attempt.engines[0].busy
        with pytest.raises(SaveFailed, match="the save of step 1 is still in flight"):
            attempt.engines[0].stage(state(2.0), step=2, epoch=0, samples=0, strict={})
        attempt.engines[1].stage(state(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        assert [result.error for result in attempt.results()] == [None, None]


def test_what_a_zombie_commits_after_a_rollback_is_abandoned(store: PosixStore) -> None:
    with attempt_on(store) as zombie:
        base = zombie.saved(10, [state(10.0)])
        zombie.saved(20, [state(20.0)])
        with attempt_on(store, attempt=2, resume=point(base)) as successor:
            (result,) = zombie.save(30, [state(30.0)])
            assert isinstance(result.error, Fenced)
            assert result.error.highest_fence == 2
            # what a fence check that came a moment too early would have let through
            shutil.copytree(
                directory_of(store, base), store_root(store) / RUN / "steps" / str(StepName(30, 1)), copy_function=shutil.copyfile
            )
            kept = successor.saved(15, [state(15.0)])

    found = read_inventory(store, RUN)
    assert found.lineage.on == (StepName(10, 1), StepName(15, 2))
    assert found.lineage.abandoned == (StepName(20, 1), StepName(30, 1))
    (opened,) = open_world([store])
    assert opened.resume == point(kept)


def store_root(store: PosixStore) -> Path:
    return Path(store.uri.removeprefix("file://"))


def test_two_jobs_cannot_share_a_run(store: PosixStore) -> None:
    with attempt_on(store, attempt=3, job="job-a") as first:
        first.saved(1, [state(1.0)])
        with pytest.raises(Fenced, match="owned by attempt 3 of job job-a") as caught:
            open_world([store], attempt=1, job="job-b")
        assert (caught.value.highest_fence, caught.value.fence_job_uid) == (3, "job-a")
        open_world([store], attempt=4, job="job-b", fresh=True)
        (result,) = first.save(2, [state(2.0)])
        assert isinstance(result.error, Fenced)
        assert result.error.fence_job_uid == "job-b"


def test_the_same_attempt_cannot_be_started_twice(store: PosixStore) -> None:
    open_world([store], attempt=1)
    with pytest.raises(Fenced, match="attempt 1 of run 'run' was already started, by pod pod-0 of job job-a"):
        open_world([store], attempt=1)


def test_a_zombie_deletes_nothing(store: PosixStore) -> None:
    with attempt_on(store) as zombie:
        base = zombie.saved(1, [state(1.0)])
        open_world([store], attempt=2, resume=point(base))
        with pytest.raises(Fenced):
            delete_checkpoints(store, RUN, zombie.opened[0].writer, [StepName(1, 1)])
    open_checkpoint(store, point(base)).fill(state(0.0).leaves, 0)


def test_retention_leaves_the_newest_verified_one_and_the_resume_point(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        records = [attempt.saved(step, [state(float(step))]) for step in (1, 2, 3)]
        (directory_of(store, records[2]) / "verified.json").unlink()
        assert propose_deletions(store, RUN, Keep(last=1), point(records[0]), now=0.0) == ()
        assert propose_deletions(store, RUN, Keep(last=1), None, now=0.0) == (StepName(1, 1),)


def test_the_newest_is_never_chosen_by_file_times(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        older = attempt.saved(1, [state(1.0)])
        newer = attempt.saved(2, [state(2.0)])
    for path in (directory_of(store, older), directory_of(store, older) / "manifest.json"):
        os.utime(path, (4e9, 4e9))
    (opened,) = open_world([store])
    assert opened.resume == point(newer)


def test_a_run_that_lost_its_fences_does_not_start_from_nothing(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    shutil.rmtree(store_root(store) / RUN / "fences")
    with pytest.raises(Refused, match=r"nothing says where to start(.|\n)*step 1 of attempt 1: verified, abandoned"):
        open_world([store])
    with pytest.raises(StoreUnavailable, match="this is not the store"):
        open_world([store], attempt=2, resume=point(record))


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        records = [attempt.saved(step, [state(float(step))]) for step in (1, 2)]
    for record in records:
        (directory_of(store, record) / "verified.json").unlink()
        flip(directory_of(store, record) / DATA, 5000)
    with pytest.raises(CheckpointDamaged, match="no checkpoint of this run can be used") as caught:
        open_world([store])
    assert caught.value.checkpoint.step == 2


def test_a_store_that_is_not_shared_is_refused_on_every_rank(tmp_path: Path) -> None:
    stores = []
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()
        stores.append(PosixStore(tmp_path / str(rank), "file:///same/address"))
    with pytest.raises(StoreUnavailable, match=r"not shared between all workers(.|\n)*rank 1: worker-1(.|\n)*rank 2: worker-2"):
        open_world(stores, probe_seconds=0.2)
    assert stores[0].list(RUN) == ("tmp",), "nothing was created but the probe, and that was taken away"


def test_a_volume_that_went_away_while_training_is_noticed_at_commit(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        root = store_root(store)
        root.rename(root.with_name("elsewhere"))
        (result,) = attempt.save(2, [state(2.0)])
        assert isinstance(result.error, StoreUnavailable)
        assert "is the volume mounted" in str(result.error)
        root.mkdir()  # an empty mount point
        (result,) = attempt.save(3, [state(3.0)])
        assert "fence is gone, so this is not the store it was started in" in str(result.error)


def test_nothing_here_can_run_code_from_a_file() -> None:
    root = Path(__file__).parents[2] / "trainer_runtime"
    for room in ("store", "checkpoint", "contract", "state"):
        for path in (root / room).glob("*.py"):
            text = path.read_text()
            for word in ("import pickle", "from pickle", "torch.load", "torch.save", "marshal", "eval(", "exec("):
                assert word not in text, f"{path}: {word}"


def test_attempts_without_a_fence_of_their_own_cannot_commit(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        shutil.rmtree(store_root(store) / RUN / "fences")
        (result,) = attempt.save(1, [state(1.0)])
    assert isinstance(result.error, StoreUnavailable)


def test_a_checkpoint_that_nobody_could_read_is_not_committed(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        (result,) = attempt.save(2, [state(2.0)], tags=(5,))  # type: ignore[arg-type]  # a wrong type is the point
        assert isinstance(result.error, SaveFailed)
        assert "its manifest could not be read again: Manifest.tags[0]: 5 is not a str" in str(result.error)
    assert read_inventory(store, RUN).lineage.on == (StepName(1, 1),)


def written_by_a_newer_version(store: PosixStore, record: CheckpointRecord) -> Path:
    """Make a checkpoint one of the next major version, whole and sealed."""
    path = directory_of(store, record) / "manifest.json"
    document = {**json.loads(path.read_text()), "version": "2.0", "self_sha256": ""}
    seal = digest(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps({**document, "self_sha256": seal}, sort_keys=True, separators=(",", ":")))
    return path


def test_a_newer_versions_checkpoint_is_refused_and_no_older_one_is_taken_instead(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        written_by_a_newer_version(store, attempt.saved(2, [state(2.0)]))
    with pytest.raises(Refused, match=r"0000000002-00000001: written by another version of rtj: .*'2\.0'.*this side speaks 1\.x"):
        open_world([store])
    assert propose_deletions(store, RUN, Keep(last=1), None, now=1e12) == ()


def test_a_damaged_version_number_is_damage(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        path = written_by_a_newer_version(store, attempt.saved(2, [state(2.0)]))
    path.write_text(path.read_text().replace('"version":"2.0"', '"version":"3.0"'))
    (opened,) = open_world([store])
    assert opened.resume is not None
    assert opened.resume.step == 1
    assert "self_sha256" in opened.passed_over[0]
