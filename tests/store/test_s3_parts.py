"""The pure parts of the S3 store: what an answer means, where a path lies as a key, and checksums that add up."""

from __future__ import annotations

import os
import zlib

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError, SSLError

from trainer_runtime.store.s3 import keys
from trainer_runtime.store.s3.answers import describe, is_absent, is_passing, is_undecided
from trainer_runtime.store.s3.crc32 import combine, to_base64


def answer(status: int, code: str = "") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "passing", "undecided"),
    [
        pytest.param(answer(503, "SlowDown"), True, False, id="overloaded"),
        pytest.param(answer(429), True, False, id="throttled"),
        pytest.param(answer(409, "ConditionalRequestConflict"), True, False, id="two conditional writes at once"),
        pytest.param(answer(400, "BadDigest"), True, False, id="damaged on the way"),
        pytest.param(answer(500, "InternalError"), True, True, id="internal error"),
        pytest.param(answer(502), True, True, id="bad gateway"),
        pytest.param(answer(504), True, True, id="gateway time-out"),
        pytest.param(answer(400, "RequestTimeout"), True, True, id="request time-out"),
        pytest.param(ReadTimeoutError(endpoint_url="http://s3"), True, True, id="no answer in time"),
        pytest.param(ConnectionResetError("reset"), True, True, id="connection reset"),
        pytest.param(ConnectTimeoutError(endpoint_url="http://s3"), True, False, id="never connected in time"),
        pytest.param(EndpointConnectionError(endpoint_url="http://s3"), True, False, id="never connected"),
        pytest.param(SSLError(endpoint_url="https://s3", error="self-signed"), False, False, id="certificate"),
        pytest.param(answer(403, "AccessDenied"), False, False, id="access denied"),
        pytest.param(answer(400, "InvalidArgument"), False, False, id="bad request"),
        pytest.param(answer(412, "PreconditionFailed"), False, False, id="exists"),
        pytest.param(answer(501, "NotImplemented"), False, False, id="not implemented"),
        pytest.param(NoCredentialsError(), False, False, id="no credentials"),
    ],
)
def test_an_answer_says_whether_to_try_again_and_whether_a_write_may_have_happened(
    error: Exception, passing: bool, undecided: bool
) -> None:
    assert (is_passing(error), is_undecided(error)) == (passing, undecided)


def test_a_bucket_that_is_not_there_is_no_missing_file() -> None:
    assert is_absent(answer(404, "NoSuchKey"))
    assert is_absent(answer(404, "404"))
    assert not is_absent(answer(404, "NoSuchBucket"))
    assert not is_absent(answer(403, "AccessDenied"))


def test_a_refusal_without_a_body_is_described_as_access_denied() -> None:
    assert describe(answer(403, "403")).startswith("access denied; the credentials need")
    assert describe(answer(418, "Teapot")) == "the server answered 418 Teapot words"


@pytest.mark.parametrize(
    ("path", "staging", "step"),
    [
        pytest.param("run/tmp/0000000007-00000002", ("0000000007-00000002", ""), None, id="a save"),
        pytest.param("run/tmp/0000000007-00000002.1/data/x", ("0000000007-00000002.1", "data/x"), None, id="in a second try"),
        pytest.param("run/tmp/probe-12", None, None, id="a probe"),
        pytest.param("run/tmp", None, None, id="all saves"),
        pytest.param("run/steps/0000000007-00000002", None, ("0000000007-00000002", ""), id="a step"),
        pytest.param("run/steps/0000000007-00000002/data/x", None, ("0000000007-00000002", "data/x"), id="in a step"),
        pytest.param("run/steps/7", None, None, id="a foreign name"),
        pytest.param("run/fences/00000002", None, None, id="a fence"),
        pytest.param("run", None, None, id="a run"),
    ],
)
def test_paths_of_saves_and_of_steps_are_told_from_all_others(
    path: str, staging: tuple[str, str] | None, step: tuple[str, str] | None
) -> None:
    for found, wanted in ((keys.in_staging(path), staging), (keys.in_step(path), step)):
        assert (found and (found.name, found.rest)) == wanted


@pytest.mark.parametrize("staged", ["0000000007-00000002", "0000000007-00000002.1"])
def test_a_data_directory_and_the_save_that_it_belongs_to_name_each_other(staged: str) -> None:
    directory = keys.data_directory(staged)
    assert directory == f"attempts/00000002/0000000007{staged[19:]}"
    assert keys.staging_of(directory) == staged
    assert keys.step_of(directory) == "0000000007-00000002"
    assert keys.marked(f"run/trash/x/{keys.mark(directory)}") == directory


@pytest.mark.parametrize("key", ["run/trash/x/manifest.json", "run/trash/x/data@", "run/trash/x/data@7", "run/trash/x/data@a@b"])
def test_what_is_no_mark_marks_nothing(key: str) -> None:
    assert keys.marked(key) is None


@pytest.mark.parametrize("lengths", [[0], [1], [5, 0, 3], [4096, 4096, 17], [1_000_003, 65_536, 1]], ids=str)
def test_the_checksums_of_parts_add_up_to_that_of_the_whole(lengths: list[int]) -> None:
    parts = [os.urandom(length) for length in lengths]
    assert combine((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


def test_a_checksum_is_written_as_s3_writes_it() -> None:
    assert to_base64(zlib.crc32(b"123456789")) == "y/Q5Jg=="
