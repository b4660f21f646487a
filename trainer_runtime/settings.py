"""The settings of one rank: keyword before environment before assignment before default, each checked where it is read.

With no environment at all it is a laptop: one process, a local directory, no services. It opens nothing and starts nothing.
"""

from __future__ import annotations

import operator
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainer_runtime.contract import environment
from trainer_runtime.contract.assignment import Archive, Assignment, Best, Goal, Keep, ResumeMode, ResumePoint, RunSettings, S3Settings
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.contract.layout import is_run_name
from trainer_runtime.contract.manifest import JobIdentity
from trainer_runtime.contract.place import parse_checkpoint
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
class Replay:
    """A try-out: a launch like any other, but from a given checkpoint, for a few steps, and into a store of its own."""

    store: str
    """URL of the try-out's store; it takes the place of the run's, whatever the script says."""
    until: int
    """The step that is saved and ends the launch."""
    notes: str
    """Directory in which every rank notes what it sees in each step."""
    resume: ResumePoint | None = None
    """Where the try-out's run begins while it has no step of its own."""


@dataclass(frozen=True)
class Settings:
    """Everything `attach` needs to know besides the objects."""

    store: str
    """URL: ``file:///…`` or ``s3://…``."""
    create_store: bool
    s3: S3Settings
    """Endpoint and region for every s3:// URL of this run."""
    run: str
    save_every_steps: int | None
    save_every_seconds: float | None
    keep: Keep
    local: str | None
    """Absolute path of a directory on this machine's own disk; None: no local tier."""
    archive: Archive | None
    allow: tuple[str, ...]
    start_fresh: bool
    resume_from: ResumePoint | None
    """Where a run begins that has no committed step on its lineage; its digest is not known yet."""
    replay: Replay | None
    """None: this is training and no try-out."""
    rank: int
    local_rank: int
    local_world_size: int
    """How many ranks share this one's machine or container, and its memory."""
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
    keep_best: str | None = None,
    keep_daily: int | None = None,
    keep_weekly: int | None = None,
    local: str | Path | None = None,
    archive: str | Path | None = None,
    archive_every_steps: int | None = None,
    allow: Iterable[str] = (),
    start_fresh: bool = False,
    resume_from: str | Path | None = None,
    mode: str | None = None,
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
    url, create = _store_url(store, environ, assignment is not None)
    rank, local_rank, world_size = _place(environ)
    settings = Settings(
        store=url,
        create_store=create,
        s3=_s3(environ, spec),
        run=_run_name(run, environ),
        save_every_steps=steps,
        save_every_seconds=seconds,
        keep=_keep(
            spec.keep if spec else Keep(last=DEFAULT_KEEP_LAST),
            last=_positive_int("keep_last", keep_last, environ, environment.KEEP_LAST),
            every_steps=_positive_int("keep_every_steps", keep_every_steps, environ, None),
            best=_best(keep_best),
            daily=_positive_int("keep_daily", keep_daily, environ, None),
            weekly=_positive_int("keep_weekly", keep_weekly, environ, None),
        ),
        local=_local(local, spec, url),
        archive=_archive(archive, archive_every_steps, spec, url),
        allow=tuple(sorted({*_words("allow", allow), *(spec.allow if spec else ())})),
        start_fresh=_yes_or_no("start_fresh", start_fresh) or (assignment is not None and assignment.start_fresh),
        resume_from=_resume_from(resume_from, mode),
        replay=None,
        rank=rank,
        local_rank=local_rank,
        local_world_size=whole("LOCAL_WORLD_SIZE", environ.get("LOCAL_WORLD_SIZE", "1"), least=1),
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
    return _as_replay(settings, _read_replay(environ))


def _as_replay(settings: Settings, replay: Replay | None) -> Settings:
    """Let a try-out touch nothing of the run: neither its store nor its tiers, and no save but the last one."""
    if replay is None:
        return settings
    return replace(
        settings,
        store=replay.store,
        create_store=True,
        save_every_steps=None,
        save_every_seconds=None,
        local=None,
        archive=None,
        start_fresh=False,
        resume_from=replay.resume,
        replay=replay,
    )


def _read_replay(environ: Mapping[str, str]) -> Replay | None:
    text = environ.get(environment.REPLAY)
    if not text:
        return None
    try:
        return loads(Replay, text)
    except ContractError as error:
        raise ConfigurationError(f"{environment.REPLAY}: {error}") from error


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
    return Path(given).absolute().as_uri(), False


def _s3(environ: Mapping[str, str], spec: RunSettings | None) -> S3Settings:
    assigned = spec.s3 if spec else S3Settings()
    endpoint = environ.get(environment.S3_ENDPOINT) or assigned.endpoint
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(f"{environment.S3_ENDPOINT}: {endpoint!r} is not a URL: http://host:port or https://host")
    return S3Settings(endpoint, environ.get(environment.S3_REGION) or assigned.region)


def _keep(assigned: Keep, **given: Any) -> Keep:
    """Let each keyword that was given take the place of the assignment's rule."""
    return replace(assigned, **{rule: value for rule, value in given.items() if value is not None})


def _best(given: Any) -> Best | None:
    if given is None:
        return None
    metric, _, goal = given.rpartition(":") if isinstance(given, str) and given.endswith((":min", ":max")) else (given, "", "min")
    if not isinstance(metric, str) or not metric:
        raise ConfigurationError(f"keep_best: {given!r} is not '<metric>' (the least is best), '<metric>:min' or '<metric>:max'")
    return Best(metric, Goal(goal))


def _local(given: Any, spec: RunSettings | None, store: str) -> str | None:
    if given is None:
        path = spec.local if spec else None
    elif not isinstance(given, (str, Path)) or "://" in str(given) or not str(given):
        raise ConfigurationError(f"local: {given!r} is not a directory on this machine's own disk")
    else:
        path = str(Path(given).absolute())
    if path is not None and Path(path).as_uri() == store:
        raise ConfigurationError(f"local: {path} is the store itself; name a directory on this machine's own disk")
    return path


def _archive(given: Any, every_steps: int | None, spec: RunSettings | None, store: str) -> Archive | None:
    every = _positive_int("archive_every_steps", every_steps, {}, None)
    if given is None:
        if every is not None:
            raise ConfigurationError("archive_every_steps: given without archive; say where to copy to: archive='s3://bucket/prefix'")
        archive = spec.archive if spec else None
    elif not isinstance(given, (str, Path)) or not str(given):
        raise ConfigurationError(f"archive: {given!r} is neither a URL nor a directory")
    else:
        archive = Archive(str(given).rstrip("/") if "://" in str(given) else Path(given).absolute().as_uri(), every)
    if archive is not None and archive.store == store:
        raise ConfigurationError(f"archive: {archive.store} is the store itself; name a second one")
    return archive


def _resume_from(given: Any, mode: Any) -> ResumePoint | None:
    words = [word.value for word in ResumeMode]
    if mode is not None and mode not in words:
        raise ConfigurationError(f"mode: {mode!r} is not one of {', '.join(words)}")
    if given is None:
        if mode is not None:
            raise ConfigurationError("mode: given without resume_from; name the checkpoint to begin from")
        return None
    if not isinstance(given, (str, Path)):
        raise ConfigurationError(f"resume_from: a {type(given).__name__} is neither a URL nor a directory")
    try:
        place = parse_checkpoint(str(given) if "://" in str(given) else Path(given).absolute().as_uri())
    except ContractError as error:
        raise ConfigurationError(f"resume_from: {error}") from error
    return ResumePoint(place.name.step, place.name.attempt, place.uri, "", ResumeMode(mode) if mode else ResumeMode.STRICT)


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
