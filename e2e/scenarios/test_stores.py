"""Stores that cannot be used, and checkpoints that must not be: one clear message, and nothing is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from e2e import faults
from e2e.jobs import condition
from e2e.scenarios.stage import (
    FINISH_SECONDS,
    RECOVERY_SECONDS,
    START_SECONDS,
    Stage,
    has_checkpoint,
    is_complete,
    is_running,
    leaves,
    running_in_attempt,
    uninterrupted,
)
from e2e.workloads.job import TINY, Manifest, Workload

pytestmark = pytest.mark.e2e

LONG = Workload("tiny", steps=150, save_every=5, options=TINY.options)
"""30 seconds of training: longer than an API server is away."""


def words_about_the_store(status: Manifest) -> str:
    """All that the status says about the store."""
    failure = status.get("lastFailure") or {}
    conditions = [item.get("message", "") for item in status.get("conditions", []) if item["type"] == "CheckpointHealthy"]
    return " ".join([failure.get("message", ""), *conditions])


def is_unhealthy(status: Manifest) -> bool:
    return condition(status, "CheckpointHealthy") == "False"


def mount_read_only(job: dict[str, Any]) -> None:
    job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] = True


def give_each_worker_its_own(job: dict[str, Any]) -> None:
    # /run is every node's own, as a directory of a machine's own disk is.
    own = {"path": "/run/rtj-own-store", "type": "DirectoryOrCreate"}
    job["spec"]["template"]["spec"]["volumes"][0] = {"name": "checkpoints", "hostPath": own}


def keep_to_strangers(job: dict[str, Any]) -> None:
    job["spec"]["template"]["spec"]["securityContext"] = {"runAsUser": 4242, "runAsGroup": 4242}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param(mount_read_only, "read-only", id="read-only"),
        pytest.param(give_each_worker_its_own, "not shared", id="not shared between workers"),
        pytest.param(keep_to_strangers, "ermission denied", id="not writable"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_with_the_reason(stage: Stage, change: Any, word: str, request: pytest.FixtureRequest) -> None:
    name = f"store-{len(request.node.callspec.id)}"
    job = stage.start(stage.plan(name), change)
    status = job.wait("CheckpointHealthy=False", is_unhealthy, START_SECONDS)
    assert word in words_about_the_store(status)
    assert "/checkpoints" in words_about_the_store(status)


def test_a_full_store_stops_no_training_and_is_said(stage: Stage) -> None:
    plan = stage.plan("full", workers=1)
    node = stage.driver.node_names()[0]
    stage.driver.exec(node, ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(plan.shared)])

    def stay(job: dict[str, Any]) -> None:
        job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}

    try:
        job = stage.start(plan, stay)
        status = job.wait("CheckpointHealthy=False", is_unhealthy, START_SECONDS)
        assert "no space left" in words_about_the_store(status)
        assert status["attempt"] == 1
        job.delete()
    finally:
        stage.driver.exec(node, ["umount", str(plan.shared)])


def test_a_flipped_byte_is_found_and_the_older_checkpoint_is_used(stage: Stage) -> None:
    plan = stage.plan("flipped", workload=LONG)
    job = stage.start(plan)
    job.wait("two checkpoints", lambda status: has_checkpoint(status) and len(status["checkpoints"]) >= 2, START_SECONDS)
    node = job.node(0)
    stage.driver.stop_apiserver()  # so that the operator hears of the death only after the newest checkpoint is damaged
    try:
        newest = max((plan.shared / "default.flipped" / "steps").iterdir())
        flip_a_byte(max(newest.glob("data/*.safetensors"), key=lambda path: path.stat().st_size))
        faults.kill_rank(stage.driver, node, job.name, rank=0)
    finally:
        stage.driver.start_apiserver()
    job.wait("the end", is_complete, RECOVERY_SECONDS + FINISH_SECONDS)
    damaged = [item for item in job.status()["checkpoints"] if item.get("quarantined")]
    assert [f"{item['step']:010d}-{item['attempt']:08d}" for item in damaged] == [newest.name]
    job.wait_for_event("CheckpointQuarantined")
    assert leaves(plan) == uninterrupted(LONG, 2)


def flip_a_byte(path: Path) -> None:
    """Change one bit in the middle of the tensors, behind the file's back: size and times stay."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 2048] ^= 0x10
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_wiped_status_continues_from_the_store_and_not_from_zero(stage: Stage) -> None:
    job = stage.start(stage.plan("wiped", workload=LONG))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    wiped = json.dumps([{"op": "replace", "path": "/status", "value": {"attempt": job.status()["attempt"]}}])
    stage.driver.kubectl("patch", "rtj", "wiped", "--subresource=status", "--type=json", "-p", wiped)
    status = job.wait("Running after the wipe", lambda status: is_running(status) and "gang" in status, RECOVERY_SECONDS)
    stage.kill_rank(job, rank=1)
    status = job.wait("a later attempt", running_in_attempt(status["attempt"] + 1), RECOVERY_SECONDS)
    assert status["resumedFrom"]["step"] > 0
    job.wait("the end", is_complete, FINISH_SECONDS)
