"""Strict JSON for the contract's dataclasses: what was written comes back equal, and anything else is one error that names the field.

It is not a general serializer. It knows the types the contract uses (str, int, float, bool, None, enums, tuples, dict[str, …],
nested dataclasses) and refuses every other one, so that a field of a new type is noticed where it is declared.

Unknown keys are ignored when the document's major ``version`` is ours: a newer minor writer may add fields. An unknown major version is
refused, because its fields may mean something else.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from typing import Any, TypeVar

CONTRACT_VERSION = "1.0"
"""``major.minor`` of every document. Readers refuse another major and accept any minor."""

T = TypeVar("T")


class ContractError(ValueError):
    """A document that is not what the contract says. The message names the field by its path, the value and what was expected."""


class ForeignVersion(ContractError):
    """A document of another major version: nothing is wrong with it, but this side cannot read it."""


def check_version(version: str) -> None:
    """Raise ForeignVersion unless ``version`` has our major number."""
    ours = CONTRACT_VERSION.partition(".")[0]
    if version.partition(".")[0] != ours:
        raise ForeignVersion(f"version: {version!r} is not supported, this side speaks {ours}.x")


def to_jsonable(value: Any) -> Any:
    """Turn a contract value into plain JSON types. ``None`` fields are kept, so that a reader sees every field once."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_jsonable(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has no NaN; "nan", "inf" and "-inf" are read back by from_jsonable
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise ContractError(f"{type(value).__name__} is not a contract type")


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII only; equal values give equal bytes."""
    return json.dumps(to_jsonable(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(cls: type[T], text: str | bytes) -> T:
    """Read one ``cls`` from JSON text. Raises ContractError for bad JSON, a wrong type, a missing field or a foreign major version."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{cls.__name__}: not JSON: {error}") from error
    return from_jsonable(cls, data)


def from_jsonable(cls: type[T], data: Any) -> T:
    """Read one ``cls`` from plain JSON types. Raises ContractError with the path of the first field that is wrong."""
    return typing.cast(T, _read(cls, data, cls.__name__))


def _read(kind: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, data, path)
    if origin is tuple:
        (item_kind, _ellipsis) = typing.get_args(kind)
        _expect(isinstance(data, list), path, data, "a list")
        return tuple(_read(item_kind, item, f"{path}[{index}]") for index, item in enumerate(data))
    if origin is dict:
        _expect(isinstance(data, dict), path, data, "an object")
        (_key_kind, item_kind) = typing.get_args(kind)
        return {key: _read(item_kind, item, f"{path}.{key}") for key, item in data.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, path)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        allowed = [member.value for member in kind]
        _expect(data in allowed, path, data, f"one of {allowed}")
        return kind(data)
    if kind is Any:
        return data
    return _read_scalar(kind, data, path)


def _read_optional(kind: Any, data: Any, path: str) -> Any:
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if data is None:
        return None
    if len(members) == 1:
        return _read(members[0], data, path)
    for member in members:
        if isinstance(member, type) and isinstance(data, member) and not (member is int and isinstance(data, bool)):
            return data
    raise ContractError(f"{path}: {data!r} is not one of {[member.__name__ for member in members]}")


def _read_dataclass(kind: Any, data: Any, path: str) -> Any:
    _expect(isinstance(data, dict), path, data, "an object")
    hints = _hints(kind)
    if "version" in hints:
        check_version(str(data.get("version", "")))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            values[field.name] = _read(hints[field.name], data[field.name], f"{path}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ContractError(f"{path}.{field.name}: missing")
    try:
        return kind(**values)
    except ContractError:
        raise
    except ValueError as error:
        raise ContractError(f"{path}: {error}") from error


def _read_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is float:
        if isinstance(data, str) and data in ("nan", "inf", "-inf"):
            return float(data)
        _expect(isinstance(data, (int, float)) and not isinstance(data, bool), path, data, "a number")
        try:
            return float(data)
        except OverflowError as error:
            raise ContractError(f"{path}: an integer of {len(str(data))} digits is no number of 64 bits") from error
    if kind is int:
        _expect(isinstance(data, int) and not isinstance(data, bool), path, data, "an integer")
        return data
    if kind is str:
        _expect(isinstance(data, str), path, data, "a str")
        # Half of a surrogate pair is legal in JSON and in no other encoding: whoever passed it on would fail later.
        return data if data.isascii() else data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if kind is bool:
        _expect(isinstance(data, bool), path, data, "a bool")
        return data
    raise ContractError(f"{path}: {kind!r} is not a contract type")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Resolving annotations compiles them; a rank index has ten thousands of entries of the same two types."""
    return typing.get_type_hints(kind)


@functools.cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _expect(holds: bool, path: str, data: Any, wanted: str) -> None:
    if not holds:
        shown = repr(data)
        raise ContractError(f"{path}: {shown[:80]} is not {wanted}")
