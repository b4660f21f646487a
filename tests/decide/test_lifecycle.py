"""The life of a job without faults: from apply to success, suspend, deadlines, and what never happens on the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rtj_operator.api.v1alpha1 import JobStatus
from rtj_operator.decide import decide
from rtj_operator.decide.observation import CreateRefusal, RunOwner, TemplateCheck
from rtj_operator.decide.plan import CreatePod, CreateService, DeletePod
from tests.decide.world import START, World, record, spec_of
from trainer_runtime.contract.beat import ArchiveLook, Phase, SaveFailure
from trainer_runtime.contract.exit_report import ExitReport, Outcome


def test_the_first_pass_records_attempt_1_and_creates_the_service_before_the_pods() -> None:
    world = World()
    plan = world.plan()
    assert (plan.status.attempt, plan.status.gang, plan.status.phase.value) == (1, 1, "Starting")
    assert plan.actions == (CreateService(), CreatePod(0, 1, 1), CreatePod(1, 1, 1), CreatePod(2, 1, 1))
    assert [event.reason for event in plan.events] == ["Started"]


def test_a_job_runs_when_every_worker_trains_and_not_before() -> None:
    world = World()
    world.settle()
    world.start()
    world.train(1, workers=[0, 1])
    world.settle()
    assert world.phase == "Starting"
    world.train(2, workers=[2])
    world.settle()
    assert (world.phase, world.condition("Running")[0], world.status.workers.summary) == ("Running", "True", "3/3")
    assert world.told() == ["Started", "Running"]


def test_a_job_succeeds_only_when_every_worker_reported_done_and_no_pod_runs() -> None:
    world = World().launch()
    for worker in (0, 1):
        world.beat(worker, Phase.DONE, step=100)
    world.settle()
    assert (world.phase, world.status.ending) == ("Running", None)
    world.beat(2, Phase.DONE, step=100)
    world.settle()
    assert world.phase == "Running" and world.status.ending is not None and world.status.ending.succeeded
    for worker in range(3):
        world.exit(worker, 0, reason="Completed")
    world.settle()
    assert (world.phase, world.condition("Complete")[0], world.condition("Finished")[0]) == ("Succeeded", "True", "True")
    assert world.told()[-1] == "Succeeded"
    assert len(world.pods) == 3


def test_plain_torchrun_that_ends_with_0_and_no_report_is_done() -> None:
    world = World().launch()
    for worker in range(3):
        world.exit(worker, 0, reason="Completed")
    world.settle()
    assert world.phase == "Succeeded"


def test_done_workers_survive_an_operator_restart_and_a_crash_in_teardown_is_no_failure() -> None:
    world = World().launch()
    for worker in range(3):
        world.beat(worker, Phase.DONE, step=100)
    world.run_pass()
    world.beats.clear()
    for worker in range(3):
        world.exit(worker, 134)
    world.settle()
    assert (world.phase, world.status.failures) == ("Succeeded", ())


def test_the_others_may_end_anyhow_once_worker_0_is_done() -> None:
    world = World().launch()
    world.exit(0, 0, ExitReport(1, 0, Outcome.DONE, 0), "Completed")
    world.exit(1, 134)
    world.settle()
    assert world.phase == "Running"
    world.exit(2, 1)
    world.settle()
    assert world.phase == "Succeeded"


def test_workers_that_outlive_worker_0s_done_are_an_incident_after_the_grace() -> None:
    world = World().launch()
    world.beat(0, Phase.DONE, step=100)
    world.settle()
    world.after(61).train(100, workers=[1, 2])
    world.run_pass()
    assert world.status.last_failure is not None and world.status.last_failure.cause == "not_ended"


def test_pods_that_hang_after_everyone_is_done_are_deleted_after_the_grace() -> None:
    world = World().launch()
    for worker in range(3):
        world.beat(worker, Phase.DONE, step=100)
    plan = world.settle()
    assert plan.actions == () and plan.look_again_at == world.now + timedelta(seconds=60)
    world.after(60).run_pass()
    assert all(pod.deleting_since for pod in world.gang)
    world.end_deleted()
    world.settle()
    assert world.phase == "Succeeded"


def test_nothing_happens_before_the_caches_are_full_and_to_a_job_that_is_deleted() -> None:
    world = World()
    observation = world.observe()
    assert decide(replace(observation, caches_synced_at=None), START, world.settings).actions == ()
    gone = replace(observation, job=replace(observation.job, deletion_timestamp=START))
    assert decide(gone, START, world.settings).actions == ()


@pytest.mark.parametrize(
    ("change", "reason", "event"),
    [
        pytest.param({"spec": spec_of(workers=0)}, "InvalidSpec", "InvalidSpec", id="a spec that cannot be used"),
        pytest.param(
            {"template_check": TemplateCheck("invalid", "bad")}, "InvalidTemplate", "InvalidSpec", id="a template the API server refuses"
        ),
        pytest.param({"run_owner": RunOwner("default", "other")}, "RunOwned", "RunOwned", id="a run that another live job owns"),
        pytest.param(
            {"template_check": TemplateCheck("refused", "quota")}, "PodCreateForbidden", "PodCreateForbidden", id="a quota that is full"
        ),
        pytest.param({"template_check": None}, "NotChecked", None, id="a template nobody checked yet"),
        pytest.param({"template_check": TemplateCheck("unknown", "outage")}, "NotChecked", None, id="an API server that does not answer"),
    ],
)
def test_nothing_is_created_for(change: dict[str, Any], reason: str, event: str | None) -> None:
    world = World(**change)
    plan = world.settle()
    assert (world.pods, world.service, world.status.attempt) == ({}, False, 0)
    assert world.condition("Valid")[1] == reason
    assert world.told() == ([event] if event else [])
    assert plan.look_again_at is not None or reason == "InvalidSpec"


def test_a_job_goes_on_when_the_owner_of_its_run_ends() -> None:
    world = World(run_owner=RunOwner("default", "other"))
    world.settle()
    world.run_owner = None
    world.settle()
    assert (world.condition("Valid"), world.status.attempt) == (("True", "Accepted"), 1)


def test_a_template_that_was_accepted_once_is_not_checked_again() -> None:
    world = World()
    world.settle()
    assert world.status.template_checked_generation == 1
    world.template_check = None
    world.start()
    world.fail(0)
    world.settle()
    world.end_deleted()
    world.settle()
    assert world.status.attempt == 2


def test_a_refused_pod_is_shown_and_created_later() -> None:
    world = World()
    world.run_pass()
    del world.pods["gpt-1-2"]
    world.refusals = (CreateRefusal(2, "forbidden", "exceeded quota", world.now),)
    plan = world.run_pass()
    assert plan.actions == (CreatePod(2, 1, 1),)
    assert world.condition("Running") == ("False", "PodCreateForbidden")
    assert world.told() == ["Started", "PodCreateForbidden"]


def test_suspend_saves_first_then_deletes_and_is_suspended_when_no_pod_is_left() -> None:
    world = World().launch()
    world.spec["suspend"] = True
    plan = world.settle()
    assert (world.phase, plan.actions, world.status.stop_reason and world.status.stop_reason.value) == ("Suspending", (), "Suspend")
    world.after(2)
    world.records.append(record(5, 1))
    world.run_pass()
    assert all(pod.deleting_since for pod in world.gang)
    world.end_deleted()
    world.settle()
    assert (world.phase, world.pods, world.condition("Suspended")[0]) == ("Suspended", {}, "True")
    assert world.told()[-2:] == ["CheckpointVerified", "Suspended"]


def test_suspend_does_not_wait_longer_than_the_termination_time_for_its_save() -> None:
    world = World().launch()
    world.spec["suspend"] = True
    plan = world.settle()
    assert plan.look_again_at == world.now + timedelta(seconds=30)
    world.after(30).run_pass()
    assert all(pod.deleting_since for pod in world.gang)


def test_suspend_of_a_job_that_never_started_creates_nothing() -> None:
    world = World(spec=spec_of(suspend=True))
    world.settle()
    assert (world.phase, world.pods, world.status.attempt, world.condition("Suspended")[0]) == ("Suspended", {}, 0, "True")


def test_unsuspend_is_a_new_attempt_from_the_newest_checkpoint_charged_to_nothing() -> None:
    world = World().launch()
    world.records.append(record(5, 1))
    world.spec["suspend"] = True
    world.settle()
    world.after(30).run_pass()
    world.end_deleted()
    world.settle()
    world.spec["suspend"] = False
    world.settle()
    assert (world.status.attempt, world.status.gang, world.status.restarts.total) == (2, 2, 0)
    assert world.status.resume_point is not None and world.status.resume_point.step == 5
    assert world.told()[-2:] == ["Resumed", "ResumedFrom"]


def test_a_suspend_once_begun_completes_before_an_unsuspend() -> None:
    world = World().launch()
    world.spec["suspend"] = True
    world.settle()
    world.spec["suspend"] = False
    world.after(30).run_pass()
    assert world.phase == "Suspending"
    world.end_deleted()
    world.settle()
    assert (world.status.attempt, world.status.restarts.total, world.told()[-1]) == (2, 0, "Resumed")


def test_a_job_suspended_while_stopping_for_an_incident_records_no_next_attempt() -> None:
    world = World().launch()
    world.fail(1)
    world.run_pass()
    world.spec["suspend"] = True
    world.run_pass()
    assert world.phase == "Suspending"
    world.end_deleted()
    world.settle()
    assert (world.phase, world.status.attempt, world.pods, world.status.restarts.application) == ("Suspended", 1, {}, 1)


def test_running_time_that_is_over_fails_the_job_and_suspended_time_does_not_count() -> None:
    world = World(spec=spec_of(activeDeadlineSeconds=100)).launch()
    world.after(40)
    world.spec["suspend"] = True
    world.settle()
    world.after(30).run_pass()
    world.end_deleted()
    world.settle()
    assert world.status.active_seconds == 70.0
    world.after(1000)
    world.spec["suspend"] = False
    world.settle()
    assert world.phase == "Starting"
    plan = world.after(29).settle()
    assert plan.look_again_at == world.now + timedelta(seconds=1)
    world.after(1).run_pass()
    assert world.phase == "Starting", "terminal only when nothing runs"
    world.end_deleted()
    world.settle()
    assert (world.phase, world.condition("Failed")) == ("Failed", ("True", "DeadlineExceeded"))


def test_a_finished_job_is_deleted_after_its_time_and_not_before() -> None:
    world = World(spec=spec_of(workers=1, ttlSecondsAfterFinished=60)).launch()
    world.exit(0, 0, reason="Completed")
    plan = world.settle()
    assert (world.phase, world.deleted, plan.look_again_at) == ("Succeeded", False, world.now + timedelta(seconds=60))
    world.after(60).run_pass()
    assert world.deleted


def test_terminal_is_final_but_its_generation_keeps_rising() -> None:
    world = World(spec=spec_of(workers=1)).launch()
    world.exit(0, 0, reason="Completed")
    world.settle()
    world.generation = 2
    world.spec["suspend"] = True
    world.after(3600).settle()
    assert (world.phase, world.status.observed_generation) == ("Succeeded", 2)
    assert {condition.observed_generation for condition in world.status.conditions if condition.type == "Finished"} == {2}


def test_progress_is_written_at_most_every_ten_seconds_and_marked_as_such() -> None:
    world = World().launch()
    world.after(5).train(20)
    assert world.plan().status == world.status
    world.after(5).train(40)
    plan = world.plan()
    assert plan.progress_only and plan.status.progress is not None and plan.status.progress.step == 40


def test_the_last_step_is_written_at_once_when_training_ends() -> None:
    world = World().launch()
    world.after(2).train(60)
    for worker in range(3):
        world.beat(worker, Phase.DONE, step=60)
    world.settle()
    assert world.status.progress is not None and world.status.progress.step == 60


def test_a_worker_that_starts_again_does_not_set_the_shown_step_back() -> None:
    world = World().launch(step=40)
    world.exit(1)
    world.settle()
    world.end_deleted()
    world.after(60).settle()
    world.start()
    world.beat(0, Phase.START, step=0)
    world.settle()
    progress = world.status.progress
    assert progress is not None and (progress.step, progress.phase) == (40, "start")


def test_pods_of_a_status_that_was_lost_end_before_the_next_attempt_which_is_above_theirs() -> None:
    world = World().launch()
    world.status = type(world.status)()
    world.run_pass()
    assert world.status.attempt == 0 and all(pod.deleting_since for pod in world.pods.values())
    world.end_deleted()
    world.settle()
    assert (world.status.attempt, len(world.gang)) == (2, 3)


def test_a_pod_of_a_status_that_was_lost_is_forced_when_its_node_is_lost_too() -> None:
    world = World().launch()
    lost = world.pod(1).node
    assert lost is not None
    world.status = JobStatus()
    world.lose_node(lost)
    world.settle()
    world.end_deleted()
    world.settle()
    assert [pod.node for pod in world.pods.values()] == [lost] and world.status.attempt == 0
    world.after(61).settle()
    assert world.status.attempt == 2


def test_a_pod_of_another_gang_is_ended_while_the_job_runs() -> None:
    world = World().launch()
    world.fail(0)
    world.settle()
    world.end_deleted()
    world.launch()
    stray = replace(world.pod(0), name="gpt-1-0", uid="stray", gang=1)
    world.pods["gpt-1-0"] = stray
    assert DeletePod("gpt-1-0", "stray", 10) in world.plan().actions
    assert world.phase == "Running"


def saves_fail(world: World, step: int, count: int = 1) -> None:
    """Let worker 0 say that this save failed, while all train."""
    world.train(step + 1, workers=[1, 2])
    reason = f"cannot write /checkpoints/default.gpt/tmp/{step}: no space left on the device"
    world.beat(0, step=step + 1, save_failure=SaveFailure(step, reason, count))


def test_a_save_that_fails_is_shown_while_training_goes_on_until_one_is_verified() -> None:
    world = World().launch()
    world.records.append(record(10, 1))
    world.settle()
    assert world.condition("CheckpointHealthy") == ("True", "Verified")
    saves_fail(world, 20)
    world.settle()
    assert (world.condition("CheckpointHealthy"), world.phase) == (("False", "SaveFailed"), "Running")
    (event,) = [event for event in world.events if event.reason == "SaveFailed"]
    (message,) = [condition.message for condition in world.status.conditions if condition.type == "CheckpointHealthy"]
    for text in (event.message, message):
        assert "step 20" in text and "/checkpoints/default.gpt/tmp/20" in text and "no space left" in text
    assert event.warning
    world.train(30)
    world.records.append(record(30, 1))
    world.settle()
    assert (world.condition("CheckpointHealthy"), world.status.save_failure) == (("True", "Verified"), None)


def test_a_store_that_stays_full_is_an_event_every_few_minutes_and_no_storm() -> None:
    world = World().launch()
    for number in range(1, 5):
        saves_fail(world, 10 * number, number)
        world.settle()
        world.after(60)
    assert world.told().count("SaveFailed") == 1
    world.after(120)
    saves_fail(world, 50, 5)
    world.settle()
    assert world.told().count("SaveFailed") == 2
    assert "5 saves in a row" in world.events[-1].message


def test_a_failed_save_is_not_forgotten_by_a_relaunch() -> None:
    world = World().launch()
    world.records.append(record(10, 1))
    saves_fail(world, 20)
    world.settle()
    world.fail(1, step=25)
    world.settle()
    world.end_deleted()
    world.settle()
    world.launch(11)
    assert (world.status.attempt, world.condition("CheckpointHealthy")) == (2, ("False", "SaveFailed"))
    world.records.append(record(20, 2))
    world.settle()
    assert world.condition("CheckpointHealthy") == ("True", "Verified")


WITH_ARCHIVE: dict[str, Any] = {**spec_of(), "checkpoint": {"store": "file:///checkpoints", "archive": {"store": "s3://cold/runs"}}}


def look_at_archive(world: World, failures: int, reason: str = "") -> None:
    """Let worker 0 say how its newest look at the archive ended, while all train."""
    world.train(workers=[1, 2])
    world.beat(0, step=1, archive=ArchiveLook(failures, reason))
    world.settle()


def archive_failure(world: World) -> tuple[int, str] | None:
    """What the status says of the archive: looks in a row that failed, and why."""
    failure = world.status.archive_failure
    return (failure.count, failure.reason) if failure is not None else None


def test_an_archive_that_fails_is_one_event_and_stays_in_the_status_until_a_look_succeeds() -> None:
    world = World(spec=WITH_ARCHIVE).launch()
    world.records.append(record(10, 1))
    for failures in (1, 2, 3):
        look_at_archive(world, failures, f"cannot reach s3://cold/runs, request {failures}")
    (event,) = [event for event in world.events if event.reason == "ArchiveFailed"]
    assert event.warning and "s3://cold/runs, request 1" in event.message
    assert archive_failure(world) == (3, "cannot reach s3://cold/runs, request 3")
    assert (world.condition("CheckpointHealthy"), world.phase) == (("True", "Verified"), "Running"), "the store is what counts"
    look_at_archive(world, 0)
    assert archive_failure(world) is None
    look_at_archive(world, 1, "cannot reach s3://cold/runs")
    assert world.told().count("ArchiveFailed") == 2, "it is another failure"


def test_what_a_worker_says_of_the_archive_is_cut_before_it_is_told() -> None:
    world = World(spec=WITH_ARCHIVE).launch()
    look_at_archive(world, 1, "x\ud83c" * 5000)
    failure = archive_failure(world)
    assert failure is not None and len(failure[1]) == 300 and failure[1].isascii()
    assert len(world.events[-1].message) < 400


@pytest.mark.parametrize(("spec", "is_forgotten"), [(WITH_ARCHIVE, False), (spec_of(), True)], ids=["an archive", "no archive any more"])
def test_a_failed_archive_is_not_forgotten_by_a_relaunch_unless_the_job_has_none_any_more(spec: dict[str, Any], is_forgotten: bool) -> None:
    world = World(spec=WITH_ARCHIVE).launch()
    world.records.append(record(10, 1))
    look_at_archive(world, 1, "cannot reach s3://cold/runs")
    world.spec = spec
    world.fail(1, step=25)
    world.settle()
    world.end_deleted()
    world.settle()
    world.launch(11)
    assert (world.status.attempt, archive_failure(world) is None) == (2, is_forgotten)
    assert world.told().count("ArchiveFailed") == 1


def test_only_worker_0_speaks_of_the_archive() -> None:
    world = World(spec=WITH_ARCHIVE).launch()
    world.train(workers=[0, 2])
    world.beat(1, step=1, archive=ArchiveLook(1, "not mine to say"))
    world.settle()
    assert archive_failure(world) is None
