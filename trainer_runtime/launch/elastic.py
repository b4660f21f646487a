"""The torchrun process: ``python -m trainer_runtime.launch.elastic PLAN [torchrun options] script …``, started by rtj-run alone.

It is stock torchrun with three things around it: options that contradict the assignment are refused, the ranks' output goes to rtj-run's
pipes, and how each rank ended is reported with its code, which torchrun's own exit code (1) loses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch

from trainer_runtime.contract import environment
from trainer_runtime.contract.codec import loads
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.launch.options import find_conflict
from trainer_runtime.launch.processes import die_with_parent
from trainer_runtime.launch.wire import (
    BadOptions,
    Launching,
    LaunchPlan,
    RankFailure,
    RanksFailed,
    Report,
    Stream,
    TorchrunFailed,
    encode,
)


class _Reporter:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, report: Report) -> None:
        os.write(self._fd, encode(report))


class RankLogs(DefaultLogsSpecs):
    """torchrun's default places for output, but what a rank would print goes into a named pipe that rtj-run reads."""

    def __init__(self, reporter: _Reporter, directory: str, **places: Any) -> None:
        super().__init__(**places)
        self._reporter = reporter
        self._directory = directory

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the pipes and report them. Opening one for writing waits until rtj-run reads it."""
        places = super().reify(envs)
        streams = []
        for local_rank, variables in envs.items():
            for name, paths in (("stdout", places.stdouts), ("stderr", places.stderrs)):
                if not paths[local_rank]:
                    paths[local_rank] = os.path.join(self._directory, f"{local_rank}-{name}")
                    os.mkfifo(paths[local_rank], mode=0o600)
                    streams.append(Stream(int(variables["RANK"]), name, paths[local_rank]))
        self._reporter.say(Launching(len(envs), tuple(streams)))
        return places


def main(argv: Sequence[str]) -> int:
    """Run torchrun as the plan says; return its exit code."""
    die_with_parent()
    plan = loads(LaunchPlan, argv[0])
    given = list(argv[1:])
    reporter = _Reporter(plan.report_fd)
    os.environ[environment.TORCHRUN_PID] = str(os.getpid())
    try:
        arguments = _parse(given, plan)
    except ValueError as error:
        reporter.say(BadOptions(str(error)))
        return ExitCode.BAD_CONFIGURATION
    try:
        arguments.log_dir = arguments.log_dir or os.path.join(plan.directory, "torchrun")
        config, command, command_arguments = torchrun.config_from_args(arguments)
        config.logs_specs = RankLogs(
            reporter,
            plan.directory,
            log_dir=arguments.log_dir,
            redirects=Std.from_str(arguments.redirects),
            tee=Std.from_str(arguments.tee),
            local_ranks_filter={int(rank) for rank in arguments.local_ranks_filter.split(",")} if arguments.local_ranks_filter else None,
        )
        elastic_launch(config, command)(*command_arguments)
    except ChildFailedError as error:
        reporter.say(RanksFailed(tuple(_failure(rank, failure) for rank, failure in error.failures.items())))
        raise
    except SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:
        # Whatever torchrun raises before or beside its ranks is the reason of the attempt's end; the traceback follows on stderr.
        reporter.say(TorchrunFailed(f"{type(error).__name__}: {error}"))
        raise
    return 0


def _parse(given: list[str], plan: LaunchPlan) -> Any:
    """Parse the user's part, then put rtj-run's options behind it. Raises ValueError, naming the option."""
    try:
        arguments = _parse_args(given)
    except SystemExit as stop:
        raise ValueError("torchrun does not understand its options; its message is above") from stop
    end = len(given) - len(arguments.training_script_args) - 1
    if end < 0 or given[end] != arguments.training_script:
        raise ValueError(f"cannot tell torchrun's options from those of {arguments.training_script!r}; write them without '--'")
    conflict = find_conflict(given[:end], plan.options, plan.forbidden)
    if conflict is not None:
        raise ValueError(conflict)
    ours = [f"{name}={value}" for name, value in plan.options.items()]
    return _parse_args(given[:end] + ours + given[end:])


def _parse_args(given: list[str]) -> Any:
    return torchrun.parse_args(given)


def _failure(rank: int, failure: Any) -> RankFailure:
    # Without an error file torch's message is only a hint how to get one.
    message = str(failure.message) if os.path.isfile(failure.error_file) else ""
    return RankFailure(rank=rank, exit_code=int(failure.exitcode), message=message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
