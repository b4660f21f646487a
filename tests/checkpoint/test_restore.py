"""What was saved comes back: every dtype and shape, in place, bit for bit, and only the bytes that are needed are read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoint.world import attempt_on, directory_of, flip, only, point, shared, state, states
from trainer_runtime.checkpoint.documents import find_index_fault, merge_tensors
from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.reading.restore import open_checkpoint, parse_uri
from trainer_runtime.checkpoint.staging import memory, plan
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import CHUNK_BYTES, Chunk, FileEntry, RankIndex, TensorEntry
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Refused
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes: NaN is not equal to itself, its bits are."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def test_every_dtype_comes_back_bit_for_bit_also_empty_and_without_dimension(store: PosixStore) -> None:
    torch.manual_seed(0)
    saved = {
        f"model/{word}/{number}": random_bits(shape, dtype)
        for word, dtype in DTYPES.items()
        for number, shape in enumerate([(), (0,), (3, 0), (5,), (3, 7)])
    }
    with attempt_on(store, ranks=3) as attempt:
        leaves = [shared(name, tensor) for name, tensor in saved.items()]
        record = attempt.saved(1, [only(*leaves)] * 3)
    live = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    open_checkpoint(store, point(record)).fill([shared(name, tensor) for name, tensor in live.items()], 0)
    for name, tensor in saved.items():
        assert torch.equal(bits(live[name]), bits(tensor)), name


FLOATS = [float("nan"), -0.0, 5e-324, float("inf"), struct.unpack("<d", b"\x01\0\0\0\0\0\xf0\x7f")[0]]


def test_special_numbers_keep_their_bits(store: PosixStore) -> None:
    values = torch.tensor(FLOATS, dtype=torch.float64)
    live = torch.zeros_like(values)
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("model/v", values))])
    open_checkpoint(store, point(record)).fill([shared("model/v", live)], 0)
    assert torch.equal(bits(live), bits(values))


class Remote(PosixStore):
    """A store across a network: nothing remembers what was read. It counts the reads of data files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads = 0

    @property
    def rereads_from_cache(self) -> bool:
        return False

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        self.reads += "/data/" in path
        return super().read_range(path, offset, into)


@pytest.mark.parametrize(
    ("ranks_here", "parts", "is_kept"),
    [(1, 1, True), (1, 0.9, False), (8, 8, True), (8, 7.9, False)],
    ids=["room for one", "less", "room for all of eight", "room for seven of eight"],
)
def test_bytes_wait_in_memory_only_if_all_ranks_that_share_it_may_do_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks_here: int, parts: float, is_kept: bool
) -> None:
    (tmp_path / "remote").mkdir()
    store = Remote(tmp_path / "remote")
    weight = torch.randn(100_000)
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("model/w", weight))])
    checkpoint = open_checkpoint(store, point(record), ranks_here=ranks_here)
    (size,) = (file.size for index in checkpoint._documents.indexes for file in index.files)
    monkeypatch.setattr(memory, "available_bytes", lambda: ranks_here * memory.RESERVE_BYTES + int(parts * size))
    store.reads, live = 0, torch.zeros_like(weight)
    checkpoint.fill([shared("model/w", live)], 0)
    assert store.reads == (1 if is_kept else 2)
    assert torch.equal(live, weight)


def test_a_tensor_larger_than_a_verification_chunk_and_cut_over_three_ranks_comes_back(store: PosixStore) -> None:
    weight = torch.randn(5000, 1777)
    assert weight.nbytes > 2 * CHUNK_BYTES
    bias = torch.randn(3)
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(1, [only(shared("model/w", weight), shared("model/b", bias))] * 3)
    live = torch.zeros_like(weight)
    checkpoint = open_checkpoint(store, point(record))
    assert len(checkpoint.tensors["model/w"].chunks) == 3
    checkpoint.fill([shared("model/w", live), shared("model/b", torch.zeros(3))], 0)
    assert torch.equal(live, weight)


