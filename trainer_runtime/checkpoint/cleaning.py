"""Deleting, in the order in which a crash at any point leaves nothing half there: the manifest first, then the directory, then the trash.

Only rank 0 of the attempt that owns the run deletes, and it asks the fences again before every single one. In a cluster it deletes what the
operator granted; on its own it deletes what retention proposes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from typing import Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference, read_documents
from trainer_runtime.checkpoint.fences import read_fences, require_ownership
from trainer_runtime.checkpoint.frozen import named_in
from trainer_runtime.checkpoint.inventory import read_committed
from trainer_runtime.checkpoint.retention import ABANDONED_SECONDS, Held, propose
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.layout import FROZEN, MANIFEST, STEPS, TMP, TRASH, StepName, is_run_name, step_path
from trainer_runtime.errors import CheckpointDamaged, Refused
from trainer_runtime.store.base import NotInStore, Store

TRASH_SECONDS: Final = 24 * 3600.0
"""How long what was deleted can still be taken back by hand."""


def propose_deletions(
    store: Store, run: str, held: Iterable[Held], keep: Keep, protected: Collection[StepName], now: float
) -> tuple[StepName, ...]:
    """Return what retention would delete of ``held``, which `read_held` returned. ``now``: Unix seconds.

    What another run of this store began from is protected as well. Raises StoreUnavailable also when that cannot be found out.
    """
    names = propose(held, keep, now, protected)
    if not names:
        return ()
    sources = find_sources(store, run)
    return tuple(name for name in names if name not in sources)


def read_held(store: Store, run: str) -> tuple[Held, ...]:
    """Return every committed checkpoint of a run as retention sees it.

    One whose manifest cannot be read counts as tagged: a person decides.
    """
    held = []
    for found in read_committed(store, run):
        created_at, metrics = (found.manifest.created_at, found.manifest.metrics) if found.manifest is not None else (0.0, {})
        changed_at = store.modified_at(found.reference.directory)
        is_verified = found.level is Level.VERIFIED
        held.append(Held(found.name, found.on_lineage, is_verified, found.is_tagged, changed_at, created_at, metrics))
    return tuple(held)


def find_sources(store: Store, run: str) -> frozenset[StepName]:
    """Return the checkpoints of ``run`` that another run of this store began from, as the fences of that run say."""
    others = [other for other in store.list("") if other != run and is_run_name(other)]
    fences = [fence for other in others for fence in read_fences(store, other)]
    return frozenset(
        StepName(fence.resume.step, fence.resume.attempt) for fence in fences if fence.resume is not None and fence.resume_run == run
    )


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
    """Empty the trash of what is older than 24 h, and trash what older attempts left in flight, what a deletion left half done, and frozen
    files that no checkpoint names any more.

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
    for name in store.list(f"{run}/{STEPS}"):
        # asked after the list: a save may commit at any moment, and what is a checkpoint by then was none in an older list
        step = StepName.parse(name)
        if step is not None and find_reference(store, run, step) is None:
            store.move(f"{run}/{STEPS}/{name}", f"{_grave(run, name)}/checkpoint")
    for path in find_unnamed_frozen(store, run, now):
        store.move(f"{run}/{path}", f"{_grave(run, 'frozen')}/{path}")


def find_unnamed_frozen(store: Store, run: str, now: float) -> tuple[str, ...]:
    """Return the files below ``frozen/``, relative to the run, that no committed checkpoint names and that are older than 24 h.

    The age matters: the first save that names a file is in flight after the file is there. When one checkpoint's documents cannot be read,
    none is returned. ``now``: Unix seconds.
    """
    old = {
        path
        for name in store.list(f"{run}/{FROZEN}")
        if now - store.modified_at(f"{run}/{(path := f'{FROZEN}/{name}')}") >= ABANDONED_SECONDS
    }
    if not old:
        return ()
    for found in read_committed(store, run):
        try:
            old -= named_in(read_documents(store, found.reference).indexes)
        except (CheckpointDamaged, Refused):
            return ()
    return tuple(sorted(old))


def _grave(run: str, name: str) -> str:
    """Return a new place in the trash. Its directory is made now, so its age is the time since the deletion."""
    return f"{run}/{TRASH}/{name}-{uuid.uuid4().hex[:8]}"
