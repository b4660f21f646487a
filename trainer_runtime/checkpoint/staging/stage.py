"""Copying one rank's part of a checkpoint to host memory. Only this blocks training.

A generation of the arena holds the images of the data files one after the other. The arena is made and touched once, before the first save,
because fresh memory costs ten times what copying costs. Two generations take turns: while one is being filled, the one that was sealed last
stays whole, and a generation that was not filled to its end is never handed on. Where memory is short there is one generation, and where
that does not fit either, it holds a window of the files at a time: see `windows`.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.image import page_multiple
from trainer_runtime.checkpoint.staging.arena import Arena, take_memory, touch_arena
from trainer_runtime.checkpoint.staging.device import DeviceCopier, Pending, Transfer
from trainer_runtime.checkpoint.staging.memory import fits_memory, mib, require_memory, require_share
from trainer_runtime.checkpoint.staging.pieces import FilePlan, Piece, SavePlan
from trainer_runtime.checkpoint.staging.scatter import Scattered
from trainer_runtime.checkpoint.staging.turns import Turns
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Leaf, refuse_freed

GENERATIONS: Final = 2
PURPOSE: Final = "staging a checkpoint"
SMALL_BYTES: Final = 4096
"""Tensors up to this size are copied by the kernel, a thousand at a call: 1 KiB takes it 0.33 µs, torch 0.79. Above, torch is faster."""
LEAST_RUN: Final = 8
"""Fewer small neighbours are copied by torch: a call of their own costs more than it saves."""
_TENSOR: Final = attrgetter("tensor")
_ADDRESS: Final = torch.Tensor.data_ptr

log = logging.getLogger("trainer_runtime")


class _Cut(NamedTuple):
    """A piece that is some rows of a tensor. The view is made for each save: a tensor's memory may be replaced under its object."""

    leaf: int
    first_row: int
    rows: int


class _Place(NamedTuple):
    """A piece, and where its bytes begin in a generation."""

    piece: Piece
    begin: int


class _Copies(NamedTuple):
    """The pieces of one dtype that are copied one by one: whole tensors, then cut ones, and their destinations in each generation."""

    whole: list[int]
    cut: list[_Cut]
    destinations: list[list[torch.Tensor]]


class _Run(NamedTuple):
    """Small whole tensors that are neighbours in a file: their places in the snapshot, and where the stretch that they fill begins in a
    generation."""

    places: list[_Place]
    begin: int


class _Window(NamedTuple):
    """How the files of one window are filled."""

    files: tuple[FilePlan, ...]
    runs: tuple[_Run, ...]
    copies: tuple[_Copies, ...]


class Filled(NamedTuple):
    """A generation that holds a window of a save. It is sealed when ``pending`` has been waited for, at once when that is None."""

    generation: int
    pending: Pending | None


