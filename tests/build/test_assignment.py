"""A worker's orders come from spec and status alone; two attempts never meet, two workers never differ."""

from __future__ import annotations

import uuid

import pytest

from rtj_operator.api.v1alpha1 import AttemptResume, Job, JobStatus
from rtj_operator.build.assignment import assignment_for, attempt_settings
from rtj_operator.build.errors import UnusableSpec
from rtj_operator.build.rendezvous import FIRST_PORT, PORTS, rendezvous_for
from tests.api.jobs import stored
from trainer_runtime.contract.assignment import Archive, Best, Goal, Keep, ResumeMode, ResumePoint, S3Settings, SaveEvery

STATUS = JobStatus(attempt=5, gang=3)


def test_an_in_place_restart_keeps_the_hosts_and_changes_port_and_id() -> None:
    before = rendezvous_for("ml", "gpt", "0f3c9a52-1111", 3, 4)
    after = rendezvous_for("ml", "gpt", "0f3c9a52-1111", 3, 5)
    assert before.master_addr == after.master_addr == "gpt-3-0.gpt.ml.svc"
    assert after.master_port - before.master_port in (1, 1 - PORTS)
    assert (before.run_id, after.run_id) == ("0f3c9a52-4", "0f3c9a52-5")


def test_ports_stay_below_node_ports_and_ephemeral_ports() -> None:
    ports = {rendezvous_for("ml", "gpt", "u", 1, attempt).master_port for attempt in range(1, 3000)}
    assert (min(ports), max(ports)) == (FIRST_PORT, FIRST_PORT + PORTS - 1)
    assert max(ports) < 30_000


def test_jobs_that_share_a_nodes_network_rarely_meet_on_a_port_though_all_are_in_their_first_attempt() -> None:
    ports = [rendezvous_for("ml", "gpt", str(uuid.UUID(int=number)), 1, 1).master_port for number in range(100)]
    assert len(set(ports)) > 90


def test_the_port_of_an_attempt_is_the_same_for_every_operator_process() -> None:
    assert rendezvous_for("ml", "gpt", "0f3c9a52-1111-4222-8333-444455556666", 3, 4).master_port == 29_365


def test_the_resume_point_is_the_one_of_the_status() -> None:
    resume = AttemptResume(step=1500, attempt=3, uri="file:///c/ml.gpt/steps/x", manifest_sha256="d" * 64)
    assignment = assignment_for(Job.parse(stored()), 1, STATUS.evolve(resume_point=resume))
    assert assignment.resume == ResumePoint(1500, 3, "file:///c/ml.gpt/steps/x", "d" * 64)
    assert (assignment.attempt, assignment.worker_index, assignment.workers, assignment.start_fresh) == (5, 1, 3, False)


def test_a_changed_spec_acts_at_the_next_attempt() -> None:
    first = Job.parse(stored({"spec.checkpoint.every": {"steps": 100}}))
    assert first.spec is not None
    status = STATUS.evolve(attempt_settings=attempt_settings(first.spec))
    changed = Job.parse(stored({"spec.checkpoint.every": {"seconds": 60}, "spec.checkpoint.keep": {"last": 2, "everySteps": 50}}))
    assert changed.spec is not None
    assert assignment_for(changed, 0, status).settings.save_every == SaveEvery(steps=100)
    after = assignment_for(changed, 0, status.evolve(attempt_settings=attempt_settings(changed.spec))).settings
    assert (after.save_every, after.keep) == (SaveEvery(seconds=60.0), Keep(last=2, every_steps=50))


def test_what_the_runtime_obeys_travels_whole() -> None:
    job = Job.parse(
        stored(
            {
                "spec.checkpoint.store": "s3://bucket/a",
                "spec.checkpoint.s3": {"endpoint": "https://s3.example/", "region": "eu-1"},
                "spec.checkpoint.keep": {"last": 2, "best": {"metric": "accuracy", "mode": "max"}, "daily": 7, "weekly": 4},
                "spec.checkpoint.allow": ["worldSize", "data", "worldSize"],
                "spec.checkpoint.local": {"path": "/checkpoints/"},
                "spec.checkpoint.archive": {"store": "s3://archive", "everySteps": 1000},
            }
        )
    )
    assert job.spec is not None, job.spec_error
    settings = assignment_for(job, 0, STATUS).settings
    assert settings.keep == Keep(last=2, best=Best("accuracy", Goal.MAX), daily=7, weekly=4)
    assert settings.allow == ("worldSize", "data")
    assert settings.s3 == S3Settings("https://s3.example", "eu-1")
    assert (settings.local, settings.archive) == ("/checkpoints", Archive("s3://archive", 1000))


def test_every_text_that_a_user_may_write_comes_to_the_runtime_as_it_was_written() -> None:
    texts = {
        "keep.best.metric": "ä" * 64,
        "s3.region": "ä" * 64,
        "s3.endpoint": "https://".ljust(256, "ä"),
        "local.path": "/checkpoints/".ljust(256, "ä"),
        "archive.store": "s3://archive/".ljust(256, "a"),
    }
    spec = {"store": "file:///checkpoints/store", **texts}
    job = Job.parse(stored({f"spec.checkpoint.{path}": text for path, text in spec.items()}))
    assert job.spec is not None, job.spec_error
    written = STATUS.evolve(attempt_settings=attempt_settings(job.spec)).to_api()
    settings = assignment_for(job, 0, Job.parse(stored({"status": written})).status).settings
    assert settings.keep.best is not None and settings.archive is not None
    travelled = (settings.keep.best.metric, settings.s3.region, settings.s3.endpoint, settings.local, settings.archive.store)
    assert travelled == tuple(texts.values())


def test_a_checkpoint_that_a_person_named_comes_without_a_digest() -> None:
    uri = "s3://bucket/other/steps/0000000500-00000002"
    point = AttemptResume(step=500, attempt=2, uri=uri, mode=ResumeMode.WARM_START, foreign=True)
    assert assignment_for(Job.parse(stored()), 0, STATUS.evolve(resume_point=point)).resume == ResumePoint(
        500, 2, uri, "", ResumeMode.WARM_START
    )


def test_a_spec_that_cannot_be_used_says_why() -> None:
    with pytest.raises(UnusableSpec, match=r"spec\.workers"):
        assignment_for(Job.parse(stored({"spec.workers": 0})), 0, STATUS)
