"""The newest beat of every sender, in memory. After a restart of the operator it fills again within one beat period.

Beats are kept per pod, because during a relaunch two pods may speak for one worker. It judges nothing: `decide.liveness` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.decide.observation import SendersView, WorkerBeat
from rtj_operator.decide.policy import SILENT_SECONDS
from trainer_runtime.contract.beat import Beat, Phase

KNOWN_FOR: Final = timedelta(minutes=10)
"""A sender that has not beaten for longer is no longer counted: its pod was judged by then."""
SILENT_AFTER: Final = timedelta(seconds=SILENT_SECONDS)
SENDERS_MAX_AGE: Final = timedelta(seconds=1)
"""How old the count of all senders may be: it is asked in every pass and costs a look at every sender."""


@dataclass(frozen=True)
class News:
    """What a beat changed. ``wakes`` means that a pass should look at it now; a mere step may wait for the next progress write."""

    wakes: bool
    advanced: bool


class BeatBook:
    """Takes beats in the order in which they arrive and answers what is known now."""

    def __init__(self, listening_since: datetime) -> None:
        self._listening_since = listening_since
        self._newest: dict[str, WorkerBeat] = {}
        self._pods_of: dict[str, set[str]] = {}
        self._senders: tuple[datetime, int, int] | None = None

    def listening(self, since: datetime) -> None:
        """Take note that senders can reach us from now on: until then their silence was ours."""
        self._listening_since = since

    def take(self, beat: Beat, pod_name: str, now: datetime) -> News | None:
        """Keep a beat and say what is new; None for one that a newer beat of the same pod has overtaken.

        A sender that was restarted counts from the start again, so an old number is late only if it was also sent earlier.
        """
        known = self._newest.get(beat.pod_uid)
        before = known.beat if known else None
        if before is not None and beat.sequence <= before.sequence and beat.sent_at <= before.sent_at:
            return None
        if before is not None and beat.attempt < before.attempt:
            return None
        is_same_attempt = before is not None and before.attempt == beat.attempt
        advanced = beat.step is not None and (not is_same_attempt or before is None or before.step is None or beat.step > before.step)
        self._newest[beat.pod_uid] = WorkerBeat(beat=beat, received_at=now, pod_name=pod_name)
        self._pods_of.setdefault(beat.job_uid, set()).add(beat.pod_uid)
        return News(wakes=_wakes(before, beat), advanced=advanced)

    def of_job(self, job_uid: str, pod_uids: frozenset[str]) -> Mapping[int, WorkerBeat]:
        """Return the newest beat of each worker index among these pods: the highest attempt, then the last received."""
        found: dict[int, WorkerBeat] = {}
        for pod_uid in self._pods_of.get(job_uid, set()) & pod_uids:
            candidate = self._newest[pod_uid]
            known = found.get(candidate.beat.worker_index)
            if known is None or (known.beat.attempt, known.received_at) < (candidate.beat.attempt, candidate.received_at):
                found[candidate.beat.worker_index] = candidate
        return found

    def forget_job(self, job_uid: str) -> None:
        """Drop all beats of a job that is gone."""
        for pod_uid in self._pods_of.pop(job_uid, set()):
            self._newest.pop(pod_uid, None)

    def forget_pods(self, job_uid: str, living: frozenset[str]) -> None:
        """Drop the beats of the job's pods that exist no more."""
        pods = self._pods_of.get(job_uid, set())
        for pod_uid in pods - living:
            pods.discard(pod_uid)
            self._newest.pop(pod_uid, None)

    def senders(self, is_running: Callable[[str], bool], now: datetime, api_outage_until: datetime | None) -> SendersView:
        """Return the channel as a whole; ``is_running`` says of a pod uid whether that pod runs. At most a second old."""
        if self._senders is None or now - self._senders[0] >= SENDERS_MAX_AGE:
            ages = [now - beat.received_at for pod_uid, beat in self._newest.items() if is_running(pod_uid)]
            known = [age for age in ages if age <= KNOWN_FOR]
            self._senders = (now, len(known), sum(age > SILENT_AFTER for age in known))
        view = SendersView(listening_since=self._listening_since, known=self._senders[1], silent=self._senders[2])
        return replace(view, api_outage_until=api_outage_until)


def _wakes(before: Beat | None, beat: Beat) -> bool:
    if before is None:
        return True
    told = {(r.run, r.step, r.attempt, r.level, r.manifest_sha256) for r in before.records}
    return (
        beat.attempt != before.attempt
        or beat.phase is not before.phase
        or any((r.run, r.step, r.attempt, r.level, r.manifest_sha256) not in told for r in beat.records)
        or beat.evidence != before.evidence
        or beat.failure != before.failure
        or beat.delete_proposals != before.delete_proposals
        or beat.save_failure != before.save_failure
        or beat.archive != before.archive
        or (beat.phase is Phase.HOLD and _seen_in_store(beat) != _seen_in_store(before))
        or (beat.step is not None and before.step is None)
    )


def _seen_in_store(beat: Beat) -> object:
    return beat.inventory, beat.highest_fence, beat.fence_job_uid, beat.quiet_seconds
