"""Tokens as kubelets project them, reviewed by a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.token_review import PodIdentity, TokenReviews
from tests.operator_api.objects import plain_pod
from trainer_runtime.contract.environment import HEARTBEAT_AUDIENCE

pytestmark = pytest.mark.api


async def request_token(client: KubeClient, namespace: str, pod: dict[str, Any] | None, audience: str) -> str:
    """Return a token of service account ``trainer``, bound to a pod when one is given: what a kubelet asks for."""
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 3600}
    if pod is not None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/trainer/token"
    answer = await client.request("POST", path, body={"spec": spec})
    return str(answer["status"]["token"])


async def test_a_token_bound_to_a_pod_names_that_pod(client: KubeClient, namespace: str) -> None:
    pod = await calls.create_pod(client, namespace, plain_pod(namespace, "p"))
    token = await request_token(client, namespace, pod, HEARTBEAT_AUDIENCE)
    assert await TokenReviews(client).review(token) == PodIdentity(namespace, "p", pod["metadata"]["uid"])


async def test_a_token_that_is_not_for_us_or_bound_to_no_pod_is_refused(client: KubeClient, namespace: str) -> None:
    pod = await calls.create_pod(client, namespace, plain_pod(namespace, "p"))
    reviews = TokenReviews(client)
    assert await reviews.review(await request_token(client, namespace, pod, "https://kubernetes.default.svc")) is None
    assert await reviews.review(await request_token(client, namespace, None, HEARTBEAT_AUDIENCE)) is None
    assert await reviews.review("no.token.atall") is None


async def test_an_answer_is_remembered_and_many_callers_cost_one_review(client: KubeClient, namespace: str) -> None:
    pod = await calls.create_pod(client, namespace, plain_pod(namespace, "p"))
    token = await request_token(client, namespace, pod, HEARTBEAT_AUDIENCE)
    asked = 0

    class Counting(KubeClient):
        async def request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            return await client.request(method, path, **options)

    reviews = TokenReviews(Counting.__new__(Counting))
    answers = await asyncio.gather(*(reviews.review(token) for _ in range(20)))
    assert {answer.pod_uid for answer in answers if answer} == {pod["metadata"]["uid"]}
    await reviews.review(token)
    assert asked == 1
