"""Writes a one-layer OCI archive without any image tool: enough for an image that is a single static program."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
EXECUTABLE: Final = 0o755


def write_archive(archive: Path, name: str, programs: Mapping[str, bytes], entrypoint: Sequence[str], architecture: str) -> None:
    """Write an image that holds `programs` (path without the leading slash -> content, all executable) and nothing else.

    `name` is the full reference, such as ``localhost/pause:1``. The same input gives the same bytes.
    """
    layer = _tar(programs)
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": _descriptor(CONFIG, config), "layers": [_descriptor(LAYER, layer)]}
    )
    # containerd reads the first annotation, podman and buildah the second.
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    platform = {"os": "linux", "architecture": architecture}
    top = {**_descriptor(MANIFEST, manifest), "annotations": names, "platform": platform}
    blobs = {f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob for blob in (layer, config, manifest)}
    index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]})
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(_tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index, **blobs}))


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = EXECUTABLE
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
