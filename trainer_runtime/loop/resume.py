"""How an attempt comes to its starting point: take the run, find the checkpoint, compare, then load. In this order, and all ranks alike.

Nothing live is touched before every rank has found no difference that is not allowed, and none of them loads a byte that was not proven.
With an operator a damaged checkpoint ends the attempt, and the operator names an older one. Without one the next older verified one is
taken here. Either way it never begins from nothing while there is any.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference
from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.exchange import Exchange
from trainer_runtime.checkpoint.keeping.inventory import Inventory, find_newest_change, read_inventory
from trainer_runtime.checkpoint.keeping.snapshots import keep_snapshots
from trainer_runtime.checkpoint.opening import Hold, Opened, find_start, open_run
from trainer_runtime.checkpoint.outcome import pack_error, pack_value, unpack
from trainer_runtime.checkpoint.reading.restore import Checkpoint, open_checkpoint, parse_uri
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.allow import Allow
from trainer_runtime.contract.assignment import ResumeMode, ResumePoint
from trainer_runtime.contract.codec import from_jsonable, to_jsonable
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, Refused, RuntimeProblem
from trainer_runtime.loop.reporter import Reporter
from trainer_runtime.settings import Settings
from trainer_runtime.state import strict
from trainer_runtime.state.gather import TrainingState
from trainer_runtime.state.strict import Difference
from trainer_runtime.store.base import Store
from trainer_runtime.store.open import open_store
from trainer_runtime.store.posix import PosixStore

EXCHANGE_SECONDS: Final = 1800.0
"""How long a rank waits for the others' findings: one of them may have a large checkpoint to read."""
_WORD_FOR: Final = {dtype: word for word, dtype in DTYPES.items()}

_LAYOUT: Final = ("world_size", "mesh")
"""Sections of the description that say how tensors lie on ranks."""

log = logging.getLogger("trainer_runtime")


@dataclass(frozen=True)
class Start:
    """Where this attempt starts."""

    opened: Opened
    step: int
    """Steps done; 0 for a fresh run and for a warm start."""
    resumed_from: ResumePoint | None
    rng: dict[str, Any] | None
    """To be restored last."""
    run_state: dict[str, Any]
    """What `run` saved of itself; empty for a fresh run."""
    verified_step: int | None = None
    """The step whose checkpoint in this run is verified already: the one it was resumed from, unless that lies in another run."""
    allowances: tuple[str, ...] = ()
    """The words that this resume made use of."""
    stored: frozenset[str] = frozenset()
    """Frozen files that the checkpoint names and this run therefore has."""
    verified_tags: tuple[str, ...] = ()
    """The tags of the checkpoint of ``verified_step``."""


def begin(
    settings: Settings,
    store: Store,
    state: TrainingState,
    allowed: frozenset[Allow],
    exchange_of: Callable[[str], Exchange],
    reporter: Reporter,
) -> Start:
    """Bring all ranks to the same starting point and return it. What the script gave beside its objects is kept in the run by then.

    ``exchange_of``: makes an exchange of that name. Raises what `open_run` raises, Refused with every difference, CheckpointDamaged when no
    checkpoint can be used or an operator is to name the next.
    """
    resume = settings.assignment.resume if settings.assignment else None
    damaged: set[StepName] = set()
    while True:
        exchange = exchange_of(f"open-{len(damaged)}")
        opened = _open(settings, store, exchange, resume, None if damaged else _hold(settings, store, reporter))
        for line in opened.passed_over:
            log.warning("a damaged checkpoint was passed over: %s", line)
        together = _Together(settings, exchange)
        if settings.rank == 0:
            together.run("snapshots", lambda: keep_snapshots(store, settings.run, state.attachments))
        else:
            together.run("snapshots", lambda: None)
        if opened.resume is None:
            return Start(opened, 0, None, None, {})
        try:
            return _load(settings, store, state, allowed, together, opened, opened.resume)
        except CheckpointDamaged as error:
            if settings.assignment is not None:
                raise
            damaged.add(StepName(error.checkpoint.step, error.checkpoint.attempt))
            log.warning("%s; looking for an older checkpoint", error)
            resume = _next_older(settings, store, exchange, damaged, error)


