"""The Lease as a mutex, on a real API server: one holder at a time, and a way to the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.lease import Lease, LeaseLost

pytestmark = pytest.mark.api

SECONDS = 3
"""Short, so that an expiry can be waited for; the proportions are those of the default."""


def lease(client: KubeClient, namespace: str, identity: str) -> Lease:
    return Lease(client, namespace, "operator", identity, duration_seconds=SECONDS)


async def holder(client: KubeClient, namespace: str) -> dict[str, Any]:
    found = await client.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator")
    return dict(found["spec"])


async def test_of_eight_racers_one_wins(client: KubeClient, namespace: str) -> None:
    racers = [lease(client, namespace, f"racer-{number}") for number in range(8)]
    tasks = [asyncio.create_task(racer.acquire()) for racer in racers]
    async with asyncio.timeout(10):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert sum(racer.is_held() for racer in racers) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_holder_that_renews_keeps_others_out_and_one_that_gives_back_lets_them_in(client: KubeClient, namespace: str) -> None:
    first, second = lease(client, namespace, "first"), lease(client, namespace, "second")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(SECONDS * 1.5)
    assert first.is_held() and not second.is_held()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    await first.release()
    assert not first.is_held()
    async with asyncio.timeout(10):
        await waiting
    assert (await holder(client, namespace))["holderIdentity"] == "second"
    assert (await holder(client, namespace))["leaseTransitions"] >= 1


async def test_a_holder_that_stops_renewing_stops_acting_before_another_may_start(client: KubeClient, namespace: str) -> None:
    first, second = lease(client, namespace, "first"), lease(client, namespace, "second")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    async with asyncio.timeout(20):
        while not second.is_held():
            both = first.is_held() and second.is_held()
            assert not both
            await asyncio.sleep(0.01)
    assert not first.is_held()
    await waiting


async def test_a_holder_whose_lease_was_taken_ends(client: KubeClient, namespace: str) -> None:
    first = lease(client, namespace, "first")
    await first.acquire()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator"
    found = await client.request("GET", path)
    found["spec"]["holderIdentity"] = "thief"
    await client.request("PUT", path, body=found)
    with pytest.raises(LeaseLost, match="thief has it now"):
        async with asyncio.timeout(10):
            await first.hold()
    assert not first.is_held()


async def test_somebody_who_only_annotates_the_lease_takes_nothing(client: KubeClient, namespace: str) -> None:
    first = lease(client, namespace, "first")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator"
    for number in range(5):
        patch = {"metadata": {"annotations": {"note": str(number)}}}
        await client.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
        await asyncio.sleep(SECONDS / 5)
    assert first.is_held() and not holding.done()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_the_same_identity_has_its_lease_back_at_once(client: KubeClient, namespace: str) -> None:
    await lease(client, namespace, "me").acquire()
    again = lease(client, namespace, "me")
    async with asyncio.timeout(SECONDS / 2):
        await again.acquire()
    assert again.is_held()
