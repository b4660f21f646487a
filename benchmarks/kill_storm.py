"""A hundred SIGKILLs of ranks, persisters or both: is anything lost that was said to be verified, or anything committed unreadable?

    python -m benchmarks.kill_storm [--json] [--kills 100] [--seed N]

A rank saves one step after the other and tells when each was sealed, committed and verified. The storm waits for one of these words and
then for a random moment, and kills. What it hit is judged by the last word before the kill: `inside_commit` between sealed and committed,
`inside_verify` between committed and verified, `after_verify` from then until the next seal. After each kill the store is read in full.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks import measuring, saving
from trainer_runtime.checkpoint.documents import find_reference, is_verified
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.checkpoint.verify import verify_checkpoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged
from trainer_runtime.store.base import Store
from trainer_runtime.store.open import open_store

KILLS = 100
LEAST_HITS = 30
"""So many kills must fall inside a commit, and so many after a verified mark."""
MEGABYTES = 4
WAIT_SECONDS = 120.0
STEP_SECONDS = 0.05
"""What the rank trains after a save: without it the next seal follows a verified mark too closely for a kill to fall between."""
RANK, PERSISTER, BOTH = "rank", "persister", "both"
EVERY = 7
"""Each so many-th kill waits for a commit; the others for whichever of a seal and a verified mark was hit less often until then."""
SHARE = 0.5
"""The random moment lies within this share of the time that usually passes until the next word."""
MARK = "RTJ_KILL_STORM"
"""In the environment of whatever a rank of the storm starts: the storm's directory. So a persister is found of which no rank ever told."""
WORDS = {"sealed": "inside_commit", "committed": "inside_verify", "verified": "after_verify"}


def save_for_ever(root: str, told: Connection) -> None:
    """Be the rank: save until killed. Says (word, step, persister's process id or 0, seconds since the word before)."""
    os.environ[MARK] = root
    attempt = saving.Saving(Path(root))
    snapshot = saving.snapshot_of(saving.make_state(MEGABYTES / 1000, tensors=8))
    at = time.monotonic()

    def say(word: str, step: int) -> None:
        nonlocal at
        now = time.monotonic()
        told.send((word, step, attempt.persister_pid, now - at))
        at = now

    attempt.on_record = lambda record: say(record.level.value, record.step)
    attempt.engine.prepare(snapshot)
    while True:
        attempt.stage(snapshot)
        say("sealed", attempt.step)
        attempt.wait()
        time.sleep(STEP_SECONDS)


