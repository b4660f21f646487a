"""The headless service that gives every worker a DNS name. Created once per job and never changed."""

from __future__ import annotations

from typing import Any

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.identity import object_metadata
from rtj_operator.build.names import job_selector, service_name


def build_service(job: Job) -> dict[str, Any]:
    """Return the service. It has no ports (pods are reached by name) and publishes pods that are not ready: they meet before they are."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": object_metadata(job, service_name(job.name)),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": job_selector(job.uid)},
    }
