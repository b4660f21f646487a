"""What all tests share: where temporary files go, and a real API server for the tests marked ``api``.

The API server is one per session, on loopback, with the CRD in it; tests keep apart by namespace.
"""

from __future__ import annotations

import getpass
import tempfile
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


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let temporary files lie where pytest removes them some sessions later: a process that a test kills cleans nothing up. What torch
    compiled stays where torch keeps it by itself, for the next session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp", numbered=False)))
        patch.setattr(tempfile, "tempdir", None)  # it is looked up once and remembered
        yield


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
