"""The operator itself is killed, cut off, or cannot be reached: jobs neither notice nor suffer."""

from __future__ import annotations

import pytest

from e2e.cluster.waiting import wait_until
from e2e.install import NAMESPACE
from e2e.jobs import condition, progress_step
from e2e.scenarios.stage import (
    FINISH_SECONDS,
    RECOVERY_SECONDS,
    START_SECONDS,
    Stage,
    failures,
    has_checkpoint,
    is_complete,
    running_in_attempt,
)
from e2e.workloads.job import TINY, Manifest, Workload

pytestmark = pytest.mark.e2e

LONG = Workload("tiny", steps=400, save_every=10, options=TINY.options)


def operator_pod(stage: Stage) -> dict[str, str]:
    """Name, uid and node of the operator's running pod."""
    pods = stage.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector="app.kubernetes.io/name=rtj")["items"]
    alive = [pod for pod in pods if condition(pod["status"], "Ready") == "True" and "deletionTimestamp" not in pod["metadata"]]
    return {"name": alive[0]["metadata"]["name"], "uid": alive[0]["metadata"]["uid"], "node": alive[0]["spec"]["nodeName"]} if alive else {}


def operator_restarts(stage: Stage, pod: str) -> int:
    """How often the kubelet has started the operator's container again in that pod."""
    status = stage.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")["status"]
    return sum(container["restartCount"] for container in status.get("containerStatuses", []))


def kill_operator(stage: Stage) -> None:
    """kill -9 of the operator's process on its node; returns when the kubelet has started it again.

    It starts it at once the first time, and waits longer before each later one: 10 s, 20 s, 40 s.
    """
    wait_until(lambda: bool(operator_pod(stage)), "an operator that is ready", 120)
    pod = operator_pod(stage)
    before = operator_restarts(stage, pod["name"])
    kill = "for p in /proc/[0-9]*; do grep -qz '[r]tj-operator' $p/cmdline 2>/dev/null && kill -9 ${p#/proc/} && k=1; done; test $k"
    stage.driver.exec(pod["node"], ["sh", "-c", kill])
    wait_until(lambda: operator_restarts(stage, pod["name"]) > before, f"{pod['name']} to be started again", 120)


def test_an_operator_killed_in_mid_recovery_finishes_it(stage: Stage) -> None:
    job = stage.start(stage.plan("opkill", workload=LONG))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.kill_rank(job, rank=1)
    job.wait("the stop", lambda status: "stoppingSince" in status or status["attempt"] == 2, 30)
    kill_operator(stage)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert (status["attempt"], len(failures(status))) == (2, 1), failures(status)
    assert len(job.pods(status["gang"])) == 2


def test_an_api_server_restarted_in_mid_recovery_costs_nothing_but_time(stage: Stage) -> None:
    job = stage.start(stage.plan("apirestart", workload=LONG))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    stage.kill_rank(job, rank=1)
    stage.driver.restart_apiserver()
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert (status["attempt"], len(failures(status))) == (2, 1), failures(status)


def test_blocked_heartbeats_restart_nothing_and_are_said(stage: Stage) -> None:
    job = stage.start(stage.plan("deaf", workload=LONG))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    rule = ["FORWARD", "-p", "tcp", "--dport", "8443", "-j", "DROP"]
    node = operator_pod(stage)["node"]
    # Also on its own node: a worker beside the operator reaches it over the bridge, which the same chain sees.
    stage.driver.exec(node, ["iptables", "-I", *rule])
    try:
        status = job.wait("HeartbeatsReachable=False", lambda status: condition(status, "HeartbeatsReachable") == "False", 120)
        assert status["attempt"] == 1
    finally:
        stage.driver.exec(node, ["iptables", "-D", *rule])
    status = job.wait("HeartbeatsReachable=True", lambda status: condition(status, "HeartbeatsReachable") == "True", 60)
    assert (status["attempt"], failures(status)) == (1, [])


@pytest.mark.parametrize("fault", ["crash", "partition"])
def test_the_operator_comes_back_elsewhere_when_its_node_is_gone(stage: Stage, fault: str) -> None:
    """The job runs on other nodes and never restarts for it."""
    before = operator_pod(stage)

    def keep_away(job: Manifest) -> None:
        spec = job["spec"]["template"]["spec"]
        spec["affinity"]["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [before["node"]]}]}
                ]
            }
        }

    job = stage.start(stage.plan(f"orphan-{fault}", workload=LONG), keep_away)
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    getattr(stage.driver, fault)(before["node"])
    wait_until(lambda: operator_pod(stage).get("uid", before["uid"]) != before["uid"], "an operator elsewhere", 120)
    step = progress_step(job.status())
    status = job.wait("progress under the new operator", lambda status: progress_step(status) > step + 10, 90)
    assert (status["attempt"], failures(status)) == (1, [])


def test_a_power_cut_that_takes_the_operator_and_a_worker_is_recovered_from_elsewhere(stage: Stage) -> None:
    lost = operator_pod(stage)["node"]
    other = next(name for name in stage.driver.node_names() if name != lost)

    def keep_to_two(job: Manifest) -> None:
        wish = {"key": "kubernetes.io/hostname", "operator": "In", "values": [lost, other]}
        affinity = job["spec"]["template"]["spec"]["affinity"]
        affinity["nodeAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": {"matchExpressions": [wish]}}]
        }

    job = stage.start(stage.plan("together", workload=LONG), keep_to_two)
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    assert lost in {job.node(0), job.node(1)}
    stage.driver.crash(lost)
    status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
    assert (status["attempt"], len(failures(status))) == (2, 1), failures(status)
    assert status["lastFailure"]["node"] == lost
    assert lost not in {pod["spec"].get("nodeName") for pod in job.pods(status["gang"])}


def test_the_job_ends_well_under_a_killed_operator(stage: Stage) -> None:
    job = stage.start(stage.plan("unseen"))
    job.wait("a checkpoint", has_checkpoint, START_SECONDS)
    kill_operator(stage)
    job.wait("the end", is_complete, FINISH_SECONDS)
