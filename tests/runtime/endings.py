"""How attach() or a method of the run ended the process of a test."""

from __future__ import annotations

from typing import Any

import pytest


def exit_of(problem: pytest.ExceptionInfo[SystemExit]) -> tuple[Any, type[BaseException] | None]:
    """The exit code, and what kind of problem is behind it."""
    return problem.value.code, type(problem.value.__cause__) if problem.value.__cause__ else None
