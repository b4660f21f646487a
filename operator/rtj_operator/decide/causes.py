"""Causes that only the operator can see. Everything a log line, an Xid or an exit can say is in `trainer_runtime.signals.fault_classes`."""

from __future__ import annotations

from typing import Final

from trainer_runtime.signals.fault_classes import (
    CHECKPOINT_DAMAGED,
    CONFIG_ERROR,
    CUDA_ILLEGAL_ACCESS,
    CUDA_OOM,
    DEVICE_ASSERT,
    FENCED,
    GPU_APP_FAULT,
    HOST_OOM,
    IMAGE_PULL,
    RESUME_REFUSED,
)

BAD_CONFIGURATION: Final = "bad_configuration"
"""A worker says that its configuration cannot be used (exit 78)."""
STORE_UNAVAILABLE: Final = "store_unavailable"
"""A worker cannot reach the store, or it is not the store of this run (exit 81)."""
STUCK_POD: Final = "stuck_pod"
"""A pod of a Ready node that does not end."""
NOT_ENDED: Final = "not_ended"
"""Worker 0 is done and others neither reported done nor ended."""
NOT_STARTED: Final = "not_started"
"""A container that has not begun to run although every worker has had its node for long."""
STARTS_LATE: Final = "starts_late"
"""A gang whose containers all run and whose beats say that it has not begun to train, although every worker has had its node for long.
Whatever else is known of the attempt says more about why."""
PARTLY_SCHEDULED: Final = "partly_scheduled"
UNSCHEDULABLE: Final = "unschedulable"
"""The scheduler finds no node for any worker, and the job avoids some."""
SUPERSEDED: Final = "superseded"
"""The store or the cluster knows more than the status did: a newer checkpoint, a higher fence or attempt."""

STATED: Final = frozenset(
    {RESUME_REFUSED, BAD_CONFIGURATION, FENCED, CHECKPOINT_DAMAGED, STORE_UNAVAILABLE, STUCK_POD, NOT_ENDED, NOT_STARTED}
)
"""What a worker or the operator says outright: nothing has to be inferred, and nobody's stop can cause it."""
MEMORY: Final = frozenset({HOST_OOM, CUDA_OOM})
PROGRAM_ON_DEVICE: Final = frozenset({GPU_APP_FAULT, CUDA_ILLEGAL_ACCESS, DEVICE_ASSERT})
STARTUP: Final = frozenset({IMAGE_PULL, CONFIG_ERROR, BAD_CONFIGURATION})
"""The container or its configuration cannot be used."""
