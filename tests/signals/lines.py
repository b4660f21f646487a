"""The line set: real log lines from public reports, with the verdict that each must get. Facts, with their source in each row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_runtime.signals import Finding, LineStream

ONLY_BENIGN_AFTER_DONE: Final = "M09"
"""A watchdog stuck in teardown: the text is that of a hang, and only "training is done" makes it benign."""


@dataclass(frozen=True)
class Case:
    """One row of the line set."""

    id: str
    verdict: str
    fault_class: str
    text: str
    note: str
    source: str

    @property
    def expected(self) -> list[tuple[str, str]]:
        """Class and strength of the incidents it must give: none for BENIGN, else one."""
        return [] if self.verdict == "BENIGN" else [(self.fault_class, self.verdict)]

    @property
    def training_done(self) -> bool:
        return self.id == ONLY_BENIGN_AFTER_DONE


CASES: Final = tuple(
    Case(**json.loads(row)) for row in Path(__file__).with_name("log_lines.jsonl").read_text(encoding="utf-8").splitlines()
)
BY_ID: Final = {case.id: case for case in CASES}


def incidents_of(text: str | bytes, training_done: bool = False) -> tuple[Finding, ...]:
    """Read a whole log at once."""
    stream = LineStream(training_done=training_done)
    stream.feed(text.encode() if isinstance(text, str) else text)
    stream.finish()
    return stream.incidents


def verdicts_of(text: str | bytes, training_done: bool = False) -> list[tuple[str, str]]:
    """Class and strength of each incident in a whole log."""
    return [(finding.fault_class, finding.strength.value) for finding in incidents_of(text, training_done)]


def log_of(*ids: str) -> str:
    """A log of some rows of the line set, in that order."""
    return "\n".join(BY_ID[each].text for each in ids) + "\n"
