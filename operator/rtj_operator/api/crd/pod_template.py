"""The schema of ``spec.template``: everything is kept as written, and only what a rule must see is declared.

The full schema of a pod would make the CRD larger than half a megabyte and refuse fields of newer clusters. The dry-run create of the
first pass checks the rest with the API server's own rules.
"""

from __future__ import annotations

from typing import Any

from rtj_operator.api import keys
from trainer_runtime.contract.environment import RESERVED_NAMES, RESERVED_PREFIXES

_KEEP = {"x-kubernetes-preserve-unknown-fields": True}
MAX_CONTAINERS = 16
MAX_VOLUMES = 256
MAX_ENV = 256


def template_schema(description: str) -> dict[str, Any]:
    """Return the schema, with its rules."""
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {"metadata": _metadata(), "spec": _pod_spec()},
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "spec.template is immutable"}],
    }


def _metadata() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Labels and annotations of the pods; rtj adds its own.",
        "properties": {
            "labels": _text_map("Labels of the pods.", 63),
            "annotations": _text_map("Annotations of the pods.", 262_144),
        },
    }


def _text_map(description: str, limit: int) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "maxProperties": 256,
        "additionalProperties": {"type": "string", "maxLength": limit},
    }


def _pod_spec() -> dict[str, Any]:
    trainer = keys.TRAINER_CONTAINER
    return {
        "type": "object",
        "description": "A PodSpec, as in any pod. Fields that are not listed here are kept too.",
        **_KEEP,
        "required": ["containers"],
        "properties": {
            "restartPolicy": {
                "type": "string",
                "description": "Never: restarts are the operator's.",
                "enum": ["Never"],
                "default": "Never",
            },
            "containers": _containers(f"The containers. rtj wires the only one, or the one named {trainer}.", min_items=1),
            "initContainers": _containers("Containers that run before.", min_items=0),
            "volumes": _volumes(),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.containers) == 1 || self.containers.exists_one(c, c.name == '{trainer}')",
                "message": f"needs exactly one container, or one named {trainer}",
                "fieldPath": ".containers",
            }
        ],
    }


def _containers(description: str, *, min_items: int) -> dict[str, Any]:
    return {
        "type": "array",
        "description": description,
        "minItems": min_items,
        "maxItems": MAX_CONTAINERS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "description": "A Container, as in any pod.",
            **_KEEP,
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "description": "Name of the container.", "minLength": 1, "maxLength": 63},
                "env": _env(),
            },
        },
    }


def _env() -> dict[str, Any]:
    prefixes = [f"self.name.startsWith('{prefix}')" for prefix in RESERVED_PREFIXES]
    reserved = " || ".join([*prefixes, f"self.name in {list(RESERVED_NAMES)}"])
    return {
        "type": "array",
        "description": "Environment variables; " + ", ".join([*(f"{p}*" for p in RESERVED_PREFIXES), *RESERVED_NAMES]) + " are rtj's.",
        "maxItems": MAX_ENV,
        "items": {
            "type": "object",
            "description": "An EnvVar, as in any pod.",
            **_KEEP,
            "required": ["name"],
            "properties": {"name": {"type": "string", "description": "Name of the variable.", "minLength": 1, "maxLength": 256}},
            # The rule stands on the item: one rule over all containers and variables would cost more than the API server allows.
            "x-kubernetes-validations": [
                {
                    "rule": f"!({reserved})",
                    "message": "this name is reserved: the operator sets it",
                    "messageExpression": "'env ' + self.name + ' is reserved: the operator sets it'",
                    "fieldPath": ".name",
                }
            ],
        },
    }


def _volumes() -> dict[str, Any]:
    ours = [keys.POD_VOLUME, keys.SHM_VOLUME]
    return {
        "type": "array",
        "description": "The volumes. The one that checkpoint.store lies on must be shared by all workers.",
        "maxItems": MAX_VOLUMES,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "description": "A Volume, as in any pod.",
            **_KEEP,
            "required": ["name"],
            "properties": {"name": {"type": "string", "description": "Name of the volume.", "minLength": 1, "maxLength": 63}},
            "x-kubernetes-validations": [
                {
                    "rule": f"!(self.name in {ours})",
                    "message": "this name is reserved: the operator adds that volume",
                    "messageExpression": "'volume ' + self.name + ' is reserved: the operator adds it'",
                    "fieldPath": ".name",
                }
            ],
        },
    }
