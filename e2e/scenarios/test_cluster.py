"""The test cluster keeps its promises: what the other scenarios take for granted about nodes, names, images and faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.driver import ClusterDriver
from e2e.cluster.waiting import wait_until
from e2e.images import Images
from e2e.images.venv_mount import host_site_packages, with_packages

pytestmark = pytest.mark.e2e

NAMESPACE = "cluster-conformance"
POD_SECONDS = 60
NOTICE_SECONDS = 20
"""From a fault until the node is not Ready: 8 s of grace, and as much again for a slow machine."""


@pytest.fixture
def namespace(cluster: ClusterDriver) -> Iterator[str]:
    """A namespace for one test; its pods end with it."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={NAMESPACE}", "--timeout=30s")
    yield NAMESPACE
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s", seconds=90)


def test_every_node_is_ready(cluster: ClusterDriver) -> None:
    assert [ready(cluster, node) for node in cluster.node_names()] == ["True"] * 4


def test_a_pod_runs_on_each_node_and_its_words_and_exit_code_come_back(cluster: ClusterDriver, namespace: str, images: Images) -> None:
    for node in cluster.node_names():
        apply(cluster, pod(node, images.runtime.name, "print('hello'); raise SystemExit(7)", node=node))
    for node in cluster.node_names():
        wait_for_pod(cluster, node, "Failed")
        assert cluster.kubectl("logs", node, "--namespace", namespace) == "hello\n"
        assert field(cluster, f"pod/{node}", ".status.containerStatuses[0].state.terminated.exitCode") == "7"


