"""The S3 servers that the tests run against, each on loopback: gofakes3 on real files, moto, and our own hostile one."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from e2e.cluster.build import build
from e2e.cluster.tools import GOFAKES3
from e2e.cluster.waiting import wait_until
from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.store.s3.api import Limits
from trainer_runtime.store.s3.store import S3Store

START_SECONDS = 60.0
CREDENTIALS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
QUICK_TO_GIVE_UP = Limits(connect=1.0, answer=1.0, request=0.6, first=5.0)
QUICK = Limits(connect=2.0, answer=10.0, request=20.0, first=5.0)


@contextmanager
def gofakes3(directory: Path) -> Iterator[str]:
    """Yield the endpoint of a gofakes3 that keeps its objects as files below ``directory``."""
    program = str(build([GOFAKES3]).path("gofakes3"))
    port = free_port()
    command = [program, "-backend", "fs", "-fs.path", str(directory), "-fs.create", "-host", f"127.0.0.1:{port}", "-quiet"]
    with _running(command, directory / "log", port) as endpoint:
        yield endpoint


@contextmanager
def moto(directory: Path) -> Iterator[str]:
    """Yield the endpoint of a moto server, which keeps everything in memory."""
    port = free_port()
    with _running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], directory / "log", port) as endpoint:
        yield endpoint


def give_credentials(patch: pytest.MonkeyPatch) -> None:
    """Set what every store of a test finds in its environment."""
    patch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS["aws_access_key_id"])
    patch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS["aws_secret_access_key"])


def new_bucket(endpoint: str) -> str:
    """Make a bucket of one's own: gofakes3 looks at every file of a bucket when it lists any."""
    name = f"b-{uuid.uuid4().hex}"
    client(endpoint).create_bucket(Bucket=name)
    return name


def store_at(endpoint: str, bucket: str, prefix: str = "", limits: Limits = QUICK) -> S3Store:
    """Return the store below ``prefix`` of a bucket. Credentials come from the environment, as always."""
    return S3Store(bucket, prefix, S3Settings(endpoint), limits)


@functools.cache
def client(endpoint: str) -> Any:
    """Return an ordinary S3 client, for what a person or a fault does to the objects behind the store's back."""
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **CREDENTIALS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str], log: Path, port: int) -> Iterator[str]:
    endpoint = f"http://127.0.0.1:{port}"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent) as process:
        try:
            wait_until(lambda: _answers(endpoint), f"{command[0]} to answer on {endpoint}", START_SECONDS, log.read_text)
            yield endpoint
        finally:
            process.kill()


def _answers(endpoint: str) -> bool:
    try:
        client(endpoint).list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True
