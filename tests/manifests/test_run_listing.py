"""The operator's look at a run while an attempt takes it over: on a real directory, with the other's acts between any two of its reads."""

from __future__ import annotations

from pathlib import Path

from rtj_operator.manifests.run_listing import list_run
from tests.checkpoint.moments import at_every_moment
from tests.checkpoint.world import RUN, attempt_on, point, state
from trainer_runtime.contract.layout import StepName, fence_path, step_path
from trainer_runtime.store.base import NotInStore, Store
from trainer_runtime.store.posix import PosixStore


class InStore:
    """The documents of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self, directory: str) -> tuple[str, ...]:
        return self._store.list(directory)

    def read(self, path: str) -> bytes | None:
        try:
            return self._store.read(path)
        except NotInStore:
            return None


def test_nothing_is_told_as_abandoned_when_an_attempt_takes_over_at_any_moment(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    store = PosixStore(root)
    with attempt_on(store, attempt=1) as attempt:
        record = attempt.saved(1, [state(1.0)])
    with attempt_on(store, attempt=2, resume=point(record)) as attempt:
        attempt.saved(2, [state(2.0)])
    fence, step = root / RUN / fence_path(2), root / RUN / step_path(StepName(2, 2))

    def take_over() -> None:
        (tmp_path / "fence").rename(fence)
        (tmp_path / "step").rename(step)

    for busy in at_every_moment(root, take_over, at_least=4):
        step.rename(tmp_path / "step")
        fence.rename(tmp_path / "fence")
        found = list_run(InStore(busy), store.uri, RUN, {})
        assert [one.step for one in found if one.abandoned] == []
