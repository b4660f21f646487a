"""From a committed checkpoint back into live tensors. All or nothing: every byte is proven before the first one is copied.

The data is read twice, in whole verification chunks and with small buffers: once to prove it, once (by then from the page cache) to copy
it, and proven again on the way. That costs less than a second copy of the model in fresh memory, and takes none. It decides nothing about
*which* checkpoint: that came with the assignment.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from trainer_runtime.checkpoint.documents import Documents, read_documents
from trainer_runtime.checkpoint.dtypes import word_for
from trainer_runtime.checkpoint.names import find_owner
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import chunk_fault
from trainer_runtime.checkpoint.writer import LANES
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.layout import STEPS, StepName, is_run_name
from trainer_runtime.contract.manifest import Chunk, FileEntry, Manifest, TensorEntry
from trainer_runtime.errors import ConfigurationError, Refused
from trainer_runtime.state.leaves import Leaf
from trainer_runtime.state.tree import decode
from trainer_runtime.store.base import NotInStore, Store
from trainer_runtime.store.open import open_store


class Checkpoint:
    """One committed checkpoint, its documents proven. Made by `open_checkpoint`."""

    def __init__(self, store: Store, documents: Documents) -> None:
        self._store = store
        self._documents = documents

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

    def objects(self, rank: int) -> dict[str, Any]:
        """Return the values that are not tensors: the shared ones and those of ``rank``, by name, each of the type it was saved as."""
        return {
            entry.name: decode(entry.value, entry.name)
            for index in self._documents.indexes
            for entry in index.objects
            if find_owner(entry.name) in (None, rank)
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
                ("shape", list(leaf.tensor.shape), list(entry.global_shape)),
                ("alias of", leaf.alias_of, entry.alias_of),
            ):
                if live != stored:
                    lines.append(f"{leaf.name}: {what} is {stored} in the checkpoint and {live} in this program")
        if exact:
            lines += [f"{name}: in the checkpoint and not in this program" for name in saved]
        return lines

    def fill(self, leaves: Sequence[Leaf], rank: int, *, exact: bool = True) -> None:
        """Copy the saved bytes into the live tensors, in place and without any cast.

        Raises Refused, with every difference, when names, dtypes, shapes or aliases differ (``exact`` False: the checkpoint may hold more),
        and CheckpointDamaged when a byte that is needed is not what was staged. In both cases no live tensor was touched.
        """
        lines = self.differences(leaves, rank, exact=exact)
        if lines:
            raise Refused("\n".join([f"{self._documents.reference.uri} does not fit this program:", *lines]))
        wanted = self._pieces_by_file([leaf for leaf in leaves if leaf.alias_of is None])
        self._read_all(wanted, copying=False)
        self._read_all(wanted, copying=True)

    def _pieces_by_file(self, leaves: Sequence[Leaf]) -> list[tuple[FileEntry, list[_Piece]]]:
        by_file: dict[str, list[_Piece]] = {}
        for leaf in leaves:
            for chunk in self.tensors[leaf.name].chunks:
                if chunk.nbytes > 0:
                    by_file.setdefault(chunk.file, []).append(_Piece(leaf, chunk))
        files = {file.path: file for index in self._documents.indexes for file in index.files}
        return [(files[path], sorted(pieces, key=lambda piece: piece.begin)) for path, pieces in sorted(by_file.items())]

    def _read_all(self, wanted: Sequence[tuple[FileEntry, list[_Piece]]], *, copying: bool) -> None:
        with ThreadPoolExecutor(max_workers=LANES, thread_name_prefix="rtj-restore") as pool:
            jobs = [pool.submit(self._read_file, file, pieces, copying) for file, pieces in wanted]
            try:
                for job in jobs:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()

    def _read_file(self, file: FileEntry, pieces: Sequence[_Piece], copying: bool) -> None:
        """Read and prove the chunks that hold needed bytes; when ``copying``, put those bytes where they belong."""
        reference = self._documents.reference
        waiting = list(reversed(pieces))
        buffer = mmap.mmap(-1, file.chunk_size)
        memory = torch.frombuffer(buffer, dtype=torch.uint8)
        for number in _chunks_of(file, pieces):
            begin = number * file.chunk_size
            length = min(file.chunk_size, file.size - begin)
            block = memoryview(buffer)[:length]
            try:
                got = self._store.read_range(f"{reference.directory}/{file.path}", begin, block)
            except NotInStore as error:
                raise reference.damaged(file.path, "is missing") from error
            fault = f"ends after {begin + got} of {file.size} bytes" if got < length else chunk_fault(file, number, block)
            if fault is not None:
                raise reference.damaged(file.path, fault)
            if copying:
                _deal_out(memory[:length], begin, waiting)


class _Piece:
    """One run of bytes in a file and the place in a live tensor where it belongs."""

    def __init__(self, leaf: Leaf, chunk: Chunk) -> None:
        self.begin = chunk.byte_offset
        self.end = chunk.byte_offset + chunk.nbytes
        self._chunk = chunk
        self._tensor = leaf.tensor
        self._target: torch.Tensor | None = None
        self._bytes: torch.Tensor | None = None

    def put(self, offset: int, data: torch.Tensor) -> None:
        """Take ``data``, which lies at ``offset`` bytes of the piece. Bytes come in order; the last ones complete the copy."""
        if self._target is None or self._bytes is None:
            self._target = self._view()
            direct = self._target.is_contiguous() and self._target.device.type == "cpu"
            self._bytes = self._target.reshape(-1).view(torch.uint8) if direct else torch.empty(self._chunk.nbytes, dtype=torch.uint8)
        self._bytes[offset : offset + len(data)].copy_(data)
        if offset + len(data) == self._chunk.nbytes:
            if self._bytes.data_ptr() != self._target.data_ptr():
                self._target.copy_(self._bytes.view(self._target.dtype).view(self._target.shape))
            self._target = self._bytes = None

    def _view(self) -> torch.Tensor:
        view = self._tensor.detach()
        for dimension, (offset, size) in enumerate(zip(self._chunk.offset, self._chunk.size, strict=True)):
            view = view.narrow(dimension, offset, size)
        return view


def _chunks_of(file: FileEntry, pieces: Sequence[_Piece]) -> list[int]:
    numbers: set[int] = set()
    for piece in pieces:
        numbers.update(range(piece.begin // file.chunk_size, (piece.end - 1) // file.chunk_size + 1))
    return sorted(numbers)


def _deal_out(block: torch.Tensor, begin: int, waiting: list[_Piece]) -> None:
    """Give each waiting piece its part of a block that lies at ``begin`` in the file. ``waiting`` is in reverse order of the file."""
    end = begin + len(block)
    while waiting and waiting[-1].begin < end:
        piece = waiting[-1]
        first, last = max(piece.begin, begin), min(piece.end, end)
        piece.put(first - piece.begin, block[first - begin : last - begin])
        if piece.end > end:
            return
        waiting.pop()


def open_checkpoint(store: Store, resume: ResumePoint) -> Checkpoint:
    """Open the checkpoint that ``resume`` names, in ``store`` or in the store its URI names, with all its documents proven.

    Raises CheckpointDamaged, StoreUnavailable, or ConfigurationError for a URI that names no checkpoint.
    """
    source, reference = locate(store, resume)
    return Checkpoint(source, read_documents(source, reference))


@dataclass(frozen=True)
class Place:
    """What a checkpoint's URI says."""

    store_uri: str
    run: str
    name: StepName


def parse_uri(uri: str) -> Place:
    """Take ``<store>/<run>/steps/<step>-<attempt>`` apart. Raises ConfigurationError."""
    parts = uri.rstrip("/").rsplit("/", 3)
    name = StepName.parse(parts[-1])
    if len(parts) != 4 or parts[2] != STEPS or name is None or not is_run_name(parts[1]):
        raise ConfigurationError(f"{uri!r} is not the address of a checkpoint: <store>/<run>/{STEPS}/<step 10 digits>-<attempt 8 digits>")
    return Place(parts[0], parts[1], name)


def locate(store: Store, resume: ResumePoint) -> tuple[Store, Reference]:
    """Return where a resume point lies. Raises ConfigurationError when its URI and its step and attempt disagree."""
    place = parse_uri(resume.uri)
    if place.name != StepName(resume.step, resume.attempt):
        raise ConfigurationError(f"{resume.uri!r} is not step {resume.step} of attempt {resume.attempt}")
    source = store if place.store_uri == store.uri else open_store(place.store_uri)
    return source, Reference(source.uri, place.run, place.name, resume.manifest_sha256)
