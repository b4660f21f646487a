"""What a run is started with beside its objects: the tokenizer's files and the configuration. A checkpoint of weights alone is not whole.

They are compared at a resume and kept beside the checkpoints; nothing of them is ever loaded into the script. Where they are kept is not
decided here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from trainer_runtime.errors import ConfigurationError

MAX_BYTES: Final = 1024**3
"""More than a tokenizer ever needs: a directory that holds this much holds a model, too."""
CONFIG_FILE: Final = "config.json"
_BLOCK_BYTES: Final = 1024**2


@dataclass(frozen=True)
class Attachment:
    """One file, by its name below what was given. Its bytes are read when they are needed."""

    name: str
    sha256: str
    size: int
    source: Path | bytes

    def read(self) -> bytes:
        """Return the bytes. Raises ConfigurationError when they are not what they were when the run was attached."""
        data = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ConfigurationError(f"{self.source!s} was changed while the run was attached; attach again")
        return data


def find_files(path: Any, keyword: str = "tokenizer") -> tuple[Attachment, ...]:
    """Return a file, or every file below a directory, by relative name. Raises ConfigurationError that names ``keyword``."""
    if path is None:
        return ()
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError(f"{keyword}: a {type(path).__qualname__} is not a path; give the file or directory it was loaded from")
    root = Path(path)
    if not root.exists():
        raise ConfigurationError(f"{keyword}: {root} does not exist")
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
    total = sum(file.stat().st_size for file in files)
    if total > MAX_BYTES:
        raise ConfigurationError(
            f"{keyword}: {root} holds {total / 1e9:.1f} GB in {len(files)} files; give a directory with the {keyword}'s files alone"
        )
    return tuple(_file(file, file.name if file == root else file.relative_to(root).as_posix()) for file in files)


def render_config(config: Any) -> tuple[Attachment, ...]:
    """Return ``attach(config=…)`` as the file ``config.json``; none for None. Raises ConfigurationError as `plain` does."""
    if config is None:
        return ()
    data = (json.dumps(plain(config, exact=False), indent=2, sort_keys=True) + "\n").encode()
    return (Attachment(CONFIG_FILE, hashlib.sha256(data).hexdigest(), len(data), data),)


def plain(value: Any, path: str = "config", *, exact: bool) -> Any:
    """Return a configuration as plain JSON types. ``exact``: floats as float.hex(), to be compared; else as numbers, to be read.

    Takes mappings, dataclasses, argparse.Namespace, what has ``to_dict()`` and what JSON knows. Raises ConfigurationError with the path of
    a value that is none of these.
    """
    if not isinstance(value, type) and callable(getattr(value, "to_dict", None)):
        value = value.to_dict()  # before its fields: transformers' configurations are dataclasses whose fields lack their model_type
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Namespace):
        value = vars(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if not exact and math.isfinite(value) else value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{path}.{key}", exact=exact) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]", exact=exact) for index, item in enumerate(value)]
    if isinstance(value, (Path, torch.dtype, torch.device)):
        return str(value)
    raise ConfigurationError(f"{path}: a {type(value).__qualname__} cannot be compared; give numbers, text, lists and mappings")


def _file(path: Path, name: str) -> Attachment:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return Attachment(name, digest.hexdigest(), size, path)
