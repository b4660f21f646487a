"""The benchmarks' page: promises beside numbers, as the scripts said them."""

from __future__ import annotations

import pytest

from benchmarks.measuring import bar, median, ratio, spread, take_turns
from benchmarks.page import limit, section, words


@pytest.mark.parametrize(
    ("made", "met"),
    [
        (bar("stall / memcpy", 1.2, at_most=1.2), True),
        (bar("stall / memcpy", 1.21, at_most=1.2), False),
        (bar("times below DCP", 10.0, at_least=10), True),
        (bar("times below DCP", 9.9, at_least=10), False),
    ],
    ids=["at most, on the bar", "at most, above", "at least, on the bar", "at least, below"],
)
def test_a_bar_is_met_up_to_and_with_its_limit(made: dict[str, object], met: bool) -> None:
    assert made["met"] is met


def test_the_contestants_of_a_round_take_turns_at_going_first() -> None:
    order: list[str] = []

    def runner(name: str) -> float:
        order.append(name)
        return float(len(order))

    results = take_turns({"ours": lambda: runner("ours"), "theirs": lambda: runner("theirs")}, repeats=2)
    assert order == ["ours", "theirs", "theirs", "ours"]
    assert results == {"ours": [1.0, 4.0], "theirs": [2.0, 3.0]}


def test_medians_ratios_and_spreads_are_of_the_same_runs() -> None:
    assert (median([3.0, 1.0, 2.0]), ratio([1.0, 2.0, 3.0], [4.0])) == (2.0, 0.5)
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_a_missed_bar_is_said_on_the_page() -> None:
    text = section(
        "restore", {"benchmark": "restore", "ours_s": 1.5, "bars": [bar("ours / DCP", 1.5, at_most=1.0)], "machine": {"cpus": 2}}
    )
    assert "| ours / DCP | 1.5 | <= 1.0 | **no** |" in text
    assert "| `ours_s` | 1.5 |" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [({"median": 2, "min": 1, "max": 3}, "2 (1 … 3)"), ([1], "`[1]`"), (None, "None"), (0.5, "0.5")],
    ids=["spread", "list", "nothing", "number"],
)
def test_a_number_is_shown_with_its_range(value: object, text: str) -> None:
    assert words(value) == text


def test_a_limit_is_shown_with_its_direction() -> None:
    assert (limit(bar("a", 1, at_most=2)), limit(bar("b", 1, at_least=2))) == ("<= 2", ">= 2")
