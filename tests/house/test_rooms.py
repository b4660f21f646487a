"""The house itself: import directions are held by import-linter, and a planted wrong import really fails it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTED = [
    pytest.param("operator/rtj_operator/decide/plan.py", "import asyncio", id="a decision that could wait"),
    pytest.param("operator/rtj_operator/decide/plan.py", "import rtj_operator.cluster", id="a decision that sees the cluster"),
    pytest.param("operator/rtj_operator/api/__init__.py", "import torch", id="an operator that loads torch"),
    pytest.param("operator/rtj_operator/build/__init__.py", "import trainer_runtime.checkpoint", id="an operator that knows the engine"),
    pytest.param("trainer_runtime/contract/layout.py", "import trainer_runtime.errors", id="a contract that looks up"),
    pytest.param("trainer_runtime/run.py", "import kubernetes", id="a runtime that knows Kubernetes"),
    pytest.param("trainer_runtime/store/__init__.py", "import trainer_runtime.channel", id="siblings that see each other"),
    pytest.param(
        "trainer_runtime/checkpoint/staging/stage.py", "import trainer_runtime.checkpoint.reading", id="a stage that reads checkpoints"
    ),
]


@pytest.fixture(scope="module")
def copy_of_the_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    house = tmp_path_factory.mktemp("house")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "operator", house / "operator", ignore=ignore)
    shutil.copytree(ROOT / "trainer_runtime", house / "trainer_runtime", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", house)
    return house


def lint_imports(house: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{house / 'operator'}:{house}", "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([linter, "--no-cache"], cwd=house, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_house_as_it_stands_keeps_its_import_directions(copy_of_the_house: Path) -> None:
    result = lint_imports(copy_of_the_house)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("module", "statement"), PLANTED)
def test_a_planted_wrong_import_fails_the_check(copy_of_the_house: Path, module: str, statement: str) -> None:
    path = copy_of_the_house / module
    original = path.read_text()
    path.write_text(f"{original}\n{statement}\n")
    try:
        result = lint_imports(copy_of_the_house)
    finally:
        path.write_text(original)
    assert result.returncode != 0
    assert "BROKEN" in result.stdout, result.stdout


def loaded_modules(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import trainer_runtime",
        "import trainer_runtime.contract.beat, trainer_runtime.contract.manifest, trainer_runtime.contract.layout",
        "import trainer_runtime.signals",
        "import trainer_runtime.heartbeat",
        "import rtj_operator.app",
    ],
)
def test_importing_what_must_stay_light_loads_no_torch(statement: str) -> None:
    assert "torch" not in loaded_modules(statement)


def test_the_operator_folder_does_not_shadow_the_standard_library() -> None:
    code = "import operator; print(operator.__file__, operator.itemgetter(0)('x'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert str(ROOT) not in done.stdout
    assert not list((ROOT / "operator").glob("*.py"))
