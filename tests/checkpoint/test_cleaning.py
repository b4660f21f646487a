"""Deleting on a real store: what was granted goes, in an order that a crash cannot spoil, and the trash is emptied after a day."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, Attempt, attempt_on, directory_of, open_world, point, state
from trainer_runtime.checkpoint.cleaning import TRASH_SECONDS, delete_checkpoints, propose_deletions, sweep
from trainer_runtime.checkpoint.inventory import list_committed
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import Fenced
from trainer_runtime.store.base import AlreadyInStore
from trainer_runtime.store.posix import PosixStore


def saved_steps(attempt: Attempt, *steps: int) -> None:
    for step in steps:
        attempt.saved(step, [state(float(step))], tags=("stage-end",) if step == 1 else ())


def test_what_retention_proposes_is_moved_to_the_trash_and_emptied_after_a_day(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 1, 2, 3, 4)
        writer = attempt.opened[0].writer
        names = propose_deletions(store, RUN, Keep(last=2), None, now=0.0)
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
    assert propose_deletions(store, RUN, Keep(last=1), None, now=1e12) == (StepName(3, 1),)
