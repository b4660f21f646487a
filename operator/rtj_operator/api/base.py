"""What every API model shares: frozen values, camelCase on the wire, unknown fields ignored, UTC times, bounded text.

A field's docstring is its description in the CRD, so it is written for the reader of ``kubectl explain``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema


class ApiModel(BaseModel):
    """A frozen value that is read leniently (a newer writer may add fields) and written with camelCase names."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    def evolve(self, **changes: Any) -> Self:
        """Return a copy with these fields changed. Raises TypeError for a name that is no field, ValueError for a bad value."""
        unknown = changes.keys() - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {sorted(unknown)}")
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**values, **changes})


def rfc3339(value: datetime) -> str:
    """Write an aware time as Kubernetes does: UTC with a trailing Z, fractions only when there are any."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def cut(text: str, limit: int, encoding: str = "utf-8") -> str:
    """Return at most ``limit`` characters of a text, with what the encoding cannot carry replaced by a question mark."""
    return text[:limit].encode(encoding, "replace").decode(encoding)


@dataclass(frozen=True)
class Cut:
    """Metadata of a status text: cut to ``limit`` characters when it is set, because a long log line must never cost a status write."""

    limit: int
    encoding: str = "utf-8"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(lambda text: cut(text, self.limit, self.encoding), handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "maxLength": self.limit}


@dataclass(frozen=True)
class First:
    """Metadata of a status list: only the first ``limit`` items are kept, so whoever fills it puts the most useful first."""

    limit: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(lambda items: items[: self.limit], handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "maxItems": self.limit}


Time = Annotated[
    AwareDatetime,
    AfterValidator(lambda value: value.astimezone(UTC)),
    PlainSerializer(rfc3339, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""An aware time in UTC."""

Finite = Annotated[
    float | None,
    BeforeValidator(lambda value: None if isinstance(value, float) and not math.isfinite(value) else value),
]
"""A number for people; JSON has no NaN or infinity, so those read as absent."""

Count = Annotated[int, Field(ge=0)]
"""A count or a step: never negative."""

Word = Annotated[str, Cut(64, "ascii")]
"""An identifier: a cause, a reason, a uid, a digest."""
Key = Annotated[str, Cut(64)]
"""A name that the user chose, in any script, and by which something is found: it must come back unchanged, so the spec bounds it too."""
Name = Annotated[str, Cut(253, "ascii")]
"""A Kubernetes object's name."""
Uri = Annotated[str, Cut(448)]
"""A checkpoint's directory: store (256), run (128) and the step's name."""
Line = Annotated[str, Cut(300)]
"""One observed line, as evidence keeps it."""
MAX_MESSAGE: Final = 1024
"""Characters of an event's message; the API's limit."""
Message = Annotated[str, Cut(MAX_MESSAGE)]
"""A sentence for people; as long as an event may be."""
