"""Names of a job's children. Host names carry the gang, so a name can never mean a pod of an older gang."""

from __future__ import annotations

from rtj_operator.api import keys


def pod_name(job: str, gang: int, worker: int) -> str:
    """Return ``<job>-<gang>-<worker>``; with job names of at most 40 characters it always fits into a host name (63)."""
    return f"{job}-{gang}-{worker}"


def service_name(job: str) -> str:
    """Return the name of the headless service, which is also the pods' subdomain."""
    return job


def pod_host(namespace: str, job: str, gang: int, worker: int) -> str:
    """Return a worker's DNS name. Without the cluster's domain, which not every cluster calls cluster.local."""
    return f"{pod_name(job, gang, worker)}.{service_name(job)}.{namespace}.svc"


def job_selector(uid: str) -> dict[str, str]:
    """Return the labels that select every pod of one job: its uid, because a deleted job's pods may outlive its name."""
    return {keys.JOB_UID: uid}


def selector_text(uid: str) -> str:
    """Return the same as ``kubectl -l`` takes it; this is status.selector."""
    return f"{keys.JOB_UID}={uid}"
