"""What a row of the tables beside this file is: one failure that somebody met, and what stands against it here. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Exactly one of ``tests``, ``impossible`` and ``limit`` is there."""

    number: int
    """Its place in its table, from 1."""
    reports: str
    """Where it was reported: ``owner/repository#number``, several with commas between."""
    symptom: str
    """What people saw."""
    tests: tuple[str, ...] = ()
    """Node ids of the tests that would fail if it happened here."""
    impossible: str = ""
    """Why there is nothing to test: what is missing here for it to happen."""
    limit: str = ""
    """What is not promised, and the page under docs/ that says so."""


def covered(number: int, reports: str, symptom: str, *tests: str) -> Row:
    return Row(number, reports, symptom, tests=tests)


def impossible(number: int, reports: str, symptom: str, why: str) -> Row:
    return Row(number, reports, symptom, impossible=why)


def limited(number: int, reports: str, symptom: str, limit: str) -> Row:
    return Row(number, reports, symptom, limit=limit)
