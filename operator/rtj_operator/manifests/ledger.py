"""Records of committed and verified checkpoints that beats brought and no status write holds yet.

In memory only: senders repeat a record until it is acknowledged, and it is acknowledged only from status, so a restart loses nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from trainer_runtime.contract.beat import CheckpointRecord

MAX_PENDING: Final = 200
"""Records of one job that may wait for a status write, oldest dropped first: they come again with the next beat."""
MAX_SETTLED: Final = 1000
"""Records of one job that are remembered as dealt with, so that a repetition wakes nothing."""
SETTLED_FOR: Final = timedelta(seconds=60)
"""A record that a sender still repeats that long after a pass saw it is in no status: dropped, or the status was lost. Shown again."""


@dataclass
class _JobLedger:
    pending: OrderedDict[CheckpointRecord, None] = field(default_factory=OrderedDict)
    settled: OrderedDict[CheckpointRecord, datetime] = field(default_factory=OrderedDict)


class Ledger:
    """One list of pending records per job. The same (step, attempt) with another digest or level is another record."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobLedger] = {}

    def note(self, job_uid: str, records: Iterable[CheckpointRecord], now: datetime) -> bool:
        """Take records from a beat; say whether one of them is new."""
        ledger = self._jobs.setdefault(job_uid, _JobLedger())
        is_news = False
        for record in records:
            settled_at = ledger.settled.get(record)
            if record in ledger.pending or (settled_at is not None and now - settled_at < SETTLED_FOR):
                continue
            ledger.pending[record] = None
            is_news = True
            if len(ledger.pending) > MAX_PENDING:
                ledger.pending.popitem(last=False)
        return is_news

    def pending(self, job_uid: str) -> tuple[CheckpointRecord, ...]:
        """Return the records that no pass has dealt with, in the order of arrival."""
        ledger = self._jobs.get(job_uid)
        return tuple(ledger.pending) if ledger else ()

    def settle(self, job_uid: str, records: Iterable[CheckpointRecord], now: datetime) -> None:
        """Drop records that a pass has seen and, where it wrote, written: status holds them now, or `decide` had no use for them."""
        ledger = self._jobs.get(job_uid)
        if ledger is None:
            return
        for record in records:
            ledger.pending.pop(record, None)
            ledger.settled[record] = now
            ledger.settled.move_to_end(record)
            if len(ledger.settled) > MAX_SETTLED:
                ledger.settled.popitem(last=False)

    def forget(self, job_uid: str) -> None:
        """Drop everything about a job that is gone."""
        self._jobs.pop(job_uid, None)
