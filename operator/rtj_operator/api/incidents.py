"""What the status keeps of failures: incidents with their evidence, the nodes they cost, and the counts that budgets are made of."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from rtj_operator.api.base import ApiModel, Count, Cut, First, Line, Message, Name, Time, Word
from trainer_runtime.contract.evidence import Source, Strength


class Charge(str, Enum):
    """Which budget an incident counts against; unknown has no budget."""

    INFRASTRUCTURE = "infrastructure"
    APPLICATION = "application"
    HANG = "hang"
    PREEMPTION = "preemption"
    UNKNOWN = "unknown"


class Confidence(str, Enum):
    """How sure a verdict is. Only high may cordon."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Restarts(ApiModel):
    """Attempts that followed an incident, by what the incident was charged to."""

    total: Count = 0
    """All of them."""
    infrastructure: Count = 0
    """After failures of machines, network and storage."""
    application: Count = 0
    """After failures of the program itself."""
    hang: Count = 0
    """After attempts that stopped advancing."""
    preemption: Count = 0
    """After pods were taken away by the cluster."""
    unknown: Count = 0
    """After failures whose cause was not found."""


class EvidenceStatus(ApiModel):
    """One observed fact about a failure."""

    at: Time
    """When it was seen, by the clock of whoever saw it."""
    source: Source
    """Where it was seen: log, exit, pod, node, beat, nvml."""
    fault_class: Word
    """What kind of fault it speaks of."""
    strength: Strength
    """How much it says about who failed first."""
    text: Line = ""
    """The line or state that was seen."""
    worker: Count | None = None
    """Worker index."""
    node: Name | None = None
    """Node name."""
    rank: Count | None = None
    """Global rank."""
    gpu: Word | None = None
    """GPU, as the evidence names it."""
    step: Count | None = None
    """Step the rank was in, when whoever saw it knew."""


class Failure(ApiModel):
    """One incident: one failure of one attempt, with its verdict and what was done."""

    attempt: Count
    """The attempt that failed; the incident's id."""
    cause: Word
    """The fault class that the verdict names."""
    charge: Charge | None = None
    """The budget it counts against; absent: charged to nothing."""
    worker: Count | None = None
    """Index of the worker that failed first; absent when unknown."""
    node: Name | None = None
    """Node that failed first; absent when unknown."""
    rank: Count | None = None
    """Global rank that failed first; absent when unknown."""
    confidence: Confidence = Confidence.LOW
    """How sure the verdict is."""
    row: Annotated[str, Cut(8)] = ""
    """Row of the decision table that was used."""
    action: Message = ""
    """What was done about the job."""
    node_action: Message = ""
    """What was done about the node, or why nothing was."""
    message: Message = ""
    """The verdict in words."""
    evidence: Annotated[tuple[EvidenceStatus, ...], First(10)] = ()
    """What it rests on, strongest first."""
    fingerprint: Word | None = None
    """Digest of the exception's type and text, to tell a repeated error."""
    step: Count | None = None
    """Step at which it happened."""
    lost_steps: Count | None = None
    """Steps made since the checkpoint that the next attempt resumes from."""
    at: Time
    """When it was detected."""


class ExcludedNode(ApiModel):
    """A node that the job avoids."""

    node: Name
    """Node name."""
    cause: Word
    """Fault class that led to it."""
    strength: Strength = Strength.SUSPECT
    """How strong the evidence was; the weakest goes first when the list is full."""
    incident: Count = 0
    """Attempt whose incident led to it."""
    since: Time
    """When it was excluded."""
    until: Time
    """When the exclusion ends."""
    cordoned: bool = False
    """Whether the cordon of that node is ours."""


class BudgetBucket(ApiModel):
    """Incidents of one charge in one part of the budget window."""

    hour: Time
    """Start of the bucket; 24 buckets make one window."""
    charge: Charge
    """What they count against."""
    n: Count
    """How many."""
