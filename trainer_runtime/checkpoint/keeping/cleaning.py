"""Deleting, in the order in which a crash at any point leaves nothing half there: the manifest first, then the directory, then the trash.

Only rank 0 of the attempt that owns the run deletes, and it asks the fences again before every single one. In a cluster it deletes what the
operator granted; on its own it deletes what retention proposes. Others act meanwhile, on the store or by hand: so each thing is looked at
right before it goes, one that vanished is done, and one that cannot be taken away keeps none of the others. The caller may end it between
two things: the next call finds what is left.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference, read_documents
from trainer_runtime.checkpoint.fences import read_fences, require_ownership
from trainer_runtime.checkpoint.frozen import named_in
from trainer_runtime.checkpoint.keeping.inventory import read_committed
from trainer_runtime.checkpoint.keeping.retention import ABANDONED_SECONDS, Held, find_abandoning, propose
from trainer_runtime.checkpoint.keeping.snapshots import paths_in
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.layout import FROZEN, MANIFEST, SNAPSHOTS, STEPS, TMP, TRASH, StepName, fence_path, is_run_name, step_path
from trainer_runtime.errors import CheckpointDamaged, Refused, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store

TRASH_SECONDS: Final = 24 * 3600.0
"""How long what was deleted can still be taken back by hand."""

log = logging.getLogger("trainer_runtime")

T = TypeVar("T")


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

    One whose manifest cannot be read counts as tagged: a person decides. One that is deleted meanwhile is left out.
    """
    held = []
    committed = read_committed(store, run)
    fences = () if all(found.on_lineage for found in committed) else read_fences(store, run)
    for found in committed:
        created_at, metrics = (found.manifest.created_at, found.manifest.metrics) if found.manifest is not None else (0.0, {})
        abandoning = None if found.on_lineage else find_abandoning(fences, found.name)
        try:
            changed_at = store.modified_at(found.reference.directory)
            abandoned_at = store.modified_at(f"{run}/{fence_path(abandoning.attempt)}") if abandoning is not None else 0.0
        except NotInStore:
            continue
        is_verified = found.level is Level.VERIFIED
        held.append(Held(found.name, found.on_lineage, is_verified, found.is_tagged, changed_at, created_at, metrics, abandoned_at))
    return tuple(held)


def find_sources(store: Store, run: str) -> frozenset[StepName]:
    """Return the checkpoints of ``run`` that another run of this store began from, as the fences of that run say."""
    others = [other for other in store.list("") if other != run and is_run_name(other)]
    fences = [fence for other in others for fence in read_fences(store, other)]
    return frozenset(
        StepName(fence.resume.step, fence.resume.attempt) for fence in fences if fence.resume is not None and fence.resume_run == run
    )


def _never() -> bool:
    return False


def delete_checkpoints(store: Store, run: str, writer: Writer, names: Collection[StepName], is_ended: Callable[[], bool] = _never) -> None:
    """Move checkpoints to the trash. What is gone already is done: a grant may come twice. What another run began from stays: a grant may
    have waited for long. ``is_ended`` is asked before each one; True: the others stay.

    Raises Fenced when this attempt does not own the run: then nothing more is deleted. Raises the first error about a checkpoint that could
    not be moved when the others were.
    """
    if not names:
        return
    sources = find_sources(store, run)
    cleaning = _OneByOne(store, run, writer, is_ended)
    for name in cleaning.each(names):
        if name in sources:
            log.warning("step %d of attempt %d is not deleted: another run of this store began from it", name.step, name.attempt)
            continue
        with cleaning.one():
            cleaning.require_ownership()
            directory = f"{run}/{step_path(name)}"
            grave = _grave(run, str(name))
            try:
                store.move(f"{directory}/{MANIFEST}", f"{grave}/{MANIFEST}")
            except NotInStore:
                if not store.exists(directory):
                    continue
            store.move(directory, f"{grave}/checkpoint")
    cleaning.raise_first()


