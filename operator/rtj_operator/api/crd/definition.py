"""The whole CustomResourceDefinition: names, versions, columns, and the schema with its rules put in."""

from __future__ import annotations

from typing import Any, Final

from rtj_operator.api import keys
from rtj_operator.api.crd.pod_template import template_schema
from rtj_operator.api.crd.rules import LIST_KEYS, RULES
from rtj_operator.api.crd.schema import structural_schema
from rtj_operator.api.v1alpha1 import JobSpec, JobStatus

NAME: Final = f"{keys.PLURAL}.{keys.GROUP}"

_ALWAYS: Final = 0
_WIDE: Final = 1
_COLUMNS: Final = (
    ("State", "string", ".status.phase", "What the job does.", _ALWAYS),
    ("Ready", "string", ".status.workers.summary", "Workers that run, of those wished.", _ALWAYS),
    ("Step", "integer", ".status.progress.step", "Optimizer steps made.", _ALWAYS),
    ("Ckpt", "date", ".status.checkpoint.verifiedAt", "Age of the newest verified checkpoint.", _ALWAYS),
    ("Restarts", "integer", ".status.restarts.total", "Attempts that followed an incident.", _ALWAYS),
    ("Age", "date", ".metadata.creationTimestamp", "Age of the job.", _ALWAYS),
    ("Attempt", "integer", ".status.attempt", "The present launch of all ranks.", _WIDE),
    ("Cause", "string", ".status.lastFailure.cause", "Cause of the newest incident.", _WIDE),
    ("Node", "string", ".status.lastFailure.node", "Node that failed first in it.", _WIDE),
    ("Excluded", "string", ".status.excludedSummary", "Nodes that the job avoids.", _WIDE),
)


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as the API server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": keys.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": keys.KIND,
                "listKind": f"{keys.KIND}List",
                "plural": keys.PLURAL,
                "singular": keys.KIND.lower(),
                "shortNames": ["rtj"],
                "categories": ["all", "training"],
            },
            "versions": [
                {
                    "name": keys.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": _root_schema()},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _root_schema() -> dict[str, Any]:
    spec = structural_schema(JobSpec, "validation")
    spec["properties"]["template"] = template_schema(spec["properties"]["template"]["description"])
    root: dict[str, Any] = {
        "type": "object",
        "description": "A PyTorch training job that heals by itself and resumes bit for bit.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this object's schema."},
            "kind": {"type": "string", "description": f"{keys.KIND}."},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},  # declared for the rules on the name
            "spec": spec,
            "status": structural_schema(JobStatus, "serialization"),
        },
    }
    for path, rules in RULES.items():
        _find(root, path)["x-kubernetes-validations"] = rules
    for path, names in LIST_KEYS.items():
        _find(root, path).update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": names})
    return root


def _find(root: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the schema at a dotted path. Raises KeyError when a rule names a field that no model has."""
    schema = root
    for name in path.split(".") if path else ():
        schema = schema["properties"][name]
    return schema
