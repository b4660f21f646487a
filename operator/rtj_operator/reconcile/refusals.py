"""What the API server refused (a job's children, writes to Nodes), so that people see why and it is not asked the same in a hot loop."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.decide.observation import CreateRefusal, NodeRefusal

WAIT_SECONDS: Final = (1.0, 60.0)
"""First and longest wait before what was refused is tried again; doubled each time. A quota changes by a person's hand or a job's end."""
STANDS_SECONDS: Final = 2.0 * WAIT_SECONDS[1]
"""How long a refused write to a Node stands that nobody tried again: longer than the longest wait and the pass after it."""


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
        self._tries[job_uid] = (tries + 1, now + _wait_after(tries))

    def forget(self, job_uid: str) -> None:
        """Drop what is remembered of a job."""
        self._refused.pop(job_uid, None)
        self._tries.pop(job_uid, None)


class NodeRefusals:
    """The last refused write to each Node, and when it may be written again. All jobs share that wait: what is refused is not a job's."""

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int, NodeRefusal]] = {}
        """With the number of tries that were refused in a row."""

    def standing(self, now: datetime) -> Mapping[str, NodeRefusal]:
        """Return the refusals that stand, by node."""
        return {node: refusal for node, (_, refusal) in self._refused.items() if _stands(refusal, now)}

    def wait_seconds(self, node: str, now: datetime) -> float:
        """Seconds until that Node may be written again; 0.0 for now."""
        if node not in self._refused:
            return 0.0
        tries, refusal = self._refused[node]
        return max(0.0, (refusal.at + _wait_after(tries - 1) - now).total_seconds())

    def record(self, refusal: NodeRefusal) -> None:
        """Take one refused write. What does not stand any more is dropped: nodes come and go, and memory must stay bounded."""
        self._refused = {node: known for node, known in self._refused.items() if _stands(known[1], refusal.at)}
        tries = self._refused[refusal.node][0] if refusal.node in self._refused else 0
        self._refused[refusal.node] = (tries + 1, refusal)

    def forget(self, node: str) -> None:
        """Take note that a write to that Node was not refused."""
        self._refused.pop(node, None)


def _wait_after(tries: int) -> timedelta:
    """Return the wait after a refusal that so many others came before."""
    first, longest = WAIT_SECONDS
    return timedelta(seconds=min(longest, first * 2.0 ** min(tries, 10)))


def _stands(refusal: NodeRefusal, now: datetime) -> bool:
    return now - refusal.at < timedelta(seconds=STANDS_SECONDS)
