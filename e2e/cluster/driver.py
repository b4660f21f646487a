"""What a scenario may ask of any test cluster. `bare` and `kind` implement it, `choice` picks one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class ClusterDriver(Protocol):
    """A cluster with faults on command. A node is given by the name of its Node object. Every method raises ClusterError."""

    def up(self, nodes: int) -> None:
        """Make a new cluster with `nodes` Ready nodes; whatever an earlier one left is removed first."""

    def down(self) -> None:
        """Remove the cluster and everything it changed. Safe to repeat."""

    def node_names(self) -> list[str]:
        """Return the names of the nodes that run pods, in order; the bare cluster's are node1, node2, ..."""

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Run kubectl as the administrator and return what it prints."""

    def helm(self, *arguments: str, seconds: float = 120) -> str:
        """Run helm as the administrator and return what it prints."""

    def load_image(self, archive: Path, unpack: bool = True) -> None:
        """Put an OCI archive's images on every node that is on.

        Unpacking takes seconds per node. Without it a node unpacks when its first pod of the image starts: good for what runs on one node.
        """

    def crash(self, node: str) -> None:
        """Cut the node's power: silence at once, nothing said to anybody. Its disk stays."""

    def reboot(self, node: str) -> None:
        """Start the node again on its disk, after cutting its power if it is on. Returns when it is Ready."""

    def partition(self, node: str) -> None:
        """Pull the node's network cable; everything on it runs on."""

    def heal(self, node: str) -> None:
        """Put the node's network cable back; one that is in stays in."""

    def stop_kubelet(self, node: str) -> None:
        """Freeze the node's kubelet (SIGSTOP): containers run on, the node stops reporting."""

    def continue_kubelet(self, node: str) -> None:
        """Let a frozen kubelet go on (SIGCONT)."""

    def kill_kubelet(self, node: str) -> None:
        """Kill the node's kubelet; it comes back a second later."""

    def stop_apiserver(self) -> None:
        """Stop the API server."""

    def start_apiserver(self) -> None:
        """Start the API server again; returns when it is ready."""

    def restart_apiserver(self) -> None:
        """Stop and start the API server."""

    def exec(self, node: str, argv: Sequence[str], seconds: float = 60) -> str:
        """Run a program on the node, as its root, and return what it prints."""
