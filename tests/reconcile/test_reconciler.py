"""What is left of a pass whose actions the API server refuses: its events, and the job's own timers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from rtj_operator.cluster.events import EventRecorder
from rtj_operator.cluster.nodes import NodeCache
from rtj_operator.cluster.outage import OutageTracker
from rtj_operator.cluster.pods import PodCache
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.plan import DeletePod, Plan
from rtj_operator.heartbeat.beats import BeatBook
from rtj_operator.manifests.base import NoStores
from rtj_operator.manifests.ledger import Ledger
from rtj_operator.observability.metrics import Metrics
from rtj_operator.reconcile.act import Actor
from rtj_operator.reconcile.api_facts import ApiFacts
from rtj_operator.reconcile.crash_points import CrashPoints
from rtj_operator.reconcile.job_cache import JobCache
from rtj_operator.reconcile.node_writes import NodeWriter
from rtj_operator.reconcile.observe import Observer
from rtj_operator.reconcile.reconciler import Decide, Reconciler
from rtj_operator.reconcile.refusals import NodeRefusals, Refusals
from rtj_operator.reconcile.work_queue import WorkQueue
from tests.api.jobs import stored
from tests.cluster.wire_server import serve

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = ("ml", "gpt")


def reconciler(client: KubeClient, queue: WorkQueue, decide: Decide) -> Reconciler:
    """A reconciler with one finished job, about which nothing has to be asked."""
    jobs = JobCache(lambda job: None)
    jobs.saw(stored({"status": {"phase": "Succeeded"}}))
    metrics, crash, ledger = Metrics(CollectorRegistry(), "0"), CrashPoints(), Ledger()
    facts, refusals, node_refusals = ApiFacts(client, lambda job: {}), Refusals(), NodeRefusals()
    pods, nodes, beats = PodCache(client, [], lambda job_uid: None), NodeCache(client, lambda name: None), BeatBook(NOW)
    outage = OutageTracker(lambda: NOW)
    observer = Observer(jobs, pods, nodes, beats, ledger, NoStores(), facts, refusals, node_refusals, outage)
    writer = NodeWriter(client, lambda: None, lambda node: None, lambda job: "")

    def no_pod(job: object, worker: int) -> dict[str, Any]:
        return {}

    actor = Actor(client, no_pod, writer, facts, refusals, node_refusals, crash, lambda: True, lambda: NOW, lambda pod: None)
    events = EventRecorder(client, "test", metrics)
    return Reconciler(client, queue, jobs, observer, decide, actor, events, ledger, metrics, crash, lambda: True, lambda: NOW)


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_a_refused_action_does_not_take_the_jobs_own_timer_with_it(status: int) -> None:
    def decide(observation: Observation, now: datetime) -> Plan:
        return Plan(observation.job.status, (DeletePod("gpt-1-0", "uid", 0),), look_again_at=now + timedelta(seconds=5))

    async with serve() as (server, client):
        queue = WorkQueue()
        server.answers = [web.json_response({"kind": "Status", "message": "a webhook protects this pod"}, status=status)]
        with pytest.raises(ApiError, match="protects this pod"):
            await reconciler(client, queue, decide).reconcile(KEY)
        assert len(queue) == 1
