"""``python -m trainer_runtime.heartbeat``: started by rtj-run or by `attach`, never by hand. Ends when its standard input closes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from trainer_runtime.contract import environment
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.heartbeat.compose import Composer
from trainer_runtime.heartbeat.lines import NewestLine
from trainer_runtime.heartbeat.post import Poster
from trainer_runtime.heartbeat.sender import Sender, read_lines
from trainer_runtime.heartbeat.start import missing_variables


def main() -> int:
    """Beat until the parent closes standard input; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # Both come to a whole process group: the parent decides when the last beat was sent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    missing = missing_variables(os.environ)
    if missing:
        print(f"heartbeat: {', '.join(missing)}: not set", file=sys.stderr)
        return ExitCode.BAD_CONFIGURATION
    try:
        poster = Poster(
            os.environ[environment.HEARTBEAT_URL],
            os.environ[environment.HEARTBEAT_TOKEN_FILE],
            os.environ[environment.HEARTBEAT_CA_FILE],
        )
    except ConfigurationError as error:
        print(f"heartbeat: {error}", file=sys.stderr)
        return ExitCode.BAD_CONFIGURATION
    composer = Composer(os.environ[environment.JOB_UID], os.environ[environment.POD_UID])
    sender = Sender(poster, composer, NewestLine(sys.stdout.fileno()))
    # A daemon: when the parent is gone, nobody waits for a request in flight.
    threading.Thread(target=_beat_or_exit, args=[sender], name="beats", daemon=True).start()
    sender.take_states(read_lines(sys.stdin.buffer))
    return 0


def _beat_or_exit(sender: Sender) -> None:
    try:
        sender.beat_until_orphaned()
    except BaseException:
        # Without beats this process is worth nothing; its end is seen by the parent, which starts another one.
        logging.getLogger("trainer_runtime.heartbeat").exception("heartbeat: the sender ends")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
