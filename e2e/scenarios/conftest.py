"""The cluster that all scenarios share, and the images on it. Made once; tests that want none come first."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from e2e.cluster.bare import BareCluster
from e2e.cluster.choice import choose_driver
from e2e.cluster.driver import ClusterDriver
from e2e.images import Images, build_all
from e2e.install import helm_install
from e2e.jobs import Cluster
from e2e.scenarios.stage import Stage

NODES = 4


@pytest.fixture(scope="session")
def images() -> Images:
    """The images of this tree."""
    return build_all()


@pytest.fixture(scope="session")
def cluster(images: Images) -> Iterator[ClusterDriver]:
    """A cluster of four nodes with both images on each; it is removed at the end, whatever happened to it."""
    driver = choose_driver()
    try:
        driver.up(NODES)
        driver.load_image(images.runtime.archive)
        # The operator runs on one node; the others unpack its image if it ever moves there.
        driver.load_image(images.operator.archive, unpack=False)
        yield driver
    finally:
        driver.down()


@pytest.fixture(scope="session")
def product(cluster: ClusterDriver, images: Images) -> ClusterDriver:
    """The cluster with the product installed as a user would: by its Helm chart."""
    helm_install(cluster, images)
    return cluster


@pytest.fixture
def stage(product: ClusterDriver, images: Images) -> Iterator[Stage]:
    """What one scenario uses; its jobs end and its nodes are repaired with it."""
    stage = Stage(product, images, Cluster(product))
    try:
        yield stage
    finally:
        stage.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what the cluster knows into a failed scenario's report: its jobs and nodes are gone when a person reads it."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.when == "call" and report.failed and isinstance(stage, Stage):
        report.sections.append(("what the cluster knows", stage.testimony()))
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run first what brings its own cluster up, as there is only room for one on a machine. It is about the bare cluster alone."""
    own = [item for item in items if "no_cluster" in getattr(item, "fixturenames", ())]
    others = [item for item in items if item not in own]
    if isinstance(choose_driver(lambda line: None), BareCluster):
        items[:] = [*own, *others]
    else:
        items[:] = others
        config.hook.pytest_deselected(items=own)
