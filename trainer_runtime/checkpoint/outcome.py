"""An error on its way from one rank to the others, so that all of them end a save, or a start, for the same reason."""

from __future__ import annotations

import json
from typing import Any, Final

from trainer_runtime.contract.codec import from_jsonable, to_jsonable
from trainer_runtime.contract.exit_report import DamagedCheckpoint
from trainer_runtime.errors import (
    CheckpointDamaged,
    CommitUndecided,
    ConfigurationError,
    Fenced,
    Refused,
    RuntimeProblem,
    SaveFailed,
    StoreUnavailable,
)

_PLAIN: Final[dict[str, type[RuntimeProblem]]] = {
    kind.__name__: kind for kind in (ConfigurationError, Refused, SaveFailed, StoreUnavailable, CommitUndecided)
}
_ERROR_BEGINS: Final = b'{"error": '


def pack_value(value: Any) -> bytes:
    """Return the message that carries a JSON value."""
    return json.dumps({"value": value}).encode()


def pack_error(error: Exception) -> bytes:
    """Return the message that makes `unpack` raise ``error`` elsewhere. A kind that has no exit code of its own travels as SaveFailed."""
    document: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, Fenced):
        document |= {"highest_fence": error.highest_fence, "fence_job_uid": error.fence_job_uid}
    elif isinstance(error, CheckpointDamaged):
        document |= {"checkpoint": to_jsonable(error.checkpoint)}
    elif not (isinstance(error, RuntimeProblem) and type(error).__name__ in _PLAIN):
        document |= {"error": SaveFailed.__name__, "message": f"{type(error).__name__}: {error}"}
    return json.dumps(document).encode()


def is_error(message: bytes) -> bool:
    """Say whether `unpack` would raise, without reading a value, which may be long."""
    return message.startswith(_ERROR_BEGINS)


def unpack(message: bytes) -> Any:
    """Return the value, or raise the error, that another rank sent."""
    document = json.loads(message)
    if "error" not in document:
        return document["value"]
    kind, text = document["error"], document["message"]
    if kind == Fenced.__name__:
        raise Fenced(text, document["highest_fence"], document["fence_job_uid"])
    if kind == CheckpointDamaged.__name__:
        raise CheckpointDamaged(text, from_jsonable(DamagedCheckpoint, document["checkpoint"]))
    raise _PLAIN[kind](text)
