"""Every single request the operator makes, one function each: path, body and precondition stand here and nowhere else.

The verbs used here are the operator's RBAC. Each call is safe to repeat. Errors are `ApiError` and `ApiUnreachable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rtj_operator.api import keys
from rtj_operator.cluster.apply_text import to_apply_text
from rtj_operator.cluster.client import APPLY_PATCH, JSON, MERGE_PATCH, KubeClient
from rtj_operator.cluster.errors import ApiError

JOBS: Final = f"/apis/{keys.GROUP}/{keys.VERSION}"
LIST_CHUNK: Final = 200
"""Jobs per list request: a job with a full status is up to 50 KB."""


@dataclass(frozen=True)
class JobList:
    """All jobs at one time."""

    items: tuple[dict[str, Any], ...]
    resource_version: str


def job_path(namespace: str, name: str) -> str:
    """Return the path of one job."""
    return f"{JOBS}/namespaces/{namespace}/{keys.PLURAL}/{name}"


def pods_path(namespace: str) -> str:
    """Return the path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


async def is_crd_served(client: KubeClient) -> bool:
    """Say whether the API server serves our kind in our version."""
    try:
        found = await client.request("GET", JOBS)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return any(resource.get("name") == keys.PLURAL for resource in found.get("resources", ()))


async def list_jobs(client: KubeClient, namespaces: Sequence[str]) -> JobList:
    """List the jobs of these namespaces, or of all when none is named. The version is the oldest of the lists'."""
    items: list[dict[str, Any]] = []
    versions: list[str] = []
    for path in [f"{JOBS}/namespaces/{namespace}/{keys.PLURAL}" for namespace in namespaces] or [f"{JOBS}/{keys.PLURAL}"]:
        token = ""
        while True:
            query = [("limit", str(LIST_CHUNK)), *([("continue", token)] if token else [])]
            page = await client.request("GET", path, query=query)
            items.extend(page.get("items") or ())
            token = page["metadata"].get("continue") or ""
            if not token:
                versions.append(page["metadata"]["resourceVersion"])
                break
    return JobList(tuple(items), min(versions, key=int))


async def get_job(client: KubeClient, namespace: str, name: str) -> dict[str, Any] | None:
    """Read one job; None when there is none."""
    return await _get_or_none(client, job_path(namespace, name))


async def apply_status(client: KubeClient, namespace: str, name: str, resource_version: str, status: dict[str, Any]) -> dict[str, Any]:
    """Write the whole status by server-side apply, only if the job is still at ``resource_version`` (else 409), and return the job."""
    body = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {"name": name, "resourceVersion": resource_version},
        "status": status,
    }
    query = [("fieldManager", keys.FIELD_MANAGER), ("force", "true")]
    text = to_apply_text(body)
    return await client.request("PATCH", f"{job_path(namespace, name)}/status", query=query, body=text, content_type=APPLY_PATCH)


async def delete_job(client: KubeClient, namespace: str, name: str, uid: str) -> None:
    """Delete a job with exactly that uid; its children follow by owner reference. Gone or replaced is done."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": {"uid": uid}}
    await _delete(client, job_path(namespace, name), body)


async def create_pod(client: KubeClient, namespace: str, pod: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """Create a pod exactly as given, or only ask the API server whether it would be accepted."""
    return await client.request("POST", pods_path(namespace), query=[("dryRun", "All")] if dry_run else [], body=pod, content_type=JSON)


async def get_pod(client: KubeClient, namespace: str, name: str) -> dict[str, Any] | None:
    """Read one pod; None when there is none."""
    return await _get_or_none(client, f"{pods_path(namespace)}/{name}")


async def delete_pod(client: KubeClient, namespace: str, name: str, uid: str, grace_seconds: int) -> None:
    """Delete a pod with exactly that uid; 0 grace forces. Gone or replaced is done."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_seconds, "preconditions": {"uid": uid}}
    await _delete(client, f"{pods_path(namespace)}/{name}", body)


async def get_service(client: KubeClient, namespace: str, name: str) -> dict[str, Any] | None:
    """Read one Service; None when there is none."""
    return await _get_or_none(client, f"/api/v1/namespaces/{namespace}/services/{name}")


async def create_service(client: KubeClient, namespace: str, service: dict[str, Any]) -> dict[str, Any]:
    """Create a Service as given."""
    return await client.request("POST", f"/api/v1/namespaces/{namespace}/services", body=service)


async def get_node(client: KubeClient, name: str) -> dict[str, Any] | None:
    """Read one Node past all caches; None when there is none."""
    return await _get_or_none(client, f"/api/v1/nodes/{name}")


async def patch_node(client: KubeClient, name: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Merge into a Node. The patch must carry metadata.resourceVersion, so that it fails with 409 when the Node has changed.

    One further try, no more: an admission webhook that is away takes the API server up to 30 s each time, and a relaunch must not wait for
    a cordon.
    """
    return await client.request("PATCH", f"/api/v1/nodes/{name}", body=patch, content_type=MERGE_PATCH, tries=2)


async def create_event(client: KubeClient, namespace: str, event: dict[str, Any]) -> None:
    """Create one event. Events are a courtesy: one further try, no more."""
    await client.request("POST", f"/api/v1/namespaces/{namespace}/events", body=event, tries=2)


async def patch_event(client: KubeClient, namespace: str, name: str, patch: dict[str, Any]) -> None:
    """Merge into an event, for counting repetitions."""
    await client.request("PATCH", f"/api/v1/namespaces/{namespace}/events/{name}", body=patch, content_type=MERGE_PATCH, tries=2)


async def can_patch_nodes(client: KubeClient) -> bool:
    """Ask the API server whether we may patch Nodes. Every service account may ask that about itself."""
    attributes = {"verb": "patch", "group": "", "resource": "nodes"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool(answer.get("status", {}).get("allowed"))


def is_owned_by(child: dict[str, Any], job_uid: str) -> bool:
    """Say whether that object's controller is the job with that uid."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == job_uid and owner.get("controller") for owner in owners)


async def _get_or_none(client: KubeClient, path: str) -> dict[str, Any] | None:
    try:
        return await client.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def _delete(client: KubeClient, path: str, body: dict[str, Any]) -> None:
    try:
        await client.request("DELETE", path, body=body)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
