"""torchrun's options and environment as rtj-run gives them, and rtj-run's own command line: the pure part."""

from __future__ import annotations

import re

import pytest

from trainer_runtime.contract.assignment import Assignment, RunSettings
from trainer_runtime.contract.codec import dumps
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.launch.main import CommandLine, parse_command_line, read_orders
from trainer_runtime.launch.options import child_environment, find_conflict, forbidden_options, torchrun_options

ASSIGNMENT = Assignment(4, 1, 2, 8, "job-4-0.job", 29504, "uid-4", settings=RunSettings(start_seconds=900.5))

CONFLICTS = {
    "nothing": ([], None),
    "options that are the user's": (["--tee=3", "--log-dir", "/logs", "-m"], None),
    "the same value": (["--nnodes=2", "--nproc_per_node", "8"], None),
    "another number of workers": (["--nnodes", "4"], "--nnodes: '4' differs from '2'"),
    "another number of ranks": (["--nproc_per_node=4"], "--nproc-per-node: '4' differs from '8'"),
    "another port": (["--master-port=1"], "--master-port: '1' differs from '29504'"),
    "another backend": (["--rdzv-backend=c10d"], "--rdzv-backend: 'c10d' differs from 'static'"),
    "an option without its value": (["--node-rank"], "--node-rank: '' differs from '1'"),
    "restarts of torchrun's own": (["--max_restarts=3"], "--max-restarts: not with rtj-run: the operator"),
    "torchrun's own standalone": (["--standalone"], "--standalone: not with rtj-run: it is rtj-run's own option"),
    "an endpoint": (["--rdzv-endpoint=a:1"], "--rdzv-endpoint: not with rtj-run"),
    "an abbreviation": (["--nnode=3"], "--nnodes: '3' differs from '2'"),
}


@pytest.mark.parametrize(("given", "expected"), CONFLICTS.values(), ids=CONFLICTS)
def test_a_conflict_names_the_option(given: list[str], expected: str | None) -> None:
    found = find_conflict(given, torchrun_options(ASSIGNMENT, "-"), forbidden_options(ASSIGNMENT))
    assert found is None if expected is None else (found or "").startswith(expected)


def test_the_rendezvous_is_the_assignments() -> None:
    assert torchrun_options(ASSIGNMENT, "-") == {
        "--nnodes": "2",
        "--nproc-per-node": "8",
        "--node-rank": "1",
        "--master-addr": "job-4-0.job",
        "--master-port": "29504",
        "--max-restarts": "0",
        "--rdzv-id": "uid-4",
        "--rdzv-backend": "static",
        "--rdzv-conf": "timeout=900",
    }


def test_without_an_assignment_the_user_says_how_many_ranks() -> None:
    ours = torchrun_options(None, "local-1")
    assert "--nproc-per-node" not in ours
    assert ours["--nnodes"] == "1"
    assert ours["--max-restarts"] == "0"


def test_the_ranks_get_the_users_environment_without_torchruns_variables() -> None:
    environ = {"PET_NNODES": "9", "PYTHONPATH": "/app", "HOME": "/home/someone"}
    child = child_environment(environ, channel="/c", persister="/p", fence="f", hook_directory="/hook", grace_seconds=120.7)
    assert child == {
        "PYTHONPATH": "/hook:/app",
        "HOME": "/home/someone",
        "RTJ_CHANNEL": "/c",
        "RTJ_PERSISTER": "/p",
        "RTJ_FENCE": "f",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120",
    }


COMMAND_LINES = {
    "plain": (["train.py", "--lr=1"], CommandLine(0, ("train.py", "--lr=1"))),
    "standalone": (["--standalone", "--nproc-per-node=2", "t.py"], CommandLine(3, ("--nproc-per-node=2", "t.py"))),
    "restarts": (["--standalone", "--restarts", "7", "t.py"], CommandLine(7, ("t.py",))),
    "restarts with =": (["--standalone", "--restarts=0", "t.py"], CommandLine(0, ("t.py",))),
    "the script's own": (["t.py", "--standalone"], CommandLine(0, ("t.py", "--standalone"))),
}


@pytest.mark.parametrize(("arguments", "expected"), COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_rtj_runs_own_options_come_first(arguments: list[str], expected: CommandLine) -> None:
    assert parse_command_line(arguments) == expected


BAD_LINES = {
    "no script": (["--standalone"], "training_script: missing"),
    "restarts of no number": (["--standalone", "--restarts=many", "t.py"], "--restarts: 'many' is not a number"),
    "restarts in a figure that is no digit": (["--standalone", "--restarts", "²", "t.py"], "--restarts: '²' is not a number"),
    "restarts without a value": (["--standalone", "--restarts"], "--restarts: '' is not a number"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_command_line_is_one_clear_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        parse_command_line(arguments)


def test_orders_come_from_the_assignment() -> None:
    orders = read_orders({"RTJ_ASSIGNMENT": dumps(ASSIGNMENT), "RTJ_GRACE_SECONDS": "120", "RTJ_NODE_NAME": "n1"})
    assert (orders.attempt, orders.worker_index, orders.run_id, orders.node, orders.grace_seconds) == (4, 1, "uid-4", "n1", 120.0)


def test_without_an_assignment_it_is_attempt_1_of_one_worker() -> None:
    orders = read_orders({})
    assert (orders.attempt, orders.worker_index, orders.assignment, orders.grace_seconds) == (1, 0, None, 30.0)


@pytest.mark.parametrize("grace", ["soon", "", "-1", "nan", "inf", "1e400"])
def test_a_grace_that_is_no_number_is_named(grace: str) -> None:
    with pytest.raises(ConfigurationError, match=f"RTJ_GRACE_SECONDS: '{grace}' is not a number of seconds, 0 or more"):
        read_orders({"RTJ_GRACE_SECONDS": grace})
