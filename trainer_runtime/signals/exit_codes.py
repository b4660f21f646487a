"""What the end of a process or container says: kubelet reason, signal, exit code, in that order.

The reason comes first because the code can lie: OOMKilled has been seen with exit code 0 (flyteorg/flyte#4704), and 137 alone is no proof
of memory. Which end came first, and whether we caused it ourselves, is not decided here.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.signals.fault_classes import (
    CHECKPOINT_DAMAGED,
    CONFIG_ERROR,
    DEFAULT_STRENGTH,
    DEVICE_ADMISSION,
    EVICTED,
    FENCED,
    HOST_OOM,
    IMAGE_PULL,
    NCCL_TIMEOUT,
    NODE_LOST,
    NONE,
    PREEMPTED,
    RESUME_REFUSED,
    SIGKILL,
    STORAGE_IO,
    UNKNOWN,
    USER_ERROR,
)

SIGNAL_BASE: Final = 128
"""A shell's and the kubelet's exit code of a signal death is this plus the signal; torchelastic and Python print the signal negated."""


@dataclass(frozen=True)
class ExitMeaning:
    """The fault class of an end and its strength."""

    fault_class: str
    strength: Strength


def _meaning(fault_class: str, strength: Strength | None = None) -> ExitMeaning:
    return ExitMeaning(fault_class, strength or DEFAULT_STRENGTH[fault_class])


REASONS: Final = MappingProxyType(
    {
        # containerStatuses[].state.terminated.reason
        "OOMKilled": _meaning(HOST_OOM),
        "ContainerCannotRun": _meaning(CONFIG_ERROR),
        "StartError": _meaning(CONFIG_ERROR),
        "ContainerStatusUnknown": _meaning(NODE_LOST, Strength.UNKNOWN),
        # containerStatuses[].state.waiting.reason
        "ErrImagePull": _meaning(IMAGE_PULL),
        "ImagePullBackOff": _meaning(IMAGE_PULL),
        "InvalidImageName": _meaning(IMAGE_PULL),
        "ErrImageNeverPull": _meaning(IMAGE_PULL),
        "CreateContainerConfigError": _meaning(CONFIG_ERROR),
        "CreateContainerError": _meaning(CONFIG_ERROR),
        "RunContainerError": _meaning(CONFIG_ERROR),
        # status.reason of the pod
        "Evicted": _meaning(EVICTED),
        "Preempting": _meaning(PREEMPTED),
        "Preempted": _meaning(PREEMPTED),
        "NodeShutdown": _meaning(PREEMPTED),
        "Terminated": _meaning(PREEMPTED),
        "NodeLost": _meaning(NODE_LOST, Strength.UNKNOWN),
        "UnexpectedAdmissionError": _meaning(DEVICE_ADMISSION),
        "DeadlineExceeded": _meaning(CONFIG_ERROR),
        # reason of the pod's condition DisruptionTarget
        "PreemptionByScheduler": _meaning(PREEMPTED),
        "EvictionByEvictionAPI": _meaning(EVICTED),
        "TerminationByKubelet": _meaning(EVICTED),
        "DeletionByTaintManager": _meaning(NODE_LOST, Strength.UNKNOWN),
    }
)
"""Reasons that decide by themselves. "Error", "Completed" and any other leave it to signal and code."""

SIGNALS: Final = MappingProxyType(
    {
        signals.SIGHUP: _meaning(PREEMPTED),
        signals.SIGTERM: _meaning(PREEMPTED),
        signals.SIGILL: _meaning(USER_ERROR),
        signals.SIGFPE: _meaning(USER_ERROR),
        signals.SIGSEGV: _meaning(USER_ERROR),
        # Nearly always c10d's watchdog ending a rank that waited.
        signals.SIGABRT: _meaning(NCCL_TIMEOUT),
        # Usually a full /dev/shm under a data loader.
        signals.SIGBUS: _meaning(CONFIG_ERROR),
        # Grace over, torchelastic's stop, or the kernel's OOM killer: only a reason tells.
        signals.SIGKILL: _meaning(SIGKILL),
    }
)

CODES: Final = MappingProxyType(
    {
        0: _meaning(NONE),
        # argparse and click; the shell's "not executable" and "not found".
        2: _meaning(CONFIG_ERROR),
        126: _meaning(CONFIG_ERROR),
        127: _meaning(CONFIG_ERROR),
        int(ExitCode.PREEMPTED_SAVED): _meaning(PREEMPTED),
        int(ExitCode.PREEMPTED_UNSAVED): _meaning(PREEMPTED),
        int(ExitCode.REFUSED): _meaning(RESUME_REFUSED),
        int(ExitCode.BAD_CONFIGURATION): _meaning(CONFIG_ERROR),
        int(ExitCode.FENCED): _meaning(FENCED),
        int(ExitCode.DAMAGED): _meaning(CHECKPOINT_DAMAGED),
        int(ExitCode.STORE_UNAVAILABLE): _meaning(STORAGE_IO),
    }
)


def classify_exit(exit_code: int | None, signal: int | None = None, reason: str = "") -> ExitMeaning:
    """Return what an end means. ``exit_code`` may be negative (a signal) or above 128; an end nobody can read is UNKNOWN.

    Exit code 1 is UNKNOWN on purpose: torchrun exits with it whatever its ranks died of.
    """
    if reason in REASONS:
        return REASONS[reason]
    number = signal or signal_of(exit_code)
    if number is not None:
        return SIGNALS.get(signals.Signals(number), _meaning(UNKNOWN)) if number in signals.valid_signals() else _meaning(UNKNOWN)
    return CODES.get(exit_code, _meaning(UNKNOWN)) if exit_code is not None else _meaning(UNKNOWN)


def signal_of(exit_code: int | None) -> int | None:
    """Return the signal an exit code stands for: -9 and 137 both mean 9. None for an ordinary code."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - SIGNAL_BASE
    return number if number in signals.valid_signals() else None
