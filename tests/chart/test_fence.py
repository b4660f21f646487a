"""Installed in a real API server: rights are what the chart says, upgrades keep the certificate, and the fence holds on nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.build import build
from e2e.cluster.commands import run
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.tools import HELM
from e2e.cluster.waiting import wait_until
from tests.chart.rendering import CHART

pytestmark = pytest.mark.api

VALUES = Path(__file__).with_name("no-crd-values.yaml")
"""The session's API server has the CRD already, from another field manager."""
ACCOUNT = "system:serviceaccount:rtj-system:rtj"
MINE = {"rtj.dev/cordoned-by": "ml/gpt/uid"}
CORDON = {"metadata": {"annotations": MINE, "labels": {"rtj.dev/quarantined": "true"}}, "spec": {"unschedulable": True}}


class Installation:
    """A release of the chart, and the operator's account as kubectl uses it."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._kubeconfig = plane.user_kubeconfig(ACCOUNT)
        self._programs = build([HELM])

    def helm(self, *arguments: str) -> None:
        helm = str(self._programs.path("helm"))
        run(helm, "--kubeconfig", str(self.plane.kubeconfig), "--namespace", "rtj-system", *arguments)

    def as_operator(self, *arguments: str) -> str:
        return self.plane.kubectl("--kubeconfig", str(self._kubeconfig), *arguments)

    def patch_node(self, change: dict[str, Any], *more: str) -> None:
        self.as_operator("patch", "node", "n1", "--type=merge", "-p", json.dumps(change), *more)


@pytest.fixture(scope="module")
def installation(control_plane: ControlPlane) -> Iterator[Installation]:
    installed = Installation(control_plane)
    installed.helm("install", "rtj", str(CHART), "--create-namespace", "--values", str(VALUES))
    make_node(control_plane, {})
    wait_until(lambda: is_fenced(installed), "the policy to act", 30)
    yield installed
    installed.helm("uninstall", "rtj")


def is_fenced(installed: Installation) -> bool:
    try:
        installed.patch_node({"metadata": {"labels": {"probe": "x"}}}, "--dry-run=server")
    except ClusterError:
        return True
    return False


def make_node(plane: ControlPlane, changes: dict[str, Any]) -> None:
    plane.kubectl("delete", "node", "n1", "--ignore-not-found")
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"zone": "a"}}}
    plane.kubectl("create", "-f", "-", stdin=json.dumps(node))
    if changes:
        plane.kubectl("patch", "node", "n1", "--type=merge", "-p", json.dumps(changes))


ALLOWED = [
    pytest.param({}, CORDON, id="cordon with a record of who"),
    pytest.param(CORDON, {"metadata": {"annotations": {"rtj.dev/cordoned-by": None}}, "spec": {"unschedulable": None}}, id="uncordon"),
    pytest.param({"spec": {"unschedulable": True}}, {"metadata": {"annotations": {"rtj.dev/strikes": "x"}}}, id="a strike"),
]


@pytest.mark.parametrize(("before", "change"), ALLOWED)
def test_what_the_operator_does_to_nodes_is_allowed(installation: Installation, before: dict[str, Any], change: dict[str, Any]) -> None:
    make_node(installation.plane, before)
    installation.patch_node(change)


EXCLUDED = {"metadata": {"labels": {"rtj.dev/exclude-from-remediation": "true"}}}
REFUSED = [
    pytest.param({}, {"spec": {"unschedulable": True}}, "cordoned-by", id="cordon without a record"),
    pytest.param({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}, "cordoned itself", id="uncordon another's cordon"),
    pytest.param(EXCLUDED, CORDON, "exclude-from-remediation", id="cordon a node that people keep out"),
    pytest.param(EXCLUDED, {"metadata": {"labels": {"rtj.dev/exclude-from-remediation": None}}}, "quarantined", id="take that label away"),
    pytest.param({}, {"metadata": {"labels": {"zone": "b"}}}, "label", id="a foreign label"),
    pytest.param({}, {"metadata": {"annotations": {"note": "x"}}}, "annotations", id="a foreign annotation"),
    pytest.param({}, {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}, "unschedulable", id="a taint"),
    pytest.param({}, {"metadata": {"finalizers": ["x.example/y"]}}, "unschedulable", id="a finalizer"),
]


@pytest.mark.parametrize(("before", "change", "says"), REFUSED)
def test_anything_else_is_refused(installation: Installation, before: dict[str, Any], change: dict[str, Any], says: str) -> None:
    make_node(installation.plane, before)
    with pytest.raises(ClusterError, match=f"denied request.*{says}"):
        installation.patch_node(change)


def test_an_upgrade_keeps_the_certificate(installation: Installation) -> None:
    def secret() -> str:
        return installation.plane.kubectl("get", "secret", "rtj-heartbeat-tls", "-n", "rtj-system", "-o", "jsonpath={.data}")

    before = secret()
    installation.helm("upgrade", "rtj", str(CHART), "--values", str(VALUES), "--set", "log.level=DEBUG")
    assert secret() == before


CAN = [
    pytest.param("list", "rtj", True, id="list jobs"),
    pytest.param("patch", "rtj/status", True, id="write a status"),
    pytest.param("patch", "rtj", False, id="change a job"),
    pytest.param("create", "pods", True, id="create pods"),
    pytest.param("create", "pods/exec", False, id="run something in a pod"),
    pytest.param("get", "pods/log", False, id="read logs"),
    pytest.param("patch", "pods", False, id="change a pod"),
    pytest.param("get", "secrets", False, id="read secrets"),
    pytest.param("patch", "nodes", True, id="write nodes"),
    pytest.param("patch", "nodes/status", False, id="write a node's status"),
    pytest.param("delete", "nodes", False, id="delete nodes"),
]


@pytest.mark.parametrize(("verb", "resource", "allowed"), CAN)
def test_the_api_server_gives_the_operator_these_rights(installation: Installation, verb: str, resource: str, allowed: bool) -> None:
    (plural, _, subresource) = resource.partition("/")
    question = ("auth", "can-i", verb, plural, f"--subresource={subresource}", "--all-namespaces")
    if allowed:
        assert "yes" in installation.as_operator(*question)
    else:
        with pytest.raises(ClusterError, match=": no$"):
            installation.as_operator(*question)
