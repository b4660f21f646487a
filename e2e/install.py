"""Installs the product on a test cluster as a user would: images on the nodes, the Helm chart, and torch lent to training pods."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

from e2e.cluster.driver import ClusterDriver
from e2e.images import Images, build_all
from e2e.images.venv_mount import host_site_packages, with_packages

CHART: Final = Path(__file__).resolve().parent.parent / "charts" / "rtj"
NAMESPACE: Final = "rtj-system"
RELEASE: Final = "rtj"
INSTALL_SECONDS: Final = 120
METRICS_PORT: Final = 8080
"""The chart's default."""


def load_images(driver: ClusterDriver) -> Images:
    """Build the operator's and the runtime's image from this tree and put them on every node."""
    images = build_all()
    driver.load_image(images.runtime.archive)
    # The operator runs on one node; the others unpack its image if it ever moves there.
    driver.load_image(images.operator.archive, unpack=False)
    return images


def helm_install(driver: ClusterDriver, images: Images, node: str | None = None, *settings: str) -> None:
    """``helm upgrade --install --wait``. ``node`` pins the operator there; ``settings`` are further ``--set`` arguments."""
    repository, _, tag = images.operator.name.rpartition(":")
    values = [f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=IfNotPresent", *settings]
    if node is not None:
        values.append(rf"nodeSelector.kubernetes\.io/hostname={node}")
    flags = [argument for value in values for argument in ("--set-string" if value.startswith("nodeSelector") else "--set", value)]
    where = ["--namespace", NAMESPACE, "--create-namespace"]
    waiting = ["--wait", f"--timeout={INSTALL_SECONDS}s"]
    driver.helm("upgrade", "--install", RELEASE, str(CHART), *where, *waiting, *flags, seconds=INSTALL_SECONDS + 30)


def operator_memory(driver: ClusterDriver) -> float:
    """Resident memory of the running operator in MB, as its own metrics say."""
    selector = ["-l", "app.kubernetes.io/name=rtj", "--field-selector=status.phase=Running"]
    pod = driver.kubectl("get", "pods", "-n", NAMESPACE, *selector, "-o", "jsonpath={.items[0].metadata.name}")
    metrics = driver.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{METRICS_PORT}/proxy/metrics")
    line = next(line for line in metrics.splitlines() if line.startswith("process_resident_memory_bytes"))
    return float(line.split()[1]) / 1e6


def with_torch(job: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a job whose pods find this machine's torch."""
    lent = copy.deepcopy(job)
    lent["spec"]["template"] = with_packages(lent["spec"]["template"], host_site_packages())
    return lent
