"""From a URL to a store, and what is said about the ones that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    ["s3://bucket/prefix", "gs://bucket", "/plain/path", "", "file://host/path", "file:relative", "file:///a?b", "file:///a#b"],
)
def test_another_url_is_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(ConfigurationError, match="store: .*file:///absolute/path"):
        open_store(url)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/rtj"], ids=["a file", "below a file", "where nothing can be made"])
def test_a_place_that_cannot_be_made_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnavailable, match=f"{place}: this directory for checkpoints cannot be made: "):
        open_store((tmp_path / place).as_uri(), create=True)
