"""Saving as the loop sees it: what is in flight, what is verified, and when failures end the run. The work is `checkpoint.engine`'s."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from trainer_runtime.checkpoint.engine import SAVE_DEADLINE_SECONDS, Engine, SaveResult, collector_paused
from trainer_runtime.contract.beat import CheckpointRecord, SaveFailure
from trainer_runtime.contract.manifest import FollowedStep
from trainer_runtime.errors import Fenced, RuntimeProblem, SaveFailed
from trainer_runtime.state.gather import TrainingState

WAIT_SECONDS: Final = 2 * SAVE_DEADLINE_SECONDS + 60.0
"""How long a blocking save waits: for the commit and for the proof, each up to its own deadline."""
MAX_FAILURES_IN_A_ROW: Final = 5
"""So many saves in a row that failed are an error: training that cannot be resumed is not worth its GPUs."""

log = logging.getLogger("trainer_runtime")


class Saver:
    """One rank's saves. ``verified_step`` and ``verified_tags``: those of the checkpoint this run resumed from, which needs no second one
    unless another tag is asked for."""

    def __init__(
        self,
        engine: Engine,
        state: TrainingState,
        attempt: int,
        allowances: tuple[str, ...],
        verified_step: int | None,
        on_verified: Callable[[], None],
        on_abandoned: Callable[[SaveFailure], None],
        verified_tags: tuple[str, ...] = (),
    ) -> None:
        self._engine = engine
        self._state = state
        self._attempt = attempt
        self._allowances = allowances
        self._verified_step, self._verified_tags = verified_step, verified_tags
        self._on_verified = on_verified
        self._on_abandoned = on_abandoned
        self._failures = 0
        self.last_error: RuntimeProblem | None = None
        """Why the newest save was abandoned; None when it was not."""
        self.shortest_seconds: float | None = None
        """What the quickest save so far took, from its stage to its proof; None: none has ended well."""
        self.last_verified: CheckpointRecord | None = None
        self.last_staged_step = verified_step or 0
        self._metrics: dict[str, float] = {}
        self._has_staged = False
        self._staged_tags: tuple[str, ...] = ()
        self._followed: FollowedStep | None = None

    @property
    def verified_step(self) -> int | None:
        """The newest step known to be verified in this run; None: there is none."""
        return self._verified_step

    @property
    def busy(self) -> bool:
        """Whether a save is in flight on this rank."""
        return self._engine.busy

    @property
    def stands_still(self) -> bool:
        """Whether training stands still while a save is written, because memory is short."""
        return self._engine.stands_still

    def is_verified(self, step: int, tags: tuple[str, ...] = ()) -> bool:
        """Whether the checkpoint of ``step`` is known to be verified and to have ``tags``."""
        return self._verified_step == step and set(tags) <= set(self._verified_tags)

    def late_tags(self, step: int, tags: tuple[str, ...]) -> tuple[str, ...]:
        """Which of ``tags`` the checkpoint of ``step`` cannot get any more: this attempt has verified it without them, a manifest never
        changes, and its name is taken. The step that was resumed from has the name of an earlier attempt: it can be saved once more."""
        if self.last_verified is None or self.last_verified.step != step:
            return ()
        return tuple(tag for tag in tags if tag not in self._verified_tags)

    def prepare(self, run_state: Mapping[str, Any]) -> None:
        """Take the memory for staging before it is needed."""
        if self._engine.busy:
            return
        try:
            self._engine.prepare(self._state.snapshot(run_state))
        except SaveFailed as error:
            log.warning("no save will succeed as things are: %s", error)

    def note_metrics(self, metrics: Mapping[str, float]) -> None:
        """Remember values for the next checkpoint, and for no later one: they were measured on these weights, or just before."""
        self._metrics.update(metrics)

    def note_loss(self, step: int, loss: float) -> None:
        """Remember the loss of the step right after a save of this attempt: whoever replays that step has something to compare it with."""
        if self._has_staged and step == self.last_staged_step + 1:
            self._followed = FollowedStep(self.last_staged_step, self._attempt, loss.hex())

    def stage(
        self,
        step: int,
        run_state: Mapping[str, Any],
        tags: tuple[str, ...] = (),
        stand_still_seconds: float = SAVE_DEADLINE_SECONDS,
        lacks: tuple[str, ...] = (),
    ) -> None:
        """Copy everything to host memory. A rank that cannot leaves the others' save to be abandoned, and goes on; so does one that would
        have to stand still for longer than ``stand_still_seconds``, where memory is short. ``lacks``: what is not saved at this moment,
        beside what never is, for the manifest.

        Raises SaveFailed after MAX_FAILURES_IN_A_ROW.
        """
        self.last_staged_step, self._has_staged, self._staged_tags = step, True, tags
        metrics, self._metrics = self._metrics, {}
        followed, self._followed = self._followed, None
        data = self._state.data
        try:
            with collector_paused():  # gathering allocates more than staging does
                self._engine.stage(
                    self._state.snapshot(run_state),
                    step=step,
                    epoch=data.epoch,
                    samples=data.samples,
                    strict=self._state.describe(),
                    tags=tags,
                    not_saved=self._state.not_saved() + lacks,
                    allowances=self._allowances,
                    metrics=metrics,
                    followed=followed,
                    stand_still_seconds=stand_still_seconds,
                )
        except SaveFailed as error:
            self._count(SaveResult(step, None, error))

    def collect(self) -> None:
        """Take in how saves ended. Raises Fenced when a newer attempt owns the run, the last error after MAX_FAILURES_IN_A_ROW."""
        for result in self._engine.take_results():
            if result.error is None:
                self._failures, self.last_error = 0, None
                self.last_verified, self._verified_step, self._verified_tags = result.record, result.step, self._staged_tags
                if result.seconds > 0.0:  # the result of a step that was verified already is repeated without one
                    self.shortest_seconds = min(result.seconds, self.shortest_seconds or result.seconds)
                self._on_verified()
            else:
                self._count(result)

    def wait_until_idle(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait for the save in flight, if any; return whether it ended in time."""
        if self._engine.busy:
            self._engine.wait(seconds)
        idle = not self._engine.busy
        self.collect()
        return idle

    def close(self, seconds: float) -> None:
        """Wait for the save in flight and end the writer.

        Raises SaveFailed when that save does not end in time, or failed, and what `collect` raises."""
        was_busy = self._engine.busy
        try:
            if not self.wait_until_idle(seconds):
                raise SaveFailed(f"a save was still in flight after {seconds:.0f} s and is abandoned")
        finally:
            if not self._engine.busy:
                self._engine.close(seconds)
        if was_busy and self.last_error is not None:
            raise SaveFailed(f"the save that was in flight at the end was abandoned: {self.last_error}") from self.last_error

    def _count(self, result: SaveResult) -> None:
        self._failures += 1
        self.last_error = result.error
        log.warning("the save of step %d was abandoned: %s", result.step, result.error)
        if isinstance(result.error, Fenced):
            raise result.error
        self._on_abandoned(SaveFailure(result.step, str(result.error), self._failures))
        if self._failures >= MAX_FAILURES_IN_A_ROW and result.error is not None:
            raise result.error
