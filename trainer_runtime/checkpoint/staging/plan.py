"""Who writes what. Each rank works out its own part alone, from names, dtypes and shapes, so that no rank has to be asked.

What several ranks hold alike is laid end to end in the order of its names and cut into equal parts, one per rank; a cut falls between two
rows of a tensor. So eight replicas stage an eighth each, of plain tensors and of shards alike. A shard that no other rank holds is written
where it lives. That the parts fit together is proven at commit, not assumed. How a rank cuts its part into files, and whether they are
staged in windows, is its own affair.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from trainer_runtime.checkpoint.dtypes import word_for
from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.frozen import is_frozen
from trainer_runtime.checkpoint.image import Placed, header_bytes, page_multiple
from trainer_runtime.checkpoint.names import find_owner, rank_prefix
from trainer_runtime.checkpoint.staging.pieces import FilePlan, Piece, SavePlan
from trainer_runtime.checkpoint.staging.replicas import replicas_of
from trainer_runtime.checkpoint.staging.unchanged import Unchanged
from trainer_runtime.checkpoint.staging.windows import FILES_PER_WINDOW, LEAST_WINDOW_BYTES, in_windows, largest_image
from trainer_runtime.contract.layout import data_path
from trainer_runtime.contract.manifest import Chunk, FileEntry, TensorEntry
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.forms import Forms
from trainer_runtime.state.leaves import Kind, Leaf

WHOLE_BYTES: Final = 1024 * 1024
"""A tensor of at most this many bytes is never cut: a smaller part would cost more in bookkeeping than it saves in copying."""
MAX_FILE_BYTES: Final = 1024**3
"""Data bytes per file. One thread takes a file's digests, from its start to its end, so several files are what lets several cores hash."""
RoomFor = Callable[[int, int], int]
"""(wanted, least) -> how many of the wanted bytes can be staged at a time. Raises SaveFailed when it is less than the least."""

_TENSOR: Final = Leaf._fields.index("tensor")


class _Known(NamedTuple):
    """A plan, and all that it depends on."""

    columns: list[tuple[object, ...]]
    """What the leaves say beside their tensors, field by field: comparing ten thousand leaves one by one would take twice as long."""
    changed: object
    """Which frozen tensors changed, and what is stored of them."""
    forms: Forms
    plan: SavePlan


