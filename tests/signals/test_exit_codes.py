"""What the end of a container or process means: reason before signal before code."""

from __future__ import annotations

import pytest

from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.signals import DEFAULT_STRENGTH, classify_exit, signal_of
from trainer_runtime.signals.exit_codes import CODES, REASONS, SIGNALS


@pytest.mark.parametrize(
    ("exit_code", "signal", "reason", "expected"),
    [
        pytest.param(0, None, "OOMKilled", ("host_oom", "APP"), id="out of memory with exit code 0"),
        pytest.param(137, None, "OOMKilled", ("host_oom", "APP"), id="out of memory with 137"),
        pytest.param(137, None, "Error", ("sigkill", "UNKNOWN"), id="137 alone is no proof of memory"),
        pytest.param(-9, None, "", ("sigkill", "UNKNOWN"), id="the same as Python says it"),
        pytest.param(None, 9, "", ("sigkill", "UNKNOWN"), id="the same as a signal"),
        pytest.param(137, None, "PreemptionByScheduler", ("preempted", "ENV"), id="killed after a preemption"),
        pytest.param(143, None, "Error", ("preempted", "ENV"), id="SIGTERM is no user error"),
        pytest.param(134, None, "Error", ("nccl_timeout", "VICTIM"), id="abort"),
        pytest.param(139, None, "Error", ("user_error", "APP"), id="segmentation fault"),
        pytest.param(135, None, "Error", ("config_error", "APP"), id="bus error"),
        pytest.param(0, None, "Completed", ("none", "BENIGN"), id="done"),
        pytest.param(1, None, "Error", ("unknown", "UNKNOWN"), id="torchrun's 1 says nothing"),
        pytest.param(2, None, "Error", ("config_error", "APP"), id="usage"),
        pytest.param(127, None, "Error", ("config_error", "APP"), id="not found"),
        pytest.param(ExitCode.PREEMPTED_SAVED, None, "Error", ("preempted", "ENV"), id="75"),
        pytest.param(ExitCode.REFUSED, None, "Error", ("resume_refused", "APP"), id="77"),
        pytest.param(ExitCode.DAMAGED, None, "Error", ("checkpoint_damaged", "ENV"), id="80"),
        pytest.param(ExitCode.STORE_UNAVAILABLE, None, "Error", ("storage_io", "ENV"), id="81"),
        pytest.param(None, None, "UnexpectedAdmissionError", ("device_admission", "SUSPECT"), id="device admission"),
        pytest.param(None, None, "ImagePullBackOff", ("image_pull", "APP"), id="image"),
        pytest.param(None, None, "", ("unknown", "UNKNOWN"), id="nothing known"),
        pytest.param(255, None, "", ("unknown", "UNKNOWN"), id="no such signal"),
        pytest.param(None, 99, "", ("unknown", "UNKNOWN"), id="a number that is no signal"),
    ],
)
def test_an_end_has_its_class(exit_code: int | None, signal: int | None, reason: str, expected: tuple[str, str]) -> None:
    meaning = classify_exit(exit_code, signal, reason)
    assert (meaning.fault_class, meaning.strength.value) == expected


@pytest.mark.parametrize(
    ("exit_code", "signal"), [(137, 9), (-9, 9), (143, 15), (1, None), (0, None), (128, None), (255, None), (None, None)]
)
def test_a_signal_is_read_from_an_exit_code(exit_code: int | None, signal: int | None) -> None:
    assert signal_of(exit_code) == signal


def test_every_exit_code_of_ours_and_every_class_is_known() -> None:
    assert {int(code) for code in ExitCode} <= CODES.keys()
    named = {meaning.fault_class for table in (REASONS, SIGNALS, CODES) for meaning in table.values()}
    assert named <= DEFAULT_STRENGTH.keys()
