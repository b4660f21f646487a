"""``python -m trainer_runtime.signals``: what it prints, and that the package loads nothing beyond the standard library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signals.lines import BY_ID, CASES, log_of
from trainer_runtime.signals.__main__ import main


def run_command(*arguments: str, standard_input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_runtime.signals", *arguments], input=standard_input, capture_output=True, timeout=60
    )


def test_json_has_one_object_per_incident(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text(log_of("M40", "M41", "M36", "M03"), encoding="utf-8")
    result = run_command("--json", str(log))
    rows = [json.loads(row) for row in result.stdout.decode().splitlines()]
    assert [(row["fault_class"], row["strength"]) for row in rows] == [("gpu_ecc_uncorrectable", "NODE"), ("nccl_timeout", "VICTIM")]
    assert [sorted(row) for row in rows] == [["fault_class", "fields", "lines", "strength"]] * 2
    assert rows[0]["lines"] == [BY_ID["M40"].text, BY_ID["M41"].text]
    assert (result.returncode, result.stderr) == (0, b"")


def test_rows_come_from_standard_input_too() -> None:
    (row,) = run_command("-", standard_input=log_of("M39").encode()).stdout.decode().splitlines()
    assert row.split()[:2] == ["NODE", "gpu_fallen_off"]
    assert "gpu=0000:a1:00" in row


def test_nothing_is_printed_for_benign_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "worker.log"
    log.write_text("\n".join(case.text for case in CASES if case.verdict == "BENIGN"), encoding="utf-8")
    assert main(["--done", str(log)]) == 0
    assert capsys.readouterr().out == ""


def test_a_missing_file_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.log")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "absent.log: No such file or directory" in error


def test_a_directory_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_importing_signals_loads_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import trainer_runtime.signals, trainer_runtime.signals.__main__;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["trainer_runtime"]
