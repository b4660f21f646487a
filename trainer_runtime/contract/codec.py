"""Strict JSON for the contract's dataclasses: what was written comes back equal, and anything else is one error that names the field.

It is not a general serializer. It knows the types the contract uses (str, int, float, bool, None, enums, tuples, dict[str, …],
nested dataclasses) and refuses every other one, so that a field of a new type is noticed where it is declared. A field of type Any is given
plain JSON types and passes as it is.

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
from collections.abc import Callable
from typing import Any, Final, TypeVar

CONTRACT_VERSION = "1.0"
"""``major.minor`` of every document. Readers refuse another major and accept any minor."""

T = TypeVar("T")
_Path = tuple[Any, "str | int"]
"""Where a value stands: (the path of what holds it, its field, key or number). Put into words only for an error."""
_Reader = Callable[[Any, _Path], Any]
_PLAIN: Final = frozenset({str, int, bool, type(None)})


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
    kind: Any = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII only; equal values give equal bytes. Raises ContractError as `render` does."""
    return render(to_jsonable(value), sort_keys=True)


def render(data: Any, sort_keys: bool = False) -> str:
    """Return plain JSON types as text. Raises ContractError for what JSON does not know, numbers that are none among it."""
    try:
        return json.dumps(data, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"not JSON: {error}") from error


def loads(cls: type[T], text: str | bytes) -> T:
    """Read one ``cls`` from JSON text. Raises ContractError for bad JSON, a wrong type, a missing field or a foreign major version."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{cls.__name__}: not JSON: {error}") from error
    return from_jsonable(cls, data)


def from_jsonable(cls: type[T], data: Any) -> T:
    """Read one ``cls`` from plain JSON types. Raises ContractError with the path of the first field that is wrong."""
    kind: Any = cls
    return typing.cast(T, _reader(kind)(data, (None, cls.__name__)))


@functools.cache
def _writer(kind: type[Any]) -> Callable[[Any], Any]:
    """Return what turns values of exactly that type into plain JSON types."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        # what a field of type Any holds is JSON already, as after reading; to walk it is most of what a save's message costs
        writers = [(field.name, _as_it_is if hints[field.name] is Any else to_jsonable) for field in dataclasses.fields(kind)]
        return lambda value: {name: write(getattr(value, name)) for name, write in writers}
    if issubclass(kind, enum.Enum):
        return lambda value: value.value
    if issubclass(kind, (tuple, list)):
        return lambda value: [to_jsonable(item) for item in value]
    if issubclass(kind, dict):
        return lambda value: {str(key): to_jsonable(item) for key, item in value.items()}
    if issubclass(kind, float):
        # JSON has no NaN; "nan", "inf" and "-inf" are read back by from_jsonable
        return lambda value: value if math.isfinite(value) else repr(value)
    if issubclass(kind, (str, int)):
        return lambda value: value
    raise ContractError(f"{kind.__name__} is not a contract type")


def _as_it_is(value: Any) -> Any:
    return value


@functools.cache
def _reader(kind: Any) -> _Reader:
    """Return what reads values of that type. One is made per type: a rank index has ten thousands of entries of the same two."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional_reader(kind)
    if origin is tuple:
        return _tuple_reader(typing.get_args(kind)[0])
    if origin is dict:
        return _dict_reader(typing.get_args(kind)[1])
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_reader(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    raise ContractError(f"{kind!r} is not a contract type")


def _tuple_reader(item_kind: Any) -> _Reader:
    read_item = _reader(item_kind)

    def read(data: Any, path: _Path) -> Any:
        _expect(isinstance(data, list), path, data, "a list")
        return tuple([read_item(item, (path, index)) for index, item in enumerate(data)])

    return read


def _dict_reader(item_kind: Any) -> _Reader:
    read_item = _reader(item_kind)

    def read(data: Any, path: _Path) -> Any:
        _expect(isinstance(data, dict), path, data, "an object")
        return {key: read_item(item, (path, key)) for key, item in data.items()}

    return read


def _enum_reader(kind: type[enum.Enum]) -> _Reader:
    members: dict[Any, enum.Enum] = {member.value: member for member in kind}

    def read(data: Any, path: _Path) -> Any:
        _expect(isinstance(data, (str, int)) and data in members, path, data, f"one of {list(members)}")
        return members[data]

    return read


def _optional_reader(kind: Any) -> _Reader:
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if len(members) == 1:
        read_member = _reader(members[0])
        return lambda data, path: None if data is None else read_member(data, path)

    def read(data: Any, path: _Path) -> Any:
        if data is None:
            return None
        for member in members:
            if isinstance(member, type) and isinstance(data, member) and not (member is int and isinstance(data, bool)):
                return data
        raise ContractError(f"{_in_words(path)}: {data!r} is not one of {[member.__name__ for member in members]}")

    return read


def _dataclass_reader(kind: Any) -> _Reader:
    hints = typing.get_type_hints(kind)
    has_version = "version" in hints
    fields = [
        (field.name, _reader(hints[field.name]), field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    ]

    def read(data: Any, path: _Path) -> Any:
        _expect(isinstance(data, dict), path, data, "an object")
        if has_version:
            check_version(str(data.get("version", "")))
        values: dict[str, Any] = {}
        for name, read_field, is_needed in fields:
            if name in data:
                values[name] = read_field(data[name], (path, name))
            elif is_needed:
                raise ContractError(f"{_in_words(path)}.{name}: missing")
        try:
            return kind(**values)
        except ContractError:
            raise
        except ValueError as error:
            raise ContractError(f"{_in_words(path)}: {error}") from error

    return read


def _read_float(data: Any, path: _Path) -> float:
    if isinstance(data, str) and data in ("nan", "inf", "-inf"):
        return float(data)
    _expect(isinstance(data, (int, float)) and not isinstance(data, bool), path, data, "a number")
    try:
        return float(data)
    except OverflowError as error:
        raise ContractError(f"{_in_words(path)}: an integer of {len(str(data))} digits is no number of 64 bits") from error


def _read_int(data: Any, path: _Path) -> Any:
    _expect(isinstance(data, int) and not isinstance(data, bool), path, data, "an integer")
    return data


def _read_str(data: Any, path: _Path) -> str:
    _expect(isinstance(data, str), path, data, "a str")
    # Half of a surrogate pair is legal in JSON and in no other encoding: whoever passed it on would fail later.
    return str(data) if data.isascii() else str(data.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _read_bool(data: Any, path: _Path) -> Any:
    _expect(isinstance(data, bool), path, data, "a bool")
    return data


_SCALARS: Final[dict[Any, _Reader]] = {
    float: _read_float,
    int: _read_int,
    str: _read_str,
    bool: _read_bool,
    Any: lambda data, _path: data,
}


def _expect(holds: bool, path: _Path, data: Any, wanted: str) -> None:
    if not holds:
        shown = repr(data)
        raise ContractError(f"{_in_words(path)}: {shown[:80]} is not {wanted}")


def _in_words(path: _Path) -> str:
    before, part = path
    if before is None:
        return str(part)
    return f"{_in_words(before)}[{part}]" if isinstance(part, int) else f"{_in_words(before)}.{part}"
