"""Starts the operator in order, watches over its tasks, and stops it in order. Nothing is decided here, and nothing is global.

Order of the start: configuration, client, CRD present, lease, caches synced, heartbeat server, job watch, passes. Health is served from the
beginning, so that a standby that waits for the lease is alive but not ready.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from rtj_operator.api import keys
from rtj_operator.assembly import Operator, build, make_identity
from rtj_operator.cluster import calls
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from rtj_operator.cluster.informer import Informer
from rtj_operator.cluster.lease import LeaseLost
from rtj_operator.cluster.outage import utc_now
from rtj_operator.handlers import JobWatch
from rtj_operator.observability.health import Check, HealthServer
from rtj_operator.reconcile.crash_points import CrashPoints
from rtj_operator.settings import OperatorSettings
from rtj_operator.supervisor import Stopped, Supervisor

log = logging.getLogger(__name__)

T = TypeVar("T")

ALL_ADDRESSES: Final = "0.0.0.0"
RESYNC_SECONDS: Final = 600.0
"""Every job is listed and looked at that often although nothing was heard: the last line of defence against a watch that lies."""
SPREAD_SECONDS: Final = 30.0
"""First and resync passes are spread over at most that long, and over less when there are few jobs."""
SPREAD_PER_JOB: Final = 0.03
START_SECONDS: Final = 1800.0
"""How long a start waits for the API server's first answers, each."""
DENIED_SECONDS: Final = 60.0
"""How long a denied first answer is doubted: an API server that has just started denies everything until it has read its roles."""
ASK_AGAIN_SECONDS: Final = 2.0
SYNC_SECONDS: Final = 300.0
"""How long the first full lists may take: 10,000 pods take a few seconds."""
WATCH_DEAD_SECONDS: Final = 300.0
"""A watch that heard nothing for that long, with the API server answering, is dead in spite of its own guard: four silent periods."""
STUCK_SECONDS: Final = 300.0
"""A due job that waited, or a pass that ran, for that long: the queue is stuck."""
FLUSH_SECONDS: Final = 2.0


class MissingCrd(Exception):
    """The API server does not serve our kind."""


