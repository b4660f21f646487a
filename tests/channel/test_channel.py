"""The channel between real sockets: what is sent arrives, and neither end can hurt the other."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.descriptors import LOW, low_ones_taken
from trainer_runtime.channel.client import Client, connect_from_environment
from trainer_runtime.channel.codec import MAX_LINE_BYTES, decode_down, decode_up, encode
from trainer_runtime.channel.messages import (
    ArchiveLooked,
    DeleteProposed,
    Down,
    Ending,
    Holding,
    MayDelete,
    Proceed,
    Progress,
    Raised,
    Recorded,
    Save,
    SaveAbandoned,
    SaveAndStop,
    Up,
)
from trainer_runtime.channel.server import Joined, Received, Server
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Level, Phase, RecordKey, SaveFailure
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.exit_report import DamagedCheckpoint, Outcome
from trainer_runtime.waiting import wait_readable

SECONDS = 10.0
RECORD = CheckpointRecord("run", 5, 1, "file:///store/run/steps/x", "ab" * 32, Level.VERIFIED)
KEY = RecordKey("run", 5, 1, Level.VERIFIED)
UPS: list[Up] = [
    Progress(rank=2, phase=Phase.TRAIN, step=7, epoch=1, loss=float("inf"), step_seconds=0.5, phase_limits={"train": 60.0}),
    Recorded(RECORD),
    Holding((RECORD,), highest_fence=3, fence_job_uid="uid", quiet_seconds=-1.5),
    SaveAbandoned(SaveFailure(step=5, reason="no space left on the device", count=2)),
    ArchiveLooked(ArchiveLook(failures=2, reason="the archive is away")),
    ArchiveLooked(ArchiveLook()),
    DeleteProposed((KEY,)),
    Raised(rank=1, at_ns=1_700_000_000_123_456_789, exception="ValueError: bad\nline", step=4),
    Ending(rank=0, outcome=Outcome.DAMAGED, message="m", checkpoint=DamagedCheckpoint(5, 1, "ab", "data/x", "digest")),
]
DOWNS: list[Down] = [
    SaveAndStop(deadline_seconds=25.0),
    Save(),
    Proceed(None),
    Proceed(Assignment(2, 0, 1, 2, "127.0.0.1", 29500, "job-2")),
    MayDelete((KEY,)),
]


@dataclass
class Bench:
    server: Server
    arrived: queue.Queue[Joined | Received]

    def join(self, rank: int) -> Client:
        client = Client(self.server.path, rank)
        assert self.arrived.get(timeout=SECONDS) == Joined(rank)
        return client


@pytest.fixture
def bench() -> Iterator[Bench]:
    arrived: queue.Queue[Joined | Received] = queue.Queue()
    server = Server(arrived.put)
    yield Bench(server, arrived)
    server.close()


@pytest.mark.parametrize("message", UPS, ids=lambda message: type(message).__name__)
def test_what_a_rank_says_reaches_rtj_run_unchanged(bench: Bench, message: Up) -> None:
    client = bench.join(rank=3)
    client.send(message)
    assert bench.arrived.get(timeout=SECONDS) == Received(3, message)
    client.close()


@pytest.mark.parametrize("order", DOWNS, ids=repr)
def test_an_order_reaches_a_rank_unchanged(bench: Bench, order: Down) -> None:
    client = bench.join(rank=0)
    bench.server.send(order)
    assert client.wait(type(order), SECONDS) == order
    client.close()


def test_an_order_for_one_rank_reaches_only_that_rank(bench: Bench) -> None:
    first, second = bench.join(0), bench.join(1)
    bench.server.send(Save(), rank=1)
    bench.server.send(SaveAndStop(1.0))
    assert first.wait(SaveAndStop, SECONDS) is not None
    assert first.poll() == ()
    assert second.wait(SaveAndStop, SECONDS) is not None
    assert second.poll() == (Save(),)
    first.close()
    second.close()


def test_waiting_for_one_kind_keeps_the_others_for_poll(bench: Bench) -> None:
    client = bench.join(0)
    bench.server.send(Save())
    bench.server.send(Proceed(None))
    assert client.wait(Proceed, SECONDS) == Proceed(None)
    assert client.poll() == (Save(),)
    client.close()


def test_a_rank_with_many_files_open_waits_and_speaks_like_any_other(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, low_ones_taken():
        listener.bind(path)
        listener.listen(1)
        client = Client(path, 0)
        connection, _address = listener.accept()
        assert connection.fileno() > LOW
        assert client.wait(Proceed, 0.05) is None
        connection.sendall(encode(Proceed(None)))
        assert client.wait(Proceed, SECONDS) == Proceed(None)
        while not client._unsent:  # until the socket is full, so that the last words wait for room
            client.send(UPS[0])
        client.send(UPS[-1])
        assert client.connected
        client.close()
        connection.close()


def test_waiting_ends_when_another_thread_sees_that_rtj_run_is_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.join(0)

    def lose_it_meanwhile(*descriptors: int, seconds: float | None = None) -> frozenset[int]:
        client.close()
        return wait_readable(*descriptors, seconds=seconds)

    monkeypatch.setattr("trainer_runtime.channel.client.wait_readable", lose_it_meanwhile)
    assert client.wait(Proceed, SECONDS) is None


def test_waiting_ends_at_its_deadline(bench: Bench) -> None:
    client = bench.join(0)
    assert client.wait(Proceed, 0.05) is None
    assert client.connected
    client.close()


def test_a_rank_goes_on_and_warns_once_when_rtj_run_is_gone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    client = bench.join(0)
    bench.server.close()
    with caplog.at_level(logging.WARNING):
        assert client.wait(Proceed, SECONDS) is None
        for message in UPS:
            client.send(message)
        assert client.poll() == ()
    assert not client.connected
    assert len(caplog.records) == 1


def test_a_rank_starts_without_rtj_run_listening(caplog: pytest.LogCaptureFixture) -> None:
    client = connect_from_environment({"RTJ_CHANNEL": "/nonexistent/channel", "RANK": "0"})
    assert client is not None
    assert not client.connected
    client.send(UPS[0])
    assert len(caplog.records) == 1


def test_without_a_channel_in_the_environment_there_is_no_client() -> None:
    assert connect_from_environment({}) is None


def test_a_rank_never_waits_for_an_rtj_run_that_does_not_read(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "s")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    client = Client(path, 0)
    for _ in range(20_000):
        client.send(UPS[0])
    assert client.connected
    assert len(client._unsent) <= 1024 * 1024
    client.close()
    listener.close()


@pytest.mark.parametrize(
    "nonsense", [b"not json\n", b'{"kind":"Shout"}\n', b"x" * (MAX_LINE_BYTES + 10), b"[]\n", encode(Save())], ids=lambda raw: str(raw[:12])
)
def test_nonsense_costs_only_the_connection_that_sent_it(bench: Bench, nonsense: bytes) -> None:
    good = bench.join(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bad:
        bad.connect(bench.server.path)
        bad.settimeout(SECONDS)
        bad.sendall(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert bad.recv(1) == b""
    good.send(UPS[0])
    assert bench.arrived.get(timeout=SECONDS) == Received(0, UPS[0])
    good.close()


def test_many_ranks_talk_at_once(bench: Bench) -> None:
    clients = [bench.join(rank) for rank in range(64)]
    for step in range(10):
        for rank, client in enumerate(clients):
            client.send(Progress(rank=rank, phase=Phase.TRAIN, step=step))
    seen = [bench.arrived.get(timeout=SECONDS) for _ in range(640)]
    for rank in range(64):
        steps = [one.message.step for one in seen if isinstance(one, Received) and isinstance(one.message, Progress) and one.rank == rank]
        assert steps == list(range(10))
    for client in clients:
        client.close()


def test_the_socket_lies_where_only_this_user_can_enter(bench: Bench) -> None:
    directory = os.path.dirname(bench.server.path)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    bench.server.close()
    assert not os.path.exists(directory)


def test_a_very_long_last_word_is_cut_instead_of_lost(bench: Bench) -> None:
    client = bench.join(0)
    client.send(Ending(rank=0, outcome=Outcome.REFUSED, message="d" * 1_000_000))
    got = bench.arrived.get(timeout=SECONDS)
    assert isinstance(got, Received)
    assert isinstance(got.message, Ending)
    assert got.message.outcome is Outcome.REFUSED
    assert len(got.message.message) == 8_000
    client.close()


def test_each_direction_refuses_the_other_directions_messages() -> None:
    with pytest.raises(ContractError, match="kind: 'Save' is not one of"):
        decode_up(encode(Save()))
    with pytest.raises(ContractError, match="kind: 'Progress' is not one of"):
        decode_down(encode(UPS[0]))
