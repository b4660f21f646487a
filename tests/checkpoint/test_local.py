"""The local tier: written before the store, proven after it, small, and never the reason why a save fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, flip, point, state, states
from trainer_runtime.checkpoint.job import StagedFile
from trainer_runtime.checkpoint.keeping.copying import copy_checkpoint
from trainer_runtime.checkpoint.keeping.local import LocalTier, find_excess
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.mkdir()
    return path


def files_of(disk: Path, record: CheckpointRecord) -> list[Path]:
    return sorted((disk / RUN / "steps" / str(StepName(record.step, record.attempt))).glob("data/*"))


def saved(store: PosixStore, disk: Path, *steps: int, ranks: int = 1) -> list[CheckpointRecord]:
    with attempt_on(store, ranks, local=disk) as attempt:
        return [attempt.saved(step, states(float(step), ranks)) for step in steps]


def restored(store: Store, disk: Path, record: CheckpointRecord, archive: Callable[[], Store] | None = None) -> bool:
    """Restore and say whether every tensor is as it was saved."""
    live = state(0.0)
    open_checkpoint(store, point(record), local=lambda: PosixStore(disk), archive=archive).fill(live.leaves, 0)
    return all((leaf.tensor == other.tensor).all() for leaf, other in zip(live.leaves, state(float(record.step)).leaves, strict=True))


class Counting(PosixStore):
    """A store that counts the bytes it gives out of data files."""

    given = 0

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        got = super().read_range(path, offset, into)
        self.given += got
        return got


def counting(store: PosixStore) -> Counting:
    return Counting(Path(store.uri.removeprefix("file://")))


def test_a_restart_on_the_same_node_reads_no_data_from_the_store(store: PosixStore, disk: Path) -> None:
    (record,) = saved(store, disk, 3)
    counted = counting(store)
    assert restored(counted, disk, record)
    assert counted.given == 0


def test_what_another_nodes_ranks_wrote_comes_from_the_store(store: PosixStore, disk: Path) -> None:
    (record,) = saved(store, disk, 3, ranks=2)
    of_rank_1 = [path for path in files_of(disk, record) if path.name.startswith("00001")]
    assert of_rank_1
    for path in of_rank_1:
        path.unlink()
    counted = counting(store)
    assert restored(counted, disk, record)
    assert counted.given > 0


def test_a_local_byte_that_changed_is_passed_over_and_said(store: PosixStore, disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    (record,) = saved(store, disk, 3)
    (model,) = (path for path in files_of(disk, record) if "model" in path.name)
    flip(model, 5000)
    assert restored(store, disk, record)
    assert "chunk 0" in caplog.text
    assert "it is read from the store" in caplog.text


def test_two_steps_stay_and_those_of_the_newest_attempt_first(store: PosixStore, disk: Path) -> None:
    records = saved(store, disk, 1, 2, 3)
    assert [bool(files_of(disk, record)) for record in records] == [False, True, True]


@pytest.mark.parametrize(
    ("entries", "gone"),
    [
        ([], []),
        (["0000000010-00000001"], []),
        (["0000000010-00000001", "0000000020-00000001"], ["0000000010-00000001"]),
        (["0000000090-00000001", "0000000020-00000002"], ["0000000090-00000001"]),
        (["0000000030-00000003", "0000000010-00000001", "lost+found"], []),
    ],
    ids=["nothing", "one before", "two before", "a rollback left a higher step", "the one that is written is there already"],
)
def test_which_steps_make_room(entries: list[str], gone: list[str]) -> None:
    assert [str(name) for name in find_excess(entries, StepName(30, 3))] == gone


def test_what_a_killed_rank_left_of_a_removal_goes_with_the_next_save(store: PosixStore, disk: Path) -> None:
    left = disk / RUN / "steps" / "0000000001-00000001.removed-0123abcd" / "data"
    left.mkdir(parents=True)
    (left / "x").write_bytes(b"weights")
    saved(store, disk, 2)
    assert [path.name for path in (disk / RUN / "steps").iterdir()] == ["0000000002-00000001"]


@pytest.mark.parametrize("is_file", [False, True], ids=["gone", "a file instead of a directory"])
def test_a_disk_that_fails_costs_no_save(store: PosixStore, disk: Path, is_file: bool, caplog: pytest.LogCaptureFixture) -> None:
    disk.rmdir()
    if is_file:
        disk.write_text("not a directory")
    records = saved(store, disk, 1, 2)
    assert [record.step for record in records] == [1, 2]
    assert "local tier: writing step 2 failed, 2 in a row" in caplog.text
    assert restored(store, disk, records[1]), "and none to restore"


def test_a_disk_that_hangs_is_waited_for_once(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    asked: list[StagedFile] = []

    def image(file: StagedFile) -> memoryview:
        asked.append(file)
        release.wait(30)
        return memoryview(bytearray(4096))

    tier = LocalTier(str(disk), RUN, wait_seconds=0.05)
    file = StagedFile("data/00000-model-0.safetensors", 10, 0)
    try:
        tier.write(StepName(1, 1), [file], image)
        tier.write(StepName(2, 1), [file], image)
    finally:
        release.set()
    assert len(asked) == 1
    assert "it is not used any more" in caplog.text


def test_what_the_store_lost_comes_from_the_archive(
    store: PosixStore, disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = saved(store, disk, 3)
    (tmp_path / "archive").mkdir()
    archive = PosixStore(tmp_path / "archive")
    copy_checkpoint(store, Reference(store.uri, RUN, StepName(3, 1), record.manifest_sha256), archive, 1, "the test")
    for path in files_of(disk, record):
        path.unlink()
    store.remove(f"{RUN}/steps/{StepName(3, 1)}/data/00000-model-0.safetensors")
    assert restored(store, disk, record, lambda: archive)
    assert "the archive has it" in caplog.text
    store.remove(f"{RUN}/steps/{StepName(3, 1)}")
    assert restored(store, disk, record, lambda: archive)
