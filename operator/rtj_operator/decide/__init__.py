"""Every decision of the operator, as pure functions over frozen values: no I/O, no clock, no logger; ``now`` is an argument.

`decide` makes the plan of one pass, `reply` the answer to one beat. Not here: how a decision is carried out (`reconcile.act`) or how the
facts were found (`reconcile.observe`).
"""

from rtj_operator.decide.decision import decide

__all__ = ["decide"]
