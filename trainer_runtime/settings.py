"""The settings of one rank: keyword before environment before assignment before default, each checked where it is read.

With no environment at all it is a laptop: one process, a local directory, no services. It opens nothing and starts nothing.
"""

from __future__ import annotations

import operator
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer_runtime.contract import environment
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.contract.layout import is_run_name
from trainer_runtime.contract.manifest import JobIdentity
from trainer_runtime.errors import ConfigurationError

DEFAULT_STORE: Final = "checkpoints"
"""Directory below the working directory, made when missing; only without an operator."""
DEFAULT_RUN: Final = "default"
DEFAULT_SAVE_SECONDS: Final = 600.0
"""Used when nobody names steps or seconds: little is lost, and a save stalls training for its staging alone."""
DEFAULT_KEEP_LAST: Final = 5
DEFAULT_GRACE_SECONDS: Final = 30.0
"""Kubernetes' default termination grace, and the time after which torchrun kills its ranks."""


@dataclass(frozen=True)
class Settings:
    """Everything `attach` needs to know besides the objects."""

    store: str
    """URL: ``file:///…`` or ``s3://…``."""
    create_store: bool
    run: str
    save_every_steps: int | None
    save_every_seconds: float | None
    keep_last: int
    keep_every_steps: int | None
    allow: tuple[str, ...]
    start_fresh: bool
    rank: int
    local_rank: int
    world_size: int
    assignment: Assignment | None
    """None: there is no operator."""
    job: JobIdentity
    pod_uid: str
    worker_name: str
    """Pod name, or host and process, for people."""
    grace_seconds: float
    launch_id: str
    """Equal on all ranks of one launch and no other: what the ranks prefix their exchange with."""
    master: tuple[str, int] | None
    """Host and port of the attempt's TCPStore; None in a world of one."""

    @property
    def hang_seconds(self) -> float | None:
        return self.assignment.settings.hang_seconds if self.assignment else None

    @property
    def worker_index(self) -> int:
        return self.assignment.worker_index if self.assignment else 0


def resolve(
    environ: Mapping[str, str] = os.environ,
    *,
    store: str | Path | None = None,
    run: str | None = None,
    save_every_steps: int | None = None,
    save_every_seconds: float | None = None,
    keep_last: int | None = None,
    keep_every_steps: int | None = None,
    allow: Iterable[str] = (),
    start_fresh: bool = False,
) -> Settings:
    """Work the settings out. Raises ConfigurationError that names the keyword or variable and the allowed values."""
    assignment = _read_assignment(environ)
    spec = assignment.settings if assignment else None
    steps = _positive_int("save_every_steps", save_every_steps, environ, environment.SAVE_EVERY_STEPS)
    seconds = _positive_float("save_every_seconds", save_every_seconds, environ, environment.SAVE_EVERY_SECONDS)
    if steps is None and seconds is None:
        steps, seconds = (spec.save_every.steps, spec.save_every.seconds) if spec else (None, None)
    if steps is None and seconds is None:
        seconds = DEFAULT_SAVE_SECONDS
    kept = _positive_int("keep_last", keep_last, environ, environment.KEEP_LAST)
    url, create = _store_url(store, environ, assignment is not None)
    rank, local_rank, world_size = _place(environ)
    return Settings(
        store=url,
        create_store=create,
        run=_run_name(run, environ),
        save_every_steps=steps,
        save_every_seconds=seconds,
        keep_last=kept if kept is not None else (spec.keep.last if spec else DEFAULT_KEEP_LAST),
        keep_every_steps=_positive_int("keep_every_steps", keep_every_steps, environ, None) or (spec.keep.every_steps if spec else None),
        allow=tuple(sorted({*_words("allow", allow), *(spec.allow if spec else ())})),
        start_fresh=_yes_or_no("start_fresh", start_fresh) or (assignment is not None and assignment.start_fresh),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        assignment=assignment,
        job=JobIdentity(
            environ.get(environment.JOB_NAMESPACE, ""), environ.get(environment.JOB_NAME, ""), environ.get(environment.JOB_UID, "")
        ),
        pod_uid=environ.get(environment.POD_UID, ""),
        worker_name=environ.get(environment.POD_NAME, "") or f"{socket.gethostname()}:{os.getpid()}",
        grace_seconds=_positive_float("", None, environ, environment.GRACE_SECONDS) or DEFAULT_GRACE_SECONDS,
        launch_id=f"{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        master=_master(environ) if world_size > 1 else None,
    )


