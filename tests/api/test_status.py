"""A status comes back from the API server as it was written, always carries its attempt, and always fits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rtj_operator.api import v1alpha1 as api
from rtj_operator.api.ranges import format_ranges, parse_ranges
from rtj_operator.api.status_size import MAX_STATUS_BYTES, newest_known, status_bytes
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.evidence import Source, Strength

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

times = st.datetimes(timezones=st.just(UTC))
counts = st.integers(0, 2**53)
texts = st.text(max_size=2000)


def lists_of(items: st.SearchStrategy[Any], limit: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=limit).map(tuple)


def build(model: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Build a model by its Python names; `st.builds` would ask for the camelCase ones as well."""
    return st.fixed_dictionaries(fields).map(lambda values: model(**values))


evidence = build(
    api.EvidenceStatus,
    at=times,
    source=st.sampled_from(Source),
    fault_class=texts,
    strength=st.sampled_from(Strength),
    text=texts,
    worker=st.none() | counts,
    node=st.none() | texts,
    rank=st.none() | counts,
    gpu=st.none() | texts,
)
failures = build(
    api.Failure,
    attempt=counts,
    cause=texts,
    charge=st.none() | st.sampled_from(api.Charge),
    worker=st.none() | counts,
    confidence=st.sampled_from(api.Confidence),
    message=texts,
    evidence=lists_of(evidence, 12),
    at=times,
)
records = build(
    api.CheckpointRecordStatus,
    step=counts,
    attempt=counts,
    uri=texts,
    manifest_sha256=texts,
    level=st.sampled_from(Level),
    verified_at=st.none() | times,
    abandoned=st.booleans(),
    quarantined=st.none() | texts,
)
statuses = build(
    api.JobStatus,
    observed_generation=st.none() | counts,
    phase=st.sampled_from(api.JobPhase),
    attempt=counts,
    conditions=lists_of(
        build(api.Condition, type=texts, status=st.sampled_from(api.ConditionStatus), reason=texts, last_transition_time=times), 4
    ),
    launch=st.none() | st.sampled_from(api.Launch),
    resume_point=st.none() | build(api.AttemptResume, step=counts, attempt=counts, uri=texts, manifest_sha256=texts),
    stopping_since=st.none() | times,
    done_workers=st.sets(st.integers(0, 4095), max_size=30).map(lambda workers: tuple(sorted(workers))),
    progress=st.none() | build(api.Progress, step=counts, loss=st.floats() | st.none(), step_seconds=st.floats()),
    checkpoint=st.none() | build(api.NewestCheckpoint, step=counts, attempt=counts, uri=texts, manifest_sha256=texts, verified_at=times),
    checkpoints=lists_of(records, 4),
    last_failure=st.none() | failures,
    failures=lists_of(failures, 2),
    budget_window=lists_of(build(api.BudgetBucket, hour=times, charge=st.sampled_from(api.Charge), n=counts), 6),
    excluded_nodes=lists_of(build(api.ExcludedNode, node=texts, cause=texts, since=times, until=times), 4),
    run=build(api.RunStatus, fence=st.none() | counts, taken_over_from=st.none() | texts),
)


@given(statuses)
@settings(deadline=None)
def test_a_status_that_fits_reads_back_equal(status: api.JobStatus) -> None:
    document = status.to_api()
    if status_bytes(status.model_dump(mode="json", by_alias=True, exclude_none=True)) <= MAX_STATUS_BYTES:
        assert api.JobStatus.model_validate(document) == status
    assert api.JobStatus.model_validate(document).to_api() == document


def test_every_status_carries_its_attempt_and_no_absent_field() -> None:
    document = api.JobStatus().to_api()
    assert document["attempt"] == 0
    assert None not in document.values()
    assert [] not in document.values()


def worst_status() -> api.JobStatus:
    """Every list full, every text at its limit and made of characters of four bytes where any are allowed."""
    text, word = "\U0001f525" * 2000, "n" * 300
    fact = api.EvidenceStatus(at=NOW, source=Source.LOG, fault_class=word, strength=Strength.NODE, text=text, node=word, gpu=word)
    failure = api.Failure(
        attempt=1,
        cause=word,
        message=text,
        action=text,
        node_action=text,
        evidence=(fact,) * 10,
        node=word,
        fingerprint=word,
        step=7,
        at=NOW,
    )
    record = api.CheckpointRecordStatus(step=1, attempt=1, uri=text, manifest_sha256=word, level=Level.VERIFIED, quarantined=text)
    good = [record.evolve(step=step, quarantined=None) for step in (5, 6, 7)]
    condition = api.Condition(type=word, status=api.ConditionStatus.TRUE, reason=word, message=text, last_transition_time=NOW)
    excluded = api.ExcludedNode(node=word, cause=word, since=NOW, until=NOW)
    return api.JobStatus(
        attempt=9,
        conditions=tuple(condition.evolve(type=f"{number}{word}") for number in range(30)),
        failures=tuple(failure.evolve(attempt=attempt) for attempt in range(20, 0, -1)),
        last_failure=failure,
        checkpoints=(*(record,) * 20, *good),
        excluded_nodes=(excluded.evolve(cordoned=True), *(excluded,) * 100),
        budget_window=tuple(
            api.BudgetBucket(hour=NOW + timedelta(hours=hour), charge=charge, n=10**6) for hour in range(24) for charge in api.Charge
        ),
        done_workers=tuple(range(0, 4096, 2)),
        ending=api.Ending(succeeded=False, reason=word, message=text),
        attempt_settings=api.AttemptSettings(
            keep_best_metric=text, s3_endpoint=text[:256], s3_region=text, local=text[:256], archive_store=word[:256]
        ),
        save_failure=api.SaveFailureStatus(step=10**9, reason=text, count=5),
        archive_failure=api.ArchiveFailureStatus(reason=text, count=10**6),
        run=api.RunStatus(
            taken_over_from=word,
            foreign_fence=api.ForeignFence(job_uid=word, fence=10**6, changed_at=NOW),
            starts=(api.AttemptStart(attempt=10**6, step=10**9, fenced=True),) * 40,
        ),
    )


