"""What a node is told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import node_config
from e2e.cluster.settings import HOST_ADDRESS, PAUSE_IMAGE, Node

PKI = Path("/state/pki")


def read(name: str) -> Any:
    text = node_config.files(Node(3), PKI)[name]
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def test_the_kubelet_keeps_its_pods_in_the_nodes_own_control_group_and_resolves_names_in_the_cluster_only() -> None:
    kubelet = read("kubelet.json")
    assert kubelet["cgroupRoot"] == "/rtj-node3"
    assert kubelet["clusterDNS"] == [HOST_ADDRESS]
    assert kubelet["resolvConf"] == ""
    assert kubelet["tlsCertFile"] == "/state/pki/node3.crt"


def test_pods_get_addresses_of_their_node_that_a_reboot_forgets() -> None:
    (bridge, _) = read("cni/10-pods.conflist")["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.3.0/24"}]]
    assert bridge["ipam"]["dataDir"].startswith("/run/")
    assert bridge["ipMasq"] is False


def test_containerd_starts_pods_with_our_pause_image() -> None:
    runtime = read("containerd.toml")["plugins"]["io.containerd.grpc.v1.cri"]
    assert runtime["sandbox_image"] == PAUSE_IMAGE


def test_kube_proxy_leaves_the_machines_connection_tracking_alone() -> None:
    assert read("kube-proxy.json")["conntrack"] == {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}


@pytest.mark.parametrize("name", ["kubelet.json", "kube-proxy.json", "cni/10-pods.conflist"])
def test_two_nodes_differ_in(name: str) -> None:
    assert node_config.files(Node(1), PKI)[name] != node_config.files(Node(2), PKI)[name]
