"""Reads messages of the kubelet and the scheduler: text of events, pod status and conditions that may also stand in a log.

The reasons that Kubernetes gives as fields are in `exit_codes`; these texts tell apart what shares one reason: a pod is ``Evicted`` because
the node ran low, and also because it passed a limit of its own.
"""

from __future__ import annotations

from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import CAPACITY, CONFIG_ERROR, DEVICE_ADMISSION, EVICTED, IMAGE_PULL
from trainer_runtime.signals.rules import rule

_PULL: Final = r'Failed to pull image "(?P<image>[^"]{1,300})"'

RULES: Final = (
    # Eviction: the node ran low, or refused the pod (cloud-ark/kubeplus#1382, operate-first#1352).
    rule("The node was low on resource", EVICTED, r"low on resource: (?P<resource>[\w-]{1,60})"),
    rule("The node had condition", EVICTED, r"The node had condition: \[(?P<condition>\w{1,60})"),
    # Eviction for a limit of the pod's own: it would happen again anywhere.
    rule("exceeds the total limit of containers", CONFIG_ERROR, r"ephemeral local storage usage exceeds"),
    # Device admission: a lost GPU is proof, a missing healthy one only a hint (kubernetes/kubernetes#97131).
    rule("nvml: GPU is lost", DEVICE_ADMISSION, strength=Strength.NODE),
    rule("Allocate failed due to", DEVICE_ADMISSION, r"Allocate failed due to no healthy devices present"),
    # Image pulls: the registry's bad day passes, a wrong name does not (NVIDIA/gpu-operator#273).
    rule(
        "Failed to pull image",
        IMAGE_PULL,
        _PULL
        + r".*(?:i/o timeout|TLS handshake timeout|deadline exceeded|connection refused|connection reset|toomanyrequests|429|50[0234] )",
        Strength.ENV,
    ),
    rule("Failed to pull image", IMAGE_PULL, _PULL),
    # The scheduler; "were unschedulable" may be a cordon of ours (NVIDIA/k8s-device-plugin#119).
    rule("nodes are available:", CAPACITY, r"\d{1,6}/\d{1,6} nodes are available: "),
)
