"""From apply to delete: what a user sees of a job that nothing happens to, and of one that is described wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import wait_until
from e2e.jobs import condition, verified_step
from e2e.scenarios.stage import FINISH_SECONDS, START_SECONDS, Stage, failures, has_checkpoint, is_complete, is_running

pytestmark = pytest.mark.e2e


def test_a_job_runs_to_its_end_and_shows_it(stage: Stage) -> None:
    job = stage.start(stage.plan("whole", workers=3))
    job.wait("Running", is_running, START_SECONDS)
    shown = stage.driver.kubectl("get", "rtj", "whole").splitlines()
    assert shown[0].split() == ["NAME", "STATE", "READY", "STEP", "CKPT", "RESTARTS", "AGE"]
    stage.driver.kubectl("wait", "rtj/whole", "--for=condition=Complete", f"--timeout={FINISH_SECONDS:.0f}s", seconds=FINISH_SECONDS + 10)
    status = job.status()
    assert status["phase"] == "Succeeded"
    assert (failures(status), status["checkpoint"]["step"]) == ([], 60)
    for reason in ("Started", "Running", "CheckpointVerified", "Succeeded"):
        job.wait_for_event(reason)


def test_a_template_without_a_trainer_container_is_refused_at_once(stage: Stage) -> None:
    def rename(job: dict[str, Any]) -> None:
        container = job["spec"]["template"]["spec"]["containers"][0]
        job["spec"]["template"]["spec"]["containers"] = [container | {"name": "one"}, container | {"name": "two"}]

    with pytest.raises(ClusterError, match="trainer"):
        stage.start(stage.plan("nobody"), rename)


def test_a_template_that_no_pod_can_be_made_from_is_shown_with_its_field(stage: Stage) -> None:
    def overdraw(job: dict[str, Any]) -> None:
        job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}

    job = stage.start(stage.plan("overdrawn"), overdraw)
    status = job.wait("Valid=False", lambda status: condition(status, "Valid") == "False", 30)
    message = next(item["message"] for item in status["conditions"] if item["type"] == "Valid")
    assert "requests" in message
    assert job.pods() == []


def test_a_deleted_job_leaves_no_pod_and_no_service(stage: Stage) -> None:
    job = stage.start(stage.plan("deleted"))
    job.wait("Running", is_running, START_SECONDS)
    job.delete()
    services = stage.cluster.get("/api/v1/namespaces/default/services", labelSelector="rtj.dev/job-name=deleted")["items"]
    assert services == []


def test_a_job_that_is_applied_again_continues_its_run(stage: Stage) -> None:
    plan = stage.plan("again")
    job = stage.start(plan)
    reached = verified_step(job.wait("a checkpoint", has_checkpoint, START_SECONDS))
    job.delete()
    again = stage.start(plan)
    status = again.wait("Running", lambda status: is_running(status) and "resumedFrom" in status, START_SECONDS)
    assert status["resumedFrom"]["step"] >= reached
    again.wait("the end", is_complete, FINISH_SECONDS)


def test_a_run_directory_has_one_live_owner_and_the_next_job_waits_for_it(stage: Stage) -> None:
    first = stage.plan("owner", checkpoint={"run": "shared-run"})
    second = stage.plan("waiter", checkpoint={"run": "shared-run"}, shared=first.shared)
    owner = stage.start(first)
    owner.wait("Running", is_running, START_SECONDS)
    waiter = stage.start(second)
    status = waiter.wait("Valid=False", lambda status: condition(status, "Valid") == "False", 30)
    valid = next(item for item in status["conditions"] if item["type"] == "Valid")
    assert valid["reason"] == "RunOwned"
    assert "owner" in valid["message"]
    assert waiter.pods() == []
    owner.delete()
    waiter.wait("its turn", lambda status: condition(status, "Valid") == "True" and status.get("attempt", 0) >= 1, 60)


def test_a_suspended_job_saves_leaves_its_nodes_and_comes_back(stage: Stage) -> None:
    job = stage.start(stage.plan("paused"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.driver.kubectl("patch", "rtj", "paused", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    status = job.wait("Suspended", lambda status: condition(status, "Suspended") == "True", 60)
    assert job.pods() == []
    saved = verified_step(status)
    stage.driver.kubectl("patch", "rtj", "paused", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = job.wait("Running again", lambda status: is_running(status) and status["attempt"] == 2, START_SECONDS)
    assert status["resumedFrom"]["step"] == saved
    assert failures(status) == []


def test_a_drained_worker_saves_before_it_goes_and_nothing_is_lost(stage: Stage) -> None:
    job = stage.start(stage.plan("drained"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.driver.kubectl("delete", "pod", job.pod(1)["metadata"]["name"], "--wait=false")
    status = job.wait("the second attempt", lambda status: is_running(status) and status["attempt"] == 2, START_SECONDS)
    assert status["lastFailure"]["row"] == "2"
    assert status["restarts"]["preemption"] == 1
    assert status["lastFailure"].get("lostSteps", 0) <= 1
    wait_until(lambda: len(job.pods(status["gang"])) == 2, "the pods of the new gang", 30)
