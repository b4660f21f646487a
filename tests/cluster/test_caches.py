"""The pod and node caches find their records by every way that is asked, and the outage tracker tells outages from hiccups."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from rtj_operator.api import keys
from rtj_operator.cluster.errors import ApiError
from rtj_operator.cluster.nodes import NodeCache
from rtj_operator.cluster.outage import OutageTracker
from rtj_operator.cluster.pods import PodCache
from tests.cluster.test_views import POD
from tests.cluster.wire_server import bookmark, event, serve
from tests.operator_api.process import wait_for

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def pod(worker: int, node: str, version: int, job_uid: str = "job-1", namespace: str = "ml") -> dict[str, Any]:
    document = copy.deepcopy(POD)
    document["metadata"].update(name=f"gpt-3-{worker}", uid=f"pod-{worker}-{namespace}", namespace=namespace, resourceVersion=str(version))
    document["metadata"]["labels"].update({keys.JOB_UID: job_uid, keys.WORKER_INDEX: str(worker)})
    document["metadata"]["ownerReferences"] = [{"uid": job_uid, "controller": True}]
    document["spec"]["nodeName"] = node
    return document


async def run_until(cache_informers: list[Any], holds: Any) -> None:
    tasks = [asyncio.create_task(informer.run()) for informer in cache_informers]
    try:
        await wait_for(holds, "the cache to be as wished", 10)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_pods_are_found_by_job_by_uid_and_by_node_until_they_are_gone() -> None:
    async with serve() as (server, client):
        first, second, foreign = pod(0, "a", 1), pod(1, "b", 2), pod(2, "b", 3, namespace="evil")
        server.things = {str(number): each for number, each in enumerate([second, first, foreign])}
        moved = pod(0, "b", 9)
        server.scripts = [[event("MODIFIED", moved), event("DELETED", second), bookmark(20)]]
        woken: list[str] = []
        cache = PodCache(client, [], woken.append)
        await run_until(cache.informers, lambda: cache.find("pod-1-ml") is None and cache.find("pod-0-ml") is not None)
        assert [view.worker for view in cache.of_job("ml", "job-1")] == [0]
        assert [view.worker for view in cache.of_job("evil", "job-1")] == [2]
        assert cache.of_job("ml", "job-2") == ()
        assert cache.may_run("job-1") and not cache.may_run("job-2")
        found = cache.find("pod-0-ml")
        assert found is not None and found.view.node == "b"
        assert cache.jobs_on("a") == set()
        assert cache.jobs_on("b") == {"job-1"}
        assert set(woken) == {"job-1"}
        assert server.lists[0]["labelSelector"] == keys.JOB_UID


@pytest.mark.parametrize("namespaces", [[], ["web", "ml"]], ids=["all", "some"])
async def test_a_pod_that_we_created_is_there_at_once(namespaces: list[str]) -> None:
    async with serve() as (server, client):
        cache = PodCache(client, namespaces, lambda job_uid: None)
        await run_until(cache.informers, lambda: len(server.watches) == len(cache.informers))
        cache.created(pod(0, "a", 9))
        assert [view.worker for view in cache.of_job("ml", "job-1")] == [0]


async def test_a_container_of_a_node_whose_clock_is_ahead_started_when_it_was_first_seen() -> None:
    async with serve() as (server, client):
        now = NOW
        ahead = pod(0, "a", 1)
        ahead["status"] = {"containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-01-02T09:00:00Z"}}}]}
        server.things = {"0": ahead}
        cache = PodCache(client, [], lambda job_uid: None, lambda: now)
        await run_until(cache.informers, lambda: cache.find("pod-0-ml") is not None)
        now += timedelta(seconds=30)
        ahead["metadata"]["resourceVersion"] = "2"
        await run_until(cache.informers, lambda: len(server.watches) == 2)
        found = cache.find("pod-0-ml")
        assert found is not None and found.view.container is not None
        assert found.view.container.started_at == NOW


def node(name: str, version: int, heartbeat: str = "2026-01-02T03:00:00Z") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "status": {"conditions": conditions}}


def lease(name: str, version: int, renewed: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "kube-node-lease", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"renewTime": renewed}}


async def test_without_the_right_to_list_nodes_there_are_none_and_no_watch() -> None:
    async with serve() as (server, client):
        server.answers = [web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)]
        cache = NodeCache(client, lambda name: None)
        await cache.prepare()
        assert cache.informers == []
        assert cache.all() == {}


async def test_a_node_that_we_wrote_is_seen_as_we_left_it_at_once() -> None:
    async with serve() as (server, client):
        server.things_at = {"nodes": {"n7": node("n7", 1)}, "leases": {}}
        cache = NodeCache(client, lambda name: None)
        await cache.prepare()
        await run_until(cache.informers, lambda: "n7" in cache.all() and len(server.watches) == 2)
        cache.wrote({**node("n7", 9), "spec": {"unschedulable": True}})
        assert cache.all()["n7"].unschedulable


async def test_an_answer_that_fails_half_way_leaves_no_second_watch_behind() -> None:
    async with serve() as (server, client):
        server.answers = [web.json_response({"items": []}), web.json_response({}, status=404)]
        cache = NodeCache(client, lambda name: None)
        with pytest.raises(ApiError):
            await cache.prepare()
        await cache.prepare()
        assert len(cache.informers) == 2


async def test_a_nodes_lease_is_its_newest_sign_of_life_and_wakes_nobody() -> None:
    async with serve() as (server, client):
        renewals = {name: lease(name, 2, "2026-01-02T03:04:05.000000Z") for name in ("n7", "other")}
        server.things_at = {"nodes": {"n7": node("n7", 1)}, "leases": renewals}
        woken: list[str] = []
        cache = NodeCache(client, woken.append)
        await cache.prepare()
        renewed = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        await run_until(cache.informers, lambda: "n7" in cache.all() and cache.all()["n7"].alive_at == renewed)
        assert woken == ["n7"]
        assert set(cache.all()) == {"n7"}


@pytest.mark.parametrize("has_leases", [True, False], ids=["leases", "heartbeats alone"])
async def test_a_node_whose_clock_is_ahead_is_alive_when_it_was_last_heard_and_not_until_its_clock_is_reached(has_leases: bool) -> None:
    async with serve() as (server, client):
        now = NOW
        cache = NodeCache(client, lambda name: None, lambda: now)
        if not has_leases:
            server.answers = [web.json_response({"items": []}), web.json_response({}, status=403)]
        await cache.prepare()

        async def see(version: int, stated: str) -> datetime | None:
            server.things_at = {"nodes": {"n7": node("n7", version, stated)}, "leases": {"n7": lease("n7", version, stated)}}
            watches = len(server.watches) + len(cache.informers)
            await run_until(cache.informers, lambda: len(server.watches) >= watches)
            return cache.all()["n7"].alive_at

        assert await see(1, "2026-01-02T09:00:00Z") == NOW
        now = NOW + timedelta(seconds=10)
        assert await see(2, "2026-01-02T09:00:10Z") == now
        heard = now
        now = NOW + timedelta(seconds=90)
        assert await see(3, "2026-01-02T09:00:10Z") == heard


@pytest.mark.parametrize(
    ("events", "until"),
    [
        pytest.param([], None, id="nothing happened"),
        pytest.param([(0, "failed"), (2, "succeeded")], None, id="a hiccup is no outage"),
        pytest.param([(0, "failed"), (3, "failed"), (6, "succeeded")], 6, id="failures for five seconds are one, until the first success"),
        pytest.param([(0, "failed"), (3, "failed")], 10, id="one that lasts is over now at the earliest"),
        pytest.param([(0, "failed"), (6, "succeeded"), (7, "failed"), (8, "succeeded")], 6, id="a later hiccup changes nothing"),
    ],
)
def test_an_outage_is_told_by_its_end(events: list[tuple[int, str]], until: int | None) -> None:
    now = NOW
    tracker = OutageTracker(lambda: now)
    for second, what in events:
        now = NOW + timedelta(seconds=second)
        getattr(tracker, what)()
    now = NOW + timedelta(seconds=10)
    assert tracker.until() == (None if until is None else NOW + timedelta(seconds=until))
