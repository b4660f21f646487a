"""What the CRD does in a real API server: defaults, what may change, the attempt that never falls, and what kubectl shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from rtj_operator.api.v1alpha1 import Every, Job, JobStatus, Keep
from tests.api.jobs import manifest
from tests.api.test_status import worst_status

pytestmark = pytest.mark.api

Create = Callable[..., str]


@pytest.fixture
def create(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Create:
    """Create the correct job with changes in a namespace of the test's own, and return the namespace."""
    namespace = f"t-{abs(hash(request.node.nodeid)) % 10**10}"
    control_plane.kubectl("create", "namespace", namespace)

    def create_job(changes: dict[str, Any] | None = None) -> str:
        document = manifest({"metadata.namespace": namespace, **(changes or {})})
        control_plane.kubectl("create", "-f", "-", stdin=json.dumps(document))
        return namespace

    return create_job


def read(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(plane.kubectl("get", "rtj", "gpt", "-n", namespace, "-o", "json"))
    return document


def patch(plane: ControlPlane, namespace: str, change: dict[str, Any], *more: str) -> None:
    plane.kubectl("patch", "rtj", "gpt", "-n", namespace, "--type=merge", "-p", json.dumps(change), *more)


def apply_status(plane: ControlPlane, namespace: str, status: dict[str, Any]) -> None:
    """Write a status as the operator does."""
    document = {
        "apiVersion": "rtj.dev/v1alpha1",
        "kind": "ResilientTrainingJob",
        "metadata": {"name": "gpt", "namespace": namespace},
        "status": status,
    }
    arguments = ("--server-side", "--subresource=status", "--force-conflicts", "--field-manager=rtj-operator", "-f", "-")
    plane.kubectl("apply", *arguments, stdin=json.dumps(document))


def test_the_servers_defaults_are_the_models(control_plane: ControlPlane, create: Create) -> None:
    namespace = create()
    document = read(control_plane, namespace)
    written = Job.parse(manifest({"metadata.namespace": namespace})).spec
    stored = Job.parse(document).spec
    assert written is not None and stored is not None
    assert stored.evolve(template=written.template) == written
    assert (stored.checkpoint.every, stored.checkpoint.keep) == (Every(seconds=1800), Keep(last=5))
    assert document["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_one_save_trigger_alone_stays_alone(control_plane: ControlPlane, create: Create) -> None:
    spec = read(control_plane, create({"spec.checkpoint.every": {"steps": 100}}))["spec"]
    assert spec["checkpoint"]["every"] == {"steps": 100}


def test_the_whole_template_is_kept(control_plane: ControlPlane, create: Create) -> None:
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    namespace = create({"spec.template.spec.tolerations": tolerations, "spec.template.spec.containers.0.env": env})
    pod = read(control_plane, namespace)["spec"]["template"]["spec"]
    assert pod["tolerations"] == tolerations
    assert pod["containers"][0]["env"] == env
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "checkpoints"}


IMMUTABLE = [
    pytest.param({"workers": 4}, "spec.workers", id="workers"),
    pytest.param({"procsPerWorker": 2}, "spec.procsPerWorker", id="procsPerWorker"),
    pytest.param({"checkpoint": {"store": "file:///checkpoints/other"}}, "spec.checkpoint.store", id="store"),
    pytest.param({"checkpoint": {"run": "other"}}, "spec.checkpoint.run", id="run, set where it was not"),
    pytest.param({"template": {"spec": {"priorityClassName": "high"}}}, "spec.template", id="a field of the template that is not declared"),
]


@pytest.mark.parametrize(("change", "field"), IMMUTABLE)
def test_what_names_the_gang_and_the_run_cannot_change(
    control_plane: ControlPlane, create: Create, change: dict[str, Any], field: str
) -> None:
    namespace = create()
    with pytest.raises(ClusterError, match=f"{field}.* is immutable"):
        patch(control_plane, namespace, {"spec": change})


MUTABLE = [
    pytest.param({"suspend": True}, id="suspend"),
    pytest.param({"checkpoint": {"every": {"steps": 10}}}, id="every"),
    pytest.param({"checkpoint": {"keep": {"last": 2, "best": {"metric": "loss"}, "daily": 7, "weekly": 4}}}, id="keep"),
    pytest.param({"checkpoint": {"allow": ["worldSize"]}}, id="allow"),
    pytest.param({"checkpoint": {"local": {"path": "/scratch"}}}, id="local"),
    pytest.param({"checkpoint": {"archive": {"store": "s3://archive/a"}, "s3": {"region": "eu-1"}}}, id="archive"),
    pytest.param(
        {"checkpoint": {"resumeFrom": {"uri": "s3://bucket/other/steps/0000000500-00000002", "mode": "WarmStart"}}}, id="resumeFrom"
    ),
    pytest.param({"recovery": {"nodeRemediation": "Off", "budgets": {"application": 0}}}, id="recovery"),
    pytest.param({"ttlSecondsAfterFinished": 60}, id="ttl"),
]


@pytest.mark.parametrize("change", MUTABLE)
def test_wishes_can_change(control_plane: ControlPlane, create: Create, change: dict[str, Any]) -> None:
    namespace = create()
    patch(control_plane, namespace, {"spec": change})
    assert read(control_plane, namespace)["metadata"]["generation"] == 2


BACKWARDS = [
    pytest.param({"attempt": 2}, id="a smaller attempt"),
    pytest.param({"attempt": None}, id="no attempt"),
    pytest.param(None, id="no status"),
]


@pytest.mark.parametrize("status", BACKWARDS)
def test_the_attempt_never_falls(control_plane: ControlPlane, create: Create, status: dict[str, Any] | None) -> None:
    namespace = create()
    apply_status(control_plane, namespace, JobStatus(attempt=3).to_api())
    with pytest.raises(ClusterError, match="status.attempt never falls"):
        patch(control_plane, namespace, {"status": status}, "--subresource=status")
    apply_status(control_plane, namespace, JobStatus(attempt=4).to_api())
    assert Job.parse(read(control_plane, namespace)).status.attempt == 4


def test_the_worst_status_is_accepted_and_reads_back(control_plane: ControlPlane, create: Create) -> None:
    namespace = create()
    written = worst_status().to_api()
    apply_status(control_plane, namespace, written)
    job = Job.parse(read(control_plane, namespace))
    assert job.status_error == ""
    assert job.status.to_api() == written


def test_kubectl_shows_the_columns(control_plane: ControlPlane, create: Create) -> None:
    namespace = create()
    status = {
        **JobStatus(attempt=4).to_api(),
        "phase": "Running",
        "workers": {"desired": 3, "ready": 3, "summary": "3/3"},
        "progress": {"step": 1840},
        "restarts": {"total": 3},
        "checkpoint": {
            "step": 1800,
            "attempt": 4,
            "uri": "file:///checkpoints/x",
            "manifestSha256": "d",
            "verifiedAt": "2020-01-01T00:00:00Z",
        },
        "excludedSummary": "n7",
        "lastFailure": {"attempt": 3, "cause": "gpu_ecc_uncorrectable", "node": "n7", "confidence": "high", "at": "2020-01-01T00:00:00Z"},
    }
    apply_status(control_plane, namespace, status)
    header, row = control_plane.kubectl("get", "rtj", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "STATE", "READY", "STEP", "CKPT", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["gpt", "Running", "3/3", "1840"]
    assert row.split()[4].endswith("d") or "y" in row.split()[4]
    wide = control_plane.kubectl("get", "training", "-n", namespace, "-o", "wide").splitlines()
    assert wide[0].split()[7:] == ["ATTEMPT", "CAUSE", "NODE", "EXCLUDED"]
    assert wide[1].split()[7:] == ["4", "gpu_ecc_uncorrectable", "n7", "n7"]


def test_kubectl_explains_every_field_of_the_spec(control_plane: ControlPlane) -> None:
    text = control_plane.kubectl("explain", "rtj.spec.checkpoint", "--recursive=false")
    assert "file:///<path>" in text
    assert "<no description>" not in text
