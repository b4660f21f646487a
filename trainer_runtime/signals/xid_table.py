"""What each Xid number means here. Data only; `xid` reads the lines.

Sources: NVIDIA's Xid catalogue as NVSentinel ships it, the fatal list of the EKS node monitoring agent, the ignore list of NVIDIA's device
plugin, gpud's catalogue. They disagree; the choice is ours. Numbers whose line decides (74, 144-150, 154) carry the class and the strength
of their worst form.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import (
    GPU_APP_FAULT,
    GPU_ECC_CONTAINED,
    GPU_ECC_UNCORRECTABLE,
    GPU_FALLEN_OFF,
    GPU_HANG,
    GPU_INTERNAL_ERROR,
    GPU_POWER,
    GPU_RESET_REQUIRED,
    GPU_ROW_REMAP_FAILURE,
    GPU_ROW_REMAP_PENDING,
    GSP_ERROR,
    NONE,
    NVLINK_ERROR,
    XID_DERIVATIVE,
    XID_UNKNOWN,
)

NVLINK5_XIDS: Final = range(144, 151)
"""Their text says which unit failed and whether it is fatal."""
NVLINK_XID: Final = 74
RECOVERY_ACTION_XID: Final = 154
"""The driver's own verdict about a fault that it also reported by another Xid."""

# Application and driver faults: an illegal instruction, a bad address, a reset channel. A restart of the program cures them.
_APP: Final = (8, 11, 13, 25, 31, 32, *range(39, 42), 43, 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, *range(96, 106))
_APP_LATER: Final = (*range(126, 136), 139)
# Notices: NVIDIA's action is IGNORE. 92 is a rate of corrected errors, 163 closes a 162.
_NOTICES: Final = (14, 37, 38, 44, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 161, 163)

XID_CLASSES: Final = MappingProxyType(
    {
        **dict.fromkeys((*_APP, *_APP_LATER), GPU_APP_FAULT),
        **dict.fromkeys(_NOTICES, NONE),
        **dict.fromkeys(NVLINK5_XIDS, NVLINK_ERROR),
        45: XID_DERIVATIVE,
        46: GPU_INTERNAL_ERROR,
        48: GPU_ECC_UNCORRECTABLE,
        54: GPU_POWER,
        62: GPU_INTERNAL_ERROR,
        63: GPU_ROW_REMAP_PENDING,
        64: GPU_ROW_REMAP_FAILURE,
        NVLINK_XID: NVLINK_ERROR,
        79: GPU_FALLEN_OFF,
        94: GPU_ECC_CONTAINED,
        95: GPU_ECC_UNCORRECTABLE,
        109: GPU_HANG,
        110: GPU_INTERNAL_ERROR,
        119: GSP_ERROR,
        120: GSP_ERROR,
        136: GPU_INTERNAL_ERROR,
        140: GPU_ECC_UNCORRECTABLE,
        143: GPU_RESET_REQUIRED,
        151: GPU_RESET_REQUIRED,
        RECOVERY_ACTION_XID: GPU_RESET_REQUIRED,
        155: GPU_RESET_REQUIRED,
        156: GPU_RESET_REQUIRED,
        158: GPU_RESET_REQUIRED,
        160: GPU_RESET_REQUIRED,
        162: GPU_RESET_REQUIRED,
    }
)
"""Xid -> fault class. A number that is not here is XID_UNKNOWN: one strike, never a cordon by itself."""

RECOVERY_ACTIONS: Final = MappingProxyType(
    {
        "None": Strength.BENIGN,
        "GPU Reset Required": Strength.NODE,
        "Node Reboot Required": Strength.NODE,
        "Drain and Reset": Strength.NODE,
        "Drain P2P": Strength.SUSPECT,
    }
)
"""The action an Xid 154 changes to, in the driver's words; the same five values NVML reports from driver r570 on."""


def classify_xid(xid: int) -> str:
    """Return the fault class of an Xid number, for a reader without the line (NVML events)."""
    return XID_CLASSES.get(xid, XID_UNKNOWN)
