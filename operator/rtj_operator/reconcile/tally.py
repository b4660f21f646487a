"""What the metrics learn from one status write: incidents and restarts are counted here, nowhere else."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from rtj_operator.api.v1alpha1 import JobStatus


class PassMetrics(Protocol):
    """Where passes, incidents and restarts are counted."""

    def reconciled(self, outcome: str, seconds: float) -> None:
        """Count one pass."""

    def detected(self, seconds: float) -> None:
        """Note how long it took to see one incident."""

    def incident(self, cause: str) -> None:
        """Count one incident."""

    def restarted(self, charge: str) -> None:
        """Count one attempt that followed an incident."""

    def status_conflict(self) -> None:
        """Count one status write that came too late."""


def tally(metrics: PassMetrics, before: JobStatus, after: JobStatus, now: datetime) -> None:
    """Count what ``after`` records and ``before`` did not.

    Incident and restart are counted when their attempt is over: until then better evidence may give them another cause and charge.
    """
    failure = after.last_failure
    if failure is None:
        return
    if before.last_failure is None or before.last_failure.attempt != failure.attempt:
        earliest = min((evidence.at for evidence in failure.evidence), default=None)
        if earliest is not None:
            metrics.detected((now - earliest).total_seconds())
    was_open = failure.attempt >= before.attempt and not before.phase.is_terminal
    is_followed = after.attempt > failure.attempt
    if was_open and (is_followed or after.phase.is_terminal):
        metrics.incident(failure.cause)
        if is_followed and failure.charge is not None:
            metrics.restarted(failure.charge.value)
