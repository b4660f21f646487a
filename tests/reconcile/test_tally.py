"""Incidents and restarts are counted once, by what the status says of them in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from rtj_operator.api.v1alpha1 import Charge, EvidenceStatus, Failure, JobPhase, JobStatus
from rtj_operator.observability.metrics import Metrics
from rtj_operator.reconcile.tally import tally
from trainer_runtime.contract.evidence import Source, Strength

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def failure(attempt: int, cause: str, charge: Charge | None) -> Failure:
    evidence = EvidenceStatus(at=NOW - timedelta(seconds=4), source=Source.POD, fault_class=cause, strength=Strength.APP)
    return Failure(attempt=attempt, cause=cause, charge=charge, evidence=(evidence,), at=NOW)


def counted(statuses: Sequence[JobStatus]) -> tuple[dict[str, float], dict[str, float]]:
    """Let these statuses be written one after the other; return incidents by cause and restarts by charge."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, "0")
    for before, after in pairwise(statuses):
        tally(metrics, before, after, NOW)
    return dict(samples(registry, "rtj_incidents_total", "cause")), dict(samples(registry, "rtj_restarts_total", "charge"))


def samples(registry: CollectorRegistry, name: str, label: str) -> Iterator[tuple[str, float]]:
    for metric in registry.collect():
        yield from ((sample.labels[label], sample.value) for sample in metric.samples if sample.name == name)


RUNNING = JobStatus(attempt=1)
HANG = JobStatus(attempt=1, last_failure=failure(1, "nccl_timeout", Charge.HANG))
OOM = JobStatus(attempt=1, last_failure=failure(1, "host_oom", Charge.APPLICATION))
STORE_AWAY = JobStatus(attempt=1, last_failure=failure(1, "store", None))


@pytest.mark.parametrize(
    ("statuses", "incidents", "restarts"),
    [
        pytest.param([RUNNING, OOM], {}, {}, id="its attempt is being stopped"),
        pytest.param([RUNNING, OOM, OOM, OOM.evolve(attempt=2)], {"host_oom": 1}, {"application": 1}, id="relaunched"),
        pytest.param([RUNNING, HANG, OOM, OOM.evolve(attempt=2)], {"host_oom": 1}, {"application": 1}, id="revised, then relaunched"),
        pytest.param([RUNNING, STORE_AWAY, STORE_AWAY.evolve(attempt=2)], {"store": 1}, {}, id="charged to nothing"),
        pytest.param([RUNNING, OOM, OOM.evolve(phase=JobPhase.FAILED)], {"host_oom": 1}, {}, id="the last one"),
        pytest.param([RUNNING, OOM.evolve(attempt=2)], {"host_oom": 1}, {"application": 1}, id="recorded and relaunched in one write"),
        pytest.param([RUNNING, OOM.evolve(phase=JobPhase.FAILED)], {"host_oom": 1}, {}, id="recorded and given up in one write"),
        pytest.param(
            [OOM.evolve(attempt=2), OOM.evolve(attempt=3), OOM.evolve(attempt=3, phase=JobPhase.SUCCEEDED)], {}, {}, id="an old one"
        ),
        pytest.param([OOM.evolve(phase=JobPhase.FAILED), OOM.evolve(phase=JobPhase.FAILED, gang=1)], {}, {}, id="terminal already"),
    ],
)
def test_an_incident_and_its_restart_count_once_when_their_attempt_is_over(
    statuses: Sequence[JobStatus], incidents: dict[str, float], restarts: dict[str, float]
) -> None:
    assert counted(statuses) == (incidents, restarts)


def test_the_time_to_see_an_incident_is_that_of_its_first_record() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "0")
    tally(metrics, RUNNING, HANG, NOW)
    tally(metrics, HANG, OOM, NOW + timedelta(seconds=20))
    tally(metrics, OOM, OOM.evolve(attempt=2), NOW + timedelta(seconds=30))
    assert registry.get_sample_value("rtj_detection_seconds_sum") == 4
    assert registry.get_sample_value("rtj_detection_seconds_count") == 1
