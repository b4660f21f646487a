"""`Run`: the one object a training script has of this library.

It counts steps and walks the loop; saving and stopping are done by its `conductor`, the rest by its `parts`. The end of a loop turn is the
step boundary: counters advance first, then what was agreed is done. Nothing saves or stops anywhere else.
"""

from __future__ import annotations

import logging
import math
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, SupportsFloat

from trainer_runtime.channel.messages import Ending
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.beat import CheckpointRecord, Phase
from trainer_runtime.contract.exit_report import Outcome
from trainer_runtime.errors import ConfigurationError, RuntimeProblem
from trainer_runtime.loop.conductor import Conductor
from trainer_runtime.loop.ending import at_exit, exit_on_problem, on_uncaught, say
from trainer_runtime.loop.notes import Notes
from trainer_runtime.loop.parts import Parts
from trainer_runtime.loop.saver import WAIT_SECONDS
from trainer_runtime.settings import whole
from trainer_runtime.state.data import StepCounter

ABORT_SECONDS: Final = 10.0
"""How long a process that fails lets a save finish that every rank had sealed."""
_NO_MORE: Final = object()
"""What `Run._fetch` returns after the last epoch."""
PHASES: Final = {phase.value: phase for phase in (Phase.COMPILE, Phase.EVAL)}
"""What `Run.phase` takes."""

log = logging.getLogger("trainer_runtime")


