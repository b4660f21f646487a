"""A run that begins from a checkpoint which somebody named: of another run, proven first, never written to, and only at the beginning."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, open_world, point, state
from trainer_runtime.channel.messages import Proceed
from trainer_runtime.checkpoint.fences import read_fences
from trainer_runtime.checkpoint.keeping.inventory import read_inventory
from trainer_runtime.contract.assignment import Assignment, ResumeMode, ResumePoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Parent
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Fenced, Refused
from trainer_runtime.store.posix import PosixStore


def root_of(store: PosixStore) -> Path:
    return Path(store.uri.removeprefix("file://"))


@pytest.fixture
def source(store: PosixStore) -> ResumePoint:
    """Step 10 of a run that is called ``base``, as a person names it: by its address alone."""
    with attempt_on(store) as attempt:
        record = attempt.saved(10, [state(10.0)])
    root = root_of(store)
    (root / RUN).rename(root / "base")
    return ResumePoint(10, 1, record.uri.replace(f"/{RUN}/", "/base/"), "", ResumeMode.STRICT)


def manifest_sha256(store: PosixStore) -> str:
    (record,) = read_inventory(store, "base").records
    return record.manifest_sha256


@pytest.mark.parametrize(("mode", "relation"), [(ResumeMode.STRICT, "resume"), (ResumeMode.WARM_START, "warm_start")])
def test_an_empty_run_begins_from_it_and_the_fence_pins_what_was_found(
    store: PosixStore, source: ResumePoint, mode: ResumeMode, relation: str
) -> None:
    opened = open_world([store] * 3, resume_from=replace(source, mode=mode))
    pinned = replace(source, mode=mode, manifest_sha256=manifest_sha256(store))
    assert [one.resume for one in opened] == [pinned] * 3
    assert opened[0].parents == (Parent(10, 1, pinned.manifest_sha256, relation),)
    (fence,) = read_fences(store, RUN)
    assert (fence.resume, fence.resume_run) == (pinned, "base")


def test_an_operator_may_assign_it_without_knowing_its_digest(store: PosixStore, source: ResumePoint) -> None:
    (opened,) = open_world([store], attempt=4, resume=source)
    assert opened.resume == replace(source, manifest_sha256=manifest_sha256(store))


def test_once_the_run_has_a_step_of_its_own_it_is_not_looked_at(store: PosixStore, source: ResumePoint) -> None:
    with attempt_on(store, resume_from=source) as attempt:
        record = attempt.saved(12, [state(12.0)])
    shutil.rmtree(root_of(store) / "base")
    (opened,) = open_world([store], resume_from=source)
    assert opened.resume == point(record)
    assert read_inventory(store, RUN).lineage.on == (StepName(12, 1),)


def test_an_attempt_that_saved_nothing_is_followed_by_one_that_begins_from_it_again(store: PosixStore, source: ResumePoint) -> None:
    for _ in range(2):
        (opened,) = open_world([store], resume_from=source)
        assert opened.resume is not None
        assert opened.resume.step == 10


def test_a_fresh_start_that_names_it_leaves_what_the_run_holds_and_begins_from_it(store: PosixStore, source: ResumePoint) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(12, [state(12.0)])
    (opened,) = open_world([store], fresh=True, resume_from=source)
    assert opened.resume is not None
    assert opened.resume.uri == source.uri
    assert read_inventory(store, RUN).lineage.on == ()


def test_a_run_whose_fences_are_lost_does_not_begin_from_it(store: PosixStore, source: ResumePoint) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(12, [state(12.0)])
    store.remove(f"{RUN}/fences")
    with pytest.raises(Refused, match="holds checkpoints and nothing says where to start"):
        open_world([store], resume_from=source)


@pytest.mark.parametrize("marked", [False, True], ids=["never verified", "marked as verified"])
def test_a_source_that_is_damaged_is_found_before_the_run_is_taken(store: PosixStore, source: ResumePoint, marked: bool) -> None:
    folder = root_of(store) / "base" / "steps" / "0000000010-00000001"
    if marked:
        (folder / "manifest.json").write_bytes(b"{}")
    else:
        (folder / "verified.json").unlink()
        next(folder.glob("data/*")).write_bytes(b"")
    with pytest.raises(CheckpointDamaged):
        open_world([store] * 2, resume_from=source)
    assert read_fences(store, RUN) == ()


def test_nothing_is_written_beside_the_source(store: PosixStore, source: ResumePoint) -> None:
    (root_of(store) / "base" / "steps" / "0000000010-00000001" / "verified.json").unlink()
    before = sorted(path.as_posix() for path in (root_of(store) / "base").rglob("*"))
    open_world([store], resume_from=source)
    assert sorted(path.as_posix() for path in (root_of(store) / "base").rglob("*")) == before


def test_an_address_where_nothing_lies_is_a_mistake_of_whoever_wrote_it(store: PosixStore, source: ResumePoint) -> None:
    elsewhere = replace(source, step=11, uri=source.uri.replace("0000000010", "0000000011"))
    with pytest.raises(ConfigurationError, match="there is no checkpoint: it has no manifest"):
        open_world([store], resume_from=elsewhere)


@pytest.mark.parametrize("answer", [None, Proceed(None)], ids=["no answer", "an answer without orders"])
def test_an_assigned_source_of_another_run_is_older_than_any_step_of_this_one(
    store: PosixStore, source: ResumePoint, answer: Proceed | None
) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(2, [state(2.0)])
    with pytest.raises(Fenced, match=r"holds a newer checkpoint .step 2. than the assigned one .step 10 of run 'base'."):
        open_world([store], attempt=2, resume=source, hold=lambda found: answer)
    told = Proceed(Assignment(2, 0, 1, 1, "127.0.0.1", 29500, "id"))
    (opened,) = open_world([store], attempt=2, resume=source, hold=lambda found: told)
    assert opened.resume is not None
    assert opened.resume.uri == source.uri
