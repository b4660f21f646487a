"""What is exported is what was trained: other readers of safetensors get equal tensors under the model's own names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.checkpoint.world import RUN, attempt_on, flip, only, shared, state, states
from trainer_runtime.checkpoint.documents import Documents, read_documents
from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.reading.export import INDEX, SINGLE, cut_into_shards, export_model
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError
from trainer_runtime.state.leaves import Kind, Leaf
from trainer_runtime.store.posix import PosixStore


def documents_of(store: PosixStore, record: CheckpointRecord) -> Documents:
    return read_documents(store, Reference(store.uri, RUN, StepName(record.step, record.attempt), record.manifest_sha256))


def test_every_dtype_and_shape_is_loaded_back_equal(store: PosixStore, tmp_path: Path) -> None:
    made = {
        word: torch.arange(24).remainder(2).to(dtype).reshape(4, 3, 2)
        for word, dtype in DTYPES.items()
        if dtype is not torch.float8_e8m0fnu
    }
    made |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "e8m0": torch.ones(8, dtype=torch.float8_e8m0fnu)}
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(*(shared(f"model/layers.{word}", tensor) for word, tensor in made.items()))])
    exported = export_model(store, documents_of(store, record), tmp_path / "out")
    assert (exported.tensors, exported.files) == (len(made), (SINGLE,))
    loaded = safetensors.torch.load_file(tmp_path / "out" / SINGLE)
    assert loaded.keys() == {f"layers.{word}" for word in made}
    for word, tensor in made.items():
        found = loaded[f"layers.{word}"]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert bytes(found.flatten().view(torch.uint8)) == bytes(tensor.flatten().view(torch.uint8))


def test_what_ranks_wrote_in_parts_is_one_tensor_again_and_only_the_model_is_exported(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(2, states(2.0, 3))
    export_model(store, documents_of(store, record), tmp_path / "out")
    loaded = safetensors.torch.load_file(tmp_path / "out" / SINGLE)
    expected = {leaf.name.removeprefix("model/"): leaf.tensor for leaf in state(2.0).leaves if leaf.kind is Kind.MODEL}
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_a_tied_tensor_is_written_once_and_named_in_the_metadata(store: PosixStore, tmp_path: Path) -> None:
    weight = torch.randn(8, 4)
    tied = Leaf("model/lm_head.weight", weight, Kind.MODEL, True, alias_of="model/embed.weight")
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("model/embed.weight", weight), tied)])
    exported = export_model(store, documents_of(store, record), tmp_path / "out")
    assert exported.aliases == {"lm_head.weight": "embed.weight"}
    with safetensors.safe_open(tmp_path / "out" / SINGLE, "pt") as file:
        assert list(file.keys()) == ["embed.weight"]
        assert file.metadata() == {"format": "pt", "lm_head.weight": "embed.weight"}


def test_a_large_model_is_cut_into_files_with_an_index(store: PosixStore, tmp_path: Path) -> None:
    made = {f"w{number}": torch.randn(16, 16) for number in range(5)}
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(*(shared(f"model/{name}", tensor) for name, tensor in made.items()))])
    exported = export_model(store, documents_of(store, record), tmp_path / "out", max_shard_bytes=2100)
    assert exported.files == tuple(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"] == {"total_size": 5 * 1024}
    for name, tensor in made.items():
        assert torch.equal(safetensors.torch.load_file(tmp_path / "out" / index["weight_map"][name])[name], tensor)


@pytest.mark.parametrize(
    ("sizes", "shards"),
    [
        ({}, [[]]),
        ({"a": 5, "b": 5}, [["a", "b"]]),
        ({"a": 6, "b": 5}, [["a"], ["b"]]),
        ({"a": 1, "b": 20, "c": 1}, [["a"], ["b"], ["c"]]),
        ({"a": 20}, [["a"]]),
    ],
    ids=str,
)
def test_no_file_is_too_large_unless_one_tensor_is(sizes: dict[str, int], shards: list[list[str]]) -> None:
    assert cut_into_shards(sizes, 10) == shards


def test_a_damaged_byte_leaves_no_directory(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    flip(Path(record.uri.removeprefix("file://")) / "data" / "00000-model-0.safetensors", 5000)
    with pytest.raises(CheckpointDamaged, match="chunk 0"):
        export_model(store, documents_of(store, record), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"store"}


def test_a_directory_that_holds_something_is_not_touched(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    (tmp_path / "out").mkdir()
    export_model(store, documents_of(store, record), tmp_path / "out")
    with pytest.raises(ConfigurationError, match="not empty"):
        export_model(store, documents_of(store, record), tmp_path / "out")


def test_a_checkpoint_without_a_model_is_refused(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("ema/w", torch.ones(3), Kind.EXTRA))])
    with pytest.raises(ConfigurationError, match="holds no model"):
        export_model(store, documents_of(store, record), tmp_path / "out")
