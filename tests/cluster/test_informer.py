"""The informer against a real HTTP server that speaks list and watch, with the faults of real clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rtj_operator.cluster.errors import ApiError
from rtj_operator.cluster.informer import Informer, Source
from tests.cluster.wire_server import CUT, END, PATH, WireServer, bookmark, event, gone, serve, thing


class Recorder:
    """Keeps what an informer reports, and lets a test wait for it."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str | None, str | None]] = []
        self._changed = asyncio.Event()

    def __call__(self, key: str, before: str | None, after: str | None) -> None:
        self.changes.append((key, before, after))
        self._changed.set()

    async def wait_for(self, *wanted: tuple[str, str | None, str | None]) -> None:
        """Wait until exactly these changes, in this order, are the newest ones; fails after 10 s and shows what there was."""
        try:
            async with asyncio.timeout(10):
                while self.changes[-len(wanted) :] != list(wanted):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"wanted {wanted}, there was {self.changes}")


def value_of(obj: dict[str, Any]) -> str | None:
    return None if obj["value"] == "foreign" else str(obj["value"])


@asynccontextmanager
async def informing(prepare: Callable[[WireServer], None], **options: Any) -> AsyncIterator[tuple[WireServer, Informer[str], Recorder]]:
    async with serve() as (server, client):
        prepare(server)
        recorder = Recorder()
        settings = {"backoff_seconds": (0.01, 0.05), **options}
        informer = Informer(client, Source(PATH, label_selector="a=b"), value_of, recorder, **settings)
        task = asyncio.create_task(informer.run())
        try:
            yield server, informer, recorder
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_first_list_is_kept_in_chunks_and_sets_synced() -> None:
    def prepare(server: WireServer) -> None:
        server.things = {name: thing(name, 5, name) for name in ("a", "b", "c")}
        server.page_size, server.version = 2, 7

    async with informing(prepare, chunk=2) as (server, informer, _):
        async with asyncio.timeout(10):
            await informer.synced.wait()
        await server.wait_for_requests(1, watch=True)
        assert dict(informer.items()) == {"ns/a": "a", "ns/b": "b", "ns/c": "c"}
        assert [query.get("limit") for query in server.lists] == ["2", "2"]
        assert server.watches[0]["resourceVersion"] == "7"
        assert server.watches[0]["labelSelector"] == "a=b"


async def test_events_change_the_copy_and_are_reported_with_before_and_after() -> None:
    def prepare(server: WireServer) -> None:
        server.things = {"a": thing("a", 5, "old")}
        changes = [event("MODIFIED", thing("a", 8, "new")), event("ADDED", thing("b", 9, "b")), event("DELETED", thing("a", 10, "new"))]
        server.scripts = [changes]

    async with informing(prepare) as (_, informer, recorder):
        await recorder.wait_for(("ns/a", None, "old"), ("ns/a", "old", "new"), ("ns/b", None, "b"), ("ns/a", "new", None))
        assert dict(informer.items()) == {"ns/b": "b"}


async def test_an_object_that_stops_being_ours_is_reported_as_gone() -> None:
    def prepare(server: WireServer) -> None:
        server.things = {"a": thing("a", 5, "ours")}
        server.scripts = [[event("MODIFIED", thing("a", 8, "foreign"))]]

    async with informing(prepare) as (_, informer, recorder):
        await recorder.wait_for(("ns/a", "ours", None))
        assert len(informer) == 0


async def test_a_410_in_a_running_watch_lists_again_and_reports_what_vanished_meanwhile() -> None:
    def prepare(server: WireServer) -> None:
        server.things = {"a": thing("a", 5, "a"), "b": thing("b", 5, "b")}
        server.scripts = [[gone()], []]

    async with informing(prepare) as (server, informer, recorder):
        async with asyncio.timeout(10):
            await informer.synced.wait()
        server.things = {"a": thing("a", 20, "changed")}
        server.version = 30
        await recorder.wait_for(("ns/b", "b", None), ("ns/a", "a", "changed"))
        await server.wait_for_requests(2, watch=True)
        assert server.watches[1]["resourceVersion"] == "30"


async def test_a_410_as_the_answer_to_a_watch_lists_again() -> None:
    def prepare(server: WireServer) -> None:
        server.scripts = [[bookmark(40), END]]
        server.watch_answers = [None, web.json_response({"kind": "Status", "reason": "Expired", "message": "too old"}, status=410)]

    async with informing(prepare) as (server, _, __):
        await server.wait_for_requests(2, watch=False)
        assert server.watches[1]["resourceVersion"] == "40"


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark_without_a_list() -> None:
    def prepare(server: WireServer) -> None:
        server.scripts = [[bookmark(40), END], [event("ADDED", thing("late", 41, "late"))]]

    async with informing(prepare) as (server, _, recorder):
        await recorder.wait_for(("ns/late", None, "late"))
        assert server.watches[1]["resourceVersion"] == "40"
        assert len(server.lists) == 1


