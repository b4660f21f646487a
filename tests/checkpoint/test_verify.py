"""The verified mark: it stands beside a checkpoint that is there, and one that says nothing is replaced."""

from __future__ import annotations

import pytest

from tests.checkpoint.world import RUN, attempt_on, reference_to, state, store_root, writer
from trainer_runtime.checkpoint.documents import is_verified
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import mark_verified
from trainer_runtime.contract.layout import TRASH
from trainer_runtime.errors import CheckpointDamaged
from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def unmarked(store: PosixStore) -> Reference:
    """A whole checkpoint without its mark."""
    with attempt_on(store) as attempt:
        reference = reference_to(store, attempt.saved(1, [state(1.0)]))
    store.remove(f"{reference.directory}/verified.json")
    return reference


@pytest.mark.parametrize(
    "there",
    [b"", b'{"manifest_sha256":"', b'{"by":"","level":"verified","manifest_sha256":"00","verified_at":1.0}'],
    ids=["empty", "cut off", "of another manifest"],
)
def test_a_mark_that_marks_nothing_is_replaced_and_goes_to_the_trash(store: PosixStore, unmarked: Reference, there: bytes) -> None:
    store.create(f"{unmarked.directory}/verified.json", there)
    assert not is_verified(store, unmarked)
    mark_verified(store, unmarked, 1.0, "the test")
    assert is_verified(store, unmarked)
    (grave,) = store.list(f"{RUN}/{TRASH}")
    assert store.read(f"{RUN}/{TRASH}/{grave}/verified.json") == there


def test_a_mark_that_is_there_stays_as_it_is(store: PosixStore, unmarked: Reference) -> None:
    mark_verified(store, unmarked, 1.0, "the first")
    mark_verified(store, unmarked, 2.0, "the second")
    assert b"the first" in store.read(f"{unmarked.directory}/verified.json")


def test_a_checkpoint_that_is_deleted_before_its_mark_is_not_verified_and_nothing_of_it_comes_back(
    store: PosixStore, unmarked: Reference
) -> None:
    class Late(PosixStore):
        def create(self, path: str, data: bytes) -> None:
            delete_checkpoints(store, RUN, writer(attempt=1), [unmarked.name])
            super().create(path, data)

    with pytest.raises(CheckpointDamaged, match=r"manifest\.json: was deleted before the checkpoint could be marked"):
        mark_verified(Late(store_root(store)), unmarked, 1.0, "the test")
    assert store.list(f"{RUN}/steps") == ()


def test_a_checkpoint_whose_deletion_has_begun_keeps_its_files_for_the_trash(store: PosixStore, unmarked: Reference) -> None:
    store.move(f"{unmarked.directory}/manifest.json", f"{RUN}/{TRASH}/grave/manifest.json")
    with pytest.raises(CheckpointDamaged):
        mark_verified(store, unmarked, 1.0, "the test")
    assert store.list(unmarked.directory) == ("data", "ranks")
