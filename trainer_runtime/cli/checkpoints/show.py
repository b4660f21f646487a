"""``rtj-checkpoints show``: one checkpoint in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from trainer_runtime.checkpoint.documents import Documents, read_documents
from trainer_runtime.cli.checkpoints import ls, wording
from trainer_runtime.cli.checkpoints.choice import Place, reading
from trainer_runtime.contract.beat import Tier
from trainer_runtime.contract.codec import to_jsonable


def run(place: Place, word: str, as_json: bool, now: float) -> int:
    """Print what the manifest and the rank indexes say. ``now``: Unix seconds."""
    chosen = place.choose(word)
    with reading(chosen):
        documents = read_documents(chosen.store, chosen.found.reference)
    if as_json:
        print(json.dumps({**ls.entry(chosen.found, (Tier.STORE,)), "manifest": to_jsonable(documents.manifest)}, indent=2))
        return 0
    found = chosen.found
    place_of = "on the lineage" if found.on_lineage else "not on the lineage"
    print(f"step {found.name.step} of attempt {found.name.attempt}: {found.level.value}, {place_of}\n  {found.reference.uri}")
    lines = list(_lines(documents, now))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"  {name.ljust(width)}  {text}")
    return 0


def _lines(documents: Documents, now: float) -> Iterator[tuple[str, str]]:
    manifest = documents.manifest
    made = datetime.fromtimestamp(manifest.created_at, UTC)
    yield "written", f"{made:%Y-%m-%d %H:%M:%S} UTC, {wording.age(now - manifest.created_at)} ago"
    if manifest.job.name:
        yield "job", f"{manifest.job.namespace}/{manifest.job.name} ({manifest.job.uid})"
    yield "progress", f"epoch {manifest.epoch}, {manifest.consumed_samples} samples"
    kinds = sorted({name.partition("/")[0] for name in documents.tensors})
    yield "holds", f"{len(documents.tensors)} tensors in {wording.size(manifest.total_bytes)}: {', '.join(kinds)}"
    yield "ranks", str(manifest.world_size)
    for parent in manifest.parents:
        yield "grew from", f"step {parent.step} of attempt {parent.attempt} ({parent.relation})"
    if manifest.tags:
        yield "tags", ", ".join(manifest.tags)
    if manifest.metrics:
        yield "metrics", ", ".join(f"{name}={value:g}" for name, value in sorted(manifest.metrics.items()))
    if manifest.allowances:
        yield "allowed", ", ".join(manifest.allowances)
    if manifest.not_saved:
        yield "not saved", ", ".join(manifest.not_saved)
    for kind, files in sorted(manifest.snapshots.items()):
        yield kind, ", ".join(file.name for file in files)
    if manifest.software:
        yield "software", ", ".join(f"{name} {version}" for name, version in sorted(manifest.software.items()))
    yield "manifest", documents.reference.manifest_sha256
