"""The broom works in a thread of its own: whatever goes wrong there is said, and training goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, state, writer
from trainer_runtime.channel.server import Server
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.contract.assignment import Assignment, Keep
from trainer_runtime.contract.beat import Level, RecordKey
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.environment import ASSIGNMENT, CHANNEL
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.loop import housekeeping
from trainer_runtime.loop.housekeeping import Housekeeper
from trainer_runtime.loop.reporter import Reporter
from trainer_runtime.settings import resolve
from trainer_runtime.store.posix import PosixStore


class Broken(PosixStore):
    """A store in which every look fails."""

    def __init__(self, root: Path, error: Exception) -> None:
        super().__init__(root)
        self._error = error

    def list(self, path: str) -> tuple[str, ...]:
        raise self._error


@pytest.mark.parametrize("error", [StoreUnavailable("the volume is away"), KeyError("a mistake of ours")], ids=["foreseen", "unforeseen"])
def test_what_goes_wrong_while_cleaning_is_said_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    store = Broken(tmp_path, error)
    broom = Housekeeper(store, "run", writer(attempt=1), Keep(), None, Reporter(resolve({}, store=tmp_path)))
    broom.tidy()
    broom.close()
    assert "deleting old checkpoints" in caplog.text
    assert str(error) in caplog.text


def test_what_was_granted_goes_and_the_trash_is_emptied_with_it(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with attempt_on(store) as attempt:
        for step in (1, 2, 3):
            attempt.saved(step, [state(float(step))])
        old = store._root / RUN / "trash" / "old"
        old.mkdir(parents=True)
        os.utime(old, (0, 0))
        broom = Housekeeper(store, RUN, attempt.opened[0].writer, Keep(), None, Reporter(resolve({}, store=tmp_path)))
        broom.delete((RecordKey(RUN, 1, 1, Level.VERIFIED), RecordKey("another-run", 2, 1, Level.VERIFIED)))
        broom.close()
    assert list_committed(store, RUN) == (StepName(2, 1), StepName(3, 1))
    assert not old.exists()


def test_the_trash_is_emptied_also_when_nobody_can_say_what_may_be_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = PosixStore(tmp_path)
    with attempt_on(store) as attempt:
        for step in (1, 2):
            attempt.saved(step, [state(float(step))])
        old = store._root / RUN / "trash" / "old"
        old.mkdir(parents=True)
        os.utime(old, (0, 0))
        store.create("another-run/fences/00000001", b"{")
        broom = Housekeeper(store, RUN, attempt.opened[0].writer, Keep(last=1), None, Reporter(resolve({}, store=tmp_path)))
        broom.tidy()
        broom.close()
    assert "another-run/fences/00000001: this fence cannot be read" in caplog.text
    assert not old.exists()


@pytest.fixture
def with_operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reporter]:
    """A reporter of an attempt that an operator gave, over the channel of an rtj-run that answers nothing."""
    server = Server(lambda _event: None)
    given = Assignment(1, worker_index=0, workers=1, procs_per_worker=1, master_addr="127.0.0.1", master_port=1, run_id="r")
    monkeypatch.setenv(CHANNEL, server.path)
    monkeypatch.setenv(ASSIGNMENT, dumps(given))
    reporter = Reporter(resolve(store=server.path))
    yield reporter
    reporter.close()
    server.close()


def test_with_an_operator_that_grants_nothing_the_trash_and_dead_saves_go_all_the_same(tmp_path: Path, with_operator: Reporter) -> None:
    assert with_operator.has_operator
    store = PosixStore(tmp_path)
    with attempt_on(store, attempt=3) as attempt:
        for step in (1, 2, 3):
            attempt.saved(step, [state(float(step))])
        trashed, dead = store._root / RUN / "trash" / "old", store._root / RUN / "tmp" / str(StepName(4, 2))
        for old in (trashed, dead):
            old.mkdir(parents=True)
            os.utime(old, (0, 0))
        broom = Housekeeper(store, RUN, attempt.opened[0].writer, Keep(last=1), None, with_operator)
        broom.tidy()
        broom.close()
    assert not trashed.exists()
    assert not dead.exists()
    assert list_committed(store, RUN) == tuple(StepName(step, 3) for step in (1, 2, 3)), "nothing was granted"


class Endless(PosixStore):
    """A store in which taking the first thing away lasts for as long as the test likes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_taking, self.may_go_on = threading.Event(), threading.Event()

    def move(self, source: str, target: str) -> None:
        self._wait()
        super().move(source, target)

    def remove(self, path: str) -> None:
        self._wait()
        super().remove(path)

    def _wait(self) -> None:
        self.is_taking.set()
        assert self.may_go_on.wait(60)


@pytest.mark.parametrize("what", ["deletions", "the trash"])
def test_the_end_of_a_run_breaks_off_what_takes_long_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    store = PosixStore(tmp_path)
    monkeypatch.setattr(housekeeping, "CLOSE_SECONDS", 0.0)
    with attempt_on(store) as attempt:
        for step in (1, 2, 3):
            attempt.saved(step, [state(float(step))])
        for name in ("a", "b", "c"):
            old = tmp_path / RUN / "trash" / name
            old.mkdir(parents=True)
            os.utime(old, (0, 0))
        endless = Endless(tmp_path)
        keep = Keep(last=1) if what == "deletions" else Keep()
        broom = Housekeeper(endless, RUN, attempt.opened[0].writer, keep, None, Reporter(resolve({}, store=tmp_path)))
        broom.tidy()
        assert endless.is_taking.wait(60)
        broom.close()
        endless.may_go_on.set()
        begun = {future for future in broom._pending if not future.cancelled()}  # wait() does not count a cancelled one as done
        assert not wait(begun, timeout=60).not_done
    left = (StepName(2, 1), StepName(3, 1)) if what == "deletions" else (StepName(1, 1), StepName(2, 1), StepName(3, 1))
    assert list_committed(store, RUN) == left
    old_trash = {"a", "b", "c"} & set(store.list(f"{RUN}/trash"))
    assert len(old_trash) == (3 if what == "deletions" else 2)
    assert "the run ended" in caplog.text


def test_what_is_in_use_is_not_deleted(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with attempt_on(store) as attempt:
        for step in (1, 2, 3):
            attempt.saved(step, [state(float(step))])
        reporter = Reporter(resolve({}, store=tmp_path))
        broom = Housekeeper(
            store, RUN, attempt.opened[0].writer, Keep(last=1), None, reporter, in_use=lambda held: frozenset({held[0].name})
        )
        broom.tidy()
        broom.close()
    assert list_committed(store, RUN) == (StepName(1, 1), StepName(3, 1))
