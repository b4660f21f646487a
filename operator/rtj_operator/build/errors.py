"""What can go wrong while an object is built: only that the spec cannot be used."""

from __future__ import annotations


class UnusableSpec(ValueError):
    """The job's spec was not accepted, so nothing can be built from it. The message names the field."""
