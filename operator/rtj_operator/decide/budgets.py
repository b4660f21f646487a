"""How often a job may fail: sliding windows per charge, and the limit of failures without progress.

All of it is computed from ``status.budgetWindow`` and the counters beside it; nothing is counted twice, because the incident and its count
are in one status write.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from rtj_operator.api.v1alpha1 import BudgetBucket, Budgets, Charge

BUCKETS: Final = 24
"""Parts of one window: an incident leaves the window at most a 24th of it too late."""
WITHOUT_PROGRESS: Final = frozenset({Charge.APPLICATION, Charge.HANG, Charge.UNKNOWN})
"""Charges that the limit of failures without progress counts."""


def charged(window: Iterable[BudgetBucket], charge: Charge, budgets: Budgets, now: datetime) -> tuple[BudgetBucket, ...]:
    """Return the window with one more incident of that charge, without what has left it, oldest first."""
    start = _bucket_start(budgets, now)
    kept = {(bucket.hour, bucket.charge): bucket for bucket in in_window(window, budgets, now)}
    before = kept.get((start, charge))
    kept[(start, charge)] = BudgetBucket(hour=start, charge=charge, n=(before.n if before is not None else 0) + 1)
    return tuple(sorted(kept.values(), key=lambda bucket: (bucket.hour, bucket.charge.value)))


def in_window(window: Iterable[BudgetBucket], budgets: Budgets, now: datetime) -> tuple[BudgetBucket, ...]:
    """Return the buckets that still overlap the window."""
    oldest = now - timedelta(seconds=budgets.window_seconds) - _bucket_length(budgets)
    return tuple(bucket for bucket in window if bucket.hour > oldest)


def count(window: Iterable[BudgetBucket], charge: Charge, budgets: Budgets, now: datetime) -> int:
    """Return the incidents of that charge in the window."""
    return sum(bucket.n for bucket in in_window(window, budgets, now) if bucket.charge is charge)


def budget_of(charge: Charge, budgets: Budgets) -> int | None:
    """Return how many incidents of that charge the window may hold; None for unknown, which only the limit without progress ends."""
    allowed = {
        Charge.APPLICATION: budgets.application,
        Charge.HANG: budgets.hang,
        Charge.INFRASTRUCTURE: budgets.infrastructure,
        Charge.PREEMPTION: budgets.preemption,
    }
    return allowed.get(charge)


def is_exceeded(window: Iterable[BudgetBucket], charge: Charge, budgets: Budgets, now: datetime) -> bool:
    """Say whether the window holds more incidents of that charge than the budget allows."""
    allowed = budget_of(charge, budgets)
    return allowed is not None and count(window, charge, budgets, now) > allowed


def backoff(times: int, first_seconds: float, limit_seconds: float) -> timedelta:
    """Return first x 2^(times-1), at most the limit; none for times < 1."""
    if times < 1:
        return timedelta(0)
    return timedelta(seconds=min(limit_seconds, first_seconds * 2.0 ** min(times - 1, 30)))


def _bucket_length(budgets: Budgets) -> timedelta:
    return timedelta(seconds=budgets.window_seconds / BUCKETS)


def _bucket_start(budgets: Budgets, now: datetime) -> datetime:
    length = _bucket_length(budgets).total_seconds()
    return datetime.fromtimestamp(now.timestamp() // length * length, UTC)
