"""Which checkpoint is meant: its place in a store and the digest that proves it. The value that errors about it are made from."""

from __future__ import annotations

from dataclasses import dataclass

from trainer_runtime.contract.assignment import ResumeMode, ResumePoint
from trainer_runtime.contract.beat import CheckpointRecord, Level, Tier
from trainer_runtime.contract.exit_report import DamagedCheckpoint
from trainer_runtime.contract.layout import StepName, step_path
from trainer_runtime.errors import CheckpointDamaged


@dataclass(frozen=True)
class Reference:
    """One committed checkpoint of a run."""

    store_uri: str
    run: str
    name: StepName
    manifest_sha256: str

    @property
    def directory(self) -> str:
        """Its path in the store."""
        return f"{self.run}/{step_path(self.name)}"

    @property
    def uri(self) -> str:
        return f"{self.store_uri}/{self.directory}"

    def damaged(self, file: str, reason: str) -> CheckpointDamaged:
        """Return the error that says what is wrong with ``file``, a path relative to the checkpoint."""
        damage = DamagedCheckpoint(self.name.step, self.name.attempt, self.manifest_sha256, file, reason)
        return CheckpointDamaged(f"{self.uri}/{file}: {reason}", damage)

    def record(self, level: Level, *, tier: Tier = Tier.STORE, abandoned: bool = False, tagged: bool = False) -> CheckpointRecord:
        """Return what is told about it."""
        return CheckpointRecord(
            self.run, self.name.step, self.name.attempt, self.uri, self.manifest_sha256, level, tier, abandoned=abandoned, tagged=tagged
        )

    def resume_point(self, mode: ResumeMode = ResumeMode.STRICT) -> ResumePoint:
        """Return the orders to start from it."""
        return ResumePoint(self.name.step, self.name.attempt, self.uri, self.manifest_sha256, mode)
