"""``rtj-checkpoints rm``: what a person may delete, and what even a person may not by accident."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.fences import find_highest
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints, find_sources
from trainer_runtime.checkpoint.keeping.inventory import Committed, find_newest_change
from trainer_runtime.cli.checkpoints import wording
from trainer_runtime.cli.checkpoints.choice import Place, choose, short_name
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Fence, JobIdentity
from trainer_runtime.errors import ConfigurationError, Refused

QUIET_SECONDS: Final = 3600.0
"""A run without a job that has not changed for so long is not being trained: the default is a save every 10 minutes."""


def run(place: Place, words: Sequence[str], tagged: bool, force: bool, now: float) -> int:
    """Delete, all or nothing. ``now``: Unix seconds.

    Raises Refused for what must stay, with every reason; ConfigurationError for a word that names nothing.
    """
    committed = place.committed()
    chosen = [_choose(place, committed, word) for word in words]
    owner = find_highest(place.store, place.run)
    if owner is None:
        raise Refused(f"{place.uri} has no fence, so nobody can say what is on its lineage; nothing was deleted")
    sources = find_sources(place.store, place.run)
    reasons = [reason for found in chosen if (reason := find_reason_to_stay(found, committed, owner, sources, tagged)) is not None]
    if not force:
        reasons += _signs_of_life(place, owner, now)
    if reasons:
        raise Refused("\n".join(["nothing was deleted:", *reasons]))
    as_owner = Writer(JobIdentity(uid=owner.job_uid), "", "rtj-checkpoints", 0, 1, owner.attempt)
    delete_checkpoints(place.store, place.run, as_owner, [found.name for found in chosen])
    for found in chosen:
        print(f"step {short_name(found)} is in {place.uri}/trash for 24 hours")
    return 0


def _choose(place: Place, committed: Sequence[Committed], word: str) -> Committed:
    if "://" not in word:
        return choose(committed, word, place.uri)
    found = place.choose(word).found
    if (found.reference.store_uri, found.reference.run) != (place.store.uri, place.run):
        raise ConfigurationError(f"STEP: {word} does not lie in {place.uri}; name its store and run by --store and --run")
    return found


def find_reason_to_stay(
    found: Committed, committed: Sequence[Committed], owner: Fence, sources: frozenset[StepName], tagged: bool
) -> str | None:
    """Return why a checkpoint must stay, or None. ``sources``: what other runs began from. ``tagged``: tags are no reason."""
    newest = max((item.name for item in committed if item.on_lineage and item.level is Level.VERIFIED), default=None)
    if found.name == newest:
        return f"step {short_name(found)} is the newest verified checkpoint on the lineage: a resume needs it"
    resume = owner.resume if owner.resume_run is None else None
    if resume is not None and found.name == StepName(resume.step, resume.attempt):
        return f"step {short_name(found)} is what attempt {owner.attempt} began from"
    if found.name in sources:
        return f"step {short_name(found)} is what another run of this store began from"
    if found.is_tagged and not tagged:
        tags = "its manifest cannot be read" if found.manifest is None else f"it is tagged {', '.join(found.manifest.tags)}"
        return f"step {short_name(found)}: {tags}; --tagged deletes it all the same"
    return None


def _signs_of_life(place: Place, owner: Fence, now: float) -> list[str]:
    if owner.job_uid:
        return [f"the run is owned by attempt {owner.attempt} of job {owner.job_uid}: end the job first, or say --force if it is gone"]
    changed_at = find_newest_change(place.store, place.run)
    if changed_at is not None and now - changed_at < QUIET_SECONDS:
        return [f"the run changed {wording.age(now - changed_at)} ago: if nothing trains there any more, say --force"]
    return []
