"""What a run was started with goes when no checkpoint names it any more, and stays while one does or is about to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkpoint.moments import at_every_moment
from tests.checkpoint.test_cleaning_moments import Stuck
from tests.checkpoint.world import RUN, Attempt, attempt_on, directory_of, point, state, store_root, take_back
from tests.store import servers
from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.documents import find_reference, read_manifest
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints, sweep
from trainer_runtime.checkpoint.keeping.retention import ABANDONED_SECONDS
from trainer_runtime.checkpoint.keeping.snapshots import keep_snapshots, name_snapshots, paths_in, read_snapshots
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.state.attachments import Attachment, render_config
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore

LATE = 1e12
"""A time at which everything is old."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.gofakes3(tmp_path_factory.mktemp("gofakes3")) as running:
        yield running


@pytest.fixture(params=["posix", "s3"])
def each(request: pytest.FixtureRequest, store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of each kind."""
    if request.param == "posix":
        return store
    servers.give_credentials(monkeypatch)
    endpoint = request.getfixturevalue("endpoint")
    return servers.store_at(endpoint, servers.new_bucket(endpoint), "team")


def config(depth: int) -> dict[str, tuple[Attachment, ...]]:
    return {"config": render_config({"depth": depth})}


def path_of(depth: int) -> str:
    """Where `config` is kept, relative to the run."""
    (path,) = paths_in(name_snapshots(config(depth)))
    return path


def kept(store: Store) -> set[str]:
    return {f"snapshots/{name}" for name in store.list(f"{RUN}/snapshots")}


@contextmanager
def configured(store: Store, depth: int, attempt: int = 1, resume: ResumePoint | None = None) -> Iterator[Attempt]:
    """An attempt that was started with `config`."""
    with attempt_on(store, attempt=attempt, resume=resume, attachments=config(depth)) as running:
        yield running


def two_configs(store: Store) -> tuple[Writer, CheckpointRecord]:
    """Save with one configuration, then with another. Returns the second attempt's writer, and the first one's checkpoint."""
    with configured(store, depth=1) as attempt:
        first = attempt.saved(1, [state(1.0)])
    with configured(store, depth=2, attempt=2, resume=point(first)) as attempt:
        attempt.saved(2, [state(2.0)])
        return attempt.opened[0].writer, first


def sweep_late(store: Store, writer: Writer, depth: int = 2) -> None:
    """Sweep as the attempt does that was started with `config`."""
    sweep(store, RUN, writer, LATE, started_with=frozenset({path_of(depth)}))


def assert_read_whole(store: Store, name: StepName) -> None:
    """Insist that a checkpoint and every file that it was started with can be read."""
    reference = find_reference(store, RUN, name)
    assert reference is not None
    for files in read_manifest(store, reference).snapshots.values():
        assert len(list(read_snapshots(store, reference, files))) == len(files)


def test_a_snapshot_goes_a_day_after_it_was_kept_when_the_last_checkpoint_that_names_it_has_gone(each: Store) -> None:
    writer, first = two_configs(each)
    sweep_late(each, writer)
    assert kept(each) == {path_of(1), path_of(2)}, "both are named"

    delete_checkpoints(each, RUN, writer, [StepName(first.step, first.attempt)])
    kept_at = each.modified_at(f"{RUN}/{path_of(1)}")
    sweep(each, RUN, writer, kept_at + ABANDONED_SECONDS - 1, started_with=frozenset({path_of(2)}))
    assert kept(each) == {path_of(1), path_of(2)}, "a save in flight may be about to name it"
    sweep(each, RUN, writer, kept_at + ABANDONED_SECONDS, started_with=frozenset({path_of(2)}))
    assert kept(each) == {path_of(2)}
    assert_read_whole(each, StepName(2, 2))


def test_what_goes_lies_in_the_trash_under_its_own_path(each: Store) -> None:
    writer, first = two_configs(each)
    delete_checkpoints(each, RUN, writer, [StepName(first.step, first.attempt)])
    before = set(each.list(f"{RUN}/trash"))
    sweep(each, RUN, writer, each.modified_at(f"{RUN}/{path_of(1)}") + ABANDONED_SECONDS, started_with=frozenset({path_of(2)}))
    (grave,) = set(each.list(f"{RUN}/trash")) - before
    assert grave.startswith("snapshots-")
    assert each.read(f"{RUN}/trash/{grave}/{path_of(1)}") == config(1)["config"][0].read()


def test_what_the_attempt_was_started_with_stays_however_old_it_is_and_though_nothing_names_it_yet(each: Store) -> None:
    """As when a run that is older than a day goes back to a configuration whose checkpoints have gone, and has not saved yet."""
    with configured(each, depth=1) as attempt:
        sweep_late(each, attempt.opened[0].writer, depth=1)
        record = attempt.saved(1, [state(1.0)])
    assert_read_whole(each, StepName(record.step, record.attempt))


def test_snapshots_stay_while_one_checkpoint_cannot_be_read(store: PosixStore) -> None:
    writer, first = two_configs(store)
    delete_checkpoints(store, RUN, writer, [StepName(first.step, first.attempt)])
    manifest = store_root(store) / RUN / "steps" / str(StepName(2, 2)) / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text[:-1])
    sweep_late(store, writer)
    assert kept(store) == {path_of(1), path_of(2)}
    manifest.write_bytes(text)
    sweep_late(store, writer)
    assert kept(store) == {path_of(2)}


def test_what_the_checkpoint_names_that_another_run_began_from_stays_with_it(each: Store) -> None:
    writer, first = two_configs(each)
    each.create("fine-tune/fences/00000001", dumps(Fence(1, "job-b", "pod", "nonce", point(first), RUN)).encode())
    delete_checkpoints(each, RUN, writer, [StepName(first.step, first.attempt)])
    sweep_late(each, writer)
    assert_read_whole(each, StepName(first.step, first.attempt))


def test_a_snapshot_of_another_run_of_the_store_is_no_business_of_a_sweep(each: Store) -> None:
    writer, _ = two_configs(each)
    keep_snapshots(each, "fine-tune", config(3))
    sweep_late(each, writer)
    assert each.exists(f"fine-tune/{path_of(3)}")


def test_a_snapshot_stays_when_a_checkpoint_that_names_it_is_committed_at_any_moment_of_a_sweep(store: PosixStore, tmp_path: Path) -> None:
    writer, first = two_configs(store)
    committed, aside = directory_of(store, first), tmp_path / "in-flight"
    for busy in at_every_moment(store_root(store), lambda: aside.rename(committed), at_least=10):
        committed.rename(aside)
        sweep_late(busy, writer)
        if busy.has_acted:
            assert_read_whole(store, StepName(first.step, first.attempt))
    assert kept(store) == {path_of(2)}, "and without it the file went"


def test_a_snapshot_that_cannot_be_taken_away_keeps_no_other(store: PosixStore) -> None:
    writer, _ = two_configs(store)
    keep_snapshots(store, RUN, config(3))
    keep_snapshots(store, RUN, config(4))
    stuck = min(path_of(3), path_of(4))
    with pytest.raises(StoreUnavailable, match="permission denied"):
        sweep_late(Stuck(store_root(store), f"{RUN}/{stuck}", StoreUnavailable("permission denied")), writer)
    assert kept(store) == {path_of(1), path_of(2), stuck}


def test_what_is_taken_back_with_its_checkpoint_as_the_docs_say_stays(store: PosixStore) -> None:
    writer, first = two_configs(store)
    name, run = StepName(first.step, first.attempt), store_root(store) / RUN
    delete_checkpoints(store, RUN, writer, [name])
    os.utime(run / path_of(1), (0, 0))
    now = store.modified_at(f"{RUN}/trash")
    mine = frozenset({path_of(2)})
    sweep(store, RUN, writer, now, started_with=mine)
    (snapshot,), (grave,) = (run / "trash").glob("snapshots-*/snapshots/*"), (run / "trash").glob(f"{name}-*")
    assert kept(store) == {path_of(2)}

    for _each in take_back(run, name, grave, snapshot):
        sweep(store, RUN, writer, now, started_with=mine)
    assert_read_whole(store, name)
