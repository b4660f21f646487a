"""rtj-run and an operator's heartbeat server: what is beaten, and what each answer does."""

from __future__ import annotations

import dataclasses
import json
import signal

import pytest

from tests.heartbeat_sender.beat_server import BeatServer, Respond
from tests.launch.harness import Launcher, Running, free_port
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import ArchiveLook, Beat, CheckpointRecord, Directive, Level, Phase, Reply, SaveFailure
from trainer_runtime.contract.exit_report import Outcome

RECORD = CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.VERIFIED)


def assign(attempt: int = 3, procs: int = 1, workers: int = 1, worker: int = 0, port: int | None = None) -> Assignment:
    return Assignment(attempt, worker, workers, procs, "127.0.0.1", port or free_port(), f"job-uid-{attempt}")


def start(launcher: Launcher, operator: BeatServer, script: str, assignment: Assignment, channel: bool = True) -> Running:
    return launcher.start(script, environ=operator.environ, assignment=assignment, channel=channel)


def answer_phase(phase: Phase, directive: Directive) -> Respond:
    """Return a respond function: ``directive`` to a beat of ``phase``, continue to every other."""

    def respond(beat: Beat) -> Reply:
        return Reply(directive if beat.phase is phase else Directive.CONTINUE, 1.0)

    return respond


def test_a_finished_worker_is_heard_done_and_leaves_with_0(launcher: Launcher, operator: BeatServer) -> None:
    run = start(
        launcher,
        operator,
        """
        client.send(Recorded(CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.VERIFIED)))
        client.send(Ending(rank, Outcome.DONE))
        """,
        assign(procs=2),
    )
    assert run.wait() == 0
    last = operator.beats[-1]
    assert (last.phase, last.attempt, last.failure, last.records[-1]) == (Phase.DONE, 3, None, RECORD)
    assert (run.report.outcome, run.report.attempt) == (Outcome.DONE, 3)


def test_a_failed_worker_beats_its_report_until_it_is_told_to_stop(launcher: Launcher, operator: BeatServer) -> None:
    run = start(launcher, operator, "raise ValueError('bad batch')", assign(procs=2))
    beats = operator.wait_for(lambda beats: sum(beat.phase is Phase.STOPPED for beat in beats) >= 2, "two beats of a stopped worker", 60)
    failure = beats[-1].failure
    assert failure is not None
    assert failure.first_failure is not None
    assert failure.first_failure.exception == "ValueError: bad batch"
    assert run.process.poll() is None
    operator.respond = answer_phase(Phase.STOPPED, Directive.STOP)
    assert run.wait() == 1
    assert run.report == failure


def test_sigterm_after_a_failure_leaves_at_once_with_the_failed_ranks_code(launcher: Launcher, operator: BeatServer) -> None:
    run = start(launcher, operator, "sys.exit(42)", assign())
    operator.wait_for(lambda beats: beats[-1:] != [] and beats[-1].phase is Phase.STOPPED, "a beat of a stopped worker", 60)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(10) == 42
    assert run.report.outcome is Outcome.FAILED


def test_the_directive_stop_ends_healthy_ranks(launcher: Launcher, operator: BeatServer) -> None:
    operator.respond = answer_phase(Phase.TRAIN, Directive.STOP)
    run = start(launcher, operator, "time.sleep(600)", assign(procs=2))
    assert run.wait() == 128 + signal.SIGTERM
    assert run.report.first_failure is None
    assert run.report.message == "ended by the operator's directive stop"


def test_the_directive_save_reaches_every_rank_once(launcher: Launcher, operator: BeatServer) -> None:
    """Every rank that is connected then: both say so before the step is reported that the operator answers."""
    operator.respond = lambda beat: Reply(Directive.SAVE if beat.step in (2, 3) else Directive.CONTINUE, 1.0)
    run = start(
        launcher,
        operator,
        """
        open(f"here-{rank}", "w").close()
        deadline = time.monotonic() + 60
        while not os.path.exists(f"here-{1 - rank}"):
            assert time.monotonic() < deadline, "the other rank did not come"
            time.sleep(0.05)
        client.send(Progress(rank, Phase.TRAIN, step=2))
        assert client.wait(Save, 60) is not None
        client.send(Progress(rank, Phase.TRAIN, step=3))
        assert client.wait(Save, 6) is None
        client.send(Ending(rank, Outcome.DONE))
        """,
        assign(procs=2),
    )
    assert run.wait() == 0


def test_rank_0_holds_until_the_operator_names_the_assignment(launcher: Launcher, operator: BeatServer) -> None:
    mine = assign()
    newer = dataclasses.replace(mine, attempt=9)
    answers = iter([None, None])  # the operator has not decided yet
    operator.respond = lambda beat: Reply(Directive.CONTINUE, 1.0, assignment=next(answers, newer) if beat.phase is Phase.HOLD else None)
    run = start(
        launcher,
        operator,
        """
        found = CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.VERIFIED)
        client.send(Progress(rank, Phase.HOLD))
        client.send(Holding((found,), 2, "other-job", 61.5))
        proceed = client.wait(Proceed, 60)
        open("proceed", "w").write(str(proceed.assignment.attempt))
        client.send(Ending(rank, Outcome.FENCED, "superseded", highest_fence=2, fence_job_uid="other-job"))
        sys.exit(79)
        """,
        mine,
    )
    operator.wait_for(lambda beats: any(beat.failure for beat in beats), "the end", 60)
    operator.respond = answer_phase(Phase.STOPPED, Directive.STOP)
    assert run.wait() == 79
    assert run.wait_for_file("proceed") == "9"
    holds = [beat for beat in operator.beats if beat.phase is Phase.HOLD]
    hold = holds[0]
    assert len(holds) >= 3
    assert (hold.inventory, hold.highest_fence, hold.fence_job_uid, hold.quiet_seconds) == ((RECORD,), 2, "other-job", 61.5)
    assert (run.report.outcome, run.report.highest_fence, run.report.fence_job_uid) == (Outcome.FENCED, 2, "other-job")


