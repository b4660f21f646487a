"""A worker's own copy of what its ranks save, on a disk of its node: it makes a restart on the same nodes cheap, and nothing more.

Each rank writes its files there before they go to the store, and reads them back once the store has committed. It is no checkpoint: it has
no manifest and no commit. Whoever reads it proves every byte by the indexes of the store's checkpoint, so a copy that is incomplete, stale
or damaged is passed over. Nothing here ever fails a save.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainer_runtime.checkpoint.frozen import is_frozen, locate, named_in
from trainer_runtime.checkpoint.job import StagedFile
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import verify_files
from trainer_runtime.contract.layout import STEPS, StepName, step_path
from trainer_runtime.contract.manifest import RankIndex
from trainer_runtime.store.posix import REMOVED, PosixStore

KEPT: Final = 2
"""Steps that stay: the one that is being written, and the one that a restart needs if this one does not get verified."""
WAIT_SECONDS: Final = 120.0
"""A disk of one's own that takes longer is no help; a save does not wait for it any more."""

log = logging.getLogger("trainer_runtime.persister")


class LocalTier:
    """One rank's part of the local tier. Used by one thread at a time; no method raises."""

    def __init__(self, directory: str, run: str, wait_seconds: float = WAIT_SECONDS) -> None:
        self._directory, self._run, self._wait_seconds = directory, run, wait_seconds
        self.failures = 0
        """Saves in a row that have no local copy."""
        self._proven: frozenset[str] = frozenset()
        """Frozen files that were read back and proven."""
        self._is_hung = False

    def write(self, name: StepName, files: Sequence[StagedFile], image: Callable[[StagedFile], memoryview]) -> None:
        """Make room, then write this rank's files. ``image``: a file's bytes, in whole pages."""

        def act() -> None:
            store = self._open()
            entries = store.list(f"{self._run}/{STEPS}")
            for old in find_excess(entries, name):
                store.remove(f"{self._run}/{step_path(old)}")
            for left in entries:
                if REMOVED in left:  # by a rank that was killed meanwhile
                    store.remove(f"{self._run}/{STEPS}/{left}")
            for file in files:
                path = self._path(name, file.path)
                if is_frozen(file.path) and store.exists(path):
                    continue
                self._proven -= {file.path}
                store.remove(path)  # of an earlier try, or of a run that was here before
                store.write_file(path, image(file), file.size)

        self._try("writing", name, act)

    def prove(self, reference: Reference, index: RankIndex) -> None:
        """Read back what was written of a committed checkpoint, frozen files once; what is not as staged is removed."""

        def act() -> None:
            store = self._open()
            written = tuple(file for file in index.files if store.exists(self._path(reference.name, file.path)))
            try:
                verify_files(store, replace(reference, store_uri=store.uri), replace(index, files=written), self._proven)
                self._proven = named_in([replace(index, files=written)])
            except Exception:
                self._proven = frozenset()
                for file in written:
                    store.remove(self._path(reference.name, file.path))
                raise

        if self.failures == 0:
            self._try("reading back", reference.name, act)

    def _open(self) -> PosixStore:
        return PosixStore(Path(self._directory))

    def _path(self, name: StepName, path: str) -> str:
        return locate(self._run, f"{self._run}/{step_path(name)}", path)

    def _try(self, doing: str, name: StepName, act: Callable[[], None]) -> None:
        if self._is_hung:
            return
        failure: list[Exception] = []

        def work() -> None:
            try:
                act()
            except Exception as error:  # a save must go on without its local copy, whatever happened to that
                failure.append(error)

        thread = threading.Thread(target=work, name="rtj-local", daemon=True)
        thread.start()
        thread.join(self._wait_seconds)
        if thread.is_alive():
            self._is_hung = True
            log.warning("rtj: local tier: %s took more than %.0f s; it is not used any more", self._directory, self._wait_seconds)
        elif failure:
            self.failures += 1
            log.warning("rtj: local tier: %s step %d failed, %d in a row: %s", doing, name.step, self.failures, failure[0])
        else:
            self.failures = 0


def find_excess(entries: Iterable[str], name: StepName) -> tuple[StepName, ...]:
    """Return the steps that must go so that KEPT are left with ``name``: of a later attempt before of an earlier one, then by step.

    A step that a rollback left behind has a higher number than those after it, so the attempt decides first.
    """
    others = [found for entry in entries if (found := StepName.parse(entry)) is not None and found != name]
    others.sort(key=lambda found: (found.attempt, found.step))
    return tuple(others[: max(0, len(others) - (KEPT - 1))])
