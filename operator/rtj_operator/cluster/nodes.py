"""All Nodes of the cluster, with the newest sign of life of each. Without the right to read them: an empty map.

The node's own lease is the better sign (renewed every 10 s); a kubelet writes its conditions only every 5 min when nothing changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from rtj_operator.api import keys
from rtj_operator.api.template import gpu_count
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from rtj_operator.cluster.informer import Informer, Source
from rtj_operator.cluster.outage import utc_now
from rtj_operator.cluster.sightings import Sightings
from rtj_operator.cluster.times import parse_time
from rtj_operator.decide.observation import NodeCondition, NodeView, Taint

log = logging.getLogger(__name__)

NODES_PATH: Final = "/api/v1/nodes"
NODE_LEASES_PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OURS: Final = "rtj.dev/"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One Node and what its conditions say of its life."""

    view: NodeView
    heartbeat_at: datetime | None
    """The newest heartbeat of its conditions, by the node's own clock."""


def parse_node(node: dict[str, Any]) -> NodeRecord:
    """Return the slim record of a Node."""
    metadata, status = node["metadata"], node.get("status") or {}
    conditions = tuple(
        NodeCondition(
            type=condition["type"],
            status=condition["status"],
            reason=condition.get("reason", ""),
            message=condition.get("message", ""),
            transitioned_at=parse_time(condition.get("lastTransitionTime")),
        )
        for condition in status.get("conditions") or ()
    )
    heartbeats = [parse_time(condition.get("lastHeartbeatTime")) for condition in status.get("conditions") or ()]
    ready = next((condition for condition in conditions if condition.type == "Ready"), None)
    taints = (node.get("spec") or {}).get("taints") or ()
    view = NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        ready=ready.status if ready else "Unknown",
        resource_version=metadata["resourceVersion"],
        boot_id=(status.get("nodeInfo") or {}).get("bootID", ""),
        unschedulable=bool((node.get("spec") or {}).get("unschedulable")),
        conditions=conditions,
        taints=tuple(Taint(taint["key"], taint["effect"], taint.get("value", "")) for taint in taints),
        labels=metadata.get("labels") or {},
        annotations={key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith(OURS)},
        gpus=gpu_count((status.get("capacity") or {}).get(keys.GPU_RESOURCE)),
    )
    return NodeRecord(view, max((at for at in heartbeats if at is not None), default=None))


def parse_lease(lease: dict[str, Any]) -> datetime | None:
    """Return when a node's lease was last renewed, by the node's own clock."""
    return parse_time((lease.get("spec") or {}).get("renewTime"))


class NodeCache:
    """Every Node by name. ``on_change`` gets the node's name for every change of the Node, not for a renewed lease."""

    def __init__(self, client: KubeClient, on_change: Callable[[str], None], clock: Callable[[], datetime] = utc_now) -> None:
        self._client = client
        self._on_change = on_change
        self._nodes: dict[str, NodeView] = {}
        self._heartbeats = Sightings(clock)
        self._leases = Sightings(clock)
        self._informer: Informer[NodeRecord] | None = None
        self.informers: list[Informer[Any]] = []

    async def prepare(self) -> None:
        """Find out what may be read, and make the informers for it. Without node rights there is none."""
        sees_nodes = await self._is_readable(NODES_PATH)
        sees_leases = sees_nodes and await self._is_readable(NODE_LEASES_PATH)
        if not sees_nodes:
            log.warning("no right to list nodes: lost nodes are recognised by their pods alone, jobs avoid bad ones, and none is cordoned")
            return
        self._informer = Informer(self._client, Source(NODES_PATH), parse_node, self._node_changed)
        self.informers.append(self._informer)
        if sees_leases:
            self.informers.append(Informer(self._client, Source(NODE_LEASES_PATH), parse_lease, self._lease_changed))
        else:
            log.warning("no right to list leases in kube-node-lease: a node's last sign of life is its conditions' heartbeat")

    @property
    def sees_nodes(self) -> bool:
        """Whether Nodes are watched, which is settled once, by `prepare`."""
        return self._informer is not None

    def all(self) -> Mapping[str, NodeView]:
        """Return a copy of the map of all Nodes."""
        return dict(self._nodes)

    def wrote(self, node: dict[str, Any]) -> None:
        """Take a Node that we wrote: the next cordon is weighed with this one in sight."""
        if self._informer is not None:
            self._informer.note(node)

    def count_annotated(self, annotation: str) -> int:
        """Return how many Nodes carry that annotation of ours."""
        return sum(annotation in node.annotations for node in self._nodes.values())

    async def _is_readable(self, path: str) -> bool:
        try:
            await self._client.request("GET", path, query=[("limit", "1")])
        except ApiError as error:
            if error.status in (401, 403):
                return False
            raise
        return True

    def _node_changed(self, name: str, _before: NodeRecord | None, after: NodeRecord | None) -> None:
        self._heartbeats.note(name, after.heartbeat_at if after is not None else None)
        if after is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = self._with_sign(after.view)
        self._on_change(name)

    def _lease_changed(self, key: str, _before: datetime | None, after: datetime | None) -> None:
        name = key.rpartition("/")[2]
        self._leases.note(name, after)
        node = self._nodes.get(name)
        if node is not None:
            self._nodes[name] = self._with_sign(node)

    def _with_sign(self, node: NodeView) -> NodeView:
        signs = (self._heartbeats.at(node.name), self._leases.at(node.name))
        return replace(node, alive_at=max((at for at in signs if at is not None), default=None))
