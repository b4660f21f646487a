"""One ordinary beat, to be changed field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer_runtime.contract.beat import Beat, CheckpointRecord, Level, Phase

JOB_UID = "job-1"
POD_UID = "pod-1"


def beat(**changes: Any) -> Beat:
    """Return a beat of worker 0 in its first attempt, training at step 10."""
    usual = Beat(job_uid=JOB_UID, attempt=1, worker_index=0, pod_uid=POD_UID, sequence=1, phase=Phase.TRAIN, sent_at=100.0, step=10)
    return dataclasses.replace(usual, **changes)


def record(step: int = 10, level: Level = Level.COMMITTED, digest: str = "aa", attempt: int = 1) -> CheckpointRecord:
    """Return a record of one checkpoint."""
    return CheckpointRecord(run="ns.gpt", step=step, attempt=attempt, uri=f"file:///c/{step}", manifest_sha256=digest, level=level)
