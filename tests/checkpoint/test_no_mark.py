"""Saving and restoring leave a script's tensors as they were: it may free and regrow their memory, as sharding libraries do."""

from __future__ import annotations

import torch

from tests.checkpoint.world import attempt_on, only, point, shared
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.staging.unchanged import LEAST_BYTES
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore


def state() -> Snapshot:
    """Small tensors and a large one that are trained, and one that stands still."""
    base = torch.ones(LEAST_BYTES, dtype=torch.int8)
    trained = [shared(f"model/{number:02d}", torch.full((64, 4), float(number))) for number in range(20)]
    large = shared("optim/large/exp_avg", torch.arange(1_000_000.0), Kind.OPTIM)
    return only(*trained, large, Leaf("model/base", base, Kind.MODEL, True, frozen_version=base._version))


def marked(*snapshots: Snapshot) -> list[str]:
    """The tensors whose memory nobody may resize any more."""
    return [leaf.name for snapshot in snapshots for leaf in snapshot.leaves if not leaf.tensor.untyped_storage().resizable()]


def test_no_tensor_bears_a_mark_of_a_save_or_a_restore(store: PosixStore) -> None:
    saved = [state(), state()]
    with attempt_on(store, ranks=2) as attempt:
        for step in range(1, 4):  # the replicas look at another part each time, and at the frozen tensor again
            record = attempt.saved(step, saved)
    assert marked(*saved) == []
    live = state()
    checkpoint = open_checkpoint(store, point(record))
    checkpoint.fill(live.leaves, 0)
    checkpoint.fingerprints(0, 1)
    assert marked(live) == []
    for leaf in live.leaves:
        leaf.tensor.untyped_storage().resize_(0)
