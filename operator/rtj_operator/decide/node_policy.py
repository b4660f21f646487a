"""What may be done about a node: exclude it from this job, cordon it, or leave it alone, and why.

The job's wish is bounded by the operator's setting, by node rights, by other remediators and by the breaker, whose whole state is read from
the nodes' annotations. Lifting a cordon is left to people in this version: ``kubectl uncordon``, which is respected for 24 h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.api import keys
from rtj_operator.api import template as pod_template
from rtj_operator.api.v1alpha1 import Confidence, EvidenceStatus, ExcludedNode, Failure, Job, JobSpec, NodeRemediation
from rtj_operator.decide.attribution import Verdict
from rtj_operator.decide.case import NodeWish
from rtj_operator.decide.observation import NodeView, Observation
from rtj_operator.decide.plan import Action, CordonNode, ReleaseNode, StrikeNode
from rtj_operator.decide.policy import Policy
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.signals.fault_classes import NODE_LOST

OTHER_REMEDIATORS: Final = (
    "k8saas.nvidia.com/",
    "dgxc.nvidia.com/",
    "remediation.medik8s.io/",
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "weave.works/kured-node-lock",
    "node.kubernetes.io/out-of-service",
)
"""Label and taint keys (or their beginnings) of those who are at work on a node: NVSentinel, medik8s, Karpenter, autoscaler, kured."""
HYPERPOD_HEALTH: Final = "sagemaker.amazonaws.com/node-health-status"
ACT_SECONDS: Final = 600.0
"""How long after its incident a cordon or strike that could not be written yet is still tried."""
_STRENGTH_ORDER: Final = {Strength.NODE: 2, Strength.SUSPECT: 1}


def effective_mode(wish: NodeRemediation, policy: Policy, node_rights: bool) -> NodeRemediation:
    """Return the job's wish, bounded by the operator's setting; without node rights a cordon becomes an exclusion."""
    order = [NodeRemediation.OFF, NodeRemediation.OBSERVE, NodeRemediation.AVOID, NodeRemediation.CORDON]
    mode = order[min(order.index(wish), order.index(NodeRemediation(policy.node_remediation)))]
    return NodeRemediation.AVOID if mode is NodeRemediation.CORDON and not node_rights else mode


def excluded(
    present: Iterable[ExcludedNode],
    verdict: Verdict,
    incident: int,
    spec: JobSpec,
    nodes: Mapping[str, NodeView],
    now: datetime,
    policy: Policy,
) -> tuple[ExcludedNode, ...]:
    """Return the exclusions with the verdict's node added, within the cap: the weakest goes first, then the oldest."""
    assert verdict.node is not None
    strength = verdict.evidence[0].strength if verdict.evidence else Strength.UNKNOWN
    entry = ExcludedNode(
        node=verdict.node,
        cause=verdict.cause,
        strength=strength,
        incident=incident,
        since=now,
        until=now + timedelta(seconds=policy.exclude_seconds),
        cordoned=any(known.cordoned for known in present if known.node == verdict.node),
    )
    return within_cap((*(known for known in present if known.node != verdict.node), entry), spec, nodes, policy)


def matching(spec: JobSpec, nodes: Mapping[str, NodeView]) -> list[NodeView]:
    """Return the nodes that the job could run on by its nodeSelector and its GPUs: limits are shares of these, not of the whole cluster.

    What else the template asks for (affinity, tolerations, size) only the scheduler can weigh.
    """
    selector = pod_template.node_selector(spec.template).items()
    gpus = pod_template.gpu_limit(pod_template.find_trainer(spec.template) or {})
    return [node for node in nodes.values() if node.gpus >= gpus and all(node.labels.get(key) == value for key, value in selector)]


def within_cap(entries: Iterable[ExcludedNode], spec: JobSpec, nodes: Mapping[str, NodeView], policy: Policy) -> tuple[ExcludedNode, ...]:
    """Return the exclusions that the cap leaves. Nodes that are not Ready do not count: nothing would run there anyway."""
    kept = list(entries)
    ready = [node for node in matching(spec, nodes) if node.is_ready]
    cap = min(policy.exclude_limit, max(2, int(policy.exclude_share * (len(ready) if nodes else spec.workers))))
    while sum(1 for entry in kept if _takes_room(entry, nodes)) > cap or len(kept) > policy.exclude_limit:
        candidates = [entry for entry in kept if _takes_room(entry, nodes)] or kept
        kept.remove(min(candidates, key=_weakest_first))
    return tuple(kept)


