"""Turns a pydantic model into the structural schema that a CRD needs: no references, no titles, no ``null``, every list and text bounded.

What Kubernetes asks beyond that (CEL rules, list types) is in `rules`; here is only what can be said of any model.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

from rtj_operator.api.base import ApiModel

Schema = dict[str, Any]
_KEPT = (
    "type",
    "description",
    "format",
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "required",
)


class SchemaError(TypeError):
    """A field has a type that no structural schema can say. The message names the field's path."""


def structural_schema(model: type[ApiModel], mode: Literal["validation", "serialization"]) -> Schema:
    """Return the schema of a model: ``validation`` for what users write (with defaults), ``serialization`` for what the operator writes
    (without). Raises SchemaError for a type that cannot be said, or a list or text without a bound."""
    document = model.model_json_schema(by_alias=True, mode=mode)
    definitions = document.pop("$defs", {})
    return _convert(document, definitions, "", with_defaults=mode == "validation")


def _convert(node: Schema, definitions: dict[str, Schema], path: str, *, with_defaults: bool) -> Schema:
    node = _resolve(node, definitions)
    if "anyOf" in node:
        node = _without_null(node, definitions, path)
    if node.get("x-kubernetes-int-or-string"):
        return {key: node[key] for key in ("description", "default", "x-kubernetes-int-or-string") if key in node}
    schema = {key: copy.deepcopy(node[key]) for key in _KEPT if key in node}
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if "const" in node:
        schema["enum"] = [node["const"]]
    if not with_defaults:
        schema.pop("default", None)
    elif "default" in schema and schema["default"] is None:
        del schema["default"]
    kind = schema.get("type")
    if kind == "object":
        _convert_object(node, schema, definitions, path, with_defaults=with_defaults)
    elif kind == "array":
        if "maxItems" not in schema:
            raise SchemaError(f"{path}: a list without maxItems")
        schema["items"] = _convert(node["items"], definitions, f"{path}[]", with_defaults=with_defaults)
        schema["x-kubernetes-list-type"] = "atomic"
    elif kind == "string":
        if not schema.keys() & {"maxLength", "enum", "format"}:
            raise SchemaError(f"{path}: a text without maxLength")
    elif kind == "integer":
        schema["format"] = "int64"
    elif kind not in ("number", "boolean"):
        raise SchemaError(f"{path}: type {kind!r} has no structural schema")
    return schema


def _convert_object(node: Schema, schema: Schema, definitions: dict[str, Schema], path: str, *, with_defaults: bool) -> None:
    if "properties" not in node:
        schema["x-kubernetes-preserve-unknown-fields"] = True
        return
    schema["properties"] = {
        name: _convert(item, definitions, f"{path}.{name}", with_defaults=with_defaults) for name, item in node["properties"].items()
    }
    optional = {name for name, item in node["properties"].items() if item.get("readOnly")}  # computed fields may be absent
    schema["required"] = [name for name in schema.get("required", []) if name not in optional]
    if not schema["required"]:
        del schema["required"]
    if "default" in schema:
        schema["default"] = _default_beyond_fields(schema)


def _default_beyond_fields(schema: Schema) -> Schema:
    """Return of an object's default what its fields do not default to by themselves; the API server fills in those."""
    properties = schema["properties"]
    return {
        name: value
        for name, value in schema["default"].items()
        if value is not None and properties[name].get("type") != "object" and properties[name].get("default") != value
    }


def _resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Inline a reference; what stands beside it (the field's own description and default) wins."""
    if "$ref" not in node:
        return node
    target = _resolve(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}}


def _without_null(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    """Return an optional field as its type; Kubernetes says "optional" by not requiring it."""
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    members = [_resolve(member, definitions) for member in node["anyOf"] if member.get("type") != "null"]
    if len(members) == 1:
        return {**members[0], **beside}
    if {member.get("type") for member in members} == {"integer", "string"}:
        return {**beside, "x-kubernetes-int-or-string": True}
    raise SchemaError(f"{path}: a choice of {len(members)} types has no structural schema")
