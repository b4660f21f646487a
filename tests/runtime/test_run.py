from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import trainer_runtime as tr
from tests.runtime.endings import exit_of
from tests.runtime.launching import LAUNCH_SECONDS, clean_environment, run_script
from tests.runtime.training import Training, steps_in
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import dumps, loads
from trainer_runtime.contract.manifest import Manifest
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Fenced, Refused, SaveFailed, StoreUnavailable


def test_a_second_process_goes_on_where_the_first_one_ended(store: Path) -> None:
    whole = Training(store, run="whole").train(12)
    first = Training(store).train(5)
    assert first.run.resumed_from is None
    second = Training(store).train(12)
    assert second.run.resumed_from is not None
    assert (second.run.resumed_from.step, second.run.attempt) == (5, 2)
    assert {**first.losses, **second.losses} == whole.losses
    assert all(torch.equal(left, right) for left, right in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_the_last_step_is_saved_and_verified_when_the_loop_ends(store: Path) -> None:
    training = Training(store)
    for (x,) in training.run.steps(max_steps=3):
        training.learn(x)
    assert training.run.last_verified is not None
    assert training.run.last_verified.step == 3
    assert (store / "default" / "steps" / "0000000003-00000001" / "verified.json").exists()
    training.run.close()


def test_a_run_that_is_complete_does_nothing_more(store: Path) -> None:
    Training(store).train(4)
    again = Training(store).train(4)
    assert again.losses == {}
    assert steps_in(store) == [4]


def test_a_run_that_is_resumed_at_its_end_has_the_random_numbers_of_that_end(store: Path) -> None:
    Training(store).train(4)
    expected = torch.get_rng_state()
    torch.manual_seed(99)
    Training(store).train(4)
    assert torch.equal(torch.get_rng_state(), expected)


def test_epochs_end_the_loop_too(store: Path) -> None:
    training = Training(store)
    count = sum(1 for _ in training.run.steps(epochs=2))
    assert (count, training.run.epoch, training.run.global_step) == (10, 2, 10)
    training.run.close()


def test_saves_come_every_n_steps_and_retention_keeps_the_newest(store: Path) -> None:
    training = Training(store, save_every_steps=2, keep_last=2)
    for (x,) in training.run.steps(max_steps=10):
        training.learn(x)
        if training.run.global_step == 3:
            training.run.save(tag="stage one", block=True)
    training.run.close()
    assert steps_in(store)[0] == 4, "a tagged checkpoint is never deleted"
    assert steps_in(store)[-1] == 10
    assert len(steps_in(store)) <= 3


def test_a_save_called_in_a_turn_is_of_the_step_that_the_turn_ends(store: Path) -> None:
    training = Training(store)
    for (x,) in training.run.steps(max_steps=5):
        training.learn(x)
        if training.run.global_step == 2:
            training.run.save(block=True)
    training.run.close()
    assert steps_in(store) == [3, 5]


def test_a_save_before_the_first_step_is_step_zero_and_resumes_as_such(store: Path) -> None:
    whole = Training(store, run="whole").train(4)
    first = Training(store)
    first.run.save(block=True)
    first.run.close()
    assert steps_in(store) == [0]
    assert Training(store).train(4).losses == whole.losses


def test_accumulation_counts_micro_batches_and_saves_between_steps(store: Path) -> None:
    training = Training(store, save_every_steps=1)
    seen = [(training.run.global_step, training.run.micro_batch) for _ in training.run.steps(max_steps=2, micro_batches=3)]
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    training.run.close()
    manifest = loads(Manifest, (store / "default" / "steps" / "0000000002-00000001" / "manifest.json").read_bytes())
    assert manifest.consumed_samples == 24


def test_a_save_in_the_middle_of_an_accumulation_waits_for_the_optimizer(store: Path) -> None:
    training = Training(store)
    for (x,) in training.run.steps(max_steps=6):
        training.model(x).sum().backward()
        if training.run.global_step == 1:
            training.run.save(block=True)
        if training.run.global_step == 3:
            training.optimizer.step()
            training.optimizer.zero_grad()
    training.run.close()
    assert steps_in(store)[0] == 4


def test_steps_of_another_shape_count_and_save_alike(store: Path) -> None:
    whole = Training(store, run="whole").train(8)
    losses = {}
    for until in (3, 8):
        training = Training(store)
        while training.run.global_step < until:
            with training.run.step():
                (x,) = training.run.next_batch()
                training.learn(x)
        training.run.save(block=True)
        training.run.close()
        losses.update(training.losses)
    assert losses == whole.losses


def test_a_step_that_takes_no_batch_of_the_data_is_refused(store: Path) -> None:
    training = Training(store)
    with pytest.raises(SystemExit) as problem, training.run.step():
        pass
    training.run.close()
    assert exit_of(problem) == (78, ConfigurationError)
    assert "run.next_batch" in str(problem.value.__cause__)


def test_a_loop_without_data_gets_step_numbers(store: Path) -> None:
    def numbers(until: int) -> list[int]:
        with tr.attach(model=nn.Linear(1, 1), store=store) as run:
            return list(run.steps(max_steps=until))

    assert (numbers(3), numbers(5)) == ([0, 1, 2], [3, 4])


def test_a_resume_that_differs_is_refused_with_every_difference_and_nothing_is_loaded(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Training(store, config={"depth": 1}).train(2)
    with pytest.raises(SystemExit) as problem:
        Training(store, width=5, lr=0.2, config={"depth": 2})
    assert exit_of(problem) == (77, Refused)
    said = capsys.readouterr().err
    for part in ("model/0.weight", "hyperparameters.optim[0].lr", "config.depth: saved 1, now 2", "allow: structure", "allow: config"):
        assert part in said


def test_a_difference_that_is_allowed_is_recorded_in_the_next_manifest(store: Path) -> None:
    Training(store, config={"depth": 1}).train(2)
    Training(store, config={"depth": 2}, allow=("config",)).train(3)
    manifest = loads(Manifest, (store / "default" / "steps" / "0000000003-00000002" / "manifest.json").read_bytes())
    assert manifest.allowances == ("config",)


def flip_a_byte(store: Path, step: int) -> None:
    (folder,) = (store / "default" / "steps").glob(f"{step:010d}-*")
    file = next(iter(sorted((folder / "data").glob("*model*"))))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over_for_the_next_older_one(store: Path) -> None:
    whole = Training(store, run="whole").train(6)
    Training(store).train(2)
    Training(store).train(4)
    flip_a_byte(store, 4)
    third = Training(store).train(6)
    assert third.run.resumed_from is not None
    assert third.run.resumed_from.step == 2
    assert third.losses == {step: loss for step, loss in whole.losses.items() if step > 2}


def test_when_every_checkpoint_is_damaged_it_ends_instead_of_beginning_anew(store: Path) -> None:
    Training(store).train(2)
    flip_a_byte(store, 2)
    with pytest.raises(SystemExit) as problem:
        Training(store)
    assert exit_of(problem) == (80, CheckpointDamaged)


def test_a_bad_keyword_ends_the_process_as_bad_configuration(store: Path) -> None:
    for keywords in ({"run": "Not/allowed"}, {"allow": ("everything",)}, {"meter": 5}):
        with pytest.raises(SystemExit) as problem:
            Training(store, **keywords)
        assert exit_of(problem) == (78, ConfigurationError)


def test_a_store_that_was_named_and_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as problem:
        Training(f"file://{tmp_path}/unmounted")
    assert exit_of(problem) == (81, StoreUnavailable)


def test_an_assignment_without_resume_refuses_a_run_that_is_not_empty(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Training(store).train(2)
    assignment = Assignment(attempt=5, worker_index=0, workers=1, procs_per_worker=1, master_addr="127.0.0.1", master_port=1, run_id="r")
    monkeypatch.setenv("RTJ_ASSIGNMENT", dumps(assignment))
    with pytest.raises(SystemExit) as problem:
        Training(store)
    assert exit_of(problem) == (77, Refused)


def test_attach_wants_a_process_group_in_a_world_of_several(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as problem:
        Training(store)
    assert exit_of(problem) == (78, ConfigurationError)
    assert "init_process_group" in str(problem.value.__cause__)


@pytest.mark.parametrize(("good", "last_saved"), [(None, 5), (4, 9)], ids=["the first ones", "a good one begins the count anew"])
def test_five_failed_saves_in_a_row_end_the_run(store: Path, good: int | None, last_saved: int) -> None:
    training = Training(store)
    staging = store / "default" / "tmp"
    staging.rmdir()
    staging.touch()
    with pytest.raises(SaveFailed, match=f"tmp/{last_saved:010}-00000001/data/.*: already there"):
        for (x,) in training.run.steps(max_steps=20):
            training.learn(x)
            training.run._saver._engine.wait(60)
            if training.run.global_step + 1 == good:
                staging.unlink()
            elif training.run.global_step == good:
                staging.rmdir()
                staging.touch()
            training.run.save()
    training.run.close()


def test_a_final_save_that_fails_is_the_runs_failure(store: Path) -> None:
    training = Training(store)
    (store / "default" / "fences" / "00000001").unlink()
    with pytest.raises((SaveFailed, SystemExit)):
        training.train(2)
    training.run.close()


SCRIPT = """
import os, signal, sys
import trainer_runtime as tr
from tests.runtime.training import Training
from pathlib import Path
training = Training(Path("store"), save_every_steps=1000)
for (x,) in training.run.steps(max_steps=50):
    training.learn(x)
    if training.run.global_step == 7:
        {at_step_7}
print("ended at", training.run.global_step)
"""


@pytest.mark.parametrize(
    ("at_step_7", "code", "saved"),
    [
        ("pass", 0, [50]),
        ("os.kill(os.getpid(), signal.SIGTERM)", 75, [9]),
        ("training.run.save(); raise ValueError('boom')", 1, []),
        ("training.run.save(tag='kept')", 0, [8, 50]),
        ("break", 0, []),
        ("sys.exit(3)", 3, []),
    ],
    ids=[
        "done",
        "SIGTERM: an agreed save, then 75",
        "an exception keeps its code",
        "a save in flight is finished",
        "left early",
        "own exit code",
    ],
)
def test_how_a_process_ends_is_in_its_exit_code(tmp_path: Path, at_step_7: str, code: int, saved: list[int]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(at_step_7=at_step_7))
    ended = run_script(script, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    folder = tmp_path / "store" / "default" / "steps"
    assert (steps_in(tmp_path / "store") if folder.exists() else []) == saved
    assert ("boom" in ended.stderr) == (code == 1)


def test_a_save_in_flight_when_the_loop_is_left_is_finished_before_the_process_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(at_step_7="break").replace("save_every_steps=1000", "save_every_steps=7"))
    ended = run_script(script, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert steps_in(tmp_path / "store") == [7]
    assert json.loads(next((tmp_path / "store/default/steps").glob("*/verified.json")).read_text())["level"]


def workers_of(names: tuple[str, ...]) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


def test_a_run_whose_last_save_fails_ends_its_other_threads_too(store: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    names = ("rtj-clean", "rtj-archive")
    earlier = workers_of(names)
    training = Training(store, archive=tmp_path / "archive", archive_every_steps=1)
    training.run.save(block=True)
    started = workers_of(names) - earlier
    assert len(started) == 2
    (store / "default" / "fences" / "00000001").unlink()
    for (x,) in training.run.steps(max_steps=2):
        training.learn(x)
        break
    training.run.save()
    with pytest.raises(SaveFailed):
        training.run.close()
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def let_another_attempt_begin(store: Path) -> None:
    fences = store / "default" / "fences"
    (fences / "00000002").write_text(json.dumps({**json.loads((fences / "00000001").read_text()), "attempt": 2, "job_uid": "another"}))


def test_a_run_that_is_superseded_during_its_last_save_is_closed_as_such(store: Path) -> None:
    training = Training(store)
    let_another_attempt_begin(store)
    training.run.save()
    with pytest.raises(SystemExit) as problem:
        training.run.close()
    assert exit_of(problem) == (79, Fenced)


SUPERSEDED = """
import logging
from tests.runtime.test_run import let_another_attempt_begin
logging.basicConfig()
let_another_attempt_begin(Path("store"))
training.run.save()
"""


@pytest.mark.parametrize(
    ("then", "code", "said"),
    [("", 79, "rtj: rank 0: fenced: "), ("raise ValueError('boom')", 1, "ValueError: boom")],
    ids=["the script ends", "the script's own error comes first"],
)
def test_a_process_that_is_superseded_during_its_last_save_ends_as_such(tmp_path: Path, then: str, code: int, said: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(at_step_7="break") + SUPERSEDED + then)
    ended = run_script(tmp_path / "script.py", cwd=tmp_path)
    assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr
    assert "owned by attempt 2" in ended.stderr


LAST_ACTS = {
    "refused": ("training.run.phase('lunch').__enter__()", 78),
    "the save in flight at the end fails": ("os.remove('store/default/fences/00000001'); training.run.save()", 1),
}


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("last_act", "code"), LAST_ACTS.values(), ids=LAST_ACTS)
def test_the_exit_code_does_not_depend_on_who_reads_the_message(tmp_path: Path, closed: str, last_act: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(at_step_7="break") + last_act)
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "script.py"]
    assert subprocess.run(command, cwd=tmp_path, env=clean_environment(), timeout=LAUNCH_SECONDS, check=False).returncode == code
