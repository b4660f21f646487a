"""The orders of one worker for the present attempt, from spec and status alone, so that a restarted operator says the same again."""

from __future__ import annotations

from rtj_operator.api.v1alpha1 import AttemptSettings, Job, JobSpec, JobStatus
from rtj_operator.build.errors import UnusableSpec
from rtj_operator.build.rendezvous import rendezvous_for
from trainer_runtime.contract.assignment import Archive, Assignment, Best, Goal, Keep, RunSettings, S3Settings, SaveEvery


def attempt_settings(spec: JobSpec) -> AttemptSettings:
    """Return what the status records of the spec when an attempt begins: every worker of it must count saves in the same way."""
    checkpoint, keep = spec.checkpoint, spec.checkpoint.keep
    return AttemptSettings(
        save_every_steps=checkpoint.every.steps,
        save_every_seconds=checkpoint.every.seconds,
        keep_last=keep.last,
        keep_every_steps=keep.every_steps,
        keep_best_metric=keep.best.metric if keep.best is not None else None,
        keep_best_mode=keep.best.mode if keep.best is not None else Goal.MIN,
        keep_daily=keep.daily,
        keep_weekly=keep.weekly,
        allow=tuple(dict.fromkeys(checkpoint.allow)),
        s3_endpoint=checkpoint.s3.endpoint if checkpoint.s3 is not None else None,
        s3_region=checkpoint.s3.region if checkpoint.s3 is not None else None,
        local=checkpoint.local.path if checkpoint.local is not None else None,
        archive_store=checkpoint.archive.store if checkpoint.archive is not None else None,
        archive_every_steps=checkpoint.archive.every_steps if checkpoint.archive is not None else None,
        start_seconds=spec.recovery.start_seconds,
    )


def assignment_for(job: Job, worker: int, status: JobStatus) -> Assignment:
    """Return what worker ``worker`` must run in ``status.attempt``.

    Raises UnusableSpec when the job's spec cannot be used, ContractError when worker or attempt is out of range.
    """
    if job.spec is None:
        raise UnusableSpec(job.spec_error)
    rendezvous = rendezvous_for(job.namespace, job.name, job.uid, status.gang, status.attempt)
    return Assignment(
        attempt=status.attempt,
        worker_index=worker,
        workers=job.spec.workers,
        procs_per_worker=job.spec.ranks_per_worker,
        master_addr=rendezvous.master_addr,
        master_port=rendezvous.master_port,
        run_id=rendezvous.run_id,
        resume=status.resume_point.to_contract() if status.resume_point is not None else None,
        start_fresh=status.starts_fresh,
        settings=_run_settings(status.attempt_settings or attempt_settings(job.spec)),
    )


def _run_settings(settings: AttemptSettings) -> RunSettings:
    seconds = settings.save_every_seconds
    metric, archive = settings.keep_best_metric, settings.archive_store
    return RunSettings(
        save_every=SaveEvery(steps=settings.save_every_steps, seconds=None if seconds is None else float(seconds)),
        keep=Keep(
            last=settings.keep_last,
            every_steps=settings.keep_every_steps,
            best=Best(metric, settings.keep_best_mode) if metric is not None else None,
            daily=settings.keep_daily,
            weekly=settings.keep_weekly,
        ),
        allow=tuple(word.value for word in settings.allow),
        s3=S3Settings(settings.s3_endpoint, settings.s3_region),
        local=settings.local,
        archive=Archive(archive, settings.archive_every_steps) if archive is not None else None,
        start_seconds=float(settings.start_seconds),
    )
