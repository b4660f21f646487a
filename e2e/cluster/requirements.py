"""What the machine itself must bring before nodes can be made on it: Linux, root, namespaces, and a few Debian packages.

Missing packages are installed with apt-get as a person would do it. Nothing else is changed here.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Final

from e2e.cluster.commands import run, succeeds
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress

NODE_PACKAGES: Final = {
    "/usr/bin/containerd": "containerd",
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/bin/catatonit": "catatonit",
    "/usr/sbin/ip": "iproute2",
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/conntrack": "conntrack",
    "/usr/share/doc/busybox-static": "busybox-static",
}
"""File -> the Debian package that brings it: what a node runs."""
IMAGE_PACKAGES: Final = {"/usr/bin/buildah": "buildah", "/usr/sbin/debootstrap": "debootstrap"}
"""The same for building images."""
INSTALL_SECONDS: Final = 900


def refuse_unfit_machine() -> None:
    """Raise ClusterError unless this machine can make nodes: Linux, root, and allowed to make namespaces."""
    if platform.system() != "Linux":
        raise ClusterError(f"nodes are made from Linux namespaces, and this is {platform.system()}; with Docker or podman set CLUSTER=kind")
    if os.geteuid() != 0:
        raise ClusterError("nodes need root (namespaces, containerd, mounts); run as root, or with Docker or podman set CLUSTER=kind")
    if not succeeds("unshare", "--mount", "--uts", "--ipc", "--pid", "--net", "--fork", "true"):
        raise ClusterError("this machine does not allow new namespaces (unshare failed): probably an unprivileged container")


def find_missing(packages: dict[str, str]) -> list[str]:
    """Return the names of those packages whose file is not there."""
    # Debian is moving /usr/sbin's programs about; any place on PATH will do.
    return [name for file, name in packages.items() if not Path(file).exists() and shutil.which(Path(file).name) is None]


def install(packages: dict[str, str]) -> None:
    """Install the missing ones of these packages. Raises ClusterError if that needs root or another kind of system, or if apt-get fails."""
    missing = find_missing(packages)
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise ClusterError(
            f"missing on this machine: {', '.join(missing)} (names of Debian packages); install them, or run as root on Debian 12"
        )
    with Progress(f"installing {' '.join(missing)} with apt-get"):
        quietly = {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "--quiet", environment=quietly, seconds=INSTALL_SECONDS)
        run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing, environment=quietly, seconds=INSTALL_SECONDS)
    if still := find_missing(packages):
        raise ClusterError(f"apt-get succeeded, but still missing: {', '.join(still)}")
