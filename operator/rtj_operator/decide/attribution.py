"""Who failed first: all evidence of one failure becomes one verdict, or an honest "unknown".

The order of tiers is the whole idea: a machine's own confession outranks a dead process, which outranks an exception, which outranks a
time-out. Time decides only inside a tier. Peers that a victim names and missing collectives are not weighed: no evidence carries them yet.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

from rtj_operator.api.v1alpha1 import Confidence
from rtj_operator.decide import causes
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.signals import fault_classes as classes

BEFORE_SECONDS: Final = 600.0
AFTER_SECONDS: Final = 300.0
"""Evidence joins a failure from 10 min before to 5 min after its first terminal event."""
NODE_BURST_SECONDS: Final = 180.0
"""One fault of one machine is reported by several agents within this time: one fact."""
KUBELET_SECONDS: Final = 1.0
"""Resolution of the times in a pod's status."""
TIE_SECONDS: Final = 2.0
"""Clocks of two machines do not order what is closer than this."""
MAX_EVIDENCE: Final = 10


class Tier(IntEnum):
    """How directly a fact points at who failed first; the smallest wins."""

    TAKEN_AWAY = 0
    """Before anything else went wrong the cluster took a pod away."""
    MACHINE = 1
    NODE_LOST = 2
    STATED = 3
    """The worker says outright what is wrong: refused, damaged, fenced, store, configuration."""
    SUSPECT = 4
    DEATH = 5
    """A process that died by a signal or for lack of memory."""
    EXCEPTION = 6
    ENVIRONMENT = 7
    UNKNOWN = 8
    VICTIM = 9


@dataclass(frozen=True)
class Topology:
    """What of the job the verdict needs to know."""

    attempt: int
    workers: int
    procs_per_worker: int = 1
    first_failed_at: float | None = None
    """Unix time of the first terminal event, or of the fact that moves the job while all workers still run; None: there is neither."""
    stopping_since: float | None = None
    """Unix time since when the operator itself stops this attempt."""
    grace_seconds: float = 30.0
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Node name by worker index."""


@dataclass(frozen=True)
class Verdict:
    """The outcome: cause, root and how sure it is."""

    cause: str
    confidence: Confidence
    tier: Tier
    worker: int | None = None
    node: str | None = None
    rank: int | None = None
    step: int | None = None
    fingerprint: str | None = None
    """Digest of the error's class and words without its numbers; None when there is no error text."""
    evidence: tuple[Evidence, ...] = ()
    """What it rests on, strongest first, then what speaks beside it; at most ten."""

    @property
    def text(self) -> str:
        """The deciding fact's own words."""
        return self.evidence[0].text if self.evidence else ""


def attribute(evidence: Iterable[Evidence], topology: Topology, now: datetime, known: Iterable[Evidence] = ()) -> Verdict:
    """Weigh all evidence of one attempt. Pure; the order of the evidence does not matter.

    ``known``: facts that were weighed before the operator began to stop the attempt, so that no stop can have caused them.
    """
    news = [item for item in _joined(evidence, topology, now) if not _is_ours(item, topology)]
    relevant = _coalesced(_without_followers([*known, *news], topology))
    if not relevant:
        return Verdict(classes.UNKNOWN, Confidence.LOW, Tier.UNKNOWN)
    tiers: dict[Tier, list[Evidence]] = defaultdict(list)
    first_cause = min((item.at for item in relevant if item.strength not in (Strength.VICTIM, Strength.UNKNOWN)), default=None)
    for item in relevant:
        tiers[_tier(item, first_cause)].append(item)
    tier = min(tiers)
    ranked = [item for _, items in sorted(tiers.items()) for item in sorted(items, key=_order)]
    if tier is Tier.VICTIM:
        return Verdict(classes.NCCL_TIMEOUT, Confidence.LOW, tier, evidence=tuple(ranked[:MAX_EVIDENCE]), step=_step(ranked))
    return _named(tier, sorted(tiers[tier], key=_order), ranked, topology)


def teller_of(item: Evidence) -> tuple[object, ...]:
    """Return what two tellings of one fact share: who tells what, and where it was seen."""
    return (item.worker, item.rank, item.fault_class, item.source)


def fingerprint_of(item: Evidence) -> str:
    """Return a digest of the error's class and words. Numbers go: ranks, addresses, byte counts differ between two runs of one error."""
    words = re.sub(r"0x[0-9a-f]+|\d+", "#", item.text[:200].lower())
    return hashlib.sha256(f"{item.fault_class}\n{words}".encode()).hexdigest()[:16]


def _named(tier: Tier, items: Sequence[Evidence], ranked: Sequence[Evidence], topology: Topology) -> Verdict:
    first = items[0]
    shared = _shared_by_half(items, topology) if tier is Tier.EXCEPTION else None
    is_tie = tier >= Tier.DEATH and any(item.at - first.at <= TIE_SECONDS and item.worker != first.worker for item in items[1:])
    has_root = shared is not None or not is_tie
    independent = len({item.source for item in ranked if item.worker == first.worker and item.strength is first.strength}) >= 2
    confidence = Confidence.LOW
    if tier in (Tier.TAKEN_AWAY, Tier.MACHINE, Tier.NODE_LOST, Tier.STATED) or (has_root and independent):
        confidence = Confidence.HIGH
    elif has_root and tier is not Tier.UNKNOWN:
        confidence = Confidence.MEDIUM
    chosen = shared or first
    return Verdict(
        cause=classes.USER_ERROR if shared is not None and first.fault_class not in causes.MEMORY | causes.STARTUP else chosen.fault_class,
        confidence=confidence,
        tier=tier,
        worker=chosen.worker if has_root else None,
        node=(chosen.node or topology.nodes.get(chosen.worker if chosen.worker is not None else -1)) if has_root else None,
        rank=chosen.rank if has_root else None,
        step=chosen.step,
        fingerprint=fingerprint_of(chosen) if chosen.text and tier >= Tier.STATED else None,
        evidence=tuple([chosen, *(item for item in ranked if item is not chosen)][:MAX_EVIDENCE]),
    )


