"""Two jobs share a run exactly when volume, path on it, and run are the same."""

from __future__ import annotations

from typing import Any

import pytest

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.run_key import run_key, source_key
from tests.api.jobs import stored
from trainer_runtime.contract.layout import StepName

VOLUMES = "spec.template.spec.volumes"
MOUNTS = "spec.template.spec.containers.0.volumeMounts"
BASE = {"spec.checkpoint.run": "r"}


def key(changes: dict[str, Any]) -> str:
    job = Job.parse(stored({**BASE, **changes}))
    assert not job.spec_error
    return run_key(job)


SAME = [
    pytest.param({"metadata.name": "other"}, id="another job with the same run"),
    pytest.param(
        {VOLUMES: [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints", "readOnly": False}}]}, id="flags"
    ),
    pytest.param(
        {
            VOLUMES: [{"name": "v", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
            MOUNTS: [{"name": "v", "mountPath": "/data"}],
            "spec.checkpoint.store": "file:///data",
        },
        id="the same place by another name in the pod",
    ),
]
OTHER = [
    pytest.param({"metadata.namespace": "other"}, id="another namespace"),
    pytest.param({"spec.checkpoint.run": "s"}, id="another run"),
    pytest.param({VOLUMES: [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "b"}}]}, id="another claim"),
    pytest.param({MOUNTS: [{"name": "checkpoints", "mountPath": "/checkpoints", "subPath": "a"}]}, id="another subPath"),
    pytest.param({"spec.checkpoint.store": "file:///checkpoints/a"}, id="a directory below"),
    pytest.param({VOLUMES: [{"name": "checkpoints", "nfs": {"server": "s", "path": "/p"}}]}, id="another kind of volume"),
]


@pytest.mark.parametrize("changes", SAME)
def test_the_same_place_has_the_same_key(changes: dict[str, Any]) -> None:
    assert key(changes) == key({})


@pytest.mark.parametrize("changes", OTHER)
def test_another_place_has_another_key(changes: dict[str, Any]) -> None:
    assert key(changes) != key({})


def test_a_sub_path_and_a_directory_that_mean_the_same_place_have_the_same_key() -> None:
    by_mount = key({MOUNTS: [{"name": "checkpoints", "mountPath": "/checkpoints", "subPath": "a"}]})
    by_path = key({"spec.checkpoint.store": "file:///checkpoints/a"})
    assert by_mount == by_path


S3 = {"spec.checkpoint.store": "s3://bucket/a", "spec.checkpoint.s3": {"endpoint": "https://s3.example"}}


def test_a_bucket_is_the_same_place_for_every_namespace_and_every_way_of_reaching_it() -> None:
    elsewhere = {**S3, "metadata.namespace": "other", "spec.checkpoint.s3": {"region": "eu-1"}}
    assert key(S3) == key(elsewhere) == key({**S3, "spec.checkpoint.store": "s3://bucket/a/"})


@pytest.mark.parametrize("changes", [{"spec.checkpoint.store": "s3://bucket/b"}, {"spec.checkpoint.run": "s"}], ids=["prefix", "run"])
def test_another_place_in_a_bucket_has_another_key(changes: dict[str, Any]) -> None:
    assert key({**S3, **changes}) != key(S3)


SOURCES = [
    pytest.param({}, "file:///checkpoints/r/steps/0000000500-00000002", id="on the same claim"),
    pytest.param({"spec.checkpoint.store": "s3://bucket/b"}, "s3://bucket/a/r/steps/0000000500-00000002", id="in a bucket"),
]


@pytest.mark.parametrize(("changes", "uri"), SOURCES)
def test_a_source_has_the_key_of_the_run_that_it_lies_in(changes: dict[str, Any], uri: str) -> None:
    user = Job.parse(stored({"spec.checkpoint.run": "other", **changes, "spec.checkpoint.resumeFrom": {"uri": uri}}))
    owner = {"spec.checkpoint.store": uri.partition("/r/")[0]}
    assert source_key(user) == (key(owner), StepName(500, 2))


def test_the_deepest_mount_counts() -> None:
    mounts = [{"name": "checkpoints", "mountPath": "/"}, {"name": "deep", "mountPath": "/checkpoints"}]
    deep = {"name": "deep", "nfs": {"server": "s", "path": "/p/"}}
    volumes = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "c"}}, deep]
    assert '"nfs": {"path": "/p", "server": "s"}' in key({MOUNTS: mounts, VOLUMES: volumes})
