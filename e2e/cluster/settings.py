"""Names, addresses and times of the test cluster, and where it keeps its files. Values only; nothing here acts.

Everything made on the machine carries `PREFIX`, so that `down` can find it. All addresses live in network namespaces made here; the host
only has the bridge's own address and routes that make the rest of the three ranges unreachable.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "rtj"
BRIDGE: Final = f"{PREFIX}-br"
BRIDGE_HARDWARE_ADDRESS: Final = "02:72:74:6a:02:00"
"""Locally administered, as everything that no manufacturer gave out. By itself a bridge takes the lowest address of its ports."""
HOST_ADDRESS: Final = "172.31.0.1"
"""The bridge's address: the API server and the cluster's DNS listen there."""
POD_BRIDGE: Final = "cni0"
"""In each node's network namespace: its pods are connected to it."""
NODE_NETWORK: Final = ipaddress.IPv4Network("172.31.0.0/24")
POD_NETWORK: Final = ipaddress.IPv4Network("10.244.0.0/16")
SERVICE_NETWORK: Final = ipaddress.IPv4Network("10.96.0.0/16")
KUBERNETES_SERVICE_ADDRESS: Final = "10.96.0.1"
GUARDED_NETWORKS: Final = (ipaddress.IPv4Network("172.31.0.0/16"), POD_NETWORK, SERVICE_NETWORK)
GUARD_METRIC: Final = 4000
"""Higher than any route to a real node, so a guard only catches what has no better route."""
API_PORT: Final = 6443
DNS_PORT: Final = 53
CLUSTER_DOMAIN: Final = "cluster.local"
MAX_NODES: Final = 9

STATE_VARIABLE: Final = "RTJ_CLUSTER_DIR"
PAUSE_IMAGE: Final = "localhost/pause:1"
PAUSE_ARCHIVE: Final = "pause.tar"
"""In the state directory: every node imports it at its first start."""


@dataclass(frozen=True)
class Timings:
    """How fast the cluster notices a dead node. Production defaults are 50 s grace, 40 s leases and 300 s tolerations: too slow for tests.

    A node's lease is renewed every quarter of `lease_seconds`, so the grace is four missed renewals.
    """

    node_monitor_grace_seconds: int = 8
    lease_seconds: int = 8
    node_status_seconds: int = 2
    toleration_seconds: int = 5
    """From the NoExecute taint until a pod that says nothing about tolerations is deleted."""


TIMINGS: Final = Timings()


@dataclass(frozen=True)
class Node:
    """One node's number and everything that is derived from it. Numbers begin at 1."""

    index: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= MAX_NODES:
            raise ValueError(f"node number {self.index}: allowed are 1 to {MAX_NODES}")

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def address(self) -> str:
        return str(NODE_NETWORK.network_address + 10 + self.index)

    @property
    def pod_network(self) -> str:
        base = POD_NETWORK.network_address + 256 * self.index
        return f"{base}/24"

    @property
    def hardware_address(self) -> str:
        """Of the node's network card: the same after a reboot, as its peers remember it."""
        return f"02:72:74:6a:01:{self.index:02x}"

    @property
    def pod_bridge_hardware_address(self) -> str:
        """Of the bridge to which the node's pods are connected."""
        return f"02:72:74:6a:00:{self.index:02x}"

    @property
    def network_namespace(self) -> str:
        return f"{PREFIX}-node{self.index}"

    @property
    def host_link(self) -> str:
        """The host's end of the node's cable; taking it down is what unplugs the node."""
        return f"{PREFIX}-veth{self.index}"

    @property
    def cgroup(self) -> str:
        return f"{PREFIX}-node{self.index}"


def cache_directory() -> Path:
    """Return the directory for what is slow to make again (binaries, images): ``$XDG_CACHE_HOME/rtj``, by default ``~/.cache/rtj``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtj"


def state_directory() -> Path:
    """Return the directory of the running cluster's files: ``$RTJ_CLUSTER_DIR``, by default ``cluster`` in the cache directory."""
    return Path(os.environ.get(STATE_VARIABLE) or cache_directory() / "cluster").absolute()
