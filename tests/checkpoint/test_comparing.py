"""Two checkpoints differ in what differs, and in nothing else, whoever wrote which part."""

from __future__ import annotations

import torch

from tests.checkpoint.world import RUN, attempt_on, only, shared, states
from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.reading.comparing import Side, compare
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.store.posix import PosixStore


def side(store: PosixStore, record: CheckpointRecord) -> Side:
    return Side(store, read_documents(store, Reference(store.uri, RUN, StepName(record.step, record.attempt), record.manifest_sha256)))


def test_the_same_state_of_another_world_size_differs_in_that_alone(store: PosixStore) -> None:
    weight = torch.randn(64, 16)
    with attempt_on(store, ranks=1) as attempt:
        one = attempt.saved(1, [only(shared("model/w", weight))])
    with attempt_on(store, ranks=3, attempt=2, resume=None, fresh=True) as attempt:
        three = attempt.saved(1, [only(shared("model/w", weight.clone())) for _ in range(3)])
    found = compare(side(store, one), side(store, three))
    assert found.settings == ("world_size: 1 and 3",)
    assert (found.structure, found.tensors, found.equal_tensors) == ((), (), 1)


def test_values_tensors_and_structure_are_named_one_by_one(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        first = attempt.saved(
            1, [only(shared("model/a", torch.ones(4)), shared("model/b", torch.ones(4)), shared("model/c", torch.ones(2)), n=1)]
        )
        second = attempt.saved(
            2, [only(shared("model/a", torch.ones(4)), shared("model/b", torch.zeros(4)), shared("model/c", torch.ones(3)), n=2)]
        )
        third = attempt.saved(3, [only(shared("model/a", torch.ones(4, dtype=torch.bfloat16)), n=2)])
    found = compare(side(store, first), side(store, second))
    assert found.structure == ("model/c: shape [2] and [3]",)
    assert (found.tensors, found.equal_tensors) == (("model/b",), 1)
    assert found.values == ("n: 1 and 2",)
    assert not found.is_equal
    found = compare(side(store, second), side(store, third))
    assert found.structure == ("model/a: dtype 'F32' and 'BF16'", "model/b: only in the first", "model/c: only in the first")


def test_a_checkpoint_equals_itself_without_a_byte_being_read(store: PosixStore) -> None:
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(1, states(1.0, 2))
    documents = side(store, record)
    for path in (store._root / RUN / "steps").glob("*/data/*"):
        path.unlink()
    assert compare(documents, documents).is_equal
