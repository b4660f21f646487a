"""Ranks that share one container's memory take theirs in turn: together never more than there is, and none less than it could have."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.checkpoint.little import KIB, weights
from tests.checkpoint.world import WAIT_SECONDS, attempt_on, shared
from trainer_runtime.checkpoint.staging import memory, plan, turns
from trainer_runtime.checkpoint.staging.memory import ALONE, RESERVE_BYTES, Among
from trainer_runtime.checkpoint.staging.plan import Planner, build_plan
from trainer_runtime.checkpoint.staging.stage import Stage
from trainer_runtime.checkpoint.staging.turns import Turns
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Leaf
from trainer_runtime.store.posix import PosixStore

RANKS = 4
RunAll = Callable[[Callable[[int], None]], None]


def part(rows: int = 400) -> list[Leaf]:
    """What a rank stages: as many KiB as ``rows``, and a header."""
    return [shared("model/w", torch.zeros(rows, 256))]


SIZE = build_plan(part(), 0, 1).stage_bytes


def held() -> int:
    """Bytes that the arenas of this process really hold."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            if "rtj-arena" in os.readlink(f"/proc/self/fd/{number}"):
                status = os.stat(f"/proc/self/fd/{number}")
                found[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:  # closed by another thread meanwhile
            continue
    return sum(found.values())


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets how much memory there is for RANKS ranks besides what each is left; arenas take theirs from it."""
    gc.collect()
    before = held()
    monkeypatch.setattr(plan, "LEAST_WINDOW_BYTES", 64 * KIB)

    def limit(room: int) -> None:
        monkeypatch.setattr(memory, "available_bytes", lambda: RANKS * RESERVE_BYTES + room - (held() - before))

    return limit


def at_once(act: Callable[[int], None], ranks: int = RANKS) -> None:
    with ThreadPoolExecutor(ranks) as pool:
        for job in [pool.submit(act, rank) for rank in range(ranks)]:
            job.result(WAIT_SECONDS)


def one_by_one(act: Callable[[int], None]) -> None:
    for rank in range(RANKS):
        act(rank)


def prepared(directory: Path, leaves: list[list[Leaf]], run_all: RunAll) -> list[Stage]:
    """Have every rank plan and take its memory."""
    stages = [Stage(Turns(RANKS, str(directory), rank)) for rank in range(RANKS)]

    def prepare(rank: int) -> None:
        stages[rank].prepare(Planner(0, 1, room_for=stages[rank].room_for).plan(leaves[rank]), leaves[rank])

    run_all(prepare)
    return stages


CASES = [
    pytest.param(2 * RANKS * SIZE, [2, 2, 2, 2], True, id="two copies each"),
    pytest.param(2 * RANKS * SIZE - RANKS, [1, 2, 2, 2], True, id="two copies for all but one"),
    pytest.param(RANKS * SIZE, [1, 1, 1, 1], True, id="one copy each"),
    pytest.param(RANKS * SIZE // 2, [1, 1, 1, 1], False, id="windows for all"),
]


@pytest.mark.parametrize("run_all", [at_once, one_by_one])
@pytest.mark.parametrize(("room", "generations", "is_whole"), CASES)
def test_all_ranks_get_their_share_and_together_no_more_than_there_is(
    tmp_path: Path,
    container: Callable[[int], None],
    run_all: RunAll,
    room: int,
    generations: list[int],
    is_whole: bool,
) -> None:
    container(room)
    stages = prepared(tmp_path, [part() for _ in range(RANKS)], run_all)
    assert sorted(stage.arena.generations for stage in stages) == generations
    assert [stage.windows == 1 for stage in stages] == [is_whole] * RANKS
    assert sum(stage.arena.generations * stage.arena.generation_bytes for stage in stages) <= room


def test_what_one_rank_does_not_need_is_the_others(tmp_path: Path, container: Callable[[int], None]) -> None:
    container((RANKS - 1) * 2 * SIZE + SIZE)
    stages = prepared(tmp_path, [part(100), *(part() for _ in range(RANKS - 1))], one_by_one)
    assert [stage.arena.generations for stage in stages] == [2] * RANKS


def test_ranks_of_one_pod_save_although_all_of_them_would_think_that_two_copies_fit(
    store: PosixStore, container: Callable[[int], None]
) -> None:
    sizes = [build_plan(weights(1.0, rank).leaves, rank, 2).stage_bytes for rank in range(2)]
    container(2 * max(sizes) - (RANKS - 2) * RESERVE_BYTES)
    with attempt_on(store, 2, ranks_here=2) as attempt:
        at_once(lambda rank: attempt.engines[rank].prepare(weights(1.0, rank)), ranks=2)
        assert [engine._stage.arena.generations for engine in attempt.engines] == [1, 1]
        assert [engine.stands_still for engine in attempt.engines] == [False, False]
        attempt.saved(1, [weights(1.0, rank) for rank in range(2)])


def test_a_rank_alone_shares_with_nobody() -> None:
    with Turns().turn() as among:
        assert among == ALONE


def test_what_is_there_is_divided_among_those_that_have_not_taken_theirs(tmp_path: Path) -> None:
    first, second, third = (Turns(3, str(tmp_path), rank) for rank in range(3))
    with first.turn() as among:
        assert among == Among(3, 3)
        first.mark_taken()
    with second.turn() as among:
        assert among == Among(3, 2)
        second.mark_taken()
    with third.turn() as among:
        assert among == Among(3, 1)
    with first.turn() as among:
        assert among == Among(3, 2), "itself, and the third"


def test_a_rank_that_was_killed_in_its_turn_is_not_waited_for_nor_counted(tmp_path: Path) -> None:
    code = (
        "import signal, sys; from trainer_runtime.checkpoint.staging.turns import Turns\n"
        "turns = Turns(2, sys.argv[1], 1)\n"
        "with turns.turn():\n    turns.mark_taken(); sys.stdout.write('taken'); sys.stdout.flush(); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.read(5) == b"taken"
        rank.send_signal(signal.SIGKILL)
        with Turns(2, str(tmp_path), 0).turn() as among:
            assert among == Among(2, 2)


def test_only_one_rank_has_its_turn_at_a_time_and_a_wait_for_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Turns(2, str(tmp_path), rank) for rank in range(2))
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    with first.turn(), pytest.raises(SaveFailed, match="waited 0 s for another rank of this worker that is taking memory"), second.turn():
        pass
    monkeypatch.setattr(turns, "TURN_SECONDS", WAIT_SECONDS)
    order: list[str] = []

    def take_second() -> None:
        with second.turn():
            order.append("second")

    thread = threading.Thread(target=take_second)
    with first.turn():
        thread.start()
        order.append("first")
    thread.join(WAIT_SECONDS)
    assert order == ["first", "second"]


def test_a_directory_that_is_gone_is_an_error_of_this_save(tmp_path: Path) -> None:
    with (
        pytest.raises(SaveFailed, match="gone: this worker's ranks cannot share their memory: No such file"),
        Turns(2, f"{tmp_path}/gone").turn(),
    ):
        pass
