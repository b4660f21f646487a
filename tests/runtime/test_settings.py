from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer_runtime.contract.assignment import (
    Archive,
    Assignment,
    Best,
    Goal,
    Keep,
    ResumeMode,
    ResumePoint,
    RunSettings,
    S3Settings,
    SaveEvery,
)
from trainer_runtime.contract.codec import dumps
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.settings import Replay, resolve

ASSIGNMENT = dumps(
    Assignment(
        attempt=3,
        worker_index=1,
        workers=2,
        procs_per_worker=1,
        master_addr="gpt-1-0.gpt",
        master_port=29500,
        run_id="uid-3",
        settings=RunSettings(save_every=SaveEvery(steps=500), keep=Keep(last=4, every_steps=1000), allow=("worldSize",), hang_seconds=90.0),
    )
)
PLACE = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1234"}


def test_without_any_environment_it_is_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = resolve({})
    assert (settings.store, settings.create_store, settings.run) == ((tmp_path / "checkpoints").as_uri(), True, "default")
    assert (settings.rank, settings.world_size, settings.assignment, settings.master) == (0, 1, None, None)
    assert settings.local_world_size == 1
    assert (settings.save_every_steps, settings.save_every_seconds, settings.keep.last) == (None, 600.0, 5)


def test_the_assignment_is_taken_where_nothing_else_is_said() -> None:
    settings = resolve({"RTJ_ASSIGNMENT": ASSIGNMENT, "RTJ_STORE": "file:///s", "RTJ_RUN": "a.b", **PLACE})
    assert (settings.save_every_steps, settings.save_every_seconds) == (500, None)
    assert (settings.keep.last, settings.keep.every_steps, settings.allow, settings.hang_seconds) == (4, 1000, ("worldSize",), 90.0)
    assert (settings.store, settings.create_store, settings.run) == ("file:///s", False, "a.b")
    assert (settings.worker_index, settings.master) == (1, ("h", 1234))


def test_the_environment_wins_over_the_assignment_and_a_keyword_over_both() -> None:
    environ = {"RTJ_ASSIGNMENT": ASSIGNMENT, "RTJ_STORE": "file:///s", "RTJ_SAVE_EVERY_STEPS": "7", "RTJ_KEEP_LAST": "9", "RTJ_RUN": "r"}
    assert (resolve(environ).save_every_steps, resolve(environ).keep.last) == (7, 9)
    settings = resolve(environ, save_every_steps=3, keep_last=2, run="mine", store="file:///t", allow=["data"])
    assert (settings.save_every_steps, settings.keep.last, settings.run, settings.store) == (3, 2, "mine", "file:///t")
    assert settings.allow == ("data", "worldSize")


def test_a_try_out_keeps_away_from_the_run_whatever_the_script_says() -> None:
    base = ResumePoint(8, 1, "file:///s/r/steps/0000000008-00000001", "ab")
    environ = {"RTJ_REPLAY": dumps(Replay("file:///scratch", 10, "/notes", base))}
    settings = resolve(environ, store="/mine", run="r", save_every_steps=1, local="/disk", archive="/archive", start_fresh=True)
    assert (settings.store, settings.create_store, settings.run, settings.resume_from) == ("file:///scratch", True, "r", base)
    assert (settings.save_every_steps, settings.save_every_seconds, settings.local, settings.archive) == (None, None, None, None)
    assert not settings.start_fresh


def test_a_checkpoint_to_begin_from_is_named_by_address_or_by_directory(tmp_path: Path) -> None:
    folder = tmp_path / "base" / "steps" / "0000000012-00000003"
    for given in (folder, folder.as_uri(), f"{folder.as_uri()}/"):
        resume = resolve({}, resume_from=given, mode="WarmStart").resume_from
        assert resume == ResumePoint(12, 3, folder.as_uri(), "", ResumeMode.WARM_START)
    assert resolve({}).resume_from is None


def test_only_the_default_store_is_made_when_it_is_missing(tmp_path: Path) -> None:
    here = tmp_path / "here"
    named = [resolve({}, store=here), resolve({}, store=here.as_uri()), resolve({"RTJ_STORE": str(here)})]
    assert [(settings.store, settings.create_store) for settings in named] == [(here.as_uri(), False)] * 3
    assert resolve({}).create_store


def test_each_keep_rule_that_is_given_takes_the_place_of_the_assignments() -> None:
    environ = {"RTJ_ASSIGNMENT": ASSIGNMENT, "RTJ_STORE": "file:///s", **PLACE}
    assert resolve(environ, keep_daily=7, keep_best="accuracy:max").keep == Keep(4, 1000, Best("accuracy", Goal.MAX), daily=7)
    assert resolve({}, keep_best="eval:loss", keep_weekly=2).keep == Keep(5, best=Best("eval:loss"), weekly=2)


