"""What is one incident and what is two, what a merged incident knows, and what is news."""

from __future__ import annotations

import pytest

from tests.signals.lines import BY_ID, incidents_of, log_of, verdicts_of
from trainer_runtime.contract.evidence import MAX_EVIDENCE_TEXT, Source, Strength
from trainer_runtime.signals import LineStream, to_evidence
from trainer_runtime.signals.merge import MAX_LINES

XID_79 = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_a_merged_incident_keeps_its_lines_xids_and_gpu() -> None:
    (finding,) = incidents_of(log_of("M40", "M41", "M42"))
    assert finding.lines == tuple(BY_ID[each].text for each in ("M40", "M41", "M42"))
    assert (finding.fields["xid"], finding.fields["xids"], finding.fields["gpu"]) == (48, (48, 63, 94), "0000:52:00")


def test_a_heavier_line_names_the_incident_and_is_its_evidence() -> None:
    (finding,) = incidents_of(log_of("M41", "M40"))
    assert (finding.fault_class, finding.fields["xid"], finding.anchor) == ("gpu_ecc_uncorrectable", 48, BY_ID["M40"].text)


def test_the_fault_names_the_incident_and_not_the_drivers_request_for_a_reset() -> None:
    reset = "NVRM: Xid (PCI:0000:a1:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"
    for log in (reset + XID_79, f"{XID_79}\n{reset}"):
        (finding,) = incidents_of(log)
        assert (finding.fault_class, finding.fields["recovery_action"]) == ("gpu_fallen_off", "GPU Reset Required")


def test_two_gpus_are_two_incidents() -> None:
    assert len(incidents_of(f"{XID_79}\n{XID_79.replace('a1', 'b2')}\n")) == 2


@pytest.mark.parametrize(("seconds", "count"), [pytest.param(4.9, 1, id="within five seconds"), pytest.param(5.1, 2, id="later")])
def test_one_gpu_has_two_incidents_when_they_are_more_than_five_seconds_apart(seconds: float, count: int) -> None:
    assert len(incidents_of(f"[100.000000] {XID_79}\n[{100 + seconds:.6f}] {XID_79}\n")) == count


def test_lines_without_a_time_are_judged_by_when_they_were_read() -> None:
    for gap, count in ((4.0, 1), (6.0, 2)):
        stream = LineStream()
        stream.feed(f"{XID_79}\n".encode(), read_at=1000.0)
        stream.feed(f"{XID_79}\n".encode(), read_at=1000.0 + gap)
        assert len(stream.incidents) == count


def test_a_time_out_an_hour_after_another_is_a_second_incident() -> None:
    later = BY_ID["M03"].text.replace("18:44:12", "19:44:12")
    assert len(incidents_of(f"{log_of('M03')}{later}\n")) == 2


def test_time_outs_of_many_ranks_are_one_incident_that_names_them() -> None:
    text = BY_ID["M03"].text
    log = "\n".join(text.replace("[rank0]", f"[rank{rank}]") for rank in (5, 0, 7, 5))
    (finding,) = incidents_of(log)
    assert (finding.fields["rank"], finding.fields["ranks"]) == (5, (5, 0, 7))


def test_the_agents_report_of_an_abort_joins_what_caused_it() -> None:
    assert verdicts_of(log_of("M18", "M77")) == [("cuda_illegal_access", "APP")]
    assert verdicts_of(log_of("M03", "M77")) == [("nccl_timeout", "VICTIM")]


def test_the_agents_line_and_report_of_one_killed_rank_are_one_incident() -> None:
    report = BY_ID["M76"].text.replace("14750", "1322")
    assert verdicts_of(f"{log_of('M75')}{report}") == [("sigkill", "UNKNOWN")]


def test_a_new_incident_is_news_at_once_and_a_repeated_line_is_not() -> None:
    stream = LineStream()
    first = stream.feed(f"{BY_ID['M41'].text}\n".encode())
    assert [finding.fault_class for finding in first] == ["gpu_row_remap_pending"]
    assert stream.feed(f"{BY_ID['M42'].text}\n".encode()) == []
    (risen,) = stream.feed(f"{BY_ID['M40'].text}\n".encode())
    assert (risen.incident, risen.fault_class, risen.strength) == (first[0].incident, "gpu_ecc_uncorrectable", Strength.NODE)


def test_a_flood_of_one_line_keeps_a_count_and_few_lines() -> None:
    (finding,) = incidents_of(f"{BY_ID['M54'].text}\n" * 11_760)
    assert (len(finding.lines), finding.fields["lines_seen"]) == (MAX_LINES, 11_760)


def test_a_flood_of_unlike_incidents_forgets_the_lightest_first() -> None:
    stream = LineStream(max_incidents=8)
    stream.feed(f"{XID_79}\n".encode())
    for number in range(100):
        stream.feed(f"nfs: server 10.0.0.{number} not responding, timed out\n".encode())
    assert len(stream.incidents) == 8
    assert stream.incidents[0].fault_class == "gpu_fallen_off"
    assert stream.incidents[-1].fields["server"] == "10.0.0.99"


def test_evidence_says_who_and_when_and_keeps_a_short_text() -> None:
    (finding,) = incidents_of(f"[rank13]: RuntimeError: CUDA error: uncorrectable ECC error encountered {'x' * 1000}")
    evidence = to_evidence(finding, at=12.5, attempt=3, worker=1, node="node-b")
    assert (evidence.at, evidence.attempt, evidence.worker, evidence.node, evidence.rank) == (12.5, 3, 1, "node-b", 13)
    assert (evidence.source, evidence.fault_class, evidence.strength) == (Source.LOG, "gpu_ecc_uncorrectable", Strength.NODE)
    assert len(evidence.text) == MAX_EVIDENCE_TEXT
    assert to_evidence(finding, at=12.5, attempt=3, rank=4).rank == 4


def test_only_a_time_with_a_zone_becomes_the_findings_time() -> None:
    (with_zone,) = incidents_of(log_of("M50"))
    (without,) = incidents_of(log_of("M39"))
    assert with_zone.at == pytest.approx(1737434504.28425)
    assert without.at is None
