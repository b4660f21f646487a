"""A run goes on with other ranks, or cut in another way, only when that is allowed, and then with every tensor as it was saved."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.launching import run_ranks, run_script
from trainer_runtime.contract.exit_report import ExitCode

SCRIPT = Path(__file__).with_name("layout_job.py")
STEPS = 3


ALLOWED = {"rows": ["worldSize"], "columns": ["worldSize"], "ddp": ["worldSize", "determinism"], "alone": ["worldSize"]}
"""What a layout needs to go on from what four ranks that hold rows have saved."""
LAUNCHES = {1: ["alone"], 2: ["rows", "ddp"], 3: ["columns"]}
"""The other layouts, by the number of ranks: those of one launch go on one after the other."""


class Saved:
    """A run of four ranks that hold rows, trained and saved; each launch afterwards goes on from it for no step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ended = self.launch(4, "rows", "--", "places")
        assert ended.returncode == 0, ended.stderr[-4000:]
        self.trained: dict[str, str] = self.found("rows", 4)["trained"]
        self.places: list[str] = self.found("places", 4)

    def launch(self, ranks: int, *words: str, output: Path | None = None) -> subprocess.CompletedProcess[str]:
        arguments = (str(output or self.folder), str(STEPS), *words)
        if ranks == 1:
            return run_script(SCRIPT, *arguments, cwd=self.folder)
        return run_ranks(ranks, SCRIPT, *arguments, cwd=self.folder)

    def found(self, layout: str, ranks: int) -> Any:
        return json.loads((self.folder / f"{layout}-{ranks}.json").read_text())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("layouts"))


@pytest.fixture(scope="module")
def resumed(saved: Saved) -> Saved:
    """After every launch that is allowed."""
    for ranks, layouts in LAUNCHES.items():
        words = [word for layout in layouts for word in ("--", layout, *ALLOWED[layout])]
        ended = saved.launch(ranks, *words)
        assert ended.returncode == 0, ended.stderr[-4000:]
    return saved


def test_another_world_is_refused_when_it_is_not_allowed(saved: Saved, tmp_path: Path) -> None:
    ended = saved.launch(2, "rows", output=tmp_path)
    assert not list(tmp_path.iterdir())
    assert f"exitcode  : {ExitCode.REFUSED.value}" in ended.stderr
    assert "world_size: saved 4, now 2 [allow: worldSize]" in ended.stderr
    assert "mesh.model.dp=4" in ended.stderr


@pytest.mark.parametrize(("ranks", "layout"), [(ranks, layout) for ranks, layouts in LAUNCHES.items() for layout in layouts])
def test_every_tensor_comes_back_whole_in_another_layout(resumed: Saved, ranks: int, layout: str) -> None:
    found = resumed.found(layout, ranks)
    assert found["resumed_from"] == STEPS
    assert found["loaded"] == resumed.trained


def test_where_a_block_lies_is_where_torch_put_it(saved: Saved) -> None:
    assert len(saved.places) > 70
    assert any("_StridedShard" in placement for placement in saved.places), "fully_shard over tensor parallelism was not among them"
