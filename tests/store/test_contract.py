"""What every store promises, on every kind of store: what is there is whole, nothing is overwritten, and a commit is all or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import pytest

from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store

MEBIBYTE = 1024 * 1024
BLOCK = 16 * MEBIBYTE
STAGING = "run/tmp/0000000007-00000002"
FINAL = "run/steps/0000000007-00000002"
MANIFEST = f"{FINAL}/manifest.json"
GRAVE = "run/trash/0000000007-00000002-ab"


def image_of(data: bytes) -> memoryview:
    pages = mmap(-1, max(4096, -(-len(data) // 4096) * 4096))
    pages[: len(data)] = data
    return memoryview(pages)


def write(store: Store, path: str, data: bytes) -> None:
    store.write_file(path, image_of(data), len(data))


def blocks_of(data: bytes, size: int) -> Iterator[memoryview]:
    """Yield blocks as a copier has them: one buffer that is filled again and again."""
    buffer = bytearray(size)
    for begin in range(0, len(data), size):
        block = data[begin : begin + size]
        buffer[: len(block)] = block
        yield memoryview(buffer)[: len(block)]


def read_back(store: Store, path: str, block: int = BLOCK) -> bytes:
    return b"".join(bytes(piece) for piece in store.read_back(path, block))


def save(store: Store, data: bytes = b"weights", suffix: str = "", manifest: bytes = b"{}") -> None:
    """What a save does: data, index, commit."""
    write(store, f"{STAGING}{suffix}/data/x", data)
    store.create(f"{STAGING}{suffix}/ranks/00000.json", b"[]")
    store.commit(f"{STAGING}{suffix}", FINAL, "manifest.json", manifest)


def delete(store: Store) -> None:
    """What retention does: the manifest first, then the rest."""
    store.move(MANIFEST, f"{GRAVE}/manifest.json")
    store.move(FINAL, f"{GRAVE}/checkpoint")


LARGE = 11 * MEBIBYTE + 3
"""Three parts, as the fixtures have S3's parts."""


@pytest.mark.parametrize("size", [1, 4097, LARGE], ids="{} bytes".format)
def test_a_data_file_comes_back_as_it_was_written(store: Store, size: int) -> None:
    data = os.urandom(size)
    write(store, f"{STAGING}/data/x", data)
    assert store.size(f"{STAGING}/data/x") == size
    blocks = [bytes(block) for block in store.read_back(f"{STAGING}/data/x", 4 * MEBIBYTE)]
    assert b"".join(blocks) == data
    assert all(len(block) == 4 * MEBIBYTE for block in blocks[:-1])


@pytest.mark.parametrize("size", [4096, LARGE], ids="{} bytes".format)
def test_a_data_file_can_be_written_block_by_block(store: Store, size: int) -> None:
    data = os.urandom(size)
    store.write_blocks(f"{STAGING}/data/x", blocks_of(data, 3 * MEBIBYTE), size)
    assert store.read(f"{STAGING}/data/x") == data


@pytest.mark.parametrize("size", [100, LARGE], ids="{} bytes".format)
def test_blocks_that_are_not_the_size_leave_nothing(store: Store, size: int) -> None:
    for wanted in (size + 1, size - 1):
        with pytest.raises(StoreUnavailable, match=f"{size} of {wanted} bytes came"):
            store.write_blocks(f"{STAGING}/data/x", blocks_of(bytes(size), MEBIBYTE), wanted)
        assert not store.exists(f"{STAGING}/data/x")


def test_a_source_of_blocks_that_fails_leaves_nothing(store: Store) -> None:
    def broken() -> Iterator[memoryview]:
        yield from blocks_of(bytes(8 * MEBIBYTE), MEBIBYTE)
        raise ValueError("the source is damaged")

    with pytest.raises(ValueError, match="the source is damaged"):
        store.write_blocks(f"{STAGING}/data/x", broken(), 9 * MEBIBYTE)
    assert store.list(f"{STAGING}/data") == ()


def test_an_empty_file_is_a_file(store: Store) -> None:
    store.create("run/a", b"")
    assert (store.read("run/a"), store.size("run/a"), read_back(store, "run/a")) == (b"", 0, b"")
    assert store.read_range("run/a", 0, memoryview(bytearray(1))) == 0


def test_a_range_is_short_only_at_the_end(store: Store) -> None:
    write(store, "run/data", bytes(range(256)))
    buffer = bytearray(100)
    assert store.read_range("run/data", 10, memoryview(buffer)) == 100
    assert buffer == bytes(range(10, 110))
    assert store.read_range("run/data", 200, memoryview(buffer)) == 56
    assert store.read_range("run/data", 256, memoryview(buffer)) == 0
    assert store.read_range("run/data", 300, memoryview(buffer)) == 0


