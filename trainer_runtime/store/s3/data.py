"""Where each save's data lies, and when it may go: only after a look that no manifest names it.

Data never moves. A manifest names its directory in the metadata of its object, the trash names others by empty objects, and what neither
names belongs to a save in flight, or to one that never ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer_runtime.contract.layout import ATTEMPTS, MANIFEST, STEPS, TRASH
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.store.base import NotInStore
from trainer_runtime.store.s3 import keys
from trainer_runtime.store.s3.api import Api
from trainer_runtime.store.s3.capabilities import abort


class DataDirectories:
    """The data directories of all runs below a prefix; each is given relative to its run, as in `keys`. Thread-safe."""

    def __init__(self, api: Api, prefix: str) -> None:
        self._api, self._prefix = api, prefix
        self._known: dict[tuple[str, str], str] = {}
        """What manifests name, by run and step; a manifest never changes."""
        self._kept: set[tuple[str, str]] = set()

    def of(self, step: keys.Inside) -> str:
        """Return the directory that a checkpoint's manifest names. Raises NotInStore when there is no manifest."""
        known = self._known.get((step.run, step.name))
        if known is not None:
            return known
        metadata = self._api.look(f"{self._prefix}{step.run}/{STEPS}/{step.name}/{MANIFEST}").metadata
        directory = metadata.get(keys.LINK, keys.data_directory(step.name))  # a copy by a tool that drops metadata: the first try
        self.remember(step, directory)
        return directory

    def named_now_by(self, step: keys.Inside) -> str | None:
        """Return the directory that a step's manifest names on the server, whatever is remembered; None when there is no manifest."""
        self.forget(step)
        return self._named_by(step)

    def remember(self, step: keys.Inside, directory: str) -> None:
        """A commit of ours was made, or a manifest was read."""
        self._known[step.run, step.name] = directory

    def forget(self, step: keys.Inside) -> None:
        """The manifest may be gone."""
        self._known.pop((step.run, step.name), None)

    def keep(self, run: str, directory: str) -> None:
        """Never remove this one: a commit of it was sent, and may yet arrive."""
        self._kept.add((run, directory))

    def find_loose(self, run: str) -> Iterator[str]:
        """Yield the directories that neither a checkpoint nor the trash names."""
        begin = f"{self._prefix}{run}/"
        found = {"/".join(key.removeprefix(begin).split("/")[:3]) for key in self._api.below(f"{begin}{ATTEMPTS}/")}
        trashed = {keys.marked(key) for key in self._api.below(f"{begin}{TRASH}/")}
        steps = set(self._api.names(f"{begin}{STEPS}/"))
        for directory in sorted(found - trashed):
            name = keys.step_of(directory)
            if name is not None and not (name in steps and self._named_by(keys.Inside(run, name, "")) == directory):
                yield directory

    def left_behind(self, inside: keys.Inside | None) -> Iterator[str]:
        """Yield what stays where it is when a directory is moved or removed: of a save its own; of a step that has lost its manifest that
        of all its tries; of anything else, and of what lies inside of these, nothing."""
        if inside is None or inside.rest:
            return
        own = keys.data_directory(inside.name)
        parent, _, folder = own.rpartition("/")
        if inside.is_staging:
            if self._api.has_any(f"{self._prefix}{inside.run}/{own}/"):
                yield own
        elif self.named_now_by(inside) is None:
            for name in self._api.names(f"{self._prefix}{inside.run}/{parent}/"):
                if name.partition(".")[0] == folder:
                    yield f"{parent}/{name}"

    def remove(self, run: str, directory: str) -> None:
        """Delete a save's data, and the uploads to it that never ended, unless a manifest names it.

        Raises StoreUnavailable when one may yet do so.
        """
        begin = f"{self._prefix}{run}/{directory}/"
        if (run, directory) in self._kept:
            raise StoreUnavailable(f"s3://{self._api.bucket}/{begin}: stays; a commit of it was sent and may yet count")
        name = keys.step_of(directory)
        if name is not None and self.named_now_by(keys.Inside(run, name, "")) == directory:
            return
        for key in self._api.below(begin):
            self._api.delete(key)
        for key, upload in self._api.uploads(begin):
            abort(self._api, key, upload)

    def _named_by(self, step: keys.Inside) -> str | None:
        try:
            return self.of(step)
        except NotInStore:
            return None