class Stage:
    """The arena, and how to fill it. ``turns``: this rank's place among those that share this machine's memory or this container's limit;
    None: it has no others."""

    def __init__(self, turns: Turns | None = None) -> None:
        self._turns = turns or Turns()
        self._arena: Arena | None = None
        self._plan: SavePlan | None = None
        self._windows: tuple[_Window, ...] = ()
        self._scattered: list[list[Scattered | None]] = []
        self._with_bytes: list[int] = []
        self._addresses: npt.NDArray[np.uint64] | None = None
        self._next = 0
        self._device: DeviceCopier | None = None
        self._said = ""

    def room_for(self, wanted: int, least: int) -> int:
        """Return how many of ``wanted`` bytes a generation can hold: all of them, or a window of them.

        Raises SaveFailed, with numbers, when that is less than ``least``.
        """
        has = self._arena.generation_bytes if self._arena is not None else 0
        if has >= wanted:
            return wanted
        try:
            with self._turns.turn() as among:
                return max(has, require_share(wanted, least, PURPOSE, among))
        except SaveFailed:
            if has < least:
                raise
            return has

    def prepare(self, plan: SavePlan, leaves: Sequence[Leaf]) -> bool:
        """Take and touch the memory that ``plan`` needs and write the headers into it. Returns whether that was not done before.

        Raises SaveFailed, with numbers, when the memory is not there.
        """
        if self._plan is plan:
            return False
        self._plan = None
        self._windows, self._scattered, self._addresses = (), [], None
        wanted = page_multiple(max(plan.stage_bytes, mmap.PAGESIZE))  # a rank that writes nothing has a stage too
        if self._arena is None or self._arena.generation_bytes < wanted:
            self._replace_arena(wanted, plan.windows)
        assert self._arena is not None
        with torch.inference_mode(False):  # a destination that is made in it could not be written to outside of it
            self._windows = tuple(_window(plan, number, self._arena) for number in range(plan.windows))
        if plan.windows == 1:
            for number in range(self._arena.generations):
                _write_headers(plan.files, self._arena.generation(number))
        else:
            self._say_windows(plan)
        self._with_bytes = sorted({piece.leaf for file in plan.files for piece in file.pieces if piece.nbytes})
        if self._device is None and any(leaf.tensor.is_cuda for leaf in leaves):
            self._device = DeviceCopier(self._arena)
        self._plan = plan
        return True

    def fill(self, plan: SavePlan, leaves: Sequence[Leaf], window: int = 0) -> Filled:
        """Copy every piece of one window of ``plan`` from the live tensors. On any error the generation counts as never filled. All windows
        of a save go into the same generation, one after the other. ``plan`` is what the planner made of these leaves: it answers for the
        forms of their tensors, so that only their addresses are looked at here.

        Raises SaveFailed as `prepare` does, ConfigurationError for a tensor whose memory was freed.
        """
        self.prepare(plan, leaves)
        assert self._arena is not None
        number = self._next
        now = self._windows[window]
        if plan.windows > 1:
            _write_headers(now.files, self._arena.generation(number))
        transfers: list[Transfer] = []
        tensors = list(map(_TENSOR, leaves))
        addresses = np.fromiter(map(_ADDRESS, tensors), np.uint64, len(tensors))
        with torch.no_grad():
            if self._addresses is None or not np.array_equal(addresses, self._addresses):
                self._addresses = None
                for leaf in self._with_bytes:
                    refuse_freed(leaves[leaf])
                self._scattered = [[_addresses_of(run, tensors) for run in each.runs] for each in self._windows]
                self._addresses = addresses
            for run, scattered in zip(now.runs, self._scattered[window], strict=True):
                if scattered is not None:
                    scattered.write(self._arena.descriptor, number * self._arena.generation_bytes + run.begin)
                else:
                    sources = [tensors[place.piece.leaf] for place in run.places]
                    memory = _memories(self._arena)[number]
                    destinations = [_view(memory, place) for place in run.places]
                    transfers += self._copy(destinations, sources, [leaves[place.piece.leaf] for place in run.places])
            for copies in now.copies:
                sources = [tensors[leaf] for leaf in copies.whole]
                sources += [tensors[cut.leaf].narrow(0, cut.first_row, cut.rows) for cut in copies.cut]
                held_by = [leaves[leaf] for leaf in copies.whole] + [leaves[cut.leaf] for cut in copies.cut]
                transfers += self._copy(copies.destinations[number], sources, held_by)
        if window == plan.windows - 1:
            self._next = (number + 1) % self._arena.generations
        return Filled(number, self._device.copy(transfers) if self._device is not None else None)

    def release(self) -> None:
        """Give the arena back, now and not when the garbage collector comes by. It stays while a GPU still copies into it: a copy that
        hangs must not hold up the end of a run."""
        if self._device is not None and not self._device.is_idle():
            return
        self._arena = self._plan = self._device = None
        self._windows, self._scattered, self._addresses = (), [], None

    @property
    def windows(self) -> int:
        """In how many windows the plan that was prepared last is staged."""
        return len(self._windows)

    @property
    def arena(self) -> Arena:
        """What `prepare` took."""
        assert self._arena is not None
        return self._arena

    def _copy(self, destinations: list[torch.Tensor], sources: list[torch.Tensor], leaves: list[Leaf]) -> list[Transfer]:
        """Copy what lies in host memory now; return what a GPU is to copy."""
        if self._device is None:
            torch._foreach_copy_(destinations, sources)
            return []
        transfers = []
        for destination, source, leaf in zip(destinations, sources, leaves, strict=True):
            if source.is_cuda:
                transfers.append(Transfer(leaf, source, destination))
            else:
                destination.copy_(source)
        return transfers

    def _replace_arena(self, size: int, windows: int) -> None:
        """Take another arena. The present one stays when that cannot be: the persister holds it too, so nothing came free without it."""
        generations = GENERATIONS
        with self._turns.turn() as among:
            if windows > 1:
                generations = 1
                require_memory(size, f"{PURPOSE} in {windows} windows", among)
            elif not fits_memory(size * generations, among):
                generations = 1
                require_memory(size, PURPOSE, among)
                log.warning(
                    "host memory has room for one copy of a checkpoint, not two: the last one staged is not kept while the next is filled"
                )
            taken = take_memory(size * generations)
            self._turns.mark_taken()
        self._arena = touch_arena(taken, size, generations)
        self._device = None
        self._next = 0

    def _say_windows(self, plan: SavePlan) -> None:
        whole = sum(page_multiple(file.size) for file in plan.files)
        text = (
            f"host memory has no room for the {mib(whole)} that this rank saves: they are staged in {plan.windows} windows of at most "
            f"{mib(plan.stage_bytes)}, and training stands still until all but the last are written"
        )
        if text != self._said:
            log.warning(text)
        self._said = text


