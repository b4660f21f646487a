"""How much memory may be taken: from files as the kernel writes them, and the refusal with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_runtime.checkpoint.staging.memory import available_bytes, require_memory
from trainer_runtime.errors import SaveFailed

MIB = 1024**2
MEMINFO = "MemTotal:       8388608 kB\nMemFree:         100000 kB\nMemAvailable:    4194304 kB\n"

CASES = [
    pytest.param({}, 4096 * MIB, id="no cgroup: the machine's number"),
    pytest.param({"memory.max": "max", "memory.current": "5", "memory.stat": "inactive_file 3\n"}, 4096 * MIB, id="no limit"),
    pytest.param(
        {"memory.max": f"{1024 * MIB}", "memory.current": f"{600 * MIB}", "memory.stat": f"anon 1\ninactive_file {100 * MIB}\n"},
        524 * MIB,
        id="the limit less its use, page cache counts as free",
    ),
    pytest.param({"memory.max": "10", "memory.current": "20", "memory.stat": ""}, 0, id="over the limit"),
    pytest.param(
        {
            "memory/memory.limit_in_bytes": f"{512 * MIB}",
            "memory/memory.usage_in_bytes": f"{500 * MIB}",
            "memory/memory.stat": f"total_inactive_file {88 * MIB}\n",
        },
        100 * MIB,
        id="the older kind of cgroup",
    ),
]


@pytest.mark.parametrize(("files", "expected"), CASES)
def test_available_is_the_smaller_of_machine_and_container(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path, tmp_path / "meminfo") == expected


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    require_memory(1, "a byte")
    with pytest.raises(SaveFailed, match=r"staging needs 1,073,741,824 MiB of host memory .*; available are [\d,]+ MiB"):
        require_memory(1 << 50, "staging")