def look_ahead(settings: Settings, store: Store, exchange: Exchange) -> Checkpoint | None:
    """Return the checkpoint that `begin` will resume from; None for a fresh run and a warm start. Takes nothing and loads nothing.

    For a framework that wants to know the step before its objects exist. Rank 0 looks, all ranks are told; every rank calls it.
    Raises what `open_run` raises for what lies there.
    """
    assignment = settings.assignment
    resume: ResumePoint | None = None
    if settings.rank == 0:
        try:
            assigned = assignment.resume if assignment else None
            resume = find_start(store, settings.run, assigned, settings.start_fresh, settings.resume_from, is_alone=assignment is None)
        except RuntimeProblem as error:
            exchange.put("start", pack_error(error))
            raise
        exchange.put("start", pack_value(to_jsonable(resume)))
    else:
        told = unpack(exchange.get("start", EXCHANGE_SECONDS))
        resume = None if told is None else from_jsonable(ResumePoint, told)
    if resume is None or resume.mode is ResumeMode.WARM_START:
        return None
    return _open_checkpoint(settings, store, resume)


def _open(settings: Settings, store: Store, exchange: Exchange, resume: ResumePoint | None, hold: Hold | None) -> Opened:
    writer = Writer(
        job=settings.job,
        pod_uid=settings.pod_uid,
        name=settings.worker_name,
        rank=settings.rank,
        world_size=settings.world_size,
        attempt=settings.assignment.attempt if settings.assignment else 0,
    )
    return open_run(store, settings.run, writer, exchange, resume, settings.start_fresh, hold, resume_from=settings.resume_from)


def _hold(settings: Settings, store: Store, reporter: Reporter) -> Hold | None:
    if not reporter.has_operator:
        return None

    def ask(found: Inventory) -> Any:
        highest = found.highest
        if highest is None:
            return reporter.hold(found.records, None, None, None)
        changed_at = find_newest_change(store, settings.run) if highest.job_uid != settings.job.uid else None
        quiet_seconds = time.time() - changed_at if changed_at is not None else None
        return reporter.hold(found.records, highest.attempt, highest.job_uid, quiet_seconds)

    return ask


def _load(
    settings: Settings,
    store: Store,
    state: TrainingState,
    allowed: frozenset[Allow],
    together: _Together,
    opened: Opened,
    resume: ResumePoint,
) -> Start:
    """Compare and load on every rank, each step only when the one before succeeded on all of them."""
    weights_only = resume.mode is ResumeMode.WARM_START
    checkpoint = together.run("documents", lambda: _open_checkpoint(settings, store, resume))
    found = together.gather("differences", lambda: state.compare(checkpoint, _WORD_FOR, weights_only))
    refused = [difference for difference in found if difference.allow not in allowed]
    if refused:
        raise Refused(strict.message(refused, resume.uri, allowed))
    for difference in found:
        log.warning("allowed at this resume: %s", difference)
    differing = frozenset(difference.allow for difference in found if difference.allow is not None)
    rng = together.run("fill", lambda: state.restore(checkpoint, differing, weights_only))
    if any(checkpoint.strict.get(section) != state.describe()[section] for section in _LAYOUT):
        _prove_reshard(settings, checkpoint, together)
    _note_software(checkpoint)
    words = tuple(sorted(word.value for word in differing))
    if weights_only:
        return Start(opened, 0, resume, None, {}, allowances=words)
    place = parse_uri(resume.uri)
    is_own = (place.store_uri, place.run) == (store.uri, settings.run)
    stored = checkpoint.frozen_files if is_own else frozenset[str]()
    verified_step = resume.step if is_own else None
    tags = checkpoint.manifest.tags
    return Start(opened, resume.step, resume, rng, state.saved_run_state(checkpoint), verified_step, words, stored, tags)


