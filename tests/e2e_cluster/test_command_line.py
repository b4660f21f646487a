"""What a person may type, and what is said when it is wrong."""

from __future__ import annotations

import pytest
import yaml

from e2e.cluster import __main__ as command_line
from e2e.cluster import kind
from e2e.cluster.bare import BareCluster
from e2e.cluster.choice import choose_driver
from e2e.cluster.driver import ClusterDriver
from e2e.cluster.errors import ClusterError
from e2e.cluster.settings import MAX_NODES


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["up", "--nodes", "4"], {"command": "up", "nodes": 4}),
        (["up"], {"command": "up", "nodes": 3}),
        (["crash", "2"], {"command": "crash", "node": "node2"}),
        (["heal", "rtj-worker2"], {"command": "heal", "node": "rtj-worker2"}),
        (["exec", "1", "--", "ip", "-br", "link"], {"command": "exec", "node": "node1", "argv": ["ip", "-br", "link"]}),
        (["build", "kwok"], {"command": "build", "tools": ["kwok"]}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_means(argv: list[str], expected: dict[str, object]) -> None:
    assert vars(command_line.parse(argv)).items() >= expected.items()


@pytest.mark.parametrize("argv", [[], ["fly"], ["up", "--nodes", "many"], ["crash"]], ids=["nothing", "unknown", "no number", "no node"])
def test_a_mistyped_command_ends_with_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command_line.parse(argv)
    assert end.value.code == 2
    assert "usage: python -m e2e.cluster" in capsys.readouterr().err


def test_an_unknown_tool_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="unknown tool minikube: allowed are k8s, etcd, coredns, helm, kwok, gofakes3"):
        command_line.execute(command_line.parse(["build", "minikube"]))


@pytest.mark.parametrize("nodes", [0, MAX_NODES + 1])
def test_an_impossible_number_of_nodes_is_refused_before_anything_happens(nodes: int) -> None:
    with pytest.raises(ClusterError, match=f"allowed are 1 to {MAX_NODES}"):
        BareCluster().up(nodes)


@pytest.mark.parametrize(("wish", "expected"), [("bare", BareCluster), ("kind", kind.KindCluster)])
def test_the_users_wish_chooses_the_driver_and_is_named_as_the_reason(
    wish: str, expected: type[ClusterDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setenv("CLUSTER", wish)
    assert isinstance(choose_driver(said.append), expected)
    assert len(said) == 1
    assert f"(CLUSTER={wish})" in said[0]


def test_an_unknown_wish_is_refused_with_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER", "minikube")
    with pytest.raises(ClusterError, match="CLUSTER=minikube: allowed are bare and kind"):
        choose_driver()


def test_kind_is_asked_for_one_control_plane_and_as_many_workers_as_nodes() -> None:
    config = yaml.safe_load(kind.cluster_config(3))
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker", "worker"]
