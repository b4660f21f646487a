"""A copy in another store is the same checkpoint, proven on both sides, or it is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import RUN, attempt_on, flip, only, open_world, point, shared, state, states, store_root
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.archive import copy_fences
from trainer_runtime.checkpoint.keeping.copying import copy_checkpoint, remove_leftovers
from trainer_runtime.checkpoint.keeping.inventory import read_inventory
from trainer_runtime.checkpoint.keeping.retention import ABANDONED_SECONDS
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.staging.unchanged import LEAST_BYTES
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, CommitUndecided, SaveFailed, StoreUnavailable
from trainer_runtime.state.leaves import Kind, Leaf
from trainer_runtime.store.posix import PosixStore

NAME = StepName(3, 1)


@pytest.fixture
def archive(tmp_path: Path) -> PosixStore:
    root = tmp_path / "archive"
    root.mkdir()
    return PosixStore(root)


def reference_of(store: PosixStore, record: CheckpointRecord) -> Reference:
    return Reference(store.uri, RUN, StepName(record.step, record.attempt), record.manifest_sha256)


def copied(store: PosixStore, record: CheckpointRecord, target: PosixStore) -> Reference:
    return copy_checkpoint(store, reference_of(store, record), target, 1, "the test")


def test_a_copy_has_the_same_digest_and_restores_alike(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(3, states(3.0, 2))
    copy = copied(store, record, archive)
    assert (copy.manifest_sha256, copy.store_uri) == (record.manifest_sha256, archive.uri)
    assert is_verified(archive, copy)
    assert archive.list(f"{RUN}/tmp") == ()
    live = state(0.0)
    open_checkpoint(store, copy.resume_point()).fill(live.leaves, 0)
    assert all((leaf.tensor == saved.tensor).all() for leaf, saved in zip(live.leaves, state(3.0).leaves, strict=True))


def test_what_is_there_already_is_not_copied_again(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])
    copied(store, record, archive)
    blocks: list[int] = []
    copy_checkpoint(store, reference_of(store, record), archive, 1, "again", blocks.append)
    assert blocks == []


def test_reading_back_can_be_ended_too_and_is_made_up_for_by_the_next_copy(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])

    def end_when_committed(_bytes: int) -> None:
        if find_reference(archive, RUN, NAME) is not None:
            raise SaveFailed("the run ended")

    with pytest.raises(SaveFailed, match="the run ended"):
        copy_checkpoint(store, reference_of(store, record), archive, 1, "ended", end_when_committed)
    assert not is_verified(archive, replace(reference_of(store, record), store_uri=archive.uri))
    assert is_verified(archive, copied(store, record, archive))


def test_a_byte_that_is_damaged_at_the_source_is_not_copied(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])
    flip(Path(record.uri.removeprefix("file://")) / "data" / "00000-model-0.safetensors", 5000)
    with pytest.raises(CheckpointDamaged, match=r"model-0\.safetensors: chunk 0"):
        copied(store, record, archive)
    assert find_reference(archive, RUN, NAME) is None
    assert archive.list(f"{RUN}/tmp") == ()


class Corrupting(PosixStore):
    """A store that changes the last byte of every file it writes."""

    def write_blocks(self, path: str, blocks: Iterable[memoryview], size: int) -> None:
        super().write_blocks(path, blocks, size)
        flip(self._root / path, size - 1)


def test_a_byte_that_is_damaged_where_it_lands_is_found_and_the_copy_is_never_marked(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])
    with pytest.raises(CheckpointDamaged, match=archive.uri):
        copied(store, record, Corrupting(archive._root))
    there = find_reference(archive, RUN, NAME)
    assert there is not None
    assert not is_verified(archive, there)


def test_a_copy_that_is_broken_off_leaves_nothing_and_is_made_whole_later(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])

    def break_off(_bytes: int) -> None:
        raise SaveFailed("enough")

    with pytest.raises(SaveFailed, match="enough"):
        copy_checkpoint(store, reference_of(store, record), archive, 1, "the test", break_off)
    assert archive.list(f"{RUN}/tmp") == ()
    assert find_reference(archive, RUN, NAME) is None
    archive.create(f"{RUN}/tmp/{NAME}.1/data/00000-model-0.safetensors", b"of a copier that was killed")
    assert is_verified(archive, copied(store, record, archive))


def saved_with_frozen_base(store: PosixStore) -> CheckpointRecord:
    """Save three files, of which one is frozen."""
    base = torch.arange(LEAST_BYTES, dtype=torch.uint8)
    leaves = [Leaf("model/base", base, Kind.MODEL, True, frozen_version=base._version), shared("model/adapter", torch.ones(8))]
    with attempt_on(store) as attempt:
        return attempt.saved(3, [only(*leaves, Leaf("rank00000/rng/torch", torch.ones(8), Kind.EXTRA, False))])


KILLED_COPIER = """
import os, signal, sys
from pathlib import Path
from trainer_runtime.checkpoint.keeping.copying import copy_checkpoint
from trainer_runtime.checkpoint.documents import find_reference
from trainer_runtime.contract.layout import StepName
from trainer_runtime.store.posix import PosixStore

