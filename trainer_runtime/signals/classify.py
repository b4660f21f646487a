"""What one line means by itself: every parser's rules, in the order in which they are asked. It keeps nothing between lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trainer_runtime.signals import gpu, kubelet, nccl, python_errors, system, torchelastic
from trainer_runtime.signals.finding import Sighting
from trainer_runtime.signals.rules import LineRule, first_match
from trainer_runtime.signals.xid import read_xid

RULES: Final[tuple[LineRule, ...]] = (
    *gpu.DRIVER_RULES,
    # Before c10d: its watchdog prints other people's CUDA errors (vllm-project/vllm#4108).
    *gpu.CUDA_RULES,
    # torchelastic before nccl: its exceptions are the more exact ones.
    *torchelastic.RULES,
    *nccl.RULES,
    *python_errors.RULES,
    *system.RULES,
    *kubelet.RULES,
)

READERS: Final[tuple[Callable[[str], Sighting | None], ...]] = (
    read_xid,
    lambda body: first_match(RULES, body),
    torchelastic.read_exit_line,
)


def classify_body(body: str) -> Sighting | None:
    """Return what a line without labels and advice says, BENIGN included; None when it says nothing."""
    for read in READERS:
        found = read(body)
        if found is not None:
            group_rank = nccl.read_group_rank(body)
            return replace(found, fields={**group_rank, **found.fields}) if group_rank else found
    return None
