"""What must never happen to a checkpoint: each test is one of those, made to happen as far as it can be.

The order is that of the list; tests/known/never.py says which test stands for which entry. What is only annoying is in test_accidents.
"""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.checkpoint import victim
from tests.checkpoint.real import engine_on, saved
from tests.checkpoint.world import (
    MODEL_FILE,
    RUN,
    WAIT_SECONDS,
    assert_equal,
    attempt_on,
    directory_of,
    only,
    open_world,
    point,
    reference_to,
    shared,
    state,
    states,
    store_root,
)
from tests.checkpoint.wrongs import DAMAGES, LIVE_DIFFERENCES
from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints, propose_deletions, read_held
from trainer_runtime.checkpoint.keeping.inventory import read_inventory
from trainer_runtime.checkpoint.reading.export import SINGLE, export_model
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Fenced, Refused, RuntimeProblem, SaveFailed, StoreUnavailable
from trainer_runtime.state.leaves import Kind, Leaf
from trainer_runtime.store.posix import PosixStore


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
    assert_equal(live, state(7.0))


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
    verify_checkpoint(store, reference_to(store, older))


@pytest.mark.parametrize("fatal", [1, 4, 8])
def test_a_kill_during_a_save_damages_no_older_step(store: PosixStore, fatal: int) -> None:
    """At three of a save's operations; test_killed does it at each."""
    forks = get_context("forkserver")
    forks.set_forkserver_preload([victim.__name__])
    with attempt_on(store) as attempt:
        older = attempt.saved(1, [victim.weights(1.0)])
    process = forks.Process(target=victim.die_in_save, args=(str(store_root(store)), fatal, True))
    process.start()
    process.join(WAIT_SECONDS)
    assert process.exitcode == -signal.SIGKILL

    verify_checkpoint(store, reference_to(store, older))
    live = victim.weights(0.0)
    open_checkpoint(store, point(older)).fill(live.leaves, 0)
    assert_equal(live, victim.weights(1.0))


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
        assert_equal(live, state(4.0, rank=rank))
        found = checkpoint.objects(rank)
        assert found["scheduler"] == {"last_epoch": 4.0}
        assert found[f"rank{rank:05d}/data"] == {"cursor": rank + 100}
        assert all(not name.startswith("rank") or name.startswith(f"rank{rank:05d}/") for name in found)


UNRANKED = [
    pytest.param(Leaf("rng/torch", torch.zeros(1), Kind.EXTRA, False), "must be named rank00000/", id="own value, shared name"),
    pytest.param(Leaf("rank00001/rng", torch.zeros(1), Kind.EXTRA, False), "must be named rank00000/", id="another rank's name"),
    pytest.param(Leaf("rank00000/rng", torch.zeros(1), Kind.EXTRA, True), "said to be the same on all ranks", id="shared value, own name"),
]


@pytest.mark.parametrize(("leaf", "message"), UNRANKED)
def test_one_ranks_value_cannot_stand_for_all(store: PosixStore, leaf: Leaf, message: str) -> None:
    with attempt_on(store) as attempt, pytest.raises(ConfigurationError, match=message):
        attempt.save(1, [only(leaf)])


def test_replicas_that_went_apart_are_named_and_never_mixed(store: PosixStore) -> None:
    snapshots = states(1.0, 3)
    snapshots[1].leaves[0].tensor[3, 3] += 1e-6
    with attempt_on(store, ranks=3) as attempt:
        results = attempt.save(1, snapshots)
    assert all("the replicas on ranks 0,1,2 hold different values: rank 1 differs" in str(result.error) for result in results)
    assert store.list(f"{RUN}/steps") == ()


def test_what_changes_right_after_staging_does_not_reach_the_checkpoint(store: PosixStore) -> None:
    live = state(1.0)
    with attempt_on(store) as attempt:
        attempt.engines[0].stage(live, step=1, epoch=0, samples=0, strict={})
        for leaf in live.leaves:
            leaf.tensor.fill_(9)
        (result,) = attempt.results()
    assert result.record is not None
    open_checkpoint(store, point(result.record)).fill(live.leaves, 0)
    assert_equal(live, state(1.0))


