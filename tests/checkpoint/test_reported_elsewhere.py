"""Ways in which other checkpoint engines failed, tried out on this one: see tests/known for the reports."""

from __future__ import annotations

import os
import resource
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch

from tests.checkpoint.real import engine_on, saved
from tests.checkpoint.world import (
    WAIT_SECONDS,
    assert_equal,
    attempt_on,
    only,
    open_world,
    point,
    reference_to,
    shared,
    state,
    states,
    store_root,
)
from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.reading.export import export_model
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.store.posix import PosixStore

MEBIBYTE = 1024 * 1024


class GatedStore(PosixStore):
    """Storage that lets nothing be committed until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked = threading.Event()
        self.gate = threading.Event()

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        self.asked.set()
        assert self.gate.wait(WAIT_SECONDS)
        super().commit(staging, final, name, data)


def test_whoever_resumes_while_a_save_is_in_flight_gets_the_one_before(store: PosixStore) -> None:
    gated = GatedStore(store_root(store))
    gated.gate.set()
    with attempt_on(gated) as attempt:
        older = attempt.saved(1, [state(1.0)])
        gated.gate.clear()
        gated.asked.clear()
        attempt.engines[0].stage(state(2.0), step=2, epoch=0, samples=0, strict={})
        assert gated.asked.wait(WAIT_SECONDS)
        (opened,) = open_world([store])
        gated.gate.set()
        attempt.results()
    assert opened.resume == point(older)


def test_a_save_that_failed_is_never_chosen_and_does_not_block_its_step(store: PosixStore) -> None:
    class FailingStore(PosixStore):
        fails = True

        def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
            if self.fails:
                raise OSError("the storage says no")
            super().commit(staging, final, name, data)

    failing = FailingStore(store_root(store))
    with attempt_on(failing) as attempt:
        (result,) = attempt.save(5, [state(5.0)])
        assert result.error is not None
        assert list_committed(store, "run") == ()
        failing.fails = False
        record = attempt.saved(5, [state(6.0)])
    (opened,) = open_world([store])
    assert opened.resume == point(record)
    live = state(0.0)
    open_checkpoint(store, point(record)).fill(live.leaves, 0)
    assert_equal(live, state(6.0))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_twenty_saves_take_no_more_memory_than_two(store: PosixStore) -> None:
    snapshot = only(shared("model/w", torch.ones(4 * MEBIBYTE)))
    with attempt_on(store) as attempt:
        for step in (1, 2):
            attempt.saved(step, [snapshot])
        before = resident_bytes()
        for step in range(3, 21):
            attempt.saved(step, [snapshot])
        grown = resident_bytes() - before
    assert grown < 16 * MEBIBYTE, "one save is 16 MiB"


def test_thousands_of_tensors_need_no_descriptor_each(tmp_path: Path, store: PosixStore) -> None:
    many = only(*(shared(f"model/{number:05d}", torch.full((3,), float(number))) for number in range(5000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    try:
        with attempt_on(store) as attempt:
            record = attempt.saved(1, [many])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    verify_checkpoint(store, reference_to(store, record))


def test_nothing_is_staged_through_the_directory_for_temporary_files(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    monkeypatch.setenv("TMPDIR", str(small))
    with engine_on(store_root(store)) as (engine, _joined):
        record = saved(engine, 1)
        written = sum(path.stat().st_size for path in small.rglob("*") if path.is_file())
    assert written < MEBIBYTE
    verify_checkpoint(store, reference_to(store, record))


@pytest.mark.parametrize("name", ["lr=1e-4 warm up", "50%25 done", "größe", "a+b&c#d"])
def test_a_store_may_have_any_name_that_a_directory_can_have(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    store = PosixStore(root)
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(1, states(1.0, 2))
    opened = open_world([store] * 2)
    assert opened[1].resume == point(record)
    live = state(0.0, rank=1)
    open_checkpoint(store, point(record)).fill(live.leaves, 1)
    assert_equal(live, state(1.0, rank=1))


def test_an_export_holds_a_part_of_the_model_at_a_time(store: PosixStore, tmp_path: Path) -> None:
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(shared("model/w", torch.ones(32, MEBIBYTE)))])
    documents = read_documents(store, reference_to(store, record))
    tracemalloc.start()
    try:
        exported = export_model(store, documents, tmp_path / "out")
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert exported.total_bytes == 128 * MEBIBYTE
    assert peak < 100 * MEBIBYTE
