"""What comes again is recognised also by a status that had to be shortened as far as it goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rtj_operator.api import status_size
from tests.decide import test_nodes, test_recovery, test_repeats
from tests.decide.test_recovery import relaunch
from tests.decide.world import World


@pytest.fixture(autouse=True)
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write is shortened until nothing more may go."""
    monkeypatch.setattr(status_size, "MAX_STATUS_BYTES", 1)


@pytest.mark.parametrize(
    "behaves",
    [
        pytest.param(test_recovery.test_the_same_error_at_the_same_step_twice_fails_the_job, id="the same error at the same step"),
        pytest.param(test_recovery.test_out_of_memory_is_tried_once_more_and_then_fails_with_a_hint, id="out of memory"),
        pytest.param(test_recovery.test_a_program_that_breaks_its_device_is_relaunched_twice, id="a broken device"),
        pytest.param(
            test_nodes.test_a_standing_condition_does_not_move_the_job_again_and_again_when_the_node_stays, id="a condition that stays"
        ),
    ],
)
def test_a_failure_that_comes_again_is_the_same_one(behaves: Callable[[], None]) -> None:
    behaves()


@test_repeats.TABLE
def test_the_same_error_without_progress_ends_the_job(fault: Callable[[World], None], times: int) -> None:
    test_repeats.test_the_same_error_without_progress_ends_the_job(fault, times)


def test_a_status_that_lost_its_words_is_at_rest() -> None:
    world = World().launch()
    world.fail(1, step=11)
    relaunch(world).launch(12)
    assert world.status.failures[0].message == "" and world.status.failures[0].step == 11
    plan = world.plan()
    assert plan.status.to_api() == world.status.to_api() and plan.events == ()
