"""Typed JSON for state that is not tensors, and the split of any nested state dict into tensors and a skeleton.

JSON alone loses types: a tuple becomes a list, the key 1 becomes "1", a float may round. Every value here comes back equal and of the same
type, or is refused when it is saved, with its key path. It is not a pickle and runs no code: an unknown type is an error, never a guess.

Plain JSON ``null``, ``true``, numbers and strings stand for None, bool, int and str, and a list for a list. Everything else is an object
with exactly one key, its type's tag: ``{"float": "0x1.8p+1"}``, ``{"tuple": […]}``, ``{"dict": [[key, value], …]}``.
"""

from __future__ import annotations

import base64
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

import numpy as np
import torch

from trainer_runtime.errors import ConfigurationError

DTYPES: Final = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""torch's dtypes by their short name; aliases such as ``half`` and ``float16`` name the same one."""

OWN_DEVICE: Final = "own"
"""Device word of a tensor that lies where its owner (parameter, module, accelerator) lies. The other word is ``cpu``."""


@dataclass(frozen=True)
class TensorRef:
    """The place of a tensor in a skeleton, with all that is needed to make an empty one to fill."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str = OWN_DEVICE
    array: bool = False
    """True: it was a numpy array and becomes one again."""


class Settled:
    """A value, made of what `encode` knows, that nobody changes any more: it is encoded once, however often it is saved."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._encoded: Any = None

    def encoded(self, path: str) -> Any:
        """Return what `encode` returns for the value. It is one object for all, and nobody's to change."""
        if self._encoded is None:
            self._encoded, self._value = encode(self._value, path), None
        return self._encoded


class TreeError(ConfigurationError):
    """A value that typed JSON does not know, or a text that is not typed JSON. The message names the key path."""


def encode(value: Any, path: str = "") -> Any:
    """Return ``value`` as plain JSON types. Raises TreeError, naming the path below ``path``, for a type that is not known."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if kind is list:
        return _encode_items(value, path)
    if kind is tuple:
        return {"tuple": _encode_items(value, path)}
    if kind in _MAPPING_TAGS:
        return {_MAPPING_TAGS[kind]: [[encode(key, f"{path}<key>"), encode(item, child_path(path, key))] for key, item in value.items()]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"numpy": [value.dtype.str, value.tobytes().hex()]}
    if kind is TensorRef:
        return {"tensor": [value.name, value.dtype, list(value.shape), value.device, value.array]}
    if kind is Settled:
        return value.encoded(path)
    raise TreeError(f"{path or 'the value'}: a {kind.__module__}.{kind.__qualname__} cannot be saved; {_ALLOWED}")


def decode(data: Any, path: str = "") -> Any:
    """Return the value that ``encode`` was given. Raises TreeError for anything that ``encode`` does not write."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is list:
        return [decode(item, f"{path}/[{index}]") for index, item in enumerate(data)]
    if type(data) is dict and len(data) == 1:
        ((tag, body),) = data.items()
        reader = _READERS.get(tag)
        if reader is not None:
            try:
                return reader(body, path)
            except TreeError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise TreeError(f"{path or 'the value'}: {tag!r} is followed by what it cannot hold: {error}") from error
    raise TreeError(f"{path or 'the value'}: {str(data)[:80]!r} is not typed JSON")


def flatten(value: Any, prefix: str, own_device: torch.device | None = None) -> tuple[dict[str, torch.Tensor], Any]:
    """Split a nested state into its tensors by name (below ``prefix``) and the same structure with a TensorRef in each tensor's place.

    Numpy arrays become tensors that share their memory. ``own_device``: where the owner lies; a tensor elsewhere is noted as ``cpu``.
    Raises TreeError for a tensor that is nested, or neither there nor on the CPU, and for a numpy dtype that torch lacks.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _flatten(value, prefix, own_device, tensors)


def unflatten(skeleton: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Put the tensors back into their places. Raises TreeError for a name that is not among ``tensors``."""
    if type(skeleton) is TensorRef:
        if skeleton.name not in tensors:
            raise TreeError(f"{skeleton.name}: no such tensor")
        tensor = tensors[skeleton.name]
        return tensor.numpy() if skeleton.array else tensor
    if type(skeleton) in (list, tuple):
        return type(skeleton)(unflatten(item, tensors) for item in skeleton)
    if type(skeleton) in _MAPPING_TAGS:
        return _rebuild(skeleton, [(key, unflatten(item, tensors)) for key, item in skeleton.items()])
    return skeleton


def references(skeleton: Any) -> list[TensorRef]:
    """Return every TensorRef of a skeleton, in its order."""
    if type(skeleton) is TensorRef:
        return [skeleton]
    if type(skeleton) in (list, tuple):
        return [found for item in skeleton for found in references(item)]
    if type(skeleton) in _MAPPING_TAGS:
        return [found for item in skeleton.values() for found in references(item)]
    return []


