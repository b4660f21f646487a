"""The store on a file system: what makes bytes durable there, and the one rename that commits.

A file is durable after fsync of the file *and* of the directory that names it. Data files are written past the page cache (O_DIRECT)
where the file system can do it: it costs a tenth of the CPU time and leaves the trainer's cache alone. It never creates its own root: a
missing root is a missing mount, and a directory made in its place would fill the wrong disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.errors import CommitUndecided, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore
from trainer_runtime.store.buffers import make_buffer

BLOCK_BYTES: Final = 16 * 1024 * 1024
"""Bytes per write call: large enough to keep a disk busy, small enough that a failure shows early."""
REMOVED: Final = ".removed-"
"""In the name of a directory that is being deleted; it stays when the process that deletes it is killed."""
_NO_DIRECT: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""What the first transfer answers where O_DIRECT needs larger blocks than ours, or cannot be used after all."""
_NO_HARD_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NAMES: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR)
_NOT_DONE: Final = (*_NAMES, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Answers of a rename that did nothing. After any other one, a network file system may have done it, or may do it yet."""
_CAUSES: Final = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the limit for files (ulimit -f or the file system's own)",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.EIO: "the device reports an input/output error",
    errno.ESTALE: "the network file system has lost this file handle",
}


class PosixStore:
    """A Store below one directory of a file system. Thread-safe: it holds no state between calls."""

    def __init__(self, root: Path, uri: str | None = None, s3: S3Settings | None = None) -> None:
        """Raises StoreUnavailable when ``root`` is not a directory."""
        self._root = root
        self._s3 = s3 or S3Settings()
        self._uri = (uri or f"file://{root}").rstrip("/")
        self._require_root()

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def rereads_from_cache(self) -> bool:
        return True

    @property
    def s3(self) -> S3Settings:
        return self._s3

    def read(self, path: str) -> bytes:
        with self._translated("read", path):
            return self._at(path).read_bytes()

    def size(self, path: str) -> int:
        with self._translated("look at", path):
            return self._at(path).stat().st_size

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        with self._translated("read", path):
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_fully(descriptor, into, offset)
            finally:
                os.close(descriptor)

    def read_back(self, path: str, block_bytes: int) -> Iterator[memoryview]:
        with self._translated("read back", path):
            descriptor, direct = _open_direct(self._at(path), os.O_RDONLY)
            try:
                if not direct:
                    _forget_cached(descriptor)
                with make_buffer(block_bytes) as buffer, memoryview(buffer) as view:
                    offset = 0
                    while length := _read_fully(descriptor, view, offset):
                        with view[:length] as block:
                            yield block
                        offset += length
                        if length < block_bytes:
                            break
            finally:
                os.close(descriptor)

    def create(self, path: str, data: bytes) -> None:
        target = self._at(path)
        with self._translated("create", path):
            self._make_directories(target.parent)
            self._create_in_directory(target, data)

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        target = self._at(path)
        with self._translated("write", path):
            self._make_directories(target.parent)
            descriptor, direct = _open_direct(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                try:
                    self._write_image(descriptor, image, size, direct)
                finally:
                    os.close(descriptor)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            self._sync_directory(target.parent)

    def write_blocks(self, path: str, blocks: Iterable[memoryview], size: int) -> None:
        target = self._at(path)
        with self._translated("write", path):
            self._make_directories(target.parent)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    written = sum(file.write(block) for block in blocks)
                    if written != size:
                        raise StoreUnavailable(f"{target}: {written} of {size} bytes came")
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            self._sync_directory(target.parent)

    def list(self, path: str) -> tuple[str, ...]:
        with self._translated("list", path):
            try:
                return tuple(sorted(name for name in os.listdir(self._at(path)) if not name.startswith(".")))
            except FileNotFoundError:
                self._require_root()
                return ()

    def exists(self, path: str) -> bool:
        with self._translated("look at", path):
            try:
                os.stat(self._at(path))
            except FileNotFoundError:
                self._require_root()
                return False
            return True

    def modified_at(self, path: str) -> float:
        with self._translated("look at", path):
            return self._at(path).stat().st_mtime

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        source, target = self._at(staging), self._at(final)
        with self._translated("commit", staging):
            self._create_in_directory(source / name, data)  # a directory that is gone is not made anew: it would hold a manifest alone
        with self._translated("commit", final):
            self._make_directories(target.parent)
            self._sync_directory(source)
            try:
                self._rename(source, target)
            except OSError as error:
                if error.errno in _NOT_DONE:
                    raise
                raise self._undecided(final, error) from error
            try:
                self._sync_directory(target.parent)
                self._sync_directory(source.parent)
            except OSError as error:
                raise self._undecided(final, error) from error

    def move(self, path: str, to: str) -> None:
        source, target = self._at(path), self._at(to)
        with self._translated("move", path):
            source.stat()  # before a directory is made for what is not there
            self._make_directories(target.parent)
            if target.exists():  # rename would replace a file or an empty directory
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            self._rename(source, target)
            self._sync_directory(target.parent)
            self._sync_directory(source.parent)

    def remove(self, path: str) -> None:
        target = self._at(path)
        with self._translated("remove", path):
            self._require_root()
            if not target.is_dir() or target.is_symlink():
                target.unlink(missing_ok=True)
                return
            # Aside first, in one act: a commit that is on its way finds nothing then, where it could else commit what is half deleted.
            # The name begins like the old one, so that what stays when this process is killed is swept as the old one would have been.
            doomed = target.with_name(f"{target.name}{REMOVED}{uuid.uuid4().hex[:8]}")
            try:
                os.rename(target, doomed)
            except FileNotFoundError:
                return  # another rank was faster
            shutil.rmtree(doomed, onerror=_pass_over_missing)

    def _at(self, path: str) -> Path:
        return self._root / path

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnavailable(f"{self._root}: no such directory; is the volume mounted, or the path of the store misspelt?")

    def _make_directories(self, directory: Path) -> None:
        if directory == self._root or directory.is_dir():
            return
        self._require_root()
        self._make_directories(directory.parent)
        directory.mkdir(exist_ok=True)
        self._sync_directory(directory.parent)

    def _create_in_directory(self, target: Path, data: bytes) -> None:
        draft = target.parent / f".{target.name}.{uuid.uuid4().hex}"
        try:
            _write_new_file(draft, data)
            try:
                os.link(draft, target)  # unlike rename, fails when the name is taken
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                _write_new_file(target, data)
        finally:
            draft.unlink(missing_ok=True)
        self._sync_directory(target.parent)

    def _undecided(self, final: str, error: OSError) -> CommitUndecided:
        return CommitUndecided(f"cannot say whether {self._at(final)} was committed: {_cause_of(error)}")

    def _rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def _sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write_image(self, descriptor: int, image: memoryview, size: int, direct: bool) -> None:
        length = len(image) if direct else size
        try:
            os.posix_fallocate(descriptor, 0, length)  # a full disk shows before the first byte is written
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV):
                raise
        offset = 0
        while offset < length:
            try:
                offset += os.pwrite(descriptor, image[offset : min(offset + BLOCK_BYTES, length)], offset)
            except OSError as error:
                if not (direct and error.errno in _NO_DIRECT):
                    raise
                _clear_direct(descriptor)
                direct = False
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)

    @contextmanager
    def _translated(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise AlreadyInStore(f"{self._at(path)}: already there") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            self._require_root()
            raise NotInStore(f"{self._at(path)}: no such file in the store") from error
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise AlreadyInStore(f"{self._at(path)}: already there") from error
            raise StoreUnavailable(f"cannot {doing} {self._at(path)}: {_cause_of(error)}") from error


def _open_direct(path: Path, flags: int) -> tuple[int, bool]:
    """Open, then switch O_DIRECT on where the file system takes it; the second value says whether it did.

    Asked for at open, O_DIRECT may fail *after* the file was created, and a second try with O_EXCL would then fail as well.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return descriptor, False
    return descriptor, True


def _clear_direct(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)


def _forget_cached(descriptor: int) -> None:
    """Have the next bytes come from the storage: the pages were fsynced, so the kernel may drop them and must then read them again."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _read_fully(descriptor: int, into: memoryview, offset: int) -> int:
    done = 0
    while done < len(into):
        try:
            got = os.preadv(descriptor, [into[done:]], offset + done)
        except OSError as error:
            if error.errno != errno.EINVAL or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise
            _clear_direct(descriptor)  # the position behind a file's odd end, or a device with larger blocks than ours
            _forget_cached(descriptor)
            continue
        if got == 0:
            break
        done += got
    return done


def _pass_over_missing(_function: object, _path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
    """Another rank may be removing the same directory."""
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


def _cause_of(error: OSError) -> str:
    return _CAUSES.get(error.errno or 0, error.strerror or str(error))


def _write_new_file(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
