"""What all ranks had sealed is committed and verified although the ranks are gone, and rtj-run leaves no process behind."""

from __future__ import annotations

from pathlib import Path

from tests.launch.harness import Launcher, is_running
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.store.posix import PosixStore

DIES_WHILE_SAVING = """
    import os, signal
    import torch
    import torch.distributed as dist
    import trainer_runtime as tr

    dist.init_process_group("gloo")
    run = tr.attach(model=torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3000, 2000)), save_every_steps=1)
    for _ in run.steps(max_steps=3):
        if run.global_step == 1:
            dist.barrier()  # both ranks have staged step 1
            rank = dist.get_rank()
            open(f"persister-{rank}", "w").write(str(run._saver._engine._persisting.link.pid))
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_save_that_all_ranks_had_sealed_is_verified_after_they_were_killed(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    run = launcher.start(DIES_WHILE_SAVING, "--nproc-per-node=2", environ={"RTJ_STORE": (tmp_path / "store").as_uri()})
    assert run.wait() == 128 + 9
    store = PosixStore(tmp_path / "store")
    assert list_committed(store, "default") == (StepName(1, 1),)
    reference = find_reference(store, "default", StepName(1, 1))
    assert reference is not None
    verify_checkpoint(store, reference)
    assert is_verified(store, reference)
    assert run.report.verified is not None
    assert run.report.verified.step == 1
    persisters = {int((launcher.folder / f"persister-{rank}").read_text()) for rank in range(2)}
    assert len(persisters) == 1, "one process for the worker"
    assert not is_running(persisters.pop())
