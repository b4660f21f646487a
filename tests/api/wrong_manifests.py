"""Wrong manifests, and what the user is told about each. The API server (`test_wrong_manifests`) and the models (`test_job`) read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.api.jobs import REMOVED, TEMPLATE

_CONTAINER = "spec.template.spec.containers.0"


@dataclass(frozen=True)
class Wrong:
    """One wrong manifest: changes to the correct one, the field that is named, and a part of what is said."""

    id: str
    changes: dict[str, Any]
    field: str
    says: str = ""
    server_only: bool = False
    """The models cannot see it (the object's own name), so only the API server refuses it."""


WRONG = [
    Wrong("no workers", {"spec.workers": REMOVED}, "spec.workers"),
    Wrong("zero workers", {"spec.workers": 0}, "spec.workers"),
    Wrong("workers as a word", {"spec.workers": "three"}, "spec.workers"),
    Wrong("procs per worker as a word that is not auto", {"spec.procsPerWorker": "gpu"}, "spec.procsPerWorker"),
    Wrong("no processes", {"spec.procsPerWorker": 0}, "spec.procsPerWorker"),
    Wrong("no store", {"spec.checkpoint": {}}, "spec.checkpoint.store"),
    Wrong("an s3 store", {"spec.checkpoint.store": "s3://bucket/prefix"}, "spec.checkpoint.store", "s3://"),
    Wrong("a store without a scheme", {"spec.checkpoint.store": "/checkpoints"}, "spec.checkpoint.store", "file:///"),
    Wrong("a store that climbs", {"spec.checkpoint.store": "file:///checkpoints/../etc"}, "spec.checkpoint.store", "'..'"),
    Wrong("a run that climbs", {"spec.checkpoint.run": "a..b"}, "spec.checkpoint.run", "'..'"),
    Wrong("never save", {"spec.checkpoint.every": {}}, "spec.checkpoint.every", "at least one of steps and seconds"),
    Wrong("keep one checkpoint", {"spec.checkpoint.keep": {"last": 1}}, "spec.checkpoint.keep.last", "2"),
    Wrong("an unknown remediation", {"spec.recovery": {"nodeRemediation": "Delete"}}, "spec.recovery.nodeRemediation", "Cordon"),
    Wrong("a bare Off, which YAML reads as false", {"spec.recovery": {"nodeRemediation": False}}, "spec.recovery.nodeRemediation"),
    Wrong("an environment name of torchrun's", {f"{_CONTAINER}.env": [{"name": "RANK", "value": "0"}]}, f"{_CONTAINER}.env.0", "RANK"),
    Wrong("an environment name of ours", {f"{_CONTAINER}.env": [{"name": "RTJ_RUN", "value": "x"}]}, f"{_CONTAINER}.env.0", "RTJ_RUN"),
    Wrong("restarts by the kubelet", {"spec.template.spec.restartPolicy": "OnFailure"}, "spec.template.spec.restartPolicy", "Never"),
    Wrong(
        "two containers and none named trainer",
        {"spec.template.spec.containers": [{**TEMPLATE["spec"]["containers"][0], "name": name} for name in ("a", "b")]},
        "spec.template.spec.containers",
        "trainer",
    ),
    Wrong("a volume name of ours", {"spec.template.spec.volumes.0.name": "rtj"}, "spec.template.spec.volumes.0", "rtj"),
    Wrong("a name of 41 characters", {"metadata.name": "a" * 41}, "metadata.name", "40", server_only=True),
    Wrong("a name with a dot", {"metadata.name": "gpt.large"}, "metadata.name", "letters", server_only=True),
]


def as_user_writes(path: str) -> str:
    """Return a dotted path with list places as messages show them: ``containers.0`` is ``containers[0]``."""
    text = ""
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text.removeprefix(".")
