"""What happens in a rank before any of the user's code: the fence, the time of an uncaught exception, and no life after rtj-run's death.

It is reached through a ``sitecustomize`` on the ranks' PYTHONPATH, so that a script needs no change. Standard library only, and cheap:
every Python process below a rank passes here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from trainer_runtime.contract import environment

MAX_EXCEPTION_TEXT: Final = 2000


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Prepare this process if it is a rank of rtj-run, or below one; do nothing in any other."""
    if environment.FENCE not in environ or "RANK" not in environ:
        return
    from trainer_runtime.launch.fencing import fence_on_import

    fence_on_import(environ[environment.FENCE])
    if environ.get(environment.TORCHRUN_PID) == str(os.getppid()):
        from trainer_runtime.launch.processes import die_with_parent

        die_with_parent()
        _note_uncaught(raised_path(environ[environment.CHANNEL], int(environ["RANK"])), int(environ["RANK"]))


def raised_path(channel: str, rank: int) -> str:
    """Return the file in which ``rank`` leaves its uncaught exception, as a channel message `Raised`."""
    return os.path.join(os.path.dirname(channel), f"raised-{rank}.json")


def _note_uncaught(path: str, rank: int) -> None:
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        at_ns = time.time_ns()
        try:
            from trainer_runtime.channel.codec import encode
            from trainer_runtime.channel.messages import Raised

            text = f"{kind.__name__}: {error}"[:MAX_EXCEPTION_TEXT]
            with open(path, "xb") as file:
                file.write(encode(Raised(rank=rank, at_ns=at_ns, exception=text)))
        except Exception as problem:
            # The user's exception must be printed whatever happens here; rtj-run then knows only the exit code.
            sys.stderr.write(f"rtj: the exception could not be noted: {problem}\n")
        before(kind, error, trace)

    sys.excepthook = note
