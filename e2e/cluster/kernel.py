"""What the cluster changes in the one kernel that all nodes share: a few settings, and one control group per node. Both are put back.

Works on cgroup v1 and on v2. It was only ever run on v1.
"""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.settings import PREFIX, Node
from e2e.cluster.waiting import is_reached

CHANGED_BY_US = {"fs.inotify.max_user_instances": 1024}
"""Several kubelets and containerds need more watchers than the usual 128 of one user."""
CHANGED_BY_KUBELET = ("vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops")

_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


def save_and_change_settings(memory: Path) -> None:
    """Note the present settings in the file `memory`, then change ours. A file that is there already holds the true originals and stays."""
    if not memory.exists():
        memory.parent.mkdir(parents=True, exist_ok=True)
        originals = {name: _setting(name).read_text().strip() for name in (*CHANGED_BY_US, *CHANGED_BY_KUBELET)}
        temporary = memory.with_suffix(".tmp")
        temporary.write_text(json.dumps(originals))
        temporary.rename(memory)
    for name, least in CHANGED_BY_US.items():
        if int(_setting(name).read_text()) < least:
            _setting(name).write_text(str(least))


def restore_settings(memory: Path) -> None:
    """Put back what `save_and_change_settings` noted, and forget it. Does nothing without a note."""
    if memory.exists():
        for name, value in json.loads(memory.read_text()).items():
            _setting(name).write_text(value)
        memory.unlink()


def make_control_groups(node: Node) -> None:
    """Make the node's group in every hierarchy. The kubelet puts its pods under it, and what hangs there belongs to this node alone."""
    for root in _hierarchies():
        group = root / node.cgroup
        group.mkdir(exist_ok=True)
        for file in _CPUSET_FILES:
            # In v1 a new cpuset has no processor and no memory, and nothing can run in it.
            if (root / file).exists():
                (group / file).write_text((root / file).read_text())
        if (root / "cgroup.controllers").exists():
            # v2 hands a controller down only where it is asked to. Beside v1 there may be a v2 tree that has none.
            there = (root / "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{controller}" for controller in _V2_CONTROLLERS if controller in there)
            for directory in (root, group) if wanted else ():
                (directory / "cgroup.subtree_control").write_text(wanted)


def remove_control_groups(node: Node) -> None:
    """Remove the node's groups and all beneath, as a power cut does; the node's processes must be dead.

    A kubelet that finds a dead container's group retries it for 3 s before its node is Ready.
    Raises ClusterError if a group is still in use after 10 s: the kernel needs a moment to bury the last process.
    """
    trees = [root / node.cgroup for root in _hierarchies()]
    if not is_reached(lambda: not [tree for tree in trees if not _remove_tree(tree)], 10):
        raise ClusterError(f"control groups of {node.name} are still in use: {', '.join(str(tree) for tree in trees if tree.exists())}")


def find_control_groups() -> list[Path]:
    """Return the groups of all nodes of a test cluster that are there now."""
    return [group for root in _hierarchies() for group in root.glob(f"{PREFIX}-node*")]


def _hierarchies() -> list[Path]:
    """Return where v1 hierarchies and the v2 tree are mounted, each once."""
    found: dict[Path, None] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split(" ")
        if kind in ("cgroup", "cgroup2"):
            # cpu and cpuacct are often one hierarchy with links for names.
            found[Path(where).resolve()] = None
    return list(found)


def _remove_tree(tree: Path) -> bool:
    if not tree.exists():
        return True
    directories = [path for path in tree.rglob("*") if path.is_dir()]
    try:
        for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
            directory.rmdir()
        tree.rmdir()
    except OSError:
        # Still has a dying process; the caller asks again.
        return False
    return True


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")