class Planner:
    """Plans for one rank, and remembers the newest: a job's structure seldom changes, and a stale plan is never used.

    ``stored``: frozen files that the checkpoint this attempt resumed from has proven to be in the run. ``room_for``: see RoomFor; as it is,
    everything can be staged at once.
    """

    def __init__(
        self, rank: int, world_size: int, stored: frozenset[str] = frozenset(), room_for: RoomFor = lambda wanted, least: wanted
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._unchanged = Unchanged(stored)
        self._room_for = room_for
        self._file_bytes = self._frozen_file_bytes = MAX_FILE_BYTES
        self._known: _Known | None = None

    def plan(self, leaves: Sequence[Leaf]) -> SavePlan:
        """Return the plan for ``leaves``. Raises ConfigurationError for a leaf that cannot be saved, naming it; SaveFailed, with numbers,
        when there is no memory for as much as a window."""
        changed = self._unchanged.look(leaves)
        columns = list(zip(*leaves, strict=True))
        tensors: Sequence[torch.Tensor] = columns.pop(_TENSOR) if columns else ()
        known = self._known
        if known is None or (known.columns, known.changed) != (columns, changed) or not known.forms.hold(tensors):
            plan = self._fitting_plan(leaves)
            known = self._known = _Known(columns, changed, Forms(tensors), plan)
        return known.plan

    def forget(self) -> None:
        """Plan anew the next time: the memory that the newest plan counted on was not there."""
        self._known = None

    def settle(self, error: Exception | None) -> None:
        """Take in how the save of the newest plan ended: frozen files that it wrote are not staged again once a save was verified."""
        if self._known is not None:
            plan = self._known.plan
            paths = [file.path for file in plan.files if is_frozen(file.path)] + [file.path for file in plan.kept]
            self._unchanged.settle(paths, error)

    def _fitting_plan(self, leaves: Sequence[Leaf]) -> SavePlan:
        plan = self._build(leaves)
        room = self._room_for(plan.stage_bytes, min(plan.stage_bytes, LEAST_WINDOW_BYTES))
        if plan.stage_bytes <= room:
            return plan
        self._cut_smaller(plan, room)
        plan = self._build(leaves)
        return in_windows(plan, self._room_for(plan.stage_bytes, largest_image(plan)))

    def _build(self, leaves: Sequence[Leaf]) -> SavePlan:
        return build_plan(leaves, self._rank, self._world_size, self._file_bytes, self._unchanged, self._frozen_file_bytes)

    def _cut_smaller(self, plan: SavePlan, room: int) -> None:
        """Frozen files are cut only where they must be: their names depend on it, and what is stored by other names is written again."""
        self._file_bytes = min(self._file_bytes, room // FILES_PER_WINDOW)
        if any(is_frozen(file.path) and page_multiple(file.size) > room for file in plan.files):
            self._frozen_file_bytes = min(self._frozen_file_bytes, self._file_bytes)
            self._unchanged.forget()


def build_plan(
    leaves: Sequence[Leaf],
    rank: int,
    world_size: int,
    max_file_bytes: int = MAX_FILE_BYTES,
    unchanged: Unchanged | None = None,
    max_frozen_bytes: int = MAX_FILE_BYTES,
) -> SavePlan:
    """Work out what ``rank`` of ``world_size`` stages and writes, in one window. ``unchanged`` None: no leaf goes to a frozen file.
    ``max_file_bytes``, ``max_frozen_bytes``: data bytes per file.

    Raises ConfigurationError.
    """
    _check_leaves(leaves, rank)
    in_order = sorted(range(len(leaves)), key=lambda index: leaves[index].name)
    shared = [index for index in in_order if replicas_of(leaves[index], world_size)]
    own = [index for index in in_order if not replicas_of(leaves[index], world_size)]
    groups: dict[tuple[int, ...], list[Piece]] = {}
    for index in shared:
        if leaves[index].alias_of is None and _has_part(leaves[index]):
            groups.setdefault(replicas_of(leaves[index], world_size), []).append(_whole(index, leaves[index]))
    pieces = [piece for ranks, whole in groups.items() for piece in _cut(whole, ranks.index(rank), len(ranks))]
    pieces += [_whole(index, leaves[index]) for index in own if leaves[index].alias_of is None]
    frozen = set() if unchanged is None else {index for index, leaf in enumerate(leaves) if unchanged.is_frozen(leaf)}
    files = _lay_out([piece for piece in pieces if piece.leaf not in frozen], leaves, rank, max_file_bytes)
    identified: list[tuple[FilePlan, FileEntry]] = []
    kept: tuple[FileEntry, ...] = ()
    if unchanged is not None:
        identified = _lay_out_frozen([piece for piece in pieces if piece.leaf in frozen], leaves, max_frozen_bytes, unchanged)
        kept = tuple(entry for file, entry in identified if unchanged.is_stored(file.path))
    staged = _place(files + [file for file, entry in identified if entry not in kept])
    aliases = [index for index in (shared if rank == 0 else []) + own if leaves[index].alias_of is not None]
    return SavePlan(
        files=staged,
        tensors=_entries(files + [file for file, _ in identified], leaves) + tuple(_entry(leaves[index], ()) for index in aliases),
        structure_sha256=_structure_digest(leaves[index] for index in shared),
        stage_bytes=sum(page_multiple(file.size) for file in staged),
        kept=kept,
    )


def _check_leaves(leaves: Sequence[Leaf], rank: int) -> None:
    by_name: dict[str, Leaf] = {}
    for leaf in leaves:
        if leaf.name in by_name:
            raise ConfigurationError(f"{leaf.name}: two tensors have this name")
        by_name[leaf.name] = leaf
        word_for(leaf.tensor.dtype, leaf.name)
        if leaf.tensor.layout is not torch.strided or leaf.tensor.is_meta or hasattr(leaf.tensor, "__tensor_flatten__"):
            kind = f"{type(leaf.tensor).__name__} ({leaf.tensor.layout}, on {leaf.tensor.device})"
            raise ConfigurationError(f"{leaf.name}: a {kind} cannot be saved, only a plain, dense tensor that has memory")
        owner = find_owner(leaf.name)
        if leaf.replicated and owner is not None:
            raise ConfigurationError(f"{leaf.name}: carries a rank's name and is said to be the same on all ranks")
        if leaf.shard is not None and owner is not None:
            raise ConfigurationError(f"{leaf.name}: carries a rank's name and is said to be a shard of what all ranks hold together")
        if leaf.shard is not None and rank not in leaf.shard.replicas:
            raise ConfigurationError(f"{leaf.name}: rank {rank} is not among the ranks {leaf.shard.replicas} that hold its shard")
        if not leaf.replicated and leaf.shard is None and owner != rank:
            raise ConfigurationError(f"{leaf.name}: rank {rank}'s own value must be named {rank_prefix(rank)}…")
    for leaf in leaves:
        target = by_name.get(leaf.alias_of) if leaf.alias_of is not None else leaf
        if target is None or (target is not leaf and target.alias_of is not None):
            raise ConfigurationError(f"{leaf.name}: is an alias of {leaf.alias_of}, which is not a saved tensor of its own")
        if (target.tensor.dtype, target.tensor.shape, target.shard) != (leaf.tensor.dtype, leaf.tensor.shape, leaf.shard):
            raise ConfigurationError(f"{leaf.name}: is an alias of {leaf.alias_of} and differs from it in dtype or shape")


def _whole(index: int, leaf: Leaf) -> Piece:
    shape = tuple(leaf.tensor.shape)
    offset = leaf.shard.offset if leaf.shard is not None else (0,) * len(shape)
    return Piece(index, leaf.name, word_for(leaf.tensor.dtype, leaf.name), shape, offset, 0, shape[0] if shape else 1)


def _has_part(leaf: Leaf) -> bool:
    """Whether there is anything to write: an empty shard of a tensor that has elements elsewhere has not."""
    return leaf.shard is None or leaf.tensor.numel() > 0 or math.prod(leaf.global_shape) == 0


def _cut(whole: Sequence[Piece], rank: int, world_size: int) -> list[Piece]:
    """Return this rank's part of the tensors laid end to end; every row falls to exactly one rank, because a cut only moves forward."""
    total = sum(piece.nbytes for piece in whole)
    low, high = total * rank // world_size, total * (rank + 1) // world_size
    mine, start = [], 0
    for piece in whole:
        first = 0 if rank == 0 else _rows_before(piece, low - start)
        last = piece.rows if rank == world_size - 1 else _rows_before(piece, high - start)
        if last > first or (piece.rows == 0 and _holds_empty(low, high, start, rank, world_size)):
            mine.append(replace(piece, first_row=first, rows=last - first))
        start += piece.nbytes
    return mine


def _rows_before(piece: Piece, position: int) -> int:
    """Return how many of a tensor's rows belong to the ranks before the cut at ``position`` bytes after its start."""
    if position <= 0:
        return 0
    if piece.nbytes <= WHOLE_BYTES or piece.rows <= 1:
        return piece.rows
    return min(piece.rows, -(-position * piece.rows // piece.nbytes))


def _holds_empty(low: int, high: int, start: int, rank: int, world_size: int) -> bool:
    """A tensor without rows takes no room between two cuts; it falls to the rank whose part its place lies in."""
    return (rank == 0 or start >= low) and (rank == world_size - 1 or start < high)


def _lay_out(pieces: Sequence[Piece], leaves: Sequence[Leaf], rank: int, max_file_bytes: int) -> list[FilePlan]:
    return [
        _file_plan(data_path(rank, kind.value, number), group)
        for kind in Kind
        for number, group in enumerate(_split_by_size([piece for piece in pieces if leaves[piece.leaf].kind is kind], max_file_bytes))
    ]


def _lay_out_frozen(
    pieces: Sequence[Piece], leaves: Sequence[Leaf], max_file_bytes: int, unchanged: Unchanged
) -> list[tuple[FilePlan, FileEntry]]:
    """Return the frozen files, each under the name that its bytes give it."""
    drafts = [_file_plan("", group) for group in _split_by_size(pieces, max_file_bytes)]
    identified = [(draft, unchanged.identify(draft, leaves)) for draft in drafts]
    return [(replace(draft, path=entry.path), entry) for draft, entry in identified]


def _place(files: Iterable[FilePlan]) -> tuple[FilePlan, ...]:
    """Return the files, each with its place in the stage."""
    placed, end = [], 0
    for file in files:
        placed.append(replace(file, stage_offset=end))
        end += page_multiple(file.size)
    return tuple(placed)


def _split_by_size(pieces: Iterable[Piece], max_file_bytes: int) -> list[list[Piece]]:
    groups: list[list[Piece]] = [[]]
    room = max_file_bytes
    for piece in sorted(pieces, key=lambda piece: (-ITEM_BYTES[piece.dtype], piece.name)):
        rest = piece
        while (fitting := _rows_that_fit(rest, room, is_first=not groups[-1])) < rest.rows:
            if fitting > 0:
                groups[-1].append(replace(rest, rows=fitting))
                rest = replace(rest, first_row=rest.first_row + fitting, rows=rest.rows - fitting)
            groups.append([])
            room = max_file_bytes
        groups[-1].append(rest)
        room -= rest.nbytes
    return [group for group in groups if group]


def _rows_that_fit(piece: Piece, room: int, *, is_first: bool) -> int:
    if piece.nbytes <= max(0, room):
        return piece.rows
    fitting = max(0, room) * piece.rows // piece.nbytes
    return max(1, fitting) if is_first else fitting  # a row larger than a whole file gets a file of its own


def _file_plan(path: str, pieces: Iterable[Piece]) -> FilePlan:
    placed, end = [], 0
    for piece in pieces:
        placed.append(replace(piece, begin=end))
        end += piece.nbytes
    header = header_bytes(Placed(piece.name, piece.dtype, piece.shape, piece.begin, piece.begin + piece.nbytes) for piece in placed)
    return FilePlan(path=path, header=header, pieces=tuple(placed), size=len(header) + end, stage_offset=0)


def _entries(files: Iterable[FilePlan], leaves: Sequence[Leaf]) -> tuple[TensorEntry, ...]:
    chunks: dict[int, list[Chunk]] = {}
    for file in files:
        for piece in file.pieces:
            chunk = Chunk(piece.place, piece.shape, file.path, len(file.header) + piece.begin, piece.nbytes)
            chunks.setdefault(piece.leaf, []).append(chunk)
    return tuple(_entry(leaves[index], tuple(chunks[index])) for index in sorted(chunks, key=lambda index: leaves[index].name))


def _entry(leaf: Leaf, chunks: tuple[Chunk, ...]) -> TensorEntry:
    return TensorEntry(
        name=leaf.name,
        dtype=word_for(leaf.tensor.dtype, leaf.name),
        global_shape=leaf.global_shape,
        chunks=chunks,
        requires_grad=leaf.requires_grad,
        alias_of=leaf.alias_of,
    )


def _structure_digest(leaves: Iterable[Leaf]) -> str:
    hasher = hashlib.sha256()
    for leaf in leaves:
        hasher.update(repr((leaf.name, str(leaf.tensor.dtype), leaf.global_shape, leaf.kind.value, leaf.alias_of)).encode())
    return hasher.hexdigest()
