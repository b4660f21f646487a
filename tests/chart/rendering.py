"""Renders the chart with the real helm and gives the objects by kind and name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.build import build
from e2e.cluster.commands import run
from e2e.cluster.tools import HELM

CHART = Path(__file__).resolve().parents[2] / "charts" / "rtj"
KUBE_VERSION = "1.36.3"
Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*arguments: str) -> str:
    """Run helm and return what it prints. Raises ClusterError with its words."""
    return run(str(build([HELM]).path("helm")), *arguments)


def render(*arguments: str) -> Objects:
    """Return what the chart would install, by (kind, name)."""
    text = helm("template", "rtj", str(CHART), "--namespace", "rtj-system", "--kube-version", KUBE_VERSION, *arguments)
    documents: Iterable[dict[str, Any]] = yaml.safe_load_all(text)
    return {(document["kind"], document["metadata"]["name"]): document for document in documents if document}


def set_values(**values: str) -> list[str]:
    """Return ``--set`` arguments; ``__`` stands for a dot."""
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def operator_environment(objects: Objects, deployment: str = "rtj") -> dict[str, str]:
    """Return the operator's environment as the deployment sets it; values from the pod itself are left out."""
    (container,) = objects["Deployment", deployment]["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
