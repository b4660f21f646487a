"""The last lines of a test run say what failed, and why, to whoever sees nothing but them; and no failure ends well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e import testrun

TESTS = """
import pytest

def test_good():
    pass

def test_bad():
    assert {"a": 1} == {"a": 2}

def test_skipped():
    pytest.skip("this file is written for a run of its own, which must not end well for it")

@pytest.fixture
def broken():
    yield
    raise OSError("the fixture broke")

def test_with_fixture(broken):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_some.py").write_text(TESTS)
    monkeypatch.setattr(testrun, "TIERS", {"unit": [str(tmp_path), f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]})
    monkeypatch.setattr(sys, "argv", ["testrun", "unit"])
    monkeypatch.delenv("SKIP", raising=False)
    return tmp_path


def test_every_failure_is_named_at_the_end_with_its_reason(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert testrun.main() == 1
    end = capfd.readouterr().out.rsplit("seconds", 1)[-1].split("FAILED test_some::", 1)[1]
    assert end.startswith("test_bad (failure)\n")
    assert "assert {'a': 1} == {'a': 2}" in end
    assert "FAILED test_some::test_with_fixture (error)\n" in end and "OSError: the fixture broke" in end
    assert end.splitlines()[-1] == "1 passed, 2 failed, 1 skipped"


def test_a_run_in_which_all_tests_pass_ends_well(folder: Path) -> None:
    (folder / "test_some.py").write_text("def test_good():\n    pass\n")
    assert testrun.main() == 0


def test_a_run_that_skips_or_holds_no_test_does_not(folder: Path) -> None:
    (folder / "test_some.py").write_text("import pytest\n\ndef test_skipped():\n    pytest.skip('a run that skips must not end well')\n")
    assert testrun.main() == 1
    (folder / "test_some.py").write_text("")
    assert testrun.main() == 1


def test_a_process_that_dies_without_a_report_counts_as_a_failure(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_some.py").write_text("import os\n\ndef test_dies():\n    os._exit(0)\n")
    assert testrun.main() == 1
    assert capfd.readouterr().out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
