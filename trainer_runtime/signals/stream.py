"""Finds the incidents in one log that arrives in pieces: cut anywhere, of any size, for as long as the job runs, in bounded memory.

It only reads. It has no clock: who wants lines without a time of their own merged by when they came passes ``read_at``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.classify import classify_body
from trainer_runtime.signals.finding import Finding, Sighting
from trainer_runtime.signals.gpu import OffBusReader
from trainer_runtime.signals.log_line import LogLine, take_apart
from trainer_runtime.signals.merge import MAX_INCIDENTS, Incidents
from trainer_runtime.signals.nccl import COLLECTIVE
from trainer_runtime.signals.prefilter import may_matter
from trainer_runtime.signals.python_errors import TracebackReader, begins_traceback
from trainer_runtime.signals.torchelastic import ReportReader, begins_report

MAX_LINE_BYTES: Final = 8192
"""What a line has beyond this is not read. The longest known signal line has 600 bytes."""
MAX_OPEN_LINES: Final = 2000
"""Lines within which an open block must end."""
MAX_WRITERS: Final = 64
"""Writers (by label) whose multi-line blocks are followed at once; a block of one more pushes out the oldest."""


@dataclass
class _Writer:
    """The open multi-line blocks of one label. Lines of several ranks interleave, lines of one do not."""

    traceback: TracebackReader = field(default_factory=TracebackReader)
    report: ReportReader = field(default_factory=ReportReader)

    @property
    def waiting(self) -> bool:
        return self.traceback.waiting or self.report.waiting


class LineStream:
    """One log. ``feed`` it as it comes; what it returns is news, ``incidents`` is all of it.

    ``training_done`` is set by who knows that the training loop has finished: from then on, time-outs and hangs are an ordinary teardown.
    """

    def __init__(self, max_incidents: int = MAX_INCIDENTS, training_done: bool = False) -> None:
        self.training_done = training_done
        self._incidents = Incidents(max_incidents)
        self._pending = bytearray()
        self._off_bus = OffBusReader()
        self._writers: dict[str, _Writer] = {}
        self._lines_until_given_up = 0

    @property
    def incidents(self) -> tuple[Finding, ...]:
        """Return every incident so far, in the order in which they began; at most ``max_incidents``."""
        return self._incidents.findings

    def feed(self, data: bytes, read_at: float | None = None) -> list[Finding]:
        """Take the next bytes. Returns incidents that are new or changed class or strength. ``read_at``: any clock's seconds."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # progress bars end their lines with a carriage return
        if end == 0:
            self._pending += data[: MAX_LINE_BYTES - len(self._pending)]
            return []
        lines = bytes(self._pending) + data[:end] if self._pending else data[:end]
        self._pending[:] = data[end : end + MAX_LINE_BYTES]
        return self._read_lines(lines, read_at)

    def finish(self, read_at: float | None = None) -> list[Finding]:
        """Read the last line, if it has no end, and reports that were cut off. Returns news, like feed."""
        news = self._read_lines(bytes(self._pending), read_at)
        self._pending.clear()
        for writer in self._writers.values():
            ended = writer.report.finish()
            if ended is not None:
                news += self._add(ended, LogLine(ended.lines[-1], ended.lines[-1]), read_at)
        return news

    def _read_lines(self, lines: bytes, read_at: float | None) -> list[Finding]:
        news: list[Finding] = []
        if self._lines_until_given_up == 0 and not may_matter(lines):
            return news
        for raw in lines.splitlines():
            raw = raw[:MAX_LINE_BYTES]
            if self._lines_until_given_up or may_matter(raw):
                news += self._read_line(take_apart(raw.decode("utf-8", "replace")), read_at)
                self._watch_blocks()
        return news

    def _read_line(self, line: LogLine, read_at: float | None) -> list[Finding]:
        writer = self._writers.get(line.label)
        if writer is not None:
            if writer.report.takes(line):
                return self._add(writer.report.read(line), line, read_at)
            if writer.traceback.takes(line):
                return []
        said = classify_body(line.body)
        if writer is not None and writer.traceback.waiting:
            ended = writer.traceback.ends(line, said)
            if ended is not None:
                return self._add(ended, line, read_at)
        if begins_traceback(line):
            self._writer(line.label).traceback.start(line)
            return []
        if begins_report(line):
            self._writer(line.label).report.start(line)
            return []
        return self._add(self._off_bus.read(line) or said, line, read_at)

    def _add(self, seen: Sighting | None, line: LogLine, read_at: float | None) -> list[Finding]:
        if seen is None or seen.strength is Strength.BENIGN:
            return []
        if self.training_done and (seen.follows or seen.key[0] == COLLECTIVE):
            return []
        news = self._incidents.add(seen, line, read_at)
        return [] if news is None else [news]

    def _writer(self, label: str) -> _Writer:
        if label not in self._writers and len(self._writers) >= MAX_WRITERS:
            del self._writers[next(iter(self._writers))]
        return self._writers.setdefault(label, _Writer())

    def _watch_blocks(self) -> None:
        """While a block is open every line is read; one that never ends (its rank was killed) must not keep it so."""
        if not (self._off_bus.waiting or any(writer.waiting for writer in self._writers.values())):
            self._lines_until_given_up = 0
        elif self._lines_until_given_up == 0:
            self._lines_until_given_up = MAX_OPEN_LINES
        elif self._lines_until_given_up == 1:
            self._lines_until_given_up, self._off_bus = 0, OffBusReader()
            self._writers.clear()
        else:
            self._lines_until_given_up -= 1
