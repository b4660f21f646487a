"""One operator process, its jobs' namespace, and what plays the cluster around it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rtj_operator.api import keys
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from tests.operator_api import rbac
from tests.operator_api.objects import create_node
from tests.operator_api.play import Play
from tests.operator_api.process import OperatorProcess, wait_for
from trainer_runtime.contract.exit_report import ExitReport, Outcome

SECONDS = 60.0
"""Deadline of every wait; on a quiet machine they take a few seconds."""


@dataclass
class Scene:
    """One operator, its jobs' namespace, and what plays the cluster around it."""

    client: KubeClient
    namespace: str
    operator: OperatorProcess
    play: Play
    nodes: list[str]

    async def status(self, name: str = "gpt") -> dict[str, Any]:
        """Return the job's status; empty before the first write."""
        job = await calls.get_job(self.client, self.namespace, name)
        return dict((job or {}).get("status") or {})

    async def wait_for(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the job's status is as wished and return it."""
        last: dict[str, Any] = {}

        async def look() -> bool:
            nonlocal last
            last = await self.status()
            return holds(last)

        await wait_for(look, what, SECONDS, lambda: f"status: {last}\n{self.operator.log_end()}")
        return last

    async def wait_until_running(self, attempt: int = 1) -> dict[str, Any]:
        """Wait until the job runs in that attempt."""
        return await self.wait_for(
            f"attempt {attempt} to run", lambda status: status.get("phase") == "Running" and status.get("attempt") == attempt
        )

    async def pods(self) -> list[str]:
        """Return the names of the job's pods."""
        found = await self.client.request("GET", calls.pods_path(self.namespace), query=[("labelSelector", keys.JOB_UID)])
        return sorted(item["metadata"]["name"] for item in found["items"])

    async def events(self) -> dict[str, str]:
        """Return the messages of the job's events by reason."""
        found = await self.client.request("GET", f"/api/v1/namespaces/{self.namespace}/events")
        return {item["reason"]: item["message"] for item in found["items"]}


def preempted(attempt: int, worker: int) -> ExitReport:
    """Return the exit report of a worker that was preempted after a save: an incident whose relaunch waits for nothing."""
    return ExitReport(attempt=attempt, worker_index=worker, outcome=Outcome.PREEMPTED_SAVED, exit_code=75)


async def grant(client: KubeClient, objects: list[tuple[str, dict[str, Any]]]) -> None:
    for path, body in objects:
        try:
            await client.request("POST", path, body=body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise


@asynccontextmanager
async def open_scene(client: KubeClient, namespace: str, operator: OperatorProcess) -> AsyncIterator[Scene]:
    """Grant the operator its rights and give it three nodes; it is not started yet."""
    await grant(client, [*rbac.cluster_objects(), *rbac.lease_objects(namespace)])
    nodes = [f"n-{secrets.token_hex(4)}" for _ in range(3)]
    for node in nodes:
        await create_node(client, node)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(operator.kill)
        play = await stack.enter_async_context(Play(client, namespace, operator, nodes))
        yield Scene(client, namespace, operator, play, nodes)
    for node in nodes:
        await client.request("DELETE", f"/api/v1/nodes/{node}")


async def has_events(scene: Scene, *reasons: str) -> bool:
    """Say whether the namespace has events of all these reasons."""
    return set(reasons) <= (await scene.events()).keys()


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition of that type; empty when there is none."""
    return next((dict(item) for item in status.get("conditions", []) if item["type"] == kind), {})