def test_a_pod_finds_pods_that_are_not_ready_by_name_and_reaches_the_api_server(
    cluster: ClusterDriver, namespace: str, images: Images
) -> None:
    apply(cluster, {"kind": "Service", "metadata": {"name": "gang"}, "spec": NOT_READY_SERVICE})
    target = pod("target", images.runtime.name, "import time; time.sleep(600)")
    target["spec"] |= {"hostname": "target", "subdomain": "gang"}
    target["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["false"]}}
    target["metadata"]["labels"] = {"gang": "yes"}
    apply(cluster, target)
    wait_for_pod(cluster, "target", "Running")
    address = field(cluster, "pod/target", ".status.podIP")
    look = f"""
import socket, time
deadline = time.monotonic() + 20
while True:
    try:
        print(socket.gethostbyname("target.gang.{namespace}.svc.cluster.local"))
        break
    except socket.gaierror:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
socket.create_connection(("kubernetes.default.svc", 443), timeout=10).close()
"""
    apply(cluster, pod("looker", images.runtime.name, look))
    wait_for_pod(cluster, "looker", "Succeeded")
    assert cluster.kubectl("logs", "looker", "--namespace", namespace).strip() == address
    assert field(cluster, "pod/target", ".status.containerStatuses[0].ready") == "false"


def test_a_pod_imports_the_torch_of_this_machine_and_the_packages_of_its_image(
    cluster: ClusterDriver, namespace: str, images: Images
) -> None:
    code = "import torch, trainer_runtime, safetensors; print(torch.__file__, trainer_runtime.__file__, sep='\\n')"
    apply(cluster, with_packages(pod("torch", images.runtime.name, code), host_site_packages()))
    wait_for_pod(cluster, "torch", "Succeeded")
    torch_file, runtime_file = cluster.kubectl("logs", "torch", "--namespace", namespace).split()
    assert torch_file.startswith("/opt/host-packages/")
    assert runtime_file.startswith("/usr/local/lib/")


def test_the_operator_image_has_no_torch_and_no_root(cluster: ClusterDriver, namespace: str, images: Images) -> None:
    code = "import importlib.util, os; print(os.getuid(), importlib.util.find_spec('torch'), importlib.util.find_spec('kopf') is not None)"
    wanted = pod("operator", images.operator.name, code)
    wanted["spec"]["containers"][0]["command"][0] = "/opt/rtj/bin/python"
    apply(cluster, wanted)
    wait_for_pod(cluster, "operator", "Succeeded")
    assert cluster.kubectl("logs", "operator", "--namespace", namespace).split() == ["65532", "None", "True"]


def test_a_power_cut_is_noticed_by_silence_and_a_reboot_brings_the_node_back_with_a_new_boot_id(cluster: ClusterDriver) -> None:
    node = cluster.node_names()[0]
    boot_id = field(cluster, f"node/{node}", ".status.nodeInfo.bootID")
    cluster.crash(node)
    wait_until(lambda: ready(cluster, node) == "Unknown", f"{node} to be Unknown", NOTICE_SECONDS)
    cluster.reboot(node)
    assert ready(cluster, node) == "True"
    assert field(cluster, f"node/{node}", ".status.nodeInfo.bootID") != boot_id


def test_a_partitioned_node_runs_on_and_is_ready_again_after_the_heal(cluster: ClusterDriver) -> None:
    node = cluster.node_names()[1]
    boot_id = field(cluster, f"node/{node}", ".status.nodeInfo.bootID")
    cluster.partition(node)
    wait_until(lambda: ready(cluster, node) == "Unknown", f"{node} to be Unknown", NOTICE_SECONDS)
    assert cluster.exec(node, ["cat", "/proc/sys/kernel/random/boot_id"]).strip() == boot_id
    cluster.heal(node)
    wait_until(lambda: ready(cluster, node) == "True", f"{node} to be Ready", NOTICE_SECONDS)


def test_a_frozen_kubelet_makes_its_node_unknown_until_it_goes_on(cluster: ClusterDriver) -> None:
    node = cluster.node_names()[2]
    cluster.stop_kubelet(node)
    wait_until(lambda: ready(cluster, node) == "Unknown", f"{node} to be Unknown", NOTICE_SECONDS)
    cluster.continue_kubelet(node)
    wait_until(lambda: ready(cluster, node) == "True", f"{node} to be Ready", NOTICE_SECONDS)


def test_a_restarted_api_server_still_knows_everything(cluster: ClusterDriver, namespace: str) -> None:
    cluster.restart_apiserver()
    assert cluster.kubectl("get", "namespace", namespace, "--output=name").strip() == f"namespace/{namespace}"


NOT_READY_SERVICE: dict[str, Any] = {
    "clusterIP": "None",
    "selector": {"gang": "yes"},
    "publishNotReadyAddresses": True,
    "ports": [{"port": 29500}],
}


def pod(name: str, image: str, code: str, node: str | None = None) -> dict[str, Any]:
    """Return a pod that runs Python code once."""
    container = {"name": "main", "image": image, "command": ["python3", "-c", code]}
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec}


def apply(cluster: ClusterDriver, manifest: dict[str, Any]) -> None:
    """Create one object in the test's namespace."""
    cluster.kubectl("create", f"--namespace={NAMESPACE}", "--filename=-", stdin=json.dumps({"apiVersion": "v1", **manifest}))


def wait_for_pod(cluster: ClusterDriver, name: str, phase: str) -> None:
    """Wait for a pod's phase; if it does not come, the error shows the pod."""

    def description() -> str:
        return cluster.kubectl("describe", "pod", name, f"--namespace={NAMESPACE}")

    wait_until(lambda: field(cluster, f"pod/{name}", ".status.phase") == phase, f"pod {name} to be {phase}", POD_SECONDS, description)


def field(cluster: ClusterDriver, thing: str, path: str) -> str:
    """Return one field of an object, empty if it is not set."""
    return cluster.kubectl("get", thing, f"--namespace={NAMESPACE}", f"--output=jsonpath={{{path}}}")


def ready(cluster: ClusterDriver, node: str) -> str:
    """Return the status of a node's condition Ready."""
    return field(cluster, f"node/{node}", '.status.conditions[?(@.type=="Ready")].status')
