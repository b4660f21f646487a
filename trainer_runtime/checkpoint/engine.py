"""The training loop's handle on saving: stage now, be told later. It joins the stage (which blocks) to the persister (which does not).

One save is in flight at a time. A save that failed is an error in the next results, a few in a row are an error in the training thread, and
none is ever silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainer_runtime.checkpoint.commit import About, Writer
from trainer_runtime.checkpoint.exchange import Exchange
from trainer_runtime.checkpoint.names import find_owner, rank_prefix
from trainer_runtime.checkpoint.persist import Persister, SaveJob
from trainer_runtime.checkpoint.plan import Planner
from trainer_runtime.checkpoint.stage import Stage
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.manifest import ObjectEntry, Parent
from trainer_runtime.errors import ConfigurationError, RuntimeProblem, SaveFailed
from trainer_runtime.state.leaves import Snapshot
from trainer_runtime.state.tree import encode
from trainer_runtime.store.base import Store

SAVE_DEADLINE_SECONDS: Final = 900.0
"""How long rank 0 waits for the other ranks' parts, and again for their proofs, before it abandons the save."""
MAX_FAILURES_IN_A_ROW: Final = 5
"""So many saves in a row that failed are an error: training that cannot be resumed is not worth its GPUs."""


@dataclass(frozen=True)
class SaveResult:
    """How one save ended. Verified: a record and no error. Failed: an error; what was committed but not verified is not in it."""

    step: int
    record: CheckpointRecord | None
    error: RuntimeProblem | None


class Engine:
    """Saves for one rank of one attempt. `stage`, `wait` and `close` belong to the training thread."""

    def __init__(
        self,
        *,
        store: Store,
        run: str,
        writer: Writer,
        exchange: Exchange,
        on_record: Callable[[CheckpointRecord], None],
        parents: tuple[Parent, ...] = (),
        deadline_seconds: float = SAVE_DEADLINE_SECONDS,
    ) -> None:
        """``on_record`` is called from the writer's thread, on every rank, once for committed and once for verified."""
        self._writer = writer
        self._parents = parents
        self._planner = Planner(writer.rank, writer.world_size)
        self._stage = Stage()
        self._persister = Persister(store, run, writer, exchange, on_record, deadline_seconds)
        self._changed = threading.Condition()
        self._job: SaveJob | None = None
        self._results: list[SaveResult] = []
        self._newest: SaveResult | None = None
        self._failures = 0
        self._tries = (-1, 0)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="rtj-persist", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        with self._changed:
            return self._job is not None

    def prepare(self, snapshot: Snapshot) -> None:
        """Take the stage's memory now, before training starts, so that the first save costs no more than the others.

        Raises SaveFailed with numbers when the memory is not there, ConfigurationError for a leaf that cannot be saved.
        """
        self._require_idle("prepare")
        self._stage.prepare(self._planner.plan(snapshot.leaves))

    def stage(
        self,
        snapshot: Snapshot,
        *,
        step: int,
        epoch: int,
        samples: int,
        strict: Mapping[str, Any],
        tags: tuple[str, ...] = (),
        not_saved: tuple[str, ...] = (),
        allowances: tuple[str, ...] = (),
    ) -> None:
        """Copy every leaf to host memory, then return; a thread writes, commits and verifies. The caller makes sure that it is not busy.

        A step that is verified already is not saved again: its result is repeated.

        Raises SaveFailed when the memory is not there or the last saves all failed, ConfigurationError for a value that cannot be saved.
        """
        self._require_idle("stage")
        if self._failures >= MAX_FAILURES_IN_A_ROW:
            assert self._newest is not None
            raise SaveFailed(f"the last {self._failures} saves failed; the newest: {self._newest.error}") from self._newest.error
        if self._newest is not None and self._newest.step == step and self._newest.error is None:
            with self._changed:
                self._results.append(self._newest)
            return
        self._tries = (step, self._tries[1] + 1 if self._tries[0] == step else 0)
        plan = self._planner.plan(snapshot.leaves)
        objects = self._encode(snapshot.objects)
        self._stage.fill(plan, snapshot.leaves)
        about = About(step, epoch, samples, dict(strict), tags, self._parents, not_saved, allowances)
        with self._changed:
            self._job = SaveJob(about, plan, objects, self._tries[1])
            self._changed.notify_all()

    def wait(self, deadline_seconds: float) -> SaveResult | None:
        """Return the result of the save in flight, or else of the newest. None: still in flight after the deadline, or there was none."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None, timeout=deadline_seconds)
            return self._newest if self._job is None else None

    def take_results(self) -> tuple[SaveResult, ...]:
        """Return how the saves ended that finished since this was last asked."""
        with self._changed:
            results, self._results = tuple(self._results), []
            return results

    def close(self, deadline_seconds: float) -> None:
        """Wait for the save in flight and end the thread. Raises SaveFailed when it is still in flight after the deadline."""
        end = time.monotonic() + deadline_seconds
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            raise SaveFailed(f"a save was still in flight {deadline_seconds:.0f} s after it was asked to finish")

    def _require_idle(self, what: str) -> None:
        with self._changed:
            if self._job is not None:
                raise SaveFailed(f"{what}: the save of step {self._job.about.step} is still in flight; two saves never overlap")
            if self._closed:
                raise SaveFailed(f"{what}: saving was closed")

    def _encode(self, objects: Mapping[str, Any]) -> tuple[ObjectEntry, ...]:
        """Own values, and on rank 0 the shared ones."""
        entries = []
        for name in sorted(objects):
            owner = find_owner(name)
            if owner is not None and owner != self._writer.rank:
                raise ConfigurationError(f"{name}: rank {self._writer.rank}'s own value must be named {rank_prefix(self._writer.rank)}…")
            if owner is not None or self._writer.rank == 0:
                entries.append(ObjectEntry(name, encode(objects[name], name)))
        return tuple(entries)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
            if job is None:
                return
            result = self._persist(job)
            with self._changed:
                self._failures = 0 if result.error is None else self._failures + 1
                self._newest = result
                self._results.append(result)
                self._job = None
                self._changed.notify_all()

    def _persist(self, job: SaveJob) -> SaveResult:
        step = job.about.step
        try:
            return SaveResult(step, self._persister.persist(job, self._stage), None)
        except RuntimeProblem as error:
            return SaveResult(step, None, error)
        except Exception as error:  # the thread must live on: whatever went wrong is this save's result, and the next save gets its try
            failure = SaveFailed(f"step {step}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return SaveResult(step, None, failure)
