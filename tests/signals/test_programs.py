"""What programs print when they fail: tracebacks, torchrun's report, the error file, and kernel and kubelet lines beyond the line set."""

from __future__ import annotations

import json

import pytest

from tests.signals.lines import BY_ID, incidents_of, verdicts_of
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals import DEFAULT_STRENGTH, read_error_file
from trainer_runtime.signals.classify import RULES

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 7, in main\n    loss = step(batch)\n           ^^^^^^^^^^^\n'


def traceback(last_line: str, label: str = "") -> str:
    return "".join(f"{label}{line}\n" for line in (FRAMES + last_line).split("\n"))


@pytest.mark.parametrize(
    ("last_line", "expected"),
    [
        ("ValueError: bad batch 17", [("user_error", "APP")]),
        ("AssertionError", [("user_error", "APP")]),
        ("my.package.StrangeFailure: gone", [("user_error", "APP")]),
        ("Strange: an odd name", [("user_error", "APP")]),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", [("cuda_oom", "APP")]),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", [("gpu_ecc_uncorrectable", "NODE")]),
        ("RuntimeError: CUDA error: unknown error", [("cuda_error", "UNKNOWN")]),
        ("MemoryError", [("host_oom", "APP")]),
        ("FloatingPointError: Minimum loss scale reached", [("numeric", "APP")]),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", [("network_error", "ENV")]),
        ("OSError: [Errno 28] No space left on device", [("storage_io", "ENV")]),
        ("OSError: [Errno 30] Read-only file system: '/data/x'", [("storage_io", "SUSPECT")]),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", [("user_error", "APP")]),
        ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /a", [("rdzv_timeout", "UNKNOWN")]),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", [("nccl_remote_error", "VICTIM")]),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", []),
        ("KeyboardInterrupt", []),
        ("SystemExit: 0", []),
    ],
)
def test_the_last_line_of_a_traceback_decides(last_line: str, expected: list[tuple[str, str]]) -> None:
    assert verdicts_of(traceback(last_line)) == expected


def test_source_lines_of_a_traceback_are_no_evidence() -> None:
    text = FRAMES.replace("loss = step(batch)", 'raise RuntimeError("CUDA error: uncorrectable ECC error encountered")')
    assert verdicts_of(f"{text}ValueError: x") == [("user_error", "APP")]


def test_a_traceback_names_its_exception_and_is_anchored_at_it() -> None:
    (finding,) = incidents_of(traceback("ValueError: bad batch 17", "[rank5]: "))
    assert (finding.fields["exception"], finding.fields["rank"]) == ("ValueError", 5)
    assert finding.anchor == "[rank5]: ValueError: bad batch 17"
    assert finding.lines[0] == "[rank5]: Traceback (most recent call last):"


def test_an_exception_line_outside_a_traceback_is_not_read() -> None:
    assert verdicts_of("WARNING: skipped one: ValueError: bad batch 17\nValueError: bad batch 18\n") == []


def test_the_same_exception_on_several_ranks_is_one_incident() -> None:
    (finding,) = incidents_of("".join(traceback(f"ValueError: bad batch {rank}", f"[rank{rank}]: ") for rank in (2, 0, 1)))
    assert finding.fields["ranks"] == (2, 0, 1)


def test_interleaved_tracebacks_of_two_ranks_are_read_apart() -> None:
    first = traceback("ValueError: a", "[rank0]: ").splitlines()
    second = traceback("KeyError: 'b'", "[rank1]: ").splitlines()
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert [finding.fields["exception"] for finding in incidents_of(mixed)] == ["ValueError", "KeyError"]


def test_an_ordinary_line_between_frames_and_last_line_changes_nothing() -> None:
    assert verdicts_of(f"{FRAMES}INFO: saving 3 files\nstep: 5\nValueError: x\n") == [("user_error", "APP")]


