"""Reads lines of the Linux kernel that are not about a GPU: memory, processors, disks, network file systems, network cards.

A bare ``Killed`` is not here: it is no proof of memory. What the kubelet says is read by `kubelet`.
"""

from __future__ import annotations

from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import (
    CPU_FAULT,
    HOST_MEMORY_ERROR,
    HOST_OOM,
    IB_LINK,
    NODE_MEMORY_PRESSURE,
    NONE,
    PCIE_ERROR,
    STORAGE_IO,
    USER_ERROR,
)
from trainer_runtime.signals.rules import rule

MEMORY_RULES: Final = (
    # The container's own limit.
    rule("Memory cgroup out of memory", HOST_OOM, r"out of memory: Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<process>[^)]{0,64})\)"),
    # The whole machine ran out: not this job's limit.
    rule("Out of memory: Kill", NODE_MEMORY_PRESSURE, r"Out of memory: Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<process>[^)]{0,64})\)"),
    # EDAC: UE is uncorrected, CE corrected.
    rule("EDAC MC", HOST_MEMORY_ERROR, r"EDAC MC\d{1,3}: \d{1,9} UE "),
)

PROCESSOR_RULES: Final = (
    # watchdog: BUG: soft lockup - CPU#18 stuck for 27s!
    rule("watchdog: BUG: soft lockup", CPU_FAULT, r"BUG: soft lockup - CPU#(?P<cpu>\d{1,6}) stuck for", merge_by=("cpu",)),
    rule("Watchdog detected hard LOCKUP", CPU_FAULT, r"hard LOCKUP on cpu (?P<cpu>\d{1,6})", merge_by=("cpu",)),
    # mce: [Hardware Error]: CPU 3: Machine Check Exception
    rule("Machine Check Exception", CPU_FAULT, r"CPU (?P<cpu>\d{1,6}): Machine Check Exception", merge_by=("cpu",)),
    # A program's own crash, e.g. in a library; the machine only if other jobs crash there too.
    rule("segfault at ", USER_ERROR, r"(?P<process>[^\s\[]{1,64})\[(?P<pid>\d{1,10})\]: segfault at [0-9a-f]"),
)

BUS_RULES: Final = (
    # pcieport …: AER: Corrected error received; a rate of them might matter, one does not.
    rule("AER: Corrected error", NONE),
    rule(
        "AER: Uncorrect",
        PCIE_ERROR,
        r"(?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): AER: Uncorrect(?:ed|able) \(Fatal\)",
        merge_by=("device",),
    ),
)

STORAGE_RULES: Final = (
    # A local file system gave up (NPD's ReadonlyFilesystem and XfsShutdown).
    rule(
        "Remounting filesystem read-only",
        STORAGE_IO,
        r"EXT4-fs (?:error )?\((?:device )?(?P<device>[^)]{1,40})\)",
        Strength.NODE,
        merge_by=("device",),
    ),
    rule("Shutting down filesystem", STORAGE_IO, r"XFS \((?P<device>[^)]{1,40})\): ", Strength.NODE, merge_by=("device",)),
    # A local disk that stopped answering, or answers with errors.
    rule("nvme nvme", STORAGE_IO, r"nvme (?P<device>nvme\d{1,4}): I/O .{0,120}timeout", Strength.SUSPECT, merge_by=("device",)),
    rule(
        "I/O error, dev ",
        STORAGE_IO,
        r"I/O error, dev (?P<device>nvme\w{1,20}|sd[a-z]{1,3}|md\d{1,4}), sector",
        Strength.SUSPECT,
        merge_by=("device",),
    ),
    # A shared file system: many machines at once, nobody's fault here. "nfs: server … OK" ends it and is not read.
    rule("not responding", STORAGE_IO, r"nfs: server (?P<server>\S{1,200}) not responding", merge_by=("server",)),
    # A task in uninterruptible sleep waits for storage.
    rule("blocked for more than", STORAGE_IO, r"INFO: task (?P<process>\S{1,64}):(?P<pid>\d{1,10}) blocked for more than \d{1,9} seconds"),
)

NETWORK_RULES: Final = (
    # mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link DOWN ("Link ACTIVE" is a boot or a recovery).
    rule("Link DOWN", IB_LINK, r"mlx5_core \S{1,40} (?P<hca>mlx5_\d{1,4}): Port: \d{1,3} Link DOWN", merge_by=("hca",)),
    # Optics: unplugged, too hot.
    rule("Port module event[error]", IB_LINK),
)

RULES: Final = (*MEMORY_RULES, *PROCESSOR_RULES, *BUS_RULES, *STORAGE_RULES, *NETWORK_RULES)
