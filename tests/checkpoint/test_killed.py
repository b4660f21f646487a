"""SIGKILL at every operation of a save, and at random times: what was verified stays, what is committed can be read."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.checkpoint import victim
from tests.checkpoint.world import RUN, attempt_on, point
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.store.posix import PosixStore

RANDOM_KILLS = 40
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServerContext]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([victim.__name__])
    yield context


def ask(forks: ForkServerContext, root: Path) -> int:
    ours, theirs = forks.Pipe()
    process = forks.Process(target=victim.count_operations, args=(str(root), theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(WAIT_SECONDS), "the victim did not answer"
        return int(ours.recv())
    finally:
        process.join(WAIT_SECONDS)


def test_a_kill_at_any_operation_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path, forks: ForkServerContext) -> None:
    template = tmp_path / "template"
    template.mkdir()
    with attempt_on(PosixStore(template)) as attempt:
        attempt.saved(1, [victim.weights(1.0)])
    shutil.copytree(template, tmp_path / "count")
    operations = ask(forks, tmp_path / "count")
    assert operations > 10

    found = []
    for fatal in range(1, operations + 1):
        for before in (True, False):
            root = tmp_path / f"{fatal}-{before}"
            shutil.copytree(template, root)
            process = forks.Process(target=victim.die_in_save, args=(str(root), fatal, before))
            process.start()
            process.join(WAIT_SECONDS)
            assert process.exitcode == -9, f"operation {fatal} of {operations} was not reached"
            found.append(victim.check_store(PosixStore(root)))
            shutil.rmtree(root)
    assert found[0] == 1
    assert found[-1] == 2
    assert found == sorted(found), "once committed, always committed"


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_times_lose_nothing_that_was_verified(tmp_path: Path, forks: ForkServerContext, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    store = PosixStore(tmp_path)
    told = 0
    for _ in range(RANDOM_KILLS // 2):
        ours, theirs = forks.Pipe()
        process = forks.Process(target=victim.save_for_ever, args=(str(tmp_path), theirs))
        process.start()
        theirs.close()
        assert ours.poll(WAIT_SECONDS), "the victim did not start"
        assert ours.recv() >= told, "an attempt started before what was verified"
        told = max(told, last_told(ours, chance.uniform(0.0, 0.15)))
        process.kill()
        process.join(WAIT_SECONDS)
        told = max(told, drain(ours))
        committed = list_committed(store, RUN)
        for name in committed:
            reference = find_reference(store, RUN, name)
            assert reference is not None
            verify_checkpoint(store, reference)
        assert not told or any(
            name.step == told and is_verified(store, reference)
            for name in committed
            if (reference := find_reference(store, RUN, name)) is not None
        )
    assert told > 0


def last_told(connection: Connection, seconds: float) -> int:
    """Listen for a random while and return the newest step that was said to be verified."""
    step = 0
    while connection.poll(seconds):
        step = connection.recv()
        seconds /= 2
        if seconds < 0.001:
            break
    return step


def drain(connection: Connection) -> int:
    step = 0
    try:
        while connection.poll():
            step = connection.recv()
    except EOFError:
        pass
    return step


def test_the_attempt_after_a_kill_goes_on_saving(tmp_path: Path, forks: ForkServerContext) -> None:
    process = forks.Process(target=victim.die_in_save, args=(str(tmp_path), 5, True))
    process.start()
    process.join(WAIT_SECONDS)
    with attempt_on(PosixStore(tmp_path)) as attempt:
        record = attempt.saved(2, [victim.weights(2.0)])
    assert (record.step, record.attempt) == (2, 2)
    assert point(record).uri.endswith("0000000002-00000002")
