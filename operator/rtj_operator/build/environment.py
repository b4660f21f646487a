"""The environment of a trainer container: the contract's variables, and torchrun's own.

With torchrun's own (``PET_*``), a stock ``torchrun train.py`` works unwrapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job, JobSpec
from trainer_runtime.contract import environment as names
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import dumps


@dataclass(frozen=True)
class HeartbeatEndpoint:
    """Where workers send their beats."""

    url: str
    """``https://host:port``, without the path."""
    ca_pem: str
    """Certificates of the CAs that a worker trusts for it, PEM; public."""


def worker_environment(
    job: Job, spec: JobSpec, assignment: Assignment, endpoint: HeartbeatEndpoint, container: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the variables in a fixed order. They come before the user's own, so that those may refer to them as ``$(RTJ_RUN)``."""
    values = {
        names.ASSIGNMENT: dumps(assignment),
        names.JOB_NAMESPACE: job.namespace,
        names.JOB_NAME: job.name,
        names.JOB_UID: job.uid,
        names.STORE: spec.checkpoint.store,
        names.RUN: job.run,
        names.HEARTBEAT_URL: endpoint.url,
        names.HEARTBEAT_TOKEN_FILE: f"{keys.POD_VOLUME_PATH}/{keys.TOKEN_PATH}",
        names.HEARTBEAT_CA_FILE: f"{keys.POD_VOLUME_PATH}/{keys.CA_PATH}",
        names.GRACE_SECONDS: str(spec.recovery.termination_seconds),
        names.TERMINATION_MESSAGE_FILE: str(container.get("terminationMessagePath") or names.DEFAULT_TERMINATION_MESSAGE_FILE),
        "PET_NNODES": str(assignment.workers),
        "PET_NPROC_PER_NODE": str(assignment.procs_per_worker),
        "PET_NODE_RANK": str(assignment.worker_index),
        "PET_MASTER_ADDR": assignment.master_addr,
        "PET_MASTER_PORT": str(assignment.master_port),
        "PET_RDZV_ID": assignment.run_id,
        "PET_RDZV_CONF": f"timeout={spec.recovery.start_seconds}",  # torchrun's default, 600 s, is shorter than a big cluster's start
        "PET_MAX_RESTARTS": "0",  # the operator is the only restart authority
    }
    from_pod = {names.POD_NAME: "metadata.name", names.POD_UID: "metadata.uid", names.NODE_NAME: "spec.nodeName"}
    return [
        *({"name": name, "value": _literal(value)} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in from_pod.items()),
    ]


def _literal(value: str) -> str:
    """Escape what Kubernetes would expand: ``$(NAME)`` in a value."""
    return value.replace("$(", "$$(")
