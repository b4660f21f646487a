"""What every child of a job carries: the job's labels and the owner reference by which it is cleaned up."""

from __future__ import annotations

from typing import Any

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job


def owner_reference(job: Job) -> dict[str, Any]:
    """Return the controller reference. It does not block the job's deletion: that would need a right on rtj/finalizers."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def job_labels(job: Job) -> dict[str, str]:
    """Return the labels that say whose child an object is."""
    return {
        keys.JOB_NAME: job.name,
        keys.JOB_UID: job.uid,
        keys.APP_NAME: keys.GROUP.partition(".")[0],
        keys.APP_INSTANCE: job.name,
        keys.APP_MANAGED_BY: keys.FIELD_MANAGER,
    }


def object_metadata(job: Job, name: str) -> dict[str, Any]:
    """Return the metadata of a child that has no template of the user's."""
    return {"name": name, "namespace": job.namespace, "labels": job_labels(job), "ownerReferences": [owner_reference(job)]}
