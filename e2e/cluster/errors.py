"""The one error that the test cluster shows to people. It is not for bugs: those keep their tracebacks."""

from __future__ import annotations


class ClusterError(Exception):
    """Something about this machine, or a request, keeps the test cluster from working. The message says what, and what to do about it."""
