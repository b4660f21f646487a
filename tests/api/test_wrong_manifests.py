"""A wrong manifest is refused at apply by the API server itself, with a message that names the field."""

from __future__ import annotations

import json

import pytest

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from tests.api.jobs import manifest
from tests.api.wrong_manifests import WRONG, Wrong, as_user_writes

pytestmark = pytest.mark.api


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.id)
def test_a_wrong_manifest_is_refused_by_its_field(control_plane: ControlPlane, wrong: Wrong) -> None:
    document = manifest({"metadata.namespace": "default", **wrong.changes})
    with pytest.raises(ClusterError) as refusal:
        control_plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
    assert as_user_writes(wrong.field) in str(refusal.value)
    assert wrong.says in str(refusal.value)


def test_the_manifest_that_they_are_made_from_is_accepted(control_plane: ControlPlane) -> None:
    document = manifest({"metadata.namespace": "default"})
    control_plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
