"""The trainer runtime of rtj: checkpoints that are proven before they count, and resumes that are bitwise equal.

Importing this package loads no torch: the names below are looked up at first use, so that the launcher, the heartbeat and the operator's
image can share the contract with the training script.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_runtime.attaching import attach
    from trainer_runtime.run import Run
    from trainer_runtime.state.data import ResumableSampler

__all__ = ["ResumableSampler", "Run", "attach"]

_HOMES = {"ResumableSampler": "trainer_runtime.state.data", "Run": "trainer_runtime.run", "attach": "trainer_runtime.attaching"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
