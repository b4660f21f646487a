"""Which store, run and checkpoint a person means. What is not there, or could be two things, is an error that says what could be meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_runtime.checkpoint.documents import is_still_there
from trainer_runtime.checkpoint.keeping.inventory import Committed, read_committed
from trainer_runtime.contract import environment
from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.layout import FENCES, STEPS, is_run_name
from trainer_runtime.contract.place import parse_checkpoint
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, StoreUnavailable
from trainer_runtime.settings import DEFAULT_STORE
from trainer_runtime.store.base import Store
from trainer_runtime.store.open import open_store

NEWEST: Final = "newest"
"""Word for the newest verified checkpoint on the lineage."""
_STEP: Final = re.compile(r"(\d+)(?:-(\d+))?")
_SHOWN: Final = 20
"""How many of the allowed values a message names."""


@dataclass(frozen=True)
class Place:
    """A run in an open store. ``run`` empty: nobody said which, and there are several."""

    store: Store
    run: str
    environ: Mapping[str, str]

    @property
    def uri(self) -> str:
        return f"{self.store.uri}/{self.run}"

    def committed(self) -> tuple[Committed, ...]:
        """Return the run's checkpoints. Raises ConfigurationError when it is not clear which run, or it is not there."""
        runs = [name for name in self.store.list("") if is_run_name(name) and self._is_run(name)]
        if self.run in runs:
            return read_committed(self.store, self.run)
        held = _listed(runs) or "no run"
        if not self.run:
            raise ConfigurationError(f"--run: not given, and {self.store.uri} holds {held}")
        raise ConfigurationError(f"--run: {self.run!r} is not in {self.store.uri}, which holds {held}")

    def _is_run(self, name: str) -> bool:
        return bool(self.store.list(f"{name}/{FENCES}") or self.store.list(f"{name}/{STEPS}"))

    def choose(self, word: str) -> Chosen:
        """Return the checkpoint that ``word`` names. Raises ConfigurationError that names the word and what could be meant."""
        if "://" in word:
            return _by_address(word, self)
        return Chosen(self.store, choose(self.committed(), word, self.uri))


@dataclass(frozen=True)
class Chosen:
    """One checkpoint and the store it lies in."""

    store: Store
    found: Committed


class DeletedMeanwhile(ConfigurationError):
    """What a word named is not there any more. It is not damaged."""


@contextmanager
def reading(*chosen: Chosen) -> Iterator[None]:
    """Around all that reads checkpoints: what retention deletes meanwhile looks damaged, so a look at the store decides.

    Raises DeletedMeanwhile instead of CheckpointDamaged when one of ``chosen`` is gone.
    """
    try:
        yield
    except CheckpointDamaged as error:
        for one in chosen:
            if not is_still_there(one.store, one.found.reference):
                raise DeletedMeanwhile(f"STEP: {short_name(one.found)} was deleted while it was read") from error
        raise


def choose(committed: Sequence[Committed], word: str, uri: str) -> Committed:
    """Return the one of ``committed`` that ``word`` names. Raises ConfigurationError."""
    if word == NEWEST:
        proven = [found for found in committed if found.on_lineage and found.level is Level.VERIFIED]
        if not proven:
            raise ConfigurationError(f"STEP: {uri} holds no verified checkpoint on its lineage; it holds {_names(committed)}")
        return proven[-1]
    match = _STEP.fullmatch(word)
    if match is None:
        raise ConfigurationError(f"STEP: {word!r} is not a step (120), a step and an attempt (120-2), {NEWEST!r} or a checkpoint's address")
    step, attempt = int(match[1]), None if match[2] is None else int(match[2])
    meant = [found for found in committed if found.name.step == step and attempt in (None, found.name.attempt)]
    if not meant:
        raise ConfigurationError(f"STEP: {word} is not in {uri}, which holds {_names(committed)}")
    if len(meant) > 1:
        raise ConfigurationError(f"STEP: {word} could be {_names(meant)}; write one of them")
    return meant[0]


def short_name(found: Committed) -> str:
    """Return ``<step>-<attempt>``, as a person writes it."""
    return f"{found.name.step}-{found.name.attempt}"


def open_place(store: str | None, run: str | None, environ: Mapping[str, str]) -> Place:
    """Return where to look. Raises ConfigurationError or StoreUnavailable, naming the option or variable."""
    given = store or environ.get(environment.STORE) or DEFAULT_STORE
    source = "--store" if store else environment.STORE if environ.get(environment.STORE) else "--store: not given, and the default"
    opened = open_second_store(source, given, environ)
    name = run or environ.get(environment.RUN) or ""
    if name and not is_run_name(name):
        raise ConfigurationError(f"--run: {name!r} is not a run name: [a-z0-9][a-z0-9._-]{{0,127}} without '..'")
    if not name:
        runs = [entry for entry in opened.list("") if is_run_name(entry)]
        name = runs[0] if len(runs) == 1 else ""
    return Place(opened, name, environ)


def open_second_store(source: str, given: str, environ: Mapping[str, str]) -> Store:
    """Open a store by URL or directory. ``source`` names the option in errors. Raises ConfigurationError, StoreUnavailable."""
    try:
        s3 = S3Settings(environ.get(environment.S3_ENDPOINT) or None, environ.get(environment.S3_REGION) or None)
        return open_store(given.rstrip("/") if "://" in given else Path(given).absolute().as_uri(), s3)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {str(error).removeprefix('store: ')}") from error
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{source}: {error}") from error


def _by_address(address: str, place: Place) -> Chosen:
    try:
        meant = parse_checkpoint(address)
    except ContractError as error:
        raise ConfigurationError(f"STEP: {error}") from error
    store = place.store if meant.store.url == place.store.uri else open_second_store("STEP", meant.store.url, place.environ)
    for found in read_committed(store, meant.run):
        if found.name == meant.name:
            return Chosen(store, found)
    raise ConfigurationError(f"STEP: there is no checkpoint at {address}")


def _names(committed: Sequence[Committed]) -> str:
    return _listed([short_name(found) for found in committed]) or "no checkpoint"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
