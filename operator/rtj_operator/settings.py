"""The operator's own settings, from environment variables ``RTJ_OPERATOR_<FIELD>``: one field each, with unit, default and reason.

The chart sets them from its values. It is not where a job's wishes are: those are in its spec, and bounded by these.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trainer_runtime.contract.codec import ContractError, from_jsonable
from trainer_runtime.contract.place import S3, parse_store

PREFIX: Final = "RTJ_OPERATOR_"


class SettingsError(ValueError):
    """A variable that is missing or has a value that cannot be used. The message names the variable and what is allowed."""


@dataclass(frozen=True)
class ManifestPrefix:
    """A part of an S3 store that the operator may read for the jobs of one namespace."""

    namespace: str
    """Jobs elsewhere that name the same store are not served: what may be read for whom is the administrator's word."""
    prefix: str
    """``s3://<bucket>/<prefix>``: a job's store is this, or lies below it."""
    endpoint: str | None = None
    """URL of the S3 API; must be what jobs write in spec.checkpoint.s3.endpoint. None: AWS, and jobs that write none."""
    region: str | None = None
    """Region of the bucket; None: what the SDK finds."""
    credentials: str | None = None
    """Directory with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and perhaps AWS_SESSION_TOKEN as files, read again at every look. None: what
    the SDK finds: the service account's identity, or the environment."""


@dataclass(frozen=True)
class OperatorSettings:
    """What one operator process runs with."""

    heartbeat_url: str
    """Where workers send their beats: ``https://<service>.<namespace>.svc:<port>``. No default: only the deployment knows it."""
    heartbeat_ca_file: Path
    """PEM of the CAs that workers trust for the heartbeat server; copied to pods, public. No default, as above."""
    heartbeat_cert_file: Path
    """PEM of the heartbeat server's certificate; read again when it changes."""
    heartbeat_key_file: Path
    """PEM of its key."""
    heartbeat_port: int = 8443
    """TCP port of the heartbeat server. Above 1024, so that it needs no capability."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are handled, comma-separated; empty: all. One operator for the cluster is the usual case."""
    lease_namespace: str = "rtj-system"
    """Namespace of the Lease; the operator's own."""
    lease_name: str = "rtj-operator"
    """Name of the Lease: two operators with the same one exclude each other."""
    lease_seconds: int = 15
    """Seconds after which a silent holder's lease may be taken. Kubernetes' own controllers use 15."""
    node_remediation: Literal["Cordon", "Avoid", "Observe", "Off"] = "Cordon"
    """Upper bound of what jobs may wish in spec.recovery.nodeRemediation."""
    cordon_window_seconds: int = 600
    """Seconds over which new cordons are counted. With the two limits below, a wrong verdict cannot empty a cluster."""
    cordon_max_in_window: int = 5
    """Cordons in that window, at most; never more than cordon_max_percent_in_window either, and always at least 1."""
    cordon_max_percent_in_window: int = 10
    """Cordons in that window, in percent of the matching nodes."""
    cordon_max_percent_standing: int = 20
    """Cordons of ours that stand at the same time, in percent of the matching nodes; always at least 2."""
    trusted_namespaces: tuple[str, ...] = ("*",)
    """Namespaces, comma-separated, whose pods' own word (exit reports, NVML, log lines) may cordon a node. ``*``: all, for clusters of one
    team; empty: none. Elsewhere such evidence only makes that job avoid the node."""
    manifest_stores: tuple[ManifestPrefix, ...] = ()
    """Where the operator reads manifests itself before it chooses a resume point: a JSON list of objects with the fields of ManifestPrefix.
    Empty: it chooses from what workers report."""
    metrics_port: int = 8080
    """TCP port of /metrics, /healthz and /readyz."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log lines that are written."""
    log_format: Literal["json", "text"] = "json"
    """json for log collectors, text for people."""
    kubeconfig: str = ""
    """Path of a kubeconfig, for running outside a cluster; empty: the pod's service account."""


