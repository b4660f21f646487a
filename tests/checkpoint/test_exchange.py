"""All exchanges keep the same promises: a value arrives, and a wait ends. Those of a save also hear of two things at a time, and forget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from trainer_runtime.checkpoint.exchange import Exchange, LocalExchange, SaveExchange
from trainer_runtime.checkpoint.persister import exchange as served
from trainer_runtime.checkpoint.persister import link as links
from trainer_runtime.checkpoint.persister.exchange import ExchangeServer, RemoteExchange
from trainer_runtime.checkpoint.persister.messages import ExchangeAddress
from trainer_runtime.checkpoint.tcp_store import connect
from trainer_runtime.errors import ExchangeTimeout

TOKEN = "secret"


def address(port: int = 0, token: str = TOKEN) -> ExchangeAddress:
    return ExchangeAddress("127.0.0.1", port, token)


@pytest.fixture(params=["local", "store", "remote"])
def exchanges(request: pytest.FixtureRequest) -> Iterator[tuple[Exchange, Exchange]]:
    """Two ranks' ends of one exchange."""
    if request.param == "local":
        shared = LocalExchange()
        yield shared, shared
    elif request.param == "store":
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
        yield connect("127.0.0.1", server.port, "attempt-1", 20), connect("127.0.0.1", server.port, "attempt-1", 20)
    else:
        values = LocalExchange()
        serving = ExchangeServer(address(), values)
        client = RemoteExchange(address(serving.port))
        yield values, client
        client.close()
        serving.close()


@pytest.fixture
def remote() -> Iterator[tuple[LocalExchange, RemoteExchange]]:
    values = LocalExchange()
    server = ExchangeServer(address(), values)
    client = RemoteExchange(address(server.port))
    yield values, client
    client.close()
    server.close()


def test_a_value_that_is_put_later_is_waited_for(exchanges: tuple[Exchange, Exchange]) -> None:
    one, other = exchanges
    thread = threading.Thread(target=lambda: other.put("key", b"\x00value\xff" * 100_000))
    thread.start()
    assert one.get("key", 20) == b"\x00value\xff" * 100_000
    thread.join()


def test_a_value_reaches_the_other_end(exchanges: tuple[Exchange, Exchange]) -> None:
    one, other = exchanges
    one.put("key", b"value")
    assert other.get("key", 20) == b"value"


def test_a_wait_that_ends_says_what_it_waited_for(exchanges: tuple[Exchange, Exchange]) -> None:
    for exchange in exchanges:
        with pytest.raises(ExchangeTimeout, match="'rank-7/index'"):
            exchange.get("rank-7/index", 0.05)


def test_of_several_keys_the_first_that_has_a_value_is_told(remote: tuple[LocalExchange, RemoteExchange]) -> None:
    ends: tuple[SaveExchange, ...] = remote
    ends[0].put("gone/2", b"")
    for end in ends:
        assert end.get_first(["index/2", "gone/2"], 20) == ("gone/2", b"")
    ends[1].put("index/2", b"index")
    for end in ends:
        assert end.get_first(["index/2", "gone/2"], 20) == ("index/2", b"index")


def test_what_is_forgotten_is_gone_and_the_rest_stays(remote: tuple[LocalExchange, RemoteExchange]) -> None:
    values, client = remote
    for key in ("save/1/index", "save/1/proof", "save/2/index"):
        client.put(key, b"value")
    values.forget("save/1/")
    assert [client.find(key) for key in ("save/1/index", "save/1/proof", "save/2/index")] == [None, None, b"value"]


def test_a_client_says_again_to_a_new_server_what_it_told_the_old_one() -> None:
    first = ExchangeServer(address(), LocalExchange())
    client = RemoteExchange(address(first.port))
    client.put("save/1/index", b"old")
    client.forget("save/1/")
    client.put("save/2/index", b"index")
    first.close()
    client.put("save/2/proof", b"proof")  # said when there is somebody to say it to
    values = LocalExchange()
    second = ExchangeServer(address(first.port), values)
    values.put("answer", b"yes")
    assert client.get("answer", 20) == b"yes"
    assert [values.find(key) for key in ("save/1/index", "save/2/index", "save/2/proof")] == [None, b"index", b"proof"]
    client.close()
    second.close()


def test_a_server_that_is_gone_ends_a_wait_with_the_reason() -> None:
    server = ExchangeServer(address(), LocalExchange())
    client = RemoteExchange(address(server.port))
    server.close()
    with pytest.raises(ExchangeTimeout, match="'key'; rank 0's persister cannot be reached: 127.0.0.1"):
        client.get("key", 0.05)


def test_a_look_outlasts_a_server_that_is_replaced_after_it_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ExchangeServer(address(), LocalExchange())
    client = RemoteExchange(address(first.port))
    first.close()
    values, clock = LocalExchange(), [0.0]
    servers: list[ExchangeServer] = []
    values.put("key", b"value")

    def pass_time(seconds: float) -> None:
        clock[0] += served.IO_SECONDS
        if clock[0] > links.SILENCE_SECONDS and not servers:
            servers.append(ExchangeServer(address(first.port), values))

    monkeypatch.setattr(served, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=pass_time))
    assert client.find("key") == b"value"
    client.close()
    servers[0].close()


def test_whoever_does_not_say_the_token_is_told_nothing(remote: tuple[LocalExchange, RemoteExchange]) -> None:
    values, client = remote
    values.put("key", b"value")
    assert client.get("key", 20) == b"value"
    stranger = RemoteExchange(ExchangeAddress("127.0.0.1", client.address.port, "guess"))
    with pytest.raises(ExchangeTimeout):
        stranger.get("key", 0.3)
    stranger.close()
