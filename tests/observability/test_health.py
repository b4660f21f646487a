"""Health, readiness and metrics over real HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from rtj_operator.observability.health import HealthServer
from rtj_operator.observability.logs import JsonLines
from rtj_operator.observability.metrics import Metrics


class State:
    """What the checks answer."""

    alive = ""
    ready = ""
    url = ""


@pytest.fixture
async def state() -> AsyncIterator[State]:
    state = State()
    registry = CollectorRegistry()
    metrics = Metrics(registry, "1.2.3")
    metrics.beat_rejected("bad_token")
    metrics.observe_live("rtj_queue_depth", "Depth.", lambda: 4.0)
    server = HealthServer(registry, alive=[lambda: state.alive], ready=[lambda: state.ready])
    state.url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    yield state
    await server.stop()


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    ("alive", "ready", "healthz", "readyz"),
    [
        pytest.param("", "", (200, "ok"), (200, "ok"), id="all is well"),
        pytest.param("", "no lease", (200, "ok"), (503, "no lease"), id="a standby is alive but not ready"),
        pytest.param("dead watch", "", (503, "dead watch"), (503, "dead watch"), id="what is not alive is not ready either"),
        pytest.param("stuck", "no lease", (503, "stuck"), (503, "stuck\nno lease"), id="every problem is told"),
    ],
)
async def test_a_check_that_fails_is_answered_in_words(
    state: State, alive: str, ready: str, healthz: tuple[int, str], readyz: tuple[int, str]
) -> None:
    state.alive, state.ready = alive, ready
    assert await get(f"{state.url}/healthz") == healthz
    assert await get(f"{state.url}/readyz") == readyz


async def test_metrics_are_served_with_live_values_and_the_version(state: State) -> None:
    status, text = await get(f"{state.url}/metrics")
    assert status == 200
    assert 'rtj_heartbeats_rejected_total{reason="bad_token"} 1.0' in text
    assert "rtj_queue_depth 4.0" in text
    assert 'rtj_operator_build_info{version="1.2.3"} 1.0' in text


def test_a_json_log_line_is_one_line_with_the_traceback_in_it() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        record = logging.LogRecord("rtj", logging.ERROR, "f.py", 1, "pass of %s failed", ("gpt",), (ValueError, error, error.__traceback__))
    line = JsonLines().format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["level"], read["logger"], read["message"]) == ("error", "rtj", "pass of gpt failed")
    assert "ValueError: first\nsecond" in read["exception"]
