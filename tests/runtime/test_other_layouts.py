"""A run goes on with other ranks, or cut in another way, only when that is allowed, and then with every tensor as it was saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.launching import run_ranks, run_script
from trainer_runtime.contract.exit_report import ExitCode

SCRIPT = Path(__file__).with_name("layout_job.py")
STEPS = 3


class Saved:
    """A run of four ranks that hold rows, trained and saved; each launch afterwards works on a copy of the same run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ended = run_ranks(4, SCRIPT, "rows", str(folder / "first.json"), str(STEPS), cwd=folder)
        assert ended.returncode == 0, ended.stderr[-4000:]
        self.trained: dict[str, str] = json.loads((folder / "first.json").read_text())["trained"]

    def resume(self, ranks: int, layout: str, *allow: str) -> tuple[Any, dict[str, Any]]:
        """Go on for no step; return how the launch ended and what it found."""
        output = self.folder / f"{layout}-{ranks}.json"
        arguments = (layout, str(output), str(STEPS), *allow)
        if layout == "alone":
            ended = run_script(SCRIPT, *arguments, cwd=self.folder)
        else:
            ended = run_ranks(ranks, SCRIPT, *arguments, cwd=self.folder)
        return ended, json.loads(output.read_text()) if output.exists() else {}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("layouts"))


def test_another_world_is_refused_when_it_is_not_allowed(saved: Saved) -> None:
    ended, found = saved.resume(2, "rows")
    assert not found
    assert f"exitcode  : {ExitCode.REFUSED.value}" in ended.stderr
    assert "world_size: saved 4, now 2 [allow: worldSize]" in ended.stderr
    assert "mesh.model.dp=4" in ended.stderr


@pytest.mark.parametrize(
    ("ranks", "layout", "words"),
    [(2, "rows", ["worldSize"]), (3, "columns", ["worldSize"]), (2, "ddp", ["worldSize", "determinism"]), (1, "alone", ["worldSize"])],
)
def test_every_tensor_comes_back_whole_in_another_layout(saved: Saved, ranks: int, layout: str, words: list[str]) -> None:
    ended, found = saved.resume(ranks, layout, *words)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert found["resumed_from"] == STEPS
    assert found["loaded"] == saved.trained


def test_where_a_block_lies_is_where_torch_put_it(tmp_path: Path) -> None:
    ended = run_ranks(4, SCRIPT, "places", str(tmp_path / "places.json"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-4000:]
    placements = json.loads((tmp_path / "places.json").read_text())
    assert len(placements) > 70
    assert any("_StridedShard" in placement for placement in placements), "fully_shard over tensor parallelism was not among them"
