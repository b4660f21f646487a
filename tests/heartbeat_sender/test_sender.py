"""The sender process against a real HTTPS server."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.heartbeat_sender.beat_server import BeatServer, write_certificates
from trainer_runtime.contract.beat import Beat, CheckpointRecord, Directive, Level, Phase, RankSummary, Reply
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.heartbeat.compose import key_of
from trainer_runtime.heartbeat.post import Poster, PostFailed
from trainer_runtime.heartbeat.start import Handle, start, start_for_rank
from trainer_runtime.heartbeat.state import Answer, WorkerState

STATE = WorkerState(attempt=1, worker_index=0, phase=Phase.TRAIN, step=3)
RECORD = CheckpointRecord("run", 5, 1, "file:///store/run/steps/x", "ab" * 32, Level.VERIFIED)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BeatServer]:
    server = BeatServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def sender(server: BeatServer) -> Iterator[Handle]:
    handle = start({**os.environ, **server.environ})
    assert handle is not None
    yield handle
    handle.close()


def until(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{seconds:g} s without {what}"
        time.sleep(0.02)


def next_answer(sender: Handle) -> Answer:
    answers: list[Answer] = []

    def has_come() -> bool:
        answers.extend(sender.replies())
        return bool(answers)

    until(has_come, "an answer")
    return answers[0]


def test_a_beat_says_what_the_parent_said_and_the_answer_comes_back(server: BeatServer, sender: Handle) -> None:
    state = dataclasses.replace(STATE, epoch=2, loss=float("nan"), ranks=RankSummary(alive=2), records=(RECORD,))
    sender.update(state)
    beat = server.wait_for(lambda beats: bool(beats), "a beat")[0]
    assert (beat.job_uid, beat.pod_uid, beat.attempt, beat.step, beat.epoch) == ("job-uid", "pod-uid", 1, 3, 2)
    assert beat.loss != beat.loss
    assert beat.records == (RECORD,)
    answer = next_answer(sender)
    assert (answer.attempt, answer.phase, answer.reply.directive) == (1, Phase.TRAIN, Directive.CONTINUE)


def test_news_does_not_wait_for_the_period(server: BeatServer, sender: Handle) -> None:
    sender.update(STATE)
    server.wait_for(lambda beats: len(beats) == 1, "the first beat")
    evidence = (Evidence(1.0, Source.LOG, "gpu_ecc_uncorrectable", Strength.NODE, "Xid 48", attempt=1),)
    sender.update(dataclasses.replace(STATE, evidence=evidence))
    beats = server.wait_for(lambda beats: beats[-1].evidence == evidence, "the evidence", seconds=4.0)
    sender.update(dataclasses.replace(STATE, evidence=evidence, phase=Phase.SAVE))
    beats = server.wait_for(lambda beats: beats[-1].phase is Phase.SAVE, "the phase", seconds=4.0)
    assert len(beats) == 3


def test_a_worker_that_waits_for_an_answer_beats_each_second(server: BeatServer, sender: Handle) -> None:
    sender.update(dataclasses.replace(STATE, phase=Phase.STOPPED))
    server.wait_for(lambda beats: len(beats) >= 3, "three beats", seconds=4.5)


def test_a_record_is_repeated_until_acknowledged(server: BeatServer, sender: Handle) -> None:
    sender.update(dataclasses.replace(STATE, phase=Phase.HOLD, records=(RECORD,)))
    server.wait_for(lambda beats: sum(beat.records == (RECORD,) for beat in beats) >= 2, "the record twice")
    server.respond = lambda _beat: Reply(Directive.CONTINUE, 1.0, acked=(key_of(RECORD),))
    server.wait_for(lambda beats: beats[-1].records == (), "a beat without the record")


def test_beats_go_on_when_the_operator_comes_back(server: BeatServer, sender: Handle) -> None:
    sender.update(STATE)
    server.wait_for(lambda beats: len(beats) == 1, "the first beat")
    server.stop()
    sender.update(dataclasses.replace(STATE, step=9, phase=Phase.SAVE))
    server.start()
    beats = server.wait_for(lambda beats: beats[-1].step == 9, "the beat after the restart")
    assert beats[-1].sequence > beats[0].sequence


def test_a_refused_beat_is_sent_again(server: BeatServer, sender: Handle) -> None:
    refusals = iter([503, 401])
    server.respond = lambda _beat: next(refusals, Reply(Directive.STOP, 1.0))
    sender.update(STATE)
    assert next_answer(sender).reply.directive is Directive.STOP
    assert len(server.beats) == 3


def test_a_rotated_token_is_used_for_the_next_beat(server: BeatServer, sender: Handle) -> None:
    sender.update(STATE)
    server.wait_for(lambda beats: len(beats) == 1, "the first beat")
    server.token_file.write_text("token-2\n")
    sender.update(dataclasses.replace(STATE, phase=Phase.SAVE))
    server.wait_for(lambda beats: len(beats) == 2, "the second beat")
    assert server.tokens == ["token-1", "token-2"]


def ends_in(phase: Phase, beats: Sequence[Beat]) -> bool:
    return bool(beats) and beats[-1].phase is phase


def test_the_connection_is_kept_between_beats(server: BeatServer, sender: Handle) -> None:
    for phase in (Phase.START, Phase.COMPILE, Phase.TRAIN, Phase.SAVE):
        sender.update(dataclasses.replace(STATE, phase=phase))
        server.wait_for(functools.partial(ends_in, phase), f"phase {phase}")
    assert server.connections == 1


def test_the_sender_beats_while_its_parent_holds_the_interpreter(server: BeatServer) -> None:
    script = """
        import os, time
        from trainer_runtime.contract.beat import Phase
        from trainer_runtime.heartbeat.start import start_for_rank
        from trainer_runtime.heartbeat.state import WorkerState
        handle = start_for_rank()
        handle.update(WorkerState(attempt=1, worker_index=0, phase=Phase.STOPPED))
        while not handle.replies():
            time.sleep(0.01)
        import ctypes
        ctypes.PyDLL(None).sleep(600)     # PyDLL keeps the interpreter's lock
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, **server.environ})
    try:
        server.wait_for(lambda beats: len(beats) >= 4, "beats from a parent that is stuck")
        assert parent.poll() is None
    finally:
        parent.kill()
        parent.wait()


