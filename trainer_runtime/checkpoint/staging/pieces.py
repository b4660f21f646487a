"""The parts of a plan: pieces of tensors, the files they lie in, and all that one rank writes. Values only, and no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.contract.manifest import FileEntry, TensorEntry


@dataclass(frozen=True)
class Piece:
    """Rows ``first_row`` to ``first_row + rows`` of what this rank holds of one tensor, and where they lie in their file's data.

    A tensor without rows (a number) is whole.
    """

    leaf: int
    """Position of the leaf in the snapshot."""
    name: str
    dtype: str
    block: tuple[int, ...]
    """Shape of what this rank holds: the whole tensor, or its shard."""
    offset: tuple[int, ...]
    """Where the block begins in the whole tensor."""
    first_row: int
    rows: int
    begin: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.block[1:]) if self.block else ()

    @property
    def place(self) -> tuple[int, ...]:
        """Where the piece begins in the whole tensor."""
        return (self.offset[0] + self.first_row, *self.offset[1:]) if self.block else ()

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def is_whole(self) -> bool:
        """Whether it is all that this rank holds of the tensor."""
        return not self.block or self.rows == self.block[0]


@dataclass(frozen=True)
class FilePlan:
    """One data file: its header's bytes, its pieces in order, and where its image begins in a generation of the stage."""

    path: str
    header: bytes
    pieces: tuple[Piece, ...]
    size: int
    stage_offset: int
    window: int = 0
    """Which part of the files it is staged with: see `windows`."""


@dataclass(frozen=True)
class SavePlan:
    """One rank's part of every checkpoint that has this structure."""

    files: tuple[FilePlan, ...]
    """What is staged and written, in the order of the windows."""
    tensors: tuple[TensorEntry, ...]
    """The rank index's tensor list; it depends on the structure alone, so it is made once."""
    structure_sha256: str
    """Digest of what all ranks hold alike (names, dtypes, whole shapes, aliases): equal on all ranks, or the save is refused."""
    stage_bytes: int
    """What a generation must hold: the largest window."""
    kept: tuple[FileEntry, ...] = ()
    """Files of frozen tensors that an earlier save of this attempt, or the checkpoint it resumed from, has stored: named, not staged."""
    windows: int = 1
    """In how many parts the files are staged, one after the other in the same memory."""
