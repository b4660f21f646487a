"""One save's staged bytes, as the thread that writes them sees them: window by window, while another thread hears from the rank.

It lends memory and waits; what is written of it, and how a save ends, is `checkpoint.persist`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainer_runtime.checkpoint.image import page_multiple
from trainer_runtime.checkpoint.job import SaveJob, StagedFile
from trainer_runtime.checkpoint.persister.messages import Message, Written
from trainer_runtime.checkpoint.staging.arena import Arena
from trainer_runtime.errors import SaveFailed


class Handover:
    """The windows of the save ``job``, of which the first is staged. ``tell``: say something to the rank."""

    def __init__(self, job: SaveJob, arena: Arena | None, tell: Callable[[Message], None]) -> None:
        self._job = job
        self._arena = arena
        self._tell = tell
        self._changed = threading.Condition()
        self._gone = False

    def take(self, job: SaveJob) -> None:
        """The rank staged the next window, or says why it does not. What is about another save comes too late and is nothing to anybody."""
        with self._changed:
            if (job.about.step, job.tries) == (self._job.about.step, self._job.tries):
                self._job = job
                self._changed.notify_all()

    def end(self) -> None:
        """The rank is gone."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def image(self, file: StagedFile) -> memoryview:
        """Return a file's bytes, in whole pages. Only of the window that is staged."""
        if self._arena is None:
            raise SaveFailed("the persister was given no memory to save from")
        return self._arena.generation(self._job.generation)[file.offset : file.offset + page_multiple(file.size)]

    def await_window(self, window: int, deadline_seconds: float) -> None:
        """Give the memory of the window before back to the rank, and wait until this one is staged in it.

        Raises SaveFailed with the rank's reason for not staging it, when the rank is gone, or after ``deadline_seconds``.
        """
        self._tell(Written(self._job.about.step, self._job.tries, window - 1))
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._gone or self._job.refusal or self._job.window >= window, timeout=deadline_seconds
            )
            if self._job.refusal:
                raise SaveFailed(self._job.refusal)
            if self._job.window >= window:
                return
        raise SaveFailed(
            f"the rank ended before window {window + 1} of its part was staged"
            if in_time
            else f"window {window + 1} of this rank's part was not staged within {deadline_seconds:.0f} s"
        )
