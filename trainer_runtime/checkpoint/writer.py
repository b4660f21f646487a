"""From staged memory to files.

The digests are taken of the memory, never of the file: a file that differs from what was staged must show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from trainer_runtime.checkpoint import frozen
from trainer_runtime.checkpoint.identity import identify
from trainer_runtime.checkpoint.job import StagedFile
from trainer_runtime.checkpoint.lanes import HOT_BYTES, IO_LANES, hash_lanes
from trainer_runtime.contract.manifest import FileEntry
from trainer_runtime.store.base import Store


def write_files(
    store: Store, run: str, directory: str, files: Sequence[StagedFile], image: Callable[[StagedFile], memoryview]
) -> tuple[FileEntry, ...]:
    """Write data files below ``directory``, durably, and return their identities in the given order; frozen ones go to their place in the
    ``run``. ``image``: a file's bytes, in whole pages.

    Raises StoreUnavailable for the first file that cannot be written; files that were not begun are not begun any more.
    """

    def write(file: StagedFile, identity: Future[FileEntry]) -> None:
        if frozen.is_frozen(file.path):
            frozen.write(store, run, identity.result(), image(file))
        else:
            store.write_file(f"{directory}/{file.path}", image(file), file.size)

    with (
        ThreadPoolExecutor(max_workers=hash_lanes(), thread_name_prefix="rtj-hash") as hashing,
        ThreadPoolExecutor(max_workers=IO_LANES, thread_name_prefix="rtj-write") as writing,
    ):
        identities = [hashing.submit(_identify, file, image(file)) for file in files]
        written = [writing.submit(write, file, identity) for file, identity in zip(files, identities, strict=True)]
        try:
            for job in written:
                job.result()
            return tuple(identity.result() for identity in identities)
        except BaseException:
            hashing.shutdown(wait=False, cancel_futures=True)
            writing.shutdown(wait=False, cancel_futures=True)
            raise


def _identify(file: StagedFile, image: memoryview) -> FileEntry:
    def blocks(begin: int, end: int) -> Iterator[memoryview]:
        for offset in range(begin, end, HOT_BYTES):
            yield image[offset : min(offset + HOT_BYTES, end)]

    return identify(file.path, file.size, blocks)
