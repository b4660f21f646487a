"""An S3 server for jobs of the test cluster: gofakes3 on this machine, on the bridge's address, with its objects as files.

It outlives whoever started it, as all programs of the cluster do, and ends with the cluster at the latest. It is not part of the product.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster import processes
from e2e.cluster.build import build
from e2e.cluster.settings import HOST_ADDRESS, state_directory
from e2e.cluster.tools import GOFAKES3
from e2e.cluster.waiting import wait_until

PORT: Final = 9000
BUCKET: Final = "checkpoints"
REGION: Final = "us-east-1"
START_SECONDS: Final = 30
KEYS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "not-secret"}
"""gofakes3 takes any; a job carries them as a user would: in a Secret."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class ObjectStore:
    """A bucket that a job's pods can reach, and what a job needs for it."""

    endpoint: str
    bucket: str = BUCKET
    secret_name: str = "s3-keys"

    def checkpoint(self, prefix: str) -> Manifest:
        """Fields of spec.checkpoint for a store below ``prefix``."""
        return {"store": f"s3://{self.bucket}/{prefix}", "s3": {"endpoint": self.endpoint, "region": REGION}}

    def secret(self) -> Manifest:
        """The Secret with the keys."""
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self.secret_name}, "stringData": KEYS}

    def environment(self) -> list[Manifest]:
        """The trainer's environment: the keys, from the Secret."""
        return [{"name": name, "valueFrom": {"secretKeyRef": {"name": self.secret_name, "key": name}}} for name in KEYS]


@contextlib.contextmanager
def serving(directory: Path, address: str = HOST_ADDRESS, port: int = PORT) -> Iterator[ObjectStore]:
    """Run the server with its objects below ``directory`` while the block runs. Raises ClusterError if it does not start."""
    program = str(build([GOFAKES3]).path("gofakes3"))
    record = state_directory() / f"gofakes3{processes.RECORD_SUFFIX}"
    log = directory / "gofakes3.log"
    where = ["-backend", "fs", "-fs.path", str(directory), "-fs.create", "-host", f"{address}:{port}"]
    processes.stop([record])  # one that an earlier caller, who was killed, left behind
    processes.start([program, *where, "-initialbucket", BUCKET, "-quiet"], record, log)
    try:
        wait_until(lambda: _listens(address, port), f"gofakes3 to listen on {address}:{port}", START_SECONDS, log.read_text)
        yield ObjectStore(f"http://{address}:{port}")
    finally:
        processes.stop([record])


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
