"""What was said once is only named after that, and every checkpoint holds it, whichever persister writes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.checkpoint.real import engine_on, weights
from tests.checkpoint.world import WAIT_SECONDS, point
from trainer_runtime.checkpoint.commit import About
from trainer_runtime.checkpoint.job import SaveJob
from trainer_runtime.checkpoint.persister.messages import Save, decode, encode
from trainer_runtime.checkpoint.persister.repeated import Heard, Said
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.manifest import ObjectEntry
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Snapshot
from trainer_runtime.state.tree import Settled
from trainer_runtime.store.posix import PosixStore

SLOTS = {"dict": [["weight", ["exp_avg", "step"]]]}


def job(step: int, **objects: object) -> SaveJob:
    about = About(step=step, epoch=0, samples=0, strict={}, tags=(), parents=(), not_saved=())
    return SaveJob(about, tuple(ObjectEntry(name, value) for name, value in sorted(objects.items())), 0, 0)


def test_every_save_arrives_whole_and_only_what_is_the_same_object_is_left_out() -> None:
    said, heard = Said(), Heard()
    alike = {"dict": [["weight", ["exp_avg", "step"]]]}
    sent = [
        job(1, slots=SLOTS, cursor=1),
        job(2, slots=SLOTS, cursor={"tuple": [2]}),
        job(3, slots=alike, cursor={"tuple": [2]}),  # equal, and not the same
        job(4, slots=alike, more=None),
        job(5, cursor=5),
        job(6, slots=alike, cursor=6),  # not in the last one
    ]
    messages = [said.shorten(each) for each in sent]
    assert [message.repeated for message in messages] == [(), ("slots",), (), ("slots",), (), ()]
    for message, each in zip(messages, sent, strict=True):
        arrived = decode(encode(message))
        assert isinstance(arrived, Save)
        assert heard.complete(arrived) == Save(each)


def test_a_name_that_was_never_said_is_an_error_that_names_it() -> None:
    with pytest.raises(ContractError, match=r"Save.repeated: 'slots'"):
        Heard().complete(Save(job(1), repeated=("slots",)))


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels):
        value = {"": value}
    return value


@pytest.mark.parametrize("value", [10**5000, nested(330)], ids=["a number of too many digits", "nested too deeply"])
def test_what_no_message_can_hold_fails_its_save_and_no_later_one(tmp_path: Path, value: object) -> None:
    slots = Settled({"weight": ["exp_avg", "step"]})
    with engine_on(tmp_path) as (engine, _joined):
        for step in range(3):
            more = {"value": value} if step == 1 else {}
            objects: dict[str, object] = {"slots": slots, **more}
            engine.stage(Snapshot(weights(1.0).leaves, objects), step=step, epoch=0, samples=0, strict={})
            result = engine.wait(WAIT_SECONDS)
            assert result is not None
            if more:
                assert isinstance(result.error, SaveFailed) and "not JSON" in str(result.error)
            else:
                assert result.record is not None, result
                assert open_checkpoint(PosixStore(tmp_path), point(result.record)).objects(0) == {"slots": {"weight": ["exp_avg", "step"]}}


def test_checkpoints_hold_what_was_said_to_an_earlier_persister(tmp_path: Path) -> None:
    slots = Settled({"weight": ["exp_avg", "step"]})
    with engine_on(tmp_path) as (engine, joined):
        for step in range(1, 5):
            leaves = weights(float(step)).leaves
            if step == 3:
                assert joined.link.pid is not None
                os.kill(joined.link.pid, signal.SIGKILL)
            engine.stage(Snapshot(leaves, {"slots": slots, "cursor": [step]}), step=step, epoch=0, samples=0, strict={})
            result = engine.wait(WAIT_SECONDS)
            assert result is not None and result.record is not None, result
            found = open_checkpoint(PosixStore(tmp_path), point(result.record)).objects(0)
            assert found == {"slots": {"weight": ["exp_avg", "step"]}, "cursor": [step]}
