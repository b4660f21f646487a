"""The start of an attempt in a run's directory: is the store one that all share, may this attempt have it, and where does it begin?

Rank 0 asks and decides, the others are told by exchange, so that all ranks start from the same checkpoint or end for the same reason.
Nothing in the run is changed before the fence is created, but for a probe that is taken away again; the fence is the attempt's only claim.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from trainer_runtime.channel.messages import Proceed
from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.exchange import Exchange
from trainer_runtime.checkpoint.fences import create_fence
from trainer_runtime.checkpoint.keeping.inventory import Inventory, read_inventory
from trainer_runtime.checkpoint.outcome import pack_error, pack_value, unpack
from trainer_runtime.checkpoint.reading.restore import locate, parse_uri
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import mark_verified, verify_checkpoint
from trainer_runtime.contract.assignment import ResumeMode, ResumePoint
from trainer_runtime.contract.codec import from_jsonable, to_jsonable
from trainer_runtime.contract.layout import PROBE, TMP, StepName, fence_path, is_run_name
from trainer_runtime.contract.manifest import Fence, Parent
from trainer_runtime.errors import (
    CheckpointDamaged,
    ConfigurationError,
    ExchangeTimeout,
    Fenced,
    Refused,
    RuntimeProblem,
    StoreUnavailable,
)
from trainer_runtime.store.base import NotInStore, Store

PROBE_SECONDS: Final = 30.0
"""How long a rank looks for the probe file: longer than the directory caches of network file systems live."""
OPEN_SECONDS: Final = 1800.0
"""How long the other ranks wait for rank 0, which may have a checkpoint to verify."""
_POLL_SECONDS: Final = 0.1

Hold = Callable[[Inventory], Proceed | None]
"""Tells the operator what was found and returns its answer; None when nobody answered."""


@dataclass(frozen=True)
class Opened:
    """An attempt that owns its run."""

    writer: Writer
    """As given, with the attempt filled in."""
    resume: ResumePoint | None
    """Where it starts; None: from nothing."""
    parents: tuple[Parent, ...]
    """For the manifests of this attempt."""
    passed_over: tuple[str, ...] = ()
    """Newer checkpoints that were found damaged, and why. Without an operator only."""


@dataclass(frozen=True)
class _Found:
    """Where an attempt would start, before it owns the run."""

    resume: ResumePoint | None
    passed_over: tuple[str, ...] = ()
    unmarked: Reference | None = None
    """The same, when it was proven just now and has no mark yet."""


def open_run(
    store: Store,
    run: str,
    writer: Writer,
    exchange: Exchange,
    assignment_resume: ResumePoint | None,
    start_fresh: bool,
    hold: Hold | None,
    *,
    resume_from: ResumePoint | None = None,
    probe_seconds: float = PROBE_SECONDS,
    open_seconds: float = OPEN_SECONDS,
) -> Opened:
    """Take the run for this attempt and return where it starts. Every rank calls it once; all return the same or raise the same.

    ``writer.attempt`` 0 means that there is no operator: the attempt is the highest fence + 1, and it starts from the newest checkpoint on
    the lineage that is verified, or passes verification now. ``hold`` None: nobody to ask. ``resume_from``: where a run begins that has no
    committed step on its lineage; afterwards it is not looked at. A resume point in another run, or one whose digest nobody knew, is
    verified before the fence is created, and the fence pins the digest that was found.

    Raises ConfigurationError for a bad run name; StoreUnavailable for a store that is not shared, or not the one the run began in; Refused,
    with the inventory, for a run that should be empty and is not; Fenced when another attempt owns the run or supersedes this one;
    CheckpointDamaged when there are checkpoints and none can be used.
    """
    if not is_run_name(run):
        raise ConfigurationError(f"run: {run!r} is not allowed; write small letters, digits, '.', '_' and '-', at most 128 of them")
    if writer.rank == 0:
        try:
            resume_run = _recognise(store, run, assignment_resume)
            _probe_as_first(store, run, writer, exchange, probe_seconds)
            opened = _take(store, run, writer, assignment_resume, resume_run, start_fresh, hold, resume_from)
        except Exception as error:
            exchange.put("open/result", pack_error(error))
            raise
        exchange.put("open/result", pack_value(to_jsonable(opened)))
        return opened
    _probe_as_other(store, run, writer, exchange, probe_seconds)
    opened = _await_result(exchange, open_seconds)
    return replace(opened, writer=replace(writer, attempt=opened.writer.attempt))


def _await_result(exchange: Exchange, seconds: float) -> Opened:
    try:
        return from_jsonable(Opened, unpack(exchange.get("open/result", seconds)))
    except ExchangeTimeout as error:
        raise StoreUnavailable(f"rank 0 did not open the run: {error}") from error


def _probe_as_first(store: Store, run: str, writer: Writer, exchange: Exchange, seconds: float) -> None:
    """Write a file, have every rank read it, take it away again: a directory that only looks shared is found before any training."""
    nonce = uuid.uuid4().hex
    path = f"{run}/{TMP}/{PROBE}{nonce}"
    try:
        store.create(path, nonce.encode())
    except RuntimeProblem as error:
        exchange.put("open/probe", pack_error(error))
        raise
    try:
        exchange.put("open/probe", pack_value(nonce))
        missing = []
        for rank in range(1, writer.world_size):
            try:
                unpack(exchange.get(f"open/probe/{rank}", 2 * seconds))
            except (ExchangeTimeout, StoreUnavailable) as error:
                missing.append(f"rank {rank}: {error}")
        if missing:
            raise StoreUnavailable(
                f"{store.uri} is not shared between all workers: a file that rank 0 wrote was not read everywhere\n" + "\n".join(missing)
            )
    finally:
        store.remove(path)


def _probe_as_other(store: Store, run: str, writer: Writer, exchange: Exchange, seconds: float) -> None:
    """Raises nothing: rank 0 makes one error of what all ranks report."""
    try:
        nonce = unpack(exchange.get("open/probe", 2 * seconds))
        found = _await_file(store, f"{run}/{TMP}/{PROBE}{nonce}", seconds)
        if found != nonce.encode():
            raise StoreUnavailable(f"{writer.name} read {found!r}")
    except RuntimeProblem as error:
        exchange.put(f"open/probe/{writer.rank}", pack_error(StoreUnavailable(f"{writer.name}: {error}")))
    else:
        exchange.put(f"open/probe/{writer.rank}", pack_value(True))


def _await_file(store: Store, path: str, seconds: float) -> bytes:
    end = time.monotonic() + seconds
    while True:
        try:
            return store.read(path)
        except NotInStore as error:
            if time.monotonic() >= end:
                raise StoreUnavailable(f"did not see rank 0's file within {seconds:.0f} s: {error}") from error
        time.sleep(_POLL_SECONDS)


def _recognise(store: Store, run: str, assigned: ResumePoint | None) -> str | None:
    """Return the run the resume point lies in when it is another one. One of this run was written under a fence; where that fence is not,
    the volume is another one, and nothing may be created there. Raises StoreUnavailable."""
    if assigned is None:
        return None
    place = parse_uri(assigned.uri)
    fence = f"{run}/{fence_path(assigned.attempt)}"
    if (place.store_uri, place.run) != (store.uri, run):
        return None if place.run == run and _is_copy_of_ours(store, assigned, fence) else place.run
    if not store.exists(fence):
        raise StoreUnavailable(
            f"{store.uri}/{run} has no fence of attempt {assigned.attempt}, which wrote the checkpoint to resume from: this is not the "
            "store that the run began in; is the volume mounted?"
        )
    return None


def _is_copy_of_ours(store: Store, assigned: ResumePoint, fence: str) -> bool:
    """Say whether a resume point in another store is a copy of this run's, as an archive holds them: both stores have the fence that it was
    written under, with its nonce. Raises StoreUnavailable."""
    source, _reference = locate(store, assigned)
    try:
        return source.read(fence) == store.read(fence)
    except NotInStore:
        return False


def _take(
    store: Store,
    run: str,
    writer: Writer,
    assigned: ResumePoint | None,
    resume_run: str | None,
    start_fresh: bool,
    hold: Hold | None,
    resume_from: ResumePoint | None,
) -> Opened:
    found = read_inventory(store, run)
    if hold is not None:
        _ask(hold, found, writer, run, None if start_fresh else assigned, resume_run)
    start = _find_start(store, run, found, assigned, start_fresh, resume_from, is_alone=writer.attempt == 0)
    resume = start.resume
    if writer.attempt == 0:
        writer = replace(writer, attempt=found.highest.attempt + 1 if found.highest else 1)
    elif found.highest is not None and found.highest.attempt > writer.attempt:
        raise Fenced(
            f"run {run!r} is owned by attempt {found.highest.attempt} of job {found.highest.job_uid or 'unknown'}, this is attempt "
            f"{writer.attempt}\n{found.describe()}",
            found.highest.attempt,
            found.highest.job_uid,
        )
    if resume is not None and assigned is None:
        resume_run = _recognise(store, run, resume)
    if resume is None and not start_fresh and not found.is_empty:
        raise Refused(
            f"run {run!r} holds checkpoints and nothing says where to start; name one to resume from, or allow startFresh\n"
            + found.describe()
        )
    parents: tuple[Parent, ...] = ()
    if resume is not None:
        if resume_run is not None or not resume.manifest_sha256:
            resume = _prove_source(store, resume)
        relation = "warm_start" if resume.mode is ResumeMode.WARM_START else "resume"
        parents = (Parent(resume.step, resume.attempt, resume.manifest_sha256, relation),)
    create_fence(store, run, Fence(writer.attempt, writer.job.uid, writer.pod_uid, uuid.uuid4().hex, resume, resume_run))
    if start.unmarked is not None:
        mark_verified(store, start.unmarked, time.time(), "found committed at the start of an attempt")
    return Opened(writer, resume, parents, start.passed_over)


def find_start(
    store: Store, run: str, assigned: ResumePoint | None, start_fresh: bool, resume_from: ResumePoint | None, *, is_alone: bool
) -> ResumePoint | None:
    """Return where an attempt that starts now would start, proven as far as `open_run` proves it; None: from nothing. Changes nothing.

    ``is_alone``: there is no operator. Raises what `open_run` raises for what lies there.
    """
    resume = _find_start(store, run, read_inventory(store, run), assigned, start_fresh, resume_from, is_alone=is_alone).resume
    if resume is None or (resume.manifest_sha256 and _recognise(store, run, resume) is None):
        return resume
    return _prove_source(store, resume)


def _find_start(
    store: Store,
    run: str,
    found: Inventory,
    assigned: ResumePoint | None,
    start_fresh: bool,
    resume_from: ResumePoint | None,
    *,
    is_alone: bool,
) -> _Found:
    """Changes nothing. ``resume_from`` counts while the run has no committed step on its lineage."""
    if assigned is not None:
        return _Found(assigned)
    start = _choose(store, run, found) if is_alone and not start_fresh else _Found(None)
    has_no_step = found.is_empty or (bool(found.fences) and not found.lineage.on)
    return _Found(resume_from) if start.resume is None and (start_fresh or has_no_step) else start


def _prove_source(store: Store, resume: ResumePoint) -> ResumePoint:
    """Return the resume point with the digest of what lies there, once all of it is proven. Nothing is written there, not even a mark.

    Raises ConfigurationError when there is no checkpoint, CheckpointDamaged when it is not whole.
    """
    source, reference = locate(store, resume)
    if not reference.manifest_sha256:
        found = find_reference(source, reference.run, reference.name)
        if found is None:
            raise ConfigurationError(f"{resume.uri} is to be resumed from, and there is no checkpoint: it has no manifest")
        reference = found
    if not is_verified(source, reference):
        verify_checkpoint(source, reference)
    return replace(resume, manifest_sha256=reference.manifest_sha256)


def _ask(hold: Hold, found: Inventory, writer: Writer, run: str, assigned: ResumePoint | None, resume_run: str | None) -> None:
    """Tell the operator what is here; go on as assigned unless it says otherwise, or is silent while the store knows more than it did.

    Another job's run is never entered in silence: that job may be alive where this operator cannot see it.
    """
    answer = hold(found)
    highest = found.highest.attempt if found.highest else 0
    holder = found.highest.job_uid if found.highest else None
    if answer is not None and answer.assignment is not None:
        if answer.assignment.attempt > writer.attempt:
            raise Fenced(f"attempt {answer.assignment.attempt} supersedes attempt {writer.attempt}", answer.assignment.attempt, holder)
        return
    if found.highest is not None and holder != writer.job.uid:
        raise Fenced(
            f"run {run!r} is owned by attempt {highest} of job {holder or 'unknown'}, and the operator did not say that job "
            f"{writer.job.uid or 'unknown'} may take it over\n{found.describe()}",
            highest,
            holder,
        )
    newest = found.lineage.newest
    if assigned is None or newest is None:
        return
    if resume_run is not None or newest > StepName(assigned.step, assigned.attempt):
        raise Fenced(
            f"run {run!r} holds a newer checkpoint (step {newest.step}) than the assigned one (step {assigned.step} of run "
            f"{resume_run or run!r}), and the operator did not answer\n{found.describe()}",
            highest,
            holder,
        )


def _choose(store: Store, run: str, found: Inventory) -> _Found:
    """Without an operator: the newest on the lineage that is proven, or can be proven now. Never from nothing while there is any."""
    passed_over: list[str] = []
    first: CheckpointDamaged | None = None
    for name in reversed(found.lineage.on):
        reference = find_reference(store, run, name)
        if reference is None:
            continue
        is_marked = is_verified(store, reference)
        try:
            if not is_marked:
                verify_checkpoint(store, reference)
        except CheckpointDamaged as error:
            passed_over.append(str(error))
            first = first or error
            continue
        return _Found(reference.resume_point(), tuple(passed_over), None if is_marked else reference)
    if first is not None:
        raise CheckpointDamaged("no checkpoint of this run can be used:\n" + "\n".join(passed_over), first.checkpoint)
    return _Found(None)
