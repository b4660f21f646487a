"""Rank 0's broom: after each verified save it looks what retention lets go, in a thread of its own.

Without an operator it deletes that. With one it only proposes, and deletes what is granted. What is no checkpoint (old trash, what dead
attempts left in flight) needs no grant and goes in either case. It never stops training: what cannot be deleted now is proposed again after
the next save.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints, propose_deletions, read_held, sweep
from trainer_runtime.checkpoint.keeping.retention import Held
from trainer_runtime.contract.assignment import Keep, ResumePoint
from trainer_runtime.contract.beat import Level, RecordKey
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import RuntimeProblem
from trainer_runtime.loop.reporter import Reporter
from trainer_runtime.store.base import Store

CLOSE_SECONDS: Final = 30.0
"""How long the end of a run waits for deletions; what is left, the next attempt finds."""

log = logging.getLogger("trainer_runtime")


class Housekeeper:
    """Made on every rank; only rank 0's does anything. All methods return at once, but `close`."""

    def __init__(
        self,
        store: Store,
        run: str,
        writer: Writer,
        keep: Keep,
        resume: ResumePoint | None,
        reporter: Reporter,
        in_use: Callable[[tuple[Held, ...]], frozenset[StepName]] = lambda _held: frozenset(),
        started_with: frozenset[str] = frozenset(),
    ) -> None:
        """``in_use``: which of the checkpoints that are there must not go now, asked in the broom's thread. ``started_with``: as for
        `sweep`."""
        self._store, self._run, self._writer = store, run, writer
        self._keep, self._reporter, self._in_use = keep, reporter, in_use
        self._started_with = started_with
        self._resume = frozenset() if resume is None else frozenset({StepName(resume.step, resume.attempt)})
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rtj-clean") if writer.rank == 0 else None
        self._pending: set[Future[None]] = set()
        self._ended = threading.Event()

    def tidy(self) -> None:
        """A checkpoint was verified: look what may go."""
        self._submit(self._tidy)
        self._submit(self._sweep)

    def delete(self, keys: tuple[RecordKey, ...]) -> None:
        """The operator granted these deletions. Swept is again, for the files that nothing else names: no save may come after this."""
        names = tuple(StepName(key.step, key.attempt) for key in keys if key.run == self._run)
        if names:
            self._submit(lambda: self._delete(names))
            self._submit(self._sweep)

    def close(self) -> None:
        """Let what was begun finish within CLOSE_SECONDS, then break it off: the process cannot end before its threads do."""
        if self._thread is not None:
            unfinished = wait(self._pending, timeout=CLOSE_SECONDS).not_done
            self._ended.set()
            self._thread.shutdown(wait=False, cancel_futures=True)
            if unfinished:
                log.warning("deleting old checkpoints: the run ended before that was done; the next attempt of the run finds what is left")

    def _submit(self, act: Callable[[], None]) -> None:
        if self._thread is not None:
            self._pending = {future for future in self._pending if not future.done()}
            self._pending.add(self._thread.submit(self._guard, act))

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except RuntimeProblem as problem:
            log.warning("deleting old checkpoints: %s", problem)
        except Exception:  # training must go on without its broom, but nobody else would look at what a thread raised
            log.exception("deleting old checkpoints")

    def _tidy(self) -> None:
        held = read_held(self._store, self._run)
        names = propose_deletions(self._store, self._run, held, self._keep, self._resume | self._in_use(held), time.time())
        if self._reporter.has_operator:
            self._reporter.propose_deletions(tuple(RecordKey(self._run, name.step, name.attempt, Level.VERIFIED) for name in names))
        else:
            self._delete(names)

    def _delete(self, names: tuple[StepName, ...]) -> None:
        delete_checkpoints(self._store, self._run, self._writer, names, self._ended.is_set)

    def _sweep(self) -> None:
        """Submitted for itself: a checkpoint that cannot be deleted must not keep what lies in the trash."""
        sweep(self._store, self._run, self._writer, time.time(), self._ended.is_set, self._started_with)
