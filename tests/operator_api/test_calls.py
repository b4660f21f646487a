"""The operator's single requests against a real API server: preconditions, dry runs and refusals are the server's own."""

from __future__ import annotations

from typing import Any

import pytest

from rtj_operator.cluster import calls
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.errors import ApiError
from tests.operator_api.objects import create_job, plain_pod

pytestmark = pytest.mark.api

STATUS: dict[str, Any] = {"phase": "Starting", "attempt": 1, "gang": 1}


async def test_the_crd_is_found_where_it_is_installed(client: KubeClient) -> None:
    assert await calls.is_crd_served(client)


async def test_a_status_write_takes_the_version_it_observed_and_returns_the_new_one(client: KubeClient, namespace: str) -> None:
    job = await create_job(client, namespace)
    written = await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], STATUS)
    assert written["status"]["attempt"] == 1
    assert written["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]
    with pytest.raises(ApiError) as caught:
        await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], {**STATUS, "attempt": 2})
    assert caught.value.status == 409


NASTY_TEXTS = {
    "an emoji": "GLHF! \U0001f3d6\ufe0f",
    "line breaks of other alphabets": "a\x85b\u2028c\u2029d",
    "control characters": "a\x00b\x1b[31mc\x7fd\x9f",
    "noncharacters": "\ufffe\uffff\ufeff",
    "words that YAML takes for values": "on",
    "a number": "1e3",
    "YAML of its own": "- a: {b: [c]} # d\n--- |\n",
    "backslashes": "\\ud83c\\udfd6 \\",
}
"""What a message may hold, as it comes from a rank's exception."""


@pytest.mark.parametrize("text", NASTY_TEXTS.values(), ids=NASTY_TEXTS.keys())
async def test_a_status_takes_any_text_that_a_rank_may_print(client: KubeClient, namespace: str, text: str) -> None:
    job = await create_job(client, namespace)
    failure = {"attempt": 1, "cause": "user_error", "at": "2026-01-01T00:00:00Z", "message": text}
    written = await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], {**STATUS, "lastFailure": failure})
    assert written["status"]["lastFailure"]["message"] == text


async def test_a_status_field_that_is_left_out_is_removed_and_one_that_does_not_exist_is_our_mistake(
    client: KubeClient, namespace: str
) -> None:
    job = await create_job(client, namespace)
    progress = {"step": 5}
    job = await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], {**STATUS, "progress": progress})
    job = await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], STATUS)
    assert "progress" not in job["status"]
    with pytest.raises(ApiError) as caught:
        await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], {**STATUS, "nonsense": 1})
    assert caught.value.is_our_mistake


async def test_a_status_write_to_a_job_that_is_gone_is_404(client: KubeClient, namespace: str) -> None:
    job = await create_job(client, namespace)
    await calls.delete_job(client, namespace, "gpt", job["metadata"]["uid"])
    with pytest.raises(ApiError) as caught:
        await calls.apply_status(client, namespace, "gpt", job["metadata"]["resourceVersion"], STATUS)
    assert caught.value.status == 404


async def test_deletes_hit_only_the_object_with_that_uid_and_are_done_when_it_is_gone(client: KubeClient, namespace: str) -> None:
    pod = await calls.create_pod(client, namespace, plain_pod(namespace, "p"))
    await calls.delete_pod(client, namespace, "p", "another-uid", 0)
    assert await calls.get_pod(client, namespace, "p") is not None
    await calls.delete_pod(client, namespace, "p", pod["metadata"]["uid"], 0)
    assert await calls.get_pod(client, namespace, "p") is None
    await calls.delete_pod(client, namespace, "p", pod["metadata"]["uid"], 0)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        pytest.param({}, None, id="a good pod"),
        pytest.param({"image": ""}, 422, id="no image"),
        pytest.param({"resources": {"limits": {"cpu": "much"}}}, 400, id="no quantity"),
        pytest.param({"imagePullPolicy": "Perhaps"}, 422, id="no such policy"),
    ],
)
async def test_a_dry_run_says_what_the_server_would_say_and_creates_nothing(
    client: KubeClient, namespace: str, change: dict[str, Any], status: int | None
) -> None:
    pod = plain_pod(namespace, "p")
    pod["spec"]["containers"][0].update(change)
    if status is None:
        await calls.create_pod(client, namespace, pod, dry_run=True)
    else:
        with pytest.raises(ApiError) as caught:
            await calls.create_pod(client, namespace, pod, dry_run=True)
        assert caught.value.status == status
    assert await calls.get_pod(client, namespace, "p") is None


async def test_a_list_of_jobs_names_its_version_and_holds_all_pages(client: KubeClient, namespace: str) -> None:
    for number in range(3):
        await create_job(client, namespace, f"job-{number}")
    found = await calls.list_jobs(client, [namespace])
    assert sorted(item["metadata"]["name"] for item in found.items) == ["job-0", "job-1", "job-2"]
    assert found.resource_version.isdigit()


async def test_node_rights_are_what_the_server_grants(client: KubeClient) -> None:
    assert await calls.can_patch_nodes(client)
