"""Whether the paths that ``spec.checkpoint`` names lie on volumes of the trainer container that fit them.

A store must outlive the pod and be shared; a local tier must only be writable. What a volume really is, only the cluster knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from rtj_operator.api import template as pod_template
from rtj_operator.api.checkpoint_spec import Checkpoint
from trainer_runtime.contract.place import FILE, StorePlace, parse_store

READ_ONLY_VOLUMES: Final = ("configMap", "secret", "downwardAPI", "projected", "image", "gitRepo")
NOT_SHARED_VOLUMES: Final = ("emptyDir", *READ_ONLY_VOLUMES)
"""Volume sources that end with the pod or cannot be written: a checkpoint there is no checkpoint."""


def find_volume_error(template: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    """Return the first field whose path is on no volume that fits it, and why; empty when all fit."""
    shared = {"checkpoint.store": checkpoint.place}
    if checkpoint.archive is not None:
        shared["checkpoint.archive.store"] = parse_store(checkpoint.archive.store)
    if checkpoint.resume_from is not None:
        shared["checkpoint.resumeFrom.uri"] = checkpoint.resume_from.place.store
    errors = (_error_of_store(template, field, place) for field, place in shared.items())
    return next((error for error in errors if error), "") or _error_of_local(template, checkpoint)


def _error_of_store(template: Mapping[str, Any], field: str, place: StorePlace) -> str:
    if place.scheme != FILE:
        return ""
    mount = pod_template.find_mount(template, place.path)
    if mount is None:
        return f"{field}: {place.path} is on no volume of the trainer container: it would be lost with the pod"
    source = _find_source(mount, NOT_SHARED_VOLUMES)
    if source:
        return (
            f"{field}: {place.path} is on volume {mount.volume.get('name')!r} of type {source}: not shared or not kept; "
            "use a persistentVolumeClaim, nfs, csi or hostPath volume"
        )
    return ""


def _error_of_local(template: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    if checkpoint.local is None:
        return ""
    field, path = "checkpoint.local.path", checkpoint.local.path
    for place in checkpoint.stores:
        if place.scheme == FILE and PurePosixPath(path).is_relative_to(place.path):
            return f"{field}: {path} lies in the store {place.url}; the local tier is a place of its own"
    mount = pod_template.find_mount(template, path)
    if mount is None:
        return f"{field}: {path} is on no volume of the trainer container; mount an emptyDir or a hostPath there"
    source = _find_source(mount, READ_ONLY_VOLUMES)
    if source:
        return (
            f"{field}: {path} is on volume {mount.volume.get('name')!r} of type {source}, which cannot be written; "
            "use an emptyDir or a hostPath"
        )
    return ""


def _find_source(mount: pod_template.Mount, sources: tuple[str, ...]) -> str:
    return next((source for source in sources if source in mount.volume), "")