LAYOUTS = [
    pytest.param(lambda: torch.zeros(7, 5).t(), id="transposed"),
    pytest.param(lambda: torch.zeros(10, 14)[::2, ::2], id="strided"),
    pytest.param(lambda: torch.zeros(5, 8)[:, 1:], id="a column slice"),
    pytest.param(lambda: torch.nn.Parameter(torch.zeros(5, 7)), id="a parameter that requires a gradient"),
]


@pytest.mark.parametrize("make", LAYOUTS)
def test_live_tensors_of_any_layout_are_saved_and_filled_in_place(store: PosixStore, make: Callable[[], torch.Tensor]) -> None:
    source, live = make(), make()
    wanted = torch.randn(source.shape)
    with torch.no_grad():
        source.copy_(wanted)
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("model/w", source))])
    address = live.data_ptr()
    open_checkpoint(store, point(record)).fill([shared("model/w", live)], 0)
    assert torch.equal(live.detach(), wanted)
    assert live.data_ptr() == address


def test_a_tie_is_saved_once_and_filled_through_its_target(store: PosixStore) -> None:
    weight = torch.randn(6, 4)
    tied = [shared("model/w", weight), Leaf("model/head", weight, Kind.MODEL, True, alias_of="model/w")]
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(*tied)])
    live = torch.zeros(6, 4)
    checkpoint = open_checkpoint(store, point(record))
    checkpoint.fill([shared("model/w", live), Leaf("model/head", live, Kind.MODEL, True, alias_of="model/w")], 0)
    assert torch.equal(live, weight)
    with pytest.raises(Refused, match="model/head: alias of is model/w in the checkpoint and None in this program"):
        checkpoint.fill([shared("model/w", live), shared("model/head", live.clone())], 0)


def test_values_that_are_not_tensors_keep_their_types(store: PosixStore) -> None:
    value = {1: "one", "1": 1.5, (2, None): [True, b"\x00\xff", -0.0], "big": 1 << 80, "inf": float("inf")}
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [Snapshot((), {"scheduler": value})])
    (back,) = open_checkpoint(store, point(record)).objects(0).values()
    assert back == value
    assert [type(key) for key in back] == [type(key) for key in value]


def test_a_value_of_an_unknown_type_is_refused_at_save_with_its_path(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        with pytest.raises(ConfigurationError, match=r"scheduler/\[3\]/when: .*object"):
            attempt.save(1, [Snapshot((), {"scheduler": {3: {"when": object()}}})])
        assert not attempt.engines[0].busy


def test_the_weights_alone_can_be_taken_and_only_their_files_are_read(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(3.0)])
    (directory_of(store, record) / "data/00000-optim-0.safetensors").unlink()
    live = state(0.0)
    checkpoint = open_checkpoint(store, point(record))
    checkpoint.fill(live.leaves[:2], 0, exact=False)
    assert float(live.leaves[0].tensor[0, 0]) == 3.0
    with pytest.raises(CheckpointDamaged, match=r"00000-optim-0.safetensors: is missing"):
        checkpoint.fill(live.leaves, 0)


def test_damage_in_a_chunk_that_is_not_needed_does_not_matter_and_in_one_that_is_does(store: PosixStore) -> None:
    rows = CHUNK_BYTES // 4 // 1024
    leaves = [shared(f"model/{name}", torch.ones(rows, 1024)) for name in "abc"]
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(*leaves)])
    path = directory_of(store, record) / "data/00000-model-0.safetensors"
    flip(path, path.stat().st_size - 1)
    checkpoint = open_checkpoint(store, point(record))
    checkpoint.fill([shared("model/a", torch.zeros(rows, 1024))], 0, exact=False)
    with pytest.raises(CheckpointDamaged, match=r"chunk 3 \(bytes 50331648 to 50335744\) is not what was staged"):
        checkpoint.fill([shared("model/c", torch.zeros(rows, 1024))], 0, exact=False)


