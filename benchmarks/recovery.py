"""How fast a failure is decided on and how fast all workers step again, on a real cluster of this machine.

    python -m benchmarks.recovery [--json] [--repeats 7]

Each repeat kills one rank of a running job with SIGKILL and reads what the operator recorded. There is no peer in this run: the numbers
stand beside the bars of the design, and beside nothing else. It is not a test; nothing is asserted.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.measuring import bar, median, options, publish, spread
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


def result(faults: list[Fault], operator_mb: float) -> dict[str, object]:
    """What the JSON line says."""
    decision = [fault.detected_at - fault.done_at for fault in faults]
    return {
        "repeats": len(faults),
        "workers": WORKERS,
        "crash_to_decision_s": spread(decision, 2),
        "decision_to_first_step_s": spread([fault.stepping_at - fault.detected_at for fault in faults], 2),
        "decision_to_old_gang_stopped_s": spread([fault.stopped_at - fault.detected_at for fault in faults], 2),
        "containers_started_to_first_step_s": spread([fault.stepping_at - fault.started_at for fault in faults], 2),
        "operator_mb": round(operator_mb),
        "bars": [
            bar("seconds from a pod's crash to the decision", median(decision, 2), at_most=DECISION_BAR_SECONDS),
            bar("operator with one job, MB resident", round(operator_mb), at_most=OPERATOR_BAR_MB),
        ],
    }


def main() -> int:
    """Run it and print a table, or with ``--json`` end with one JSON line."""
    chosen = options(__doc__).parse_args()
    console = Console(width=160, stderr=chosen.json)
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
            faults = [story.kill_rank(worker=repeat % WORKERS) for repeat in range(chosen.repeats)]
            memory = install.operator_memory(driver)
        finally:
            driver.down()
    console.print(relaunch_table(faults))
    publish("recovery", result(faults, memory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
