"""Who owns a run: the attempt with the highest fence.

Fences are only ever added, so an older attempt can find out that it is over, and nobody can take it back.
"""

from __future__ import annotations

from trainer_runtime.contract.codec import ContractError, dumps, loads
from trainer_runtime.contract.layout import FENCES, fence_path, parse_fence
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.errors import Fenced, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store


def read_fences(store: Store, run: str) -> tuple[Fence, ...]:
    """Return all fences of a run, lowest attempt first. Raises StoreUnavailable for one that cannot be read as a fence."""
    attempts = sorted(attempt for name in store.list(f"{run}/{FENCES}") if (attempt := parse_fence(name)) is not None)
    return tuple(_read_fence(store, run, attempt) for attempt in attempts)


def find_highest(store: Store, run: str) -> Fence | None:
    """Return the fence that owns the run, or None."""
    attempts = [attempt for name in store.list(f"{run}/{FENCES}") if (attempt := parse_fence(name)) is not None]
    return _read_fence(store, run, max(attempts)) if attempts else None


def create_fence(store: Store, run: str, fence: Fence) -> None:
    """Take the run for ``fence.attempt``. An existing fence with our own nonce is our own retried success.

    Raises Fenced when a newer attempt, or another process of this attempt, owns the run.
    """
    try:
        store.create(f"{run}/{fence_path(fence.attempt)}", dumps(fence).encode())
    except AlreadyInStore:
        holder = _read_fence(store, run, fence.attempt)
        if holder.nonce != fence.nonce:
            raise Fenced(
                f"attempt {fence.attempt} of run {run!r} was already started, by pod {holder.pod_uid or 'unknown'} of job "
                f"{holder.job_uid or 'unknown'}",
                holder.attempt,
                holder.job_uid,
            ) from None
    require_ownership(store, run, fence.attempt, fence.job_uid)


def require_ownership(store: Store, run: str, attempt: int, job_uid: str) -> None:
    """Raises Fenced when a newer attempt owns the run, StoreUnavailable when our own fence is gone: then this is not our store any more."""
    highest = find_highest(store, run)
    if highest is None or highest.attempt < attempt:
        raise StoreUnavailable(
            f"{store.uri}/{run}/{fence_path(attempt)}: this attempt's fence is gone, so this is not the store it was started in; "
            "was the volume unmounted or replaced?"
        )
    if highest.attempt > attempt or highest.job_uid != job_uid:
        raise Fenced(
            f"run {run!r} is owned by attempt {highest.attempt} of job {highest.job_uid or 'unknown'}; "
            f"attempt {attempt} of job {job_uid or 'unknown'} must not write",
            highest.attempt,
            highest.job_uid,
        )


def _read_fence(store: Store, run: str, attempt: int) -> Fence:
    path = f"{run}/{fence_path(attempt)}"
    try:
        fence = loads(Fence, store.read(path))
        if fence.attempt != attempt:
            raise ContractError(f"it is the fence of attempt {fence.attempt}")
        return fence
    except (ContractError, NotInStore) as error:
        # without it the lineage is unknown, and a guess could bring back what a rollback abandoned
        raise StoreUnavailable(f"{store.uri}/{path}: this fence cannot be read: {error}") from error
