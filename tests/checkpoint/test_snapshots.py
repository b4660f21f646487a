"""What a run was started with is kept beside its checkpoints: once, proven, and mended when it was damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.world import RUN
from trainer_runtime.checkpoint.keeping.snapshots import keep_snapshots, name_snapshots, read_snapshots
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, StoreUnavailable
from trainer_runtime.state.attachments import Attachment, find_files, render_config
from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def given(tmp_path: Path) -> dict[str, tuple[Attachment, ...]]:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("vocab.json", "twin.json"):
        (folder / name).write_text("the same")
    return {"tokenizer": find_files(folder), "config": render_config({"depth": 2}), "nothing": ()}


def reference(store: PosixStore) -> Reference:
    return Reference(store.uri, RUN, StepName(1, 1), "ab")


def test_files_are_kept_once_and_read_back_by_name(store: PosixStore, given: dict[str, tuple[Attachment, ...]]) -> None:
    keep_snapshots(store, RUN, given)
    keep_snapshots(store, RUN, given)
    named = name_snapshots(given)
    assert set(named) == {"tokenizer", "config"}
    assert len(store.list(f"{RUN}/snapshots")) == 2, "two files of equal bytes are one"
    assert dict(read_snapshots(store, reference(store), named["tokenizer"])) == {"vocab.json": b"the same", "twin.json": b"the same"}
    assert dict(read_snapshots(store, reference(store), named["config"])) == {"config.json": b'{\n  "depth": 2\n}\n'}


def test_a_damaged_one_is_told_to_the_reader_and_mended_by_the_next_attempt(
    store: PosixStore, given: dict[str, tuple[Attachment, ...]]
) -> None:
    keep_snapshots(store, RUN, given)
    files = name_snapshots(given)["config"]
    path = Path(store.uri.removeprefix("file://")) / RUN / files[0].path
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointDamaged, match="the snapshot of config.json is not what was kept"):
        list(read_snapshots(store, reference(store), files))
    keep_snapshots(store, RUN, given)
    assert [name for name, _data in read_snapshots(store, reference(store), files)] == ["config.json"]
    assert len(store.list(f"{RUN}/trash")) == 1, "nothing is overwritten"
    path.unlink()
    with pytest.raises(CheckpointDamaged, match="the snapshot of config.json is missing"):
        list(read_snapshots(store, reference(store), files))


class LosingStore(PosixStore):
    """A store that says that it wrote, and did not."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data[:-1])


def test_a_store_that_does_not_keep_them_is_found_out_at_once(tmp_path: Path, given: dict[str, tuple[Attachment, ...]]) -> None:
    with pytest.raises(StoreUnavailable, match="is not what was written when it is read back"):
        keep_snapshots(LosingStore(tmp_path), RUN, given)
