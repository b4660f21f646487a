"""``rtj-operator``: reads its settings and runs the operator.

It ends with 0 when it was asked to stop, 2 when something must be set up differently, 1 for anything else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from rtj_operator.app import MissingCrd, run
from rtj_operator.cluster.client import ConfigurationError
from rtj_operator.heartbeat.tls import TlsError
from rtj_operator.observability.logs import configure_logging
from rtj_operator.reconcile.crash_points import CRASH_AT, CrashPoints
from rtj_operator.settings import SettingsError, load_settings

log = logging.getLogger(__name__)


def main() -> int:
    """Run the operator until it is asked to stop; return the exit code."""
    try:
        crash = CrashPoints.from_environment(os.environ)
        settings = load_settings({name: value for name, value in os.environ.items() if name != CRASH_AT})
    except (SettingsError, ValueError) as error:
        print(f"rtj-operator: {error}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    try:
        asyncio.run(run(settings, crash))
    except (ConfigurationError, TlsError, MissingCrd, SettingsError) as error:
        log.critical("%s", error)
        return 2
    except Exception:  # the process's edge: whatever ended the operator is written where its administrator looks
        log.critical("the operator ends because of an error", exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
