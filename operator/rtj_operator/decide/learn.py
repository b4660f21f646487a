"""What beats and pods add to the status whatever else happens: checkpoints, fences, who is done, progress.

Facts about checkpoints are taken from any attempt, because a checkpoint is what it is; everything else only from the present attempt.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from rtj_operator.api.v1alpha1 import ArchiveFailureStatus, JobStatus, Progress, SaveFailureStatus, StopReason
from rtj_operator.decide import ledger, node_policy
from rtj_operator.decide.observation import Observation, WorkerBeat
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.workers import STARTING_PHASES, Worker, highest_known_attempt
from trainer_runtime.contract.beat import CheckpointRecord, Level, Phase

_TRAINING: Final = frozenset(phase.value for phase in (Phase.TRAIN, Phase.SAVE, Phase.EVAL))
SAVE_FAILED_EVENT_EVERY: Final = timedelta(minutes=5)
"""A store that is full fails every save: the condition says so all the time, an event this often."""


def learn(status: JobStatus, observation: Observation, workers: tuple[Worker, ...], now: datetime, policy: Policy) -> JobStatus:
    """Return the status with everything this observation teaches."""
    job = observation.job
    told = (*observation.store.records, *observation.store.found, *_inventory(observation), *_last_words(job.run, workers))
    status = ledger.merge(status, told, job.run, now)
    status = _with_archive_failure(_with_save_failure(status, job.status, workers, now), workers)
    status = _with_lost_attempts(_with_fences(status, observation, workers), observation)
    proposals = [proposal for worker in workers if worker.index == 0 and worker.beat for proposal in worker.beat.beat.delete_proposals]
    status = ledger.mark_deleting(ledger.refreshed(status, now), proposals, job.run, observation.sources, now)
    status = status.evolve(excluded_nodes=node_policy.refreshed(status.excluded_nodes, job, observation.nodes, now))
    if workers and status.seen_gang != status.gang and all(worker.pod is not None for worker in workers):
        status = status.evolve(seen_gang=status.gang)
    if status.stop_reason not in (StopReason.INCIDENT, StopReason.SUPERSEDED):
        status = _with_done(status, workers, now)
    return _with_progress(status, workers, policy)


def hold_beat(workers: tuple[Worker, ...]) -> WorkerBeat | None:
    """Return worker 0's beat of this attempt while it holds before its fence; None when it does not."""
    beat = workers[0].beat if workers else None
    return beat if beat is not None and beat.beat.phase is Phase.HOLD else None


def _inventory(observation: Observation) -> tuple[CheckpointRecord, ...]:
    """What a holding worker of this job sees in the store; from any attempt, because the store is one."""
    return tuple(record for beat in observation.beats.values() if beat.beat.phase is Phase.HOLD for record in beat.beat.inventory)


def _last_words(run: str, workers: tuple[Worker, ...]) -> tuple[CheckpointRecord, ...]:
    """What ended workers name in their reports: their last beats may have met no operator, while it was moved to another node."""
    told = [(worker.report.attempt, worker.report.verified) for worker in workers if worker.report is not None]
    return tuple(
        CheckpointRecord(run, found.step, attempt, found.uri, found.manifest_sha256, Level.VERIFIED, tagged=found.tagged)
        for attempt, found in told
        if found is not None
    )


def _with_fences(status: JobStatus, observation: Observation, workers: tuple[Worker, ...]) -> JobStatus:
    """A worker that is past its start, or a checkpoint that this attempt reports, proves that the attempt's fence stands.

    The report comes in a beat or, where no beat met an operator, with a worker's last words. What is seen in the store proves nothing, by
    whomever: another job's attempts have the same numbers.
    """
    job = observation.job
    is_past_start = any(worker.trains or worker.is_done for worker in workers)
    reported = (*observation.store.records, *_last_words(job.run, workers))
    has_committed = any(record.attempt == status.attempt and record.run == job.run for record in reported)
    if status.attempt > 0 and (is_past_start or has_committed) and _is_unfenced(status):
        status = ledger.with_fence(status, status.attempt)
        if status.starts_fresh:
            status = status.evolve(run=status.run.evolve(start_fresh_used_by=job.uid))
    held = hold_beat(workers)
    highest = held.beat.highest_fence if held is not None else None
    if highest is not None and highest > (status.run.fence or 0):
        status = status.evolve(run=status.run.evolve(fence=highest))
    return status


