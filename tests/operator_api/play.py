"""The test plays what is not there: the scheduler and kubelet that bring pods to life, and the workers in them.

Everything it does goes through the real API server and the operator's real HTTPS endpoint, with tokens that the API server issued.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import ssl
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rtj_operator.api import keys
from rtj_operator.cluster.client import MERGE_PATCH, KubeClient
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from tests.operator_api.process import OperatorProcess
from tests.operator_api.test_token_review import request_token
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import BEAT_PATH, Beat, CheckpointRecord, Directive, Phase, Reply
from trainer_runtime.contract.codec import dumps, loads
from trainer_runtime.contract.environment import ASSIGNMENT, HEARTBEAT_AUDIENCE
from trainer_runtime.contract.exit_report import ExitReport

PERIOD_SECONDS = 0.2
"""How often the play looks at pods and sends beats: faster than real workers, so that tests are quick."""


@dataclass(frozen=True)
class SeenFence:
    """What a worker finds in the run before it starts: another job's fence."""

    attempt: int
    job_uid: str
    quiet_seconds: float


@dataclass
class Worker:
    """One running pod's rtj-run: it follows replies as the real one does."""

    pod: dict[str, Any]
    assignment: Assignment
    token: str
    phase: Phase = Phase.TRAIN
    step: int = 1
    sequence: int = 0
    records: tuple[CheckpointRecord, ...] = ()
    acked: list[Any] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    fence: SeenFence | None = None

    def next_beat(self) -> Beat:
        """Return the next beat."""
        self.sequence += 1
        return Beat(
            job_uid=self.pod["metadata"]["labels"][keys.JOB_UID],
            attempt=self.assignment.attempt,
            worker_index=self.assignment.worker_index,
            pod_uid=self.pod["metadata"]["uid"],
            sequence=self.sequence,
            phase=self.phase,
            sent_at=float(self.sequence),
            step=self.step if self.phase not in (Phase.HOLD, Phase.STOPPED) else None,
            records=self.records,
            highest_fence=self.fence.attempt if self.fence and self.phase is Phase.HOLD else None,
            fence_job_uid=self.fence.job_uid if self.fence and self.phase is Phase.HOLD else None,
            quiet_seconds=self.fence.quiet_seconds if self.fence and self.phase is Phase.HOLD else None,
        )

    def follow(self, reply: Reply) -> None:
        """Do what the operator says."""
        self.replies.append(reply)
        self.acked += reply.acked
        held = {(key.run, key.step, key.attempt, key.level) for key in reply.acked}
        self.records = tuple(record for record in self.records if (record.run, record.step, record.attempt, record.level) not in held)
        if reply.directive is Directive.STOP and self.phase is not Phase.DONE:
            self.phase = Phase.STOPPED
        elif self.phase is Phase.HOLD and reply.assignment is not None:
            self.phase = Phase.TRAIN
        elif reply.directive is Directive.RESTART and reply.assignment is not None:
            self.assignment, self.phase, self.step = reply.assignment, Phase.TRAIN, 1


