"""Puts together what one pass may look at: caches, beats, ledger, store and the few facts that must be asked for. It judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster.nodes import NodeCache
from rtj_operator.cluster.outage import OutageTracker
from rtj_operator.cluster.pods import PodCache
from rtj_operator.decide.launch import awaits_resume_point
from rtj_operator.decide.observation import CreateRefusal, Observation, PodView, StoreView, WorkerBeat
from rtj_operator.heartbeat.beats import BeatBook
from rtj_operator.manifests.base import ManifestStore, StoreReader
from rtj_operator.reconcile.api_facts import ApiFacts
from rtj_operator.reconcile.job_cache import JobCache
from rtj_operator.reconcile.refusals import NodeRefusals, Refusals


class Observer:
    """Makes one Observation of one job."""

    def __init__(
        self,
        jobs: JobCache,
        pods: PodCache,
        nodes: NodeCache,
        beats: BeatBook,
        store: ManifestStore,
        reader: StoreReader,
        facts: ApiFacts,
        refusals: Refusals,
        node_refusals: NodeRefusals,
        outage: OutageTracker,
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._nodes = nodes
        self._beats = beats
        self._store = store
        self._reader = reader
        self._facts = facts
        self._refusals = refusals
        self._node_refusals = node_refusals
        self._outage = outage
        self._synced_at: datetime | None = None

    def caches_synced(self, at: datetime) -> None:
        """Take note that pods and nodes had their first full list."""
        self._synced_at = at

    async def observe(self, job: Job, now: datetime) -> Observation:
        """Return all that is known about the job now. Raises ApiError or ApiUnreachable when a fact cannot be had."""
        # What must be asked for comes first, so that everything below is read at one moment, without a wait in between.
        template_check = await self._facts.template_check(job, now)
        service_exists = job.is_finished or await self._facts.service_exists(job, now)
        # A right that came after the start is of no use to an operator that does not watch Nodes.
        node_rights = self._nodes.sees_nodes and await self._facts.node_rights(now)
        latest = self._jobs.get(job.key)
        job = latest if latest is not None and latest.uid == job.uid else job
        pods = self._pods.of_job(job.namespace, job.uid)
        pod_uids = frozenset(pod.uid for pod in pods)
        self._beats.forget_pods(job.uid, pod_uids)
        beats = self._beats.of_job(job.uid, pod_uids)
        ended = frozenset(uid for uid in _fence_owners(job, pods, beats) if self._jobs.has_ended(uid))
        ending = frozenset(uid for uid in ended if self._pods.may_run(uid))
        refusals: tuple[CreateRefusal, ...] = self._refusals.of_job(job.uid)
        observation = Observation(
            job=job,
            pods=pods,
            nodes=self._nodes.all(),
            beats=beats,
            senders=self._beats.senders(self._is_running, now, self._outage.until()),
            store=StoreView(records=self._store.pending(job.uid)),
            spec_error=job.spec_error,
            service_exists=service_exists,
            run_owner=self._jobs.run_owner(job),
            sources=self._jobs.sources(job),
            live_job_uids=self._jobs.live_uids(),
            ending_job_uids=ending,
            ended_job_uids=ended - ending,
            template_check=template_check,
            refusals=refusals,
            node_refusals=self._node_refusals.standing(now),
            node_rights=node_rights,
            caches_synced_at=self._synced_at,
        )
        look = self._reader.look(job, awaits_resume_point(observation, now), now)
        store = replace(observation.store, found=look.found, is_awaited=look.is_awaited, problem=look.problem)
        return replace(observation, store=store)

    def _is_running(self, pod_uid: str) -> bool:
        record = self._pods.find(pod_uid)
        return record is not None and record.view.phase == "Running" and record.view.deleting_since is None


def _fence_owners(job: Job, pods: tuple[PodView, ...], beats: Mapping[int, WorkerBeat]) -> set[str]:
    """Return the uids of other jobs whose fences this job's workers see or saw: only about these is it asked whether they ended."""
    reports = [pod.container.report for pod in pods if pod.container is not None]
    reports += [beat.beat.failure for beat in beats.values()]
    found = {beat.beat.fence_job_uid for beat in beats.values()} | {report.fence_job_uid for report in reports if report is not None}
    if job.status.run.foreign_fence is not None:
        found.add(job.status.run.foreign_fence.job_uid)
    return {uid for uid in found if uid is not None and uid != job.uid}
