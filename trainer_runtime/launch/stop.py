"""How long each step of an ending may take, and what SIGTERM means. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Final

STOP_SECONDS: Final = 5.0
"""From asking the ranks to end (SIGTERM) to killing them. torchrun alone would wait 30 s, while every other worker waits for us."""
RAISED_SECONDS: Final = 10.0
"""How long a rank that raised may take to end by itself: its last save may be draining. One that hangs here would hold up the others."""
TEARDOWN_SECONDS: Final = 1200.0
"""How long ranks may take to end after all of them said that they are done; collectives have been seen to hang there. Above what torch
itself needs to end those: 600 s for a collective of NCCL, then 480 s for its abort. A script's work that is not over by then is lost."""
LEAVING_SECONDS: Final = 60.0
"""The same for ranks that saved because they are to go, or that cannot go on: nothing of theirs is left to do, and others wait."""
BARRIER_SECONDS: Final = 330.0
"""torchrun waits up to 300 s for the other workers after its own ranks ended well; worker 0 keeps the rendezvous alive for them so."""
GIVE_UP_SECONDS: Final = 10.0
"""How long a killed process may stay: one that the kernel cannot end (a dead disk or GPU) must not keep the report back."""
PERSIST_SECONDS: Final = 20.0
"""How long a save that every rank had sealed may take to be committed and verified after the ranks ended. What they had not sealed is
abandoned at once, so this is spent only on a save that is worth it."""
TELL_STOPPED_SECONDS: Final = 30.0
"""How long a failed worker waits for the operator's stop or restart."""
TELL_DONE_SECONDS: Final = 10.0
"""How long a worker that is done, or was told to go, waits until that beat was accepted."""
HOLD_SECONDS: Final = 30.0
"""How long rank 0 waits for the operator's word before it creates its fence."""
DEFAULT_GRACE_SECONDS: Final = 30.0
"""Kubernetes' own default of terminationGracePeriodSeconds."""


class OnSigterm(Enum):
    """What to do when SIGTERM comes."""

    LEAVE = "leave"
    """The attempt is over: exit at once with the code it already has."""
    SAVE = "save"
    """Ask the ranks for a save that all agree on."""
    END = "end"
    """There is nobody to ask: the ranks get SIGTERM themselves and the rest of the grace."""


def on_sigterm(*, has_failed: bool, is_stopping: bool, someone_joined: bool) -> OnSigterm:
    """Decide. A save is asked for only while all local ranks are well: after a failure there is nothing that all could agree on."""
    if has_failed or is_stopping:
        return OnSigterm.LEAVE
    return OnSigterm.SAVE if someone_joined else OnSigterm.END


def end_margin(grace_seconds: float) -> float:
    """Return the seconds at the end of the grace that are kept for ending the ranks, telling the operator and writing the report."""
    return min(8.0, max(1.0, grace_seconds / 4))


def seconds_to_persist(grace_seconds: float, since_sigterm: float | None) -> float:
    """Return how long sealed saves may take to end after the ranks did. ``since_sigterm`` None: no SIGTERM came."""
    if since_sigterm is None:
        return PERSIST_SECONDS
    return min(PERSIST_SECONDS, max(0.0, grace_seconds - since_sigterm - end_margin(grace_seconds) / 2))


def seconds_to_save(grace_seconds: float, since_sigterm: float) -> float:
    """Return what is left of the grace for the ranks."""
    return max(0.0, grace_seconds - since_sigterm - end_margin(grace_seconds))
