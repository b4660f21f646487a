"""The API server goes away and comes back, and forgets old versions, while a job heals. It has a control plane of its own for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.cluster.build import build
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.tools import API_TOOLS
from rtj_operator.cluster.client import KubeClient, load_configuration
from tests.cluster.wire_server import NoMetrics
from tests.conftest import CRD
from tests.operator_api import rbac
from tests.operator_api.objects import create_job
from tests.operator_api.process import OperatorProcess, wait_for
from tests.operator_api.scene import SECONDS, Scene, open_scene, preempted

pytestmark = pytest.mark.api

LONG_LEASE_SECONDS = 120
"""So that the operator lives through the outage; that it ends when the lease cannot be renewed has a test of its own."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    own = ControlPlane.create(tmp_path_factory.mktemp("plane"), build(API_TOOLS), api_flags=("--disable-admission-plugins=ServiceAccount",))
    try:
        own.start()
        yield own
    finally:
        own.stop()


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    made = KubeClient(await load_configuration(str(plane.kubeconfig)), NoMetrics())
    yield made
    await made.close()


@pytest.fixture
def crd(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(CRD))


def operator(plane: ControlPlane, folder: Path, namespace: str, lease_seconds: int) -> OperatorProcess:
    return OperatorProcess(folder, plane.user_kubeconfig(rbac.USER), namespace, lease_seconds=lease_seconds)


async def is_healing(scene: Scene) -> bool:
    return (await scene.status()).get("lastFailure") is not None


async def test_without_the_crd_the_operator_ends_and_says_what_to_install(client: KubeClient, plane: ControlPlane, tmp_path: Path) -> None:
    process = operator(plane, tmp_path, "default", LONG_LEASE_SECONDS)
    await process.start()
    assert await process.wait(SECONDS) == 2
    assert "does not serve resilienttrainingjobs in rtj.dev/v1alpha1: install the CRD" in process.log_end()


@pytest.mark.usefixtures("crd")
async def test_a_restart_of_the_api_server_in_the_middle_of_a_recovery_costs_nothing(
    client: KubeClient, namespace: str, plane: ControlPlane, tmp_path: Path
) -> None:
    async with open_scene(client, namespace, operator(plane, tmp_path, namespace, LONG_LEASE_SECONDS)) as scene:
        await scene.operator.start_ready()
        await create_job(scene.client, scene.namespace)
        await scene.wait_until_running()
        await scene.play.end_pod(1, 75, preempted(1, 1))
        await wait_for(lambda: is_healing(scene), "the incident", SECONDS, scene.operator.log_end)
        await asyncio.to_thread(plane.restart_apiserver)
        status = await scene.wait_until_running(attempt=2)
        assert status["restarts"]["total"] == 1
        names = list(scene.play.seen.values())
        assert len(names) == len(set(names)), names
        assert scene.operator.returncode is None


@pytest.mark.usefixtures("crd")
async def test_versions_that_the_api_server_forgot_are_listed_again_and_what_vanished_is_noticed(
    client: KubeClient, namespace: str, plane: ControlPlane, tmp_path: Path
) -> None:
    async with open_scene(client, namespace, operator(plane, tmp_path, namespace, LONG_LEASE_SECONDS)) as scene:
        await scene.operator.start_ready()
        await create_job(scene.client, scene.namespace)
        await scene.wait_until_running()
        await scene.operator.pause()
        victim = scene.play.by_index(2).pod["metadata"]
        await client.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{victim['name']}", body={"gracePeriodSeconds": 0})
        await asyncio.to_thread(plane.restart_apiserver)
        await scene.operator.resume()
        status = await scene.wait_until_running(attempt=2)
        assert status["restarts"]["total"] == 1
        assert "is too old, listing again" in scene.operator.log_file.read_text()


@pytest.mark.usefixtures("crd")
async def test_an_operator_that_cannot_renew_its_lease_ends_and_its_successor_waits_and_goes_on(
    client: KubeClient, namespace: str, plane: ControlPlane, tmp_path: Path
) -> None:
    async with open_scene(client, namespace, operator(plane, tmp_path, namespace, lease_seconds=5)) as scene:
        await scene.operator.start_ready()
        await create_job(scene.client, scene.namespace)
        await scene.wait_until_running()
        await asyncio.to_thread(plane.stop_apiserver)
        assert await scene.operator.wait(SECONDS) == 1
        assert "no renewal succeeded" in scene.operator.log_end()
        await scene.operator.start()
        await wait_for(
            lambda: "waiting for the API server's answer" in scene.operator.log_file.read_text(),
            "a start that waits",
            SECONDS,
            scene.operator.log_end,
        )
        await asyncio.to_thread(plane.start_apiserver)
        await scene.operator.wait_until_ready()
        step = scene.play.by_index(0).step
        status = await scene.wait_for("new progress", lambda status: (status.get("progress") or {}).get("step", 0) > step)
        assert (status["attempt"], status["restarts"].get("total", 0)) == (1, 0)
