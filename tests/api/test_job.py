"""Any object can be read; a spec that cannot be used is a message that names the field."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtj_operator.api.v1alpha1 import Every, Job, Keep, NodeRemediation
from tests.api.jobs import stored
from tests.api.wrong_manifests import WRONG, Wrong, as_user_writes

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
PATHS = [
    "metadata",
    "metadata.generation",
    "metadata.creationTimestamp",
    "spec",
    "spec.workers",
    "spec.procsPerWorker",
    "spec.template",
    "spec.template.metadata",
    "spec.template.spec",
    "spec.template.spec.affinity",
    "spec.template.spec.containers",
    "spec.template.spec.containers.0",
    "spec.template.spec.containers.0.env",
    "spec.template.spec.containers.0.volumeMounts",
    "spec.template.spec.volumes",
    "spec.checkpoint",
    "spec.checkpoint.every",
    "spec.recovery",
    "status",
    "status.conditions",
    "status.checkpoints",
]


@given(st.sampled_from(PATHS), JSON_VALUES)
def test_an_object_with_anything_anywhere_can_be_read(path: str, value: Any) -> None:
    job = Job.parse(stored({path: value}))
    assert (job.spec is None) == bool(job.spec_error)


@given(st.dictionaries(st.text(max_size=12), JSON_VALUES))
def test_any_document_can_be_read(document: dict[str, Any]) -> None:
    assert Job.parse(document).spec is None


def test_the_defaults_are_those_of_a_careful_operator() -> None:
    spec = Job.parse(stored()).spec
    assert spec is not None
    assert (spec.checkpoint.every, spec.checkpoint.keep) == (Every(seconds=1800), Keep(last=5))
    assert spec.recovery.node_remediation is NodeRemediation.CORDON
    assert (spec.recovery.start_seconds, spec.recovery.lost_node_seconds, spec.recovery.termination_seconds) == (1800, 60, 30)
    assert (spec.suspend, spec.active_deadline_seconds, spec.ttl_seconds_after_finished) == (False, None, None)


def test_identity_and_run_come_from_the_object() -> None:
    job = Job.parse(stored())
    assert (job.key, job.run, job.generation) == (("ml", "gpt"), "ml.gpt", 1)
    assert job.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert job.deletion_timestamp is None
    assert Job.parse(stored({"spec.checkpoint.run": "team-a.gpt"})).run == "team-a.gpt"


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if not wrong.server_only], ids=lambda wrong: wrong.id)
def test_a_wrong_spec_is_told_by_its_field(wrong: Wrong) -> None:
    job = Job.parse(stored(wrong.changes))
    assert job.spec is None
    assert as_user_writes(wrong.field) in job.spec_error
    assert wrong.says in job.spec_error


NOT_KEPT = [
    ("on no volume", {"spec.checkpoint.store": "file:///elsewhere"}, "on no volume of the trainer container"),
    ("on the pod's own volume", {"spec.template.spec.volumes": [{"name": "checkpoints", "emptyDir": {}}]}, "emptyDir"),
    ("on a volume that is not there", {"spec.template.spec.volumes": []}, "on no volume"),
]


@pytest.mark.parametrize(("changes", "says"), [case[1:] for case in NOT_KEPT], ids=[case[0] for case in NOT_KEPT])
def test_a_store_that_would_be_lost_with_the_pod_is_refused(changes: dict[str, Any], says: str) -> None:
    error = Job.parse(stored(changes)).spec_error
    assert error.startswith("spec.checkpoint.store: ")
    assert says in error


SCRATCH = {"name": "scratch", "mountPath": "/scratch"}
_MOUNTS = "spec.template.spec.containers.0.volumeMounts.1"
_VOLUMES = "spec.template.spec.volumes.1"
OTHER_PATHS = [
    pytest.param(
        {"spec.checkpoint.archive": {"store": "file:///archive"}}, "spec.checkpoint.archive.store", "on no volume", id="an archive on none"
    ),
    pytest.param(
        {"spec.checkpoint.resumeFrom": {"uri": "file:///other/run/steps/0000000500-00000002"}},
        "spec.checkpoint.resumeFrom.uri",
        "on no volume",
        id="a source on none",
    ),
    pytest.param({"spec.checkpoint.local": {"path": "/scratch"}}, "spec.checkpoint.local.path", "on no volume", id="a local tier on none"),
    pytest.param(
        {"spec.checkpoint.local": {"path": "/scratch/a"}, _MOUNTS: SCRATCH, _VOLUMES: {"name": "scratch", "configMap": {"name": "c"}}},
        "spec.checkpoint.local.path",
        "configMap",
        id="a local tier that cannot be written",
    ),
    pytest.param(
        {"spec.checkpoint.local": {"path": "/checkpoints/a"}}, "spec.checkpoint.local.path", "in the store", id="a local tier in the store"
    ),
]


@pytest.mark.parametrize(("changes", "field", "says"), OTHER_PATHS)
def test_a_path_that_is_on_no_fitting_volume_is_told_by_its_field(changes: dict[str, Any], field: str, says: str) -> None:
    error = Job.parse(stored(changes)).spec_error
    assert error.startswith(f"{field}: ")
    assert says in error


@pytest.mark.parametrize("source", [{"emptyDir": {}}, {"hostPath": {"path": "/mnt"}}, {"ephemeral": {}}], ids=lambda one: next(iter(one)))
def test_a_local_tier_may_be_on_a_volume_that_ends_with_the_pod(source: dict[str, Any]) -> None:
    changes = {"spec.checkpoint.local": {"path": "/scratch"}, _MOUNTS: SCRATCH, _VOLUMES: {"name": "scratch", **source}}
    assert Job.parse(stored(changes)).spec_error == ""


def test_an_s3_store_needs_no_volume() -> None:
    job = Job.parse(stored({"spec.checkpoint.store": "s3://bucket/prefix/", "spec.template.spec.volumes": []}))
    assert job.spec is not None and job.spec.checkpoint.store == "s3://bucket/prefix"


def test_s3_settings_may_be_for_the_source_alone() -> None:
    source = {"uri": "s3://bucket/other/steps/0000000500-00000002"}
    assert Job.parse(stored({"spec.checkpoint.s3": {"region": "eu-1"}, "spec.checkpoint.resumeFrom": source})).spec_error == ""


OWN = "file:///checkpoints/{run}/steps/0000000500-00000002"


@pytest.mark.parametrize(("run", "changes"), [("ml.gpt", {}), ("r", {"spec.checkpoint.run": "r"})], ids=["the default run", "a named run"])
def test_a_source_in_the_jobs_own_run_is_refused(run: str, changes: dict[str, Any]) -> None:
    job = Job.parse(stored({**changes, "spec.checkpoint.resumeFrom": {"uri": OWN.format(run=run)}}))
    assert job.spec_error.startswith("spec.checkpoint.resumeFrom.uri: ")
    assert "own run" in job.spec_error


PROCS = [
    ("auto without a GPU", {}, 1),
    ("auto with eight GPUs", {"spec.template.spec.containers.0.resources": {"limits": {"nvidia.com/gpu": "8"}}}, 8),
    ("auto with GPUs as a number", {"spec.template.spec.containers.0.resources": {"limits": {"nvidia.com/gpu": 2}}}, 2),
    ("a number", {"spec.procsPerWorker": 4}, 4),
]


@pytest.mark.parametrize(("changes", "ranks"), [case[1:] for case in PROCS], ids=[case[0] for case in PROCS])
def test_auto_means_the_gpus_of_the_trainer_else_one(changes: dict[str, Any], ranks: int) -> None:
    spec = Job.parse(stored(changes)).spec
    assert spec is not None and spec.ranks_per_worker == ranks


def test_one_status_field_that_cannot_be_read_does_not_cost_the_others() -> None:
    job = Job.parse(stored({"status": {"attempt": 4, "gang": 3, "checkpoints": [{"step": "x"}]}}))
    assert (job.status.attempt, job.status.gang, job.status.checkpoints) == (4, 3, ())
    assert job.status_error.startswith("status.checkpoints[0].step: ")
