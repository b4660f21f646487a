"""The persister as a process: it outlives its rank, another one takes over when it is killed, and it leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.checkpoint import real
from tests.checkpoint.real import engine_on, save, saved
from tests.checkpoint.world import RUN, WAIT_SECONDS, attempt_on, persister_of, state
from tests.descriptors import LOW, low_ones_taken
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.persister import exchange as exchanges
from trainer_runtime.checkpoint.persister import link as links
from trainer_runtime.checkpoint.persister.start import Handle
from trainer_runtime.checkpoint.persister.wire import receive_frame
from trainer_runtime.checkpoint.staging.turns import Turns
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.posix import PosixStore


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServerContext]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([real.__name__])
    yield context


def wait_until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Whether a process ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def verified_steps(store: PosixStore) -> list[int]:
    """The verified steps, after every committed one was proven whole."""
    steps = []
    for name in list_committed(store, RUN):
        reference = find_reference(store, RUN, name)
        assert reference is not None
        verify_checkpoint(store, reference)
        if is_verified(store, reference):
            steps.append(name.step)
    return steps


def test_it_loads_no_torch() -> None:
    code = "import sys, trainer_runtime.checkpoint.persister.__main__; print([m for m in ('torch', 'boto3') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_rank_sealed_is_committed_and_verified_after_the_rank_was_killed(store: PosixStore, forks: ForkServerContext) -> None:
    ours, theirs = forks.Pipe()
    process = forks.Process(target=real.stage_and_wait, args=(store.uri.removeprefix("file://"), theirs))
    process.start()
    theirs.close()
    assert ours.poll(WAIT_SECONDS), "the rank did not start"
    rank, persister = ours.recv()
    os.kill(rank, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    wait_until(lambda: is_gone(persister), "the persister ended by itself")
    assert verified_steps(store) == [1, 2]


PHASES = [
    pytest.param(lambda store: True, id="at once"),
    pytest.param(lambda store: bool(store.list(f"{RUN}/tmp/0000000002-00000001/data")), id="while it writes"),
    pytest.param(lambda store: store.exists(f"{RUN}/tmp/0000000002-00000001/ranks/00000.json"), id="before the commit"),
    pytest.param(lambda store: store.exists(f"{RUN}/steps/0000000002-00000001/manifest.json"), id="while it reads back"),
    pytest.param(lambda store: store.exists(f"{RUN}/steps/0000000002-00000001/verified.json"), id="after the mark"),
]


@pytest.mark.parametrize("is_reached", PHASES)
def test_a_save_whose_persister_is_killed_is_finished_by_the_next_one(
    store: PosixStore, tmp_path: Path, is_reached: Callable[[PosixStore], bool]
) -> None:
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        first = joined.link.pid
        assert first is not None
        save(engine, 2)
        wait_until(lambda: is_reached(store) or not engine.busy, "the phase was reached")
        os.kill(first, signal.SIGKILL)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert result.error is None, result.error
        saved(engine, 3)
        assert joined.link.pid != first
    assert verified_steps(store) == [1, 2, 3]


def test_a_manifest_that_a_cut_off_commit_left_is_no_obstacle(store: PosixStore, tmp_path: Path) -> None:
    """Killed after the manifest was made and before the directory was renamed."""
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        first = joined.link.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        save(engine, 2)
        store.create(f"{RUN}/tmp/0000000002-00000001/manifest.json", b"{}")
        os.kill(first, signal.SIGKILL)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert result.error is None, result.error
    assert verified_steps(store) == [1, 2]


def test_a_persister_that_hangs_is_replaced(tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PING_SECONDS", 0.02)
    monkeypatch.setattr(links, "SILENCE_SECONDS", 0.5)
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        first = joined.link.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        saved(engine, 2)
        assert is_gone(first)
    assert verified_steps(store) == [1, 2]


def test_a_save_that_ends_every_persister_is_given_up(tmp_path: Path, store: PosixStore) -> None:
    deaths = 0

    def kill_again(record: CheckpointRecord) -> None:
        nonlocal deaths
        if record.step == 2 and record.level is Level.COMMITTED and deaths < links.MAX_DEATHS:
            deaths += 1
            pid = joined.link.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    with engine_on(tmp_path / "store", kill_again) as (engine, joined):
        saved(engine, 1)
        save(engine, 2)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert deaths >= 1
        saved(engine, 3)
    assert {1, 3} <= set(verified_steps(store))


def test_a_process_with_many_files_open_saves_and_replaces_its_persister(tmp_path: Path, store: PosixStore) -> None:
    with low_ones_taken(), engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        first, connection = joined.link.pid, joined.link.connection
        assert first is not None
        assert connection is not None
        assert connection.fileno() > LOW
        os.kill(first, signal.SIGKILL)
        saved(engine, 2)
    assert verified_steps(store) == [1, 2]


def test_a_persister_whose_own_descriptors_are_high_serves_its_rank(store: PosixStore) -> None:
    with low_ones_taken(), attempt_on(store) as attempt:
        attempt.saved(1, [state(1.0)])
    assert verified_steps(store) == [1]


def test_whatever_goes_wrong_with_the_connection_costs_that_connection_and_not_the_saves_to_come(
    tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ValueError("no such descriptor"), MemoryError()]

    def fail_twice(connection: socket.socket) -> tuple[bytes, int | None]:
        frame = receive_frame(connection)
        if failures and b"Ended" in frame[0]:
            raise failures.pop()
        return frame

    monkeypatch.setattr(links, "receive_frame", fail_twice)
    with engine_on(tmp_path / "store") as (engine, _joined):
        saved(engine, 1)
        assert not failures
        saved(engine, 2)
    assert verified_steps(store) == [1, 2]


def test_a_save_of_which_nothing_can_be_heard_ends_with_the_reason(
    tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_deaf = True

    def hear_nothing(connection: socket.socket) -> tuple[bytes, int | None]:
        frame = receive_frame(connection)
        if is_deaf and b"Welcome" not in frame[0]:
            raise ValueError("no such descriptor")
        return frame

    monkeypatch.setattr(links, "receive_frame", hear_nothing)
    with engine_on(tmp_path / "store") as (engine, _joined):
        save(engine, 1)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert "was lost 4 times during this save: no such descriptor" in str(result.error)
        is_deaf = False
        saved(engine, 2)
    assert 2 in verified_steps(store)


def test_nothing_is_left_of_it_after_a_run(tmp_path: Path, store: PosixStore) -> None:
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        pid = joined.link.pid
        assert pid is not None
        assert joined.own is not None
        directory = Path(joined.own.path).parent
        assert any("rtj-arena" in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    assert is_gone(pid)
    assert not directory.exists()


def test_it_ends_when_whoever_started_it_is_gone_and_no_rank_came(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir()
    handle = Handle(str(directory / "persister"))
    wait_until((directory / "persister").exists, "it listens")
    ranks = Turns(2, str(directory))
    with ranks.turn():
        ranks.mark_taken()
    handle.finish()
    wait_until(handle.has_ended, "it ended")
    assert not directory.exists()


def test_it_ends_when_it_is_told_so_while_a_data_loader_that_was_forked_meanwhile_lives(tmp_path: Path) -> None:
    handle = Handle(str(tmp_path / "persister"))
    wait_until((tmp_path / "persister").exists, "it listens")
    context = multiprocessing.get_context("fork")
    release = context.Event()
    worker = context.Process(target=release.wait)
    worker.start()
    handle.finish()
    try:
        wait_until(handle.has_ended, "it ended")
    finally:
        release.set()
        worker.join()


def test_a_store_that_hangs_costs_this_save_and_is_said(tmp_path: Path, store: PosixStore) -> None:
    release = threading.Event()

    class HangingStore(PosixStore):
        def write_file(self, path: str, image: memoryview, size: int) -> None:
            assert release.wait(WAIT_SECONDS)
            super().write_file(path, image, size)

    with attempt_on(HangingStore(tmp_path / "store"), deadline_seconds=0.3) as attempt:
        (result,) = attempt.save(1, [state(1.0)])
        release.set()
    assert isinstance(result.error, SaveFailed)
    assert "writing: file://" in str(result.error)
    assert "did not answer within 0 s" in str(result.error)


def test_a_persister_that_a_rank_lost_sight_of_is_ended_before_another_one_touches_its_files(tmp_path: Path, store: PosixStore) -> None:
    with engine_on(tmp_path / "store") as (engine, joined):
        saved(engine, 1)
        first, connection = joined.link.pid, joined.link.connection
        assert first is not None
        assert connection is not None
        save(engine, 2)
        connection.shutdown(socket.SHUT_RDWR)
        result = engine.wait(WAIT_SECONDS)
        assert result is not None
        assert result.error is None, result.error
        assert is_gone(first)
    assert verified_steps(store) == [1, 2]


def test_a_full_disk_costs_the_save_and_the_next_one_succeeds_when_there_is_room(tmp_path: Path, store: PosixStore) -> None:
    root = tmp_path / "store"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={real.MEGABYTES + 4}m", "tmpfs", str(root)], check=True)
    try:
        with engine_on(root) as (engine, _joined):
            saved(engine, 1)
            save(engine, 2)
            result = engine.wait(WAIT_SECONDS)
            assert result is not None
            assert "no space left" in str(result.error)
            assert verified_steps(store) == [1]
            assert store.list(f"{RUN}/tmp") == (), "what was written of it was given back"
            subprocess.run(["mount", "-o", "remount,size=200m", str(root)], check=True)
            saved(engine, 3)
        assert verified_steps(store) == [1, 3]
    finally:
        subprocess.run(["umount", str(root)], check=True)


@pytest.mark.parametrize("rank", [0, 1], ids=["of the committer", "of another rank"])
def test_a_persister_that_is_killed_costs_the_save_on_no_worker(tmp_path: Path, store: PosixStore, rank: int) -> None:
    with real.two_workers_on(tmp_path / "store") as workers:
        for step in (1, 2, 3):
            for engine, _joined in workers:
                save(engine, step)
            if step == 2:
                pid = workers[rank][1].link.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            for engine, _joined in workers:
                result = engine.wait(WAIT_SECONDS)
                assert result is not None
                assert result.error is None, result.error
    assert verified_steps(store) == [1, 2, 3]


def test_a_committer_that_hangs_costs_the_save_on_no_worker(tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All limits are a thirtieth of what they are, but for the start of a process."""
    monkeypatch.setattr(links, "PING_SECONDS", links.PING_SECONDS / 30)
    monkeypatch.setattr(links, "SILENCE_SECONDS", links.SILENCE_SECONDS / 30)
    monkeypatch.setattr(exchanges, "IO_SECONDS", exchanges.IO_SECONDS / 30)
    monkeypatch.setattr(
        exchanges, "UNREACHABLE_SECONDS", (exchanges.UNREACHABLE_SECONDS - links.CONNECT_SECONDS) / 30 + links.CONNECT_SECONDS
    )
    with persister_of(store) as here, real.two_workers_on(tmp_path / "store", here) as workers:
        pid = workers[0][1].link.pid
        assert pid is not None
        for step in (1, 2, 3):
            if step == 2:
                os.kill(pid, signal.SIGSTOP)
            for engine, _joined in workers:
                save(engine, step)
            for engine, _joined in workers:
                result = engine.wait(WAIT_SECONDS)
                assert result is not None
                assert result.error is None, result.error
        assert is_gone(pid)
    assert verified_steps(store) == [1, 2, 3]


def test_the_others_give_a_committer_up_only_after_its_successor_must_have_come() -> None:
    comes_back = links.SILENCE_SECONDS + links.PING_SECONDS + links.DEATH_SECONDS + links.CONNECT_SECONDS
    assert comes_back <= exchanges.UNREACHABLE_SECONDS


def test_a_rank_that_ends_before_it_sealed_ends_the_save_of_the_others_at_once(tmp_path: Path, store: PosixStore) -> None:
    with real.two_workers_on(tmp_path / "store") as workers:
        (first, _), (_, second) = workers
        save(first, 1)
        second.link.close()
        result = first.wait(WAIT_SECONDS)
        assert result is not None
        assert "rank 1 ended and did not hand in its part of the save" in str(result.error)
