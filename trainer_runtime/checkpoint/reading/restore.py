"""From a committed checkpoint back into live tensors. All or nothing: every byte is proven before the first one is copied.

Only verification chunks that hold needed bytes are read, whole, each to prove it and then to copy it. Where the system remembers what was
read (a file system's page cache) the second pass reads them again, and proves them again on the way: a second copy of the model in fresh
memory would cost more (0.4 GB/s to take such memory, 4 GB/s to read from the cache), and might not fit. From a store across a network they
wait in memory instead. It decides nothing about *which* checkpoint: that came with the assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from trainer_runtime.checkpoint import agreement
from trainer_runtime.checkpoint.documents import Documents
from trainer_runtime.checkpoint.dtypes import word_for
from trainer_runtime.checkpoint.fingerprint import MODULUS, of_block, totals
from trainer_runtime.checkpoint.frozen import named_in
from trainer_runtime.checkpoint.keeping.tiers import Opener, Tiers
from trainer_runtime.checkpoint.lanes import IO_LANES
from trainer_runtime.checkpoint.names import find_owner, rank_prefix
from trainer_runtime.checkpoint.reading.filling import FileNeeds, NotCovered, find_needs
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.staging.memory import Among, fits_memory
from trainer_runtime.checkpoint.staging.plan import build_plan
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.layout import MANIFEST, StepName
from trainer_runtime.contract.manifest import FileEntry, Manifest, TensorEntry
from trainer_runtime.contract.place import split_checkpoint
from trainer_runtime.errors import ConfigurationError, Refused
from trainer_runtime.state.leaves import Leaf
from trainer_runtime.state.raw import bytes_of
from trainer_runtime.state.tree import decode
from trainer_runtime.store.base import Store
from trainer_runtime.store.buffers import make_buffer
from trainer_runtime.store.open import open_store

_Chunk = tuple[FileNeeds, int]
"""One verification chunk of a file, by its number."""
_Key = tuple[str, int]
"""A file's path and a chunk's number."""


class Checkpoint:
    """One committed checkpoint, its documents proven. Made by `open_checkpoint`."""

    def __init__(self, tiers: Tiers, documents: Documents, ranks_here: int = 1) -> None:
        self._tiers = tiers
        self._ranks_here = ranks_here
        self._documents = documents
        self._files = {file.path: file for index in documents.indexes for file in index.files}
        self._filled: tuple[Leaf, ...] = ()

    @property
    def manifest(self) -> Manifest:
        return self._documents.manifest

    @property
    def strict(self) -> Mapping[str, Any]:
        """What a strict resume compares before it loads anything."""
        return self._documents.manifest.strict

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """Every tensor of the checkpoint, of all ranks, by name."""
        return self._documents.tensors

    @property
    def frozen_files(self) -> frozenset[str]:
        """The frozen files it refers to, relative to its run."""
        return named_in(self._documents.indexes)

    def objects(self, rank: int) -> dict[str, Any]:
        """Return the values that are not tensors: the shared ones and those of ``rank``, by name, each of the type it was saved as."""
        return {
            entry.name: decode(entry.value, entry.name)
            for index in self._documents.indexes
            for entry in index.objects
            if find_owner(entry.name) in (None, rank) and entry.name != f"{rank_prefix(rank)}{agreement.OBJECT}"
        }

    def differences(self, leaves: Sequence[Leaf], rank: int, *, exact: bool = True) -> list[str]:
        """Return how ``leaves`` differ from what the checkpoint holds for ``rank``: names, dtypes, shapes, aliases; one line each.

        ``exact`` False: the checkpoint may hold more than is asked for.
        """
        saved = {name: entry for name, entry in self.tensors.items() if find_owner(name) in (None, rank)}
        lines = []
        for leaf in leaves:
            entry = saved.pop(leaf.name, None)
            if entry is None:
                lines.append(f"{leaf.name}: not in the checkpoint")
                continue
            for what, live, stored in (
                ("dtype", word_for(leaf.tensor.dtype, leaf.name), entry.dtype),
                ("shape", list(leaf.global_shape), list(entry.global_shape)),
                ("alias of", leaf.alias_of, entry.alias_of),
            ):
                if live != stored:
                    lines.append(f"{leaf.name}: {what} is {stored} in the checkpoint and {live} in this program")
        if exact:
            lines += [f"{name}: in the checkpoint and not in this program" for name in saved]
        return lines

    def fill(self, leaves: Sequence[Leaf], rank: int, *, exact: bool = True) -> None:
        """Copy the saved bytes into the live tensors, in place and without any cast. Of a sharded one this rank's block is filled, from
        whatever pieces it was saved in.

        Raises Refused, with every difference, when names, dtypes, shapes or aliases differ (``exact`` False: the checkpoint may hold more),
        and CheckpointDamaged when a byte that is needed is not what was staged. In both cases no live tensor was touched.
        """
        lines = self.differences(leaves, rank, exact=exact)
        if lines:
            raise Refused("\n".join([f"{self._documents.reference.uri} does not fit this program:", *lines]))
        try:
            wanted = find_needs([leaf for leaf in leaves if leaf.alias_of is None], self.tensors, self._files)
        except NotCovered as error:
            raise self._documents.reference.damaged(MANIFEST, str(error)) from error
        chunks = [(needs, number) for needs in wanted for number in needs.chunks()]
        kept = self._memory_for(chunks)
        self._for_each(chunks, lambda needs, number, scratch: self._prove(needs.file, number, scratch, kept))
        self._for_each(chunks, lambda needs, number, scratch: self._deal_out(needs, number, scratch, kept))
        self._filled = tuple(leaves)

    def find_misplaced(self, sums: Iterable[Mapping[str, int]]) -> list[str]:
        """Return the tensors that do not have the fingerprint they were saved with. ``sums``: every rank's `fingerprints`."""
        saved, found = totals(self._documents.indexes), dict[str, int]()
        for part in sums:
            for name, value in part.items():
                found[name] = (found.get(name, 0) + value) % MODULUS
        return sorted(name for name, value in found.items() if saved.get(name) != value)

    def fingerprints(self, rank: int, world_size: int) -> dict[str, int]:
        """Return what this rank adds to the fingerprint of each tensor that was filled and that the ranks hold together. The ranks take
        parts of it as they do in a save, so that each element counts once."""
        shared = [leaf for leaf in self._filled if leaf.alias_of is None and find_owner(leaf.name) is None]
        shared = [leaf for leaf in shared if leaf.replicated or leaf.shard is not None]
        sums = {leaf.name: 0 for leaf in shared}
        for file in build_plan(shared, rank, world_size).files:
            for piece in file.pieces:
                tensor = shared[piece.leaf].tensor
                rows = tensor if piece.is_whole else tensor.narrow(0, piece.first_row, piece.rows)
                data = bytes_of(rows.detach().reshape(-1).view(torch.uint8).cpu())
                sums[piece.name] = (sums[piece.name] + of_block(piece.dtype, piece.place, piece.shape, data)) % MODULUS
        return sums

    def _memory_for(self, chunks: Sequence[_Chunk]) -> dict[_Key, memoryview]:
        """Return memory in which proven chunks wait for the second pass; none where reading again costs little, or memory is short.

        The ranks that share this one's memory restore at the same time, and what they set aside is taken only as it is filled. So each
        counts on an equal share of what it finds, which needs no turns: who looks later finds less, and all together never take too much.
        """
        sizes = {(needs.file.path, number): needs.file.length_of(number) for needs, number in chunks}
        if self._tiers.store.rereads_from_cache or not fits_memory(sum(sizes.values()), Among(self._ranks_here, self._ranks_here)):
            return {}
        return {key: memoryview(bytearray(size)) for key, size in sizes.items()}

    def _for_each(self, chunks: Sequence[_Chunk], act: Callable[[FileNeeds, int, memoryview], None]) -> None:
        """Run ``act`` for every chunk, IO_LANES at a time, each with memory for one chunk. Raises the first error."""
        largest = max((needs.file.chunk_size for needs, _number in chunks), default=0)
        scratch: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(IO_LANES):
            scratch.put(memoryview(make_buffer(max(1, largest))))

        def run(needs: FileNeeds, number: int) -> None:
            memory = scratch.get_nowait()  # as many as there are threads
            try:
                act(needs, number, memory[: needs.file.length_of(number)])
            finally:
                scratch.put(memory)

        with ThreadPoolExecutor(max_workers=IO_LANES, thread_name_prefix="rtj-restore") as pool:
            jobs = [pool.submit(run, needs, number) for needs, number in chunks]
            try:
                for job in jobs:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()

    def _prove(self, file: FileEntry, number: int, scratch: memoryview, kept: Mapping[_Key, memoryview]) -> None:
        self._read_chunk(file, number, kept.get((file.path, number), scratch))

    def _deal_out(self, needs: FileNeeds, number: int, scratch: memoryview, kept: Mapping[_Key, memoryview]) -> None:
        """Put the needed bytes of a chunk where they belong: read again, straight into the live tensor where one takes the whole chunk."""
        begin = number * needs.file.chunk_size
        end = begin + len(scratch)
        block = kept.get((needs.file.path, number))
        takers = [need for need in needs.needs if need.begin < end and need.end > begin]
        if block is None:
            memory = takers[0].memory(begin, end) if len(takers) == 1 else None
            if memory is not None:
                self._read_chunk(needs.file, number, memory)
                return
            self._read_chunk(needs.file, number, scratch)
            block = scratch
        data = torch.frombuffer(block, dtype=torch.uint8)
        for need in takers:
            need.take(data, begin)

    def _read_chunk(self, file: FileEntry, number: int, into: memoryview) -> None:
        self._tiers.read_chunk(self._documents.reference, file, number, into)


