"""`rtj-checkpoints` as a person uses it: on a real store, with its exit codes and what it says on which stream."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.checkpoint.world import RUN, attempt_on, directory_of, flip, point, state
from trainer_runtime.checkpoint.keeping.inventory import list_committed
from trainer_runtime.cli.checkpoints.main import main
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.contract.layout import StepName
from trainer_runtime.store.posix import PosixStore

DAMAGE = 5000
"""A byte behind the header of a data file."""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RTJ_STORE", "RTJ_RUN", "RTJ_S3_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


Saved = dict[str, CheckpointRecord]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Saved]:
    """Attempt 1 wrote 1 (tagged), 2, 3; attempt 2 went on from 2 and wrote 3 and 4. So 3-1 is abandoned."""
    root = tmp_path_factory.mktemp("template")
    store = PosixStore(root)
    with attempt_on(store, job="") as attempt:
        records = {f"{step}-1": attempt.saved(step, [state(float(step))], tags=("stage-end",) if step == 1 else ()) for step in (1, 2, 3)}
    with attempt_on(store, attempt=2, resume=point(records["2-1"]), job="") as attempt:
        records |= {f"{step}-2": attempt.saved(step, [state(float(step))]) for step in (3, 4)}
    return root, records


@pytest.fixture
def saved(store: PosixStore, template: tuple[Path, Saved]) -> Saved:
    """The template's checkpoints, in this test's store."""
    root, records = template
    shutil.copytree(root, Path(store.uri.removeprefix("file://")), dirs_exist_ok=True, copy_function=shutil.copyfile)
    return {name: replace(record, uri=record.uri.replace(root.as_uri(), store.uri)) for name, record in records.items()}


@pytest.fixture
def run(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        try:
            code = main([command, "--store", store.uri, *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_ls_lists_step_lineage_level_tier_size_and_tags(saved: Saved, run: Callable[..., Any]) -> None:
    code, out, _ = run("ls")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert "run run in" in out
    assert "attempt 2 owns it and began from step 2" in out
    assert lines[1][:6] == ["STEP", "ATTEMPT", "LINEAGE", "LEVEL", "TIER", "SIZE"]
    assert [line[:5] for line in lines[2:]] == [
        ["1", "1", "on", "verified", "store"],
        ["2", "1", "on", "verified", "store"],
        ["3", "1", "abandoned", "verified", "store"],
        ["3", "2", "on", "verified", "store"],
        ["4", "2", "on", "verified", "store"],
    ]
    assert "stage-end" in out.splitlines()[2]
    assert "resumed from" in out.splitlines()[3]


def test_ls_json_is_one_document_with_everything(saved: Saved, run: Callable[..., Any]) -> None:
    document = json.loads(run("ls", "--json")[1])
    assert (document["run"], document["attempt"], document["resumed_from"]["step"]) == (RUN, 2, 2)
    first = document["checkpoints"][0]
    assert (first["step"], first["tags"], first["tiers"], first["level"]) == (1, ["stage-end"], ["store"], "verified")
    assert first["manifest_sha256"] == saved["1-1"].manifest_sha256


def test_ls_looks_into_the_archive_as_well(saved: Saved, run: Callable[..., Any], tmp_path: Path, store: PosixStore) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    subprocess.run(["cp", "-r", str(tmp_path / "store" / RUN), str(archive)], check=True)
    store.remove(f"{RUN}/steps/{StepName(1, 1)}")
    document = json.loads(run("ls", "--archive", str(archive), "--json")[1])
    assert [entry["tiers"] for entry in document["checkpoints"]] == [["archive"], *[["store", "archive"]] * 4]


def test_ls_says_what_is_damaged_instead_of_failing(saved: Saved, run: Callable[..., Any], store: PosixStore) -> None:
    (directory_of(store, saved["2-1"]) / "manifest.json").write_text("{")
    code, out, _ = run("ls")
    assert code == 0
    assert "manifest.json: " in out


def test_show_tells_one_checkpoint_in_words_and_as_json(saved: Saved, run: Callable[..., Any]) -> None:
    code, out, _ = run("show", "1")
    assert code == 0
    assert "step 1 of attempt 1: verified, on the lineage" in out
    assert "stage-end" in out
    assert "grew from  step 2 of attempt 1 (resume)" in run("show")[1], "the newest one"
    assert json.loads(run("show", "1", "--json")[1])["manifest"]["consumed_samples"] == 8


def test_verify_reads_every_byte_and_names_file_and_chunk(saved: Saved, run: Callable[..., Any], store: PosixStore) -> None:
    assert run("verify", "--all")[:1] == (0,)
    flip(directory_of(store, saved["2-1"]) / "data" / "00000-optim-0.safetensors", DAMAGE)
    code, out, err = run("verify", "--all")
    assert code == ExitCode.DAMAGED
    assert [line.split(":")[1].split(",")[0].strip() for line in out.splitlines()] == ["good", "DAMAGED", "good", "good", "good"]
    assert "data/00000-optim-0.safetensors: chunk 0 (bytes 0 to" in err
    assert run("verify", "newest")[0] == 0
    assert run("verify", "2")[0] == ExitCode.DAMAGED


def test_diff_ends_with_1_when_something_differs(saved: Saved, run: Callable[..., Any]) -> None:
    code, out, _ = run("diff", "2", "3-1")
    assert code == 1
    assert "model/weight" in out
    assert run("diff", "2", "2-1") == (0, run("diff", "2", "2")[1], "")
    assert run("diff", "3-1", "3-2")[0] == 0, "both attempts did the same"


def test_export_writes_what_safetensors_loads(saved: Saved, run: Callable[..., Any], tmp_path: Path) -> None:
    code, out, _ = run("export", "4", str(tmp_path / "out"))
    assert code == 0
    assert "2 tensors" in out
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")["weight"], torch.full((64, 16), 4.0))
    assert run("export", "4", str(tmp_path / "out"))[0] == ExitCode.BAD_CONFIGURATION


def test_rm_moves_to_the_trash_and_nothing_else(saved: Saved, run: Callable[..., Any], store: PosixStore) -> None:
    code, out, _ = run("rm", "3-1", "3-2", "--force")
    assert code == 0
    assert "trash for 24 hours" in out
    assert list_committed(store, RUN) == (StepName(1, 1), StepName(2, 1), StepName(4, 2))
    assert len(store.list(f"{RUN}/trash")) == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["4", "--force"], "newest verified checkpoint on the lineage"),
        (["2", "--force"], "what attempt 2 began from"),
        (["1", "--force"], "tagged stage-end; --tagged deletes it"),
        (["3-1", "1", "--force"], "tagged"),
        (["3-1"], "the run changed"),
    ],
    ids=str,
)
def test_rm_refuses_what_must_stay_and_then_deletes_nothing(
    saved: Saved, run: Callable[..., Any], store: PosixStore, arguments: list[str], reason: str
) -> None:
    code, _, err = run("rm", *arguments)
    assert code == ExitCode.REFUSED
    assert reason in err
    assert len(list_committed(store, RUN)) == 5


def test_rm_of_a_tagged_one_takes_its_own_word(saved: Saved, run: Callable[..., Any], store: PosixStore) -> None:
    assert run("rm", "1", "--force", "--tagged")[0] == 0
    assert StepName(1, 1) not in list_committed(store, RUN)


def test_rm_refuses_while_a_job_owns_the_run(store: PosixStore, run: Callable[..., Any]) -> None:
    with attempt_on(store, job="job-a") as attempt:
        attempt.saved(1, [state(1.0)])
        attempt.saved(2, [state(2.0)])
    code, _, err = run("rm", "1")
    assert code == ExitCode.REFUSED
    assert "attempt 1 of job job-a: end the job first, or say --force" in err


def test_rm_refuses_what_another_run_began_from(saved: Saved, run: Callable[..., Any], store: PosixStore) -> None:
    fence = {"attempt": 1, "job_uid": "", "pod_uid": "", "nonce": "n", "resume_run": RUN, "version": "1.0"}
    resume = {"step": 3, "attempt": 1, "uri": saved["3-1"].uri, "manifest_sha256": saved["3-1"].manifest_sha256, "mode": "WarmStart"}
    store.create("fine-tune/fences/00000001", json.dumps({**fence, "resume": resume}).encode())
    code, _, err = run("rm", "3-1", "--force", "--run", RUN)
    assert code == ExitCode.REFUSED
    assert "what another run of this store began from" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "3"], 78, "STEP: 3 could be 3-1, 3-2; write one of them"),
        (["show", "7"], 78, "STEP: 7 is not in file://"),
        (["show", "latest"], 78, "STEP: 'latest' is not a step (120)"),
        (["show", "file:///nowhere"], 78, "STEP: 'file:///nowhere' is not the address of a checkpoint"),
        (["show", "--run", "other"], 78, "--run: 'other' is not in file://"),
        (["show", "--run", "Other"], 78, "--run: 'Other' is not a run name"),
        (["ls", "--archive", "ftp://x"], 78, "--archive: 'ftp://x' is not supported"),
        (["ls", "--store", "/nowhere"], 81, "--store: /nowhere: no such directory"),
        (["verify", "--all", "2"], 78, "--all: not together with a STEP"),
        (["export", "2"], 78, "DIRECTORY"),
        (["eat", "2"], 78, "'eat'"),
        (["rm", "file:///nowhere/run/steps/0000000001-00000001"], 81, "/nowhere: no such directory"),
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_used_is_named_with_what_can(
    saved: Saved, run: Callable[..., Any], arguments: list[str], code: int, message: str
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_of_several_runs_one_must_be_named(saved: Saved, run: Callable[..., Any], store: PosixStore) -> None:
    store.create("second/fences/00000001", b"{}")
    code, _, err = run("ls")
    assert code == ExitCode.BAD_CONFIGURATION
    assert "--run: not given, and" in err
    assert "holds run, second" in err
    assert run("ls", "--run", RUN)[0] == 0


def test_an_address_names_a_checkpoint_anywhere_or_nothing(saved: Saved, run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert main(["show", saved["3-1"].uri]) == 0, "the default store has no such run"
    assert run("diff", saved["3-1"].uri, "3-2")[0] == 0
    code, _, err = run("show", saved["4-2"].uri.replace("0000000004", "0000000005"))
    assert (code, "there is no checkpoint at file://" in err) == (ExitCode.BAD_CONFIGURATION, True)


def test_it_needs_no_torch(saved: Saved, store: PosixStore, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from trainer_runtime.cli.checkpoints.main import main
for words in (["ls"], ["show"], ["verify", "--all"], ["diff", "1", "2"], ["export", "4", "out"], ["rm", "3-1", "--force"]):
    code = main([words[0], "--store", {store.uri!r}, *words[1:]])
    assert code == (1 if words[0] == "diff" else 0), (words, code)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
