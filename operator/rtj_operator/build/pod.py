"""The pod of one worker: the user's template as written, and around it what rtj needs to find, wire and stop it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from rtj_operator.api import keys
from rtj_operator.api import template as pod_template
from rtj_operator.api.v1alpha1 import Job, JobStatus
from rtj_operator.build.affinity import avoid_hosts
from rtj_operator.build.assignment import assignment_for
from rtj_operator.build.environment import HeartbeatEndpoint, worker_environment
from rtj_operator.build.errors import UnusableSpec
from rtj_operator.build.identity import job_labels, owner_reference
from rtj_operator.build.names import pod_name, service_name
from trainer_runtime.contract import environment as names

TOKEN_SECONDS = 3600
"""Life of the heartbeat token; the kubelet renews it at 80 %."""


def build_pod(
    job: Job,
    worker: int,
    status: JobStatus,
    endpoint: HeartbeatEndpoint,
    hostnames: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the pod of worker ``worker`` for the gang and attempt that ``status`` records.

    ``hostnames`` gives a node's ``kubernetes.io/hostname`` label by its name, for clouds where the two differ; a node that is not in it
    has its name as label. Raises UnusableSpec when the job's spec cannot be used.
    """
    if job.spec is None:
        raise UnusableSpec(job.spec_error)
    spec = copy.deepcopy(job.spec.template.get("spec")) or {}
    trainer = spec["containers"][pod_template.trainer_index(job.spec.template)]
    assignment = assignment_for(job, worker, status)
    trainer["env"] = [*worker_environment(job, job.spec, assignment, endpoint, trainer), *(trainer.get("env") or [])]
    trainer.setdefault("terminationMessagePath", names.DEFAULT_TERMINATION_MESSAGE_FILE)
    trainer.setdefault("terminationMessagePolicy", "File")
    _mount(spec, trainer, _credentials_volume(), keys.POD_VOLUME_PATH, read_only=True)
    if not _has_shared_memory(trainer):
        _mount(spec, trainer, {"name": keys.SHM_VOLUME, "emptyDir": {"medium": "Memory"}}, keys.SHM_PATH, read_only=False)
    name = pod_name(job.name, status.gang, worker)
    spec["restartPolicy"] = "Never"
    spec["enableServiceLinks"] = False
    spec["hostname"] = name
    spec["subdomain"] = service_name(job.name)
    spec["terminationGracePeriodSeconds"] = job.spec.recovery.termination_seconds
    excluded = [(hostnames or {}).get(excluded.node, excluded.node) for excluded in status.excluded_nodes]
    affinity = avoid_hosts(spec.get("affinity"), excluded)
    if affinity is not None:
        spec["affinity"] = affinity
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(job, name, worker, status, trainer, endpoint), "spec": spec}


def _metadata(
    job: Job, name: str, worker: int, status: JobStatus, trainer: Mapping[str, Any], endpoint: HeartbeatEndpoint
) -> dict[str, Any]:
    """Return the user's labels and annotations with ours over them: children are matched by ours."""
    written = job.raw_template.get("metadata") or {}
    ours = {**job_labels(job), keys.APP_COMPONENT: "worker", keys.GANG: str(status.gang), keys.WORKER_INDEX: str(worker)}
    annotations = {keys.DEFAULT_CONTAINER: str(trainer["name"]), keys.HEARTBEAT_CA: endpoint.ca_pem}
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {**(written.get("labels") or {}), **ours},
        "annotations": {**(written.get("annotations") or {}), **annotations},
        "ownerReferences": [owner_reference(job)],
    }


def _credentials_volume() -> dict[str, Any]:
    token = {"audience": names.HEARTBEAT_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": keys.TOKEN_PATH}
    authority = {"path": keys.CA_PATH, "fieldRef": {"fieldPath": f"metadata.annotations['{keys.HEARTBEAT_CA}']"}}
    return {
        "name": keys.POD_VOLUME,
        "projected": {"sources": [{"serviceAccountToken": token}, {"downwardAPI": {"items": [authority]}}]},
    }


def _mount(spec: dict[str, Any], container: dict[str, Any], volume: dict[str, Any], path: str, *, read_only: bool) -> None:
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    mount = {"name": volume["name"], "mountPath": path, **({"readOnly": True} if read_only else {})}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _has_shared_memory(container: Mapping[str, Any]) -> bool:
    mounts = container.get("volumeMounts") or []
    return any(str(mount.get("mountPath", "")).rstrip("/") == keys.SHM_PATH for mount in mounts)