def _prove_reshard(settings: Settings, checkpoint: Checkpoint, together: _Together) -> None:
    """Compare the fingerprint of every tensor, as the ranks hold it now, with the one it was saved with. Raises Refused with their names.

    It is not the checkpoint that is damaged: its bytes were proven. So no other one is tried.
    """
    sums = together.share("fingerprints", checkpoint.fingerprints(settings.rank, settings.world_size))
    misplaced = checkpoint.find_misplaced(sums)
    if misplaced:
        raise Refused(
            f"after loading into another layout {len(misplaced)} tensors are not what was saved: {', '.join(misplaced[:5])}; this is an "
            "error of rtj or of this machine's memory, not of the checkpoint"
        )
    log.info("loaded into another layout; the fingerprints of %d tensors are those that were saved", len(set[str]().union(*sums)))


def _open_checkpoint(settings: Settings, store: Store, resume: ResumePoint) -> Checkpoint:
    local, archive = settings.local, settings.archive
    return open_checkpoint(
        store,
        resume,
        local=None if local is None else lambda: PosixStore(Path(local)),
        archive=None if archive is None else lambda: open_store(archive.store, settings.s3),
        ranks_here=settings.local_world_size,
    )


class _Together:
    """One thing done by every rank, and known by every rank to have succeeded on all: no rank may go on alone."""

    def __init__(self, settings: Settings, exchange: Exchange) -> None:
        self._rank, self._world_size = settings.rank, settings.world_size
        self._exchange = exchange

    def run(self, name: str, act: Callable[[], Any]) -> Any:
        """Return this rank's result once all ranks have one; raise the lowest failed rank's error on every rank."""
        try:
            result = act()
        except RuntimeProblem as error:
            self._exchange.put(f"{name}/{self._rank}", pack_error(error))
            self._await(name)
            raise
        self._exchange.put(f"{name}/{self._rank}", pack_value(None))
        self._await(name)
        return result

    def gather(self, name: str, act: Callable[[], list[Difference]]) -> list[Difference]:
        """Return what all ranks found, each finding once, in the ranks' order."""
        self._exchange.put(f"{name}/{self._rank}", pack_value([to_jsonable(difference) for difference in act()]))
        unique = {json.dumps(item, sort_keys=True): item for answer in self._await(name) for item in answer}
        return [from_jsonable(Difference, item) for item in unique.values()]

    def share(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value, in the ranks' order. JSON types only."""
        self._exchange.put(f"{name}/{self._rank}", pack_value(value))
        return self._await(name)

    def _await(self, name: str) -> list[Any]:
        return [unpack(self._exchange.get(f"{name}/{rank}", EXCHANGE_SECONDS)) for rank in range(self._world_size)]


def _next_older(settings: Settings, store: Store, exchange: Exchange, damaged: set[StepName], error: CheckpointDamaged) -> ResumePoint:
    """Return the newest checkpoint on the lineage that is older than the damaged ones and passes a full verification now.

    A verified mark does not count here: the store has just shown that it changes bytes. Raises ``error`` when there is none.
    """
    if settings.rank == 0:
        try:
            exchange.put("older", pack_value(to_jsonable(_search(settings, store, damaged, error))))
        except RuntimeProblem as problem:
            exchange.put("older", pack_error(problem))
            raise
    return from_jsonable(ResumePoint, unpack(exchange.get("older", EXCHANGE_SECONDS)))


def _search(settings: Settings, store: Store, damaged: set[StepName], error: CheckpointDamaged) -> ResumePoint:
    oldest = min(damaged)
    for name in reversed(read_inventory(store, settings.run).lineage.on):
        reference = find_reference(store, settings.run, name) if name < oldest else None
        if reference is None:
            continue
        try:
            verify_checkpoint(store, reference)
        except CheckpointDamaged as worse:
            log.warning("%s; looking for an older checkpoint", worse)
            continue
        return reference.resume_point()
    raise error


def _note_software(checkpoint: Checkpoint) -> None:
    """Say when torch is another one: the same image is the user's part of the promise."""
    saved, here = checkpoint.manifest.software.get("torch", ""), strict.describe_software()["torch"]
    if saved != here:
        log.warning("the checkpoint was written with torch %s, this is %s: bitwise equality is promised for equal images only", saved, here)
