"""The first program of a node. Runs inside the node's namespaces, never on the host.

`begin` is PID 1 of the node: it mounts the node's own view of the file system and turns into catatonit, which buries orphans (shims of dead
containers) and runs `keep`: containerd, kubelet and kube-proxy, each started again one second after it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.cluster.commands import run, succeeds
from e2e.cluster.errors import ClusterError
from e2e.cluster.settings import PAUSE_ARCHIVE, PAUSE_IMAGE
from e2e.cluster.waiting import wait_until

RESTART_SECONDS: Final = 1.0
CONTAINERD_SECONDS: Final = 60
PID_DIRECTORY: Final = Path("/run/rtj")
"""NAME.pid for each program, with the number that it has inside the node."""
DISK: Final = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "pods": "/var/log/pods",
    "containers": "/var/log/containers",
}
"""Directory on the node's disk -> where its programs look for it. The disk survives a power cut; /run does not."""


def begin(directory: Path, name: str, kubelet: str, kube_proxy: str) -> None:
    """Make this process the node's init. Does not return."""
    # /proc is still the host's: this is our pid as the host counts, the one that a power cut kills.
    stat = Path("/proc/self/stat").read_text()
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("hostname", name)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    PID_DIRECTORY.mkdir()
    for part, place in DISK.items():
        _bind(directory / "disk" / part, Path(place))
    _bind(directory / "config" / "cni", Path("/etc/cni/net.d"))
    _take_identity(directory / "disk" / "machine-id")
    # The kubelet hands volumes to containers through mounts that must spread.
    run("mount", "--make-rshared", "/")
    (directory / "init.proc.new").write_text(stat)
    (directory / "init.proc.new").rename(directory / "init.proc")
    os.chdir("/")
    keeper = [sys.executable, "-m", "e2e.cluster.node_init", "keep", str(directory), name, kubelet, kube_proxy]
    os.execvp("catatonit", ["catatonit", "--", *keeper])


def keep(directory: Path, name: str, kubelet: str, kube_proxy: str) -> None:
    """Start the node's programs in order and keep them running. Ends only with the node."""
    config, logs = directory / "config", directory / "logs"
    address = (config / "address").read_text()
    pki = (config / "pki").read_text()
    # A dead peer is noticed after 8 s instead of 45 s; else a kubelet would sit on a dead connection after a partition.
    http2 = {"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "5", "HTTP2_PING_TIMEOUT_SECONDS": "3"}
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", **http2}
    _keep_running("containerd", ["containerd", "--config", str(config / "containerd.toml")], logs, environment)
    wait_until(lambda: succeeds("ctr", "version"), "containerd to answer", CONTAINERD_SECONDS)
    if PAUSE_IMAGE not in run("ctr", "--namespace=k8s.io", "images", "list", "--quiet").split():
        run("ctr", "--namespace=k8s.io", "images", "import", str(directory.parent.parent / PAUSE_ARCHIVE))
    kubelet_flags = [f"--config={config / 'kubelet.json'}", f"--kubeconfig={pki}/{name}.kubeconfig"]
    kubelet_flags += [f"--hostname-override={name}", f"--node-ip={address}", "--v=2"]
    proxy = _keep_running("kube-proxy", [kube_proxy, f"--config={config / 'kube-proxy.json'}"], logs, environment)
    _keep_running("kubelet", [kubelet, *kubelet_flags], logs, environment)
    proxy.join()


def _take_identity(machine_id: Path) -> None:
    """A node needs its own machine id, kept on its disk, and a new boot id: else a reboot could not be told from a pause."""
    if not machine_id.exists():
        machine_id.write_text(f"{uuid.uuid4().hex}\n")
    boot_id = PID_DIRECTORY / "boot-id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    run("mount", "--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
    if Path("/etc/machine-id").exists():
        run("mount", "--bind", str(machine_id), "/etc/machine-id")


def _bind(source: Path, place: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    run("mount", "--bind", str(source), str(place))


def _keep_running(name: str, argv: Sequence[str], logs: Path, environment: Mapping[str, str]) -> threading.Thread:
    """Run a program over and over in a thread of its own, as an init system would, and write each life's pid to /run/rtj/NAME.pid."""

    def live() -> None:
        with (logs / f"{name}.log").open("ab") as log:
            while True:
                program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
                (PID_DIRECTORY / f"{name}.pid").write_text(str(program.pid))
                code = program.wait()
                log.write(f"--- {name} ended with {code}\n".encode())
                log.flush()
                time.sleep(RESTART_SECONDS)

    thread = threading.Thread(target=live, name=name, daemon=True)
    thread.start()
    return thread


def main() -> None:
    """Dispatch to `begin` or `keep`; the arguments come from `machine` and are not meant for people."""
    stage, directory, name, kubelet, kube_proxy = sys.argv[1:]
    try:
        {"begin": begin, "keep": keep}[stage](Path(directory), name, kubelet, kube_proxy)
    except ClusterError as error:
        sys.exit(f"{name}: {error}")


if __name__ == "__main__":
    main()
