"""What a worker is told in answer to its beat: a function of specs, status and beat, so that a restarted operator says the same again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from rtj_operator.api.status_size import NEWEST_GOOD, NEWEST_KNOWN
from rtj_operator.api.v1alpha1 import Job, JobStatus, Launch, StopReason
from rtj_operator.build.assignment import assignment_for
from rtj_operator.decide import ledger, stopping
from rtj_operator.decide.run_claim import fence_owner
from rtj_operator.decide.watch import hold_news
from trainer_runtime.contract.beat import SHARED_TIERS, Beat, Directive, Phase, RecordKey, Reply


def reply(job: Job, beat: Beat, sources: Collection[tuple[int, int]], now: datetime) -> Reply:
    """Return the answer to one beat of a worker of this job. Raises nothing for a beat that passed the server.

    ``sources``: the (step, attempt) of this run that other jobs' specs begin with.
    """
    status = job.status
    is_present = beat.attempt == status.attempt and status.gang > 0
    knows_worker = job.spec is not None and beat.worker_index < job.spec.workers and status.gang > 0
    follows_in_place = beat.attempt < status.attempt and status.launch is Launch.IN_PLACE
    may_go_on = follows_in_place or (is_present and not _must_hold(job, beat, now))
    return Reply(
        directive=_directive(job, beat, is_present, follows_in_place),
        received_at=now.timestamp(),
        assignment=assignment_for(job, beat.worker_index, status) if knows_worker and may_go_on else None,
        acked=tuple(
            RecordKey(record.run, record.step, record.attempt, record.level, record.tier)
            for record in beat.records
            if record.run != job.run or ledger.holds(status, record, now) or _is_forgotten(status, record.step, record.attempt)
        ),
        may_delete=tuple(key for key in beat.delete_proposals if is_present and key.run == job.run and _may_delete(status, key, sources)),
    )


def _directive(job: Job, beat: Beat, is_present: bool, follows_in_place: bool) -> Directive:
    status = job.status
    if beat.phase is Phase.DONE or beat.job_uid != job.uid or beat.attempt > status.attempt:
        return Directive.CONTINUE  # done workers end by themselves; a higher attempt means that this status is behind
    if status.phase.is_terminal:
        return Directive.STOP
    if not is_present:
        return Directive.RESTART if follows_in_place and status.stopping_since is None else Directive.STOP
    if status.stopping_since is None or (status.ending is not None and status.ending.succeeded):
        return Directive.CONTINUE
    if status.stop_reason is StopReason.SUSPEND and not stopping.is_saved_for_suspend(status):
        return Directive.SAVE
    return Directive.STOP


def _must_hold(job: Job, beat: Beat, now: datetime) -> bool:
    """Whether a holding worker must wait: for an assignment it takes as leave to go on, and what it sees has not been decided about yet."""
    if beat.phase is not Phase.HOLD:
        return False
    status = job.status
    is_owned = fence_owner(beat) not in (None, job.uid, status.run.taken_over_from)
    return status.stopping_since is not None or is_owned or bool(hold_news(status, beat, job, now))


def _may_delete(status: JobStatus, key: RecordKey, sources: Collection[tuple[int, int]]) -> bool:
    """Whether the mark of that copy is written, or the status never looks at it: too old to be kept, or out of a new gang's reach."""
    if key.tier not in SHARED_TIERS:
        return True
    if (key.step, key.attempt) in sources:
        return False
    record = next((known for known in status.checkpoints if (known.step, known.attempt) == (key.step, key.attempt)), None)
    if record is None:
        return _is_forgotten(status, key.step, key.attempt)
    return record.deleting and record.tier is key.tier


def _is_forgotten(status: JobStatus, step: int, attempt: int) -> bool:
    """Whether the status keeps newer ones only: what it does not hold it can never choose."""
    good = [record for record in status.checkpoints if record.is_good and record.is_verified]
    oldest = min(((record.step, record.attempt) for record in status.checkpoints), default=None)
    return len(good) >= NEWEST_GOOD and len(status.checkpoints) >= NEWEST_KNOWN and oldest is not None and (step, attempt) < oldest
