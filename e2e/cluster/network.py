"""The cluster's wires: one bridge on the host, and per node a network namespace with one cable (a veth pair) to that bridge.

No packet leaves the machine: nodes have no default route, and unreachable routes on the host catch whatever is sent to one of the
cluster's ranges and belongs to no node. `down` finds what to remove by its name, so it needs no memory of `up`.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.commands import run, succeeds
from e2e.cluster.errors import ClusterError
from e2e.cluster.settings import (
    BRIDGE,
    BRIDGE_HARDWARE_ADDRESS,
    GUARD_METRIC,
    GUARDED_NETWORKS,
    HOST_ADDRESS,
    NODE_NETWORK,
    POD_BRIDGE,
    PREFIX,
    SERVICE_NETWORK,
    STATE_VARIABLE,
    Node,
)
from e2e.cluster.waiting import wait_until

REMOVAL_SECONDS = 10


def up(nodes: Sequence[Node], owner: Path) -> None:
    """Lay all wires, the nodes' ends included; there must be none yet. `owner` is the state directory, noted on the bridge."""
    for network in GUARDED_NETWORKS:
        _ip("route", "add", "unreachable", str(network), "metric", str(GUARD_METRIC))
    _ip("link", "add", BRIDGE, "address", BRIDGE_HARDWARE_ADDRESS, "type", "bridge")
    _ip("link", "set", BRIDGE, "alias", str(owner))
    _ip("address", "add", f"{HOST_ADDRESS}/{NODE_NETWORK.prefixlen}", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    for node in nodes:
        _ip("route", "add", node.pod_network, "via", node.address)
        _connect(node, nodes)


def renew(node: Node, nodes: Sequence[Node]) -> None:
    """Give the node a network that knows nothing of the one before, as a reboot does. `nodes`: all of the cluster.

    The kernel keeps a pod's namespace, with its address, for as long as a socket of a killed process has something left to send: two
    minutes after a power cut. It would answer for the next pod that gets the address.
    """
    # The link first: whatever keeps the old namespace alive is cut off with it. Either may be gone: a reboot can be tried again.
    succeeds("ip", "link", "delete", node.host_link)
    succeeds("ip", "netns", "delete", node.network_namespace)
    _connect(node, nodes)


def down() -> None:
    """Remove every link, namespace and guard route of a test cluster. Safe to repeat. Raises ClusterError if some are there after 10 s."""
    wait_until(_sweep, "the end of the cluster's network", REMOVAL_SECONDS, lambda: f"still there: {', '.join(leftovers())}")


def unplug(node: Node) -> None:
    """Pull the node's cable: its peers get silence, no FIN and no reset, as from a dead machine."""
    _ip("link", "set", node.host_link, "down")


def plug_in(node: Node) -> None:
    """Put the node's cable back."""
    _ip("link", "set", node.host_link, "up")


def is_plugged_in(node: Node) -> bool:
    """Say whether the node's cable is in."""
    return any(link["ifname"] == node.host_link and "UP" in link["flags"] for link in _ip_json("link", "show"))


def owner() -> Path | None:
    """Return the state directory of the cluster whose bridge is there, or None if there is no bridge."""
    for link in _ip_json("link", "show"):
        if link["ifname"] == BRIDGE:
            return Path(link.get("ifalias", "/nowhere"))
    return None


def refuse_foreign_cluster(mine: Path) -> None:
    """Raise ClusterError if a cluster with another state directory runs here. One whose state directory is gone is fair game."""
    theirs = owner()
    if theirs is not None and theirs != mine and theirs.exists():
        raise ClusterError(
            f"another test cluster is up on this machine, and its files are in {theirs}; "
            f"remove it first: {STATE_VARIABLE}={theirs} python -m e2e.cluster down"
        )


def refuse_taken_addresses() -> None:
    """Raise ClusterError if this machine already uses one of the cluster's ranges. Call it while no cluster is up."""
    taken = [
        f"{info['local']}/{info['prefixlen']} on {link['ifname']}" for link in _ip_json("address", "show") for info in link["addr_info"]
    ]
    taken += [f"route to {route['dst']}" for route in _ip_json("route", "show") if route["dst"] != "default"]
    for use in taken:
        if overlaps_cluster(use.removeprefix("route to ").split(" ")[0]):
            ranges = ", ".join(map(str, GUARDED_NETWORKS))
            raise ClusterError(f"this machine already uses an address range of the test cluster ({ranges}): {use}")


def overlaps_cluster(address: str) -> bool:
    """Say whether an address or network (with or without /length) meets one of the cluster's ranges. IPv6 never does."""
    network = ipaddress.ip_network(address, strict=False)
    return isinstance(network, ipaddress.IPv4Network) and any(network.overlaps(guarded) for guarded in GUARDED_NETWORKS)


def leftovers() -> list[str]:
    """Return the names of all links, namespaces and guard routes of a test cluster that are there now."""
    return [*_namespaces(), *_links(), *(f"unreachable {network}" for network in _guards())]


def _connect(node: Node, nodes: Sequence[Node]) -> None:
    namespace = node.network_namespace
    _ip("netns", "add", namespace)
    card = ("name", "eth0", "address", node.hardware_address, "netns", namespace)
    _ip("link", "add", node.host_link, "type", "veth", "peer", *card)
    _ip("link", "set", node.host_link, "master", BRIDGE, "up")
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "address", "add", f"{node.address}/{NODE_NETWORK.prefixlen}", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "up")
    run("nsenter", f"--net=/run/netns/{namespace}", "sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
    # With the lowest address of its ports, all pods would send to one that is gone when that port's pod ends, for half a minute, until they
    # ask again.
    hardware_address = node.pod_bridge_hardware_address
    _ip("-n", namespace, "link", "add", POD_BRIDGE, "address", hardware_address, "type", "bridge")
    # Service addresses are rewritten before routing, yet without some route the kernel refuses to send to them at all.
    _ip("-n", namespace, "route", "add", str(SERVICE_NETWORK), "via", HOST_ADDRESS)
    for other in nodes:
        if other != node:
            _ip("-n", namespace, "route", "add", other.pod_network, "via", other.address)


def _sweep() -> bool:
    """Try to remove everything once, and say whether all is gone.

    Single failures are no errors: the kernel removes a namespace's links a moment after the namespace, perhaps between a look and a
    deletion, and a killed `up` may leave one last ip command running.
    """
    for name in _namespaces():
        succeeds("ip", "netns", "delete", name)
    for name in _links():
        succeeds("ip", "link", "delete", name)
    for network in _guards():
        succeeds("ip", "route", "delete", "unreachable", network, "metric", str(GUARD_METRIC))
    return not leftovers()


def _namespaces() -> list[str]:
    return [entry["name"] for entry in _ip_json("netns", "list") if entry["name"].startswith(f"{PREFIX}-node")]


def _links() -> list[str]:
    return [link["ifname"] for link in _ip_json("link", "show") if link["ifname"].startswith(f"{PREFIX}-")]


def _guards() -> list[str]:
    routes = _ip_json("route", "show", "type", "unreachable")
    ours = {str(network) for network in GUARDED_NETWORKS}
    return [route["dst"] for route in routes if route["dst"] in ours and route.get("metric") == GUARD_METRIC]


def _ip(*arguments: str) -> None:
    run("ip", *arguments)


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(run("ip", "-json", *arguments) or "[]")
    # ip prints an empty object for what it was asked to leave out.
    return [entry for entry in entries if entry]
