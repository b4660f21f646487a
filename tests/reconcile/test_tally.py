"""Incidents and restarts are counted once, where they are recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from rtj_operator.api.v1alpha1 import EvidenceStatus, Failure, JobStatus, Restarts
from rtj_operator.observability.metrics import Metrics
from rtj_operator.reconcile.tally import tally
from trainer_runtime.contract.evidence import Source, Strength

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def failure(attempt: int) -> Failure:
    evidence = EvidenceStatus(at=NOW - timedelta(seconds=4), source=Source.POD, fault_class="oom", strength=Strength.APP)
    return Failure(attempt=attempt, cause="oom", evidence=(evidence,), at=NOW)


def test_an_incident_counts_once_with_the_time_it_took_to_see_it() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "0")
    before, after = JobStatus(), JobStatus(last_failure=failure(1))
    tally(metrics, before, after, NOW)
    tally(metrics, after, after, NOW)
    assert registry.get_sample_value("rtj_incidents_total", {"cause": "oom"}) == 1
    assert registry.get_sample_value("rtj_detection_seconds_sum") == 4


def test_restarts_count_by_what_they_are_charged_to() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "0")
    before = JobStatus(restarts=Restarts(total=1, application=1))
    tally(metrics, before, JobStatus(restarts=Restarts(total=3, application=2, hang=1)), NOW)
    assert registry.get_sample_value("rtj_restarts_total", {"charge": "application"}) == 1
    assert registry.get_sample_value("rtj_restarts_total", {"charge": "hang"}) == 1
    assert registry.get_sample_value("rtj_restarts_total", {"charge": "infrastructure"}) is None
