"""A small Debian with Python as base image, made on this machine by debootstrap: for where no image can be pulled.

It uses the machine's own apt sources, makes the tree once, and keeps it in the cache as one tar file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from e2e.cluster.build import single_flight
from e2e.cluster.commands import remove_tree, run
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress
from e2e.cluster.settings import cache_directory

SUITE: Final = "bookworm"
PYTHON_VERSION: Final = (3, 11)
"""What the suite brings. A mounted torch must be built for the same version."""
PACKAGES: Final = ("python3", "python3-venv", "python3-pip", "ca-certificates")
USELESS: Final = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
"""Emptied: a third of the tree, and of no use in a container."""
DEBOOTSTRAP_SECONDS: Final = 1200


def base_key() -> str:
    """Return what the base image depends on, as a short name."""
    return hashlib.sha256(repr((SUITE, PACKAGES, USELESS)).encode()).hexdigest()[:12]


def ensure_base() -> Path:
    """Return the tar file of the base image's tree, making it if the cache lacks it (about a minute). Raises ClusterError."""
    target = cache_directory() / "images" / f"base-{base_key()}.tar"
    with single_flight(target.with_suffix(".lock"), "build of the base image"):
        if not target.exists():
            with Progress(f"making the base image (Debian {SUITE}, Python {'.'.join(map(str, PYTHON_VERSION))})"):
                _make(target)
    return target


def find_mirror(index_targets: str) -> str:
    """Return the mirror of the suite among apt's own sources: lines of "URI CODENAME COMPONENT". Raises ClusterError if none has it."""
    for line in index_targets.splitlines():
        uri, _, rest = line.partition(" ")
        if rest.split()[:1] == [SUITE]:
            return uri
    raise ClusterError(f"no apt source of this machine has Debian {SUITE}, which the base image is made of")


def _make(target: Path) -> None:
    mirror = find_mirror(run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"))
    work = Path(tempfile.mkdtemp(prefix=".base-", dir=target.parent))
    try:
        tree = work / "tree"
        include = f"--include={','.join(PACKAGES)}"
        run("debootstrap", "--variant=minbase", include, SUITE, str(tree), mirror, seconds=DEBOOTSTRAP_SECONDS)
        for directory in USELESS:
            remove_tree(tree / directory)
            (tree / directory).mkdir(parents=True)
        # What debootstrap took over from this machine must not travel with an image.
        for file in ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list"):
            (tree / file).unlink(missing_ok=True)
        archive = work / "base.tar"
        run("tar", "--create", f"--file={archive}", f"--directory={tree}", "--numeric-owner", "--sort=name", ".")
        os.replace(archive, target)
    finally:
        # Never into another file system: debootstrap mounts some while it works.
        remove_tree(work)
