"""What a rank says in every save and seldom changes, as which slots its optimizers have: said once to each persister, then only named.

To write such a value as JSON takes time for every tensor that it names, while training stands still. That it did not change is known by its
being the very same object: whoever encodes a value that may change makes a new one each time (`state.tree`). To compare two of them would
cost as much as to say them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainer_runtime.checkpoint.job import SaveJob
from trainer_runtime.checkpoint.persister.messages import Save
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.manifest import ObjectEntry


class Said:
    """A rank's end: what one persister was told."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def shorten(self, job: SaveJob, again: bool = False) -> Save:
        """Return the message about ``job``, in which what was in the last one is only named."""
        nothing = object()
        repeated = {entry.name for entry in job.objects if self._values.get(entry.name, nothing) is entry.value}
        self._values = {entry.name: entry.value for entry in job.objects}
        objects = tuple(entry for entry in job.objects if entry.name not in repeated)
        return Save(replace(job, objects=objects), again, tuple(sorted(repeated)))


class Heard:
    """A persister's end: what one rank told it."""

    def __init__(self) -> None:
        self._entries: dict[str, ObjectEntry] = {}

    def complete(self, save: Save) -> Save:
        """Return the message with all that it names. Raises ContractError for a name that was not in the last one."""
        unknown = [name for name in save.repeated if name not in self._entries]
        if unknown:
            raise ContractError(f"Save.repeated: {unknown[0]!r} was not in the save before")
        entries = [*save.job.objects, *(self._entries[name] for name in save.repeated)]
        self._entries = {entry.name: entry for entry in entries}
        return replace(save, job=replace(save.job, objects=tuple(sorted(entries, key=lambda entry: entry.name))), repeated=())
