"""One rank's part of one save, as the training thread hands it to the persister: what lies where in the arena, and what to say about it.

These are values of the contract's codec, so that they cross from process to process as JSON and a wrong one is refused by its field.
Nothing here knows a live tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer_runtime.checkpoint.commit import About
from trainer_runtime.contract.manifest import FileEntry, ObjectEntry, TensorEntry


@dataclass(frozen=True)
class StagedFile:
    """One data file: its path in the checkpoint, its size, and where its image begins in a generation of the arena, in bytes."""

    path: str
    size: int
    offset: int
    window: int = 0
    """With which part of the files it is staged."""


@dataclass(frozen=True)
class Part:
    """What one rank writes in every save of one structure."""

    files: tuple[StagedFile, ...]
    tensors: tuple[TensorEntry, ...]
    structure_sha256: str
    """Digest of what all ranks must hold alike."""
    kept: tuple[FileEntry, ...] = ()
    """Files of frozen tensors that are stored already: the index names them, nothing is written."""

    @property
    def windows(self) -> int:
        """In how many parts the files are staged, one after the other in the same memory."""
        return max((file.window for file in self.files), default=0) + 1


@dataclass(frozen=True)
class SaveJob:
    """One save, sealed: from here on its generation of the arena is only read, until the persister has said that its window is written."""

    about: About
    objects: tuple[ObjectEntry, ...]
    tries: int
    """How often this attempt has tried this step before; a second try must not meet the first one's files or messages."""
    generation: int
    """Which generation of the arena holds it."""
    refusal: str = ""
    """Why this rank takes no part, when it could not stage: the other ranks are told at once instead of waiting for it."""
    window: int = 0
    """Which part of the files the generation holds now; the parts before it are written."""
