"""Did the replicas hold the same bytes when they were saved? Compares the digests that the ranks' indexes carry (made by `replicas`).

Pure, and no torch. It cannot tell which replica is right; where most of them agree, the others are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from trainer_runtime.checkpoint.names import rank_prefix
from trainer_runtime.contract.manifest import RankIndex

OBJECT: Final = "replicas"
"""Name, qualified by the rank, of the value that holds a rank's digests: by the ranks of each set of replicas, as ``0,1,2``."""


def find_disagreement(indexes: Iterable[RankIndex]) -> str | None:
    """Return which ranks held other bytes than their replicas, or None."""
    seen: dict[str, dict[int, str]] = {}
    for index in indexes:
        for group, digest in _digests_in(index):
            seen.setdefault(group, {})[index.rank] = digest
    for group, found in seen.items():
        (usual, count), *others = Counter(found.values()).most_common()
        if others:
            where = f"silent data corruption: the replicas on ranks {group} hold different values"
            if count == others[0][1]:
                return f"{where}, and no majority of them agrees"
            odd = ", ".join(str(rank) for rank, digest in found.items() if digest != usual)
            return f"{where}: rank {odd} differs from the others"
    return None


def _digests_in(index: RankIndex) -> list[tuple[str, str]]:
    """Return (ranks, digest) pairs; they are typed JSON (state.tree), which is read here without torch."""
    name = f"{rank_prefix(index.rank)}{OBJECT}"
    values: list[Any] = [entry.value for entry in index.objects if entry.name == name]
    return [(str(group), str(digest)) for value in values for group, digest in value["dict"]]
