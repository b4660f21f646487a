"""One Lease as a mutex between operator processes: at most one acts, and it stops acting before another may start.

Two clocks never meet here. A holder counts from when it *sent* its last successful renewal; a taker counts from when it *saw* the
holder's last change. Holders give up after HOLD_SECONDS, takers wait DURATION_SECONDS, and the difference is the safety margin.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Any, Final

from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from rtj_operator.cluster.outage import utc_now
from rtj_operator.cluster.times import micro_time

log = logging.getLogger(__name__)

DURATION_SECONDS: Final = 15
"""A lease that did not change for that long, as its watcher saw it, may be taken. The usual figure of Kubernetes' own controllers."""
HOLD_SECONDS: Final = 10.0
"""A holder whose last successful renewal was sent that long ago stops. 5 s less than the duration: more than a request in flight may take
to be refused, since every write also carries a resourceVersion, uid or name that a successor's writes invalidate."""
RENEW_SECONDS: Final = 2.0
"""Time between renewals and between tries to take the lease."""
TRIES_WHILE_HELD: Final = 3
"""Requests that must fit, one after another, into the time before the holder gives up: each may take a third of it."""


class LeaseLost(Exception):
    """This process is no longer the one that may act, and must end."""


@dataclass(frozen=True)
class _Seen:
    holder: str
    version: str
    at: float


class Lease:
    """Holds, renews and gives back one Lease by plain calls."""

    def __init__(self, client: KubeClient, namespace: str, name: str, identity: str, *, duration_seconds: int = DURATION_SECONDS) -> None:
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._duration = duration_seconds
        self._hold_seconds = HOLD_SECONDS * duration_seconds / DURATION_SECONDS
        self._renew_seconds = RENEW_SECONDS * duration_seconds / DURATION_SECONDS
        self._held_until = float("-inf")
        self._seen: _Seen | None = None

    def is_held(self) -> bool:
        """Say whether this process may act now. Asked before every write that is not protected otherwise."""
        return asyncio.get_running_loop().time() < self._held_until

    async def acquire(self) -> None:
        """Wait until the lease is ours. A lease that our own identity left behind (a restarted container) is ours at once."""
        told = ""
        while True:
            try:
                holder = await self._try_to_take()
            except (ApiUnreachable, ApiError) as error:
                if isinstance(error, ApiError) and not error.may_pass:
                    raise
                log.warning("lease %s: %s", self._name, error)
                holder = told
            if self.is_held():
                log.info("lease %s/%s is held by this process (%s)", self._namespace, self._name, self._identity)
                return
            if holder != told:
                log.info("lease %s/%s is held by %s; waiting", self._namespace, self._name, holder)
                told = holder
            await asyncio.sleep(self._renew_seconds * random.uniform(0.8, 1.2))

    async def hold(self) -> None:
        """Renew until cancelled. Raises LeaseLost when another has it, or when no renewal succeeded in time."""
        while True:
            await asyncio.sleep(self._renew_seconds * random.uniform(0.8, 1.0))
            try:
                holder = await self._try_to_take()
            except (ApiUnreachable, ApiError) as error:
                log.warning("lease %s could not be renewed: %s", self._name, error)
            else:
                if holder not in ("", self._identity):
                    self._held_until = float("-inf")
                    raise LeaseLost(f"lease {self._name}: {holder} has it now")
            if not self.is_held():
                raise LeaseLost(f"lease {self._name}: no renewal succeeded for {self._hold_seconds:g} s")

    async def release(self) -> None:
        """Give the lease back, so that a successor need not wait. Best effort: without it the successor waits DURATION_SECONDS."""
        if not self.is_held():
            return
        self._held_until = float("-inf")
        try:
            found = await self._request("GET", f"{self._collection}/{self._name}")
            if (found["spec"] or {}).get("holderIdentity") == self._identity:
                found["spec"].update(holderIdentity="", leaseDurationSeconds=1, renewTime=micro_time(utc_now()))
                await self._request("PUT", f"{self._collection}/{self._name}", found)
        except (ApiError, ApiUnreachable) as error:
            log.warning("lease %s was not given back: %s", self._name, error)

    async def _try_to_take(self) -> str:
        """Create, renew or take over the lease if that is allowed; return who holds it afterwards."""
        sent = asyncio.get_running_loop().time()
        found = await self._read()
        if found is None:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name, "namespace": self._namespace}}
            return await self._write("POST", self._collection, {**body, "spec": self._spec({})}, sent)
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._is_expired(holder, found["metadata"]["resourceVersion"], spec):
            return str(holder)
        found["spec"] = self._spec(spec)
        return await self._write("PUT", f"{self._collection}/{self._name}", found, sent)

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._request("GET", f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, method: str, path: str, body: dict[str, Any], sent: float) -> str:
        try:
            await self._request(method, path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            found = await self._read()  # somebody wrote in between: a rival, or a person who annotated the lease
            return str(((found or {}).get("spec") or {}).get("holderIdentity") or "")
        self._held_until = sent + self._hold_seconds
        return self._identity

    def _is_expired(self, holder: str, version: str, spec: dict[str, Any]) -> bool:
        now = asyncio.get_running_loop().time()
        if self._seen is None or (self._seen.holder, self._seen.version) != (holder, version):
            self._seen = _Seen(holder, version, now)
        return now - self._seen.at > float(spec.get("leaseDurationSeconds") or self._duration)

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = micro_time(utc_now())
        is_ours = before.get("holderIdentity") == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration,
            "acquireTime": before.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or not before else transitions + 1,
        }

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._client.request(method, path, body=body, tries=1, seconds=self._hold_seconds / TRIES_WHILE_HELD)