def _with_save_failure(status: JobStatus, before: JobStatus, workers: tuple[Worker, ...], now: datetime) -> JobStatus:
    """Take over a failed save from worker 0. It stays, over attempts too, until a checkpoint becomes verified without another failure."""
    beat = workers[0].beat if workers else None
    told = beat.beat.save_failure if beat is not None else None
    if told is None:
        known = _verified(before)
        has_recovered = status.save_failure is not None and any(key not in known for key in _verified(status))
        return status.evolve(save_failure=None) if has_recovered else status
    is_new = status.save_failure is None or status.save_failure.step != told.step
    event_at = status.last_save_failed_event_at
    if is_new and (event_at is None or now - event_at >= SAVE_FAILED_EVENT_EVERY):
        event_at = now
    failure = SaveFailureStatus(step=told.step, reason=told.reason, count=told.count)
    return status.evolve(save_failure=failure, last_save_failed_event_at=event_at)


def _with_archive_failure(status: JobStatus, workers: tuple[Worker, ...]) -> JobStatus:
    """Take over from worker 0 how its newest look at the archive ended. A failure stays, over attempts too, until a look succeeds or the
    attempt has no archive."""
    beat = workers[0].beat if workers else None
    told = beat.beat.archive if beat is not None else None
    if told is None:
        has_none = status.attempt_settings is not None and status.attempt_settings.archive_store is None
        return status.evolve(archive_failure=None) if has_none else status
    failure = ArchiveFailureStatus(reason=told.reason, count=told.failures) if told.failures > 0 else None
    return status.evolve(archive_failure=failure)


def _verified(status: JobStatus) -> set[tuple[int, int]]:
    return {(record.step, record.attempt) for record in status.checkpoints if record.is_verified}


def _with_lost_attempts(status: JobStatus, observation: Observation) -> JobStatus:
    """Pods or beats of a higher attempt than the status knows mean that a status was lost: no number is used twice."""
    known = highest_known_attempt(observation)
    if known <= status.attempt or known <= (status.run.fence or 0):
        return status
    return status.evolve(run=status.run.evolve(fence=known))


def _is_unfenced(status: JobStatus) -> bool:
    return any(start.attempt == status.attempt and not start.fenced for start in status.run.starts)


def _with_done(status: JobStatus, workers: tuple[Worker, ...], now: datetime) -> JobStatus:
    done = tuple(worker.index for worker in workers if worker.is_done)
    if done == status.done_workers:
        return status
    since = status.done_since or (now if 0 in done or len(done) == len(workers) else None)
    return status.evolve(done_workers=done, done_since=since)


def _with_progress(status: JobStatus, workers: tuple[Worker, ...], policy: Policy) -> JobStatus:
    """Take over what the most advanced worker reports: at once when it begins or ends to train, else at most every ``progress_seconds``."""
    beats = [worker.beat for worker in workers if worker.beat is not None]
    if not beats:
        return status
    newest = max(beats, key=lambda beat: (beat.beat.step if beat.beat.step is not None else -1, -beat.beat.worker_index))
    before, after = status.progress, _progress(newest, status.progress)
    is_recent = (
        before is not None
        and before.reported_at is not None
        and newest.received_at - before.reported_at < timedelta(seconds=policy.progress_seconds)
    )
    is_news = before is None or (before.phase in _TRAINING) != (after.phase in _TRAINING)
    return status if is_recent and not is_news else status.evolve(progress=after)


def _progress(newest: WorkerBeat, before: Progress | None) -> Progress:
    beat = newest.beat
    if before is not None and beat.phase in STARTING_PHASES:
        return before.evolve(phase=beat.phase.value, reported_at=newest.received_at)
    return Progress(
        step=beat.step,
        epoch=beat.epoch,
        phase=beat.phase.value,
        loss=beat.loss,
        step_seconds=beat.step_seconds,
        reported_at=newest.received_at,
    )
