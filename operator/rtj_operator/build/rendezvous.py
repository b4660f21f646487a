"""Where the ranks of one attempt meet. Port and id carry the attempt, so that a process of an older attempt finds nobody to join.

The port carries the job too: with hostNetwork the first workers of two jobs may share a node and its ports.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from rtj_operator.build.names import pod_host

FIRST_PORT: Final = 29_000
PORTS: Final = 1_000
"""29000 to 29999: below the range of node ports (30000) and of ephemeral ports (32768), so that nothing else takes one by chance."""


@dataclass(frozen=True)
class Rendezvous:
    """torchrun's static rendezvous of one attempt."""

    master_addr: str
    """DNS name of worker 0 of the present gang."""
    master_port: int
    run_id: str
    """``<first 8 characters of the job uid>-<attempt>``."""


def rendezvous_for(namespace: str, job: str, uid: str, gang: int, attempt: int) -> Rendezvous:
    """Return the rendezvous of an attempt. Two attempts of a job share a port only when they are 1,000 apart; two jobs do by chance, one
    time in 1,000."""
    return Rendezvous(
        master_addr=pod_host(namespace, job, gang, 0),
        master_port=FIRST_PORT + (zlib.crc32(uid.encode()) + attempt) % PORTS,
        run_id=f"{uid[:8]}-{attempt}",
    )
