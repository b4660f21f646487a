"""Children that could not be created, so that people see why and the API server is not asked the same thing in a hot loop."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from rtj_operator.decide.observation import CreateRefusal

WAIT_SECONDS: Final = (1.0, 60.0)
"""First and longest wait before a refused create is tried again; doubled each time. A quota changes by a person's hand or a job's end."""


class Refusals:
    """The refusals of each job's last try, and when it may try again."""

    def __init__(self) -> None:
        self._refused: dict[str, dict[int, CreateRefusal]] = {}
        self._tries: dict[str, tuple[int, datetime]] = {}

    def of_job(self, job_uid: str) -> tuple[CreateRefusal, ...]:
        """Return what was refused, by worker."""
        return tuple(refusal for _, refusal in sorted(self._refused.get(job_uid, {}).items()))

    def wait_seconds(self, job_uid: str, now: datetime) -> float:
        """Seconds until creates of this job may be tried again; 0.0 for now."""
        known = self._tries.get(job_uid)
        return max(0.0, (known[1] - now).total_seconds()) if known else 0.0

    def record(self, job_uid: str, refusals: list[CreateRefusal], now: datetime) -> None:
        """Take the outcome of a round of creates: none refused clears everything."""
        if not refusals:
            self.forget(job_uid)
            return
        self._refused[job_uid] = {refusal.worker: refusal for refusal in refusals}
        tries = self._tries.get(job_uid, (0, now))[0]
        first, longest = WAIT_SECONDS
        self._tries[job_uid] = (tries + 1, now + timedelta(seconds=min(longest, first * 2.0 ** min(tries, 10))))

    def forget(self, job_uid: str) -> None:
        """Drop what is remembered of a job."""
        self._refused.pop(job_uid, None)
        self._tries.pop(job_uid, None)
