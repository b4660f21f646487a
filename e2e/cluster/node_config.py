"""The configuration files of one node, as pure functions from its number to their text. `machine` writes them, `node_init` uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from e2e.cluster.settings import CLUSTER_DOMAIN, HOST_ADDRESS, PAUSE_IMAGE, POD_BRIDGE, POD_NETWORK, TIMINGS, Node

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
MAX_PODS: Final = 60


def files(node: Node, pki: Path) -> dict[str, str]:
    """Return relative path -> content of everything a node reads. JSON is YAML, so the kubelet and kube-proxy take it."""
    return {
        "containerd.toml": _CONTAINERD,
        "cni/10-pods.conflist": _json(_cni(node)),
        "kubelet.json": _json(_kubelet(node, pki)),
        "kube-proxy.json": _json(_kube_proxy(node, pki)),
    }


# Version 2 is what Debian's containerd 1.6 reads; 1.7 and 2.x read it too. The disabled snapshotters cannot work here and say so.
# restrict_oom_score_adj: without CAP_SYS_RESOURCE nobody may lower the score.
_CONTAINERD: Final = f"""version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/usr/sbin/runc"
      SystemdCgroup = false
"""


def _cni(node: Node) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        # Under /run: a reboot forgets which addresses were given out, as it ends the pods that had them.
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": node.pod_network}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": POD_BRIDGE, "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}


def _kubelet(node: Node, pki: Path) -> dict[str, Any]:
    never = {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(pki / "ca.crt")}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [HOST_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        # Empty: pods must not inherit this machine's resolver, which they could not reach.
        "resolvConf": "",
        "imageGCHighThresholdPercent": 100,
        # All nodes share this machine's disk; how full it is says nothing about a node.
        "evictionHard": {**never, "memory.available": "50Mi"},
        "nodeStatusUpdateFrequency": f"{TIMINGS.node_status_seconds}s",
        "nodeStatusReportFrequency": "1m",
        "nodeLeaseDurationSeconds": TIMINGS.lease_seconds,
        "oomScoreAdj": 0,
        "maxPods": MAX_PODS,
        "serializeImagePulls": False,
    }


def _kube_proxy(node: Node, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(pki / "kube-proxy.kubeconfig")},
        "hostnameOverride": node.name,
        "clusterCIDR": str(POD_NETWORK),
        "mode": "iptables",
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        # All zero: connection tracking is the machine's, not a node's to tune.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
