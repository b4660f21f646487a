"""Runs the test tiers and says at the end what ran: the command behind ``make test``.

A tier that cannot run on this machine fails and says what is missing; it is left out only when the caller asked for that with
``SKIP=e2e`` (comma separated), and then the last lines say so. It is not a test framework: every tier is one pytest process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TIERS: dict[str, list[str]] = {
    "unit": ["tests", "-m", "not api and not e2e"],
    "api": ["tests", "-m", "api"],
    "e2e": ["e2e/scenarios", "-m", "e2e"],
}


@dataclass(frozen=True)
class TierResult:
    """What one tier's pytest process reported. ``failed`` counts errors too."""

    tier: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    exit_code: int


def run_tier(tier: str, extra: list[str]) -> TierResult:
    """Run one tier in a process of its own and read the counts from its JUnit file."""
    print(f"--- {tier} tier", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *TIERS[tier], f"--junit-xml={report}", "--durations=10", *extra]
        exit_code = subprocess.run(command, cwd=ROOT, check=False).returncode
        passed, failed, skipped = read_counts(report)
    return TierResult(tier, passed, failed, skipped, time.monotonic() - began, exit_code)


def read_counts(report: Path) -> tuple[int, int, int]:
    """Return (passed, failed, skipped) of a JUnit file; a process that died before writing it counts as one failure."""
    if not report.exists():
        return 0, 1, 0
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = [tuple(int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")) for suite in suites]
    total, failures, errors, skipped = (sum(column) for column in zip(*counts, strict=True))
    return total - failures - errors - skipped, failures + errors, skipped


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
    for result in results:
        counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
        print(f"{result.tier:5} {counts} in {result.seconds:.0f} s (exit code {result.exit_code})")
    for tier in left_out:
        print(f"{tier:5} LEFT OUT because SKIP={os.environ['SKIP']} was set by hand")
    passed, failed, skipped = (sum(getattr(result, name) for result in results) for name in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if results and not skipped and all(result.exit_code == 0 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
