"""The training loop's handle on saving: stage now, be told later. It joins the stage (which blocks) to the persister (which does not).

One save is in flight at a time. A save that failed is an error in the next results, and none is ever silent. How many of them end training
is not decided here.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from trainer_runtime.checkpoint import agreement
from trainer_runtime.checkpoint.commit import About, Writer
from trainer_runtime.checkpoint.job import Part, SaveJob, StagedFile
from trainer_runtime.checkpoint.names import find_owner, rank_prefix
from trainer_runtime.checkpoint.staging import replicas
from trainer_runtime.checkpoint.staging.device import Pending
from trainer_runtime.checkpoint.staging.pieces import SavePlan
from trainer_runtime.checkpoint.staging.plan import Planner
from trainer_runtime.checkpoint.staging.stage import Stage
from trainer_runtime.checkpoint.staging.turns import Turns
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import ContractError, dumps, loads
from trainer_runtime.contract.manifest import FollowedStep, ObjectEntry, Parent, SnapshotFile
from trainer_runtime.errors import ConfigurationError, RuntimeProblem, SaveFailed
from trainer_runtime.state.leaves import Snapshot
from trainer_runtime.state.tree import encode

SAVE_DEADLINE_SECONDS: Final = 900.0
"""How long the ranks may take from the stage to the commit, with all windows, and again from there to the proof, before the save is
abandoned."""

OnRecord = Callable[[CheckpointRecord], None]
OnEnded = Callable[[int, CheckpointRecord | None, Exception | None], None]


@dataclass(frozen=True)
class SaveResult:
    """How one save ended. Verified: a record and no error. Failed: an error; what was committed but not verified is not in it."""

    step: int
    record: CheckpointRecord | None
    error: RuntimeProblem | None
    seconds: float = 0.0
    """From the beginning of the stage to this result; 0 for one that is repeated, or never got so far."""


class Persisting(Protocol):
    """What becomes of a sealed stage; `checkpoint.persister.link.Link` behind `joining.Joined`."""

    @property
    def directory(self) -> str:
        """A directory that the ranks which share this one's memory know, and no others."""

    def prepare(self, part: Part, generation_bytes: int, generations: int, descriptor: int) -> None:
        """Say what the next saves consist of, and lend the arena."""

    def save(self, job: SaveJob) -> None:
        """Have a sealed generation persisted: a save's only window, or the next one, once `await_room` said that there is room for it."""

    def await_room(self, job: SaveJob, deadline_seconds: float) -> bool:
        """Wait until the window before that of ``job`` is written, so that its memory may be filled again. False: the save has ended.

        Raises SaveFailed after ``deadline_seconds``.
        """

    def close(self) -> None:
        """Leave."""


