"""What must be equal before a checkpoint may continue this run, and the one message that lists everything that is not.

Pure comparison of two descriptions: the one in the manifest and the one of the live objects as the script built them. It loads nothing.
Every difference carries the word that allows it (``attach(allow=…)``, ``spec.checkpoint.allow``).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from trainer_runtime.contract.allow import ALLOW_WORDS, Allow
from trainer_runtime.contract.manifest import TensorEntry
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.leaves import Leaf


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was. ``allow`` None: no word overrides it."""

    where: str
    saved: str
    live: str
    allow: Allow | None

    def __str__(self) -> str:
        word = f"allow: {self.allow.value}" if self.allow else "cannot be allowed"
        return f"{self.where}: saved {self.saved}, now {self.live} [{word}]"


def check_allow(words: Iterable[str], source: str = "allow") -> frozenset[Allow]:
    """Turn words into a set. Raises ConfigurationError that names the unknown one and lists the known."""
    found = set()
    for word in words:
        if word not in ALLOW_WORDS:
            raise ConfigurationError(f"{source}: {word!r} is not one of {', '.join(ALLOW_WORDS)}")
        found.add(Allow(word))
    return frozenset(found)


def compare(saved: Mapping[str, Any], live: Mapping[str, Any]) -> list[Difference]:
    """Compare two descriptions (see `gather.TrainingState.describe`). A section that the saved one lacks is compared as empty."""
    differences: list[Difference] = []
    for section, word in _SECTIONS.items():
        differences += _compare_values(section, saved.get(section), live.get(section), word)
    return differences


def compare_leaves(
    saved: Mapping[str, TensorEntry], live: Iterable[Leaf], dtypes: Mapping[torch.dtype, str], *, weights_only: bool = False
) -> list[Difference]:
    """Compare the tensors that this rank must find with those that are there, both ways. ``dtypes``: the manifest's word for each dtype.

    ``saved`` holds only tensors that this rank would load into ``live`` (model and other modules, not optimizer slots).
    ``weights_only``: which of them are trained is the script's own matter (a warm start).
    """
    differences: list[Difference] = []
    live_by_name = {leaf.name: leaf for leaf in live}
    for name in sorted(saved.keys() - live_by_name.keys()):
        differences.append(Difference(name, _shown(saved[name].dtype, saved[name].global_shape), "not in the model", Allow.STRUCTURE))
    for name, leaf in live_by_name.items():
        shape, dtype = leaf.global_shape, dtypes.get(leaf.tensor.dtype, str(leaf.tensor.dtype))
        entry = saved.get(name)
        if entry is None:
            differences.append(Difference(name, "not in the checkpoint", _shown(dtype, shape), Allow.STRUCTURE))
            continue
        if tuple(entry.global_shape) != shape:
            differences.append(Difference(name, _shown(entry.dtype, entry.global_shape), _shown(dtype, shape), Allow.STRUCTURE))
        elif entry.dtype != dtype:
            # A cast is never made behind the user's back, so no word allows it.
            differences.append(Difference(name, entry.dtype, dtype, None))
        if entry.alias_of != leaf.alias_of:
            differences.append(Difference(f"{name} shares memory with", str(entry.alias_of), str(leaf.alias_of), None))
        if not weights_only and entry.requires_grad != leaf.requires_grad:
            differences.append(Difference(f"{name} requires_grad", str(entry.requires_grad), str(leaf.requires_grad), Allow.STRUCTURE))
    return differences


def compare_rng(rank: int, saved: list[str], live: list[str]) -> list[Difference]:
    """Compare which generators ``rank`` finds in the checkpoint with those it has; see `rng.kinds`."""
    return [] if saved == live else [Difference(f"rng of rank {rank}", ", ".join(saved), ", ".join(live), Allow.RNG)]


def message(differences: Iterable[Difference], checkpoint: str, allowed: Iterable[Allow] = (), limit: int = 50) -> str:
    """Return the refusal: every difference on a line of its own, at most ``limit``, and how to go on.

    ``allowed``: the words that were given, which the advice repeats: what it says can be put in their place.
    """
    differences = list(differences)
    lines = [str(difference) for difference in differences]
    words = sorted({difference.allow.value for difference in differences if difference.allow})
    can_be_allowed = all(difference.allow for difference in differences)
    shown = lines[:limit] + ([f"… and {len(lines) - limit} more"] if len(lines) > limit else [])
    advice = f"To resume all the same: allow={sorted({*words, *(word.value for word in allowed)})}"
    if not can_be_allowed:
        advice = "No word allows all of these"
    return f"{checkpoint} is not this run ({len(lines)} differences):\n  " + "\n  ".join(shown) + f"\n{advice}"


def describe_names(names: list[str]) -> dict[str, Any]:
    """Return how many names there are, the first and last, and a digest of all in their order: enough to compare, small in a manifest."""
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return {"count": len(names), "first": names[0] if names else "", "last": names[-1] if names else "", "sha256": digest}


def describe_determinism() -> dict[str, Any]:
    """Return the settings of this process that decide whether equal inputs give equal bits."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }


def describe_software() -> dict[str, str]:
    """Return versions for people; a difference is said in the log, not refused: the image is the operator's matter."""
    return {"torch": str(torch.__version__), "cuda": str(torch.version.cuda or ""), "python": platform.python_version()}


_SECTIONS: Final[dict[str, Allow]] = {
    "world_size": Allow.WORLD_SIZE,
    "mesh": Allow.WORLD_SIZE,
    "optimizer": Allow.OPTIMIZER,
    "hyperparameters": Allow.HYPER_PARAMETERS,
    "scheduler": Allow.SCHEDULER,
    "objects": Allow.OBJECTS,
    "data": Allow.DATA,
    "config": Allow.CONFIG,
    "tokenizer": Allow.TOKENIZER,
    "determinism": Allow.DETERMINISM,
    "ddp": Allow.DETERMINISM,
}


def _compare_values(path: str, saved: Any, live: Any, word: Allow) -> list[Difference]:
    if isinstance(saved, dict) and isinstance(live, dict):
        found: list[Difference] = []
        for key in sorted(saved.keys() | live.keys()):
            found += _compare_values(f"{path}.{key}", saved.get(key, _ABSENT), live.get(key, _ABSENT), word)
        return found
    if isinstance(saved, list) and isinstance(live, list) and len(saved) == len(live):
        return [
            difference
            for index, (left, right) in enumerate(zip(saved, live, strict=True))
            for difference in _compare_values(f"{path}[{index}]", left, right, word)
        ]
    if type(saved) is type(live) and saved == live:
        return []
    return [Difference(path, _text(saved), _text(live), word)]


class _Absent:
    """Marks a key that one side lacks, which is not the same as None."""

    def __repr__(self) -> str:
        return "nothing"


_ABSENT: Final = _Absent()
_EXACT_FLOAT: Final = re.compile(r"-?0x[01]\.[0-9a-f]+p[+-]\d+")
"""How float.hex() writes a number; people read it in decimals, which are exact as well."""


def _text(value: Any, limit: int = 120) -> str:
    if isinstance(value, str) and _EXACT_FLOAT.fullmatch(value):
        return repr(float.fromhex(value))
    text = repr(value) if isinstance(value, _Absent) else json.dumps(value, sort_keys=True)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _shown(dtype: str, shape: Iterable[int]) -> str:
    return f"{dtype}{list(shape)}"
