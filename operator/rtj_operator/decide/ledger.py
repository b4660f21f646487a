"""What the status knows about checkpoints: records merged, quarantine, abandonment, retention's marks.

A record's key is (step, attempt). It never becomes less than it was: verified stays verified, abandoned and quarantined stay so. Of several
copies it names the one a gang would use: one within reach of all pods, then a verified one, then the nearest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from rtj_operator.api.checkpoints import MAX_STARTS
from rtj_operator.api.status_size import newest_known
from rtj_operator.api.v1alpha1 import AttemptStart, CheckpointRecordStatus, JobStatus, NewestCheckpoint
from rtj_operator.decide.resume_choice import newest_verified
from trainer_runtime.contract.beat import SHARED_TIERS, CheckpointRecord, Level, RecordKey, Tier

PROTECTED_GOOD: Final = 2
"""The newest good ones that retention may never take, whatever a worker proposes."""


def merge(status: JobStatus, records: Iterable[CheckpointRecord], run: str, now: datetime) -> JobStatus:
    """Return the status with these records taken in. Records of other runs are not ours to know."""
    known = {(record.step, record.attempt): record for record in status.checkpoints}
    for record in records:
        if record.run == run:
            key = (record.step, record.attempt)
            known[key] = _merged(known.get(key), record, now)
    return refreshed(status.evolve(checkpoints=tuple(known.values())), now)


def refreshed(status: JobStatus, now: datetime) -> JobStatus:
    """Return the status with everything derived from its records brought up to date: abandonment, the bounds, newest, high water."""
    records = [
        record if record.abandoned or not is_abandoned(record, status.run.starts) else record.evolve(abandoned=True)
        for record in status.checkpoints
    ]
    resumed = _resumed(status)
    kept = newest_known(records, resumed)
    newest = newest_verified(kept)
    status = status.evolve(checkpoints=kept, checkpoint=_newest(newest, now) if newest is not None else None)
    if newest is None or (status.high_water_step is not None and newest.step <= status.high_water_step):
        return status
    return status.evolve(high_water_step=newest.step, no_progress_count=0, unknown_count=0, retry_count=0)


def is_abandoned(record: CheckpointRecordStatus, starts: Iterable[AttemptStart]) -> bool:
    """Say whether a later attempt started below this checkpoint: it left the lineage. An attempt without a fence abandons nothing."""
    later = [start for start in starts if start.fenced and start.attempt > record.attempt]
    return any(start.step is None or start.step < record.step for start in later)


def with_start(starts: Iterable[AttemptStart], start: AttemptStart) -> tuple[AttemptStart, ...]:
    """Return the starts with one more. One that was never fenced means nothing once a later attempt exists, and the oldest go."""
    kept = [earlier for earlier in starts if earlier.fenced and earlier.attempt < start.attempt]
    return (*kept[-(MAX_STARTS - 1) :], start)


def with_fence(status: JobStatus, attempt: int) -> JobStatus:
    """Return the status with the fence of that attempt known to stand; what it abandons is abandoned by the next `refreshed`."""
    starts = tuple(start.evolve(fenced=True) if start.attempt == attempt else start for start in status.run.starts)
    return status.evolve(run=status.run.evolve(starts=starts, fence=max(status.run.fence or 0, attempt)))


def has_trained(status: JobStatus) -> bool:
    """Say whether the present attempt is past its start, so that there is something to save."""
    return any(start.attempt == status.attempt and start.fenced for start in status.run.starts)


def quarantine(status: JobStatus, step: int, attempt: int, reason: str, now: datetime) -> JobStatus:
    """Return the status in which that checkpoint is never chosen again."""
    records = tuple(
        record.evolve(quarantined=record.quarantined or reason) if (record.step, record.attempt) == (step, attempt) else record
        for record in status.checkpoints
    )
    return refreshed(status.evolve(checkpoints=records), now)


def mark_deleting(
    status: JobStatus, proposals: Iterable[RecordKey], run: str, sources: Collection[tuple[int, int]], now: datetime
) -> JobStatus:
    """Return the status in which retention's proposals may never be chosen again, so that deleting them can be granted.

    Kept whatever was proposed: the newest good ones, the present resume point, tagged ones, and ``sources``: the (step, attempt) that
    other jobs begin with. A proposal speaks of one tier, so a copy elsewhere is not touched by it.
    """
    wanted = {(proposal.step, proposal.attempt, proposal.tier) for proposal in proposals if proposal.run == run}
    if not wanted:
        return status
    good = [record for record in status.checkpoints if record.is_good and record.is_verified]
    protected = {_key(record) for record in sorted(good, key=_key, reverse=True)[:PROTECTED_GOOD]} | set(sources)
    resumed = _resumed(status)
    if resumed is not None:
        protected.add(resumed)
    records = tuple(
        record.evolve(deleting=True)
        if (*_key(record), record.tier) in wanted and _key(record) not in protected and not (record.tagged or record.deleting)
        else record
        for record in status.checkpoints
    )
    return refreshed(status.evolve(checkpoints=records), now)


def holds(status: JobStatus, record: CheckpointRecord, now: datetime) -> bool:
    """Say whether the status has a record of that checkpoint which this one adds nothing to."""
    known = next((known for known in status.checkpoints if _key(known) == (record.step, record.attempt)), None)
    return known is not None and _merged(known, record, now) == known


def _resumed(status: JobStatus) -> tuple[int, int] | None:
    """Return the key of the present resume point when it is one of this run's checkpoints."""
    point = status.resume_point
    return (point.step, point.attempt) if point is not None and not point.foreign else None


def _key(record: CheckpointRecordStatus) -> tuple[int, int]:
    return (record.step, record.attempt)


def _merged(before: CheckpointRecordStatus | None, record: CheckpointRecord, now: datetime) -> CheckpointRecordStatus:
    verified_at = now if record.level is Level.VERIFIED else None
    if before is None:
        return CheckpointRecordStatus(
            step=record.step,
            attempt=record.attempt,
            uri=record.uri,
            manifest_sha256=record.manifest_sha256,
            level=record.level,
            tier=record.tier,
            verified_at=verified_at,
            abandoned=record.abandoned,
            tagged=record.tagged,
        )
    before = before.evolve(abandoned=before.abandoned or record.abandoned, tagged=before.tagged or record.tagged)
    if before.manifest_sha256 != record.manifest_sha256:
        reason = f"disagreement: reported with manifest {before.manifest_sha256[:12]} and {record.manifest_sha256[:12]}"
        return before.evolve(quarantined=before.quarantined or reason)
    if _worth(record.tier, record.level) <= _worth(before.tier, before.level):
        return before
    return before.evolve(tier=record.tier, uri=record.uri, level=record.level, verified_at=verified_at)


def _worth(tier: Tier, level: Level) -> tuple[bool, bool, int]:
    """How good a copy is for a new gang: within reach, proven, near."""
    return (tier in SHARED_TIERS, level is Level.VERIFIED, -list(Tier).index(tier))


def _newest(record: CheckpointRecordStatus, now: datetime) -> NewestCheckpoint:
    return NewestCheckpoint(
        step=record.step,
        attempt=record.attempt,
        uri=record.uri,
        manifest_sha256=record.manifest_sha256,
        verified_at=record.verified_at or now,
    )
