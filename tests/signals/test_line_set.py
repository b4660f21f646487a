"""The line set, and variants of it that a real cluster would print: other prefixes, ranks, times, bus ids, pids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signals.lines import BY_ID, CASES, Case, log_of, verdicts_of

ids = [case.id for case in CASES]


def test_the_line_set_is_complete() -> None:
    assert ids == [f"M{number:02d}" for number in range(1, 108)]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_line_gets_the_verdict_of_the_line_set(case: Case) -> None:
    assert verdicts_of(case.text, case.training_done) == case.expected


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_windows_line_ends_and_no_last_line_end_change_nothing(case: Case) -> None:
    assert verdicts_of(case.text.replace("\n", "\r\n"), case.training_done) == case.expected
    assert verdicts_of(case.text + "\n", case.training_done) == case.expected


def test_a_stuck_watchdog_is_a_hang_while_the_training_is_not_done() -> None:
    assert verdicts_of(BY_ID["M09"].text) == [("hang", "VICTIM")]


def test_no_line_of_a_victim_or_of_the_program_blames_a_machine() -> None:
    blamed = [
        case.id for case in CASES if case.verdict not in ("NODE", "SUSPECT") and any("NODE" in each for each in verdicts_of(case.text))
    ]
    assert blamed == []


# --- variants ---

hexadecimal = st.text("0123456789abcdef", min_size=2, max_size=2)
bus_ids = st.builds("{}:{}:{}".format, st.sampled_from(["0000", "0009", "0018", "0002"]), hexadecimal, hexadecimal)
ranks = st.integers(0, 99_999)
prefixes = st.one_of(
    st.just(""),
    ranks.map("[rank{}]: ".format),
    ranks.map("[default{}]:".format),
    st.tuples(st.integers(0, 7), ranks).map(lambda pair: f"[trainer{pair[0]}|{pair[1]}]:"),
    st.just("[pod/llm-worker-3/trainer] "),
    st.just("2026-03-01T04:05:06.789012345Z "),
    st.just("2026-03-01T04:05:06.789012345Z stderr F "),
    st.just("(RayTrainWorker pid=4242, ip=10.0.0.7) "),
    ranks.map("[pod/llm-worker-3/trainer] [rank{}]: ".format),
)
kernel_prefixes = st.one_of(
    st.just(""),
    st.floats(0, 9_999_999).map("[{:.6f}] ".format),
    st.just("[Fri Apr  5 21:29:39 2024] "),
    st.just("kern  :err   : 2026-01-21T04:41:44,284250+00:00 "),
    st.just("Apr  5 21:29:39 node-b kernel: "),
)
KERNEL_CASES = [case for case in CASES if case.text.startswith("NVRM: Xid")]


@given(case=st.sampled_from(CASES), prefix=prefixes)
def test_a_prefix_before_each_line_changes_no_verdict(case: Case, prefix: str) -> None:
    text = "\n".join(prefix + line for line in case.text.split("\n"))
    assert verdicts_of(text, case.training_done) == case.expected


@given(case=st.sampled_from(CASES), colour=st.sampled_from(["\x1b[31m", "\x1b[1;33m"]))
def test_colours_change_no_verdict(case: Case, colour: str) -> None:
    text = "\n".join(f"{colour}{line}\x1b[0m" for line in case.text.split("\n"))
    assert verdicts_of(text, case.training_done) == case.expected


@given(case=st.sampled_from(CASES), bus_id=bus_ids)
def test_another_bus_id_changes_no_verdict(case: Case, bus_id: str) -> None:
    text = re.sub(r"\b[0-9a-f]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\b", bus_id, case.text)
    assert verdicts_of(text, case.training_done) == case.expected


@given(case=st.sampled_from(CASES), rank=ranks, group_rank=ranks)
def test_other_ranks_change_no_verdict(case: Case, rank: int, group_rank: int) -> None:
    text = re.sub(r"\[rank\d+\]", f"[rank{rank}]", case.text)
    text = re.sub(r"Rank \d+\]", f"Rank {group_rank}]", text)
    assert verdicts_of(text, case.training_done) == case.expected


@given(
    case=st.sampled_from(CASES), month=st.integers(1, 12), day=st.integers(1, 28), second=st.integers(10, 59), pid=st.integers(1, 4_194_304)
)
def test_other_times_and_pids_change_no_verdict(case: Case, month: int, day: int, second: int, pid: int) -> None:
    text = re.sub(r"\[E\d{3,4} (\d\d:\d\d):\d\d", rf"[E{month}{day:02d} \g<1>:{second}", case.text)
    text = re.sub(r"pid([=: ]+)\d+", rf"pid\g<1>{pid}", text)
    assert verdicts_of(text, case.training_done) == case.expected


@given(case=st.sampled_from(KERNEL_CASES), prefix=kernel_prefixes)
def test_every_form_of_kernel_time_may_stand_before_an_xid(case: Case, prefix: str) -> None:
    assert verdicts_of(prefix + case.text) == case.expected


@given(
    case=st.sampled_from([case for case in CASES if "Xid (" in case.text and "(PCI:" in case.text]),
    mig=st.sampled_from(["", " GPU-I:05", " GPU-I:05 GPU-CI:00"]),
    pci=st.sampled_from(["PCI:", ""]),
    function=st.sampled_from(["", ".0"]),
)
def test_every_form_of_the_device_of_an_xid_is_read(case: Case, mig: str, pci: str, function: str) -> None:
    text = re.sub(r"\(PCI:([0-9a-f:]+)(?: GPU-I:\d+)?\)", rf"({pci}\g<1>{function}{mig})", case.text)
    assert verdicts_of(text) == case.expected


def test_each_line_keeps_its_verdict_in_an_ordinary_log_around_it() -> None:
    ordinary = "step 100 loss 2.31 lr 0.0003 grad norm 0.8\n" * 50
    wrong = [case.id for case in CASES if verdicts_of(ordinary + case.text + "\n" + ordinary, case.training_done) != case.expected]
    assert wrong == []


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param(
            ("M40", "M41", "M42"), ("gpu_ecc_uncorrectable", "NODE"), id="an uncorrectable error and the driver's follow-up lines"
        ),
        pytest.param(("M42", "M41", "M40"), ("gpu_ecc_uncorrectable", "NODE"), id="the same in the other order"),
        pytest.param(("M03", "M04"), ("nccl_timeout", "VICTIM"), id="a time-out and the watchdog's second line"),
        pytest.param(("M07", "M08"), ("nccl_timeout", "VICTIM"), id="a time-out and the heartbeat monitor 8 minutes later"),
        pytest.param(("M50",) * 16 + ("M51",), ("gpu_app_fault", "APP"), id="sixteen warp exceptions and the channel's reset"),
    ],
)
def test_lines_of_one_incident_are_merged(members: tuple[str, ...], expected: tuple[str, str]) -> None:
    assert verdicts_of(log_of(*members)) == [expected]
