"""The test cluster's S3 server: it serves a bucket while it is asked to, ends with that, and a job finds it as a user's job would."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from e2e import s3
from e2e.cluster import processes
from e2e.cluster.settings import STATE_VARIABLE
from e2e.workloads.job import TINY, JobPlan
from rtj_operator.api.spec import JobSpec
from tests.store.servers import client, free_port


def test_the_server_has_the_bucket_and_ends_with_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "cluster"))
    port = free_port()
    with s3.serving(tmp_path, "127.0.0.1", port) as objects:
        assert objects.endpoint == f"http://127.0.0.1:{port}"
        assert [bucket["Name"] for bucket in client(objects.endpoint).list_buckets()["Buckets"]] == [s3.BUCKET]
        assert len(list((tmp_path / "cluster").glob(f"*{processes.RECORD_SUFFIX}"))) == 1
    assert list((tmp_path / "cluster").iterdir()) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def plan(objects: s3.ObjectStore | None) -> JobPlan:
    return JobPlan("tiny", TINY, "image:1", Path("/shared"), Path("/text"), objects=objects)


def test_a_job_on_s3_names_bucket_and_endpoint_and_takes_its_keys_from_a_secret() -> None:
    made = plan(s3.ObjectStore("http://172.31.0.1:9000"))
    spec = made.job()["spec"]
    assert spec["checkpoint"]["store"] == "s3://checkpoints/tiny"
    assert spec["checkpoint"]["s3"] == {"endpoint": "http://172.31.0.1:9000", "region": "us-east-1"}
    (secret,) = [manifest for manifest in made.manifests() if manifest["kind"] == "Secret"]
    taken = [entry for entry in spec["template"]["spec"]["containers"][0]["env"] if "valueFrom" in entry]
    assert {entry["name"] for entry in taken} == set(secret["stringData"])
    assert {entry["valueFrom"]["secretKeyRef"]["name"] for entry in taken} == {secret["metadata"]["name"]}
    JobSpec.model_validate(spec)


def test_a_job_on_the_shared_directory_has_neither() -> None:
    made = plan(None)
    assert made.job()["spec"]["checkpoint"]["store"] == "file:///checkpoints"
    assert [manifest["kind"] for manifest in made.manifests()] == ["ConfigMap"]
