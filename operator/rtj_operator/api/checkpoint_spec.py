"""``spec.checkpoint``: where checkpoints live, when they are made, which of them stay, and from what a run begins.

Whether a path lies on a volume that fits needs the pod template, and is asked in `volumes`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from rtj_operator.api.base import ApiModel
from trainer_runtime.contract.allow import ALLOW_WORDS, Allow
from trainer_runtime.contract.assignment import Goal, ResumeMode
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.layout import is_run_name
from trainer_runtime.contract.place import S3, CheckpointPlace, StorePlace, parse_checkpoint, parse_store

MAX_STORE = 256
"""Characters of a store's URL."""
MAX_SOURCE = 448
"""Characters of a checkpoint's URI: the store, the run (128) and the step's name."""
MAX_PATH = 256


class Every(ApiModel):
    """When to save. At least one of the two is needed; whichever comes first counts."""

    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Save when this many optimizer steps were made since the last save."""
    seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Save when this many seconds passed since the last save."""

    @model_validator(mode="after")
    def _has_a_trigger(self) -> Self:
        if self.steps is None and self.seconds is None:
            raise ValueError("needs at least one of steps and seconds")
        return self


class Best(ApiModel):
    """Keep the checkpoint that a metric says is the best one."""

    metric: Annotated[str, Field(min_length=1, max_length=64)]
    """Name of the metric, as the program reports it."""
    mode: Goal = Goal.MIN
    """Which end of the metric is the good one: min or max."""


class Keep(ApiModel):
    """Which verified checkpoints are kept; one that any of the rules names stays. The one that an attempt would resume from, tagged ones
    and the sources of other jobs are always kept."""

    last: Annotated[int, Field(ge=2, le=1000)] = 5
    """How many of the newest verified checkpoints are kept; at least 2, so that a damaged one has an older one behind it."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Also keep every checkpoint whose step is a multiple of this, for ever."""
    best: Best | None = None
    """Also keep the checkpoint whose reported metric is the best one."""
    daily: Annotated[int, Field(ge=1, le=366)] | None = None
    """Also keep the newest checkpoint of each of this many days (UTC) that have one."""
    weekly: Annotated[int, Field(ge=1, le=520)] | None = None
    """Also keep the newest checkpoint of each of this many ISO weeks (UTC) that have one."""


class S3Settings(ApiModel):
    """Where the S3 API is. Credentials stay in the pod template: environment from a secret, or the service account."""

    endpoint: Annotated[str, Field(max_length=256)] | None = None
    """URL of the S3 API, https:// or http://; not set: the one of AWS, or what AWS_ENDPOINT_URL in the template says."""
    region: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Region of the bucket; not set: what AWS_REGION in the template says."""

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        (scheme, _, rest) = value.partition("://")
        if scheme not in ("http", "https") or not rest.strip("/") or "@" in rest or any(character.isspace() for character in rest):
            raise ValueError(f"{value!r} is not https://<host> or http://<host>, without a user name")
        return value.rstrip("/")


class ResumeFrom(ApiModel):
    """A checkpoint of another run that this run begins with."""

    uri: Annotated[str, Field(max_length=MAX_SOURCE)]
    """The checkpoint: <store>/<run>/steps/<step>-<attempt>. Every byte of it is verified before it is used, and it is never deleted."""
    mode: ResumeMode = ResumeMode.STRICT
    """Strict: everything goes on, bit for bit. WarmStart: the weights only; optimizer, schedule and step count begin anew."""

    @field_validator("uri")
    @classmethod
    def _is_a_checkpoint(cls, value: str) -> str:
        try:
            return parse_checkpoint(value).uri
        except ContractError as error:
            raise ValueError(str(error)) from error

    @property
    def place(self) -> CheckpointPlace:
        """The URI taken apart."""
        return parse_checkpoint(self.uri)


class Local(ApiModel):
    """A tier on each node's own disk, faster than the store."""

    path: Annotated[str, Field(min_length=2, max_length=MAX_PATH)]
    """A directory in the trainer container, on a volume of it: an emptyDir, a hostPath or any other that can be written."""

    @field_validator("path")
    @classmethod
    def _is_an_absolute_path(cls, value: str) -> str:
        path = PurePosixPath(value)
        if not path.is_absolute() or path == PurePosixPath("/") or value.startswith("//") or ".." in path.parts:
            raise ValueError(f"{value!r} is not an absolute path below / without '..'")
        return str(path)


