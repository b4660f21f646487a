"""Is every byte on the storage what was staged? Read back past the caches, chunk by chunk, against digests taken of memory.

A checkpoint that was written without an error is committed. Only one that passed this is verified, and only verified ones are chosen.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor

import xxhash

from trainer_runtime.checkpoint.documents import find_reference, is_verified, pieces_in, read_documents
from trainer_runtime.checkpoint.frozen import locate
from trainer_runtime.checkpoint.image import BadHeader, check_header, header_length
from trainer_runtime.checkpoint.lanes import HOT_BYTES, IO_LANES
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import MANIFEST, TRASH, VERIFIED
from trainer_runtime.contract.manifest import FileEntry, RankIndex, VerifiedMark
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store


def verify_checkpoint(store: Store, reference: Reference, on_bytes: Callable[[int], None] = lambda _bytes: None) -> None:
    """Prove a whole committed checkpoint: manifest, indexes, tiling, and every byte of every rank's files. Raises CheckpointDamaged.

    ``on_bytes`` is told of each block that was proven, from several threads.
    """
    for index in read_documents(store, reference).indexes:
        verify_files(store, reference, index, on_bytes=on_bytes)


def verify_files(
    store: Store,
    reference: Reference,
    index: RankIndex,
    proven: Container[str] = frozenset(),
    on_bytes: Callable[[int], None] = lambda _bytes: None,
) -> None:
    """Prove one rank's files. ``proven``: paths of frozen files that this process has proven before; of them only the size is compared.
    ``on_bytes``: see above.

    Raises CheckpointDamaged for the first that differs, StoreUnavailable when it cannot be read.
    """

    def verify(file: FileEntry) -> None:
        if file.path in proven:
            _require_size(store, reference, file)
        else:
            _verify_file(store, reference, index, file, on_bytes)

    with ThreadPoolExecutor(max_workers=IO_LANES, thread_name_prefix="rtj-verify") as pool:
        for proof in [pool.submit(verify, file) for file in index.files]:
            proof.result()


def mark_verified(store: Store, reference: Reference, now: float, by: str) -> None:
    """Write the mark that lets the checkpoint be chosen. One that is there already says the same, or heals: what cannot be read as the mark
    of this checkpoint (a write that was cut off may leave it where the file system has no hard links) goes to the trash.

    Raises CheckpointDamaged when the checkpoint was deleted since it was proven; then no mark stays.
    """
    path = f"{reference.directory}/{VERIFIED}"
    mark = dumps(VerifiedMark(reference.manifest_sha256, Level.VERIFIED.value, now, by)).encode()
    try:
        store.create(path, mark)
    except AlreadyInStore:
        if not is_verified(store, reference):
            store.move(path, f"{reference.run}/{TRASH}/{reference.name}-{uuid.uuid4().hex[:8]}/{VERIFIED}")
            store.create(path, mark)
    if find_reference(store, reference.run, reference.name) == reference:
        return
    # A deletion takes the manifest first, so whoever finds it after the mark has marked what was whole then.
    store.remove(path)
    if store.exists(reference.directory) and not store.list(reference.directory):  # `create` made the directory anew
        store.remove(reference.directory)
    raise reference.damaged(MANIFEST, "was deleted before the checkpoint could be marked as verified")


def chunk_fault(file: FileEntry, number: int, block: memoryview) -> str | None:
    """Return what is wrong with a verification chunk's bytes, or None."""
    if number >= len(file.xxh3_128):
        return f"has more than its {len(file.xxh3_128)} chunks"
    if xxhash.xxh3_128_hexdigest(block) == file.xxh3_128[number]:
        return None
    return _not_as_staged(number, number * file.chunk_size, len(block))


def read_chunk(store: Store, reference: Reference, file: FileEntry, number: int, into: memoryview) -> memoryview:
    """Fill ``into`` with one verification chunk of a data file, prove it, and return the part that was filled.

    Raises CheckpointDamaged when it is not what was staged, StoreUnavailable when it cannot be read.
    """
    begin = number * file.chunk_size
    block = into[: file.length_of(number)]
    path, step = locate(reference.run, reference.directory, file.path), HOT_BYTES if store.rereads_from_cache else len(block)
    hasher = xxhash.xxh3_128()
    for offset in range(0, len(block), step):
        part = block[offset : offset + step]
        try:
            got = store.read_range(path, begin + offset, part)
        except NotInStore as error:
            raise reference.damaged(file.path, "is missing") from error
        if got < len(part):
            raise reference.damaged(file.path, f"ends after {begin + offset + got} of {file.size} bytes")
        hasher.update(part)
    if number >= len(file.xxh3_128) or hasher.hexdigest() != file.xxh3_128[number]:
        raise reference.damaged(file.path, _not_as_staged(number, begin, len(block)))
    return block


def _verify_file(store: Store, reference: Reference, index: RankIndex, file: FileEntry, on_bytes: Callable[[int], None]) -> None:
    header = bytearray()
    wanted = 0
    size = 0
    path = locate(reference.run, reference.directory, file.path)
    _require_size(store, reference, file)
    try:
        for number, block in enumerate(store.read_back(path, file.chunk_size)):
            fault = chunk_fault(file, number, block)
            if fault is not None:
                raise reference.damaged(file.path, fault)
            if number == 0:
                wanted = header_length(bytes(block[:8]))
            if len(header) < wanted:
                header += block[: wanted - len(header)]
            size += len(block)
            on_bytes(len(block))
        if size != file.size:
            raise reference.damaged(file.path, f"ends after {size} of {file.size} bytes")
        check_header(bytes(header), file.size, pieces_in(file, index, len(header)))
    except NotInStore as error:
        raise reference.damaged(file.path, "is missing") from error
    except BadHeader as error:
        raise reference.damaged(file.path, str(error)) from error


def _require_size(store: Store, reference: Reference, file: FileEntry) -> None:
    try:
        found = store.size(locate(reference.run, reference.directory, file.path))
    except NotInStore as error:
        raise reference.damaged(file.path, "is missing") from error
    if found != file.size:
        raise reference.damaged(file.path, f"has {found} bytes instead of {file.size}")


def _not_as_staged(number: int, begin: int, length: int) -> str:
    return f"chunk {number} (bytes {begin} to {begin + length}) is not what was staged"