def test_a_number_as_a_key_stays_a_number(store: PosixStore) -> None:
    counts = {0: {"cnt": 10}, "0": {"cnt": 20}, -1: {"cnt": 30}}
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(counts=counts, rank00000={})])
    assert open_checkpoint(store, point(record)).objects(0)["counts"] == counts


OTHER_STRUCTURES = [
    pytest.param(torch.full((8,), 1e300, dtype=torch.float64), id="dtype alone"),
    pytest.param(torch.full((4, 2), 2.5), id="shape alone"),
    pytest.param(torch.full((4,), 1e300, dtype=torch.float64), id="both, and as many bytes"),
]


@pytest.mark.parametrize("changed", OTHER_STRUCTURES)
def test_a_changed_structure_never_meets_an_old_plan(store: PosixStore, changed: torch.Tensor) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [only(shared("model/w", torch.ones(8)))])
        record = attempt.saved(2, [only(shared("model/w", changed))])
    live = torch.zeros_like(changed)
    open_checkpoint(store, point(record)).fill([shared("model/w", live)], 0)
    assert torch.equal(live, changed)


@pytest.mark.parametrize("file", ["data/00001-model-0.safetensors", "ranks/00001.json"])
def test_a_missing_shard_is_never_read_as_old_values(store: PosixStore, file: str) -> None:
    """The middle one of three, of a tensor that every rank wrote a third of."""
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(1, [state(1.0, rank=rank, rows=65536) for rank in range(3)])
    (directory_of(store, record) / file).unlink()
    live = state(-7.0, rows=65536)
    with pytest.raises(CheckpointDamaged, match=file):
        open_checkpoint(store, point(record)).fill(live.leaves, 0)
    assert_equal(live, state(-7.0, rows=65536))


def test_a_tensor_without_dimensions_keeps_its_value(store: PosixStore, tmp_path: Path) -> None:
    numbers = {"temperature": torch.tensor(0.1, dtype=torch.float64), "count": torch.tensor(2**53 + 1), "seen": torch.tensor(True)}
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(1, [only(*(shared(f"model/{name}", number) for name, number in numbers.items()))] * 2)
    live = {name: torch.zeros_like(number) for name, number in numbers.items()}
    open_checkpoint(store, point(record)).fill([shared(f"model/{name}", number) for name, number in live.items()], 1)
    export_model(store, read_documents(store, reference_to(store, record)), tmp_path / "out")
    for found in (live, safetensors.torch.load_file(tmp_path / "out" / SINGLE)):
        assert {name: (number.shape, number.dtype, number.item()) for name, number in found.items()} == {
            name: (number.shape, number.dtype, number.item()) for name, number in numbers.items()
        }


