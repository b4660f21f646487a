"""Lines about a GPU that carry no Xid: the driver's other words, NVSwitch, nvidia-smi, and CUDA errors as programs print them.

Xids are read by `xid`. A CUDA error is read wherever it is printed: in an exception, in NCCL's warning, inside c10d's watchdog line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import (
    CONFIG_ERROR,
    CUDA_ERROR,
    CUDA_ILLEGAL_ACCESS,
    CUDA_OOM,
    DEVICE_ASSERT,
    GPU_APP_FAULT,
    GPU_ECC_UNCORRECTABLE,
    GPU_FALLEN_OFF,
    NONE,
    NVLINK_ERROR,
)
from trainer_runtime.signals.finding import FieldValue, Sighting, sighting
from trainer_runtime.signals.log_line import LogLine
from trainer_runtime.signals.rules import canonical_bus_id, rule

_BUS_ID: Final = r"(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"

DRIVER_RULES: Final = (
    # NVRM's one-line form, without an Xid (NVIDIA/NVSentinel#155, leptonai/gpud#1209).
    rule("NVRM: GPU ", GPU_FALLEN_OFF, rf"NVRM: GPU {_BUS_ID}: GPU has fallen off the bus", family="gpu", merge_by=("gpu",)),
    # nvidia-smi, when the driver cannot reach a GPU it knows (akash-network/support#209); newer ones put a space before the bus id.
    rule("Unable to determine the device handle", GPU_FALLEN_OFF, rf"for GPU ?{_BUS_ID}", family="gpu", merge_by=("gpu",)),
    # The NVSwitch driver, in the kernel log.
    rule("SXid (PCI:", NVLINK_ERROR, r"SXid \(PCI:(?P<switch>[0-9a-fA-F:.]+)\): (?P<sxid>\d{1,9}), Fatal", merge_by=("switch",)),
    # Fabric manager: a fatal SXid concerns every GPU of its machine (NVIDIA/gpu-operator#610).
    rule(
        "detected NVSwitch fatal error",
        NVLINK_ERROR,
        r"NVSwitch fatal error (?P<sxid>\d{1,9}) .*NVSwitch pci bus id (?P<switch>[0-9a-fA-F:.]+)",
        merge_by=("switch",),
    ),
    # nv_peer_mem; its maintainer: harmless on drivers before R560 (Mellanox/nv_peer_memory#120).
    rule("nv_get_p2p_free_callback", NONE),
)

CUDA_RULES: Final = (
    # cudaErrorECCUncorrectable: the last line of a traceback (vllm-project/vllm#5222), or NCCL's "Cuda failure '…'".
    rule("uncorrectable ECC error encountered", GPU_ECC_UNCORRECTABLE),
    # cudaErrorNvlinkUncorrectable.
    rule("uncorrectable NVLink error detected", NVLINK_ERROR),
    # cudaErrorContained: either end of the link (marin-community/marin#8934).
    rule("peer GPU memory over nvlink or a hardware error", NVLINK_ERROR, strength=Strength.SUSPECT),
    rule("an illegal memory access was encountered", CUDA_ILLEGAL_ACCESS),
    rule("device-side assert triggered", DEVICE_ASSERT),
    # The caching allocator, every torch version; the class name changed in 2.5.
    rule("CUDA out of memory", CUDA_OOM, r"CUDA out of memory\.? Tried to allocate (?P<wanted>[\d.]{1,20} \w{1,5})"),
    rule("CUDA out of memory", CUDA_OOM),
    # cudaErrorMemoryAllocation outside the allocator.
    rule("CUDA error: out of memory", CUDA_OOM),
    rule("Cuda failure", CUDA_OOM, r"Cuda failure (?:\d+ )?'out of memory'"),
    rule("CUDA error: unspecified launch failure", GPU_APP_FAULT),
    rule("CUDA error: misaligned address", GPU_APP_FAULT),
    rule("CUDA error: an illegal instruction", GPU_APP_FAULT),
    # Built for another GPU, or no GPU in the container.
    rule("CUDA error: no kernel image is available", CONFIG_ERROR),
    rule("CUDA error: invalid device ordinal", CONFIG_ERROR),
    rule("RuntimeError: No CUDA GPUs are available", CONFIG_ERROR),
    rule("CUDA error: ", CUDA_ERROR, r"CUDA error: (?P<cuda_error>[^,;(]{1,80})", merge_by=("cuda_error",)),
)

OFF_BUS_LITERAL: Final = "NVRM: The NVIDIA GPU "
OFF_BUS_START: Final = re.compile(rf"NVRM: The NVIDIA GPU {_BUS_ID}")
OFF_BUS_END: Final = "NVRM: fallen off the bus and is not responding"
OFF_BUS_LINES: Final = 6
"""NVRM lines within which the three-line message must be complete."""


@dataclass
class OffBusReader:
    """The driver's three-line message (NVIDIA/NVSentinel#155): the GPU is named in the first line, the fault in the third."""

    _gpu: str = ""
    _lines: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        """Whether a first line was seen and the last one was not."""
        return bool(self._gpu)

    def read(self, line: LogLine) -> Sighting | None:
        """Take one line; return the fault at its last line."""
        start = OFF_BUS_START.search(line.body) if OFF_BUS_LITERAL in line.body else None
        if start:
            self._gpu, self._lines = canonical_bus_id(start["gpu"]), [line.text]
            return None
        if "NVRM:" not in line.body:
            return None
        if self.waiting:
            self._lines.append(line.text)
        if OFF_BUS_END in line.body:
            fields: dict[str, FieldValue] = {"gpu": self._gpu} if self._gpu else {}
            lines = tuple(self._lines) or (line.text,)
            found = sighting(GPU_FALLEN_OFF, fields=fields, key=("gpu", self._gpu), lines=lines, anchor=" / ".join(lines))
            self._gpu, self._lines = "", []
            return found
        if len(self._lines) >= OFF_BUS_LINES:
            self._gpu, self._lines = "", []
        return None