def _joined(evidence: Iterable[Evidence], topology: Topology, now: datetime) -> list[Evidence]:
    """Drop other attempts and what lies outside the window around the first terminal event."""
    anchor = topology.first_failed_at if topology.first_failed_at is not None else now.timestamp()
    return [
        item
        for item in evidence
        if item.attempt == topology.attempt
        and item.strength is not Strength.BENIGN
        and (item.fault_class == classes.NODE_LOST or anchor - BEFORE_SECONDS <= item.at <= anchor + AFTER_SECONDS)
    ]


def _without_followers(evidence: Sequence[Evidence], topology: Topology) -> list[Evidence]:
    """Drop the kills that follow the first failure within the grace.

    A victim is no first failure: a rank that was killed is noticed later than the exceptions of those who waited for it.
    """
    weak = (Strength.SUSPECT, Strength.VICTIM, Strength.UNKNOWN)
    first = min((item.at for item in evidence if not _is_kill(item) and item.strength not in weak), default=None)
    return [item for item in evidence if not _follows(item, first, topology.grace_seconds)]


def _is_ours(item: Evidence, topology: Topology) -> bool:
    """Say whether our own stop of the attempt may have caused this."""
    # The kubelet tells whole seconds: the end of a worker that was asked to stop may seem to lie before the stop.
    resolution = KUBELET_SECONDS if _is_asked_to_end(item) else 0.0
    if topology.stopping_since is None or item.at + resolution <= topology.stopping_since:
        return False
    return item.strength is not Strength.NODE and item.fault_class not in causes.STATED


def _is_kill(item: Evidence) -> bool:
    """Whether somebody ended the process: torchrun its ranks, the kubelet the container. As a root it needs to be the first thing."""
    return item.fault_class == classes.SIGKILL or _is_asked_to_end(item)


def _is_asked_to_end(item: Evidence) -> bool:
    return item.fault_class == classes.PREEMPTED and item.source is Source.EXIT


def _follows(item: Evidence, first: float | None, grace_seconds: float) -> bool:
    return _is_kill(item) and first is not None and first <= item.at <= first + grace_seconds


def _coalesced(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Keep one fact per machine fault and burst, and one per rank and class otherwise: the earliest."""
    kept: list[Evidence] = []
    newest: dict[tuple[object, ...], Evidence] = {}
    for item in sorted(evidence, key=_order):
        is_machine = item.strength is Strength.NODE
        key = (item.node, item.gpu, item.fault_class, item.source) if is_machine else teller_of(item)
        before = newest.get(key)
        if before is None or (is_machine and item.at - before.at > NODE_BURST_SECONDS):
            kept.append(item)
            newest[key] = item
    return kept


def _tier(item: Evidence, first_cause: float | None) -> Tier:
    if item.fault_class == classes.PREEMPTED:
        is_first = first_cause is not None and item.at <= first_cause
        return Tier.TAKEN_AWAY if is_first else Tier.ENVIRONMENT
    if item.fault_class == classes.NODE_LOST and item.strength is Strength.NODE:
        return Tier.NODE_LOST
    if item.fault_class in causes.STATED:
        return Tier.STATED
    if item.strength is Strength.APP:
        return Tier.DEATH if item.fault_class == classes.HOST_OOM or _is_signal_death(item) else Tier.EXCEPTION
    by_strength = {
        Strength.NODE: Tier.MACHINE,
        Strength.SUSPECT: Tier.SUSPECT,
        Strength.ENV: Tier.ENVIRONMENT,
        Strength.VICTIM: Tier.VICTIM,
    }
    return by_strength.get(item.strength, Tier.UNKNOWN)


def _is_signal_death(item: Evidence) -> bool:
    return item.source is Source.EXIT and re.search(r"\bSIG[A-Z]{3,4}\b|exit code (?:-\d|1[2-9]\d)", item.text) is not None


def _shared_by_half(items: Sequence[Evidence], topology: Topology) -> Evidence | None:
    """Return the earliest of the errors that at least half of the ranks, or of the workers, had in the same words at the same step."""
    groups: dict[tuple[str, int | None], list[Evidence]] = defaultdict(list)
    for item in items:
        groups[(fingerprint_of(item), item.step)].append(item)
    for group in groups.values():
        workers, ranks = {item.worker for item in group}, {item.rank for item in group if item.rank is not None}
        if 2 * len(workers) >= topology.workers or 2 * len(ranks) >= topology.workers * topology.procs_per_worker:
            return group[0]
    return None


def _order(item: Evidence) -> tuple[float, int, str, str]:
    return (item.at, item.worker if item.worker is not None else -1, item.fault_class, item.text)


def _step(items: Sequence[Evidence]) -> int | None:
    return next((item.step for item in items if item.step is not None), None)
