"""URLs of stores and checkpoints are read in one way, and what cannot be one is refused with what is allowed."""

from __future__ import annotations

import pytest

from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.place import FILE, S3, CheckpointPlace, StorePlace, parse_checkpoint, parse_store

STORES = [
    ("file:///checkpoints", StorePlace(FILE, "", "/checkpoints")),
    ("file:///a/b/", StorePlace(FILE, "", "/a/b")),
    ("s3://bucket", StorePlace(S3, "bucket", "")),
    ("s3://my.bucket-1/team_a/v1.0/", StorePlace(S3, "my.bucket-1", "team_a/v1.0")),
]


@pytest.mark.parametrize(("url", "place"), STORES, ids=[url for url, _ in STORES])
def test_a_store_is_taken_apart_and_put_together_again(url: str, place: StorePlace) -> None:
    assert parse_store(url) == place
    assert parse_store(place.url) == place
    assert place.url == url.rstrip("/")


NO_STORES = [
    ("", "file:///<path> or s3://<bucket>/<prefix>"),
    ("/checkpoints", "file:///<path> or s3://<bucket>/<prefix>"),
    ("https://bucket.s3.example", "file:///<path> or s3://<bucket>/<prefix>"),
    ("file://checkpoints", "absolute path"),
    ("file:////", "absolute path"),
    ("file:///a/../b", "without '..'"),
    ("s3://", "3 to 63"),
    ("s3://-bucket", "begins and ends with a letter or digit"),
    ("s3://bucket-", "begins and ends with a letter or digit"),
    ("s3://" + "b" * 64, "3 to 63"),
    ("s3://a..b", "no '..'"),
    ("s3://192.168.0.1/a", "IPv4"),
    ("s3://bucket/a b", "single slashes"),
    ("s3://bucket/a//b", "single slashes"),
    ("s3://bucket/./b", "no part '.'"),
    ("s3://bucket/a?versionId=1", "single slashes"),
]


@pytest.mark.parametrize(("url", "says"), NO_STORES, ids=[url or "nothing" for url, _ in NO_STORES])
def test_what_is_no_store_is_refused_with_what_is_allowed(url: str, says: str) -> None:
    with pytest.raises(ContractError) as refusal:
        parse_store(url)
    assert repr(url) in str(refusal.value)
    assert says in str(refusal.value)


def test_a_checkpoint_is_taken_apart_and_put_together_again() -> None:
    uri = "s3://bucket/a/team-a.gpt/steps/0000000500-00000002"
    place = CheckpointPlace(StorePlace(S3, "bucket", "a"), "team-a.gpt", StepName(500, 2))
    assert parse_checkpoint(uri) == parse_checkpoint(f"{uri}/") == place
    assert place.uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/run",
        "s3://bucket/run/steps/500-2",
        "s3://bucket/run/tmp/0000000500-00000002",
        "s3://bucket/Run/steps/0000000500-00000002",
        "run/steps/0000000500-00000002",
    ],
)
def test_what_is_no_checkpoint_is_refused(uri: str) -> None:
    with pytest.raises(ContractError, match="is not"):
        parse_checkpoint(uri)
