"""The same commands, and copies between tiers, on a store that is no file system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.checkpoint.test_copying import saved_with_frozen_base
from tests.checkpoint.world import RUN, attempt_on, state, states
from tests.store import servers
from tests.store.hostile import hostile_s3
from trainer_runtime.checkpoint.documents import is_verified
from trainer_runtime.checkpoint.keeping.copying import copy_checkpoint
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.cli.checkpoints.main import main
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore
from trainer_runtime.store.s3.store import S3Store


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.CREDENTIALS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.CREDENTIALS["aws_secret_access_key"])
    with hostile_s3() as server:
        monkeypatch.setenv("RTJ_S3_ENDPOINT", server.endpoint)
        yield servers.store_at(server.endpoint, servers.new_bucket(server.endpoint), "team/models")


def reference_of(store: Store, record: CheckpointRecord) -> Reference:
    return Reference(store.uri, RUN, StepName(record.step, record.attempt), record.manifest_sha256)


def is_restored(store: Store, copy: Reference) -> bool:
    live = state(0.0)
    open_checkpoint(store, copy.resume_point()).fill(live.leaves, 0)
    saved = state(float(copy.name.step))
    return all(bool((leaf.tensor == other.tensor).all()) for leaf, other in zip(live.leaves, saved.leaves, strict=True))


def test_a_copy_from_files_to_s3_and_back_is_the_same_checkpoint(store: PosixStore, bucket: Store, tmp_path: Path) -> None:
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(3, states(3.0, 2))
    there = copy_checkpoint(store, reference_of(store, record), bucket, 1, "the test")
    assert is_verified(bucket, there)
    assert is_restored(bucket, there)
    (tmp_path / "back").mkdir()
    back = PosixStore(tmp_path / "back")
    again = copy_checkpoint(bucket, there, back, 1, "the test")
    assert again.manifest_sha256 == record.manifest_sha256
    assert is_restored(back, again)


def test_of_two_copiers_of_one_checkpoint_to_s3_the_second_takes_its_own_data_away(store: PosixStore, bucket: S3Store) -> None:
    record = saved_with_frozen_base(store)
    name, prefix = bucket.uri.removeprefix("s3://").split("/", 1)
    another = S3Store(name, prefix, bucket.s3)
    copies: list[Reference] = []

    def overtake(_bytes: int) -> None:
        if not copies:
            copies.append(copy_checkpoint(store, reference_of(store, record), another, 1, "the first"))

    with pytest.raises(SaveFailed, match="somebody else writes there"):
        copy_checkpoint(store, reference_of(store, record), bucket, 1, "the second", overtake)
    assert (bucket.list(f"{RUN}/tmp"), len(bucket.list(f"{RUN}/attempts/00000001"))) == ((), 1)
    verify_checkpoint(bucket, copies[0])
    assert copy_checkpoint(store, reference_of(store, record), bucket, 1, "the second") == copies[0]


def test_every_command_works_on_s3(bucket: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with attempt_on(bucket, job="") as attempt:
        for step in (1, 2, 3):
            attempt.saved(step, [state(float(step))])

    def call(command: str, *arguments: str) -> int:
        return main([command, "--store", bucket.uri, *arguments])

    assert call("ls", "--json") == 0
    assert [entry["step"] for entry in json.loads(capsys.readouterr().out)["checkpoints"]] == [1, 2, 3]
    assert [call("show", "2"), call("verify", "--all"), call("diff", "1", "2")] == [0, 0, 1]
    assert call("export", "2", str(tmp_path / "out")) == 0
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")["weight"], torch.full((64, 16), 2.0))
    assert call("rm", "1", "--force") == 0
    capsys.readouterr()
    assert call("ls", "--json") == 0
    assert [entry["step"] for entry in json.loads(capsys.readouterr().out)["checkpoints"]] == [2, 3]
    assert call("verify", "--all") == 0
