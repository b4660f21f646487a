"""One save after the stage: write, hand in the index, commit, verify, mark. Every rank runs it; rank 0 is the committer.

It works on staged bytes, a store and an exchange only, so that it can run in a thread of the trainer or in a process beside it. It never
touches the training's process groups, and every wait ends: a rank that failed, or is late, costs this save and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trainer_runtime.checkpoint.commit import About, Writer, commit
from trainer_runtime.checkpoint.exchange import Exchange
from trainer_runtime.checkpoint.outcome import pack_error, pack_value, unpack
from trainer_runtime.checkpoint.plan import SavePlan
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.stage import Stage
from trainer_runtime.checkpoint.verify import mark_verified, verify_files
from trainer_runtime.checkpoint.writer import write_files
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import StepName, rank_index_path, staging_path
from trainer_runtime.contract.manifest import ObjectEntry, RankIndex
from trainer_runtime.errors import ExchangeTimeout, Fenced, RuntimeProblem, SaveFailed
from trainer_runtime.store.base import Store

ANSWER_SECONDS: Final = 30.0
"""How much longer a rank waits for the committer's word than the committer waits for the ranks."""


@dataclass(frozen=True)
class SaveJob:
    """One rank's part of one save, staged and ready to be written."""

    about: About
    plan: SavePlan
    objects: tuple[ObjectEntry, ...]
    tries: int
    """How often this attempt has tried this step before; a second try must not meet the first one's files or messages."""


class _Unanswered(SaveFailed):
    """Rank 0 did not say how the save ended."""


class Persister:
    """Turns staged saves into verified checkpoints, one at a time."""

    def __init__(
        self,
        store: Store,
        run: str,
        writer: Writer,
        exchange: Exchange,
        on_record: Callable[[CheckpointRecord], None],
        deadline_seconds: float,
    ) -> None:
        self._store = store
        self._run = run
        self._writer = writer
        self._exchange = exchange
        self._on_record = on_record
        self._deadline_seconds = deadline_seconds

    def persist(self, job: SaveJob, stage: Stage) -> CheckpointRecord:
        """Write, commit and verify. Returns the verified record on every rank; calls ``on_record`` for committed and for verified.

        Raises SaveFailed, Fenced or StoreUnavailable, the same on every rank that is alive and in time.
        """
        name = StepName(job.about.step, self._writer.attempt)
        suffix = f".{job.tries}" if job.tries else ""
        key = f"save/{name}{suffix}"
        staging = f"{self._run}/{staging_path(name)}{suffix}"
        index = self._write_part(job, stage, staging, key)
        try:
            sha256 = self._decide(f"{key}/committed", lambda: self._commit(job, staging, key))
        except Exception as error:
            self._clear(staging, error)
            raise
        reference = Reference(self._store.uri, self._run, name, sha256)
        self._on_record(reference.record(Level.COMMITTED))
        self._prove_part(reference, index, key)
        self._decide(f"{key}/verified", lambda: self._mark(reference, key))
        record = reference.record(Level.VERIFIED)
        self._on_record(record)
        return record

    def _clear(self, staging: str, error: Exception) -> None:
        """Give back the room that an abandoned save took. Every rank does it, when it has stopped writing: whoever is last leaves nothing.

        Nothing is deleted when the run is no longer ours, nor when rank 0 is silent: it may yet commit what is there.
        """
        if isinstance(error, (Fenced, _Unanswered)):
            return
        try:
            self._store.remove(staging)
        except RuntimeProblem as problem:
            error.add_note(f"what was written of it stays: {problem}")

    def _write_part(self, job: SaveJob, stage: Stage, staging: str, key: str) -> RankIndex | None:
        """Write this rank's files and hand in its index, or the reason why there is none: the committer then need not wait."""
        try:
            files = write_files(self._store, staging, job.plan, stage)
            index = RankIndex(self._writer.rank, files, job.plan.tensors, job.objects)
            text = dumps(index)
            self._store.create(f"{staging}/{rank_index_path(self._writer.rank)}", text.encode())
        except Exception as error:  # whatever it was, the other ranks must learn of it: they would wait for this one
            self._exchange.put(f"{key}/index/{self._writer.rank}", pack_error(error))
            return None
        self._exchange.put(f"{key}/index/{self._writer.rank}", pack_value({"structure": job.plan.structure_sha256, "index": text}))
        return index

    def _commit(self, job: SaveJob, staging: str, key: str) -> str:
        parts = self._collect(f"{key}/index", "its part of the save")
        for rank, part in enumerate(parts):
            if part["structure"] != parts[0]["structure"]:
                raise SaveFailed(f"rank {rank} and rank 0 hold different shared tensors (names, shapes, dtypes or aliases)")
        index_bytes = tuple(part["index"].encode() for part in parts)
        return commit(self._store, self._run, staging, self._writer, job.about, index_bytes).manifest_sha256

    def _prove_part(self, reference: Reference, index: RankIndex | None, key: str) -> None:
        try:
            if index is not None:
                verify_files(self._store, reference, index)
        except Exception as error:  # as above: the others wait for this rank's word
            self._exchange.put(f"{key}/proof/{self._writer.rank}", pack_error(error))
            return
        self._exchange.put(f"{key}/proof/{self._writer.rank}", pack_value(True))

    def _mark(self, reference: Reference, key: str) -> bool:
        self._collect(f"{key}/proof", "the proof of its part")
        mark_verified(self._store, reference, time.time(), self._writer.name)
        return True

    def _decide(self, key: str, act: Callable[[], Any]) -> Any:
        """Rank 0 acts and tells; the others are told. What it returns or raises is the same everywhere."""
        if self._writer.rank != 0:
            try:
                return unpack(self._exchange.get(key, self._deadline_seconds + ANSWER_SECONDS))
            except ExchangeTimeout as error:
                raise _Unanswered(f"rank 0 did not say how the save ended: {error}") from error
        try:
            value = act()
        except Exception as error:
            self._exchange.put(key, pack_error(error))
            raise
        self._exchange.put(key, pack_value(value))
        return value

    def _collect(self, key: str, what: str) -> list[Any]:
        """Return every rank's message under ``key``, within one deadline. Raises what a rank sent, or SaveFailed naming a late one."""
        end = time.monotonic() + self._deadline_seconds
        values = []
        for rank in range(self._writer.world_size):
            rank_key = f"{key}/{rank}"
            try:
                message = self._exchange.get(rank_key, max(0.0, end - time.monotonic()))
            except ExchangeTimeout as error:
                raise SaveFailed(f"rank {rank} did not hand in {what} within {self._deadline_seconds:.0f} s") from error
            self._exchange.delete(rank_key)
            values.append(unpack(message))
        return values
