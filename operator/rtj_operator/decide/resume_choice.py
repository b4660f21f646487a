"""Which checkpoint the next attempt starts from. Never from nothing while any committed one is known, unless the user said so.

It knows nothing of attempts under way: it is asked only when no rank runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rtj_operator.api.v1alpha1 import AttemptResume, CheckpointRecordStatus, JobStatus, ResumeFrom


@dataclass(frozen=True)
class ResumeChoice:
    """The outcome: a resume point, a fresh start by wish, a start in an empty run, or nothing that could be used."""

    point: AttemptResume | None = None
    starts_fresh: bool = False
    problem: str = ""
    """Why the job cannot go on: checkpoints were committed and none can be used."""


def choose_resume(status: JobStatus, start_fresh: bool, job_uid: str, source: ResumeFrom | None = None) -> ResumeChoice:
    """Choose for a new gang after ``status``. ``start_fresh`` is the spec's wish; it acts once per job uid.

    Verified goes before newer: no byte of one that is only committed can be proven here, and a gang that finds it damaged starts once more.

    ``source``: the checkpoint of another run to begin with, while this run has committed none on its lineage. Copies that only the pods of
    the last gang reached are as good as none.
    """
    if start_fresh and status.run.start_fresh_used_by != job_uid:
        return ResumeChoice(starts_fresh=True)
    usable = newest_verified(status.checkpoints) or newest_committed(status.checkpoints)
    if usable is not None:
        return ResumeChoice(point=resume_point(usable))
    lost = [record for record in status.checkpoints if record.is_shared and not record.abandoned and not record.deleting]
    if lost:
        named = "; ".join(f"step {record.step} of attempt {record.attempt}: {record.quarantined}" for record in lost[:5])
        return ResumeChoice(problem=f"every checkpoint of the run is quarantined: {named}")
    if source is not None:
        return ResumeChoice(point=foreign_point(source))
    # Nothing was ever committed on the lineage. What left it may still lie in the directory, and the worker must not take it for lost work.
    has_left = any(record.abandoned for record in status.checkpoints)
    return ResumeChoice(starts_fresh=has_left or status.run.start_fresh_used_by == job_uid)


def newest_verified(records: Iterable[CheckpointRecordStatus]) -> CheckpointRecordStatus | None:
    """Return the newest verified checkpoint on the lineage that is neither quarantined nor being deleted."""
    return _newest(record for record in records if record.is_good and record.is_verified)


def newest_committed(records: Iterable[CheckpointRecordStatus]) -> CheckpointRecordStatus | None:
    """Return the newest one whatever is proven: restore verifies every byte before it is used, so the worst is one more attempt."""
    return _newest(record for record in records if record.is_good)


def resume_point(record: CheckpointRecordStatus) -> AttemptResume:
    """Return a record as the point an attempt starts from."""
    return AttemptResume(step=record.step, attempt=record.attempt, uri=record.uri, manifest_sha256=record.manifest_sha256)


def foreign_point(source: ResumeFrom) -> AttemptResume:
    """Return the checkpoint that a person named as the point an attempt starts from. Its digest nobody knows yet."""
    name = source.place.name
    return AttemptResume(step=name.step, attempt=name.attempt, uri=source.uri, mode=source.mode, foreign=True)


def _newest(records: Iterable[CheckpointRecordStatus]) -> CheckpointRecordStatus | None:
    return max(records, key=lambda record: (record.step, record.attempt), default=None)
