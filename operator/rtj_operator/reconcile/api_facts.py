"""The few facts that no watch brings and a pass must ask the API server for, remembered so that they are asked rarely.

Whether the template of a generation is accepted, whether the job's Service is there, whether Nodes may be written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.names import service_name
from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from rtj_operator.decide.observation import TemplateCheck

log = logging.getLogger(__name__)

SERVICE_FRESH: Final = timedelta(minutes=10)
"""How long a Service that was seen is taken to be there. Nobody deletes it but a person, and the next look creates it again."""
CHECK_AGAIN: Final = {
    "refused": timedelta(seconds=20),
    "unknown": timedelta(seconds=20),
    "invalid": timedelta(minutes=5),
}
"""When a dry run is made again, by its outcome: below the time after which `decide` looks again, for what passes by itself. An invalid
template stays as it is, but admission webhooks and policies refuse with 400 and 422 too, and those are changed without the job."""
RIGHTS_FRESH: Final = timedelta(minutes=10)
"""How long the answer about node rights counts: whoever writes the roles may change it."""
RIGHTS_AGAIN: Final = timedelta(seconds=20)
"""When they are asked for again after a question that was not answered: one takes seconds, and every pass of every job waits for it."""


@dataclass(frozen=True)
class _Checked:
    generation: int
    at: datetime
    check: TemplateCheck


class ApiFacts:
    """Asks and remembers. ``dry_run_pod`` builds the pod of worker 0 as the first attempt would have it."""

    def __init__(self, client: KubeClient, dry_run_pod: Callable[[Job], dict[str, Any]]) -> None:
        self._client = client
        self._dry_run_pod = dry_run_pod
        self._checks: dict[str, _Checked] = {}
        self._services: dict[str, datetime] = {}
        self._rights: tuple[datetime, bool] | None = None
        """Until when the last answer counts, and what it was."""

    async def template_check(self, job: Job, now: datetime) -> TemplateCheck | None:
        """Return what the API server says to a pod of this generation; None for a spec that cannot be built or a job that is finished.

        Status remembers an accepted generation, so that a restarted operator does not ask for every job again.
        """
        if job.spec is None or job.is_finished:
            return None
        if job.status.template_checked_generation == job.generation:
            return TemplateCheck("valid")
        known = self._checks.get(job.uid)
        if known is None or known.generation != job.generation or _is_due(known, now):
            known = _Checked(job.generation, now, await self._dry_run(job))
            self._checks[job.uid] = known
        return known.check

    async def service_exists(self, job: Job, now: datetime) -> bool:
        """Say whether the job's own Service is there. Another's Service of that name is not it."""
        seen = self._services.get(job.uid)
        if seen is not None and now - seen < SERVICE_FRESH:
            return True
        service = await calls.get_service(self._client, job.namespace, service_name(job.name))
        if service is None or not calls.is_owned_by(service, job.uid):
            return False
        self._services[job.uid] = now
        return True

    def created_service(self, job: Job, now: datetime) -> None:
        """Take note that the Service was created by us or found to be ours."""
        self._services[job.uid] = now

    async def node_rights(self, now: datetime) -> bool:
        """Say whether the operator may patch Nodes; the last answer when the API server cannot say."""
        if self._rights is None or now >= self._rights[0]:
            try:
                self._rights = (now + RIGHTS_FRESH, await calls.can_patch_nodes(self._client))
            except (ApiError, ApiUnreachable) as error:
                if self._rights is None:
                    raise
                log.warning("the rights on nodes are taken to be as they were: %s", error)
                self._rights = (now + RIGHTS_AGAIN, self._rights[1])
        return self._rights[1]

    def forget(self, job_uid: str) -> None:
        """Drop what is remembered of a job that is gone."""
        self._checks.pop(job_uid, None)
        self._services.pop(job_uid, None)

    async def _dry_run(self, job: Job) -> TemplateCheck:
        try:
            await calls.create_pod(self._client, job.namespace, self._dry_run_pod(job), dry_run=True)
        except ApiUnreachable as error:
            return TemplateCheck("unknown", str(error))
        except ApiError as error:
            if error.status == 409:  # a pod of that name exists already: the API server checks the name last, so the template passed
                return TemplateCheck("valid")
            if error.status in (400, 422):
                return TemplateCheck("invalid", error.message)
            return TemplateCheck("refused" if error.status == 403 else "unknown", error.message)
        return TemplateCheck("valid")


def _is_due(known: _Checked, now: datetime) -> bool:
    again = CHECK_AGAIN.get(known.check.outcome)
    return again is not None and now - known.at >= again