@pytest.mark.parametrize(
    "link",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_chained_exceptions_are_one_incident_named_by_the_first(link: str) -> None:
    (finding,) = incidents_of(f"{traceback('KeyError: 3')}\n{link}\n\n{traceback('RuntimeError: cannot go on')}")
    assert finding.fields["exception"] == "KeyError"


def test_a_survivor_that_trips_over_a_lost_rendezvous_is_no_user_error() -> None:
    frames = FRAMES.replace("train.py", "/usr/lib/python3/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py")
    assert verdicts_of(f"{frames}AssertionError\n") == [("rdzv_timeout", "UNKNOWN")]


REPORT = """============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-05-21_15:43:03
  host      : node-b
  rank      : 11 (local_rank: 3)
  exitcode  : {exit_code} (pid: 4242)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""


@pytest.mark.parametrize(
    ("exit_code", "shown", "expected"),
    [
        pytest.param(-9, "Signal 9 (SIGKILL) received by PID 4242", ("sigkill", "UNKNOWN"), id="killed"),
        pytest.param(-11, "Signal 11 (SIGSEGV) received by PID 4242", ("user_error", "APP"), id="segmentation fault"),
        pytest.param(-7, "Signal 7 (SIGBUS) received by PID 4242", ("config_error", "APP"), id="bus error"),
        pytest.param(1, "To enable traceback see: https://pytorch.org/docs", ("unknown", "UNKNOWN"), id="an exception nobody recorded"),
        pytest.param(
            1,
            'Traceback (most recent call last):\n    File "a.py", line 1, in f\n      f()\n  ValueError: x',
            ("user_error", "APP"),
            id="recorded",
        ),
    ],
)
def test_torchruns_report_names_the_rank_and_its_end(exit_code: int, shown: str, expected: tuple[str, str]) -> None:
    (finding,) = incidents_of(REPORT.format(exit_code=exit_code, traceback=shown))
    assert (finding.fault_class, finding.strength.value) == expected
    assert [finding.fields[name] for name in ("rank", "local_rank", "exit_code", "pid", "host")] == [11, 3, exit_code, 4242, "node-b"]


def test_a_report_of_an_exception_that_the_log_already_shows_adds_no_incident() -> None:
    report = REPORT.format(exit_code=1, traceback="To enable traceback see: https://pytorch.org/docs")
    assert verdicts_of(traceback("ValueError: x") + report) == [("user_error", "APP")]


def test_a_report_that_the_log_cuts_off_still_counts() -> None:
    cut = REPORT.format(exit_code=-9, traceback="").partition("  error_file")[0]
    assert verdicts_of(cut) == [("sigkill", "UNKNOWN")]


def test_an_xid_between_the_lines_of_a_report_is_read() -> None:
    lines = BY_ID["M76"].text.split("\n")
    lines.insert(3, BY_ID["M39"].text)
    assert sorted(verdicts_of("\n".join(lines))) == [("gpu_fallen_off", "NODE"), ("sigkill", "UNKNOWN")]


def test_an_error_file_is_read_with_its_time() -> None:
    extra = {"py_callstack": FRAMES, "timestamp": "1767225600"}
    finding = read_error_file(json.dumps({"message": {"message": "TypeError: no", "extraInfo": extra}}))
    assert finding is not None
    assert (finding.fault_class, finding.strength, finding.at) == ("user_error", Strength.APP, 1767225600.0)


def test_an_error_file_goes_through_the_line_rules() -> None:
    text = json.dumps(
        {"message": {"message": "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCompile with", "extraInfo": {}}}
    )
    finding = read_error_file(text)
    assert finding is not None
    assert (finding.fault_class, finding.strength) == ("gpu_ecc_uncorrectable", Strength.NODE)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"message": 3}', '{"message": {"message": "x", "extraInfo": {"timestamp": "soon"}}}']
)
def test_what_is_no_error_file_is_none(text: str) -> None:
    assert read_error_file(text) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Out of memory: Killed process 629 (python) total-vm:1kB", [("node_memory_pressure", "ENV")]),
        ("RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error. It is possible", [("config_error", "APP")]),
        ("RuntimeError: DataLoader worker (pid 3) is killed by signal: Segmentation fault. ", [("user_error", "APP")]),
        ("Fatal Python error: Segmentation fault", [("user_error", "APP")]),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", [("host_memory_error", "NODE")]),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", []),
        ("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0", [("pcie_error", "SUSPECT")]),
        ("blk_update_request: I/O error, dev nvme0n1, sector 123 op 0x0", [("storage_io", "SUSPECT")]),
        ("nfs: server 10.0.0.5 OK", []),
        ("node-b NCCL WARN Cuda failure 'uncorrectable ECC error encountered'", [("gpu_ecc_uncorrectable", "NODE")]),
        ("node-b NCCL WARN Cuda failure 2 'out of memory'", [("cuda_oom", "APP")]),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            [("nccl_remote_error", "VICTIM")],
        ),
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            [("nccl_system_error", "UNKNOWN")],
        ),
        ('Failed to pull image "a/b:c": rpc error: 429 toomanyrequests', [("image_pull", "ENV")]),
        ("Received Signals.SIGTERM death signal, shutting down workers, timeout 30", [("preempted", "ENV")]),
    ],
)
def test_a_line_beyond_the_line_set_has_its_verdict(line: str, expected: list[tuple[str, str]]) -> None:
    assert verdicts_of(line) == expected


def test_every_rule_names_a_class_of_the_closed_list() -> None:
    assert {line_rule.fault_class for line_rule in RULES} <= DEFAULT_STRENGTH.keys()
