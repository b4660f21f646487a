"""What goes wrong between the windows of a save: it fails on all ranks and leaves nothing, training goes on, and the next save works."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint import real
from tests.checkpoint.little import KIB, WINDOW, Limit, Watching, nothing_is_left, staged_at_once, weights
from tests.checkpoint.real import engine_on, save, saved
from tests.checkpoint.world import RUN, WAIT_SECONDS, attempt_on
from trainer_runtime.checkpoint import persist
from trainer_runtime.checkpoint.commit import About
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.job import SaveJob
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.persister.exchange import RemoteExchange
from trainer_runtime.checkpoint.persister.handover import Handover
from trainer_runtime.checkpoint.persister.link import Link
from trainer_runtime.checkpoint.persister.messages import Message, Written
from trainer_runtime.checkpoint.staging import plan
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.posix import PosixStore


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.usefixtures("little")
def test_a_store_that_fails_in_a_later_window_fails_the_save_everywhere_and_leaves_nothing(
    tmp_path: Path, store: PosixStore, ranks: int
) -> None:
    failing = True

    def fail(count: int) -> None:
        if failing and count >= 6:
            raise OSError(28, "No space left on device")

    with attempt_on(Watching(tmp_path / "store", fail), ranks) as attempt:
        results = staged_at_once(attempt, 1)
        assert all("No space left on device" in str(result.error) for result in results)
        assert nothing_is_left(store)
        failing = False
        assert all(result.error is None for result in staged_at_once(attempt, 2))


def test_what_another_rank_has_failed_ends_the_windows_that_are_left(
    tmp_path: Path, store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()
    put = RemoteExchange.put

    def tell(exchange: RemoteExchange, key: str, value: bytes) -> None:
        put(exchange, key, value)
        has_failed.set()

    monkeypatch.setattr(RemoteExchange, "put", tell)
    watched = Watching(tmp_path / "store", lambda count: None if has_failed.wait(WAIT_SECONDS) else pytest.fail("rank 1 did not fail"))
    with attempt_on(watched, 2) as attempt:
        attempt.engines[0].prepare(weights(1.0))
        little(0)
        attempt.engines[1].stage(weights(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        little(WINDOW)
        attempt.engines[0].stage(weights(1.0), step=1, epoch=0, samples=0, strict={})
        assert all("staging a checkpoint needs" in str(result.error) for result in attempt.results())
        files = attempt.engines[0]._planner.plan(weights(1.0).leaves).files
        assert watched.written == sum(file.window == 0 for file in files) < len(files)
    assert nothing_is_left(store)


class OthersFirst(PosixStore):
    """Rank 1 writes nothing before ``others``."""

    def __init__(self, root: Path, others: threading.Event) -> None:
        super().__init__(root)
        self._others = others
        self.written: list[str] = []

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        if "/data/00001-" in path:
            assert self._others.wait(WAIT_SECONDS), "rank 0 did not end the save"
            self.written.append(path)
        super().write_file(path, image, size)


def test_a_failure_ends_the_windows_of_a_rank_that_is_asked_before_the_one_that_failed(
    tmp_path: Path, store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended = threading.Event()
    put = LocalExchange.put

    def tell(exchange: LocalExchange, key: str, value: bytes) -> None:
        put(exchange, key, value)
        if key.endswith("/committed"):
            has_ended.set()

    monkeypatch.setattr(LocalExchange, "put", tell)
    watched = OthersFirst(tmp_path / "store", has_ended)
    with attempt_on(watched, 3) as attempt:
        little(1 << 30)
        attempt.engines[0].prepare(weights(1.0))
        little(WINDOW // 2)
        monkeypatch.setattr(plan, "LEAST_WINDOW_BYTES", WINDOW // 2)
        attempt.engines[1].prepare(weights(1.0, rank=1))
        assert attempt.engines[1].stands_still
        little(0)
        for rank in (2, 0, 1):
            attempt.engines[rank].stage(weights(1.0, rank), step=1, epoch=0, samples=0, strict={})
        assert all("staging a checkpoint needs" in str(result.error) for result in attempt.results())
        files = attempt.engines[1]._planner.plan(weights(1.0, rank=1).leaves).files
        assert len(watched.written) == sum(file.window == 0 for file in files) < len(files)
    assert nothing_is_left(store)


def test_a_rank_that_ends_between_windows_ends_the_save_of_the_others_at_once(
    store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(link: Link, job: SaveJob, deadline_seconds: float) -> bool:
        link.close()
        return False

    with attempt_on(store, 2) as attempt:
        first, second = attempt.engines
        little(1 << 30)
        first.prepare(weights(1.0))
        little(WINDOW)
        monkeypatch.setattr(Link, "await_room", leave)
        first.stage(weights(1.0), step=1, epoch=0, samples=0, strict={})
        second.stage(weights(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        (result,) = attempt.results_of([0])
        assert "the rank ended before window 2 of its part was staged" in str(result.error)
        second._ended(1, None, result.error)  # nobody tells a rank that left
    assert nothing_is_left(store)


@pytest.mark.usefixtures("little")
def test_a_store_that_hangs_holds_training_no_longer_than_it_may(tmp_path: Path, store: PosixStore) -> None:
    release = threading.Event()
    watched = Watching(tmp_path / "store", lambda count: None if release.wait(WAIT_SECONDS) else pytest.fail("never released"))
    with attempt_on(watched) as attempt:
        (engine,) = attempt.engines
        engine.stage(weights(1.0), step=1, epoch=0, samples=0, strict={}, stand_still_seconds=0.05)
        assert engine.busy
        release.set()
        (result,) = attempt.results()
        assert "training may not stand still any longer, and window 1 of this rank's part is not written" in str(result.error)
        assert nothing_is_left(store)
        attempt.saved(2, [weights(2.0)])


class SlowFirst(PosixStore):
    """Each file of rank 0 takes ``seconds``, until ``others`` have ended."""

    def __init__(self, root: Path, seconds: float, others: threading.Event) -> None:
        super().__init__(root)
        self._seconds, self._others = seconds, others

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        if "/data/00000-" in path:
            self._others.wait(self._seconds)
        super().write_file(path, image, size)


def test_what_the_others_gave_up_is_never_committed_however_many_windows_rank_0_has(
    tmp_path: Path, store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No window takes as long as a save may, but all of them together do."""
    monkeypatch.setattr(persist, "ANSWER_SECONDS", 0.5)
    has_given_up = threading.Event()
    with attempt_on(SlowFirst(tmp_path / "store", 0.7, has_given_up), 2, deadline_seconds=2.0) as attempt:
        little(1 << 30)
        attempt.engines[1].prepare(weights(1.0, rank=1))
        little(WINDOW // 2)
        monkeypatch.setattr(plan, "LEAST_WINDOW_BYTES", WINDOW // 2)
        attempt.engines[0].prepare(weights(1.0))
        assert attempt.engines[0].stands_still
        assert not attempt.engines[1].stands_still
        attempt.engines[1].stage(weights(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        thread = threading.Thread(
            target=attempt.engines[0].stage, args=[weights(1.0)], kwargs={"step": 1, "epoch": 0, "samples": 0, "strict": {}}
        )
        thread.start()
        (other,) = attempt.results_of([1])
        has_given_up.set()
        thread.join(WAIT_SECONDS)
        (first,) = attempt.results_of([0])
    assert other.error is not None
    assert first.error is not None
    assert list_committed(store, RUN) == ()


@pytest.mark.usefixtures("little")
def test_a_tensor_that_lost_its_memory_between_windows_fails_the_save(tmp_path: Path, store: PosixStore) -> None:
    snapshot = weights(1.0)
    lost = snapshot.leaves[0].tensor

    def free(count: int) -> None:
        if count == 0:
            lost.untyped_storage().resize_(0)

    with attempt_on(Watching(tmp_path / "store", free)) as attempt:
        (result,) = attempt.save(1, [snapshot])
        assert "model/w: its memory was freed" in str(result.error)
    assert nothing_is_left(store)


JOB = SaveJob(About(7, 0, 0), (), 1, 0)
NEXT = replace(JOB, window=1)

HANDOVERS = [
    pytest.param(lambda handover: handover.take(NEXT), "", id="staged"),
    pytest.param(lambda handover: handover.take(replace(NEXT, refusal="no memory")), "no memory", id="refused"),
    pytest.param(lambda handover: handover.end(), "the rank ended before window 2 of its part was staged", id="the rank is gone"),
    pytest.param(lambda handover: handover.take(replace(NEXT, tries=0)), "window 2 .* was not staged within 0 s", id="of an earlier try"),
    pytest.param(lambda handover: None, "window 2 of this rank's part was not staged within 0 s", id="nothing comes"),
]


@pytest.mark.parametrize(("act", "refusal"), HANDOVERS)
def test_the_writer_is_told_why_a_window_does_not_come(act: Callable[[Handover], None], refusal: str) -> None:
    told: list[Message] = []
    handover = Handover(JOB, None, told.append)
    act(handover)
    if refusal:
        with pytest.raises(SaveFailed, match=refusal):
            handover.await_window(1, 0.0)
    else:
        handover.await_window(1, 0.0)
    assert told == [Written(7, 1, 0)]


def killing(monkeypatch: pytest.MonkeyPatch, when: int, before_it_is_known: bool) -> list[int]:
    """Have the persister of step 2 killed once window ``when`` is written, and return what will hold its process id."""
    killed: list[int] = []
    await_room = Link.await_room

    def kill(link: Link, job: Any, deadline_seconds: float) -> bool:
        is_due = job.about.step == 2 and job.window == when and not killed
        if is_due and before_it_is_known:
            killed.append(link.pid or 0)
            os.kill(killed[0], signal.SIGKILL)
        has_room = await_room(link, job, deadline_seconds)
        if is_due and not before_it_is_known:
            killed.append(link.pid or 0)
            os.kill(killed[0], signal.SIGKILL)
        return has_room

    monkeypatch.setattr(Link, "await_room", kill)
    return killed


def in_real_windows(little: Limit) -> None:
    little(real.MEGABYTES * KIB * KIB // 3)


def steps_of(store: PosixStore) -> list[int]:
    """The committed steps, each proven whole and verified."""
    steps = []
    for name in list_committed(store, RUN):
        reference = find_reference(store, RUN, name)
        assert reference is not None
        verify_checkpoint(store, reference)
        assert is_verified(store, reference)
        steps.append(name.step)
    return steps


@pytest.mark.parametrize("when", [1, 2])
def test_a_persister_that_is_killed_between_windows_costs_this_save_and_not_the_next(
    tmp_path: Path, store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    in_real_windows(little)
    killed = killing(monkeypatch, when, before_it_is_known=False)
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        save(engine, 2)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert "ended, and the memory of what it had written holds other data by now" in str(result.error)
        assert store.list(f"{RUN}/tmp") == ()
        saved(engine, 3)
        assert joined.link.pid != killed[0]
    assert steps_of(store) == [1, 3]


def test_a_persister_that_is_killed_in_the_first_window_is_replaced_and_the_save_done_again(
    tmp_path: Path, store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not said that the window is written, so the window is still in memory."""
    in_real_windows(little)
    killed = killing(monkeypatch, 1, before_it_is_known=True)
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        os.kill(joined.link.pid or 0, signal.SIGSTOP)
        save(engine, 2)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert result.error is None, result.error
    assert killed
    assert steps_of(store) == [1, 2]


@pytest.mark.parametrize("rank", [0, 1], ids=["of the committer", "of another rank"])
def test_a_persister_killed_between_windows_fails_the_save_on_every_worker(
    tmp_path: Path, store: PosixStore, little: Limit, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    with real.two_workers_on(tmp_path / "store") as workers:
        little(1 << 30)
        workers[1 - rank][0].prepare(real.weights(0.0))
        little(real.MEGABYTES * KIB * KIB // 6)
        workers[rank][0].prepare(real.weights(0.0))
        for step in (1, 2, 3):
            killed = killing(monkeypatch, 1, before_it_is_known=False) if step == 2 else []
            for engine, _joined in workers:
                save(engine, step)
            for engine, _joined in workers:
                result = engine.wait(WAIT_SECONDS)
                assert result is not None
                assert ("holds other data by now" in str(result.error)) if killed else (result.error is None), result.error
    assert steps_of(store) == [1, 3]
