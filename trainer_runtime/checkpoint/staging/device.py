"""Staging from GPUs: copies that run beside training, and the fence that keeps them whole. Not run on a GPU yet.

The arena is pinned once, so a copy needs no second buffer. What only an optimizer step changes (trained parameters, optimizer slots) is
copied on a stream of its own, and every optimizer's step waits for it through a hook that torch calls for all optimizers alike. Whatever
may change earlier (buffers, values of the training loop) is copied in the order of the training's own stream. Should anything change a
parameter without an optimizer of torch, its version counter tells, and the save is refused. A write through ``.data`` moves no counter: one
between a save and the next step is not seen. Host memory has no such gap, for it is copied before training goes on.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainer_runtime.checkpoint.staging.arena import Arena
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Kind, Leaf

log = logging.getLogger("trainer_runtime")


class Transfer(NamedTuple):
    """One copy from a GPU to the arena."""

    leaf: Leaf
    source: torch.Tensor
    destination: torch.Tensor


class Pending:
    """Copies under way. The stage is sealed when `wait` has returned. `fence` and `wait` may be called by two threads at a time.

    Whether something changed the tensors is decided once, by whichever of the two comes first: right before the first fence, because the
    step behind it changes them by right, or else when everything is copied, because from then on anybody may.
    """

    def __init__(self, events: Sequence[torch.cuda.Event], fenced: Sequence[Transfer]) -> None:
        self._events = events
        self._versions = [(transfer.leaf.name, transfer.source, transfer.source._version) for transfer in fenced]
        self._lock = threading.Lock()
        self._is_decided = False
        self._changed: str | None = None

    def fence(self) -> None:
        """Have what the GPUs are given from now on wait for the copies. Called before any optimizer's step; the host waits for nothing."""
        with self._lock:
            if not self._is_decided:
                for event in self._events:
                    event.wait()
                self._decide()

    def wait(self) -> None:
        """Wait until everything is copied. Raises SaveFailed when a tensor was changed meanwhile and no fence stood before it."""
        for event in self._events:
            event.synchronize()
        with self._lock:
            if not self._is_decided:
                self._decide()
        if self._changed is not None:
            raise SaveFailed(f"{self._changed}: was changed while it was staged, and not by an optimizer of torch")

    def has_ended(self) -> bool:
        """Whether everything is copied. Raises RuntimeError when the driver does not say."""
        return all(event.query() for event in self._events)

    def _decide(self) -> None:
        self._changed = next((name for name, tensor, version in self._versions if tensor._version != version), None)
        self._is_decided = True


class DeviceCopier:
    """Copies from GPUs into one arena."""

    def __init__(self, arena: Arena) -> None:
        """Pin the arena. Raises SaveFailed when the driver does not let it."""
        memory = torch.frombuffer(arena.memory, dtype=torch.uint8)
        runtime: Any = torch.cuda.cudart()
        problem = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if problem != 0:
            raise SaveFailed(f"the stage of {memory.nbytes} bytes cannot be pinned: CUDA error {problem}; is locked memory limited?")
        weakref.finalize(arena, runtime.cudaHostUnregister, memory.data_ptr())
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pending: Pending | None = None
        handle = register_optimizer_step_pre_hook(_fence_of(weakref.ref(self)))
        weakref.finalize(self, handle.remove)

    def copy(self, transfers: Sequence[Transfer]) -> Pending:
        """Begin all copies and return; they are fenced against optimizers from here on."""
        events: list[torch.cuda.Event] = []
        fenced = [transfer for transfer in transfers if _is_changed_by_optimizers_only(transfer.leaf)]
        for device in {transfer.source.device for transfer in transfers}:
            current = torch.cuda.current_stream(device)
            side = self._streams.setdefault(device, torch.cuda.Stream(device))
            side.wait_stream(current)
            for transfer in transfers:
                if transfer.source.device != device:
                    continue
                if _is_changed_by_optimizers_only(transfer.leaf):
                    with torch.cuda.stream(side):
                        transfer.destination.copy_(transfer.source, non_blocking=True)
                    transfer.source.record_stream(side)
                else:
                    transfer.destination.copy_(transfer.source, non_blocking=True)
            events += [side.record_event(), current.record_event()]
        self._pending = Pending(events, fenced)
        return self._pending

    def fence(self) -> None:
        """Have an optimizer's step wait for the copies under way."""
        if self._pending is not None:
            self._pending.fence()

    def is_idle(self) -> bool:
        """Whether nothing is copied into the arena any more. A driver that cannot say, after an error of its own, counts as copying."""
        try:
            return self._pending is None or self._pending.has_ended()
        except RuntimeError as error:
            log.debug("the driver does not say whether it still copies: %s", error)
            return False


def _is_changed_by_optimizers_only(leaf: Leaf) -> bool:
    return leaf.kind is Kind.OPTIM or leaf.requires_grad


def _fence_of(copier: weakref.ref[DeviceCopier]) -> Any:
    def before_step(*_arguments: Any) -> None:
        alive = copier()
        if alive is not None:
            alive.fence()

    return before_step
