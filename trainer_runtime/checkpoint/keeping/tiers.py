"""Where a restore reads from: the nearest tier that has the bytes, proven; then the next one.

Every copy is proven by the same digests, those of the checkpoint that the assignment names. So ranks need not agree on a tier: whichever
each of them reads, and even if one file comes from here and the next from there, the bytes are the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from trainer_runtime.checkpoint.documents import Documents, read_documents
from trainer_runtime.checkpoint.frozen import locate
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import read_chunk
from trainer_runtime.contract.beat import Tier
from trainer_runtime.contract.manifest import FileEntry
from trainer_runtime.errors import CheckpointDamaged, RuntimeProblem, StoreUnavailable
from trainer_runtime.store.base import Store

log = logging.getLogger("trainer_runtime")

Opener = Callable[[], Store]
"""Opens a tier when it is needed. May raise StoreUnavailable."""


class Tiers:
    """The tiers of one restore. Thread-safe."""

    def __init__(self, store: Store, local: Opener | None = None, archive: Opener | None = None) -> None:
        self.store = store
        self._openers = {tier: opener for tier, opener in ((Tier.LOCAL, local), (Tier.ARCHIVE, archive)) if opener is not None}
        self._opened: dict[Tier, Store] = {}
        self._lock = threading.Lock()
        self._local_files: dict[str, bool] = {}
        """Which files are to be read from the local tier, as far as that was asked."""
        self._said: set[tuple[Tier, str]] = set()

    def read_documents(self, reference: Reference) -> Documents:
        """Return a checkpoint's documents, from the store, or from the archive when the store's are damaged or missing.

        Raises CheckpointDamaged, StoreUnavailable; what the store said, when the archive has no better.
        """
        try:
            return read_documents(self.store, reference)
        except CheckpointDamaged as error:
            archive = self._find(Tier.ARCHIVE)
            if archive is None:
                raise
            try:
                found = read_documents(archive, replace(reference, store_uri=archive.uri))
            except RuntimeProblem as worse:
                raise error from worse
            self._say(Tier.ARCHIVE, reference.uri, f"{error}; the archive has it: {archive.uri}")
            return found

    def read_chunk(self, reference: Reference, file: FileEntry, number: int, into: memoryview) -> memoryview:
        """Fill ``into`` with a verification chunk from the nearest tier that has it intact and return the filled part.

        Raises CheckpointDamaged or StoreUnavailable: what the store said, when no other tier has it.
        """
        local = self._find_local(reference, file)
        if local is not None:
            try:
                return read_chunk(local, replace(reference, store_uri=local.uri), file, number, into)
            except RuntimeProblem as error:
                self._local_files[file.path] = False
                self._say(Tier.LOCAL, file.path, f"{error}; it is read from the store")
        try:
            return read_chunk(self.store, reference, file, number, into)
        except CheckpointDamaged as error:
            archive = self._find(Tier.ARCHIVE)
            if archive is None or archive.uri == self.store.uri:
                raise
            try:
                block = read_chunk(archive, reference, file, number, into)
            except RuntimeProblem as worse:
                raise error from worse
            self._say(Tier.ARCHIVE, file.path, f"{error}; the archive has it: {archive.uri}")
            return block

    def _find(self, tier: Tier) -> Store | None:
        """Return an opened tier; one that cannot be opened is not asked again."""
        with self._lock:
            opener = self._openers.get(tier)
            if opener is not None and tier not in self._opened:
                try:
                    self._opened[tier] = opener()
                except StoreUnavailable as error:
                    log.warning("the %s tier is not used: %s", tier.value, error)
                    del self._openers[tier]
            return self._opened.get(tier)

    def _find_local(self, reference: Reference, file: FileEntry) -> Store | None:
        """Return the local tier if it has this file: the files of other workers' ranks it has not."""
        local = self._find(Tier.LOCAL)
        if local is None:
            return None
        if file.path not in self._local_files:
            try:
                self._local_files[file.path] = local.exists(locate(reference.run, reference.directory, file.path))
            except StoreUnavailable as error:
                self._local_files[file.path] = False
                self._say(Tier.LOCAL, file.path, str(error))
        return local if self._local_files[file.path] else None

    def _say(self, tier: Tier, path: str, text: str) -> None:
        """Warn once for each file, not for each of its chunks."""
        with self._lock:
            is_first = (tier, path) not in self._said
            self._said.add((tier, path))
        if is_first:
            log.warning("%s tier: %s", tier.value, text)
