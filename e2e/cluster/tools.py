"""The Go programs that the cluster and the benchmarks are made of: their packages, and when one must be built again.

Values only; `build` does the work. Versions live in e2e/tools/NAME/go.mod. Each tool has a module of its own: one shared graph would drag
Kubernetes' pinned dependencies upward.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent.parent / "tools"
BUILD_FLAGS: Final = ("-trimpath", "-buildvcs=false")
"""Reproducible: neither paths nor the state of any repository end up in the binary."""
KUBERNETES_VERSION_PACKAGES: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True)
class Tool:
    """One Go module under e2e/tools and what is built from it. `packages` maps each program's name to its package."""

    name: str
    packages: dict[str, str]

    @property
    def directory(self) -> Path:
        return SOURCES / self.name

    def linker_flags(self) -> str:
        """Return the value of -ldflags: no symbol tables, and for Kubernetes and helm the version that they report."""
        flags = "-s -w"
        version = self._required_version()
        if self.name == "k8s":
            major, minor, _ = version.removeprefix("v").split(".")
            for package in KUBERNETES_VERSION_PACKAGES:
                flags += f" -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        if self.name == "helm":
            flags += f" -X helm.sh/helm/v3/internal/version.version={version}"
        return flags

    def key(self, go_version: str) -> str:
        """Return the name of a build: it changes with the module's files, the flags, the programs and Go itself, and with nothing else."""
        parts: Iterable[str] = (go_version, *BUILD_FLAGS, self.linker_flags(), repr(sorted(self.packages.items())))
        digest = hashlib.sha256("\0".join(parts).encode())
        for file in sorted(path for path in self.directory.iterdir() if path.is_file()):
            digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
        return digest.hexdigest()[:16]

    def _required_version(self) -> str:
        wanted = {"k8s": "k8s.io/kubernetes", "helm": "helm.sh/helm/v3"}.get(self.name)
        if wanted is None:
            return ""
        text = (self.directory / "go.mod").read_text()
        match = re.search(rf"^\s*(?:require )?{re.escape(wanted)} (v\S+)", text, re.MULTILINE)
        if match is None:
            raise ValueError(f"{self.directory / 'go.mod'} does not require {wanted}")
        return match[1]


_KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
KUBERNETES: Final = Tool("k8s", {name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES_PROGRAMS})
ETCD: Final = Tool("etcd", {"etcd": "go.etcd.io/etcd/server/v3"})
COREDNS: Final = Tool("coredns", {"coredns": "."})
HELM: Final = Tool("helm", {"helm": "helm.sh/helm/v3/cmd/helm"})
KWOK: Final = Tool("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
GOFAKES3: Final = Tool("gofakes3", {"gofakes3": "github.com/johannesboyne/gofakes3/cmd/gofakes3"})

API_TOOLS: Final = (KUBERNETES, ETCD)
"""What an API server alone needs."""
CLUSTER_TOOLS: Final = (*API_TOOLS, COREDNS, HELM)
ALL_TOOLS: Final = (*CLUSTER_TOOLS, KWOK, GOFAKES3)
