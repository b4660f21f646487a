"""The documents that make a directory a checkpoint: manifest, rank index, verified mark and fence.

Their bytes are canonical JSON (codec.dumps), so that a digest of the bytes is a digest of the meaning. It does not write or read files:
`trainer_runtime.checkpoint` does.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.codec import CONTRACT_VERSION, ContractError, ForeignVersion, dumps, loads

CHUNK_BYTES: Final = 16 * 1024 * 1024
"""Bytes per verification chunk: the unit of read-back and of ranged, verified reads."""


@dataclass(frozen=True)
class FileEntry:
    """One data file: its identity (BLAKE3 of all bytes) and XXH3-128 of each chunk of ``chunk_size`` bytes, as hex."""

    path: str
    size: int
    blake3: str
    chunk_size: int
    xxh3_128: tuple[str, ...]

    def length_of(self, number: int) -> int:
        """Return the number of bytes of a verification chunk: fewer than ``chunk_size`` for the last one."""
        return min(self.chunk_size, self.size - number * self.chunk_size)


@dataclass(frozen=True)
class Chunk:
    """One rectangular piece of a tensor: where it lies in the global tensor and where its bytes are."""

    offset: tuple[int, ...]
    size: tuple[int, ...]
    file: str
    byte_offset: int
    nbytes: int
    fingerprint: int = 0
    """What the piece adds to the tensor's layout-invariant fingerprint, modulo 2^32 (trainer_runtime.checkpoint.fingerprint)."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor by its canonical name. ``dtype`` is safetensors' word (F32, BF16, I64, …)."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    requires_grad: bool = False
    alias_of: str | None = None


@dataclass(frozen=True)
class ObjectEntry:
    """One value that is not a tensor, as typed JSON (see trainer_runtime.state.tree)."""

    name: str
    value: Any


@dataclass(frozen=True)
class RankIndex:
    """What one rank wrote. Its canonical bytes are ``ranks/<rank>.json``."""

    rank: int
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]
    objects: tuple[ObjectEntry, ...]
    version: str = CONTRACT_VERSION


@dataclass(frozen=True)
class IndexEntry:
    """A rank index as the manifest names it."""

    rank: int
    sha256: str
    size: int


@dataclass(frozen=True)
class Parent:
    """The checkpoint this one grew from, and how."""

    step: int
    attempt: int
    manifest_sha256: str
    relation: str
    """``resume`` (same run, strict) or ``warm_start``."""


@dataclass(frozen=True)
class JobIdentity:
    """Which job wrote it; empty strings outside a cluster."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


@dataclass(frozen=True)
class SnapshotFile:
    """One file that the run was started with, kept beside its checkpoints. Equal bytes are stored once, under their digest."""

    name: str
    """Its name below what the script gave, with ``/`` between the parts."""
    path: str
    """Where it is kept, relative to the *run*: ``snapshots/<sha256>``."""
    sha256: str
    size: int


@dataclass(frozen=True)
class FollowedStep:
    """What came right after an earlier save of the same attempt, so that a replay from it has something to be compared with."""

    step: int
    """The step that was saved."""
    attempt: int
    loss: str
    """The loss that rank 0 reported for the step after it, as float.hex()."""


@dataclass(frozen=True)
class Manifest:
    """The immutable document that commits a checkpoint."""

    run: str
    attempt: int
    step: int
    epoch: int
    job: JobIdentity
    world_size: int
    indexes: tuple[IndexEntry, ...]
    total_bytes: int
    parents: tuple[Parent, ...] = ()
    consumed_samples: int = 0
    strict: dict[str, Any] = field(default_factory=dict)
    """What a strict resume compares before it loads anything (trainer_runtime.state.strict)."""
    software: dict[str, str] = field(default_factory=dict)
    not_saved: tuple[str, ...] = ()
    """What the state held and the checkpoint does not, by name, for people."""
    tags: tuple[str, ...] = ()
    allowances: tuple[str, ...] = ()
    """The ``allow`` words this attempt's resume made use of."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What ``Run.report`` was told for this checkpoint, on rank 0; for people, and for retention's best."""
    snapshots: dict[str, tuple[SnapshotFile, ...]] = field(default_factory=dict)
    """``tokenizer`` and ``config``, where the script gave them: with them a checkpoint is more than weights."""
    followed: FollowedStep | None = None
    fingerprint: str = ""
    """Digest of the fingerprints of all tensors that the ranks hold together: the same for the same state, whatever the layout."""
    created_at: float = 0.0
    """Unix seconds; for people, nothing is ordered by it."""
    version: str = CONTRACT_VERSION

    self_sha256: str = ""
    """SHA-256 of the canonical document with this field empty: a manifest that nothing else names yet can be told from a damaged one."""

    def to_bytes(self) -> bytes:
        """Return the file's bytes, with ``self_sha256`` filled in."""
        unsealed = dumps(replace(self, self_sha256=""))
        return dumps(replace(self, self_sha256=digest(unsealed.encode()))).encode()


@dataclass(frozen=True)
class VerifiedMark:
    """``verified.json``: every byte the manifest names was read back and matched."""

    manifest_sha256: str
    level: str
    verified_at: float
    by: str
    """Pod name, or host and process outside a cluster."""
    version: str = CONTRACT_VERSION


@dataclass(frozen=True)
class Fence:
    """``fences/<attempt>``: created exclusively when an attempt starts; the highest one owns the run. Lineage is read from fences only."""

    attempt: int
    job_uid: str
    pod_uid: str
    nonce: str
    """Random; an "exists" with our own nonce is our own retried success."""
    resume: ResumePoint | None
    resume_run: str | None = None
    """The run the resume point lies in, when it is another one."""
    version: str = CONTRACT_VERSION


def digest(data: bytes) -> str:
    """SHA-256 as lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def parse_manifest(data: bytes, expected_sha256: str | None = None) -> Manifest:
    """Read a manifest, prove that it is whole, and, when a digest is given, that it is that one. Raises ContractError; ForeignVersion
    when it is whole and of another major version."""
    if expected_sha256 is not None and digest(data) != expected_sha256:
        raise ContractError(f"manifest: sha256 is {digest(data)}, expected {expected_sha256}")
    try:
        manifest = loads(Manifest, data)
    except ForeignVersion:
        _check_seal(data)  # a damaged version number must not pass for a foreign one
        raise
    _check_seal(data)
    return manifest


def _check_seal(data: bytes) -> None:
    """Compare with the document itself, not with the dataclass: a newer writer's additional fields are part of what was signed."""
    document = json.loads(data)
    unsealed = json.dumps({**document, "self_sha256": ""}, sort_keys=True, separators=(",", ":"))
    if digest(unsealed.encode()) != document.get("self_sha256"):
        raise ContractError(f"manifest: self_sha256 is {document.get('self_sha256')}, the document's is {digest(unsealed.encode())}")
