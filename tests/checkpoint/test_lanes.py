"""One hashing lane for each physical core but one, not for each hardware thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_runtime.checkpoint.lanes import MAX_HASH_LANES, hash_lanes

SIBLINGS = [
    pytest.param({0: "0-1", 1: "0-1"}, 1, id="two threads of one core"),
    pytest.param({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 1, id="two cores of two threads"),
    pytest.param({0: "0", 1: "1", 2: "2"}, 2, id="three cores"),
    pytest.param({number: str(number) for number in range(64)}, MAX_HASH_LANES, id="a large machine"),
    pytest.param({}, 1, id="nobody says"),
]


@pytest.mark.parametrize(("siblings", "lanes"), SIBLINGS)
def test_lanes_are_counted_by_cores(tmp_path: Path, siblings: dict[int, str], lanes: int) -> None:
    for cpu, listed in siblings.items():
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{listed}\n")
    assert hash_lanes(siblings or [7], tmp_path) == lanes
