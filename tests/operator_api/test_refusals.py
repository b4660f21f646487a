"""What stands in the operator's way and may go away again: foreign names, quotas, others who write the job, another owner of the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import MERGE_PATCH, KubeClient
from rtj_operator.cluster.errors import ApiError
from tests.operator_api import rbac
from tests.operator_api.objects import break_node, create_job, plain_pod
from tests.operator_api.process import OperatorProcess, wait_for
from tests.operator_api.scene import SECONDS, Scene, condition, open_scene, preempted

pytestmark = pytest.mark.api


@pytest.fixture
async def scene(client: KubeClient, namespace: str, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Scene]:
    operator = OperatorProcess(tmp_path / "operator", control_plane.user_kubeconfig(rbac.USER), namespace)
    async with open_scene(client, namespace, operator) as opened:
        await operator.start_ready()
        yield opened


async def merge_job(scene: Scene, patch: dict[str, Any], name: str = "gpt") -> None:
    await scene.client.request("PATCH", calls.job_path(scene.namespace, name), body=patch, content_type=MERGE_PATCH)


async def test_a_foreign_pod_of_a_workers_name_is_left_alone_and_the_job_waits_for_it_to_go(scene: Scene) -> None:
    stranger = await calls.create_pod(scene.client, scene.namespace, plain_pod(scene.namespace, "gpt-1-1"))
    await create_job(scene.client, scene.namespace)
    await scene.wait_for("reason NameConflict", lambda status: condition(status, "Running").get("reason") == "NameConflict")
    found = await calls.get_pod(scene.client, scene.namespace, "gpt-1-1")
    assert found is not None and found["metadata"]["uid"] == stranger["metadata"]["uid"]
    await calls.delete_pod(scene.client, scene.namespace, "gpt-1-1", stranger["metadata"]["uid"], 0)
    status = await scene.wait_until_running()
    assert status["restarts"].get("total", 0) == 0


async def test_a_quota_is_shown_and_the_missing_pods_come_when_it_allows_them(scene: Scene) -> None:
    path = f"/api/v1/namespaces/{scene.namespace}/resourcequotas"
    await scene.client.request("POST", path, body={"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}})
    status = {"status": {"hard": {"pods": "2"}, "used": {"pods": "0"}}}  # the quota controller's part, which does not run here
    await scene.client.request("PATCH", f"{path}/few/status", body=status, content_type=MERGE_PATCH)
    await create_job(scene.client, scene.namespace)
    shown = await scene.wait_for(
        "reason PodCreateForbidden", lambda status: condition(status, "Running").get("reason") == "PodCreateForbidden"
    )
    assert "exceeded quota" in condition(shown, "Running")["message"]
    await scene.client.request("DELETE", f"{path}/few")
    await scene.wait_until_running()


@asynccontextmanager
async def no_cordons(scene: Scene) -> AsyncIterator[None]:
    """Let an admission policy refuse every cordon of the scene's nodes."""
    base, name = "/apis/admissionregistration.k8s.io/v1", f"no-cordons-{scene.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"], "resourceNames": scene.nodes}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!object.spec.?unschedulable.orValue(false)", "message": "ask the platform team first"}],
    }
    policies, bindings = f"{base}/validatingadmissionpolicies", f"{base}/validatingadmissionpolicybindings"
    await scene.client.request("POST", policies, body={"metadata": {"name": name}, "spec": spec})
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    await scene.client.request("POST", bindings, body=binding)

    async def is_in_force() -> bool:
        patch, query = {"spec": {"unschedulable": True}}, [("dryRun", "All")]
        try:
            await scene.client.request("PATCH", f"/api/v1/nodes/{scene.nodes[0]}", query=query, body=patch, content_type=MERGE_PATCH)
        except ApiError as error:
            return "ask the platform team first" in error.message
        return False

    try:
        await wait_for(is_in_force, "the policy to be in force", SECONDS)
        yield
    finally:
        await scene.client.request("DELETE", f"{bindings}/{name}")
        await scene.client.request("DELETE", f"{policies}/{name}")


