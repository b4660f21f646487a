"""A real API server for the tests marked ``api``: one per session, on loopback, with the CRD in it. Tests keep apart by namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.build import build
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.tools import API_TOOLS
from e2e.cluster.waiting import wait_until

GPU_DEVICE = Path("/dev/nvidiactl")
CRD = Path(__file__).resolve().parents[1] / "crds" / "rtj.dev_resilienttrainingjobs.yaml"


def _serves_jobs(plane: ControlPlane) -> bool:
    """kubectl wait cannot be used: it fails on a definition that has no condition yet."""
    try:
        plane.kubectl("get", "resilienttrainingjobs", "--all-namespaces")
    except ClusterError:
        return False
    return True


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a running kube-apiserver and etcd that know ResilientTrainingJobs. Without controllers there are no service accounts, so
    pods are accepted without one."""
    plane = ControlPlane.create(
        tmp_path_factory.mktemp("control-plane"), build(API_TOOLS), api_flags=("--disable-admission-plugins=ServiceAccount",)
    )
    try:
        plane.start()
        plane.kubectl("create", "-f", str(CRD))
        wait_until(lambda: _serves_jobs(plane), "the API server to serve resilienttrainingjobs", 30)
        yield plane
    finally:
        plane.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked ``cuda`` on machines without a GPU: such a test cannot run there, and a skip would hide others."""
    needing = [item for item in items if item.get_closest_marker("cuda") is not None]
    if needing and not GPU_DEVICE.exists():
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)