OVERWRITES: dict[str, Callable[[Store], None]] = {
    "create": lambda store: store.create("run/taken", b"new"),
    "write_file": lambda store: write(store, "run/taken", b"new"),
    "write_file of a large file": lambda store: write(store, "run/large", bytes(7 * MEBIBYTE)),
    "write_blocks": lambda store: store.write_blocks("run/taken", [memoryview(b"new")], 3),
    "write_blocks of a large file": lambda store: store.write_blocks("run/large", blocks_of(bytes(7 * MEBIBYTE), MEBIBYTE), 7 * MEBIBYTE),
    "move": lambda store: store.move("run/other", "run/taken"),
    "move of a directory": lambda store: store.move(f"{STAGING}.1", FINAL),
    "commit": lambda store: store.commit(f"{STAGING}.1", FINAL, "manifest.json", b"{2}"),
}


def test_nothing_is_ever_overwritten(store: Store) -> None:
    for path in ("run/taken", "run/other", "run/large"):
        store.create(path, b"old")
    save(store)
    write(store, f"{STAGING}.1/data/x", b"other weights")
    for name, act in OVERWRITES.items():
        with pytest.raises(AlreadyInStore):
            act(store)
            pytest.fail(f"{name} was not refused")
    assert [store.read(path) for path in ("run/taken", "run/other", "run/large")] == [b"old"] * 3
    assert (store.read(MANIFEST), store.read(f"{FINAL}/data/x")) == (b"{}", b"weights")
    assert store.read(f"{STAGING}.1/data/x") == b"other weights"


def test_of_many_that_create_one_name_exactly_one_succeeds(store: Store) -> None:
    def create(number: int) -> bool:
        try:
            store.create("run/fences/00000001", f"nonce {number}".encode())
        except AlreadyInStore:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert store.read("run/fences/00000001") == f"nonce {won.index(True)}".encode()


@pytest.mark.parametrize("manifest", ["manifest{}", "manifest"], ids=["of different manifests", "of the same manifest"])
def test_of_two_tries_that_commit_one_step_exactly_one_succeeds(store: Store, another: Callable[[], Store], manifest: str) -> None:
    suffixes = ("", ".1")
    stores = {suffix: another() for suffix in suffixes}
    for suffix in suffixes:
        write(store, f"{STAGING}{suffix}/data/x", f"weights{suffix}".encode())

    def commit(suffix: str) -> bool:
        try:
            stores[suffix].commit(f"{STAGING}{suffix}", FINAL, "manifest.json", manifest.format(suffix).encode())
        except AlreadyInStore:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(commit, suffixes))
    assert won.count(True) == 1
    suffix, loser = suffixes[won.index(True)], suffixes[won.index(False)]
    assert store.read(MANIFEST) == manifest.format(suffix).encode()
    for one in (store, *stores.values()):
        assert one.read(f"{FINAL}/data/x") == f"weights{suffix}".encode()
    stores[loser].remove(f"{STAGING}{loser}")
    assert store.list("run/tmp") == ()
    assert store.read(f"{FINAL}/data/x") == f"weights{suffix}".encode()


def test_a_commit_makes_the_whole_directory_appear(store: Store) -> None:
    write(store, f"{STAGING}/data/x", b"weights")
    store.create(f"{STAGING}/ranks/00000.json", b"[]")
    assert (store.list("run/tmp"), store.list(STAGING)) == (("0000000007-00000002",), ("data", "ranks"))
    assert (store.list("run/steps"), store.exists(FINAL), store.exists(f"{FINAL}/data/x")) == ((), False, False)

    store.commit(STAGING, FINAL, "manifest.json", b"{}")
    assert (store.list("run/tmp"), store.list("run/steps")) == ((), ("0000000007-00000002",))
    assert store.list(FINAL) == ("data", "manifest.json", "ranks")
    assert (store.list(f"{FINAL}/data"), store.exists(f"{FINAL}/data/x")) == (("x",), True)
    assert read_back(store, f"{FINAL}/data/x") == b"weights"
    store.create(f"{FINAL}/verified.json", b"{}")
    assert store.list(FINAL) == ("data", "manifest.json", "ranks", "verified.json")


def test_a_second_try_does_not_meet_the_first_ones_files(store: Store) -> None:
    write(store, f"{STAGING}/data/x", b"of the first try")
    save(store, b"of the second try", ".1")
    assert store.list("run/tmp") == ("0000000007-00000002",)
    assert store.read(f"{FINAL}/data/x") == b"of the second try"
    store.remove(STAGING)
    assert store.read(f"{FINAL}/data/x") == b"of the second try"


