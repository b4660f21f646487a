"""Runs the benchmarks one after another and writes docs/benchmarks.md from their JSON lines: no number there is typed by a person.

    python -m benchmarks.page [name ...]

With names, only those run; the others keep the numbers of their last run, which lie in ``docs/benchmarks.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

NAMES: Final = (
    "save_stall",
    "verified_commit",
    "restore",
    "interference",
    "many_small",
    "soak",
    "kill_storm",
    "choices",
    "signals_throughput",
    "recovery",
)
DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
NUMBERS: Final = DOCS / "benchmarks.json"
PAGE: Final = DOCS / "benchmarks.md"
LONGEST_SECONDS: Final = 3600
HEAD: Final = """# Benchmarks

Made by `python -m benchmarks.page` from the JSON lines of the scripts in [benchmarks](../benchmarks); do not edit. Compared runs take turns
in one process run, a number is the median, and the range behind it is the least and the greatest. A ratio compares two medians of the same
run. Nothing was measured on a GPU.
"""


def main() -> None:
    """Run what was asked for and write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.page", description="run benchmarks and write docs/benchmarks.md")
    parser.add_argument("names", nargs="*", metavar="name", help=f"benchmarks to run again: {', '.join(NAMES)} (default: all)")
    names = parser.parse_args().names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"name: {unknown[0]!r} is not one of {', '.join(NAMES)}")
    numbers: dict[str, Any] = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    for name in names:
        print(f"== {name}", flush=True)
        numbers[name] = measure(name)
        NUMBERS.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(numbers))


def measure(name: str) -> dict[str, Any]:
    """Run one benchmark in a process of its own, show what it prints, and return its JSON line."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LONGEST_SECONDS)
    print(run.stdout, flush=True)
    line: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return line


def page(numbers: dict[str, Any]) -> str:
    """Return the page for what was measured so far."""
    return "\n".join([HEAD, *(section(name, numbers[name]) for name in NAMES if name in numbers)])


def section(name: str, line: dict[str, Any]) -> str:
    """Return one benchmark's bars and numbers."""
    machine, bars = line.get("machine", {}), line.get("bars", [])
    rows = [f"## {name}", ""]
    if isinstance(machine, dict):
        rows += [f"{machine.get('cpus')} CPUs ({machine.get('cpu')}), {machine.get('memory_gib')} GiB, Linux {machine.get('kernel')}.", ""]
    if bars:
        rows += ["| promise | measured | bar | met |", "|---|---|---|---|"]
        rows += [f"| {bar['what']} | {bar['value']} | {limit(bar)} | {'yes' if bar['met'] else '**no**'} |" for bar in bars]
        rows += [""]
    rows += ["| number | value |", "|---|---|"]
    rows += [f"| `{key}` | {words(value)} |" for key, value in line.items() if key not in ("benchmark", "machine", "bars")]
    return "\n".join([*rows, ""])


def limit(bar: dict[str, Any]) -> str:
    """Say a bar as people write it."""
    return f"<= {bar['at_most']}" if "at_most" in bar else f">= {bar['at_least']}"


def words(value: Any) -> str:
    """One cell: a spread as ``median (least … greatest)``."""
    if isinstance(value, dict) and {"median", "min", "max"} <= value.keys():
        return f"{value['median']} ({value['min']} … {value['max']})"
    if isinstance(value, (dict, list)):
        return f"`{json.dumps(value)}`"
    return str(value)


if __name__ == "__main__":
    main()
