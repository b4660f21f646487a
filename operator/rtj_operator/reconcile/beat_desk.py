"""What happens to a good beat: it is kept, its records enter the ledger, the job is woken if there is news, and the reply goes back.

The reply is computed from specs, status and beat alone (`decide.reply`); nothing a worker says is believed here beyond being written down.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster.pods import PodCache
from rtj_operator.heartbeat.beats import BeatBook
from rtj_operator.heartbeat.server import Sender
from rtj_operator.manifests.ledger import Ledger
from rtj_operator.reconcile.job_cache import JobCache
from rtj_operator.reconcile.work_queue import WorkQueue
from trainer_runtime.contract.beat import Beat, Directive, Reply

STEP_SECONDS: Final = 10.0
"""A beat that only advanced is looked at that much later at the latest: progress is not written more often."""

Answer = Callable[[Job, Beat, frozenset[tuple[int, int]], datetime], Reply]
"""Takes the job, the beat, the (step, attempt) of its run that other jobs begin with, and now."""


class BeatDesk:
    """The heartbeat server's roster and answer."""

    def __init__(self, jobs: JobCache, pods: PodCache, beats: BeatBook, ledger: Ledger, queue: WorkQueue, reply: Answer) -> None:
        self._jobs = jobs
        self._pods = pods
        self._beats = beats
        self._ledger = ledger
        self._queue = queue
        self._reply = reply

    def has_job(self, job_uid: str) -> bool:
        """Say whether that job exists."""
        return self._jobs.by_uid(job_uid) is not None

    def find_sender(self, pod_uid: str) -> Sender | None:
        """Return the pod with that uid if it can still send: it exists and is not terminal."""
        record = self._pods.find(pod_uid)
        if record is None or record.view.terminal:
            return None
        return Sender(record.namespace, record.job_uid, record.view.name, record.view.worker)

    def answer(self, beat: Beat, sender: Sender, now: datetime) -> Reply:
        """Take one beat whose sender was proven, and return what the worker is told."""
        job = self._jobs.by_uid(beat.job_uid)
        if job is None:  # deleted between the roster's answer and now; the worker's pod is about to be collected
            return Reply(directive=Directive.CONTINUE, received_at=now.timestamp())
        news = self._beats.take(beat, sender.pod_name, now)
        has_new_record = self._ledger.note(job.uid, beat.records, now)
        if has_new_record or (news is not None and news.wakes):
            self._queue.add(job.key)
        elif news is not None and news.advanced:
            self._queue.add(job.key, STEP_SECONDS)
        return self._reply(job, beat, self._jobs.sources(job), now)
