"""Everything about a node follows from its number, and no two nodes share anything."""

from __future__ import annotations

from dataclasses import fields
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from e2e.cluster.settings import HOST_ADDRESS, MAX_NODES, NODE_NETWORK, POD_NETWORK, Node, state_directory

NODES = [Node(index) for index in range(1, MAX_NODES + 1)]


@pytest.mark.parametrize("index", [0, -1, MAX_NODES + 1])
def test_a_node_number_out_of_range_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(ValueError, match=f"allowed are 1 to {MAX_NODES}"):
        Node(index)


@pytest.mark.parametrize("what", ["name", "address", "pod_network", "network_namespace", "host_link", "cgroup"])
def test_no_two_nodes_share(what: str) -> None:
    assert len({getattr(node, what) for node in NODES}) == MAX_NODES
    assert what not in [field.name for field in fields(Node)]


def test_nodes_and_their_pods_live_in_the_guarded_networks() -> None:
    for node in NODES:
        assert IPv4Address(node.address) in NODE_NETWORK
        assert node.address != HOST_ADDRESS
        assert IPv4Network(node.pod_network).subnet_of(POD_NETWORK)


def test_a_link_has_a_name_that_the_kernel_takes() -> None:
    assert all(len(node.host_link) <= 15 for node in NODES)


def test_the_state_directory_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RTJ_CLUSTER_DIR", raising=False)
    assert state_directory() == tmp_path / "rtj" / "cluster"
    monkeypatch.setenv("RTJ_CLUSTER_DIR", "/somewhere/else")
    assert state_directory() == Path("/somewhere/else")
