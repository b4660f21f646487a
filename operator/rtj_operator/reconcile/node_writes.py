"""The operator's two writes to a Node: a cordon with its owner, reason and time, and a strike. Both read the Node past all caches first.

The caches say what was true when the plan was made. A cordon takes a machine from everybody, so it is decided again on the fresh Node:
still schedulable, still the same boot, still not opted out. Otherwise nothing is written and the next pass sees why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from rtj_operator.cluster.times import second_time
from rtj_operator.decide.plan import CordonNode, StrikeNode

log = logging.getLogger(__name__)

TRIES: Final = 5
"""Tries against a Node that changes between our read and our write: a kubelet writes its status every few seconds at most."""
MAX_STRIKES: Final = 20
"""Strikes kept on a Node, newest last: 20 entries are about 1.5 KB of annotation."""

Node = dict[str, Any]


class NodeWriter:
    """Writes to Nodes, always with the resourceVersion that was just read."""

    def __init__(self, client: KubeClient, on_cordon: Callable[[], None]) -> None:
        self._client = client
        self._on_cordon = on_cordon

    async def cordon(self, job: Job, action: CordonNode) -> bool:
        """Make the Node unschedulable and put our ownership on it, in one patch. Returns whether the Node carries this cordon now."""
        owner = f"{job.namespace}/{job.name}/{job.uid}"

        def patch(node: Node) -> Node | None:
            spec, metadata = node.get("spec") or {}, node["metadata"]
            boot_id = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
            if spec.get("unschedulable") or keys.EXCLUDE_FROM_REMEDIATION in (metadata.get("labels") or {}) or boot_id != action.boot_id:
                return None
            annotations = {
                keys.CORDONED_BY: owner,
                keys.CORDONED_REASON: action.reason,
                keys.CORDONED_INCIDENT: str(action.incident),
                keys.CORDONED_TIME: second_time(action.at),
                keys.CORDONED_BOOT_ID: action.boot_id,
            }
            return {"metadata": {"annotations": annotations, "labels": {keys.QUARANTINED_LABEL: "true"}}, "spec": {"unschedulable": True}}

        done = await self._patch(action.node, patch)
        if done:
            log.warning("cordoned node %s for %s, incident %d: %s", action.node, owner, action.incident, action.reason)
            self._on_cordon()
        else:
            log.info("node %s was not cordoned: it is cordoned, restarted, opted out or gone by now", action.node)
        return done

    async def strike(self, job: Job, action: StrikeNode) -> bool:
        """Add one strike to the Node's annotation; the same incident counts once. Returns whether it was written now."""
        incident = f"{job.namespace}/{job.name}/{action.incident}"

        def patch(node: Node) -> Node | None:
            metadata = node["metadata"]
            if keys.EXCLUDE_FROM_REMEDIATION in (metadata.get("labels") or {}):
                return None
            strikes = [entry for entry in ((metadata.get("annotations") or {}).get(keys.STRIKES) or "").split(",") if entry]
            if any(entry.endswith(f"={incident}") for entry in strikes):
                return None
            strikes.append(f"{second_time(action.at)}={action.reason}={incident}")
            return {"metadata": {"annotations": {keys.STRIKES: ",".join(strikes[-MAX_STRIKES:])}}}

        return await self._patch(action.node, patch)

    async def _patch(self, name: str, make: Callable[[Node], Node | None]) -> bool:
        for tries_left in reversed(range(TRIES)):
            node = await calls.get_node(self._client, name)
            patch = make(node) if node is not None else None
            if node is None or patch is None:
                return False
            patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"]
            try:
                await calls.patch_node(self._client, name, patch)
            except ApiError as error:
                if error.status != 409 or not tries_left:
                    raise
            else:
                return True
        return False