async def test_a_stream_cut_in_the_middle_of_a_line_goes_on_from_the_last_whole_event() -> None:
    def prepare(server: WireServer) -> None:
        server.scripts = [[event("ADDED", thing("a", 50, "a")), CUT], [event("ADDED", thing("b", 51, "b"))]]

    async with informing(prepare) as (server, informer, recorder):
        await recorder.wait_for(("ns/a", None, "a"), ("ns/b", None, "b"))
        assert server.watches[1]["resourceVersion"] == "50"
        assert "ns/half" not in informer.items()


async def test_a_silent_stream_is_given_up_and_opened_anew_from_the_last_version() -> None:
    def prepare(server: WireServer) -> None:
        server.scripts = [[bookmark(60)], [event("ADDED", thing("a", 61, "a"))]]

    async with informing(prepare, silence_seconds=0.2) as (server, _, recorder):
        await recorder.wait_for(("ns/a", None, "a"))
        assert server.watches[1]["resourceVersion"] == "60"
        assert len(server.lists) == 1


async def test_a_server_in_trouble_is_asked_again_and_the_copy_stays() -> None:
    def prepare(server: WireServer) -> None:
        server.things = {"a": thing("a", 5, "a")}
        server.scripts = [[bookmark(6), END], [event("ADDED", thing("b", 7, "b"))]]

        trouble = [web.Response(status=503, text="overloaded"), web.Response(status=429, headers={"Retry-After": "0"})]
        server.watch_answers = [None, *trouble]

    async with informing(prepare) as (_, informer, recorder):
        await recorder.wait_for(("ns/b", None, "b"))
        assert informer.get("ns/a") == "a"


async def test_a_list_that_is_forbidden_at_the_start_ends_the_informer_with_the_servers_words() -> None:
    async with serve() as (server, client):
        server.answers = [web.json_response({"kind": "Status", "reason": "Forbidden", "message": "things is forbidden"}, status=403)]
        informer = Informer(client, Source(PATH), value_of, Recorder())
        with pytest.raises(ApiError, match="HTTP 403 Forbidden: things is forbidden"):
            async with asyncio.timeout(10):
                await informer.run()


async def test_the_age_of_a_watch_is_unknown_before_the_first_answer_and_small_after_it() -> None:
    async with informing(lambda server: None) as (_, informer, __):
        assert informer.silent_for() is None
        async with asyncio.timeout(10):
            await informer.synced.wait()
        age = informer.silent_for()
        assert age is not None and age >= 0.0


async def test_an_object_of_our_own_write_is_seen_before_the_watch_brings_it_and_gone_with_the_watch() -> None:
    def prepare(server: WireServer) -> None:
        server.version = 5

    async with informing(prepare) as (server, informer, recorder):
        await server.wait_for_requests(1, watch=True)
        informer.note(thing("a", 7, "ours"))
        assert informer.get("ns/a") == "ours"
        assert recorder.changes == [("ns/a", None, "ours")]


async def test_what_the_watch_has_passed_is_not_brought_back_by_a_late_answer_to_our_own_write() -> None:
    def prepare(server: WireServer) -> None:
        server.version = 5
        server.scripts = [[event("ADDED", thing("a", 7, "x")), event("DELETED", thing("a", 8, "x"))]]

    async with informing(prepare) as (_server, informer, recorder):
        await recorder.wait_for(("ns/a", "x", None))
        informer.note(thing("a", 7, "x"))
        assert informer.get("ns/a") is None


async def test_a_list_that_is_older_than_our_own_write_does_not_drop_it() -> None:
    def prepare(server: WireServer) -> None:
        server.version = 5
        server.scripts = [[event("ADDED", thing("b", 6, "y"))]]

    async with informing(prepare, silence_seconds=0.2) as (server, informer, recorder):
        await recorder.wait_for(("ns/b", None, "y"))
        informer.note(thing("a", 8, "ours"))
        server.version = 7
        server.scripts = [[gone()], [event("DELETED", thing("a", 9, "ours"))]]
        await recorder.wait_for(("ns/b", "y", None), ("ns/a", "ours", None))


async def test_a_watch_that_nobody_answers_is_given_up_like_a_silent_one() -> None:
    def prepare(server: WireServer) -> None:
        server.unanswered_watches = 1
        server.scripts = [[event("ADDED", thing("a", 7, "x"))]]

    async with informing(prepare, silence_seconds=0.2) as (_server, _informer, recorder):
        await recorder.wait_for(("ns/a", None, "x"))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept from now on, in seconds."""
    noted, sleep = [], asyncio.sleep

    async def note(seconds: float) -> None:
        noted.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    return noted


@pytest.mark.parametrize(
    ("script", "lists"),
    [
        pytest.param([END], 1, id="ends it at once"),
        pytest.param([gone()], 3, id="forgets every version it lists"),
        pytest.param(["<html>proxy</html>"], 1, id="sends something that is no event"),
    ],
)
async def test_a_server_that_keeps_no_watch_is_asked_again_with_a_wait_each_time(waits: list[float], script: list[Any], lists: int) -> None:
    def prepare(server: WireServer) -> None:
        server.scripts = [script, script, [event("ADDED", thing("a", 7, "x"))]]

    async with informing(prepare) as (server, _informer, recorder):
        await recorder.wait_for(("ns/a", None, "x"))
        assert len(server.watches) == 3 and len(server.lists) == lists
        assert len([seconds for seconds in waits if 0.0 < seconds <= 0.05]) == 2
