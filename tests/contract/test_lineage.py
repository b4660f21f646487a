"""Which checkpoints lead to where the run is: by table, and for any history of attempts that crash, roll back and start over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_runtime.contract.assignment import ResumeMode, ResumePoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.lineage import lineage_of
from trainer_runtime.contract.manifest import Fence


def fence(attempt: int, resume: tuple[int, int] | None = None, run: str | None = None, mode: ResumeMode = ResumeMode.STRICT) -> Fence:
    point = ResumePoint(resume[0], resume[1], "", "", mode) if resume else None
    return Fence(attempt, "job", "pod", "nonce", point, run)


def names(*pairs: tuple[int, int]) -> tuple[StepName, ...]:
    return tuple(StepName(step, attempt) for step, attempt in pairs)


CASES = [
    pytest.param([], names((1, 1)), (), id="no fence: nothing is known"),
    pytest.param([fence(1)], names((10, 1), (20, 1)), names((10, 1), (20, 1)), id="one attempt"),
    pytest.param([fence(1), fence(2, (20, 1))], names((10, 1), (20, 1), (30, 2)), names((10, 1), (20, 1), (30, 2)), id="it goes on"),
    pytest.param([fence(1), fence(2, (10, 1))], names((10, 1), (20, 1)), names((10, 1)), id="a rollback abandons what came after"),
    pytest.param([fence(1), fence(2, (10, 1))], names((10, 1), (30, 1), (15, 2)), names((10, 1), (15, 2)), id="a zombie commits later"),
    pytest.param([fence(1), fence(2)], names((10, 1), (5, 2)), names((5, 2)), id="from nothing: everything before is abandoned"),
    pytest.param([fence(1), fence(2, (90, 4), "other")], names((10, 1), (95, 2)), names((95, 2)), id="from another run"),
    pytest.param(
        [fence(1), fence(2, (20, 1), mode=ResumeMode.WARM_START)],
        names((20, 1), (10, 2)),
        names((10, 2)),
        id="from weights of the run's own: it counts its steps anew",
    ),
    pytest.param(
        [fence(1), fence(2, (20, 1)), fence(3, (20, 1))],
        names((20, 1), (30, 2), (40, 3)),
        names((20, 1), (40, 3)),
        id="an attempt that was passed over",
    ),
    pytest.param([fence(1), fence(2, (20, 1)), fence(3, (20, 1))], names((20, 1)), names((20, 1)), id="attempts that saved nothing"),
    pytest.param([fence(1), fence(2, (20, 1))], names((20, 1), (20, 2)), names((20, 1), (20, 2)), id="the same step saved again"),
    pytest.param([fence(3, (10, 1))], names((10, 1), (20, 1)), names((10, 1)), id="an older fence is lost"),
    pytest.param([fence(1)], names((10, 1), (20, 7)), names((10, 1)), id="an attempt without a fence does not count"),
    pytest.param([fence(2, (10, 2))], names((10, 2)), names((10, 2)), id="a fence that names itself ends the walk"),
]


@pytest.mark.parametrize(("fences", "committed", "on"), CASES)
def test_the_lineage_of_a_history(fences: list[Fence], committed: tuple[StepName, ...], on: tuple[StepName, ...]) -> None:
    lineage = lineage_of(fences, committed)
    assert lineage.on == on
    assert lineage.abandoned == tuple(sorted(set(committed) - set(on)))
    assert lineage.newest == (on[-1] if on else None)


@given(st.data())
def test_the_lineage_is_exactly_the_ancestry_of_what_is_running(data: st.DataObject) -> None:
    """Keep, for every checkpoint, the list of those before it; the lineage must be the running attempt's list, whatever zombies add."""
    ancestry: dict[StepName, tuple[StepName, ...]] = {}
    fences: list[Fence] = []
    alive: dict[int, tuple[StepName, ...]] = {}
    for attempt in range(1, data.draw(st.integers(1, 6)) + 1):
        start = data.draw(st.sampled_from([None, *sorted(ancestry)]))
        fences.append(fence(attempt, (start.step, start.attempt) if start else None))
        alive[attempt] = (*ancestry[start], start) if start else ()
        for writer in data.draw(st.lists(st.sampled_from(sorted(alive)), max_size=4)):
            before = alive[writer]
            name = StepName((before[-1].step if before else 0) + 1, writer)
            ancestry[name] = before
            alive[writer] = (*before, name)
    lineage = lineage_of(fences, ancestry)
    assert lineage.on == tuple(sorted(alive[max(alive)]))
    assert set(lineage.on) | set(lineage.abandoned) == set(ancestry)
