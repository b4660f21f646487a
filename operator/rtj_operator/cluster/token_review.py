"""Who sends a beat: the API server reviews the sender's projected token and names its pod.

Accepted answers are kept for a minute, so that 10,000 senders cost a few reviews per second; the token itself is never kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from rtj_operator.cluster.client import KubeClient
from trainer_runtime.contract.environment import HEARTBEAT_AUDIENCE

ACCEPTED_SECONDS: Final = 60.0
"""How long an accepted token is not asked about again. A deleted pod is refused at once all the same: it is looked up in the pod cache."""
REFUSED_SECONDS: Final = 10.0
"""How long a refused token is refused without asking."""
MAX_ENTRIES: Final = 20_000
"""Twice the largest number of senders we plan for; the oldest goes first."""
MAX_IN_FLIGHT: Final = 20
"""Reviews at the same time: after a restart every sender is new at once."""

_EXTRA: Final = "authentication.kubernetes.io/"


@dataclass(frozen=True)
class PodIdentity:
    """The pod a token is bound to."""

    namespace: str
    pod_name: str
    pod_uid: str


class TokenReviews:
    """Asks the API server about tokens and remembers the answers for a short time."""

    def __init__(self, client: KubeClient, audience: str = HEARTBEAT_AUDIENCE) -> None:
        self._client = client
        self._audience = audience
        self._answers: OrderedDict[bytes, tuple[float, PodIdentity | None]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[PodIdentity | None]] = {}
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def review(self, token: str) -> PodIdentity | None:
        """Return the pod a token is bound to, None for a token that is refused or bound to no pod.

        Raises ApiError or ApiUnreachable when the API server cannot say: the caller must not take that for a refusal.
        """
        key = hashlib.sha256(token.encode()).digest()
        known = self._answers.get(key)
        if known is not None and known[0] > self._now():
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask(token, key))
            self._asking[key] = asking
            asking.add_done_callback(lambda task: self._asked(key, task))
        return await asyncio.shield(asking)

    async def _ask(self, token: str, key: bytes) -> PodIdentity | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        async with self._slots:
            answer = await self._client.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body, tries=2, seconds=5.0)
        identity = _identity(answer.get("status") or {}, self._audience)
        self._answers[key] = (self._now() + (ACCEPTED_SECONDS if identity else REFUSED_SECONDS), identity)
        self._answers.move_to_end(key)
        while len(self._answers) > MAX_ENTRIES:
            self._answers.popitem(last=False)
        return identity

    def _asked(self, key: bytes, task: asyncio.Task[PodIdentity | None]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # every caller may have gone away meanwhile; an error nobody fetched would be reported as lost

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _identity(status: dict[str, Any], audience: str) -> PodIdentity | None:
    # Without the audience check a token for the API server itself would pass where a webhook authenticator ignores audiences.
    if status.get("authenticated") is not True or audience not in (status.get("audiences") or ()):
        return None
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    names: list[str] = extra.get(f"{_EXTRA}pod-name") or []
    uids: list[str] = extra.get(f"{_EXTRA}pod-uid") or []
    parts = str(user.get("username", "")).split(":")
    if len(names) != 1 or len(uids) != 1 or parts[:2] != ["system", "serviceaccount"] or len(parts) != 4:
        return None
    return PodIdentity(namespace=parts[2], pod_name=names[0], pod_uid=uids[0])
