from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer_runtime.checkpoint.reading.comparing import Comparison
from trainer_runtime.cli.doctor.diagnosis import Evidence, Seen, diagnose
from trainer_runtime.contract.manifest import FollowedStep

EQUAL = Comparison((), (), (), (), 9)
SEEN = Seen("batch", "before", "after", (0.5).hex())


def launch(**changes: Any) -> dict[int, dict[int, Seen]]:
    """Steps 11 to 13 of two ranks; ``at_11=``: what rank 1 saw in that step instead."""
    seen = {rank: dict.fromkeys((11, 12, 13), SEEN) for rank in range(2)}
    for name, change in changes.items():
        seen[1][int(name.removeprefix("at_"))] = replace(SEEN, **change)
    return seen


HEALTHY = Evidence(
    base=10, cut=11, through=launch(), interrupted=launch(), ends=EQUAL, was_deterministic=True, followed=FollowedStep(10, 1, (0.5).hex())
)


def test_nothing_differs() -> None:
    diagnosis = diagnose(replace(HEALTHY, original=EQUAL))
    assert diagnosis.is_healthy
    assert diagnosis.notes == ()


@pytest.mark.parametrize(
    ("changes", "what", "cause"),
    [
        ({"interrupted": launch(at_11={"batch": "other"})}, "step 11, rank 1: another batch", "that nobody seeds"),
        ({"interrupted": launch(at_12={"batch": "other"})}, "step 12, rank 1: another batch", "does not go on where it was"),
        (
            {"interrupted": launch(at_11={"rng_before": "x"})},
            "step 11, rank 1: other random numbers when the step began",
            "while the batch",
        ),
        (
            {"interrupted": launch(at_11={"loss": (0.25).hex()})},
            "step 11, rank 1: another loss (0.5 and 0.25)",
            "not deterministic all the",
        ),
        (
            {"interrupted": launch(at_11={"loss": None}), "was_deterministic": False},
            "another loss (0.5 and none)",
            "torch.use_deterministic_algorithms(True) is not on",
        ),
        ({"interrupted": launch(at_12={"loss": (0.25).hex()})}, "step 12, rank 1: another loss", "not given to attach()"),
        ({"interrupted": launch(at_13={"rng_after": "x"})}, "step 13, rank 1: other random numbers when the step ended", "varying number"),
        ({"interrupted": {0: launch()[0], 1: {11: SEEN}}}, "step 12: rank 1 made it in one try-out only", "when it was started"),
        ({"ends": Comparison((), (), (), ("model/w", "optim/w"), 7)}, "tensors with other bytes: model/w, optim/w", "no loss"),
        ({"ends": Comparison((), (), tuple("abcdefg"), (), 7)}, "values: a, b, c, d, e and 2 more", "no loss"),
        (
            {"followed": FollowedStep(10, 1, (0.75).hex())},
            "step 11: the run itself had a loss of 0.75 there, the try-outs have 0.5",
            "another image",
        ),
        (
            {"original": Comparison((), (), (), ("model/w",), 8)},
            "the run's own next checkpoint: tensors with other bytes: model/w",
            "image",
        ),
    ],
    ids=[
        "a batch, from the same start",
        "a batch, after the resume",
        "random numbers before the step",
        "a loss with deterministic kernels",
        "a loss without them",
        "a loss after the resume",
        "random numbers after the step",
        "fewer steps",
        "the end alone",
        "many values at the end",
        "the run's own loss",
        "the run's own next checkpoint",
    ],
)
def test_what_differs_is_named_with_its_likely_cause(changes: dict[str, Any], what: str, cause: str) -> None:
    (finding,) = diagnose(replace(HEALTHY, **changes)).findings
    assert what in finding.what
    assert cause in finding.cause


def test_what_follows_from_a_difference_is_not_told_as_another_one() -> None:
    other = launch(at_11={"batch": "x", "loss": "0x1p+0"}, at_12={"loss": "0x1p+0"})
    first, end = diagnose(replace(HEALTHY, interrupted=other, ends=Comparison((), (), (), ("model/w",), 8))).findings
    assert first.what == "step 11, rank 1: another batch"
    assert end.cause == "follows from the difference above"


def test_what_could_not_be_compared_is_said() -> None:
    silent = {0: {11: replace(SEEN, loss=None)}}
    notes = diagnose(replace(HEALTHY, through=silent, interrupted=silent, followed=None)).notes
    assert ["run.report" in notes[0], "did not record" in notes[1]] == [True, True]
