"""The CEL rules of the CRD, by the path of the field they stand on. What a type or a bound can say is in the models instead.

`api.spec` holds the same rules for objects that were stored before a rule existed.
"""

from __future__ import annotations

from typing import Any, Final

MAX_NAME: Final = 40
"""Characters of a job's name: ``<job>-<gang>-<worker>`` must fit into a host name (63), with 8 digits of gang and 4 of worker to spare."""


def _immutable(path: str) -> dict[str, str]:
    return {"rule": "self == oldSelf", "message": f"{path} is immutable"}


RULES: Final[dict[str, list[dict[str, Any]]]] = {
    "": [
        {
            "rule": f"size(self.metadata.name) <= {MAX_NAME}",
            "message": f"metadata.name must have at most {MAX_NAME} characters: pod and host names are made from it",
            "fieldPath": ".metadata.name",
        },
        {
            "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "message": "metadata.name must be lower-case letters, digits and '-', begin with a letter and not end with '-'",
            "fieldPath": ".metadata.name",
        },
        {
            # At the root, because a rule on status never runs when status is removed.
            "rule": (
                "!has(oldSelf.status) || !has(oldSelf.status.attempt) || "
                "(has(self.status) && has(self.status.attempt) && self.status.attempt >= oldSelf.status.attempt)"
            ),
            "message": "status.attempt never falls",
            "fieldPath": ".status.attempt",
        },
    ],
    "spec.workers": [_immutable("spec.workers")],
    "spec.procsPerWorker": [
        {
            "rule": "type(self) == int ? self >= 1 && self <= 64 : self == 'auto'",
            "message": "spec.procsPerWorker must be an integer from 1 to 64, or auto",
        },
        _immutable("spec.procsPerWorker"),
    ],
    "spec.checkpoint": [
        {
            "rule": "has(self.run) == has(oldSelf.run) && (!has(self.run) || self.run == oldSelf.run)",
            "message": "spec.checkpoint.run is immutable",
            "fieldPath": ".run",
        },
    ],
    "spec.checkpoint.store": [
        {
            "rule": "!self.startsWith('s3://')",
            "message": "spec.checkpoint.store: s3:// does not work in this version; use file:///<path> on a volume that all workers share",
        },
        {
            "rule": "self.startsWith('s3://') || (self.matches('^file:///[^/]') && !self.matches('/[.][.](/|$)'))",
            "message": "spec.checkpoint.store must be file:///<path> with an absolute path below / and without '..'",
        },
        _immutable("spec.checkpoint.store"),
    ],
    "spec.checkpoint.run": [
        {
            "rule": "self.matches('^[a-z0-9][a-z0-9._-]{0,127}$') && !self.contains('..')",
            "message": "spec.checkpoint.run must be lower-case letters, digits, '.', '_' and '-', begin with a letter or digit, "
            "and not contain '..'",
        },
    ],
    "spec.checkpoint.every": [
        {
            "rule": "has(self.steps) || has(self.seconds)",
            "message": "spec.checkpoint.every needs at least one of steps and seconds",
        },
    ],
}

LIST_KEYS: Final[dict[str, list[str]]] = {"status.conditions": ["type"]}
"""Lists that are merged by key when several managers apply; every other list is replaced as a whole."""
