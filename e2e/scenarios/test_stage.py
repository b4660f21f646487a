"""The stage itself: a scenario that fails on a machine that nobody sees must leave enough to find out why."""

from __future__ import annotations

import pytest

from e2e.scenarios.stage import START_SECONDS, Stage, is_running

pytestmark = pytest.mark.e2e


def test_the_testimony_holds_what_job_operator_and_ranks_said(stage: Stage) -> None:
    job = stage.start(stage.plan("witness"))
    job.wait("the first steps", is_running, START_SECONDS)
    testimony = stage.testimony()
    assert "(no answer" not in testimony
    for said in ("attempt 1 starts from step 0", "step 1 loss", '"logger": "rtj_operator', "kind: ResilientTrainingJob"):
        assert said in testimony, said