def _read_assignment(environ: Mapping[str, str]) -> Assignment | None:
    text = environ.get(environment.ASSIGNMENT)
    if not text:
        return None
    try:
        return loads(Assignment, text)
    except ContractError as error:
        raise ConfigurationError(f"{environment.ASSIGNMENT}: {error}") from error


def _store_url(store: str | Path | None, environ: Mapping[str, str], has_operator: bool) -> tuple[str, bool]:
    """Return the URL, and whether a missing directory is to be made: only the default is, a named place that is missing is a lost mount."""
    named: Any = store if store is not None else environ.get(environment.STORE, "")
    if not isinstance(named, (str, Path)):
        raise ConfigurationError(f"store: a {type(named).__name__} is neither a URL nor a directory")
    given = str(named)
    if not given:
        if has_operator:
            raise ConfigurationError(f"{environment.STORE}: not set, and an operator's job has no default store")
        return (Path.cwd() / DEFAULT_STORE).as_uri(), True
    if "://" in given:
        return given.rstrip("/"), False
    return Path(given).absolute().as_uri(), store is not None


def _run_name(run: str | None, environ: Mapping[str, str]) -> str:
    name: Any = run if run is not None else environ.get(environment.RUN, DEFAULT_RUN)
    if not isinstance(name, str) or not is_run_name(name):
        source = "run" if run is not None else environment.RUN
        raise ConfigurationError(f"{source}: {name!r} is not a run name: [a-z0-9][a-z0-9._-]{{0,127}} without '..'")
    return name


def _place(environ: Mapping[str, str]) -> tuple[int, int, int]:
    values = {}
    for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        values[name] = whole(name, environ.get(name, default), least=int(name == "WORLD_SIZE"))
    if values["RANK"] >= values["WORLD_SIZE"]:
        raise ConfigurationError(f"RANK: {values['RANK']} is not in 0..{values['WORLD_SIZE'] - 1} (WORLD_SIZE)")
    return values["RANK"], values["LOCAL_RANK"], values["WORLD_SIZE"]


def _master(environ: Mapping[str, str]) -> tuple[str, int]:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise ConfigurationError(f"{name}: not set, but WORLD_SIZE is more than 1; start the script with torchrun or rtj-run")
    return environ["MASTER_ADDR"], whole("MASTER_PORT", environ["MASTER_PORT"], least=1)


def whole(name: str, given: Any, least: int) -> int:
    """Return the whole number that a keyword (any integer type) or a variable (text) gives. Raises ConfigurationError."""
    try:
        value = int(given) if isinstance(given, str) else operator.index(given)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name}: {given!r} is not a whole number >= {least}") from None
    if value < least or isinstance(given, bool):
        raise ConfigurationError(f"{name}: {given!r} is not a whole number >= {least}")
    return value


def _words(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{name}: {given!r} is not a list of words; write {name}=[{str(given)!r}]")
    words = tuple(given)
    if not all(isinstance(word, str) for word in words):
        raise ConfigurationError(f"{name}: {given!r} is not a list of words")
    return words


def _yes_or_no(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ConfigurationError(f"{name}: {given!r} is not one of True, False")
    return given


def _positive_int(keyword: str, value: int | None, environ: Mapping[str, str], variable: str | None) -> int | None:
    if value is not None:
        return whole(keyword, value, least=1)
    text = environ.get(variable, "") if variable else ""
    return whole(str(variable), text, least=1) if text else None


def _positive_float(keyword: str, value: float | None, environ: Mapping[str, str], variable: str) -> float | None:
    name, given = (keyword, value) if value is not None else (variable, environ.get(variable) or None)
    if given is None:
        return None
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 < seconds < float("inf") or isinstance(given, bool):
        raise ConfigurationError(f"{name}: {given!r} is not a number of seconds > 0")
    return seconds
