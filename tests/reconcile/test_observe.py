"""What a pass is told to know: rights on Nodes are of use only to an operator that watches them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from aiohttp import web

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.cluster.nodes import NodeCache
from rtj_operator.cluster.outage import OutageTracker
from rtj_operator.cluster.pods import PodCache
from rtj_operator.heartbeat.beats import BeatBook
from rtj_operator.manifests.base import NoStores
from rtj_operator.manifests.ledger import Ledger
from rtj_operator.reconcile.api_facts import ApiFacts
from rtj_operator.reconcile.job_cache import JobCache
from rtj_operator.reconcile.observe import Observer
from rtj_operator.reconcile.refusals import NodeRefusals, Refusals
from tests.api.jobs import stored
from tests.cluster.wire_server import serve

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FINISHED = Job.parse(stored({"status": {"phase": "Succeeded"}}))


@pytest.mark.parametrize(("may_list", "may_patch"), [(True, True), (True, False), (False, True)])
async def test_node_rights_are_those_of_an_operator_that_sees_and_may_write(may_list: bool, may_patch: bool) -> None:
    async with serve() as (server, client):
        nodes = NodeCache(client, lambda name: None)
        refused = web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)
        server.answers = [web.json_response({"items": []}), web.json_response({"items": []})] if may_list else [refused]
        await nodes.prepare()
        server.answers = [web.json_response({"status": {"allowed": may_patch}})]
        observer = Observer(
            JobCache(lambda job: None),
            PodCache(client, [], lambda job_uid: None),
            nodes,
            BeatBook(NOW),
            Ledger(),
            NoStores(),
            ApiFacts(client, lambda job: {}),
            Refusals(),
            NodeRefusals(),
            OutageTracker(lambda: NOW),
        )
        assert (await observer.observe(FINISHED, NOW)).node_rights == (may_list and may_patch)