def _write_headers(files: Sequence[FilePlan], view: memoryview) -> None:
    for file in files:
        end = file.stage_offset + file.size
        view[file.stage_offset : file.stage_offset + len(file.header)] = file.header
        padding = page_multiple(file.size) - file.size
        view[end : end + padding] = bytes(padding)


def _window(plan: SavePlan, number: int, arena: Arena) -> _Window:
    files = tuple(file for file in plan.files if file.window == number)
    runs, alone = _find_runs(files)
    return _Window(files, runs, _destinations(alone, arena))


def _find_runs(files: Sequence[FilePlan]) -> tuple[tuple[_Run, ...], list[_Place]]:
    """Return the runs of small neighbours, and every other piece with its place in a generation."""
    runs: list[_Run] = []
    alone: list[_Place] = []
    for file in files:
        begin = file.stage_offset + len(file.header)
        places = [_Place(piece, begin + piece.begin) for piece in file.pieces]
        for is_small, group in groupby(places, key=lambda place: _is_small(place.piece)):
            neighbours = list(group)
            if is_small and len(neighbours) >= LEAST_RUN:
                runs.append(_Run(neighbours, neighbours[0].begin))
            else:
                alone += neighbours
    return tuple(runs), alone


def _is_small(piece: Piece) -> bool:
    return piece.is_whole and piece.nbytes <= SMALL_BYTES


def _addresses_of(run: _Run, tensors: Sequence[torch.Tensor]) -> Scattered | None:
    """Return where the run's bytes lie; None when one of its tensors is not what its memory holds, in that order."""
    held = [tensors[place.piece.leaf] for place in run.places]
    if all(tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()) for tensor in held):
        return Scattered(list(map(_ADDRESS, held)), [place.piece.nbytes for place in run.places])
    return None


def _memories(arena: Arena) -> list[torch.Tensor]:
    return [torch.frombuffer(arena.generation(number), dtype=torch.uint8) for number in range(arena.generations)]


def _destinations(places: list[_Place], arena: Arena) -> tuple[_Copies, ...]:
    """Views into the arena, grouped by dtype: one call copies a group."""
    groups: dict[str, _Copies] = {}
    memories = _memories(arena)
    for wants_whole in (True, False):
        for piece, begin in places:
            if piece.is_whole is not wants_whole:
                continue
            copies = groups.setdefault(piece.dtype, _Copies([], [], [[] for _ in memories]))
            if wants_whole:
                copies.whole.append(piece.leaf)
            else:
                copies.cut.append(_Cut(piece.leaf, piece.first_row, piece.rows))
            for memory, destinations in zip(memories, copies.destinations, strict=True):
                destinations.append(_view(memory, _Place(piece, begin)))
    return tuple(groups.values())


def _view(memory: torch.Tensor, place: _Place) -> torch.Tensor:
    piece, begin = place
    return memory[begin : begin + piece.nbytes].view(DTYPES[piece.dtype]).view(piece.shape)
