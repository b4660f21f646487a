"""One node as a machine that can be switched on, cut off, and looked into from the host. What runs inside is `node_init`'s business."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster import kernel, network, node_config, processes
from e2e.cluster.build import Programs
from e2e.cluster.commands import remove_tree, run
from e2e.cluster.errors import ClusterError
from e2e.cluster.node_init import PID_DIRECTORY
from e2e.cluster.pki import NODE_GROUP, Authority
from e2e.cluster.settings import Node
from e2e.cluster.waiting import wait_until

INIT_SECONDS: Final = 20
IMPORT_SECONDS: Final = 300
SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Machine:
    """A node's machine. `directory` holds its disk, configuration, logs and the record of its init."""

    node: Node
    directory: Path

    def prepare(self, authority: Authority, server: str) -> None:
        """Write the node's configuration and certificates; its disk is empty until the first start."""
        node, config = self.node, self.directory / "config"
        user = f"system:node:{node.name}"
        authority.kubeconfig(node.name, server, user, NODE_GROUP)
        authority.issue(node.name, user, NODE_GROUP, names=[node.name], addresses=[node.address])
        contents = {**node_config.files(node, authority.directory), "address": node.address, "pki": str(authority.directory)}
        for name, content in contents.items():
            file = config / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        (self.directory / "logs").mkdir(exist_ok=True)

    def power_on(self, programs: Programs) -> None:
        """Boot the node on its disk with its cable in. Returns when its init runs; the node is Ready about a second later.

        Raises ClusterError if it runs already, or if its init does not come up.
        """
        if self.is_on():
            raise ClusterError(f"{self.node.name} is on already")
        kernel.remove_control_groups(self.node)
        kernel.make_control_groups(self.node)
        network.plug_in(self.node)
        self._init.unlink(missing_ok=True)
        enter = ["nsenter", f"--net=/run/netns/{self.node.network_namespace}", "--"]
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--"]
        begin = [sys.executable, "-m", "e2e.cluster.node_init", "begin", str(self.directory), self.node.name]
        kubernetes = [str(programs.path("kubelet")), str(programs.path("kube-proxy"))]
        log = self.directory / "logs" / "init.log"
        processes.start([*enter, *unshare, *begin, *kubernetes], self._outside, log, {"PYTHONPATH": str(SOURCE_ROOT)})
        wait_until(lambda: processes.is_running(self._init), f"init of {self.node.name}", INIT_SECONDS, lambda: log.read_text()[-2000:])

    def cut_power(self) -> None:
        """Stop everything on the node within a moment, and without a word to its peers. Safe to repeat."""
        # First the cable: the sockets of a killed process say goodbye, those of a machine without power do not.
        network.unplug(self.node)
        self.kill()

    def kill(self) -> None:
        """Kill every process of the node: the kernel does so when a namespace's first process dies."""
        records = [self._init, self._outside]
        processes.kill(records)
        for record in records:
            record.unlink(missing_ok=True)

    def is_on(self) -> bool:
        """Say whether the node's init runs."""
        return processes.is_running(self._init)

    def run(self, *argv: str, seconds: float = 60) -> str:
        """Run a program inside the node and return what it prints. Raises ClusterError if it fails or the node is off."""
        return run(*self._inside(), *argv, seconds=seconds)

    def become(self, *argv: str) -> None:
        """Replace this process by a program inside the node, with the caller's terminal. Does not return."""
        inside = self._inside()
        os.execvp(inside[0], [*inside, *argv])

    def signal_program(self, name: str, number: signal.Signals) -> None:
        """Signal containerd, kubelet or kube-proxy."""
        self.run("sh", "-c", f"kill -{number.value} $(cat {PID_DIRECTORY}/{name}.pid)")

    def import_image(self, archive: Path, unpack: bool) -> None:
        """Put an OCI archive's images into the node's containerd."""
        flags = [] if unpack else ["--no-unpack"]
        self.run("ctr", "--namespace=k8s.io", "images", "import", *flags, str(archive), seconds=IMPORT_SECONDS)

    def remove(self) -> None:
        """Switch the node off for good: its processes, control groups and disk. Its wires are the network's to remove. Keeps the logs."""
        self.kill()
        kernel.remove_control_groups(self.node)
        for part in ("disk", "config"):
            remove_tree(self.directory / part)

    def log_end(self) -> str:
        """Return the last lines of the node's kubelet, for an error message."""
        log = self.directory / "logs" / "kubelet.log"
        return "\n".join([f"the end of {log}:", *(log.read_text(errors="replace").splitlines()[-10:] if log.exists() else [])])

    def _inside(self) -> list[str]:
        process = processes.read_record(self._init)
        if process is None or not processes.is_alive(process):
            raise ClusterError(f"{self.node.name} is off; switch it on: python -m e2e.cluster reboot {self.node.index}")
        return ["nsenter", f"--target={process.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]

    @property
    def _init(self) -> Path:
        return self.directory / "init.proc"

    @property
    def _outside(self) -> Path:
        """The record of the process that made the namespaces and waits, on the host, for the init's end."""
        return self.directory / "namespaces.proc"
