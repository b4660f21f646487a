"""Reads Python exceptions: tracebacks in a log, and the few exception lines that mean one thing wherever they stand.

A bare ``SomeError: text`` outside a traceback is not read: programs print such lines for faults that they handled. An exception that says
"another rank failed" (c10d, gloo, rendezvous) belongs to `nccl` and `torchelastic`, which look first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import (
    CONFIG_ERROR,
    CUDA_OOM,
    HOST_OOM,
    NETWORK_ERROR,
    NONE,
    NUMERIC,
    RDZV_TIMEOUT,
    STORAGE_IO,
    USER_ERROR,
)
from trainer_runtime.signals.finding import Sighting, sighting
from trainer_runtime.signals.log_line import LogLine
from trainer_runtime.signals.rules import rule

RULES: Final = (
    # torch's data loader, in the parent (open-mmlab/mmdetection#3495). Killed is the kernel, most likely for memory.
    rule("RuntimeError: DataLoader worker", HOST_OOM, r"\(pid\(?s?\)? ?(?P<pid>\d{1,10})\) is killed by signal: Killed"),
    # Bus error is a full /dev/shm; torch says so in the same line.
    rule("RuntimeError: DataLoader worker", CONFIG_ERROR, r"\(pid\(?s?\)? ?(?P<pid>\d{1,10})\) is killed by signal: Bus error"),
    rule("RuntimeError: DataLoader worker", USER_ERROR, r"\(pid\(?s?\)? ?(?P<pid>\d{1,10})\) is killed by signal: (?P<signal>\w{1,20})"),
    # Megatron: names a node, yet data is the usual cause.
    rule("AssertionError: Rank ", NUMERIC, r"found (?P<value>NaN|Inf) in local grad norm"),
    rule("ValueError: Unexpected result ", NUMERIC, r"Unexpected result (?P<value>nan|inf)\b"),
    # faulthandler's first line, for any fatal signal.
    rule(
        "Fatal Python error: ",
        USER_ERROR,
        r"Fatal Python error: (?P<signal>Segmentation fault|Illegal instruction|Floating point exception)",
    ),
    rule("Fatal Python error: ", CONFIG_ERROR, r"Fatal Python error: Bus error"),
)

TRACEBACK_START: Final = "Traceback (most recent call last):"
CHAINED: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]{1,1000})", line \d+')
EXCEPTION: Final = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80}(?:Error|Exception|Exit|Interrupt|Iteration|Failure|Fault|Timeout|Warning|Empty|Full))"
    r"(?:: ?(?P<message>.*))?$"
)
"""A traceback's last line: the type, by the names such types have, and its text. ``step: 5`` between two frames is not one."""
FIRST_LINE_AFTER_FRAMES: Final = re.compile(r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}[a-z]\w{0,80})(?:: (?P<message>.*))?$")
"""Types of any other name, where nobody printed in between."""
MAX_OTHER_LINES: Final = 50
"""Lines of other writers between a traceback's frames and its last line, after which it is given up."""
MAX_BLOCK_LINES: Final = 12
"""Lines kept of one traceback: the first, and the newest ones."""
MESSAGE_KEY_CHARACTERS: Final = 120
ELASTIC_FRAME: Final = "torch/distributed/elastic/"
DIGITS: Final = re.compile(r"\d+")

NOT_A_FAULT: Final = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "ChildFailedError"})
"""An interrupt, an ordinary end, and torchrun's own wrapper, whose report `torchelastic` reads."""
NETWORK_TYPES: Final = frozenset(
    {"ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError", "TimeoutError"}
)
ERRNO: Final = re.compile(r"\[Errno (\d{1,4})\]")
STORAGE_ERRNOS: Final = {
    5: Strength.ENV,  # EIO
    28: Strength.ENV,  # ENOSPC
    30: Strength.SUSPECT,  # EROFS: a local disk that the kernel made read-only
    116: Strength.ENV,  # ESTALE: a network file system lost the file
    122: Strength.ENV,  # EDQUOT
}


