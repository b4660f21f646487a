"""From the worker's state to a beat that fits: which records still need telling, and what is left out when the body grows too long."""

from __future__ import annotations

import dataclasses
from typing import Final

from trainer_runtime.contract.beat import MAX_BODY_BYTES, Beat, CheckpointRecord, RecordKey, Reply
from trainer_runtime.contract.codec import dumps
from trainer_runtime.heartbeat.state import WorkerState

TOLD_RECORDS: Final = 3
"""A beat repeats the newest three records that were not acknowledged: what is older is outdated by them."""


def key_of(record: CheckpointRecord) -> RecordKey:
    """Return the name by which the operator acknowledges ``record``."""
    return RecordKey(record.run, record.step, record.attempt, record.level, record.tier)


class Composer:
    """Builds the beats of one sender: numbers them and remembers what was acknowledged."""

    def __init__(self, job_uid: str, pod_uid: str) -> None:
        self._job_uid = job_uid
        self._pod_uid = pod_uid
        self._sequence = 0
        self._acked: dict[RecordKey, None] = {}

    def compose(self, state: WorkerState, sent_at: float) -> Beat:
        """Return the next beat. ``sent_at`` is Unix time in seconds."""
        self._sequence += 1
        pending = [record for record in state.records if key_of(record) not in self._acked]
        return Beat(
            job_uid=self._job_uid,
            attempt=state.attempt,
            worker_index=state.worker_index,
            pod_uid=self._pod_uid,
            sequence=self._sequence,
            phase=state.phase,
            sent_at=sent_at,
            step=state.step,
            epoch=state.epoch,
            loss=state.loss,
            step_seconds=state.step_seconds,
            phase_limits=state.phase_limits,
            ranks=state.ranks,
            records=tuple(pending[-TOLD_RECORDS:]),
            inventory=state.inventory,
            highest_fence=state.highest_fence,
            fence_job_uid=state.fence_job_uid,
            quiet_seconds=state.quiet_seconds,
            save_failure=state.save_failure,
            archive=state.archive,
            delete_proposals=state.delete_proposals,
            failure=state.failure,
            evidence=state.evidence,
        )

    def take(self, reply: Reply) -> None:
        """Remember the acknowledgements of ``reply``."""
        for key in reply.acked:
            self._acked[key] = None
        while len(self._acked) > 1000:
            del self._acked[next(iter(self._acked))]


def to_body(beat: Beat) -> bytes:
    """Return the beat's JSON in at most MAX_BODY_BYTES. Proposals go first, then old inventory, then late evidence, then the end
    of the failure's message: phase, failure and records decide what happens next and are never left out."""
    body = dumps(beat).encode()
    while len(body) > MAX_BODY_BYTES and (beat.delete_proposals or beat.inventory or beat.evidence):
        if beat.delete_proposals:
            beat = dataclasses.replace(beat, delete_proposals=beat.delete_proposals[: len(beat.delete_proposals) // 2])
        elif beat.inventory:
            beat = dataclasses.replace(beat, inventory=beat.inventory[: len(beat.inventory) // 2])
        else:
            beat = dataclasses.replace(beat, evidence=beat.evidence[: len(beat.evidence) // 2])
        body = dumps(beat).encode()
    while len(body) > MAX_BODY_BYTES and beat.failure is not None and beat.failure.message:
        failure = dataclasses.replace(beat.failure, message=beat.failure.message[: len(beat.failure.message) // 2])
        beat = dataclasses.replace(beat, failure=failure)
        body = dumps(beat).encode()
    return body
