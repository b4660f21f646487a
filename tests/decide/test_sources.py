"""spec.checkpoint.resumeFrom: a run that begins with a checkpoint of another one, and goes on with its own as soon as it has any."""

from __future__ import annotations

from typing import Any

import pytest

from tests.decide.world import RUN, World, record, spec_of
from trainer_runtime.contract.beat import Level, Phase, RecordKey
from trainer_runtime.contract.exit_report import DamagedCheckpoint, ExitReport, Outcome

SOURCE = "file:///checkpoints/other/steps/0000000500-00000002"


def world_with(mode: str = "Strict", **checkpoint: Any) -> World:
    """A job that begins with a checkpoint of another run."""
    wished = {"store": "file:///checkpoints", "resumeFrom": {"uri": SOURCE, "mode": mode}, **checkpoint}
    return World(spec=spec_of(checkpoint=wished))


@pytest.mark.parametrize(("mode", "words"), [("Strict", "resumes from step 500"), ("WarmStart", "takes the weights of step 500")])
def test_the_first_attempt_begins_with_the_source(mode: str, words: str) -> None:
    world = world_with(mode)
    plan = world.run_pass()
    point = plan.status.resume_point
    assert point is not None and (point.uri, point.mode.value, point.manifest_sha256, point.foreign) == (SOURCE, mode, "", True)
    assert [event.reason for event in plan.events] == ["Started", "ResumedFrom"]
    assert words in plan.events[-1].message


def test_an_attempt_that_failed_before_its_first_checkpoint_begins_with_the_source_again() -> None:
    world = world_with().launch(step=510)
    world.fail(1, step=510)
    world.settle()
    world.end_deleted()
    world.settle()
    assert world.status.last_failure is not None and world.status.last_failure.lost_steps == 10
    world.after(60).settle()
    assert world.status.attempt == 2
    assert world.status.resume_point is not None and world.status.resume_point.uri == SOURCE
    assert "ResumeFromIgnored" not in world.told()


def test_the_source_is_ignored_from_the_first_own_checkpoint_on_and_that_is_told_once() -> None:
    world = world_with("WarmStart").launch()
    world.records.append(record(10, 1))
    world.settle()
    for attempt in (2, 3):
        world.fail(1, exception=f"ValueError: {attempt}", step=attempt)
        world.settle()
        world.end_deleted()
        world.after(60).launch(step=11)
        point = world.status.resume_point
        assert point is not None and (world.status.attempt, point.step, point.foreign) == (attempt, 10, False)
    assert world.told().count("ResumeFromIgnored") == 1
    assert any(SOURCE in event.message for event in world.events if event.reason == "ResumeFromIgnored")
    assert "RolledBack" not in world.told()


def test_what_an_older_attempt_wrote_late_is_not_on_the_lineage_of_one_that_began_with_the_source() -> None:
    world = world_with("WarmStart").launch()
    world.fail(1)
    world.settle()
    world.end_deleted()
    world.after(60).launch()
    assert world.status.attempt == 2
    world.records.append(record(3, 1))
    world.settle()
    assert [known.abandoned for known in world.status.checkpoints] == [True]
    assert world.status.checkpoint is None


def test_a_run_that_turns_out_to_have_checkpoints_goes_on_with_them() -> None:
    world = world_with()
    world.settle()
    world.start()
    world.beat(0, Phase.HOLD, inventory=(record(7, 3),), highest_fence=None)
    world.settle()
    world.end_deleted()
    world.settle()
    point = world.status.resume_point
    assert point is not None and (point.step, point.attempt) == (7, 3)
    assert "ResumeFromIgnored" in world.told()


def test_a_damaged_source_ends_the_job_and_leaves_a_checkpoint_of_the_same_number_alone() -> None:
    world = world_with()
    world.settle()
    world.start()
    damage = DamagedCheckpoint(500, 2, "d" * 64, "data/00000-model-0.safetensors", "chunk 3 differs")
    world.exit(0, 80, ExitReport(1, 0, Outcome.DAMAGED, 80, checkpoint=damage, message="chunk 3 differs"))
    world.settle()
    world.end_deleted()
    world.settle()
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "NoUsableCheckpoint")
    ending = world.status.ending
    assert ending is not None and SOURCE in ending.message and "spec.checkpoint.resumeFrom" in ending.message
    assert not any(known.quarantined for known in world.status.checkpoints)


def test_what_other_jobs_begin_with_is_never_marked_for_deletion() -> None:
    world = World(sources=frozenset({(1, 1)})).launch()
    world.records += [record(step, 1) for step in (1, 2, 8, 9)]
    world.settle()
    proposals = tuple(RecordKey(RUN, step, 1, Level.VERIFIED) for step in (1, 2))
    world.beat(0, delete_proposals=proposals)
    world.settle()
    assert [known.step for known in world.status.checkpoints if known.deleting] == [2]
