"""Reads Xid lines of NVIDIA's kernel driver. One parser for every form of them; the numbers' meanings are in `xid_table`.

The form is krcReportXid's of NVIDIA/open-gpu-kernel-modules (kernel_rc.c):
``NVRM: Xid (PCI:dddd:bb:dd[ GPU-I:nn[ GPU-CI:nn]]): N, [pid=P, name=NAME, ]text[ caused by previous Xid M]``.
Old drivers print no ``PCI:`` and no pid. The domain may be non-zero (GB200), the device digit hexadecimal (AWS).
"""

from __future__ import annotations

import re
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import DEFAULT_STRENGTH, NONE, NVLINK_ERROR, XID_DERIVATIVE
from trainer_runtime.signals.finding import FieldValue, Sighting, sighting
from trainer_runtime.signals.rules import canonical_bus_id, read_field
from trainer_runtime.signals.xid_table import NVLINK5_XIDS, NVLINK_XID, RECOVERY_ACTION_XID, RECOVERY_ACTIONS, classify_xid

XID_LITERAL: Final = "NVRM: Xid ("
HEAD: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"
    r"(?: GPU-I:(?P<gpu_instance>\d+)(?: GPU-CI:(?P<compute_instance>\d+))?)?\): (?P<xid>\d{1,9})(?:, |$|\s)"
)
PROCESS: Final = re.compile(r"pid=(?P<pid>'?<?\w+>?'?)(?:, name=(?P<process>[^,]*))?, ")
"""Absent without a channel; pid may be ``'<unknown>'`` or ``<unknown>``, and the name may hold ``::``."""
CAUSED_BY: Final = re.compile(r" caused by previous Xid (?P<cause>\d{1,9})\s*$")
NVLINK5_UNIT: Final = re.compile(
    r"(?P<unit>\w+) (?P<severity>Fatal|Nonfatal) XC[01] i\d+ Link (?P<link>-?\d+) \((?P<word>0x[0-9a-fA-F]{1,8})"
)
RECOVERY: Final = re.compile(r"GPU recovery action changed from \w+ \([^)]*\) to \w+ \((?P<recovery_action>[^)]*)\)")
NVLINK_REGISTERS: Final = re.compile(r"on link (?P<link>\d+) ?\((?P<registers>0x[0-9a-fA-F]+(?:, ?0x[0-9a-fA-F]+)*)\)")
LOOK_AT_PEER_SUBCODE: Final = 37
"""NVLink 5: the device at the other end of the link is the one to look at."""
SYMPATHETIC_BITS: Final = frozenset({1, 20})
"""Xid 74, first register: this end only reports what the other end did (NVSentinel's analyzer rules)."""
IGNORED_BITS: Final = frozenset({0, 23, 30})


def read_xid(body: str) -> Sighting | None:
    """Return what an Xid line says, BENIGN notices included, or None when ``body`` is no Xid line."""
    head = HEAD.search(body) if XID_LITERAL in body else None
    if head is None:
        return None
    fields = {name: read_field(name, value) for name, value in head.groupdict().items() if value is not None}
    xid = int(head["xid"])
    fields["xid"] = xid
    fields["xids"] = (xid,)
    detail = body[head.end() :]
    process = PROCESS.match(detail)
    if process:
        fields |= {name: read_field(name, value) for name, value in process.groupdict().items() if value and "<unknown>" not in value}
        detail = detail[process.end() :]
    key = ("gpu", canonical_bus_id(head["gpu"]))

    cause = CAUSED_BY.search(detail)
    if cause:
        return sighting(XID_DERIVATIVE, fields=fields | {"caused_by_xid": int(cause["cause"])}, key=key)
    fault_class = classify_xid(xid)
    strength = DEFAULT_STRENGTH[fault_class]
    if xid in NVLINK5_XIDS:
        strength, extra = _nvlink5(detail)
    elif xid == NVLINK_XID:
        strength, extra = _nvlink(detail)
    elif xid == RECOVERY_ACTION_XID:
        strength, extra = _recovery(detail)
    else:
        extra = {}
    return sighting(NONE if strength is Strength.BENIGN else fault_class, strength, fields | extra, key)


def _nvlink5(detail: str) -> tuple[Strength, dict[str, FieldValue]]:
    """Xids 144-150: the severity word decides; bits 20-25 of the first word are the sub-code."""
    match = NVLINK5_UNIT.search(detail)
    if match is None:
        return Strength.SUSPECT, {}
    subcode = (int(match["word"], 16) >> 20) & 0x3F
    fields: dict[str, FieldValue] = {"unit": match["unit"], "severity": match["severity"], "link": int(match["link"]), "subcode": subcode}
    if match["severity"] == "Nonfatal":
        return Strength.BENIGN, fields
    return Strength.SUSPECT if subcode == LOOK_AT_PEER_SUBCODE else Strength.NODE, fields


def _nvlink(detail: str) -> tuple[Strength, dict[str, FieldValue]]:
    """Xid 74: fatal, unless every bit that is set only says that the other end failed, or means nothing."""
    match = NVLINK_REGISTERS.search(detail)
    if match is None:
        return DEFAULT_STRENGTH[NVLINK_ERROR], {}
    first, *others = (int(word, 16) for word in match["registers"].split(","))
    fields: dict[str, FieldValue] = {"link": int(match["link"])}
    bits = {bit for bit in range(first.bit_length()) if first >> bit & 1}
    if any(others) or not bits:
        return Strength.NODE, fields
    if bits <= IGNORED_BITS:
        return Strength.BENIGN, fields
    return Strength.SUSPECT if bits - IGNORED_BITS <= SYMPATHETIC_BITS else Strength.NODE, fields


def _recovery(detail: str) -> tuple[Strength, dict[str, FieldValue]]:
    """Xid 154: the action it changes to. A word we do not know is one strike."""
    match = RECOVERY.search(detail)
    if match is None:
        return Strength.SUSPECT, {}
    return RECOVERY_ACTIONS.get(match["recovery_action"], Strength.SUSPECT), {"recovery_action": match["recovery_action"]}
