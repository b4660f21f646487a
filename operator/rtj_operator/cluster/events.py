"""Kubernetes events on a job: one per transition, repetitions counted instead of piled up, never in the way of a pass.

Events are a courtesy to people. One that cannot be written is logged and dropped; status is where the truth is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from rtj_operator.api import keys
from rtj_operator.api.base import MAX_MESSAGE
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from rtj_operator.cluster.outage import utc_now
from rtj_operator.cluster.times import second_time
from rtj_operator.decide.plan import JobEvent

log = logging.getLogger(__name__)

REPEAT_SECONDS: Final = 600.0
"""The same event again within that time raises the count of the first."""
MAX_WAITING: Final = 1000
"""Events that may wait for the API server; more are dropped, because memory must stay bounded in an outage."""
MAX_REMEMBERED: Final = 4096


class EventMetrics(Protocol):
    """Where dropped events are counted."""

    def event_dropped(self) -> None:
        """Count one event that was not written."""


@dataclass(frozen=True)
class Subject:
    """The job an event is about."""

    namespace: str
    name: str
    uid: str


@dataclass
class _Written:
    name: str
    count: int
    at: float


class EventRecorder:
    """Takes events without waiting and writes them one after another."""

    def __init__(self, client: KubeClient, instance: str, metrics: EventMetrics, clock: Callable[[], datetime] = utc_now) -> None:
        self._client = client
        self._instance = instance
        self._metrics = metrics
        self._clock = clock
        self._waiting: asyncio.Queue[tuple[Subject, JobEvent, datetime]] = asyncio.Queue(MAX_WAITING)
        self._written: OrderedDict[tuple[str, str, str], _Written] = OrderedDict()

    def record(self, subject: Subject, event: JobEvent) -> None:
        """Queue one event; to be called after the status write that it tells of."""
        try:
            self._waiting.put_nowait((subject, event, self._clock()))
        except asyncio.QueueFull:
            self._dropped(subject, event, "too many events are waiting")

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            subject, event, at = await self._waiting.get()
            try:
                await self._write(subject, event, at)
            except (ApiError, ApiUnreachable) as error:
                self._dropped(subject, event, str(error))
            finally:
                self._waiting.task_done()

    async def flush(self, seconds: float) -> None:
        """Wait until all queued events are written, at most ``seconds``: at the end of the process."""
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.join()
        except TimeoutError:
            log.warning("%d events were not written within %g s", self._waiting.qsize(), seconds)

    async def _write(self, subject: Subject, event: JobEvent, at: datetime) -> None:
        now = asyncio.get_running_loop().time()
        message = event.message[:MAX_MESSAGE]
        key = (subject.uid, event.reason, message)
        known = self._written.get(key)
        if known is not None and now - known.at < REPEAT_SECONDS:
            known.count, known.at = known.count + 1, now
            try:
                await calls.patch_event(
                    self._client, subject.namespace, known.name, {"count": known.count, "lastTimestamp": second_time(at)}
                )
                return
            except ApiError as error:
                if error.status != 404:  # 404: the event expired in the API server; write it anew
                    raise
        name = f"{subject.name}.{secrets.token_hex(8)}"
        await calls.create_event(self._client, subject.namespace, self._body(subject, event, message, name, at))
        self._written[key] = _Written(name, 1, now)
        self._written.move_to_end(key)
        while len(self._written) > MAX_REMEMBERED:
            self._written.popitem(last=False)

    def _body(self, subject: Subject, event: JobEvent, message: str, name: str, at: datetime) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": subject.namespace},
            "involvedObject": {
                "apiVersion": keys.API_VERSION,
                "kind": keys.KIND,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
            "reason": event.reason,
            "message": message,
            "type": "Warning" if event.warning else "Normal",
            "firstTimestamp": second_time(at),
            "lastTimestamp": second_time(at),
            "count": 1,
            "source": {"component": keys.FIELD_MANAGER},
            "reportingComponent": keys.FIELD_MANAGER,
            "reportingInstance": self._instance,
        }

    def _dropped(self, subject: Subject, event: JobEvent, why: str) -> None:
        self._metrics.event_dropped()
        log.warning("event %s on %s/%s was not written: %s", event.reason, subject.namespace, subject.name, why)
