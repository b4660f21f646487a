"""What happens after each kind of failure: one test per row of the decision table and per accident the product must survive."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rtj_operator.decide.observation import ContainerView, PodCondition
from rtj_operator.decide.plan import CordonNode, DeletePod
from tests.decide.world import UID, World, evidence, record, spec_of
from trainer_runtime.contract.beat import Level, Phase
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.contract.exit_report import DamagedCheckpoint, ExitReport, Outcome, VerifiedCheckpoint


def relaunch(world: World) -> World:
    """Let the gang end and the next one be created."""
    world.settle()
    world.end_deleted()
    world.settle()
    return world


def report(world: World, worker: int, outcome: Outcome, code: int, **fields: Any) -> None:
    """Let a worker end with this outcome."""
    world.exit(worker, code, ExitReport(world.status.attempt, worker, outcome, code, **fields))


def last(world: World) -> tuple[str, str, str | None]:
    """(row, cause, charge) of the newest incident."""
    failure = world.status.last_failure
    assert failure is not None
    return failure.row, failure.cause, failure.charge.value if failure.charge is not None else None


def test_a_crash_is_decided_in_the_same_pass_and_the_gang_is_recreated_from_the_newest_checkpoint() -> None:
    world = World().launch()
    world.records += [record(5, 1), record(9, 1)]
    world.fail(1, step=11)
    plan = world.run_pass()
    assert (world.phase, last(world)) == ("Recovering", ("13b", "user_error", "application"))
    assert [action for action in plan.actions if isinstance(action, DeletePod)] == [
        DeletePod(world.pod(worker).name, world.pod(worker).uid, 10) for worker in (0, 2)
    ]
    assert world.status.attempt == 1, "the next attempt waits until no rank runs"
    world.end_deleted()
    world.settle()
    assert (world.status.attempt, world.status.gang, world.status.restarts.application, world.status.restarts.total) == (2, 2, 1, 1)
    assert world.status.resume_point is not None and world.status.resume_point.step == 9
    assert world.told() == ["Started", "Running", "CheckpointVerified", "FailureDetected", "Restarting", "ResumedFrom"]
    assert {pod.gang for pod in world.pods.values()} == {2}
    world.launch(10)
    assert world.condition("Recovering") == ("False", "Recovered")


def test_the_same_error_at_the_same_step_twice_fails_the_job() -> None:
    world = World().launch()
    world.fail(1, "ValueError: index 17 of rank 1", step=11)
    relaunch(world).launch()
    world.fail(2, "ValueError: index 23 of rank 2", step=11)
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], last(world)[0]) == ("Failed", "UserError", "13")
    assert "index 23 of rank 2" in world.status.conditions[-1].message
    assert len(world.gang) > 0, "failed pods of the last gang are kept"
    assert world.told()[-1] == "Failed"


def test_the_same_error_at_another_step_is_not_the_same_twice() -> None:
    world = World().launch()
    world.fail(1, step=11)
    relaunch(world).launch()
    world.fail(1, step=12)
    relaunch(world)
    assert (world.phase, world.status.attempt) == ("Recovering", 3)


def test_out_of_memory_is_tried_once_more_and_then_fails_with_a_hint() -> None:
    world = World().launch()
    world.exit(1, 137, reason="OOMKilled")
    relaunch(world).launch()
    assert last(world) == ("10", "host_oom", "application")
    world.train(50)
    world.exit(1, 0, reason="OOMKilled")
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "OutOfMemory")
    assert "resources.limits.memory" in world.status.conditions[-1].message


def test_a_machine_fault_in_a_beat_moves_the_job_while_all_workers_still_run() -> None:
    world = World().launch()
    node = world.pod(1).node
    assert node is not None
    fact = evidence("gpu_ecc_uncorrectable", Strength.NODE, world.now, 1, "Xid 48: double bit ECC error")
    world.beat(1, step=3, evidence=(fact,))
    plan = world.run_pass()
    assert last(world) == ("3", "gpu_ecc_uncorrectable", "infrastructure")
    assert [action.node for action in plan.actions if isinstance(action, CordonNode)] == [node]
    relaunch(world)
    assert world.nodes[node].unschedulable and world.status.excluded_nodes[0].cordoned
    world.start()
    assert node not in {pod.node for pod in world.gang}
    assert world.told().count("NodeCordoned") == 1 and world.told().count("NodeExcluded") == 1


def test_a_condition_of_a_node_agent_moves_the_job_within_the_same_pass() -> None:
    world = World().launch()
    node = world.pod(2).node or ""
    world.set_condition(node, "AcceleratedHardwareReady", "False", "NvidiaXID79Error", "GPU has fallen off the bus")
    world.run_pass()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.cause, failure.node, failure.worker) == ("3", "gpu_fallen_off", node, 2)
    assert failure.confidence.value == "high"


def test_a_condition_that_stood_before_the_attempt_moves_nobody() -> None:
    world = World()
    world.set_condition("n1", "GpuMemWatch")
    world.after(1200).launch()
    assert world.status.failures == ()


def test_watchdog_lines_alone_blame_nobody() -> None:
    world = World().launch()
    for worker in range(3):
        fact = evidence("nccl_timeout", Strength.VICTIM, world.now, 1, "Watchdog caught collective operation timeout", rank=worker)
        report(world, worker, Outcome.FAILED, 134, evidence=(fact,))
    world.run_pass()
    failure = world.status.failures[0]
    assert (failure.row, failure.cause, failure.worker, failure.node, failure.confidence.value) == ("9", "nccl_timeout", None, None, "low")
    assert not any(view.unschedulable for view in world.nodes.values()) and world.status.excluded_nodes == ()


def test_better_evidence_that_comes_while_stopping_revises_the_incident_and_is_counted_once() -> None:
    world = World().launch()
    fact = evidence("nccl_remote_error", Strength.VICTIM, world.now, 1, "Connection closed by peer")
    report(world, 0, Outcome.FAILED, 1, evidence=(fact,))
    world.run_pass()
    assert (last(world), world.status.restarts.hang) == (("9", "nccl_timeout", "hang"), 1)
    finished = world.now - timedelta(seconds=1)
    world.change_pod(1, phase="Failed", container=ContainerView("terminated", "OOMKilled", "", 137, finished, finished))
    world.run_pass()
    assert last(world) == ("10", "host_oom", "application")
    assert (world.status.restarts.total, world.status.restarts.hang, world.status.restarts.application) == (1, 0, 1)
    assert [bucket.charge.value for bucket in world.status.budget_window] == ["application"]
    assert len(world.status.failures) == 1


def test_a_lost_node_is_excluded_and_its_pod_force_deleted() -> None:
    world = World().launch()
    node = world.pod(1).node or ""
    world.lose_node(node)
    for _ in range(11):
        world.after(5).train(5, workers=[0, 2])
        world.run_pass()
    assert world.status.failures == ()
    world.after(5).train(6, workers=[0, 2])
    plan = world.run_pass()
    assert last(world) == ("4", "node_lost", "infrastructure")
    assert DeletePod("gpt-1-1", "pod-2", 0) in plan.actions
    relaunch(world)
    assert (world.status.attempt, [entry.node for entry in world.status.excluded_nodes]) == (2, [node])
    assert not world.nodes[node].unschedulable


def test_look_again_names_the_moment_a_node_counts_as_lost() -> None:
    world = World().launch()
    seen = world.now
    world.lose_node(world.pod(1).node or "")
    world.after(31).train(5, workers=[0, 2])
    world.settle()
    assert world.plan().look_again_at == seen + timedelta(seconds=60)


def test_a_short_cut_of_the_network_restarts_nothing() -> None:
    world = World().launch()
    node = world.pod(1).node or ""
    world.lose_node(node)
    world.after(45).train(5, workers=[0, 2])
    world.run_pass()
    world.nodes[node] = replace(world.nodes[node], ready="True")
    world.after(5).train(6)
    world.settle()
    assert (world.phase, world.status.attempt, world.status.failures) == ("Running", 1, ())


def test_two_of_three_lost_nodes_are_lost_and_no_mass_outage() -> None:
    world = World().launch()
    for worker in (1, 2):
        world.lose_node(world.pod(worker).node or "")
    world.senders = replace(world.senders, known=3, silent=2)
    world.after(61).train(9, workers=[0])
    world.run_pass()
    assert last(world)[1] == "node_lost"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"listening_since": timedelta(seconds=-10)}, id="the operator has just started"),
        pytest.param({"api_outage_until": timedelta(seconds=-10)}, id="the API server was away until just now"),
        pytest.param({"known": 100, "silent": 51}, id="more than half of all senders vanished together"),
    ],
)
def test_silence_is_no_verdict_when(change: dict[str, Any]) -> None:
    world = World().launch()
    world.lose_node(world.pod(1).node or "")
    world.after(120).train(5, workers=[0, 2])
    fields: dict[str, Any] = {name: world.now + value if isinstance(value, timedelta) else value for name, value in change.items()}
    world.senders = replace(world.senders, **fields)
    world.run_pass()
    assert world.status.failures == ()


def test_blocked_heartbeats_are_shown_and_restart_nothing() -> None:
    world = World().launch()
    world.after(3600)
    world.settle()
    assert (world.phase, world.status.attempt, world.condition("HeartbeatsReachable")) == ("Running", 1, ("False", "NoBeats"))
    assert world.told().count("HeartbeatsUnreachable") == 1
    world.train(500)
    world.settle()
    assert world.condition("HeartbeatsReachable")[0] == "True"


def test_a_job_without_any_beats_runs_once_its_pods_have_run_for_a_while() -> None:
    world = World()
    world.settle()
    world.start()
    plan = world.settle()
    assert world.phase == "Starting" and plan.look_again_at is not None
    world.now = plan.look_again_at
    world.settle()
    assert (world.phase, world.condition("HeartbeatsReachable")[0]) == ("Running", "False")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        pytest.param("PreemptionByScheduler", "preempted", id="the scheduler preempts a pod"),
        pytest.param("EvictionByEvictionAPI", "preempted", id="a node is drained"),
        pytest.param("TerminationByKubelet", "preempted", id="a node shuts down in order"),
        pytest.param("DeletionByTaintManager", "preempted", id="a healthy node was tainted by an outage of the control plane"),
    ],
)
def test_a_pod_that_is_taken_away_is_charged_to_preemption(reason: str, expected: str) -> None:
    world = World().launch()
    target = PodCondition("DisruptionTarget", "True", reason, "", world.now)
    world.change_pod(1, deleting_since=world.now, conditions=(*world.pod(1).conditions, target))
    world.settle()
    assert world.status.failures == (), "it may still save"
    report(world, 1, Outcome.PREEMPTED_SAVED, 75)
    relaunch(world)
    assert last(world) == ("2", expected, "preemption")
    assert world.status.excluded_nodes == ()


def test_a_pod_that_a_person_deletes_is_replaced_by_a_new_gang() -> None:
    world = World().launch()
    world.change_pod(1, deleting_since=world.now)
    world.end_deleted()
    relaunch(world)
    assert (last(world), world.status.attempt, len(world.gang)) == (("2", "preempted", "preemption"), 2, 3)


def test_survivors_of_a_preemption_are_its_victims() -> None:
    world = World().launch()
    world.change_pod(1, deleting_since=world.now)
    world.after(2)
    world.fail(0, "torch.distributed.DistBackendError: Connection closed by peer", step=3)
    relaunch(world)
    assert last(world)[0] == "2"


def test_a_node_that_restarts_quickly_is_charged_to_preemption() -> None:
    world = World().launch()
    world.exit(1, 255, reason="Unknown")
    relaunch(world)
    assert last(world)[2] == "preemption"


def test_without_node_rights_a_lost_node_is_told_by_its_pod_and_its_silence() -> None:
    world = World(can_read_nodes=False, node_rights=False).launch()
    world.change_pod(1, conditions=(*world.pod(1).conditions, PodCondition("Ready", "False", at=world.now)))
    world.after(59).train(9, workers=[0, 2])
    world.settle()
    assert world.status.failures == ()
    world.after(1).train(10, workers=[0, 2])
    plan = world.run_pass()
    assert last(world)[1] == "node_lost" and DeletePod("gpt-1-1", "pod-2", 0) in plan.actions


def test_a_pod_of_a_node_that_is_gone_is_lost_with_it() -> None:
    world = World().launch()
    del world.nodes[world.pod(1).node or ""]
    world.after(61).train(9, workers=[0, 2])
    world.run_pass()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.message.endswith("its node is gone")) == ("4", True)


def test_a_node_that_ran_out_of_disk_is_excluded_and_an_own_limit_is_the_programs_fault() -> None:
    world = World().launch()
    message = "The node was low on resource: ephemeral-storage. Threshold quantity: 2146223340, available: 1883424Ki."
    world.change_pod(1, phase="Failed", reason="Evicted", message=message)
    relaunch(world).launch()
    assert last(world) == ("11", "evicted", "infrastructure") and len(world.status.excluded_nodes) == 1
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 5Gi. "
    world.change_pod(1, phase="Failed", reason="Evicted", message=message)
    relaunch(world)
    assert last(world) == ("13b", "config_error", "application") and len(world.status.excluded_nodes) == 1


def test_a_program_that_breaks_its_device_is_relaunched_twice() -> None:
    world = World().launch()
    for step in (10, 20, 30):
        fact = evidence("cuda_illegal_access", Strength.APP, world.now, world.status.attempt, f"an illegal memory access at {step}")
        world.train(step)
        report(world, 1, Outcome.FAILED, 1, evidence=(replace(fact, step=step),))
        relaunch(world)
        if world.phase != "Failed":
            world.launch()
    assert (world.phase, last(world)[0], world.status.attempt) == ("Failed", "12", 3)


def test_a_killed_rank_is_unknown_and_its_victims_are_not_blamed() -> None:
    world = World().launch()
    world.fail(0, "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:28048", step=3)
    world.after(0.2)
    world.fail(1, "SIGKILL", step=3)
    relaunch(world)
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.cause, failure.worker) == ("20", "sigkill", 1)


def test_a_deleted_pod_that_does_not_end_on_a_ready_node_is_forced_and_its_node_excluded() -> None:
    world = World().launch()
    world.change_pod(1, deleting_since=world.now)
    plan = world.settle()
    world.after(60).train(9, workers=[0, 2])
    plan = world.run_pass()
    assert last(world) == ("19", "stuck_pod", "infrastructure")
    assert DeletePod("gpt-1-1", "pod-2", 0) in plan.actions


def test_a_pod_that_outlives_our_own_stop_is_forced_without_a_second_charge() -> None:
    world = World().launch()
    world.fail(0)
    world.run_pass()
    world.after(60)
    plan = world.run_pass()
    assert {action.grace_seconds for action in plan.actions if isinstance(action, DeletePod)} == {0}
    world.settle()
    assert (world.status.attempt, world.status.restarts.total, last(world)[1]) == (2, 1, "user_error")
    assert {entry.cause for entry in world.status.excluded_nodes} == {"stuck_pod"}


def waiting(world: World, worker: int, reason: str) -> None:
    """Let the kubelet wait with this reason."""
    world.change_pod(worker, container=ContainerView("waiting", reason, "back-off pulling image"))


def test_an_image_that_no_worker_can_pull_fails_the_job_after_a_sensible_wait() -> None:
    world = World()
    world.settle()
    world.schedule()
    for worker in range(3):
        waiting(world, worker, "ErrImagePull")
    plan = world.settle()
    assert plan.look_again_at == world.now + timedelta(seconds=120)
    world.after(119).settle()
    assert world.status.failures == ()
    world.after(1).settle()
    world.end_deleted()
    world.settle()
    assert (world.phase, world.condition("Failed")[1], last(world)) == ("Failed", "BadConfiguration", ("13", "image_pull", None))


def test_an_image_that_one_node_cannot_pull_excludes_that_node_and_charges_nothing() -> None:
    world = World()
    world.settle()
    world.start([0, 1])
    world.schedule([2])
    node = world.pod(2).node
    waiting(world, 2, "ImagePullBackOff")
    world.after(121).settle()
    relaunch(world)
    assert (last(world), [entry.node for entry in world.status.excluded_nodes]) == (("14", "image_pull", None), [node])
    assert (world.status.attempt, world.status.restarts.total) == (2, 0)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Outcome.PREEMPTED_UNSAVED, 76), (Outcome.PREEMPTED_SAVED, 75), (Outcome.FAILED, 143)],
    ids=["unsaved", "saved", "failed"],
)
def test_workers_that_we_stopped_change_no_verdict_though_the_kubelet_tells_whole_seconds(outcome: Outcome, code: int) -> None:
    world = World()
    world.now = world.now.replace(microsecond=900_000)
    world.settle()
    world.start([0, 1])
    world.schedule([2])
    waiting(world, 2, "ImagePullBackOff")
    world.after(121).settle()
    for worker in (0, 1):
        report(world, worker, outcome, code)
        container = world.pod(worker).container
        assert container is not None
        world.change_pod(worker, container=replace(container, finished_at=world.now.replace(microsecond=0)))
    relaunch(world)
    assert last(world) == ("14", "image_pull", None)
    assert (world.status.attempt, len(world.status.excluded_nodes)) == (2, 1)


@pytest.mark.parametrize("reason", ["ErrImageNeverPull", "InvalidImageName"])
def test_an_image_that_no_registry_is_asked_for_needs_no_wait_once_the_others_have_started(reason: str) -> None:
    world = World()
    world.settle()
    world.schedule()
    waiting(world, 2, reason)
    world.after(5).settle()
    assert world.status.failures == ()
    world.start([0, 1])
    world.settle()
    assert last(world) == ("14", "image_pull", None)


def test_a_pull_that_succeeds_after_a_while_is_no_failure() -> None:
    world = World()
    world.settle()
    world.schedule()
    waiting(world, 1, "ErrImagePull")
    world.after(90).settle()
    world.launch()
    assert world.status.failures == ()


def test_a_command_that_does_not_exist_fails_the_job_once_all_workers_said_so() -> None:
    world = World()
    world.settle()
    world.schedule()
    for worker in range(3):
        world.settle()
        assert world.status.failures == (), "the others are not there yet"
        world.exit(worker, 128, reason="StartError", message="exec: no such file")
    world.settle()
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "BadConfiguration")


def test_a_configuration_that_every_worker_refuses_fails_the_job() -> None:
    world = World()
    world.settle()
    world.start()
    report(world, 0, Outcome.BAD_CONFIGURATION, 78, message="RTJ_STORE: not set")
    world.run_pass()
    for worker in (1, 2):
        report(world, worker, Outcome.BAD_CONFIGURATION, 78, message="RTJ_STORE: not set")
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "BadConfiguration")
    assert world.status.restarts.total == 0


def test_a_refused_resume_fails_the_job_with_the_difference() -> None:
    world = World().launch()
    report(world, 0, Outcome.REFUSED, 77, message="optimizer: lr 0.1 != 0.2 (allow: optimizer)")
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], last(world)[0]) == ("Failed", "ResumeRefused", "16")
    assert "lr 0.1 != 0.2" in next(c.message for c in world.status.conditions if c.type == "Failed")


def test_a_damaged_checkpoint_is_quarantined_and_the_next_older_one_is_used() -> None:
    world = World().launch()
    world.records += [record(5, 1), record(9, 1)]
    world.settle()
    world.fail(0, step=10)
    relaunch(world)
    world.start()
    damaged = DamagedCheckpoint(9, 1, "sha-9-1", "data/00000-model-0.safetensors", "chunk 3 differs")
    report(world, 2, Outcome.DAMAGED, 80, checkpoint=damaged)
    relaunch(world)
    assert last(world) == ("17", "checkpoint_damaged", "infrastructure")
    assert world.status.resume_point is not None and world.status.resume_point.step == 5
    assert world.status.checkpoint is not None and world.status.checkpoint.step == 5
    assert "CheckpointQuarantined" in world.told() and "RolledBack" in world.told()


def test_when_every_checkpoint_is_damaged_the_job_fails_and_never_starts_from_nothing() -> None:
    world = World().launch()
    world.records.append(record(5, 1))
    world.settle()
    world.fail(0, step=10)
    relaunch(world)
    world.start()
    report(world, 0, Outcome.DAMAGED, 80, checkpoint=DamagedCheckpoint(5, 1, "sha-5-1", "manifest.json", "missing"))
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], world.status.attempt) == ("Failed", "NoUsableCheckpoint", 2)


def test_an_unreachable_store_is_waited_for_with_a_growing_backoff_and_charged_to_nothing() -> None:
    world = World()
    world.settle()
    waits = []
    for _ in range(4):
        world.start()
        report(world, 0, Outcome.STORE_UNAVAILABLE, 81, message="connection refused")
        relaunch(world)
        assert world.status.next_launch_after is not None
        assert world.condition("CheckpointHealthy") == ("False", "StoreUnavailable")
        waits.append((world.status.next_launch_after - world.now).total_seconds())
        world.after(waits[-1]).settle()
    assert waits == [10, 20, 40, 80]
    assert (last(world), world.status.restarts.total, world.phase) == (("6", "store_unavailable", None), 0, "Recovering")


def test_unknown_failures_wait_longer_each_time_and_end_without_progress() -> None:
    world = World().launch()
    world.exit(1, 1)
    relaunch(world)
    assert last(world) == ("20", "unknown", "unknown")
    assert world.status.next_launch_after == world.now + timedelta(seconds=10)
    world.after(10).launch()
    world.exit(1, 1)
    relaunch(world)
    assert world.status.next_launch_after == world.now + timedelta(seconds=20)
    world.after(20).launch()
    world.exit(1, 1)
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], world.told()[-2:]) == ("Failed", "NoProgress", ["NoProgress", "Failed"])
    assert world.status.restarts.total == 2


def test_a_new_verified_step_resets_the_count_of_failures_without_progress() -> None:
    world = World(spec=spec_of(recovery={"budgets": {"application": 100}, "noProgressLimit": 2})).launch()
    for step in (10, 20, 30, 40):
        world.fail(1, step=step)
        world.records.append(record(step, world.status.attempt))
        relaunch(world).launch()
    assert (world.phase, world.status.no_progress_count) == ("Running", 1)


def test_a_budget_that_is_used_up_fails_the_job() -> None:
    world = World(spec=spec_of(recovery={"budgets": {"application": 2}, "noProgressLimit": 100})).launch()
    for step in (10, 20):
        world.fail(1, step=step)
        relaunch(world).launch()
    world.fail(1, step=30)
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], world.status.restarts.application) == ("Failed", "BudgetExceeded", 2)
    assert world.told()[-2:] == ["BudgetExceeded", "Failed"]


def test_failures_that_left_the_window_do_not_count() -> None:
    world = World(spec=spec_of(recovery={"budgets": {"application": 2, "windowSeconds": 3600}, "noProgressLimit": 100})).launch()
    for step in (10, 20, 30, 40, 50):
        world.fail(1, step=step)
        relaunch(world).launch()
        world.after(3000).train(step)
        world.settle()
    assert (world.phase, world.status.restarts.application) == ("Running", 5)


def test_a_gang_that_stays_half_scheduled_is_given_back_and_charged_to_nothing() -> None:
    world = World()
    world.settle()
    world.schedule([0, 1])
    world.after(599).settle()
    assert world.status.stopping_since is None
    world.after(1).run_pass()
    world.end_deleted()
    world.settle()
    assert (world.pods, world.status.attempt, world.status.restarts.total, world.phase) == ({}, 1, 0, "Recovering")
    assert world.status.next_launch_after is not None
    wait = (world.status.next_launch_after - world.now).total_seconds()
    assert 10 <= wait <= 12.5
    world.after(wait).settle()
    assert (world.status.attempt, len(world.gang)) == (2, 3)


def test_a_gang_that_holds_no_node_waits_for_ever() -> None:
    world = World()
    world.settle()
    world.after(36_000).settle()
    assert (world.phase, world.status.attempt) == ("Starting", 1)


def test_the_operator_never_restarts_for_evidence_of_an_older_attempt() -> None:
    world = World().launch()
    fact = evidence("gpu_ecc_uncorrectable", Strength.NODE, world.now, 1)
    world.fail(0, step=10)
    relaunch(world).launch()
    world.beat(1, step=3, evidence=(fact,))
    world.settle()
    assert world.status.attempt == 2


def test_a_beat_of_another_attempt_says_nothing_about_this_one() -> None:
    world = World()
    world.settle()
    world.start()
    world.train(5, workers=[0, 1])
    world.beat(2, Phase.TRAIN, step=5, attempt=0)
    world.settle()
    assert world.phase == "Starting"


def test_a_worker_that_speaks_of_a_higher_attempt_means_the_status_was_lost() -> None:
    world = World().launch()
    world.beat(1, step=5, attempt=7)
    relaunch(world)
    assert (world.status.attempt, world.status.restarts.total) == (8, 0)


def test_a_wiped_status_continues_from_the_checkpoints_in_the_store() -> None:
    world = World()
    world.settle()
    world.start()
    inventory = (record(40, 3), record(30, 3))
    world.beat(0, Phase.HOLD, inventory=inventory, highest_fence=3, fence_job_uid=UID)
    relaunch(world)
    assert (world.status.attempt, world.status.restarts.total) == (4, 0)
    assert world.status.resume_point is not None and world.status.resume_point.step == 40


def test_a_worker_that_was_fenced_by_its_own_job_leads_to_an_attempt_above_the_fence() -> None:
    world = World()
    world.settle()
    world.start()
    report(world, 0, Outcome.FENCED, 79, highest_fence=6, fence_job_uid=UID)
    relaunch(world)
    assert (last(world), world.status.attempt, world.status.restarts.total) == (("18", "fenced", None), 7, 0)


def test_a_wiped_status_never_continues_from_what_the_fences_abandoned() -> None:
    world = World()
    world.settle()
    world.start()
    inventory = (record(40, 3), replace(record(90, 2), abandoned=True), replace(record(95, 1), abandoned=True))
    world.beat(0, Phase.HOLD, inventory=inventory, highest_fence=3, fence_job_uid=UID)
    relaunch(world)
    assert world.status.attempt == 4
    assert world.status.resume_point is not None and world.status.resume_point.step == 40


def test_what_a_zombie_commits_after_a_rollback_is_never_chosen() -> None:
    world = World().launch()
    world.records.append(record(100, 1))
    world.settle()
    world.fail(0, step=150)
    relaunch(world).launch(101)
    world.records.append(record(200, 1))
    world.settle()
    assert [(known.step, known.abandoned) for known in world.status.checkpoints] == [(200, True), (100, False)]
    world.fail(0, step=160)
    relaunch(world)
    assert world.status.resume_point is not None and world.status.resume_point.step == 100


def test_a_commit_before_the_new_attempts_fence_is_taken_up_by_another_attempt() -> None:
    world = World().launch()
    world.records.append(record(100, 1))
    world.settle()
    world.fail(0, step=150)
    relaunch(world)
    world.start()
    world.beat(0, Phase.HOLD, inventory=(record(120, 1), record(100, 1)), highest_fence=1, fence_job_uid=UID)
    relaunch(world)
    assert (world.status.attempt, world.status.restarts.total) == (3, 1)
    assert world.status.resume_point is not None and world.status.resume_point.step == 120


def test_the_same_checkpoint_with_two_digests_is_quarantined() -> None:
    world = World().launch()
    world.records += [record(5, 1), record(9, 1, Level.COMMITTED)]
    world.settle()
    world.records.append(record(9, 1, sha="other"))
    world.settle()
    assert world.status.checkpoints[0].quarantined is not None and world.told()[-1] == "CheckpointQuarantined"
    assert world.status.checkpoint is not None and world.status.checkpoint.step == 5


def test_a_committed_checkpoint_is_better_than_nothing() -> None:
    world = World().launch()
    world.records.append(record(5, 1, Level.COMMITTED))
    world.fail(0, step=10)
    relaunch(world)
    assert world.status.resume_point is not None and world.status.resume_point.step == 5


def test_a_checkpoint_that_only_an_exit_report_names_is_the_resume_point() -> None:
    """The beats that told of it met no operator."""
    world = World().launch()
    told = record(5, 1)
    world.fail(0, step=10, verified=VerifiedCheckpoint(told.step, told.uri, told.manifest_sha256))
    relaunch(world)
    assert world.status.resume_point is not None
    assert (world.status.resume_point.step, world.status.resume_point.manifest_sha256) == (5, told.manifest_sha256)


def test_start_fresh_acts_once() -> None:
    world = World(spec={**spec_of(), "checkpoint": {"store": "file:///checkpoints", "startFresh": True}})
    world.settle()
    assert world.status.starts_fresh
    world.launch()
    world.records.append(record(5, 1))
    world.settle()
    world.fail(0, step=10)
    relaunch(world)
    assert not world.status.starts_fresh and world.status.resume_point is not None and world.status.resume_point.step == 5
