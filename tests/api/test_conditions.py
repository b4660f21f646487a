"""lastTransitionTime moves only when the status of a condition changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rtj_operator.api.conditions import ConditionStatus, ConditionType, find_condition, is_condition_true, set_condition

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)


def test_a_new_reason_alone_keeps_the_transition_time() -> None:
    first = set_condition((), ConditionType.RUNNING, ConditionStatus.FALSE, reason="A", message="a", now=T0, generation=1)
    second = set_condition(first, ConditionType.RUNNING, ConditionStatus.FALSE, reason="B", message="b", now=T1, generation=2)
    (condition,) = second
    assert (condition.last_transition_time, condition.reason, condition.message, condition.observed_generation) == (T0, "B", "b", 2)


def test_a_new_status_moves_the_transition_time() -> None:
    first = set_condition((), ConditionType.RUNNING, ConditionStatus.FALSE, reason="A", message="", now=T0, generation=1)
    (condition,) = set_condition(first, ConditionType.RUNNING, ConditionStatus.TRUE, reason="B", message="", now=T1, generation=1)
    assert condition.last_transition_time == T1
    assert is_condition_true((condition,), ConditionType.RUNNING)


def test_conditions_stay_in_one_order_whatever_the_order_of_setting() -> None:
    conditions = set_condition((), ConditionType.FINISHED, ConditionStatus.FALSE, reason="A", message="", now=T0, generation=1)
    conditions = set_condition(conditions, ConditionType.VALID, ConditionStatus.TRUE, reason="A", message="", now=T0, generation=1)
    assert [condition.type for condition in conditions] == ["Valid", "Finished"]
    assert find_condition(conditions, ConditionType.COMPLETE) is None