class Engine:
    """Saves for one rank of one attempt. `stage`, `wait` and `close` belong to the training thread."""

    def __init__(
        self,
        *,
        join: Callable[[OnRecord, OnEnded], Persisting],
        writer: Writer,
        on_record: OnRecord,
        parents: tuple[Parent, ...] = (),
        stored: frozenset[str] = frozenset(),
        snapshots: dict[str, tuple[SnapshotFile, ...]] | None = None,
        software: dict[str, str] | None = None,
        ranks_here: int = 1,
    ) -> None:
        """``join``: connect to the persister, which calls the two listeners from a thread of its own. ``on_record`` is called from that
        thread, on every rank, for committed and for verified. ``stored``: frozen files that the run is known to have. ``snapshots``,
        ``software``: for every manifest. ``ranks_here``: how many ranks share this one's memory. Raises what ``join`` raises."""
        self._writer = writer
        self._on_record = on_record
        self._parents = parents
        self._snapshots = snapshots or {}
        self._software = software or {}
        self._changed = threading.Condition()
        self._in_flight: int | None = None
        self._began_at = 0.0
        self._listener_error: Exception | None = None
        self._results: list[SaveResult] = []
        self._newest: SaveResult | None = None
        self._unsettled: SaveResult | None = None
        self._tries = (-1, 0)
        self._closed = False
        self._persisting = join(self._recorded, self._ended)
        self._stage = Stage(Turns(ranks_here, self._persisting.directory, writer.rank))
        self._planner = Planner(writer.rank, writer.world_size, stored, self._stage.room_for)

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        with self._changed:
            return self._in_flight is not None

    @property
    def stands_still(self) -> bool:
        """Whether `stage` waits for writing, because memory has no room for this rank's part at once."""
        return self._stage.windows > 1

    def prepare(self, snapshot: Snapshot) -> None:
        """Take the stage's memory now, before training starts, so that the first save costs no more than the others. Where there is less
        than it should be, the log says what that means for the saves.

        Raises SaveFailed with numbers when the memory is not there, ConfigurationError for a leaf that cannot be saved.
        """
        self._require_idle("prepare")
        self._prepare(self._plan(snapshot), snapshot)

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
        metrics: Mapping[str, float] | None = None,
        followed: FollowedStep | None = None,
        stand_still_seconds: float = SAVE_DEADLINE_SECONDS,
    ) -> None:
        """Copy every leaf to host memory, then return; the persister writes, commits and verifies. The caller makes sure that it is not
        busy. A step that is verified already is not saved again: its result is repeated. Where the memory is not there, the save is handed
        on as refused, so that it fails on all ranks at once.

        Where memory has no room for all leaves at once, it returns when the last window is copied, and so waits for the writing of the ones
        before, but not longer than ``stand_still_seconds``: then the save is refused likewise.

        Raises ConfigurationError for a value that cannot be saved, SaveFailed while a save is in flight and after `close`.
        """
        self._require_idle("stage")
        if self._newest is not None and self._newest.step == step and self._newest.error is None:
            with self._changed:
                self._results.append(replace(self._newest, seconds=0.0))
            return
        began_at = time.monotonic()
        about = About(
            step=step,
            epoch=epoch,
            samples=samples,
            strict=dict(strict),
            tags=tags,
            parents=self._parents,
            not_saved=not_saved,
            allowances=allowances,
            metrics=dict(metrics or {}),
            software=self._software,
            snapshots=self._snapshots,
            followed=followed,
        )
        _require_readable(about)
        with collector_paused():
            self._stage_now(snapshot, about, began_at, stand_still_seconds)

    def _stage_now(self, snapshot: Snapshot, about: About, began_at: float, stand_still_seconds: float) -> None:
        step = about.step
        objects: tuple[ObjectEntry, ...] = ()
        plan: SavePlan | None = None
        generation, pending, refusal = 0, None, ""
        try:
            plan = self._plan(snapshot)
            agreed = replicas.digests(snapshot.leaves, self._writer.world_size, step)
            own = {rank_prefix(self._writer.rank) + agreement.OBJECT: agreed} if agreed else {}
            objects = self._encode({**snapshot.objects, **own})
            self._prepare(plan, snapshot)
            generation, pending = self._stage.fill(plan, snapshot.leaves)
        except SaveFailed as error:
            plan, refusal = None, str(error)
        self._tries = (step, self._tries[1] + 1 if self._tries[0] == step else 0)
        with self._changed:
            self._in_flight = step
            self._began_at = began_at
            self._listener_error = None
        job = SaveJob(about, objects, self._tries[1], generation, refusal)
        if plan is not None and plan.windows > 1:
            last = self._stage_windows(plan, snapshot, job, pending, began_at + stand_still_seconds)
            if last is None:
                return
            job, pending = last
        if pending is None:
            self._persisting.save(job)
        else:
            threading.Thread(target=self._seal, args=[job, pending], name="rtj-seal", daemon=True).start()

    def _stage_windows(
        self, plan: SavePlan, snapshot: Snapshot, job: SaveJob, pending: Pending | None, end: float
    ) -> tuple[SaveJob, Pending | None] | None:
        """Hand on every window but the last, and fill the next one when it is written. Returns what is left to be handed on: the last
        window, or the reason why there is none. None: the save has ended before."""
        try:
            for window in range(1, plan.windows):
                if pending is not None:
                    pending.wait()
                self._persisting.save(job)
                job = replace(job, window=window)
                if not self._persisting.await_room(job, max(0.0, end - time.monotonic())):
                    return None
                pending = self._stage.fill(plan, snapshot.leaves, window).pending
        except Exception as error:  # whatever it was, the persister and the other ranks must not wait for this window
            return replace(job, refusal=_reason(error)), None
        return job, pending

    def wait(self, deadline_seconds: float) -> SaveResult | None:
        """Return the result of the save in flight, or else of the newest. None: still in flight after the deadline, or there was none."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight is None, timeout=deadline_seconds)
            return self._newest if self._in_flight is None else None

    def take_results(self) -> tuple[SaveResult, ...]:
        """Return how the saves ended that finished since this was last asked."""
        with self._changed:
            results, self._results = tuple(self._results), []
            return results

    def close(self, deadline_seconds: float) -> None:
        """Wait for the save in flight, leave the persister and give the stage's memory back. Raises SaveFailed when it is still in flight
        after the deadline; what every rank had sealed may yet be committed and verified by the persisters."""
        with self._changed:
            self._closed = True
            if not self._changed.wait_for(lambda: self._in_flight is None, timeout=deadline_seconds):
                raise SaveFailed(f"a save was still in flight {deadline_seconds:.0f} s after it was asked to finish")
        self._persisting.close()
        self._stage.release()

    def _require_idle(self, what: str) -> None:
        with self._changed:
            if self._in_flight is not None:
                raise SaveFailed(f"{what}: the save of step {self._in_flight} is still in flight; two saves never overlap")
            if self._closed:
                raise SaveFailed(f"{what}: saving was closed")

    def _plan(self, snapshot: Snapshot) -> SavePlan:
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is not None:
            self._planner.settle(unsettled.error)
        return self._planner.plan(snapshot.leaves)

    def _seal(self, job: SaveJob, pending: Pending) -> None:
        """Hand the save on once the GPUs have copied it."""
        try:
            pending.wait()
        except Exception as error:  # of the driver, too: whatever it is, the other ranks must not wait for this one
            job = replace(job, refusal=_reason(error))
        self._persisting.save(job)

    def _prepare(self, plan: SavePlan, snapshot: Snapshot) -> None:
        try:
            is_new = self._stage.prepare(plan, snapshot.leaves)
        except SaveFailed:
            self._planner.forget()
            raise
        if is_new:
            part = Part(
                tuple(StagedFile(file.path, file.size, file.stage_offset, file.window) for file in plan.files),
                plan.tensors,
                plan.structure_sha256,
                plan.kept,
            )
            arena = self._stage.arena
            self._persisting.prepare(part, arena.generation_bytes, arena.generations, arena.descriptor)

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

    def _recorded(self, record: CheckpointRecord) -> None:
        try:
            self._on_record(record)
        except Exception as error:  # the link's thread must live on: it is this save's result
            self._listener_error = error

    def _ended(self, step: int, record: CheckpointRecord | None, error: Exception | None) -> None:
        error = error or self._listener_error
        if error is not None and not isinstance(error, RuntimeProblem):
            problem = SaveFailed(f"step {step}: {type(error).__name__}: {error}")
            problem.__cause__ = error
            error = problem
        result = SaveResult(step, record if error is None else None, error, time.monotonic() - self._began_at)
        with self._changed:
            self._newest = self._unsettled = result
            self._results.append(result)
            self._in_flight = None
            self._changed.notify_all()


@contextmanager
def collector_paused() -> Iterator[None]:
    """What a stage allocates for each tensor makes Python look for garbage among all objects of the process, while training stands still.
    That can wait until it goes on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SaveFailed) else f"{type(error).__name__}: {error}"


def _require_readable(about: About) -> None:
    """What no reader could read must not be committed; better said where the value was given than when it was written."""
    try:
        loads(About, dumps(about))
    except ContractError as error:
        raise ConfigurationError(f"the checkpoint of step {about.step} could not be read again: {error}") from error
