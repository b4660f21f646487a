"""The test cluster on this machine alone: real kubelets and containerd, one set of Linux namespaces per node. Needs root, no Docker.

Nothing is kept in memory between calls: the state directory says all, so any process can crash a node that another one started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from e2e.cluster import dns, kernel, network, processes, requirements
from e2e.cluster.build import Programs, build, single_flight
from e2e.cluster.commands import remove_tree, run
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import Machine
from e2e.cluster.progress import Progress
from e2e.cluster.settings import MAX_NODES, PAUSE_ARCHIVE, Node, cache_directory, state_directory
from e2e.cluster.tools import CLUSTER_TOOLS
from e2e.cluster.waiting import wait_until
from e2e.images.pause import write_pause_image

READY_SECONDS: Final = 90
LOGS: Final = "logs"
NODES: Final = "nodes"


class BareCluster:
    """A `ClusterDriver`. There is at most one such cluster on a machine."""

    def __init__(self, state: Path | None = None) -> None:
        self._state = state or state_directory()

    def up(self, nodes: int) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise ClusterError(f"{nodes} nodes: allowed are 1 to {MAX_NODES}")
        requirements.refuse_unfit_machine()
        requirements.install(requirements.NODE_PACKAGES)
        programs = build(CLUSTER_TOOLS)
        with self._alone():
            if self.machines():
                print("removing the test cluster that is there", file=sys.stderr)
            self._remove(keep_logs=False)
            network.refuse_taken_addresses()
            try:
                with Progress(f"starting a cluster of {nodes} nodes in {self._state}") as progress:
                    self._make([Node(index) for index in range(1, nodes + 1)], programs, progress)
            except BaseException:
                self._remove(keep_logs=True)
                raise

    def down(self) -> None:
        requirements.refuse_unfit_machine()
        with self._alone():
            self._remove(keep_logs=True)

    def node_names(self) -> list[str]:
        return [machine.node.name for machine in self.machines()]

    def kubeconfig(self) -> Path:
        return self._plane().kubeconfig

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        return self._plane().kubectl(*arguments, stdin=stdin, seconds=seconds)

    def helm(self, *arguments: str, seconds: float = 120) -> str:
        helm = str(self._programs().path("helm"))
        return run(helm, *arguments, seconds=seconds, environment={"KUBECONFIG": str(self.kubeconfig())})

    def load_image(self, archive: Path, unpack: bool = True) -> None:
        if not archive.is_file():
            raise ClusterError(f"{archive}: no such file; expected an OCI archive")
        machines = [machine for machine in self.machines() if machine.is_on()]
        if not machines:
            raise ClusterError("no node is on to load an image into")
        _in_parallel(lambda machine: machine.import_image(archive.absolute(), unpack), machines)

    def crash(self, node: str) -> None:
        machine = self._machine(node)
        machine.cut_power()
        # What a power cut takes with it: the kernel's groups of this node. Nobody can see them but a later boot.
        kernel.remove_control_groups(machine.node)

    def reboot(self, node: str) -> None:
        machine = self._machine(node)
        if machine.is_on():
            self.crash(node)
        boot_id = self._boot_id(machine)
        network.renew(machine.node, [other.node for other in self.machines()])
        machine.power_on(self._programs())
        wait_until(
            lambda: self._boot_id(machine) != boot_id and self._is_ready(machine),
            f"{machine.node.name} to be Ready after its reboot",
            READY_SECONDS,
            machine.log_end,
        )

    def partition(self, node: str) -> None:
        network.unplug(self._machine(node).node)

    def heal(self, node: str) -> None:
        machine = self._machine(node)
        if machine.is_on():  # one without power says nothing with its cable in either; here the kernel would speak for it
            network.plug_in(machine.node)

    def stop_kubelet(self, node: str) -> None:
        self._machine(node).signal_program("kubelet", signal.SIGSTOP)

    def continue_kubelet(self, node: str) -> None:
        self._machine(node).signal_program("kubelet", signal.SIGCONT)

    def kill_kubelet(self, node: str) -> None:
        self._machine(node).signal_program("kubelet", signal.SIGKILL)

    def stop_apiserver(self) -> None:
        self._plane().stop_apiserver()

    def start_apiserver(self) -> None:
        self._plane().start_apiserver()

    def restart_apiserver(self) -> None:
        self._plane().restart_apiserver()

    def exec(self, node: str, argv: Sequence[str], seconds: float = 60) -> str:
        return self._machine(node).run(*argv, seconds=seconds)

    def become(self, node: str, argv: Sequence[str]) -> None:
        """Replace this process by a program on the node, with the caller's terminal."""
        self._machine(node).become(*argv)

    def machines(self) -> list[Machine]:
        """Return the cluster's machines, on or off, in order. Empty if no cluster is up."""
        return [machine for machine in self._possible_machines() if (machine.directory / "config").is_dir()]

    def status(self) -> str:
        """Return a few lines for people: what runs, what is cut off, and where the logs are."""
        machines = self.machines()
        if not machines:
            return f"no cluster is up (state directory {self._state})"
        plane = self._plane()
        lines = [
            f"API server {plane.server}: {'runs' if plane.is_running('kube-apiserver') else 'is stopped'}",
            f"kubeconfig {plane.kubeconfig}",
        ]
        for machine in machines:
            power = "on" if machine.is_on() else "off"
            cable = "plugged in" if network.is_plugged_in(machine.node) else "unplugged"
            lines.append(f"{machine.node.name} {machine.node.address}: {power}, {cable}, logs in {machine.directory / LOGS}")
        return "\n".join(lines)

    def leftovers(self) -> list[str]:
        """Return the name of everything of a cluster that is still on this machine: links, groups, mounts, processes, changed settings."""
        left = [*network.leftovers(), *map(str, kernel.find_control_groups())]
        left += [f"process {pid}: {command}" for pid, command in processes.find_naming(self._state)]
        left += [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if str(self._state) in line]
        if self._settings_memory.exists():
            left.append(str(self._settings_memory))
        return left

    def _make(self, nodes: list[Node], programs: Programs, progress: Progress) -> None:
        kernel.save_and_change_settings(self._settings_memory)
        network.up(nodes, self._state)
        progress.update("control plane")
        plane = ControlPlane.create_for_nodes(self._state, programs)
        plane.start()
        authority = plane.authority
        authority.kubeconfig("kube-proxy", plane.server, "system:kube-proxy")
        write_pause_image(self._state / PAUSE_ARCHIVE)
        progress.update("nodes")
        machines = [Machine(node, self._state / NODES / node.name) for node in nodes]
        for machine in machines:
            machine.prepare(authority, plane.server)
        _in_parallel(lambda machine: machine.power_on(programs), machines)
        dns.start(plane)
        for machine in machines:
            wait_until(
                functools.partial(self._is_ready, machine),
                f"{machine.node.name} to be Ready",
                READY_SECONDS,
                machine.log_end,
            )
        # Pods of a namespace are refused until the controllers have made its account.
        plane.kubectl("wait", "--for=create", "serviceaccount/default", f"--timeout={READY_SECONDS}s", seconds=READY_SECONDS + 10)

    def _remove(self, keep_logs: bool) -> None:
        network.refuse_foreign_cluster(self._state)
        _in_parallel(lambda machine: machine.remove(), self._possible_machines())
        records = list(self._state.glob(f"*{processes.RECORD_SUFFIX}"))
        processes.kill(records)
        network.down()
        kernel.restore_settings(self._settings_memory)
        if keep_logs:
            for path in self._state.iterdir() if self._state.exists() else ():
                if path.name not in (LOGS, NODES):
                    remove_tree(path)
        else:
            remove_tree(self._state)

    def _programs(self) -> Programs:
        return build(CLUSTER_TOOLS)

    def _plane(self) -> ControlPlane:
        return ControlPlane.load(self._state, self._programs())

    def _machine(self, name: str) -> Machine:
        machines = self.machines()
        for machine in machines:
            if machine.node.name == name:
                return machine
        names = ", ".join(machine.node.name for machine in machines)
        raise ClusterError(f"there is no node {name}: " + (f"there are {names}" if names else "no cluster is up"))

    def _possible_machines(self) -> list[Machine]:
        nodes = [Node(index) for index in range(1, MAX_NODES + 1)]
        return [Machine(node, self._state / NODES / node.name) for node in nodes]

    def _boot_id(self, machine: Machine) -> str:
        return self.kubectl("get", "node", machine.node.name, "--ignore-not-found", "--output=jsonpath={.status.nodeInfo.bootID}")

    def _is_ready(self, machine: Machine) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", machine.node.name, "--ignore-not-found", f"--output=jsonpath={path}") == "True"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with single_flight(self._lock, "change of the test cluster"):
            yield

    @property
    def _lock(self) -> Path:
        # Beside the state, not in it: it must outlive what it protects.
        return cache_directory() / "cluster.lock"

    @property
    def _settings_memory(self) -> Path:
        return self._state / "kernel-settings.json"


def _in_parallel(act: Callable[[Machine], None], machines: Iterable[Machine]) -> None:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        # Listing the results raises the first error.
        list(pool.map(act, machines))
