"""One ResilientTrainingJob as an API server returned it. Reading never raises: a bad spec is a fact about the job, not an error of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from rtj_operator.api.spec import JobSpec, describe_error
from rtj_operator.api.status import JobStatus


@dataclass(frozen=True)
class Job:
    """The object's identity, wish and state."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    creation_timestamp: datetime | None
    deletion_timestamp: datetime | None
    spec: JobSpec | None
    """None when it cannot be used; ``spec_error`` says why."""
    status: JobStatus
    raw_template: dict[str, Any] = field(default_factory=dict)
    """spec.template as written; never changed."""
    spec_error: str = ""
    """The first thing that is wrong with the spec, with the field's path; empty when it can be used."""
    status_error: str = ""
    """Which status fields could not be read and were taken as absent; empty when all could."""

    @staticmethod
    def parse(obj: dict[str, Any]) -> Job:
        """Read one object, whatever it holds. Never raises for a dict."""
        metadata = _dict(obj.get("metadata"))
        raw_spec = _dict(obj.get("spec"))
        namespace, name = _text(metadata.get("namespace")), _text(metadata.get("name"))
        (spec, spec_error) = _parse_spec(raw_spec, _default_run(namespace, name))
        (status, status_error) = _parse_status(_dict(obj.get("status")))
        return Job(
            namespace=namespace,
            name=name,
            uid=_text(metadata.get("uid")),
            generation=_integer(metadata.get("generation")),
            resource_version=_text(metadata.get("resourceVersion")),
            creation_timestamp=_time(metadata.get("creationTimestamp")),
            deletion_timestamp=_time(metadata.get("deletionTimestamp")),
            spec=spec,
            status=status,
            raw_template=_dict(raw_spec.get("template")),
            spec_error=spec_error,
            status_error=status_error,
        )

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name): what the work queue holds."""
        return (self.namespace, self.name)

    @property
    def run(self) -> str:
        """Name of the run's directory: spec.checkpoint.run, or <namespace>.<name>."""
        wished = self.spec.checkpoint.run if self.spec is not None else None
        return wished or _default_run(self.namespace, self.name)

    @property
    def is_finished(self) -> bool:
        """Whether the status is terminal."""
        return self.status.phase.is_terminal


def _default_run(namespace: str, name: str) -> str:
    return f"{namespace}.{name}"


def _parse_spec(raw: dict[str, Any], default_run: str) -> tuple[JobSpec | None, str]:
    try:
        spec = JobSpec.model_validate(raw)
    except ValidationError as error:
        return None, describe_error(error, "spec")
    checkpoint = spec.checkpoint
    source = checkpoint.resume_from
    if source is not None and (source.place.store, source.place.run) == (checkpoint.place, checkpoint.run or default_run):
        return None, f"spec.checkpoint.resumeFrom.uri: {source.uri} lies in this job's own run, which goes on from its newest checkpoint"
    return spec, ""


def _parse_status(raw: dict[str, Any]) -> tuple[JobStatus, str]:
    """Read a status; a field that cannot be read is left out, so that one bad entry does not cost all that is known."""
    try:
        return JobStatus.model_validate(raw), ""
    except ValidationError as error:
        bad = {str(details["loc"][0]) for details in error.errors(include_url=False) if details["loc"]}
        readable = {key: value for key, value in raw.items() if key not in bad}
        return JobStatus.model_validate(readable), describe_error(error, "status")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _time(value: Any) -> datetime | None:
    """Read metav1.Time; None for anything else."""
    try:
        parsed = datetime.fromisoformat(_text(value))
    except ValueError:
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo is not None else None
