"""Cordons and strikes on Nodes of a real API server: one patch, only where it is still right, never twice."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster.client import KubeClient
from rtj_operator.decide.plan import CordonNode, ReleaseNode, StrikeNode
from rtj_operator.reconcile.node_writes import NodeWriter
from tests.api.jobs import stored
from tests.operator_api.objects import create_node

pytestmark = pytest.mark.api

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = Job.parse(stored())


@pytest.fixture
async def node(client: KubeClient) -> AsyncIterator[str]:
    name = f"n-{secrets.token_hex(4)}"
    await create_node(client, name)
    yield name
    await client.request("DELETE", f"/api/v1/nodes/{name}")


async def read(client: KubeClient, name: str) -> dict[str, Any]:
    return await client.request("GET", f"/api/v1/nodes/{name}")


async def merge(client: KubeClient, name: str, patch: dict[str, Any]) -> None:
    await client.request("PATCH", f"/api/v1/nodes/{name}", body=patch, content_type="application/merge-patch+json")


def cordon(node: str, boot_id: str = "boot-1") -> CordonNode:
    return CordonNode(node, "1", boot_id, "gpu_ecc_uncorrectable", 4, AT)


def writer(client: KubeClient, on_cordon: Callable[[], None] = lambda: None, obstacle: str = "") -> NodeWriter:
    return NodeWriter(client, on_cordon, lambda node: None, lambda job: obstacle)


async def test_a_cordon_makes_the_node_unschedulable_and_says_whose_it_is(client: KubeClient, node: str) -> None:
    cordons = 0

    def count() -> None:
        nonlocal cordons
        cordons += 1

    assert await writer(client, count).cordon(JOB, cordon(node))
    found = await read(client, node)
    assert found["spec"]["unschedulable"] is True
    assert found["metadata"]["labels"][keys.QUARANTINED_LABEL] == "true"
    assert {key: value for key, value in found["metadata"]["annotations"].items() if key.startswith("rtj.dev/")} == {
        keys.CORDONED_BY: f"ml/gpt/{JOB.uid}",
        keys.CORDONED_REASON: "gpu_ecc_uncorrectable",
        keys.CORDONED_INCIDENT: "4",
        keys.CORDONED_TIME: "2026-01-02T03:04:05Z",
        keys.CORDONED_BOOT_ID: "boot-1",
    }
    assert not await writer(client, count).cordon(JOB, cordon(node))
    assert cordons == 1


@pytest.mark.parametrize(
    ("change", "boot_id"),
    [
        pytest.param({"spec": {"unschedulable": True}}, "boot-1", id="somebody else cordoned it"),
        pytest.param({"metadata": {"labels": {keys.EXCLUDE_FROM_REMEDIATION: "true"}}}, "boot-1", id="its owner opted out"),
        pytest.param({}, "boot-0", id="it was restarted since"),
    ],
)
async def test_a_cordon_that_is_not_right_any_more_is_not_written(
    client: KubeClient, node: str, change: dict[str, Any], boot_id: str
) -> None:
    await merge(client, node, change)
    assert not await writer(client).cordon(JOB, cordon(node, boot_id))
    assert keys.CORDONED_BY not in ((await read(client, node))["metadata"].get("annotations") or {})


async def test_no_cordon_is_written_when_the_breaker_has_tripped_since_it_was_planned(client: KubeClient, node: str) -> None:
    assert not await writer(client, obstacle="breaker: 1 of 1 cordons in 600 s").cordon(JOB, cordon(node))
    assert "unschedulable" not in (await read(client, node))["spec"]


async def test_a_node_that_is_gone_is_left_alone(client: KubeClient) -> None:
    assert not await writer(client).cordon(JOB, cordon("no-such-node"))


async def test_strikes_add_up_and_one_incident_counts_once(client: KubeClient, node: str) -> None:
    strikes_writer = writer(client)
    first, second = (StrikeNode(node, "1", "gpu_row_remap_pending", incident, AT) for incident in (1, 2))
    assert await strikes_writer.strike(JOB, first)
    assert not await strikes_writer.strike(JOB, first)
    assert await strikes_writer.strike(JOB, second)
    strikes = (await read(client, node))["metadata"]["annotations"][keys.STRIKES].split(",")
    assert strikes == [
        "2026-01-02T03:04:05Z=gpu_row_remap_pending=ml/gpt/1",
        "2026-01-02T03:04:05Z=gpu_row_remap_pending=ml/gpt/2",
    ]
    assert "unschedulable" not in (await read(client, node))["spec"]


async def test_a_node_that_a_person_uncordoned_loses_our_marks_and_keeps_the_time(client: KubeClient, node: str) -> None:
    ours = writer(client)
    assert await ours.cordon(JOB, cordon(node))
    assert not await ours.release(ReleaseNode(node, AT))
    await merge(client, node, {"spec": {"unschedulable": None}})
    assert await ours.release(ReleaseNode(node, AT))
    metadata = (await read(client, node))["metadata"]
    marks = {key: value for key, value in metadata["annotations"].items() if key.startswith("rtj.dev/")}
    assert marks == {keys.RELEASED_TIME: "2026-01-02T03:04:05Z"}
    assert keys.QUARANTINED_LABEL not in metadata.get("labels", {})
    assert not await ours.release(ReleaseNode(node, AT))
