"""The cache of jobs: no version goes back, nothing that is gone returns, and a run has one owner."""

from __future__ import annotations

from typing import Any

import pytest

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.decide.observation import RunOwner
from rtj_operator.reconcile.job_cache import MAX_ENDED, JobCache
from tests.api.jobs import stored

KEY = ("ml", "gpt")


def job(version: int, uid: str = "u1", **changes: Any) -> dict[str, Any]:
    return stored({"metadata.resourceVersion": str(version), "metadata.uid": uid, **changes})


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def cache(gone: list[str]) -> JobCache:
    return JobCache(lambda job: gone.append(job.uid))


def version(cache: JobCache) -> str | None:
    known = cache.get(KEY)
    return known.resource_version if known else None


def test_a_newer_version_is_news_and_an_older_or_the_same_one_is_not(cache: JobCache) -> None:
    assert cache.saw(job(7)) is not None
    assert cache.saw(job(9)) is not None
    assert cache.saw(job(9)) is None
    assert cache.saw(job(8)) is None
    assert version(cache) == "9"


def test_versions_are_compared_as_numbers(cache: JobCache) -> None:
    cache.saw(job(9))
    assert cache.saw(job(10)) is not None


def test_what_our_own_write_returned_stays_until_the_watch_has_passed_it(cache: JobCache) -> None:
    cache.saw(job(7))
    cache.wrote(job(12))
    assert cache.saw(job(9)) is None
    assert version(cache) == "12"
    assert cache.saw(job(13)) is not None


def test_a_write_that_returns_after_the_deletion_brings_nothing_back(cache: JobCache, gone: list[str]) -> None:
    cache.saw(job(7))
    cache.gone(KEY, "u1")
    cache.wrote(job(12))
    assert cache.get(KEY) is None
    assert gone == ["u1"]


def test_a_deletion_of_an_earlier_job_of_that_name_does_not_touch_the_present_one(cache: JobCache, gone: list[str]) -> None:
    cache.saw(job(7))
    cache.saw(job(20, uid="u2"))
    assert gone == ["u1"]
    cache.gone(KEY, "u1")
    known = cache.get(KEY)
    assert known is not None and known.uid == "u2"
    assert cache.by_uid("u1") is None


def test_a_late_event_of_a_job_that_was_replaced_is_no_news(cache: JobCache) -> None:
    cache.saw(job(20, uid="u2"))
    assert cache.saw(job(7, uid="u1")) is None
    assert cache.by_uid("u2") is not None


def test_a_list_drops_what_it_lacks_but_not_what_was_created_after_it(cache: JobCache, gone: list[str]) -> None:
    cache.saw(job(7))
    cache.saw(job(50, uid="u2", **{"metadata.name": "young"}))
    news = cache.replace([job(30, uid="u3", **{"metadata.name": "new"})], "40")
    assert [each.name for each in news] == ["new"]
    assert gone == ["u1"]
    assert {each.name for each in cache.all()} == {"young", "new"}


def test_finished_jobs_are_not_live(cache: JobCache) -> None:
    cache.saw(job(7))
    cache.saw(job(8, uid="u2", **{"metadata.name": "done", "status": {"phase": "Succeeded", "attempt": 1}}))
    assert cache.live_uids() == frozenset({"u1"})


@pytest.mark.parametrize(
    ("rival", "owner"),
    [
        pytest.param({}, RunOwner("ml", "older"), id="an older job on the same run owns it"),
        pytest.param({"metadata.creationTimestamp": "2026-02-02T03:04:05Z"}, None, id="a younger one does not"),
        pytest.param({"status": {"phase": "Failed", "attempt": 1}}, None, id="a finished one does not"),
        pytest.param(
            {"metadata.creationTimestamp": "2026-02-02T03:04:05Z", "status": {"phase": "Running", "attempt": 1}},
            RunOwner("ml", "older"),
            id="a younger one that was launched does",
        ),
        pytest.param({"spec.checkpoint.run": "other"}, None, id="another run is another directory"),
        pytest.param({"metadata.namespace": "elsewhere"}, None, id="a claim of that name in another namespace is another volume"),
        pytest.param({"spec.workers": 0}, None, id="a spec that cannot be used owns nothing"),
    ],
)
def test_the_live_job_that_launched_first_owns_the_run(cache: JobCache, rival: dict[str, Any], owner: RunOwner | None) -> None:
    mine = Job.parse(job(7, **{"spec.checkpoint.run": "shared"}))
    cache.saw(job(7, **{"spec.checkpoint.run": "shared"}))
    other = {"metadata.name": "older", "metadata.creationTimestamp": "2025-01-02T03:04:05Z", "spec.checkpoint.run": "shared", **rival}
    cache.saw(job(8, uid="u2", **other))
    assert cache.run_owner(mine) == owner


