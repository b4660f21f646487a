"""The scenarios' stage: jobs that end with their test, nodes repaired after each one, and the run that nothing happened to."""

from __future__ import annotations

import functools
import shutil
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from e2e import faults, install
from e2e.cluster.driver import ClusterDriver
from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import is_reached
from e2e.demo.reference import run_uninterrupted
from e2e.images import Images
from e2e.jobs import Cluster, Job, condition, progress_step, verified_step
from e2e.workloads import digest
from e2e.workloads.job import TINY, JobPlan, Manifest, Workload

TEXT = Path(sysconfig.get_path("stdlib"))
START_SECONDS = 120.0
RECOVERY_SECONDS = 150.0
FINISH_SECONDS = 180.0
QUICK: Manifest = {"lostNodeSeconds": 15, "terminationSeconds": 10}
"""Recovery settings of the scenarios: a lost node is called lost after 15 s instead of 60."""


@dataclass
class Stage:
    """What one test may use. Every job it starts is deleted when the test ends."""

    driver: ClusterDriver
    images: Images
    cluster: Cluster
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="rtj-scenario-")))
    started: list[Job] = field(default_factory=list)

    def plan(self, name: str, workload: Workload = TINY, **changes: Any) -> JobPlan:
        """A job's plan; ``changes`` are fields of JobPlan."""
        shared = self.folder / name
        shared.mkdir(parents=True, exist_ok=True)
        base = JobPlan(name, workload, self.images.runtime.name, shared, TEXT, workers=2, recovery=QUICK)
        return replace(base, **changes)

    def start(self, plan: JobPlan, change: Callable[[Manifest], None] | None = None) -> Job:
        """Apply the plan; ``change`` edits the ResilientTrainingJob before."""
        manifest = install.with_torch(plan.job())
        if change is not None:
            change(manifest)
        self.cluster.apply(*plan.manifests(), manifest)
        job = self.cluster.job(plan.name)
        self.started.append(job)
        return job

    def testimony(self) -> str:
        """Everything a person would ask of a scenario that failed: incidents, events, the ends of all logs. What cannot be had is said."""
        words = ("--all-containers", "--prefix", "--timestamps", "--tail=150")
        asked: list[tuple[str, ...]] = []
        for job in self.started:  # what says most comes first: a reader may be shown only the beginning
            asked.append(("get", "rtj", job.name, "-n", job.namespace, "--output=jsonpath={.status.failures}"))
            asked.append(("get", "events", "-n", job.namespace, "--sort-by=.metadata.creationTimestamp"))
        asked += [("get", "pods", "-A", "--output=wide"), ("get", "nodes")]
        asked.append(("logs", "-n", install.NAMESPACE, "--selector=app.kubernetes.io/name=rtj", *words))
        for job in self.started:
            asked.append(("logs", "-n", job.namespace, f"--selector=rtj.dev/job-name={job.name}", *words))
            asked.append(("get", "rtj", job.name, "-n", job.namespace, "--output=yaml"))
        return "\n".join(f"$ kubectl {' '.join(words)}\n{self._ask(words)}" for words in asked)

    def _ask(self, words: tuple[str, ...]) -> str:
        try:
            return self.driver.kubectl(*words)
        except ClusterError as error:
            return f"(no answer: {error})"

    def close(self) -> None:
        """Repair the nodes, end what the test started, and unmark the nodes when no job can mark them again."""
        for name in self.driver.node_names():
            self.driver.heal(name)
            if not self._is_ready(name, seconds=6):
                self.driver.reboot(name)
        for job in self.started:
            job.delete()
        self._unmark_nodes()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _unmark_nodes(self) -> None:
        for name in self.driver.node_names():
            marks = self.cluster.nodes()[name]["metadata"]
            self.driver.kubectl("uncordon", name)
            for command, field_name in (("annotate", "annotations"), ("label", "labels")):
                keys = [f"{key}-" for key in marks.get(field_name, {}) if key.startswith("rtj.dev/")]
                if keys:
                    self.driver.kubectl(command, "node", name, *keys)

    def _is_ready(self, name: str, seconds: float) -> bool:
        def ready() -> bool:
            return condition(self.cluster.nodes()[name]["status"], "Ready") == "True"

        return is_reached(ready, seconds)

    def kill_rank(self, job: Job, rank: int, signal: str = "KILL", last_words: str | None = None) -> None:
        """Kill one rank of a job with one process per worker, where it runs."""
        faults.kill_rank(self.driver, job.node(rank), job.name, rank, signal, last_words)


def has_checkpoint(status: Manifest) -> bool:
    """Whether the present attempt has a verified checkpoint of its own, and a step after it."""
    newest = status.get("checkpoint") or {}
    return newest.get("attempt") == status.get("attempt") and progress_step(status) > verified_step(status) > 0


def failures(status: Manifest) -> list[str]:
    """What the operator says went wrong in each failed attempt, oldest first: an assertion on it shows the reason, not just a count."""
    return [f"attempt {failure['attempt']}: {failure['message']}" for failure in reversed(status.get("failures") or [])]


def is_running(status: Manifest) -> bool:
    """Whether the job says Running."""
    return condition(status, "Running") == "True"


def is_finished(status: Manifest) -> bool:
    """Whether the job ended, either way."""
    return condition(status, "Finished") == "True"


def is_complete(status: Manifest) -> bool:
    """Whether the job succeeded."""
    return condition(status, "Complete") == "True"


def running_in_attempt(attempt: int) -> Callable[[Manifest], bool]:
    """Whether that attempt (or a later one) runs."""
    return lambda status: is_running(status) and int(status.get("attempt", 0)) >= attempt


@functools.cache
def uninterrupted(workload: Workload, workers: int) -> dict[str, str]:
    """The digests of a run of that workload that nothing happened to; made once, by plain processes, which need not step slowly."""
    return run_uninterrupted(replace(workload, options=("--step-seconds=0",)), TEXT, workers)


def leaves(plan: JobPlan) -> dict[str, str]:
    """The digests that the job's ranks wrote."""
    return digest.read(plan.digests())
