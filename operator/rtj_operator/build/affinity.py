"""Keeps a pod off excluded nodes, whatever node affinity the user wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rtj_operator.api import keys


def avoid_hosts(affinity: Mapping[str, Any] | None, hosts: Sequence[str]) -> dict[str, Any] | None:
    """Return the affinity with ``kubernetes.io/hostname NotIn hosts`` merged in; unchanged (and None stays None) without hosts.

    The user's nodeSelectorTerms are alternatives (a node that matches any of them will do), so the rule goes into every one of them.
    A term without any requirement matches no node and stays as it is: with our rule added it would begin to match. ``hosts`` are values
    of the label, which on some clouds is not the node's name.
    """
    if not hosts:
        return dict(affinity) if affinity is not None else None
    rule = {"key": keys.HOSTNAME, "operator": "NotIn", "values": sorted(hosts)}
    merged = dict(affinity or {})
    node_affinity = dict(merged.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    terms = required.get("nodeSelectorTerms")
    required["nodeSelectorTerms"] = [_with_rule(term, rule) for term in terms] if terms else [{"matchExpressions": [rule]}]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
    merged["nodeAffinity"] = node_affinity
    return merged


def _with_rule(term: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    expressions = list(term.get("matchExpressions") or [])
    if not expressions and not term.get("matchFields"):
        return dict(term)
    return {**term, "matchExpressions": [*expressions, rule]}
