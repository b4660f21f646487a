"""``python -m trainer_runtime.checkpoint.persister SOCKET``: started by rtj-run or by local rank 0, never by hand.

It ends when it was told so on its standard input, or whoever started it is gone, and no rank is connected and every sealed save has ended;
at the latest FINISH_SECONDS after the first of these. Records go to standard output, one JSON object per line, for whoever started it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from trainer_runtime.checkpoint.persister.messages import Hello
from trainer_runtime.checkpoint.persister.server import Server
from trainer_runtime.checkpoint.staging.turns import MARK_PREFIX
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import dumps
from trainer_runtime.store.open import open_store
from trainer_runtime.waiting import wait_readable

FINISH_SECONDS: Final = 120.0
"""How long a save may go on after the ranks and whoever started this process are gone."""
NICENESS: Final = 10
"""Training comes first."""
HUNG: Final = 70
"""Exit code of a persister that the store holds."""

log = logging.getLogger("trainer_runtime.persister")


def main(arguments: list[str]) -> int:
    """Serve the ranks of one worker; return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    # Both come to a whole process group: whoever started this process says so on its standard input when it is done.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)  # the kernel derives the priority of its input and output from this
    told = threading.Lock()

    def tell(hello: Hello, record: CheckpointRecord) -> None:
        if hello.local_rank == 0:
            with told:
                try:
                    os.write(1, dumps(record).encode() + b"\n")
                except OSError as error:
                    log.info("rtj persister: nobody hears of %s: %s", record.uri, error)

    def retire() -> None:
        # Explicitly, one after the other: a thread that the kernel holds would keep the process's end from closing them.
        log.error("rtj persister: the store hangs; this process is to be replaced")
        server.close()
        os.close(1)
        os._exit(HUNG)

    server = Server(arguments[0], open_store, tell, retire)
    _wait_for_starter()
    finished = server.wait_until_idle(FINISH_SECONDS)
    if not finished:
        log.error("rtj persister: a save did not end within %.0f s after the ranks did; it is abandoned", FINISH_SECONDS)
    _remove(Path(arguments[0]))
    sys.stdout.flush()
    os._exit(0 if finished else 1)  # threads that wait in the kernel are not waited for


def _wait_for_starter() -> None:
    """Wait until whoever started this process says something on our standard input, or is gone, when a data loader that it forked may hold
    the pipe."""
    starter = os.pidfd_open(os.getppid())
    wait_readable(0, starter)
    os.close(starter)


def _remove(path: Path) -> None:
    """Take the socket and the ranks' marks away, and their directory if that was made for them alone and rtj-run was killed before it
    could."""
    for left in (path, *path.parent.glob(f"{MARK_PREFIX}*")):
        left.unlink(missing_ok=True)
    try:
        path.parent.rmdir()
    except OSError as error:
        log.debug("rtj persister: %s stays: %s", path.parent, error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
