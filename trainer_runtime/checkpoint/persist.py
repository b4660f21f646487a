"""One save after the stage: write, hand in the index, commit, verify, mark. Every rank's persister runs it; rank 0's is the committer.

It works on staged bytes, a store and an exchange only, in a process beside the trainer. It never touches the training's process groups, and
every wait ends: a rank that failed or is late, and a store that hangs, cost this save and nothing else. A save whose persister was killed
is done again from the same bytes, and takes over whatever the one before got done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from trainer_runtime.checkpoint import fingerprint, frozen
from trainer_runtime.checkpoint.commit import Writer, commit
from trainer_runtime.checkpoint.documents import find_reference, is_verified, read_index, read_manifest
from trainer_runtime.checkpoint.exchange import SaveExchange
from trainer_runtime.checkpoint.job import Part, SaveJob, StagedFile
from trainer_runtime.checkpoint.keeping.local import LocalTier
from trainer_runtime.checkpoint.outcome import is_error, pack_error, pack_value, unpack
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import mark_verified, verify_files
from trainer_runtime.checkpoint.writer import write_files
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.codec import dumps, loads
from trainer_runtime.contract.layout import MANIFEST, StepName, rank_index_path, staging_path
from trainer_runtime.contract.manifest import FileEntry, RankIndex, TensorEntry
from trainer_runtime.errors import CommitUndecided, ExchangeTimeout, Fenced, RuntimeProblem, SaveFailed
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store

ANSWER_SECONDS: Final = 30.0
"""How much longer a rank waits for the committer's word than a half of the save may take. A third of it is for a rank whose
time is over to say why, and a third for the committer to act on what all ranks have said."""

log = logging.getLogger("trainer_runtime.persister")

T = TypeVar("T")


class Staged(Protocol):
    """The bytes of one rank's part, of which one window at a time is in memory: the first, to begin with."""

    def image(self, file: StagedFile) -> memoryview:
        """Return the bytes of a file of the present window, in whole pages."""

    def await_window(self, window: int, deadline_seconds: float) -> None:
        """Let the memory be filled with the next window, and wait for it. Raises SaveFailed when it does not come."""


class _Unanswered(SaveFailed):
    """Rank 0 did not say how the save ended."""


@dataclass(frozen=True)
class _Save:
    """Where one save's files and messages are."""

    name: StepName
    staging: str
    key: str


