"""Deleting on a real store: what was granted goes, in an order that a crash cannot spoil, and the trash is emptied after a day."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import RUN, Attempt, attempt_on, directory_of, only, open_world, point, shared, state, take_back
from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference
from trainer_runtime.checkpoint.keeping.cleaning import (
    TRASH_SECONDS,
    delete_checkpoints,
    find_sources,
    propose_deletions,
    read_held,
    sweep,
)
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.keeping.retention import ABANDONED_SECONDS
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.staging.unchanged import LEAST_BYTES
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.assignment import Keep, ResumeMode
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.errors import Fenced, StoreUnavailable
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.base import AlreadyInStore
from trainer_runtime.store.posix import PosixStore


def saved_steps(attempt: Attempt, *steps: int) -> None:
    for step in steps:
        attempt.saved(step, [state(float(step))], tags=("stage-end",) if step == 1 else ())


def test_what_retention_proposes_is_moved_to_the_trash_and_emptied_after_a_day(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 1, 2, 3, 4)
        writer = attempt.opened[0].writer
        names = propose_deletions(store, RUN, read_held(store, RUN), Keep(last=2), (), now=0.0)
        assert names == (StepName(2, 1),), "step 1 is tagged"
        delete_checkpoints(store, RUN, writer, names)
        delete_checkpoints(store, RUN, writer, names)  # a grant may come twice
        assert list_committed(store, RUN) == (StepName(1, 1), StepName(3, 1), StepName(4, 1))

        (grave,) = store.list(f"{RUN}/trash")
        deleted_at = store.modified_at(f"{RUN}/trash/{grave}")
        sweep(store, RUN, writer, now=deleted_at + TRASH_SECONDS - 1)
        assert store.list(f"{RUN}/trash") == (grave,)
        sweep(store, RUN, writer, now=deleted_at + TRASH_SECONDS)
        assert store.list(f"{RUN}/trash") == ()


class StopsAfterOneMove(PosixStore):
    """A store that fails in the middle of a deletion."""

    moves = 0

    def move(self, path: str, to: str) -> None:
        self.moves += 1
        if self.moves > 1:
            raise AlreadyInStore("stopped here")
        super().move(path, to)


def test_a_deletion_that_stopped_half_way_leaves_no_checkpoint_and_is_finished_later(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3)
        writer = attempt.opened[0].writer
        with pytest.raises(AlreadyInStore):
            delete_checkpoints(StopsAfterOneMove(Path(store.uri.removeprefix("file://"))), RUN, writer, [StepName(2, 1)])
        assert list_committed(store, RUN) == (StepName(3, 1),)
        assert len(store.list(f"{RUN}/steps")) == 2
        sweep(store, RUN, writer, now=0.0)
        assert store.list(f"{RUN}/steps") == (str(StepName(3, 1)),)


def test_what_an_older_attempt_left_in_flight_goes_after_a_day_and_our_own_stays(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    with attempt_on(store, attempt=2, resume=point(record)) as attempt:
        for name in ("0000000009-00000001", "0000000009-00000001.1", "0000000009-00000002"):
            store.create(f"{RUN}/tmp/{name}/data/x", b"x")
            os.utime(Path(store.uri.removeprefix("file://")) / RUN / "tmp" / name, (0, 0))
        sweep(store, RUN, attempt.opened[0].writer, now=TRASH_SECONDS)
        assert store.list(f"{RUN}/tmp") == ("0000000009-00000002",)
        assert len(store.list(f"{RUN}/trash")) == 2


def test_a_superseded_attempt_sweeps_nothing(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
        open_world([store], attempt=2, resume=point(record))
        with pytest.raises(Fenced):
            sweep(store, RUN, attempt.opened[0].writer, now=1e12)


def test_a_checkpoint_whose_manifest_cannot_be_read_is_left_to_a_person(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3)
        record = attempt.saved(4, [state(4.0)])
    (directory_of(store, record).parent / str(StepName(2, 1)) / "manifest.json").write_text("{")
    assert propose_deletions(store, RUN, read_held(store, RUN), Keep(last=1), (), now=1e12) == (StepName(3, 1),)


def test_what_another_run_began_from_is_never_proposed(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3, 4)
    source = point(attempt.records[0][1])
    fence = Fence(1, "job-b", "pod", "nonce", replace(source, mode=ResumeMode.WARM_START), RUN)
    store.create("fine-tune/fences/00000001", dumps(fence).encode())
    assert find_sources(store, RUN) == {StepName(2, 1)}
    assert propose_deletions(store, RUN, read_held(store, RUN), Keep(last=1), (), now=0.0) == (StepName(3, 1),)


def test_nothing_is_proposed_while_nobody_can_say_what_another_run_began_from(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3)
    store.create("fine-tune/fences/00000001", b"{")
    with pytest.raises(StoreUnavailable, match="fine-tune/fences/00000001: this fence cannot be read"):
        propose_deletions(store, RUN, read_held(store, RUN), Keep(last=1), (), now=0.0)


def test_what_a_rollback_after_a_long_pause_left_behind_stays_for_a_day(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3)
        start, left = attempt.records[0][0], attempt.records[0][-1]
    os.utime(directory_of(store, left), (0, 0))
    with attempt_on(store, attempt=2, resume=point(start)) as attempt:
        saved_steps(attempt, 3)
    fenced_at = store.modified_at(f"{RUN}/fences/00000002")

    def proposed(now: float) -> tuple[StepName, ...]:
        return propose_deletions(store, RUN, read_held(store, RUN), Keep(), (), now)

    assert proposed(fenced_at + ABANDONED_SECONDS - 1) == ()
    assert proposed(fenced_at + ABANDONED_SECONDS) == (StepName(3, 1),)


def frozen_state(value: float) -> Snapshot:
    """A base that training leaves alone, and an adapter."""
    base = torch.full((LEAST_BYTES // 4,), value)
    return only(Leaf("model/base", base, Kind.MODEL, True, frozen_version=base._version), shared("model/adapter", torch.full((8,), value)))


@pytest.fixture
def two_bases(store: PosixStore) -> tuple[Writer, CheckpointRecord]:
    """Two attempts with different bases. Returns the second one's writer, and the first one's checkpoint."""
    with attempt_on(store) as attempt:
        first = attempt.saved(1, [frozen_state(1.0)])
    with attempt_on(store, attempt=2, resume=point(first)) as attempt:
        attempt.saved(2, [frozen_state(2.0)])
        return attempt.opened[0].writer, first


def test_a_frozen_file_goes_a_day_after_the_last_checkpoint_that_names_it(
    store: PosixStore, two_bases: tuple[Writer, CheckpointRecord]
) -> None:
    writer, first = two_bases
    old, new = sorted(store.list(f"{RUN}/frozen"), key=lambda name: store.modified_at(f"{RUN}/frozen/{name}"))
    sweep(store, RUN, writer, now=1e12)
    assert len(store.list(f"{RUN}/frozen")) == 2, "both are named"

    delete_checkpoints(store, RUN, writer, [StepName(first.step, first.attempt)])
    changed_at = store.modified_at(f"{RUN}/frozen/{old}")
    sweep(store, RUN, writer, now=changed_at + ABANDONED_SECONDS - 1)
    assert len(store.list(f"{RUN}/frozen")) == 2, "a save in flight may be about to name it"
    sweep(store, RUN, writer, now=changed_at + ABANDONED_SECONDS)
    assert store.list(f"{RUN}/frozen") == (new,)
    verify_checkpoint(store, reference_at(store, StepName(2, 2)))


def test_frozen_files_stay_while_one_checkpoint_cannot_be_read(store: PosixStore, two_bases: tuple[Writer, CheckpointRecord]) -> None:
    writer, first = two_bases
    delete_checkpoints(store, RUN, writer, [StepName(first.step, first.attempt)])
    index = store._root / RUN / "steps" / str(StepName(2, 2)) / "ranks" / "00000.json"
    text = index.read_bytes()
    index.unlink()
    sweep(store, RUN, writer, now=1e12)
    assert len(store.list(f"{RUN}/frozen")) == 2
    index.write_bytes(text)
    sweep(store, RUN, writer, now=1e12)
    assert len(store.list(f"{RUN}/frozen")) == 1


def test_what_is_taken_back_as_the_docs_say_stays_whatever_sweeps_come_in_between(
    store: PosixStore, two_bases: tuple[Writer, CheckpointRecord]
) -> None:
    writer, first = two_bases
    name = StepName(first.step, first.attempt)
    run = store._root / RUN
    deleted_at = time.time()
    delete_checkpoints(store, RUN, writer, [name])
    for file in (run / "frozen").iterdir():
        os.utime(file, (0, 0))
    sweep(store, RUN, writer, now=deleted_at)
    (frozen,), (grave,) = (run / "trash").glob("frozen-*/frozen/*"), (run / "trash").glob(f"{name}-*")

    for _each in take_back(run, name, grave, frozen):
        sweep(store, RUN, writer, now=deleted_at)
    verify_checkpoint(store, reference_at(store, name))


def reference_at(store: PosixStore, name: StepName) -> Reference:
    reference = find_reference(store, RUN, name)
    assert reference is not None
    return reference
