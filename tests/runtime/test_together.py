"""What one rank finds, all ranks act upon alike: three ranks, one launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.launching import run_ranks, run_script

RANKS = 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("together")
    script = Path(__file__).with_name("together_job.py")
    for ended in (
        run_script(script, str(folder), "grown", "2", cwd=folder),
        run_ranks(RANKS, script, str(folder), cwd=folder),
        run_script(script, str(folder), "shrunk", "4", cwd=folder),
    ):
        assert ended.returncode == 0, ended.stderr[-6000:]
    alone = json.loads((folder / "shrunk.json").read_text())
    return [{**json.loads((folder / f"{rank}.json").read_text()), "shrunk": alone} for rank in range(RANKS)]


def test_damage_that_only_one_rank_reads_sends_all_to_the_next_older_checkpoint(results: list[dict[str, Any]]) -> None:
    assert [result["damaged"] for result in results] == [2] * RANKS


def test_a_difference_on_one_rank_is_refused_by_all_in_the_same_words(results: list[dict[str, Any]]) -> None:
    assert {result["config"][0] for result in results} == {77}
    assert len({result["config"][1] for result in results}) == 1
    assert "config.depth: saved 1, now 2" in results[0]["config"][1]


def test_all_ranks_save_the_same_steps(results: list[dict[str, Any]]) -> None:
    assert len({tuple(result["tagged"]) for result in results}) == 1
    assert results[0]["tagged"][-1].startswith("0000000006-")


def test_a_signal_to_one_rank_stops_all_at_one_agreed_and_saved_step(results: list[dict[str, Any]]) -> None:
    assert {result["stopped"][0] for result in results} == {75}
    assert {tuple(result["stopped at"]) for result in results} == {("0000000007-00000001",)}


def test_another_world_size_goes_on_when_that_is_allowed(results: list[dict[str, Any]]) -> None:
    assert [(result["grown"], result["shrunk"]) for result in results] == [(2, 2)] * RANKS
