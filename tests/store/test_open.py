"""From a URL to a store, and what is said about the ones that cannot be opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.hostile import Hostile
from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.errors import ConfigurationError, StoreUnavailable
from trainer_runtime.store.open import open_store


def test_a_file_url_opens_the_directory_it_names(tmp_path: Path) -> None:
    (tmp_path / "my store").mkdir()
    store = open_store(f"file://{tmp_path}/my%20store/")
    store.create("a", b"1")
    assert (tmp_path / "my store" / "a").read_bytes() == b"1"
    assert store.uri == f"file://{tmp_path}/my%20store"


def test_only_a_default_place_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no such directory"):
        open_store(f"file://{tmp_path}/new/place")
    assert open_store(f"file://{tmp_path}/new/place", create=True).list("") == ()


@pytest.mark.parametrize(
    "url",
    ["gs://bucket", "/plain/path", "", "file://host/path", "file:relative", "file:///a?b", "file:///a#b"],
)
def test_another_url_is_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(ConfigurationError, match="store: .*file:///absolute/path"):
        open_store(url)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/rtj"], ids=["a file", "below a file", "where nothing can be made"])
def test_a_place_that_cannot_be_made_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnavailable, match=f"{place}: this directory for checkpoints cannot be made: "):
        open_store((tmp_path / place).as_uri(), create=True)


def test_an_s3_url_opens_the_prefix_of_the_bucket_it_names(hostile: Hostile) -> None:
    store = open_store("s3://bucket/some/prefix/", S3Settings(hostile.endpoint))
    store.create("a", b"1")
    assert hostile.objects["some/prefix/a"].data == b"1"
    assert store.uri == "s3://bucket/some/prefix"
    assert open_store("s3://bucket", S3Settings(hostile.endpoint)).list("") == ("some",)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://B/prefix", "s3://bucket/a//b", "s3://bucket/../b", "s3://bucket/a?b"])
def test_an_s3_url_that_names_no_bucket_or_prefix_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="store: .*s3://<bucket>/<prefix>"):
        open_store(url)


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("trainer_runtime.store.s3.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r"store: 's3://bucket' needs boto3.*pip install 'rtj\[s3\]'"):
        open_store("s3://bucket")


def test_a_file_store_needs_no_boto3(tmp_path: Path) -> None:
    code = "import sys; from trainer_runtime.store.open import open_store; open_store(sys.argv[1]); sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, tmp_path.as_uri()], check=False).returncode == 0
