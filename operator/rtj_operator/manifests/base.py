"""What the operator asks about checkpoints: the ledger of beats always, and the store itself where the operator may read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from rtj_operator.api.v1alpha1 import Job
from trainer_runtime.contract.beat import CheckpointRecord


class ManifestStore(Protocol):
    """Committed and verified checkpoints of a job that its status does not hold yet."""

    def pending(self, job_uid: str) -> tuple[CheckpointRecord, ...]:
        """Return them in the order in which they became known."""

    def settle(self, job_uid: str, records: Iterable[CheckpointRecord], now: datetime) -> None:
        """Take note that a pass has seen these and, where it wrote, written."""

    def forget(self, job_uid: str) -> None:
        """Drop everything about a job that is gone."""


@dataclass(frozen=True)
class Look:
    """What a look at a job's store found."""

    found: tuple[CheckpointRecord, ...] = ()
    """The newest committed checkpoints, as they are now; empty too when there was no look."""
    is_awaited: bool = False
    """The store may be read and no look at it is fresh: none has begun, or one is under way and ends within a bounded time."""
    problem: str = ""
    """Why the last look ended without an answer; empty when it had one."""


class NoStores:
    """The reader of an operator that may read no store: it chooses from what workers report."""

    def look(self, job: Job, is_due: bool, now: datetime) -> Look:
        """Return that there is nothing to know."""
        return Look()

    def forget(self, job_uid: str) -> None:
        """Nothing is remembered."""

    async def close(self) -> None:
        """Nothing is under way."""


class StoreReader(Protocol):
    """Reads the manifests in jobs' stores. It never waits in a pass: a look is asked for, and its outcome is told when it is there."""

    def look(self, job: Job, is_due: bool, now: datetime) -> Look:
        """Return what is known. ``is_due``: a resume point is about to be chosen, so a look begins if none is fresh."""

    def forget(self, job_uid: str) -> None:
        """Drop everything about a job that is gone."""

    async def close(self) -> None:
        """End the looks that are under way."""
