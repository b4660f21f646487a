"""The uninterrupted run that the demo compares with: the same script, data and world size, as plain processes without any fault."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.workloads import digest
from e2e.workloads.job import HERE, Workload

DEADLINE_SECONDS = 900


def run_uninterrupted(workload: Workload, text: Path, workers: int) -> dict[str, str]:
    """Train to the end with torchrun on this machine and return the digest of every leaf. Raises RuntimeError with the log's end."""
    with tempfile.TemporaryDirectory(prefix="rtj-reference-") as name:
        folder = Path(name)
        (folder / "store").mkdir()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RTJ_", "PET_"))}
        environment |= {"OMP_NUM_THREADS": "1", "RTJ_STORE": f"file://{folder / 'store'}", "RTJ_RUN": "reference"}
        environment |= {"RTJ_SAVE_EVERY_STEPS": str(workload.save_every), "PYTHONPATH": str(HERE)}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        command = [*torchrun, str(workload.path), *workload.arguments(text, folder / "digests")]
        with (folder / "log").open("w+") as log:
            done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=DEADLINE_SECONDS, check=False)
            if done.returncode != 0:
                log.seek(0)
                raise RuntimeError(f"the uninterrupted run failed with exit code {done.returncode}:\n{log.read()[-4000:]}")
        return digest.read(folder / "digests")