async def test_a_node_that_a_policy_lets_nobody_cordon_costs_only_the_cordon_which_comes_when_it_is_allowed(scene: Scene) -> None:
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    bad = scene.nodes[1]

    async def told() -> list[dict[str, Any]]:
        found = await scene.client.request("GET", f"/api/v1/namespaces/{scene.namespace}/events")
        return [item for item in found["items"] if item["reason"] == "NodeWriteRefused"]

    async with no_cordons(scene):
        await break_node(scene.client, bad, "GpuMemWatch", "Xid 48: double-bit ECC error")
        status = await scene.wait_until_running(attempt=2)
        assert status["restarts"]["total"] == 1
        assert [(entry["node"], entry.get("cordoned", False)) for entry in status["excludedNodes"]] == [(bad, False)]
        pod = await calls.get_pod(scene.client, scene.namespace, "gpt-2-0")
        assert pod is not None and bad in json.dumps(pod["spec"]["affinity"])
        await wait_for(told, "event NodeWriteRefused", SECONDS, scene.operator.log_end)
        status = await scene.status()
        assert condition(status, "NodeRemediation")["reason"] == "NodeWriteRefused"
        assert condition(status, "NodeRemediation")["message"].startswith(f"node {bad} could not be written: ")
        (event,) = await told()
        assert (event["type"], event["count"]) == ("Warning", 1)
        assert bad in event["message"] and "ask the platform team first" in event["message"]

    status = await scene.wait_for("the cordon", lambda status: bool(status["excludedNodes"][0].get("cordoned")))
    assert condition(status, "NodeRemediation")["status"] == "True"
    assert (status["attempt"], len(await told())) == (2, 1)


async def test_a_job_that_others_keep_writing_comes_up_all_the_same(scene: Scene) -> None:
    await create_job(scene.client, scene.namespace)

    async def annotate() -> None:
        for number in range(1000):
            await merge_job(scene, {"metadata": {"annotations": {"note": str(number)}}})

    noise = asyncio.create_task(annotate())
    try:
        await scene.wait_until_running()
        await scene.play.end_pod(1, 75, preempted(1, 1))
        status = await scene.wait_until_running(attempt=2)
        assert status["restarts"]["total"] == 1
    finally:
        noise.cancel()
        await asyncio.gather(noise, return_exceptions=True)


async def test_a_second_job_on_the_same_run_waits_for_the_first_one_to_end(scene: Scene) -> None:
    shared = {"spec.checkpoint.run": "shared", "spec.workers": 1}
    await create_job(scene.client, scene.namespace, "first", shared)
    await wait_for(lambda: _phase(scene, "first", "Running"), "the first job to run", SECONDS, scene.operator.log_end)
    await create_job(scene.client, scene.namespace, "second", shared)

    async def is_refused() -> bool:
        status = await scene.status("second")
        return condition(status, "Valid").get("reason") == "RunOwned" and "first" in condition(status, "Valid")["message"]

    await wait_for(is_refused, "the second job to be refused", SECONDS, scene.operator.log_end)
    assert await scene.pods() == ["first-1-0"]


async def test_a_suspended_job_has_no_pods_and_goes_on_as_a_new_attempt(scene: Scene) -> None:
    await create_job(scene.client, scene.namespace, changes={"spec.recovery": {"terminationSeconds": 5}})
    await scene.wait_until_running()
    await merge_job(scene, {"spec": {"suspend": True}})
    status = await scene.wait_for("phase Suspended", lambda status: status.get("phase") == "Suspended")
    assert await scene.pods() == []
    assert status["attempt"] == 1
    await merge_job(scene, {"spec": {"suspend": False}})
    status = await scene.wait_until_running(attempt=2)
    assert status["restarts"].get("total", 0) == 0


async def test_a_job_that_is_deleted_is_forgotten(scene: Scene) -> None:
    job = await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    await calls.delete_job(scene.client, scene.namespace, "gpt", job["metadata"]["uid"])

    async def is_forgotten() -> bool:
        return "rtj_jobs 0.0" in (await scene.operator.get("/metrics"))[1]

    await wait_for(is_forgotten, "the operator to forget the job", SECONDS, scene.operator.log_end)
    assert (await scene.operator.get("/healthz"))[0] == 200


async def _phase(scene: Scene, name: str, phase: str) -> bool:
    return (await scene.status(name)).get("phase") == phase
