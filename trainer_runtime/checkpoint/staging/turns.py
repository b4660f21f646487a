"""The ranks of a worker share one container's memory, and take what they stage in one after the other.

A rank looks at what is available and takes its part of it in one turn, so that no two count on the same bytes. What it finds it divides
among those that have not taken theirs: whoever comes later finds less and shares it with fewer, so that the order matters to nobody, and
what one does not need is the others'. Divided by all ranks each time, the last of eight would get an eighth of an eighth; undivided,
nothing.

Turns, and that a rank has taken its memory, are locks (flock) in the persister's directory, which this worker's ranks alone know. The
kernel opens them when their rank is gone, so nothing has to be remembered of ranks that were killed. It knows nothing of what is taken.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trainer_runtime.checkpoint.staging.memory import ALONE, Among
from trainer_runtime.errors import SaveFailed

TURN_SECONDS: Final = 300.0
"""How long a rank waits for its turn. Memory is set aside at about 2 GiB a second: that is for 600 GiB of the others."""
MARK_PREFIX: Final = "staged-"
"""A file whose name begins so is locked by a rank that has taken its memory."""
_RETRY_SECONDS: Final = 0.01


class Turns:
    """One rank's place among the ``ranks`` of its worker, which all name the same ``directory``. ``rank``: any number of its own."""

    def __init__(self, ranks: int = 1, directory: str = "", rank: int = 0) -> None:
        self._ranks = ranks
        self._directory = directory
        self._mark = f"{MARK_PREFIX}{rank}"
        self._marked: int | None = None

    @contextmanager
    def turn(self) -> Iterator[Among]:
        """Wait until no other rank looks or takes, and yield among whom what is available is to be divided: the ranks that have not taken
        theirs, and this one. Raises SaveFailed after TURN_SECONDS, or when the directory is gone."""
        if self._ranks == 1:
            yield ALONE
            return
        descriptor = self._await_turn()
        try:
            yield Among(self._ranks, self._ranks - self._count_others_that_took())
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly: a data loader that was forked meanwhile holds the descriptor too
            os.close(descriptor)

    def mark_taken(self) -> None:
        """Have the others count this rank among those that have taken their memory, from now on. In its turn only."""
        if self._ranks == 1:
            return
        if self._marked is None:
            self._marked = _open(os.path.join(self._directory, self._mark), os.O_RDONLY | os.O_CREAT)
            weakref.finalize(self, os.close, self._marked)
        fcntl.flock(self._marked, fcntl.LOCK_SH)

    def _await_turn(self) -> int:
        end = time.monotonic() + TURN_SECONDS
        descriptor = _open(self._directory, os.O_RDONLY)
        while not _try_lock(descriptor):
            if time.monotonic() >= end:
                os.close(descriptor)
                raise SaveFailed(f"waited {TURN_SECONDS:.0f} s for another rank of this worker that is taking memory to stage in")
            time.sleep(_RETRY_SECONDS)
        return descriptor

    def _count_others_that_took(self) -> int:
        others = [name for name in os.listdir(self._directory) if name.startswith(MARK_PREFIX) and name != self._mark]
        return sum(_is_locked(os.path.join(self._directory, name)) for name in others)


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SaveFailed(f"{path}: this worker's ranks cannot share their memory: {error.strerror}") from error


def _is_locked(path: str) -> bool:
    descriptor = _open(path, os.O_RDONLY)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
