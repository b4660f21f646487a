"""The bare cluster leaves nothing behind on the machine, however it ended. Brings up its own; only where nodes are namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import kernel
from e2e.cluster.bare import BareCluster
from e2e.cluster.build import build
from e2e.cluster.settings import POD_BRIDGE, STATE_VARIABLE, Node
from e2e.cluster.tools import CLUSTER_TOOLS
from e2e.cluster.waiting import wait_until

pytestmark = pytest.mark.e2e

MOMENTS = {
    "settings changed": "kernel-settings.json",
    "etcd started": "etcd.proc",
    "API server started": "kube-apiserver.proc",
    "first node booted": "nodes/node1/init.proc",
    "DNS started": "coredns.proc",
}
"""Moment of `up` -> the file that appears then."""


@pytest.fixture
def no_cluster(tmp_path: Path) -> Iterator[BareCluster]:
    """A bare cluster that is not up yet, with its files in a directory of this test."""
    build(CLUSTER_TOOLS)
    BareCluster().down()  # as `up` would: what an interrupted demo or an earlier run left is in the way
    cluster = BareCluster(tmp_path / "cluster")
    # Nothing of it is there yet; but this fails at once if somebody else's cluster is.
    cluster.down()
    yield cluster
    cluster.down()


def test_down_leaves_nothing_and_can_be_repeated(no_cluster: BareCluster) -> None:
    settings = kernel_settings()
    no_cluster.up(1)
    assert no_cluster.leftovers()
    no_cluster.down()
    assert no_cluster.leftovers() == []
    no_cluster.down()
    assert no_cluster.leftovers() == []
    assert kernel_settings() == settings


@pytest.mark.parametrize("file", MOMENTS.values(), ids=MOMENTS.keys())
def test_down_leaves_nothing_after_up_was_killed_on_its_way(no_cluster: BareCluster, file: str, tmp_path: Path) -> None:
    settings = kernel_settings()
    state = tmp_path / "cluster"
    up = subprocess.Popen(
        [sys.executable, "-m", "e2e.cluster", "up", "--nodes=1"], env={**os.environ, STATE_VARIABLE: str(state), "CLUSTER": "bare"}
    )
    try:
        wait_until(lambda: (state / file).exists() or up.poll() is not None, f"{file} of a cluster on its way up", 60)
        assert up.poll() is None
    finally:
        up.send_signal(signal.SIGKILL)
        up.wait()
    no_cluster.down()
    assert no_cluster.leftovers() == []
    assert kernel_settings() == settings


def test_the_pods_of_a_node_find_their_bridge_at_one_address_whoever_comes_and_goes(no_cluster: BareCluster) -> None:
    """By itself a bridge takes the lowest address of its ports, and the others' packets go nowhere once that port is gone."""
    no_cluster.up(1)
    for command in ("link add probe address 02:00:00:00:00:01 type veth peer name peer", f"link set probe master {POD_BRIDGE} up"):
        no_cluster.exec("node1", ["ip", *command.split()])
    (bridge,) = json.loads(no_cluster.exec("node1", ["ip", "-json", "link", "show", POD_BRIDGE]))
    assert bridge["address"] == Node(1).pod_bridge_hardware_address


def test_a_reboot_leaves_nothing_of_the_network_before_and_keeps_the_node_where_its_peers_know_it(no_cluster: BareCluster) -> None:
    """Pods get the addresses of pods that died in the power cut; whatever still answers there would break their connections."""
    no_cluster.up(1)
    before = network_of("node1", no_cluster)
    for command in (
        "ip link add probe type veth peer name peer",
        f"ip link set probe master {POD_BRIDGE} up",
        f"ip neighbour add 10.244.1.9 lladdr 02:00:00:00:00:09 dev {POD_BRIDGE}",
        "iptables --new-chain BEFORE",
    ):
        no_cluster.exec("node1", command.split())
    no_cluster.crash("node1")
    no_cluster.heal("node1")
    assert "unplugged" in no_cluster.status(), "a machine without power answers nobody"
    no_cluster.reboot("node1")
    assert network_of("node1", no_cluster) == before
    assert no_cluster.exec("node1", ["ip", "neighbour", "show", "dev", POD_BRIDGE]) == ""
    assert "BEFORE" not in no_cluster.exec("node1", ["iptables", "--list-rules"])


def network_of(node: str, cluster: BareCluster) -> dict[str, str]:
    """Return the hardware address of each of a node's links."""
    return {link["ifname"]: link["address"] for link in json.loads(cluster.exec(node, ["ip", "-json", "link", "show"])) if link}


def kernel_settings() -> list[str]:
    """Return the present values of what the cluster may change."""
    return [Path("/proc/sys", *name.split(".")).read_text() for name in (*kernel.CHANGED_BY_US, *kernel.CHANGED_BY_KUBELET)]
