"""``rtj-checkpoints ls``: the checkpoints of a run, one line each."""

from __future__ import annotations

import json
from typing import Any

from trainer_runtime.checkpoint.fences import find_highest
from trainer_runtime.checkpoint.keeping.inventory import Committed, read_committed
from trainer_runtime.cli.checkpoints import wording
from trainer_runtime.cli.checkpoints.choice import Place
from trainer_runtime.contract.beat import Tier
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.store.base import Store

HEADER = ("STEP", "ATTEMPT", "LINEAGE", "LEVEL", "TIER", "SIZE", "AGE", "TAGS", "NOTES")


def run(place: Place, archive: Store | None, as_json: bool, now: float) -> int:
    """Print the table, or the document. ``now``: Unix seconds."""
    committed = place.committed()
    owner = find_highest(place.store, place.run)
    archived = read_committed(archive, place.run) if archive is not None else ()
    rows = _merge(committed, archived)
    if as_json:
        print(json.dumps(_document(place, owner, rows), indent=2))
        return 0
    print(f"run {place.run} in {place.store.uri}: {len(rows)} checkpoint{'' if len(rows) == 1 else 's'}; {describe_owner(owner)}")
    if rows:
        print(wording.table(HEADER, [_row(found, tiers, owner, now) for found, tiers in rows]))
    return 0


def describe_owner(owner: Fence | None) -> str:
    """Return in words who owns a run."""
    if owner is None:
        return "no attempt ever began here"
    job = f" of job {owner.job_uid}" if owner.job_uid else ""
    start = "from nothing" if owner.resume is None else f"from step {owner.resume.step}"
    return f"attempt {owner.attempt}{job} owns it and began {start}{f' of run {owner.resume_run}' if owner.resume_run else ''}"


def entry(found: Committed, tiers: tuple[Tier, ...]) -> dict[str, Any]:
    """Return one checkpoint as a JSON object."""
    manifest = found.manifest
    return {
        "step": found.name.step,
        "attempt": found.name.attempt,
        "uri": found.reference.uri,
        "manifest_sha256": found.reference.manifest_sha256,
        "on_lineage": found.on_lineage,
        "level": found.level.value,
        "tiers": [tier.value for tier in tiers],
        "total_bytes": manifest.total_bytes if manifest is not None else None,
        "created_at": manifest.created_at if manifest is not None else None,
        "tags": list(manifest.tags) if manifest is not None else [],
        "metrics": dict(manifest.metrics) if manifest is not None else {},
        "fault": found.fault,
    }


def _merge(committed: tuple[Committed, ...], archived: tuple[Committed, ...]) -> list[tuple[Committed, tuple[Tier, ...]]]:
    """Join both lists by name; a copy under another manifest is another checkpoint and gets its own line."""
    rows = {(found.name, found.reference.manifest_sha256): (found, (Tier.STORE,)) for found in committed}
    merged: dict[Any, tuple[Committed, tuple[Tier, ...]]] = dict(rows)
    for found in archived:
        key = (found.name, found.reference.manifest_sha256)
        known = merged.get(key)
        merged[key] = (known[0], (*known[1], Tier.ARCHIVE)) if known is not None else (found, (Tier.ARCHIVE,))
    return [merged[key] for key in sorted(merged)]


def _document(place: Place, owner: Fence | None, rows: list[tuple[Committed, tuple[Tier, ...]]]) -> dict[str, Any]:
    resume = owner.resume if owner is not None else None
    return {
        "store": place.store.uri,
        "run": place.run,
        "attempt": owner.attempt if owner is not None else None,
        "job_uid": owner.job_uid if owner is not None else None,
        "resumed_from": None if resume is None else {"step": resume.step, "attempt": resume.attempt, "uri": resume.uri},
        "checkpoints": [entry(found, tiers) for found, tiers in rows],
    }


def _row(found: Committed, tiers: tuple[Tier, ...], owner: Fence | None, now: float) -> tuple[str, ...]:
    manifest = found.manifest
    notes = [found.fault] if found.fault else []
    if owner is not None and owner.resume is not None and owner.resume.manifest_sha256 == found.reference.manifest_sha256:
        notes.append("resumed from")
    if manifest is not None:
        notes += [f"{name}={value:g}" for name, value in sorted(manifest.metrics.items())]
    return (
        str(found.name.step),
        str(found.name.attempt),
        "on" if found.on_lineage else "abandoned" if owner is not None else "unknown",
        found.level.value,
        "+".join(tier.value for tier in tiers),
        wording.size(manifest.total_bytes) if manifest is not None else "?",
        wording.age(now - manifest.created_at) if manifest is not None else "?",
        ",".join(manifest.tags) if manifest is not None else "?",
        " ".join(notes),
    )