def find_liftable(entries: Iterable[ExcludedNode], nodes: Mapping[str, NodeView]) -> ExcludedNode | None:
    """Return the exclusion to lift first when the job finds no room: the weakest, then the oldest. None: lifting any gives nothing back.

    A machine that confessed a fault stays excluded: better no room than that one. One that was lost and is back has confessed nothing.
    """
    usable = [
        entry
        for entry in entries
        if (entry.strength is not Strength.NODE or entry.cause == NODE_LOST) and (not nodes or _can_take_pods(nodes.get(entry.node)))
    ]
    return min(usable, key=_weakest_first, default=None)


def refreshed(entries: Iterable[ExcludedNode], job: Job, nodes: Mapping[str, NodeView], now: datetime) -> tuple[ExcludedNode, ...]:
    """Return the exclusions that still hold, each with whether its cordon is ours as the Node says it now."""
    return tuple(
        entry.evolve(cordoned=_is_ours(nodes[entry.node], job)) if entry.node in nodes else entry for entry in entries if entry.until > now
    )


def others_at_work(node: NodeView) -> str | None:
    """Return the label or taint of another remediator on that node, or None."""
    names = [*node.labels, *(taint.key for taint in node.taints)]
    found = next((name for name in names if name.startswith(OTHER_REMEDIATORS)), None)
    if found is None and node.labels.get(HYPERPOD_HEALTH, "Schedulable") != "Schedulable":
        return HYPERPOD_HEALTH
    return found


def cordon_obstacle(
    verdict_is_high: bool,
    trusted: bool,
    node: NodeView | None,
    spec: JobSpec,
    nodes: Mapping[str, NodeView],
    now: datetime,
    policy: Policy,
) -> str:
    """Return why this node must not be cordoned by us now, or an empty text when it may. The breaker comes last."""
    if node is None:
        return "the Node object is gone"
    if not verdict_is_high:
        return "the evidence is not strong enough"
    if not trusted:
        return "only a pod reported it, and its namespace is not trusted"
    if keys.EXCLUDE_FROM_REMEDIATION in node.labels:
        return f"label {keys.EXCLUDE_FROM_REMEDIATION}"
    if (other := others_at_work(node)) is not None:
        return f"{other}: another remediator is at work"
    if is_released(node, now, policy):
        return "a person uncordoned it"
    if node.unschedulable:
        return "it is cordoned already"
    return breaker_obstacle(spec, nodes, now, policy)


def breaker_obstacle(spec: JobSpec, nodes: Mapping[str, NodeView], now: datetime, policy: Policy) -> str:
    """Return what limit forbids one more cordon, or an empty text. Relaunches and uncordons are never held by it.

    All cordons of ours count, whatever the node: a machine that lost its GPUs is not among the matching ones any more.
    """
    ours = [node for node in nodes.values() if keys.CORDONED_BY in node.annotations and node.unschedulable]
    recent = [
        node for node in ours if (at := _cordoned_at(node)) is not None and now - at < timedelta(seconds=policy.cordon_window_seconds)
    ]
    usable = len(matching(spec, nodes))
    in_window = max(1, min(policy.cordon_window_limit, int(policy.cordon_window_share * usable)))
    standing = max(policy.cordon_standing_floor, int(policy.cordon_standing_share * usable))
    if len(recent) >= in_window:
        return f"breaker: {len(recent)} of {in_window} cordons in {policy.cordon_window_seconds:g} s"
    if len(ours) >= standing:
        return f"breaker: {len(ours)} of {standing} cordons stand"
    return ""


def is_released(node: NodeView, now: datetime, policy: Policy) -> bool:
    """Say whether a person uncordoned it: our annotation on a schedulable node, or the time of the release less than 24 h ago."""
    if _is_uncordoned_by_others(node):
        return True
    at = _time(node.annotations.get(keys.RELEASED_TIME, ""))
    return at is not None and now - at < timedelta(seconds=policy.release_seconds)


