"""The demo's acts: train, cut the power of a node, break a GPU, finish. Each act waits for what the operator says, with a deadline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from e2e import faults
from e2e.demo.narrator import Narrator
from e2e.demo.timeline import Fault, unix
from e2e.jobs import Job, condition, progress_step, verified_step

START_SECONDS = 180.0
STEP_SECONDS = 120.0
RECOVERY_SECONDS = 180.0
FINISH_SECONDS = 420.0
STEPS_TO_LOSE = 4
"""Steps made after the newest verified checkpoint before a fault is done, so that something is lost."""


@dataclass
class Story:
    """One job, and who tells what happens to it."""

    job: Job
    narrator: Narrator

    def wait_for_steps_worth_losing(self) -> tuple[int, int]:
        """Wait until an attempt has a verified checkpoint of its own and a few steps more. Returns the attempt and the step reached."""

        def ripe(status: dict[str, Any]) -> bool:
            newest = status.get("checkpoint") or {}
            is_its_own = newest.get("attempt") == status.get("attempt")
            return is_its_own and verified_step(status) > 0 and self._step() >= verified_step(status) + STEPS_TO_LOSE

        status = self.job.wait("a verified checkpoint and steps after it", ripe, STEP_SECONDS, self.narrator.watch)
        return int(status["attempt"]), self._step()

    def _step(self) -> int:
        """The last step that the script itself printed."""
        lines = [line.split() for line in self.job.log(0).splitlines() if line.startswith("step ")]
        return int(lines[-1][1]) if lines else -1

    def cut_power(self, worker: int) -> Fault:
        """Power-cut the node of ``worker`` and wait for the recovery."""
        attempt, step = self.wait_for_steps_worth_losing()
        node = self.job.node(worker)
        self.narrator.say(f"[bold red]FAULT[/bold red]  power cut of {node}, the node of worker {worker}, at step {step}")
        done_at = time.time()
        self.job.cluster.driver.crash(node)
        return self._recovered(f"power cut of {node}", done_at, attempt, step)

    def break_gpu(self, worker: int) -> Fault:
        """Let one rank of ``worker`` print an uncorrectable ECC error and die, and wait for the recovery."""
        attempt, step = self.wait_for_steps_worth_losing()
        node = self.job.node(worker)
        self.narrator.say(f"[bold red]FAULT[/bold red]  rank {worker} on {node} prints '{faults.ECC_LINE}' and dies, at step {step}")
        done_at = time.time()
        faults.kill_rank(self.job.cluster.driver, node, self.job.name, rank=worker, signal="ABRT", last_words=faults.ECC_LINE)
        return self._recovered(f"ECC error on {node}", done_at, attempt, step)

    def kill_rank(self, worker: int) -> Fault:
        """Kill the rank of ``worker`` (one process per worker) with SIGKILL, and wait for the recovery."""
        attempt, step = self.wait_for_steps_worth_losing()
        node = self.job.node(worker)
        self.narrator.say(f"[bold red]FAULT[/bold red]  SIGKILL of rank {worker} on {node}, at step {step}")
        done_at = time.time()
        faults.kill_rank(self.job.cluster.driver, node, self.job.name, rank=worker)
        return self._recovered(f"SIGKILL of rank {worker}", done_at, attempt, step)

    def finish(self) -> dict[str, Any]:
        """Wait for the end. Raises AssertionError when the job failed."""
        status = self.job.wait("the end", lambda status: condition(status, "Finished") == "True", FINISH_SECONDS, self.narrator.watch)
        if condition(status, "Complete") != "True":
            raise AssertionError(f"the job ended as {status.get('phase')}: {status.get('conditions')}")
        return status

    def _recovered(self, name: str, done_at: float, attempt: int, step_before: int) -> Fault:

        def stepping(status: dict[str, Any]) -> bool:
            resumed = (status.get("resumedFrom") or {}).get("step", -1)
            return status.get("phase") == "Running" and int(status["attempt"]) > attempt and progress_step(status) > resumed

        status = self.job.wait("the first step after the fault", stepping, RECOVERY_SECONDS, self.narrator.watch)
        stepping_at = time.time()
        failure = status["lastFailure"]
        pods = self.job.pods(status["gang"])
        return Fault(
            name=name,
            done_at=done_at,
            detected_at=unix(failure["at"]),
            stopped_at=unix(status["attemptStartedAt"]),
            scheduled_at=max(_scheduled_at(pod) for pod in pods),
            started_at=max(unix(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]) for pod in pods),
            stepping_at=stepping_at,
            step_before=step_before,
            resumed_from=int(status["resumedFrom"]["step"]),
            cause=failure["cause"],
            row=f"row {failure['row']}",
            node_action=failure.get("nodeAction", "") or "none",
        )


def _scheduled_at(pod: dict[str, Any]) -> float:
    return next(unix(item["lastTransitionTime"]) for item in pod["status"]["conditions"] if item["type"] == "PodScheduled")
