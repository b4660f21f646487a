"""The decision table: one row per kind of failure, first match wins, what varies inside a row is one small function in `rulings`.

Rows of the design that have no sender yet are left out: 5 (local disk; a read-only file system comes as a machine fault, row 3), the
storage stall of row 6, 8 (a hang with one named worker) and 15 (NaN). Row 1 (deleted, suspended, done) is `lifecycle` and `stopping`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rtj_operator.api.v1alpha1 import Charge
from rtj_operator.decide import causes
from rtj_operator.decide import rulings as do
from rtj_operator.decide.attribution import Tier
from rtj_operator.decide.case import Case, NodeWish, Ruling
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals import fault_classes as classes


@dataclass(frozen=True)
class Row:
    """One row: when it holds, what the node gets, what is done about the job, and which budget pays."""

    number: str
    evidence: str
    holds: Callable[[Case], bool]
    node: NodeWish
    job: Callable[[Case], Ruling]
    charge: Charge | None
    """None: charged to nothing."""


def _tier(*tiers: Tier) -> Callable[[Case], bool]:
    return lambda case: case.tier in tiers


def _cause(*names: str) -> Callable[[Case], bool]:
    return lambda case: case.cause in names


_NOTHING, _EXCLUDE, _STRIKE, _CORDON = NodeWish.NOTHING, NodeWish.EXCLUDE, NodeWish.STRIKE, NodeWish.CORDON
_INFRA, _APP, _TAKEN, _HANG, _UNKNOWN = Charge.INFRASTRUCTURE, Charge.APPLICATION, Charge.PREEMPTION, Charge.HANG, Charge.UNKNOWN

# fmt: off
TABLE: Final[tuple[Row, ...]] = (
    Row("2",   "pod preempted, drained or deleted",       _cause(classes.PREEMPTED),          _NOTHING, do.relaunch,              _TAKEN),
    Row("3",   "the machine itself reports a fault",      _tier(Tier.MACHINE),                _CORDON,  do.relaunch_elsewhere,    _INFRA),
    Row("4",   "node lost or gone",                       _tier(Tier.NODE_LOST),              _EXCLUDE, do.relaunch_elsewhere,    _INFRA),
    Row("6",   "store unreachable or not ours (exit 81)", _cause(causes.STORE_UNAVAILABLE),   _NOTHING, do.wait_for_store,        None),
    Row("7",   "a suspicious machine, one strike",        _tier(Tier.SUSPECT),                _STRIKE,  do.relaunch_elsewhere,    _INFRA),
    Row("16",  "resume refused by the strict check",      _cause(classes.RESUME_REFUSED),     _NOTHING, do.give_up_refused,       None),
    Row("17",  "checkpoint damaged or missing (exit 80)", _cause(classes.CHECKPOINT_DAMAGED), _NOTHING, do.quarantine,            _INFRA),
    Row("18",  "fenced by this job's own higher fence",   do.is_own_fence,                    _NOTHING, do.go_above_fence,        None),
    Row("18b", "fenced by another job",                   _cause(classes.FENCED),             _NOTHING, do.take_over_or_fail,     None),
    Row("19",  "a pod of a Ready node does not end",      _cause(causes.STUCK_POD),           _STRIKE,  do.relaunch_elsewhere,    _INFRA),
    Row("13",  "image or configuration wrong on all",     do.is_startup_error_on_all,         _NOTHING, do.give_up_startup,       None),
    Row("14",  "image or start fails on one node",        do.is_startup_error_on_some,        _EXCLUDE, do.relaunch_elsewhere,    None),
    Row("14b", "containers do not start on several nodes",do.is_startup_trouble,              _NOTHING, do.relaunch_with_backoff, None),
    Row("13",  "the same error at the same step twice",   do.is_repeated_error,               _NOTHING, do.give_up_user_error,    _APP),
    Row("10",  "out of memory by its own limit",          _cause(*causes.MEMORY),             _NOTHING, do.once_more_memory,      _APP),
    Row("11",  "the node ran out of memory or disk",      do.is_node_pressure,                _EXCLUDE, do.relaunch_elsewhere,    _INFRA),
    Row("12",  "the program broke the device",            _cause(*causes.PROGRAM_ON_DEVICE),  _NOTHING, do.twice_more,            _APP),
    Row("13b", "an error of the program, seen once",      do.is_program_error,                _NOTHING, do.relaunch,              _APP),
    Row("9",   "the gang does not begin to train",        _cause(causes.STARTS_LATE),         _NOTHING, do.relaunch,              _HANG),
    Row("9",   "only victims: nobody names a root",       _tier(Tier.VICTIM),                 _NOTHING, do.relaunch,              _HANG),
    Row("20",  "unknown",                                 lambda case: True,                  _NOTHING, do.relaunch_with_backoff, _UNKNOWN),
)
# fmt: on


def find_row(case: Case) -> Row:
    """Return the first row that holds; the last one always does."""
    return next(row for row in TABLE if row.holds(case))


def is_stronger(row: Row, number: str) -> bool:
    """Say whether a row stands above the row of that number."""
    numbers = [known.number for known in TABLE]
    return number in numbers and numbers.index(row.number) < numbers.index(number)


def node_wish(row: Row, case: Case) -> NodeWish:
    """Return what the row wants of the node: a cordon only for evidence that names the machine with high confidence."""
    if case.verdict.node is None:
        return NodeWish.NOTHING
    strongest = case.verdict.evidence[0].strength if case.verdict.evidence else Strength.UNKNOWN
    if row.node is NodeWish.CORDON and strongest is not Strength.NODE:
        return NodeWish.EXCLUDE
    return row.node
