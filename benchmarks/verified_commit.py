"""How long a save takes until every byte of it was written, committed, read back and proven, beside saves that prove nothing.

    python -m benchmarks.verified_commit [--json] [--repeats 7] [--gigabytes 2]

`ours_s` runs from the call to the verified mark; `ours_cpu_s_per_gb` is the processor time of trainer and persister for it, per 10^9 bytes.
`dcp_save_s` is `torch.distributed.checkpoint.save`, `torch_checkpointing_s` that package's save until its future is done, where it is
installed. Neither of them reads back.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from benchmarks import measuring, saving

DCP_BAR = 1.3
"""Most that a verified save may take of the time of DCP's unverified one."""
CPU_BAR = 0.8
PEER = "torch_checkpointing"


class Contest:
    """The contestants, each called once per round; a call returns seconds until the save has ended."""

    def __init__(self, directory: Path, gigabytes: float) -> None:
        self._directory = directory
        self._state = saving.make_state(gigabytes)
        self._snapshot = saving.snapshot_of(self._state)
        self._gigabytes = saving.size_of(self._state) / 1e9
        self._number = 0
        self.cpu: list[float] = []
        self.dcp_cpu: list[float] = []

    def ours(self) -> float:
        """The second save of a fresh attempt."""
        attempt = saving.Saving(self._directory / "ours")
        attempt.stage(self._snapshot)
        attempt.wait()
        cpu = time.process_time() + saving.cpu_seconds(attempt.persister_pid)
        began = time.perf_counter()
        attempt.stage(self._snapshot)
        attempt.wait()
        seconds = time.perf_counter() - began
        self.cpu.append((time.process_time() + saving.cpu_seconds(attempt.persister_pid) - cpu) / self._gigabytes)
        attempt.close()
        saving.forget(self._directory / "ours")
        return seconds

    def dcp_save(self) -> float:
        """DCP's synchronous save, which writes at the final path and proves nothing."""
        cpu = time.process_time()
        seconds = self._into(lambda path: dcp.save(self._state, checkpoint_id=path))
        self.dcp_cpu.append((time.process_time() - cpu) / self._gigabytes)
        return seconds

    def torch_checkpointing(self) -> float:
        """The package's own asynchronous save, waited for."""
        package: Any = importlib.import_module(PEER)
        manager = package.CheckpointManager(package.CheckpointManager.Config.with_async_save())
        try:
            manager.save(str(self._directory / "warm"), {"state": self._state}).result()
            return self._into(lambda path: manager.save(str(path), {"state": self._state}).result())
        finally:
            manager.close()
            saving.forget(self._directory / "warm")

    def why_no_peer(self) -> str:
        """Return why the package cannot take part, or nothing when a save by it succeeded."""
        if importlib.util.find_spec(PEER) is None:
            return "not installed; pip install torch-checkpointing"
        try:
            self.torch_checkpointing()
        except Exception as error:  # whatever a package that is not ours raises is the reason
            return f"its save as it comes fails on this file system: {type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        return ""

    def _into(self, save: Any) -> float:
        self._number += 1
        path = self._directory / f"peer{self._number}"
        seconds = saving.timed(lambda: save(path))
        saving.forget(path)
        return seconds


def main() -> int:
    """Measure, print a table and one JSON line."""
    given = saving.options(__doc__).parse_args()
    with saving.scratch(given.directory) as directory, saving.alone_in_a_group(directory):
        contest = Contest(directory, given.gigabytes)
        contestants = {"ours_s": contest.ours, "dcp_save_s": contest.dcp_save}
        reason = contest.why_no_peer()
        if not reason:
            contestants["torch_checkpointing_s"] = contest.torch_checkpointing
        results = measuring.take_turns(contestants, given.repeats)
    results["ours_cpu_s_per_gb"], results["dcp_cpu_s_per_gb"] = contest.cpu, contest.dcp_cpu
    values: dict[str, Any] = {
        "gigabytes": given.gigabytes,
        "tensors": saving.TENSORS,
        "repeats": given.repeats,
        **{name: measuring.spread(measured) for name, measured in results.items()},
        "bars": [
            measuring.bar("ours, verified / dcp.save", measuring.ratio(results["ours_s"], results["dcp_save_s"]), at_most=DCP_BAR),
            measuring.bar("processor seconds per GB", measuring.median(contest.cpu), at_most=CPU_BAR),
        ],
    }
    if reason:
        values |= {"torch_checkpointing_s": None, "torch_checkpointing_reason": reason}
    measuring.publish("verified_commit", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
