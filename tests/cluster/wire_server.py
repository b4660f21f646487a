"""A small real HTTP server that speaks the list and watch wire format of the API server, with faults on demand.

It is for what a real API server cannot be made to do at a wished moment: a silent stream, a line that is cut, a 410 in a running watch.
Everything else is tested against the real one in tests/operator_api.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

from rtj_operator.cluster.client import KubeClient

PATH = "/api/v1/things"
CUT = object()
"""In a watch's script: end the connection in the middle of a line."""
END = object()
"""In a watch's script: end the watch as the API server does when its time is over."""


class NoMetrics:
    """Counts nothing."""

    def api_request(self, method: str, code: str, seconds: float) -> None:
        """Count nothing."""


def thing(name: str, version: int, value: str = "") -> dict[str, Any]:
    """Return an object of the made-up kind."""
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)}, "value": value}


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Return one watch event."""
    return {"type": kind, "object": obj}


def bookmark(version: int) -> dict[str, Any]:
    """Return a bookmark."""
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def gone() -> dict[str, Any]:
    """Return the error event that says that a watch's version is too old."""
    return event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


class WireServer:
    """Lists what is in ``things``; each watch plays the next script, and stays silent when its script is over. Text is sent as it is."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        self.things_at: dict[str, dict[str, dict[str, Any]]] = {}
        """Things by the last part of a path, where kinds must be told apart."""
        self.version = 1
        self.scripts: list[list[Any]] = []
        self.requests: list[dict[str, str]] = []
        self.answers: list[web.Response] = []
        """Answers given instead of the next requests' own, in order."""
        self.watch_answers: list[web.Response | None] = []
        """The same for watches; None lets one watch play its script."""
        self.unanswered_watches = 0
        """So many of the next watches get no answer at all."""
        self.page_size: int | None = None
        self.changed = asyncio.Condition()

    @property
    def lists(self) -> list[dict[str, str]]:
        """The list requests so far."""
        return [query for query in self.requests if "watch" not in query]

    @property
    def watches(self) -> list[dict[str, str]]:
        """The watch requests so far."""
        return [query for query in self.requests if "watch" in query]

    async def wait_for_requests(self, count: int, *, watch: bool) -> None:
        """Wait until that many lists or watches were asked for; fails after 10 s."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: len(self.watches if watch else self.lists) >= count)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        async with self.changed:
            self.requests.append(dict(request.query))
            self.changed.notify_all()
        if self.answers:
            return self.answers.pop(0)
        if "watch" in request.query:
            if self.unanswered_watches:
                self.unanswered_watches -= 1
                await asyncio.sleep(60)
            answer = self.watch_answers.pop(0) if self.watch_answers else None
            return answer or await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        items = list(self.things_at.get(request.path.rpartition("/")[2], self.things).values())
        start = int(request.query.get("continue") or 0)
        size = self.page_size or len(items) or 1
        metadata = {"resourceVersion": str(self.version)}
        if start + size < len(items):
            metadata["continue"] = str(start + size)
        return web.json_response({"kind": "ThingList", "metadata": metadata, "items": items[start : start + size]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for part in self.scripts.pop(0) if self.scripts else []:
            if part is END:
                return response
            if part is CUT:
                await response.write(json.dumps(event("ADDED", thing("half", 99))).encode()[:40])
                assert request.transport is not None
                request.transport.close()
                return response
            await response.write((part if isinstance(part, str) else json.dumps(part)).encode() + b"\n")
        await asyncio.sleep(60)
        return response


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[WireServer, KubeClient]]:
    """Run a wire server on loopback and give a client for it."""
    server = WireServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = KubeClient(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"), NoMetrics())
    try:
        yield server, client
    finally:
        await client.close()
        await runner.cleanup()
