"""What the demo prints of others' words comes through as they wrote it."""

from __future__ import annotations

import io
from typing import cast

import pytest
from rich.console import Console

from e2e.demo.narrator import Narrator
from e2e.jobs import Job


@pytest.mark.parametrize(
    "message",
    [
        "[/src/gloo/transport/tcp/pair.cc:561] Connection closed by peer",
        "[rank1]: Watchdog caught a time-out",
        "[bold]not ours[/bold]",
        "plain",
    ],
    ids=["a path that looks like a closing tag", "a rank that looks like a tag", "real markup", "plain"],
)
def test_an_event_is_shown_as_it_was_written(message: str) -> None:
    output = io.StringIO()
    Narrator(cast(Job, None), Console(file=output, width=200)).tell("FailureDetected", message)
    assert f"FailureDetected  {message}" in output.getvalue()
