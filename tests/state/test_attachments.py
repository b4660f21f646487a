from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import attachments
from trainer_runtime.state.attachments import find_files, plain, render_config


@dataclass
class Config:
    depth: int
    path: Path


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({"a": [1, 0.5, None, "x", True]}, {"a": [1, (0.5).hex(), None, "x", True]}),
        (Namespace(lr=1), {"lr": 1}),
        (Config(2, Path("/d")), {"depth": 2, "path": "/d"}),
        ({"dtype": torch.float32}, {"dtype": "torch.float32"}),
    ],
    ids=["none", "mapping", "namespace", "dataclass", "dtype"],
)
def test_a_config_becomes_plain_json(config: Any, expected: Any) -> None:
    assert plain(config, exact=True) == expected


def test_a_config_value_that_cannot_be_compared_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"config\.model\[0\]: a object"):
        plain({"model": [object()]}, exact=True)


def test_a_config_is_kept_as_json_that_a_person_can_read() -> None:
    (file,) = render_config({"lr": 0.1, "depth": 2, "limit": float("inf")})
    assert file.name == "config.json"
    assert json.loads(file.read()) == {"lr": 0.1, "depth": 2, "limit": "inf"}
    assert render_config(None) == ()


class Pretrained:
    """Looks like a configuration of transformers."""

    def to_dict(self) -> dict[str, Any]:
        return {"hidden_size": 8}


def test_a_config_object_says_itself_what_it_is() -> None:
    assert plain(Pretrained(), exact=True) == {"hidden_size": 8}


def test_a_tokenizer_is_every_file_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "vocab").write_text("a")
    (tmp_path / "merges").write_text("b")
    found = find_files(tmp_path)
    assert [(file.name, file.read(), file.size) for file in found] == [("merges", b"b", 1), ("sub/vocab", b"a", 1)]
    assert [file.name for file in find_files(tmp_path / "merges")] == ["merges"]
    (tmp_path / "merges").write_text("c")
    assert find_files(tmp_path)[0].sha256 != found[0].sha256
    with pytest.raises(ConfigurationError, match="merges was changed while the run was attached"):
        found[0].read()


@pytest.mark.parametrize(("given", "message"), [("missing", "tokenizer: missing does not exist"), (5, "tokenizer: a int is not a path")])
def test_a_tokenizer_that_is_no_path_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_files(given)


def test_a_directory_with_more_than_a_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_BYTES", 10)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 11)
    with pytest.raises(ConfigurationError, match="give a directory with the tokenizer's files alone"):
        find_files(tmp_path)
