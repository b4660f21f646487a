"""Where the paths of a store lie as keys, on a kind of storage that cannot rename. Pure: texts in, texts out.

tmp/<step>-<attempt>[.<try>]/…            attempts/<attempt>/<step>[.<try>]/…     a save, in flight and ever after
steps/<step>-<attempt>/manifest.json      the same; its creation is the commit, and its metadata names the directory above
steps/<step>-<attempt>/verified.json      the same
steps/<step>-<attempt>/…                  below the directory that the manifest names
trash/<…>/data@<attempt>@<step>[.<try>]   an empty object: that directory goes when this trash is emptied
everything else                           the same
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainer_runtime.contract.layout import ATTEMPTS, MANIFEST, STEPS, TMP, VERIFIED, StepName, object_data_path, parse_object_data

LINK: Final = "rtj-data"
"""Metadata of a manifest object: the directory of its data, relative to the run."""
_MARK: Final = "data@"


@dataclass(frozen=True)
class Inside:
    """A path inside of a directory that needs looking up."""

    run: str
    name: str
    """Of the directory below `tmp/` or `steps/`."""
    rest: str
    """What follows it; empty: the directory itself."""
    is_staging: bool = False
    """Whether the directory is one below `tmp/`."""

    @property
    def is_data(self) -> bool:
        """Whether a path inside of a checkpoint is one of those that lie with its data."""
        return self.rest not in ("", MANIFEST, VERIFIED)

    def below(self, directory: str) -> str:
        """Return the key of the path when the run keeps the directory's files at ``directory``."""
        return "/".join(part for part in (self.run, directory, self.rest) if part)


def in_staging(path: str) -> Inside | None:
    """Take a path at or below ``<run>/tmp/<step>-<attempt>[.<try>]`` apart; None for any other."""
    parts = path.split("/", 3)
    if len(parts) < 3 or parts[1] != TMP or object_data_path(parts[2]) is None:
        return None
    return Inside(parts[0], parts[2], parts[3] if len(parts) == 4 else "", is_staging=True)


def in_step(path: str) -> Inside | None:
    """Take a path at or below ``<run>/steps/<step>-<attempt>`` apart; None for any other."""
    parts = path.split("/", 3)
    if len(parts) < 3 or parts[1] != STEPS or StepName.parse(parts[2]) is None:
        return None
    return Inside(parts[0], parts[2], parts[3] if len(parts) == 4 else "")


def data_directory(staged: str) -> str:
    """Return where the data of ``<step>-<attempt>[.<try>]`` lies, relative to the run. Raises ValueError for a name of another form."""
    directory = object_data_path(staged)
    if directory is None:
        raise ValueError(f"{staged!r} is not the name of a save: <step>-<attempt>[.<try>]")
    return directory


def step_of(directory: str) -> str | None:
    """Return the name below `steps/` that a data directory can belong to, or None when it is no data directory."""
    staged = staging_of(directory)
    return staged.partition(".")[0] if staged else None


def staging_of(directory: str) -> str | None:
    """Return the name below `tmp/` that a data directory stands for, or None when it is no data directory."""
    parts = directory.split("/")
    return parse_object_data(parts[1], parts[2]) if len(parts) == 3 and parts[0] == ATTEMPTS else None


def mark(directory: str) -> str:
    """Return the name of the empty object that says: this data directory belongs to the trash that it lies in."""
    return _MARK + "@".join(directory.split("/")[1:])


def marked(key: str) -> str | None:
    """Return the data directory that a key in the trash names, or None."""
    name = key.rpartition("/")[2]
    directory = f"{ATTEMPTS}/" + "/".join(name.removeprefix(_MARK).split("@"))
    return directory if name.startswith(_MARK) and staging_of(directory) is not None else None
