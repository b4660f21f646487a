"""``rtj-run``: reads what this worker must run, runs it, and leaves with the right code and report.

rtj-run [--standalone [--restarts N]] [torchrun options] train.py …
"""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from trainer_runtime.contract import environment
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.contract.exit_report import ExitCode, ExitReport, Outcome
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.heartbeat.start import Handle, start
from trainer_runtime.launch import processes
from trainer_runtime.launch.attempt import Attempt, Events, Orders, Terminated
from trainer_runtime.launch.stop import DEFAULT_GRACE_SECONDS

DEFAULT_RESTARTS: Final = 3
"""Of --standalone: enough for a crash now and then, and an end for a script that fails each time."""

USAGE: Final = """\
usage: rtj-run [--standalone [--restarts N]] [torchrun options] training_script [arguments]

Runs torchrun (see torchrun --help) as this worker's assignment says and tells the operator how it goes.
Without an assignment (RTJ_ASSIGNMENT) it runs one attempt on this machine.

  --standalone    without an operator: when a rank fails, start again from the newest verified checkpoint
  --restarts N    with --standalone: at most N times (default 3)
"""

log = logging.getLogger("trainer_runtime.launch")


@dataclass(frozen=True)
class CommandLine:
    """rtj-run's own options, and what is torchrun's."""

    restarts: int
    rest: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker; return its exit code (contract.ExitCode, or 128 + signal or the code of the rank that failed first)."""
    _open_standard_streams()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else ExitCode.BAD_CONFIGURATION
    events: Events = queue.SimpleQueue()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        events.put(Terminated(time.time_ns()))

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        command = parse_command_line(arguments)
        orders = read_orders(os.environ)
        if command.restarts and orders.assignment is not None:
            raise ConfigurationError("--standalone: not with an assignment (RTJ_ASSIGNMENT); the operator is the only one that restarts")
        sender = start(os.environ, on_answer=events.put)
    except (ConfigurationError, ContractError) as error:
        return _refuse(str(error))
    processes.adopt_orphans()
    try:
        return _run(command, orders, events, sender)
    finally:
        if sender is not None:
            sender.close()


def parse_command_line(arguments: Sequence[str]) -> CommandLine:
    """Take rtj-run's own options, which come first. Raises ConfigurationError."""
    rest = list(arguments)
    restarts = 0
    if rest and rest[0] == "--standalone":
        del rest[0]
        restarts = DEFAULT_RESTARTS
        if rest and rest[0].partition("=")[0] == "--restarts":
            _name, has_value, value = rest.pop(0).partition("=")
            value = value if has_value else (rest.pop(0) if rest else "")
            if not value.isdecimal():
                raise ConfigurationError(f"--restarts: {value!r} is not a number of restarts, 0 or more")
            restarts = int(value)
    if not rest:
        raise ConfigurationError("training_script: missing; write rtj-run [options] train.py")
    return CommandLine(restarts, tuple(rest))


def read_orders(environ: Mapping[str, str]) -> Orders:
    """Read what this worker must run. Raises ConfigurationError, naming the variable."""
    grace = environ.get(environment.GRACE_SECONDS, str(DEFAULT_GRACE_SECONDS))
    try:
        grace_seconds = float(grace)
    except ValueError:
        grace_seconds = math.nan
    if not 0 <= grace_seconds < math.inf:
        raise ConfigurationError(f"{environment.GRACE_SECONDS}: {grace!r} is not a number of seconds, 0 or more")
    text = environ.get(environment.ASSIGNMENT)
    assignment = None
    if text:
        try:
            assignment = loads(Assignment, text)
        except ContractError as error:
            raise ConfigurationError(f"{environment.ASSIGNMENT}: {error}") from error
    return Orders(
        attempt=assignment.attempt if assignment else 1,
        worker_index=assignment.worker_index if assignment else 0,
        run_id=assignment.run_id if assignment else f"local-{uuid.uuid4().hex[:12]}",
        assignment=assignment,
        node=environ.get(environment.NODE_NAME),
        grace_seconds=grace_seconds,
    )


def write_report(report: ExitReport, environ: Mapping[str, str]) -> None:
    """Write the exit report where the kubelet reads it: in place, because the file is a bind mount. Outside a pod there is no file."""
    path = environ.get(environment.TERMINATION_MESSAGE_FILE) or environment.DEFAULT_TERMINATION_MESSAGE_FILE
    if environment.TERMINATION_MESSAGE_FILE not in environ and not os.path.exists(path):
        return
    try:
        with open(path, "wb") as file:
            file.write(report.termination_message())
    except OSError as error:
        # The operator still has the exit code, and the beat if there was one.
        log.error("rtj: the exit report cannot be written to %s: %s", path, error)


def _open_standard_streams() -> None:
    """Put /dev/null where the caller closed 0, 1 or 2: a pipe or socket of ours would get that number, and the ranks' output with it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _run(command: CommandLine, orders: Orders, events: Events, sender: Handle | None) -> int:
    for number in range(command.restarts + 1):
        if number:
            orders = Orders(orders.attempt + 1, 0, f"local-{uuid.uuid4().hex[:12]}", None, orders.node, orders.grace_seconds)
        attempt = Attempt(orders, events, sender)
        try:
            report = attempt.run(command.rest, os.environ)
        except (OSError, ConfigurationError) as error:
            report = ExitReport(orders.attempt, orders.worker_index, Outcome.FAILED, 1, message=f"torchrun cannot be started: {error}")
        log.warning("%s", describe(report))
        if report.outcome is not Outcome.FAILED or attempt.was_terminated:
            break
    # Before the wait for an answer, which a SIGKILL may cut.
    write_report(report, os.environ)
    attempt.tell(report)
    return report.exit_code


def describe(report: ExitReport) -> str:
    """Return the report in one line for the container's log."""
    text = f"rtj: attempt {report.attempt} of worker {report.worker_index}: {report.outcome.value}, exit code {report.exit_code}"
    first = report.first_failure
    if first is not None:
        text += f"; first failure: rank {first.rank}" + ("" if first.step is None else f" at step {first.step}") + f": {first.exception}"
    return f"{text}; {report.message}" if report.message else text


def _refuse(message: str) -> int:
    log.error("rtj: %s", message)
    write_report(ExitReport(1, 0, Outcome.BAD_CONFIGURATION, ExitCode.BAD_CONFIGURATION, message=message), os.environ)
    return ExitCode.BAD_CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
