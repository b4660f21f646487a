"""A real API server takes the objects that are built, with every field known to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.pod import build_pod
from rtj_operator.build.service import build_service
from tests.api.jobs import stored
from tests.build.test_pod import ENDPOINT, RICH, RICH_STATUS, STATUS

pytestmark = pytest.mark.api

ACCOUNT = {"spec.template.spec.serviceAccountName": "default"}
"""The admission plugin that sets it where there are nodes is off here; without an account a pod may not ask for a token."""
KNOWN = {**{key: value for key, value in RICH.items() if "newer" not in key.lower()}, **ACCOUNT}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(build_pod(Job.parse(stored(ACCOUNT)), 0, STATUS, ENDPOINT), id="a plain pod"),
        pytest.param(build_pod(Job.parse(stored(KNOWN)), 2, RICH_STATUS, ENDPOINT), id="a pod that uses everything"),
        pytest.param(build_service(Job.parse(stored())), id="the service"),
    ],
)
def test_the_api_server_accepts_the_object(control_plane: ControlPlane, document: dict[str, Any]) -> None:
    here = {**document, "metadata": {**document["metadata"], "namespace": "default"}}
    answer = control_plane.kubectl("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", stdin=json.dumps(here))
    created = json.loads(answer)
    for key, value in here["metadata"].items():
        assert created["metadata"][key] == value
