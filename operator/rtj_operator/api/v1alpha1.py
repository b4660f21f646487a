"""The models of rtj.dev/v1alpha1 under one name. The CRD is generated from them (`api.crd`)."""

from __future__ import annotations

from rtj_operator.api.checkpoint_spec import Archive, Best, Checkpoint, Every, Keep, Local, ResumeFrom, S3Settings
from rtj_operator.api.checkpoints import (
    ArchiveFailureStatus,
    AttemptResume,
    AttemptSettings,
    AttemptStart,
    CheckpointRecordStatus,
    ForeignFence,
    NewestCheckpoint,
    ResumedFrom,
    RunStatus,
    SaveFailureStatus,
)
from rtj_operator.api.conditions import Condition, ConditionStatus, ConditionType
from rtj_operator.api.incidents import BudgetBucket, Charge, Confidence, EvidenceStatus, ExcludedNode, Failure, Restarts
from rtj_operator.api.job import Job
from rtj_operator.api.spec import Budgets, JobSpec, NodeRemediation, Recovery
from rtj_operator.api.status import Ending, JobPhase, JobStatus, Launch, Progress, StopReason, Workers

__all__ = [
    "Archive",
    "ArchiveFailureStatus",
    "AttemptResume",
    "AttemptSettings",
    "AttemptStart",
    "Best",
    "BudgetBucket",
    "Budgets",
    "Charge",
    "Checkpoint",
    "CheckpointRecordStatus",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "Confidence",
    "Ending",
    "Every",
    "EvidenceStatus",
    "ExcludedNode",
    "Failure",
    "ForeignFence",
    "Job",
    "JobPhase",
    "JobSpec",
    "JobStatus",
    "Keep",
    "Launch",
    "Local",
    "NewestCheckpoint",
    "NodeRemediation",
    "Progress",
    "Recovery",
    "Restarts",
    "ResumeFrom",
    "ResumedFrom",
    "RunStatus",
    "S3Settings",
    "SaveFailureStatus",
    "StopReason",
    "Workers",
]
