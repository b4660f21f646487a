"""Faults done to a job from outside, so that the training script stays an honest one: it knows nothing of them.

A rank is found inside its node by its environment, its last words are written into its own standard error, and it is killed. Faults of
machines (power cut, partition) are the cluster driver's.
"""

from __future__ import annotations

from e2e.cluster.driver import ClusterDriver

ECC_LINE = "CUDA error: uncorrectable ECC error encountered"

# Runs in the node's own process namespace with a plain POSIX shell, as a kind node offers no more.
_FIND_RANK = """
for process in /proc/[0-9]*; do
  grep -qz '^RTJ_JOB_NAME={job}$' $process/environ 2>/dev/null || continue
  grep -qz '^RANK={rank}$' $process/environ 2>/dev/null || continue
  pid=${{process#/proc/}}
  {action}
  exit 0
done
echo 'no process of rank {rank} of job {job} here' >&2
exit 1
"""


def kill_rank(driver: ClusterDriver, node: str, job: str, rank: int, signal: str = "KILL", last_words: str | None = None) -> None:
    """Kill one rank on ``node`` with ``signal``, after it "printed" ``last_words``. Raises ClusterError when it is not there."""
    speak = f"echo '{last_words}' > /proc/$pid/fd/2; " if last_words else ""
    driver.exec(node, ["sh", "-c", _FIND_RANK.format(job=job, rank=rank, action=f"{speak}kill -{signal} $pid")])