def open_checkpoint(
    store: Store, resume: ResumePoint, local: Opener | None = None, archive: Opener | None = None, ranks_here: int = 1
) -> Checkpoint:
    """Open the checkpoint that ``resume`` names, in ``store`` or in the store its URI names, with all its documents proven.

    ``local``, ``archive``: tiers that are asked before and after that store (see `tiers`). ``ranks_here``: how many ranks share this one's
    memory, and restore at the same time.
    Raises CheckpointDamaged, StoreUnavailable, or ConfigurationError for a URI that names no checkpoint.
    """
    source, reference = locate(store, resume)
    tiers = Tiers(source, local, archive)
    return Checkpoint(tiers, tiers.read_documents(reference), ranks_here)


@dataclass(frozen=True)
class Place:
    """What a checkpoint's URI says."""

    store_uri: str
    run: str
    name: StepName


def parse_uri(uri: str) -> Place:
    """Take ``<store>/<run>/steps/<step>-<attempt>`` apart. Raises ConfigurationError."""
    try:
        return Place(*split_checkpoint(uri))
    except ContractError as error:
        raise ConfigurationError(str(error)) from error


def locate(store: Store, resume: ResumePoint) -> tuple[Store, Reference]:
    """Return where a resume point lies. Raises ConfigurationError when its URI and its step and attempt disagree."""
    place = parse_uri(resume.uri)
    if place.name != StepName(resume.step, resume.attempt):
        raise ConfigurationError(f"{resume.uri!r} is not step {resume.step} of attempt {resume.attempt}")
    source = store if place.store_uri == store.uri else open_store(place.store_uri, store.s3)
    return source, Reference(source.uri, place.run, place.name, resume.manifest_sha256)
