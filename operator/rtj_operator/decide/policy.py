"""Every number that a decision uses and no job sets, with unit, default and reason.

What a cluster's administrator may set comes from `rtj_operator.settings`; the rest is fixed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from rtj_operator.decide.node_conditions import CONDITION_RULES, ConditionRule
from rtj_operator.settings import OperatorSettings

ANY_NAMESPACE = "*"
SILENT_SECONDS = 30.0
"""A sender without a beat for this long is silent: six beats lost in a row."""


@dataclass(frozen=True)
class Policy:
    """The operator's side of every decision. Durations are in seconds."""

    node_remediation: str = "Cordon"
    """Upper bound of every job's wish: Cordon, Avoid, Observe or Off."""
    condition_rules: tuple[ConditionRule, ...] = CONDITION_RULES
    """Which Node conditions speak of a bad machine. An administrator may add rows."""
    trusted_namespaces: frozenset[str] | None = None
    """Namespaces whose pods' own word may cordon a node. None: all, for clusters of one team."""

    start_grace_seconds: float = 30.0
    """No verdict from silence before this long after the operator began to listen or the API server came back: six beats' time."""
    silent_seconds: float = SILENT_SECONDS
    """A worker without a beat for this long is silent."""
    mass_silence_share: float = 0.5
    """More silent senders than this share at once is an outage of the channel, not of the workers."""
    mass_silence_floor: int = 8
    """Below this many senders the share says nothing: two of three dead nodes are two dead nodes."""

    stop_grace_seconds: int = 10
    """Grace of a pod that is deleted because of an incident: enough for a sealed checkpoint to be committed, not for a new one."""
    stuck_pod_seconds: float = 30.0
    """A pod of a Ready node that outlives its own grace by this much is stuck (row 19)."""
    done_grace_seconds: float = 60.0
    """How long the other workers may take to end after worker 0 reported done, and all of them after everyone did."""
    pull_seconds: float = 120.0
    """An image or container that cannot start is taken for transient this long: about three tries of the kubelet."""
    partly_scheduled_seconds: float = 600.0
    """A gang that holds nodes without being whole for this long gives them back."""
    backoff_seconds: float = 10.0
    """First wait before a relaunch that would otherwise come at once; doubles each time."""
    backoff_limit_seconds: float = 600.0
    retry_seconds: float = 30.0
    """When to look again at what only the outside can change: quota, policy, another owner of the run."""

    run_quiet_seconds: float = 600.0
    """Nothing written in a run for this long: the job whose fence stands there is taken for dead. It is the usual time between saves."""
    run_tolerance_seconds: float = 60.0
    """Two looks at when a run last changed may differ by this much without a write: a hold's length, and the clocks of two nodes."""
    run_look_seconds: float = 2.0
    """How often to look whether the pods of the job that is waited for have ended."""

    exclude_seconds: float = 24 * 3600.0
    """How long a job avoids a node."""
    exclude_limit: int = 64
    """Excluded nodes a job may have in all: they become one node affinity term."""
    exclude_share: float = 0.25
    """And at most this share of the Ready nodes, but two in any case."""
    cordon_window_seconds: float = 600.0
    cordon_window_share: float = 0.1
    cordon_window_limit: int = 5
    """Breaker: at most max(1, min(limit, share of nodes)) cordons per window."""
    cordon_standing_share: float = 0.2
    cordon_standing_floor: int = 2
    """Breaker: at most max(floor, share of nodes) cordons of ours standing."""
    release_seconds: float = 24 * 3600.0
    """How long we keep off a node that a person uncordoned."""

    progress_seconds: float = 10.0
    """Progress alone is written at most this often."""


def policy_of(settings: OperatorSettings) -> Policy:
    """Return the policy of an operator that runs with these settings."""
    trusts_all = ANY_NAMESPACE in settings.trusted_namespaces
    return Policy(
        node_remediation=settings.node_remediation,
        trusted_namespaces=None if trusts_all else frozenset(settings.trusted_namespaces),
        cordon_window_seconds=float(settings.cordon_window_seconds),
        cordon_window_share=settings.cordon_max_percent_in_window / 100,
        cordon_window_limit=settings.cordon_max_in_window,
        cordon_standing_share=settings.cordon_max_percent_standing / 100,
    )
