"""What a person does with a ResilientTrainingJob from outside: apply it, look at it, wait for something, read its events.

The demo and the scenarios see a job only through this, as a user with kubectl would. It is not part of the product.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml
from kubernetes import config as kubernetes_config
from kubernetes.client.exceptions import ApiException

from e2e.cluster.driver import ClusterDriver
from e2e.cluster.waiting import wait_until

GROUP, VERSION, PLURAL = "rtj.dev", "v1alpha1", "resilienttrainingjobs"
POLL_SECONDS = 0.25
REQUEST_SECONDS = 10.0
EVENT_SECONDS = 20.0

Manifest = dict[str, Any]


class WaitedTooLong(AssertionError):
    """A condition did not come true in time; the message says what was awaited and what was there instead."""


class Cluster:
    """One API server, through kubectl for what people type and through the client for what is polled."""

    def __init__(self, driver: ClusterDriver) -> None:
        self.driver = driver
        self._api = kubernetes_config.new_client_from_config(str(driver.kubeconfig()))

    def get(self, path: str, **query: str) -> Manifest:
        """GET one object or list as plain JSON. Raises the client's ApiException or a connection error."""
        request = self._api.param_serialize(
            method="GET",
            resource_path=path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        response = self._api.call_api(*request, _request_timeout=REQUEST_SECONDS)
        body = json.loads(response.read())
        if response.status >= 400:
            raise ApiException(status=response.status, reason=str(body.get("message")))
        return dict(body)

    def nodes(self) -> dict[str, Manifest]:
        """Every Node by name."""
        return {str(node["metadata"]["name"]): node for node in self.get("/api/v1/nodes")["items"]}

    def events(self, namespace: str, kind: str, name: str) -> list[tuple[str, str]]:
        """(reason, message) of the events about one object, oldest first."""
        selector = f"involvedObject.kind={kind},involvedObject.name={name}"
        found = self.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector=selector)["items"]
        ordered = sorted(found, key=lambda event: str(event.get("eventTime") or event.get("firstTimestamp") or ""))
        return [(str(event.get("reason")), str(event.get("message"))) for event in ordered]

    def apply(self, *manifests: Manifest) -> str:
        """kubectl apply of the manifests, server-side as the documentation advises. A refusal raises ClusterError with its text."""
        return self.driver.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def job(self, name: str, namespace: str = "default") -> Job:
        """A handle on one job; it need not exist yet."""
        return Job(self, name, namespace)


@dataclass(frozen=True)
class Job:
    """One ResilientTrainingJob, looked at from outside."""

    cluster: Cluster
    name: str
    namespace: str = "default"

    def read(self) -> Manifest:
        """The object as it is now."""
        return self.cluster.get(f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}/{self.name}")

    def status(self) -> Manifest:
        """Its status, empty before the first write."""
        return dict(self.read().get("status") or {})

    def pods(self, gang: int | None = None) -> list[Manifest]:
        """Its pods, of one gang or of all, in order of name."""
        selector = f"rtj.dev/job-name={self.name}" + (f",rtj.dev/gang={gang}" if gang is not None else "")
        found = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, worker: int) -> Manifest:
        """The pod of that worker in the present gang."""
        return next(pod for pod in self.pods(self.status()["gang"]) if pod["metadata"]["labels"]["rtj.dev/worker-index"] == str(worker))

    def node(self, worker: int) -> str:
        """The node that runs that worker."""
        return str(self.pod(worker)["spec"]["nodeName"])

    def events(self) -> list[tuple[str, str]]:
        """(reason, message) of the events about the job, oldest first."""
        return self.cluster.events(self.namespace, "ResilientTrainingJob", self.name)

    def wait_for_event(self, reason: str) -> None:
        """Return when there is an event of that reason: the operator sends events after it wrote the status that they tell of."""
        wait_until(lambda: reason in [sent for sent, _message in self.events()], f"an event {reason} about {self.name}", EVENT_SECONDS)

    def log(self, worker: int) -> str:
        """What that worker's container wrote so far."""
        name = self.pod(worker)["metadata"]["name"]
        return self.cluster.driver.kubectl("logs", "-n", self.namespace, name, "-c", "trainer")

    def wait(
        self, what: str, holds: Callable[[Manifest], bool], seconds: float, each: Callable[[Manifest], None] | None = None
    ) -> Manifest:
        """Return the status as soon as ``holds(status)``; ``each`` sees every status polled. Raises WaitedTooLong with the last one.

        An API server that does not answer is asked again until the deadline: scenarios restart it on purpose.
        """
        deadline = time.monotonic() + seconds
        status: Manifest = {}
        while time.monotonic() < deadline:
            try:
                status = self.status()
            except Exception as error:
                # Whatever the client raises while the server is away (refused, reset, 404 before the apply): the deadline ends it.
                status = {"unreadable": repr(error)[:300]}
            else:
                if each is not None:
                    each(status)
                if holds(status):
                    return status
            time.sleep(POLL_SECONDS)
        raise WaitedTooLong(f"{self.name}: {what} did not come within {seconds:.0f} s\n{describe(status)}\nevents: {self.events()[-8:]}")

    def delete(self) -> None:
        """Delete the job and wait until its pods are gone."""
        self.cluster.driver.kubectl("delete", "rtj", self.name, "-n", self.namespace, "--ignore-not-found", "--wait=true", seconds=90)
        wait_until(lambda: not self.pods(), f"the pods of {self.name} to go", 60)


def condition(status: Manifest, type_: str) -> str:
    """Status of that condition: True, False, Unknown, or empty when it is not there."""
    return next((str(item["status"]) for item in status.get("conditions", []) if item["type"] == type_), "")


def verified_step(status: Manifest) -> int:
    """Step of the newest verified checkpoint on the lineage, -1 when there is none."""
    return int((status.get("checkpoint") or {}).get("step", -1))


def progress_step(status: Manifest) -> int:
    """The step last reported, -1 when there is none."""
    step = (status.get("progress") or {}).get("step")
    return -1 if step is None else int(step)


def describe(status: Manifest) -> str:
    """A status in a few lines, for messages."""
    shown = (
        "unreadable",
        "phase",
        "attempt",
        "gang",
        "restarts",
        "workers",
        "progress",
        "checkpoint",
        "resumedFrom",
        "lastFailure",
        "excludedNodes",
    )
    lines = [f"  {key}: {status[key]}" for key in shown if key in status]
    lines += [
        f"  {item['type']}={item['status']} {item.get('reason', '')}: {item.get('message', '')}" for item in status.get("conditions", [])
    ]
    return "\n".join(lines)