def test_the_sender_ends_when_its_parent_is_killed(server: BeatServer, tmp_path: Path) -> None:
    script = """
        import sys, time
        from trainer_runtime.heartbeat.start import start
        handle = start()
        print(handle.pid, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, **server.environ}, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until(lambda: not _is_running(pid), "the sender's end")


def test_a_killed_sender_is_replaced_and_says_the_same(server: BeatServer, sender: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_runtime.heartbeat.start.RESTART_SECONDS", 0.1)
    sender.update(STATE)
    server.wait_for(lambda beats: len(beats) == 1, "the first beat")
    first = sender.pid
    os.kill(first, signal.SIGKILL)

    def is_replaced() -> bool:
        sender.tend()
        return sender.pid != first

    until(is_replaced, "another sender")
    beats = server.wait_for(lambda beats: len(beats) == 2, "its beat")
    assert beats[1].step == STATE.step


def test_without_an_operator_there_is_no_sender() -> None:
    assert start({}) is None


@pytest.mark.parametrize("environ", [{"LOCAL_RANK": "1"}, {"LOCAL_RANK": "0", "RTJ_CHANNEL": "/x"}], ids=["other rank", "under rtj-run"])
def test_only_local_rank_0_under_stock_torchrun_starts_one(server: BeatServer, environ: dict[str, str]) -> None:
    assert start_for_rank({**server.environ, **environ}) is None


def test_half_an_environment_is_refused_by_name(server: BeatServer) -> None:
    environ = server.environ
    del environ["RTJ_POD_UID"]
    with pytest.raises(ConfigurationError, match="RTJ_POD_UID: not set"):
        start(environ)


@pytest.mark.parametrize("url", ["http://x", "https://", "https://x:99999", "https://x:abc", "x"])
def test_an_address_that_is_none_is_refused_before_a_sender_is_started(server: BeatServer, url: str) -> None:
    for refuse in (lambda: Poster(url, "t", "c"), lambda: start({**server.environ, "RTJ_HEARTBEAT_URL": url})):
        with pytest.raises(ConfigurationError, match=f"RTJ_HEARTBEAT_URL: '{url}' is not https"):
            refuse()


def test_a_server_of_another_authority_gets_no_token(server: BeatServer, tmp_path: Path) -> None:
    other, _leaf = write_certificates(tmp_path, "other")
    poster = Poster(server.environ["RTJ_HEARTBEAT_URL"], str(server.token_file), str(other))
    with pytest.raises(PostFailed, match="CERTIFICATE_VERIFY_FAILED"):
        poster.post(b"{}")
    assert server.tokens == []


def test_an_empty_ca_file_is_named(server: BeatServer, tmp_path: Path) -> None:
    empty = tmp_path / "empty.crt"
    empty.write_text("")
    poster = Poster(server.environ["RTJ_HEARTBEAT_URL"], str(server.token_file), str(empty))
    with pytest.raises(PostFailed, match="RTJ_HEARTBEAT_CA_FILE"):
        poster.post(b"{}")


def test_a_server_that_never_answers_meets_the_deadline(server: BeatServer) -> None:
    def hang(_beat: Beat) -> int:
        time.sleep(2.0)
        return 500

    server.respond = hang
    poster = Poster(server.environ["RTJ_HEARTBEAT_URL"], str(server.token_file), str(server.ca_file), request_seconds=0.3)
    from trainer_runtime.heartbeat.compose import Composer, to_body

    with pytest.raises(PostFailed, match=r"0\.3 s|timed out"):
        poster.post(to_body(Composer("j", "p").compose(STATE, 1.0)))


def test_a_beat_needs_no_torch() -> None:
    code = "import sys, trainer_runtime.heartbeat.__main__; sys.exit('torch' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