def test_every_data_file_is_a_safetensors_file_for_others(store: PosixStore) -> None:
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(1, states(2.0, 2))
    found: dict[str, torch.Tensor] = {}
    for path in sorted((directory_of(store, record) / "data").iterdir()):
        found |= load_file(path)
    assert set(found) == {leaf.name for snapshot in states(2.0, 2) for leaf in snapshot.leaves}
    assert torch.equal(found["optim/weight/step"], torch.tensor(2.0))


def test_several_files_of_a_kind_come_back(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_FILE_BYTES", 100_000)
    weight = torch.randn(1000, 100)
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("model/w", weight))])
    assert len(list((directory_of(store, record) / "data").iterdir())) == 4
    live = torch.zeros_like(weight)
    open_checkpoint(store, point(record)).fill([shared("model/w", live)], 0)
    assert torch.equal(live, weight)


def test_a_checkpoint_in_another_store_is_found_by_its_address(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [state(1.0)])
    (tmp_path / "other").mkdir()
    open_checkpoint(PosixStore(tmp_path / "other"), point(record)).fill(state(0.0).leaves, 0)


@pytest.mark.parametrize(
    "uri", ["file:///s/run/steps/1-1", "file:///s/run/0000000001-00000001", "x", "file:///s/Run/steps/0000000001-00000001"]
)
def test_an_address_that_names_no_checkpoint_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a checkpoint"):
        parse_uri(uri)


def test_an_address_and_a_step_that_disagree_are_refused(store: PosixStore) -> None:
    uri = f"{store.uri}/run/steps/{StepName(1, 1)}"
    with pytest.raises(ConfigurationError, match="is not step 2 of attempt 1"):
        open_checkpoint(store, ResumePoint(2, 1, uri, ""))


def index(rank: int, *tensors: TensorEntry, files: tuple[FileEntry, ...] = (FileEntry("f", 100, "", 1, ()),)) -> RankIndex:
    return RankIndex(rank, files, tensors, ())


def entry(name: str = "w", *chunks: Chunk, dtype: str = "U8", shape: tuple[int, ...] = (8,), alias_of: str | None = None) -> TensorEntry:
    return TensorEntry(name, dtype, shape, chunks, alias_of=alias_of)


def rows(first: int, count: int, file: str = "f", at: int = 0) -> Chunk:
    return Chunk((first,), (count,), file, at, count)


FAULTS = [
    pytest.param([index(0, entry("w", rows(0, 8)))], 1, None, id="whole"),
    pytest.param([index(0, entry("w", rows(0, 3))), index(1, entry("w", rows(3, 5)))], 2, None, id="in two parts"),
    pytest.param([index(0, entry("w", rows(0, 8)))], 2, "there are indexes of ranks", id="a rank is missing"),
    pytest.param([index(0), index(0)], 2, "there are indexes of ranks", id="a rank is there twice"),
    pytest.param([index(0, entry("w", rows(0, 3))), index(1)], 2, "w: the chunks hold 3 of 8", id="a part is missing"),
    pytest.param(
        [index(0, entry("w", rows(0, 3))), index(1, entry("w", rows(3, 5), dtype="I8"))],
        2,
        "w: ranks 0 and 1 describe it differently",
        id="dtypes",
    ),
    pytest.param([index(0, entry("w", rows(0, 8, file="g")))], 1, "points to g, which it does not list", id="a file that is not listed"),
    pytest.param([index(0, entry("w", rows(0, 8, at=93)))], 1, "lie outside of the file", id="past the end of the file"),
    pytest.param([index(0, entry("w", alias_of="v"))], 1, "w: is an alias of v, which is not in the checkpoint", id="an alias of nothing"),
]


@pytest.mark.parametrize(("indexes", "world_size", "fault"), FAULTS)
def test_indexes_that_do_not_make_up_a_checkpoint_are_told(indexes: list[RankIndex], world_size: int, fault: str | None) -> None:
    found = find_index_fault(indexes, world_size)
    assert found is None if fault is None else fault in (found or "")
    if fault is None:
        assert list(merge_tensors(indexes)) == ["w"]
