"""A job on real nodes loses ranks, pods and machines, and ends with the state of a run that lost nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from e2e.faults import ECC_LINE
from e2e.scenarios.stage import (
    FINISH_SECONDS,
    RECOVERY_SECONDS,
    START_SECONDS,
    Stage,
    failures,
    has_checkpoint,
    is_complete,
    is_finished,
    is_running,
    leaves,
    running_in_attempt,
    uninterrupted,
)
from e2e.workloads.job import TINY, Workload

pytestmark = pytest.mark.e2e

WATCHDOG_LINE = (
    "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
)


def cordoned(stage: Stage) -> set[str]:
    return {name for name, node in stage.cluster.nodes().items() if node["spec"].get("unschedulable")}


def set_condition(stage: Stage, node: str, status: str, reason: str) -> None:
    """Publish a node condition as a GPU health agent would."""
    condition = {"type": "GpuMemWatch", "status": status, "reason": reason, "message": "uncorrectable ECC error on GPU 0"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastTransitionTime": now, "lastHeartbeatTime": now}
    patch = json.dumps({"status": {"conditions": [condition | times]}})
    stage.driver.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)


def test_a_killed_pod_costs_steps_and_changes_nothing(stage: Stage) -> None:
    plan = stage.plan("killed", workers=3)
    job = stage.start(plan)
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.driver.kubectl("delete", "pod", job.pod(1)["metadata"]["name"], "--force", "--grace-period=0")
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert status["resumedFrom"]["step"] > 0
    job.wait("the end", is_complete, FINISH_SECONDS)
    assert len(leaves(plan)) > 20
    assert leaves(plan) == uninterrupted(TINY, 3)


@pytest.mark.parametrize("signal", ["SEGV", "KILL"])
def test_a_rank_killed_by_a_signal_restarts_the_gang_and_blames_no_node(stage: Stage, signal: str) -> None:
    job = stage.start(stage.plan(f"signal-{signal.lower()}"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.kill_rank(job, rank=1, signal=signal)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert status["lastFailure"]["worker"] == 1
    assert status["lastFailure"]["rank"] == 1
    assert len(failures(status)) == 1, failures(status)
    assert cordoned(stage) == set()


def test_a_power_cut_excludes_the_node_and_the_job_goes_on_elsewhere(stage: Stage) -> None:
    job = stage.start(stage.plan("powercut"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    lost = job.node(1)
    stage.driver.crash(lost)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert status["lastFailure"]["row"] == "4"
    assert status["lastFailure"]["node"] == lost
    assert lost in {item["node"] for item in status["excludedNodes"]}
    assert lost not in {pod["spec"].get("nodeName") for pod in job.pods(status["gang"])}
    assert cordoned(stage) == set()


def test_an_ecc_error_cordons_the_node_it_came_from(stage: Stage) -> None:
    job = stage.start(stage.plan("ecc"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    guilty = job.node(0)
    stage.kill_rank(job, rank=0, signal="ABRT", last_words=ECC_LINE)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert status["lastFailure"]["cause"] == "gpu_ecc_uncorrectable"
    assert status["lastFailure"]["row"] == "3"
    assert status["lastFailure"]["node"] == guilty
    assert cordoned(stage) == {guilty}
    marks = stage.cluster.nodes()[guilty]["metadata"]
    assert marks["labels"]["rtj.dev/quarantined"] == "true"
    assert marks["annotations"]["rtj.dev/cordoned-by"].startswith("default/ecc/")


def test_a_watchdog_timeout_names_a_victim_and_cordons_nobody(stage: Stage) -> None:
    job = stage.start(stage.plan("watchdog"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.kill_rank(job, rank=1, signal="ABRT", last_words=WATCHDOG_LINE)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert status["lastFailure"]["cause"] == "nccl_timeout"
    assert status["lastFailure"]["confidence"] == "low"
    assert "node" not in status["lastFailure"]
    assert status["restarts"]["hang"] == 1
    assert cordoned(stage) == set()


def test_a_worker_behind_a_partition_cannot_bring_its_checkpoints_back(stage: Stage) -> None:
    """The cut-off worker goes on until its collective fails; whatever it commits after the rollback is off the lineage."""
    plan = stage.plan("partition")
    job = stage.start(plan)
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    node = job.node(0)
    stage.driver.partition(node)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    stage.driver.heal(node)
    assert status["lastFailure"]["row"] == "4"
    job.wait("the end", is_complete, FINISH_SECONDS)
    assert leaves(plan) == uninterrupted(TINY, 2)


def test_a_worker_that_trains_on_behind_a_partition_is_fenced_off_and_changes_nothing(stage: Stage) -> None:
    """A worker alone goes on committing, for its store is still there. What it committed before its successor's fence is the successor's to
    take up; after that fence it may commit nothing more."""
    workload = Workload("tiny", steps=400, save_every=5, options=TINY.options)
    plan = stage.plan("zombie", workload=workload, workers=1)
    job = stage.start(plan)
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.driver.partition(job.node(0))
    status = job.wait("a later attempt", running_in_attempt(2), RECOVERY_SECONDS)
    job.wait("the end", is_complete, FINISH_SECONDS)
    steps = plan.shared / "default.zombie" / "steps"
    late = {int(path.name[:10]) for path in steps.glob("*-00000001") if int(path.name[:10]) > status["resumedFrom"]["step"]}
    abandoned = {item["step"] for item in job.status()["checkpoints"] if item["attempt"] == 1 and item["abandoned"]}
    assert late <= abandoned
    assert leaves(plan) == uninterrupted(workload, 1)


def test_plain_torchrun_trains_resumes_and_is_relaunched(stage: Stage) -> None:
    plan = stage.plan("plain", command=("python3", "-m", "torch.distributed.run"))
    job = stage.start(plan)
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.kill_rank(job, rank=1)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert status["resumedFrom"]["step"] > 0
    job.wait("the end", is_complete, FINISH_SECONDS)


def test_a_node_condition_published_by_a_health_agent_moves_the_job_away(stage: Stage) -> None:
    job = stage.start(stage.plan("condition"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    node = job.node(1)
    set_condition(stage, node, "True", "GpuMemWatchIsNotHealthy")
    try:
        status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    finally:
        set_condition(stage, node, "False", "GpuMemWatchIsHealthy")
    assert status["lastFailure"]["row"] == "3"
    assert cordoned(stage) == {node}


def test_a_short_network_cut_restarts_nothing(stage: Stage) -> None:
    job = stage.start(stage.plan("short", recovery={"lostNodeSeconds": 60}))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    node = job.node(1)
    before = job.status()["progress"]["step"]
    stage.driver.partition(node)
    stage.driver.exec(node, ["sleep", "4"])  # the length of the cut is the fault itself
    stage.driver.heal(node)
    status = job.wait("steps after the cut", lambda status: is_running(status) and status["progress"]["step"] > before + 5, 60)
    assert status["attempt"] == 1
    assert not is_finished(status)
