"""Every label, annotation, volume and port name that rtj puts on objects: one constant each.

Names of environment variables are in `trainer_runtime.contract.environment`, because both halves need them.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "rtj.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "ResilientTrainingJob"
PLURAL: Final = "resilienttrainingjobs"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "rtj-operator"
"""Who writes status, in managedFields; also the value of app.kubernetes.io/managed-by."""

# labels on pods and on the service
JOB_NAME: Final = "rtj.dev/job-name"
JOB_UID: Final = "rtj.dev/job-uid"
"""Children are matched by this and by gang, never by name alone."""
GANG: Final = "rtj.dev/gang"
"""The attempt that created the pod."""
WORKER_INDEX: Final = "rtj.dev/worker-index"
APP_NAME: Final = "app.kubernetes.io/name"
APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_COMPONENT: Final = "app.kubernetes.io/component"
APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

# annotations on pods
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
HEARTBEAT_CA: Final = "rtj.dev/heartbeat-ca"
"""Public PEM of the CA of the heartbeat server; read in the pod through a downward-API file."""

# on nodes
HOSTNAME: Final = "kubernetes.io/hostname"
CORDONED_BY: Final = "rtj.dev/cordoned-by"
"""``<namespace>/<name>/<uid>`` of the job whose incident cordoned the node. Present only while the cordon is ours."""
CORDONED_REASON: Final = "rtj.dev/cordoned-reason"
CORDONED_INCIDENT: Final = "rtj.dev/cordoned-incident"
CORDONED_TIME: Final = "rtj.dev/cordoned-time"
CORDONED_BOOT_ID: Final = "rtj.dev/cordoned-bootid"
"""status.nodeInfo.bootID at that time: another one means that the machine was restarted since."""
STRIKES: Final = "rtj.dev/strikes"
"""Recorded strikes: a comma-separated list of ``<time>=<fault class>=<namespace>/<name>/<attempt>``, newest last."""
RELEASED_TIME: Final = "rtj.dev/released-time"
"""When a person's uncordon ended our ownership: we keep off that node for 24 h."""
QUARANTINED_LABEL: Final = "rtj.dev/quarantined"
"""``true`` on a node while our cordon stands."""
EXCLUDE_FROM_REMEDIATION: Final = "rtj.dev/exclude-from-remediation"
"""A label people put on a node that the operator must never write to."""

# inside the pod
TRAINER_CONTAINER: Final = "trainer"
"""The container the operator wires, when the pod has more than one."""
POD_VOLUME: Final = "rtj"
"""The projected volume with token and CA."""
POD_VOLUME_PATH: Final = "/var/run/rtj"
TOKEN_PATH: Final = "token"
CA_PATH: Final = "ca.crt"
SHM_VOLUME: Final = "rtj-shm"
SHM_PATH: Final = "/dev/shm"
"""Where the stage and torch's shared tensors live; a container's own is 64 MiB."""
GPU_RESOURCE: Final = "nvidia.com/gpu"
