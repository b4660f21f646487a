"""Which Node conditions speak of a bad machine: a table, because every agent has its own names and its own polarity.

Rows come from the agents' own documents: node-problem-detector (NPD), NVSentinel, AKS and EKS. It is not a judgement about a job: a bad
condition becomes evidence, and `attribution` weighs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rtj_operator.decide.observation import NodeCondition, NodeView
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals import fault_classes as classes
from trainer_runtime.signals.fault_classes import DEFAULT_STRENGTH
from trainer_runtime.signals.xid_table import classify_xid


@dataclass(frozen=True)
class ConditionRule:
    """One condition type: which status is bad, and what that says."""

    type: str
    bad_status: str
    """``True`` or ``False``; Unknown is never bad, because it means that the agent is silent."""
    fault_class: str
    strength: Strength
    """NODE: reason enough to move the job. SUSPECT and ENV only count beside a failure."""


def _rules(bad_status: str, strength: Strength, by_type: dict[str, str]) -> tuple[ConditionRule, ...]:
    return tuple(ConditionRule(type_, bad_status, fault_class, strength) for type_, fault_class in by_type.items())


KERNEL_DEADLOCK: Final = "kernel_deadlock"
HARDWARE_ERROR: Final = "hardware_error"
KUBELET_PROBLEM: Final = "kubelet_problem"
GPU_THERMAL: Final = "gpu_thermal"
"""Classes that only a node's agent can see."""

_NPD: Final = (
    *_rules(
        "True",
        Strength.NODE,
        {
            "KernelDeadlock": KERNEL_DEADLOCK,
            "ReadonlyFilesystem": classes.STORAGE_IO,
            "XfsShutdown": classes.STORAGE_IO,
            "CperHardwareErrorFatal": HARDWARE_ERROR,
        },
    ),
    *_rules(
        "True",
        Strength.SUSPECT,
        {
            "FrequentKubeletRestart": KUBELET_PROBLEM,
            "FrequentContainerdRestart": KUBELET_PROBLEM,
            "FrequentDockerRestart": KUBELET_PROBLEM,
            "FrequentUnregisterNetDevice": classes.NIC_FAULT,
        },
    ),
)
_NVSENTINEL: Final = _rules(
    "True",
    Strength.NODE,
    {
        "GpuMemWatch": classes.GPU_ECC_UNCORRECTABLE,
        "GpuSmWatch": classes.GPU_ECC_UNCORRECTABLE,
        "GpuNvlinkWatch": classes.NVLINK_ERROR,
        "GpuPcieWatch": classes.GPU_FALLEN_OFF,
        "GpuInforomWatch": classes.GPU_RESET_REQUIRED,
        "GpuPowerWatch": classes.GPU_POWER,
        "GpuDriverWatch": classes.GSP_ERROR,
        "SysLogsXIDError": classes.GPU_RESET_REQUIRED,
        "SysLogsSXIDError": classes.NVLINK_ERROR,
        "SysLogsGPUFallenOff": classes.GPU_FALLEN_OFF,
        "NVSwitchFatalError": classes.NVLINK_ERROR,
    },
) + _rules("True", Strength.SUSPECT, {"GpuThermalWatch": GPU_THERMAL})
_AKS: Final = _rules(
    "True",
    Strength.NODE,
    {"GPUMissing": classes.GPU_FALLEN_OFF, "NVLinkStatusInactive": classes.NVLINK_ERROR, "FilesystemCorruptionProblem": classes.STORAGE_IO},
) + _rules(
    "True",
    Strength.SUSPECT,
    {
        "XIDErrors": classes.GPU_HANG,  # any Xid, the program's own among them
        "IBLinkFlapping": classes.IB_LINK,
        "GPUClockThrottling": GPU_THERMAL,
        "UnhealthyNvidiaDevicePlugin": classes.DEVICE_ADMISSION,
        "KubeletProblem": KUBELET_PROBLEM,
        "ContainerRuntimeProblem": KUBELET_PROBLEM,
    },
)
_EKS: Final = _rules(
    "False",
    Strength.NODE,
    {"AcceleratedHardwareReady": classes.GPU_RESET_REQUIRED, "KernelReady": KERNEL_DEADLOCK, "StorageReady": classes.STORAGE_IO},
) + _rules("False", Strength.SUSPECT, {"NetworkingReady": classes.NIC_FAULT, "ContainerRuntimeReady": KUBELET_PROBLEM})
_KUBELET: Final = _rules(
    "True",
    Strength.ENV,
    {
        "DiskPressure": classes.EVICTED,
        "MemoryPressure": classes.EVICTED,
        "PIDPressure": classes.EVICTED,
        "NetworkUnavailable": classes.NIC_FAULT,
    },
)

CONDITION_RULES: Final[tuple[ConditionRule, ...]] = (*_NPD, *_NVSENTINEL, *_AKS, *_EKS, *_KUBELET)
"""Readiness is not here: a Node that is not Ready is a matter of `liveness`."""

_XID: Final = re.compile(r"(?:\bXid\D{0,24}?|NvidiaXID|^\[)(\d{1,3})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class BadCondition:
    """A condition of a node that a rule calls bad, with the class refined by the Xid that its reason or message names."""

    condition: NodeCondition
    fault_class: str
    strength: Strength


def bad_conditions(node: NodeView, rules: Iterable[ConditionRule]) -> tuple[BadCondition, ...]:
    """Return the conditions of a node that are bad now, in the order of the rules. The first rule for a type rules."""
    present = {condition.type: condition for condition in node.conditions}
    found: dict[str, BadCondition] = {}
    for rule in rules:
        condition = present.get(rule.type)
        if condition is not None and condition.status == rule.bad_status and rule.type not in found:
            found[rule.type] = _refined(condition, rule)
    return tuple(found.values())


def _refined(condition: NodeCondition, rule: ConditionRule) -> BadCondition:
    named = _XID.search(condition.reason) or _XID.search(condition.message)
    fault_class = classify_xid(int(named[1])) if named else rule.fault_class
    if DEFAULT_STRENGTH.get(fault_class) is Strength.NODE and rule.strength in (Strength.NODE, Strength.SUSPECT):
        return BadCondition(condition, fault_class, Strength.NODE if named else rule.strength)
    return BadCondition(condition, rule.fault_class, rule.strength)
