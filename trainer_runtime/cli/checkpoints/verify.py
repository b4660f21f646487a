"""``rtj-checkpoints verify``: every byte is read past the caches and compared. It changes nothing, not even the verified mark."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.cli.checkpoints import wording
from trainer_runtime.cli.checkpoints.choice import NEWEST, Chosen, DeletedMeanwhile, Place, reading, short_name
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError


def run(place: Place, words: Sequence[str], everything: bool) -> int:
    """Verify each checkpoint and say how it is; a damaged one does not end the work. Returns ExitCode.DAMAGED when one is.

    Raises DeletedMeanwhile, at the end, when none is damaged and one that was named is gone.
    """
    if everything and words:
        raise ConfigurationError("--all: not together with a STEP")
    if everything:
        chosen = [Chosen(place.store, found) for found in place.committed()]
    else:
        chosen = [place.choose(word) for word in words or [NEWEST]]
    damaged = 0
    gone: list[DeletedMeanwhile] = []
    for one in chosen:
        try:
            with reading(one):
                print(_verify(one), flush=True)
        except DeletedMeanwhile as error:
            gone.append(error)
            print(f"step {short_name(one.found)}: was deleted while it was read", flush=True)
        except CheckpointDamaged as error:
            damaged += 1
            print(f"step {short_name(one.found)}: DAMAGED", flush=True)
            print(f"rtj-checkpoints: {error}", file=sys.stderr)
    if damaged:
        return ExitCode.DAMAGED
    if gone and not everything:
        raise gone[0]
    return ExitCode.DONE


def _verify(chosen: Chosen) -> str:
    reference = chosen.found.reference
    documents = read_documents(chosen.store, reference)
    total = sum(file.size for index in documents.indexes for file in index.files)
    progress = wording.Progress(f"step {short_name(chosen.found)}", total)
    try:
        verify_checkpoint(chosen.store, reference, progress.add)
    finally:
        progress.end()
    files = sum(len(index.files) for index in documents.indexes)
    mark = "" if chosen.found.level is Level.VERIFIED else "; it has no verified mark, the next attempt that considers it gives it one"
    return f"step {short_name(chosen.found)}: good, {wording.size(total)} in {files} files{mark}"
