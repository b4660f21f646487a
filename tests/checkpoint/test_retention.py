"""What retention proposes to delete, by table, and what holds for any history and any rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_runtime.checkpoint.keeping.retention import ABANDONED_SECONDS, Held, find_abandoning, find_best, propose
from trainer_runtime.contract.assignment import Best, Goal, Keep, ResumePoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.errors import ConfigurationError

NOW = 10 * ABANDONED_SECONDS
OLD = NOW - ABANDONED_SECONDS
YOUNG = OLD + 1


def held(
    step: int,
    attempt: int = 1,
    *,
    on: bool = True,
    verified: bool = True,
    tagged: bool = False,
    changed_at: float = OLD,
    made: str = "1970-01-01T00:00+00:00",
    metrics: Mapping[str, float] | None = None,
    abandoned_at: float = 0.0,
) -> Held:
    created_at = datetime.fromisoformat(made).timestamp()
    return Held(StepName(step, attempt), on, verified, tagged, changed_at, created_at, metrics or {}, abandoned_at)


def losses(*values: float) -> list[Held]:
    return [held(10 * number, metrics={"eval_loss": value}) for number, value in enumerate(values, start=1)]


STEADY = [held(step) for step in (10, 20, 30, 40)]
DAYS = [
    held(10, made="2026-03-01T08:00+00:00"),
    held(20, made="2026-03-01T23:59+00:00"),
    held(30, made="2026-03-02T00:00+00:00"),
    held(40, made="2026-03-04T01:00+02:00"),  # the 3rd in UTC
    held(50, made="2026-03-04T01:00+00:00"),
    held(60, made="2026-03-04T09:00+00:00"),
]
WEEKS = [
    held(10, made="2026-12-21T00:00+00:00"),
    held(20, made="2026-12-27T23:59+00:00"),
    held(30, made="2026-12-28T00:00+00:00"),
    held(40, made="2027-01-03T23:59+00:00"),  # still week 53 of 2026
    held(50, made="2027-01-04T00:00+00:00"),
    held(60, made="2027-01-11T00:00+00:00"),
]
CASES = [
    pytest.param([], Keep(), None, [], id="an empty run"),
    pytest.param(STEADY, Keep(last=2), None, [10, 20], id="all but the newest two"),
    pytest.param(STEADY, Keep(last=9), None, [], id="fewer than are kept"),
    pytest.param(list(reversed(STEADY)), Keep(last=2), None, [10, 20], id="in any order"),
    pytest.param(STEADY, Keep(last=1, every_steps=20), None, [10, 30], id="and every 20th step"),
    pytest.param(STEADY, Keep(last=1), 10, [20, 30], id="never a protected one"),
    pytest.param([held(10, tagged=True), *STEADY[1:]], Keep(last=1), None, [20, 30], id="never a tagged one"),
    pytest.param([*STEADY, held(50, verified=False)], Keep(last=1), None, [10, 20, 30], id="an unverified one displaces nothing"),
    pytest.param([held(10, verified=False), held(20)], Keep(last=1), None, [10], id="unverified, overtaken, old"),
    pytest.param([held(10, verified=False, changed_at=YOUNG), held(20)], Keep(last=1), None, [], id="unverified, overtaken, young"),
    pytest.param([held(10, verified=False), held(20, verified=False)], Keep(last=1), None, [], id="nothing is verified: nothing goes"),
    pytest.param([held(20), held(30, on=False)], Keep(last=1), None, [30], id="abandoned and old"),
    pytest.param([held(20), held(30, on=False, changed_at=YOUNG)], Keep(last=1), None, [], id="abandoned and young"),
    pytest.param([held(20), held(30, on=False, changed_at=0.0, abandoned_at=OLD)], Keep(last=1), None, [30], id="abandoned a day ago"),
    pytest.param([held(20), held(30, on=False, changed_at=0.0, abandoned_at=YOUNG)], Keep(last=1), None, [], id="old, abandoned just now"),
    pytest.param([held(20), held(30, on=False, changed_at=YOUNG, abandoned_at=OLD)], Keep(last=1), None, [], id="written after that"),
    pytest.param([held(20), held(30, on=False, tagged=True)], Keep(last=1), None, [], id="abandoned and tagged"),
    pytest.param([held(20), held(30, on=False)], Keep(last=1), 30, [], id="abandoned and protected"),
    pytest.param([held(20, 1), held(20, 2)], Keep(last=1), None, [20], id="the same step of two attempts"),
    pytest.param(losses(3, 1, 2, 4), Keep(last=1, best=Best("eval_loss")), None, [10, 30], id="and the least loss"),
    pytest.param(losses(3, 1, 2, 4), Keep(last=1, best=Best("eval_loss", Goal.MAX)), None, [10, 20, 30], id="and the greatest, the newest"),
    pytest.param(losses(5, 2, 2, 4), Keep(last=1, best=Best("eval_loss")), None, [10, 30], id="of equals the oldest"),
    pytest.param(losses(3, math.nan, -math.inf, 4), Keep(last=1, best=Best("eval_loss")), None, [20, 30], id="not what is not finite"),
    pytest.param(STEADY, Keep(last=1, best=Best("eval_loss")), None, [10, 20, 30], id="best of what nobody reported"),
    pytest.param(
        [held(10, on=False, metrics={"eval_loss": 0.0}), *losses(3, 1, 2)[1:]],
        Keep(last=1, best=Best("eval_loss")),
        None,
        [10],
        id="an abandoned one is not best",
    ),
    pytest.param(DAYS, Keep(last=1, daily=2), None, [10, 20, 30, 50], id="the newest of two days"),
    pytest.param(DAYS, Keep(last=1, daily=3), None, [10, 20, 50], id="days are UTC days that have one"),
    pytest.param(DAYS, Keep(last=1, daily=9), None, [10, 50], id="fewer days than are kept"),
    pytest.param(WEEKS, Keep(last=1, weekly=3), None, [10, 20, 30], id="ISO weeks over the turn of the year"),
    pytest.param(WEEKS, Keep(last=1, weekly=1), None, [10, 20, 30, 40, 50], id="this week's newest"),
]


@pytest.mark.parametrize(("present", "keep", "protected", "steps"), CASES)
def test_what_may_be_deleted(present: list[Held], keep: Keep, protected: int | None, steps: list[int]) -> None:
    names = () if protected is None else (StepName(protected, 1),)
    assert [name.step for name in propose(present, keep, NOW, names)] == steps


def fence(attempt: int, resume: tuple[int, int] | None = None) -> Fence:
    return Fence(attempt, "job", "pod", "nonce", ResumePoint(*resume, "", "") if resume else None)


@pytest.mark.parametrize(
    ("fences", "name", "abandoning"),
    [
        pytest.param([fence(1)], (10, 1), None, id="on the lineage"),
        pytest.param([fence(1), fence(2, (10, 1))], (10, 1), None, id="resumed from"),
        pytest.param([fence(1), fence(2, (10, 1))], (20, 1), 2, id="rolled back"),
        pytest.param([fence(1), fence(2)], (10, 1), 2, id="started afresh"),
        pytest.param([fence(1), fence(2, (10, 1)), fence(3, (15, 2))], (20, 1), 2, id="the first of those that left it out"),
        pytest.param([fence(1), fence(2, (20, 1)), fence(3, (10, 1))], (20, 1), 3, id="resumed from, and rolled back later"),
        pytest.param([fence(1), fence(2), fence(3, (10, 1)), fence(4)], (10, 1), 4, id="abandoned, named by a person, abandoned again"),
        pytest.param([fence(1), fence(2), fence(3, (10, 1))], (10, 1), None, id="abandoned, and named by a person"),
        pytest.param([fence(1)], (10, 2), None, id="of an attempt whose fence is not there"),
        pytest.param([], (10, 1), None, id="no fence"),
    ],
)
def test_which_fence_abandoned_a_checkpoint(fences: list[Fence], name: tuple[int, int], abandoning: int | None) -> None:
    found = find_abandoning(fences, StepName(*name))
    assert (found.attempt if found is not None else None) == abandoning


@pytest.mark.parametrize("keep", [Keep(last=0), Keep(last=-1), Keep(every_steps=0), Keep(daily=0), Keep(weekly=-2)], ids=str)
def test_a_policy_that_keeps_nothing_is_refused(keep: Keep) -> None:
    with pytest.raises(ConfigurationError, match=r"keep\.\w+: -?\d+ is not >= 1"):
        propose(STEADY, keep, NOW)


NUMBERS = st.none() | st.integers(1, 4)
KEEPS = st.builds(
    Keep,
    last=st.integers(1, 4),
    every_steps=NUMBERS,
    best=st.none() | st.builds(Best, st.just("m"), st.sampled_from(Goal)),
    daily=NUMBERS,
    weekly=NUMBERS,
)
HELD = st.builds(
    Held,
    name=st.builds(StepName, st.integers(0, 12), st.integers(1, 2)),
    on_lineage=st.booleans(),
    verified=st.booleans(),
    tagged=st.booleans(),
    changed_at=st.floats(0, NOW),
    created_at=st.floats(0, 40 * 86400.0),
    metrics=st.dictionaries(st.just("m"), st.floats(-2, 2) | st.just(math.nan)),
    abandoned_at=st.floats(0, NOW),
)
RUNS = st.lists(HELD, max_size=14, unique_by=lambda item: item.name)


@given(RUNS, KEEPS, st.sets(st.builds(StepName, st.integers(0, 12), st.integers(1, 2)), max_size=2))
def test_what_must_stay_is_never_proposed_and_a_second_look_proposes_nothing(run: list[Held], keep: Keep, protected: set[StepName]) -> None:
    gone = set(propose(run, keep, NOW, protected))
    proven = sorted(item.name for item in run if item.on_lineage and item.verified)
    assert not gone & set(proven[-1:]), "the newest verified one"
    assert not gone & protected
    assert not gone & {item.name for item in run if item.tagged}
    assert not proven or not {name for name in gone if name > proven[-1]} & {item.name for item in run if item.on_lineage}
    best = find_best([item for item in run if item.name in proven], keep.best) if keep.best is not None else None
    assert best is None or best.name not in gone
    assert propose([item for item in run if item.name not in gone], keep, NOW, protected) == ()


@given(RUNS, KEEPS, st.floats(0, NOW), st.data())
def test_more_rules_never_delete_more_and_more_time_never_deletes_less(
    run: list[Held], keep: Keep, earlier: float, data: st.DataObject
) -> None:
    gone = set(propose(run, keep, NOW))
    generous = Keep(
        last=keep.last + data.draw(st.integers(0, 2)),
        every_steps=keep.every_steps,
        best=keep.best or Best("m"),
        daily=(keep.daily or 0) + 1,
        weekly=(keep.weekly or 0) + 1,
    )
    assert set(propose(run, generous, NOW)) <= gone
    assert set(propose(run, keep, earlier)) <= gone
