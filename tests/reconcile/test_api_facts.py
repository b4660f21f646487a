"""What a pass asks the API server for: templates and rights are asked about again as often as the answer may change without the job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.reconcile.api_facts import ApiFacts
from tests.api.jobs import stored
from tests.cluster.wire_server import serve

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = Job.parse(stored())


def refusal(status: int) -> web.Response:
    return web.json_response({"kind": "Status", "reason": "x", "message": "admission webhook denied the request"}, status=status)


@pytest.mark.parametrize(
    ("status", "outcome", "again_after"),
    [
        pytest.param(403, "refused", 20, id="quota or policy"),
        pytest.param(404, "unknown", 20, id="no clear answer"),
        pytest.param(400, "invalid", 300, id="a webhook, or a template that cannot be read"),
        pytest.param(422, "invalid", 300, id="a policy, or a wrong field"),
    ],
)
async def test_a_refused_template_is_asked_about_again(status: int, outcome: str, again_after: int) -> None:
    async with serve() as (server, client):
        facts = ApiFacts(client, lambda job: {})
        server.answers = [refusal(status), web.json_response({})]
        for seconds, wanted in ((0, outcome), (again_after - 1, outcome), (again_after, "valid")):
            check = await facts.template_check(JOB, NOW + timedelta(seconds=seconds))
            assert check is not None and check.outcome == wanted


async def test_rights_that_nobody_can_tell_are_as_they_were_and_not_asked_for_by_every_pass() -> None:
    async with serve() as (server, client):
        facts = ApiFacts(client, lambda job: {})
        yes, no = (web.json_response({"status": {"allowed": allowed}}) for allowed in (True, False))
        server.answers = [yes, refusal(403), no]
        for seconds, wanted, asked in ((0, True, 1), (599, True, 1), (600, True, 2), (619, True, 2), (620, False, 3), (1219, False, 3)):
            assert await facts.node_rights(NOW + timedelta(seconds=seconds)) is wanted
            assert len(server.requests) == asked