@dataclass
class Storm:
    """The killer and its books."""

    root: Path
    chance: random.Random
    context: ForkServerContext
    hits: Counter[str] = field(default_factory=Counter)
    victims: Counter[str] = field(default_factory=Counter)
    verified: set[int] = field(default_factory=set)
    unreadable: set[StepName] = field(default_factory=set)
    left_over: set[int] = field(default_factory=set)
    """Persisters that did not end by themselves after their rank was killed."""
    durations: dict[str, list[float]] = field(default_factory=lambda: {word: [0.05] for word in WORDS})
    rank: BaseProcess | None = None
    ears: Connection | None = None
    persister: int = 0
    last: str = "verified"

    def kill_once(self, number: int) -> None:
        """Wait for a word and a random moment after it, then kill, and let what is left come to rest."""
        wanted = "committed" if number % EVERY == EVERY - 1 else min("sealed", "verified", key=lambda word: self.hits[WORDS[word]])
        if self.rank is None:
            self._start()
        self._listen_for(wanted)
        follower = {"sealed": "committed", "committed": "verified", "verified": "sealed"}[wanted]
        self._listen(self.chance.uniform(0.0, SHARE * statistics.median(self.durations[follower][-20:])))
        target = self.chance.choice([RANK, PERSISTER, BOTH])
        if target in (PERSISTER, BOTH):
            _kill(self.persister)
        if target in (RANK, BOTH):
            self._end_rank()
        self.hits[WORDS[self.last]] += 1
        self.victims[target] += 1
        if self.rank is None:
            self._wait_for_persisters()

    def look(self, store: Store) -> set[int]:
        """Read the whole store; return the verified steps it has."""
        found = set()
        for name in list_committed(store, saving.RUN):
            reference = find_reference(store, saving.RUN, name)
            assert reference is not None
            try:
                verify_checkpoint(store, reference)
            except CheckpointDamaged as error:
                print(f"unreadable: {error}")
                self.unreadable.add(name)
                continue
            if is_verified(store, reference):
                found.add(name.step)
        return found

    def close(self) -> None:
        """End the last rank."""
        if self.rank is not None:
            self._end_rank()
            self._wait_for_persisters()

    def _start(self) -> None:
        self.ears, theirs = self.context.Pipe()
        self.rank = self.context.Process(target=save_for_ever, args=(str(self.root), theirs))
        self.rank.start()
        theirs.close()
        self.last = "verified"

    def _end_rank(self) -> None:
        assert self.rank is not None
        assert self.ears is not None
        self.rank.kill()
        self.rank.join(WAIT_SECONDS)
        self._listen(0.0)
        self.rank, self.ears = None, None

    def _wait_for_persisters(self) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while (alive := find_persisters(self.root) - self.left_over) and time.monotonic() < end:
            time.sleep(0.01)
        self.left_over |= alive

    def _listen_for(self, word: str) -> None:
        assert self.ears is not None
        while True:
            assert self.ears.poll(WAIT_SECONDS), f"the rank said nothing for {WAIT_SECONDS:.0f} s"
            self._hear(self.ears.recv())
            if self.last == word and not self.ears.poll():
                return

    def _listen(self, seconds: float) -> None:
        """Take in what is said within ``seconds``, and all that was said already."""
        assert self.ears is not None
        end = time.monotonic() + seconds
        try:
            while self.ears.poll(max(0.0, end - time.monotonic())):
                self._hear(self.ears.recv())
        except EOFError:
            return

    def _hear(self, said: tuple[str, int, int, float]) -> None:
        word, step, persister, seconds = said
        self.persister = persister or self.persister
        self.last = word
        self.durations[word].append(seconds)
        if word == "verified":
            self.verified.add(step)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it had ended by itself


def find_persisters(root: Path) -> set[int]:
    """Process ids of the storm's persisters that live now. ``root``: the storm's directory."""
    mark = f"{MARK}={root}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")  # nothing of one that ended and was not reaped
        except OSError:
            continue  # it ended since it was listed, or is somebody else's
        if mark in variables:
            found.add(int(process.name))
    return found


def result(storm: Storm, seed: int, lost: set[int]) -> dict[str, Any]:
    """The JSON line's values."""
    return {
        "seed": seed,
        "kills": sum(storm.hits.values()),
        "victims": dict(storm.victims),
        "hits": dict(storm.hits),
        "verified_told": len(storm.verified),
        "unreadable_committed": len(storm.unreadable),
        "lost_verified": len(lost),
        "leftover_processes": len(storm.left_over),
        "bars": [
            measuring.bar("committed and unreadable", len(storm.unreadable), at_most=0),
            measuring.bar("verified and lost", len(lost), at_most=0),
            measuring.bar("persisters left over", len(storm.left_over), at_most=0),
            measuring.bar("kills", sum(storm.hits.values()), at_least=KILLS),
            *(measuring.bar(f"kills {hit}", storm.hits[hit], at_least=LEAST_HITS) for hit in ("inside_commit", "after_verify")),
        ],
    }


def main() -> int:
    """Kill, look, print what was hit and one JSON line."""
    parser = saving.options(__doc__, gigabytes=None, repeats=None)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    context = multiprocessing.get_context("forkserver")
    lost: set[int] = set()
    with saving.scratch(given.directory) as directory:
        storm = Storm(directory / "store", random.Random(given.seed), context)
        (directory / "store").mkdir()
        store = open_store((directory / "store").as_uri())
        for number in range(given.kills):
            storm.kill_once(number)
            if storm.rank is None:
                lost |= storm.verified - storm.look(store)
        storm.close()
        lost |= storm.verified - storm.look(store)
    measuring.publish("kill_storm", result(storm, given.seed, lost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
