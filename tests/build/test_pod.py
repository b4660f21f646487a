"""The pod is the user's template with rtj's own around it, byte for byte, and nothing of the input changes."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtj_operator.api.v1alpha1 import AttemptResume, ExcludedNode, Job, JobStatus
from rtj_operator.build.environment import HeartbeatEndpoint
from rtj_operator.build.names import pod_name
from rtj_operator.build.pod import build_pod
from rtj_operator.build.service import build_service
from tests.api.jobs import stored
from trainer_runtime.contract import environment as names
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import loads

GOLDEN = Path(__file__).parent / "golden"
ENDPOINT = HeartbeatEndpoint(
    url="https://rtj-heartbeat.rtj-system.svc:8443", ca_pem="-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
)
T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATUS = JobStatus(attempt=1, gang=1)
CONTAINER = "spec.template.spec.containers.0"

RICH: dict[str, Any] = {
    "spec.procsPerWorker": 2,
    "spec.checkpoint.run": "team-a.gpt",
    "spec.checkpoint.every": {"steps": 500, "seconds": 7200},
    "spec.checkpoint.keep": {"last": 3, "everySteps": 1000, "best": {"metric": "loss"}, "daily": 7, "weekly": 4},
    "spec.checkpoint.allow": ["worldSize", "data"],
    "spec.checkpoint.local": {"path": "/scratch/ckpt"},
    "spec.checkpoint.archive": {"store": "s3://archive/team-a", "everySteps": 10000},
    "spec.checkpoint.s3": {"endpoint": "https://s3.example", "region": "eu-1"},
    "spec.recovery": {"terminationSeconds": 60, "startSeconds": 600},
    "spec.template.metadata": {"labels": {"team": "a", "rtj.dev/gang": "forged"}, "annotations": {"note": "kept"}},
    "spec.template.spec.tolerations": [{"key": "gpu", "operator": "Exists"}],
    "spec.template.spec.aFieldOfANewerCluster": {"kept": True},
    "spec.template.spec.affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}]
            }
        }
    },
    f"{CONTAINER}.env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
    f"{CONTAINER}.resources": {"limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}},
    f"{CONTAINER}.terminationMessagePath": "/tmp/end",
    f"{CONTAINER}.volumeMounts": [
        {"name": "checkpoints", "mountPath": "/checkpoints"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": "/scratch"},
    ],
    "spec.template.spec.volumes": [
        {"name": "checkpoints", "nfs": {"server": "nfs.example", "path": "/ckpt"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "scratch", "hostPath": {"path": "/mnt/nvme"}},
    ],
}
RICH_STATUS = JobStatus(
    attempt=12,
    gang=11,
    resume_point=AttemptResume(
        step=1500, attempt=10, uri="file:///checkpoints/team-a.gpt/steps/0000001500-00000010", manifest_sha256="ab" * 32
    ),
    excluded_nodes=(ExcludedNode(node="n7", cause="gpu_ecc_uncorrectable", since=T0, until=T0),),
)


def as_file(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


@pytest.mark.parametrize(
    ("file", "document"),
    [
        pytest.param("pod-plain.json", build_pod(Job.parse(stored()), 0, STATUS, ENDPOINT), id="a plain job"),
        pytest.param("pod-rich.json", build_pod(Job.parse(stored(RICH)), 2, RICH_STATUS, ENDPOINT), id="a job that uses everything"),
        pytest.param("service.json", build_service(Job.parse(stored())), id="the service"),
    ],
)
def test_the_object_is_what_it_was_byte_for_byte(file: str, document: dict[str, Any]) -> None:
    assert as_file(document) == (GOLDEN / file).read_text()


def test_the_job_is_not_changed() -> None:
    job = Job.parse(stored(RICH))
    before = copy.deepcopy(job.raw_template)
    build_pod(job, 0, RICH_STATUS, ENDPOINT)["spec"]["containers"][0]["env"].clear()
    assert job.raw_template == before


def environment_of(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][container]["env"]}


def test_the_assignment_in_the_pod_reads_back() -> None:
    value = environment_of(build_pod(Job.parse(stored(RICH)), 2, RICH_STATUS, ENDPOINT))[names.ASSIGNMENT]
    assignment = loads(Assignment, value)
    assert (assignment.attempt, assignment.worker_index, assignment.world_size) == (12, 2, 6)
    assert assignment.resume is not None and assignment.resume.step == 1500


def test_what_kubernetes_would_expand_in_a_value_is_escaped() -> None:
    endpoint = HeartbeatEndpoint(url="https://$(HOME)", ca_pem="")
    assert environment_of(build_pod(Job.parse(stored()), 0, STATUS, endpoint))[names.HEARTBEAT_URL] == "https://$$(HOME)"


def test_only_the_trainer_is_wired() -> None:
    job = Job.parse(stored())
    (trainer,) = job.raw_template["spec"]["containers"]
    two = Job.parse(stored({"spec.template.spec.containers": [{"name": "logs", "image": "l"}, trainer]}))
    pod = build_pod(two, 0, STATUS, ENDPOINT)
    assert pod["spec"]["containers"][0] == {"name": "logs", "image": "l"}
    assert names.ASSIGNMENT in environment_of(pod, 1)
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "trainer"


def test_an_excluded_node_is_named_by_its_hostname_label() -> None:
    pod = build_pod(Job.parse(stored()), 0, RICH_STATUS, ENDPOINT, hostnames={"n7": "host-7"})
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["host-7"]


def test_the_longest_names_fit_into_a_host_name() -> None:
    assert len(pod_name("a" * 40, 99_999_999, 4095)) <= 63


PATHS = [
    "metadata",
    "metadata.labels",
    "spec",
    "spec.affinity",
    "spec.affinity.nodeAffinity",
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
    "spec.containers",
    "spec.containers.0.name",
    "spec.containers.0.env",
    "spec.containers.0.volumeMounts",
    "spec.containers.0.resources",
    "spec.volumes",
    "spec.volumes.0",
    "spec.initContainers",
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(PATHS), JSON_VALUES)
def test_a_template_of_any_shape_is_refused_as_spec_or_built(path: str, value: Any) -> None:
    job = Job.parse(stored({f"spec.template.{path}": value}))
    if job.spec is not None:
        build_pod(job, 0, RICH_STATUS, ENDPOINT)
