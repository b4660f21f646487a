"""What the S3 store makes of a server that refuses, forgets, lies, and damages: a retry, a decision by reading, or one clear error."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.store.hostile import CLOSE, CUT, LOSE, Hostile, Object, Trouble
from tests.store.servers import store_at
from tests.store.test_contract import BLOCK, FINAL, MANIFEST, MEBIBYTE, STAGING, blocks_of, delete, read_back, save, write
from trainer_runtime.errors import CommitUndecided, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore
from trainer_runtime.store.s3.api import Limits
from trainer_runtime.store.s3.capabilities import Capabilities
from trainer_runtime.store.s3.store import S3Store

IMPATIENT = Limits(connect=1.0, answer=1.0, request=0.6, first=0.6)
ALWAYS = 1000
LARGE = 13 * MEBIBYTE
"""Three parts."""


@pytest.fixture
def store(hostile: Hostile) -> S3Store:
    """The store of an ordinary process."""
    opened = store_at(hostile.endpoint, "bucket", "prefix")
    assert opened.capabilities == Capabilities(checks_parts=True, checks_whole=True)
    return opened


@pytest.fixture
def impatient(hostile: Hostile) -> S3Store:
    """A store that gives up soon."""
    opened = store_at(hostile.endpoint, "bucket", "prefix", IMPATIENT)
    assert opened.capabilities.checks_parts
    return opened


PASSING = [503, 500, 409, LOSE, CLOSE]


@pytest.mark.parametrize("act", PASSING)
def test_what_passes_is_tried_again_until_it_succeeds(hostile: Hostile, store: S3Store, act: str | int) -> None:
    for operation in ("PutObject", "UploadPart", "CompleteMultipartUpload", "GetObject", "HeadObject", "ListObjectsV2", "CopyObject"):
        hostile.troubles.append(Trouble(operation, act, times=2))
    data = os.urandom(LARGE)
    write(store, f"{STAGING}/data/x", data)
    store.create(f"{STAGING}/ranks/00000.json", b"[]")
    store.commit(STAGING, FINAL, "manifest.json", b"{}")
    assert read_back(store, f"{FINAL}/data/x") == data
    assert store.list(FINAL) == ("data", "manifest.json", "ranks")
    delete(store)
    assert store.list("run/steps") == ()
    assert all(trouble.times == 0 for trouble in hostile.troubles)
    assert hostile.uploads == {}


def test_a_create_whose_answer_is_lost_is_ours_when_our_bytes_are_there(hostile: Hostile, impatient: S3Store) -> None:
    hostile.troubles.append(Trouble("PutObject", LOSE, times=ALWAYS))
    impatient.create("run/fences/00000001", b"nonce")
    assert hostile.objects["prefix/run/fences/00000001"].data == b"nonce"


def test_a_create_whose_answer_is_lost_is_not_ours_when_others_bytes_are_there(hostile: Hostile, store: S3Store) -> None:
    hostile.objects["prefix/run/fences/00000001"] = Object(b"another nonce", {})
    hostile.troubles.append(Trouble("PutObject", CLOSE, times=1))
    with pytest.raises(AlreadyInStore, match="s3://bucket/prefix/run/fences/00000001: already there"):
        store.create("run/fences/00000001", b"nonce")


NAMED: list[object] = [
    pytest.param(503, "SlowDown", "the server answered 503 SlowDown", id="overloaded for ever"),
    pytest.param(403, "AccessDenied", "access denied; the credentials need s3:GetObject, s3:PutObject", id="access denied"),
    pytest.param(403, "InvalidAccessKeyId", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", id="unknown key id"),
    pytest.param(403, "SignatureDoesNotMatch", "the secret access key does not fit", id="wrong secret"),
    pytest.param(400, "ExpiredToken", "the session token has expired", id="expired"),
    pytest.param(404, "NoSuchBucket", "there is no such bucket; make it, or correct the store's URL", id="no bucket"),
    pytest.param(400, "AuthorizationHeaderMalformed", "set checkpoint.s3.region or RTJ_S3_REGION", id="another region"),
    pytest.param(501, "NotImplemented", "the server does not know this request", id="not implemented"),
    pytest.param(403, "RequestTimeTooSkewed", "this machine's clock is more than 15 minutes off", id="clock"),
]


@pytest.mark.parametrize(("status", "code", "words"), NAMED)
def test_what_does_not_pass_is_one_clear_error(hostile: Hostile, impatient: S3Store, status: int, code: str, words: str) -> None:
    for operation, act in (
        ("ListObjectsV2", lambda: store_at(hostile.endpoint, "bucket", "prefix", IMPATIENT)),
        ("PutObject", lambda: impatient.create("run/a", b"a")),
        ("GetObject", lambda: impatient.read("run/a")),
    ):
        hostile.troubles = [Trouble(operation, status, ALWAYS, code)]
        with pytest.raises(StoreUnavailable, match=f"cannot (list|write|read) s3://bucket/prefix/.*: .*{words}"):
            act()
    assert "prefix/run/a" not in hostile.objects


def test_without_credentials_the_error_says_how_to_give_them(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(StoreUnavailable, match="no credentials for S3 were found; set AWS_ACCESS_KEY_ID"):
        store_at(hostile.endpoint, "bucket")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid"], ids=["nobody listens", "no such host"])
def test_a_wrong_endpoint_is_named(endpoint: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"{endpoint}.*does checkpoint.s3.endpoint .or RTJ_S3_ENDPOINT. name the server"):
        store_at(endpoint, "bucket", limits=IMPATIENT)


def test_an_endpoint_that_is_no_url_is_named() -> None:
    with pytest.raises(StoreUnavailable, match="no S3 client can be made: Invalid endpoint: minio:9000"):
        store_at("minio:9000", "bucket")


def test_a_server_that_ignores_conditions_is_refused_before_anything_is_written(hostile: Hostile) -> None:
    hostile.obeys_conditions = False
    store = store_at(hostile.endpoint, "bucket", "prefix")
    assert store.list("") == (), "it can be read"
    with pytest.raises(StoreUnavailable, match="does not obey conditional writes .PutObject with If-None-Match"):
        store.create("run/fences/00000001", b"nonce")
    assert list(hostile.objects) == ["prefix/rtj-probe"]


def test_a_server_that_ignores_ranges_is_refused(hostile: Hostile, store: S3Store) -> None:
    store.create("run/a", b"abc")
    hostile.obeys_ranges = False
    with pytest.raises(StoreUnavailable, match="does not obey ranged reads"):
        store.read_range("run/a", 1, memoryview(bytearray(1)))


@pytest.mark.parametrize("status", [None, 400, 501], ids=["passes over them", "answers 400", "answers 501"])
def test_a_server_that_checks_nothing_gets_no_checksums(hostile: Hostile, status: int | None) -> None:
    hostile.checks_checksums = False
    if status is not None:
        hostile.troubles.append(Trouble("CreateMultipartUpload", status, code="NotImplemented"))
    store = store_at(hostile.endpoint, "bucket")
    assert store.capabilities == Capabilities(checks_parts=False, checks_whole=False)
    write(store, "run/data", bytes(LARGE))
    assert hostile.uploads == {}


WAYS_TO_WRITE: list[Callable[[S3Store], None]] = [
    lambda store: write(store, f"{STAGING}/data/x", bytes(LARGE)),
    lambda store: store.write_blocks(f"{STAGING}/data/x", blocks_of(bytes(LARGE), MEBIBYTE), LARGE),
]


def test_a_part_that_the_server_drops_is_found_by_the_checksum_of_the_whole(hostile: Hostile, impatient: S3Store) -> None:
    hostile.drops_part = 3
    for act in WAYS_TO_WRITE:
        with pytest.raises(StoreUnavailable, match="cannot complete s3://bucket/prefix/run/attempts/.*BadDigest"):
            act(impatient)
    assert (hostile.uploads, [key for key in hostile.objects if "attempts" in key]) == ({}, [])


def test_a_part_that_is_dropped_unseen_shows_when_the_file_is_read_back(hostile: Hostile) -> None:
    hostile.checks_checksums, hostile.drops_part = False, 3
    store = store_at(hostile.endpoint, "bucket", "prefix")
    data = os.urandom(LARGE)
    write(store, f"{STAGING}/data/x", data)
    assert read_back(store, f"{STAGING}/data/x") == data[: 10 * MEBIBYTE]


def test_bytes_damaged_on_the_way_are_sent_again(hostile: Hostile, store: S3Store) -> None:
    hostile.troubles = [Trouble("UploadPart", 400, code="BadDigest"), Trouble("PutObject", 400, code="BadDigest")]
    data = os.urandom(LARGE)
    write(store, f"{STAGING}/data/x", data)
    store.create("run/a", b"a")
    assert read_back(store, f"{STAGING}/data/x") == data


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload", "CreateMultipartUpload"])
def test_an_upload_that_fails_leaves_nothing(hostile: Hostile, impatient: S3Store, operation: str) -> None:
    for act in WAYS_TO_WRITE:
        hostile.troubles = [Trouble(operation, 503, ALWAYS)]
        with pytest.raises(StoreUnavailable, match="503 SlowDown"):
            act(impatient)
        assert (hostile.uploads, [key for key in hostile.objects if "attempts" in key]) == ({}, [])


def test_parts_that_cannot_be_taken_back_are_told_with_the_error(hostile: Hostile, impatient: S3Store) -> None:
    hostile.troubles = [Trouble("UploadPart", 403, ALWAYS, "AccessDenied"), Trouble("AbortMultipartUpload", 403, ALWAYS, "AccessDenied")]
    with pytest.raises(StoreUnavailable, match="cannot upload a part of") as caught:
        write(impatient, f"{STAGING}/data/x", bytes(LARGE))
    assert "the parts that were sent stay: cannot abort an upload of" in caught.value.__notes__[0]


def test_the_parts_of_a_process_that_was_killed_go_with_its_save(hostile: Hostile, store: S3Store) -> None:
    write(store, f"{STAGING}/data/small", b"whole")
    store._api.client.create_multipart_upload(Bucket="bucket", Key="prefix/run/attempts/00000002/0000000007/data/x")
    store._api.client.create_multipart_upload(Bucket="bucket", Key="prefix/run/attempts/00000003/0000000007/data/x")
    store.remove(STAGING)
    assert [upload.key for upload in hostile.uploads.values()] == ["prefix/run/attempts/00000003/0000000007/data/x"]


def test_a_connection_that_breaks_while_reading_goes_on_where_it_broke(hostile: Hostile, store: S3Store) -> None:
    data = os.urandom(MEBIBYTE)
    write(store, "run/data", data)
    hostile.troubles.append(Trouble("GetObject", CUT, times=3))
    assert b"".join(bytes(block) for block in store.read_back("run/data", 100_000)) == data
    assert hostile.requests.count("GetObject") == 4
    hostile.troubles.append(Trouble("GetObject", CUT, times=2))
    assert store.read("run/data") == data


def test_a_file_that_can_never_be_read_to_its_end_is_no_short_file(hostile: Hostile, impatient: S3Store) -> None:
    write(impatient, "run/data", b"x" * 100)
    hostile.troubles.append(Trouble("GetObject", CUT, times=ALWAYS))
    with pytest.raises(StoreUnavailable, match="cannot read s3://bucket/prefix/run/data"):
        read_back(impatient, "run/data", BLOCK)


class TestCommit:
    """The one request that counts, in every way in which it can end."""

    def test_lost_answers_are_decided_by_reading(self, hostile: Hostile, impatient: S3Store) -> None:
        write(impatient, f"{STAGING}/data/x", b"weights")
        hostile.troubles.append(Trouble("PutObject", LOSE, ALWAYS, key_has="manifest.json"))
        impatient.commit(STAGING, FINAL, "manifest.json", b"{}")
        assert impatient.read(f"{FINAL}/data/x") == b"weights"

    @pytest.mark.parametrize("act", [LOSE, CLOSE], ids=["after it was carried out", "before it was"])
    def test_the_same_manifest_of_another_try_is_not_ours(self, hostile: Hostile, impatient: S3Store, act: str) -> None:
        for suffix in ("", ".1"):
            write(impatient, f"{STAGING}{suffix}/data/x", f"weights{suffix}".encode())
        impatient.commit(f"{STAGING}.1", FINAL, "manifest.json", b"{}")
        hostile.troubles.append(Trouble("PutObject", act, times=1, key_has="manifest.json"))
        with pytest.raises(AlreadyInStore, match=f"s3://bucket/prefix/{FINAL}: already there, of another try"):
            impatient.commit(STAGING, FINAL, "manifest.json", b"{}")
        impatient.remove(STAGING)
        assert impatient.read(f"{FINAL}/data/x") == b"weights.1"
        assert [key for key in hostile.objects if "attempts" in key] == ["prefix/run/attempts/00000002/0000000007.1/data/x"]

    def test_a_commit_whose_data_cannot_be_looked_up_is_undecided(self, hostile: Hostile, impatient: S3Store) -> None:
        write(impatient, f"{STAGING}/data/x", b"weights")
        hostile.troubles.append(Trouble("PutObject", LOSE, ALWAYS, key_has="manifest.json"))
        hostile.troubles.append(Trouble("HeadObject", 503, ALWAYS, key_has="manifest.json"))
        with pytest.raises(CommitUndecided):
            impatient.commit(STAGING, FINAL, "manifest.json", b"{}")
        hostile.troubles.clear()
        assert impatient.read(f"{FINAL}/data/x") == b"weights"

    def test_a_commit_that_was_surely_not_made_is_an_ordinary_failure(self, hostile: Hostile, impatient: S3Store) -> None:
        write(impatient, f"{STAGING}/data/x", b"weights")
        hostile.troubles.append(Trouble("PutObject", 503, ALWAYS, key_has="manifest.json"))
        with pytest.raises(StoreUnavailable) as caught:
            impatient.commit(STAGING, FINAL, "manifest.json", b"{}")
        assert not isinstance(caught.value, CommitUndecided)
        impatient.remove(STAGING)
        assert not any("attempts" in key for key in hostile.objects)

    @pytest.mark.parametrize("act", [CLOSE, 500], ids=["no answer", "an internal error"])
    def test_what_a_commit_on_its_way_needs_is_not_removed(self, hostile: Hostile, impatient: S3Store, act: str | int) -> None:
        write(impatient, f"{STAGING}/data/x", b"weights")
        hostile.troubles.append(Trouble("PutObject", act, ALWAYS, key_has="manifest.json"))
        with pytest.raises(CommitUndecided, match=f"s3://bucket/prefix/{FINAL}: the commit was sent and may yet count"):
            impatient.commit(STAGING, FINAL, "manifest.json", b"{}")
        with pytest.raises(StoreUnavailable, match="stays; a commit of it was sent and may yet count"):
            impatient.remove(STAGING)
        arrived = Object(b"{}", {"x-amz-meta-rtj-data": "attempts/00000002/0000000007"})
        hostile.objects[f"prefix/{MANIFEST}"] = arrived  # late, but there it is
        assert impatient.read(f"{FINAL}/data/x") == b"weights"

    def test_a_commit_that_can_be_neither_made_nor_read_is_undecided(self, hostile: Hostile, impatient: S3Store) -> None:
        write(impatient, f"{STAGING}/data/x", b"weights")
        hostile.troubles.append(Trouble("PutObject", LOSE, ALWAYS, key_has="manifest.json"))
        hostile.troubles.append(Trouble("GetObject", 503, ALWAYS))
        with pytest.raises(CommitUndecided):
            impatient.commit(STAGING, FINAL, "manifest.json", b"{}")
        hostile.troubles.clear()
        assert impatient.read(f"{FINAL}/data/x") == b"weights"

    def test_only_a_save_can_be_committed(self, store: S3Store) -> None:
        for staging, final, name in ((STAGING, "run/steps/7", "manifest.json"), ("run/x", FINAL, "manifest.json"), (STAGING, FINAL, "m")):
            with pytest.raises(ValueError, match="a commit is of <run>/tmp/<save> as <run>/steps/<step>-<attempt> by manifest.json"):
                store.commit(staging, final, name, b"{}")

    def test_a_manifest_that_lost_its_metadata_is_read_as_one_of_a_first_try(self, hostile: Hostile, store: S3Store) -> None:
        save(store)
        hostile.objects[f"prefix/{MANIFEST}"].metadata.clear()
        assert store_at(hostile.endpoint, "bucket", "prefix").read(f"{FINAL}/data/x") == b"weights"


def test_a_checkpoint_that_a_person_took_back_from_the_trash_keeps_its_data(hostile: Hostile, store: S3Store) -> None:
    save(store)
    delete(store)
    (grave,) = [key for key in hostile.objects if key.endswith("/manifest.json")]
    hostile.objects[f"prefix/{MANIFEST}"] = hostile.objects[grave]
    store.remove("run/trash")
    assert store.read(f"{FINAL}/data/x") == b"weights"


def test_a_deletion_that_stops_anywhere_never_leaves_a_checkpoint_without_its_data(hostile: Hostile, impatient: S3Store) -> None:
    def stopped_after(requests: int) -> bool:
        """Delete with a server that serves so many more requests; say whether that was enough."""
        hostile.troubles.clear()
        for operation in ("CopyObject", "DeleteObject", "PutObject", "HeadObject", "ListObjectsV2", "ListMultipartUploads"):
            hostile.troubles.append(Trouble(operation, 403, ALWAYS, "AccessDenied"))
        limit = len(hostile.requests) + requests
        hostile.is_open = lambda: len(hostile.requests) <= limit
        try:
            delete(impatient)
            impatient.remove("run/trash")
        except (StoreUnavailable, NotInStore, AlreadyInStore):
            return False
        finally:
            hostile.is_open = lambda: False
            hostile.troubles.clear()
        return True

    for requests in range(1, 200):
        hostile.objects.clear()
        save(impatient)
        impatient.create(f"{FINAL}/verified.json", b"{}")
        done = stopped_after(requests)
        if f"prefix/{MANIFEST}" in hostile.objects:
            assert impatient.read(f"{FINAL}/data/x") == b"weights", f"stopped after {requests} requests"
        if done:
            assert requests > 10
            return
    pytest.fail("the deletion never ended")


def test_a_silent_server_costs_its_time_and_no_more(hostile: Hostile) -> None:
    hasty = store_at(hostile.endpoint, "bucket", "prefix", Limits(connect=0.2, answer=0.2, request=0.5, first=0.5))
    with hostile.lock, ThreadPoolExecutor(1) as pool:  # requests are read and never answered
        failure = pool.submit(hasty.read, "run/a").exception(timeout=30)
    assert isinstance(failure, StoreUnavailable)
    assert "cannot read s3://bucket/prefix/run/a: Read timeout" in str(failure)
