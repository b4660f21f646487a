"""The contract's JSON comes back equal, and everything else is one error that names the field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_runtime.contract import assignment, beat, evidence, exit_report, manifest
from trainer_runtime.contract.codec import ContractError, dumps, loads

MESSAGES: list[Any] = [
    assignment.Assignment,
    beat.Beat,
    beat.Reply,
    exit_report.ExitReport,
    manifest.Manifest,
    manifest.RankIndex,
    manifest.VerifiedMark,
    manifest.Fence,
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
st.register_type_strategy(
    assignment.Assignment,
    st.builds(
        assignment.Assignment,
        attempt=st.integers(1, 10**6),
        worker_index=st.integers(0, 3),
        workers=st.integers(4, 9),
        procs_per_worker=st.integers(1, 8),
        version=st.just("1.0"),
    ),
)


def values_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a message whose free-form fields hold plain JSON."""
    fixed: dict[str, st.SearchStrategy[Any]] = {"version": st.just("1.0")} if kind is not assignment.Assignment else {}
    if kind is manifest.Manifest:
        fixed |= {"strict": st.dictionaries(st.text(), JSON_VALUES)}
    if kind is manifest.RankIndex:
        fixed |= {"objects": st.lists(st.builds(manifest.ObjectEntry, value=JSON_VALUES)).map(tuple)}
    if kind is beat.Beat:
        fixed |= {"failure": st.none() | st.builds(exit_report.ExitReport, version=st.just("1.0"))}
    if kind is assignment.Assignment:
        return st.from_type(kind)
    return st.builds(kind, **fixed)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_comes_back_equal(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    again = loads(kind, dumps(value))
    assert dumps(again) == dumps(value)


ORDERS = assignment.Assignment(
    attempt=2, worker_index=1, workers=3, procs_per_worker=1, master_addr="gpt-2-0.gpt", master_port=29402, run_id="u-2"
)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        pytest.param({"attempt": "two"}, r"Assignment\.attempt: 'two' is not an integer", id="a word for a number"),
        pytest.param({"attempt": True}, r"Assignment\.attempt: True is not an integer", id="a truth for a number"),
        pytest.param({"attempt": 0}, "attempt: 0 is not >= 1", id="an attempt before the first"),
        pytest.param({"worker_index": 3}, r"worker_index: 3 is not in 0\.\.2", id="a worker beyond the last"),
        pytest.param({"version": "2.0"}, "version: '2.0' is not supported, this side speaks 1.x", id="a foreign major version"),
        pytest.param({"version": None}, "version: 'None' is not supported", id="no version"),
        pytest.param({"resume": {"step": 1}}, r"Assignment\.resume\.attempt: missing", id="a resume point without its attempt"),
        pytest.param({"settings": []}, r"Assignment\.settings: \[\] is not an object", id="a list for an object"),
    ],
)
def test_a_wrong_field_is_named_with_its_path(change: dict[str, Any], wanted: str) -> None:
    document = json.loads(dumps(ORDERS)) | change
    with pytest.raises(ContractError, match=wanted):
        loads(assignment.Assignment, json.dumps(document))


def test_fields_of_a_newer_minor_version_are_ignored() -> None:
    document = json.loads(dumps(ORDERS)) | {"version": "1.7", "colour": "blue"}
    assert loads(assignment.Assignment, json.dumps(document)) == dataclasses.replace(ORDERS, version="1.7")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        loads(assignment.Assignment, text)


def test_half_of_a_surrogate_pair_is_replaced_where_it_comes_in() -> None:
    document = json.loads(dumps(ORDERS)) | {"run_id": "a\ud83cb"}
    read = loads(assignment.Assignment, json.dumps(document))
    assert read.run_id == "a\ufffdb"
    whole = loads(assignment.Assignment, json.dumps(document | {"run_id": "\U0001f3d6"}))
    assert whole.run_id == "\U0001f3d6"


def test_an_integer_that_no_number_can_hold_is_refused_where_it_comes_in() -> None:
    document = dumps(fact(1)).replace('"at":1.0', f'"at":1{"0" * 400}')
    with pytest.raises(ContractError, match=r"Evidence\.at: an integer of 401 digits"):
        loads(evidence.Evidence, document)


@pytest.mark.parametrize("value", [{"a": [1, None, {"float": "0x1p+0"}]}, "text", 7, []], ids=str)
def test_a_value_that_is_json_already_comes_back_as_it_was(value: Any) -> None:
    assert loads(manifest.ObjectEntry, dumps(manifest.ObjectEntry("name", value))).value == value


@pytest.mark.parametrize("value", [{1, 2}, [float("nan")], {"key": b"bytes"}, {(1, 2): 3}], ids=str)
def test_a_value_that_json_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises(ContractError, match="not JSON: "):
        dumps(manifest.ObjectEntry("name", value))


def test_a_loss_that_is_not_a_number_survives() -> None:
    sent = beat.Beat(
        job_uid="u", attempt=1, worker_index=0, pod_uid="p", sequence=1, phase=beat.Phase.TRAIN, sent_at=1.5, loss=float("nan")
    )
    assert repr(loads(beat.Beat, dumps(sent)).loss) == "nan"


def fact(number: int) -> evidence.Evidence:
    return evidence.Evidence(
        at=1.0, source=evidence.Source.LOG, fault_class="xid_79", strength=evidence.Strength.NODE, text="x" * 400, attempt=1, worker=number
    )


def test_a_termination_message_fits_and_loses_evidence_from_the_end() -> None:
    report = exit_report.ExitReport(
        attempt=1,
        worker_index=0,
        outcome=exit_report.Outcome.FAILED,
        exit_code=134,
        evidence=tuple(fact(number) for number in range(40)),
        message="é" * 9000,
    )
    text = report.termination_message()
    assert len(text) <= exit_report.TERMINATION_MESSAGE_LIMIT
    kept = loads(exit_report.ExitReport, text)
    assert [item.worker for item in kept.evidence] == list(range(len(kept.evidence)))
    assert (kept.exit_code, kept.outcome) == (134, exit_report.Outcome.FAILED)


@pytest.mark.parametrize("letter", ["x", "é", "𝕏"], ids=["ASCII", "two bytes", "four bytes"])
def test_a_termination_message_fits_whatever_its_texts_are(letter: str) -> None:
    report = exit_report.ExitReport(
        attempt=1,
        worker_index=0,
        outcome=exit_report.Outcome.DAMAGED,
        exit_code=80,
        checkpoint=exit_report.DamagedCheckpoint(7, 1, "0" * 64, file=letter * 500, reason=letter * 9000),
        first_failure=exit_report.FirstFailure(3, 1, exception=letter * 300, step=7),
        evidence=tuple(fact(number) for number in range(40)),
        verified=exit_report.VerifiedCheckpoint(6, letter * 4000, "1" * 64),
        message=letter * 9000,
    )
    text = report.termination_message()
    assert len(text) <= exit_report.TERMINATION_MESSAGE_LIMIT
    kept = loads(exit_report.ExitReport, text)
    assert (kept.exit_code, kept.outcome) == (80, exit_report.Outcome.DAMAGED)
    assert kept.checkpoint is not None
    assert (kept.checkpoint.step, kept.checkpoint.manifest_sha256) == (7, "0" * 64)
