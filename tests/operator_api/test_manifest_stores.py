"""A real operator that may read a real S3 store: it begins with what lies there, and goes on without it when it does not answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from rtj_operator.cluster.client import KubeClient
from tests.manifests.run_in_bucket import RunInBucket
from tests.operator_api import rbac
from tests.operator_api.objects import create_job
from tests.operator_api.process import OperatorProcess, wait_for
from tests.operator_api.scene import SECONDS, Scene, condition, has_events, open_scene
from tests.store import servers

pytestmark = pytest.mark.api

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
NOWHERE = "http://127.0.0.1:9"
"""The discard port: nobody listens there."""


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "store").mkdir()
    with servers.gofakes3(tmp_path / "store") as address:
        yield address


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    return control_plane.user_kubeconfig(rbac.USER)


@asynccontextmanager
async def scene_with(client: KubeClient, namespace: str, kubeconfig: Path, folder: Path, store: RunInBucket) -> AsyncIterator[Scene]:
    """One operator that may read that store."""
    allowed = [{"namespace": namespace, "prefix": store.url, "endpoint": store.endpoint}]
    more = {**CREDENTIALS, "RTJ_OPERATOR_MANIFEST_STORES": json.dumps(allowed)}
    async with open_scene(client, namespace, OperatorProcess(folder, kubeconfig, namespace, more=more)) as scene:
        yield scene


def wishes(store: RunInBucket) -> dict[str, Any]:
    """What a job writes to use that store."""
    return {"spec.checkpoint.store": store.url, "spec.checkpoint.s3": {"endpoint": store.endpoint}}


async def test_a_job_begins_with_the_newest_verified_checkpoint_in_its_store(
    client: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path, endpoint: str
) -> None:
    store = RunInBucket(endpoint, servers.new_bucket(endpoint), run=f"{namespace}.gpt")
    store.fence(1)
    store.commit(400, 1)
    store.commit(500, 1, verified=False)
    async with scene_with(client, namespace, kubeconfig, tmp_path / "operator", store) as scene:
        await scene.operator.start_ready()
        await create_job(client, namespace, changes=wishes(store))
        status = await scene.wait_until_running()
    assert (status["resumePoint"]["step"], status["resumePoint"]["attempt"]) == (400, 1)
    assert [(known["step"], known["level"]) for known in status["checkpoints"]] == [(500, "committed"), (400, "verified")]


async def test_a_store_that_does_not_answer_holds_no_job_up(client: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    store = RunInBucket(NOWHERE, "checkpoints", run=f"{namespace}.gpt")
    async with scene_with(client, namespace, kubeconfig, tmp_path / "operator", store) as scene:
        await scene.operator.start_ready()
        await create_job(client, namespace, changes=wishes(store))
        told = "the operator chooses from what was reported"
        status = await scene.wait_for("the problem", lambda now: told in condition(now, "CheckpointHealthy").get("message", ""))
        assert condition(status, "CheckpointHealthy")["reason"] == "StoreUnavailable"
        await scene.wait_until_running()
        await wait_for(lambda: has_events(scene, "StoreUnavailable"), "event StoreUnavailable", SECONDS, scene.operator.log_end)
