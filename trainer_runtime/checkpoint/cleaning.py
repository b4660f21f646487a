"""Deleting, in the order in which a crash at any point leaves nothing half there: the manifest first, then the directory, then the trash.

Only rank 0 of the attempt that owns the run deletes, and it asks the fences again before every single one. In a cluster it deletes what the
operator granted; on its own it deletes what retention proposes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference, is_verified, read_manifest
from trainer_runtime.checkpoint.fences import read_fences, require_ownership
from trainer_runtime.checkpoint.inventory import list_committed
from trainer_runtime.checkpoint.lineage import lineage_of
from trainer_runtime.checkpoint.retention import ABANDONED_SECONDS, Held, propose
from trainer_runtime.contract.assignment import Keep, ResumePoint
from trainer_runtime.contract.layout import MANIFEST, STEPS, TMP, TRASH, StepName, step_path
from trainer_runtime.errors import CheckpointDamaged, Refused
from trainer_runtime.store.base import NotInStore, Store

TRASH_SECONDS: Final = 24 * 3600.0
"""How long what was deleted can still be taken back by hand."""


def propose_deletions(store: Store, run: str, keep: Keep, resume: ResumePoint | None, now: float) -> tuple[StepName, ...]:
    """Look at the run and return what retention would delete. ``now``: Unix seconds."""
    return propose(read_held(store, run, now), keep, resume)


def read_held(store: Store, run: str, now: float) -> tuple[Held, ...]:
    """Return every committed checkpoint of a run as retention sees it.

    One whose manifest cannot be read counts as tagged: a person decides.
    """
    names = list_committed(store, run)
    lineage = lineage_of(read_fences(store, run), names)
    held = []
    for name in names:
        reference = find_reference(store, run, name)
        if reference is None:
            continue
        try:
            tagged = bool(read_manifest(store, reference).tags)
        except (CheckpointDamaged, Refused):
            tagged = True
        age = now - store.modified_at(reference.directory)
        held.append(Held(name, name in lineage.on, is_verified(store, reference), tagged, age))
    return tuple(held)


def delete_checkpoints(store: Store, run: str, writer: Writer, names: Iterable[StepName]) -> None:
    """Move checkpoints to the trash. What is gone already is done: a grant may come twice.

    Raises Fenced when this attempt does not own the run: then nothing more is deleted.
    """
    for name in names:
        require_ownership(store, run, writer.attempt, writer.job.uid)
        directory = f"{run}/{step_path(name)}"
        grave = _grave(run, str(name))
        try:
            store.move(f"{directory}/{MANIFEST}", f"{grave}/{MANIFEST}")
        except NotInStore:
            if not store.exists(directory):
                continue
        store.move(directory, f"{grave}/checkpoint")


def sweep(store: Store, run: str, writer: Writer, now: float) -> None:
    """Empty the trash of what is older than 24 h, and trash what older attempts left in flight and what a deletion left half done.

    Raises Fenced when this attempt does not own the run. ``now``: Unix seconds.
    """
    require_ownership(store, run, writer.attempt, writer.job.uid)
    for name in store.list(f"{run}/{TRASH}"):
        if now - store.modified_at(f"{run}/{TRASH}/{name}") >= TRASH_SECONDS:
            store.remove(f"{run}/{TRASH}/{name}")
    for name in store.list(f"{run}/{TMP}"):
        staged = StepName.parse(name.partition(".")[0])
        left_behind = staged is None or staged.attempt < writer.attempt
        if left_behind and now - store.modified_at(f"{run}/{TMP}/{name}") >= ABANDONED_SECONDS:
            store.move(f"{run}/{TMP}/{name}", f"{_grave(run, name)}/staging")
    committed = {str(name) for name in list_committed(store, run)}
    for name in store.list(f"{run}/{STEPS}"):
        if StepName.parse(name) is not None and name not in committed:
            store.move(f"{run}/{STEPS}/{name}", f"{_grave(run, name)}/checkpoint")


def _grave(run: str, name: str) -> str:
    """Return a new place in the trash. Its directory is made now, so its age is the time since the deletion."""
    return f"{run}/{TRASH}/{name}-{uuid.uuid4().hex[:8]}"
