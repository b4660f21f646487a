"""Which of torchrun's options rtj-run owns, and what the torchrun process finds in its environment. Pure.

torchrun's command line is the user's; the rendezvous is the assignment's. An option that says something else than the assignment is refused
by name, because two sources for one fact have split jobs in two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from trainer_runtime.contract import environment
from trainer_runtime.contract.assignment import Assignment

SHUTDOWN_TIMEOUT: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torchrun's own variable: seconds from SIGTERM until it kills its ranks; its default of 30 s may be shorter than the grace."""

FORBIDDEN: Final = {
    "--max-restarts": "the operator is the only one that restarts; leave it out",
    "--standalone": "it is rtj-run's own option: write it before all of torchrun's options",
    "--logs-specs": "rtj-run reads the ranks' output; use --redirects, --tee and --log-dir",
    "--run-path": "the ranks must be processes of their own",
    "--signals-to-handle": "rtj-run handles the signals",
    "--shutdown-timeout": "it is the grace period of the pod (RTJ_GRACE_SECONDS)",
}
_ABBREVIATED: Final = {"--nnode": "--nnodes"}


def torchrun_options(assignment: Assignment | None, run_id: str) -> dict[str, str]:
    """Return the options rtj-run sets. Without an assignment: one worker on this machine, as many ranks as the user says."""
    if assignment is None:
        return {"--nnodes": "1", "--max-restarts": "0", "--rdzv-id": run_id, "--rdzv-backend": "c10d", "--rdzv-endpoint": "localhost:0"}
    return {
        "--nnodes": str(assignment.workers),
        "--nproc-per-node": str(assignment.procs_per_worker),
        "--node-rank": str(assignment.worker_index),
        "--master-addr": assignment.master_addr,
        "--master-port": str(assignment.master_port),
        "--max-restarts": "0",
        "--rdzv-id": assignment.run_id,
        "--rdzv-backend": "static",
        # torchrun's default of 600 s is shorter than the start of a big cluster.
        "--rdzv-conf": f"timeout={max(1, int(assignment.settings.start_seconds))}",
    }


def forbidden_options(assignment: Assignment | None) -> dict[str, str]:
    """Return the options that the user may not give, with the reason."""
    if assignment is None:
        return {**FORBIDDEN, "--max-restarts": "write --standalone --restarts N before torchrun's options"}
    return {**FORBIDDEN, "--rdzv-endpoint": "the assignment sets the rendezvous"}


def find_conflict(given: Sequence[str], owned: Mapping[str, str], forbidden: Mapping[str, str]) -> str | None:
    """Return what is wrong with torchrun's part of the command line, naming the option, or None."""
    for index, token in enumerate(given):
        if not token.startswith("--"):
            continue
        name, has_value, value = token.partition("=")
        name = name.replace("_", "-")
        name = _ABBREVIATED.get(name, name)
        if name in forbidden:
            return f"{name}: not with rtj-run: {forbidden[name]}"
        if name in owned:
            said = value if has_value else (given[index + 1] if index + 1 < len(given) else "")
            if said != owned[name]:
                return f"{name}: {said!r} differs from {owned[name]!r}, which rtj-run sets; leave the option out"
    return None


def child_environment(
    environ: Mapping[str, str], *, channel: str, persister: str, fence: str, hook_directory: str, grace_seconds: float
) -> dict[str, str]:
    """Return the environment of torchrun and the ranks. PET_* go: they would be a second source for what the options say."""
    child = {name: value for name, value in environ.items() if not name.startswith("PET_")}
    child[environment.CHANNEL] = channel
    child[environment.PERSISTER] = persister
    child[environment.FENCE] = fence
    child[SHUTDOWN_TIMEOUT] = str(max(1, int(grace_seconds)))
    child["PYTHONPATH"] = os.pathsep.join(filter(None, [hook_directory, environ.get("PYTHONPATH", "")]))
    return child
