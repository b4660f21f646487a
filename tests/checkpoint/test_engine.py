"""The engine as the training loop sees it: results, records, a step asked for twice, closing, and memory that does not grow."""

from __future__ import annotations

import gc
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import RUN, attempt_on, only, shared, state, states
from trainer_runtime.checkpoint.keeping.inventory import read_inventory
from trainer_runtime.checkpoint.staging import memory
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


@pytest.mark.parametrize("tags", [(), ("stage-end",)], ids=["no tags", "a tag"])
def test_every_record_says_whether_the_checkpoint_is_tagged(store: PosixStore, tags: tuple[str, ...]) -> None:
    with attempt_on(store, ranks=2) as attempt:
        attempt.saved(7, states(1.0, 2), tags=tags)
        told = [record.tagged for records in attempt.records for record in records]
    assert told == [bool(tags)] * 4
    assert [record.tagged for record in read_inventory(store, RUN).records] == [bool(tags)]


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


def test_preparing_takes_the_memory_of_both_generations_before_the_first_save_and_keeps_it(store: PosixStore) -> None:
    snapshot = only(shared("model/w", torch.ones(4096, 4096)))
    with attempt_on(store) as attempt:
        (engine,) = attempt.engines
        engine.prepare(snapshot)
        before = max(arenas(), key=lambda arena: arena.resident_kib)
        assert before.resident_kib >= 2 * 64 * 1024
        for step in range(1, 4):
            attempt.saved(step, [snapshot])
        assert before.begin in {arena.begin for arena in arenas()}


def test_close_gives_the_stages_memory_back_at_once(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        (engine,) = attempt.engines
        gc.disable()  # whatever refers to itself would be kept until it runs
        try:
            gc.collect()
            attempt.saved(1, [only(shared("model/w", torch.ones(1024, 1024)))])
            assert len(arenas()) == 2, "the rank's, and that of its persister, which is a thread here"
            engine.close(60)
            assert len(arenas()) < 2
        finally:
            gc.enable()


@dataclass(frozen=True)
class Mapping:
    begin: str
    resident_kib: int


def arenas() -> list[Mapping]:
    """Every mapping of a stage in this process."""
    found = []
    for block in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE):
        resident = re.search(r"^Rss: +(\d+) kB", block, re.MULTILINE)
        if "memfd:rtj-arena" in block and resident is not None:
            found.append(Mapping(block.partition("-")[0], int(resident[1])))
    return found


def test_a_rank_without_memory_fails_the_save_on_every_rank_at_once(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with attempt_on(store, ranks=3, deadline_seconds=600) as attempt:
        attempt.engines[0].stage(state(1.0), step=1, epoch=0, samples=0, strict={})
        attempt.engines[1].stage(state(1.0, rank=1), step=1, epoch=0, samples=0, strict={})
        monkeypatch.setattr(memory, "available_bytes", lambda: 0)
        attempt.engines[2].stage(state(1.0, rank=2), step=1, epoch=0, samples=0, strict={})
        assert all("staging a checkpoint needs" in str(result.error) for result in attempt.results())


def test_memory_for_one_generation_is_enough(store: PosixStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + 50 * 1024)
    with attempt_on(store) as attempt:
        for step in (1, 2):
            attempt.saved(step, [state(float(step))])
    assert [message for message in caplog.messages if "not two" in message] == [
        "host memory has room for one copy of a checkpoint, not two: the last one staged is not kept while the next is filled"
    ]
