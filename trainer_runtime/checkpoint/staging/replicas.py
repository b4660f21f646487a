"""Do replicas hold the same bytes? A look at a part of them in every save, in turn, because a full look would cost more than the save.

Ranks that hold the same tensors lay them end to end and hash one window. Which window follows from the step alone, and the windows of
evenly spaced saves cover everything after about sixteen times as many saves as there are replicas. So a replica that went astray is found
late at worst, and never by a save in between that looked elsewhere: a save says that its window agreed, no more. The digests travel in the
ranks' indexes; `agreement` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
import xxhash

from trainer_runtime.state.leaves import Leaf, refuse_freed
from trainer_runtime.state.raw import bytes_of

LEAST_WINDOW_BYTES: Final = 1024 * 1024
_SHARE: Final = 16
"""The window is a sixteenth of what each replica stages, so it costs a few per cent of the copy."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, fall evenly apart, whatever the distance between two saves."""


def digests(leaves: Sequence[Leaf], world_size: int, step: int) -> dict[str, str]:
    """Return this rank's digest for each set of replicas that it belongs to, by the ranks of the set (``0,1,2``). Raises ConfigurationError
    for a leaf whose memory was freed."""
    groups: dict[tuple[int, ...], list[Leaf]] = {}
    if world_size == 1:
        return {}
    for leaf in sorted(leaves, key=lambda leaf: leaf.name):
        ranks = replicas_of(leaf, world_size)
        if len(ranks) > 1 and leaf.alias_of is None and leaf.tensor.numel() > 0:
            groups.setdefault(ranks, []).append(leaf)
    return {",".join(map(str, ranks)): _digest(held, len(ranks), step) for ranks, held in groups.items()}


def replicas_of(leaf: Leaf, world_size: int) -> tuple[int, ...]:
    """Return the ranks that hold the same bytes as this one; none for a rank's own value."""
    if leaf.shard is not None:
        return leaf.shard.replicas
    return tuple(range(world_size)) if leaf.replicated else ()


def _digest(leaves: Sequence[Leaf], replicas: int, step: int) -> str:
    total = sum(leaf.tensor.nbytes for leaf in leaves)
    length = min(total, max(LEAST_WINDOW_BYTES, total // (_SHARE * replicas)))
    begin = int((step * _GOLDEN) % 1.0 * total)
    hasher = xxhash.xxh3_128()
    for first, last in ((begin, min(total, begin + length)), (0, begin + length - total)):
        start = 0
        for leaf in leaves:
            low, high = max(first - start, 0), min(last - start, leaf.tensor.nbytes)
            if low < high:
                refuse_freed(leaf)
                data = leaf.tensor.detach().reshape(-1).view(torch.uint8)
                hasher.update(bytes_of(data[low:high].cpu()))
            start += leaf.tensor.nbytes
    return hasher.hexdigest()
