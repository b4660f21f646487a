"""Random waits that are drawn from numbers of our own.

Rank 0 talks to the store beside its training, and Python's global generator is training state: one draw for the wait between two tries
would make every later draw of the script another one than in a run whose store answered at once. tenacity and boto draw from the global
one.
"""

from __future__ import annotations

import random
from typing import Final

import botocore.retries.standard
import botocore.retryhandler
import botocore.utils
from tenacity import RetryCallState

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 5.0
_OWN: Final = random.Random()

for _module in (botocore.retries.standard, botocore.retryhandler, botocore.utils):
    # renewed credentials and the requests that renew them are retried by boto itself, which has no setting for where its jitter comes from
    _module.random = _OWN


def wait_seconds(state: RetryCallState) -> float:
    """Return how long to wait before the next try: full jitter below a limit that doubles with each. For tenacity."""
    return _OWN.uniform(0.0, min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** (state.attempt_number - 1)))