class Persister:
    """Turns one rank's staged saves into verified checkpoints, one at a time.

    ``deadline_seconds``: how long the first half of a save may take, up to the commit, and again the second one, up to the mark; in all,
    whatever a half consists of, windows too. Each rank counts from where it begins a half, which all do at about the same time. So no
    rank gives up what is committed or marked after that.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        writer: Writer,
        exchange: SaveExchange,
        on_record: Callable[[CheckpointRecord], None],
        deadline_seconds: float,
        local: LocalTier | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self._writer = writer
        self._exchange = exchange
        self._on_record = on_record
        self._deadline_seconds = deadline_seconds
        self._local = local
        self._end = 0.0
        """When the present half of the save is to be over, by the monotonic clock."""
        self._last_key = ""
        self._proven: set[str] = set()
        """Frozen files that this process has read back and proven. Every save names them, and each is read once."""
        self.is_hung = False
        """A call of the store did not come back within the deadline. Its thread cannot be ended, so this process is to be replaced."""

    def persist(self, job: SaveJob, part: Part, staged: Staged, *, again: bool = False) -> CheckpointRecord:
        """Write, commit and verify. Returns the verified record on every rank; calls ``on_record`` for committed and for verified.

        ``again``: an earlier process may have done some of this save.
        Raises SaveFailed, Fenced or StoreUnavailable, the same on every rank that is alive and in time.
        """
        name = StepName(job.about.step, self._writer.attempt)
        suffix = f".{job.tries}" if job.tries else ""
        save = _Save(name, f"{self._run}/{staging_path(name)}{suffix}", f"save/{name}{suffix}/")
        if self._last_key and self._last_key != save.key:
            self._exchange.forget(self._last_key)
        self._last_key = save.key
        self._begin_half()
        earlier, index = self._part(job, part, staged, save, again)
        try:
            said = self._decide(f"{save.key}committed", lambda: self._commit(job, save, earlier))
        except Exception as error:
            if not isinstance(error, (Fenced, _Unanswered, CommitUndecided)):
                self._begin_half()
                self._clear(save.staging)
            raise
        self._begin_half()
        reference = Reference(self._store.uri, self._run, name, said["manifest"])
        if said["adopted"]:  # what counts is its bytes, which may be others than this try's
            index = None
            self._clear(save.staging)
        self._on_record(reference.record(Level.COMMITTED, tagged=said["tagged"]))
        index = self._prove_part(reference, index, save)
        self._decide(f"{save.key}verified", lambda: self._mark(reference, save))
        record = reference.record(Level.VERIFIED, tagged=said["tagged"])
        self._on_record(record)
        if self._local is not None and index is not None:
            self._local.prove(reference, index)
        return record

    def leave(self) -> None:
        """Tell the others that this rank is gone and stages no more saves."""
        self._exchange.put(_gone(self._writer.rank), b"")

    def _begin_half(self) -> None:
        self._end = time.monotonic() + self._deadline_seconds

    def _seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _find_committed(self, name: StepName) -> Reference | None:
        """Return what an earlier try or process committed: only this attempt writes under its names."""
        return self._bounded("looking for what was committed", lambda: find_reference(self._store, self._run, name))

    def _part(
        self,
        job: SaveJob,
        part: Part,
        staged: Staged,
        save: _Save,
        again: bool,
    ) -> tuple[Reference | None, RankIndex | None]:
        """Hand in this rank's index, or the reason why there is none: the committer then need not wait.

        Returns what this attempt has committed of this step already, and the index. Where the first is there, nothing was written.
        """
        rank = self._writer.rank
        key = f"{save.key}index/{rank}"
        said = self._exchange.find(key) if again else None
        if said is not None:
            return None, _index_in(said)
        try:
            earlier = self._find_committed(save.name) if again or job.tries else None
            if earlier is not None:  # only a rank 0 that does not see it will ever read this
                self._exchange.put(key, pack_error(SaveFailed(f"rank {rank} found that step {job.about.step} is committed already")))
                return earlier, None
            if again:
                self._bounded("removing half-written files", lambda: self._remove_own(part, save.staging))
            index, text = self._write_part(job, part, staged, save)
        except Exception as error:  # whatever it was, the other ranks must learn of it: they would wait for this one
            self._exchange.put(key, pack_error(error))
            return None, None
        self._exchange.put(key, pack_value({"structure": part.structure_sha256, "index": text}))
        return None, index

    def _remove_own(self, part: Part, staging: str) -> None:
        # Rank 0's is the manifest too, which a commit that was cut off before its one atomic act may have left. It goes first: without it,
        # nothing of what is still there can be taken for a checkpoint.
        manifest = (MANIFEST,) if self._writer.rank == 0 else ()
        for path in (*manifest, *(file.path for file in part.files), rank_index_path(self._writer.rank)):
            if not frozen.is_frozen(path):
                self._store.remove(f"{staging}/{path}")

    def _clear(self, staging: str) -> None:
        """Give back the room that a save took which will not be committed. Every rank does it, when it has stopped writing: whoever is last
        leaves nothing.

        Not for one of a run that is no longer ours, nor for one that may yet turn out to be committed: rank 0 is silent, or the store was.
        """
        if self.is_hung:
            return
        try:
            self._bounded("removing an abandoned save", lambda: self._store.remove(staging))
        except RuntimeProblem as problem:
            log.warning("rtj: %s: what was written of an abandoned save stays: %s", staging, problem)

    def _write_part(self, job: SaveJob, part: Part, staged: Staged, save: _Save) -> tuple[RankIndex, str]:
        """Write this rank's files, window by window, and return its index, also as text."""
        if job.refusal:
            raise SaveFailed(job.refusal)
        self._proven.difference_update(file.path for file in part.files)  # what is staged may be written anew
        written: tuple[FileEntry, ...] = ()
        tensors = part.tensors
        for window in range(part.windows):
            if window > 0:
                self._raise_known_failure(save)
                staged.await_window(window, self._seconds_left())
            files = tuple(file for file in part.files if file.window == window)
            if self._local is not None:
                self._local.write(save.name, files, staged.image)
            entries, tensors = self._bounded("writing", partial(self._write_files, files, tensors, staged, save))
            written += entries
        rank = self._writer.rank
        index = RankIndex(rank, written + part.kept, tensors, job.objects)
        text = dumps(index)
        self._bounded("writing the index", lambda: self._store.create(f"{save.staging}/{rank_index_path(rank)}", text.encode()))
        return index, text

    def _write_files(
        self, files: tuple[StagedFile, ...], tensors: tuple[TensorEntry, ...], staged: Staged, save: _Save
    ) -> tuple[tuple[FileEntry, ...], tuple[TensorEntry, ...]]:
        written = write_files(self._store, self._run, save.staging, files, staged.image)
        return written, fingerprint.of_staged(tensors, {file.path: staged.image(file) for file in files})

    def _raise_known_failure(self, save: _Save) -> None:
        """Raise what the other ranks have said already that ends this save: training need not stand still for the windows that are left."""
        rank = self._writer.rank
        others = [number for number in range(self._writer.world_size) if number != rank]
        keys = [f"{save.key}index/{number}" for number in others] if rank == 0 else [f"{save.key}committed"]
        try:
            failures = [said for key in keys if (said := self._exchange.find(key)) is not None and is_error(said)]
        except ExchangeTimeout as error:
            log.debug("rtj: %s: nobody can be asked whether it is still wanted: %s", save.staging, error)
            return
        for failure in failures:
            unpack(failure)

    def _commit(self, job: SaveJob, save: _Save, earlier: Reference | None) -> dict[str, Any]:
        """Return the digest of what is committed now, whether it is tagged, and whether it is an earlier try's or process's and not what
        was staged.

        Raises SaveFailed where that lacks a tag of this save: nobody must take it for the one that retention leaves alone.
        """
        if earlier is None:
            try:
                return {"manifest": self._commit_parts(job, save).manifest_sha256, "adopted": False, "tagged": bool(job.about.tags)}
            except (AlreadyInStore, NotInStore) as error:
                earlier = self._find_committed(save.name)
                if earlier is None:
                    raise SaveFailed(f"step {job.about.step} is not committed: {error}") from error
        adopted = earlier
        manifest = self._bounded("reading the manifest", lambda: read_manifest(self._store, adopted))
        missing = ", ".join(tag for tag in job.about.tags if tag not in manifest.tags)
        if missing:
            raise SaveFailed(f"step {job.about.step} is committed already, without the tag {missing}, and a checkpoint's tags never change")
        return {"manifest": adopted.manifest_sha256, "adopted": True, "tagged": bool(manifest.tags)}

    def _commit_parts(self, job: SaveJob, save: _Save) -> Reference:
        parts = self._collect(f"{save.key}index", "its part of the save")
        for rank, part in enumerate(parts):
            if part["structure"] != parts[0]["structure"]:
                raise SaveFailed(f"rank {rank} and rank 0 hold different shared tensors (names, shapes, dtypes or aliases)")
        index_bytes = tuple(part["index"].encode() for part in parts)
        return self._bounded(
            "committing", lambda: commit(self._store, self._run, save.staging, self._writer, job.about, index_bytes), late=CommitUndecided
        )

    def _prove_part(self, reference: Reference, index: RankIndex | None, save: _Save) -> RankIndex | None:
        """Tell the others whether this rank's part is whole. Returns its index, or None when it is not whole. ``index`` None: it is read
        from the checkpoint, so that no rank's part is ever taken for proven because nobody looked. Frozen files are read back once."""
        key = f"{save.key}proof/{self._writer.rank}"
        try:
            if index is None:
                index = self._bounded("reading the index", lambda: read_index(self._store, reference, self._writer.rank))
            whole = index
            proven = frozenset(self._proven)
            self._bounded("reading back", lambda: verify_files(self._store, reference, whole, proven))
            self._proven |= frozen.named_in([whole])
        except Exception as error:  # as above: the others wait for this rank's word
            self._exchange.put(key, pack_error(error))
            return None
        self._exchange.put(key, pack_value(True))
        return index

    def _mark(self, reference: Reference, save: _Save) -> bool:
        if self._bounded("looking for the mark", lambda: is_verified(self._store, reference)):
            return True  # the process before this one did it; the other ranks may have read that and gone on
        self._collect(f"{save.key}proof", "the proof of its part")
        self._bounded("marking", lambda: mark_verified(self._store, reference, time.time(), self._writer.name))
        return True

    def _decide(self, key: str, act: Callable[[], Any]) -> Any:
        """Rank 0 acts and tells; the others are told. What it returns or raises is the same everywhere."""
        if self._writer.rank != 0:
            try:
                found, message = self._exchange.get_first([key, _gone(0)], self._seconds_left() + ANSWER_SECONDS)
            except ExchangeTimeout as error:
                raise _Unanswered(f"rank 0 did not say how the save ended: {error}") from error
            if found != key:
                raise _Unanswered("rank 0 is gone and did not say how the save ended")
            return unpack(message)
        try:
            value = act()
        except Exception as error:
            self._exchange.put(key, pack_error(error))
            raise
        self._exchange.put(key, pack_value(value))
        return value

    def _collect(self, key: str, what: str) -> list[Any]:
        """Return every rank's message under ``key``, within this half of the save, and see that time is left to act on them. Raises the
        first failure that a rank sent, also while others are not heard yet, as training may stand still until they know of it; or
        SaveFailed naming a late one."""
        self._end += ANSWER_SECONDS / 3
        values: dict[int, Any] = {}
        ranks = range(self._writer.world_size)
        owed = {f"{key}/{rank}": rank for rank in ranks}
        ended = {_gone(rank): rank for rank in ranks}
        while owed:
            keys = [either for wanted, rank in owed.items() for either in (wanted, _gone(rank))]
            try:
                found, message = self._exchange.get_first(keys, self._seconds_left())
            except ExchangeTimeout as error:
                late = next(iter(owed.values()))
                raise SaveFailed(f"rank {late} did not hand in {what} within {self._deadline_seconds:.0f} s") from error
            if found not in owed:
                raise SaveFailed(f"rank {ended[found]} ended and did not hand in {what}")
            values[owed.pop(found)] = unpack(message)
        self._end = max(self._end, time.monotonic() + ANSWER_SECONDS / 3)
        return [values[rank] for rank in ranks]

    def _bounded(self, what: str, act: Callable[[], T], late: type[RuntimeProblem] = SaveFailed) -> T:
        """Return what ``act``, which uses the store, returns. Raises ``late`` when it does not come back within this half of the save, and
        SaveFailed when that is over already.

        A thread that the kernel holds cannot be ended; it is left behind and `is_hung` says so.
        """
        if self.is_hung:
            raise SaveFailed(f"{what}: the store hangs")
        seconds = self._seconds_left()
        if seconds <= 0:
            raise SaveFailed(f"{what}: the {self._deadline_seconds:.0f} s that it may take with all before it are over")
        outcome: list[T] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                outcome.append(act())
            except BaseException as error:  # it belongs to the waiting thread
                failure.append(error)

        thread = threading.Thread(target=work, name=f"rtj-{what}", daemon=True)
        thread.start()
        thread.join(seconds)
        if failure:
            raise failure[0]
        if not outcome:
            self.is_hung = True
            raise late(f"{what}: {self._store.uri} did not answer within {seconds:.0f} s")
        return outcome[0]


def _gone(rank: int) -> str:
    return f"gone/{rank}"


def _index_in(message: bytes) -> RankIndex | None:
    try:
        return loads(RankIndex, unpack(message)["index"])
    except RuntimeProblem:  # this rank had told the others that it failed
        return None
