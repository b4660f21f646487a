"""The last lines of a test run say what failed, and why, to whoever sees nothing but them; and no failure ends well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e import testrun

SKIPPED = """
import pytest

def test_skipped():
    pytest.skip("a sample that only the runner under test collects: it must count a skipped test, and not let the run end well")
"""
TESTS = f"""
{SKIPPED}

def test_good():
    pass

def test_bad():
    assert {{"a": 1}} == {{"a": 2}}

@pytest.fixture
def broken():
    yield
    raise OSError("the fixture broke")

def test_with_fixture(broken):
    pass
"""


def run_in(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let the unit tier be these folders, one process for each. These tests need no plugin, and loading those that are installed takes
    longer than all else here."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    tier = [[str(folder), f"--rootdir={folder}", "-p", "no:cacheprovider"] for folder in folders]
    monkeypatch.setattr(testrun, "TIERS", {"unit": tier})
    monkeypatch.setattr(sys, "argv", ["testrun", "unit"])
    monkeypatch.delenv("SKIP", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_some.py").write_text(TESTS)
    run_in(monkeypatch, tmp_path)
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
    (folder / "test_some.py").write_text(SKIPPED)
    assert testrun.main() == 1
    (folder / "test_some.py").write_text("")
    assert testrun.main() == 1


def test_a_process_that_dies_without_a_report_counts_as_a_failure(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_some.py").write_text("import os\n\ndef test_dies():\n    os._exit(0)\n")
    assert testrun.main() == 1
    assert capfd.readouterr().out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two folders whose tests run side by side."""
    found = [tmp_path / name for name in ("left", "right")]
    for folder in found:
        folder.mkdir()
        (folder / f"test_{folder.name}.py").write_text("def test_good():\n    pass\n")
    run_in(monkeypatch, *found)
    return found


def test_a_tier_of_two_processes_counts_the_tests_of_both(halves: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    assert testrun.main() == 0
    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_the_processes_of_a_tier_run_at_the_same_time(halves: list[Path]) -> None:
    for here, there in (halves, halves[::-1]):
        meets = f"""
import time
from pathlib import Path

def test_meets_the_other():
    Path({str(here)!r}, "here").touch()
    deadline = time.monotonic() + 60
    while not Path({str(there)!r}, "here").exists():
        assert time.monotonic() < deadline, "the other process did not come"
        time.sleep(0.05)
"""
        (here / f"test_{here.name}.py").write_text(meets)
    assert testrun.main() == 0


FAILS = "def test_bad():\n    assert 1 == 2\n"
DIES = "import os\n\ndef test_dies():\n    os._exit(0)\n"


@pytest.mark.parametrize(("number", "text"), [(0, FAILS), (1, FAILS), (1, DIES)], ids=["the first", "the second", "the second, by dying"])
def test_what_goes_wrong_in_either_process_is_the_tiers(
    halves: list[Path], capfd: pytest.CaptureFixture[str], number: int, text: str
) -> None:
    folder = halves[number]
    (folder / f"test_{folder.name}.py").write_text(text)
    assert testrun.main() == 1
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_a_process_may_hold_no_test_where_the_other_one_does(halves: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["testrun", "unit", "--pytest=-k", "--pytest=test_left"])
    assert testrun.main() == 0
    monkeypatch.setattr(sys, "argv", ["testrun", "unit", "--pytest=-k", "--pytest=test_nowhere"])
    assert testrun.main() == 1


def test_every_folder_of_tests_is_run_by_exactly_one_process_of_the_unit_tier() -> None:
    everything, training = testrun.TIERS["unit"]
    assert everything[0] == "tests"
    assert {part.removeprefix("--ignore=") for part in everything if part.startswith("--ignore=")} == set(testrun.STARTS_TRAINING)
    assert training[: len(testrun.STARTS_TRAINING)] == list(testrun.STARTS_TRAINING)
    assert all((testrun.ROOT / folder).is_dir() for folder in testrun.STARTS_TRAINING)
