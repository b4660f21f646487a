"""The HTTPS server that workers' beats come to. Every answer but 200 says what is wrong with the request, and nothing more.

Who sends is proven by a token bound to a pod (the reviewer), that the pod is a live one of that job by the roster; only then a beat counts.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from aiohttp import web

from trainer_runtime.contract.beat import BEAT_PATH, MAX_BODY_BYTES, Beat, Reply
from trainer_runtime.contract.codec import ContractError, dumps, loads

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = "5"
"""What a sender is told to wait when the API server cannot say who it is."""


class Identity(Protocol):
    """The pod a token is bound to."""

    @property
    def namespace(self) -> str:
        """Namespace of the pod."""

    @property
    def pod_uid(self) -> str:
        """Uid of the pod."""


class TokenReviewer(Protocol):
    """Tells whose token it is."""

    async def review(self, token: str) -> Identity | None:
        """Return the pod a token is bound to, None for a refused one. Raises one of ``reviewer_errors`` when it cannot tell."""


@dataclass(frozen=True)
class Sender:
    """A live pod of a job, as the roster knows it."""

    namespace: str
    job_uid: str
    pod_name: str
    worker: int


class Roster(Protocol):
    """Who may send."""

    def has_job(self, job_uid: str) -> bool:
        """Say whether that job exists."""

    def find_sender(self, pod_uid: str) -> Sender | None:
        """Return the live pod with that uid, if it is one of ours."""


class BeatMetrics(Protocol):
    """Where beats are counted."""

    def beat_accepted(self) -> None:
        """Count one beat that was answered with 200."""

    def beat_rejected(self, reason: str) -> None:
        """Count one that was not; ``reason`` is one of a few fixed words."""


class _Refused(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class HeartbeatServer:
    """Checks beats and hands the good ones to ``answer(beat, sender, now)``, whose Reply goes back."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        reviewer_errors: tuple[type[Exception], ...],
        roster: Roster,
        answer: Callable[[Beat, Sender, datetime], Reply],
        metrics: BeatMetrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._reviewer = reviewer
        self._reviewer_errors = reviewer_errors
        self._roster = roster
        self._answer = answer
        self._metrics = metrics
        self._clock = clock
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen; return the port, which differs from ``port`` only when that is 0. Raises OSError when it cannot be bound."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(BEAT_PATH, self._handle)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=75.0, shutdown_timeout=2.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls, backlog=1024)
        await site.start()
        address = self._runner.addresses[0]
        return int(address[1])

    async def stop(self) -> None:
        """Stop listening; requests under way get 2 s."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            beat, sender = await self._check(request)
        except _Refused as refusal:
            self._metrics.beat_rejected(refusal.reason)
            log.info("beat from %s refused: %s", request.remote, refusal)
            headers = {"Retry-After": RETRY_SECONDS} if refusal.status == 503 else {}
            return web.json_response({"reason": refusal.reason, "message": str(refusal)}, status=refusal.status, headers=headers)
        reply = self._answer(beat, sender, self._clock())
        self._metrics.beat_accepted()
        return web.Response(body=dumps(reply).encode(), content_type="application/json")

    async def _check(self, request: web.Request) -> tuple[Beat, Sender]:
        # The token comes first: whoever has none must not make us parse anything.
        identity = await self._identify(request)
        beat = await _read_beat(request)
        if beat.pod_uid != identity.pod_uid:
            raise _Refused(403, "wrong_pod", f"pod_uid: the token is bound to pod {identity.pod_uid}, the beat says {beat.pod_uid}")
        if not self._roster.has_job(beat.job_uid):
            raise _Refused(404, "unknown_job", f"job_uid: there is no job {beat.job_uid}")
        sender = self._roster.find_sender(beat.pod_uid)
        if sender is None or sender.namespace != identity.namespace:
            raise _Refused(403, "unknown_pod", f"pod_uid: {beat.pod_uid} is no live pod of a job")
        if sender.job_uid != beat.job_uid:
            raise _Refused(403, "wrong_job", f"job_uid: pod {beat.pod_uid} belongs to job {sender.job_uid}, the beat says {beat.job_uid}")
        if sender.worker != beat.worker_index:
            raise _Refused(403, "wrong_worker", f"worker_index: the pod is worker {sender.worker}, the beat says {beat.worker_index}")
        return beat, sender

    async def _identify(self, request: web.Request) -> Identity:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _Refused(401, "no_token", "Authorization: a bearer token is needed")
        try:
            identity = await self._reviewer.review(token.strip())
        except self._reviewer_errors as error:
            raise _Refused(503, "not_reviewed", "the API server cannot review the token now") from error
        if identity is None:
            raise _Refused(401, "bad_token", "the token is expired, for another audience, or bound to no pod")
        return identity


async def _read_beat(request: web.Request) -> Beat:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _Refused(413, "too_large", f"body: {request.content_length} bytes, at most {MAX_BODY_BYTES} are read")
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _Refused(413, "too_large", f"body: more than {MAX_BODY_BYTES} bytes") from error
    try:
        return loads(Beat, body)
    except ContractError as error:
        raise _Refused(400, "malformed", str(error)) from error
