"""The store is a bucket: the job heals from it, and goes on training while nobody can reach it."""

from __future__ import annotations

import pytest

from e2e import s3
from e2e.jobs import progress_step
from e2e.scenarios.stage import (
    FINISH_SECONDS,
    RECOVERY_SECONDS,
    START_SECONDS,
    Stage,
    failures,
    has_checkpoint,
    is_complete,
    leaves,
    running_in_attempt,
    uninterrupted,
)
from e2e.workloads.job import TINY, Workload

pytestmark = pytest.mark.e2e

LONG = Workload("tiny", steps=150, save_every=5, options=TINY.options)


def test_a_killed_pod_resumes_from_a_bucket_and_changes_nothing(stage: Stage) -> None:
    with s3.serving(stage.folder) as objects:
        plan = stage.plan("bucket", objects=objects)
        job = stage.start(plan)
        job.wait("a checkpoint", has_checkpoint, START_SECONDS)
        stage.driver.kubectl("delete", "pod", job.pod(1)["metadata"]["name"], "--force", "--grace-period=0")
        status = job.wait("the second attempt", running_in_attempt(2), RECOVERY_SECONDS)
        assert status["resumedFrom"]["step"] > 0
        assert status["checkpoint"]["uri"].startswith(f"s3://{objects.bucket}/bucket/")
        job.wait("the end", is_complete, FINISH_SECONDS)
        assert leaves(plan) == uninterrupted(TINY, 2)


def test_a_bucket_that_is_away_stops_no_training(stage: Stage) -> None:
    with s3.serving(stage.folder) as objects:
        plan = stage.plan("away", workload=LONG, objects=objects)
        job = stage.start(plan)
        seen = progress_step(job.wait("a checkpoint", has_checkpoint, START_SECONDS))
    job.wait("steps without the bucket", lambda status: progress_step(status) > seen + 20, RECOVERY_SECONDS)
    with s3.serving(stage.folder):
        status = job.wait("the end", is_complete, FINISH_SECONDS)
        assert (status["attempt"], failures(status)) == (1, [])
        assert status["checkpoint"]["step"] == LONG.steps
        assert leaves(plan) == uninterrupted(LONG, 2)
