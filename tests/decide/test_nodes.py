"""Nodes: which conditions speak of a bad machine, and what may be done about one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import NodeRemediation
from rtj_operator.decide.node_conditions import CONDITION_RULES, bad_conditions
from rtj_operator.decide.node_policy import breaker_obstacle, effective_mode, matching, others_at_work
from rtj_operator.decide.observation import NodeCondition, NodeRefusal, NodeView, Taint
from rtj_operator.decide.plan import CordonNode, ReleaseNode, StrikeNode
from rtj_operator.decide.policy import Policy
from tests.decide.world import SETTINGS, START, World, evidence, node, spec_of
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.contract.exit_report import ExitReport, Outcome


def conditions(*items: tuple[str, str, str, str]) -> NodeView:
    """A node with these (type, status, reason, message)."""
    return replace(node("n", START), conditions=tuple(NodeCondition(*item) for item in items))


@pytest.mark.parametrize(
    ("type_", "status", "reason", "expected"),
    [
        pytest.param("KernelDeadlock", "True", "", ("kernel_deadlock", "NODE"), id="node-problem-detector says True is bad"),
        pytest.param("AcceleratedHardwareReady", "False", "", ("gpu_reset_required", "NODE"), id="EKS says False is bad"),
        pytest.param("AcceleratedHardwareReady", "True", "", None, id="EKS True is good"),
        pytest.param("GpuMemWatch", "Unknown", "", None, id="an agent that is silent says nothing"),
        pytest.param("GpuMemWatch", "True", "", ("gpu_ecc_uncorrectable", "NODE"), id="NVSentinel"),
        pytest.param("XIDErrors", "True", "", ("gpu_hang", "SUSPECT"), id="AKS reports any Xid"),
        pytest.param("XIDErrors", "True", "NvidiaXID79Error", ("gpu_fallen_off", "NODE"), id="the Xid in the reason decides"),
        pytest.param("XIDErrors", "True", "NvidiaXID13Error", ("gpu_hang", "SUSPECT"), id="a program's Xid condemns no machine"),
        pytest.param("MemoryPressure", "True", "", ("evicted", "ENV"), id="pressure"),
        pytest.param("SomethingElse", "True", "", None, id="an unknown type"),
    ],
)
def test_a_condition_is_read_by_its_own_polarity(type_: str, status: str, reason: str, expected: tuple[str, str] | None) -> None:
    found = bad_conditions(conditions((type_, status, reason, "")), CONDITION_RULES)
    assert [(bad.fault_class, bad.strength.value) for bad in found] == ([expected] if expected else [])


def test_no_type_is_in_the_table_twice() -> None:
    types = [rule.type for rule in CONDITION_RULES]
    assert len(types) == len(set(types))


@pytest.mark.parametrize(
    ("wish", "bound", "rights", "mode"),
    [
        ("Cordon", "Cordon", True, "Cordon"),
        ("Cordon", "Cordon", False, "Avoid"),
        ("Cordon", "Avoid", True, "Avoid"),
        ("Avoid", "Cordon", True, "Avoid"),
        ("Cordon", "Off", True, "Off"),
        ("Observe", "Avoid", True, "Observe"),
    ],
)
def test_the_jobs_wish_is_bounded_by_the_operator_and_its_rights(wish: str, bound: str, rights: bool, mode: str) -> None:
    assert effective_mode(NodeRemediation(wish), Policy(node_remediation=bound), rights).value == mode


def faulty(world: World, worker: int = 1) -> str:
    """Let a worker end with ECC evidence; return its node."""
    fact = evidence("gpu_ecc_uncorrectable", Strength.NODE, world.now, world.status.attempt, "Xid 95")
    world.exit(worker, 1, ExitReport(world.status.attempt, worker, Outcome.FAILED, 1, evidence=(fact,)))
    return world.pod(worker).node or ""


def recover(world: World) -> None:
    """Let the gang end and the next one come."""
    world.settle()
    world.end_deleted()
    world.settle()


CORDON_CASES = [
    pytest.param({}, {}, "exclude and cordon", id="strong evidence cordons"),
    pytest.param({"labels": {keys.EXCLUDE_FROM_REMEDIATION: "true"}}, {}, "no cordon: label", id="a node with the opt-out label"),
    pytest.param({"labels": {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}}, {}, "another remediator", id="NVSentinel is at work"),
    pytest.param({"taints": (Taint("karpenter.sh/disrupted", "NoSchedule"),)}, {}, "another remediator", id="Karpenter is at work"),
    pytest.param({"annotations": {keys.CORDONED_BY: "other"}}, {}, "a person uncordoned it", id="a person uncordoned it"),
    pytest.param({}, {"node_rights": False}, "no node rights", id="an operator without node rights"),
    pytest.param(
        {}, {"settings": replace(SETTINGS, trusted_namespaces=("prod",))}, "not trusted", id="a pod's word in an untrusted namespace"
    ),
    pytest.param(
        {}, {"settings": replace(SETTINGS, node_remediation="Avoid")}, "nodeRemediation is Avoid", id="an operator that only avoids"
    ),
]


@pytest.mark.parametrize(("node_fields", "world_fields", "said"), CORDON_CASES)
def test_a_cordon_happens_only_when_nothing_forbids_it_and_says_what_does(
    node_fields: dict[str, Any], world_fields: dict[str, Any], said: str
) -> None:
    world = World(**world_fields).launch()
    name = world.pod(1).node or ""
    world.nodes[name] = replace(world.nodes[name], **node_fields)
    faulty(world)
    recover(world)
    failure = world.status.last_failure
    assert failure is not None and said in failure.node_action
    assert world.nodes[name].unschedulable is (said == "exclude and cordon")
    assert [entry.node for entry in world.status.excluded_nodes] == [name]


@pytest.mark.parametrize("mode", ["Off", "Observe"])
def test_off_and_observe_touch_no_node_and_observe_says_what_it_would_do(mode: str) -> None:
    world = World(spec=spec_of(recovery={"nodeRemediation": mode})).launch()
    name = faulty(world)
    recover(world)
    failure = world.status.last_failure
    assert failure is not None and world.status.excluded_nodes == () and not world.nodes[name].unschedulable
    assert failure.node_action == (
        f"would exclude and cordon {name}: nodeRemediation is Observe" if mode == "Observe" else "nothing: nodeRemediation is Off"
    )


def test_a_standing_condition_does_not_move_the_job_again_and_again_when_the_node_stays() -> None:
    world = World(spec=spec_of(recovery={"nodeRemediation": "Off"})).launch()
    world.set_condition(world.pod(1).node or "", "GpuMemWatch")
    recover(world)
    world.after(1).launch()
    assert (world.status.attempt, world.status.restarts.infrastructure) == (2, 1)


def test_a_node_that_somebody_else_cordoned_gets_a_strike_once() -> None:
    world = World().launch()
    name = world.pod(1).node or ""
    world.nodes[name] = replace(world.nodes[name], unschedulable=True)
    faulty(world)
    plan = world.run_pass()
    assert [type(action) for action in plan.actions if isinstance(action, (StrikeNode, CordonNode))] == [StrikeNode]
    recover(world)
    assert keys.STRIKES in world.nodes[name].annotations and not world.status.excluded_nodes[0].cordoned


def test_a_cordon_that_was_not_written_is_planned_again_until_it_is() -> None:
    world = World().launch()
    faulty(world)
    world.status = world.plan().status
    assert any(isinstance(action, CordonNode) for action in world.plan().actions)
    world.run_pass()
    assert not any(isinstance(action, CordonNode) for action in world.plan().actions)


@pytest.mark.parametrize(
    ("fault_class", "strength", "done"),
    [("gpu_ecc_uncorrectable", Strength.NODE, "unschedulable"), ("gpu_ecc_contained", Strength.SUSPECT, keys.STRIKES)],
    ids=["cordon", "strike"],
)
def test_a_node_that_may_not_be_written_is_told_once_with_its_name_and_the_job_moves_and_the_write_comes_later(
    fault_class: str, strength: Strength, done: str
) -> None:
    def is_written() -> bool:
        return world.nodes[name].unschedulable if done == "unschedulable" else done in world.nodes[name].annotations

    world = World().launch()
    fact = evidence(fault_class, strength, world.now, 1)
    name = world.pod(1).node or ""
    world.exit(1, 1, ExitReport(1, 1, Outcome.FAILED, 1, evidence=(fact,)))
    world.node_refusals = {name: NodeRefusal(name, "ask the platform team first", world.now)}
    recover(world)
    world.launch()
    assert (world.status.attempt, [entry.node for entry in world.status.excluded_nodes]) == (2, [name])
    assert world.condition("NodeRemediation") == ("False", "NodeWriteRefused")
    for _ in range(5):
        world.after(60)
        world.settle()
    told = [event for event in world.events if event.reason == "NodeWriteRefused"]
    assert [(event.warning, event.message) for event in told] == [(True, f"node {name} could not be written: ask the platform team first")]
    assert not is_written()
    world.node_refusals = {}
    world.settle()
    assert is_written()
    assert world.condition("NodeRemediation") == ("True", "Enabled")


def test_a_refused_write_of_a_node_that_the_jobs_incident_is_not_about_is_not_told() -> None:
    world = World().launch()
    world.node_refusals = {"n5": NodeRefusal("n5", "ask first", world.now)}
    faulty(world)
    recover(world)
    assert world.condition("NodeRemediation") == ("True", "Enabled")


def test_a_person_who_uncordons_is_not_contradicted() -> None:
    world = World().launch()
    name = faulty(world)
    recover(world)
    world.nodes[name] = replace(world.nodes[name], unschedulable=False)
    world.settle()
    assert not world.nodes[name].unschedulable
    assert world.told()[-1] == "NodeUncordoned"


def test_a_suspicious_machine_is_excluded_and_struck_but_never_cordoned() -> None:
    world = World().launch()
    fact = evidence("gpu_ecc_contained", Strength.SUSPECT, world.now, 1, "Xid 94")
    world.exit(1, 1, ExitReport(1, 1, Outcome.FAILED, 1, evidence=(fact,)))
    name = world.pod(1).node or ""
    recover(world)
    failure = world.status.last_failure
    assert failure is not None and failure.row == "7"
    assert keys.STRIKES in world.nodes[name].annotations and not world.nodes[name].unschedulable


def cordoned(count: int, total: int, minutes_ago: float) -> dict[str, NodeView]:
    """``total`` nodes of which ``count`` carry our cordon since so long."""
    at = (START - timedelta(minutes=minutes_ago)).isoformat()
    marks = {keys.CORDONED_BY: "default/other/uid", keys.CORDONED_TIME: at}
    return {f"n{i}": node(f"n{i}", START, **({"unschedulable": True, "annotations": marks} if i < count else {})) for i in range(total)}


@pytest.mark.parametrize(
    ("nodes", "trips"),
    [
        pytest.param(cordoned(0, 3, 1), False, id="the first of three"),
        pytest.param(cordoned(1, 3, 1), True, id="a second one within ten minutes in a small cluster"),
        pytest.param(cordoned(1, 3, 11), False, id="a second one after ten minutes"),
        pytest.param(cordoned(2, 3, 60), True, id="a third standing one in a small cluster"),
        pytest.param(cordoned(4, 100, 1), False, id="five of a hundred within ten minutes"),
        pytest.param(cordoned(5, 100, 1), True, id="a sixth of a hundred within ten minutes"),
        pytest.param(cordoned(19, 100, 60), False, id="a twentieth standing of a hundred"),
        pytest.param(cordoned(20, 100, 60), True, id="more than a fifth standing"),
    ],
)
def test_the_breaker(nodes: dict[str, NodeView], trips: bool) -> None:
    spec = World().job.spec
    assert spec is not None and bool(breaker_obstacle(spec, nodes, START, Policy())) is trips


def test_a_tripped_breaker_is_said_and_the_job_still_moves() -> None:
    world = World(nodes={**cordoned(1, 6, 1)}).launch()
    name = faulty(world)
    recover(world)
    assert not world.nodes[name].unschedulable and world.status.attempt == 2
    assert world.condition("NodeRemediation") == ("False", "BreakerTripped")
    assert world.told().count("CordonBreakerTripped") == 1


def test_exclusions_end_after_a_day() -> None:
    world = World().launch()
    faulty(world)
    recover(world)
    world.launch()
    world.after(24 * 3600).train(9)
    world.settle()
    assert world.status.excluded_nodes == ()


def test_at_most_a_quarter_of_the_ready_nodes_and_two_at_least_are_excluded() -> None:
    world = World(nodes={f"n{i}": node(f"n{i}", START) for i in range(12)}).launch()
    for _ in range(5):
        faulty(world)
        recover(world)
        world.launch()
        world.after(1)
    assert len(world.status.excluded_nodes) == 3
    assert [entry.incident for entry in world.status.excluded_nodes] == [3, 4, 5]


def test_a_hyperpod_node_that_is_not_schedulable_is_somebody_elses() -> None:
    label = "sagemaker.amazonaws.com/node-health-status"
    assert others_at_work(node("n", START, labels={label: "UnschedulablePendingReboot"})) == label
    assert others_at_work(node("n", START, labels={label: "Schedulable"})) is None


def gpu_world(gpu_nodes: int, others: int) -> World:
    """A job that needs GPUs in a cluster whose other nodes have none."""
    world = World(nodes={f"n{i}": node(f"n{i}", START, gpus=8 if i < gpu_nodes else 0) for i in range(gpu_nodes + others)})
    world.spec["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    return world


def test_limits_are_shares_of_the_nodes_that_the_job_can_run_on() -> None:
    world = gpu_world(gpu_nodes=10, others=90)
    spec = world.job.spec
    assert spec is not None
    assert breaker_obstacle(spec, world.nodes, START, Policy()) == ""
    ours = {keys.CORDONED_BY: "a/b/c", keys.CORDONED_TIME: START.isoformat()}
    world.nodes["n0"] = replace(world.nodes["n0"], unschedulable=True, annotations=ours)
    assert breaker_obstacle(spec, world.nodes, START, Policy()) == "breaker: 1 of 1 cordons in 600 s"


@pytest.mark.parametrize(
    ("selector", "matches"),
    [({}, 4), ({"pool": "a"}, 2), ({"pool": "b"}, 0), ("not an object", 4)],
    ids=["no selector", "one pool", "a pool that is not there", "nonsense that the API server refuses later"],
)
def test_nodes_match_by_selector_and_gpus(selector: object, matches: int) -> None:
    world = gpu_world(gpu_nodes=4, others=2)
    world.spec["template"]["spec"]["nodeSelector"] = selector
    for name in ("n0", "n1", "n5"):
        world.nodes[name] = replace(world.nodes[name], labels={"pool": "a"})
    spec = world.job.spec
    assert spec is not None and len(matching(spec, world.nodes)) == matches


@pytest.mark.parametrize(("hours", "is_cordoned"), [(23, False), (25, True)], ids=["within a day", "after it"])
def test_a_persons_uncordon_holds_us_off_for_a_day_and_not_for_ever(hours: int, is_cordoned: bool) -> None:
    world = World(nodes={f"n{i}": node(f"n{i}", START) for i in range(6)}).launch()
    name = faulty(world)
    world.settle()
    assert world.nodes[name].unschedulable
    recover(world)
    world.nodes[name] = replace(world.nodes[name], unschedulable=False, conditions=())
    world.settle()
    assert keys.CORDONED_BY not in world.nodes[name].annotations and keys.RELEASED_TIME in world.nodes[name].annotations
    world.after(hours * 3600)
    other = World(nodes=world.nodes, now=world.now, senders=replace(world.senders, listening_since=world.now - timedelta(hours=1))).launch()
    place = next(pod.worker for pod in other.gang if pod.node == name)
    faulty(other, place)
    other.settle()
    assert other.nodes[name].unschedulable is is_cordoned


def later_job(world: World, **fields: Any) -> World:
    """Another job on the nodes as this one left them, at the same time."""
    listening = replace(world.senders, listening_since=world.now - timedelta(hours=1))
    return World(nodes=world.nodes, now=world.now, senders=listening, **fields)


def uncordon(world: World, name: str) -> None:
    """A person brings a repaired node back."""
    world.nodes[name] = replace(world.nodes[name], unschedulable=False, conditions=())


def carries_marks(view: NodeView) -> bool:
    """Whether a Node says that its cordon is ours."""
    return keys.CORDONED_BY in view.annotations


def the_same_job_remembers(world: World, name: str) -> World:
    """The repair took an hour."""
    world.after(3600)
    uncordon(world, name)
    return world


def the_exclusion_ran_out(world: World, name: str) -> World:
    """The repair took longer than a day, and another node failed the job meanwhile."""
    world.after(25 * 3600).train(9)
    world.settle()
    faulty(world, 2)
    recover(world)
    world.launch()
    assert name not in {entry.node for entry in world.status.excluded_nodes}
    uncordon(world, name)
    return world


def the_job_is_gone(world: World, name: str) -> World:
    """The repair outlived the job; another one runs now."""
    world.after(50 * 3600)
    uncordon(world, name)
    return later_job(world).launch()


@pytest.mark.parametrize("repair", [the_same_job_remembers, the_exclusion_ran_out, the_job_is_gone])
def test_our_marks_do_not_outlive_a_persons_uncordon_and_a_day_later_the_node_is_cordoned_as_any_other(
    repair: Callable[[World, str], World],
) -> None:
    world = World().launch()
    name = faulty(world)
    recover(world)
    world.launch()
    assert carries_marks(world.nodes[name])
    world = repair(world, name)
    world.settle()
    assert not carries_marks(world.nodes[name]) and keys.RELEASED_TIME in world.nodes[name].annotations
    world.after(25 * 3600)
    other = later_job(world).launch()
    faulty(other, next(pod.worker for pod in other.gang if pod.node == name))
    other.settle()
    assert other.nodes[name].unschedulable


@pytest.mark.parametrize(
    ("node_fields", "job_fields"),
    [
        pytest.param({"unschedulable": True}, {}, id="a node whose cordon stands"),
        pytest.param({"labels": {keys.EXCLUDE_FROM_REMEDIATION: "true"}}, {}, id="a node with the opt-out label"),
        pytest.param({}, {"spec": spec_of(recovery={"nodeRemediation": "Avoid"})}, id="a job that cordons nothing"),
        pytest.param({}, {"settings": replace(SETTINGS, node_remediation="Observe")}, id="an operator that only observes"),
        pytest.param({}, {"node_rights": False}, id="an operator without node rights"),
    ],
)
def test_marks_stay_on(node_fields: dict[str, Any], job_fields: dict[str, Any]) -> None:
    world = World(**job_fields)
    world.nodes["n5"] = replace(world.nodes["n5"], annotations={keys.CORDONED_BY: "default/other/uid"}, **node_fields)
    world.launch()
    assert carries_marks(world.nodes["n5"])


def test_several_jobs_may_release_the_same_node() -> None:
    world = World().launch()
    world.nodes["n5"] = replace(world.nodes["n5"], annotations={keys.CORDONED_BY: "default/other/uid"})
    second = later_job(world)
    planned = [action for one in (world, second) for action in one.plan().actions if isinstance(action, ReleaseNode)]
    assert [action.node for action in planned] == ["n5", "n5"]
    world.settle()
    assert not any(isinstance(action, ReleaseNode) for one in (world, second) for action in one.plan().actions)
