"""The examples in the repository are manifests that work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.control_plane import ControlPlane
from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").rglob("*.yaml"))


def jobs_in(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document and document["kind"] == keys.KIND]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_models_accept_an_example(file: Path) -> None:
    for document in jobs_in(file):
        assert Job.parse(document).spec_error == ""


@pytest.mark.api
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_api_server_accepts_an_example(control_plane: ControlPlane, file: Path) -> None:
    if jobs_in(file):
        control_plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(file))
