"""Reads what torchrun's agent says: single lines and its "Root Cause" report. The error file of ``@record`` is read by `error_file`.

The agent sees its own local ranks only, in whole seconds, and a signal death later than the exceptions of its victims. So its report names
an end; what caused it stands elsewhere in the log, when anything does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.signals.exit_codes import classify_exit, signal_of
from trainer_runtime.signals.fault_classes import NODE_LOST, NONE, PREEMPTED, RDZV_TIMEOUT
from trainer_runtime.signals.finding import FieldValue, Sighting, sighting
from trainer_runtime.signals.log_line import LogLine
from trainer_runtime.signals.python_errors import EXCEPTION, classify_exception
from trainer_runtime.signals.rules import read_field, rule

RULES: Final = (
    # The agent stops the other ranks after the first failure: collateral (hpcaitech/ColossalAI#3514, NVIDIA/nccl#1504).
    rule("closing signal SIG", NONE, r"Sending process \d{1,10} closing signal SIG"),
    # The agent itself was told to stop (pytorch/pytorch#150916); newer ones print Signals.SIGTERM.
    rule("death signal", PREEMPTED, r"Received (?:Signals\.)?(?P<signal>\w{1,12}) death signal, shutting down workers"),
    # The same as the exception it raises (flyteorg/flytekit#2064).
    rule("SignalException: ", PREEMPTED, r"SignalException: Process \d{1,10} got signal: (?P<signal>\d{1,3})"),
    # Dynamic rendezvous: its host is gone or too busy (pytorch/pytorch#67742).
    rule("RendezvousConnectionError", NODE_LOST),
    rule("failed to send a keep-alive heartbeat", NODE_LOST),
    rule("RendezvousTimeoutError", RDZV_TIMEOUT),
    rule("RendezvousClosedError", RDZV_TIMEOUT),
)

EXITED_LITERAL: Final = "failed (exitcode: "
EXITED: Final = re.compile(r"failed \(exitcode: (?P<exit_code>-?\d{1,10})\) local_rank: (?P<local_rank>\d{1,7}) \(pid: (?P<pid>\d{1,10})\)")
"""The agent's log line at the moment it notices (OpenBMB/MiniCPM-V#770)."""

REPORT_START: Final = "Root Cause (first observed failure)"
REPORT_ENTRY: Final = re.compile(r"\s{1,8}(?P<key>time|host|rank|exitcode|error_file|traceback) *: (?P<value>.*)$")
REPORT_LINE: Final = re.compile(r"\s|\[\d{1,7}\]:|====|----|$")
REPORT_RANK: Final = re.compile(r"(?P<rank>\d{1,7}) \(local_rank: (?P<local_rank>\d{1,7})\)")
REPORT_EXIT: Final = re.compile(r"(?P<exit_code>-?\d{1,10}) \(pid: (?P<pid>\d{1,10})\)")
MAX_REPORT_LINES: Final = 60
SILENT_SIGNALS: Final = (6,)
"""SIGABRT says only that somebody called abort(): the reason was printed before it."""


def read_exit_line(body: str) -> Sighting | None:
    """Return what the agent's "failed (exitcode: …)" line says, or None when ``body`` is not one."""
    match = EXITED.search(body) if EXITED_LITERAL in body else None
    if match is None:
        return None
    return _ended(int(match["exit_code"]), {name: read_field(name, value) for name, value in match.groupdict().items()})


def _ended(exit_code: int, fields: dict[str, FieldValue], lines: tuple[str, ...] = ()) -> Sighting:
    meaning = classify_exit(exit_code)
    number = signal_of(exit_code)
    follows = number is None or number in SILENT_SIGNALS
    return sighting(meaning.fault_class, meaning.strength, fields, ("exit", str(fields.get("pid", ""))), follows, lines)


def begins_report(line: LogLine) -> bool:
    """Whether ``line`` is the first one of a report."""
    return REPORT_START in line.body


@dataclass
class ReportReader:
    """One writer's open "Root Cause" block (formats: lzhxmu/CPPO#6, czp16/Bridge-LLM-reasoning#1)."""

    _lines: list[str] = field(default_factory=list)
    _fields: dict[str, FieldValue] = field(default_factory=dict)
    _in_traceback: bool = False

    @property
    def waiting(self) -> bool:
        """Whether a report began and has not ended."""
        return bool(self._lines)

    def start(self, line: LogLine) -> None:
        """Begin a report at its first line; an open one is given up."""
        self._lines, self._fields, self._in_traceback = [line.text], {}, False

    def takes(self, line: LogLine) -> bool:
        """Whether ``line`` belongs to the open report; others may print between its lines."""
        return self.waiting and REPORT_LINE.match(line.body) is not None

    def read(self, line: LogLine) -> Sighting | None:
        """Take one line of the report; return the failure at its end."""
        self._lines.append(line.text)
        if self._in_traceback:
            match = EXCEPTION.match(line.body.strip()) if not line.body.startswith("   ") else None
            if match:
                return self._close(classify_exception(match["type"], match["message"] or ""))
        else:
            entry = REPORT_ENTRY.match(line.body)
            if entry:
                self._note(entry["key"], entry["value"])
            if entry and entry["key"] == "traceback":
                self._in_traceback = entry["value"].startswith("Traceback (most recent call last)")
                if not self._in_traceback:
                    return self._close()
        if len(self._lines) > MAX_REPORT_LINES or line.body.startswith("===="):
            return self._close()
        return None

    def finish(self) -> Sighting | None:
        """Return what an unfinished report says when the log ends."""
        return self._close() if self.waiting else None

    def _note(self, key: str, value: str) -> None:
        pattern = {"rank": REPORT_RANK, "exitcode": REPORT_EXIT}.get(key)
        match = pattern.match(value) if pattern else None
        if match:
            self._fields |= {name: read_field(name, text) for name, text in match.groupdict().items()}
        elif key == "host":
            self._fields["host"] = value

    def _close(self, exception: Sighting | None = None) -> Sighting | None:
        fields, lines = self._fields, tuple(self._lines)
        self._lines, self._fields, self._in_traceback = [], {}, False
        exit_code = fields.get("exit_code")
        if exception is not None:
            return Sighting(exception.fault_class, exception.strength, {**exception.fields, **fields}, exception.key, lines=lines)
        return _ended(exit_code, fields, lines) if isinstance(exit_code, int) else None
