"""The doctor on a real script: a sound one, and one with an unseeded generator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runtime.launching import clean_environment, run_script
from trainer_runtime.cli.doctor.__main__ import main
from trainer_runtime.contract.environment import RESERVED_NAMES, RESERVED_PREFIXES

SCRIPT = """
import random, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import trainer_runtime as tr

store, fault = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
samples = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(samples), batch_sampler=tr.ResumableSampler(20, batch_size=4))
run = tr.attach(model=model, optimizer=optimizer, data=loader, store=store, save_every_steps=10**6)
own = random.Random()
for (x,) in run.steps(max_steps=12):
    loss = model(x).pow(2).mean()
    if fault == "unseeded":
        loss = loss * (1 + own.random())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=float(loss.detach()))
    if run.global_step in (3, 7):
        run.save(block=True)
run.close()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, and a run that it made: steps 4, 8 and 12."""
    made = tmp_path_factory.mktemp("doctor")
    (made / "train.py").write_text(SCRIPT)
    ended = run_script(made / "train.py", str(made / "store"), "none", cwd=made)
    assert ended.returncode == 0, ended.stderr
    return made


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in (folder / "store").rglob("*"))


def doctor(folder: Path, fault: str, *options: str) -> int:
    return main(["--store", str(folder / "store"), *options, str(folder / "train.py"), str(folder / "store"), fault])


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
            monkeypatch.delenv(name)
    for name, value in clean_environment().items():
        monkeypatch.setenv(name, value)


def test_a_sound_script_is_equal_up_to_the_runs_own_next_checkpoint_and_the_run_is_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(folder)
    assert doctor(folder, "none", "--to-next") == 0
    said = capsys.readouterr().out
    assert "steps 9 to 12, 1 processes" in said
    assert "equal: every loss, batch and random number" in said
    assert "note:" not in said, "what the run itself saw after step 8 was recorded"
    assert listing(folder) == before


def test_a_generator_that_nobody_seeds_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(folder, "unseeded", "--steps", "1") == 1
    said = capsys.readouterr().out
    assert "differs: step 9, rank 0: another loss" in said
    assert "random.Random()" in said
    assert "the run itself had a loss of" in said


def test_what_cannot_be_tried_out_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", str(folder / "store"), "--step", "5", str(folder / "train.py")]) == 2
    assert "STEP: 5 is not in" in capsys.readouterr().err
    broken = folder / "broken.py"
    broken.write_text("raise SystemExit('no data here')")
    assert main(["--store", str(folder / "store"), str(broken)]) == 2
    assert "| no data here" in capsys.readouterr().err
