"""What a rank tells the outside, and what it is told: over rtj-run's channel, or, under stock torchrun, to a beat sender of its own.

It decides nothing. Without rtj-run and without an operator it does nothing.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from trainer_runtime.channel.client import Client, connect_from_environment
from trainer_runtime.channel.messages import (
    ArchiveLooked,
    DeleteProposed,
    Down,
    Ending,
    Holding,
    MayDelete,
    Proceed,
    Progress,
    Raised,
    Recorded,
    Save,
    SaveAbandoned,
    Up,
)
from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Directive, Level, Phase, RecordKey, SaveFailure, Tier
from trainer_runtime.contract.exit_report import ExitCode, ExitReport, FirstFailure, Outcome
from trainer_runtime.heartbeat.start import Handle, start_for_rank
from trainer_runtime.heartbeat.state import Answer, WorkerState
from trainer_runtime.settings import Settings

HOLD_SECONDS: Final = 30.0
"""How long rank 0 waits for the operator's answer before it creates its fence."""
LAST_BEAT_SECONDS: Final = 5.0
"""How long a rank that ends under stock torchrun waits for the answer to its last beat."""
PROGRESS_SECONDS: Final = 1.0
LEAST_LIMIT_SECONDS: Final = 60.0
_LIMIT_FACTOR: Final = 5.0
"""A step counts as hung after max(60 s, 5 x the median step)."""
_STEPS_REMEMBERED: Final = 64
_KEPT_RECORDS: Final = 3
_POLL_SECONDS: Final = 0.1

log = logging.getLogger("trainer_runtime")


