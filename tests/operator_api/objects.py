"""Objects that the tests create themselves: jobs as users write them, and Nodes as kubelets would."""

from __future__ import annotations

from typing import Any

from rtj_operator.api import keys
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.outage import utc_now
from rtj_operator.cluster.times import second_time
from tests.api.jobs import manifest


def job_manifest(namespace: str, name: str = "gpt", changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a job whose pods run as the service account ``trainer``, so that tokens can be bound to them."""
    own = {
        "metadata.namespace": namespace,
        "metadata.name": name,
        "spec.template.spec.serviceAccountName": "trainer",
        "spec.checkpoint.run": f"{namespace}.{name}",
    }
    return manifest({**own, **(changes or {})})


async def create_job(client: KubeClient, namespace: str, name: str = "gpt", changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Create a job and return it as stored."""
    path = f"{calls.JOBS}/namespaces/{namespace}/{keys.PLURAL}"
    return await client.request("POST", path, body=job_manifest(namespace, name, changes))


async def create_node(client: KubeClient, name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Create a Node that is Ready, with a boot id."""
    body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}}
    await client.request("POST", "/api/v1/nodes", body=body)
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": node_info("boot-1")}
    return await client.request(
        "PATCH", f"/api/v1/nodes/{name}/status", body={"status": status}, content_type="application/merge-patch+json"
    )


async def break_node(client: KubeClient, name: str, condition: str, message: str) -> None:
    """Let a node agent report a fault, as a condition beside Ready."""
    now = second_time(utc_now())
    bad = {"type": condition, "status": "True", "reason": "Fault", "message": message, "lastTransitionTime": now, "lastHeartbeatTime": now}
    body = {"status": {"conditions": [{"type": "Ready", "status": "True"}, bad]}}
    await client.request("PATCH", f"/api/v1/nodes/{name}/status", body=body, content_type="application/merge-patch+json")


def node_info(boot_id: str) -> dict[str, str]:
    """Return status.nodeInfo, whose fields are all required."""
    names = ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion")
    others = ("kubeProxyVersion", "operatingSystem", "architecture")
    return {**dict.fromkeys((*names, *others), "x"), "bootID": boot_id}


def plain_pod(namespace: str, name: str, owner: dict[str, Any] | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a small pod, owned by a job when one is given."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": labels or {}}
    if owner is not None:
        reference = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    container = {"name": "trainer", "image": "registry.example/gpt:1"}
    return {"metadata": metadata, "spec": {"serviceAccountName": "trainer", "containers": [container]}}
