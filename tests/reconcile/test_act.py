"""What a pass does when the API server refuses a Node's write or the Service: everything else, and it asks again ever more rarely."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from rtj_operator.decide.plan import Action, CordonNode, CreatePod, CreateService, DeletePod, NodeWrite, ReleaseNode, StrikeNode
from rtj_operator.reconcile.act import CORDON_AGAIN_SECONDS, MAX_REFUSAL, Actor
from rtj_operator.reconcile.api_facts import ApiFacts
from rtj_operator.reconcile.crash_points import CrashPoints
from rtj_operator.reconcile.node_writes import NodeWriter
from rtj_operator.reconcile.refusals import NodeRefusals, Refusals
from tests.api.jobs import stored
from tests.cluster.wire_server import WireServer, serve

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = Job.parse(stored({"status": {"attempt": 2, "gang": 2}}))
CORDON = CordonNode("n-1", "1", "boot-1", "gpu_ecc_uncorrectable", 1, NOW)
STRIKE = StrikeNode("n-1", "1", "gpu_ecc_contained", 1, NOW)
RELEASE = ReleaseNode("n-1", NOW)
WORDS = "admission webhook denied the request: ask the platform team first"


class Stage:
    """An actor whose clock the test moves."""

    def __init__(self, client: KubeClient) -> None:
        self.now = NOW
        self.created: list[dict[str, Any]] = []
        self.refusals = Refusals()
        self.node_refusals = NodeRefusals()
        nodes = NodeWriter(client, lambda: None, lambda node: None, lambda job: "")
        facts = ApiFacts(client, lambda job: {})
        self.actor = Actor(
            client,
            lambda job, worker: {"metadata": {"name": f"gpt-2-{worker}"}},
            nodes,
            facts,
            self.refusals,
            self.node_refusals,
            CrashPoints(),
            lambda: True,
            lambda: self.now,
            self.created.append,
        )


def node(**fields: Any) -> web.Response:
    """The answer to a read of the Node."""
    metadata = {"name": "n-1", "resourceVersion": "7", **fields.pop("metadata", {})}
    return web.json_response({"metadata": metadata, "status": {"nodeInfo": {"bootID": "boot-1"}}, **fields})


def refusal(status: int, message: str = WORDS) -> web.Response:
    return web.json_response({"kind": "Status", "reason": "Why", "message": message}, status=status, headers={"Retry-After": "0"})


def refuse(server: WireServer, status: int, tries: int = 1, message: str = WORDS) -> None:
    """Let the next write of a Node that carries our marks or none be refused so many times."""
    marks = {"annotations": {"rtj.dev/cordoned-by": "a/b/c"}}
    server.answers = [node(metadata=marks), *(refusal(status, message) for _ in range(tries))]


@pytest.mark.parametrize("action", [CORDON, STRIKE, RELEASE], ids=lambda action: type(action).__name__)
@pytest.mark.parametrize(
    ("status", "tries"),
    [
        pytest.param(400, 1, id="a webhook with a code of its own"),
        pytest.param(403, 1, id="a webhook or a right"),
        pytest.param(422, 1, id="a policy"),
        pytest.param(500, 2, id="a webhook that is away"),
    ],
)
async def test_a_node_that_may_not_be_written_costs_nothing_but_that_write(action: NodeWrite, status: int, tries: int) -> None:
    async with serve() as (server, client):
        stage = Stage(client)
        refuse(server, status, tries)
        retry_in = await stage.actor.act(JOB, [action, CreatePod(0, 2, 2)])
        assert len(stage.created) == 1 and len(server.requests) == 1 + tries + 1
        assert stage.node_refusals.standing(NOW)["n-1"].message == WORDS
        assert retry_in == (None if action is RELEASE else 1.0), "a release is every job's, and must not wake all of them"


async def test_a_refused_write_is_tried_again_after_its_wait_by_whichever_job_and_forgotten_when_it_is_allowed() -> None:
    async with serve() as (server, client):
        stage = Stage(client)
        other = Job.parse(stored({"metadata.name": "bert", "metadata.uid": "another"}))
        refuse(server, 403)
        assert await stage.actor.act(JOB, [CORDON]) == 1.0
        stage.now += timedelta(seconds=0.75)
        assert await stage.actor.act(JOB, [CORDON]) == 0.25
        assert await stage.actor.act(other, [STRIKE]) == 0.25
        assert await stage.actor.act(other, [RELEASE]) is None
        assert len(server.requests) == 2
        stage.now += timedelta(seconds=0.25)
        refuse(server, 403)
        assert await stage.actor.act(JOB, [CORDON]) == 2.0
        stage.now += timedelta(seconds=2)
        server.answers = [node(), node()]
        assert await stage.actor.act(JOB, [CORDON]) is None
        assert stage.node_refusals.standing(stage.now) == {}


async def test_a_long_refusal_is_cut() -> None:
    async with serve() as (server, client):
        stage = Stage(client)
        refuse(server, 403, message="no " * 10_000)
        await stage.actor.act(JOB, [CORDON])
        assert len(stage.node_refusals.standing(NOW)["n-1"].message) == MAX_REFUSAL


async def test_a_pass_does_not_wait_for_another_jobs_cordon() -> None:
    async with serve() as (server, client):
        stage = Stage(client)
        server.answers = [node(), node()]
        first, second = await asyncio.gather(stage.actor.act(JOB, [CORDON]), stage.actor.act(JOB, [replace(CORDON, node="n-2")]))
        assert (first, second) == (None, CORDON_AGAIN_SECONDS)
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "in_its_place"),
    [
        pytest.param(400, None, id="a webhook with a code of its own"),
        pytest.param(403, None, id="a quota, a webhook or a right"),
        pytest.param(422, None, id="a policy"),
        pytest.param(409, {"metadata": {"name": "gpt"}}, id="somebody else's Service"),
    ],
)
async def test_a_service_that_may_not_be_created_is_shown_and_holds_up_its_pods_alone(
    status: int, in_its_place: dict[str, Any] | None
) -> None:
    async with serve() as (server, client):
        stage = Stage(client)
        gang: list[Action] = [CreateService(), CreatePod(0, 2, 2)]
        found = [web.json_response(in_its_place)] if in_its_place else []
        server.answers = [refusal(status), *found, node(), node()]
        assert await stage.actor.act(JOB, [*gang, CORDON]) == 1.0
        assert server.answers == [], "the cordon was not written"
        (shown,) = stage.refusals.of_job(JOB.uid)
        assert (shown.reason, shown.message) == ("conflict" if in_its_place else "forbidden", f"Service gpt: {WORDS}")
        asked = len(server.requests)
        assert await stage.actor.act(JOB, gang) == 1.0
        assert len(server.requests) == asked and stage.created == []
        stage.now += timedelta(seconds=1)
        assert await stage.actor.act(JOB, gang) is None
        assert len(stage.created) == 1 and stage.refusals.of_job(JOB.uid) == ()


async def test_what_is_no_nodes_write_still_ends_the_pass() -> None:
    async with serve() as (server, client):
        stage = Stage(client)
        server.answers = [refusal(403)]
        with pytest.raises(ApiError):
            await stage.actor.act(JOB, [DeletePod("gpt-1-0", "uid", 0), CORDON])
        assert len(server.requests) == 1
