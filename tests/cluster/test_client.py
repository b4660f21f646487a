"""The client's retries, limits and words, against a real HTTP server."""

from __future__ import annotations

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from rtj_operator.cluster.client import ConfigurationError, KubeClient, load_configuration
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from tests.cluster.wire_server import PATH, NoMetrics, serve


@pytest.mark.parametrize("status", [429, 500, 503], ids=["throttled", "trouble", "unavailable"])
async def test_an_answer_that_may_pass_is_asked_for_again(status: int) -> None:
    async with serve() as (server, client):
        server.answers = [web.Response(status=status, headers={"Retry-After": "0"})]
        assert (await client.request("GET", PATH))["kind"] == "ThingList"
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422], ids=str)
async def test_an_answer_that_will_not_pass_is_raised_at_once_with_its_reason(status: int) -> None:
    async with serve() as (server, client):
        server.answers = [web.json_response({"kind": "Status", "reason": "Why", "message": "because"}, status=status)]
        with pytest.raises(ApiError, match=f"GET {PATH}: HTTP {status} Why: because") as caught:
            await client.request("GET", PATH)
        assert (caught.value.status, caught.value.reason, len(server.requests)) == (status, "Why", 1)


async def test_an_apply_that_does_not_fit_the_schema_is_our_mistake_and_not_asked_again() -> None:
    async with serve() as (server, client):
        message = "failed to create typed patch object: field not declared"
        server.answers = [web.json_response({"kind": "Status", "message": message}, status=500)]
        with pytest.raises(ApiError) as caught:
            await client.request("PATCH", PATH, body={})
        assert caught.value.is_our_mistake
        assert len(server.requests) == 1


async def test_no_answer_in_time_is_unreachable_and_names_the_request() -> None:
    async with serve() as (_, client):
        with pytest.raises(ApiUnreachable, match=f"GET {PATH}: no answer in 0.1 s"):
            await client.request("GET", PATH, query=[("watch", "true")], tries=1, seconds=0.1)


async def test_a_refused_connection_is_unreachable_after_the_last_try() -> None:
    client = KubeClient(Configuration(host="http://127.0.0.1:1"), NoMetrics(), tries=2)
    with pytest.raises(ApiUnreachable, match="GET /api"):
        await client.request("GET", "/api")
    await client.close()


async def test_an_answer_that_is_no_json_object_is_no_answer() -> None:
    async with serve() as (server, client):
        server.answers = [web.Response(text="<html>proxy</html>")]
        with pytest.raises(ApiUnreachable, match="no JSON object"):
            await client.request("GET", PATH, tries=1)


async def test_a_kubeconfig_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="kubeconfig /nowhere/config"):
        await load_configuration("/nowhere/config")


async def test_no_kubeconfig_outside_a_pod_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match="the pod's service account"):
        await load_configuration(None)
