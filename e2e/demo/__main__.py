"""``make demo``: the main job end to end, with real faults, compared bit for bit with a run that had none.

STORE=s3      checkpoints go to an S3 server (gofakes3 on this machine) instead of a shared directory
DEMO_KEEP=1   leave the cluster up at the end and say how to look around
CLUSTER=bare  or kind: which cluster, when both can be had
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from e2e import install
from e2e.cluster.choice import choose_driver
from e2e.cluster.driver import ClusterDriver
from e2e.demo.narrator import Narrator
from e2e.demo.reference import run_uninterrupted
from e2e.demo.story import Story
from e2e.demo.timeline import Fault, differing_leaves, fault_table, judge, relaunch_table
from e2e.images import Images
from e2e.jobs import Cluster
from e2e.s3 import ObjectStore, serving
from e2e.workloads import digest
from e2e.workloads.job import GPT, JobPlan

STORES = ("file", "s3")
NODES, WORKERS, NAME = 4, 3, "gpt"
RECOVERY = {"lostNodeSeconds": 15, "terminationSeconds": 15}
"""A node counts as lost 15 s after its last sign of life (default 60), so that the demo stays short."""


def main() -> int:
    """Run the demo. Exit code 0 only when both recoveries lost steps, none began at 0, and every leaf is equal."""
    if os.environ.get("STORE", "file") not in STORES:
        print(f"STORE: {os.environ['STORE']!r} is not one of {', '.join(STORES)}", file=sys.stderr)
        return 2
    console = Console(width=160)
    text = Path(sysconfig.get_path("stdlib"))
    spent: dict[str, float] = {}
    shared = Path(tempfile.mkdtemp(prefix="rtj-demo-"))
    driver = choose_driver(console.print)
    keep = os.environ.get("DEMO_KEEP") == "1"
    try:
        cluster, images = _prepare(driver, console, spent)
        with _timed(spent, "uninterrupted run"):
            console.rule("the uninterrupted run, for comparison")
            reference = run_uninterrupted(GPT, text, WORKERS)
            console.print(f"{GPT.steps} steps on {WORKERS} ranks, {len(reference)} leaves digested")
        with _timed(spent, "the job with its faults"):
            console.rule("the job")
            with _object_store(shared) as objects:
                plan = JobPlan(NAME, GPT, images.runtime.name, shared, text, WORKERS, recovery=RECOVERY, objects=objects)
                happened = _play(cluster, console, plan)
        console.print(f"operator with one job: {install.operator_memory(driver):.0f} MB resident")
        ours = digest.read(plan.digests())
    finally:
        if keep:
            console.print(f"left up: KUBECONFIG={driver.kubeconfig()}; try 'kubectl describe rtj {NAME}'; end it with 'make cluster-down'")
        else:
            driver.down()
            shutil.rmtree(shared, ignore_errors=True)
    return _conclude(console, happened, ours, reference, spent)


def _prepare(driver: ClusterDriver, console: Console, spent: dict[str, float]) -> tuple[Cluster, Images]:
    with _timed(spent, "build and start the cluster"):
        console.rule("cluster")
        driver.up(NODES)
    with _timed(spent, "build and load the images"):
        console.rule("images")
        images = install.load_images(driver)
    cluster = Cluster(driver)
    with _timed(spent, "helm install"):
        console.rule("helm install")
        install.helm_install(driver, images, node=driver.node_names()[-1])
        console.print(driver.kubectl("get", "nodes,pods", "--all-namespaces"), markup=False)
    return cluster, images


@contextlib.contextmanager
def _object_store(shared: Path) -> Iterator[ObjectStore | None]:
    """The S3 server that STORE=s3 asks for; none for STORE=file, the default."""
    if os.environ.get("STORE", "file") == "file":
        yield None
        return
    directory = shared / "s3"
    directory.mkdir()
    with serving(directory) as objects:
        yield objects


def _play(cluster: Cluster, console: Console, plan: JobPlan) -> list[Fault]:
    cluster.apply(*plan.manifests(), install.with_torch(plan.job()))
    handle = cluster.job(NAME)
    story = Story(handle, Narrator(handle, console))
    happened = [story.cut_power(worker=1), story.break_gpu(worker=2)]
    story.finish()
    return happened


def _conclude(console: Console, happened: list[Fault], ours: dict[str, str], reference: dict[str, str], spent: dict[str, float]) -> int:
    console.print(fault_table(happened))
    console.print(relaunch_table(happened))
    console.print(
        "time spent: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in spent.items()) + f", in all {sum(spent.values()):.0f} s"
    )
    console.print(f"sha256 of all leaves, job with faults:    {digest.combined(ours)}")
    console.print(f"sha256 of all leaves, uninterrupted run:  {digest.combined(reference)}")
    reasons = judge(happened, ours, reference)
    for reason in reasons:
        console.print(reason, style="bold red", markup=False)
    answer = "yes" if reference and not differing_leaves(ours, reference) else "no"
    print(f"final state equal to the uninterrupted run: {answer} ({len(ours)} leaves, sha256 {digest.combined(ours)})", flush=True)
    return 1 if reasons else 0


@contextlib.contextmanager
def _timed(spent: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    spent[name] = time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
