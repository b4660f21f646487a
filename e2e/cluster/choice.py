"""Which kind of test cluster this machine can run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from e2e.cluster import bare, kind
from e2e.cluster.driver import ClusterDriver
from e2e.cluster.errors import ClusterError

CHOICE_VARIABLE: Final = "CLUSTER"
CHOICES: Final = ("bare", "kind")


def choose_driver(say: Callable[[str], None] | None = None) -> ClusterDriver:
    """Return the driver for this machine, and say which one and why, by default to stderr. ``CLUSTER=bare`` or ``CLUSTER=kind`` overrides.

    Raises ClusterError if the variable holds anything else.
    """
    wish = os.environ.get(CHOICE_VARIABLE, "")
    if wish and wish not in CHOICES:
        raise ClusterError(f"{CHOICE_VARIABLE}={wish}: allowed are {' and '.join(CHOICES)}")
    engine = kind.find_engine()
    driver: ClusterDriver
    if wish == "kind" or (not wish and engine):
        what, why = "kind", f"{engine} answers"
        driver = kind.KindCluster()
    else:
        what, why = "bare, nodes are namespaces of this machine", f"neither {' nor '.join(kind.ENGINES)} answers"
        driver = bare.BareCluster()
    line = f"test cluster: {what} ({f'{CHOICE_VARIABLE}={wish}' if wish else why})"
    if say:
        say(line)
    else:
        print(line, file=sys.stderr)
    return driver
