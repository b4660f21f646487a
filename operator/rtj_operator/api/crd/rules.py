"""The CEL rules of the CRD, by the path of the field they stand on. What a type or a bound can say is in the models instead.

`api.spec` holds the same rules for objects that were stored before a rule existed.
"""

from __future__ import annotations

from typing import Any, Final

from trainer_runtime.contract.place import BUCKET, FORMS, PREFIX, S3_FORM

MAX_NAME: Final = 40
"""Characters of a job's name: ``<job>-<gang>-<worker>`` must fit into a host name (63), with 8 digits of gang and 4 of worker to spare."""


def _immutable(path: str) -> dict[str, str]:
    return {"rule": "self == oldSelf", "message": f"{path} is immutable"}


def _store_rules(path: str) -> list[dict[str, Any]]:
    # each rule lets the other schemes pass, so that one mistake is told once
    return [
        {"rule": "self.startsWith('s3://') || self.startsWith('file://')", "message": f"{path} must be {FORMS}"},
        {
            "rule": "!self.startsWith('file://') || (self.matches('^file:///[^/]') && !self.matches('/[.][.](/|$)'))",
            "message": f"{path} must be file:///<path> with an absolute path below / and without '..'",
        },
        {
            "rule": f"!self.startsWith('s3://') || (self.matches('^s3://{BUCKET}{PREFIX}$') && !self.matches('^s3://[^/]*[.][.]') && "
            "!self.matches('^s3://[0-9]+([.][0-9]+){3}(/|$)') && !self.matches('/[.][.]?(/|$)'))",
            "message": f"{path} must be {S3_FORM}",
        },
    ]


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
        {
            "rule": "!has(self.s3) || self.store.startsWith('s3://') || (has(self.archive) && self.archive.store.startsWith('s3://')) || "
            "(has(self.resumeFrom) && self.resumeFrom.uri.startsWith('s3://'))",
            "message": "spec.checkpoint.s3 is set, and none of store, archive.store and resumeFrom.uri begins with s3://",
            "fieldPath": ".s3",
        },
        {
            "rule": "!has(self.archive) || self.archive.store != self.store",
            "message": "spec.checkpoint.archive.store is the same place as spec.checkpoint.store",
            "fieldPath": ".archive",
        },
        {
            "rule": "!has(self.resumeFrom) || !self.startFresh",
            "message": "spec.checkpoint.startFresh and spec.checkpoint.resumeFrom exclude each other; to begin anew from another run's "
            "checkpoint choose a new run",
            "fieldPath": ".resumeFrom",
        },
    ],
    "spec.checkpoint.store": [*_store_rules("spec.checkpoint.store"), _immutable("spec.checkpoint.store")],
    "spec.checkpoint.archive.store": _store_rules("spec.checkpoint.archive.store"),
    "spec.checkpoint.resumeFrom.uri": [
        {
            "rule": "self.matches('^(file:///[^/]|s3://).*/[a-z0-9][a-z0-9._-]{0,127}/steps/[0-9]{10}-[0-9]{8}/?$') && "
            "!self.matches('/[.][.]?(/|$)')",
            "message": "spec.checkpoint.resumeFrom.uri must be <store>/<run>/steps/<step 10 digits>-<attempt 8 digits>, with a store of "
            f"{FORMS}",
        },
    ],
    "spec.checkpoint.s3.endpoint": [
        {
            "rule": "self.matches('^https?://[^/@[:space:]][^@[:space:]]*$')",
            "message": "spec.checkpoint.s3.endpoint must be https://<host> or http://<host>, without a user name",
        },
    ],
    "spec.checkpoint.local.path": [
        {
            "rule": "self.matches('^/[^/]') && !self.matches('/[.][.](/|$)')",
            "message": "spec.checkpoint.local.path must be an absolute path below / without '..'",
        },
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