async def run(settings: OperatorSettings, crash: CrashPoints, environment: Mapping[str, str] = os.environ) -> None:
    """Run until SIGTERM or SIGINT, then stop in order and return. Raises what ended the operator otherwise."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    operator = await build(settings, crash, make_identity(environment))
    tasks = Supervisor(stop)
    health = HealthServer(operator.metrics.registry, alive=_alive_checks(operator), ready=_ready_checks(operator))
    watch = JobWatch(asyncio.get_running_loop(), functools.partial(_on_job, operator), operator.credentials, settings.namespaces)
    try:
        await health.start(ALL_ADDRESSES, settings.metrics_port)
        await _start(operator, tasks, watch)
        await tasks.until(asyncio.Event().wait())
    except Stopped:
        log.info("stopping")
    except BaseException as error:
        if isinstance(error.__cause__, LeaseLost):
            # Not one more request: another process may act from now on, and an ordered stop takes time.
            log.critical("%s", error)
            logging.shutdown()
            os._exit(1)
        raise
    finally:
        await _stop(operator, tasks, watch, health)


async def _start(operator: Operator, tasks: Supervisor, watch: JobWatch) -> None:
    settings = operator.settings
    if not await tasks.until(_answered("the CRD", lambda: calls.is_crd_served(operator.client))):
        raise MissingCrd(f"the API server does not serve {keys.PLURAL} in {keys.API_VERSION}: install the CRD, then start the operator")
    await tasks.until(operator.lease.acquire())
    tasks.start("lease", operator.lease.hold())
    await tasks.until(_answered("the rights on nodes", operator.nodes.prepare))
    for name, informer in operator.informers().items():
        operator.metrics.observe_watch(name, functools.partial(_age, informer))
        tasks.start(name, informer.run())
    await tasks.until(_all_synced(operator))
    operator.observer.caches_synced(utc_now())
    await tasks.until(_answered("the jobs", lambda: _list_jobs(operator)))
    operator.is_synced = True
    port = await operator.heartbeat.start(ALL_ADDRESSES, settings.heartbeat_port, operator.tls.context)
    operator.beats.listening(utc_now())
    log.info("heartbeats are taken on port %d; %d jobs, %d pods", port, len(operator.jobs), sum(map(len, operator.pods.informers)))
    tasks.start("certificate", operator.tls.watch())
    watch.start()
    tasks.start("job-watch", watch.wait())
    tasks.start("events", operator.events.run())
    tasks.start("resync", _resync(operator))
    tasks.start("passes", operator.reconciler.run())


async def _answered(what: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask until the API server answers; raise its last error after START_SECONDS.

    A start in an outage must wait: a container that ends is started again later each time, up to five minutes after the outage.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    while True:
        try:
            return await ask()
        except (ApiError, ApiUnreachable) as error:
            limit = START_SECONDS if isinstance(error, ApiUnreachable) or error.may_pass else 0.0
            if isinstance(error, ApiError) and error.status in (401, 403):
                limit = DENIED_SECONDS
            if loop.time() - started >= limit:
                raise
            log.warning("waiting for the API server's answer about %s: %s", what, error)
            await asyncio.sleep(ASK_AGAIN_SECONDS * random.uniform(0.8, 1.2))


async def _stop(operator: Operator, tasks: Supervisor, watch: JobWatch, health: HealthServer) -> None:
    await operator.heartbeat.stop()
    await tasks.cancel("passes", "resync")
    await watch.stop()
    await operator.stores.close()
    await operator.events.flush(FLUSH_SECONDS)
    await tasks.cancel("lease")
    await operator.lease.release()
    await tasks.cancel()
    await health.stop()
    await operator.client.close()


async def _all_synced(operator: Operator) -> None:
    waiting = operator.informers()
    try:
        async with asyncio.timeout(SYNC_SECONDS):
            for name, informer in list(waiting.items()):
                await informer.synced.wait()
                del waiting[name]
    except TimeoutError as error:
        raise TimeoutError(f"no full list within {SYNC_SECONDS:g} s of: {', '.join(waiting)}") from error


async def _list_jobs(operator: Operator) -> None:
    found = await calls.list_jobs(operator.client, operator.settings.namespaces)
    operator.jobs.replace(found.items, found.resource_version)
    spread = min(SPREAD_SECONDS, SPREAD_PER_JOB * len(operator.jobs))
    for job in operator.jobs.all():
        operator.queue.add(job.key, spread * random.random())


async def _resync(operator: Operator) -> None:
    while True:
        await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.9, 1.1))
        try:
            await _list_jobs(operator)
        except (ApiError, ApiUnreachable) as error:
            log.warning("jobs were not listed again: %s", error)


def _on_job(operator: Operator, kind: str | None, obj: dict[str, Any]) -> None:
    if kind == "DELETED":
        metadata = obj["metadata"]
        operator.jobs.gone((metadata["namespace"], metadata["name"]), metadata["uid"])
        return
    job = operator.jobs.saw(obj)
    if job is not None:
        if job.status_error:
            log.error("%s/%s: a part of the status cannot be read and is taken as absent: %s", *job.key, job.status_error)
        operator.queue.add(job.key)


def _age(informer: Informer[Any]) -> float:
    return informer.silent_for() or 0.0


def _alive_checks(operator: Operator) -> list[Check]:
    def watches() -> str:
        outage = operator.client.outage.until()
        if outage is not None and (utc_now() - outage).total_seconds() < WATCH_DEAD_SECONDS:
            return ""
        dead = [name for name, informer in operator.informers().items() if _age(informer) > WATCH_DEAD_SECONDS]
        return f"watches heard nothing for {WATCH_DEAD_SECONDS:g} s: {', '.join(dead)}" if dead else ""

    def queue() -> str:
        waited = operator.queue.oldest_wait()
        return f"a job has waited for {waited:.0f} s" if waited > STUCK_SECONDS else ""

    return [watches, queue]


def _ready_checks(operator: Operator) -> list[Check]:
    return [
        lambda: "" if operator.lease.is_held() else "the lease is held by another process",
        lambda: "" if operator.is_synced else "the caches are not filled yet",
    ]
