"""A run in a real S3 server, and one in a server that misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.manifests.run_in_bucket import RunInBucket
from tests.store import servers
from tests.store.hostile import Hostile, hostile_s3


@pytest.fixture(scope="module")
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, credentials: None) -> Iterator[str]:
    with servers.gofakes3(tmp_path_factory.mktemp("gofakes3")) as address:
        yield address


@pytest.fixture
def run(endpoint: str) -> RunInBucket:
    return RunInBucket(endpoint, servers.new_bucket(endpoint))


@pytest.fixture
def hostile(credentials: None) -> Iterator[Hostile]:
    with hostile_s3() as server:
        yield server
