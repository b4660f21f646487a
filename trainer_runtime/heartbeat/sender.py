"""The sender's two threads: one takes states from the parent, one beats. They share one state under one condition."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterable
from typing import Final

from trainer_runtime.contract.codec import ContractError, dumps, loads
from trainer_runtime.heartbeat.compose import Composer, to_body
from trainer_runtime.heartbeat.lines import NewestLine
from trainer_runtime.heartbeat.post import Poster, PostFailed
from trainer_runtime.heartbeat.schedule import LONGEST_RETRY_SECONDS, NEWS_GAP_SECONDS, is_news, seconds_to_next
from trainer_runtime.heartbeat.state import Answer, WorkerState

MAX_LINE_BYTES: Final = 1024 * 1024

log = logging.getLogger("trainer_runtime.heartbeat")


class Sender:
    """Beats the newest state until the process ends."""

    def __init__(self, poster: Poster, composer: Composer, answers: NewestLine) -> None:
        self._poster = poster
        self._composer = composer
        self._answers = answers
        self._changed = threading.Condition()
        self._state: WorkerState | None = None
        self._told: WorkerState | None = None
        self._failures = 0
        self._last_problem = ""

    def take_states(self, lines: Iterable[bytes]) -> None:
        """Take one state per line until the parent closes its end. Raises ContractError for a line that is not a state."""
        for line in lines:
            state = loads(WorkerState, line)
            with self._changed:
                self._state = state
                self._changed.notify_all()

    def beat_until_orphaned(self) -> None:
        """Beat whenever a beat is due, until the parent process is gone."""
        parent = os.getppid()
        wait = 0.0
        # A parent that was killed may leave children that hold our standard input open.
        while os.getppid() == parent:
            state = self._wait_until_due(wait)
            retry_after = self._beat(state)
            wait = seconds_to_next(state.phase, self._failures, random.random())
            if retry_after is not None:
                wait = max(wait, min(retry_after, LONGEST_RETRY_SECONDS))

    def _wait_until_due(self, seconds: float) -> WorkerState:
        ended = time.monotonic()
        with self._changed:
            while True:
                if self._state is None:
                    self._changed.wait()
                    continue
                # News does not shorten the backoff: the operator is away.
                has_news = not self._failures and is_news(self._told, self._state)
                due = min(seconds, NEWS_GAP_SECONDS) if has_news else seconds
                left = ended + due - time.monotonic()
                if left <= 0:
                    return self._state
                self._changed.wait(left)

    def _beat(self, state: WorkerState) -> float | None:
        beat = self._composer.compose(state, sent_at=time.time())
        try:
            reply = self._poster.post(to_body(beat))
        except PostFailed as error:
            self._note_failure(str(error))
            return error.retry_after
        if self._failures:
            log.warning("heartbeat: the operator answers again after %d failed beats", self._failures)
        self._failures = 0
        self._last_problem = ""
        self._told = state
        self._composer.take(reply)
        self._answers.offer(dumps(Answer(attempt=state.attempt, phase=state.phase, reply=reply)).encode() + b"\n")
        return None

    def _note_failure(self, problem: str) -> None:
        self._failures += 1
        if problem != self._last_problem:
            log.warning("heartbeat: %s; training goes on, beats are repeated", problem)
        self._last_problem = problem


def read_lines(stream: Iterable[bytes]) -> Iterable[bytes]:
    """Yield the parent's lines; raises ContractError for one longer than MAX_LINE_BYTES."""
    for line in stream:
        if len(line) > MAX_LINE_BYTES:
            raise ContractError(f"state: a line of {len(line)} bytes, the limit is {MAX_LINE_BYTES}")
        yield line
