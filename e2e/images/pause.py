"""The image that holds each pod's network namespace open: a static busybox that sleeps.

containerd wants such an image, and nodes can reach no registry.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Final

from e2e.cluster.errors import ClusterError
from e2e.cluster.settings import PAUSE_IMAGE
from e2e.images.oci import write_archive

GO_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
FOREVER_SECONDS: Final = "2147483647"


def write_pause_image(archive: Path) -> None:
    """Write the pause image's OCI archive. Raises ClusterError if busybox is missing or the machine is neither x86-64 nor arm64."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise ClusterError("busybox is missing; install the Debian package busybox-static")
    machine = platform.machine()
    if machine not in GO_ARCHITECTURES:
        raise ClusterError(f"images are made for {' and '.join(GO_ARCHITECTURES)} only, and this machine is {machine}")
    sleep = ["/bin/busybox", "sleep", FOREVER_SECONDS]
    write_archive(archive, PAUSE_IMAGE, {"bin/busybox": Path(busybox).read_bytes()}, sleep, GO_ARCHITECTURES[machine])
