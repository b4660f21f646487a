"""The CRD is what the models say: the files are equal, every field is described, every list and text is bounded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from rtj_operator.api.base import ApiModel
from rtj_operator.api.crd.__main__ import main
from rtj_operator.api.crd.definition import custom_resource_definition
from rtj_operator.api.crd.files import CHART, PLAIN, ROOT, generated_files
from rtj_operator.api.crd.schema import SchemaError, structural_schema
from trainer_runtime.contract.allow import ALLOW_WORDS


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field of a schema with its path."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from walk(field, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


ROOT_SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
FIELDS = [(path, field) for path, field in walk(ROOT_SCHEMA) if not path.startswith(".metadata")]


def test_the_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_names_the_file_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in generated_files():
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / CHART).write_text("something else")
    assert main(["--check", "--root", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert str(CHART) in errors
    assert str(PLAIN) not in errors
    assert main(["--write", "--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0


def test_the_plain_file_holds_the_definition() -> None:
    assert yaml.safe_load((ROOT / PLAIN).read_text()) == custom_resource_definition()


def test_every_field_has_a_description_that_is_a_sentence() -> None:
    bad = [path for path, field in FIELDS if not field.get("description", "").endswith((".", "auto"))]
    assert bad == []


def test_every_list_and_text_is_bounded() -> None:
    unbounded = [
        path
        for path, field in FIELDS
        if (field.get("type") == "array" and "maxItems" not in field)
        or (field.get("type") == "string" and not field.keys() & {"maxLength", "enum", "format"} and path not in (".apiVersion", ".kind"))
    ]
    assert unbounded == []


def test_only_the_spec_has_defaults() -> None:
    assert [path for path, field in FIELDS if "default" in field and not path.startswith(".spec")] == []


def test_what_does_not_work_yet_has_no_field() -> None:
    spec = ROOT_SCHEMA["properties"]["spec"]["properties"]
    assert "hangSeconds" not in spec["recovery"]["properties"]


def test_the_words_that_allow_a_difference_are_the_runtimes() -> None:
    allow = ROOT_SCHEMA["properties"]["spec"]["properties"]["checkpoint"]["properties"]["allow"]
    assert allow["items"]["enum"] == list(ALLOW_WORDS)


def test_a_list_without_a_bound_cannot_become_a_schema() -> None:
    class Unbounded(ApiModel):
        items: tuple[int, ...] = ()

    with pytest.raises(SchemaError, match="items: a list without maxItems"):
        structural_schema(Unbounded, "validation")


def test_a_choice_of_two_objects_cannot_become_a_schema() -> None:
    class One(ApiModel):
        a: int

    class Choice(ApiModel):
        either: One | Annotated[str, Field(max_length=3)]

    with pytest.raises(SchemaError, match="either: a choice"):
        structural_schema(Choice, "validation")
