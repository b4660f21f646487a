"""What goes wrong around a checkpoint: silent ranks, stores that are not there, formats of another time. Each ends in one clear error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.world import (
    MODEL_FILE,
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
    store_root,
)
from tests.checkpoint.wrongs import DAMAGES, grow
from trainer_runtime.checkpoint import persist
from trainer_runtime.checkpoint.keeping.cleaning import propose_deletions, read_held
from trainer_runtime.checkpoint.keeping.inventory import read_inventory
from trainer_runtime.checkpoint.staging.unchanged import LEAST_BYTES
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import digest
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Fenced, Refused, StoreUnavailable
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore


def test_a_rank_that_hears_nothing_of_the_committer_deletes_nothing_that_may_yet_be_committed(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist, "ANSWER_SECONDS", 0.2)
    with attempt_on(store, ranks=2, deadline_seconds=0.2) as attempt:
        attempt.engines[1].stage(state(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        (result,) = attempt.results_of([1])
        assert "rank 0 did not say how the save ended" in str(result.error)
        assert store.list(f"{RUN}/tmp/0000000001-00000001/ranks") == ("00001.json",)


def test_ranks_that_hold_different_shared_tensors_fail_the_save(store: PosixStore) -> None:
    snapshots = states(1.0, 2)
    snapshots[1] = Snapshot((*snapshots[1].leaves, shared("model/extra", torch.ones(4))), snapshots[1].objects)
    with attempt_on(store, ranks=2) as attempt:
        results = attempt.save(1, snapshots)
    assert all("rank 1 and rank 0 hold different shared tensors" in str(result.error) for result in results)
    assert store.list(f"{RUN}/steps") == ()


def test_the_same_attempt_cannot_be_started_twice(store: PosixStore) -> None:
    open_world([store], attempt=1)
    with pytest.raises(Fenced, match="attempt 1 of run 'run' was already started, by pod pod-0 of job job-a"):
        open_world([store], attempt=1)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        records = [attempt.saved(step, [state(float(step))]) for step in (1, 2)]
    for record in records:
        (directory_of(store, record) / "verified.json").unlink()
        flip(directory_of(store, record) / MODEL_FILE, 5000)
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


def test_attempts_without_a_fence_of_their_own_cannot_commit(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        shutil.rmtree(store_root(store) / RUN / "fences")
        (result,) = attempt.save(1, [state(1.0)])
    assert isinstance(result.error, StoreUnavailable)


def test_a_checkpoint_that_nobody_could_read_is_not_committed(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        wrong: Any = (5,)  # as a script without types may give it
        with pytest.raises(ConfigurationError, match=r"step 2 could not be read again: About.tags\[0\]: 5 is not a str"):
            attempt.save(2, [state(2.0)], tags=wrong)
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
    assert propose_deletions(store, RUN, read_held(store, RUN), Keep(last=1), (), now=1e12) == ()


def test_a_damaged_version_number_is_damage(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
        path = written_by_a_newer_version(store, attempt.saved(2, [state(2.0)]))
    path.write_text(path.read_text().replace('"version":"2.0"', '"version":"3.0"'))
    (opened,) = open_world([store])
    assert opened.resume is not None
    assert opened.resume.step == 1
    assert "self_sha256" in opened.passed_over[0]


@pytest.mark.parametrize(("file", "damage"), [*DAMAGES, pytest.param(MODEL_FILE, grow, id="a data file with a byte too many")])
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


class SpoilingStore(PosixStore):
    """Storage that changes a bit of what it was given, as soon as it is committed."""

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        super().commit(staging, final, name, data)
        flip(store_root(self) / final / MODEL_FILE, 5000)


def test_bytes_that_change_between_commit_and_verify_fail_the_save(store: PosixStore) -> None:
    with attempt_on(SpoilingStore(store_root(store))) as attempt:
        (result,) = attempt.save(1, [state(1.0)])

    assert isinstance(result.error, CheckpointDamaged)
    assert MODEL_FILE in str(result.error)
    assert [record.level for record in attempt.records[0]] == [Level.COMMITTED]
    assert not store.exists(f"{RUN}/steps/0000000001-00000001/verified.json")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("is_frozen", [False, True], ids=["trained", "frozen"])
def test_a_tensor_whose_memory_was_freed_is_refused_by_name_whoever_looks_at_it_first(
    store: PosixStore, ranks: int, is_frozen: bool
) -> None:
    gone = torch.ones(LEAST_BYTES)
    states = [only(Leaf("model/gone", gone, Kind.MODEL, True, frozen_version=gone._version if is_frozen else None))] * ranks
    with attempt_on(store, ranks=ranks) as attempt:
        attempt.saved(1, states)
        gone.untyped_storage().resize_(0)
        for engine in attempt.engines:
            with pytest.raises(ConfigurationError, match="model/gone: its memory was freed"):
                engine.stage(states[0], step=2, epoch=0, samples=0, strict={})
        gone.untyped_storage().resize_(gone.nbytes)
        gone.fill_(3.0)
        attempt.saved(3, states)


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
