"""One pass: observe, decide, write status once, act, tell. A status write that fails cancels the rest of the pass.

Everything a pass must not forget is in status before a child is touched, so a kill at any point is followed by the same plan again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from rtj_operator.cluster.events import EventRecorder, Subject
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.plan import Plan
from rtj_operator.manifests.base import ManifestStore
from rtj_operator.reconcile.act import Actor, NotTheHolder
from rtj_operator.reconcile.crash_points import CrashPoints
from rtj_operator.reconcile.job_cache import JobCache
from rtj_operator.reconcile.observe import Observer
from rtj_operator.reconcile.tally import PassMetrics, tally
from rtj_operator.reconcile.work_queue import Key, WorkQueue

log = logging.getLogger(__name__)

WORKERS: Final = 16
"""Passes of different jobs at the same time: they wait for the API server most of the time."""
PROGRESS_SECONDS: Final = 10.0
"""When progress is written again after a conflict: it may wait, and somebody else is busy with the job."""
AGAIN_SECONDS: Final = 0.2
"""When the status that was just written is decided on once more: what it says may itself be due for something. Not at once, so that a
decision that never comes to rest cannot flood the API server."""
MISTAKE_SECONDS: Final = 60.0
"""When a pass is tried again whose status the API server does not accept: only a new operator or CRD can mend that."""

Decide = Callable[[Observation, datetime], Plan]


class _Refused(Exception):
    """The status write came too late or the job is gone: this pass ends here."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Reconciler:
    """Works the queue until cancelled."""

    def __init__(
        self,
        client: KubeClient,
        queue: WorkQueue,
        jobs: JobCache,
        observer: Observer,
        decide: Decide,
        actor: Actor,
        events: EventRecorder,
        store: ManifestStore,
        metrics: PassMetrics,
        crash: CrashPoints,
        may_act: Callable[[], bool],
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._queue = queue
        self._jobs = jobs
        self._observer = observer
        self._decide = decide
        self._actor = actor
        self._events = events
        self._store = store
        self._metrics = metrics
        self._crash = crash
        self._may_act = may_act
        self._clock = clock

    async def run(self) -> None:
        """Work off due keys with WORKERS passes at the same time, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"pass-{number}")

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            started = asyncio.get_running_loop().time()
            outcome = "error"
            try:
                outcome = await self.reconcile(key)
            except (ApiUnreachable, NotTheHolder) as error:
                self._queue.retry(key)
                log.warning("%s/%s: pass ended: %s", *key, error)
            except ApiError as error:
                self._retry_after(key, error)
            except Exception:  # the edge of a pass: a mistake of ours about one job must not stop all others; it is counted and retried
                self._queue.retry(key)
                log.exception("%s/%s: pass failed", *key)
            finally:
                self._queue.done(key)
                self._metrics.reconciled(outcome, asyncio.get_running_loop().time() - started)

    async def reconcile(self, key: Key) -> str:
        """Make one pass and return its outcome: ``ok``, ``gone`` or ``conflict``. Raises what the API server refused."""
        job = self._jobs.get(key)
        if job is None:
            self._queue.forget(key)
            return "gone"
        observation = await self._observer.observe(job, self._clock())
        now = self._clock()  # after what had to be asked for: that may have taken long, and a stop must not begin in the past
        plan = self._decide(observation, now)
        try:
            written = await self._write_status(observation.job, plan)
        except _Refused as refusal:
            return refusal.outcome
        self._store.settle(written.uid, observation.store.records, now)
        tally(self._metrics, observation.job.status, plan.status, now)
        try:
            retry_in = await self._actor.act(written, plan.actions)
        finally:  # the status is written, whatever became of the actions: it is told, and the job's own timers hold
            self._tell(written, plan)
            if plan.look_again_at is not None:
                self._queue.add(key, (plan.look_again_at - now).total_seconds())
        self._queue.succeeded(key)
        if retry_in is not None:
            self._queue.add(key, retry_in)
        if written.resource_version != observation.job.resource_version and not plan.progress_only:
            self._queue.add(key, AGAIN_SECONDS)  # the watch brings our own write too, but as no news
        return "ok"

    async def _write_status(self, job: Job, plan: Plan) -> Job:
        """Write the status if it differs from what the job has; return the job as it is then."""
        wanted = plan.status.to_api()
        if plan.status == job.status or wanted == job.status.to_api():
            return job
        if not self._may_act():
            raise NotTheHolder
        self._crash.reached("before_status")
        try:
            obj = await calls.apply_status(self._client, job.namespace, job.name, job.resource_version, wanted)
        except ApiError as error:
            if error.status == 404:
                self._jobs.gone(job.key, job.uid)
                raise _Refused("gone") from error
            if error.status == 409:
                await self._catch_up(job, plan)
                raise _Refused("conflict") from error
            raise
        self._crash.reached("after_status")
        return self._jobs.wrote(obj)

    async def _catch_up(self, job: Job, plan: Plan) -> None:
        """The job has changed under our hands: read it, and decide again unless only progress was to be written."""
        self._metrics.status_conflict()
        fresh = await calls.get_job(self._client, job.namespace, job.name)
        if fresh is None:
            self._jobs.gone(job.key, job.uid)
            return
        self._jobs.saw(fresh)
        is_only_progress = plan.progress_only and fresh["metadata"].get("generation") == job.generation
        if is_only_progress:
            self._queue.add(job.key, PROGRESS_SECONDS)
        else:
            self._queue.retry(job.key)

    def _tell(self, job: Job, plan: Plan) -> None:
        if not plan.events:
            return
        self._crash.reached("before_events")
        for event in plan.events:
            log.info("%s/%s: %s: %s", job.namespace, job.name, event.reason, event.message)
            self._events.record(Subject(job.namespace, job.name, job.uid), event)
        self._crash.reached("after_events")

    def _retry_after(self, key: Key, error: ApiError) -> None:
        if error.may_pass or error.status in (403, 404, 409):
            self._queue.retry(key)
            log.warning("%s/%s: pass ended: %s", *key, error)
        else:
            self._queue.add(key, MISTAKE_SECONDS)
            log.error("%s/%s: the API server refuses what the operator writes: %s", *key, error)
