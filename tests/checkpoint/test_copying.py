"""A copy in another store is the same checkpoint, proven on both sides, or it is not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, flip, open_world, point, state, states
from trainer_runtime.checkpoint.archive import copy_fences
from trainer_runtime.checkpoint.copying import copy_checkpoint
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.inventory import read_inventory
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.restore import open_checkpoint
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, SaveFailed
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
