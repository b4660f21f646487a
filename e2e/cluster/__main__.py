"""The test cluster on the command line: `python -m e2e.cluster --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import tools
from e2e.cluster.bare import BareCluster
from e2e.cluster.build import build
from e2e.cluster.choice import choose_driver
from e2e.cluster.driver import ClusterDriver
from e2e.cluster.errors import ClusterError

NODE_COMMANDS: dict[str, tuple[str, Callable[[ClusterDriver, str], None]]] = {
    "crash": ("cut a node's power", lambda cluster, node: cluster.crash(node)),
    "reboot": ("start a node again on its disk", lambda cluster, node: cluster.reboot(node)),
    "partition": ("pull a node's network cable", lambda cluster, node: cluster.partition(node)),
    "heal": ("put a node's network cable back", lambda cluster, node: cluster.heal(node)),
    "stop-kubelet": ("freeze a node's kubelet", lambda cluster, node: cluster.stop_kubelet(node)),
    "continue-kubelet": ("let a frozen kubelet go on", lambda cluster, node: cluster.continue_kubelet(node)),
    "kill-kubelet": ("kill a node's kubelet; it comes back a second later", lambda cluster, node: cluster.kill_kubelet(node)),
}
NODE_HELP = "the node's number, or its name"
CLUSTER_COMMANDS: dict[str, tuple[str, Callable[[ClusterDriver], None]]] = {
    "down": ("remove the cluster and all that it changed", lambda cluster: cluster.down()),
    "stop-apiserver": ("stop the API server", lambda cluster: cluster.stop_apiserver()),
    "start-apiserver": ("start the API server", lambda cluster: cluster.start_apiserver()),
    "restart-apiserver": ("stop and start the API server", lambda cluster: cluster.restart_apiserver()),
}


def node_name(text: str) -> str:
    """Return the name that N stands for: 2 is node2, anything else is a name already."""
    return f"node{text}" if text.isdecimal() else text


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line; a mistake ends the program with one line and the usage."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster", description="A throw-away Kubernetes with real nodes that can be made to fail."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a new cluster, removing an earlier one")
    up.add_argument("--nodes", type=int, default=3, help="how many nodes (default 3)")
    for name, (text, _) in CLUSTER_COMMANDS.items():
        commands.add_parser(name, help=text)
    for name, (text, _) in NODE_COMMANDS.items():
        commands.add_parser(name, help=text).add_argument("node", type=node_name, metavar="N", help=NODE_HELP)
    load = commands.add_parser("load-image", help="put an OCI archive's images on all nodes")
    load.add_argument("archive", type=Path, metavar="FILE")
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    commands.add_parser("status", help="say what runs")
    execute = commands.add_parser("exec", help="run a program on a node: exec N -- PROGRAM ARGUMENT...")
    execute.add_argument("node", type=node_name, metavar="N", help=NODE_HELP)
    execute.add_argument("argv", nargs="+", metavar="PROGRAM")
    built = commands.add_parser("build", help="build programs into the cache and print where they are")
    built.add_argument(
        "tools", nargs="*", metavar="TOOL", help=f"of {', '.join(tool.name for tool in tools.ALL_TOOLS)} (default: the cluster's)"
    )
    return parser.parse_args(argv)


def execute(arguments: argparse.Namespace) -> None:
    """Do what the command line asks. Raises ClusterError."""
    if arguments.command == "build":
        _build(arguments.tools)
        return
    # Only `up` says which kind of cluster it chose: the output of the others is for scripts too.
    cluster = choose_driver(None if arguments.command == "up" else lambda line: None)
    if arguments.command == "up":
        cluster.up(arguments.nodes)
        print(f"export KUBECONFIG={cluster.kubeconfig()}")
    elif arguments.command == "load-image":
        cluster.load_image(arguments.archive)
    elif arguments.command == "kubeconfig":
        print(cluster.kubeconfig())
    elif arguments.command == "status":
        print(cluster.status() if isinstance(cluster, BareCluster) else cluster.kubectl("get", "nodes"))
    elif arguments.command == "exec":
        if isinstance(cluster, BareCluster):
            cluster.become(arguments.node, arguments.argv)
        print(cluster.exec(arguments.node, arguments.argv), end="")
    elif arguments.command in CLUSTER_COMMANDS:
        CLUSTER_COMMANDS[arguments.command][1](cluster)
    else:
        NODE_COMMANDS[arguments.command][1](cluster, arguments.node)


def _build(names: list[str]) -> None:
    known = {tool.name: tool for tool in tools.ALL_TOOLS}
    if unknown := [name for name in names if name not in known]:
        raise ClusterError(f"unknown tool {unknown[0]}: allowed are {', '.join(known)}")
    programs = build([known[name] for name in names] or tools.CLUSTER_TOOLS)
    for directory in programs.directories.values():
        print(directory)


def main() -> None:
    """Run one command; an error is one message and exit code 1."""
    try:
        execute(parse(sys.argv[1:]))
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
