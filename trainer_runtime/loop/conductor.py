"""What happens at a step boundary: read what the ranks agreed, save or stop accordingly, say what this rank wishes next.

The rule itself is `boundary.decide`; here it is carried out. It knows no loop: `run` calls it once per step, and once at the end.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

from trainer_runtime.boundary import Action, Triggers, Wishes, decide
from trainer_runtime.channel.messages import Ending, MayDelete, Save, SaveAndStop
from trainer_runtime.contract import environment
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.exit_report import ExitCode, Outcome
from trainer_runtime.errors import SaveFailed, StoreUnavailable
from trainer_runtime.loop.ending import say, stop_on_sigterm
from trainer_runtime.loop.parts import Parts

ENDING_SECONDS: Final = 2.0
"""What is kept of the grace for saying how it ended and for ending: torchrun and the kubelet kill at its very end."""

UNFINISHED_GRADIENTS: Final = "gradients of an unfinished accumulation"
"""What a manifest says under ``not_saved`` when a loop ended where only the end of a loop is saved."""

log = logging.getLogger("trainer_runtime")

Progress = Callable[[Phase, bool], None]
"""Says which phase the rank is in; True: that is news."""


class Conductor:
    """One rank's part in saving and stopping together. ``run_state``, where asked for, is what the loop saves of itself."""

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self._parts = parts
        self._saver = parts.saver
        self._progress = progress
        self._triggers = Triggers(parts.settings.save_every_steps, parts.saver.last_staged_step)
        self._called: tuple[tuple[str, ...], bool] | None = None
        """Tags and block of a save() that the script called."""
        self._save_wished = False
        self._saved_at = time.monotonic()
        self._stop_deadline: float | None = None
        self._is_agreeing = False
        self._was_between_steps = True
        """What the last boundary found: `TrainingState.is_between_steps` can be asked once in each step."""
        # rtj-run asks over the channel, and signals only what must end now
        self._sigterm = stop_on_sigterm() if environment.CHANNEL not in os.environ else None

    @property
    def is_save_called(self) -> bool:
        """Whether a save() of the script still waits for its step boundary."""
        return self._called is not None

    def call_save(self, tags: tuple[str, ...], block: bool) -> None:
        """The script called save(): do it at this turn's end, on every rank. Calls that wait together are one, with all tags, and blocking
        if one of them is."""
        earlier, blocks = self._called or ((), False)
        self._called = (*earlier, *(tag for tag in tags if tag not in earlier)), blocks or block

    def save_between_turns(self, tags: tuple[str, ...], block: bool, step: int, run_state: dict[str, Any]) -> None:
        """The script called save() between two turns: do it now. In the middle of an accumulation it waits for the step boundary at which
        the optimizer has stepped, as a call within a turn does, and blocks there. Raises as `save_now`.
        """
        waits = self._is_accumulating and not self._saver.is_verified(step, tags)
        if waits and block:
            log.warning(
                "save: block=True between turns, after step %d, in the middle of an accumulation: its turn left gradients that no "
                "optimizer.step() used, and a checkpoint does not hold gradients; it is made and waited for when the optimizer has stepped",
                step,
            )
        self.call_save(tags, block)
        if not waits:
            self.save_now(step, run_state)

    def before_step(self) -> None:
        """Tell the others, before the first step of a loop, whether a save is still in flight here."""
        if not self._is_agreeing:
            self._agree()

    def after_step(self, step: int, run_state: dict[str, Any]) -> None:
        """Do what is due at the end of ``step``. May raise SystemExit for an agreed stop, SaveFailed for a blocking save."""
        agreed = self._parts.agreement.read()
        self._saver.collect()
        self.take_orders()
        triggers = dataclasses.replace(self._triggers, last_saved_step=self._saver.last_staged_step, save_called=self._called is not None)
        is_between_steps = self._was_between_steps = self._parts.state.is_between_steps()
        action = decide(triggers, agreed, step, is_between_steps)
        replay = self._parts.settings.replay
        if replay is not None and step >= replay.until and is_between_steps:
            action = Action.SAVE_AND_STOP
        if action is Action.SAVE_AND_STOP or action is Action.STOP:
            self._stop(step, run_state, saves=action is Action.SAVE_AND_STOP)
        elif action is Action.SAVE:
            self.save_now(step, run_state)
        else:
            owed = self._triggers
            self._triggers = dataclasses.replace(owed, save_owed=owed.save_owed or agreed.save, stop_owed=owed.stop_owed or agreed.stop)
        self._agree()

    def save_now(self, step: int, run_state: dict[str, Any]) -> None:
        """Stage. For a save() of the script wait for the one in flight before, and for the result if it asked for that."""
        if self._called is not None:
            self._saver.wait_until_idle()
        tags, block = self._take_call(step)
        self._save_wished = False
        self._triggers = dataclasses.replace(self._triggers, save_owed=False)
        self._saved_at = time.monotonic()
        if not self._saver.is_verified(step, tags):
            if self._saver.stands_still:
                self._progress(Phase.SAVE, True)
            self._saver.stage(step, run_state, tags)
            if self._saver.stands_still:
                self._progress(Phase.TRAIN, True)
        if block:
            self._require_verified(step, tags)

    def finish(self, step: int, run_state: dict[str, Any]) -> None:
        """End of a loop: save its last step unless that is done, with the tags of a call that waits, and return when it is verified on all
        ranks. In the middle of an accumulation the checkpoint is made all the same, and says what it lacks.

        Raises SaveFailed."""
        self._is_agreeing = False
        self._parts.agreement.read()
        self._saver.wait_until_idle()
        tags, _block = self._take_call(step)
        if not self._saver.is_verified(step, tags):
            lacks = (UNFINISHED_GRADIENTS,) if self._is_accumulating else ()
            if lacks:
                log.warning("the loop ended after step %d, in the middle of an accumulation: a checkpoint does not hold gradients", step)
            self._saver.stage(step, run_state, tags, lacks=lacks)
            self._require_verified(step, tags)
        self._parts.agreement.finish()

    def take_orders(self) -> None:
        """Note what was asked for since the last time."""
        for order in self._parts.reporter.poll():
            if isinstance(order, SaveAndStop):
                self._stop_deadline = time.monotonic() + order.deadline_seconds
            elif isinstance(order, Save):
                self._save_wished = True
            elif isinstance(order, MayDelete):
                self._parts.housekeeper.delete(order.keys)
        if self._sigterm is not None and self._sigterm.at is not None and self._stop_deadline is None:
            self._stop_deadline = self._sigterm.at + self._parts.settings.grace_seconds - ENDING_SECONDS

    def _agree(self) -> None:
        """Tell the other ranks what this one wishes. Rank 0's clock counts the seconds between saves."""
        every = self._parts.settings.save_every_seconds
        is_late = every is not None and self._parts.settings.rank == 0 and time.monotonic() - self._saved_at >= every
        self._parts.agreement.start(
            Wishes(
                stop=self._stop_deadline is not None,
                save=is_late or self._save_wished,
                busy=self._saver.busy,
                no_time=self._stop_deadline is not None and self._seconds_left() < (self._saver.shortest_seconds or 0.0),
            )
        )
        self._is_agreeing = True

    @property
    def _is_accumulating(self) -> bool:
        """Whether gradients wait for the optimizer between two turns."""
        return not (self._was_between_steps or self._parts.state.has_stepped)

    def _take_call(self, step: int) -> tuple[tuple[str, ...], bool]:
        """Return tags and block of the save() that waits, which is carried out now; nothing and False without one. A tag that comes too
        late for ``step`` is said and left out: it is not worth the run."""
        (tags, block), self._called = self._called or ((), False), None
        late = self._saver.late_tags(step, tags)
        if late:
            log.warning(
                "save: tag %s: step %d is saved and verified already, without it, and a checkpoint's tags never change, so it may be "
                "deleted; call run.save(tag=…) within the turn whose end it is about, in the loop's body",
                ", ".join(late),
                step,
            )
        return tuple(tag for tag in tags if tag not in late), block

    def _require_verified(self, step: int, tags: tuple[str, ...]) -> None:
        self._progress(Phase.SAVE, True)
        self._saver.wait_until_idle()
        self._progress(Phase.TRAIN, True)
        if not self._saver.is_verified(step, tags):
            error = self._saver.last_error
            if isinstance(error, StoreUnavailable):
                raise error
            raise SaveFailed(f"step {step} was not saved: {error or 'no result in time'}") from error

    def _stop(self, step: int, run_state: dict[str, Any], *, saves: bool) -> None:
        """The agreed end of a preempted attempt: within the deadline a verified checkpoint of this step, with the tags of a call that
        waits, or an honest word.

        ``saves`` False: no save has ever been as quick as this one would have to be, so none is begun; one in flight may end.
        """
        if self._stop_deadline is None:  # another rank was asked
            self._stop_deadline = time.monotonic() + self._parts.settings.grace_seconds - ENDING_SECONDS
        self._progress(Phase.SAVE, True)
        is_idle = self._saver.wait_until_idle(self._seconds_left())
        seconds_left = self._seconds_left()
        tags, _block = self._take_call(step)
        if saves and is_idle and not self._saver.is_verified(step, tags):
            self._saver.stage(step, run_state, tags, stand_still_seconds=seconds_left)
            self._saver.wait_until_idle(self._seconds_left())
        is_saved = self._saver.is_verified(step)
        message = f"stopped at step {step}"
        if not is_saved:
            why = str(self._saver.last_error or "the time ran out")
            if not saves:
                why = f"{seconds_left:.1f} s were left, and the quickest save took {self._saver.shortest_seconds or 0.0:.1f} s"
            newest = self._saver.verified_step
            message += f", not saved: {why}; " + ("nothing was saved before" if newest is None else f"step {newest} is")
        outcome = Outcome.PREEMPTED_SAVED if is_saved else Outcome.PREEMPTED_UNSAVED
        self._parts.reporter.ending(Ending(self._parts.settings.rank, outcome, message))
        say(f"rtj: rank {self._parts.settings.rank}: {outcome.value}: {message}\n")
        raise SystemExit(int(ExitCode.PREEMPTED_SAVED if is_saved else ExitCode.PREEMPTED_UNSAVED))

    def _seconds_left(self) -> float:
        return max(0.0, (self._stop_deadline or 0.0) - time.monotonic())