class Run:
    """One attempt of a run, attached; made by `attaching.attach`. As a context manager it closes itself."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._state, self._saver, self._reporter = parts.state, parts.saver, parts.reporter
        self.global_step = parts.start.step
        """Optimizer steps done since the run began."""
        self.micro_batch = 0
        """Number of the present batch within its step."""
        self._conductor = Conductor(parts, self._progress)
        replay = parts.settings.replay
        self._notes = None if replay is None else Notes(Path(replay.notes), parts.settings.rank)
        self._rng = parts.start.rng
        self._was_iterating = bool(parts.start.run_state.get("iterating", False))
        """An iterator existed when the checkpoint was saved, and none was made here yet."""
        self._loops = int(parts.start.run_state.get("loops", 0))
        """Loops that were over when the present state came about."""
        self._loops_to_pass = self._loops
        """How many of them this process has yet to walk through before it comes to the checkpoint."""
        self._iterator: Iterator[Any] | None = None
        self._in_turn = False
        self._was_left = False
        """The present turn ended by a `break` or an exception, not at the step boundary."""
        self._turns = 0
        self._fetched = 0
        self._loss: float | None = None
        self._finished = self._failed = self._closed = False
        on_uncaught(before=self._fail, after=self._close_at_exit)
        at_exit(self._close_at_exit)

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self._state.data.epoch

    @property
    def attempt(self) -> int:
        """Number of this launch; grows by one with each."""
        return self._parts.start.opened.writer.attempt

    @property
    def resumed_from(self) -> ResumePoint | None:
        """The checkpoint this attempt started from; None: it started fresh."""
        return self._parts.start.resumed_from

    @property
    def last_verified(self) -> CheckpointRecord | None:
        """The newest checkpoint of this attempt that was read back and proven."""
        self._saver.collect()
        return self._saver.last_verified

    def steps(self, max_steps: int | None = None, epochs: int | None = None, micro_batches: int = 1) -> Iterator[Any]:
        """Yield batches until ``max_steps`` steps are done or ``epochs`` epochs finished, counted from the run's beginning.

        ``micro_batches``: batches per step, for gradient accumulation; `micro_batch` tells which one it is. At the end the last step is
        saved, and the loop ends when that is verified. A turn that is left by `break` counts as a step if the optimizer stepped in it;
        if not, its batches come again in the next loop. Ends the process as bad configuration without any limit, or for one that is no
        whole number. Raises SaveFailed when the final save failed.
        """
        with self._exits():
            if max_steps is None and epochs is None:
                raise ConfigurationError("steps: give max_steps, epochs, or both")
            max_steps = None if max_steps is None else whole("max_steps", max_steps, least=0)
            epochs = None if epochs is None else whole("epochs", epochs, least=0)
            micro_batches = whole("micro_batches", micro_batches, least=1)
        return self._loop(max_steps, epochs, micro_batches)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, for loops of another shape: ``with run.step(): batch = run.next_batch(); …``. Its end is the step boundary."""
        self._begin_turn()
        try:
            yield
        except BaseException:
            self._was_left = True
            raise
        with self._exits():
            if self._fetched == 0 and not isinstance(self._state.data, StepCounter):
                raise ConfigurationError("step: data was given to attach(), but this step took no batch; take it by run.next_batch()")
        self._end_turn()

    def next_batch(self) -> Any:
        """Return the next batch of the data given to attach(), over the ends of epochs. To be called inside `step`."""
        batch = self._fetch(None)
        assert batch is not _NO_MORE  # there is no limit of epochs here
        return batch

    def report(self, *, loss: SupportsFloat | None = None, **metrics: SupportsFloat) -> None:
        """Tell the outside how training goes; called in a turn, it counts for the step that the turn ends.

        ``loss`` and any other keyword (``eval_loss=``): one number, also as a tensor. The newest value of each, as rank 0 said it, is
        recorded in the next checkpoint and in no later one; ``keep_best`` goes by it. Ends the process as bad configuration for anything
        that is not one number.
        """
        with self._exits():
            if loss is not None:
                metrics["loss"] = loss
            values = {name: _one_number(name, value) for name, value in metrics.items()}
        self._loss = values.get("loss")
        self._saver.note_metrics(values)
        if self._loss is not None and self._in_turn:
            self._saver.note_loss(self.global_step + 1, self._loss)
            if self._notes is not None:
                self._notes.loss(self._loss)
        if self._loss is not None and not math.isfinite(self._loss):
            log.warning("step %d: the loss is %s", self.global_step + 1, self._loss)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say that something else than training goes on: ``eval`` or ``compile``. Hang limits are per phase."""
        with self._exits():
            if name not in PHASES:
                raise ConfigurationError(f"phase: {name!r} is not one of {', '.join(PHASES)}")
        self._progress(PHASES[name], True)
        try:
            yield
        finally:
            self._conductor.take_orders()
            self._progress(Phase.TRAIN, True)

    def save(self, tag: str | None = None, block: bool = False) -> None:
        """Save at the end of this turn, or at once between turns; in the middle of an accumulation, after the optimizer's next step. Every
        rank calls it. A tagged checkpoint is never deleted.

        ``tag``: text. Within the turn whose end it is about it never comes too late. Between turns this attempt may have saved the step
        already, periodically or at the end of a loop, and its tags never change: then the log says so, and training goes on without it.
        ``block``: come back when it is verified; raises SaveFailed otherwise.
        """
        with self._exits():
            if tag is not None and not isinstance(tag, str):
                raise ConfigurationError(f"save: tag {tag!r} is a {type(tag).__name__}; give text")
        tags = (tag,) if tag else ()
        if self._was_left and self._state.has_stepped:
            self._conductor.call_save(tags, block)  # before the turn ends: what is due by itself then must not be saved without the tag
            self._settle_left_turn()
            return
        if self._was_left:
            self._settle_left_turn()
        if self._in_turn:
            self._conductor.call_save(tags, block)
        else:
            self._lend_rng()
            with self._exits():
                self._conductor.save_between_turns(tags, block, self.global_step, self._run_state())

    def finish(self) -> None:
        """End the training of a loop of another shape than `steps`: save its last step unless that is done, and return when it is verified
        on all ranks; what follows, up to `close`, is not training any more. Every rank calls it. Raises SaveFailed."""
        if self._was_left:
            self._settle_left_turn()
        self._in_turn = False
        is_passed = self._loops_to_pass > 0
        if is_passed:
            self._lend_rng()
        else:
            self._restore_rng()  # a loop that is resumed at its end fetches nothing, and is to end like one that was not
        with self._exits():
            self._conductor.finish(self.global_step, self._run_state())
        if is_passed:
            self._loops_to_pass -= 1
        else:
            self._loops += 1
        self._finished = True

    def restore_random_numbers(self) -> None:
        """Put the checkpoint's random numbers back now, for a loop that makes its iterators itself: after that, and before it fetches.

        Once done, or in a fresh run, it does nothing. Without it they are put back when the first step begins.
        """
        self._restore_rng()

    def close(self) -> None:
        """End the run: let a save in flight finish, wait for the other ranks, say that training is done if its loop was. Called again it
        does nothing. Raises SaveFailed when that save was abandoned; ends the process as superseded when a newer attempt owns the run.

        A last evaluation, an export or an upload belongs before it: in the `with` block, after the loop, it may take as long as it needs.
        From here on the job counts as done whatever follows, and rtj-run kills what still runs 20 minutes after all its ranks came here.
        """
        if self._closed:
            return
        self._closed = True
        try:
            try:
                self._close_saver()
            finally:
                self._parts.housekeeper.close()
                self._parts.archivist.close()
            if self._conductor.is_save_called and not self._failed:
                log.warning("run.save() was called, and the step boundary that it waited for never came: nothing was saved for it")
            if self._finished and not self._failed:
                self._reporter.ending(Ending(self._parts.settings.rank, Outcome.DONE))
            elif not self._failed and not self._saver.is_verified(self.global_step):
                log.warning("the loop was left after step %d, which is not saved; run.save() between turns saves it", self.global_step)
        finally:
            self._reporter.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, SystemExit):
            self._failed = True

    def _loop(self, max_steps: int | None, epochs: int | None, micro_batches: int) -> Iterator[Any]:
        self._finished = False
        if self._in_turn:
            self._settle_left_turn()
        while (max_steps is None or self.global_step < max_steps) and (epochs is None or self.epoch < epochs):
            self._begin_turn()
            for self.micro_batch in range(micro_batches):
                batch = self._fetch(epochs)
                if batch is _NO_MORE:
                    break
                try:
                    yield batch
                except GeneratorExit:
                    self._was_left = True
                    raise
            if batch is _NO_MORE:
                break
            self._end_turn()
        self.finish()

    def _settle_left_turn(self) -> None:
        """Bring counters, data and weights together again after a turn that was left before its boundary.

        Weights that moved are those of the next step. Where they did not, the batch was not used, and a source that counts finished steps
        gives it again; any other has it behind itself, and says so in the position it saves.
        """
        if self._state.has_stepped:
            self._end_turn()
        elif self._state.data.gives_again:
            self._iterator = None
        self._in_turn = self._was_left = False

    def _begin_turn(self) -> None:
        self._finished = False
        if self._in_turn:
            self._settle_left_turn()
        self._in_turn = True
        self._fetched = 0
        self._reporter.step_began()
        self._conductor.before_step()
        if self._iterator is None and not self._was_iterating:
            self._restore_rng()

    def _fetch(self, epochs: int | None) -> Any:
        data = self._state.data
        empty = 0
        while epochs is None or data.epoch < epochs:
            if self._iterator is None:
                if self._was_iterating and self._rng is None:  # put back when a loop ended; the whole run needed no new iterator after it
                    self._rng = self._state.gather_rng()
                self._iterator = data.iterate()
                self._was_iterating = False
                self._restore_rng()  # after the iterator exists, whose making draws numbers, and before the first fetch
            batch = next(self._iterator, _NO_MORE)
            if batch is not _NO_MORE:
                self._fetched += 1
                if self._notes is not None:
                    self._notes.batch(batch)
                return batch
            self._iterator = None
            data.finish_epoch()
            empty += 1
            if empty > 2:  # the rest of a resumed epoch may be empty, a whole one may not
                with self._exits():
                    raise ConfigurationError("data: a whole epoch gave no batch")
        return _NO_MORE

    def _lend_rng(self) -> None:
        """Put the checkpoint's random numbers back for a save before training goes on. At their own time they are put back once more, as
        something may draw until then."""
        if self._rng is not None:
            self._state.restore_rng(self._rng)

    def _restore_rng(self) -> None:
        """Put them back for good: this is the place in the script at which the checkpoint was made."""
        self._lend_rng()
        self._rng, self._loops_to_pass = None, 0

    def _end_turn(self) -> None:
        """The step boundary."""
        if self._iterator is None:
            self._restore_rng()
            self._was_iterating = False
        for _ in range(self._fetched):
            self._state.data.advance()
        self.global_step += 1
        if self._notes is not None:
            self._notes.step_ended(self.global_step)
        self._turns += 1
        self._in_turn = self._was_left = False
        self._reporter.step_ended()
        with self._exits():
            if self._turns == 1:
                self._parts.static_graphs.check()
                self._state.check_schedulers()
                self._saver.prepare(self._run_state())
            self._conductor.after_step(self.global_step, self._run_state())
        self._progress(Phase.TRAIN, self._turns == 1)

    def _run_state(self) -> dict[str, Any]:
        return {"iterating": self._iterator is not None or self._was_iterating, "loops": self._loops}

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._reporter.raised(error, self.global_step)

    @contextmanager
    def _exits(self) -> Iterator[None]:
        """Let a problem with an exit code end the process, and remember it, so that closing does not put another code in its place."""
        try:
            with exit_on_problem(self._reporter, self._parts.settings.rank):
                yield
        except SystemExit:
            self._failed = True
            raise

    def _close_saver(self) -> None:
        with self._exits():
            try:
                self._saver.close(ABORT_SECONDS if self._failed else WAIT_SECONDS)
            except RuntimeProblem as error:
                if not self._failed:
                    raise
                log.warning("%s", error)  # what ends this process is the training's own error

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except SystemExit as ended:  # it is said already; but the interpreter ignores this here, too
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        except Exception:  # the interpreter ignores what is raised here, but a failed save must never end in exit code 0
            say(traceback.format_exc())
            os._exit(1)

    def _progress(self, phase: Phase, news: bool) -> None:
        self._reporter.progress(phase, step=self.global_step, epoch=self.epoch, loss=self._loss, news=news)


def _one_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"report: {name} is not one number: {error}") from error
