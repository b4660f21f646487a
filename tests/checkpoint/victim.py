"""The process that is killed in the tests: it saves, and dies at a named point of a save or whenever it is hit; and what must hold then.

Run by a fork server that has torch loaded already, so that a kill costs milliseconds and not an import.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.checkpoint.world import RUN, attempt_on, open_world, state
from trainer_runtime.checkpoint.documents import find_reference
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.state.leaves import Snapshot
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore
from trainer_runtime.store.s3.store import S3Store


def weights(value: float) -> Snapshot:
    """A state of one data file: the writers of several would race, and the operations would come in another order each time."""
    return Snapshot(state(value).leaves[:2])


class Mortal:
    """What is killed before or after its ``fatal``-th durable operation (counted from `arm`), as by a power cut."""

    _done = 0
    _fatal: int | None = None
    _before = True

    def arm(self, fatal: int, before: bool) -> None:
        self._done, self._fatal, self._before = 0, fatal, before

    @property
    def operations(self) -> int:
        return self._done

    def _mortal(self, operation: Callable[[], None]) -> None:
        self._done += 1
        mine = self._done == self._fatal
        if mine and self._before:
            os.kill(os.getpid(), signal.SIGKILL)
        operation()
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalStore(Mortal, PosixStore):
    """Mortal in every call that makes something durable."""

    def create(self, path: str, data: bytes) -> None:
        self._mortal(lambda: super(MortalStore, self).create(path, data))

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        self._mortal(lambda: super(MortalStore, self).write_file(path, image, size))

    def _rename(self, source: Path, target: Path) -> None:
        self._mortal(lambda: super(MortalStore, self)._rename(source, target))

    def _sync_directory(self, directory: Path) -> None:
        self._mortal(lambda: super(MortalStore, self)._sync_directory(directory))


class MortalS3Store(Mortal, S3Store):
    """Mortal in everything that a save writes."""

    def create(self, path: str, data: bytes) -> None:
        self._mortal(lambda: super(MortalS3Store, self).create(path, data))

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        self._mortal(lambda: super(MortalS3Store, self).write_file(path, image, size))

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        self._mortal(lambda: super(MortalS3Store, self).commit(staging, final, name, data))


def count_operations(root: str, answer: Connection) -> None:
    """Save step 2 and send how many operations that took."""
    store = MortalStore(Path(root))
    with attempt_on(store) as attempt:
        store.arm(-1, True)
        attempt.saved(2, [weights(2.0)])
        answer.send(store.operations)


def die_in_save(root: str, fatal: int, before: bool) -> None:
    """Start an attempt and be killed at the ``fatal``-th operation of its save of step 2."""
    store = MortalStore(Path(root))
    with attempt_on(store) as attempt:
        store.arm(fatal, before)
        attempt.save(2, [weights(2.0)])


def die_in_save_on_s3(environ: dict[str, str], endpoint: str, bucket: str, step: int, fatal: int, before: bool) -> None:
    """Start an attempt and be killed at the ``fatal``-th write of its save of ``step``. ``environ``: the test's, with the credentials; the
    server that forks may be older than the test."""
    os.environ.update(environ)
    store = MortalS3Store(bucket, "team", S3Settings(endpoint))
    with attempt_on(store) as attempt:
        store.arm(fatal, before)
        attempt.save(step, [weights(float(step))])


def save_for_ever(root: str, answer: Connection) -> None:
    """Start an attempt and save one step after the other, telling which was verified, until killed."""
    store = PosixStore(Path(root))
    with attempt_on(store) as attempt:
        resume = attempt.opened[0].resume
        step = resume.step if resume else 0
        answer.send(step)
        while True:
            step += 1
            attempt.saved(step, [weights(float(step))])
            answer.send(step)


def check_store(store: Store) -> int:
    """Check that every committed checkpoint is whole, that the next attempt starts from the newest of them, and that this holds its step's
    values; return that step."""
    for name in list_committed(store, RUN):
        reference = find_reference(store, RUN, name)
        assert reference is not None
        verify_checkpoint(store, reference)
    (opened,) = open_world([store])
    assert opened.resume is not None
    assert opened.passed_over == ()
    live = weights(0.0)
    open_checkpoint(store, opened.resume).fill(live.leaves, 0)
    for leaf, wanted in zip(live.leaves, weights(float(opened.resume.step)).leaves, strict=True):
        assert torch.equal(leaf.tensor, wanted.tensor), leaf.name
    return opened.resume.step
