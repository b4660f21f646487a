"""The test cluster on kind, for machines with Docker or podman. Same scenarios, other driver.

It was not run where it was written: no Docker there. It keeps to what kind and its node containers document, and to nothing clever. What
kind cannot do as well: `crash` kills the node's container with its link up, so peers see closed connections, not silence.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.cluster.commands import run, succeeds
from e2e.cluster.errors import ClusterError
from e2e.cluster.settings import TIMINGS, state_directory

NAME: Final = "rtj"
NETWORK: Final = "kind"
ENGINES: Final = ("docker", "podman")
READY: Final = "300s"
CREATE_SECONDS: Final = 600

_WORKER: Final = f"""- role: worker
  kubeadmConfigPatches:
  - |
    kind: KubeletConfiguration
    nodeLeaseDurationSeconds: {TIMINGS.lease_seconds}
    nodeStatusUpdateFrequency: {TIMINGS.node_status_seconds}s
"""
_CONTROL_PLANE: Final = f"""kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
  kubeadmConfigPatches:
  - |
    kind: ClusterConfiguration
    apiServer:
      extraArgs:
      - {{name: default-not-ready-toleration-seconds, value: "{TIMINGS.toleration_seconds}"}}
      - {{name: default-unreachable-toleration-seconds, value: "{TIMINGS.toleration_seconds}"}}
    controllerManager:
      extraArgs:
      - {{name: node-monitor-period, value: 1s}}
      - {{name: node-monitor-grace-period, value: {TIMINGS.node_monitor_grace_seconds}s}}
      - {{name: node-eviction-rate, value: "10"}}
"""


def find_engine() -> str | None:
    """Return docker or podman, whichever answers first, or None."""
    return next((engine for engine in ENGINES if shutil.which(engine) and succeeds(engine, "info", seconds=20)), None)


def cluster_config(nodes: int) -> str:
    """Return kind's configuration: one control plane, `nodes` workers, and the short times that scenarios rely on."""
    return _CONTROL_PLANE + _WORKER * nodes


class KindCluster:
    """A `ClusterDriver`. Needs the programs kind, kubectl and helm on PATH."""

    def up(self, nodes: int) -> None:
        self.down()
        self.kubeconfig().parent.mkdir(parents=True, exist_ok=True)
        create = ["kind", "create", "cluster", f"--name={NAME}", "--config=-", f"--kubeconfig={self.kubeconfig()}", f"--wait={READY}"]
        run(*create, stdin=cluster_config(nodes), seconds=CREATE_SECONDS)
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={READY}", seconds=CREATE_SECONDS)

    def down(self) -> None:
        run("kind", "delete", "cluster", f"--name={NAME}")
        self.kubeconfig().unlink(missing_ok=True)

    def node_names(self) -> list[str]:
        return self.kubectl(
            "get", "nodes", "--selector=!node-role.kubernetes.io/control-plane", "--output=jsonpath={.items[*].metadata.name}"
        ).split()

    def kubeconfig(self) -> Path:
        return state_directory() / "kind.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        return run("kubectl", f"--kubeconfig={self.kubeconfig()}", *arguments, stdin=stdin, seconds=seconds)

    def helm(self, *arguments: str, seconds: float = 120) -> str:
        return run("helm", *arguments, seconds=seconds, environment={"KUBECONFIG": str(self.kubeconfig())})

    def load_image(self, archive: Path, unpack: bool = True) -> None:
        # kind always unpacks.
        run("kind", "load", "image-archive", str(archive), f"--name={NAME}", seconds=CREATE_SECONDS)

    def crash(self, node: str) -> None:
        self._engine("kill", "--signal=KILL", node)

    def reboot(self, node: str) -> None:
        self._engine("restart", "--time=0", node)
        self.kubectl("wait", "--for=condition=Ready", f"node/{node}", f"--timeout={READY}", seconds=CREATE_SECONDS)

    def partition(self, node: str) -> None:
        self._engine("network", "disconnect", NETWORK, node)

    def heal(self, node: str) -> None:
        # The engines refuse to connect what is connected.
        if NETWORK not in json.loads(self._engine("inspect", "--format={{json .NetworkSettings.Networks}}", node)):
            self._engine("network", "connect", NETWORK, node)

    def stop_kubelet(self, node: str) -> None:
        self.exec(node, ["systemctl", "kill", "--signal=STOP", "kubelet"])

    def continue_kubelet(self, node: str) -> None:
        self.exec(node, ["systemctl", "kill", "--signal=CONT", "kubelet"])

    def kill_kubelet(self, node: str) -> None:
        self.exec(node, ["systemctl", "kill", "--signal=KILL", "kubelet"])

    def stop_apiserver(self) -> None:
        # The kubelet of the control plane runs what lies in this directory.
        self._on_control_plane("mv", "/etc/kubernetes/manifests/kube-apiserver.yaml", "/etc/kubernetes/")

    def start_apiserver(self) -> None:
        self._on_control_plane("mv", "/etc/kubernetes/kube-apiserver.yaml", "/etc/kubernetes/manifests/")
        ready = ["timeout", "120", "sh", "-c", "until kubectl --kubeconfig=/etc/kubernetes/admin.conf get --raw=/readyz; do sleep 1; done"]
        self._on_control_plane(*ready, seconds=150)

    def restart_apiserver(self) -> None:
        self.stop_apiserver()
        gone = ["timeout", "60", "sh", "-c", "while pgrep kube-apiserver; do sleep 1; done"]
        self._on_control_plane(*gone, seconds=90)
        self.start_apiserver()

    def exec(self, node: str, argv: Sequence[str], seconds: float = 60) -> str:
        return self._engine("exec", node, *argv, seconds=seconds)

    def _on_control_plane(self, *argv: str, seconds: float = 60) -> str:
        return self._engine("exec", f"{NAME}-control-plane", *argv, seconds=seconds)

    def _engine(self, *arguments: str, seconds: float = 60) -> str:
        engine = find_engine()
        if engine is None:
            raise ClusterError(f"neither {' nor '.join(ENGINES)} answers, and kind needs one of them")
        return run(engine, *arguments, seconds=seconds)
