"""One log line taken apart: who printed it, when, and the text that may be evidence.

Every parser reads the result, so that prefixes, colours and advice are dealt with once. It decides nothing about faults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# Who printed it. Each may stand alone or behind another, e.g. `kubectl logs --prefix` before torchrun's.
KUBECTL_LABEL: Final = re.compile(r"\[pod/[^\]\s]{1,300}\] ?")
"""``kubectl logs --prefix``: [pod/name/container]"""
LINE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,20} (?:(?:stdout|stderr) [FP] )?")
"""``kubectl logs --timestamps`` and the container runtime's own files."""
RANK_LABEL: Final = re.compile(r"\[rank(?P<rank>\d{1,7})\]: ?")
"""torch >= 2.2: c10d's logger and torch's excepthook. Always the global rank."""
ROLE_AND_RANK_LABEL: Final = re.compile(r"\[[A-Za-z_][A-Za-z_-]{0,40}(?P<local_rank>\d{1,7})\|(?P<rank>\d{1,7})\]: ?")
"""torchrun with a template of ``[${role_name}${local_rank}|${rank}]:``."""
ROLE_LABEL: Final = re.compile(r"\[[A-Za-z_][A-Za-z_-]{0,40}(?P<local_rank>\d{1,7})\]: ?")
"""torchrun's default template, ``[${role_name}${local_rank}]:``, e.g. [default0]: the rank inside its worker."""
RAY_LABEL: Final = re.compile(r"\([\w.]{1,100} pid=\d{1,10}(?:, ip=[\w.:]{1,60})?\) ?")
"""Ray's driver output."""
LABELS: Final = (LINE_TIME, KUBECTL_LABEL, RANK_LABEL, ROLE_AND_RANK_LABEL, ROLE_LABEL, RAY_LABEL)
MAX_LABELS: Final = 4

# When. Only the first is a time that can be compared with another machine's.
UTC_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:\d\d)")
"""``dmesg --time-format iso``, container runtimes."""
LOCAL_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?()")
"""Python's logging, torchelastic's report; the zone is unknown."""
DMESG_LOCAL_TIME: Final = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\]")
"""``dmesg -T``: [Fri Apr  5 21:29:39 2024]"""
UPTIME: Final = re.compile(r"\[ *(\d{1,12}\.\d{1,9})\]")
"""The kernel's own: seconds since boot."""
GLOG_TIME: Final = re.compile(r"\b[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)")
"""c10d's logger: E626 05:06:30.929096625 is 26 June, without a year."""
TIME_WITHIN: Final = 160
"""Characters of a line that are searched for a time; it stands in front."""

# Text that guesses or gives advice is never evidence: what follows one of these is cut off.
ADVICE: Final = (
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_USE_CUDA_DSA",
    "CUDA kernel errors might be",
    "may be caused by",
    "might be caused by",
    "could be caused by",
    "likely caused by",
    "possibly due to",
)


@dataclass(frozen=True)
class Moment:
    """A time on one of several clocks; two moments compare only on the same clock."""

    clock: str
    seconds: float


@dataclass(frozen=True)
class LogLine:
    """One line. ``body`` has no labels, colours or advice; indentation after the label is kept, as tracebacks need it."""

    text: str
    body: str
    label: str = ""
    rank: int | None = None
    """Global rank of the printer, when its label says so."""
    local_rank: int | None = None
    moment: Moment | None = None


def take_apart(raw: str) -> LogLine:
    """Split one line without its line end into label, rank, time and body."""
    text = COLOUR.sub("", raw) if "\x1b" in raw else raw
    label, rank, local_rank, start = "", None, None, 0
    for _ in range(MAX_LABELS):
        match = next((found for pattern in LABELS if (found := pattern.match(text, start))), None)
        if match is None:
            break
        start = match.end()
        if match.re is not LINE_TIME:
            label += match.group().rstrip()
        groups = match.groupdict()
        rank = int(groups["rank"]) if groups.get("rank") else rank
        local_rank = int(groups["local_rank"]) if groups.get("local_rank") else local_rank
    body = text[start:]
    for phrase in ADVICE:
        body = body.partition(phrase)[0]
    return LogLine(text, body, label, rank, local_rank, find_moment(text[:TIME_WITHIN]))


def find_moment(text: str) -> Moment | None:
    """Return the first time in ``text``, or None. A date that does not exist counts as no time."""
    for clock, pattern in (("utc", UTC_TIME), ("local", LOCAL_TIME)):
        if match := pattern.search(text):
            return _from_iso(clock, match)
    if match := DMESG_LOCAL_TIME.search(text):
        month, day, clock_time, year = match.groups()
        return _from_format("local", f"{day} {month} {year} {clock_time}", "%d %b %Y %H:%M:%S")
    if match := UPTIME.search(text):
        return Moment("uptime", float(match.group(1)))
    if match := GLOG_TIME.search(text):
        month, day, hour, minute, second = match.groups()
        # The year is not printed; a leap year has every date that can be.
        start = _from_format("glog", f"2000-{month}-{day} {hour}:{minute}", "%Y-%m-%d %H:%M")
        return None if start is None else Moment("glog", start.seconds + float(second))
    return None


def _from_iso(clock: str, match: re.Match[str]) -> Moment | None:
    date, clock_time, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{date}T{clock_time}{(zone or '+00:00').replace('Z', '+00:00')}").timestamp()
    except ValueError:
        return None
    return Moment(clock, whole + (float(f"0.{fraction}") if fraction else 0.0))


def _from_format(clock: str, text: str, form: str) -> Moment | None:
    try:
        return Moment(clock, datetime.strptime(f"{text} +0000", f"{form} %z").timestamp())
    except ValueError:
        return None
