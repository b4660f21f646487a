"""From staged memory to files.

The digests are taken of the memory, never of the file: a file that differs from what was staged must show.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import xxhash

from trainer_runtime.checkpoint.plan import FilePlan, SavePlan
from trainer_runtime.checkpoint.stage import Stage
from trainer_runtime.contract.manifest import CHUNK_BYTES, FileEntry
from trainer_runtime.store.base import Store

LANES: Final = 2
"""Files in work at a time; each takes a thread that hashes and one that writes. Both spend their time outside of the interpreter's lock."""


def write_files(store: Store, directory: str, plan: SavePlan, stage: Stage) -> tuple[FileEntry, ...]:
    """Write this rank's data files below ``directory``, durably, and return their identities in the plan's order.

    Raises StoreUnavailable for the first file that cannot be written; files that were not begun are not begun any more.
    """
    pool = ThreadPoolExecutor(max_workers=2 * LANES, thread_name_prefix="rtj-write")
    try:
        jobs: list[tuple[Future[FileEntry], Future[None]]] = []
        for file in plan.files:
            image = stage.image(file)
            identity = pool.submit(identify, file, image)
            jobs.append((identity, pool.submit(store.write_file, f"{directory}/{file.path}", image, file.size)))
        for _, written in jobs:
            written.result()
        return tuple(identity.result() for identity, _ in jobs)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def identify(file: FilePlan, image: memoryview) -> FileEntry:
    """Return the SHA-256 of a file's image and the XXH3-128 of each of its chunks."""
    whole = hashlib.sha256()
    chunks = []
    for offset in range(0, file.size, CHUNK_BYTES):
        chunk = image[offset : min(offset + CHUNK_BYTES, file.size)]
        whole.update(chunk)
        chunks.append(xxhash.xxh3_128_hexdigest(chunk))
    return FileEntry(file.path, file.size, whole.hexdigest(), CHUNK_BYTES, tuple(chunks))
