"""What lies in a run's directory, read from the store: fences, committed checkpoints, which of them are on the lineage and verified.

And when anything there last changed, for the question whether another job still writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainer_runtime.checkpoint.documents import find_reference, is_verified, read_manifest
from trainer_runtime.checkpoint.fences import read_fences
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.layout import FENCES, PROBE, STEPS, TMP, StepName
from trainer_runtime.contract.lineage import Lineage, lineage_of
from trainer_runtime.contract.manifest import Fence, Manifest
from trainer_runtime.errors import CheckpointDamaged, Refused
from trainer_runtime.store.base import NotInStore, Store

INVENTORY_LENGTH: Final = 20
"""How many of the newest checkpoints are told to the operator before an attempt starts."""


@dataclass(frozen=True)
class Inventory:
    """A run as it was found before an attempt began."""

    fences: tuple[Fence, ...]
    lineage: Lineage
    records: tuple[CheckpointRecord, ...]
    """The newest checkpoints on the lineage, newest first, at most INVENTORY_LENGTH; then, while there is room, abandoned ones."""

    @property
    def highest(self) -> Fence | None:
        """The fence that owns the run."""
        return self.fences[-1] if self.fences else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever committed here."""
        return not self.lineage.on and not self.lineage.abandoned

    def describe(self) -> str:
        """Return it in words, one line per checkpoint."""
        lines = []
        for record in self.records:
            on = StepName(record.step, record.attempt) in self.lineage.on
            lines.append(
                f"step {record.step} of attempt {record.attempt}: {record.level.value}{'' if on else ', abandoned'} ({record.uri})"
            )
        return "\n".join(lines) or "no committed checkpoint"


def read_inventory(store: Store, run: str) -> Inventory:
    """Look at a run. A directory without a manifest is not a checkpoint and is left out."""
    names = list_committed(store, run)
    fences = read_fences(store, run)  # after the names: a checkpoint whose fence is not known yet would pass for abandoned
    lineage = lineage_of(fences, names)
    newest_first = (*reversed(lineage.on), *reversed(lineage.abandoned))
    records = []
    for name in newest_first[:INVENTORY_LENGTH]:
        found = _look_at(store, run, name, lineage)
        if found is not None:
            # without any fence nothing is known to have left the lineage; the start ends for the missing fence, not by starting over
            is_abandoned = bool(fences) and not found.on_lineage
            records.append(found.reference.record(found.level, abandoned=is_abandoned, tagged=found.is_tagged))
    return Inventory(fences, lineage, tuple(records))


@dataclass(frozen=True)
class Committed:
    """One committed checkpoint with what its manifest says. Its data was not looked at."""

    reference: Reference
    on_lineage: bool
    level: Level
    manifest: Manifest | None
    """None: it cannot be read."""
    fault: str = ""
    """Why there is no manifest."""

    @property
    def name(self) -> StepName:
        return self.reference.name

    @property
    def is_tagged(self) -> bool:
        """Whether only a person may delete it: it has tags, or nobody knows what it has."""
        return self.manifest is None or bool(self.manifest.tags)


def read_committed(store: Store, run: str) -> tuple[Committed, ...]:
    """Return every committed checkpoint of a run, by step and attempt."""
    names = list_committed(store, run)
    lineage = lineage_of(read_fences(store, run), names)
    return tuple(found for name in names if (found := _look_at(store, run, name, lineage)) is not None)


def _look_at(store: Store, run: str, name: StepName, lineage: Lineage) -> Committed | None:
    """Return what stands under a name, or None when it was deleted since it was listed."""
    reference = find_reference(store, run, name)
    if reference is None:
        return None
    manifest, fault = None, ""
    try:
        manifest = read_manifest(store, reference)
    except (CheckpointDamaged, Refused) as error:
        fault = str(error)
    return Committed(reference, name in lineage.on, level_of(store, reference), manifest, fault)


def list_committed(store: Store, run: str) -> tuple[StepName, ...]:
    """Return the checkpoints of a run, by step and attempt. What has a foreign name, or lost its manifest, is not one."""
    names = (StepName.parse(name) for name in store.list(f"{run}/{STEPS}"))
    return tuple(sorted(name for name in names if name is not None and find_reference(store, run, name) is not None))


def find_newest_change(store: Store, run: str) -> float | None:
    """Return when fences, checkpoints or a save in flight last changed, as Unix seconds by the store's clock; None when there is nothing.

    The probe of a start is no sign of life: every attempt that comes to look writes one.
    """
    paths = [f"{run}/{FENCES}", f"{run}/{STEPS}"]
    paths += [f"{run}/{folder}/{name}" for folder in (FENCES, STEPS) for name in store.list(f"{run}/{folder}")]
    for name in store.list(f"{run}/{TMP}"):
        if not name.startswith(PROBE):
            paths += _tree(store, f"{run}/{TMP}/{name}")
    return max((at for path in paths if (at := _find_change(store, path)) is not None), default=None)


def _find_change(store: Store, path: str) -> float | None:
    try:
        return store.modified_at(path)
    except NotInStore:
        return None  # moved or committed since it was listed


def _tree(store: Store, path: str) -> Iterator[str]:
    """A directory does not change when a file below its own directories grows, so a save in flight is looked at whole."""
    yield path
    try:
        names = store.list(path)
    except NotInStore:
        return  # a file
    for name in names:
        yield from _tree(store, f"{path}/{name}")


def level_of(store: Store, reference: Reference) -> Level:
    """Return how much is proven about a committed checkpoint."""
    return Level.VERIFIED if is_verified(store, reference) else Level.COMMITTED
