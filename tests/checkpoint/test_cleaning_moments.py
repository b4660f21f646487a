"""Others act while rank 0 cleans, at any moment: saves commit, attempts and other runs begin, somebody else deletes the same things."""

from __future__ import annotations

import os
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.checkpoint.moments import at_every_moment
from tests.checkpoint.test_cleaning import frozen_state, reference_at, saved_steps
from tests.checkpoint.world import RUN, attempt_on, directory_of, point, state, store_root
from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.keeping.cleaning import TRASH_SECONDS, delete_checkpoints, read_held, sweep
from trainer_runtime.checkpoint.keeping.inventory import list_committed, read_inventory
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import StepName, fence_path, step_path
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.errors import Fenced, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore
from trainer_runtime.store.posix import PosixStore

FOLDERS = ("trash", "tmp", "steps", "frozen", "snapshots")
LEFT = {
    "trash": ("gone-1", "gone-2"),
    "tmp": ("0000000009-00000001", "frozen-draft"),
    "steps": ("0000000007-00000001", "0000000008-00000001"),
    "frozen": ("a.safetensors", "b.safetensors"),
    "snapshots": ("a", "b"),
}
"""What a sweep takes away, by folder."""


@pytest.fixture
def owner(store: PosixStore) -> tuple[Writer, CheckpointRecord]:
    """The writer that owns the run, and its checkpoint."""
    with attempt_on(store, attempt=2) as attempt:
        return attempt.opened[0].writer, attempt.saved(2, [state(2.0)])


def leave_behind(store: PosixStore) -> float:
    """Make all of LEFT, old enough to go, and nothing else in the trash. Returns the time at which it is."""
    shutil.rmtree(store_root(store) / RUN / "trash", ignore_errors=True)
    for folder, names in LEFT.items():
        for name in names:
            path = store_root(store) / RUN / folder / name
            if folder in ("frozen", "snapshots"):
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"x")
            else:
                path.mkdir(parents=True, exist_ok=True)
                (path / "file").write_bytes(b"x")
            os.utime(path, (0, 0))
    return TRASH_SECONDS


def still_there(store: PosixStore) -> list[str]:
    return [f"{folder}/{name}" for folder, names in LEFT.items() for name in names if store.exists(f"{RUN}/{folder}/{name}")]


def test_a_save_that_is_committed_at_any_moment_of_a_sweep_stays(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 1)
        steps = count(2)
        for busy in at_every_moment(store_root(store), lambda: saved_steps(attempt, next(steps)), at_least=5):
            sweep(busy, RUN, attempt.opened[0].writer, now=0.0)
            found = list_committed(store, RUN)
            assert len(found) == 1 + busy.has_acted
            for name in found[1:]:
                store.remove(f"{RUN}/{step_path(name)}")


def test_a_frozen_file_stays_when_a_checkpoint_that_names_it_is_committed_at_any_moment_of_a_sweep(
    store: PosixStore, tmp_path: Path
) -> None:
    with attempt_on(store, attempt=1) as attempt:
        first = attempt.saved(1, [frozen_state(1.0)])
    with attempt_on(store, attempt=2, resume=point(first)) as attempt:
        attempt.saved(2, [frozen_state(2.0)])
        writer = attempt.opened[0].writer
    committed, aside = directory_of(store, first), tmp_path / "in-flight"
    for busy in at_every_moment(store_root(store), lambda: aside.rename(committed), at_least=10):
        committed.rename(aside)
        sweep(busy, RUN, writer, now=1e12)
        if busy.has_acted:
            verify_checkpoint(store, reference_at(store, StepName(1, 1)))
    assert len(store.list(f"{RUN}/frozen")) == 1, "and without it the file went"


def test_an_attempt_that_is_superseded_at_any_moment_of_a_sweep_changes_at_most_one_thing_more(
    store: PosixStore, owner: tuple[Writer, CheckpointRecord]
) -> None:
    writer, record = owner
    fence = Path(store_root(store), RUN, fence_path(3))
    for busy in at_every_moment(
        store_root(store), lambda: fence.write_text(dumps(Fence(3, "job-b", "pod", "nonce", point(record)))), at_least=20
    ):
        now = leave_behind(store)
        try:
            sweep(busy, RUN, writer, now)
        except Fenced:
            assert busy.has_acted
        assert busy.changes_since <= 1
        fence.unlink(missing_ok=True)


def test_a_second_sweep_at_any_moment_of_a_sweep_does_no_harm(store: PosixStore, owner: tuple[Writer, CheckpointRecord]) -> None:
    writer, _ = owner
    for busy in at_every_moment(store_root(store), lambda: sweep(store, RUN, writer, TRASH_SECONDS), at_least=20):
        sweep(busy, RUN, writer, leave_behind(store))
        assert still_there(store) == []


