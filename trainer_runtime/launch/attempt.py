"""One attempt of this worker, from the start of torchrun to the report: a loop over events, each with what it changes.

    running -> (saving) -> stopping -> ended

Threads only deliver events; all state lives in the loop. What is decided is in `stop` and `exit_report`, what is known in `rank_book`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_runtime.channel.messages import Holding, MayDelete, Proceed, Recorded, Save, SaveAndStop
from trainer_runtime.channel.server import Joined, Received, Server, make_private_directory
from trainer_runtime.checkpoint.persister.start import Handle
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import CheckpointRecord, Directive, Phase, RecordKey
from trainer_runtime.contract.evidence import Evidence
from trainer_runtime.contract.exit_report import ExitReport, Outcome
from trainer_runtime.heartbeat.start import Handle as Sender
from trainer_runtime.heartbeat.state import Answer, WorkerState
from trainer_runtime.launch import options, processes, stop
from trainer_runtime.launch.exit_report import AttemptEnd, conclude, is_all_well
from trainer_runtime.launch.rank_book import RankBook
from trainer_runtime.launch.ranks import HOOK_DIRECTORY, RankDied, RankEvent, Ranks, RankStarted, TorchrunEnded
from trainer_runtime.launch.stop import OnSigterm
from trainer_runtime.launch.tail import Found, Tail
from trainer_runtime.launch.wire import BadOptions, Launching, LaunchPlan, RanksFailed, TorchrunFailed
from trainer_runtime.signals.fault_classes import PREEMPTED
from trainer_runtime.signals.finding import to_evidence

TICK_SECONDS: Final = 0.5
"""How often deadlines are looked at when nothing happens."""
REAP_SECONDS: Final = 30.0
"""How often orphans of the ranks that ended are collected; as process 1 of a container nobody else would."""
PERSISTER_TICK_SECONDS: Final = 0.05
"""How often it is looked at whether the persister has ended."""
OUTPUT_SECONDS: Final = 5.0
"""How long the rest of the ranks' output may take to pass through after they ended."""

log = logging.getLogger("trainer_runtime.launch")


@dataclass(frozen=True)
class Terminated:
    """SIGTERM, or Ctrl-C."""

    at_ns: int


Event = Terminated | Answer | Joined | Received | Found | RankEvent
Events = queue.SimpleQueue[Event]


@dataclass(frozen=True)
class Orders:
    """What this attempt is."""

    attempt: int
    worker_index: int
    run_id: str
    assignment: Assignment | None
    """None without an operator."""
    node: str | None
    grace_seconds: float


