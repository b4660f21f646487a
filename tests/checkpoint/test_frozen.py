"""Tensors that training does not change are stored once, and one that did change all the same is written again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import RUN, WAIT_SECONDS, Attempt, attempt_on, directory_of, flip, only, point, reference_to, shared
from trainer_runtime.checkpoint.commit import About
from trainer_runtime.checkpoint.documents import read_index
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.job import Part, SaveJob, StagedFile
from trainer_runtime.checkpoint.persist import Persister
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.staging import plan
from trainer_runtime.checkpoint.staging.unchanged import LEAST_BYTES
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.errors import CheckpointDamaged
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore

ROWS = LEAST_BYTES // 4 // 64


class Model:
    """A base that stands still and an adapter that moves."""

    def __init__(self, rows: int = ROWS) -> None:
        self.base = torch.arange(rows * 64, dtype=torch.float32).reshape(rows, 64)
        self.quantised = torch.ones(LEAST_BYTES, dtype=torch.int8)
        self.adapter = torch.zeros(8)

    def snapshot(self) -> Snapshot:
        self.adapter += 1
        return only(
            Leaf("model/base", self.base, Kind.MODEL, True, frozen_version=self.base._version),
            Leaf("model/quantised", self.quantised, Kind.MODEL, True, frozen_version=self.quantised._version),
            shared("model/adapter", self.adapter),
        )


def frozen_files(store: PosixStore) -> tuple[str, ...]:
    return store.list("run/frozen")


def bytes_in(store: PosixStore, record: CheckpointRecord) -> int:
    return sum(path.stat().st_size for path in (directory_of(store, record) / "data").iterdir())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The frozen files that were read back, wherever they lie, once for each time."""
    found: list[Path] = []
    read_back = PosixStore.read_back

    def listen(self: PosixStore, path: str, block_bytes: int) -> Iterator[memoryview]:
        if "/frozen/" in path:
            found.append(self._at(path))
        return read_back(self, path, block_bytes)

    monkeypatch.setattr(PosixStore, "read_back", listen)
    return found


def restored(store: PosixStore, record: CheckpointRecord) -> Model:
    live = Model()
    for tensor in (live.base, live.quantised, live.adapter):
        tensor.zero_()
    snapshot = live.snapshot()
    open_checkpoint(store, point(record)).fill(snapshot.leaves, 0)
    return live


def test_after_the_first_save_only_what_moves_is_written(store: PosixStore) -> None:
    model = Model()
    with attempt_on(store, ranks=2) as attempt:
        records = [attempt.saved(step, [snapshot := model.snapshot(), snapshot]) for step in (1, 2, 3)]
    assert len(frozen_files(store)) == 2, "each of two replicas stores its half"
    for record in records:
        assert bytes_in(store, record) < LEAST_BYTES
        live = restored(store, record)
        assert torch.equal(live.base, model.base)
        assert torch.equal(live.quantised, model.quantised)
        assert float(live.adapter[0]) == record.step
    verify_checkpoint(store, open_checkpoint(store, point(records[0]))._documents.reference)


def change_in_place(model: Model) -> None:
    model.base[5, 5] += 1


def change_behind_torchs_back(model: Model) -> None:
    model.base.data.mul_(2)


def change_one_element_behind_torchs_back(model: Model) -> None:
    model.base.data[5, 5] += 1


def put_another_in_its_place(model: Model) -> None:
    model.base = model.base + 1


@pytest.mark.parametrize(
    "change", [change_in_place, change_behind_torchs_back, change_one_element_behind_torchs_back, put_another_in_its_place]
)
def test_a_frozen_tensor_that_changed_is_written_again(store: PosixStore, change: object) -> None:
    model = Model()
    assert callable(change)
    with attempt_on(store) as attempt:
        first = attempt.saved(1, [model.snapshot()])
        before = model.base.clone()
        change(model)
        second = attempt.saved(2, [model.snapshot()])
        change(model)
        third = attempt.saved(3, [model.snapshot()])
    assert torch.equal(restored(store, first).base, before)
    assert not torch.equal(restored(store, second).base, before)
    assert torch.equal(restored(store, third).base, model.base)
    assert bytes_in(store, third) > model.base.nbytes, "what changes is no longer treated as frozen"


def test_a_change_of_one_element_in_a_large_base_is_found_when_its_chunks_turn_comes(store: PosixStore) -> None:
    model = Model(rows=98_304)
    with attempt_on(store) as attempt:
        attempt.saved(1, [model.snapshot()])
        model.base.data[98_001, 5] += 1
        records = [attempt.saved(step, [model.snapshot()]) for step in (2, 3)]
    live = torch.zeros_like(model.base)
    leaf = Leaf("model/base", live, Kind.MODEL, True)
    open_checkpoint(store, point(records[-1])).fill([leaf], 0, exact=False)
    assert torch.equal(live, model.base)


def test_an_attempt_that_resumes_does_not_stage_what_the_run_has(store: PosixStore) -> None:
    model = Model()
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [model.snapshot()])
    stored = open_checkpoint(store, point(record)).frozen_files
    with attempt_on(store) as attempt:
        planner = attempt.engines[0]._planner
        planner._unchanged._stored |= stored
        assert {file.path for file in planner.plan(model.snapshot().leaves).kept} == stored
        second = attempt.saved(2, [model.snapshot()])
    assert torch.equal(restored(store, second).base, model.base)