def test_a_failed_save_is_beaten_until_the_next_verified_one(launcher: Launcher, operator: BeatServer) -> None:
    run = start(
        launcher,
        operator,
        """
        from trainer_runtime.contract.beat import SaveFailure
        client.send(SaveAbandoned(SaveFailure(4, "no space left on the device", 2)))
        while not os.path.exists("repaired"):
            time.sleep(0.05)
        client.send(Recorded(CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.COMMITTED)))
        client.send(Recorded(CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.VERIFIED)))
        client.send(Ending(rank, Outcome.DONE))
        """,
        assign(),
    )
    beats = operator.wait_for(lambda beats: any(beat.save_failure for beat in beats), "the failed save", 60)
    assert beats[-1].save_failure == SaveFailure(4, "no space left on the device", 2)
    (launcher.folder / "repaired").touch()
    assert run.wait() == 0
    assert operator.beats[-1].save_failure is None


def test_how_the_newest_look_at_the_archive_ended_is_beaten_until_the_next_one(launcher: Launcher, operator: BeatServer) -> None:
    run = start(
        launcher,
        operator,
        """
        from trainer_runtime.channel.messages import ArchiveLooked
        from trainer_runtime.contract.beat import ArchiveLook
        client.send(ArchiveLooked(ArchiveLook(2, "the archive is away")))
        client.send(Recorded(CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.VERIFIED)))
        while not os.path.exists("repaired"):
            time.sleep(0.05)
        client.send(ArchiveLooked(ArchiveLook()))
        client.send(Ending(rank, Outcome.DONE))
        """,
        assign(),
    )
    beats = operator.wait_for(lambda beats: any(beat.records for beat in beats), "the record", 60)
    assert beats[-1].archive == ArchiveLook(2, "the archive is away")
    (launcher.folder / "repaired").touch()
    assert run.wait() == 0
    assert operator.beats[-1].archive == ArchiveLook()


def test_granted_deletions_reach_the_rank_that_proposed_them(launcher: Launcher, operator: BeatServer) -> None:
    operator.respond = lambda beat: Reply(Directive.CONTINUE, 1.0, may_delete=beat.delete_proposals)
    run = start(
        launcher,
        operator,
        """
        from trainer_runtime.contract.beat import RecordKey
        key = RecordKey("run", 1, 1, Level.VERIFIED)
        client.send(DeleteProposed((key,)))
        assert client.wait(MayDelete, 60).keys == (key,)
        client.send(Ending(rank, Outcome.DONE))
        """,
        assign(),
    )
    assert run.wait() == 0


def test_a_worker_ends_with_its_code_when_the_operator_is_away(launcher: Launcher, operator: BeatServer) -> None:
    operator.stop()
    run = start(launcher, operator, "client.send(Ending(rank, Outcome.DONE))", assign())
    assert run.wait() == 0
    assert run.report.outcome is Outcome.DONE


def test_two_workers_meet_and_only_the_one_that_failed_names_a_failure_of_its_own(launcher: Launcher, operator: BeatServer) -> None:
    script = """
        import datetime, torch, torch.distributed as dist
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        ones = torch.ones(1)
        dist.all_reduce(ones)
        print("sum", ones.item(), flush=True)
        if rank == 1:
            os.kill(os.getpid(), 11)
        dist.all_reduce(ones)
    """
    operator.respond = answer_phase(Phase.STOPPED, Directive.STOP)
    port = free_port()
    runs = [start(launcher, operator, script, assign(workers=2, worker=worker, port=port)) for worker in range(2)]
    assert [run.wait() for run in runs] == [1, 139]
    assert b"sum 2.0" in runs[0].out
    failures = [run.report.first_failure for run in runs]
    assert failures[0] is not None
    assert failures[1] is not None
    assert failures[1].exception == "SIGSEGV"
    assert failures[1].at_ns < failures[0].at_ns + 1_000_000_000
    assert {one.strength.value for one in runs[0].report.evidence} == {"VICTIM"}


def test_the_evidence_of_a_report_is_json_the_operator_reads(launcher: Launcher, operator: BeatServer) -> None:
    operator.respond = answer_phase(Phase.STOPPED, Directive.STOP)
    run = start(launcher, operator, "print('CUDA error: uncorrectable ECC error encountered', flush=True); sys.exit(5)", assign())
    assert run.wait() == 5
    assert json.loads(run.message_file.read_bytes())["first_failure"]["exception"] == "exit code 5"
    beat = next(beat for beat in operator.beats if beat.evidence)
    assert beat.evidence[0].fault_class == "gpu_ecc_uncorrectable"


@pytest.mark.parametrize("missing", ["RTJ_POD_UID", "RTJ_HEARTBEAT_TOKEN_FILE"])
def test_half_a_heartbeat_is_refused_before_anything_starts(launcher: Launcher, operator: BeatServer, missing: str) -> None:
    environ = {**operator.environ, missing: ""}
    run = launcher.start("raise SystemExit('must not run')", environ=environ, assignment=assign())
    assert run.wait() == 78
    assert missing in run.report.message
