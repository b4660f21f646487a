"""Wrong manifests, and what the user is told about each. The API server (`test_wrong_manifests`) and the models (`test_job`) read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.api.jobs import REMOVED, TEMPLATE

SOURCE = "file:///checkpoints/other/steps/0000000500-00000002"
_S3 = {"spec.checkpoint.store": "s3://bucket/prefix"}
_CONTAINER = "spec.template.spec.containers.0"


@dataclass(frozen=True)
class Wrong:
    """One wrong manifest: changes to the correct one, the field that is named, and a part of what is said."""

    id: str
    changes: dict[str, Any]
    field: str
    says: str = ""
    server_only: bool = False
    """The models cannot see it (the object's own name), so only the API server refuses it."""


WRONG = [
    Wrong("no workers", {"spec.workers": REMOVED}, "spec.workers"),
    Wrong("zero workers", {"spec.workers": 0}, "spec.workers"),
    Wrong("workers as a word", {"spec.workers": "three"}, "spec.workers"),
    Wrong("procs per worker as a word that is not auto", {"spec.procsPerWorker": "gpu"}, "spec.procsPerWorker"),
    Wrong("no processes", {"spec.procsPerWorker": 0}, "spec.procsPerWorker"),
    Wrong("no store", {"spec.checkpoint": {}}, "spec.checkpoint.store"),
    Wrong("a store without a scheme", {"spec.checkpoint.store": "/checkpoints"}, "spec.checkpoint.store", "file:///<path> or s3://"),
    Wrong("a store of another scheme", {"spec.checkpoint.store": "gs://bucket/a"}, "spec.checkpoint.store", "file:///<path> or s3://"),
    Wrong("a store without a path", {"spec.checkpoint.store": "file:///"}, "spec.checkpoint.store", "below /"),
    Wrong("a bucket in capitals", {"spec.checkpoint.store": "s3://Bucket/a"}, "spec.checkpoint.store", "lower-case"),
    Wrong("a bucket of two letters", {"spec.checkpoint.store": "s3://ab"}, "spec.checkpoint.store", "3 to 63"),
    Wrong("a bucket with two dots in a row", {"spec.checkpoint.store": "s3://a..b/c"}, "spec.checkpoint.store", "no '..'"),
    Wrong("a bucket that is an address", {"spec.checkpoint.store": "s3://10.0.0.1/a"}, "spec.checkpoint.store", "IPv4"),
    Wrong("a prefix with an empty part", {"spec.checkpoint.store": "s3://bucket//a"}, "spec.checkpoint.store", "single slashes"),
    Wrong("a prefix that climbs", {"spec.checkpoint.store": "s3://bucket/a/../b"}, "spec.checkpoint.store", "'..'"),
    Wrong("s3 settings without an s3 store", {"spec.checkpoint.s3": {"region": "eu-1"}}, "spec.checkpoint", "begins with s3://"),
    Wrong("an endpoint without a scheme", {**_S3, "spec.checkpoint.s3": {"endpoint": "s3.example"}}, "spec.checkpoint.s3.endpoint", "http"),
    Wrong(
        "a password in an endpoint",
        {**_S3, "spec.checkpoint.s3": {"endpoint": "https://me:secret@s3.example"}},
        "spec.checkpoint.s3.endpoint",
        "without a user name",
    ),
    Wrong("an allow word nobody knows", {"spec.checkpoint.allow": ["everything"]}, "spec.checkpoint.allow.0", "worldSize"),
    Wrong("a best one without a metric", {"spec.checkpoint.keep": {"best": {}}}, "spec.checkpoint.keep.best.metric"),
    Wrong(
        "a best one of an unknown mode",
        {"spec.checkpoint.keep": {"best": {"metric": "loss", "mode": "lowest"}}},
        "spec.checkpoint.keep.best.mode",
        "min",
    ),
    Wrong("no daily ones", {"spec.checkpoint.keep": {"daily": 0}}, "spec.checkpoint.keep.daily", "1"),
    Wrong("weekly ones for centuries", {"spec.checkpoint.keep": {"weekly": 5201}}, "spec.checkpoint.keep.weekly", "520"),
    Wrong("a source without a URI", {"spec.checkpoint.resumeFrom": {"mode": "Strict"}}, "spec.checkpoint.resumeFrom.uri"),
    Wrong(
        "a source that is a run",
        {"spec.checkpoint.resumeFrom": {"uri": "file:///checkpoints/other"}},
        "spec.checkpoint.resumeFrom.uri",
        "<store>/<run>/steps/<step 10 digits>-<attempt 8 digits>",
    ),
    Wrong(
        "a source of an unknown mode",
        {"spec.checkpoint.resumeFrom": {"uri": SOURCE, "mode": "Warm"}},
        "spec.checkpoint.resumeFrom.mode",
        "WarmStart",
    ),
    Wrong(
        "a source and a fresh start",
        {"spec.checkpoint.resumeFrom": {"uri": SOURCE}, "spec.checkpoint.startFresh": True},
        "spec.checkpoint",
        "startFresh and",
    ),
    Wrong("a local tier without a path", {"spec.checkpoint.local": {}}, "spec.checkpoint.local.path"),
    Wrong("a local path that climbs", {"spec.checkpoint.local": {"path": "/a/../b"}}, "spec.checkpoint.local.path", "'..'"),
    Wrong("a relative local path", {"spec.checkpoint.local": {"path": "scratch"}}, "spec.checkpoint.local.path", "absolute"),
    Wrong("an archive without a store", {"spec.checkpoint.archive": {"everySteps": 10}}, "spec.checkpoint.archive.store"),
    Wrong(
        "an archive in a bucket that cannot be", {"spec.checkpoint.archive": {"store": "s3://A"}}, "spec.checkpoint.archive.store", "3 to"
    ),
    Wrong(
        "an archive in the store itself",
        {"spec.checkpoint.archive": {"store": "file:///checkpoints"}},
        "spec.checkpoint",
        "the same place",
    ),
    Wrong("a store that climbs", {"spec.checkpoint.store": "file:///checkpoints/../etc"}, "spec.checkpoint.store", "'..'"),
    Wrong("a run that climbs", {"spec.checkpoint.run": "a..b"}, "spec.checkpoint.run", "'..'"),
    Wrong("never save", {"spec.checkpoint.every": {}}, "spec.checkpoint.every", "at least one of steps and seconds"),
    Wrong("keep one checkpoint", {"spec.checkpoint.keep": {"last": 1}}, "spec.checkpoint.keep.last", "2"),
    Wrong("an unknown remediation", {"spec.recovery": {"nodeRemediation": "Delete"}}, "spec.recovery.nodeRemediation", "Cordon"),
    Wrong("a bare Off, which YAML reads as false", {"spec.recovery": {"nodeRemediation": False}}, "spec.recovery.nodeRemediation"),
    Wrong("an environment name of torchrun's", {f"{_CONTAINER}.env": [{"name": "RANK", "value": "0"}]}, f"{_CONTAINER}.env.0", "RANK"),
    Wrong("an environment name of ours", {f"{_CONTAINER}.env": [{"name": "RTJ_RUN", "value": "x"}]}, f"{_CONTAINER}.env.0", "RTJ_RUN"),
    Wrong("restarts by the kubelet", {"spec.template.spec.restartPolicy": "OnFailure"}, "spec.template.spec.restartPolicy", "Never"),
    Wrong(
        "two containers and none named trainer",
        {"spec.template.spec.containers": [{**TEMPLATE["spec"]["containers"][0], "name": name} for name in ("a", "b")]},
        "spec.template.spec.containers",
        "trainer",
    ),
    Wrong("a volume name of ours", {"spec.template.spec.volumes.0.name": "rtj"}, "spec.template.spec.volumes.0", "rtj"),
    Wrong("a name of 41 characters", {"metadata.name": "a" * 41}, "metadata.name", "40", server_only=True),
    Wrong("a name with a dot", {"metadata.name": "gpt.large"}, "metadata.name", "letters", server_only=True),
]


def as_user_writes(path: str) -> str:
    """Return a dotted path with list places as messages show them: ``containers.0`` is ``containers[0]``."""
    text = ""
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text.removeprefix(".")
