"""The tables of known failures are complete, and what they point to is there. Test files are parsed, not imported."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.known import engines, never, training
from tests.known.rows import Row

REPOSITORY = Path(__file__).parents[2]
TABLES = {"never": (never.ROWS, 22), "training": (training.ROWS, 55), "engines": (engines.ROWS, 45)}
ROWS = [pytest.param(row, id=f"{table} {row.number}") for table, (rows, _count) in TABLES.items() for row in rows]
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")


@cache
def find_tests(file: str) -> frozenset[str]:
    """The tests that pytest finds in a file: ``test_x``, and ``TestY::test_x`` for those of a class."""
    tree = ast.parse((REPOSITORY / file).read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for made in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found |= {f"{made.name}::{node.name}" for node in made.body if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


@pytest.mark.parametrize(("rows", "count"), TABLES.values(), ids=TABLES)
def test_every_number_is_there_once_and_in_order(rows: tuple[Row, ...], count: int) -> None:
    assert [row.number for row in rows] == list(range(1, count + 1))


@pytest.mark.parametrize("row", ROWS)
def test_every_failure_has_tests_or_a_reason(row: Row) -> None:
    assert row.symptom.strip()
    assert [bool(row.tests), bool(row.impossible.strip()), bool(row.limit.strip())].count(True) == 1


@pytest.mark.parametrize("row", [row for row in ROWS if isinstance(row.values[0], Row) and row.values[0].tests])
def test_every_test_that_is_named_exists(row: Row) -> None:
    for node in row.tests:
        file, _, name = node.partition("::")
        assert (REPOSITORY / file).is_file(), node
        assert name in find_tests(file), node


def test_every_failure_is_named_where_it_was_reported() -> None:
    for row in (*training.ROWS, *engines.ROWS):
        assert all(REPORT.fullmatch(report) for report in row.reports.split(", ")), row


def test_what_is_not_promised_is_said_in_the_docs() -> None:
    for row in (row for rows, _count in TABLES.values() for row in rows if row.limit):
        page, _, promise = row.limit.partition(": ")
        assert promise
        assert (REPOSITORY / page).is_file(), row


def test_what_must_never_happen_is_tested_in_one_place() -> None:
    """And nothing stands there that is not on the list."""
    named = {node for row in never.ROWS for node in row.tests}
    assert named == {f"tests/checkpoint/test_never.py::{name}" for name in find_tests("tests/checkpoint/test_never.py")}