source, target, survived = PosixStore(Path(sys.argv[1])), PosixStore(Path(sys.argv[2])), int(sys.argv[3])

def on_block(_bytes):
    global survived
    survived -= 1
    if survived < 0:
        os.kill(os.getpid(), signal.SIGKILL)

copy_checkpoint(source, find_reference(source, "run", StepName(3, 1)), target, 1, "killed", on_block)
"""


@pytest.mark.parametrize("survived", [0, 1, 2], ids="after {} blocks".format)
def test_what_a_copier_that_was_killed_left_does_not_spoil_the_next_copy(store: PosixStore, archive: PosixStore, survived: int) -> None:
    record = saved_with_frozen_base(store)
    program = [sys.executable, "-c", KILLED_COPIER, str(store_root(store)), str(store_root(archive)), str(survived)]
    assert subprocess.run(program, timeout=60).returncode == -signal.SIGKILL
    for name in archive.list(f"{RUN}/frozen"):
        assert archive.size(f"{RUN}/frozen/{name}") == store.size(f"{RUN}/frozen/{name}"), "what has its final name is whole"
    assert is_verified(archive, copied(store, record, archive))


def cut_short(file: Path) -> None:
    os.truncate(file, 100)


def damage(file: Path) -> None:
    flip(file, file.stat().st_size - 1)


@pytest.mark.parametrize("spoil", [cut_short, damage])
def test_a_frozen_file_that_is_not_whole_is_copied_anew(store: PosixStore, archive: PosixStore, spoil: Callable[[Path], None]) -> None:
    record = saved_with_frozen_base(store)
    copied(store, record, archive)
    archive.remove(f"{RUN}/steps")
    (name,) = archive.list(f"{RUN}/frozen")
    spoil(store_root(archive) / RUN / "frozen" / name)
    assert is_verified(archive, copied(store, record, archive))
    assert len(archive.list(f"{RUN}/trash")) == 1


def test_a_frozen_file_that_is_whole_is_not_copied_again(store: PosixStore, archive: PosixStore) -> None:
    record = saved_with_frozen_base(store)
    copied(store, record, archive)
    archive.remove(f"{RUN}/steps")
    blocks: list[int] = []
    copy_checkpoint(store, reference_of(store, record), archive, 1, "again", blocks.append)
    assert sum(blocks) < LEAST_BYTES


class Overtaken(PosixStore):
    """An archive in which another copier commits the same checkpoint right before ours does."""

    def __init__(self, root: Path, other: Callable[[], object]) -> None:
        super().__init__(root)
        self._other = other

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        self._other()
        super().commit(staging, final, name, data)


def test_of_two_copiers_of_one_checkpoint_the_second_leaves_nothing_and_finds_the_firsts_copy(
    store: PosixStore, archive: PosixStore
) -> None:
    record = saved_with_frozen_base(store)
    overtaken = Overtaken(store_root(archive), lambda: copied(store, record, archive))
    with pytest.raises(SaveFailed, match="somebody else writes there"):
        copied(store, record, overtaken)
    assert archive.list(f"{RUN}/tmp") == ()
    assert is_verified(archive, copied(store, record, archive))


class Undecided(PosixStore):
    """An archive that answers nothing when it is asked to commit, and then lets nobody remove what may yet be committed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._kept: set[str] = set()

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        self._kept.add(staging)
        raise CommitUndecided("the commit was sent and may yet count")

    def remove(self, path: str) -> None:
        if path in self._kept:
            raise StoreUnavailable("stays")
        super().remove(path)


