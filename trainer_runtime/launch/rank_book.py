"""What is known of the ranks of this worker: written down from the channel, the processes and torchrun; read for beats and for the report.

It decides nothing, and it forgets nothing that the exit report needs.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

from trainer_runtime.channel.codec import decode_up
from trainer_runtime.channel.messages import ArchiveLooked, DeleteProposed, Ending, Holding, Progress, Raised, Recorded, SaveAbandoned, Up
from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Level, Phase, RankSummary, RecordKey, SaveFailure, Tier
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.evidence import Evidence, Strength
from trainer_runtime.contract.exit_report import Outcome, VerifiedCheckpoint
from trainer_runtime.heartbeat.state import WorkerState
from trainer_runtime.launch.exit_report import OWN_REASONS, RankEnd, ended_well, has_failed
from trainer_runtime.launch.rank_hook import raised_path
from trainer_runtime.launch.wire import RankFailure

KEPT_RECORDS = 8
"""Checkpoint records kept for beats, which repeat the newest three that were not acknowledged."""
KEPT_EVIDENCE = 20
"""What a beat can hold; a broken machine may print thousands of lines."""

log = logging.getLogger("trainer_runtime.launch")


class RankBook:
    """The ranks of one attempt."""

    def __init__(self, attempt: int, worker_index: int) -> None:
        self._attempt = attempt
        self._worker_index = worker_index
        self._ends: dict[int, RankEnd] = {}
        self._alive: set[int] = set()
        self._progress: dict[int, Progress] = {}
        self._records: list[CheckpointRecord] = []
        self._evidence: dict[object, Evidence] = {}
        self._proposals: tuple[RecordKey, ...] = ()
        self._save_failure: SaveFailure | None = None
        self._archive: ArchiveLook | None = None
        self.holding: Holding | None = None
        """What rank 0 found in the store, while it waits for the operator's word."""
        self.local_world_size: int | None = None

    def started(self, rank: int, local_world_size: int) -> None:
        """A rank's process was found."""
        self.local_world_size = local_world_size
        self._alive.add(rank)
        self._note(rank)

    def joined(self, rank: int) -> None:
        """A rank connected to the channel."""
        self._note(rank, has_joined=True)

    def said(self, rank: int, message: Up, at_ns: int) -> None:
        """A rank sent a message."""
        if isinstance(message, Progress):
            self._progress[message.rank] = message
        elif isinstance(message, Recorded):
            others = [record for record in self._records if record != message.record]  # rank and persister both tell
            self._records = [*others, message.record][-KEPT_RECORDS:]
            if message.record.level is Level.VERIFIED:
                self._save_failure = None
        elif isinstance(message, SaveAbandoned):
            self._save_failure = message.failure
        elif isinstance(message, ArchiveLooked):
            self._archive = message.look
        elif isinstance(message, Holding):
            self.holding = message
        elif isinstance(message, DeleteProposed):
            self._proposals = message.keys
        elif isinstance(message, Raised):
            self._raised(message)
        elif isinstance(message, Ending):
            self._note(rank, ending=message, ending_at_ns=at_ns)

    def died(self, rank: int, at_ns: int, exit_code: int | None) -> None:
        """A rank's process ended."""
        self._alive.discard(rank)
        self._note(rank, died_at_ns=at_ns, exit_code=exit_code)

    def failed(self, failure: RankFailure) -> None:
        """torchrun reported how a rank ended."""
        known = self._ends.get(failure.rank)
        code = failure.exit_code if known is None or known.exit_code is None else known.exit_code
        self._note(failure.rank, exit_code=code, error=failure.message)

    def succeeded(self) -> None:
        """torchrun ended with code 0: whichever rank's code nobody read had 0 too."""
        for end in tuple(self._ends.values()):
            if end.exit_code is None:
                self._note(end.rank, exit_code=0)

    def read_uncaught(self, channel: str) -> None:
        """Read the exceptions that ranks left in files: those of scripts that know nothing of the channel."""
        for rank in tuple(self._ends):
            path = raised_path(channel, rank)
            if not os.path.exists(path):
                continue
            try:
                with open(path, "rb") as file:
                    message = decode_up(file.read())
            except (OSError, ContractError) as error:
                log.warning("the exception of rank %d cannot be read: %s", rank, error)
                continue
            if isinstance(message, Raised):
                self._raised(message)

    def found(self, key: object, evidence: Evidence) -> None:
        """A fault signal was seen; one with the same key replaces the earlier."""
        if evidence.strength is Strength.BENIGN or (key not in self._evidence and len(self._evidence) >= KEPT_EVIDENCE):
            return
        self._evidence[key] = evidence

    @property
    def ends(self) -> tuple[RankEnd, ...]:
        """Every rank that was heard of, in the order of ranks."""
        return tuple(self._ends[rank] for rank in sorted(self._ends))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What was seen, in the order in which it began."""
        return tuple(self._evidence.values())

    @property
    def steps(self) -> dict[int, int]:
        """Newest step by rank."""
        return {rank: progress.step for rank, progress in self._progress.items() if progress.step is not None}

    @property
    def verified(self) -> VerifiedCheckpoint | None:
        """The newest verified checkpoint in the store that this attempt reported."""
        verified = [record for record in self._records if record.level is Level.VERIFIED and record.tier is Tier.STORE]
        newest = max(verified, key=lambda record: record.step, default=None)
        return VerifiedCheckpoint(newest.step, newest.uri, newest.manifest_sha256, newest.tagged) if newest else None

    @property
    def some_failed(self) -> bool:
        """Whether a rank failed by itself, as far as is known now."""
        return any(has_failed(end) for end in self._ends.values())

    @property
    def joined_ranks(self) -> frozenset[int]:
        """Ranks that connected to the channel."""
        return frozenset(end.rank for end in self._ends.values() if end.has_joined)

    @property
    def all_said_good_end(self) -> bool:
        """Whether every local rank said that it is done, or saved and stops."""
        ends = self._ends.values()
        return self.local_world_size == len(ends) and all(end.ending is not None and ended_well(end) for end in ends)

    @property
    def all_said_done(self) -> bool:
        """Whether every local rank said that training is done."""
        ends = self._ends.values()
        return self.local_world_size == len(ends) and all(end.ending is not None and end.ending.outcome is Outcome.DONE for end in ends)

    @property
    def some_gave_a_reason(self) -> bool:
        """Whether a rank ends for a reason that concerns all: the others are about to find the same."""
        return any(end.ending is not None and end.ending.outcome in OWN_REASONS for end in self._ends.values())

    @property
    def all_died(self) -> bool:
        """Whether every local rank's process was found and ended."""
        return self.local_world_size == len(self._ends) and all(end.died_at_ns is not None for end in self._ends.values())

    def state(self) -> WorkerState:
        """Return what a beat says now. Step and phase are the lowest rank's: only that one reports each second."""
        progress = self._progress[min(self._progress)] if self._progress else None
        phase = progress.phase if progress is not None else Phase.START
        holding = self.holding
        if phase is Phase.HOLD and holding is None:
            phase = Phase.START  # hold asks a question, and there is none yet
        return WorkerState(
            attempt=self._attempt,
            worker_index=self._worker_index,
            phase=Phase.HOLD if holding is not None else phase,
            step=progress.step if progress else None,
            epoch=progress.epoch if progress else None,
            loss=progress.loss if progress else None,
            step_seconds=progress.step_seconds if progress else None,
            phase_limits=progress.phase_limits if progress else {},
            ranks=RankSummary(alive=len(self._alive)) if self.local_world_size is not None else None,
            records=tuple(self._records),
            inventory=holding.inventory if holding else (),
            highest_fence=holding.highest_fence if holding else None,
            fence_job_uid=holding.fence_job_uid if holding else None,
            quiet_seconds=holding.quiet_seconds if holding else None,
            save_failure=self._save_failure,
            archive=self._archive,
            delete_proposals=self._proposals,
            evidence=self.evidence,
        )

    def _raised(self, message: Raised) -> None:
        known = self._ends.get(message.rank)
        if known is None or known.raised is None:
            self._note(message.rank, raised=message)
        elif known.raised.step is None and message.step is not None:
            self._note(message.rank, raised=dataclasses.replace(known.raised, step=message.step))

    def _note(self, rank: int, **known: Any) -> None:
        self._ends[rank] = dataclasses.replace(self._ends.get(rank, RankEnd(rank)), **known)
