"""etcd, kube-apiserver and, where nodes are to run, controller-manager and scheduler: real ones, as processes of this machine.

On its own, with the default loopback address, it is what API tests need: no root, no nodes, ready in about 3 s.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster import processes
from e2e.cluster.build import Programs
from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.pki import ADMIN_GROUP, Authority
from e2e.cluster.settings import API_PORT, HOST_ADDRESS, KUBERNETES_SERVICE_ADDRESS, SERVICE_NETWORK, TIMINGS
from e2e.cluster.waiting import wait_until

LOOPBACK: Final = "127.0.0.1"
READY_SECONDS: Final = 60
APISERVER_STOP_SECONDS: Final = 2
"""It waits for open watches, which never end by themselves; then it is killed."""
AUDIT_POLICY: Final = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


@dataclass(frozen=True)
class ControlPlaneConfig:
    """What stays the same over restarts of a control plane."""

    address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    controllers: bool
    """Whether controller-manager and scheduler run too."""
    audit: bool
    """Whether each request is written to `ControlPlane.audit_log`, one JSON object a line."""
    api_flags: tuple[str, ...]
    """More flags for kube-apiserver; they come last and so win."""


class ControlPlane:
    """One control plane, whose files are in `directory`. It needs no memory: any process can load and control it."""

    def __init__(self, directory: Path, programs: Programs, config: ControlPlaneConfig) -> None:
        self.directory = directory
        self.config = config
        self._programs = programs
        self._pki = directory / "pki"
        self._logs = directory / "logs"

    @staticmethod
    def create(
        directory: Path, programs: Programs, *, controllers: bool = False, audit: bool = False, api_flags: Sequence[str] = ()
    ) -> ControlPlane:
        """Prepare one on loopback, with free ports, for API tests. `start` starts it. `directory` should be new."""
        api, etcd, peer = _free_ports(3)
        return ControlPlane.prepare(
            directory, programs, ControlPlaneConfig(LOOPBACK, api, etcd, peer, controllers, audit, tuple(api_flags))
        )

    @staticmethod
    def create_for_nodes(directory: Path, programs: Programs) -> ControlPlane:
        """Prepare one on the bridge, which must be there already."""
        etcd, peer = _free_ports(2)
        return ControlPlane.prepare(directory, programs, ControlPlaneConfig(HOST_ADDRESS, API_PORT, etcd, peer, True, False, ()))

    @staticmethod
    def prepare(directory: Path, programs: Programs, config: ControlPlaneConfig) -> ControlPlane:
        """Write down a configuration and make the certificates for it."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "control-plane.json").write_text(json.dumps(dataclasses.asdict(config)))
        plane = ControlPlane(directory, programs, config)
        plane._issue_certificates()
        return plane

    @staticmethod
    def load(directory: Path, programs: Programs) -> ControlPlane:
        """Return the control plane that was prepared in `directory`. Raises ClusterError if there is none."""
        try:
            values = json.loads((directory / "control-plane.json").read_text())
        except FileNotFoundError:
            raise ClusterError(f"no test cluster is up (nothing in {directory}); start one: python -m e2e.cluster up") from None
        values["api_flags"] = tuple(values["api_flags"])
        return ControlPlane(directory, programs, ControlPlaneConfig(**values))

    @property
    def server(self) -> str:
        return f"https://{self.config.address}:{self.config.api_port}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._pki / "admin.kubeconfig"

    @property
    def authority(self) -> Authority:
        return Authority.load(self._pki)

    @property
    def audit_log(self) -> Path:
        return self._logs / "audit.log"

    def user_kubeconfig(self, user: str, group: str | None = None) -> Path:
        """Write and return a kubeconfig for any user, for tests of permissions."""
        return self.authority.kubeconfig(user.replace(":", "-"), self.server, user, group)

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Run kubectl as the administrator and return what it prints. Raises ClusterError with its words if it fails."""
        kubectl = str(self._programs.path("kubectl"))
        return run(kubectl, "--kubeconfig", str(self.kubeconfig), *arguments, stdin=stdin, seconds=seconds)

    def start(self) -> None:
        """Start everything and wait until the API server is ready; the controllers may need a second more."""
        self.start_etcd()
        self.start_apiserver()
        if self.config.controllers:
            self._start_controllers()

    def stop(self) -> None:
        """End everything at once: nothing of it is kept. Safe to repeat."""
        records = list(self.directory.glob(f"*{processes.RECORD_SUFFIX}"))
        processes.kill(records)
        for record in records:
            record.unlink()

    def start_etcd(self) -> None:
        client, peer = f"http://{LOOPBACK}:{self.config.etcd_port}", f"http://{LOOPBACK}:{self.config.etcd_peer_port}"
        flags = ["--name=rtj", f"--data-dir={self.directory / 'etcd'}", f"--initial-cluster=rtj={peer}"]
        flags += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        flags += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        flags += ["--unsafe-no-fsync", "--quota-backend-bytes=4294967296", "--log-level=warn"]
        flags += ["--auto-compaction-mode=periodic", "--auto-compaction-retention=5m"]
        self.start_program("etcd", flags)

    def start_apiserver(self) -> None:
        """Start the API server and wait until it is ready. Raises ClusterError with the end of its log if it is not."""
        self.start_program("kube-apiserver", self._apiserver_flags())
        self.wait_for("kube-apiserver", self._is_ready)

    def stop_apiserver(self) -> None:
        """Stop the API server; clients see their watches cut."""
        processes.stop([self._record("kube-apiserver")], APISERVER_STOP_SECONDS)

    def restart_apiserver(self) -> None:
        """Stop the API server and start it again on the same address and data. Returns when it is ready."""
        self.stop_apiserver()
        self.start_apiserver()

    def is_running(self, program: str) -> bool:
        """Say whether one of the programs (etcd, kube-apiserver, ...) runs."""
        return processes.is_running(self._record(program))

    def start_program(self, program: str, flags: Sequence[str]) -> None:
        """Start one of the control plane's programs, or one more beside them; it ends with them. Raises ClusterError if it runs already."""
        if self.is_running(program):
            raise ClusterError(f"{program} is running already")
        processes.start([str(self._programs.path(program)), *flags], self._record(program), self._logs / f"{program}.log")

    def wait_for(self, program: str, is_ready: Callable[[], bool]) -> None:
        """Wait until a program that was just started is ready. Raises ClusterError with the end of its log if it ends, or after 60 s."""

        def is_so() -> bool:
            if not self.is_running(program):
                raise ClusterError(f"{program} ended at its start; {self.log_end(program)}")
            return is_ready()

        wait_until(is_so, f"{program} to be ready", READY_SECONDS, lambda: self.log_end(program))

    def log_end(self, program: str, lines: int = 15) -> str:
        """Return the last lines that a program wrote."""
        log = self._logs / f"{program}.log"
        text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
        return "\n".join([f"the end of {log}:", *text])

    def _start_controllers(self) -> None:
        self.start_program(
            "kube-controller-manager",
            [
                *self._client_flags("controller-manager"),
                "--use-service-account-credentials",
                f"--service-account-private-key-file={self._pki / 'service-accounts.key'}",
                f"--root-ca-file={self._pki / 'ca.crt'}",
                "--allocate-node-cidrs=false",
                "--node-monitor-period=1s",
                f"--node-monitor-grace-period={TIMINGS.node_monitor_grace_seconds}s",
                "--node-startup-grace-period=20s",
                # The defaults evict slowly, and not at all when most of a small cluster is gone: neither helps a test.
                "--node-eviction-rate=10",
                "--secondary-node-eviction-rate=10",
                "--unhealthy-zone-threshold=1",
                "--large-cluster-size-threshold=0",
                "--terminated-pod-gc-threshold=200",
            ],
        )
        self.start_program("kube-scheduler", [*self._client_flags("scheduler"), "--kube-api-qps=1000", "--kube-api-burst=2000"])

    def _client_flags(self, user: str) -> list[str]:
        file = self._pki / f"{user}.kubeconfig"
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        # Port 0: nobody asks them anything, so they need no port that might be taken.
        return [*(f"--{name}={file}" for name in names), "--secure-port=0", "--leader-elect=false", "--profiling=false"]

    def _apiserver_flags(self) -> list[str]:
        pki, config = self._pki, self.config
        flags = [f"--etcd-servers=http://{LOOPBACK}:{config.etcd_port}"]
        flags += [f"--bind-address={config.address}", f"--advertise-address={config.address}", f"--secure-port={config.api_port}"]
        flags += [f"--tls-cert-file={pki / 'apiserver.crt'}", f"--tls-private-key-file={pki / 'apiserver.key'}"]
        flags += [f"--client-ca-file={pki / 'ca.crt'}", f"--kubelet-certificate-authority={pki / 'ca.crt'}"]
        flags += [f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}", f"--kubelet-client-key={pki / 'kubelet-client.key'}"]
        flags += ["--kubelet-preferred-address-types=InternalIP", "--service-account-issuer=https://kubernetes.default.svc"]
        flags += [f"--service-account-key-file={pki / 'service-accounts.pub'}"]
        flags += [f"--service-account-signing-key-file={pki / 'service-accounts.key'}"]
        flags += ["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"]
        flags += [f"--service-cluster-ip-range={SERVICE_NETWORK}", "--profiling=false"]
        flags += [f"--default-not-ready-toleration-seconds={TIMINGS.toleration_seconds}"]
        flags += [f"--default-unreachable-toleration-seconds={TIMINGS.toleration_seconds}"]
        if config.address == LOOPBACK:
            # The Service "kubernetes" may not point at loopback; without nodes nobody uses it.
            flags += ["--endpoint-reconciler-type=none"]
        if config.audit:
            policy = self.directory / "audit-policy.yaml"
            policy.write_text(AUDIT_POLICY)
            flags += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        return [*flags, *config.api_flags]

    def _issue_certificates(self) -> None:
        authority = Authority.create(self._pki)
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        addresses = sorted({LOOPBACK, KUBERNETES_SERVICE_ADDRESS, self.config.address})
        authority.issue("apiserver", "kube-apiserver", names=names, addresses=addresses)
        authority.issue("kubelet-client", "kube-apiserver-kubelet-client", ADMIN_GROUP)
        authority.kubeconfig("admin", self.server, "admin", ADMIN_GROUP)
        authority.kubeconfig("controller-manager", self.server, "system:kube-controller-manager")
        authority.kubeconfig("scheduler", self.server, "system:kube-scheduler")

    def _is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=self._pki / "ca.crt")
        # Never through a proxy that the environment may name: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        try:
            with opener.open(f"{self.server}/readyz", timeout=2) as response:
                return bool(response.read() == b"ok")
        except (urllib.error.URLError, OSError):
            return False

    def _record(self, program: str) -> Path:
        return self.directory / f"{program}{processes.RECORD_SUFFIX}"


def _free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody has now. All are held until the last one is found, so no two are equal."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