_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "heartbeat_port": (1, 65_535),
    "metrics_port": (1, 65_535),
    "lease_seconds": (5, 300),
    "cordon_window_seconds": (60, 86_400),
    "cordon_max_in_window": (1, 1000),
    "cordon_max_percent_in_window": (1, 100),
    "cordon_max_percent_standing": (1, 100),
}


def load_settings(environment: Mapping[str, str]) -> OperatorSettings:
    """Read the settings. Raises SettingsError for the first one that cannot be used.

    An empty variable is the empty list where a list is meant: who trusts nobody must not get the default. Elsewhere it counts as not set.
    A variable with our prefix that is no setting is refused too: it is a typing mistake that would otherwise act as the default.
    """
    fields = {field.name: field for field in dataclasses.fields(OperatorSettings)}
    known = {variable_name(name) for name in fields}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{name}: no such setting; there are {', '.join(sorted(known))}")
    kinds = typing.get_type_hints(OperatorSettings)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        text = environment.get(variable_name(name), "").strip()
        is_list = typing.get_origin(kinds[name]) is tuple
        if text:
            values[name] = _read(name, kinds[name], text)
        elif is_list and variable_name(name) in environment:
            values[name] = ()
        elif field.default is dataclasses.MISSING:
            raise SettingsError(f"{variable_name(name)}: not set, and it has no default")
    settings = OperatorSettings(**values)
    if not settings.heartbeat_url.startswith("https://"):
        raise SettingsError(f"{variable_name('heartbeat_url')}: {settings.heartbeat_url!r} does not begin with https://")
    return settings


def variable_name(field: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + field.upper()


def _read(name: str, kind: Any, text: str) -> Any:
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if text not in allowed:
            raise SettingsError(f"{variable_name(name)}: {text!r} is not one of {', '.join(allowed)}")
        return text
    if kind == tuple[ManifestPrefix, ...]:
        return _read_manifest_stores(variable_name(name), text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is int:
        return _read_integer(name, text)
    return Path(text) if kind is Path else text


def _read_manifest_stores(variable: str, text: str) -> tuple[ManifestPrefix, ...]:
    try:
        items = json.loads(text)
        if not isinstance(items, list):
            raise SettingsError(f"{variable}: is not a JSON list")
        return tuple(_read_prefix(f"{variable}[{place}]", item) for place, item in enumerate(items))
    except json.JSONDecodeError as error:
        raise SettingsError(f"{variable}: is not JSON: {error}") from error


def _read_prefix(path: str, item: Any) -> ManifestPrefix:
    known = {field.name for field in dataclasses.fields(ManifestPrefix)}
    unknown = sorted(item.keys() - known) if isinstance(item, dict) else []
    if unknown:
        raise SettingsError(f"{path}.{unknown[0]}: no such field; there are {', '.join(sorted(known))}")
    try:
        prefix = from_jsonable(ManifestPrefix, item)
        place = parse_store(prefix.prefix)
    except ContractError as error:
        raise SettingsError(f"{path}: {error}") from error
    if place.scheme != S3:
        raise SettingsError(f"{path}.prefix: {prefix.prefix!r} does not begin with s3://")
    if not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", prefix.namespace):
        raise SettingsError(f"{path}.namespace: {prefix.namespace!r} is not the name of a namespace")
    if prefix.endpoint is not None and not prefix.endpoint.startswith(("https://", "http://")):
        raise SettingsError(f"{path}.endpoint: {prefix.endpoint!r} does not begin with https:// or http://")
    return dataclasses.replace(prefix, prefix=place.url, endpoint=prefix.endpoint.rstrip("/") if prefix.endpoint else None)


def _read_integer(name: str, text: str) -> int:
    (low, high) = _RANGES[name]
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise SettingsError(f"{variable_name(name)}: {text!r} is not an integer from {low} to {high}")
    return int(text)
