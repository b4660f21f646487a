"""Carries out actions by calls that are safe to repeat: "exists already and is ours" and "gone already" are success.

It never decides. What is refused by quota, policy or a foreign object of the same name is remembered and shown, not raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.names import pod_name, service_name
from rtj_operator.build.service import build_service
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from rtj_operator.decide.observation import CreateRefusal, NodeRefusal
from rtj_operator.decide.plan import Action, CordonNode, CreatePod, CreateService, DeleteJob, DeletePod, NodeWrite, ReleaseNode, StrikeNode
from rtj_operator.reconcile.api_facts import ApiFacts
from rtj_operator.reconcile.crash_points import CrashPoints
from rtj_operator.reconcile.node_writes import NodeWriter
from rtj_operator.reconcile.refusals import NodeRefusals, Refusals

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_BATCH: Final = 1
"""Pods created at once in the first batch; each batch that is not refused doubles it, so that a quota is met by few requests."""
LARGEST_BATCH: Final = 64
DELETE_BATCH: Final = 64
CORDON_AGAIN_SECONDS: Final = 1.0
"""When a cordon is tried that found another one being written."""
MAX_REFUSAL: Final = 500
"""Characters kept of a refusal of a Node's write: a webhook may answer with a page, and status holds what is kept."""


class NotTheHolder(Exception):
    """This process may not act any more: its lease ran out."""

    def __str__(self) -> str:
        return "this process does not hold the lease"


class PodBuilder(Protocol):
    """Builds the pod of one worker from the job's present status."""

    def __call__(self, job: Job, worker: int) -> dict[str, Any]:
        """Return the pod."""


