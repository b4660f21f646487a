"""From what the try-outs saw to what differs first, and what is likely to be behind it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.checkpoint.reading.comparing import Comparison
from trainer_runtime.contract.manifest import FollowedStep

SHOWN: Final = 5
"""Names per finding."""


@dataclass(frozen=True)
class Seen:
    """What one rank noted of one step; see `trainer_runtime.loop.notes`."""

    batch: str
    rng_before: str | None
    rng_after: str
    loss: str | None


Launch = Mapping[int, Mapping[int, Seen]]
"""What was seen, by rank and step."""


@dataclass(frozen=True)
class Evidence:
    """All that the try-outs gave. They began after step ``base``; the second one was interrupted after step ``cut``."""

    base: int
    cut: int
    through: Launch
    interrupted: Launch
    ends: Comparison
    """The two try-outs' last checkpoints."""
    was_deterministic: bool
    """Whether the run has torch's deterministic algorithms switched on."""
    followed: FollowedStep | None = None
    """What the run itself saw in the step after ``base``, where that was recorded."""
    original: Comparison | None = None
    """The first try-out's last checkpoint and the run's own one of that step, where there is one."""


@dataclass(frozen=True)
class Finding:
    """One thing that differs, and the likely cause in plain words."""

    what: str
    cause: str


@dataclass(frozen=True)
class Diagnosis:
    """The result. ``notes``: what could not be compared, and other things to know."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def is_healthy(self) -> bool:
        return not self.findings


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return what differs, the first difference first."""
    findings = [*_compare_steps(evidence), *_compare_ends(evidence), *_compare_with_the_run(evidence)]
    notes = []
    seen = [step for rank in evidence.through.values() for step in rank.values()]
    if not any(step.loss for step in seen):
        notes.append("the script reports no loss (run.report(loss=…)), so losses were not compared")
    if evidence.followed is None:
        notes.append("the run did not record what it saw after this checkpoint, so only the try-outs were compared with each other")
    return Diagnosis(tuple(findings), tuple(notes))


def _compare_steps(evidence: Evidence) -> Iterator[Finding]:
    """Yield the first thing that any rank saw differently, and nothing that follows from it."""
    steps = sorted({step for rank in evidence.through.values() for step in rank})
    for step in steps:
        for rank in sorted(evidence.through):
            left, right = evidence.through[rank].get(step), evidence.interrupted.get(rank, {}).get(step)
            if left is None or right is None:
                yield Finding(f"step {step}: rank {rank} made it in one try-out only", "the loop's length depends on when it was started")
                return
            found = _compare_seen(left, right, f"step {step}, rank {rank}", step <= evidence.cut, evidence.was_deterministic)
            if found is not None:
                yield found
                return


def _compare_seen(left: Seen, right: Seen, where: str, is_same_start: bool, was_deterministic: bool) -> Finding | None:
    """``is_same_start``: both try-outs made this step from the same checkpoint; else one of them was resumed just before."""
    if left.batch != right.batch:
        cause = (
            "the dataset or the loader draws from a source that nobody seeds (time, os.urandom, a generator of its own, loader workers)"
            if is_same_start
            else "the loader does not go on where it was: its state_dict() does not hold its position"
        )
        return Finding(f"{where}: another batch", cause)
    if left.rng_before != right.rng_before:
        return Finding(
            f"{where}: other random numbers when the step began",
            "something draws a varying number of them while the batch is fetched, or seeds a generator from the clock",
        )
    if left.loss != right.loss:
        return Finding(f"{where}: another loss ({_number(left.loss)} and {_number(right.loss)})", _cause(is_same_start, was_deterministic))
    if left.rng_after != right.rng_after:
        return Finding(
            f"{where}: other random numbers when the step ended",
            "the step draws a varying number of them, or seeds a generator from the clock",
        )
    return None


def _cause(is_same_start: bool, was_deterministic: bool) -> str:
    if not is_same_start:
        return "the step depends on something that is not in the checkpoint: an object with a state that was not given to attach()"
    generator = "a random number generator of the script's own that is not seeded (random.Random(), numpy.random.default_rng())"
    if was_deterministic:
        return f"{generator}, or a kernel that is not deterministic all the same"
    return f"{generator}, or kernels: torch.use_deterministic_algorithms(True) is not on"


def _compare_ends(evidence: Evidence) -> Iterator[Finding]:
    what = _first_of(evidence.ends)
    if what is not None:
        yield Finding(
            f"the states at the end: {what}",
            "follows from the difference above" if list(_compare_steps(evidence)) else "it takes part in no loss that was reported",
        )


def _compare_with_the_run(evidence: Evidence) -> Iterator[Finding]:
    cause = "another image, other hardware, other flags; or the process had a state then that is not in the checkpoint"
    followed = evidence.followed
    replayed = evidence.through.get(0, {}).get(evidence.base + 1)
    if followed is not None and replayed is not None and replayed.loss is not None and replayed.loss != followed.loss:
        yield Finding(
            f"step {evidence.base + 1}: the run itself had a loss of {_number(followed.loss)} there, the try-outs have "
            f"{_number(replayed.loss)}",
            cause,
        )
    what = None if evidence.original is None else _first_of(evidence.original)
    if what is not None:
        yield Finding(f"the run's own next checkpoint: {what}", cause)


def _first_of(comparison: Comparison) -> str | None:
    """Name what differs between two checkpoints, what comes first in a resume first."""
    for heading, names in (
        ("structure", comparison.structure),
        ("settings", comparison.settings),
        ("tensors with other bytes", comparison.tensors),
        ("values", comparison.values),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            return f"{heading}: {', '.join(names[:SHOWN])}{more}"
    return None


def _number(text: str | None) -> str:
    return "none" if text is None else repr(float.fromhex(text))
