"""``python -m trainer_runtime.signals [--json] [--done] FILE``: print the incidents in a log, one row or JSON object each.

Nothing is printed for a log without incidents. Exit code 0 whatever was found, 2 when the file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, BinaryIO, Final

from trainer_runtime.signals.finding import Finding
from trainer_runtime.signals.stream import LineStream

READ_BYTES: Final = 1024 * 1024
MAX_INCIDENTS_PRINTED: Final = 100_000
TEXT_CHARACTERS: Final = 160


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer_runtime.signals", description="Print the incidents in a log.")
    parser.add_argument("--json", action="store_true", help="one JSON object per incident: fault_class, strength, lines, fields")
    parser.add_argument("--done", action="store_true", help="the training had finished: time-outs and hangs are an ordinary teardown")
    parser.add_argument("file", metavar="FILE", help="the log; - reads standard input")
    options = parser.parse_args(arguments)
    stream = LineStream(max_incidents=MAX_INCIDENTS_PRINTED, training_done=options.done)
    try:
        if options.file == "-":
            _read_all(stream, sys.stdin.buffer)
        else:
            with open(options.file, "rb") as log:
                _read_all(stream, log)
    except OSError as error:
        print(f"{parser.prog}: {options.file}: {error.strerror or error}", file=sys.stderr)
        return 2
    for finding in stream.incidents:
        print(json.dumps(to_row(finding), ensure_ascii=False) if options.json else to_text(finding))
    return 0


def _read_all(stream: LineStream, log: BinaryIO) -> None:
    while data := log.read(READ_BYTES):
        stream.feed(data)
    stream.finish()


def to_row(finding: Finding) -> dict[str, Any]:
    """Return the JSON object of one incident."""
    return {
        "fault_class": finding.fault_class,
        "strength": finding.strength.value,
        "lines": list(finding.lines),
        "fields": dict(finding.fields),
    }


def to_text(finding: Finding) -> str:
    """Return the row of one incident: strength, class, number of lines, where, and the text that decided."""
    where = " ".join(f"{name}={finding.fields[name]}" for name in ("rank", "gpu") if name in finding.fields) or "-"
    count = finding.fields.get("lines_seen", len(finding.lines))
    return f"{finding.strength.value:<8} {finding.fault_class:<22} x{count:<4} {where:<18} {finding.anchor[:TEXT_CHARACTERS]}"


if __name__ == "__main__":
    sys.exit(main())
