"""Both exchanges keep the same promises: a value arrives, a wait ends, a deleted value is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from trainer_runtime.checkpoint.exchange import Exchange, LocalExchange, connect
from trainer_runtime.errors import ExchangeTimeout


@pytest.fixture(params=["local", "store"])
def exchanges(request: pytest.FixtureRequest) -> Iterator[tuple[Exchange, Exchange]]:
    """Two ranks' ends of one exchange."""
    if request.param == "local":
        shared = LocalExchange()
        yield shared, shared
        return
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    yield connect("127.0.0.1", server.port, "attempt-1", 20), connect("127.0.0.1", server.port, "attempt-1", 20)


def test_a_value_that_is_put_later_is_waited_for(exchanges: tuple[Exchange, Exchange]) -> None:
    one, other = exchanges
    thread = threading.Thread(target=lambda: other.put("key", b"\x00value\xff" * 100_000))
    thread.start()
    assert one.get("key", 20) == b"\x00value\xff" * 100_000
    thread.join()


def test_a_wait_that_ends_says_what_it_waited_for(exchanges: tuple[Exchange, Exchange]) -> None:
    with pytest.raises(ExchangeTimeout, match="'rank-7/index'"):
        exchanges[0].get("rank-7/index", 0.05)


def test_a_deleted_value_is_gone_and_deleting_it_again_is_nothing(exchanges: tuple[Exchange, Exchange]) -> None:
    one, other = exchanges
    one.put("key", b"value")
    other.delete("key")
    other.delete("key")
    with pytest.raises(ExchangeTimeout):
        one.get("key", 0.05)