class Archive(ApiModel):
    """A second store, to which chosen checkpoints are copied when they are verified in the first one."""

    store: Annotated[str, Field(max_length=MAX_STORE)]
    """Where the copies go: s3://<bucket>/<prefix>, or file:///<path> on a volume that all workers share."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Copy every checkpoint whose step is a multiple of this; not set: tagged ones only."""

    @field_validator("store")
    @classmethod
    def _is_a_store(cls, value: str) -> str:
        return _store(value)


class Checkpoint(ApiModel):
    """Where checkpoints are kept, how often they are made, and which of them stay."""

    store: Annotated[str, Field(max_length=MAX_STORE)]
    """Where checkpoints live: s3://<bucket>/<prefix>, or file:///<path>, a path in the trainer container on a volume that all workers
    share. Immutable."""
    run: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of the directory in the store; default <namespace>.<name>. A job deleted and applied again goes on with it. Immutable."""
    start_fresh: bool = False
    """Once per job, begin at step 0 beside what the run's directory holds. The older checkpoints stay there and are not used any more."""
    resume_from: ResumeFrom | None = None
    """A checkpoint of another run to begin with; used until this run has a checkpoint of its own, ignored from then on."""
    every: Every = Every(seconds=1800)
    """When to save; acts at the next attempt."""
    keep: Keep = Keep()
    """Which verified checkpoints are kept; acts at the next attempt."""
    allow: Annotated[tuple[Allow, ...], Field(max_length=len(ALLOW_WORDS))] = ()
    """Differences that a strict resume may have, by the words that its message names, for instance worldSize; each that was made use of
    is recorded in the next checkpoint. Acts at the next attempt."""
    s3: S3Settings | None = None
    """Where the S3 API is, for every s3:// among store, archive and resumeFrom; acts at the next attempt."""
    local: Local | None = None
    """A tier on each node's own disk, faster than the store; acts at the next attempt."""
    archive: Archive | None = None
    """A second store, to which chosen checkpoints are copied; acts at the next attempt."""

    @field_validator("store")
    @classmethod
    def _is_a_store(cls, value: str) -> str:
        return _store(value)

    @field_validator("run")
    @classmethod
    def _is_a_run_name(cls, value: str | None) -> str | None:
        if value is not None and not is_run_name(value):
            raise ValueError(f"{value!r} is not [a-z0-9][a-z0-9._-]{{0,127}} without '..'")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        source = (self.resume_from.place.store,) if self.resume_from is not None else ()
        if self.s3 is not None and all(place.scheme != S3 for place in (*self.stores, *source)):
            raise ValueError("s3 is set, and none of store, archive.store and resumeFrom.uri begins with s3://")
        if self.archive is not None and self.archive.store == self.store:
            raise ValueError("archive.store is the same place as store")
        if self.start_fresh and self.resume_from is not None:
            raise ValueError("startFresh and resumeFrom exclude each other; to begin anew from another run's checkpoint choose a new run")
        return self

    @property
    def place(self) -> StorePlace:
        """The store's URL taken apart."""
        return parse_store(self.store)

    @property
    def stores(self) -> tuple[StorePlace, ...]:
        """The store and the archive, if there is one."""
        return (self.place, *((parse_store(self.archive.store),) if self.archive is not None else ()))


def _store(url: str) -> str:
    try:
        return parse_store(url).url
    except ContractError as error:
        raise ValueError(str(error)) from error
