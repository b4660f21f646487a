"""Saving where host memory is short: a rank's part is staged in windows, and is a checkpoint like any other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.checkpoint.little import KIB, WINDOW, Limit, Watching, nothing_is_left, restored, weights
from tests.checkpoint.world import RUN, WAIT_SECONDS, assert_equal, attempt_on, only, point, reference_to, shared
from trainer_runtime.checkpoint.documents import is_verified
from trainer_runtime.checkpoint.frozen import is_frozen
from trainer_runtime.checkpoint.image import page_multiple
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.staging import memory, plan, windows
from trainer_runtime.checkpoint.staging.pieces import SavePlan
from trainer_runtime.checkpoint.staging.plan import Planner, build_plan
from trainer_runtime.checkpoint.staging.stage import Stage
from trainer_runtime.checkpoint.staging.turns import Turns
from trainer_runtime.checkpoint.staging.windows import in_windows
from trainer_runtime.contract.beat import Level
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore


def planned(snapshot: Snapshot) -> SavePlan:
    return Planner(0, 1, room_for=Stage().room_for).plan(snapshot.leaves)


@pytest.mark.usefixtures("little")
def test_what_is_saved_in_windows_is_verified_and_restores_equal(store: PosixStore, caplog: pytest.LogCaptureFixture) -> None:
    with attempt_on(store) as attempt:
        attempt.engines[0].prepare(weights(1.0))
        for step in (1, 2, 3):
            record = attempt.saved(step, [weights(float(step))])
            assert_equal(restored(store, record), weights(float(step)))
            assert is_verified(store, reference_to(store, record))
    said = [message for message in caplog.messages if "windows" in message]
    assert said == [
        "host memory has no room for the 1 MiB that this rank saves: they are staged in 4 windows of at most 0 MiB, "
        "and training stands still until all but the last are written"
    ]


def test_every_window_fits_and_what_is_left_over_makes_the_first(little: Limit) -> None:
    for room in (WINDOW, 300 * KIB, 500 * KIB):
        little(room)
        found = planned(weights(1.0))
        sizes = [sum(page_multiple(file.size) for file in found.files if file.window == window) for window in range(found.windows)]
        assert max(sizes) == found.stage_bytes <= room
        assert sizes[0] == min(sizes)
        assert [file.window for file in found.files] == sorted(file.window for file in found.files)
        for window in range(found.windows):
            end = 0
            for file in [file for file in found.files if file.window == window]:
                assert file.stage_offset == end
                end += page_multiple(file.size)


def test_where_one_generation_fits_there_is_one_window_and_the_plan_is_as_ever(little: Limit) -> None:
    whole = build_plan(weights(1.0).leaves, 0, 1)
    little(whole.stage_bytes)
    assert planned(weights(1.0)) == whole == in_windows(whole, whole.stage_bytes)
    assert whole.windows == 1
    little(whole.stage_bytes - 1)
    assert planned(weights(1.0)).windows == 2


def test_memory_too_small_even_for_a_window_is_refused_with_numbers(
    store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LEAST_WINDOW_BYTES", windows.LEAST_WINDOW_BYTES)
    little(windows.LEAST_WINDOW_BYTES - 1)
    huge = only(shared("model/w", torch.empty(1, dtype=torch.uint8).expand(1 << 10, 1 << 20)))
    with attempt_on(store) as attempt:
        with pytest.raises(
            SaveFailed,
            match=r"needs 1,024 MiB of host memory, or 64 MiB at a time, and leaves 256 MiB to the process; available are 320 MiB",
        ):
            attempt.engines[0].prepare(huge)
        (result,) = attempt.save(1, [huge])
        assert "or 64 MiB at a time" in str(result.error)
    assert nothing_is_left(store)


def test_a_row_that_is_larger_than_the_memory_there_is_is_refused_with_its_size(little: Limit) -> None:
    little(4 * 1024 * KIB)
    with pytest.raises(SaveFailed, match=r"needs 32 MiB of host memory, or 8 MiB at a time"):
        planned(only(shared("model/w", torch.empty(1, dtype=torch.uint8).expand(4, 8 * 1024 * KIB - 4096))))


def test_frozen_files_that_are_stored_are_not_cut_anew() -> None:
    rooms = iter([1 << 30, WINDOW, WINDOW])
    base = Leaf("model/base", torch.arange(200 * 1024.0).reshape(200, 1024), Kind.MODEL, True, frozen_version=0)
    leaves = [base, *weights(1.0).leaves]
    planner = Planner(0, 1, room_for=lambda wanted, least: min(wanted, next(rooms)))
    (stored,) = [file.path for file in planner.plan(leaves).files if is_frozen(file.path)]
    planner.settle(None)
    found = planner.plan(leaves)
    assert found.windows > 1
    assert [entry.path for entry in found.kept] == [stored]
    assert not any(is_frozen(file.path) for file in found.files)


@pytest.mark.usefixtures("little")
def test_memory_that_went_away_after_it_was_counted_on_is_not_counted_on_again(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([500 * KIB, 500 * KIB])  # one for the plan as it would be, one for the plan in windows
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + next(looks, WINDOW))
    with attempt_on(store) as attempt:
        (result,) = attempt.save(1, [weights(1.0)])
        assert "staging a checkpoint in 2 windows needs" in str(result.error)
        attempt.saved(2, [weights(2.0)])


@pytest.mark.parametrize("looks", range(5))
@pytest.mark.parametrize("room", [600 * KIB, 4 * 1024 * KIB], ids=["for windows", "for all"])
def test_memory_that_is_refused_leaves_a_rank_what_it_has(
    store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch, looks: int, room: int
) -> None:
    """More is to be saved, and the memory that came free for it is gone again after some looks."""
    monkeypatch.setattr(plan, "LEAST_WINDOW_BYTES", WINDOW // 2)
    more = only(*weights(1.0).leaves, shared("model/more", torch.ones(64, 1024)))
    with attempt_on(store) as attempt:
        attempt.saved(1, [weights(1.0)])
        rooms = iter([room] * looks)
        monkeypatch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + next(rooms, 0))
        attempt.save(2, [more])
        little(0)
        attempt.saved(3, [more])
        attempt.saved(4, [weights(4.0)])


def test_ranks_of_one_pod_share_the_memory(little: Limit, tmp_path: Path) -> None:
    little(3 * memory.RESERVE_BYTES + 4 * WINDOW)
    stage = Stage(Turns(4, str(tmp_path)))
    assert stage.room_for(1 << 40, WINDOW) == WINDOW
    assert stage.room_for(2 * WINDOW, WINDOW) == WINDOW, "all of it would fit, if it were this rank's alone"
    assert stage.room_for(WINDOW // 2, 0) == WINDOW // 2
    with pytest.raises(SaveFailed, match=r"leaves 256 MiB to each process; available are 1,025 MiB for 5 of 5 ranks"):
        Stage(Turns(5, str(tmp_path))).room_for(1 << 40, WINDOW)


def test_memory_that_came_free_is_used_by_the_save_after_a_refused_one(store: PosixStore, little: Limit) -> None:
    with attempt_on(store) as attempt:
        little(0)
        (result,) = attempt.save(1, [weights(1.0)])
        assert "staging a checkpoint needs" in str(result.error)
        little(WINDOW)
        attempt.saved(2, [weights(2.0)])


@pytest.mark.usefixtures("little")
def test_training_waits_for_all_windows_but_the_last(tmp_path: Path, store: PosixStore) -> None:
    files = planned(weights(1.0)).files
    before_last = sum(file.window < files[-1].window for file in files)
    release = threading.Event()

    def hold_up(count: int) -> None:
        if count >= before_last:
            assert release.wait(WAIT_SECONDS)

    watched = Watching(tmp_path / "store", hold_up)
    with attempt_on(watched) as attempt:
        (engine,) = attempt.engines
        snapshot = weights(1.0)
        engine.stage(snapshot, step=1, epoch=0, samples=0, strict={})
        assert engine.busy
        for leaf in snapshot.leaves:  # training goes on
            leaf.tensor.zero_()
        release.set()
        (result,) = attempt.results()
        assert result.error is None, result.error
        assert result.record is not None
        assert_equal(restored(store, result.record), weights(1.0))


def test_of_two_ranks_only_one_needs_windows(store: PosixStore, little: Limit) -> None:
    with attempt_on(store, 2) as attempt:
        little(1 << 30)
        attempt.engines[0].prepare(weights(1.0))
        little(WINDOW)
        attempt.engines[1].prepare(weights(1.0, rank=1))
        assert [engine._stage.arena.generations for engine in attempt.engines] == [2, 1]
        for step in (1, 2):
            record = attempt.saved(step, [weights(float(step)), weights(float(step), rank=1)])
            for rank in range(2):
                assert_equal(restored(store, record, rank), weights(float(step), rank))


@pytest.mark.usefixtures("little")
def test_frozen_tensors_are_staged_in_windows_once(store: PosixStore) -> None:
    def snapshot(value: float) -> Snapshot:
        base = torch.arange(200 * 1024.0).reshape(200, 1024)
        frozen = Leaf("model/base", base, Kind.MODEL, True, frozen_version=0)
        return only(frozen, shared("model/adapter", torch.full((10, 10), value)))

    held = snapshot(1.0)
    with attempt_on(store) as attempt:
        attempt.saved(1, [held])
        names = store.list(f"{RUN}/frozen")
        assert len(names) > 1
        record = attempt.saved(2, [held])
        assert store.list(f"{RUN}/frozen") == names
        assert attempt.engines[0]._planner.plan(held.leaves).windows == 1, "what is left of it fits"
        assert not any(is_frozen(file.path) for file in attempt.engines[0]._planner.plan(held.leaves).files)
        live = snapshot(-1.0)
        live.leaves[0].tensor.zero_()
        open_checkpoint(store, point(record)).fill(live.leaves, 0)
        assert_equal(live, held)


@pytest.mark.usefixtures("little")
def test_the_local_tier_has_every_window(store: PosixStore, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    with attempt_on(store, local=local) as attempt:
        record = attempt.saved(1, [weights(1.0)])
    kept = PosixStore(local)
    directory = f"{RUN}/steps/0000000001-00000001/data"
    assert kept.list(directory) == store.list(directory)
    assert record.level is Level.VERIFIED
