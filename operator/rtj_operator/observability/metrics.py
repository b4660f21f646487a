"""Every metric of the operator. Names begin with rtj_; no label can grow without bound: no pods, nodes or job names.

The one registry is made once by the program and handed to whoever counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

RECONCILE_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
API_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0)
DETECTION_BUCKETS: Final = (1.0, 3.0, 5.0, 10.0, 30.0, 60.0, 90.0, 120.0, 300.0, 900.0)
"""Around the targets: 3 s for a crash, 5 s for a device fault, lostNodeSeconds + 5 s for a node, the learned limit for a hang."""


class Metrics:
    """The operator's metrics; satisfies the small protocols of the rooms that count."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        ProcessCollector(registry=registry)
        self.registry = registry
        Info("rtj_operator_build", "Version of the running operator.", registry=registry).info({"version": version})
        self._reconcile = Histogram(
            "rtj_reconcile_seconds", "Duration of one pass for one job.", ["outcome"], buckets=RECONCILE_BUCKETS, registry=registry
        )
        self._api = Histogram(
            "rtj_api_request_seconds",
            "Duration of one request to the API server.",
            ["verb", "code"],
            buckets=API_BUCKETS,
            registry=registry,
        )
        self._beats = Counter("rtj_heartbeats_received", "Beats that were taken.", registry=registry)
        self._beats_rejected = Counter("rtj_heartbeats_rejected", "Beats that were refused.", ["reason"], registry=registry)
        self._restarts = Counter("rtj_restarts", "Attempts that followed an incident, by charge.", ["charge"], registry=registry)
        self._incidents = Counter(
            "rtj_incidents", "Incidents whose attempt is over, by the last verdict's cause.", ["cause"], registry=registry
        )
        self._detection = Histogram(
            "rtj_detection_seconds",
            "Time from the earliest evidence of an incident to its record in status.",
            buckets=DETECTION_BUCKETS,
            registry=registry,
        )
        self._conflicts = Counter("rtj_status_conflicts", "Status writes refused because the job had changed.", registry=registry)
        self._events_dropped = Counter("rtj_events_dropped", "Kubernetes events that could not be written.", registry=registry)
        self._watch_age = Gauge(
            "rtj_watch_age_seconds", "Seconds since a watch last heard anything from the API server.", ["resource"], registry=registry
        )
        self._cordons = Counter("rtj_node_cordons", "Nodes this operator cordoned.", registry=registry)

    def observe_live(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read at every scrape."""
        Gauge(name, help_text, registry=self.registry).set_function(read)

    def observe_watch(self, resource: str, read: Callable[[], float]) -> None:
        """Add one watched resource, whose age (seconds since the API server last sent anything for it) is read at every scrape."""
        self._watch_age.labels(resource).set_function(read)

    def reconciled(self, outcome: str, seconds: float) -> None:
        """Count one pass; ``outcome`` is ``ok``, ``conflict`` or ``error``."""
        self._reconcile.labels(outcome).observe(seconds)

    def api_request(self, method: str, code: str, seconds: float) -> None:
        """Count one finished request; ``code`` is the HTTP status or ``unreachable``."""
        self._api.labels(method, code).observe(seconds)

    def beat_accepted(self) -> None:
        """Count one beat that was taken."""
        self._beats.inc()

    def beat_rejected(self, reason: str) -> None:
        """Count one beat that was refused."""
        self._beats_rejected.labels(reason).inc()

    def restarted(self, charge: str) -> None:
        """Count one attempt that followed an incident."""
        self._restarts.labels(charge).inc()

    def detected(self, seconds: float) -> None:
        """Note how long it took from the earliest evidence of an incident to its first record."""
        self._detection.observe(max(0.0, seconds))

    def incident(self, cause: str) -> None:
        """Count one incident whose attempt is over."""
        self._incidents.labels(cause).inc()

    def status_conflict(self) -> None:
        """Count one status write that came too late."""
        self._conflicts.inc()

    def event_dropped(self) -> None:
        """Count one event that was not written."""
        self._events_dropped.inc()

    def node_cordoned(self) -> None:
        """Count one cordon."""
        self._cordons.inc()
