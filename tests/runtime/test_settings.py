from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer_runtime.contract.assignment import Assignment, Keep, RunSettings, SaveEvery
from trainer_runtime.contract.codec import dumps
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.settings import resolve

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
    assert (settings.save_every_steps, settings.save_every_seconds, settings.keep_last) == (None, 600.0, 5)


def test_the_assignment_is_taken_where_nothing_else_is_said() -> None:
    settings = resolve({"RTJ_ASSIGNMENT": ASSIGNMENT, "RTJ_STORE": "file:///s", "RTJ_RUN": "a.b", **PLACE})
    assert (settings.save_every_steps, settings.save_every_seconds) == (500, None)
    assert (settings.keep_last, settings.keep_every_steps, settings.allow, settings.hang_seconds) == (4, 1000, ("worldSize",), 90.0)
    assert (settings.store, settings.create_store, settings.run) == ("file:///s", False, "a.b")
    assert (settings.worker_index, settings.master) == (1, ("h", 1234))


def test_the_environment_wins_over_the_assignment_and_a_keyword_over_both() -> None:
    environ = {"RTJ_ASSIGNMENT": ASSIGNMENT, "RTJ_STORE": "file:///s", "RTJ_SAVE_EVERY_STEPS": "7", "RTJ_KEEP_LAST": "9", "RTJ_RUN": "r"}
    assert (resolve(environ).save_every_steps, resolve(environ).keep_last) == (7, 9)
    settings = resolve(environ, save_every_steps=3, keep_last=2, run="mine", store="file:///t", allow=["data"])
    assert (settings.save_every_steps, settings.keep_last, settings.run, settings.store) == (3, 2, "mine", "file:///t")
    assert settings.allow == ("data", "worldSize")


def test_a_directory_given_by_keyword_is_made_a_url(tmp_path: Path) -> None:
    settings = resolve({}, store=tmp_path / "here")
    assert (settings.store, settings.create_store) == ((tmp_path / "here").as_uri(), True)


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
        ({}, {"save_every_seconds": True}, "save_every_seconds: True is not a number"),
        ({"RTJ_GRACE_SECONDS": "inf"}, {}, "RTJ_GRACE_SECONDS: 'inf' is not a number of seconds > 0"),
        ({"WORLD_SIZE": "0"}, {}, "WORLD_SIZE: '0' is not a whole number >= 1"),
        ({"RTJ_RUN": "a/b"}, {}, "RTJ_RUN: 'a/b' is not a run name"),
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
