"""attach(resume_from=…): another run's checkpoint as the beginning of this one. And what is kept beside checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.endings import exit_of
from tests.runtime.training import Training, steps_in
from trainer_runtime.contract.beat import Level, RecordKey
from trainer_runtime.contract.codec import loads
from trainer_runtime.contract.manifest import Manifest
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Refused


def address(store: Path, step: int, run: str = "base") -> str:
    (folder,) = (store / run / "steps").glob(f"{step:010d}-*")
    return folder.as_uri()


def manifest(store: Path, step: int, run: str) -> Manifest:
    (folder,) = (store / run / "steps").glob(f"{step:010d}-*")
    return loads(Manifest, (folder / "manifest.json").read_bytes())


def test_a_strict_beginning_goes_on_bit_for_bit_in_a_run_of_its_own(store: Path) -> None:
    whole = Training(store, run="whole").train(9)
    Training(store, run="base").train(4)
    first = Training(store, run="mine", resume_from=address(store, 4)).train(6)
    assert first.run.resumed_from is not None
    assert (first.run.resumed_from.uri, len(first.run.resumed_from.manifest_sha256)) == (address(store, 4), 64)
    second = Training(store, run="mine", resume_from=address(store, 4)).train(9)
    assert second.run.resumed_from is not None
    assert second.run.resumed_from.step == 6
    assert {**first.losses, **second.losses} == {step: loss for step, loss in whole.losses.items() if step > 4}
    assert steps_in(store, "base") == [4]


def test_a_beginning_at_its_own_end_is_saved_in_the_run_of_its_own(store: Path) -> None:
    Training(store, run="base").train(4)
    Training(store, run="mine", resume_from=address(store, 4)).train(4)
    assert steps_in(store, "mine") == [4]


def test_a_warm_start_takes_the_weights_and_begins_at_step_zero(store: Path) -> None:
    base = Training(store, run="base").train(4)
    expected = [parameter.detach().clone() for parameter in base.model.parameters()]
    warm = Training(store, run="warm", lr=0.01, resume_from=Path(address(store, 4).removeprefix("file://")), mode="WarmStart")
    assert warm.run.global_step == 0
    assert all(torch.equal(left, right) for left, right in zip(expected, warm.model.parameters(), strict=True))
    assert not warm.optimizer.state
    warm.train(2)
    found = manifest(store, 2, "warm")
    assert [(parent.step, parent.relation) for parent in found.parents] == [(4, "warm_start")]
    assert Training(store, run="warm", lr=0.01, resume_from=address(store, 4), mode="WarmStart").train(3).run.resumed_from is not None
    assert manifest(store, 3, "warm").parents[0].relation == "resume"


def test_a_warm_start_of_another_model_names_every_key_and_loads_what_both_have_when_allowed(
    store: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    base = Training(store, run="base").train(2)
    with pytest.raises(SystemExit) as problem:
        Training(store, run="warm", width=5, resume_from=address(store, 2), mode="WarmStart")
    assert exit_of(problem) == (77, Refused)
    said = capsys.readouterr().err
    assert all(name in said for name in ("model/0.weight", "model/0.bias", "model/2.weight", "allow=['structure']"))
    assert "hyperparameters" not in said
    warm = Training(store, run="warm", width=5, resume_from=address(store, 2), mode="WarmStart", allow=["structure"])
    assert torch.equal(warm.model.state_dict()["2.bias"], base.model.state_dict()["2.bias"])
    assert caplog.text.count("allowed at this resume: model/") == 3
    warm.run.close()


def test_a_damaged_source_ends_the_attempt_and_nothing_else_is_taken(store: Path) -> None:
    Training(store, run="base").train(2)
    (file,) = (store / "base" / "steps").glob("*/data/*model*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SystemExit) as problem:
        Training(store, run="mine", resume_from=address(store, 2))
    assert exit_of(problem) == (80, CheckpointDamaged)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"mode": "WarmStart"}, "mode: given without resume_from"),
        ({"mode": "Warm", "resume_from": "x"}, "mode: 'Warm' is not one of Strict, WarmStart"),
        ({"resume_from": "file:///store/run"}, "resume_from: .* is not the address of a checkpoint"),
        ({"resume_from": 5}, "resume_from: a int is neither a URL nor a directory"),
    ],
    ids=["mode alone", "unknown mode", "no checkpoint's address", "a number"],
)
def test_a_keyword_that_cannot_be_used_is_named(store: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit) as problem:
        Training(store, **keywords)
    assert exit_of(problem) == (78, ConfigurationError)
    with pytest.raises(ConfigurationError, match=message):
        raise problem.value.__cause__ or AssertionError


def test_tokenizer_and_config_are_part_of_every_checkpoint(store: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "vocab.json").write_text("{}")
    for until in (2, 4):
        Training(store, tokenizer=tokenizer, config={"depth": 2, "rate": 0.1}).train(until)
    found = manifest(store, 4, "default").snapshots
    assert found == manifest(store, 2, "default").snapshots
    assert [file.name for file in found["tokenizer"]] == ["vocab.json"]
    (config,) = found["config"]
    assert json.loads((store / "default" / config.path).read_text()) == {"depth": 2, "rate": 0.1}
    assert len(list((store / "default" / "snapshots").iterdir())) == 2


def test_what_an_attempt_was_started_with_stays_while_it_has_not_saved_however_old_it_is(store: Path) -> None:
    given = Training(store, config={"depth": 2})
    (file,) = (store / "default" / "snapshots").iterdir()
    other = file.with_name("0" * 64)
    other.write_bytes(b"nobody's")
    for snapshot in (file, other):
        os.utime(snapshot, (0, 0))
    given.run._parts.housekeeper.delete((RecordKey("default", 1, 1, Level.VERIFIED),))
    given.train(2)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert manifest(store, 2, "default").snapshots["config"][0].sha256 == file.name


def test_another_tokenizer_is_refused_by_the_name_of_its_file(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocabulary = tmp_path / "vocab.json"
    vocabulary.write_text("{}")
    Training(store, tokenizer=vocabulary).train(2)
    vocabulary.write_text('{"new": 1}')
    with pytest.raises(SystemExit) as problem:
        Training(store, tokenizer=vocabulary)
    assert exit_of(problem) == (77, Refused)
    assert "tokenizer.vocab.json: saved" in capsys.readouterr().err


def test_a_loop_of_another_shape_says_that_it_is_finished(store: Path) -> None:
    training = Training(store)
    for _ in range(3):
        with training.run.step():
            (x,) = training.run.next_batch()
            training.learn(x)
    training.run.finish()
    assert training.run.last_verified is not None
    assert training.run.last_verified.step == 3
    training.run.close()
