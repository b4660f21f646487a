"""The command line of ``rtj-checkpoints``: which command, on which store and run, and with which exit code it ends."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from trainer_runtime.cli.checkpoints import diff, export, ls, rm, show, verify
from trainer_runtime.cli.checkpoints.choice import NEWEST, open_place, open_second_store
from trainer_runtime.contract import environment
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.errors import RuntimeProblem
from trainer_runtime.loop.ending import find_exit
from trainer_runtime.settings import DEFAULT_STORE

INTERRUPTED: Final = 130
"""128 + SIGINT, as of every program that a person stops."""
EPILOG: Final = f"""\
STEP is a step (120), a step and its attempt (120-2), `{NEWEST}` (the newest verified one on the lineage), or a checkpoint's whole address.

exit codes: 0 done; 1 the two checkpoints differ; 77 refused; 78 an argument that cannot be used; 79 another attempt took the run over;
80 a checkpoint is damaged; 81 the store cannot be used
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        return int(_run(arguments, os.environ))
    except RuntimeProblem as problem:
        found = find_exit(problem)
        print(f"rtj-checkpoints: {problem}", file=sys.stderr)
        return int(found[0]) if found is not None else 1
    except KeyboardInterrupt:
        print("rtj-checkpoints: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read the table has seen enough; the interpreter must not try to flush the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class Parser(argparse.ArgumentParser):
    """argparse, but for the exit code of a bad argument."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.BAD_CONFIGURATION, f"rtj-checkpoints: {message}\n")


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="rtj-checkpoints",
        description="Look at, prove, compare, export and delete the checkpoints of a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = Parser(add_help=False)
    where.add_argument("--store", metavar="URL", help=f"file:///…, s3://… or a directory ({environment.STORE}, ./{DEFAULT_STORE})")
    where.add_argument("--run", metavar="NAME", help=f"the run ({environment.RUN}, or the only one in the store)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Parser:
        return commands.add_parser(name, help=text, description=text, parents=[where], allow_abbrev=False)

    listing = command("ls", "list the checkpoints of a run")
    listing.add_argument("--archive", metavar="URL", help="look there as well")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    showing = command("show", "say what one checkpoint is")
    showing.add_argument("step", nargs="?", default=NEWEST, metavar="STEP")
    showing.add_argument("--json", action="store_true", help="print one JSON document")
    verifying = command("verify", "read every byte and compare it with its digest")
    verifying.add_argument("steps", nargs="*", metavar="STEP", help=f"default: {NEWEST}")
    verifying.add_argument("--all", action="store_true", help="every checkpoint of the run")
    comparing = command("diff", "compare two checkpoints: structure, settings, tensors")
    comparing.add_argument("first", metavar="STEP")
    comparing.add_argument("second", metavar="STEP")
    removing = command("rm", "move checkpoints to the trash, which is emptied after 24 hours")
    removing.add_argument("steps", nargs="+", metavar="STEP")
    removing.add_argument("--tagged", action="store_true", help="also tagged ones")
    removing.add_argument("--force", action="store_true", help="also while a job may be using the run")
    exporting = command("export", "write the model as a plain safetensors directory")
    exporting.add_argument("step", metavar="STEP")
    exporting.add_argument("directory", type=Path, metavar="DIRECTORY")
    return parser


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    place = open_place(arguments.store, arguments.run, environ)
    if arguments.command == "ls":
        archive = open_second_store("--archive", arguments.archive, environ) if arguments.archive is not None else None
        return ls.run(place, archive, arguments.json, time.time())
    if arguments.command == "show":
        return show.run(place, arguments.step, arguments.json, time.time())
    if arguments.command == "verify":
        return verify.run(place, arguments.steps, arguments.all)
    if arguments.command == "diff":
        return diff.run(place, arguments.first, arguments.second)
    if arguments.command == "rm":
        return rm.run(place, arguments.steps, arguments.tagged, arguments.force, time.time())
    return export.run(place, arguments.step, arguments.directory)


if __name__ == "__main__":
    sys.exit(main())
