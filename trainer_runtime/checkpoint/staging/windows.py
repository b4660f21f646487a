"""A rank's part that does not fit into host memory is staged in windows: some of its files at a time, and all in the same memory.

A window's memory can be filled again when its files are written, so training stands still for the writing of all windows but the last. The
last one is therefore as large as it can be. Values only: `stage` says how much memory there is, `plan` cuts files small enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainer_runtime.checkpoint.image import page_multiple
from trainer_runtime.checkpoint.staging.pieces import FilePlan, SavePlan

LEAST_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""A smaller window is not worth having: what each costs besides its bytes (syncing its files and their directory, a word to the persister
and back) takes some milliseconds, and a disk writes this much in a few hundred."""
FILES_PER_WINDOW: Final = 4
"""Files are cut to this part of a window: several of them are hashed at a time, and little of its room stays empty."""


def largest_image(plan: SavePlan) -> int:
    """Return the bytes of the largest file in the stage: what a window must hold."""
    return max((page_multiple(file.size) for file in plan.files), default=0)


def in_windows(plan: SavePlan, room: int) -> SavePlan:
    """Return the plan with its files in as few windows of at most ``room`` bytes as their order allows. ``room``: at least one file's."""
    groups: list[list[FilePlan]] = [[]]
    left = room
    for file in reversed(plan.files):  # from the end, so that what is left over makes the first window
        size = page_multiple(file.size)
        assert size <= room
        if size > left:
            groups.append([])
            left = room
        groups[-1].append(file)
        left -= size
    placed: list[FilePlan] = []
    largest = 0
    for window, group in enumerate(reversed(groups)):
        end = 0
        for file in reversed(group):
            placed.append(replace(file, stage_offset=end, window=window))
            end += page_multiple(file.size)
        largest = max(largest, end)
    return replace(plan, files=tuple(placed), stage_bytes=largest, windows=len(groups))
