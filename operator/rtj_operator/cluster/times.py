"""Kubernetes' times, as text and back."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> datetime | None:
    """Read an RFC 3339 time as the API server writes it (whole seconds, or microseconds in leases); None for None or nonsense."""
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def micro_time(moment: datetime) -> str:
    """Write a MicroTime, the form of a Lease's times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def second_time(moment: datetime) -> str:
    """Write a Time: whole seconds, the form of everything else."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
