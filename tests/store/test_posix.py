"""The file system store on a real file system: what is there is whole, nothing is overwritten, and every failure names path and cause."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_contract import ABSENT, FINAL, MANIFEST, STAGING, save, write
from trainer_runtime.errors import CommitUndecided, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore
from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.fail("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_the_read_back_sees_what_the_storage_holds_now(store: PosixStore, tmp_path: Path) -> None:
    write(store, "data", b"x" * 10_000)
    list(store.read_back("data", 4096))
    with (tmp_path / "data").open("r+b") as file:
        file.write(b"y")
        os.fsync(file.fileno())
    assert b"".join(bytes(block) for block in store.read_back("data", 4096))[:2] == b"yx"


@pytest.mark.parametrize("whole_blocks", [0, 1, 2])
def test_where_direct_reads_are_refused_the_read_back_has_the_cache_forgotten_first(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, whole_blocks: int
) -> None:
    """As by a device with larger blocks than ours, from the first transfer on or at an odd position later."""
    write(store, "data", b"x" * 3 * 4096)
    preadv, fadvise = os.preadv, os.posix_fadvise
    acts: list[str] = []

    def read(descriptor: int, into: list[memoryview], offset: int) -> int:
        is_direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        if is_direct and offset >= whole_blocks * 4096:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        acts.append("direct" if is_direct else "cached")
        return preadv(descriptor, into, offset)

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        acts.append("forget")
        fadvise(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    assert b"".join(bytes(block) for block in store.read_back("data", 4096)) == b"x" * 3 * 4096
    assert acts[acts.index("cached") - 1] == "forget"
    assert acts.count("forget") == 1


def test_create_leaves_no_draft(store: PosixStore, tmp_path: Path) -> None:
    store.create("a", b"1")
    with pytest.raises(AlreadyInStore):
        store.create("a", b"2")
    assert os.listdir(tmp_path) == ["a"]


def test_a_root_that_went_away_is_unreachable_and_not_absent(store: PosixStore, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    questions: list[Callable[[], object]] = [
        *(lambda act=act: act(store, "no/such") for act in ABSENT.values()),
        lambda: store.list("no"),
        lambda: store.exists("no"),
        lambda: store.remove("no"),
    ]
    for question in questions:
        with pytest.raises(StoreUnavailable, match="is the volume mounted"):
            question()


def test_what_is_absent_is_not_made_by_asking(store: PosixStore, tmp_path: Path) -> None:
    for act in ABSENT.values():
        with pytest.raises(NotInStore):
            act(store, "no/such")
    assert os.listdir(tmp_path) == []


def test_a_missing_root_is_a_missing_mount_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=f"{tmp_path}/gone: no such directory; is the volume mounted"):
        PosixStore(tmp_path / "gone")
    (tmp_path / "here").mkdir()
    store = PosixStore(tmp_path / "here")
    (tmp_path / "here").rmdir()
    acts: list[Callable[[], None]] = [
        lambda: store.create("a/b", b""),
        lambda: write(store, "a/b", b"x"),
        lambda: store.commit("a", "b", "m", b""),
    ]
    for act in acts:
        with pytest.raises(StoreUnavailable, match="is the volume mounted"):
            act()
    assert not (tmp_path / "here").exists()


WRITES: list[object] = [
    pytest.param(lambda store: write(store, "run/data", b"x" * 2_000_000), "cannot write .*run/data", id="write_file"),
    pytest.param(lambda store: store.create("run/small", b"x" * 2_000_000), "cannot create .*run/small", id="create"),
]


@pytest.mark.parametrize(("act", "message"), WRITES)
def test_a_full_disk_is_named_and_no_part_of_a_file_stays(small_disk: Path, act: Callable[[PosixStore], None], message: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"{message}: no space left on the device"):
        act(PosixStore(small_disk))
    assert os.listdir(small_disk / "run") == []


@pytest.mark.parametrize(("act", "message"), WRITES)
def test_a_read_only_file_system_is_named(small_disk: Path, act: Callable[[PosixStore], None], message: str) -> None:
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreUnavailable, match=f"{message}: the file system is mounted read-only"):
        act(PosixStore(small_disk))


def test_a_limit_on_file_sizes_is_named_and_no_part_of_the_file_stays(store: PosixStore, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StoreUnavailable, match="cannot write .*/data: the file would be larger than the limit for files"):
            write(store, "data", b"x" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere, so for a while be somebody who may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_directory_without_permission_is_named() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own directories let nobody in but who runs it
        Path(name).chmod(0o555)
        with as_nobody(), pytest.raises(StoreUnavailable, match="cannot create .*/a: permission denied"):
            PosixStore(Path(name)).create("a", b"")


def test_a_file_where_a_directory_should_be_is_not_in_the_store(store: PosixStore) -> None:
    store.create("a", b"")
    with pytest.raises(NotInStore):
        store.read("a/b")


class Stumbling(PosixStore):
    """A store whose commit fails with ``error``: of its rename, or of what makes a rename that was done durable."""

    def __init__(self, root: Path, error: int, is_done: bool) -> None:
        super().__init__(root)
        self._error, self._is_done, self._fails = OSError(error, os.strerror(error)), is_done, False

    def _rename(self, source: Path, target: Path) -> None:
        if not self._is_done:
            raise self._error
        super()._rename(source, target)
        self._fails = True

    def _sync_directory(self, directory: Path) -> None:
        if self._fails:
            raise self._error
        super()._sync_directory(directory)


class TestCommit:
    """The one rename that counts, in every way in which it can end."""

    @pytest.mark.parametrize("error", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE], ids=errno.errorcode.__getitem__)
    @pytest.mark.parametrize("is_done", [False, True], ids=["of the rename", "after the rename"])
    def test_an_error_after_which_nobody_can_tell_is_undecided(self, tmp_path: Path, error: int, is_done: bool) -> None:
        store = Stumbling(tmp_path, error, is_done)
        with pytest.raises(CommitUndecided, match=f"cannot say whether .*/{FINAL} was committed: "):
            save(store)
        assert store.exists(MANIFEST) == is_done

    def test_a_full_disk_after_the_rename_is_undecided_too(self, tmp_path: Path) -> None:
        with pytest.raises(CommitUndecided, match="no space left on the device"):
            save(Stumbling(tmp_path, errno.ENOSPC, is_done=True))

    def test_a_rename_that_was_refused_is_an_ordinary_failure(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match=f"cannot commit .*/{FINAL}: no space left on the device") as caught:
            save(Stumbling(tmp_path, errno.ENOSPC, is_done=False))
        assert not isinstance(caught.value, CommitUndecided)

    def test_a_save_that_is_gone_is_not_committed_as_a_manifest_alone(self, store: PosixStore) -> None:
        write(store, "run/tmp/another/data/x", b"weights")
        with pytest.raises(NotInStore, match=STAGING):
            store.commit(STAGING, FINAL, "manifest.json", b"{}")
        assert (store.list("run"), store.list("run/tmp")) == (("tmp",), ("another",))

    def test_what_is_being_removed_can_no_longer_be_committed(self, store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
        write(store, f"{STAGING}/data/x", b"weights")
        remove_tree = shutil.rmtree

        def commit_meanwhile(path: Path, **how: Any) -> None:
            with pytest.raises(NotInStore):
                store.commit(STAGING, FINAL, "manifest.json", b"{}")
            remove_tree(path, **how)

        monkeypatch.setattr(shutil, "rmtree", commit_meanwhile)
        store.remove(STAGING)
        assert (store.list("run/tmp"), store.exists(FINAL)) == ((), False)


def test_several_ranks_may_remove_the_same_directory_at_once(store: PosixStore) -> None:
    for number in range(200):
        store.create(f"{STAGING}/data/{number}", b"x")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.remove, [STAGING] * 8))
    assert store.list("run/tmp") == ()


def test_what_a_removal_that_was_cut_off_leaves_is_seen_and_begins_like_the_save(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, f"{STAGING}/data/x", b"weights")
    monkeypatch.setattr(shutil, "rmtree", lambda path, **how: None)
    store.remove(STAGING)
    (left,) = store.list("run/tmp")
    assert left.startswith(f"{Path(STAGING).name}.removed-")
