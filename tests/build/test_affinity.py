"""Excluded nodes are avoided whatever node affinity the user wrote, and nothing else of it changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rtj_operator.build.affinity import avoid_hosts

RULE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n9"]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}


CASES = [
    pytest.param(None, {"nodeAffinity": required({"matchExpressions": [RULE]})}, id="no affinity"),
    pytest.param({}, {"nodeAffinity": required({"matchExpressions": [RULE]})}, id="empty affinity"),
    pytest.param(
        {"nodeAffinity": required({"matchExpressions": [ZONE]})},
        {"nodeAffinity": required({"matchExpressions": [ZONE, RULE]})},
        id="one term",
    ),
    pytest.param(
        {"nodeAffinity": required({"matchExpressions": [ZONE]}, {"matchFields": [FIELD]})},
        {"nodeAffinity": required({"matchExpressions": [ZONE, RULE]}, {"matchFields": [FIELD], "matchExpressions": [RULE]})},
        id="two terms are alternatives, so both get the rule",
    ),
    pytest.param(
        {"nodeAffinity": required({}, {"matchExpressions": [ZONE]})},
        {"nodeAffinity": required({}, {"matchExpressions": [ZONE, RULE]})},
        id="an empty term matches no node and must not begin to match",
    ),
    pytest.param(
        {"nodeAffinity": PREFERRED, "podAntiAffinity": {"x": 1}},
        {"nodeAffinity": {**PREFERRED, **required({"matchExpressions": [RULE]})}, "podAntiAffinity": {"x": 1}},
        id="preferences and pod affinity stay",
    ),
]


@pytest.mark.parametrize(("written", "merged"), CASES)
def test_the_rule_goes_into_every_alternative(written: dict[str, Any] | None, merged: dict[str, Any]) -> None:
    before = copy.deepcopy(written)
    assert avoid_hosts(written, ["n2", "n1"]) == merged
    assert written == before


@pytest.mark.parametrize("written", [None, {"nodeAffinity": required({"matchExpressions": [ZONE]})}], ids=["none", "some"])
def test_without_excluded_nodes_the_affinity_stays_as_written(written: dict[str, Any] | None) -> None:
    assert avoid_hosts(written, []) == written