def test_where_s3_is_comes_from_the_environment_or_else_from_the_assignment() -> None:
    assigned = RunSettings(s3=S3Settings("https://s3.team", "eu-1"))
    environ = {"RTJ_ASSIGNMENT": dumps(Assignment(3, 0, 1, 1, "host", 29500, "id", settings=assigned)), "RTJ_STORE": "s3://b/p"}
    assert resolve(environ).s3 == S3Settings("https://s3.team", "eu-1")
    assert resolve(environ | {"RTJ_S3_ENDPOINT": "http://localhost:9000"}).s3 == S3Settings("http://localhost:9000", "eu-1")
    assert resolve({"RTJ_S3_REGION": "us-9"}).s3 == S3Settings(None, "us-9")
    assert resolve({}).s3 == S3Settings()
    with pytest.raises(ConfigurationError, match="RTJ_S3_ENDPOINT: 'localhost:9000' is not a URL: http://host:port or https://host"):
        resolve({"RTJ_S3_ENDPOINT": "localhost:9000"})


def test_the_tiers_come_from_the_assignment_or_from_keywords(tmp_path: Path) -> None:
    tiers = RunSettings(local="/nvme", archive=Archive("s3://b/p", 1000))
    environ = {"RTJ_ASSIGNMENT": dumps(Assignment(1, 0, 1, 1, "h", 1, "u", settings=tiers)), "RTJ_STORE": "file:///s"}
    assert (resolve(environ).local, resolve(environ).archive) == ("/nvme", Archive("s3://b/p", 1000))
    given = resolve(environ, local=tmp_path / "disk", archive=tmp_path / "archive", archive_every_steps=10)
    assert (given.local, given.archive) == (str(tmp_path / "disk"), Archive((tmp_path / "archive").as_uri(), 10))
    assert (resolve({}).local, resolve({}).archive) == (None, None)


@pytest.mark.parametrize(
    ("environ", "keywords", "message"),
    [
        ({"RTJ_SAVE_EVERY_STEPS": "x"}, {}, "RTJ_SAVE_EVERY_STEPS: 'x' is not a whole number >= 1"),
        ({"RTJ_SAVE_EVERY_SECONDS": "-1"}, {}, "RTJ_SAVE_EVERY_SECONDS: '-1' is not a number of seconds > 0"),
        ({"RTJ_KEEP_LAST": "0"}, {}, "RTJ_KEEP_LAST: '0'"),
        ({}, {"save_every_steps": 0}, "save_every_steps: 0"),
        ({}, {"save_every_steps": 1.5}, "save_every_steps: 1.5"),
        ({}, {"save_every_seconds": "soon"}, "save_every_seconds: 'soon'"),
        ({}, {"run": "Big"}, "run: 'Big' is not a run name"),
        ({}, {"run": 5}, "run: 5 is not a run name"),
        ({}, {"store": 5}, "store: a int is neither a URL nor a directory"),
        ({}, {"allow": "data"}, r"allow: 'data' is not a list of words; write allow=\['data'\]"),
        ({}, {"allow": [3]}, "allow: .* is not a list of words"),
        ({}, {"start_fresh": "false"}, "start_fresh: 'false' is not one of True, False"),
        ({}, {"keep_last": True}, "keep_last: True is not a whole number >= 1"),
        ({}, {"keep_daily": 0}, "keep_daily: 0 is not a whole number >= 1"),
        ({}, {"keep_best": ":max"}, "keep_best: ':max' is not '<metric>'"),
        ({}, {"keep_best": 3}, "keep_best: 3 is not '<metric>'"),
        ({}, {"local": "file:///nvme"}, "local: 'file:///nvme' is not a directory"),
        ({"RTJ_STORE": "file:///s"}, {"local": "/s"}, "local: /s is the store itself"),
        ({"RTJ_STORE": "file:///s"}, {"archive": "/s"}, "archive: file:///s is the store itself"),
        ({}, {"archive": 3}, "archive: 3 is neither a URL nor a directory"),
        ({}, {"archive_every_steps": 5}, "archive_every_steps: given without archive"),
        ({}, {"save_every_seconds": True}, "save_every_seconds: True is not a number"),
        ({"RTJ_GRACE_SECONDS": "inf"}, {}, "RTJ_GRACE_SECONDS: 'inf' is not a number of seconds > 0"),
        ({"WORLD_SIZE": "0"}, {}, "WORLD_SIZE: '0' is not a whole number >= 1"),
        ({"LOCAL_WORLD_SIZE": "few"}, {}, "LOCAL_WORLD_SIZE: 'few' is not a whole number >= 1"),
        ({"RTJ_RUN": "a/b"}, {}, "RTJ_RUN: 'a/b' is not a run name"),
        ({"RTJ_REPLAY": "{}"}, {}, "RTJ_REPLAY: "),
        ({"RTJ_ASSIGNMENT": "{}"}, {}, "RTJ_ASSIGNMENT: .*version"),
        ({"RTJ_ASSIGNMENT": ASSIGNMENT}, {}, "RTJ_STORE: not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, {}, r"RANK: 2 is not in 0\.\.1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "MASTER_ADDR: not set"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_used_is_named_with_what_is_allowed(
    environ: dict[str, str], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolve(environ, **keywords)