def is_trusted(evidence: Iterable[Evidence | EvidenceStatus], worker: int | None, namespace: str, policy: Policy) -> bool:
    """Say whether the evidence may take the worker's machine from everybody: the cluster's own word, or a pod's in a trusted namespace.

    The cluster's word on something else counts for nothing: a pod can be killed for memory whenever it likes.
    """
    if policy.trusted_namespaces is None or namespace in policy.trusted_namespaces:
        return True
    return any(
        item.strength is Strength.NODE
        and item.source in (Source.NODE, Source.POD)
        and item.fault_class != NODE_LOST
        and item.worker == worker
        for item in evidence
    )


def node_actions(
    observation: Observation, failure: Failure, wish: NodeWish, trusted: bool, now: datetime, policy: Policy
) -> tuple[Action, ...]:
    """Return what is still to be written to the incident's node: derived from the Node itself, so that it is planned until it is there."""
    spec, job = observation.job.spec, observation.job
    node = observation.nodes.get(failure.node or "")
    if spec is None or node is None or now - failure.at > timedelta(seconds=ACT_SECONDS) or wish in (NodeWish.NOTHING, NodeWish.EXCLUDE):
        return ()
    mode = effective_mode(spec.recovery.node_remediation, policy, observation.node_rights)
    if mode is not NodeRemediation.CORDON or keys.EXCLUDE_FROM_REMEDIATION in node.labels:
        return ()
    is_high = failure.confidence is Confidence.HIGH
    if wish is NodeWish.CORDON and not cordon_obstacle(is_high, trusted, node, spec, observation.nodes, now, policy):
        return (CordonNode(node.name, node.resource_version, node.boot_id, failure.cause, failure.attempt, failure.at),)
    is_due = wish is NodeWish.STRIKE or node.unschedulable
    own = f"={job.namespace}/{job.name}/{failure.attempt}"
    if (
        not is_due
        or others_at_work(node) is not None
        or _is_ours(node, job)
        or any(strike.endswith(own) for strike in node.annotations.get(keys.STRIKES, "").split(","))
    ):
        return ()
    return (StrikeNode(node.name, node.resource_version, failure.cause, failure.attempt, failure.at),)


def _weakest_first(entry: ExcludedNode) -> tuple[int, datetime]:
    return (_STRENGTH_ORDER.get(entry.strength, 0), entry.since)


def _can_take_pods(node: NodeView | None) -> bool:
    return node is not None and node.is_ready and not node.unschedulable


def releases(spec: JobSpec, observation: Observation, now: datetime, policy: Policy) -> tuple[ReleaseNode, ...]:
    """Return what is to be written to the nodes that a person uncordoned, so that the 24 h begin and our marks do not outlive the cordon.

    Whichever job they were cordoned for: a repair may take longer than that job lives or remembers. Several jobs may plan the same; only
    the first write finds marks.
    """
    if effective_mode(spec.recovery.node_remediation, policy, observation.node_rights) is not NodeRemediation.CORDON:
        return ()
    return tuple(
        ReleaseNode(name, now)
        for name, node in sorted(observation.nodes.items())
        if _is_uncordoned_by_others(node) and keys.EXCLUDE_FROM_REMEDIATION not in node.labels
    )


def _is_uncordoned_by_others(node: NodeView) -> bool:
    return keys.CORDONED_BY in node.annotations and not node.unschedulable


def _takes_room(entry: ExcludedNode, nodes: Mapping[str, NodeView]) -> bool:
    return not nodes or (entry.node in nodes and nodes[entry.node].is_ready)


def _is_ours(node: NodeView, job: Job) -> bool:
    return node.unschedulable and node.annotations.get(keys.CORDONED_BY) == f"{job.namespace}/{job.name}/{job.uid}"


def _cordoned_at(node: NodeView) -> datetime | None:
    return _time(node.annotations.get(keys.CORDONED_TIME, ""))


def _time(text: str) -> datetime | None:
    """Read an annotation's time; None when it is not one."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None
