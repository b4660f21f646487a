"""The two ways an API call fails: the server answered with an error, or there was no answer. Nothing else leaves this room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ApiError(Exception):
    """The API server answered with an error status."""

    status: int
    reason: str
    """The machine-readable reason of the Status object, e.g. ``AlreadyExists``; empty when the body was no Status."""
    message: str
    request: str
    """Method and path, for people."""
    retry_after: float | None = None
    """Seconds the server asked us to wait."""

    def __str__(self) -> str:
        return f"{self.request}: HTTP {self.status} {self.reason}: {self.message}"

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed a moment later: throttled, or the server or etcd has trouble of its own."""
        return self.status == 429 or (self.status >= 500 and not self.is_our_mistake)

    @property
    def is_our_mistake(self) -> bool:
        """Whether the server choked on what we sent: it answers a server-side apply that does not fit the schema with HTTP 500."""
        return self.status == 500 and "failed to create typed patch object" in self.message


class ApiUnreachable(Exception):
    """No answer: connection refused or cut, TLS failure, or the request took longer than its limit. The message names the request."""


def error_from(status: int, body: Any, request: str, retry_after: float | None) -> ApiError:
    """Build an ApiError from a response's decoded body, which is a Status object unless something in between answered."""
    if isinstance(body, dict) and body.get("kind") == "Status":
        return ApiError(status, str(body.get("reason", "")), str(body.get("message", "")), request, retry_after)
    return ApiError(status, "", str(body)[:300], request, retry_after)