class Play:
    """Scheduler, kubelet and workers of one namespace."""

    def __init__(self, client: KubeClient, namespace: str, operator: OperatorProcess, nodes: list[str]) -> None:
        self._client = client
        self._namespace = namespace
        self._operator = operator
        self._nodes = nodes
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self.workers: dict[str, Worker] = {}
        """By pod uid."""
        self.seen: dict[str, str] = {}
        """Pod uid to name of every pod that ever was."""
        self.is_silent = False
        """While true no beat is sent."""
        self.fence: SeenFence | None = None
        """When set, workers that start find this fence and hold."""

    async def __aenter__(self) -> Play:
        trust = ssl.create_default_context(cafile=self._operator.ca_file)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), timeout=aiohttp.ClientTimeout(total=5))
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None and self._task is not None
        self._task.cancel()
        ended = (await asyncio.gather(self._task, return_exceptions=True))[0]
        await self._session.close()
        if isinstance(ended, Exception):
            raise ended
        await asyncio.sleep(0.05)

    def by_index(self, worker: int) -> Worker:
        """Return the running worker of that index, of the newest gang."""
        found = [each for each in self.workers.values() if each.assignment.worker_index == worker]
        return max(found, key=lambda each: each.assignment.attempt)

    async def post(self, beat: Beat | bytes, token: str) -> tuple[int, bytes]:
        """Send one body to the operator as it is; return status and answer."""
        assert self._session is not None
        body = beat if isinstance(beat, bytes) else dumps(beat).encode()
        async with self._session.post(
            self._operator.heartbeat_url + BEAT_PATH, data=body, headers={"Authorization": f"Bearer {token}"}
        ) as response:
            return response.status, await response.read()

    async def post_large(self, size: int, token: str) -> None:
        """Send a body of that many bytes. The operator may answer 413 or close the connection while we still send."""
        assert self._session is not None
        url, headers = self._operator.heartbeat_url + BEAT_PATH, {"Authorization": f"Bearer {token}"}
        try:
            async with self._session.post(url, data=io.BytesIO(b"x" * size), headers=headers) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            return

    async def end_pod(self, worker: int, exit_code: int, report: ExitReport | None = None, reason: str = "Error") -> None:
        """Let the container of a worker end, as its kubelet reports it."""
        ended = self.by_index(worker)
        del self.workers[ended.pod["metadata"]["uid"]]
        await self._report_end(ended.pod, exit_code, report, reason)

    async def _run(self) -> None:
        while True:
            try:
                await self._play_pods()
                if not self.is_silent:
                    await asyncio.gather(*(self._beat(worker) for worker in list(self.workers.values())))
            except (ApiError, ApiUnreachable, aiohttp.ClientError, TimeoutError):
                pass  # the API server or the operator is away, as some tests wish it: go on when it is back
            await asyncio.sleep(PERIOD_SECONDS)

    async def _play_pods(self) -> None:
        found = await self._client.request("GET", f"/api/v1/namespaces/{self._namespace}/pods", tries=1, seconds=3.0)
        alive = set()
        for pod in found["items"]:
            uid = pod["metadata"]["uid"]
            if keys.WORKER_INDEX not in (pod["metadata"].get("labels") or {}):
                continue  # a stranger
            alive.add(uid)
            self.seen[uid] = pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                self.workers.pop(uid, None)
                await self._remove(pod)
            elif not pod["spec"].get("nodeName"):
                await self._start(pod)
        for uid in self.workers.keys() - alive:
            del self.workers[uid]

    async def _start(self, pod: dict[str, Any]) -> None:
        name, worker = pod["metadata"]["name"], int(pod["metadata"]["labels"][keys.WORKER_INDEX])
        path = f"/api/v1/namespaces/{self._namespace}/pods/{name}"
        target = {"apiVersion": "v1", "kind": "Node", "name": self._nodes[worker % len(self._nodes)]}
        await self._client.request("POST", f"{path}/binding", body={"metadata": {"name": name}, "target": target})
        status = {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [container_status({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=True)],
        }
        await self._client.request("PATCH", f"{path}/status", body={"status": status}, content_type=MERGE_PATCH)
        environment = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        assignment = loads(Assignment, environment[ASSIGNMENT])
        token = await request_token(self._client, self._namespace, pod, HEARTBEAT_AUDIENCE)
        phase = Phase.HOLD if self.fence else Phase.TRAIN
        self.workers[pod["metadata"]["uid"]] = Worker(pod, assignment, token, phase, fence=self.fence)

    async def _report_end(self, pod: dict[str, Any], exit_code: int, report: ExitReport | None, reason: str) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}"
        ended = {
            "exitCode": exit_code,
            "reason": "Completed" if exit_code == 0 else reason,
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:01Z",
            "message": report.termination_message().decode() if report else "",
        }
        status = {
            "phase": "Succeeded" if exit_code == 0 else "Failed",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
            "containerStatuses": [container_status({"terminated": ended}, ready=False)],
        }
        await self._client.request("PATCH", f"{path}/status", body={"status": status}, content_type=MERGE_PATCH)

    async def _remove(self, pod: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        try:
            await self._client.request("DELETE", path, body=body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _beat(self, worker: Worker) -> None:
        status, answer = await self.post(worker.next_beat(), worker.token)
        if status == 200:
            worker.follow(loads(Reply, answer))
            if worker.phase is Phase.TRAIN:
                worker.step += 1


def container_status(state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    """Return the trainer's container status."""
    return {"name": "trainer", "image": "x", "imageID": "x", "ready": ready, "restartCount": 0, "state": state}


def changed(beat: Beat, **changes: Any) -> Beat:
    """Return a beat with fields changed."""
    return dataclasses.replace(beat, **changes)
