"""The engine as the training loop sees it: results, records, a step asked for twice, closing, and memory that does not grow."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import RUN, attempt_on, only, shared, state, states, writer
from trainer_runtime.checkpoint.engine import Engine
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.codec import loads
from trainer_runtime.contract.manifest import VerifiedMark, parse_manifest
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.posix import PosixStore


def test_every_rank_is_told_of_commit_and_verification(store: PosixStore) -> None:
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(7, states(1.0, 3))
        for rank in range(3):
            assert [told.level for told in attempt.records[rank]] == [Level.COMMITTED, Level.VERIFIED]
            assert attempt.records[rank][1] == record
            (result,) = attempt.engines[rank].take_results()
            assert (result.step, result.record, result.error) == (7, record, None)
            assert attempt.engines[rank].take_results() == ()


def test_the_manifest_says_where_in_training_it_was_taken(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(7, [state(1.0)], tags=("stage-end",))
        directory = f"{RUN}/steps/0000000007-00000001"
        manifest = parse_manifest(store.read(f"{directory}/manifest.json"), record.manifest_sha256)
        mark = loads(VerifiedMark, store.read(f"{directory}/verified.json"))
    assert (manifest.run, manifest.step, manifest.attempt, manifest.consumed_samples, manifest.tags) == (RUN, 7, 1, 56, ("stage-end",))
    assert (manifest.job.name, manifest.world_size, manifest.software["torch"]) == ("train", 1, torch.__version__)
    assert manifest.total_bytes == sum(store.size(f"{directory}/data/{name}") for name in store.list(f"{directory}/data"))
    assert (mark.manifest_sha256, mark.level, mark.by) == (record.manifest_sha256, "verified", "worker-0")


def test_a_step_that_is_verified_is_not_saved_again(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(7, [state(1.0)])
        assert attempt.saved(7, [state(1.0)]) == record
        assert [result.record for result in attempt.engines[0].take_results()] == [record, record]
        assert len(attempt.records[0]) == 2


def test_close_waits_for_the_save_in_flight_and_then_no_more_are_taken(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        (engine,) = attempt.engines
        engine.stage(state(1.0), step=1, epoch=0, samples=0, strict={})
        engine.close(60)
        (result,) = engine.take_results()
        assert result.error is None
        with pytest.raises(SaveFailed, match="saving was closed"):
            engine.stage(state(1.0), step=2, epoch=0, samples=0, strict={})


def test_a_close_or_a_wait_that_ends_first_says_so(store: PosixStore) -> None:
    release = threading.Event()

    def hold_up(record: CheckpointRecord) -> None:
        assert release.wait(60)

    with attempt_on(store, on_record=hold_up) as attempt:
        (engine,) = attempt.engines
        engine.stage(state(1.0), step=1, epoch=0, samples=0, strict={})
        assert engine.wait(0.01) is None
        assert engine.busy
        with pytest.raises(SaveFailed, match="still in flight"):
            engine.close(0.01)
        release.set()


def test_an_error_in_the_listener_is_this_saves_result_and_not_the_end_of_the_thread(store: PosixStore) -> None:
    calls: list[CheckpointRecord] = []

    def fail_once(record: CheckpointRecord) -> None:
        calls.append(record)
        if len(calls) == 1:
            raise ValueError("the channel is gone")

    with attempt_on(store, on_record=fail_once) as attempt:
        (result,) = attempt.save(1, [state(1.0)])
        assert isinstance(result.error, SaveFailed)
        assert "ValueError: the channel is gone" in str(result.error)
        attempt.saved(2, [state(2.0)])


def test_a_rank_with_nothing_of_its_own_takes_part(store: PosixStore) -> None:
    with attempt_on(store, ranks=3) as attempt:
        attempt.saved(1, [only(shared("model/b", torch.ones(2)))] * 3)


def test_an_empty_state_can_be_saved(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(1, [only()])


def test_preparing_takes_the_memory_before_the_first_save_and_keeps_it(store: PosixStore) -> None:
    snapshot = only(shared("model/w", torch.ones(4096, 4096)))
    with attempt_on(store) as attempt:
        (engine,) = attempt.engines
        engine.prepare(snapshot)
        before = resident_bytes()
        for step in range(1, 4):
            attempt.saved(step, [snapshot])
        assert resident_bytes() - before < 40 * 1024 * 1024, "two 16 MiB buffers of the read-back and no second stage"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_stage_larger_than_memory_is_refused_with_numbers(store: PosixStore) -> None:
    huge = only(shared("model/w", torch.empty(1, dtype=torch.uint8).expand(1 << 20, 1 << 24)))
    engine = Engine(store=store, run=RUN, writer=writer(attempt=1), exchange=LocalExchange(), on_record=lambda record: None)
    try:
        with pytest.raises(SaveFailed, match=r"staging a checkpoint needs 16,777,280 MiB of host memory"):
            engine.prepare(huge)
    finally:
        engine.close(60)
