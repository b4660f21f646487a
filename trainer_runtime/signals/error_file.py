"""Reads the error file of a rank whose main is wrapped in torchelastic's ``@record``. It does no I/O: the caller has the text.

A rank that a signal killed leaves no such file.
"""

from __future__ import annotations

import json

from trainer_runtime.signals.classify import classify_body
from trainer_runtime.signals.finding import Finding
from trainer_runtime.signals.log_line import take_apart
from trainer_runtime.signals.python_errors import EXCEPTION, classify_exception


def read_error_file(text: str) -> Finding | None:
    """Read ``{"message": {"message": "TypeError: …", "extraInfo": {"timestamp": "<Unix seconds>"}}}`` ($TORCHELASTIC_ERROR_FILE).

    Returns None when it is not that. The message goes through the same rules as a log line.
    """
    try:
        message = json.loads(text)["message"]
        said, extra = str(message["message"]), message.get("extraInfo") or {}
        at = float(extra["timestamp"]) if "timestamp" in extra else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    first_line = said.partition("\n")[0]
    body = take_apart(first_line).body
    match = EXCEPTION.match(body)
    found = classify_body(body) or (classify_exception(match["type"], match["message"] or "") if match else None)
    return None if found is None else Finding(found.fault_class, found.strength, (first_line,), found.fields, at, first_line)
