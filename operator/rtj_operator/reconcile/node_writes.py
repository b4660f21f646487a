"""The operator's three writes to a Node: a cordon with its owner, reason and time, the end of one, and a strike.

All read the Node past all caches first, because the caches say what was true when the plan was made. A cordon takes a machine from
everybody, so it is decided again on the fresh Node: still schedulable, still the same boot, still not opted out, still within the breaker's
limits. Otherwise nothing is written and the next pass sees why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from rtj_operator.cluster.times import second_time
from rtj_operator.decide.plan import CordonNode, ReleaseNode, StrikeNode

log = logging.getLogger(__name__)

TRIES: Final = 5
"""Tries against a Node that changes between our read and our write: a kubelet writes its status every few seconds at most."""
MAX_STRIKES: Final = 20
"""Strikes kept on a Node, newest last: 20 entries are about 1.5 KB of annotation."""

CORDON_ANNOTATIONS: Final = (
    keys.CORDONED_BY,
    keys.CORDONED_REASON,
    keys.CORDONED_INCIDENT,
    keys.CORDONED_TIME,
    keys.CORDONED_BOOT_ID,
)
Node = dict[str, Any]


class NodeWriter:
    """Writes to Nodes, always with the resourceVersion that was just read."""

    def __init__(
        self, client: KubeClient, on_cordon: Callable[[], None], on_written: Callable[[Node], None], breaker: Callable[[Job], str]
    ) -> None:
        """``on_written`` takes the Node as our write left it; ``breaker`` says what forbids a job one more cordon now, "" for nothing."""
        self._client = client
        self._on_cordon = on_cordon
        self._on_written = on_written
        self._breaker = breaker
        self._cordoning = asyncio.Lock()

    @property
    def is_cordoning(self) -> bool:
        """Whether a cordon is being written now, which another one would wait for."""
        return self._cordoning.locked()

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

        # One at a time: passes of several jobs were planned before any of their cordons could be seen.
        async with self._cordoning:
            obstacle = self._breaker(job)
            if obstacle:
                log.warning("node %s was not cordoned for %s: %s", action.node, owner, obstacle)
                return False
            done = await self._patch(action.node, patch)
        if done:
            log.warning("cordoned node %s for %s, incident %d: %s", action.node, owner, action.incident, action.reason)
            self._on_cordon()
        else:
            log.info("node %s was not cordoned: it is cordoned, restarted, opted out or gone by now", action.node)
        return done

    async def release(self, action: ReleaseNode) -> bool:
        """Take our marks off a Node that is schedulable again. Returns whether they were taken off now."""

        def patch(node: Node) -> Node | None:
            metadata = node["metadata"]
            if (node.get("spec") or {}).get("unschedulable") or keys.CORDONED_BY not in (metadata.get("annotations") or {}):
                return None
            gone = dict.fromkeys(CORDON_ANNOTATIONS)
            released = {keys.RELEASED_TIME: second_time(action.at)}
            return {"metadata": {"annotations": {**gone, **released}, "labels": {keys.QUARANTINED_LABEL: None}}}

        done = await self._patch(action.node, patch)
        if done:
            log.info("node %s was uncordoned by somebody: it is not ours any more", action.node)
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
                self._on_written(await calls.patch_node(self._client, name, patch))
            except ApiError as error:
                if error.status != 409 or not tries_left:
                    raise
            else:
                return True
        return False