def sweep(
    store: Store,
    run: str,
    writer: Writer,
    now: float,
    is_ended: Callable[[], bool] = _never,
    started_with: frozenset[str] = frozenset(),
) -> None:
    """Empty the trash of what is older than 24 h, and trash what older attempts left in flight, what a deletion left half done, and frozen
    files and snapshots that no checkpoint names any more. ``is_ended`` is asked before each thing; True: the others stay.
    ``started_with``: this attempt's own snapshots, relative to the run. They stay, for every save of it names them, the first one too.

    Raises Fenced when this attempt does not own the run. Raises the first error about a thing that could not be taken away when the others
    were. ``now``: Unix seconds.
    """
    cleaning = _OneByOne(store, run, writer, is_ended)
    cleaning.require_ownership()
    for name in cleaning.each(store.list(f"{run}/{TRASH}")):
        with cleaning.one():
            if now - store.modified_at(f"{run}/{TRASH}/{name}") >= TRASH_SECONDS:
                cleaning.require_ownership()
                store.remove(f"{run}/{TRASH}/{name}")
    for name in cleaning.each(store.list(f"{run}/{TMP}")):
        staged = StepName.parse(name.partition(".")[0])
        left_behind = staged is None or staged.attempt < writer.attempt
        with cleaning.one():
            if left_behind and now - store.modified_at(f"{run}/{TMP}/{name}") >= ABANDONED_SECONDS:
                cleaning.require_ownership()
                store.move(f"{run}/{TMP}/{name}", f"{_grave(run, name)}/staging")
    for name in cleaning.each(store.list(f"{run}/{STEPS}")):
        # asked after the list: a save may commit at any moment, and what is a checkpoint by then was none in an older list
        step = StepName.parse(name)
        with cleaning.one():
            if step is not None and find_reference(store, run, step) is None:
                cleaning.require_ownership()
                store.move(f"{run}/{STEPS}/{name}", f"{_grave(run, name)}/checkpoint")
    named = _Named(store, run)
    # asked for their age, because the first save that names a file is in flight after the file is there
    files = [f"{folder}/{name}" for folder in cleaning.each((FROZEN, SNAPSHOTS)) for name in store.list(f"{run}/{folder}")]
    old = [path for path in files if path not in started_with and _is_old(store, f"{run}/{path}", now)]
    for path in cleaning.each(named.free_of(old)):
        with cleaning.one():
            cleaning.require_ownership()
            if named.is_free(path):
                store.move(f"{run}/{path}", f"{_grave(run, path.partition('/')[0])}/{path}")
    cleaning.raise_first()


def _is_old(store: Store, path: str, now: float) -> bool:
    try:
        return now - store.modified_at(path) >= ABANDONED_SECONDS
    except NotInStore:
        return False  # it went since it was listed


class _Named:
    """Which frozen files and snapshots the committed checkpoints of a run name. What a checkpoint names never changes, so each is read
    once, and a look right before a file goes costs one list."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._named: dict[StepName, frozenset[str]] = {}

    def free_of(self, paths: Collection[str]) -> tuple[str, ...]:
        """Return those of the paths, relative to the run, that no checkpoint names now; none when one checkpoint cannot be read."""
        if not paths:
            return ()
        try:
            self._read_new()
        except (CheckpointDamaged, Refused):
            return ()
        return tuple(path for path in paths if not any(path in named for named in self._named.values()))

    def is_free(self, path: str) -> bool:
        """Ask about one, right before it goes."""
        return bool(self.free_of([path]))

    def _read_new(self) -> None:
        for name in self._store.list(f"{self._run}/{STEPS}"):
            step = StepName.parse(name)
            if step is not None and step not in self._named:
                reference = find_reference(self._store, self._run, step)
                if reference is not None:
                    documents = read_documents(self._store, reference)
                    self._named[step] = named_in(documents.indexes) | paths_in(documents.manifest.snapshots)


class _OneByOne:
    """Takes things away one by one, so that one that cannot be taken away keeps none of the others."""

    def __init__(self, store: Store, run: str, writer: Writer, is_ended: Callable[[], bool]) -> None:
        self._store, self._run, self._writer, self._is_ended = store, run, writer, is_ended
        self._first: StoreUnavailable | AlreadyInStore | None = None

    def each(self, things: Iterable[T]) -> Iterator[T]:
        """Yield one thing after the other until there is none left, or the caller wants an end."""
        for thing in things:
            if self._is_ended():
                return
            yield thing

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around each thing: pass over one that vanished, remember the error of one that cannot be taken away."""
        try:
            yield
        except NotInStore:
            return  # committed, deleted or moved to its place by somebody else since it was listed
        except (StoreUnavailable, AlreadyInStore) as error:
            self._first = self._first or error
            self.require_ownership()  # a store that answers nothing at all ends it here, not after a deadline for each thing

    def require_ownership(self) -> None:
        """Raises as `fences.require_ownership` does."""
        require_ownership(self._store, self._run, self._writer.attempt, self._writer.job.uid)

    def raise_first(self) -> None:
        """Raises the first error that was remembered."""
        if self._first is not None:
            raise self._first


def _grave(run: str, name: str) -> str:
    """Return a new place in the trash. Its directory is made now, so its age is the time since the deletion."""
    return f"{run}/{TRASH}/{name}-{uuid.uuid4().hex[:8]}"
