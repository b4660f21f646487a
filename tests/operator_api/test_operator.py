"""The operator as a real process against a real API server, with exactly its rights; the test plays kubelet and workers.

What it must show: a job comes up by beats alone, heals, survives being killed at any step and the API server's restart, and lets nobody
in who should not be.
"""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.cluster.control_plane import ControlPlane
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from tests.operator_api import rbac
from tests.operator_api.objects import break_node, create_job
from tests.operator_api.play import SeenFence
from tests.operator_api.process import OperatorProcess, wait_for
from tests.operator_api.scene import SECONDS, Scene, condition, has_events, open_scene, preempted
from trainer_runtime.contract.beat import Beat, CheckpointRecord, Level, Phase
from trainer_runtime.contract.exit_report import ExitReport, Outcome

pytestmark = pytest.mark.api


@pytest.fixture(scope="module")
def operator_kubeconfig(control_plane: ControlPlane) -> Path:
    return control_plane.user_kubeconfig(rbac.USER)


@pytest.fixture
async def scene(client: KubeClient, namespace: str, operator_kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    async with open_scene(client, namespace, OperatorProcess(tmp_path / "operator", operator_kubeconfig, namespace)) as opened:
        yield opened


async def test_a_job_comes_up_by_beats_and_the_operator_stops_when_asked(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    status = await scene.wait_until_running()
    assert await scene.pods() == ["gpt-1-0", "gpt-1-1", "gpt-1-2"]
    assert status["workers"] == {"desired": 3, "ready": 3, "summary": "3/3"}
    service = await calls.get_service(scene.client, scene.namespace, "gpt")
    assert service is not None and service["spec"]["clusterIP"] == "None"
    await wait_for(lambda: has_events(scene, "Started", "Running"), "events Started and Running", SECONDS, scene.operator.log_end)
    code, metrics = await scene.operator.get("/metrics")
    assert code == 200
    for name in ("rtj_heartbeats_received_total", "rtj_reconcile_seconds_count", "rtj_watch_age_seconds", "rtj_operator_build_info"):
        assert name in metrics
    print(f"operator: {scene.operator.resident_mib():.0f} MiB resident with one job of three workers")
    assert await scene.operator.stop() == 0, scene.operator.log_end()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{scene.namespace}/leases/rtj-operator"
    assert (await scene.client.request("GET", path))["spec"].get("holderIdentity", "") == ""


async def test_a_record_is_acknowledged_only_when_status_holds_it(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    run = f"{scene.namespace}.gpt"
    record = CheckpointRecord(run, 500, 1, f"file:///checkpoints/{run}/steps/0000000500-00000001", "ab" * 32, Level.VERIFIED)
    worker = scene.play.by_index(0)
    worker.records = (record,)
    status = await scene.wait_for("the checkpoint", lambda status: (status.get("checkpoint") or {}).get("step") == 500)
    assert status["highWaterStep"] == 500
    await wait_for(lambda: worker.records == (), "the acknowledgement", SECONDS, scene.operator.log_end)
    await wait_for(lambda: has_events(scene, "CheckpointVerified"), "event CheckpointVerified", SECONDS, scene.operator.log_end)


async def test_a_worker_that_dies_costs_one_restart_and_the_job_runs_again(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    await scene.play.end_pod(1, 75, preempted(1, 1))
    status = await scene.wait_until_running(attempt=2)
    assert status["restarts"]["total"] == 1
    assert status["lastFailure"]["attempt"] == 1
    assert status["lastFailure"]["worker"] == 1
    events = await scene.events()
    assert {"FailureDetected", "Restarting"} <= events.keys()


@pytest.mark.parametrize(
    "step", ["before_status:1", "after_status:1", "after_create_service:1", "after_create_pod:2", "before_events:1", "after_events:1"]
)
async def test_an_operator_killed_while_it_starts_a_job_converges_to_one_attempt_and_three_pods(scene: Scene, step: str) -> None:
    await create_job(scene.client, scene.namespace)
    await scene.operator.start(crash_at=step)
    assert await scene.operator.wait(SECONDS) == -signal.SIGKILL, scene.operator.log_end()
    await scene.operator.start_ready()
    status = await scene.wait_until_running()
    assert await scene.pods() == ["gpt-1-0", "gpt-1-1", "gpt-1-2"]
    assert sorted(scene.play.seen.values()) == ["gpt-1-0", "gpt-1-1", "gpt-1-2"]
    assert status["restarts"].get("total", 0) == 0


@pytest.mark.parametrize("step", ["before_status:1", "after_status:1", "after_status:2", "after_delete_pod:1", "after_create_pod:2"])
async def test_an_operator_killed_while_it_heals_a_job_counts_the_incident_once(scene: Scene, step: str) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    await scene.operator.kill()
    await scene.play.end_pod(1, 75, preempted(1, 1))
    await scene.operator.start(crash_at=step)
    assert await scene.operator.wait(SECONDS) == -signal.SIGKILL, scene.operator.log_end()
    await scene.operator.start_ready()
    status = await scene.wait_until_running(attempt=2)
    assert status["restarts"]["total"] == 1
    assert [failure["attempt"] for failure in status["failures"]] == [1]
    names = list(scene.play.seen.values())
    assert len(names) == len(set(names)), f"a pod was created twice: {names}"


@pytest.mark.parametrize("step", ["", "after_patch_node:1"], ids=["undisturbed", "killed after the cordon"])
async def test_a_node_with_a_broken_gpu_is_cordoned_once_and_the_next_gang_keeps_off_it(scene: Scene, step: str) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    await scene.operator.kill()
    bad = scene.nodes[1]
    await break_node(scene.client, bad, "GpuMemWatch", "Xid 48: double-bit ECC error")
    await scene.operator.start(crash_at=step)
    if step:
        assert await scene.operator.wait(SECONDS) == -signal.SIGKILL, scene.operator.log_end()
        await scene.operator.start()
    status = await scene.wait_until_running(attempt=2)
    assert status["restarts"] == {**status["restarts"], "total": 1, "infrastructure": 1}
    assert [excluded["node"] for excluded in status["excludedNodes"]] == [bad]
    pod = await calls.get_pod(scene.client, scene.namespace, "gpt-2-0")
    assert pod is not None and bad in json.dumps(pod["spec"]["affinity"])

    async def cordoned() -> list[str]:
        found = [await calls.get_node(scene.client, node) for node in scene.nodes]
        return [node["metadata"]["name"] for node in found if node and node["spec"].get("unschedulable")]

    async def is_only_the_bad_one_cordoned() -> bool:
        return await cordoned() == [bad]

    await wait_for(is_only_the_bad_one_cordoned, f"only {bad} to be cordoned", SECONDS, scene.operator.log_end)


@pytest.mark.parametrize("step", ["", "after_delete_job:1"], ids=["undisturbed", "killed after the deletion"])
async def test_a_finished_job_with_a_time_to_live_of_zero_is_deleted(scene: Scene, step: str) -> None:
    await create_job(scene.client, scene.namespace, changes={"spec.ttlSecondsAfterFinished": 0, "spec.workers": 1})
    await scene.operator.start(crash_at=step)
    await scene.wait_until_running()
    scene.play.by_index(0).phase = Phase.DONE
    await scene.play.end_pod(0, 0, ExitReport(attempt=1, worker_index=0, outcome=Outcome.DONE, exit_code=0))

    await scene.wait_for("the job to be deleted", lambda status: not status)
    if step:
        assert await scene.operator.wait(SECONDS) == -signal.SIGKILL
        await scene.operator.start_ready()
    assert (await scene.operator.get("/healthz"))[0] == 200


async def test_an_operator_that_is_killed_and_restarted_disturbs_nothing(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    await scene.operator.kill()
    await scene.operator.start_ready()
    step = scene.play.by_index(0).step
    status = await scene.wait_for("new progress", lambda status: (status.get("progress") or {}).get("step", 0) > step)
    assert (status["attempt"], status["phase"], status["restarts"].get("total", 0)) == (1, "Running", 0)
    assert len(scene.play.seen) == 3


async def test_a_second_operator_waits_for_the_lease_and_takes_over_after_a_kill(
    scene: Scene, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    second = OperatorProcess(tmp_path / "second", operator_kubeconfig, scene.namespace, "second")
    await second.start()
    try:
        await wait_for(lambda: "waiting" in second.log_file.read_text(), "the second operator to wait", SECONDS, second.log_end)
        assert (await second.get("/healthz"))[0] == 200
        code, words = await second.get("/readyz")
        assert (code, "the lease is held by another process" in words) == (503, True)
        await scene.operator.kill()
        await second.wait_until_ready()
        assert (await scene.status())["attempt"] == 1
        assert await second.stop() == 0
    finally:
        await second.kill()


async def test_who_is_not_that_pod_of_that_job_is_refused(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    first, second = scene.play.by_index(0), scene.play.by_index(1)
    scene.play.is_silent = True
    good = first.next_beat()
    other = second.next_beat()
    cases: list[tuple[str, Beat | bytes, str, int, bytes]] = [
        ("no such token", good, "forged", 401, b"bad_token"),
        ("another pod's token", good, second.token, 403, b"wrong_pod"),
        ("another worker's index", dataclasses.replace(good, worker_index=2), first.token, 403, b"wrong_worker"),
        ("another job", dataclasses.replace(other, job_uid="no-such-job"), second.token, 404, b"unknown_job"),
        ("no JSON", b"{", first.token, 400, b"malformed"),
    ]
    for what, sent, token, status, reason in cases:
        got, body = await scene.play.post(sent, token)
        assert (got, reason in body) == (status, True), f"{what}: {got} {body[:200]!r}"


async def test_a_body_of_ten_megabytes_is_refused_and_the_operator_stays_well(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    before = scene.operator.resident_mib()
    for _ in range(5):
        await scene.play.post_large(10_000_000, scene.play.by_index(0).token)
    assert 'rtj_heartbeats_rejected_total{reason="too_large"} 5.0' in (await scene.operator.get("/metrics"))[1]
    assert scene.operator.resident_mib() - before < 10
    assert (await scene.operator.get("/healthz"))[0] == 200


async def test_a_template_that_the_api_server_refuses_is_said_and_no_pod_is_made(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace, changes={"spec.template.spec.containers.0.imagePullPolicy": "Perhaps"})
    status = await scene.wait_for("Valid=False", lambda status: condition(status, "Valid").get("status") == "False")
    assert "imagePullPolicy" in condition(status, "Valid")["message"]
    assert await scene.pods() == []


async def test_a_status_that_somebody_wipes_is_rebuilt_without_a_second_launch(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    job = await calls.get_job(scene.client, scene.namespace, "gpt")
    assert job is not None
    kept = {key: job["status"][key] for key in ("attempt", "gang", "launch", "attemptStartedAt", "phase")}
    path = f"{calls.job_path(scene.namespace, 'gpt')}/status"
    await scene.client.request("PUT", path, body={**job, "status": kept})
    status = await scene.wait_for(
        "conditions and workers again", lambda status: bool(status.get("conditions")) and status.get("workers", {}).get("ready") == 3
    )
    assert status["attempt"] == 1
    assert len(scene.play.seen) == 3


async def test_the_run_of_a_deleted_job_goes_on_in_the_next_one_as_soon_as_its_pods_are_gone(scene: Scene) -> None:
    await scene.operator.start_ready()
    old = await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    pods = await scene.pods()
    await scene.client.request("DELETE", calls.job_path(scene.namespace, "gpt"))
    scene.play.fence = SeenFence(1, old["metadata"]["uid"], quiet_seconds=1.0)
    same_run = {"spec.checkpoint.run": f"{scene.namespace}.gpt"}
    await create_job(scene.client, scene.namespace, "again", same_run)

    async def waits() -> bool:
        return condition(await scene.status("again"), "Running").get("reason") == "RunNotQuiet"

    await wait_for(waits, "the new job to wait for the old one's pods", SECONDS, scene.operator.log_end)
    for pod in pods:  # what the garbage collector does
        await scene.client.request("DELETE", f"/api/v1/namespaces/{scene.namespace}/pods/{pod}")

    async def runs() -> bool:
        status = await scene.status("again")
        return status.get("phase") == "Running" and status["run"].get("takenOverFrom") == old["metadata"]["uid"]

    await wait_for(runs, "the new job to run in the old one's run", SECONDS, scene.operator.log_end)
    assert (await scene.status("again"))["restarts"].get("total", 0) == 0


async def test_a_finished_job_is_complete_and_its_last_pods_stay(scene: Scene) -> None:
    await scene.operator.start_ready()
    await create_job(scene.client, scene.namespace)
    await scene.wait_until_running()
    for worker in scene.play.workers.values():
        worker.phase = Phase.DONE
    await scene.wait_for("done workers", lambda status: status.get("doneWorkers") == "0-2" or status.get("phase") == "Succeeded")
    for index in range(3):
        await scene.play.end_pod(index, 0, ExitReport(attempt=1, worker_index=index, outcome=Outcome.DONE, exit_code=0))
    status = await scene.wait_for("the end", lambda status: status.get("phase") == "Succeeded")
    assert condition(status, "Complete")["status"] == "True"
    assert condition(status, "Finished")["status"] == "True"
    assert await scene.pods() == ["gpt-1-0", "gpt-1-1", "gpt-1-2"]
