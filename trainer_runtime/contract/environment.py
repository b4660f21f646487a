"""Names of the environment variables and files that the operator gives a pod, and their one-line meaning.

It is not where they are read: `trainer_runtime.settings` reads them, `rtj_operator.build` writes them.
"""

from __future__ import annotations

from typing import Final

ASSIGNMENT: Final = "RTJ_ASSIGNMENT"
"""JSON of contract.Assignment: what this worker must run at first. Later assignments come by heartbeat reply."""
JOB_NAMESPACE: Final = "RTJ_JOB_NAMESPACE"
JOB_NAME: Final = "RTJ_JOB_NAME"
JOB_UID: Final = "RTJ_JOB_UID"
POD_NAME: Final = "RTJ_POD_NAME"
POD_UID: Final = "RTJ_POD_UID"
"""From the downward API; a beat must carry the uid that its token is bound to."""
NODE_NAME: Final = "RTJ_NODE_NAME"
STORE: Final = "RTJ_STORE"
"""``file:///path`` or ``s3://bucket/prefix``."""
S3_ENDPOINT: Final = "RTJ_S3_ENDPOINT"
"""URL of the S3 API, for servers that are not Amazon's. Credentials come by the AWS SDK's own variables."""
S3_REGION: Final = "RTJ_S3_REGION"
RUN: Final = "RTJ_RUN"
"""Name of the run's directory in the store."""
HEARTBEAT_URL: Final = "RTJ_HEARTBEAT_URL"
HEARTBEAT_TOKEN_FILE: Final = "RTJ_HEARTBEAT_TOKEN_FILE"
HEARTBEAT_CA_FILE: Final = "RTJ_HEARTBEAT_CA_FILE"
GRACE_SECONDS: Final = "RTJ_GRACE_SECONDS"
"""terminationGracePeriodSeconds of the pod: the whole window between SIGTERM and SIGKILL."""
CHANNEL: Final = "RTJ_CHANNEL"
"""Path of the local socket between ranks and rtj-run. Set by rtj-run for its ranks, never by the operator."""
PERSISTER: Final = "RTJ_PERSISTER"
"""Path of the socket of this worker's persister. Set by rtj-run for its ranks, never by the operator."""
FENCE: Final = "RTJ_FENCE"
"""Prefix of every rendezvous key of the ranks: run id and attempt. Set by rtj-run for its ranks, never by the operator."""
TORCHRUN_PID: Final = "RTJ_TORCHRUN_PID"
"""Process that a rank may not outlive. Set by rtj-run for its ranks, never by the operator."""
REPLAY: Final = "RTJ_REPLAY"
"""JSON of settings.Replay: this launch is a try-out. Set by the doctor for the ranks it starts, never by the operator."""
SAVE_EVERY_STEPS: Final = "RTJ_SAVE_EVERY_STEPS"
SAVE_EVERY_SECONDS: Final = "RTJ_SAVE_EVERY_SECONDS"
KEEP_LAST: Final = "RTJ_KEEP_LAST"
TERMINATION_MESSAGE_FILE: Final = "RTJ_TERMINATION_MESSAGE_FILE"
"""Where the exit report is written; default /dev/termination-log."""

DEFAULT_TERMINATION_MESSAGE_FILE: Final = "/dev/termination-log"
HEARTBEAT_AUDIENCE: Final = "rtj.dev/heartbeat"
"""Audience of the projected token. The API server refuses this token for anything else."""

RESERVED_PREFIXES: Final = ("PET_", "RTJ_", "MASTER_")
RESERVED_NAMES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What a user's template may not set: torchrun and rtj own them."""
