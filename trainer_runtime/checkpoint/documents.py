"""Reading a committed checkpoint's documents: the manifest proven by its digest, every rank index proven by the manifest.

Whatever is read here is read to be used, so anything that is not what it should be is a damaged checkpoint, never a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from trainer_runtime.checkpoint.agreement import find_disagreement
from trainer_runtime.checkpoint.image import Placed
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.tiling import find_tiling_fault
from trainer_runtime.contract.codec import ContractError, ForeignVersion, loads
from trainer_runtime.contract.layout import MANIFEST, VERIFIED, StepName, rank_index_path
from trainer_runtime.contract.manifest import FileEntry, IndexEntry, Manifest, RankIndex, TensorEntry, VerifiedMark, digest, parse_manifest
from trainer_runtime.errors import Refused
from trainer_runtime.store.base import NotInStore, Store


@dataclass(frozen=True)
class Documents:
    """All that is known of a checkpoint before its data is read."""

    reference: Reference
    manifest: Manifest
    indexes: tuple[RankIndex, ...]
    tensors: Mapping[str, TensorEntry]
    """Every tensor with the chunks of all ranks."""


def find_reference(store: Store, run: str, name: StepName) -> Reference | None:
    """Return the reference of what stands under a step's name now, or None when it has no manifest. It proves nothing by itself."""
    unknown = Reference(store.uri, run, name, "")
    try:
        return replace(unknown, manifest_sha256=digest(store.read(f"{unknown.directory}/{MANIFEST}")))
    except NotInStore:
        return None


def is_still_there(store: Store, reference: Reference) -> bool:
    """Say whether the checkpoint is in the store now. What is deleted while it is read looks damaged, and is not."""
    return find_reference(store, reference.run, reference.name) == reference


def is_verified(store: Store, reference: Reference) -> bool:
    """Say whether a verified mark for exactly this manifest stands beside it. A mark that cannot be read marks nothing."""
    try:
        mark = loads(VerifiedMark, store.read(f"{reference.directory}/{VERIFIED}"))
    except (NotInStore, ContractError):
        return False
    return mark.manifest_sha256 == reference.manifest_sha256


def read_manifest(store: Store, reference: Reference) -> Manifest:
    """Return the manifest. Raises CheckpointDamaged when it is missing, is not the one the reference names, or names another checkpoint;
    Refused when it is whole and of a format that this version of rtj cannot read: that is never a reason to take an older one."""
    try:
        manifest = parse_manifest(store.read(f"{reference.directory}/{MANIFEST}"), reference.manifest_sha256)
    except ForeignVersion as error:
        raise Refused(f"{reference.uri}: written by another version of rtj: {error}; use an image with the one that wrote it") from error
    except (NotInStore, ContractError) as error:
        raise reference.damaged(MANIFEST, str(error)) from error
    if (manifest.step, manifest.attempt) != (reference.name.step, reference.name.attempt):
        raise reference.damaged(MANIFEST, f"is of step {manifest.step} of attempt {manifest.attempt}")
    return manifest


def read_documents(store: Store, reference: Reference) -> Documents:
    """Return manifest and indexes, with every tensor's tiling proven. Raises CheckpointDamaged, and Refused as `read_manifest` does."""
    manifest = read_manifest(store, reference)
    indexes = [_read_entry(store, reference, entry) for entry in manifest.indexes]
    fault = find_index_fault(indexes, manifest.world_size)
    if fault is not None:
        raise reference.damaged(MANIFEST, fault)
    return Documents(reference, manifest, tuple(indexes), merge_tensors(indexes))


def read_index(store: Store, reference: Reference, rank: int) -> RankIndex:
    """Return one rank's index, proven by the manifest. Raises CheckpointDamaged, and Refused as `read_manifest` does."""
    for entry in read_manifest(store, reference).indexes:
        if entry.rank == rank:
            return _read_entry(store, reference, entry)
    raise reference.damaged(MANIFEST, f"names no index of rank {rank}")


def _read_entry(store: Store, reference: Reference, entry: IndexEntry) -> RankIndex:
    path = rank_index_path(entry.rank)
    try:
        data = store.read(f"{reference.directory}/{path}")
        if (len(data), digest(data)) != (entry.size, entry.sha256):
            raise reference.damaged(path, "is not the index that the manifest names (size or SHA-256 differs)")
        return loads(RankIndex, data)
    except (NotInStore, ContractError) as error:
        raise reference.damaged(path, str(error)) from error


def merge_tensors(indexes: Iterable[RankIndex]) -> dict[str, TensorEntry]:
    """Return every tensor once, with the chunks of all ranks in one entry. Entries are taken as they come; see `find_index_fault`."""
    merged: dict[str, TensorEntry] = {}
    for index in indexes:
        for entry in index.tensors:
            known = merged.get(entry.name)
            merged[entry.name] = entry if known is None else replace(known, chunks=known.chunks + entry.chunks)
    return merged


def find_index_fault(indexes: Iterable[RankIndex], world_size: int) -> str | None:
    """Return why rank indexes do not make up one checkpoint, or None: a rank missing or twice, a tensor described in two ways, bytes
    missing or written twice, a chunk in a file that no index lists, an alias of nothing, replicas that held different bytes."""
    listed = list(indexes)
    if [index.rank for index in listed] != list(range(world_size)):
        return f"there are indexes of ranks {[index.rank for index in listed]}, the world has {world_size} ranks"
    described: dict[str, tuple[TensorEntry, int]] = {}
    for index in listed:
        files = {file.path: file.size for file in index.files}
        for entry in index.tensors:
            known, rank = described.setdefault(entry.name, (replace(entry, chunks=()), index.rank))
            if known != replace(entry, chunks=()):
                return f"{entry.name}: ranks {rank} and {index.rank} describe it differently"
            for chunk in entry.chunks:
                if chunk.file not in files:
                    return f"{entry.name}: rank {index.rank} points to {chunk.file}, which it does not list"
                if chunk.byte_offset < 0 or chunk.byte_offset + chunk.nbytes > files[chunk.file]:
                    return f"{entry.name}: its bytes in {chunk.file} lie outside of the file"
    for entry in merge_tensors(listed).values():
        if entry.alias_of is not None and entry.alias_of not in described:
            return f"{entry.name}: is an alias of {entry.alias_of}, which is not in the checkpoint"
        fault = find_tiling_fault(entry)
        if fault is not None:
            return fault
    return find_disagreement(listed)


def pieces_in(file: FileEntry, index: RankIndex, header_size: int) -> dict[str, Placed]:
    """Return what a file's header must list, by the rank's index."""
    return {
        entry.name: Placed(
            entry.name, entry.dtype, chunk.size, chunk.byte_offset - header_size, chunk.byte_offset - header_size + chunk.nbytes
        )
        for entry in index.tensors
        for chunk in entry.chunks
        if chunk.file == file.path
    }
