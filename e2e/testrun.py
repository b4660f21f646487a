"""Runs the test tiers and says at the end what ran and what failed: the command behind ``make test``.

A tier that cannot run on this machine fails and says what is missing; it is left out only when the caller asked for that with
``SKIP=e2e`` (comma separated), and then the last lines say so. It is not a test framework: it starts pytest, and a tier is one process of
it or some that run side by side.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parent.parent

STARTS_TRAINING = ("tests/adapters", "tests/runtime")
"""Folders whose tests mostly wait for processes to import torch: half of the unit tier's time, and mostly one core's."""

_UNIT = ["-m", "not api and not e2e"]
TIERS: dict[str, list[list[str]]] = {
    "unit": [["tests", *(f"--ignore={folder}" for folder in STARTS_TRAINING), *_UNIT], [*STARTS_TRAINING, *_UNIT]],
    "api": [["tests", "-m", "api"]],
    "e2e": [["e2e/scenarios", "-m", "e2e"]],
}
"""What each pytest process of a tier gets; those of one tier run at the same time."""


NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
LINES_PER_FAILURE = 25
"""The end of a traceback, where the assertion and the line that raised stand: the whole of it was printed an hour of output before."""


@dataclass(frozen=True)
class Report:
    """What a JUnit file says. ``failures``: of each failure and error the test's name and the end of what pytest said of it."""

    passed: int
    skipped: int
    failures: tuple[str, ...]


@dataclass(frozen=True)
class TierResult:
    """What one tier's pytest process reported."""

    tier: str
    report: Report
    seconds: float
    exit_code: int


def run_tier(tier: str, extra: list[str]) -> TierResult:
    """Run one tier in processes of its own and read the counts from their JUnit files. The first one's output is seen as it comes, that
    of the others when they have ended."""
    print(f"--- {tier} tier", flush=True)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        reports = [folder / f"{number}.xml" for number in range(len(TIERS[tier]))]
        outputs: list[IO[bytes] | None] = [None, *(stack.enter_context(report.with_suffix(".out").open("w+b")) for report in reports[1:])]
        processes = []
        for arguments, report, output in zip(TIERS[tier], reports, outputs, strict=True):
            command = [sys.executable, "-m", "pytest", *arguments, f"--junit-xml={report}", "--durations=10", *extra]
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=None if output is None else subprocess.STDOUT)
            processes.append(stack.enter_context(process))
        codes = []
        for process, output in zip(processes, outputs, strict=True):
            codes.append(process.wait())
            if output is not None:
                output.seek(0)
                print(output.read().decode(errors="replace"), end="", flush=True)
        return TierResult(tier, _sum_of([read_report(report) for report in reports]), time.monotonic() - began, _worst_of(codes))


def _sum_of(reports: list[Report]) -> Report:
    failures = tuple(failure for report in reports for failure in report.failures)
    return Report(sum(report.passed for report in reports), sum(report.skipped for report in reports), failures)


def _worst_of(codes: list[int]) -> int:
    """A process may hold no test where another one does: the caller may have asked for a few with ``--pytest=-k``."""
    held_tests = [code for code in codes if code != NO_TESTS] or [NO_TESTS]
    return next((code for code in held_tests if code != 0), 0)


def read_report(path: Path) -> Report:
    """Return what a JUnit file says; a process that died before writing it counts as one failure."""
    if not path.exists():
        return Report(0, 0, ("pytest ended without a report",))
    passed, skipped, failures = 0, 0, []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        found = [verdict for verdict in case if verdict.tag in ("failure", "error")]
        failures += [_describe(case, verdict) for verdict in found]
        skipped += case.find("skipped") is not None
        passed += not found and case.find("skipped") is None
    return Report(passed, skipped, tuple(failures))


def _describe(case: ElementTree.Element, verdict: ElementTree.Element) -> str:
    lines = (verdict.text or verdict.get("message") or "").splitlines()[-LINES_PER_FAILURE:]
    return "\n".join([f"{case.get('classname')}::{case.get('name')} ({verdict.tag})", *(f"    {line}" for line in lines)])


def main() -> int:
    """Run the named tiers in order. Exits 1 when anything failed, was skipped by a test, or a tier held no test."""
    parser = argparse.ArgumentParser(prog="testrun", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tiers", nargs="+", choices=list(TIERS), help="tiers to run, in this order")
    parser.add_argument("--pytest", action="append", default=[], metavar="ARG", help="passed to pytest as it is (repeatable)")
    options = parser.parse_args()
    left_out = [name for name in os.environ.get("SKIP", "").split(",") if name]
    unknown = sorted(set(left_out) - set(TIERS))
    if unknown:
        parser.error(f"SKIP names {unknown}, allowed are {sorted(TIERS)}")

    results = [run_tier(tier, options.pytest) for tier in options.tiers if tier not in left_out]
    for failure in (failure for result in results for failure in result.report.failures):
        print(f"FAILED {failure}")
    for result in results:
        print(f"{result.tier:5} {_counts([result.report])} in {result.seconds:.0f} s (exit code {result.exit_code})")
    for tier in left_out:
        print(f"{tier:5} LEFT OUT because SKIP={os.environ['SKIP']} was set by hand")
    print(_counts([result.report for result in results]))
    return 0 if results and all(_is_good(result) for result in results) else 1


def _is_good(result: TierResult) -> bool:
    return result.exit_code == 0 and not result.report.failures and not result.report.skipped


def _counts(reports: list[Report]) -> str:
    whole = _sum_of(reports)
    return f"{whole.passed} passed, {len(whole.failures)} failed, {whole.skipped} skipped"


if __name__ == "__main__":
    sys.exit(main())
