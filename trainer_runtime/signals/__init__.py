"""Turns log lines, Xids and exit codes into findings: what went wrong, and whom the line blames. Standard library only, no clock, and no
I/O but that of the command line.

It does not decide who failed first (`rtj_operator.decide.attribution`) and acts on nothing. Try it on any log:
``python -m trainer_runtime.signals FILE``.
"""

from trainer_runtime.signals.error_file import read_error_file
from trainer_runtime.signals.exit_codes import ExitMeaning, classify_exit, signal_of
from trainer_runtime.signals.fault_classes import DEFAULT_STRENGTH
from trainer_runtime.signals.finding import Finding, to_evidence
from trainer_runtime.signals.stream import LineStream
from trainer_runtime.signals.xid_table import classify_xid

__all__ = [
    "DEFAULT_STRENGTH",
    "ExitMeaning",
    "Finding",
    "LineStream",
    "classify_exit",
    "classify_xid",
    "read_error_file",
    "signal_of",
    "to_evidence",
]
