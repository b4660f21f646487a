"""What the metrics learn from one status write: incidents and restarts are counted where they are recorded, nowhere else."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from rtj_operator.api.v1alpha1 import Charge, JobStatus


class PassMetrics(Protocol):
    """Where passes, incidents and restarts are counted."""

    def reconciled(self, outcome: str, seconds: float) -> None:
        """Count one pass."""

    def incident(self, cause: str, detection_seconds: float | None) -> None:
        """Count one incident."""

    def restarted(self, charge: str) -> None:
        """Count one attempt that followed an incident."""

    def status_conflict(self) -> None:
        """Count one status write that came too late."""


def tally(metrics: PassMetrics, before: JobStatus, after: JobStatus, now: datetime) -> None:
    """Count what ``after`` records and ``before`` did not."""
    failure = after.last_failure
    if failure is not None and (before.last_failure is None or before.last_failure.attempt != failure.attempt):
        earliest = min((evidence.at for evidence in failure.evidence), default=None)
        metrics.incident(failure.cause, (now - earliest).total_seconds() if earliest else None)
    for charge in Charge:
        for _ in range(getattr(after.restarts, charge.value) - getattr(before.restarts, charge.value)):
            metrics.restarted(charge.value)
