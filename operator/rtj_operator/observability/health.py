"""Liveness, readiness and metrics over plain HTTP on a port of its own. A check says in words what is wrong.

Alive means that a restart would not help: watches hear the API server or its outage is not our fault, and the queue moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], str]
"""Returns "" when all is well, else what is wrong."""


class HealthServer:
    """Serves /healthz, /readyz and /metrics."""

    def __init__(self, registry: CollectorRegistry, alive: Sequence[Check], ready: Sequence[Check]) -> None:
        self._registry = registry
        self._alive = alive
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError when it cannot be bound."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _answer(self._alive)

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _answer([*self._alive, *self._ready])

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(checks: Sequence[Check]) -> web.Response:
    problems = [problem for check in checks if (problem := check())]
    return web.Response(text="\n".join(problems) or "ok", status=503 if problems else 200)
