"""kopf as a watch and nothing else: every change of a job is handed to the operator's own event loop. kopf writes nothing.

kopf runs in a thread and a loop of its own, because at its exit it cancels the tasks of the loop it runs in.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import kopf

from rtj_operator.api import keys

IDENTITY: Final[Any] = "rtj-operator"
"""The name of this process among kopf's peers. Without one kopf asks for the user's name, which a bare uid does not have. Its type
(a NewType of str) is private to kopf."""

log = logging.getLogger(__name__)

LOGIN_SECONDS: Final = 300
"""How long one login counts: the projected token of a service account is renewed in its file long before it ends."""
WATCH_SECONDS: Final = 240
"""Length of one watch: below LOGIN_SECONDS, because an open watch is not cut when its credentials expire."""
STOP_SECONDS: Final = 10.0

OnJob = Callable[[str | None, dict[str, Any]], None]
"""Called in the operator's loop with the event's type (ADDED, MODIFIED, DELETED, or None from a list) and the object."""


class JobWatch:
    """The kopf operator in its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_job: OnJob,
        login: Callable[[], dict[str, Any]],
        namespaces: Sequence[str],
    ) -> None:
        """``login`` returns the fields of kopf.ConnectionInfo as they are now; no namespaces: all of them."""
        self._loop = loop
        self._on_job = on_job
        self._login = login
        self._namespaces = namespaces
        self._stop = threading.Event()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def wait(self) -> None:
        """Wait until kopf ends. Raises what ended it; returns only after `stop`."""
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Ask kopf to end and wait for it, at most STOP_SECONDS: the thread is a daemon and cannot hold up the process."""
        self._stop.set()
        if self._thread.ident is None:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.shield(self._ended)
        except TimeoutError:
            log.warning("kopf did not end within %g s", STOP_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._operate())
        except BaseException as caught:  # the thread's edge: whatever ended kopf must end the process, in the loop that can do so
            error = caught
        if error is None and not self._stop.is_set():
            error = RuntimeError("kopf ended by itself")
        self._loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error if isinstance(error, Exception) else RuntimeError(f"kopf ended: {error!r}"))
        else:
            self._ended.set_result(None)

    async def _operate(self) -> None:
        await kopf.operator(
            registry=self._registry(),
            settings=_settings(),
            clusterwide=not self._namespaces,
            namespaces=list(self._namespaces),
            standalone=True,
            identity=IDENTITY,
            stop_flag=self._stop,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(**self._login(), expiration=datetime.now(UTC) + timedelta(seconds=LOGIN_SECONDS))

        @kopf.on.event(keys.GROUP, keys.VERSION, keys.PLURAL, registry=registry)
        async def on_event(event: Any, **_: Any) -> None:
            self._loop.call_soon_threadsafe(self._on_job, event["type"], event["object"])

        return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # without it kopf wants to list and watch namespaces and CRDs
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = (1, 1, 2, 3, 5)
    settings.queueing.worker_limit = 50
    settings.queueing.exit_timeout = 2
    return settings
