"""Shuts ranks of other attempts out of this one's rendezvous.

torchrun fences its agents by run id, but a plain ``init_process_group()`` in a rank uses keys without one: a worker left over from an older
attempt that reaches the same port was seen to join, and to change an all-reduce, with exit code 0. So the ``env`` and ``tcp`` rendezvous of
every rank yield a store whose keys begin with run id and attempt. A store that user code makes and passes itself is not fenced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

_RENDEZVOUS: Final = "torch.distributed.rendezvous"
_SCHEMES: Final = ("env", "tcp")

Handler = Callable[..., Iterator[Any]]


def fence_on_import(prefix: str) -> None:
    """Fence torch's rendezvous in this process with ``prefix``: now if torch is there, else when it is imported."""
    module = sys.modules.get(_RENDEZVOUS)
    if module is not None:
        fence(module, prefix)
    else:
        sys.meta_path.insert(0, _Finder(prefix))


def fence(rendezvous: ModuleType, prefix: str) -> None:
    """Wrap the handlers of the module ``torch.distributed.rendezvous``."""
    handlers: dict[str, Handler] = rendezvous._rendezvous_handlers
    for scheme in _SCHEMES:
        handlers[scheme] = _wrap(handlers[scheme], prefix)


def _wrap(handler: Handler, prefix: str) -> Handler:
    def fenced(*args: Any, **kwargs: Any) -> Iterator[Any]:
        from torch.distributed import PrefixStore

        for store, rank, world_size in handler(*args, **kwargs):
            yield PrefixStore(prefix, store), rank, world_size

    return fenced


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the usual finders find the module, and fences it right after it ran. Removes itself then."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != _RENDEZVOUS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _Loader(spec.loader, self._prefix)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, prefix: str) -> None:
        self._loader = loader
        self._prefix = prefix

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        fence(module, self._prefix)
