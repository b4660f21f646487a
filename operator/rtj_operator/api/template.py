"""Questions about a user's pod template, which stays a raw dict: which container trains, how many GPUs it has, on which volume a path lies.

A template comes from outside, so every level is read as if it could be anything. Nothing here changes a template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from rtj_operator.api import keys
from trainer_runtime.contract.environment import RESERVED_NAMES, RESERVED_PREFIXES

_REQUIRED = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Mount:
    """Where a path of the trainer container lies: the volume that is mounted there, and the path's rest below the mount."""

    volume: Mapping[str, Any]
    """The volume as the template has it, with its name."""
    sub_path: str
    """volumeMounts[].subPath, empty when there is none."""
    rest: str
    """The path relative to the mount; empty for the mount itself."""


_OBJECTS = ("metadata", "metadata.labels", "metadata.annotations", "spec", "spec.affinity", "spec.affinity.nodeAffinity", _REQUIRED)
_LISTS = ("spec.containers", "spec.initContainers", "spec.volumes", f"{_REQUIRED}.nodeSelectorTerms")
_CONTAINER_LISTS = ("env", "volumeMounts")


def find_shape_error(template: Mapping[str, Any]) -> str:
    """Return the first place of the template that is not of the type rtj must read or add to, with its path; empty when there is none."""
    for path in _OBJECTS:
        if not isinstance(_at(template, path), dict | None):
            return f"template.{path}: is not an object"
    for path in _LISTS:
        if not _is_list_of_objects(_at(template, path)):
            return f"template.{path}: is not a list of objects"
    for place, container in enumerate(containers(template)):
        if not isinstance(container.get("name"), str):
            return f"template.spec.containers[{place}].name: is not a text"
        for key in _CONTAINER_LISTS:
            if not _is_list_of_objects(container.get(key)):
                return f"template.spec.containers[{place}].{key}: is not a list of objects"
    for place, term in enumerate(_at(template, f"{_REQUIRED}.nodeSelectorTerms") or ()):
        if not _is_list_of_objects(term.get("matchExpressions")):
            return f"template.{_REQUIRED}.nodeSelectorTerms[{place}].matchExpressions: is not a list of objects"
    return ""


def pod_spec(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``template.spec``, or an empty mapping."""
    return _mapping(template.get("spec"))


def containers(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the template's containers (not the init containers)."""
    return _mappings(pod_spec(template).get("containers"))


def find_trainer(template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the container that the operator wires: the only one, or the one named trainer. None when there is neither."""
    present = containers(template)
    if len(present) == 1:
        return present[0]
    return next((container for container in present if container.get("name") == keys.TRAINER_CONTAINER), None)


def trainer_index(template: Mapping[str, Any]) -> int:
    """Return the trainer's place among the containers. Raises ValueError when there is none."""
    trainer = find_trainer(template)
    for index, container in enumerate(containers(template)):
        if container is trainer:
            return index
    raise ValueError(f"template.spec.containers: needs exactly one container, or one named {keys.TRAINER_CONTAINER}")


def gpu_limit(container: Mapping[str, Any]) -> int:
    """Return the container's limit of whole GPUs, 0 when it has none or it is not a number."""
    return gpu_count(_mapping(_mapping(container.get("resources")).get("limits")).get(keys.GPU_RESOURCE))


def gpu_count(quantity: Any) -> int:
    """Read a quantity of whole GPUs; 0 for none and for what is no number."""
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() else 0


def node_selector(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``spec.nodeSelector``, or an empty mapping."""
    return _mapping(pod_spec(template).get("nodeSelector"))


def reserved_env(template: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (field path, name) of every environment variable that a template may not set."""
    found = []
    for group in ("containers", "initContainers"):
        for place, container in enumerate(_mappings(pod_spec(template).get(group))):
            for number, variable in enumerate(_mappings(container.get("env"))):
                name = str(variable.get("name", ""))
                if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
                    found.append((f"template.spec.{group}[{place}].env[{number}].name", name))
    return found


def reserved_volumes(template: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (field path, name) of every volume that has the name of one of ours."""
    volumes = enumerate(_mappings(pod_spec(template).get("volumes")))
    ours = (keys.POD_VOLUME, keys.SHM_VOLUME)
    return [(f"template.spec.volumes[{place}].name", volume["name"]) for place, volume in volumes if volume.get("name") in ours]


def find_mount(template: Mapping[str, Any], path: str) -> Mount | None:
    """Return the mount of the trainer container that ``path`` (absolute) lies on: the deepest one. None when it is on no volume."""
    trainer = find_trainer(template)
    if trainer is None:
        return None
    wanted = PurePosixPath(path)
    deepest: tuple[PurePosixPath, Mapping[str, Any]] | None = None
    for mount in _mappings(trainer.get("volumeMounts")):
        place = PurePosixPath(str(mount.get("mountPath", "")))
        if wanted.is_relative_to(place) and (deepest is None or len(place.parts) > len(deepest[0].parts)):
            deepest = (place, mount)
    if deepest is None:
        return None
    (place, mount) = deepest
    volumes = _mappings(pod_spec(template).get("volumes"))
    volume = next((volume for volume in volumes if volume.get("name") == mount.get("name")), None)
    if volume is None:
        return None
    rest = wanted.relative_to(place).as_posix()
    sub_path = str(mount.get("subPath") or mount.get("subPathExpr") or "")
    return Mount(volume=volume, sub_path=sub_path, rest="" if rest == "." else rest)


def _at(template: Mapping[str, Any], path: str) -> Any:
    """Return what lies at a dotted path, None when a part of it is missing or no object."""
    value: Any = template
    for part in path.split("."):
        value = _mapping(value).get(part)
    return value


def _is_list_of_objects(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
