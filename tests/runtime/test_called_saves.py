"""A save between turns is of what training goes on with, whenever that is."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.training import Training, steps_in


def test_a_save_right_after_beginning_from_another_run_resumes_alike(store: Path) -> None:
    whole = Training(store, run="whole").train(12)
    Training(store, run="source").train(3)
    begun = Training(store, run="own", resume_from=(store / "source" / "steps" / "0000000003-00000001").as_uri())
    begun.run.save(block=True)
    begun.run.close()
    assert steps_in(store, "own") == [3]
    assert Training(store, run="own").train(12).losses == {step: loss for step, loss in whole.losses.items() if step > 3}
