"""Who failed first: the tiers, time inside a tier, collateral, ties, and when the honest answer is unknown."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pytest

from rtj_operator.decide.attribution import Tier, Topology, attribute
from trainer_runtime.contract.evidence import Evidence, Source, Strength

T = 1_900_000_000.0
NOW = datetime.fromtimestamp(T + 60, UTC)
NODES = {0: "n0", 1: "n1", 2: "n2", 3: "n3"}


def fact(worker: int, fault_class: str, strength: Strength, at: float = 0.0, **fields: Any) -> Evidence:
    """One fact about a worker, ``at`` seconds after T."""
    values: dict[str, Any] = {"source": Source.LOG, "text": fault_class, "attempt": 3, "node": NODES[worker], **fields}
    return Evidence(T + at, fault_class=fault_class, strength=strength, worker=worker, **values)


def topology(**fields: Any) -> Topology:
    """Four workers of one rank each in attempt 3."""
    return Topology(**{"attempt": 3, "workers": 4, "nodes": NODES, "first_failed_at": T, **fields})


ECC = ("gpu_ecc_uncorrectable", Strength.NODE)
VICTIM = ("nccl_remote_error", Strength.VICTIM)
ERROR = ("user_error", Strength.APP)


@pytest.mark.parametrize(
    ("evidence", "cause", "worker", "confidence"),
    [
        pytest.param([], "unknown", None, "low", id="no evidence is unknown"),
        pytest.param([fact(0, *VICTIM), fact(1, *VICTIM, 1)], "nccl_timeout", None, "low", id="victims alone name nobody"),
        pytest.param(
            [fact(0, *ERROR, 0), fact(2, *ECC, 40)],
            "gpu_ecc_uncorrectable",
            2,
            "high",
            id="a machine's confession outranks an earlier exception",
        ),
        pytest.param(
            [fact(0, "node_lost", Strength.NODE, 0), fact(1, *ERROR, 0)], "node_lost", 0, "high", id="a lost node outranks an exception"
        ),
        pytest.param(
            [fact(0, *ECC, 9), fact(2, *ECC, 4)], "gpu_ecc_uncorrectable", 2, "high", id="the earliest of two machines is the root"
        ),
        pytest.param(
            [fact(1, "host_oom", Strength.APP, 5, source=Source.POD), fact(0, *ERROR, 0)],
            "host_oom",
            1,
            "medium",
            id="a death outranks an exception",
        ),
        pytest.param([fact(1, *ERROR, 0), fact(0, *VICTIM, 0.1)], "user_error", 1, "medium", id="an exception outranks its victims"),
        pytest.param(
            [fact(1, *ERROR, 0, text="KeyError: a"), fact(3, *ERROR, 1.5, text="OSError: b")],
            "user_error",
            None,
            "low",
            id="two different exceptions within two seconds are a tie",
        ),
        pytest.param(
            [fact(1, *ERROR, 0, text="KeyError: a"), fact(3, *ERROR, 2.5, text="OSError: b")],
            "user_error",
            1,
            "medium",
            id="two exceptions further apart are ordered by time",
        ),
        pytest.param(
            [fact(w, "numeric", Strength.APP, w / 10, text=f"Rank {w}: NaN", step=9) for w in (1, 3)],
            "user_error",
            1,
            "medium",
            id="the same words on half of the ranks are the user's",
        ),
        pytest.param(
            [fact(1, "host_oom", Strength.APP, source=Source.POD), fact(1, "host_oom", Strength.APP, 0.5)],
            "host_oom",
            1,
            "high",
            id="two sources that agree are sure",
        ),
        pytest.param(
            [fact(1, "sigkill", Strength.UNKNOWN, 0.3, source=Source.EXIT), fact(0, *VICTIM, 0.1), fact(2, *VICTIM, 0.2)],
            "sigkill",
            1,
            "low",
            id="a killed rank is found although its victims spoke first",
        ),
        pytest.param(
            [fact(1, *ERROR, 0), fact(0, "sigkill", Strength.UNKNOWN, 3, source=Source.EXIT)],
            "user_error",
            1,
            "medium",
            id="a kill after the first failure is collateral",
        ),
        pytest.param(
            [fact(0, "preempted", Strength.ENV, -3, source=Source.POD), fact(1, *ERROR, 0)],
            "preempted",
            0,
            "high",
            id="a pod taken away before anything else is the root",
        ),
        pytest.param(
            [fact(0, "preempted", Strength.ENV, 3, source=Source.POD), fact(1, *ERROR, 0)],
            "user_error",
            1,
            "medium",
            id="a pod taken away later is not",
        ),
        pytest.param([fact(1, *ECC, attempt=2), fact(0, *ERROR)], "user_error", 0, "medium", id="an older attempt's evidence is dropped"),
        pytest.param([fact(1, *ECC, -700), fact(0, *ERROR)], "user_error", 0, "medium", id="a fault of eleven minutes ago is too old"),
        pytest.param([fact(1, *ECC, -500), fact(0, *ERROR)], "gpu_ecc_uncorrectable", 1, "high", id="a fault of eight minutes ago joins"),
        pytest.param([fact(1, "none", Strength.BENIGN)], "unknown", None, "low", id="a harmless line is no evidence"),
        pytest.param(
            [fact(2, "checkpoint_damaged", Strength.ENV), fact(0, *ERROR)],
            "checkpoint_damaged",
            2,
            "high",
            id="what a worker says outright",
        ),
    ],
)
def test_the_verdict_whatever_the_order_of_the_evidence(evidence: list[Evidence], cause: str, worker: int | None, confidence: str) -> None:
    for order in permutations(evidence):
        verdict = attribute(order, topology(), NOW)
        assert (verdict.cause, verdict.worker, verdict.confidence.value) == (cause, worker, confidence)
        assert verdict.node == (NODES[worker] if worker is not None else None)


@pytest.mark.parametrize(
    ("item", "tier"),
    [
        pytest.param(fact(0, *ERROR, 11), Tier.UNKNOWN, id="an exception after our stop is ours"),
        pytest.param(fact(0, *ERROR, 9), Tier.EXCEPTION, id="an exception before our stop counts though it arrives later"),
        pytest.param(fact(0, *ECC, 11), Tier.MACHINE, id="a machine's confession counts whenever it comes"),
        pytest.param(fact(0, "checkpoint_damaged", Strength.ENV, 11), Tier.STATED, id="no stop damages a checkpoint"),
        pytest.param(fact(0, "xid_derivative", Strength.VICTIM, 11), Tier.UNKNOWN, id="Xid 45 while stopping"),
    ],
)
def test_what_follows_our_own_stop(item: Evidence, tier: Tier) -> None:
    assert attribute([item], topology(stopping_since=T + 10), NOW).tier is tier


def test_one_fault_reported_by_two_agents_is_kept_once_per_source() -> None:
    facts = [fact(1, *ECC, at, source=source) for at in (0, 1, 100) for source in (Source.NODE, Source.NVML)]
    assert len(attribute(facts, topology(), NOW).evidence) == 2


def test_at_most_ten_facts_are_kept_the_deciding_one_first() -> None:
    facts = [fact(w % 4, *VICTIM, w / 100, rank=w) for w in range(40)] + [fact(3, *ERROR, 5, rank=3)]
    verdict = attribute(facts, topology(procs_per_worker=10), NOW)
    assert (len(verdict.evidence), verdict.evidence[0].fault_class, verdict.rank) == (10, "user_error", 3)
