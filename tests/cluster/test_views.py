"""Pods and Nodes as the API server shows them become the slim records that decisions look at."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from rtj_operator.api import keys
from rtj_operator.cluster.nodes import NodeRecord, parse_lease, parse_node
from rtj_operator.cluster.pods import parse_pod
from rtj_operator.decide.observation import ContainerView, NodeView, PodView, Taint
from trainer_runtime.contract.exit_report import ExitReport, Outcome

REPORT = ExitReport(attempt=3, worker_index=1, outcome=Outcome.FAILED, exit_code=139, signal=11)
POD: dict[str, Any] = {
    "metadata": {
        "name": "gpt-3-1",
        "namespace": "ml",
        "uid": "pod-1",
        "resourceVersion": "9",
        "creationTimestamp": "2026-01-02T03:00:00Z",
        "labels": {keys.JOB_UID: "job-1", keys.GANG: "3", keys.WORKER_INDEX: "1"},
        "ownerReferences": [{"uid": "job-1", "kind": keys.KIND, "controller": True}],
    },
    "spec": {"nodeName": "n7", "containers": [{"name": "main"}]},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:00:10Z"}],
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-01-02T03:00:05Z"}}}],
    },
}


def pod(**changes: Any) -> dict[str, Any]:
    """Return the pod with these parts of metadata, spec or status replaced (``metadata__labels=…``)."""
    changed = copy.deepcopy(POD)
    for path, value in changes.items():
        part, _, key = path.partition("__")
        changed[part][key] = value
    return changed


def view(document: dict[str, Any]) -> PodView:
    record = parse_pod(document)
    assert record is not None
    return record.view


def container(document: dict[str, Any]) -> ContainerView:
    found = view(document).container
    assert found is not None
    return found


def test_a_running_pod_is_read_whole() -> None:
    record = parse_pod(POD)
    assert record is not None
    assert (record.namespace, record.job_uid) == ("ml", "job-1")
    assert (record.view.name, record.view.gang, record.view.worker, record.view.node) == ("gpt-3-1", 3, 1, "n7")
    ready = record.view.condition("Ready")
    assert ready is not None and ready.at == datetime(2026, 1, 2, 3, 0, 10, tzinfo=UTC)
    assert container(POD).state == "running"
    assert record.view.deleting_since is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"metadata__labels": {keys.JOB_UID: "job-1", keys.GANG: "x", keys.WORKER_INDEX: "1"}}, id="a gang that is no number"),
        pytest.param({"metadata__labels": {keys.JOB_UID: "job-1"}}, id="labels that are missing"),
        pytest.param({"metadata__ownerReferences": []}, id="no owner: a label alone can be forged"),
        pytest.param({"metadata__ownerReferences": [{"uid": "job-2", "controller": True}]}, id="another owner"),
        pytest.param({"metadata__ownerReferences": [{"uid": "job-1"}]}, id="an owner that is not the controller"),
    ],
)
def test_a_pod_that_only_looks_like_ours_is_not_kept(changes: dict[str, Any]) -> None:
    assert parse_pod(pod(**changes)) is None


def test_deleting_since_is_when_the_deletion_was_asked_for_not_when_it_ends() -> None:
    deleting = view(pod(metadata__deletionTimestamp="2026-01-02T03:10:30Z", metadata__deletionGracePeriodSeconds=30))
    assert deleting.deleting_since == datetime(2026, 1, 2, 3, 10, 0, tzinfo=UTC)


def terminated(message: str, **more: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 139, "reason": "Error", "message": message, **more}}
    return pod(status__phase="Failed", status__containerStatuses=[{"name": "main", "state": state}])


def test_an_exit_report_in_the_termination_message_is_read() -> None:
    ended = container(terminated(REPORT.termination_message().decode()))
    assert (ended.state, ended.exit_code, ended.report, ended.message) == ("terminated", 139, REPORT, "")


@pytest.mark.parametrize(
    "message",
    ["", " \n", "Traceback: boom", '{"version": "9.0"}'],
    ids=["no message", "blanks", "another program's words", "a version we do not speak"],
)
def test_a_termination_message_that_is_no_report_is_kept_as_text(message: str) -> None:
    ended = container(terminated(message))
    assert ended.report is None
    assert ended.message == message


def test_among_several_containers_the_one_named_trainer_counts() -> None:
    statuses = [
        {"name": "sidecar", "state": {"terminated": {"exitCode": 1}}},
        {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
    ]
    many = pod(spec__containers=[{"name": "sidecar"}, {"name": "trainer"}], status__containerStatuses=statuses)
    assert container(many) == ContainerView(state="waiting", reason="ImagePullBackOff", message="no such image")


def test_a_pod_without_any_status_is_pending() -> None:
    bare = copy.deepcopy(POD)
    bare["status"] = {}
    del bare["spec"]["nodeName"]
    assert (view(bare).phase, view(bare).node, view(bare).container) == ("Pending", None, None)


def test_a_node_is_read_with_our_annotations_only_and_its_newest_sign_of_life() -> None:
    document = {
        "metadata": {
            "name": "n7",
            "uid": "node-1",
            "resourceVersion": "5",
            "labels": {"zone": "a"},
            "annotations": {keys.CORDONED_BY: "ml/gpt/u", "kubelet/secret": "x"},
        },
        "spec": {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
        "status": {
            "nodeInfo": {"bootID": "boot-1"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": "2026-01-02T03:00:30Z"},
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:00:10Z"},
            ],
        },
    }
    record = parse_node(document)
    node = record.view
    assert (node.is_ready, node.unschedulable, node.boot_id, node.resource_version) == (True, True, "boot-1", "5")
    assert node.annotations == {keys.CORDONED_BY: "ml/gpt/u"}
    assert node.taints == (Taint("node.kubernetes.io/unschedulable", "NoSchedule"),)
    assert record.heartbeat_at == datetime(2026, 1, 2, 3, 0, 30, tzinfo=UTC)


def test_a_node_that_never_reported_is_of_unknown_readiness() -> None:
    record = parse_node({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}})
    assert record == NodeRecord(NodeView(name="n", uid="u", ready="Unknown", resource_version="1"), None)


def test_a_lease_tells_when_it_was_renewed() -> None:
    assert parse_lease({"spec": {"renewTime": "2026-01-02T03:04:05.123456Z"}}) == datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
    assert parse_lease({}) is None
