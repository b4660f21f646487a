"""Lends this machine's torch to a pod: a read-only mount of the virtual environment instead of gigabytes of image layers on every node.

Pure functions over Kubernetes objects in their JSON form. Only for the bare cluster, whose nodes see this machine's files.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster.errors import ClusterError
from e2e.images.base import PYTHON_VERSION

VOLUME: Final = "host-packages"
MOUNT_PATH: Final = "/opt/host-packages"
IMAGE_PACKAGES: Final = f"/usr/local/lib/python{PYTHON_VERSION[0]}.{PYTHON_VERSION[1]}/dist-packages"
"""Where Debian's pip installs; it comes first, so the image's own packages win over the machine's."""


@dataclass(frozen=True)
class Mount:
    """What a pod needs on top of what it has."""

    volumes: list[dict[str, Any]]
    volume_mounts: list[dict[str, Any]]
    env: list[dict[str, Any]]


def mount_packages(site_packages: Path) -> Mount:
    """Return what makes the packages in `site_packages` of this machine importable in a pod of the runtime image."""
    volume = {"name": VOLUME, "hostPath": {"path": str(site_packages), "type": "Directory"}}
    mount = {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
    # Nothing may be written there, and a missing bytecode file must not cost a try at each import.
    env = [{"name": "PYTHONPATH", "value": f"{IMAGE_PACKAGES}:{MOUNT_PATH}"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]
    return Mount([volume], [mount], env)


def with_packages(pod_template: dict[str, Any], site_packages: Path) -> dict[str, Any]:
    """Return a copy of a pod template whose containers can all import the packages; what it had stays."""
    mount = mount_packages(site_packages)
    spec = dict(pod_template["spec"])
    spec["volumes"] = [*spec.get("volumes", []), *mount.volumes]
    spec["containers"] = [_extended(container, mount) for container in spec["containers"]]
    return {**pod_template, "spec": spec}


def host_site_packages() -> Path:
    """Return where the running interpreter's packages lie. Raises ClusterError if its version is not the image's."""
    if sys.version_info[:2] != PYTHON_VERSION:
        wanted, here = ".".join(map(str, PYTHON_VERSION)), ".".join(map(str, sys.version_info[:2]))
        raise ClusterError(
            f"the test image has Python {wanted} and this is Python {here}: make the virtual environment with python{wanted}"
        )
    return Path(sysconfig.get_path("purelib"))


def _extended(container: dict[str, Any], mount: Mount) -> dict[str, Any]:
    return {
        **container,
        "volumeMounts": [*container.get("volumeMounts", []), *mount.volume_mounts],
        "env": [*container.get("env", []), *mount.env],
    }
