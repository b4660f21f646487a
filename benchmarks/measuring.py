"""What every benchmark shares: the machine it ran on, runs that take turns, a spread, and one JSON line at the end.

Runs that are compared take turns, so that a machine that slows down slows both. Nothing is asserted here: a bar stands beside the number.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

REPEATS: Final = 7
"""Least number of runs behind a median that is published."""


def options(description: str | None, *, repeats: int | None = REPEATS) -> argparse.ArgumentParser:
    """Return a parser that knows ``--json`` and ``--repeats`` (None: nothing is repeated); a benchmark adds its own."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats, help=f"runs behind each median (default {repeats})")
    return parser


def take_turns(contestants: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Call each contestant once per round, in an order that turns by one place a round; return what they returned, by name."""
    results: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(repeats):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            results[name].append(contestants[name]())
    return results


def spread(values: list[float], digits: int = 4) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": round(statistics.median(values), digits), "min": round(min(values), digits), "max": round(max(values), digits)}


def median(values: list[float], digits: int = 4) -> float:
    """The median, rounded for a JSON line."""
    return round(statistics.median(values), digits)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Ours divided by theirs, of medians from one run; below 1 is ours smaller."""
    return round(statistics.median(ours) / statistics.median(theirs), 3)


def bar(what: str, value: float, *, at_most: float | None = None, at_least: float | None = None) -> dict[str, Any]:
    """One promise of the design beside what was measured; a list of these goes under ``bars``. Give one of ``at_most`` and ``at_least``."""
    limit = {"at_most": at_most} if at_most is not None else {"at_least": at_least}
    is_met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    return {"what": what, "value": value, **limit, "met": is_met}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    models = {line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")}
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return {
        "cpus": os.cpu_count(),
        "cpu": ", ".join(sorted(models)) or platform.machine(),
        "memory_gib": round(memory / 1024**2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def publish(name: str, values: Mapping[str, Any]) -> None:
    """Print a line for each value and each bar, then the JSON line."""
    for key, value in values.items():
        for line in value if key == "bars" else [value]:
            print(f"{key:<32} {line}")
    print(json_line(name, values))


def json_line(name: str, values: Mapping[str, Any]) -> str:
    """The last line of a benchmark's output."""
    return json.dumps({"benchmark": name, **values, "machine": machine()})
