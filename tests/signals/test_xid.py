"""Xid lines: the numbers' classes, the lines whose text decides, and the fields that name the device."""

from __future__ import annotations

import pytest

from tests.signals.lines import BY_ID, incidents_of, verdicts_of
from trainer_runtime.signals import classify_xid
from trainer_runtime.signals.fault_classes import DEFAULT_STRENGTH, NONE, XID_UNKNOWN
from trainer_runtime.signals.xid_table import XID_CLASSES


@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        (13, ("gpu_app_fault", "APP")),
        (31, ("gpu_app_fault", "APP")),
        (43, ("gpu_app_fault", "APP")),
        (69, ("gpu_app_fault", "APP")),
        (45, ("xid_derivative", "VICTIM")),
        (48, ("gpu_ecc_uncorrectable", "NODE")),
        (54, ("gpu_power", "NODE")),
        (62, ("gpu_internal_error", "NODE")),
        (63, ("gpu_row_remap_pending", "SUSPECT")),
        (64, ("gpu_row_remap_failure", "NODE")),
        (74, ("nvlink_error", "NODE")),
        (79, ("gpu_fallen_off", "NODE")),
        (94, ("gpu_ecc_contained", "SUSPECT")),
        (95, ("gpu_ecc_uncorrectable", "NODE")),
        (109, ("gpu_hang", "SUSPECT")),
        (119, ("gsp_error", "NODE")),
        (120, ("gsp_error", "NODE")),
        (140, ("gpu_ecc_uncorrectable", "NODE")),
        (158, ("gpu_reset_required", "NODE")),
        (9999, ("xid_unknown", "SUSPECT")),
    ],
)
def test_a_number_has_the_class_and_strength_of_the_table(xid: int, expected: tuple[str, str]) -> None:
    assert verdicts_of(f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=1, name=python, some text") == [expected]


@pytest.mark.parametrize("xid", [xid for xid, fault_class in XID_CLASSES.items() if fault_class == NONE])
def test_a_notice_is_no_incident(xid: int) -> None:
    assert verdicts_of(f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=1, name=python, some text") == []


def test_every_class_of_the_table_is_one_of_the_closed_list() -> None:
    assert {*XID_CLASSES.values(), classify_xid(-1)} <= DEFAULT_STRENGTH.keys()
    assert classify_xid(-1) == XID_UNKNOWN


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        pytest.param("NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)", [("nvlink_error", "NODE")], id="fatal"),
        pytest.param("NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x004505c6 0x0)", [], id="not fatal"),
        pytest.param("NETIR_LINK_EVT Fatal XC1 i0 Link -1 (0x004505c6 0x0)", [("nvlink_error", "NODE")], id="no link number"),
        pytest.param("NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x02500000 0x0)", [("nvlink_error", "SUSPECT")], id="sub-code 37: the peer"),
        pytest.param("some later driver's text", [("nvlink_error", "SUSPECT")], id="text we do not know"),
    ],
)
def test_the_severity_of_an_nvlink5_unit_decides(detail: str, expected: list[tuple[str, str]]) -> None:
    assert verdicts_of(f"NVRM: Xid (PCI:0018:01:00): 149, {detail}") == expected


@pytest.mark.parametrize(
    ("registers", "expected"),
    [
        pytest.param("0x0, 0x0, 0x10000", [("nvlink_error", "NODE")], id="a bit in a later register"),
        pytest.param("0x400000, 0x0, 0x0", [("nvlink_error", "NODE")], id="signal integrity"),
        pytest.param("0x100002, 0x0, 0x0", [("nvlink_error", "SUSPECT")], id="only sympathetic bits"),
        pytest.param("0x100003, 0x0, 0x0", [("nvlink_error", "SUSPECT")], id="sympathetic and meaningless bits"),
        pytest.param("0x800001, 0x0, 0x0", [], id="only meaningless bits"),
        pytest.param("0x0, 0x0, 0x0", [("nvlink_error", "NODE")], id="no bit at all"),
    ],
)
def test_the_registers_of_xid_74_decide(registers: str, expected: list[tuple[str, str]]) -> None:
    text = f"NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14({registers})"
    assert verdicts_of(text) == expected


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("None", []),
        ("GPU Reset Required", [("gpu_reset_required", "NODE")]),
        ("Node Reboot Required", [("gpu_reset_required", "NODE")]),
        ("Drain and Reset", [("gpu_reset_required", "NODE")]),
        ("Drain P2P", [("gpu_reset_required", "SUSPECT")]),
        ("Something Newer", [("gpu_reset_required", "SUSPECT")]),
    ],
)
def test_the_action_that_xid_154_changes_to_decides(action: str, expected: list[tuple[str, str]]) -> None:
    assert verdicts_of(f"NVRM: Xid (PCI:0019:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 ({action})") == expected


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        pytest.param("M44", {"gpu": "0000:01:00", "gpu_instance": 5, "xid": 94, "pid": 7194}, id="MIG"),
        pytest.param("M43", {"gpu": "0000:10:1c", "xid": 63, "pid": 1896}, id="hexadecimal device"),
        pytest.param("M54", {"gpu": "0000:dc:00", "xid": 45, "process": "python3", "caused_by_xid": 149}, id="caused by another Xid"),
        pytest.param("M58", {"gpu": "0008:01:00", "unit": "NETIR_LINK_EVT", "link": 8, "subcode": 4}, id="NVLink 5"),
        pytest.param("M39", {"gpu": "0000:a1:00", "xid": 79}, id="no process"),
    ],
)
def test_the_fields_of_an_xid_line_are_read(case: str, fields: dict[str, object]) -> None:
    (finding,) = incidents_of(BY_ID[case].text)
    assert {name: finding.fields.get(name) for name in fields} == fields
    assert "<unknown>" not in str(finding.fields)


def test_a_process_name_may_hold_colons() -> None:
    (finding,) = incidents_of("NVRM: Xid (PCI:0018:01:00): 48, pid=876767, name=ray::WorkerDict, DBE")
    assert finding.fields["process"] == "ray::WorkerDict"


def test_the_three_lines_of_a_lost_gpu_name_it_even_when_others_print_in_between() -> None:
    first, second, third = BY_ID["M34"].text.split("\n")
    log = f"[1.5] {first}\nstep 3\n[1.5] {second}\nmlx5_core: fine\n[1.5] {third}\n"
    (finding,) = incidents_of(log)
    assert (finding.fault_class, finding.fields["gpu"], len(finding.lines)) == ("gpu_fallen_off", "0000:b3:00", 3)


def test_the_one_line_form_of_a_lost_gpu_joins_its_xid() -> None:
    (finding,) = incidents_of(f"NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.\n{BY_ID['M39'].text}\n")
    assert (finding.fault_class, finding.fields["gpu"]) == ("gpu_fallen_off", "0000:a1:00")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 00 sourcetrack timeout", [("nvlink_error", "NODE")]),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error", []),
    ],
)
def test_only_a_fatal_sxid_is_an_incident(text: str, expected: list[tuple[str, str]]) -> None:
    assert verdicts_of(text) == expected