class Actor:
    """Carries out one plan's actions for one job."""

    def __init__(
        self,
        client: KubeClient,
        build_pod: PodBuilder,
        nodes: NodeWriter,
        facts: ApiFacts,
        refusals: Refusals,
        node_refusals: NodeRefusals,
        crash: CrashPoints,
        may_act: Callable[[], bool],
        clock: Callable[[], datetime],
        on_created: Callable[[dict[str, Any]], None],
    ) -> None:
        """``on_created`` takes every pod that a create returned or found."""
        self._client = client
        self._on_created = on_created
        self._build_pod = build_pod
        self._nodes = nodes
        self._facts = facts
        self._refusals = refusals
        self._node_refusals = node_refusals
        self._crash = crash
        self._may_act = may_act
        self._clock = clock

    async def act(self, job: Job, actions: Sequence[Action]) -> float | None:
        """Carry out the actions in order; ``job`` holds the status that was just written.

        Returns seconds after which what was refused should be tried again, None when nothing was refused. Raises ApiError or
        ApiUnreachable for what could not be done (the next pass does it), NotTheHolder when this process must not act.
        """
        waits: list[float | None] = []
        for kind, group in groupby(actions, key=type):
            self._require_lease()
            batch: list[Any] = list(group)
            if kind is CreatePod:
                waits.append(await self._create_pods(job, batch))
            elif kind is DeletePod:
                await self._delete_pods(job, batch)
            else:
                waits += [await self._one(job, action) for action in batch]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _one(self, job: Job, action: Action) -> float | None:
        if isinstance(action, CreateService):
            return await self._create_service(job)
        if isinstance(action, NodeWrite):
            return await self._write_node(job, action)
        if isinstance(action, DeleteJob):
            await calls.delete_job(self._client, job.namespace, job.name, action.uid)
            self._crash.reached("after_delete_job")
        return None

    async def _write_node(self, job: Job, action: NodeWrite) -> float | None:
        """Write to the Node unless that was refused just now. What the API server answers to it costs the job nothing else.

        No pass waits for another's cordon either, whose answer may take long. A release is every job's, so it wakes none of them.
        """
        wait = self._node_refusals.wait_seconds(action.node, self._clock())
        if wait == 0.0 and isinstance(action, CordonNode) and self._nodes.is_cordoning:
            wait = CORDON_AGAIN_SECONDS
        if wait > 0.0:
            return None if isinstance(action, ReleaseNode) else wait
        try:
            if isinstance(action, CordonNode):
                await self._nodes.cordon(job, action)
            elif isinstance(action, StrikeNode):
                await self._nodes.strike(job, action)
            else:
                await self._nodes.release(action)
        except ApiError as error:
            now = self._clock()
            self._node_refusals.record(NodeRefusal(action.node, error.message[:MAX_REFUSAL], now))
            log.warning("%s/%s: node %s was not written: %s", job.namespace, job.name, action.node, error)
            return None if isinstance(action, ReleaseNode) else self._node_refusals.wait_seconds(action.node, now)
        self._node_refusals.forget(action.node)
        self._crash.reached("after_patch_node")
        return None

    async def _create_service(self, job: Job) -> float | None:
        """Create the Service. While it is refused no pod is created either, which would have no name to be found by."""
        now = self._clock()
        wait = self._refusals.wait_seconds(job.uid, now)
        if wait > 0.0:
            return wait
        try:
            await calls.create_service(self._client, job.namespace, build_service(job))
        except ApiError as error:
            found = await calls.get_service(self._client, job.namespace, service_name(job.name)) if error.status == 409 else None
            if found is None or not calls.is_owned_by(found, job.uid):
                if error.status not in (400, 403, 409, 422):
                    raise
                reason = "conflict" if found is not None else "forbidden"
                self._refusals.record(job.uid, [CreateRefusal(0, reason, f"Service {service_name(job.name)}: {error.message}", now)], now)
                return self._refusals.wait_seconds(job.uid, now)
        self._facts.created_service(job, now)
        self._crash.reached("after_create_service")
        return None

    async def _create_pods(self, job: Job, actions: list[CreatePod]) -> float | None:
        now = self._clock()
        wait = self._refusals.wait_seconds(job.uid, now)
        if wait > 0.0:
            return wait
        refused: list[CreateRefusal] = []
        size, start = FIRST_BATCH, 0
        while start < len(actions) and not refused:
            self._require_lease()
            batch = actions[start : start + size]
            outcomes = await _all([self._create_pod(job, action) for action in batch])
            refused = [outcome for outcome in outcomes if outcome is not None]
            start += len(batch)
            size = min(LARGEST_BATCH, size * 2)
        self._refusals.record(job.uid, refused, now)
        return self._refusals.wait_seconds(job.uid, now) if refused else None

    async def _create_pod(self, job: Job, action: CreatePod) -> CreateRefusal | None:
        if (action.gang, action.attempt) != (job.status.gang, job.status.attempt):
            log.warning("%s/%s: worker %d of gang %d is not of the present gang", job.namespace, job.name, action.worker, action.gang)
            return None
        pod = self._build_pod(job, action.worker)
        try:
            self._on_created(await calls.create_pod(self._client, job.namespace, pod))
        except ApiError as error:
            if error.may_pass:
                raise
            name = pod_name(job.name, action.gang, action.worker)
            if error.status == 409 and error.reason == "AlreadyExists":
                found = await calls.get_pod(self._client, job.namespace, name)
                if found is not None and calls.is_owned_by(found, job.uid):
                    self._on_created(found)
                    self._crash.reached("after_create_pod")
                    return None
                return CreateRefusal(action.worker, "conflict", f"pod {name} exists and belongs to another owner", self._clock())
            reason = "forbidden" if error.status == 403 else "error"
            return CreateRefusal(action.worker, reason, error.message, self._clock())
        self._crash.reached("after_create_pod")
        return None

    async def _delete_pods(self, job: Job, actions: list[DeletePod]) -> None:
        for start in range(0, len(actions), DELETE_BATCH):
            self._require_lease()
            await _all([self._delete_pod(job, action) for action in actions[start : start + DELETE_BATCH]])

    async def _delete_pod(self, job: Job, action: DeletePod) -> None:
        await calls.delete_pod(self._client, job.namespace, action.name, action.uid, action.grace_seconds)
        self._crash.reached("after_delete_pod")

    def _require_lease(self) -> None:
        if not self._may_act():
            raise NotTheHolder


async def _all(calls_to_make: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all, then raise the first error: no request of a pass may still be under way when the job's next pass begins."""
    outcomes = await asyncio.gather(*calls_to_make, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