def reference_to(name: str, tensor: torch.Tensor, own_device: torch.device | None) -> TensorRef:
    """Return what stands for ``tensor`` in a skeleton. Raises TreeError for one that is neither on ``own_device`` nor on the CPU, and for a
    nested one."""
    if tensor.is_nested:
        raise TreeError(f"{name}: a nested tensor cannot be saved; keep the tensors that it is made of")
    return TensorRef(name, _dtype_name(tensor), tuple(tensor.shape), _device_word(tensor, name, own_device))


def allocate(reference: TensorRef, own_device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor of the reference's dtype and shape on its device."""
    if reference.dtype not in DTYPES:
        raise TreeError(f"{reference.name}: dtype {reference.dtype!r} is not one of torch's")
    device = own_device if reference.device == OWN_DEVICE else torch.device("cpu")
    return torch.empty(reference.shape, dtype=DTYPES[reference.dtype], device=device)


def child_path(path: str, key: Any) -> str:
    """Return the path of ``key`` below ``path``. Two different keys of one mapping never get the same path: text is escaped, other keys
    are shown as ``[repr]``."""
    if type(key) is str:
        return f"{path}/{key.replace('~', '~0').replace('/', '~1').replace('[', '~2')}"
    return f"{path}/[{repr(key).replace('~', '~0').replace('/', '~1')}]"


_ALLOWED = (
    "known are None, bool, int, float, str, bytes, list, tuple, dict, OrderedDict, Counter, numpy numbers, and tensors or arrays in state"
)
_AS_THEY_ARE: Final = frozenset({NoneType, bool, int, str})
_MAPPING_TAGS: Final[dict[type, str]] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}


def _encode_items(items: Sequence[Any], path: str) -> list[Any]:
    if set(map(type, items)) <= _AS_THEY_ARE:  # ten thousand names, in the group of an optimizer
        return list(items)
    return [encode(item, f"{path}/[{index}]") for index, item in enumerate(items)]


def _flatten(value: Any, path: str, own_device: torch.device | None, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, np.ndarray):
        try:
            tensor = torch.from_numpy(value)
        except (TypeError, ValueError) as error:
            raise TreeError(f"{path}: a numpy array of dtype {value.dtype} cannot be saved: {error}") from error
        tensors[path] = tensor
        return TensorRef(path, _dtype_name(tensor), tuple(tensor.shape), device="cpu", array=True)
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach()
        return reference_to(path, value, own_device)
    if type(value) in (list, tuple):
        return type(value)(_flatten(item, f"{path}/[{index}]", own_device, tensors) for index, item in enumerate(value))
    if type(value) in _MAPPING_TAGS:
        return _rebuild(value, [(key, _flatten(item, child_path(path, key), own_device, tensors)) for key, item in value.items()])
    return value


def _rebuild(like: Any, items: list[tuple[Any, Any]]) -> Any:
    """Make a mapping of the same type. A Counter's constructor counts pairs, so it gets its items from a dict."""
    return type(like)(dict(items))


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _device_word(tensor: torch.Tensor, path: str, own_device: torch.device | None) -> str:
    if own_device is None or tensor.device == own_device:
        return OWN_DEVICE
    if tensor.device.type == "cpu":
        return "cpu"
    raise TreeError(f"{path}: lies on {tensor.device}; it must lie on {own_device}, where its owner is, or on the CPU")


def _read_numpy(body: Any, path: str) -> Any:
    dtype, raw = body
    if not re.fullmatch(r"[<>|=]?[a-zA-Z]\d*(\[\w+\])?", dtype):
        raise TreeError(f"{path}: {dtype!r} is not the dtype of a number")
    return np.frombuffer(bytes.fromhex(raw), dtype=np.dtype(dtype))[0]


def _read_mapping(kind: type) -> Callable[[Any, str], Any]:
    def read(body: Any, path: str) -> Any:
        items = [(decode(key, path), item) for key, item in body]
        return kind({key: decode(item, child_path(path, key)) for key, item in items})

    return read


def _read_reference(body: Any, _path: str) -> TensorRef:
    name, dtype, shape, device, array = body
    return TensorRef(str(name), str(dtype), tuple(int(size) for size in shape), str(device), bool(array))


_READERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "float": lambda body, _path: float.fromhex(body),
    "bytes": lambda body, _path: base64.b64decode(body, validate=True),
    "tuple": lambda body, path: tuple(decode(list(body), path)),
    "numpy": _read_numpy,
    "tensor": _read_reference,
    **{tag: _read_mapping(kind) for kind, tag in _MAPPING_TAGS.items()},
}
