"""A run whose store is a bucket, as its user starts it: by URL and environment alone, with a persister process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runtime.endings import exit_of
from tests.runtime.training import Training
from tests.store import servers
from trainer_runtime.errors import StoreUnavailable


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the environment name a bucket of a real server."""
    with servers.gofakes3(tmp_path) as endpoint:
        servers.give_credentials(monkeypatch)
        monkeypatch.setenv("RTJ_STORE", f"s3://{servers.new_bucket(endpoint)}/team/a")
        monkeypatch.setenv("RTJ_S3_ENDPOINT", endpoint)
        yield


def test_a_run_on_s3_resumes_and_ends_as_one_that_was_never_interrupted(bucket: None, tmp_path: Path) -> None:
    whole = Training(tmp_path / "whole", save_every_steps=2).train(6)
    first = Training(None, save_every_steps=2).train(3)
    second = Training(None, save_every_steps=2).train(6)
    assert min(second.losses) == 4
    assert {**first.losses, **second.losses} == whole.losses
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_wrong_bucket_is_named_before_any_training(
    bucket: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RTJ_STORE", "s3://no-such-bucket/team")
    with pytest.raises(SystemExit) as ended:
        Training(None)
    assert exit_of(ended) == (81, StoreUnavailable)
    assert "s3://no-such-bucket/team/: there is no such bucket; make it, or correct the store's URL" in capfd.readouterr().err