def test_a_commit_that_nobody_can_decide_keeps_its_data_and_does_not_stop_the_next_try(store: PosixStore, archive: PosixStore) -> None:
    record = saved_with_frozen_base(store)
    undecided = Undecided(store_root(archive))
    for tries in (1, 2):
        with pytest.raises(CommitUndecided):
            copied(store, record, undecided)
        assert len(archive.list(f"{RUN}/tmp")) == tries
    assert is_verified(archive, copied(store, record, archive))


def test_what_copiers_of_earlier_attempts_left_goes_after_a_day_and_our_own_stays(archive: PosixStore) -> None:
    left = {f"{NAME}.1-ab", f"{NAME}.1", f"{NAME}", "frozen-00-ab"}
    for name in {*left, f"{NAME}.2-ab"}:
        archive.create(f"{RUN}/tmp/{name}/data/x", b"x")
        os.utime(store_root(archive) / RUN / "tmp" / name, (1000.0, 1000.0))
    archive.create(f"{RUN}/tmp/{NAME}.1-cd/data/x", b"x")
    remove_leftovers(archive, RUN, 2, now=1000.0 + ABANDONED_SECONDS - 1)
    assert len(archive.list(f"{RUN}/tmp")) == 6
    remove_leftovers(archive, RUN, 2, now=1000.0 + ABANDONED_SECONDS)
    assert archive.list(f"{RUN}/tmp") == (f"{NAME}.1-cd", f"{NAME}.2-ab")


class Vanishing(PosixStore):
    """A store whose retention moves the checkpoint away when its first byte has been read."""

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        if self.exists(f"{RUN}/steps/{NAME}"):
            self.move(f"{RUN}/steps/{NAME}", f"{RUN}/trash/x")
        return super().read_range(path, offset, into)


def test_what_retention_deletes_while_it_is_copied_is_not_called_damaged(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])
    with pytest.raises(SaveFailed, match="was deleted while it was copied"):
        copied(Vanishing(store_root(store)), record, archive)
    assert archive.list(f"{RUN}/tmp") == ()


def test_another_checkpoint_under_the_same_name_is_left_alone(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])
    with attempt_on(archive) as attempt:
        other = attempt.saved(3, [state(4.0)])
    with pytest.raises(SaveFailed, match="holds another checkpoint"):
        copied(store, record, archive)
    assert find_reference(archive, RUN, NAME) == reference_of(archive, other)


def test_a_run_can_go_on_from_the_archive_alone(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(3, [state(3.0)])
    copy = copied(store, record, archive)
    archive.create(f"{RUN}/fences/00000001", store.read(f"{RUN}/fences/00000001"))
    (opened,) = open_world([archive], attempt=2, resume=copy.resume_point())
    assert opened.resume == point(replace(record, uri=copy.uri))


def test_an_assigned_copy_in_the_archive_does_not_break_the_lineage(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(2, [state(2.0)])
        record = attempt.saved(3, [state(3.0)])
    copy = copied(store, record, archive)
    copy_fences(store, RUN, archive)
    store.remove(f"{RUN}/steps/{NAME}")
    (opened,) = open_world([store], attempt=2, resume=copy.resume_point())
    assert opened.resume == copy.resume_point()
    assert read_inventory(store, RUN).lineage.on == (StepName(2, 1),)


def test_a_run_of_the_same_name_in_another_store_is_another_run(store: PosixStore, archive: PosixStore) -> None:
    with attempt_on(archive) as attempt:
        record = attempt.saved(3, [state(3.0)])
    with attempt_on(store) as attempt:
        attempt.saved(2, [state(2.0)])
    open_world([store], attempt=2, resume=point(record))
    assert read_inventory(store, RUN).lineage.on == ()
