"""Builds the project's two images from its Dockerfile with buildah, as OCI archives in the cache. No Docker, no registry.

An archive is keyed by everything that goes in, so an unchanged tree builds nothing. torch is not in the runtime image: see `venv_mount`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster import requirements
from e2e.cluster.build import single_flight
from e2e.cluster.commands import run, succeeds
from e2e.cluster.progress import Progress
from e2e.cluster.settings import cache_directory
from e2e.images.base import base_key, ensure_base
from e2e.images.pip_settings import PipSettings, read_pip_settings

ROOT: Final = Path(__file__).resolve().parents[2]
INPUTS: Final = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "operator", "trainer_runtime")
TARGETS: Final = ("operator", "runtime")
KEPT_ARCHIVES: Final = 3
"""Per image: a few older trees, for somebody who goes back and forth between them."""
KEPT_LAYERS: Final = 100
BUILD_SECONDS: Final = 1200


@dataclass(frozen=True)
class ImageRef:
    """An image's full name, and the OCI archive that holds it under this name. Use it with `imagePullPolicy: IfNotPresent`."""

    name: str
    archive: Path


@dataclass(frozen=True)
class Images:
    """The project's images."""

    operator: ImageRef
    runtime: ImageRef


def build_all() -> Images:
    """Return both images of this tree, building what the cache lacks. Raises ClusterError with the builder's words if that fails."""
    key = source_key(ROOT)
    references = {target: _reference(target, key) for target in TARGETS}
    directory = cache_directory() / "images"
    with single_flight(directory / "build.lock", "build of the images"):
        missing = [target for target in TARGETS if not references[target].archive.exists()]
        if missing:
            requirements.install(requirements.IMAGE_PACKAGES)
            _build(missing, references, _Buildah.open(directory / "buildah"))
    return Images(**references)


def source_key(root: Path) -> str:
    """Return a short name for all that goes into the images: the files of INPUTS, what the base image is made of, the processor."""
    digest = hashlib.sha256(f"{base_key()} {platform.machine()}".encode())
    for name in INPUTS:
        top = root / name
        files = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"\0{file.relative_to(root)}\0{content}".encode())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class _Buildah:
    """buildah with a storage of its own, so that it neither sees nor disturbs other images of this machine."""

    directory: Path
    driver: str

    @staticmethod
    def open(directory: Path) -> _Buildah:
        """Overlay layers share files; where the kernel refuses them (a root that is an overlay itself), vfs copies every layer whole."""
        overlay = _Buildah(directory / "overlay", "overlay")
        return overlay if succeeds(*overlay._command("info")) else _Buildah(directory / "vfs", "vfs")

    def __call__(self, *arguments: str) -> str:
        # chroot is the isolation that needs nothing from the kernel; the network is the machine's own, as its package settings expect.
        return run(*self._command(*arguments), environment={"BUILDAH_ISOLATION": "chroot"}, seconds=BUILD_SECONDS)

    def has(self, image: str) -> bool:
        return succeeds(*self._command("inspect", "--type=image", image))

    def forget_if_full(self) -> None:
        """Start over when many trees were built: every change of code leaves a few layers that nobody will use again."""
        if len(self("images", "--all", "--quiet").split()) > KEPT_LAYERS:
            self("rmi", "--all", "--force")

    def _command(self, *arguments: str) -> list[str]:
        place = ["--root", str(self.directory), "--runroot", str(self.directory.with_suffix(".run")), "--storage-driver", self.driver]
        return ["buildah", *place, *arguments]


def _reference(target: str, key: str) -> ImageRef:
    return ImageRef(f"localhost/rtj-{target}:{key}", cache_directory() / "images" / f"{target}-{key}.tar")


def _build(targets: list[str], references: dict[str, ImageRef], buildah: _Buildah) -> None:
    base = f"localhost/rtj-base:{base_key()}"
    tree = ensure_base()
    buildah.forget_if_full()
    if not buildah.has(base):
        with Progress("importing the base image"):
            container = buildah("from", "scratch").strip()
            buildah("add", container, str(tree), "/")
            buildah("config", "--cmd", "/bin/sh", container)
            buildah("commit", "--rm", container, base)
    for target in targets:
        with Progress(f"building the image {references[target].name}"), _secrets(read_pip_settings()) as secrets:
            _build_one(target, references[target], base, secrets, buildah)


def _build_one(target: str, reference: ImageRef, base: str, secrets: list[str], buildah: _Buildah) -> None:
    flags = ["--layers", "--network=host", f"--target={target}", f"--build-arg=BASE={base}", f"--tag={reference.name}", *secrets]
    buildah("build", *flags, str(ROOT))
    temporary = reference.archive.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    buildah("push", "--disable-compression", reference.name, f"oci-archive:{temporary}:{reference.name}")
    temporary.rename(reference.archive)
    archives = sorted(reference.archive.parent.glob(f"{target}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[KEPT_ARCHIVES:]:
        old.unlink()


@contextlib.contextmanager
def _secrets(settings: PipSettings) -> Iterator[list[str]]:
    """Yield buildah's flags that lend pip's settings to the build: they are mounted while pip runs, and never part of an image."""
    with tempfile.TemporaryDirectory(prefix="rtj-build-") as directory:
        file = Path(directory) / "pip.conf"
        file.write_text(settings.text)
        os.chmod(file, 0o644)
        flags = [f"--secret=id=pip_conf,src={file}"]
        if settings.certificates:
            flags.append(f"--secret=id=ca,src={settings.certificates}")
        yield flags
