"""What retention proposes to delete, by table."""

from __future__ import annotations

import pytest

from trainer_runtime.checkpoint.retention import ABANDONED_SECONDS, Held, propose
from trainer_runtime.contract.assignment import Keep, ResumePoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import ConfigurationError

OLD = ABANDONED_SECONDS
YOUNG = ABANDONED_SECONDS - 1


def held(step: int, attempt: int = 1, *, on: bool = True, verified: bool = True, tagged: bool = False, age: float = OLD) -> Held:
    return Held(StepName(step, attempt), on, verified, tagged, age)


def point(step: int, attempt: int = 1) -> ResumePoint:
    return ResumePoint(step, attempt, "", "")


STEADY = [held(step) for step in (10, 20, 30, 40)]
CASES = [
    pytest.param([], Keep(), None, [], id="an empty run"),
    pytest.param(STEADY, Keep(last=2), None, [10, 20], id="all but the newest two"),
    pytest.param(STEADY, Keep(last=9), None, [], id="fewer than are kept"),
    pytest.param(list(reversed(STEADY)), Keep(last=2), None, [10, 20], id="in any order"),
    pytest.param(STEADY, Keep(last=1, every_steps=20), None, [10, 30], id="and every 20th step"),
    pytest.param(STEADY, Keep(last=1), point(10), [20, 30], id="never the resume point"),
    pytest.param([held(10, tagged=True), *STEADY[1:]], Keep(last=1), None, [20, 30], id="never a tagged one"),
    pytest.param([*STEADY, held(50, verified=False)], Keep(last=1), None, [10, 20, 30], id="an unverified one displaces nothing"),
    pytest.param([held(10, verified=False), held(20)], Keep(last=1), None, [10], id="unverified, overtaken, old"),
    pytest.param([held(10, verified=False, age=YOUNG), held(20)], Keep(last=1), None, [], id="unverified, overtaken, young"),
    pytest.param([held(10, verified=False), held(20, verified=False)], Keep(last=1), None, [], id="nothing is verified: nothing goes"),
    pytest.param([held(20), held(30, on=False)], Keep(last=1), None, [30], id="abandoned and old"),
    pytest.param([held(20), held(30, on=False, age=YOUNG)], Keep(last=1), None, [], id="abandoned and young"),
    pytest.param([held(20), held(30, on=False, tagged=True)], Keep(last=1), None, [], id="abandoned and tagged"),
    pytest.param([held(20), held(30, on=False)], Keep(last=1), point(30), [], id="abandoned and resumed from"),
    pytest.param([held(20, 1), held(20, 2)], Keep(last=1), None, [20], id="the same step of two attempts"),
]


@pytest.mark.parametrize(("present", "keep", "resume", "steps"), CASES)
def test_what_may_be_deleted(present: list[Held], keep: Keep, resume: ResumePoint | None, steps: list[int]) -> None:
    assert [name.step for name in propose(present, keep, resume)] == steps


@pytest.mark.parametrize("keep", [Keep(last=0), Keep(last=-1), Keep(every_steps=0)], ids=str)
def test_a_policy_that_keeps_nothing_is_refused(keep: Keep) -> None:
    with pytest.raises(ConfigurationError, match=r"keep\.\w+: -?\d+ is not >= 1"):
        propose(STEADY, keep, None)
