"""Keeps a status below its size: what only explains goes first, what `decide` needs goes last.

The API server would take about 1.5 MiB, but every watcher gets every version of every job; 50 KB keeps a thousand jobs cheap.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from trainer_runtime.contract.beat import SHARED_TIERS, Level

MAX_STATUS_BYTES: Final = 50_000
"""Of compact UTF-8 JSON."""
NEWEST_KNOWN: Final = 20
NEWEST_GOOD: Final = 3
MAX_CHECKPOINTS: Final = NEWEST_KNOWN + NEWEST_GOOD + 1
"""Newest known, newest good, and the one the present attempt resumes from."""
NEWEST_FAILURES: Final = 3
"""Failures that always stay: no row of the decision table allows more of one kind in a row."""
_SHORT: Final = 160
"""Characters left of a message that had to be shortened."""
_WORDS: Final = ("message", "action", "nodeAction")
"""Texts of a failure. What it is recognised by when it comes again is short: attempt, cause, node, fingerprint, step."""


class _Known(Protocol):
    @property
    def step(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def is_good(self) -> bool: ...
    @property
    def is_verified(self) -> bool: ...


K = TypeVar("K", bound=_Known)


def newest_known(records: Iterable[K], resumed: tuple[int, int] | None = None) -> tuple[K, ...]:
    """Return what status.checkpoints keeps, newest first: the newest 20, the 3 newest good verified ones, and the one resumed from.

    ``resumed`` is (step, attempt) of the present attempt's resume point.
    """
    newest_first = sorted(records, key=lambda record: (record.step, record.attempt), reverse=True)
    good = [record for record in newest_first if record.is_good and record.is_verified][:NEWEST_GOOD]
    kept = [
        record
        for place, record in enumerate(newest_first)
        if place < NEWEST_KNOWN or any(record is one for one in good) or (record.step, record.attempt) == resumed
    ]
    return tuple(kept[:MAX_CHECKPOINTS])


def status_bytes(document: dict[str, Any]) -> int:
    """Return the size of a status as the API server gets it."""
    return len(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())


def fit(document: dict[str, Any]) -> dict[str, Any]:
    """Return the status document, shortened until it fits into MAX_STATUS_BYTES; unchanged when it fits already."""
    if status_bytes(document) <= MAX_STATUS_BYTES:
        return document
    shortened = copy.deepcopy(document)
    for shorten in _SHORTENINGS:
        while status_bytes(shortened) > MAX_STATUS_BYTES and shorten(shortened):
            pass
    return shortened


def _drop_evidence_of_an_old_failure(document: dict[str, Any]) -> bool:
    oldest = next((failure for failure in reversed(document.get("failures", [])) if "evidence" in failure), None)
    if oldest is None:
        return False
    del oldest["evidence"]
    return True


def _drop_words_of_an_old_failure(document: dict[str, Any]) -> bool:
    oldest = next((failure for failure in reversed(document.get("failures", [])) if any(failure.get(key) for key in _WORDS)), None)
    if oldest is None:
        return False
    oldest.update(dict.fromkeys(_WORDS, ""))  # an absent text reads as an empty one, and would be written as such
    return True


def _drop_oldest_failure(document: dict[str, Any]) -> bool:
    failures = document.get("failures", [])
    return len(failures) > NEWEST_FAILURES and _pop_last(failures, lambda _: True)


def _shorten_condition(document: dict[str, Any]) -> bool:
    return any(_shorten_text(condition, "message") for condition in document.get("conditions", []))


def _drop_evidence_of_the_last_failure(document: dict[str, Any]) -> bool:
    return _pop_last(document.get("lastFailure", {}).get("evidence", []), lambda _: True)


def _shorten_last_failure(document: dict[str, Any]) -> bool:
    failure = document.get("lastFailure", {})
    return any(_shorten_text(failure, key) for key in _WORDS)


def _shorten_ending(document: dict[str, Any]) -> bool:
    return _shorten_text(document.get("ending", {}), "message")


def _shorten_quarantine(document: dict[str, Any]) -> bool:
    return any(_shorten_text(record, "quarantined") for record in document.get("checkpoints", []))


def _drop_old_checkpoint(document: dict[str, Any]) -> bool:
    """Drop the oldest known checkpoint that is neither resumed from nor one of the newest good ones."""
    records = document.get("checkpoints", [])
    good = [record for record in records if _is_good(record)][:NEWEST_GOOD]
    resumed = document.get("resumePoint", {})
    return _pop_last(
        records,
        lambda record: (
            all(record is not one for one in good)
            and (record.get("step"), record.get("attempt")) != (resumed.get("step"), resumed.get("attempt"))
        ),
    )


def _drop_exclusion(document: dict[str, Any]) -> bool:
    """Drop the last exclusion that is not a cordon of ours: those must stay known until they are lifted."""
    return _pop_last(document.get("excludedNodes", []), lambda node: not node.get("cordoned"))


_SHORTENINGS: Final[tuple[Callable[[dict[str, Any]], bool], ...]] = (
    _drop_evidence_of_an_old_failure,
    _drop_words_of_an_old_failure,
    _shorten_condition,
    _drop_evidence_of_the_last_failure,
    _shorten_last_failure,
    _shorten_ending,
    _shorten_quarantine,
    _drop_old_checkpoint,
    _drop_oldest_failure,
    _drop_exclusion,
)
"""In the order of use. Each takes one thing away and says whether it found one."""


def _is_good(record: dict[str, Any]) -> bool:
    lost = record.get("abandoned") or record.get("quarantined") is not None or record.get("deleting")
    return not lost and record.get("level") == Level.VERIFIED.value and record.get("tier") in {tier.value for tier in SHARED_TIERS}


def _shorten_text(holder: dict[str, Any], key: str) -> bool:
    text = holder.get(key)
    if not isinstance(text, str) or len(text) <= _SHORT:
        return False
    holder[key] = text[:_SHORT]
    return True


def _pop_last(items: list[dict[str, Any]], may_go: Callable[[dict[str, Any]], bool]) -> bool:
    for place in range(len(items) - 1, -1, -1):
        if may_go(items[place]):
            del items[place]
            return True
    return False
