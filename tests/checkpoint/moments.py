"""A store in which something happens at one moment: what another process may do between any two calls of one that looks and then acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from trainer_runtime.store.posix import PosixStore

MOST_MOMENTS = 1000


class ActsAt(PosixStore):
    """Something happens right before one of the calls, counted from 0, that only look."""

    def __init__(self, root: Path, moment: int, act: Callable[[], object]) -> None:
        super().__init__(root)
        self._calls, self._moment, self._act = 0, moment, act
        self.changes_since = 0
        """Moves and removals after it happened."""

    @property
    def has_acted(self) -> bool:
        return self._calls > self._moment

    def list(self, path: str) -> tuple[str, ...]:
        self._look()
        return super().list(path)

    def exists(self, path: str) -> bool:
        self._look()
        return super().exists(path)

    def read(self, path: str) -> bytes:
        self._look()
        return super().read(path)

    def modified_at(self, path: str) -> float:
        self._look()
        return super().modified_at(path)

    def move(self, path: str, to: str) -> None:
        self.changes_since += self.has_acted
        super().move(path, to)

    def remove(self, path: str) -> None:
        self.changes_since += self.has_acted
        super().remove(path)

    def _look(self) -> None:
        self._calls += 1
        if self._calls == self._moment + 1:
            self._act()


def at_every_moment(root: Path, act: Callable[[], object], at_least: int) -> Iterator[ActsAt]:
    """Yield stores in which it happens one look later each, until one comes in which it never did. That one is the caller's last.

    ``at_least``: so many moments there must be, or the test that goes through them proves less than it says.
    """
    for moment in range(MOST_MOMENTS):
        busy = ActsAt(root, moment, act)
        yield busy
        if not busy.has_acted:
            assert moment >= at_least, f"only {moment} moments"
            return
    raise AssertionError(f"more than {MOST_MOMENTS} moments")
