"""One store of every kind that there is, for the suite that holds all of them to one contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store import servers
from tests.store.hostile import Hostile, hostile_s3
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore
from trainer_runtime.store.s3 import upload

KINDS = ("posix", "gofakes3", "moto", "hostile")
MEBIBYTE = 1024 * 1024


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    servers.give_credentials(monkeypatch)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a file of some MiB is uploaded in parts. 5 MiB is the least that S3 takes."""
    monkeypatch.setattr(upload, "PART_BYTES", 5 * MEBIBYTE)
    monkeypatch.setattr(upload, "SINGLE_BYTES", 6 * MEBIBYTE)


@pytest.fixture(scope="session")
def gofakes3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.gofakes3(tmp_path_factory.mktemp("gofakes3")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def moto_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    with hostile_s3() as server:
        yield server


@pytest.fixture(params=KINDS)
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens the store of this test once more, as another process would, of each kind there is. Prefixes need escaping wherever they can."""
    if request.param == "posix":
        return lambda: PosixStore(tmp_path)
    server = request.getfixturevalue(request.param if request.param == "hostile" else f"{request.param}_endpoint")
    endpoint = server.endpoint if isinstance(server, Hostile) else server
    bucket = servers.new_bucket(endpoint)
    return lambda: servers.store_at(endpoint, bucket, "a b=+%41ü&'/c")


@pytest.fixture
def store(another: Callable[[], Store]) -> Store:
    """An empty store of each kind."""
    return another()
