"""How fast a failure is decided on and how fast all workers step again, on a real cluster of this machine.

    python -m benchmarks.recovery [--json] [--repeats 5]

Each repeat kills one rank of a running job with SIGKILL and reads what the operator recorded. There is no peer in this run: the numbers
stand beside the bars of the design, and beside nothing else. It is not a test; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import tempfile
from pathlib import Path

from rich.console import Console

from e2e import install
from e2e.cluster.choice import choose_driver
from e2e.demo.narrator import Narrator
from e2e.demo.story import Story
from e2e.demo.timeline import Fault, relaunch_table
from e2e.jobs import Cluster
from e2e.workloads.job import TINY, JobPlan, Workload

NODES, WORKERS, NAME = 4, 3, "recovery"
DECISION_BAR_SECONDS = 5.0
"""Pod crash -> decision."""
OPERATOR_BAR_MB = 150.0

LONG = Workload("tiny", steps=100_000, save_every=10, options=TINY.options)


def summary(seconds: list[float]) -> dict[str, float]:
    """Median, least and greatest, in seconds."""
    return {"median": round(statistics.median(seconds), 2), "min": round(min(seconds), 2), "max": round(max(seconds), 2)}


def result(faults: list[Fault], operator_mb: float) -> dict[str, object]:
    """The JSON line."""
    return {
        "benchmark": "recovery",
        "repeats": len(faults),
        "workers": WORKERS,
        "crash_to_decision_s": summary([fault.detected_at - fault.done_at for fault in faults]),
        "crash_to_decision_bar_s": DECISION_BAR_SECONDS,
        "decision_to_first_step_s": summary([fault.stepping_at - fault.detected_at for fault in faults]),
        "decision_to_old_gang_stopped_s": summary([fault.stopped_at - fault.detected_at for fault in faults]),
        "containers_started_to_first_step_s": summary([fault.stepping_at - fault.started_at for fault in faults]),
        "operator_mb": round(operator_mb),
        "operator_bar_mb": OPERATOR_BAR_MB,
    }


def main() -> int:
    """Run it and print a table, or with ``--json`` end with one JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.recovery")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    console = Console(width=160, stderr=options.json)
    driver = choose_driver(console.print)
    with tempfile.TemporaryDirectory(prefix="rtj-recovery-") as shared:
        try:
            driver.up(NODES)
            images = install.load_images(driver)
            install.helm_install(driver, images, node=driver.node_names()[-1])
            cluster = Cluster(driver)
            text = Path(sysconfig.get_path("stdlib"))
            budgets = {"application": 1000, "infrastructure": 1000}
            plan = JobPlan(
                NAME, LONG, images.runtime.name, Path(shared), text, WORKERS, recovery={"terminationSeconds": 10, "budgets": budgets}
            )
            cluster.apply(plan.code(), install.with_torch(plan.job()))
            job = cluster.job(NAME)
            story = Story(job, Narrator(job, console))
            faults = [story.kill_rank(worker=repeat % WORKERS) for repeat in range(options.repeats)]
            memory = install.operator_memory(driver)
        finally:
            driver.down()
    console.print(relaunch_table(faults))
    print(json.dumps(result(faults, memory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
