"""The host-memory copy of one rank's part of a checkpoint. Only filling it blocks training.

The stage is one anonymous memory file that holds the images of the data files one after the other. It is made and touched once, before the
first save, because fresh memory costs ten times what copying costs; and it is shared memory, because a data loader's fork would otherwise
make every page of the next save a copy-on-write fault. A stage that was not filled to its end is never read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.image import page_multiple
from trainer_runtime.checkpoint.memory import require_memory
from trainer_runtime.checkpoint.plan import FilePlan, SavePlan
from trainer_runtime.errors import ConfigurationError, SaveFailed
from trainer_runtime.state.leaves import Leaf


class _Source(NamedTuple):
    """Where a piece is copied from, with all that can be known before the save."""

    leaf: int
    rows: tuple[int, int] | None
    """First row and number of rows; None for the whole tensor."""
    is_empty: bool


class _Copies(NamedTuple):
    """The pieces of one dtype, and the views into the stage that they are copied to."""

    sources: list[_Source]
    destinations: list[torch.Tensor]


class Stage:
    """One generation of staged bytes. The training thread fills it while nobody reads; the writer reads it while it is sealed."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._plan: SavePlan | None = None
        self._copies: tuple[_Copies, ...] = ()
        self._sealed = False

    def prepare(self, plan: SavePlan) -> None:
        """Take and touch the memory that ``plan`` needs and write the headers into it. Nothing to do when it is the plan of last time.

        Raises SaveFailed, with numbers, when the memory is not there.
        """
        if self._plan is plan:
            return
        self._sealed = False
        self._plan = None
        self._copies = ()
        wanted = max(plan.stage_bytes, mmap.PAGESIZE)  # a rank that writes nothing has a stage too
        if self._memory is None or len(self._memory) < wanted:
            self._replace_memory(wanted)
        self._write_headers(plan)
        self._copies = self._destinations(plan)
        self._plan = plan

    def fill(self, plan: SavePlan, leaves: Sequence[Leaf]) -> None:
        """Copy every piece of ``plan`` from the live tensors, then seal. On any error the stage stays unsealed.

        Raises SaveFailed as `prepare` does, ConfigurationError for a tensor whose memory was freed.
        """
        self.prepare(plan)
        self._sealed = False
        with torch.no_grad():
            for copies in self._copies:
                torch._foreach_copy_(copies.destinations, [_source(copy, leaves[copy.leaf]) for copy in copies.sources])
        self._sealed = True

    def image(self, file: FilePlan) -> memoryview:
        """Return a file's bytes, rounded up to whole pages. Raises SaveFailed unless the stage is sealed."""
        if not self._sealed or self._view is None:
            raise SaveFailed("the stage was not filled to its end")
        return self._view[file.stage_offset : file.stage_offset + page_multiple(file.size)]

    def _replace_memory(self, size: int) -> None:
        held = len(self._memory) if self._memory is not None else 0
        require_memory(size - held, "staging a checkpoint")
        self._view = None
        self._memory = None
        try:
            descriptor = os.memfd_create("rtj-stage", os.MFD_CLOEXEC)
            try:
                os.ftruncate(descriptor, size)
                # MAP_POPULATE touches every page now, in one call of the kernel
                self._memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            finally:
                os.close(descriptor)
        except OSError as error:  # a limit of the process's own (ulimit -v, -f, -n) that require_memory does not know
            raise SaveFailed(f"staging a checkpoint needs {size} bytes of shared memory: {error.strerror}; see ulimit -a") from error
        self._view = memoryview(self._memory)

    def _write_headers(self, plan: SavePlan) -> None:
        assert self._view is not None
        for file in plan.files:
            end = file.stage_offset + file.size
            self._view[file.stage_offset : file.stage_offset + len(file.header)] = file.header
            padding = page_multiple(file.size) - file.size
            self._view[end : end + padding] = bytes(padding)

    def _destinations(self, plan: SavePlan) -> tuple[_Copies, ...]:
        """Views into the stage, grouped by dtype: one call copies a group at 1 µs per tensor instead of 12."""
        assert self._memory is not None
        memory = torch.frombuffer(self._memory, dtype=torch.uint8)
        groups: dict[str, _Copies] = {}
        for file in plan.files:
            data = file.stage_offset + len(file.header)
            for piece in file.pieces:
                flat = memory[data + piece.begin : data + piece.begin + piece.nbytes]
                rows = None if piece.is_whole else (piece.first_row, piece.rows)
                copies = groups.setdefault(piece.dtype, _Copies([], []))
                copies.sources.append(_Source(piece.leaf, rows, piece.nbytes == 0))
                copies.destinations.append(flat.view(DTYPES[piece.dtype]).view(piece.shape))
        return tuple(groups.values())


def _source(source: _Source, leaf: Leaf) -> torch.Tensor:
    # sharding libraries free a parameter's memory behind its back, and copying from it ends the process without an error
    if not source.is_empty and leaf.tensor.untyped_storage().nbytes() == 0:
        raise ConfigurationError(f"{leaf.name}: its memory was freed, so there is nothing to save")
    return leaf.tensor if source.rows is None else leaf.tensor.narrow(0, *source.rows)