class Attempt:
    """Runs one attempt. ``events`` is the queue that signal handler and heartbeat deliver into; it outlives the attempt."""

    def __init__(self, orders: Orders, events: Events, sender: Sender | None) -> None:
        self._orders = orders
        self._events = events
        self._sender = sender
        self._book = RankBook(orders.attempt, orders.worker_index)
        self._bad_options = ""
        self._torchrun_error = ""
        self._torchrun_code: int | None = None
        self._launched_at_ns: int | None = None
        self._stopped_at_ns: int | None = None
        self._terminated_at_ns: int | None = None
        self._overdue_at_ns: int | None = None
        self._told_to_stop = ""
        self._leave_now = False
        self._asked_to_save: set[int] = set()
        self._save_directive = False
        self._persister_may_end = False
        self._published: WorkerState | None = None
        self._granted: tuple[RecordKey, ...] = ()
        # Moments after which something is done, by time.monotonic(); None: not now.
        self._reap_at = 0.0
        self._sigterm_at: float | None = None
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._hold_until: float | None = None

    def run(self, arguments: Sequence[str], environ: Mapping[str, str]) -> ExitReport:
        """Run torchrun with the user's ``arguments`` until all has ended; return the report. Raises OSError when nothing can start."""
        directory = make_private_directory()
        self._tail = Tail(self._events.put)
        self._server = Server(self._events.put)
        self._ranks = Ranks(self._tail, self._events.put)
        self._before = frozenset(processes.children_of(os.getpid()))
        self._persister = Handle(os.path.join(directory, "persister"), environ, self._recorded)
        try:
            self._start(directory, arguments, environ)
            while self._torchrun_code is None:
                self._publish()
                event = self._next(TICK_SECONDS)
                if event is not None:
                    self._take(event)
                if not self._look_at_deadlines():
                    break
            self._let_saves_end()
            self._tail.finish(OUTPUT_SECONDS)
            self._take_the_rest()
            self._book.read_uncaught(self._server.path)
            return conclude(self._end())
        finally:
            self._ranks.kill()
            self._persister.kill()
            processes.end_descendants(besides=self._others)
            self._server.close()
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def was_terminated(self) -> bool:
        """Whether SIGTERM or Ctrl-C came."""
        return self._terminated_at_ns is not None

    def tell(self, report: ExitReport) -> None:
        """Beat the end until the operator has heard it, or the wait is over; SIGTERM ends it."""
        if self._sender is None or self._leave_now:
            return
        is_done = report.outcome is Outcome.DONE
        may_wait_long = not is_done and self._terminated_at_ns is None and not self._told_to_stop
        deadline = time.monotonic() + (stop.TELL_STOPPED_SECONDS if may_wait_long else stop.TELL_DONE_SECONDS)
        if self._sigterm_at is not None:
            deadline = min(deadline, self._sigterm_at + self._orders.grace_seconds - 1.0)
        phase = Phase.DONE if is_done else Phase.STOPPED
        self._publish(phase, report)
        while (left := deadline - time.monotonic()) > 0:
            event = self._next(min(left, TICK_SECONDS))
            if isinstance(event, Terminated):
                return
            if not isinstance(event, Answer) or (event.attempt, event.phase) != (self._orders.attempt, phase):
                continue
            if not may_wait_long or event.reply.directive in (Directive.STOP, Directive.RESTART):
                return
        log.warning("rtj: the operator did not answer the end of attempt %d in time; the exit report is written", self._orders.attempt)

    @property
    def _others(self) -> frozenset[int]:
        """Children that are no part of the attempt: those that were there before it, and the sender, which may have been replaced."""
        return self._before if self._sender is None else self._before | {self._sender.pid}

    def _start(self, directory: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        read_fd, write_fd = os.pipe()
        assignment = self._orders.assignment
        plan = LaunchPlan(
            options=options.torchrun_options(assignment, self._orders.run_id),
            forbidden=options.forbidden_options(assignment),
            report_fd=write_fd,
            directory=directory,
        )
        child = options.child_environment(
            environ,
            channel=self._server.path,
            persister=self._persister.path,
            fence=f"rtj/{self._orders.run_id}/{self._orders.attempt}",
            hook_directory=HOOK_DIRECTORY,
            grace_seconds=self._orders.grace_seconds,
        )
        self._ranks.start(plan, arguments, child, read_fd)

    def _next(self, seconds: float) -> Event | None:
        if self._sender is not None:
            self._sender.tend()
        if not self._persister_may_end:
            self._persister.tend()
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def _recorded(self, record: CheckpointRecord) -> None:
        """The persister's own word, which outlives the rank that would have told it."""
        self._events.put(Received(0, Recorded(record)))

    def _let_saves_end(self) -> None:
        """The ranks are gone. What all of them had sealed is committed and verified, and the records still reach the operator."""
        self._persister_may_end = True
        self._persister.finish()
        since = None if self._sigterm_at is None else time.monotonic() - self._sigterm_at
        deadline = time.monotonic() + (0.0 if self._leave_now else stop.seconds_to_persist(self._orders.grace_seconds, since))
        while not self._persister.has_ended() and (left := deadline - time.monotonic()) > 0 and not self._leave_now:
            event = self._next(min(left, PERSISTER_TICK_SECONDS))
            if event is not None:
                self._take(event)
            self._publish()
        if not self._persister.has_ended():
            log.warning("rtj: a save did not end in time and is abandoned")

    def _take_the_rest(self) -> None:
        while True:
            try:
                self._take(self._events.get_nowait())
            except queue.Empty:
                return

    def _take(self, event: Event) -> None:
        if isinstance(event, Received):
            self._heard(event)
        elif isinstance(event, Joined):
            self._book.joined(event.rank)
        elif isinstance(event, Found):
            if not _is_second_hand(event):
                self._book.found(event.key, self._to_evidence(event))
        elif isinstance(event, Answer):
            self._answered(event)
        elif isinstance(event, Terminated):
            self._terminated(event.at_ns)
        elif isinstance(event, RankStarted):
            self._book.started(event.rank, event.local_world_size)
        elif isinstance(event, RankDied):
            self._book.died(event.rank, event.at_ns, event.exit_code)
        elif isinstance(event, Launching):
            self._launched_at_ns = time.time_ns()
            self._book.local_world_size = event.local_world_size
        elif isinstance(event, RanksFailed):
            for failure in event.failures:
                self._book.failed(failure)
        elif isinstance(event, BadOptions):
            self._bad_options = event.message
        elif isinstance(event, TorchrunFailed):
            self._torchrun_error = event.message
        elif isinstance(event, TorchrunEnded):
            self._torchrun_code = event.exit_code
            if event.exit_code == 0:
                self._book.succeeded()

    def _heard(self, event: Received) -> None:
        self._book.said(event.rank, event.message, time.time_ns())
        if isinstance(event.message, Holding):
            self._hold_until = time.monotonic() + (stop.HOLD_SECONDS if self._sender is not None else 0.0)

    def _to_evidence(self, found: Found) -> Evidence:
        orders = self._orders
        return to_evidence(found.finding, time.time(), orders.attempt, orders.worker_index, orders.node, found.rank)

    def _answered(self, answer: Answer) -> None:
        if answer.attempt != self._orders.attempt:
            return
        reply = answer.reply
        if answer.phase is Phase.HOLD and self._book.holding is not None and reply.assignment is not None:
            self._proceed(reply.assignment)
        if reply.may_delete and reply.may_delete != self._granted:
            self._granted = reply.may_delete
            self._server.send(MayDelete(reply.may_delete))
        if reply.directive in (Directive.STOP, Directive.RESTART) and not self._told_to_stop:
            self._told_to_stop = f"ended by the operator's directive {reply.directive.value}"
            log.warning("rtj: %s", self._told_to_stop)
            self._begin_stop(stop.STOP_SECONDS)
        # The reply is repeated as long as the wish stands; the ranks are asked once for each wish.
        if reply.directive is Directive.SAVE and not self._save_directive:
            self._server.send(Save())
        self._save_directive = reply.directive is Directive.SAVE

    def _proceed(self, assignment: Assignment | None) -> None:
        self._book.holding = None
        self._hold_until = None
        self._server.send(Proceed(assignment))

    def _terminated(self, at_ns: int) -> None:
        if self._terminated_at_ns is not None:
            return
        self._terminated_at_ns = at_ns
        self._sigterm_at = time.monotonic()
        decision = stop.on_sigterm(
            has_failed=self._book.some_failed, is_stopping=self._stopped_at_ns is not None, someone_joined=bool(self._book.joined_ranks)
        )
        left = stop.seconds_to_save(self._orders.grace_seconds, 0.0)
        if decision is OnSigterm.LEAVE:
            self._leave_now = True
            self._kill_now()
        elif decision is OnSigterm.SAVE:
            log.warning("rtj: SIGTERM; the ranks have %.0f s to save and stop", left)
            self._stop_at = time.monotonic() + left
        else:
            log.warning("rtj: SIGTERM; no rank takes part in saving, all get SIGTERM and %.0f s", left)
            self._begin_stop(left)

    def _ask_to_save(self) -> None:
        assert self._sigterm_at is not None
        left = stop.seconds_to_save(self._orders.grace_seconds, time.monotonic() - self._sigterm_at)
        for rank in self._book.joined_ranks - self._asked_to_save:
            self._asked_to_save.add(rank)
            self._server.send(SaveAndStop(left), rank)

    def _begin_stop(self, seconds: float) -> None:
        if self._stopped_at_ns is None:
            self._stopped_at_ns = time.time_ns()
            self._ranks.stop()
            self._stop_at = None
            self._limit_life(seconds)

    def _kill_now(self) -> None:
        if self._stopped_at_ns is None:
            self._stopped_at_ns = time.time_ns()
        self._limit_life(0.0)

    def _limit_life(self, seconds: float) -> None:
        """Kill what still runs after ``seconds``, or earlier if that was said before."""
        at = time.monotonic() + seconds
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _look_at_deadlines(self) -> bool:
        """Do what is due; False when waiting for torchrun's end has become useless."""
        now = time.monotonic()
        book = self._book
        if now >= self._reap_at:
            self._reap_at = now + REAP_SECONDS
            processes.reap_orphans(besides=self._others | self._ranks.torchrun_pids | self._persister.pids)
        if self._hold_until is not None and now >= self._hold_until:
            self._proceed(None)
        if self._stop_at is not None:
            if self._stopped_at_ns is None:
                self._ask_to_save()
            if now >= self._stop_at:
                self._begin_stop(stop.end_margin(self._orders.grace_seconds) / 2)
        if self._kill_at is None and self._stopped_at_ns is None:
            if book.some_failed:
                self._limit_life(stop.RAISED_SECONDS)
            elif book.all_died:
                self._limit_life(stop.BARRIER_SECONDS if self._terminated_at_ns is None else stop.STOP_SECONDS)
            elif book.all_said_done:
                self._limit_life(stop.TEARDOWN_SECONDS)
            elif book.all_said_good_end or book.some_gave_a_reason:
                self._limit_life(stop.LEAVING_SECONDS)
        if self._kill_at is not None and now >= self._kill_at and self._give_up_at is None:
            self._give_up_at = now + stop.GIVE_UP_SECONDS
            if book.all_said_done and not book.all_died:
                self._overdue_at_ns = time.time_ns()
                log.warning("rtj: all ranks said that they are done, and some still run; what they do after their run is closed is killed")
            self._ranks.kill()
        if self._give_up_at is not None and now >= self._give_up_at:
            log.error("rtj: torchrun did not end %g s after SIGKILL; the kernel holds it", stop.GIVE_UP_SECONDS)
            return False
        return True

    def _publish(self, phase: Phase | None = None, report: ExitReport | None = None) -> None:
        if self._sender is None:
            return
        state = self._book.state()
        if phase is None and self._book.all_died and is_all_well(self._end()):
            # torchrun still waits for the other workers; that this one is done is news already.
            phase = Phase.TEARDOWN
        if report is not None and report.outcome is not Outcome.DONE:
            state = dataclasses.replace(state, failure=report)
        if phase is not None:
            state = dataclasses.replace(state, phase=phase)
        if state != self._published:
            self._published = state
            self._sender.update(state)

    def _end(self) -> AttemptEnd:
        book, orders = self._book, self._orders
        return AttemptEnd(
            attempt=orders.attempt,
            worker_index=orders.worker_index,
            ranks=book.ends,
            local_world_size=book.local_world_size,
            torchrun_code=self._torchrun_code,
            bad_options=self._bad_options,
            torchrun_error=self._torchrun_error,
            launched_at_ns=self._launched_at_ns,
            stopped_at_ns=self._stopped_at_ns,
            terminated_at_ns=self._terminated_at_ns,
            overdue_at_ns=self._overdue_at_ns,
            told_to_stop=self._told_to_stop,
            node=orders.node,
            evidence=book.evidence,
            verified=book.verified,
            steps=book.steps,
        )


def _is_second_hand(found: Found) -> bool:
    """Say whether torchrun only tells how its ranks ended, or that we told it to stop: both are known here at first hand."""
    return found.rank is None and ("exit_code" in found.finding.fields or found.finding.fault_class == PREEMPTED)
