"""The demo's verdict: it fails unless steps were lost, nothing began at zero, and every leaf is equal."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from e2e.demo.timeline import Fault, judge

CUT = Fault(
    name="power cut",
    done_at=100.0,
    detected_at=115.0,
    stopped_at=116.0,
    scheduled_at=117.0,
    started_at=118.0,
    stepping_at=130.0,
    step_before=40,
    resumed_from=30,
    cause="node_lost",
    row="row 4",
    node_action="excluded",
)
LEAVES = {"rank0/model/w": "aa", "rank1/model/w": "aa"}


def test_a_recovery_that_lost_steps_and_ended_equal_is_what_the_demo_shows() -> None:
    assert judge([CUT], LEAVES, dict(LEAVES)) == []


@pytest.mark.parametrize(
    ("change", "ours", "reference", "word"),
    [
        pytest.param({"step_before": 30}, LEAVES, LEAVES, "no step was lost", id="nothing lost"),
        pytest.param({"resumed_from": 0}, LEAVES, LEAVES, "started at step 0", id="from zero"),
        pytest.param({}, LEAVES, LEAVES | {"rank1/model/w": "ab"}, "1 leaves differ", id="a leaf differs"),
        pytest.param({}, {}, LEAVES, "2 leaves differ", id="nothing written"),
        pytest.param({}, {}, {}, "wrote no digests", id="nothing to compare with"),
    ],
)
def test_anything_less_is_said_and_fails(change: dict[str, Any], ours: dict[str, str], reference: dict[str, str], word: str) -> None:
    reasons = judge([dataclasses.replace(CUT, **change)], ours, reference)
    assert any(word in reason for reason in reasons)
