"""Which checkpoints the archive lacks, found by looking at both stores: there is no queue that a restart could lose.

A copy that failed, or was cut off by the end of an attempt, is simply found missing again. Nothing is ever deleted in an archive.
"""

from __future__ import annotations

from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.inventory import read_committed
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.layout import FENCES, StepName
from trainer_runtime.store.base import AlreadyInStore, Store


def find_due(store: Store, run: str, every_steps: int | None) -> tuple[Reference, ...]:
    """Return the verified checkpoints on the lineage that belong into the archive, oldest first."""
    proven = [found for found in read_committed(store, run) if found.on_lineage and found.level is Level.VERIFIED]
    return tuple(found.reference for found in proven if found.manifest is not None and is_due(found.name, found.is_tagged, every_steps))


def is_due(name: StepName, is_tagged: bool, every_steps: int | None) -> bool:
    """Say whether a verified checkpoint on the lineage belongs into the archive."""
    return is_tagged or (every_steps is not None and name.step % every_steps == 0)


def copy_fences(store: Store, run: str, archive: Store) -> None:
    """Give the archive the run's fences: without them nobody could tell there which checkpoints lead to which."""
    there = set(archive.list(f"{run}/{FENCES}"))
    for name in store.list(f"{run}/{FENCES}"):
        if name not in there:
            try:
                archive.create(f"{run}/{FENCES}/{name}", store.read(f"{run}/{FENCES}/{name}"))
            except AlreadyInStore:
                continue  # made by the copier of another attempt since the listing


def is_archived(archive: Store, reference: Reference) -> bool:
    """Say whether the archive has a verified copy of a checkpoint."""
    there = find_reference(archive, reference.run, reference.name)
    return there is not None and there.manifest_sha256 == reference.manifest_sha256 and is_verified(archive, there)
