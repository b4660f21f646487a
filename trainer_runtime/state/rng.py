"""Every random number generator that a training step draws from: python, numpy, torch on the CPU, torch on each CUDA device. Per rank.

Generators that the script makes itself are not found by themselves; attach() takes a ``torch.Generator`` by name.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def gather() -> dict[str, Any]:
    """Return the state of all generators as typed values. Draws nothing."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)  # legacy=False says so
    return {
        "python": (version, np.asarray(words, dtype="<u4").tobytes(), gauss),
        "numpy": {
            "bit_generator": str(numpy_state["bit_generator"]),
            "key": np.asarray(numpy_state["state"]["key"], dtype="<u4").tobytes(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch_bytes(torch.get_rng_state()),
        "cuda": [torch_bytes(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Put all generators back to what ``gather`` returned. The device count must be the same; `strict` compares it before."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(int(word) for word in np.frombuffer(words, dtype="<u4")), gauss))
    saved = state["numpy"]
    np.random.set_state(
        {
            "bit_generator": saved["bit_generator"],
            "state": {"key": np.frombuffer(saved["key"], dtype="<u4").astype(np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        }
    )
    torch.set_rng_state(torch_tensor(state["torch"]))
    if state["cuda"]:
        torch.cuda.set_rng_state_all([torch_tensor(device) for device in state["cuda"]])


def of_host() -> tuple[Any, ...]:
    """Return the states of the host's generators, to be compared only. It asks no device, so it may be called at every step."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)  # legacy=False says so
    words = numpy_state["state"]
    return random.getstate(), words["key"].tobytes(), words["pos"], torch_bytes(torch.get_rng_state())


def kinds(state: dict[str, Any]) -> list[str]:
    """Return which generators a gathered state covers: what a strict resume compares."""
    return ["python", f"numpy:{state['numpy']['bit_generator']}", "torch", *(f"cuda:{index}" for index in range(len(state["cuda"])))]


def torch_bytes(state: torch.Tensor) -> bytes:
    """Return a torch generator's state as bytes."""
    return state.numpy().tobytes()


def torch_tensor(state: bytes) -> torch.Tensor:
    """Return a torch generator's state as the tensor that torch wants."""
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