def classify_exception(type_name: str, message: str, last_file: str = "") -> Sighting:
    """Return what an exception says that no line rule knows. ``last_file`` is the file of its innermost frame."""
    name = type_name.rpartition(".")[2]
    fields = {"exception": type_name}
    key = (USER_ERROR, name, DIGITS.sub("#", message[:MESSAGE_KEY_CHARACTERS]))
    if name in NOT_A_FAULT:
        return sighting(NONE, fields=fields)
    if ELASTIC_FRAME in last_file:
        # A survivor trips over a rendezvous that another worker left (pytorch/pytorch#182221).
        return sighting(RDZV_TIMEOUT, fields=fields)
    if name == "OutOfMemoryError":
        return sighting(CUDA_OOM, fields=fields)
    if name == "MemoryError":
        return sighting(HOST_OOM, fields=fields)
    if name == "FloatingPointError":
        return sighting(NUMERIC, fields=fields)
    if name in NETWORK_TYPES:
        return sighting(NETWORK_ERROR, fields=fields, key=(NETWORK_ERROR, name))
    errno = ERRNO.match(message)
    if errno and int(errno[1]) in STORAGE_ERRNOS:
        return sighting(STORAGE_IO, STORAGE_ERRNOS[int(errno[1])], fields, (STORAGE_IO, errno[1]))
    return sighting(USER_ERROR, fields=fields, key=key)


def begins_traceback(line: LogLine) -> bool:
    """Whether ``line`` is the first one of a traceback, or says that the next one is chained to the last."""
    return line.body.startswith(CHAINED) or line.body.rstrip().endswith(TRACEBACK_START)


@dataclass
class TracebackReader:
    """One writer's open traceback. Its frames and source lines are never evidence; only its last line is."""

    _lines: list[str] = field(default_factory=list)
    _last_file: str = ""
    _others: int = 0
    _chained_to: tuple[str, ...] = ()
    _last_key: tuple[str, ...] = ()

    @property
    def waiting(self) -> bool:
        """Whether a traceback began and its last line has not come."""
        return bool(self._lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the open traceback: the first, and the newest ones."""
        return tuple(self._lines)

    def start(self, line: LogLine) -> None:
        """Begin a traceback at ``line``, or note that the next one is chained to the last; an open one is given up."""
        if line.body.startswith(CHAINED):
            self._chained_to = self._last_key
        else:
            self._lines, self._last_file, self._others = [line.text], "", 0

    def takes(self, line: LogLine) -> bool:
        """Whether ``line`` is a frame, source line or marker of the open traceback, which then keeps it."""
        if not self.waiting or line.body[:1] not in (" ", "\t", ""):
            return False
        frame = FRAME.match(line.body)
        if frame:
            self._last_file = frame["file"]
        self._keep(line.text)
        return True

    def ends(self, line: LogLine, known: Sighting | None) -> Sighting | None:
        """Return the sighting of the whole traceback when ``line`` is its last one; ``known`` is what the line rules say about it."""
        match = EXCEPTION.match(line.body) or (FIRST_LINE_AFTER_FRAMES.match(line.body) if self._others == 0 else None)
        if match is None:
            self._others += 1
            if self._others > MAX_OTHER_LINES:
                self._lines = []
            return None
        found = known or classify_exception(match["type"], match["message"] or "", self._last_file)
        self._keep(line.text)
        key = self._chained_to or found.key
        ended = Sighting(found.fault_class, found.strength, {"exception": match["type"], **found.fields}, key, found.follows, self.lines)
        self._lines, self._chained_to, self._last_key = [], (), key
        return ended

    def _keep(self, text: str) -> None:
        self._lines.append(text)
        if len(self._lines) > MAX_BLOCK_LINES:
            del self._lines[1]
