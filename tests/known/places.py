"""Test files, and one test, that rows of several tables name. Values only."""

from __future__ import annotations

from typing import Final

ENGINE: Final = "tests/checkpoint/test_engine.py::"
EQUALITY: Final = "tests/runtime/test_equality.py::"
EQUAL: Final = EQUALITY + "test_every_leaf_of_every_rank_is_bitwise_equal_after_two_kills"
KILLED: Final = "tests/checkpoint/test_killed.py::"
NEVER: Final = "tests/checkpoint/test_never.py::"
OPTIMIZER: Final = "tests/state/test_optimizer.py::"
RESTORE: Final = "tests/checkpoint/test_restore.py::"
RUN: Final = "tests/runtime/test_run.py::"
TOGETHER: Final = "tests/runtime/test_together.py::"
SAVES_REPORTED: Final = "tests/checkpoint/test_reported_elsewhere.py::"
TRAINING_REPORTED: Final = "tests/runtime/test_reported_elsewhere.py::"
