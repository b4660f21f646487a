"""Images that are missing: on one node the job goes elsewhere, on all nodes it fails and says so."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.jobs import condition
from e2e.scenarios.stage import RECOVERY_SECONDS, START_SECONDS, Stage, is_finished, running_in_attempt

pytestmark = pytest.mark.e2e

CTR = ["ctr", "-n", "k8s.io", "images"]


def test_an_image_missing_on_one_node_moves_the_job_off_that_node(stage: Stage) -> None:
    node = stage.driver.node_names()[0]
    stage.driver.exec(node, [*CTR, "rm", "--sync", stage.images.runtime.name])

    def prefer(job: dict[str, Any]) -> None:
        wish = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        affinity = job["spec"]["template"]["spec"]["affinity"]
        affinity["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": wish}]}

    try:
        job = stage.start(stage.plan("oneshort"), prefer)
        status = job.wait("a later attempt", running_in_attempt(2), START_SECONDS + RECOVERY_SECONDS)
        assert status["lastFailure"]["row"] == "14"
        assert [item["node"] for item in status["excludedNodes"]] == [node]
    finally:
        stage.driver.load_image(stage.images.runtime.archive)


def test_an_image_missing_everywhere_fails_the_job_without_a_retry(stage: Stage) -> None:
    job = stage.start(stage.plan("noimage", image="localhost/rtj-nobody:0"))
    status = job.wait("the end", is_finished, 300)
    assert condition(status, "Failed") == "True"
    assert status["restarts"]["total"] <= 1
    message = next(item["message"] for item in status["conditions"] if item["type"] == "Failed")
    assert "localhost/rtj-nobody:0" in message or "ErrImageNeverPull" in message
