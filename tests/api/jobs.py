"""One small, correct job as a user would write it, and changes to it by dotted path."""

from __future__ import annotations

import copy
from typing import Any

TEMPLATE: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "registry.example/gpt:1",
                "command": ["rtj-run", "train.py"],
                "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
            }
        ],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
}
JOB: dict[str, Any] = {
    "apiVersion": "rtj.dev/v1alpha1",
    "kind": "ResilientTrainingJob",
    "metadata": {"name": "gpt", "namespace": "ml"},
    "spec": {"workers": 3, "template": TEMPLATE, "checkpoint": {"store": "file:///checkpoints"}},
}
STORED: dict[str, Any] = {
    "uid": "0f3c9a52-1111-4222-8333-444455556666",
    "generation": 1,
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-02T03:04:05Z",
}
REMOVED = object()


def manifest(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the job with values put (or REMOVED) at dotted paths, as a user would send it; ``a.0.b`` steps into a list."""
    document = copy.deepcopy(JOB)
    for path, value in (changes or {}).items():
        put(document, path, value)
    return document


def stored(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the job as the API server would return it, without the CRD's defaults."""
    document = copy.deepcopy(JOB)
    document["metadata"] |= STORED
    for path, value in (changes or {}).items():
        put(document, path, value)
    return document


def put(document: Any, path: str, value: Any) -> None:
    """Put a value at a dotted path, or remove what is there."""
    *parents, last = path.split(".")
    for part in parents:
        document = document[int(part)] if isinstance(document, list) else document.setdefault(part, {})
    if value is REMOVED:
        del document[last]
    elif isinstance(document, list):
        document[int(last) : int(last) + 1] = [value]
    else:
        document[last] = value
