"""Which directory a job writes to, as one comparable text, so that two live jobs can never share a run."""

from __future__ import annotations

import json
from typing import Any

from rtj_operator.api import template as pod_template
from rtj_operator.api.v1alpha1 import Job, JobSpec
from rtj_operator.build.errors import UnusableSpec
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.place import S3, StorePlace


def run_key(job: Job) -> str:
    """Return the owner key of the job's run: where its store is, whatever it is called in the pod, and the run.

    Raises UnusableSpec when the job's spec cannot be used.
    """
    if job.spec is None:
        raise UnusableSpec(job.spec_error)
    return _place_key(job, job.spec, job.spec.checkpoint.place, job.run, "spec.checkpoint.store")


def source_key(job: Job) -> tuple[str, StepName] | None:
    """Return the owner key of the run that ``spec.checkpoint.resumeFrom`` names, and the checkpoint in it; None when it names none.

    Raises UnusableSpec when the job's spec cannot be used.
    """
    if job.spec is None:
        raise UnusableSpec(job.spec_error)
    source = job.spec.checkpoint.resume_from
    if source is None:
        return None
    place = source.place
    return _place_key(job, job.spec, place.store, place.run, "spec.checkpoint.resumeFrom.uri"), place.name


def _place_key(job: Job, spec: JobSpec, store: StorePlace, run: str, field: str) -> str:
    """A bucket's name means the same everywhere. A claim is named within its namespace, so the namespace is part of a volume's key; for
    sources that are the same everywhere (an NFS export) it is part of it too, because two namespaces may mean different servers by one
    name. What another namespace writes to the same place is caught by the fence in the store.
    """
    if store.scheme == S3:
        return json.dumps([store.url, run])
    mount = pod_template.find_mount(spec.template, store.path)
    if mount is None:
        raise UnusableSpec(f"{field}: {store.path} is on no volume of the trainer container")
    path = "/".join(part.strip("/") for part in (mount.sub_path, mount.rest) if part.strip("/"))
    return json.dumps([job.namespace, _source(mount.volume), path, run], sort_keys=True)


def _source(volume: Any) -> dict[str, Any]:
    """Return the volume's source without what names it in one pod only or does not change where its files are."""
    return {kind: _place(kind, source) for kind, source in volume.items() if kind != "name"}


def _place(kind: str, source: Any) -> Any:
    if not isinstance(source, dict):
        return source
    place = {key: value for key, value in source.items() if key != "readOnly"}
    if kind == "hostPath":
        place.pop("type", None)
    if kind in ("hostPath", "nfs") and isinstance(place.get("path"), str):
        place["path"] = "/" + place["path"].strip("/")
    return place
