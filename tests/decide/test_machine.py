"""Random faults against a tiny cluster: whatever happens in whatever order, the invariants of the design hold and the job comes to rest."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rtj_operator.api.v1alpha1 import JobStatus
from rtj_operator.decide.observation import ContainerView, PodCondition, PodView
from rtj_operator.decide.plan import CreatePod, DeleteJob, DeletePod
from tests.decide.world import UID, World, evidence, record, spec_of
from trainer_runtime.contract.beat import Level, Phase
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.contract.exit_report import DamagedCheckpoint, ExitReport, Outcome

WORKERS = 3
MAX_STATUS_BYTES = 50_000
workers = st.integers(0, WORKERS - 1)
outcomes = st.sampled_from(list(Outcome))
exceptions = st.sampled_from(["ValueError: a", "KeyError: b", "DistBackendError: NCCL error", "torch.OutOfMemoryError: CUDA out of memory"])
FAULTS = [
    ("gpu_ecc_uncorrectable", Strength.NODE),
    ("gpu_ecc_contained", Strength.SUSPECT),
    ("nccl_timeout", Strength.VICTIM),
    ("user_error", Strength.APP),
    ("host_oom", Strength.APP),
]


class JobMachine(RuleBasedStateMachine):
    """One job; rules are what a cluster, a person or a worker may do."""

    @initialize(mode=st.sampled_from(["Cordon", "Avoid", "Observe", "Off"]), fresh=st.booleans())
    def begin(self, mode: str, fresh: bool) -> None:
        """A new job with small budgets."""
        recovery = {
            "nodeRemediation": mode,
            "budgets": {"application": 3, "infrastructure": 6, "preemption": 6, "hang": 3},
            "noProgressLimit": 4,
        }
        self.world = World(spec=spec_of(WORKERS, recovery=recovery, checkpoint={"store": "file:///checkpoints", "startFresh": fresh}))
        self.step = 0
        self.attempts = [0]
        self.final: JobStatus | None = None

    # the operator

    @rule()
    def one_pass(self) -> None:
        """The operator makes a pass and carries all of it out."""
        self._pass()

    @rule(keep=st.integers(0, 3))
    def killed_pass(self, keep: int) -> None:
        """The operator writes the status and is killed after some of the actions."""
        world, plan = self.world, self.world.plan()
        self._check_plan(plan.status, plan.actions)
        world.status = world.job.parse({"metadata": {}, "spec": world.spec, "status": plan.status.to_api()}).status
        world.records.clear()
        for action in plan.actions[:keep]:
            world._act(action)
        self._restart()

    @rule()
    def restart(self) -> None:
        """The operator is restarted: beats and listening time are gone."""
        self._restart()

    # time and people

    @rule(seconds=st.sampled_from([1, 5, 11, 31, 61, 125, 601, 1801]))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.world.after(seconds)

    @rule(on=st.booleans())
    def suspend(self, on: bool) -> None:
        """The user suspends or unsuspends."""
        self.world.spec["suspend"] = on

    @rule(worker=workers)
    def delete_pod(self, worker: int) -> None:
        """A person deletes a pod."""
        if pod := self._pod(worker):
            self.world.pods[pod.name] = replace(pod, deleting_since=pod.deleting_since or self.world.now)

    # the cluster

    @rule()
    def start(self) -> None:
        """The scheduler and the kubelets start what they can."""
        if any(view.is_ready and not view.unschedulable for view in self.world.nodes.values()):
            self.world.schedule()
        for pod in self.world.gang:
            if pod.node and pod.container is None and not pod.terminal and self.world.nodes[pod.node].is_ready:
                self.world.change_pod(pod.worker, phase="Running", container=ContainerView("running", started_at=self.world.now))

    @rule()
    def find_no_room(self) -> None:
        """The scheduler says of every pod without a node that it fits nowhere."""
        for pod in self.world.gang:
            if pod.node is None and not pod.conditions:
                self.world.change_pod(pod.worker, conditions=(PodCondition("PodScheduled", "False", "Unschedulable", at=self.world.now),))

    @rule(worker=workers)
    def creating(self, worker: int) -> None:
        """A container does not begin to run."""
        pod = self._pod(worker)
        if pod and pod.node and pod.container is None:
            self.world.change_pod(worker, container=ContainerView("waiting", "ContainerCreating"))

    @rule()
    def end_deleted(self) -> None:
        """The kubelets finish their deletions."""
        self.world.end_deleted()

    @rule(worker=workers)
    def lose_node(self, worker: int) -> None:
        """A node loses its power."""
        pod = self._pod(worker)
        if pod and pod.node:
            self.world.lose_node(pod.node)

    @rule()
    def heal_nodes(self) -> None:
        """All nodes come back; a person uncordons them."""
        for name, view in self.world.nodes.items():
            self.world.nodes[name] = replace(view, ready="True", unschedulable=False, conditions=(), annotations={})

    @rule(worker=workers, type_=st.sampled_from(["GpuMemWatch", "XIDErrors", "DiskPressure"]))
    def condition(self, worker: int, type_: str) -> None:
        """A node's agent sets a condition."""
        pod = self._pod(worker)
        if pod and pod.node and not any(c.type == type_ for c in self.world.nodes[pod.node].conditions):
            self.world.set_condition(pod.node, type_)

    @rule(worker=workers, reason=st.sampled_from(["ErrImagePull", "CreateContainerConfigError"]))
    def cannot_start(self, worker: int, reason: str) -> None:
        """A container cannot start."""
        pod = self._pod(worker)
        if pod and pod.node and pod.container is None:
            self.world.change_pod(worker, container=ContainerView("waiting", reason))

    @rule(worker=workers, reason=st.sampled_from(["PreemptionByScheduler", "DeletionByTaintManager"]))
    def disrupt(self, worker: int, reason: str) -> None:
        """The control plane takes a pod away."""
        pod = self._pod(worker)
        if pod and pod.node and not pod.terminal:
            target = PodCondition("DisruptionTarget", "True", reason, "", self.world.now)
            self.world.change_pod(worker, deleting_since=pod.deleting_since or self.world.now, conditions=(*pod.conditions, target))

    # workers

    @rule()
    def train(self) -> None:
        """Every running worker takes a step and beats."""
        self.step += 1
        for pod in self._running():
            self.world.beat(pod.worker, Phase.TRAIN, self.step)

    @rule()
    def starting(self) -> None:
        """Every running worker says that it still starts."""
        for pod in self._running():
            self.world.beat(pod.worker, Phase.START)

    @rule(level=st.sampled_from(list(Level)), behind=st.integers(0, 1))
    def checkpoint(self, level: Level, behind: int) -> None:
        """A worker of this or an older attempt reports a checkpoint."""
        attempt = self.world.status.attempt - behind
        if attempt > 0:
            self.world.records.append(record(self.step, attempt, level))

    @rule(worker=workers, fault=st.sampled_from(FAULTS))
    def evidence_in_beat(self, worker: int, fault: tuple[str, Strength]) -> None:
        """A running worker reports a fact."""
        if any(pod.worker == worker for pod in self._running()):
            fact = evidence(fault[0], fault[1], self.world.now, self.world.status.attempt)
            self.world.beat(worker, Phase.TRAIN, self.step, evidence=(fact,))

    @rule(uid=st.sampled_from(["uid-old", "uid-other"]))
    def another_job_ends(self, uid: str) -> None:
        """The operator sees another job's end."""
        self.world.ended_job_uids |= {uid}

    @rule(fence=st.integers(0, 3), uid=st.sampled_from([UID, "uid-old", "uid-other"]), quiet=st.sampled_from([None, -5.0, 30.0, 700.0]))
    def hold(self, fence: int, uid: str, quiet: float | None) -> None:
        """Worker 0 holds before its fence and tells what it sees."""
        if any(pod.worker == 0 for pod in self._running()):
            inventory = (record(self.step, max(1, self.world.status.attempt - 1)),) if self.step else ()
            self.world.beat(
                0,
                Phase.HOLD,
                inventory=inventory,
                highest_fence=fence or None,
                fence_job_uid=uid if fence else None,
                quiet_seconds=quiet if fence and uid != UID else None,
            )

    @rule(
        worker=workers, code=st.sampled_from([0, 1, 134, 137, 139, 143, 255]), reason=st.sampled_from(["Error", "OOMKilled", "Completed"])
    )
    def exit(self, worker: int, code: int, reason: str) -> None:
        """A container ends without a report."""
        if any(pod.worker == worker for pod in self._running()):
            self.world.exit(worker, code, reason=reason)

    @rule(worker=workers, outcome=outcomes)
    def report(self, worker: int, outcome: Outcome) -> None:
        """A container ends with a report."""
        if any(pod.worker == worker for pod in self._running()):
            damaged = DamagedCheckpoint(self.step, 1, "x", "f", "flipped") if outcome is Outcome.DAMAGED else None
            ended = ExitReport(self.world.status.attempt, worker, outcome, 1, checkpoint=damaged, highest_fence=2, fence_job_uid=UID)
            self.world.exit(worker, 0 if outcome is Outcome.DONE else 1, ended)

    @rule(worker=workers, exception=exceptions)
    def fail(self, worker: int, exception: str) -> None:
        """A rank raises."""
        if any(pod.worker == worker for pod in self._running()):
            self.world.fail(worker, exception, self.step)

    # what must hold

    @invariant()
    def restarts_stay_within_budget(self) -> None:
        """Every budget bounds its restarts; nothing is negative (the models refuse it)."""
        restarts = self.world.status.restarts
        assert restarts.application <= 3 and restarts.hang <= 3 and restarts.infrastructure <= 6 and restarts.preemption <= 6
        parts = restarts.application + restarts.hang + restarts.infrastructure + restarts.preemption + restarts.unknown
        assert restarts.total == parts

    @invariant()
    def a_status_stays_small(self) -> None:
        """Below 50 KB."""
        assert len(json.dumps(self.world.status.to_api())) < MAX_STATUS_BYTES

    @precondition(lambda self: self.final is not None)
    @invariant()
    def terminal_is_final(self) -> None:
        """Phase and ending never change again."""
        assert self.final is not None
        assert (self.world.status.phase, self.world.status.ending) == (self.final.phase, self.final.ending)

    def teardown(self) -> None:
        """Left alone by faults, the job comes to rest, and deciding at rest changes nothing."""
        if not hasattr(self, "world"):
            return
        self.heal_nodes()
        self.world.spec["suspend"] = False
        for _ in range(60):
            self._pass()
            self.world.end_deleted()
            self.world.after(11)
            self.start()
            for pod in self._running():
                if pod.deleting_since is None:
                    self.world.beat(pod.worker, Phase.TRAIN, self.step)
            if self.world.phase in ("Running", "Succeeded", "Failed"):
                break
            if self.world.status.next_launch_after is not None:
                self.world.now = max(self.world.now, self.world.status.next_launch_after)
        assert self.world.phase in ("Running", "Succeeded", "Failed"), self.world.status
        self._pass()
        self._pass()
        plan = self.world.plan()
        assert plan.status == self.world.status and plan == self.world.plan()
        assert plan.events == ()

    # inside

    def _pass(self) -> None:
        plan = self.world.plan()
        assert plan == self.world.plan(), "the same observation gives the same plan"
        self._check_plan(plan.status, plan.actions)
        before = self.world.status
        self.world.run_pass()
        if before.stopping_since is None and self.world.status.stopping_since is not None:
            assert not any(isinstance(action, CreatePod) for action in plan.actions)

    def _check_plan(self, status: JobStatus, actions: tuple[object, ...]) -> None:
        assert status.attempt >= self.attempts[-1], "the attempt never falls"
        if status.attempt != self.attempts[-1]:
            running = [pod for pod in self.world.pods.values() if not pod.terminal]
            assert running == [], "no attempt begins while a rank may run"
        self.attempts.append(status.attempt)
        creates = [action for action in actions if isinstance(action, CreatePod)]
        assert {action.gang for action in creates} <= {status.gang}, "only the present gang is created"
        if self.world.spec.get("suspend"):
            assert creates == [], "nothing is created while suspended"
        if status.phase.is_terminal:
            assert all(isinstance(action, (DeletePod, DeleteJob)) or not creates for action in actions)
            if self.final is None:
                assert all(pod.terminal for pod in self.world.pods.values()), "terminal only when nothing runs"
                self.final = status

    def _restart(self) -> None:
        self.world.beats.clear()
        self.world.senders = replace(self.world.senders, listening_since=self.world.now)

    def _pod(self, worker: int) -> PodView | None:
        return next((pod for pod in self.world.gang if pod.worker == worker), None)

    def _running(self) -> list[PodView]:
        return [
            pod
            for pod in self.world.gang
            if pod.container is not None and pod.container.state == "running" and pod.node and self.world.nodes[pod.node].is_ready
        ]


JobMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=timedelta(seconds=30), suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
TestJobMachine = JobMachine.TestCase
