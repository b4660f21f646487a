"""Does memory grow from save to save? Fifty saves, and the slope of what trainer and persister hold.

    python -m benchmarks.soak [--json] [--saves 50] [--gigabytes 0.25]

The slope is that of a straight line through the resident memory after each save, the first ten left out: they fill caches once.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path

from benchmarks import measuring, saving

SAVES = 50
SETTLING = 10
BAR_MB = 1.0
"""Most that memory may grow from one save to the next."""


def resident_mb(pid: str | int = "self") -> float:
    """Resident memory of a process, in 10^6 bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def open_files(pid: str | int = "self") -> int:
    """Open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main() -> int:
    """Save, measure, print one JSON line."""
    parser = saving.options(__doc__, gigabytes=0.25, repeats=None)
    parser.add_argument("--saves", type=int, default=SAVES)
    given = parser.parse_args()
    trainer, persister = [], []
    with saving.scratch(given.directory) as directory:
        snapshot = saving.snapshot_of(saving.make_state(given.gigabytes))
        attempt = saving.Saving(directory / "store")
        for _ in range(given.saves):
            attempt.stage(snapshot)
            attempt.wait()
            trainer.append(resident_mb())
            persister.append(resident_mb(attempt.persister_pid))
            for old in sorted((directory / "store" / saving.RUN / "steps").iterdir())[:-1]:
                shutil.rmtree(old)
        files = open_files(), open_files(attempt.persister_pid)
        attempt.close()
    rounds = range(SETTLING, given.saves)
    slopes = [statistics.linear_regression(rounds, held[SETTLING:]).slope for held in (trainer, persister)]
    values = {
        "saves": given.saves,
        "gigabytes": given.gigabytes,
        "trainer_mb": round(trainer[-1]),
        "persister_mb": round(persister[-1]),
        "open_files": files,
        "bars": [
            measuring.bar(f"MB that the {who} grows per save", round(slope, 3), at_most=BAR_MB)
            for who, slope in zip(("trainer", "persister"), slopes, strict=True)
        ],
    }
    measuring.publish("soak", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
