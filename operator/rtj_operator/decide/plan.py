"""What one pass wants: the whole next status, then actions, then events, then when to look again.

An action names its target so completely (uid, resourceVersion, attempt) that carrying it out twice, or late, does nothing wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rtj_operator.api.v1alpha1 import JobStatus


@dataclass(frozen=True)
class CreateService:
    """Create the job's headless Service; 409 with our owner is done."""


@dataclass(frozen=True)
class CreatePod:
    """Create worker ``worker`` of gang ``gang`` from the status that was just written; 409 with our owner is done."""

    worker: int
    gang: int
    attempt: int


@dataclass(frozen=True)
class DeletePod:
    """Delete one pod, with its uid as precondition. ``grace_seconds`` 0 is a force-delete: only for a lost node or a stuck pod."""

    name: str
    uid: str
    grace_seconds: int


@dataclass(frozen=True)
class CordonNode:
    """One patch with resourceVersion: unschedulable plus our ownership annotations; only if it was schedulable."""

    node: str
    resource_version: str
    boot_id: str
    reason: str
    incident: int
    at: datetime


@dataclass(frozen=True)
class StrikeNode:
    """Record a strike on a node that somebody else cordoned or that is only suspected; owns nothing."""

    node: str
    resource_version: str
    reason: str
    incident: int
    at: datetime


@dataclass(frozen=True)
class ReleaseNode:
    """End our ownership of a Node that a person uncordoned: our marks go, and the time stays for which we keep off it."""

    node: str
    at: datetime


@dataclass(frozen=True)
class DeleteJob:
    """Delete the finished job itself (ttlSecondsAfterFinished)."""

    uid: str


NodeWrite = CordonNode | StrikeNode | ReleaseNode
Action = CreateService | CreatePod | DeletePod | NodeWrite | DeleteJob


@dataclass(frozen=True)
class JobEvent:
    """One Kubernetes event on the job, emitted after the status write succeeded. ``reason`` is one of api.reasons."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Plan:
    """The outcome of one `decide`."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    look_again_at: datetime | None = None
    """When to decide again although nothing changed; None: only on a change."""
    progress_only: bool = False
    """The status differs from the written one in progress fields alone: the write may be dropped on a conflict."""
