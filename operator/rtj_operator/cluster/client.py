"""JSON in, JSON out over the Kubernetes client's own TLS, credentials and connection pool, with limits and retries.

The typed calls of that client are not used: they refuse pod fields they do not know, and user templates must be sent as written.
It is not where a request's path or body is known: `calls` is.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.incluster_config import SERVICE_TOKEN_FILENAME
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from rtj_operator.cluster.errors import ApiError, ApiUnreachable, error_from
from rtj_operator.cluster.outage import OutageTracker

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml; charset=utf-8"
"""For text of our own (`apply_text`). Without the parameter the client library would write JSON that is not always YAML."""

REQUEST_SECONDS: Final = 30.0
"""Limit of one request. A write that the API server itself gives up on ends after its own 60 s at most; reads of one object take ms."""
REQUEST_TRIES: Final = 5
"""Tries of one request; with the waits below they span about 10 s, then the pass is retried as a whole by the queue."""
MAX_IN_FLIGHT: Final = 50
"""Requests at the same time. Above that the API server's priority and fairness would queue them for us, with less order."""
MAX_RETRY_AFTER: Final = 10.0
"""Longest wait in seconds that a 429 can ask of one request."""
CLOSING_SECONDS: Final = 0.25
"""A TLS connection of a request that was cancelled is closed in a word and an answer, and the pool that is closed waits for none that it
gave out (aiohttp's documentation, "Graceful Shutdown", which has this number)."""

Query = Sequence[tuple[str, str]]


class ClientMetrics(Protocol):
    """Where finished requests are counted."""

    def api_request(self, method: str, code: str, seconds: float) -> None:
        """Count one finished request; ``code`` is the HTTP status or ``unreachable``."""


class ConfigurationError(Exception):
    """No usable way to reach the API server was configured."""


@dataclass(frozen=True)
class Line:
    """One open watch: ``readline`` returns b"" when the server ended it."""

    response: aiohttp.ClientResponse

    async def readline(self) -> bytes:
        """Return the next line, or b"" at the end of the stream."""
        return await self.response.content.readline()


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Return the client's configuration: the kubeconfig file when one is named, else the pod's service account.

    Raises ConfigurationError that says which of the two was tried.
    """
    configuration = Configuration()
    try:
        if kubeconfig:
            await load_kube_config(config_file=kubeconfig, client_configuration=configuration, persist_config=False)
        else:
            load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        tried = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account (no kubeconfig was given)"
        raise ConfigurationError(f"cannot configure the Kubernetes client from {tried}: {error}") from error
    return configuration


def read_credentials(configuration: Configuration, kubeconfig: str | None) -> dict[str, Any]:
    """Return server, CA and credentials as they are now, by the names that kopf's ConnectionInfo has for them.

    A service account's token is read from its file each time, because the kubelet renews it there.
    """
    if kubeconfig:
        token = str(configuration.api_key.get("BearerToken") or "")
        token = token.partition(" ")[2] if token.lower().startswith("bearer ") else token
    else:
        token = Path(SERVICE_TOKEN_FILENAME).read_text().strip()
    return {
        "server": configuration.host,
        "ca_path": configuration.ssl_ca_cert,
        "insecure": not configuration.verify_ssl,
        "scheme": "Bearer" if token else None,
        "token": token or None,
        "certificate_path": configuration.cert_file,
        "private_key_path": configuration.key_file,
    }


class KubeClient:
    """The one way to the API server. Raises ApiError for an error answer and ApiUnreachable for none, after retries."""

    def __init__(
        self,
        configuration: Configuration,
        metrics: ClientMetrics,
        *,
        user_agent: str = "rtj-operator",
        request_seconds: float = REQUEST_SECONDS,
        tries: int = REQUEST_TRIES,
        in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._api = ApiClient(configuration)
        self._api.user_agent = user_agent
        self._metrics = metrics
        self._request_seconds = request_seconds
        self._tries = tries
        self._slots = asyncio.Semaphore(in_flight)
        self.outage = OutageTracker()

    async def close(self) -> None:
        """Close the connection pool, and give its connections the time that they need to be gone."""
        await self._api.close()
        await asyncio.sleep(CLOSING_SECONDS)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        content_type: str = JSON,
        tries: int | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request and return the decoded answer; retries 429, 5xx and no answer, with jitter and heeding Retry-After.

        Every request of this operator is safe to repeat: creates are named, deletes and patches carry preconditions.
        """
        answer: dict[str, Any] = {}
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(tries or self._tries),
            wait=_wait,
            reraise=True,
        ):
            with attempt:
                answer = await self._once(method, path, query, body, content_type, seconds or self._request_seconds)
        return answer

    @asynccontextmanager
    async def watch(self, path: str, query: Query, seconds: float) -> AsyncIterator[Line]:
        """Open one watch, which the client cuts after ``seconds`` whatever happens. Not retried: the informer does, from its version."""
        name = f"WATCH {path}"
        try:
            response = await self._send("GET", path, query, None, JSON, seconds)
            try:
                if response.status != 200:
                    raise error_from(response.status, _decode(await response.read()), name, _retry_after(response))
                self.outage.succeeded()
                yield Line(response)
            finally:
                response.close()
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            self.outage.failed()
            raise ApiUnreachable(f"{name}: {type(error).__name__}: {error}") from error

    async def _once(self, method: str, path: str, query: Query, body: Any, content_type: str, seconds: float) -> dict[str, Any]:
        name = f"{method} {path}"
        started = asyncio.get_running_loop().time()
        code = "unreachable"
        try:
            async with self._slots:
                response = await self._send(method, path, query, body, content_type, seconds)
                try:
                    data = await response.read()
                finally:
                    response.release()
            code = str(response.status)
            decoded = _decode(data)
        except TimeoutError as error:
            self.outage.failed()
            raise ApiUnreachable(f"{name}: no answer in {seconds:g} s") from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            self.outage.failed()
            raise ApiUnreachable(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            self._metrics.api_request(method, code, asyncio.get_running_loop().time() - started)
        if response.status >= 400:
            failure = error_from(response.status, decoded, name, _retry_after(response))
            if response.status >= 500 and failure.may_pass:
                self.outage.failed()
            else:
                self.outage.succeeded()
            raise failure
        self.outage.succeeded()
        if not isinstance(decoded, dict):
            raise ApiUnreachable(f"{name}: HTTP {response.status} with a body that is no JSON object: {str(decoded)[:100]}")
        return decoded

    async def _send(self, method: str, path: str, query: Query, body: Any, content_type: str, seconds: float) -> aiohttp.ClientResponse:
        parameters = await self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=list(query),
            header_params={"Accept": JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._api.call_api(*parameters, _request_timeout=seconds)
        response: aiohttp.ClientResponse = answer.response
        return response


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ApiUnreachable) or (isinstance(error, ApiError) and error.may_pass)


_JITTER = wait_random_exponential(multiplier=0.2, max=5)


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, ApiError) else None
    return max(_JITTER(state), min(asked or 0.0, MAX_RETRY_AFTER))


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
