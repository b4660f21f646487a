"""What the operator asks a manifest store. The ledger of beats is one; a reader of an object store can be another."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from trainer_runtime.contract.beat import CheckpointRecord


class ManifestStore(Protocol):
    """Committed and verified checkpoints of a job that its status does not hold yet."""

    def pending(self, job_uid: str) -> tuple[CheckpointRecord, ...]:
        """Return them in the order in which they became known."""

    def settle(self, job_uid: str, records: Iterable[CheckpointRecord], now: datetime) -> None:
        """Take note that a pass has seen these and, where it wrote, written."""

    def forget(self, job_uid: str) -> None:
        """Drop everything about a job that is gone."""
