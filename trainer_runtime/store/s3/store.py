"""The store on S3: the directories that `Store` speaks of, made of keys that are written once and never renamed.

A commit is one conditional request: it creates the manifest, and with it, in its metadata, the word where the data lies. Data is deleted
only after a look that no manifest names it, so neither a crash nor a late answer can take it from a checkpoint. See `keys` for the map.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final

from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.contract.layout import MANIFEST, STEPS, TMP
from trainer_runtime.errors import CommitUndecided, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore
from trainer_runtime.store.buffers import make_buffer
from trainer_runtime.store.s3 import keys
from trainer_runtime.store.s3.api import Api, Limits, Outcome
from trainer_runtime.store.s3.capabilities import PROBE_KEY, Capabilities, find_capabilities
from trainer_runtime.store.s3.data import DataDirectories
from trainer_runtime.store.s3.stream import Stream
from trainer_runtime.store.s3.upload import Uploader, settle

DEFAULT_LIMITS: Final = Limits()


class S3Store:
    """A Store below one prefix of a bucket. Thread-safe: besides connections it holds what can never change."""

    def __init__(self, bucket: str, prefix: str = "", settings: S3Settings | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises StoreUnavailable when the bucket cannot be listed: wrong address, credentials, region or name."""
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._uri = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self._settings = settings or S3Settings()
        self._api = Api(bucket, self._settings, limits)
        self._data = DataDirectories(self._api, self._prefix)
        self._lock = threading.Lock()
        self._capabilities: Capabilities | None = None
        self._api.has_any(self._prefix, limits.first)

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def s3(self) -> S3Settings:
        return self._settings

    @property
    def rereads_from_cache(self) -> bool:
        return False

    @property
    def capabilities(self) -> Capabilities:
        """What the server can do; asked for before the first write. Raises StoreUnavailable when it lacks what commits need."""
        with self._lock:
            if self._capabilities is None:
                self._capabilities = find_capabilities(self._api, self._prefix)
            return self._capabilities

    def read(self, path: str) -> bytes:
        return self._api.read(self._key(path))

    def size(self, path: str) -> int:
        return self._api.look(self._key(path)).size

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        stream = Stream(self._api, self._key(path), offset, len(into))
        try:
            return stream.read_into(into)
        finally:
            stream.close()

    def read_back(self, path: str, block_bytes: int) -> Iterator[memoryview]:
        stream = Stream(self._api, self._key(path))
        view = memoryview(make_buffer(block_bytes))  # not closed by hand: the error of a read holds on to a part of it
        try:
            while length := stream.read_into(view):
                with view[:length] as block:
                    yield block
                if length < block_bytes:
                    break
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> None:
        self._create(self._key(path), data)

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        self._uploader().write(self._key(path), image[:size])

    def write_blocks(self, path: str, blocks: Iterable[memoryview], size: int) -> None:
        self._uploader().write_blocks(self._key(path), blocks, size)

    def list(self, path: str) -> tuple[str, ...]:
        names = set(self._names(path))
        parts = path.split("/")
        if len(parts) == 2 and parts[1] == TMP:
            names |= {staged for directory in self._data.find_loose(parts[0]) if (staged := keys.staging_of(directory))}
        step = keys.in_step(path)
        if step is not None and not step.rest and MANIFEST in names:
            names |= set(self._api.names(f"{self._full(step.below(self._data.of(step)))}/"))
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def exists(self, path: str) -> bool:
        try:
            return self._is_file(path) or self._api.has_any(f"{self._key(path)}/")
        except NotInStore:
            return False

    def modified_at(self, path: str) -> float:
        """On S3 a directory changed when the newest object below it was written."""
        key = self._key(path)
        try:
            return self._api.look(key).modified_at
        except NotInStore:
            times = self._api.below(f"{key}/").values()
            if not times:
                raise
            return max(times)

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        """Create the manifest on condition that there is none. Raises CommitUndecided, too, when nobody can say whether it was created.

        Two copies of one checkpoint have the same manifest, so where the answer does not say that ours was created, not its bytes decide
        but the data directory that it names.
        """
        source, target = keys.in_staging(staging), keys.in_step(final)
        if source is None or target is None or source.rest or target.rest or name != MANIFEST:
            raise ValueError(f"a commit is of <run>/{TMP}/<save> as <run>/{STEPS}/<step>-<attempt> by {MANIFEST}, not {staging}, {final}")
        link = keys.data_directory(source.name)
        key = self._full(f"{final}/{name}")
        outcome, error = self._uploader().put(key, memoryview(data), {keys.LINK: link})
        try:
            settle(self._api, key, [memoryview(data)], (outcome, error))
            is_ours = outcome is Outcome.DONE or self._data.named_now_by(target) == link
        except StoreUnavailable as problem:
            self._data.keep(source.run, link)
            raise CommitUndecided(f"{self._uri}/{final}: the commit was sent and may yet count: {problem}") from problem
        if not is_ours:
            raise AlreadyInStore(f"{self._uri}/{final}: already there, of another try")
        self._data.remember(target, link)

    def move(self, path: str, to: str) -> None:
        """Copy and delete what is small, manifest first, and mark data as belonging to ``to``; data itself never moves."""
        if self.exists(to):
            raise AlreadyInStore(f"{self._uri}/{to}: already there")
        if self._is_file(path):
            self._move_object(self._key(path), self._full(to))
            return
        staging, step = keys.in_staging(path), keys.in_step(path)
        moved = 0
        if staging is None or staging.rest:
            begin = f"{self._full(path)}/"
            for key in sorted(self._api.below(begin), key=_manifest_first):
                self._move_object(key, f"{self._full(to)}/{key.removeprefix(begin)}")
                moved += 1
        for directory in self._data.left_behind(staging or step):
            self._create(f"{self._full(to)}/{keys.mark(directory)}", b"")
            moved += 1
        if not moved:
            raise NotInStore(f"{self._uri}/{path}: no such file in the store")

    def remove(self, path: str) -> None:
        staging, step = keys.in_staging(path), keys.in_step(path)
        if staging is not None and not staging.rest:
            self._data.remove(staging.run, keys.data_directory(staging.name))
            return
        run = path.split("/")[0]
        found = self._api.below(f"{self._full(path)}/")
        if self._is_file(path):
            found[self._key(path)] = 0.0
        marks = {key: directory for key in found if (directory := keys.marked(key))}
        for key in sorted(found.keys() - marks.keys(), key=_manifest_first):
            self._delete_object(key)
        for key, directory in marks.items():
            self._data.remove(run, directory)
            self._api.delete(key)
        for directory in self._data.left_behind(step):
            self._data.remove(run, directory)

    def _full(self, path: str) -> str:
        return f"{self._prefix}{path}"

    def _key(self, path: str) -> str:
        """Return the key of a file, or of a directory without its slash. Raises NotInStore below a checkpoint that is not committed."""
        staging = keys.in_staging(path)
        if staging is not None:
            return self._full(staging.below(keys.data_directory(staging.name)))
        step = keys.in_step(path)
        if step is not None and step.is_data:
            return self._full(step.below(self._data.of(step)))
        return self._full(path)

    def _is_file(self, path: str) -> bool:
        try:
            self._api.look(self._key(path))
        except NotInStore:
            return False
        return True

    def _names(self, path: str) -> tuple[str, ...]:
        if not path:
            return tuple(name for name in self._api.names(self._prefix) if name != PROBE_KEY)
        try:
            return self._api.names(f"{self._key(path)}/")
        except NotInStore:
            return ()

    def _create(self, key: str, data: bytes) -> None:
        settle(self._api, key, [memoryview(data)], self._uploader().put(key, memoryview(data)))

    def _move_object(self, key: str, to: str) -> None:
        self._api.copy(key, to)
        self._delete_object(key)

    def _delete_object(self, key: str) -> None:
        self._api.delete(key)
        step = keys.in_step(key.removeprefix(self._prefix))
        if step is not None:
            self._data.forget(step)

    def _uploader(self) -> Uploader:
        return Uploader(self._api, self.capabilities)


def _manifest_first(key: str) -> tuple[bool, str]:
    """What has lost its manifest is no checkpoint, so a crash between two deletions leaves nothing half there."""
    return not key.endswith(f"/{MANIFEST}"), key
