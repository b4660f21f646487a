"""A client of the operator's own making for the real API server, and a namespace for each test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from e2e.cluster.control_plane import ControlPlane
from rtj_operator.cluster.client import KubeClient, load_configuration
from tests.cluster.wire_server import NoMetrics


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """Yield the operator's client with the administrator's rights."""
    made = KubeClient(await load_configuration(str(control_plane.kubeconfig)), NoMetrics())
    yield made
    await made.close()


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """Return a new namespace with a service account ``trainer``."""
    name = f"t-{secrets.token_hex(4)}"
    await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    await client.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", body={"metadata": {"name": "trainer"}})
    return name
