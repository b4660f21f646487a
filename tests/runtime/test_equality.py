"""A run that was killed twice is bitwise equal to one that never was: every leaf of every rank, and every loss.

Four ranks, because with two the order of additions cannot show, and a mesh of two dimensions has four; more than three epochs; SIGKILL at
chosen steps, twice; saves at step 0, in the middle of an epoch, at its exact end. DDP of every kind, LoRA on a frozen base, torch.compile,
fully_shard with rows that do not divide by the ranks, replicated shards, fully_shard over tensor parallelism. All kinds of jobs share the
launches, see equality_job.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.equality_job import JOBS, STEPS
from tests.runtime.launching import run_ranks

RANKS = 4
COMPILED = Path(tempfile.gettempdir()) / "rtj-tests-inductor"
"""Kept from run to run: compiling anew takes longer than all the training."""
SCRIPT = Path(__file__).with_name("equality_job.py")
WARMED_UP = [job.name for job in JOBS if job.warms_up]


class Launches:
    """What all launches wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for kind, launches in (("whole", ["whole"]), ("killed", ["first", "second", "third"])):
            (folder / kind).mkdir()
            for launch in launches:
                ended = run_ranks(RANKS, SCRIPT, launch, str(folder / kind), cwd=folder / kind, TORCHINDUCTOR_CACHE_DIR=str(COMPILED))
                is_killed = launch in ("first", "second")
                assert (ended.returncode != 0) == is_killed, f"{launch}: exit code {ended.returncode}\n{ended.stderr[-6000:]}"
                written = [(folder / kind / f"{launch}-{rank}.json").exists() for rank in range(RANKS)]
                assert all(written), f"{launch}: a rank did not get to its end\n{ended.stderr[-6000:]}"

    def results(self, kind: str, launch: str, job: str) -> list[dict[str, Any]]:
        """One launch's results for a job, by rank."""
        return [json.loads((self._folder / kind / f"{launch}-{rank}.json").read_text())[job] for rank in range(RANKS)]

    def store(self, kind: str, job: str) -> Path:
        """The run's directory of one job."""
        return self._folder / kind / "store" / job.replace("_", "-")

    def losses(self, kind: str, job: str) -> list[set[tuple[int, str]]]:
        """Every (step, loss) that was ever computed, by rank."""
        found = []
        for rank in range(RANKS):
            lines = (self._folder / kind / f"losses-{rank}.jsonl").read_text().splitlines()
            found.append({(step, loss) for name, step, loss in map(json.loads, lines) if name == job})
        return found


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("equality"))


@pytest.mark.parametrize("job", WARMED_UP)
def test_every_leaf_of_every_rank_is_bitwise_equal_after_two_kills(launches: Launches, job: str) -> None:
    whole = [result["leaves"] for result in launches.results("whole", "whole", job)]
    resumed = [result["leaves"] for result in launches.results("killed", "third", job)]
    different = [(rank, name) for rank in range(RANKS) for name in whole[rank] if whole[rank][name] != resumed[rank].get(name)]
    assert not different
    assert [set(leaves) for leaves in whole] == [set(leaves) for leaves in resumed]


@pytest.mark.parametrize("job", WARMED_UP)
def test_every_loss_that_was_ever_computed_is_the_uninterrupted_one(launches: Launches, job: str) -> None:
    whole = launches.losses("whole", job)
    assert launches.losses("killed", job) == whole
    assert all({step for step, _loss in losses} == set(range(1, STEPS + 1)) for losses in whole)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_each_launch_resumed_from_the_step_that_was_saved_last(launches: Launches, job: Any) -> None:
    for launch, saved in (("first", None), ("second", job.saves[0]), ("third", job.saves[1])):
        assert [result["resumed_from"] for result in launches.results("killed", launch, job.name)] == [saved] * RANKS


def test_without_the_warm_up_the_resumed_run_differs(launches: Launches) -> None:
    """The cure is needed, and these tests can fail."""
    whole = [result["leaves"] for result in launches.results("whole", "whole", "cold")]
    resumed = [result["leaves"] for result in launches.results("killed", "third", "cold")]
    assert whole != resumed


def test_dropping_the_warm_up_changes_what_is_computed_only_by_rounding(launches: Launches) -> None:
    """Warm and cold runs are the same training: their first losses agree to many digits."""
    warm, cold = (dict(launches.losses("whole", job)[0]) for job in ("plain", "cold"))
    assert float.fromhex(warm[2]) == pytest.approx(float.fromhex(cold[2]), rel=1e-4)


def test_ranks_draw_different_random_numbers(launches: Launches) -> None:
    """One rank's random state for all would also be equal after every resume."""
    assert len({result["leaves"]["rng torch"] for result in launches.results("whole", "whole", "plain")}) == RANKS


def test_ranks_hold_blocks_of_their_own(launches: Launches) -> None:
    """A job whose ranks all held everything would prove nothing about shards. One rank's block of the last layer is empty."""
    leaves = [result["leaves"] for result in launches.results("whole", "whole", "fsdp")]
    assert len({rank["layers.0.weight"] for rank in leaves}) == RANKS
    assert leaves[3]["layers.2.weight"] == hashlib.sha256(b"").hexdigest()
    assert len({result["leaves"]["wide.weight"] for result in launches.results("whole", "whole", "mesh")}) == RANKS


def test_a_frozen_base_is_stored_once_for_all_checkpoints(launches: Launches) -> None:
    folder = launches.store("killed", "lora")
    frozen = [path.name for path in (folder / "frozen").iterdir()]
    steps = sorted((folder / "steps").iterdir())
    assert len(steps) >= 2
    for step in steps:
        indexes = [json.loads(path.read_text()) for path in (step / "ranks").iterdir()]
        named = {Path(file["path"]).name for index in indexes for file in index["files"] if file["path"].startswith("frozen/")}
        assert named == set(frozen)
        tensors = [tensor for index in indexes for tensor in index["tensors"] if tensor["name"].endswith("base.weight")]
        assert {chunk["file"].split("/")[0] for tensor in tensors for chunk in tensor["chunks"]} == {"frozen"}
