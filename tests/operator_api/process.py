"""The operator as a real process of this machine, with a kubeconfig, real certificates and free ports."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.pki import Authority
from rtj_operator.reconcile.crash_points import CRASH_AT

READY_SECONDS = 40.0
LEASE_SECONDS = 5
"""The shortest that the settings allow, so that a killed operator's lease is taken soon."""


class OperatorProcess:
    """One operator; it may be killed and started again, on the same ports."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        namespace: str,
        name: str = "operator",
        lease_seconds: int = LEASE_SECONDS,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """``more``: variables beside those that every operator needs."""
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority.create(folder / "pki")
        authority.issue("heartbeat", "heartbeat", addresses=["127.0.0.1"])
        self.ca_file = folder / "pki" / "ca.crt"
        self.heartbeat_port, self.metrics_port = free_ports(2)
        self.heartbeat_url = f"https://127.0.0.1:{self.heartbeat_port}"
        self.log_file = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RTJ_", "KUBE"))},
            "PYTHONFAULTHANDLER": "1",
            "POD_UID": name,
            "RTJ_OPERATOR_KUBECONFIG": str(kubeconfig),
            "RTJ_OPERATOR_HEARTBEAT_URL": self.heartbeat_url,
            "RTJ_OPERATOR_HEARTBEAT_PORT": str(self.heartbeat_port),
            "RTJ_OPERATOR_HEARTBEAT_CA_FILE": str(self.ca_file),
            "RTJ_OPERATOR_HEARTBEAT_CERT_FILE": str(folder / "pki" / "heartbeat.crt"),
            "RTJ_OPERATOR_HEARTBEAT_KEY_FILE": str(folder / "pki" / "heartbeat.key"),
            "RTJ_OPERATOR_METRICS_PORT": str(self.metrics_port),
            "RTJ_OPERATOR_NAMESPACES": namespace,
            "RTJ_OPERATOR_LEASE_NAMESPACE": namespace,
            "RTJ_OPERATOR_LEASE_SECONDS": str(lease_seconds),
            "RTJ_OPERATOR_LOG_FORMAT": "text",
            **(more or {}),
        }

    async def start(self, crash_at: str = "") -> None:
        """Start the process; it kills itself at ``crash_at`` if that is given."""
        environment = {**self._environment, **({CRASH_AT: crash_at} if crash_at else {})}
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rtj_operator", env=environment, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
            )

    async def start_ready(self) -> None:
        """Start the process and wait until it is ready. Fails with the end of its log."""
        await self.start()
        await self.wait_until_ready()

    async def wait_until_ready(self) -> None:
        """Wait until /readyz says so. Fails with the end of its log, at once when the process ends."""
        await wait_for(self._is_ready, "the operator to be ready", READY_SECONDS, self.log_end)

    async def _is_ready(self) -> bool:
        assert self.returncode is None, f"the operator ended with {self.returncode}\n{self.log_end()}"
        return (await self.get("/readyz"))[0] == 200

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and text of one of the operator's health paths; status 0 when nobody answers."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(f"http://127.0.0.1:{self.metrics_port}{path}") as response,
            ):
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return 0, ""

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        assert self._process is not None
        return self._process.returncode

    async def wait(self, seconds: float) -> int:
        """Wait until the process ends by itself and return its exit code. Fails with the end of its log."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"the operator did not end within {seconds:g} s\n{self.log_end()}") from None

    async def stop(self) -> int:
        """Ask the process to stop and return its exit code; one that is over already just has its code returned."""
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await self.wait(30)

    async def kill(self) -> None:
        """Kill the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def pause(self) -> None:
        """Stop the process as a suspended machine does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    async def resume(self) -> None:
        """Let a paused process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def resident_mib(self) -> float:
        """Resident memory of the process in MiB."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def log_end(self, lines: int = 40) -> str:
        """Return the end of its log."""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody has now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def wait_for(holds: Callable[[], Any], what: str, seconds: float, missing: Callable[[], str] = str) -> None:
    """Wait until the (async) condition holds. Fails at the deadline with what was awaited and what ``missing()`` says."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        result = holds()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        if loop.time() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}\n{missing()}")
        await asyncio.sleep(0.05)
