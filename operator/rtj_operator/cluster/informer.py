"""A local copy of one kind of object: list in chunks, then watch, and never lie about what is gone.

A relist *replaces* the copy and reports what vanished meanwhile, so a deletion that fell into a gap of the watch is not missed.
It keeps what ``parse`` makes of an object, not the object: 10,000 pods must fit into little memory. It wakes; it decides nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError, ApiUnreachable

log = logging.getLogger(__name__)

LIST_CHUNK: Final = 500
"""Objects per list request: 500 pods are about 4 MB of JSON, so that parsing one chunk does not hold up beats."""
SILENCE_SECONDS: Final = 75.0
"""A watch without a line for that long is dead: the API server sends a bookmark about once a minute."""
WATCH_SECONDS: Final = 300
"""How long the API server keeps one watch open; jitter of up to a fifth is added, so that reconnects spread."""
BACKOFF_SECONDS: Final = (0.5, 20.0)
"""First and longest wait between failed lists or watches; doubled each time, with jitter."""

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """What to list and watch."""

    path: str
    label_selector: str = ""
    field_selector: str = ""


class _Expired(Exception):
    """Our version is too old for the API server: list again."""


class Informer(Generic[T]):
    """One kind of object, by ``namespace/name`` (or ``name`` for objects without namespace).

    ``on_change(key, before, after)`` is called in the event loop for every difference, ``after`` being None for what is gone;
    ``parse`` returns None for an object that is not ours to keep.
    """

    def __init__(
        self,
        client: KubeClient,
        source: Source,
        parse: Callable[[dict[str, Any]], T | None],
        on_change: Callable[[str, T | None, T | None], None],
        *,
        chunk: int = LIST_CHUNK,
        silence_seconds: float = SILENCE_SECONDS,
        watch_seconds: int = WATCH_SECONDS,
        backoff_seconds: tuple[float, float] = BACKOFF_SECONDS,
    ) -> None:
        self._client = client
        self._source = source
        self._parse = parse
        self._on_change = on_change
        self._chunk = chunk
        self._silence = silence_seconds
        self._watch_seconds = watch_seconds
        self._backoff = backoff_seconds
        self._items: dict[str, tuple[str, T]] = {}
        self._version = ""
        self._last_sign: float | None = None
        self.synced = asyncio.Event()
        """Set after the first full list."""

    def get(self, key: str) -> T | None:
        """Return what is kept under that key."""
        entry = self._items.get(key)
        return entry[1] if entry else None

    def items(self) -> Mapping[str, T]:
        """Return a copy of all that is kept."""
        return MappingProxyType({key: entry[1] for key, entry in self._items.items()})

    def __len__(self) -> int:
        return len(self._items)

    def note(self, item: dict[str, Any]) -> None:
        """Take the object that a write of our own returned, so that what follows sees it. What the watch has passed is left alone."""
        if self._version and _number(item["metadata"]["resourceVersion"]) > _number(self._version):
            self._put(item, is_deleted=False)

    def silent_for(self) -> float | None:
        """Seconds since the API server last sent anything for this kind; None before the first answer."""
        return None if self._last_sign is None else asyncio.get_running_loop().time() - self._last_sign

    async def run(self) -> None:
        """List and watch until cancelled. An answer that no retry can mend (403, 404) is raised when it is the first, else retried.

        What brought nothing is followed by a wait, an error or not: a server or a proxy that ends each watch at once, or forgets each
        version it lists, must not be asked as fast as it answers.
        """
        failures = 0
        relist = True
        while True:
            try:
                if relist:
                    await self._list()
                    relist = False
                if await self._watch():
                    failures = 0
                    continue
                log.info("watch of %s: ended without a word", self._source.path)
            except _Expired:
                log.info("watch of %s: version %s is too old, listing again", self._source.path, self._version)
                relist = True
            except ApiUnreachable as error:
                log.warning("watch of %s: %s", self._source.path, error)
            except ApiError as error:
                if not error.may_pass and not self.synced.is_set():
                    raise
                log.warning("watch of %s: %s", self._source.path, error)
                relist = relist or not error.may_pass
            failures += 1
            first, longest = self._backoff
            await asyncio.sleep(min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        found: dict[str, tuple[str, T]] = {}
        token = ""
        while True:
            query = [*self._selectors(), ("limit", str(self._chunk)), *([("continue", token)] if token else [])]
            try:
                page = await self._client.request("GET", self._source.path, query=query)
            except ApiError as error:
                if error.status == 410 and token:
                    log.info("list of %s expired half way, starting over", self._source.path)
                    found, token = {}, ""
                    continue
                raise
            for item in page.get("items") or ():
                self._keep(found, item)
            self._heard()
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                break
            await asyncio.sleep(0)
        version = str(metadata.get("resourceVersion", ""))
        for key, entry in self._items.items():
            if key not in found and _number(entry[0]) > _number(version):
                found[key] = entry  # noted while the list was read; the watch that follows says what became of it
        self._replace(found)
        self._version = version
        self.synced.set()

    def _replace(self, found: dict[str, tuple[str, T]]) -> None:
        before, self._items = self._items, found
        for key, (_, old) in before.items():
            if key not in found:
                self._on_change(key, old, None)
        for key, (version, new) in found.items():
            known = before.get(key)
            if known is None or known[0] != version:
                self._on_change(key, known[1] if known else None, new)

    async def _watch(self) -> bool:
        """Watch until the stream ends or is silent. Returns whether that took its time: False for one that ended before its first event."""
        has_heard = False
        seconds = int(self._watch_seconds * random.uniform(1.0, 1.2))
        query = [
            *self._selectors(),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(seconds)),
        ]
        try:
            # The limit holds from the request on: a connection that nobody answers is as silent as one that died.
            async with asyncio.timeout(self._silence) as limit, self._client.watch(self._source.path, query, seconds + 10.0) as stream:
                while True:
                    limit.reschedule(asyncio.get_running_loop().time() + self._silence)
                    line = await stream.readline()
                    if not line.endswith(b"\n"):
                        return has_heard  # the server ended it, or it was cut in the middle of a line: go on from the last whole event
                    kind, item = self._read_event(line)
                    self._heard()
                    self._apply(kind, item)
                    has_heard = True
        except TimeoutError:
            log.warning("watch of %s: silent for %g s, connecting anew", self._source.path, self._silence)
        except ApiError as error:
            if error.status == 410:
                raise _Expired from error
            raise
        return True

    def _read_event(self, line: bytes) -> tuple[str, dict[str, Any]]:
        try:
            event = json.loads(line)
            return event["type"], event["object"]
        except (ValueError, TypeError, KeyError) as error:
            raise ApiUnreachable(f"WATCH {self._source.path}: a line that is no event: {line[:100]!r}") from error

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        if kind == "ERROR":
            if item.get("code") == 410:
                raise _Expired
            raise ApiError(int(item.get("code") or 500), str(item.get("reason")), str(item.get("message")), f"WATCH {self._source.path}")
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        self._put(item, is_deleted=kind == "DELETED")

    def _put(self, item: dict[str, Any], *, is_deleted: bool) -> None:
        key = _key(item)
        known = self._items.pop(key, None)
        before = known[1] if known else None
        if not is_deleted:
            self._keep(self._items, item)
        entry = self._items.get(key)
        after = entry[1] if entry else None
        if before is not None or after is not None:
            self._on_change(key, before, after)

    def _keep(self, where: dict[str, tuple[str, T]], item: dict[str, Any]) -> None:
        parsed = self._parse(item)
        if parsed is not None:
            where[_key(item)] = (item["metadata"]["resourceVersion"], parsed)

    def _selectors(self) -> list[tuple[str, str]]:
        pairs = (("labelSelector", self._source.label_selector), ("fieldSelector", self._source.field_selector))
        return [pair for pair in pairs if pair[1]]

    def _heard(self) -> None:
        self._last_sign = asyncio.get_running_loop().time()
        self._client.outage.succeeded()


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _number(version: str) -> int:
    """Resource versions of one resource are comparable numbers (guaranteed since Kubernetes 1.35, true of etcd before)."""
    return int(version) if version.isdigit() else 0
