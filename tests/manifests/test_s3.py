"""The operator reads what the runtime wrote: committed, verified, abandoned, tagged; and asks only where it may, within a bounded time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rtj_operator.manifests import bucket, run_listing, s3
from rtj_operator.manifests.base import Look
from rtj_operator.manifests.s3 import FRESH, S3Reader, find_allowed
from tests.manifests.run_in_bucket import NOW, RUN, RunInBucket, look_of
from tests.store import servers
from tests.store.hostile import CLOSE, Hostile, Trouble
from trainer_runtime.checkpoint.keeping.inventory import read_inventory
from trainer_runtime.contract.beat import Level


async def test_the_operator_reads_what_the_runtime_reads(run: RunInBucket) -> None:
    run.fence(1)
    run.commit(5, 1)
    run.commit(9, 1)
    run.fence(2, resume=(5, 1))
    run.commit(7, 2, verified=False, tags=["stage-end"])
    look = await look_of(run.job(), run.allow())
    assert look.problem == ""
    assert [(one.step, one.attempt, one.level.value, one.abandoned, one.tagged) for one in look.found] == [
        (7, 2, "committed", False, True),
        (5, 1, "verified", False, False),
        (9, 1, "verified", True, False),
    ]
    assert look.found == read_inventory(run.store, RUN).records


async def test_an_empty_run_is_an_answer(run: RunInBucket) -> None:
    look = await look_of(run.job(), run.allow())
    assert (look.found, look.problem, look.is_awaited) == ((), "", False)


async def test_only_the_newest_are_read(run: RunInBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_listing, "NEWEST", 2)
    run.fence(1)
    for step in (1, 2, 3):
        run.commit(step, 1, verified=False)
    assert [one.step for one in (await look_of(run.job(), run.allow())).found] == [3, 2]


async def test_what_is_no_manifest_is_left_out_and_a_mark_for_another_manifest_marks_nothing(run: RunInBucket) -> None:
    run.fence(1)
    run.commit(5, 1)
    run.commit(7, 1)
    run.commit(9, 1, verified=False)
    client = servers.client(run.endpoint)
    steps = f"{run.prefix}/{RUN}/steps"
    client.put_object(Bucket=run.bucket, Key=f"{steps}/0000000007-00000001/manifest.json", Body=b"{}")
    mark = client.get_object(Bucket=run.bucket, Key=f"{steps}/0000000005-00000001/verified.json")["Body"].read()
    client.put_object(Bucket=run.bucket, Key=f"{steps}/0000000009-00000001/verified.json", Body=mark)
    look = await look_of(run.job(), run.allow())
    assert [(one.step, one.level) for one in look.found] == [(9, Level.COMMITTED), (5, Level.VERIFIED)]


async def test_credentials_from_a_secrets_files_are_used_and_read_again(
    run: RunInBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.fence(1)
    run.commit(5, 1)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    allowed = run.allow(credentials=str(tmp_path))
    assert "AWS_ACCESS_KEY_ID" in (await look_of(run.job(), allowed)).problem
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("key\n")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("secret\n")
    assert [one.step for one in (await look_of(run.job(), allowed)).found] == [5]


ALLOWED = [
    pytest.param({}, {}, True, id="the prefix itself"),
    pytest.param({"prefix": "s3://checkpoints"}, {}, True, id="a whole bucket"),
    pytest.param({"namespace": "other"}, {}, False, id="another namespace"),
    pytest.param({"prefix": "s3://checkpoints/team"}, {}, False, id="a prefix that only begins alike"),
    pytest.param({"prefix": "s3://checkpoint"}, {}, False, id="a bucket that only begins alike"),
    pytest.param({"endpoint": None}, {}, False, id="another endpoint than the job's"),
    pytest.param({}, {"s3": None}, False, id="a job without an endpoint"),
]


@pytest.mark.parametrize(("changes", "wished", "is_allowed"), ALLOWED)
def test_a_store_is_read_only_where_the_administrator_says_so(
    changes: dict[str, str | None], wished: dict[str, object], is_allowed: bool
) -> None:
    place = RunInBucket("http://127.0.0.1:1", "checkpoints")
    assert (find_allowed([place.allow(**changes)], place.job(**wished)) is not None) is is_allowed


def test_of_several_prefixes_the_longest_counts() -> None:
    place = RunInBucket("http://127.0.0.1:1", "checkpoints", "team-a/x")
    wide, narrow = place.allow(prefix="s3://checkpoints"), place.allow(prefix="s3://checkpoints/team-a")
    assert find_allowed([wide, narrow], place.job()) is narrow


async def test_a_job_whose_store_may_not_be_read_waits_for_nothing() -> None:
    place = RunInBucket("http://127.0.0.1:1", "checkpoints")
    reader = S3Reader([place.allow(namespace="other")], lambda uid: None, lambda: NOW)
    assert reader.look(place.job(), True, NOW) == reader.look(place.job(), False, NOW) == Look()
    await reader.close()


UNREACHABLE = [
    pytest.param(503, "503 SlowDown", id="a store that is too busy"),
    pytest.param(403, "403", id="a store that refuses"),
    pytest.param(CLOSE, "cannot list s3://checkpoints/team-a", id="a connection that breaks"),
]


@pytest.mark.parametrize(("act", "says"), UNREACHABLE)
async def test_a_store_that_does_not_answer_is_a_problem_and_no_empty_store(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, act: str | int, says: str
) -> None:
    monkeypatch.setattr(s3, "LOOK_SECONDS", bucket.ANSWER_SECONDS + 0.5)
    hostile.troubles = [Trouble("ListObjectsV2", act, times=1000)]
    place = RunInBucket(hostile.endpoint, "checkpoints")
    look = await look_of(place.job(), place.allow())
    assert (look.found, look.is_awaited) == ((), False)
    assert says in look.problem


async def test_what_passes_is_asked_again(hostile: Hostile) -> None:
    place = RunInBucket(hostile.endpoint, "checkpoints")
    place.fence(1)
    place.commit(5, 1)
    hostile.troubles = [Trouble("ListObjectsV2", 503), Trouble("GetObject", 500)]
    look = await look_of(place.job(), place.allow())
    assert ([one.step for one in look.found], look.problem) == ([5], "")


async def test_a_look_counts_for_a_while_and_for_one_attempt(run: RunInBucket) -> None:
    run.fence(1)
    run.commit(5, 1)
    woken: asyncio.Queue[str] = asyncio.Queue()
    at = NOW
    reader = S3Reader([run.allow()], woken.put_nowait, lambda: at)
    job = run.job()
    assert reader.look(job, False, at).is_awaited
    assert reader.look(job, True, at).is_awaited
    assert await asyncio.wait_for(woken.get(), 60) == job.uid
    assert [one.step for one in reader.look(job, True, at).found] == [5]
    assert reader.look(job, False, at).found == ()  # it may have been deleted since
    assert reader.look(job, True, at + FRESH).is_awaited
    await asyncio.wait_for(woken.get(), 60)
    assert reader.look(replace(job, status=job.status.evolve(attempt=1)), True, at).is_awaited
    await reader.close()


async def test_a_job_that_is_gone_is_not_woken(run: RunInBucket) -> None:
    woken: list[str] = []
    reader = S3Reader([run.allow()], woken.append, lambda: NOW)
    reader.look(run.job(), True, NOW)
    reader.forget(run.job().uid)
    await reader.close()
    assert woken == []