def damage(store: PosixStore, attempt: Attempt) -> None:
    del attempt
    (path,) = (Path(store.uri.removeprefix("file://")) / "run/frozen").iterdir()
    flip(path, path.stat().st_size - 1)


def test_a_damaged_frozen_file_fails_the_restore_and_heals_with_the_next_attempts_save(store: PosixStore) -> None:
    model = Model()
    with attempt_on(store) as attempt:
        first = attempt.saved(1, [model.snapshot()])
        damage(store, attempt)
    with pytest.raises(CheckpointDamaged, match=r"frozen/[0-9a-f]{64}.safetensors: chunk 0"):
        restored(store, first)
    with attempt_on(store) as attempt:
        attempt.saved(2, [model.snapshot()])
    assert torch.equal(restored(store, first).base, model.base)
    assert len(frozen_files(store)) == 1


def test_a_damaged_file_that_the_attempt_took_for_stored_fails_one_save_and_is_staged_in_the_next(store: PosixStore) -> None:
    model = Model()
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [model.snapshot()])
        stored = open_checkpoint(store, point(record)).frozen_files
    with attempt_on(store) as attempt:
        damage(store, attempt)
        attempt.engines[0]._planner._unchanged._stored |= stored
        (failed,) = attempt.save(2, [model.snapshot()])
        assert isinstance(failed.error, CheckpointDamaged)
        third = attempt.saved(3, [model.snapshot()])
    assert torch.equal(restored(store, third).base, model.base)


def test_however_many_frozen_files_are_missing_one_save_fails_and_the_next_stages_them_all(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_FILE_BYTES", LEAST_BYTES)
    model = Model(4 * ROWS)
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [model.snapshot()])
        stored = open_checkpoint(store, point(record)).frozen_files
    with attempt_on(store) as attempt:
        for name in frozen_files(store)[1:]:
            store.remove(f"run/frozen/{name}")
        kept = frozen_files(store)[0]
        written_at = store.modified_at(f"run/frozen/{kept}")
        attempt.engines[0]._planner._unchanged._stored |= stored
        (failed,) = attempt.save(2, [model.snapshot()])
        assert isinstance(failed.error, CheckpointDamaged)
        third = attempt.saved(3, [model.snapshot()])
    assert len(stored) >= 4
    assert len(frozen_files(store)) == len(stored)
    assert store.modified_at(f"run/frozen/{kept}") == written_at, "an intact one is not written again"
    verify_checkpoint(store, open_checkpoint(store, point(third))._documents.reference)


def test_a_frozen_file_is_read_back_once_however_many_saves_name_it(store: PosixStore, tmp_path: Path, read: list[Path]) -> None:
    (tmp_path / "local").mkdir()
    model = Model()
    with attempt_on(store, ranks=2, local=tmp_path / "local") as attempt:
        for step in (1, 2, 3, 4):
            attempt.saved(step, [snapshot := model.snapshot(), snapshot])
    stored = {store._at(f"{RUN}/frozen/{name}") for name in frozen_files(store)}
    kept_near = set((tmp_path / "local").glob("**/frozen/*"))
    assert (len(stored), len(kept_near)) == (2, 2)
    assert sorted(read) == sorted(stored | kept_near)


class Nothing:
    """Staged bytes that nobody may ask for."""

    def image(self, file: StagedFile) -> memoryview:
        raise AssertionError(file)

    def await_window(self, window: int, deadline_seconds: float) -> None:
        raise AssertionError(window)


def test_a_persister_that_took_over_proves_once_more_what_it_did_not_see_proven(store: PosixStore, read: list[Path]) -> None:
    base = Model().base
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(Leaf("model/base", base, Kind.MODEL, True, frozen_version=base._version))])
        who = attempt.opened[0].writer
    index = read_index(store, reference_to(store, record), 0)
    part = Part((), index.tensors, "", kept=index.files)
    read.clear()
    reads = []
    for steps in ((2, 3, 4), (5, 6)):
        persister = Persister(store, RUN, who, LocalExchange(), lambda record: None, WAIT_SECONDS)
        for step in steps:
            persister.persist(SaveJob(About(step, 0, step), (), 0, 0), part, Nothing())
            reads.append(len(read))
    assert reads == [1, 1, 1, 2, 2]


def test_damage_to_a_frozen_file_that_was_proven_is_found_by_the_restore(store: PosixStore) -> None:
    model = Model()
    with attempt_on(store) as attempt:
        attempt.saved(1, [model.snapshot()])
        damage(store, attempt)
        second = attempt.saved(2, [model.snapshot()])
    with pytest.raises(CheckpointDamaged, match=r"frozen/[0-9a-f]{64}.safetensors: chunk 0"):
        restored(store, second)


def remove(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [remove, cut_off])
def test_a_frozen_file_that_was_proven_and_is_not_whole_any_more_fails_one_save_and_is_proven_again_when_it_is_written_anew(
    store: PosixStore, read: list[Path], harm: Callable[[Path], None]
) -> None:
    model = Model()
    with attempt_on(store) as attempt:
        attempt.saved(1, [model.snapshot()])
        (path,) = (store._at(f"{RUN}/frozen/{name}") for name in frozen_files(store))
        harm(path)
        (failed,) = attempt.save(2, [model.snapshot()])
        assert isinstance(failed.error, CheckpointDamaged)
        read.clear()
        third = attempt.saved(3, [model.snapshot()])
        assert read == [path]
        attempt.saved(4, [model.snapshot()])
        assert read == [path]
    assert torch.equal(restored(store, third).base, model.base)
