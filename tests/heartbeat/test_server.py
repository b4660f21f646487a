"""The heartbeat server over real HTTPS: who is let in, who is not, and in which words."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from e2e.cluster.pki import Authority
from rtj_operator.heartbeat.server import HeartbeatServer, Sender
from rtj_operator.heartbeat.tls import ServerTls
from tests.heartbeat.beats_data import JOB_UID, POD_UID, beat
from trainer_runtime.contract.beat import BEAT_PATH, MAX_BODY_BYTES, Beat, Directive, Reply
from trainer_runtime.contract.codec import dumps, from_jsonable

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Pod:
    namespace: str
    pod_uid: str


class CannotTell(Exception):
    pass


class Tokens:
    """Reviews tokens from a table; the API server's part is tested against a real one."""

    async def review(self, token: str) -> Pod | None:
        if token == "outage":
            raise CannotTell
        return {
            "good": Pod("ns", POD_UID),
            "other-pod": Pod("ns", "pod-2"),
            "stranger": Pod("ns", "pod-9"),
            "elsewhere": Pod("evil", POD_UID),
        }.get(token)


class Roster:
    """One job with two pods."""

    def has_job(self, job_uid: str) -> bool:
        return job_uid in (JOB_UID, "job-2")

    def find_sender(self, pod_uid: str) -> Sender | None:
        known = {POD_UID: Sender("ns", JOB_UID, "gpt-1-0", 0), "pod-2": Sender("ns", "job-2", "other-1-0", 0)}
        return known.get(pod_uid)


@dataclass
class Counts:
    accepted: int = 0
    rejected: list[str] = field(default_factory=list)

    def beat_accepted(self) -> None:
        self.accepted += 1

    def beat_rejected(self, reason: str) -> None:
        self.rejected.append(reason)


@dataclass
class Desk:
    """A running server and a client that trusts its CA."""

    url: str
    client: aiohttp.ClientSession
    counts: Counts
    taken: list[Beat]

    async def post(self, body: bytes | Any, token: str | None = "good") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        async with self.client.post(self.url + BEAT_PATH, data=body, headers=headers) as response:
            return response.status, await response.json() if response.content_type == "application/json" else await response.text()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    authority = Authority.create(tmp_path)
    authority.issue("server", "heartbeat", addresses=["127.0.0.1"])
    taken: list[Beat] = []
    counts = Counts()

    def answer(received: Beat, sender: Sender, now: datetime) -> Reply:
        taken.append(received)
        return Reply(directive=Directive.CONTINUE, received_at=now.timestamp())

    server = HeartbeatServer(Tokens(), (CannotTell,), Roster(), answer, counts, lambda: NOW)
    port = await server.start("127.0.0.1", 0, ServerTls(tmp_path / "server.crt", tmp_path / "server.key").context)
    trust = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as client:
        yield Desk(f"https://127.0.0.1:{port}", client, counts, taken)
    await server.stop()


async def test_a_good_beat_is_taken_and_answered(desk: Desk) -> None:
    status, body = await desk.post(dumps(beat()).encode())
    assert status == 200
    assert from_jsonable(Reply, body) == Reply(Directive.CONTINUE, NOW.timestamp())
    assert desk.taken == [beat()]
    assert desk.counts.accepted == 1


@pytest.mark.parametrize(
    ("token", "sent", "status", "reason", "words"),
    [
        pytest.param(None, beat(), 401, "no_token", "a bearer token is needed", id="no token"),
        pytest.param("forged", beat(), 401, "bad_token", "expired, for another audience", id="a token the API server refuses"),
        pytest.param("other-pod", beat(), 403, "wrong_pod", "bound to pod pod-2", id="another pod's token"),
        pytest.param("good", beat(job_uid="job-9"), 404, "unknown_job", "no job job-9", id="a job that is not there"),
        pytest.param("good", beat(job_uid="job-2"), 403, "wrong_job", f"belongs to job {JOB_UID}", id="another job"),
        pytest.param("stranger", beat(pod_uid="pod-9"), 403, "unknown_pod", "no live pod", id="a pod that is not of a job"),
        pytest.param("elsewhere", beat(), 403, "unknown_pod", "no live pod", id="a pod of another namespace"),
        pytest.param("good", beat(worker_index=1), 403, "wrong_worker", "the pod is worker 0", id="another worker's index"),
        pytest.param("outage", beat(), 503, "not_reviewed", "cannot review", id="nobody can tell whose token it is"),
    ],
)
async def test_a_beat_that_is_not_proven_is_refused_with_what_is_wrong(
    desk: Desk, token: str | None, sent: Beat, status: int, reason: str, words: str
) -> None:
    got, body = await desk.post(dumps(sent).encode(), token)
    assert (got, body["reason"]) == (status, reason)
    assert words in body["message"]
    assert desk.taken == []
    assert desk.counts.rejected == [reason]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"{", "not JSON", id="no JSON"),
        pytest.param(b"[]", "Beat", id="no object"),
        pytest.param(dumps(beat()).replace('"attempt":1', '"attempt":"one"').encode(), "Beat.attempt: 'one'", id="a wrong type"),
        pytest.param(dumps(beat()).replace('"phase":"train"', '"phase":"nap"').encode(), "Beat.phase: 'nap'", id="an unknown phase"),
        pytest.param(dumps(beat()).replace('"version":"1.0"', '"version":"2.0"').encode(), "version: '2.0'", id="another version"),
        pytest.param(b"\xff\xfe", "not JSON", id="no text"),
        pytest.param(b"[" * 30_000, "not JSON", id="deep nesting"),
    ],
)
async def test_a_malformed_beat_is_refused_and_the_field_is_named(desk: Desk, body: bytes, words: str) -> None:
    status, answer = await desk.post(body)
    assert (status, answer["reason"]) == (400, "malformed")
    assert words in answer["message"]


async def test_a_body_that_is_too_large_is_refused_by_its_length(desk: Desk) -> None:
    status, answer = await desk.post(b"x" * (MAX_BODY_BYTES + 1))
    assert (status, answer["reason"]) == (413, "too_large")


async def test_a_body_that_hides_its_length_is_cut_off_at_the_limit(desk: Desk) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(160):
            sent += MAX_BODY_BYTES
            yield b"x" * MAX_BODY_BYTES

    try:
        status, answer = await desk.post(chunks())
        assert (status, answer["reason"]) == (413, "too_large")
    except aiohttp.ClientError:
        pass  # the server may close the connection while the client still sends: refused all the same
    assert desk.taken == []
    assert desk.counts.rejected == ["too_large"]


async def test_other_paths_and_methods_are_not_served(desk: Desk) -> None:
    async with desk.client.get(desk.url + BEAT_PATH) as response:
        assert response.status == 405
    async with desk.client.post(desk.url + "/") as response:
        assert response.status == 404
