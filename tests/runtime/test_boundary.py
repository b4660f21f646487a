from __future__ import annotations

import dataclasses

import pytest

from trainer_runtime.boundary import Action, AloneAgreement, Triggers, Wishes, decide

EVERY_10 = Triggers(every_steps=10, last_saved_step=10)


@pytest.mark.parametrize(
    ("triggers", "agreed", "step", "is_between_steps", "expected"),
    [
        (EVERY_10, Wishes(), 19, True, Action.GO_ON),
        (EVERY_10, Wishes(), 20, True, Action.SAVE),
        (EVERY_10, Wishes(busy=True), 20, True, Action.GO_ON),
        (EVERY_10, Wishes(), 23, True, Action.SAVE),
        (EVERY_10, Wishes(), 20, False, Action.GO_ON),
        (dataclasses.replace(EVERY_10, every_steps=None), Wishes(), 20, True, Action.GO_ON),
        (EVERY_10, Wishes(save=True), 12, True, Action.SAVE),
        (EVERY_10, Wishes(save=True, busy=True), 12, True, Action.GO_ON),
        (dataclasses.replace(EVERY_10, save_owed=True), Wishes(), 12, True, Action.SAVE),
        (dataclasses.replace(EVERY_10, save_called=True), Wishes(busy=True), 12, True, Action.SAVE),
        (EVERY_10, Wishes(stop=True, busy=True), 12, True, Action.SAVE_AND_STOP),
        (EVERY_10, Wishes(stop=True), 12, False, Action.GO_ON),
        (dataclasses.replace(EVERY_10, stop_owed=True), Wishes(), 13, True, Action.SAVE_AND_STOP),
        (dataclasses.replace(EVERY_10, save_called=True), Wishes(stop=True), 12, True, Action.SAVE_AND_STOP),
        (EVERY_10, Wishes(stop=True, no_time=True), 12, True, Action.STOP),
        (EVERY_10, Wishes(no_time=True), 20, True, Action.SAVE),
    ],
    ids=[
        "nothing is due",
        "every ten steps",
        "a busy stage makes a save wait",
        "a save that waited is still due",
        "in the middle of an accumulation nothing is saved",
        "no step trigger",
        "somebody asked for a save",
        "somebody asked while busy",
        "an agreed save that waited",
        "the script's own save does not wait for a free boundary",
        "a stop does not either",
        "a stop waits for the optimizer",
        "and is not forgotten",
        "a stop comes before a save",
        "a stop for which no save is quick enough",
        "time is only short when a stop was asked for",
    ],
)
def test_the_boundarys_rule(triggers: Triggers, agreed: Wishes, step: int, is_between_steps: bool, expected: Action) -> None:
    assert decide(triggers, agreed, step, is_between_steps) is expected


def test_a_world_of_one_hears_itself_one_step_later_like_every_other() -> None:
    agreement = AloneAgreement()
    assert agreement.read() == Wishes()
    agreement.start(Wishes(save=True))
    assert agreement.read() == Wishes(save=True)
    assert agreement.read() == Wishes()
