"""What a machine states by its own clock is dated by the operator's, whichever way the two differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rtj_operator.cluster.sightings import Sightings

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


@pytest.mark.parametrize("skew", [-HOUR, timedelta(0), HOUR], ids=["behind", "right", "ahead"])
def test_a_machine_that_fell_silent_is_as_silent_as_it_is_whatever_its_clock(skew: timedelta) -> None:
    now = NOW
    seen = Sightings(lambda: now)
    for now in (NOW, NOW + 10 * SECOND, NOW + 20 * SECOND):
        seen.note("n7", now + skew)
    last = now
    now = NOW + 2 * HOUR
    seen.note("n7", last + skew)
    assert seen.at("n7") == last


@pytest.mark.parametrize(
    ("stated", "dated"),
    [
        pytest.param(NOW - HOUR, NOW - HOUR, id="silent for an hour while nobody looked"),
        pytest.param(NOW + HOUR, NOW, id="ahead, and alive now at the latest"),
    ],
)
def test_the_first_time_is_believed_unless_it_lies_ahead(stated: datetime, dated: datetime) -> None:
    seen = Sightings(lambda: NOW)
    seen.note("n7", stated)
    assert seen.at("n7") == dated


def test_a_clock_that_is_put_back_is_alive() -> None:
    now = NOW
    seen = Sightings(lambda: now)
    seen.note("n7", NOW + HOUR)
    now = NOW + SECOND
    seen.note("n7", NOW + SECOND - HOUR)
    assert seen.at("n7") == now


def test_what_is_gone_has_no_time_and_is_new_when_it_comes_back() -> None:
    seen = Sightings(lambda: NOW)
    seen.note("n7", NOW)
    seen.note("n7", None)
    assert seen.at("n7") is None
    seen.note("n7", NOW - HOUR)
    assert seen.at("n7") == NOW - HOUR
