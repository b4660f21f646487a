"""The closed list of fault classes and how strong each is by default. One constant for each name; nobody writes the string twice.

It is not a parser: a line, an Xid or a condition may carry more or less weight than its class's default, and then whoever saw it says so.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from trainer_runtime.contract.evidence import Strength

# The GPU and what hangs on it.
GPU_ECC_UNCORRECTABLE: Final = "gpu_ecc_uncorrectable"
GPU_ECC_CONTAINED: Final = "gpu_ecc_contained"
GPU_ROW_REMAP_PENDING: Final = "gpu_row_remap_pending"
GPU_ROW_REMAP_FAILURE: Final = "gpu_row_remap_failure"
GPU_FALLEN_OFF: Final = "gpu_fallen_off"
GPU_RESET_REQUIRED: Final = "gpu_reset_required"
GPU_INTERNAL_ERROR: Final = "gpu_internal_error"
"""A microcontroller, the security engine or the whole chip stopped answering (Xid 46, 62, 110, 136)."""
GPU_POWER: Final = "gpu_power"
GPU_HANG: Final = "gpu_hang"
GSP_ERROR: Final = "gsp_error"
NVLINK_ERROR: Final = "nvlink_error"
PCIE_ERROR: Final = "pcie_error"
XID_UNKNOWN: Final = "xid_unknown"
XID_DERIVATIVE: Final = "xid_derivative"
"""Xid 45: a channel was removed because of something else, often because a process was being stopped."""
DEVICE_ADMISSION: Final = "device_admission"

# The program on the GPU.
GPU_APP_FAULT: Final = "gpu_app_fault"
CUDA_ILLEGAL_ACCESS: Final = "cuda_illegal_access"
DEVICE_ASSERT: Final = "device_assert"
CUDA_ERROR: Final = "cuda_error"
"""A CUDA error with no direction of its own."""
CUDA_OOM: Final = "cuda_oom"

# Ranks waiting for each other.
NCCL_TIMEOUT: Final = "nccl_timeout"
NCCL_REMOTE_ERROR: Final = "nccl_remote_error"
NCCL_SYSTEM_ERROR: Final = "nccl_system_error"
HANG: Final = "hang"
RDZV_TIMEOUT: Final = "rdzv_timeout"

# The network.
IB_LINK: Final = "ib_link"
NIC_FAULT: Final = "nic_fault"
NETWORK_ERROR: Final = "network_error"
"""A connection of the program's own (data, object store, tracking), not one between ranks."""

# The machine.
NODE_LOST: Final = "node_lost"
CPU_FAULT: Final = "cpu_fault"
HOST_MEMORY_ERROR: Final = "host_memory_error"
NODE_MEMORY_PRESSURE: Final = "node_memory_pressure"
DISK_PRESSURE: Final = "disk_pressure"
STORAGE_IO: Final = "storage_io"

# The program and its settings.
HOST_OOM: Final = "host_oom"
USER_ERROR: Final = "user_error"
NUMERIC: Final = "numeric"
CONFIG_ERROR: Final = "config_error"
IMAGE_PULL: Final = "image_pull"
SIGKILL: Final = "sigkill"
RESUME_REFUSED: Final = "resume_refused"
CHECKPOINT_DAMAGED: Final = "checkpoint_damaged"
FENCED: Final = "fenced"

# Kubernetes took the place away, or never gave it.
PREEMPTED: Final = "preempted"
EVICTED: Final = "evicted"
CAPACITY: Final = "capacity"

UNKNOWN: Final = "unknown"
NONE: Final = "none"

DEFAULT_STRENGTH: Final = MappingProxyType(
    {
        GPU_ECC_UNCORRECTABLE: Strength.NODE,
        GPU_ECC_CONTAINED: Strength.SUSPECT,
        GPU_ROW_REMAP_PENDING: Strength.SUSPECT,
        GPU_ROW_REMAP_FAILURE: Strength.NODE,
        GPU_FALLEN_OFF: Strength.NODE,
        GPU_RESET_REQUIRED: Strength.NODE,
        GPU_INTERNAL_ERROR: Strength.NODE,
        GPU_POWER: Strength.NODE,
        GPU_HANG: Strength.SUSPECT,
        GSP_ERROR: Strength.NODE,
        NVLINK_ERROR: Strength.NODE,
        PCIE_ERROR: Strength.SUSPECT,
        XID_UNKNOWN: Strength.SUSPECT,
        XID_DERIVATIVE: Strength.VICTIM,
        DEVICE_ADMISSION: Strength.SUSPECT,
        GPU_APP_FAULT: Strength.APP,
        CUDA_ILLEGAL_ACCESS: Strength.APP,
        DEVICE_ASSERT: Strength.APP,
        CUDA_ERROR: Strength.UNKNOWN,
        CUDA_OOM: Strength.APP,
        NCCL_TIMEOUT: Strength.VICTIM,
        NCCL_REMOTE_ERROR: Strength.VICTIM,
        NCCL_SYSTEM_ERROR: Strength.UNKNOWN,
        HANG: Strength.VICTIM,
        RDZV_TIMEOUT: Strength.UNKNOWN,
        IB_LINK: Strength.SUSPECT,
        NIC_FAULT: Strength.NODE,
        NETWORK_ERROR: Strength.ENV,
        NODE_LOST: Strength.VICTIM,
        CPU_FAULT: Strength.SUSPECT,
        HOST_MEMORY_ERROR: Strength.NODE,
        NODE_MEMORY_PRESSURE: Strength.ENV,
        DISK_PRESSURE: Strength.ENV,
        STORAGE_IO: Strength.ENV,
        HOST_OOM: Strength.APP,
        USER_ERROR: Strength.APP,
        NUMERIC: Strength.APP,
        CONFIG_ERROR: Strength.APP,
        IMAGE_PULL: Strength.APP,
        SIGKILL: Strength.UNKNOWN,
        RESUME_REFUSED: Strength.APP,
        CHECKPOINT_DAMAGED: Strength.ENV,
        FENCED: Strength.ENV,
        PREEMPTED: Strength.ENV,
        EVICTED: Strength.ENV,
        CAPACITY: Strength.ENV,
        UNKNOWN: Strength.UNKNOWN,
        NONE: Strength.BENIGN,
    }
)
"""Every class once. ``node_lost`` is VICTIM here because a log line that says so comes from a survivor."""
