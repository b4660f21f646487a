"""Where a job is in its life: how it ends, how it is suspended, the clock of its running time, and the phase and counts that follow.

The conditions have a module of their own.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from rtj_operator.api.conditions import is_condition_true
from rtj_operator.api.v1alpha1 import ConditionType, JobPhase, JobSpec, JobStatus, StopReason, Workers
from rtj_operator.decide.conditions import conditions_of
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.workers import Worker, workers_of

CHECKPOINT_EVENT_EVERY: Final = timedelta(hours=1)
"""The first verified checkpoint is an event, later ones hourly: a job saves thousands."""


def deadline(status: JobStatus, spec: JobSpec) -> datetime | None:
    """Return when the job's running time is over; None without a limit or while it does not run."""
    if spec.active_deadline_seconds is None or status.active_since is None:
        return None
    return status.active_since + timedelta(seconds=spec.active_deadline_seconds - status.active_seconds)


def finished(status: JobStatus, now: datetime) -> JobStatus:
    """Return the terminal status that ``status.ending`` asks for. Only when no pod runs any more."""
    assert status.ending is not None
    return _stop_clock(status, now).evolve(
        phase=JobPhase.SUCCEEDED if status.ending.succeeded else JobPhase.FAILED,
        stopping_since=None,
        stop_reason=None,
        next_launch_after=None,
        completion_time=now,
    )


def suspended(status: JobStatus, now: datetime) -> JobStatus:
    """Return the status without a gang. Only when no pod is left."""
    return _stop_clock(status, now).evolve(
        phase=JobPhase.SUSPENDED, gang=0, seen_gang=0, stopping_since=None, stop_reason=None, next_launch_after=None, done_workers=()
    )


def described(status: JobStatus, observation: Observation, now: datetime, policy: Policy) -> JobStatus:
    """Return the status with phase, conditions, worker counts and generation as they follow from everything else."""
    workers = _workers_now(status, observation)
    conditions = conditions_of(status, observation, workers, now, policy)
    status = status.evolve(
        conditions=conditions,
        observed_generation=observation.job.generation,
        workers=_counts(status, observation, workers),
        last_checkpoint_event_at=_checkpoint_event_at(observation.job.status, status, now),
    )
    return status.evolve(phase=_phase(status, observation))


def _phase(status: JobStatus, observation: Observation) -> JobPhase:
    if status.phase.is_terminal:
        return status.phase
    wants_suspend = observation.job.spec is not None and observation.job.spec.suspend
    if status.gang == 0:
        return JobPhase.SUSPENDED if is_condition_true(status.conditions, ConditionType.SUSPENDED) else JobPhase.PENDING
    if status.stop_reason is StopReason.SUSPEND or (wants_suspend and status.stop_reason not in (None, StopReason.END)):
        return JobPhase.SUSPENDING
    if is_condition_true(status.conditions, ConditionType.RUNNING):
        return JobPhase.RUNNING
    if is_condition_true(status.conditions, ConditionType.RECOVERING):
        return JobPhase.RECOVERING
    return status.phase if status.stop_reason is StopReason.END else JobPhase.STARTING


def _workers_now(status: JobStatus, observation: Observation) -> tuple[Worker, ...]:
    """The workers of the present attempt; none yet of one that this very pass records."""
    return workers_of(observation) if observation.job.status.attempt == status.attempt and status.gang > 0 else ()


def _counts(status: JobStatus, observation: Observation, workers: tuple[Worker, ...]) -> Workers:
    desired = observation.job.spec.workers if observation.job.spec is not None else status.workers.desired
    ready = sum(1 for worker in workers if worker.container_runs)
    return Workers(desired=desired, ready=ready, summary=f"{ready}/{desired}")


def _checkpoint_event_at(before: JobStatus, after: JobStatus, now: datetime) -> datetime | None:
    newest, at = after.checkpoint, before.last_checkpoint_event_at
    if newest is None or (
        before.checkpoint is not None and (before.checkpoint.step, before.checkpoint.attempt) == (newest.step, newest.attempt)
    ):
        return at
    return now if at is None or now - at >= CHECKPOINT_EVENT_EVERY else at


def _stop_clock(status: JobStatus, now: datetime) -> JobStatus:
    if status.active_since is None:
        return status
    ran = max(0.0, (now - status.active_since).total_seconds())
    return status.evolve(active_seconds=status.active_seconds + ran, active_since=None)