class Reporter:
    """Thread-safe: records come from the writer's thread, proposals from the cleaning thread, looks at the archive from the thread that
    copies, everything else from the training thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = connect_from_environment()
        self._handle = start_for_rank() if self._client is None else None
        self._state = WorkerState(attempt=self._attempt, worker_index=settings.worker_index)
        self._records: deque[CheckpointRecord] = deque(maxlen=_KEPT_RECORDS)
        self._durations: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._lock = threading.Lock()
        """Guards the state of the next beat."""
        self._sent_at = 0.0
        self._step_began: float | None = None

    @property
    def has_operator(self) -> bool:
        """Whether an operator gave this attempt and can be asked."""
        return self._settings.assignment is not None and (self._client is not None or self._handle is not None)

    def progress(self, phase: Phase, *, step: int, epoch: int, loss: float | None, news: bool) -> None:
        """Say where training stands. ``news``: at once and from every rank; else at most once a second, from local rank 0."""
        now = time.monotonic()
        if not news and (self._settings.local_rank != 0 or now - self._sent_at < PROGRESS_SECONDS):
            return
        self._sent_at = now
        seconds = statistics.median(self._durations) if self._durations else None
        limits = self._limits(seconds)
        self._send(Progress(self._settings.rank, phase, step, epoch, loss, seconds, limits))
        self._beat(phase=phase, step=step, epoch=epoch, loss=loss, step_seconds=seconds, phase_limits=limits)

    def step_began(self) -> None:
        """Start the clock of a step."""
        self._step_began = time.monotonic()

    def step_ended(self) -> None:
        """Learn how long a step takes."""
        if self._step_began is not None:
            self._durations.append(time.monotonic() - self._step_began)
        self._step_began = None

    def recorded(self, record: CheckpointRecord) -> None:
        """Pass on that a checkpoint was committed or verified."""
        if self._settings.local_rank == 0:
            self._records.append(record)
            self._send(Recorded(record))
            repaired = {"save_failure": None} if record.level is Level.VERIFIED and record.tier is Tier.STORE else {}
            self._beat(records=tuple(self._records), **repaired)

    def save_abandoned(self, failure: SaveFailure) -> None:
        """Pass on that a save failed. Every rank knows it; rank 0 speaks for all."""
        if self._settings.rank == 0:
            self._send(SaveAbandoned(failure))
            self._beat(save_failure=failure)

    def archive_looked(self, look: ArchiveLook) -> None:
        """Pass on how a look at the archive ended. Rank 0 alone looks."""
        self._send(ArchiveLooked(look))
        self._beat(archive=look)

    def hold(
        self,
        inventory: tuple[CheckpointRecord, ...],
        highest_fence: int | None,
        fence_job_uid: str | None,
        quiet_seconds: float | None,
    ) -> Proceed | None:
        """Tell the operator what rank 0 found in the store and wait up to HOLD_SECONDS until it names an assignment."""
        if self._client is not None:
            self._client.send(Holding(inventory, highest_fence, fence_job_uid, quiet_seconds))
            return self._client.wait(Proceed, HOLD_SECONDS)
        if self._handle is None:
            return None
        self._beat(
            phase=Phase.HOLD,
            inventory=inventory,
            highest_fence=highest_fence,
            fence_job_uid=fence_job_uid,
            quiet_seconds=quiet_seconds,
        )
        # an answer without an assignment means that the operator has not decided yet
        answer = _await_answer(self._handle, lambda told: told.phase is Phase.HOLD and told.reply.assignment is not None, HOLD_SECONDS)
        self._beat(phase=Phase.START, inventory=(), highest_fence=None, fence_job_uid=None, quiet_seconds=None)
        return Proceed(answer.reply.assignment) if answer else None

    def raised(self, error: BaseException, step: int) -> None:
        """Say that the training code raised, before the process ends."""
        failure = FirstFailure(self._settings.rank, time.time_ns(), f"{type(error).__qualname__}: {error}"[:300], step)
        self._send(Raised(failure.rank, failure.at_ns, failure.exception, step))
        self._beat_last(ExitReport(self._attempt, self._settings.worker_index, Outcome.FAILED, exit_code=1, first_failure=failure))

    def ending(self, ending: Ending) -> None:
        """Say why this rank ends, before the process does."""
        self._send(ending)
        self._beat_last(
            ExitReport(
                self._attempt,
                self._settings.worker_index,
                ending.outcome,
                exit_code=int(ExitCode[ending.outcome.name]),
                checkpoint=ending.checkpoint,
                highest_fence=ending.highest_fence,
                fence_job_uid=ending.fence_job_uid,
                message=ending.message,
            )
        )

    def propose_deletions(self, keys: tuple[RecordKey, ...]) -> None:
        """Ask whether these checkpoints may be deleted; the answer comes as MayDelete from `poll`."""
        self._send(DeleteProposed(keys))
        self._beat(delete_proposals=keys)

    def poll(self) -> tuple[Down, ...]:
        """Return the orders since the last poll. Never waits."""
        if self._client is not None:
            return self._client.poll()
        if self._handle is None:
            return ()
        self._handle.tend()
        orders: list[Down] = []
        for answer in self._handle.replies():
            if answer.reply.directive is Directive.SAVE:
                orders.append(Save())
            if answer.reply.may_delete:
                orders.append(MayDelete(answer.reply.may_delete))
        return tuple(orders)

    def close(self) -> None:
        """Say nothing more."""
        if self._client is not None:
            self._client.close()
        if self._handle is not None:
            self._handle.close()

    def _limits(self, step_seconds: float | None) -> dict[str, float]:
        if self._settings.hang_seconds is not None:
            return {Phase.TRAIN.value: self._settings.hang_seconds}
        if step_seconds is None:
            return {}
        return {Phase.TRAIN.value: max(LEAST_LIMIT_SECONDS, _LIMIT_FACTOR * step_seconds)}

    @property
    def _attempt(self) -> int:
        return self._settings.assignment.attempt if self._settings.assignment else 0

    def _beat_last(self, report: ExitReport) -> None:
        """Beat the end of this worker once and see it answered. Under rtj-run that is rtj-run's to say."""
        if self._handle is not None:
            phase = Phase.DONE if report.outcome is Outcome.DONE else Phase.STOPPED
            self._beat(phase=phase, failure=None if phase is Phase.DONE else report)
            if _await_answer(self._handle, lambda told: told.phase is phase, LAST_BEAT_SECONDS) is None:
                log.warning("the operator did not hear that this worker ended as %s", report.outcome.value)

    def _send(self, message: Up) -> None:
        if self._client is not None:
            self._client.send(message)

    def _beat(self, **changes: object) -> None:
        if self._handle is not None:
            with self._lock:
                self._state = _replaced(self._state, changes)
                self._handle.update(self._state)


def _await_answer(handle: Handle, is_wanted: Callable[[Answer], bool], seconds: float) -> Answer | None:
    """Return the newest answer that is wanted, or None when there was none within ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        handle.tend()
        found = [answer for answer in handle.replies() if is_wanted(answer)]
        if found:
            return found[-1]
    return None


def _replaced(state: WorkerState, changes: dict[str, object]) -> WorkerState:
    return WorkerState(**{**vars(state), **changes})