def test_another_process_finds_what_was_committed(store: Store, another: Callable[[], Store]) -> None:
    save(store, suffix=".3")
    assert another().read(f"{FINAL}/data/x") == b"weights"
    assert another().list(FINAL) == ("data", "manifest.json", "ranks")


def test_removing_a_save_that_was_committed_after_all_takes_nothing_from_the_checkpoint(store: Store, another: Callable[[], Store]) -> None:
    save(store)
    another().remove(STAGING)
    assert read_back(store, f"{FINAL}/data/x") == b"weights"


def test_an_abandoned_save_can_be_removed(store: Store) -> None:
    write(store, f"{STAGING}/data/x", b"weights")
    store.remove(STAGING)
    store.remove(STAGING)
    assert (store.list("run/tmp"), store.exists(STAGING), store.exists(f"{STAGING}/data/x")) == ((), False, False)


def test_what_is_deleted_is_gone_from_the_steps_at_once_and_from_the_store_with_its_trash(store: Store) -> None:
    save(store)
    store.create(f"{FINAL}/verified.json", b"{}")
    delete(store)
    assert (store.list("run/steps"), store.exists(FINAL), store.list("run/tmp")) == ((), False, ())
    assert store.list("run/trash") == ("0000000007-00000002-ab",)
    assert store.read(f"{GRAVE}/manifest.json") == b"{}"
    with pytest.raises(NotInStore):
        store.read(f"{FINAL}/data/x")

    store.remove(GRAVE)
    assert (store.list("run/trash"), store.list("run/tmp")) == ((), ())
    save(store, b"new weights")
    assert store.read(f"{FINAL}/data/x") == b"new weights"


def test_a_deletion_that_stopped_after_the_manifest_can_be_finished(store: Store, another: Callable[[], Store]) -> None:
    save(store)
    store.create(f"{FINAL}/verified.json", b"{}")
    store.move(MANIFEST, f"{GRAVE}/manifest.json")
    later = another()
    assert later.exists(FINAL)
    later.move(FINAL, f"{GRAVE}/checkpoint")
    later.remove(GRAVE)
    assert (later.list("run/steps"), later.list("run/tmp"), later.list("run/trash")) == ((), (), ())


def test_a_save_that_was_left_behind_can_be_moved_to_the_trash(store: Store) -> None:
    write(store, f"{STAGING}/data/x", b"weights")
    store.move(STAGING, f"{GRAVE}/staging")
    assert (store.list("run/tmp"), store.exists(f"{GRAVE}/staging")) == ((), True)
    store.remove(GRAVE)
    assert (store.list("run/trash"), store.list("run/tmp")) == ((), ())


def test_a_file_can_be_moved(store: Store) -> None:
    store.create("run/tmp/frozen-1", b"frozen")
    store.move("run/tmp/frozen-1", "run/frozen/1")
    assert (store.list("run/tmp"), store.read("run/frozen/1")) == ((), b"frozen")


ABSENT: dict[str, Callable[[Store, str], object]] = {
    "read": lambda store, path: store.read(path),
    "size": lambda store, path: store.size(path),
    "read_range": lambda store, path: store.read_range(path, 0, memoryview(bytearray(1))),
    "read_back": lambda store, path: list(store.read_back(path, 4096)),
    "modified_at": lambda store, path: store.modified_at(path),
    "move": lambda store, path: store.move(path, "run/there"),
}


@pytest.mark.parametrize("path", ["run/no/such", STAGING, FINAL, f"{FINAL}/data/x"], ids=["a file", "a save", "a step", "in a step"])
def test_what_is_not_there_is_said_so(store: Store, path: str) -> None:
    for name, act in ABSENT.items():
        with pytest.raises(NotInStore, match="run/.*: no such file in the store"):
            act(store, path)
            pytest.fail(f"{name} found something")
    assert (store.list(path), store.exists(path)) == ((), False)
    store.remove(path)
    assert store.list("") == ()


def test_names_come_in_order_and_only_those_directly_below(store: Store) -> None:
    for name in ("b", "a/x/y", "a-b", "c/z"):
        store.create(f"run/{name}", b"1")
    assert store.list("run") == ("a", "a-b", "b", "c")
    assert store.list("run/a") == ("x",)
    assert store.list("") == ("run",)
    assert store.exists("run/a") and not store.exists("run/a-")


def test_files_and_directories_tell_when_they_changed(store: Store) -> None:
    begin = time.time()
    save(store)
    store.create("run/fences/00000001", b"{}")
    for path in (MANIFEST, FINAL, f"{FINAL}/data/x", "run/fences", "run/fences/00000001"):
        assert begin - 2 <= store.modified_at(path) <= time.time() + 2, path
    write(store, f"{STAGING}.1/data/x", b"weights")
    assert begin - 2 <= store.modified_at(f"{STAGING}.1") <= time.time() + 2
