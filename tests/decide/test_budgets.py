"""Sliding windows and backoff."""

from __future__ import annotations

from datetime import datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rtj_operator.api.v1alpha1 import BudgetBucket, Budgets, Charge
from rtj_operator.decide.budgets import backoff, charged, count, is_exceeded
from tests.decide.world import START

BUDGETS = Budgets(application=3, window_seconds=3600)


def window_of(times: list[datetime]) -> tuple[BudgetBucket, ...]:
    """The window after one application failure at each time."""
    window: tuple[BudgetBucket, ...] = ()
    for at in times:
        window = charged(window, Charge.APPLICATION, BUDGETS, at)
    return window


def test_a_budget_of_three_is_exceeded_by_the_fourth() -> None:
    window = window_of([START] * 3)
    assert not is_exceeded(window, Charge.APPLICATION, BUDGETS, START)
    assert is_exceeded(window_of([START] * 4), Charge.APPLICATION, BUDGETS, START)
    assert not is_exceeded(window_of([START] * 4), Charge.HANG, BUDGETS, START)


def test_unknown_has_no_budget() -> None:
    assert not is_exceeded((BudgetBucket(hour=START, charge=Charge.UNKNOWN, n=999),), Charge.UNKNOWN, BUDGETS, START)


@given(st.lists(st.integers(0, 7200), max_size=40), st.integers(0, 7200))
def test_an_incident_counts_for_the_window_and_at_most_a_bucket_longer(seconds: list[int], after: int) -> None:
    times = sorted(START + timedelta(seconds=second) for second in seconds)
    now = max([START + timedelta(seconds=after), *times])
    window = window_of(times)
    exact = sum(1 for at in times if now - at < timedelta(seconds=3600))
    generous = sum(1 for at in times if now - at < timedelta(seconds=3600 + 300))
    assert exact <= count(window, Charge.APPLICATION, BUDGETS, now) <= generous
    assert len(window) <= 26


@pytest.mark.parametrize(("times", "seconds"), [(0, 0), (1, 10), (2, 20), (4, 80), (7, 600), (1000, 600)])
def test_backoff_doubles_up_to_its_limit(times: int, seconds: float) -> None:
    assert backoff(times, 10, 600) == timedelta(seconds=seconds)