class Bomb:
    """What makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._mark,)


FILES = ["manifest.json", "verified.json", "ranks/00000.json", MODEL_FILE, "../../fences/00000001"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("form", ["pickle", "torch.save"])
def test_no_file_of_a_checkpoint_can_run_code(store: PosixStore, tmp_path: Path, file: str, form: str) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    path = directory_of(store, record) / file
    bomb = Bomb(tmp_path / "it went off")
    if form == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    else:
        torch.save(bomb, path)
    for read in (lambda: open_world([store]), lambda: open_checkpoint(store, point(record)).fill(state(7.0).leaves, 0)):
        try:
            read()
        except RuntimeProblem as problem:
            assert file.removeprefix("../../") in str(problem) or "no checkpoint of this run" in str(problem)
    assert not (tmp_path / "it went off").exists()


def test_nothing_here_can_run_code_from_a_file() -> None:
    for path in (Path(__file__).parents[2] / "trainer_runtime").rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "from pickle", "torch.load", "torch.save", "marshal", " eval(", " exec("):
            assert word not in text, f"{path}: {word}"


def test_a_dead_persister_is_replaced_and_the_next_save_works(tmp_path: Path, store: PosixStore) -> None:
    with engine_on(store_root(store)) as (engine, joined):
        saved(engine, 1)
        first = joined.link.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        record = saved(engine, 2)
        assert joined.link.pid != first
    verify_checkpoint(store, reference_to(store, record))


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


def test_two_saves_never_overlap(store: PosixStore) -> None:
    with attempt_on(store, ranks=2, deadline_seconds=5) as attempt:
        attempt.engines[0].stage(state(1.0), step=1, epoch=0, samples=0, strict={})  # in flight until rank 1 hands in its part
        assert attempt.engines[0].busy
        with pytest.raises(SaveFailed, match="the save of step 1 is still in flight"):
            attempt.engines[0].stage(state(2.0), step=2, epoch=0, samples=0, strict={})
        attempt.engines[1].stage(state(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        assert [result.error for result in attempt.results()] == [None, None]


def test_retention_leaves_the_newest_verified_one_and_the_resume_point(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        records = [attempt.saved(step, [state(float(step))]) for step in (1, 2, 3)]
        (directory_of(store, records[2]) / "verified.json").unlink()
        assert propose_deletions(store, RUN, read_held(store, RUN), Keep(last=1), {StepName(1, 1)}, now=0.0) == ()
        assert propose_deletions(store, RUN, read_held(store, RUN), Keep(last=1), (), now=0.0) == (StepName(1, 1),)


def test_a_zombie_deletes_nothing(store: PosixStore) -> None:
    with attempt_on(store) as zombie:
        base = zombie.saved(1, [state(1.0)])
        open_world([store], attempt=2, resume=point(base))
        with pytest.raises(Fenced):
            delete_checkpoints(store, RUN, zombie.opened[0].writer, [StepName(1, 1)])
    open_checkpoint(store, point(base)).fill(state(0.0).leaves, 0)


def test_the_newest_is_never_chosen_by_file_times(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        older = attempt.saved(1, [state(1.0)])
        newer = attempt.saved(2, [state(2.0)])
    for path in (directory_of(store, older), directory_of(store, older) / "manifest.json"):
        os.utime(path, (4e9, 4e9))
    (opened,) = open_world([store])
    assert opened.resume == point(newer)


@pytest.mark.parametrize("name", ["0000000009-00000099", "latest", "step_9"])
def test_the_newest_is_never_chosen_by_a_name(store: PosixStore, name: str) -> None:
    """A copy of step 1 under a name that says more is not a newer checkpoint."""
    with attempt_on(store) as attempt:
        older = attempt.saved(1, [state(1.0)])
        newer = attempt.saved(2, [state(2.0)])
    shutil.copytree(directory_of(store, older), store_root(store) / RUN / "steps" / name)
    (opened,) = open_world([store])
    assert opened.resume == point(newer)


def test_a_copy_under_another_steps_name_is_not_that_step(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    shutil.copytree(directory_of(store, record), store_root(store) / RUN / "steps" / "0000000009-00000001")
    (opened,) = open_world([store])
    assert opened.resume is not None
    with pytest.raises(CheckpointDamaged, match="is of step 1 of attempt 1"):
        open_checkpoint(store, opened.resume)


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


def test_a_run_that_lost_its_fences_does_not_start_from_nothing(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    shutil.rmtree(store_root(store) / RUN / "fences")
    with pytest.raises(Refused, match=r"nothing says where to start(.|\n)*step 1 of attempt 1: verified, abandoned"):
        open_world([store])
    with pytest.raises(StoreUnavailable, match="this is not the store"):
        open_world([store], attempt=2, resume=point(record))


def test_an_operator_that_lost_its_ledger_cannot_start_a_run_from_nothing(store: PosixStore) -> None:
    """It assigns a higher attempt and no checkpoint, as for a job that never ran."""
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    with pytest.raises(Refused, match=r"step 1 of attempt 1: verified"):
        open_world([store], attempt=2)
    open_world([store], attempt=2, resume=point(record))