def test_the_worst_status_fits_and_keeps_what_decides() -> None:
    status = worst_status()
    document = status.to_api()
    assert status_bytes(document) <= MAX_STATUS_BYTES
    kept = api.JobStatus.model_validate(document)
    assert kept.attempt == 9
    assert [record.step for record in kept.checkpoints if record.is_good] == [5, 6, 7]
    assert kept.budget_window == status.budget_window
    assert kept.done_workers == status.done_workers
    assert any(excluded.cordoned for excluded in kept.excluded_nodes)
    assert kept.last_failure is not None and kept.last_failure.cause == "n" * 64
    assert [recognised(failure) for failure in kept.failures[:3]] == [recognised(failure) for failure in status.failures[:3]]


def recognised(failure: api.Failure) -> tuple[object, ...]:
    """What the same failure is known by when it comes again."""
    return (failure.attempt, failure.cause, failure.node, failure.fingerprint, failure.step)


def test_failures_lose_their_words_before_any_is_forgotten() -> None:
    text = "x" * 2000
    fact = api.EvidenceStatus(at=NOW, source=Source.LOG, fault_class="c", strength=Strength.APP, text=text)
    failure = api.Failure(
        attempt=1, cause="host_oom", message=text, action=text, node_action=text, evidence=(fact,) * 10, node="n7", fingerprint="f", at=NOW
    )
    conditions = tuple(
        api.Condition(type=f"C{place}", status=api.ConditionStatus.TRUE, reason="R", message=text, last_transition_time=NOW)
        for place in range(12)
    )
    failures = tuple(failure.evolve(attempt=attempt, step=attempt) for attempt in range(10, 0, -1))
    status = api.JobStatus(attempt=10, conditions=conditions, failures=failures, last_failure=failures[0])
    kept = api.JobStatus.model_validate(status.to_api())
    assert [recognised(failure) for failure in kept.failures] == [recognised(failure) for failure in failures]
    assert [len(condition.message) for condition in kept.conditions] == [len(condition.message) for condition in status.conditions]
    assert kept.last_failure == status.last_failure


def test_a_loss_that_is_not_a_number_reads_as_absent() -> None:
    assert api.Progress(loss=float("nan"), step_seconds=float("inf")) == api.Progress()


def test_a_text_is_cut_and_what_utf8_cannot_carry_is_replaced() -> None:
    failure = api.Failure(attempt=1, cause="x", message="a\ud800" + "b" * 2000, at=NOW)
    assert failure.message == "a?" + "b" * 1022


def test_a_time_without_a_zone_is_refused_and_others_become_utc() -> None:
    with pytest.raises(ValidationError):
        api.Failure(attempt=1, cause="x", at=datetime(2026, 1, 1))
    east = datetime.fromisoformat("2026-01-02T05:00:00+02:00")
    assert api.Failure(attempt=1, cause="x", at=east).model_dump(mode="json")["at"] == "2026-01-02T03:00:00Z"


def test_evolve_refuses_a_name_that_is_no_field() -> None:
    with pytest.raises(TypeError, match="attempts"):
        api.JobStatus().evolve(attempts=2)


@given(st.sets(st.integers(0, 4095)))
def test_worker_ranges_read_back_equal(workers: set[int]) -> None:
    assert parse_ranges(format_ranges(workers)) == tuple(sorted(workers))


def test_worker_ranges_are_short() -> None:
    assert format_ranges(range(4096)) == "0-4095"
    assert format_ranges((7, 0, 1, 2)) == "0-2,7"


def record(step: int, attempt: int = 1, **changes: Any) -> api.CheckpointRecordStatus:
    return api.CheckpointRecordStatus(step=step, attempt=attempt, uri="u", manifest_sha256="d", level=Level.VERIFIED, **changes)


def test_known_checkpoints_are_the_newest_twenty_the_newest_good_three_and_the_one_resumed_from() -> None:
    good = [record(step) for step in range(1, 6)]
    abandoned = [record(step, abandoned=True) for step in range(100, 130)]
    kept = newest_known([*good, *abandoned], resumed=(1, 1))
    assert [one.step for one in kept] == [*range(129, 109, -1), 5, 4, 3, 1]
