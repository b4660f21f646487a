"""A workload as Kubernetes objects: the script in a ConfigMap, the shared store, and the ResilientTrainingJob a user would write."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.s3 import ObjectStore

HERE = Path(__file__).parent
STORE_PATH = "/checkpoints"
TEXT_PATH = "/text"
CODE_PATH = "/workload"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """Which script to train with, and for how long."""

    script: str
    """Folder below e2e/workloads that holds train.py."""
    steps: int
    save_every: int
    options: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The script."""
        return HERE / self.script / "train.py"

    def arguments(self, text: Path | str, digests: Path | str) -> list[str]:
        """The script's arguments."""
        return [f"--steps={self.steps}", f"--text={text}", f"--digest-out={digests}", *self.options]


GPT = Workload("gpt", steps=150, save_every=15, options=("--text-bytes=50000",))
"""About 0.3 s a step with 3 ranks on 2 cores; 50,000 bytes are 65 steps an epoch, so that it crosses two epoch ends."""
TINY = Workload("tiny", steps=60, save_every=5, options=("--step-seconds=0.2",))
"""Starts as fast as torch can, for scenarios that are about the job and not about the model."""


@dataclass(frozen=True)
class JobPlan:
    """What a scenario or the demo wants to apply. The store is a host directory that every node has, or a bucket."""

    name: str
    workload: Workload
    image: str
    shared: Path
    text: Path
    workers: int = 3
    command: tuple[str, ...] = ("rtj-run",)
    recovery: Manifest = field(default_factory=dict)
    checkpoint: Manifest = field(default_factory=dict)
    """Fields of spec.checkpoint that differ from the plan's own."""
    objects: ObjectStore | None = None
    """Where checkpoints go instead of the shared directory, which then only takes the digests."""

    def manifests(self) -> list[Manifest]:
        """Everything to apply but the job itself."""
        return [self.code()] if self.objects is None else [self.code(), self.objects.secret()]

    def code(self) -> Manifest:
        """The ConfigMap with the script and its digest module."""
        files = {path.name: path.read_text() for path in (self.workload.path, HERE / "digest.py")}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{self.name}-code"}, "data": files}

    def job(self) -> Manifest:
        """The ResilientTrainingJob."""
        store = {"store": f"file://{STORE_PATH}"} if self.objects is None else self.objects.checkpoint(self.name)
        checkpoint = store | {"every": {"steps": self.workload.save_every}} | self.checkpoint
        spec: Manifest = {"workers": self.workers, "template": {"spec": self.pod_spec()}, "checkpoint": checkpoint}
        if self.recovery:
            spec["recovery"] = self.recovery
        return {"apiVersion": "rtj.dev/v1alpha1", "kind": "ResilientTrainingJob", "metadata": {"name": self.name}, "spec": spec}

    def pod_spec(self) -> Manifest:
        """The pod template's spec: one trainer container; workers spread over the nodes when they can."""
        mounts = [
            {"name": "checkpoints", "mountPath": STORE_PATH},
            {"name": "text", "mountPath": TEXT_PATH, "readOnly": True},
            {"name": "code", "mountPath": CODE_PATH, "readOnly": True},
        ]
        arguments = self.workload.arguments(TEXT_PATH, f"{STORE_PATH}/digests/{self.name}")
        container = {
            "name": "trainer",
            "image": self.image,
            "imagePullPolicy": "Never",
            "command": [*self.command, f"{CODE_PATH}/train.py", *arguments],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, *([] if self.objects is None else self.objects.environment())],
            "resources": {"requests": {"cpu": "300m", "memory": "1Gi"}},
            "volumeMounts": mounts,
        }
        apart = {
            "labelSelector": {"matchLabels": {"rtj.dev/job-name": self.name}},
            "topologyKey": "kubernetes.io/hostname",
        }
        return {
            "containers": [container],
            "affinity": {
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]}
            },
            "volumes": [
                {"name": "checkpoints", "hostPath": {"path": str(self.shared), "type": "Directory"}},
                {"name": "text", "hostPath": {"path": str(self.text), "type": "Directory"}},
                {"name": "code", "configMap": {"name": f"{self.name}-code"}},
            ],
        }

    def digests(self) -> Path:
        """Where the ranks write their digests, as the host sees it."""
        return self.shared / "digests" / self.name
