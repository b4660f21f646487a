"""A build's key changes with everything that changes the programs, so a cached one is never wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.cluster import tools
from e2e.cluster.tools import ALL_TOOLS, COREDNS, HELM, KUBERNETES, Tool

GO = "go version go1.26.8 linux/amd64"


@pytest.fixture
def coredns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """The tool with a copy of its module that a test may change."""
    shutil.copytree(COREDNS.directory, tmp_path / COREDNS.name)
    monkeypatch.setattr(tools, "SOURCES", tmp_path)
    return COREDNS


@pytest.mark.parametrize("tool", ALL_TOOLS, ids=lambda tool: tool.name)
def test_every_tool_has_a_module_with_its_sums(tool: Tool) -> None:
    assert (tool.directory / "go.mod").is_file()
    assert (tool.directory / "go.sum").is_file()


def test_the_same_module_has_the_same_key_wherever_it_lies(coredns: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = coredns.key(GO)
    monkeypatch.undo()
    assert COREDNS.key(GO) == moved


@pytest.mark.parametrize("file", ["go.mod", "go.sum", "main.go"])
def test_a_changed_file_changes_the_key(coredns: Tool, file: str) -> None:
    before = coredns.key(GO)
    with (coredns.directory / file).open("a") as changed:
        changed.write("// changed\n")
    assert coredns.key(GO) != before


def test_another_go_and_another_set_of_programs_change_the_key() -> None:
    fewer = Tool(KUBERNETES.name, {"kubelet": KUBERNETES.packages["kubelet"]})
    assert len({KUBERNETES.key(GO), KUBERNETES.key("go version go1.27.0 linux/amd64"), fewer.key(GO)}) == 3


@pytest.mark.parametrize(
    ("tool", "flag"),
    [
        pytest.param(KUBERNETES, "-X k8s.io/component-base/version.gitVersion=v1.36.3", id="kubernetes"),
        pytest.param(HELM, "-X helm.sh/helm/v3/internal/version.version=v3.22.0", id="helm"),
        pytest.param(COREDNS, "-s -w", id="coredns"),
    ],
)
def test_a_program_reports_the_version_that_its_module_requires(tool: Tool, flag: str) -> None:
    assert flag in tool.linker_flags()
