"""Python runs this before the user's script, because rtj-run puts its directory first on the ranks' PYTHONPATH.

A ``sitecustomize`` of the image's own, which this one hides, is run after it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _prepare_rank() -> None:
    try:
        from trainer_runtime.launch import rank_hook
    except ImportError as error:
        # Another interpreter than rtj-run's, without the package: the rank can run, but say what it does without.
        sys.stderr.write(f"rtj: {sys.executable} has no trainer_runtime ({error}); its rendezvous is not fenced\n")
        return
    rank_hook.install()


_prepare_rank()
_run_hidden()
