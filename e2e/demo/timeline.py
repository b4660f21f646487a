"""What the demo measured about each fault, and the tables it prints at the end. Pure: values in, text out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rich.table import Table


@dataclass(frozen=True)
class Fault:
    """One fault and the recovery from it. All times are Unix seconds of one clock; steps are optimizer steps."""

    name: str
    done_at: float
    detected_at: float
    """When the operator recorded the incident."""
    stopped_at: float
    """When no rank of the old attempt could run any more and the next attempt was recorded."""
    scheduled_at: float
    """When the last pod of the new gang had a node."""
    started_at: float
    """When the last trainer container of the new gang ran."""
    stepping_at: float
    """When the first new step was reported."""
    step_before: int
    resumed_from: int
    cause: str
    row: str
    node_action: str

    @property
    def steps_lost(self) -> int:
        """Steps made before the fault and made again after it."""
        return self.step_before - self.resumed_from


def fault_table(faults: list[Fault]) -> Table:
    """One row per fault: what happened, how fast, what it cost."""
    table = Table(title="faults and recoveries", title_justify="left")
    for heading in ("fault", "cause (row)", "detected after", "relaunched after", "resumed from step", "steps lost", "node action"):
        table.add_column(heading)
    for fault in faults:
        table.add_row(
            fault.name,
            f"{fault.cause} ({fault.row})",
            f"{fault.detected_at - fault.done_at:.1f} s",
            f"{fault.stepping_at - fault.done_at:.1f} s",
            str(fault.resumed_from),
            str(fault.steps_lost),
            fault.node_action,
        )
    return table


def relaunch_table(faults: list[Fault]) -> Table:
    """One row per fault: the relaunch (decision -> first new step) split by phase."""
    table = Table(title="relaunch of all workers, split by phase", title_justify="left")
    for heading in ("fault", "old gang stopped", "pods scheduled", "containers started", "torchrun, resume, first step", "in all"):
        table.add_column(heading)
    for fault in faults:
        marks = (fault.detected_at, fault.stopped_at, fault.scheduled_at, fault.started_at, fault.stepping_at)
        # Kubernetes keeps whole seconds of these times, so a short span may come out below zero.
        spans = [f"{max(0.0, later - earlier):.1f} s" for earlier, later in zip(marks, marks[1:], strict=False)]
        table.add_row(fault.name, *spans, f"{marks[-1] - marks[0]:.1f} s")
    return table


def unix(time: str) -> float:
    """Unix seconds of a Kubernetes timestamp."""
    return datetime.fromisoformat(time).timestamp()


def differing_leaves(ours: dict[str, str], reference: dict[str, str]) -> list[str]:
    """Names of the leaves that differ or that only one side has."""
    return sorted(name for name in ours.keys() | reference.keys() if ours.get(name) != reference.get(name))


def judge(faults: list[Fault], ours: dict[str, str], reference: dict[str, str]) -> list[str]:
    """Return every reason why the demo failed; none means it showed what it claims."""
    reasons = [f"no step was lost to the fault {fault.name!r}, so nothing was shown" for fault in faults if fault.steps_lost <= 0]
    reasons += [f"the recovery from {fault.name!r} started at step 0" for fault in faults if fault.resumed_from <= 0]
    if not reference:
        reasons.append("the uninterrupted run wrote no digests")
    differing = differing_leaves(ours, reference)
    if differing:
        reasons.append(f"{len(differing)} leaves differ, the first: {differing[:5]}")
    return reasons