def test_the_next_job_owns_the_run_when_the_owner_is_gone(cache: JobCache) -> None:
    cache.saw(job(7, **{"spec.checkpoint.run": "shared"}))
    older = {"metadata.name": "older", "metadata.creationTimestamp": "2025-01-02T03:04:05Z", "spec.checkpoint.run": "shared"}
    cache.saw(job(8, uid="u2", **older))
    mine = cache.get(KEY)
    assert mine is not None and cache.run_owner(mine) is not None
    cache.gone(("ml", "older"))
    assert cache.run_owner(mine) is None


def test_a_job_has_ended_when_it_was_seen_and_is_deleted_or_finished(cache: JobCache) -> None:
    cache.saw(job(7))
    assert not cache.has_ended("u1") and not cache.has_ended("never seen")
    cache.saw(job(20, uid="u2"))
    assert cache.has_ended("u1"), "another job has its name now"
    cache.saw(job(30, uid="u2", status={"phase": "Succeeded", "attempt": 1}))
    assert cache.has_ended("u2")


def test_ends_are_remembered_up_to_a_bound_the_newest_ones(cache: JobCache) -> None:
    for number in range(MAX_ENDED + 2):
        cache.saw(job(number + 1, uid=f"u{number}"))
    assert not cache.has_ended("u0") and cache.has_ended("u1") and cache.has_ended(f"u{MAX_ENDED}")


SOURCE = "file:///checkpoints/ml.gpt/steps/0000000500-00000002"


def user(version: int, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Another job, which begins with a checkpoint of this one's run."""
    return job(version, uid="u2", **{"metadata.name": "user", "spec.checkpoint.resumeFrom": {"uri": SOURCE}, **(changes or {})})


def sources(cache: JobCache) -> frozenset[tuple[int, int]]:
    known = cache.get(KEY)
    assert known is not None
    return cache.sources(known)


def test_what_other_live_jobs_begin_with_is_known_as_long_as_they_live(cache: JobCache) -> None:
    cache.saw(job(1))
    assert sources(cache) == frozenset()
    cache.saw(user(2))
    assert sources(cache) == {(500, 2)}
    cache.saw(user(3, {"spec.checkpoint.resumeFrom": {"uri": "file:///checkpoints/ml.gpt/steps/0000000900-00000004"}}))
    assert sources(cache) == {(900, 4)}
    cache.saw(user(4, {"status": {"phase": "Failed"}}))
    assert sources(cache) == frozenset()
    cache.saw(user(5))
    cache.gone(("ml", "user"), "u2")
    assert sources(cache) == frozenset()


NOT_HERE = [
    pytest.param({"spec.checkpoint.resumeFrom": {"uri": "file:///checkpoints/other/steps/0000000500-00000002"}}, id="in another run"),
    pytest.param({"metadata.namespace": "other"}, id="on a claim of another namespace"),
    pytest.param({"spec.checkpoint.resumeFrom": None}, id="that begins with nothing"),
]


@pytest.mark.parametrize("changes", NOT_HERE)
def test_a_job_protects_nothing_in_a_run_that_it_does_not_begin_with(cache: JobCache, changes: dict[str, Any]) -> None:
    cache.saw(job(1))
    cache.saw(user(2, changes))
    assert sources(cache) == frozenset()


def test_a_source_stays_protected_while_the_spec_that_named_it_is_broken(cache: JobCache) -> None:
    cache.saw(job(1))
    cache.saw(user(2))
    cache.saw(user(3, {"spec.workers": 0}))
    assert sources(cache) == {(500, 2)}