class Stuck(PosixStore):
    """A store in which one thing can neither be moved nor removed."""

    def __init__(self, root: Path, path: str, error: Exception) -> None:
        super().__init__(root)
        self._path, self._error = path, error

    def move(self, path: str, to: str) -> None:
        self._check(path)
        super().move(path, to)

    def remove(self, path: str) -> None:
        self._check(path)
        super().remove(path)

    def _check(self, path: str) -> None:
        if path == self._path:
            raise self._error


@pytest.mark.parametrize("error", [StoreUnavailable("permission denied"), AlreadyInStore("directory not empty")], ids=["refused", "busy"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_cannot_be_taken_away_keeps_nothing_else(
    store: PosixStore, owner: tuple[Writer, CheckpointRecord], folder: str, error: Exception
) -> None:
    writer, _ = owner
    now = leave_behind(store)
    stuck = f"{folder}/{LEFT[folder][0]}"
    with pytest.raises(type(error), match=str(error)):
        sweep(Stuck(store_root(store), f"{RUN}/{stuck}", error), RUN, writer, now)
    assert still_there(store) == [stuck]
    sweep(store, RUN, writer, now)
    assert still_there(store) == []


def test_a_checkpoint_that_cannot_be_deleted_keeps_no_other(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3, 4)
        writer = attempt.opened[0].writer
    stuck = Stuck(store_root(store), f"{RUN}/{step_path(StepName(2, 1))}/manifest.json", StoreUnavailable("permission denied"))
    with pytest.raises(StoreUnavailable, match="permission denied"):
        delete_checkpoints(stuck, RUN, writer, [StepName(2, 1), StepName(3, 1)])
    assert list_committed(store, RUN) == (StepName(2, 1), StepName(4, 1))


def keep_aside(store: PosixStore, aside: Path, *names: StepName) -> None:
    """Put checkpoints where `bring_back` finds them."""
    aside.mkdir(exist_ok=True)
    for name in names:
        Path(store_root(store), RUN, step_path(name)).rename(aside / str(name))


def bring_back(store: PosixStore, aside: Path) -> None:
    for directory in aside.iterdir():
        directory.rename(store_root(store) / RUN / "steps" / directory.name)


def test_a_second_deleter_at_any_moment_does_no_harm(store: PosixStore, tmp_path: Path) -> None:
    names = (StepName(1, 1), StepName(2, 1))
    with attempt_on(store) as attempt:
        for step in (1, 2, 3):
            attempt.saved(step, [state(float(step))])
        writer = attempt.opened[0].writer
    steps, whole = store_root(store) / RUN / "steps", tmp_path / "whole"
    shutil.copytree(steps, whole)
    for busy in at_every_moment(store_root(store), lambda: delete_checkpoints(store, RUN, writer, names), at_least=4):
        shutil.copytree(whole, steps, dirs_exist_ok=True)
        delete_checkpoints(busy, RUN, writer, names)
        assert store.list(f"{RUN}/steps") == (str(StepName(3, 1)),)


def test_what_is_deleted_at_any_moment_is_not_held_and_the_others_are(store: PosixStore, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    with attempt_on(store) as attempt:
        saved_steps(attempt, 1, 2, 3)
    for busy in at_every_moment(store_root(store), partial(keep_aside, store, aside, StepName(2, 1)), at_least=10):
        found = {item.name for item in read_held(busy, RUN)}
        assert found >= {StepName(1, 1), StepName(3, 1)}
        if busy.has_acted:
            bring_back(store, aside)


def test_what_another_run_began_from_since_it_was_proposed_stays(store: PosixStore, caplog: pytest.LogCaptureFixture) -> None:
    with attempt_on(store) as attempt:
        saved_steps(attempt, 2, 3, 4)
        writer, source = attempt.opened[0].writer, point(attempt.records[0][1])
    store.create("fine-tune/fences/00000001", dumps(Fence(1, "job-b", "pod", "nonce", source, RUN)).encode())
    delete_checkpoints(store, RUN, writer, [StepName(2, 1), StepName(3, 1)])
    assert list_committed(store, RUN) == (StepName(2, 1), StepName(4, 1))
    assert [record.getMessage() for record in caplog.records if "another run" in record.getMessage()] == [
        "step 2 of attempt 1 is not deleted: another run of this store began from it"
    ]


def test_nothing_is_told_as_abandoned_when_an_attempt_takes_over_at_any_moment_of_a_look(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store, attempt=1) as attempt:
        record = attempt.saved(1, [state(1.0)])
    with attempt_on(store, attempt=2, resume=point(record)) as attempt:
        attempt.saved(2, [state(2.0)])
    aside, newer = tmp_path / "aside", StepName(2, 2)
    fence, hidden = Path(store_root(store), RUN, fence_path(2)), tmp_path / "fence"

    def take_over() -> None:
        hidden.rename(fence)
        bring_back(store, aside)

    for busy in at_every_moment(store_root(store), take_over, at_least=5):
        keep_aside(store, aside, newer)
        fence.rename(hidden)
        assert [found.step for found in read_inventory(busy, RUN).records if found.abandoned] == []
