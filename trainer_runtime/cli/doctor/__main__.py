"""``python -m trainer_runtime.cli.doctor [options] script.py [arguments of the script]``; see the package's docstring.

Exit code 0: nothing differs. 1: something does. 2: it could not be tried out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.keeping.inventory import Committed
from trainer_runtime.checkpoint.reading.comparing import Comparison, Side, compare
from trainer_runtime.cli.checkpoints.choice import Place, open_place, short_name
from trainer_runtime.cli.doctor.diagnosis import Evidence, diagnose
from trainer_runtime.cli.doctor.launching import Script, find_last, read_notes
from trainer_runtime.contract import environment
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.manifest import FollowedStep
from trainer_runtime.errors import ConfigurationError, RuntimeProblem
from trainer_runtime.settings import DEFAULT_STORE, Replay
from trainer_runtime.store.base import Store
from trainer_runtime.store.open import open_store

DEFAULT_STEPS = 3
DEFAULT_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True)
class Base:
    """The checkpoint that is tried out, and what the run has after it."""

    found: Committed
    next: Committed | None
    followed: FollowedStep | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the script out and print the diagnosis; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        place = open_place(options.store, options.run, os.environ)
        base = choose_base(place, options.step)
        with tempfile.TemporaryDirectory(prefix="rtj-doctor-", dir=options.scratch) as scratch:
            return _examine(place, base, options, Path(scratch))
    except RuntimeProblem as problem:
        print(f"doctor: {problem}", file=sys.stderr)
        return 2


def choose_base(place: Place, step: str | None) -> Base:
    """Return the checkpoint to begin from: the one before the newest, from which the script is known to go on; else the newest.

    Raises ConfigurationError when there is none, or not the one that ``step`` names.
    """
    proven = [found for found in place.committed() if found.on_lineage and found.level is Level.VERIFIED and found.manifest is not None]
    found = place.choose(step or (short_name(proven[-2]) if len(proven) > 1 else "newest")).found
    later = [other for other in proven if other.name > found.name]
    records = [other.manifest.followed for other in later if other.manifest is not None and other.manifest.followed is not None]
    followed = next((record for record in records if (record.step, record.attempt) == (found.name.step, found.name.attempt)), None)
    return Base(found, later[0] if later else None, followed)


def _examine(place: Place, base: Base, options: argparse.Namespace, scratch: Path) -> int:
    manifest = base.found.manifest
    if manifest is None:
        raise ConfigurationError(f"{base.found.reference.uri}: its manifest cannot be read: {base.found.fault}")
    step = base.found.name.step
    until = base.next.name.step if options.to_next and base.next is not None else step + options.steps
    script = Script((options.script, *options.arguments), options.ranks or manifest.world_size, options.timeout)
    print(f"from {base.found.reference.uri}, steps {step + 1} to {until}, {script.ranks} processes")

    def launch(name: str, store: str, last: int) -> Path:
        notes = scratch / f"notes-{name}"
        script.run(Replay((scratch / store).as_uri(), last, str(notes), base.found.reference.resume_point()))
        return notes

    through = [launch("through", "through", until)]
    interrupted = [launch("to the cut", "interrupted", step + 1)]
    if until > step + 1:
        interrupted.append(launch("from the cut", "interrupted", until))
    end = _side(open_store((scratch / "through").as_uri()), place.run, step)
    ends = compare(end, _side(open_store((scratch / "interrupted").as_uri()), place.run, step))
    determinism = manifest.strict.get("determinism") or {}
    diagnosis = diagnose(
        Evidence(
            base=step,
            cut=step + 1,
            through=read_notes(through),
            interrupted=read_notes(interrupted),
            ends=ends,
            was_deterministic=bool(determinism.get("deterministic_algorithms")),
            followed=base.followed,
            original=_compare_with_next(place.store, base, end, until),
        )
    )
    for note in diagnosis.notes:
        print(f"note: {note}")
    for finding in diagnosis.findings:
        print(f"differs: {finding.what}\n  likely: {finding.cause}")
    if diagnosis.is_healthy:
        print(f"equal: every loss, batch and random number, and all {ends.equal_tensors} tensors at the end, bit for bit")
    return 0 if diagnosis.is_healthy else 1


def _side(store: Store, run: str, base: int) -> Side:
    last = find_last(store, run)
    if last is None or last.name.step <= base:
        raise ConfigurationError(
            f"a try-out made no step after {base}; is the script at its end there? Name an older checkpoint with --step"
        )
    return Side(store, read_documents(store, last.reference))


def _compare_with_next(store: Store, base: Base, end: Side, until: int) -> Comparison | None:
    if base.next is None or base.next.name.step != until or end.documents.manifest.step != until:
        return None
    return compare(Side(store, read_documents(store, base.next.reference)), end)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_runtime.cli.doctor",
        description="Find out whether a resume of a training script is bitwise equal to going on. Nothing is written to the run.",
    )
    parser.add_argument(
        "--store", metavar="URL", help=f"where the run is: file:///…, s3://… or a directory ({environment.STORE}, ./{DEFAULT_STORE})"
    )
    parser.add_argument("--run", metavar="NAME", help=f"the run ({environment.RUN}, or the only one in the store)")
    parser.add_argument("--step", metavar="STEP", help="the checkpoint to begin from; default: the one before the newest")
    parser.add_argument("--steps", type=_positive, default=DEFAULT_STEPS, help=f"how many steps to try out ({DEFAULT_STEPS})")
    parser.add_argument("--to-next", action="store_true", help="go on to the run's next checkpoint and compare with that, too")
    parser.add_argument("--ranks", type=_positive, metavar="N", help="processes to start; default: as many as the checkpoint has")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_SECONDS, metavar="SECONDS", help="for each launch")
    parser.add_argument(
        "--scratch", metavar="DIRECTORY", help="where three checkpoints have room; default: the system's temporary directory"
    )
    parser.add_argument("script", help="the training script, as torchrun takes it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number >= 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
