"""From the documents of one run to records: which checkpoints are committed, verified, tagged, and on the lineage.

It reads through a `Documents`, so that it knows keys and meanings and nothing of S3. What cannot be read as a checkpoint is left out: the
runtime, which sees the same and more, says what is wrong with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from trainer_runtime.contract.beat import CheckpointRecord, Level
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.contract.layout import FENCES, MANIFEST, STEPS, VERIFIED, StepName, fence_path, parse_fence, step_path
from trainer_runtime.contract.lineage import lineage_of
from trainer_runtime.contract.manifest import Fence, VerifiedMark, digest, parse_manifest

log = logging.getLogger(__name__)

NEWEST: Final = 20
"""How many checkpoints are read: as many as the status keeps."""


class Documents(Protocol):
    """The small files of one store."""

    def names(self, directory: str) -> tuple[str, ...]:
        """Return the names of what lies directly below a directory, empty when there is nothing. Raises StoreTrouble."""

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None when it is not there. Raises StoreTrouble."""


class StoreTrouble(Exception):
    """The store did not answer, or refused. The message says what was asked and what came back."""


def list_run(documents: Documents, store_url: str, run: str, known_fences: dict[int, Fence]) -> tuple[CheckpointRecord, ...]:
    """Return the newest checkpoints of a run, newest first; those on the lineage before those that left it. Raises StoreTrouble.

    ``known_fences`` are those read before, which never change; what is read now is added to it.
    """
    steps = [step for name in documents.names(f"{run}/{STEPS}") if (step := StepName.parse(name)) is not None]
    # after the steps: a checkpoint whose fence is not known yet would pass for abandoned
    fence_numbers = [number for name in documents.names(f"{run}/{FENCES}") if (number := parse_fence(name)) is not None]
    fences = _read_chain(fence_numbers, known_fences, lambda number: documents.read(f"{run}/{fence_path(number)}"))
    lineage = lineage_of(fences, steps)
    found = []
    for name in (*reversed(lineage.on), *reversed(lineage.abandoned)):
        # without any fence nothing is known to have left the lineage
        record = _read_record(documents, store_url, run, name, is_abandoned=bool(fences) and name not in lineage.on)
        if record is not None:
            found.append(record)
        if len(found) == NEWEST:
            break
    return tuple(found)


def _read_chain(numbers: Iterable[int], known: dict[int, Fence], read: Callable[[int], bytes | None]) -> tuple[Fence, ...]:
    """Return the fences that say what is on the lineage: the highest one, the one of the attempt it resumed from, and so on."""
    there = set(numbers)
    chain: list[Fence] = []
    number = max(there, default=None)
    while number is not None and number in there:
        if number not in known:
            data = read(number)
            if data is None:
                raise StoreTrouble(f"fence {number} is listed and cannot be read")
            try:
                known[number] = loads(Fence, data)
            except ContractError as error:
                raise StoreTrouble(f"fence {number} cannot be understood: {error}") from error
        fence = known[number]
        chain.append(fence)
        resumed = fence.resume if fence.resume_run is None else None
        number = resumed.attempt if resumed is not None and resumed.attempt < number else None
    return tuple(chain)


def _read_record(documents: Documents, store_url: str, run: str, name: StepName, *, is_abandoned: bool) -> CheckpointRecord | None:
    directory = f"{run}/{step_path(name)}"
    data = documents.read(f"{directory}/{MANIFEST}")
    if data is None:
        return None  # deleted, or never committed
    try:
        manifest = parse_manifest(data)
        if (manifest.run, manifest.step, manifest.attempt) != (run, name.step, name.attempt):
            raise ContractError(f"it is the manifest of step {manifest.step} of attempt {manifest.attempt} of run {manifest.run}")
    except ContractError as error:
        log.warning("%s/%s is left out: %s", store_url, directory, error)
        return None
    is_verified = _is_marked(documents.read(f"{directory}/{VERIFIED}"), digest(data))
    return CheckpointRecord(
        run=run,
        step=name.step,
        attempt=name.attempt,
        uri=f"{store_url}/{directory}",
        manifest_sha256=digest(data),
        level=Level.VERIFIED if is_verified else Level.COMMITTED,
        abandoned=is_abandoned,
        tagged=bool(manifest.tags),
    )


def _is_marked(mark: bytes | None, manifest_sha256: str) -> bool:
    """A mark that cannot be read marks nothing."""
    try:
        return mark is not None and loads(VerifiedMark, mark).manifest_sha256 == manifest_sha256
    except ContractError:
        return False
