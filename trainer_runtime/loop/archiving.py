"""Rank 0's porter: after each verified save it copies what the archive lacks, in a thread of its own.

The archive is never in the way: a slow one is asked again when it is done, a failing one is told with a count, in the log and to whoever
listens, and training goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import is_still_there, read_manifest
from trainer_runtime.checkpoint.fences import require_ownership
from trainer_runtime.checkpoint.keeping.archive import copy_fences, find_due, is_archived, is_due
from trainer_runtime.checkpoint.keeping.copying import copy_checkpoint, remove_leftovers
from trainer_runtime.checkpoint.keeping.retention import Held
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Level, Tier
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, RuntimeProblem, SaveFailed
from trainer_runtime.store.base import Store

MAX_WAITING: Final = 3
"""So many checkpoints that wait for the archive are kept from retention. More would fill the store while the archive is away."""
CLOSE_SECONDS: Final = 30.0
"""How long the end of a run waits for a copy; what is missing then, the next attempt of the run copies."""

ENDED_TOO_SOON: Final = "the run ended before the copy did; the next attempt of the run copies it"

log = logging.getLogger("trainer_runtime")


class Archivist:
    """Made on every rank; only rank 0's does anything, and only where there is an archive. All methods return at once, but `close`."""

    def __init__(
        self,
        store: Store,
        run: str,
        writer: Writer,
        open_archive: Callable[[], Store] | None,
        every_steps: int | None,
        on_record: Callable[[CheckpointRecord], None],
        on_look: Callable[[ArchiveLook], None],
    ) -> None:
        """``open_archive`` is called in the thread, again after it failed; None: there is no archive. ``on_record``: of a verified copy;
        ``on_look``: of each look that ended, and at `close` of one that did not. Nothing is told after `close`."""
        self._store, self._run, self._writer = store, run, writer
        self._open_archive, self._every_steps = open_archive, every_steps
        self._on_record, self._on_look = on_record, on_look
        has_work = open_archive is not None and writer.rank == 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rtj-archive") if has_work else None
        self._archive: Store | None = None
        self._lock = threading.Lock()
        self._settled: set[StepName] = set()
        """In the archive, or too damaged to get there."""
        self._in_work: StepName | None = None
        self._looks: set[Future[None]] = set()
        self._ended = threading.Event()
        self.failures = 0
        """Looks in a row that failed."""

    def waiting(self, held: tuple[Held, ...]) -> frozenset[StepName]:
        """Return which of the checkpoints in the store retention must leave: the newest MAX_WAITING of those that are still to be copied,
        and the one that is being copied, which is the oldest of them."""
        if self._thread is None:
            return frozenset()
        due = [item.name for item in held if item.on_lineage and item.verified and is_due(item.name, item.tagged, self._every_steps)]
        with self._lock:
            newest = sorted(name for name in due if name not in self._settled)[-MAX_WAITING:]
            return frozenset(newest) | (frozenset() if self._in_work is None else {self._in_work})

    def look(self) -> None:
        """A checkpoint was verified: copy what is missing. A look that has not begun yet sees it as well."""
        if self._thread is not None:
            self._looks = {look for look in self._looks if not look.done()}
            if not any(not look.running() for look in self._looks):
                self._looks.add(self._thread.submit(self._guard))

    def close(self) -> None:
        """Let a copy that was begun finish within CLOSE_SECONDS, then break it off."""
        if self._thread is not None:
            unfinished = wait(self._looks, timeout=CLOSE_SECONDS).not_done
            self._ended.set()
            if unfinished:
                self._on_look(ArchiveLook(self.failures + 1, ENDED_TOO_SOON))
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _guard(self) -> None:
        try:
            self._copy_missing()
            self.failures, text = 0, ""
        except Exception as error:  # training must go on without its archive; nobody else would look at what a thread raised
            self.failures += 1
            text = str(error) if isinstance(error, RuntimeProblem) else f"{type(error).__name__}: {error}"
            log.warning("archiving failed %d times in a row: %s", self.failures, text, exc_info=not isinstance(error, RuntimeProblem))
        if not self._ended.is_set():
            self._on_look(ArchiveLook(self.failures, text))

    def _copy_missing(self) -> None:
        assert self._open_archive is not None
        require_ownership(self._store, self._run, self._writer.attempt, self._writer.job.uid)
        if self._archive is None:
            self._archive = self._open_archive()
        copy_fences(self._store, self._run, self._archive)
        failed: list[RuntimeProblem] = []
        for reference in find_due(self._store, self._run, self._every_steps):
            self._require_time()
            try:
                self._bring(reference, self._archive)
            except RuntimeProblem as error:  # the ones after it are worth keeping all the more
                failed.append(error)
        if failed:
            raise failed[0] if len(failed) == 1 else SaveFailed(f"{failed[0]}; and {len(failed) - 1} more failed")

    def _bring(self, reference: Reference, archive: Store) -> None:
        """Have one checkpoint in the archive. While that takes, retention must leave it."""
        with self._lock:
            self._in_work = reference.name
        try:
            if is_archived(archive, reference):
                self._settle(reference.name)
            elif is_still_there(self._store, reference):  # else retention did not wait for it: it was none of the newest
                copy = copy_checkpoint(self._store, reference, archive, self._writer.attempt, self._writer.name, self._on_block)
                self._settle(reference.name)
                tags = read_manifest(archive, copy).tags
                self._on_record(copy.record(Level.VERIFIED, tier=Tier.ARCHIVE, tagged=bool(tags)))
                remove_leftovers(archive, self._run, self._writer.attempt, time.time())
        except CheckpointDamaged:
            self._settle(reference.name)
            raise
        finally:
            with self._lock:
                self._in_work = None

    def _settle(self, name: StepName) -> None:
        with self._lock:
            self._settled.add(name)

    def _on_block(self, _bytes: int) -> None:
        self._require_time()

    def _require_time(self) -> None:
        if self._ended.is_set():
            raise SaveFailed(ENDED_TOO_SOON)
