"""Beats in memory: which one counts, what is news, and what the channel looks like as a whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rtj_operator.heartbeat.beats import BeatBook
from tests.heartbeat.beats_data import JOB_UID, POD_UID, beat, record
from trainer_runtime.contract.beat import ArchiveLook, Beat, Level, Phase, SaveFailure
from trainer_runtime.contract.evidence import Evidence, Source, Strength

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVIDENCE = Evidence(at=1.0, source=Source.LOG, fault_class="nccl_timeout", strength=Strength.VICTIM, text="…", attempt=1)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def newest(book: BeatBook, *pod_uids: str) -> Beat:
    return book.of_job(JOB_UID, frozenset(pod_uids or (POD_UID,)))[0].beat


@pytest.mark.parametrize(
    ("second", "is_taken"),
    [
        pytest.param(beat(sequence=3, sent_at=101.0), True, id="the next one counts"),
        pytest.param(beat(sequence=1, sent_at=99.0), False, id="an older one that arrives late does not"),
        pytest.param(beat(sequence=2, sent_at=100.0), False, id="the same one again does not"),
        pytest.param(beat(sequence=0, sent_at=200.0), True, id="the first one of a restarted sender counts"),
        pytest.param(beat(sequence=3, sent_at=101.0, attempt=0), False, id="one of an attempt that the pod has left does not"),
    ],
)
def test_the_newest_beat_of_a_sender_counts(second: Beat, is_taken: bool) -> None:
    book = BeatBook(NOW)
    assert book.take(beat(sequence=2), "gpt-1-0", NOW) is not None
    assert (book.take(second, "gpt-1-0", later(1)) is not None) is is_taken
    assert newest(book) == (second if is_taken else beat(sequence=2))


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        pytest.param({"step": 11}, False, id="a step alone"),
        pytest.param({"loss": 2.5}, False, id="a loss alone"),
        pytest.param({"phase": Phase.SAVE}, True, id="a phase"),
        pytest.param({"attempt": 2}, True, id="an attempt"),
        pytest.param({"records": (record(),)}, True, id="a record"),
        pytest.param({"evidence": (EVIDENCE,)}, True, id="evidence"),
        pytest.param({"save_failure": SaveFailure(10, "no space left")}, True, id="a save that failed"),
        pytest.param({"archive": ArchiveLook(1, "no answer")}, True, id="an archive that failed"),
        pytest.param({"delete_proposals": ()}, False, id="nothing at all"),
    ],
)
def test_news_wakes_the_job_and_progress_alone_does_not(change: dict[str, object], wakes: bool) -> None:
    book = BeatBook(NOW)
    book.take(beat(), "gpt-1-0", NOW)
    news = book.take(beat(sequence=2, sent_at=101.0, **change), "gpt-1-0", later(5))
    assert news is not None
    assert news.wakes is wakes


def test_the_same_record_at_a_higher_level_is_news_and_a_repeated_one_is_not() -> None:
    book = BeatBook(NOW)
    book.take(beat(records=(record(),)), "gpt-1-0", NOW)
    repeated = book.take(beat(sequence=2, sent_at=101.0, records=(record(),)), "gpt-1-0", later(1))
    verified = book.take(beat(sequence=3, sent_at=102.0, records=(record(level=Level.VERIFIED),)), "gpt-1-0", later(2))
    assert repeated is not None and not repeated.wakes
    assert verified is not None and verified.wakes


def test_the_inventory_is_news_only_while_a_worker_holds() -> None:
    book = BeatBook(NOW)
    book.take(beat(phase=Phase.HOLD, step=None), "gpt-1-0", NOW)
    news = book.take(beat(sequence=2, sent_at=101.0, phase=Phase.HOLD, step=None, inventory=(record(),)), "gpt-1-0", later(1))
    assert news is not None and news.wakes


@pytest.mark.parametrize(
    ("beats", "advanced"),
    [
        pytest.param([(1, None), (1, 10), (1, 10), (1, 11), (1, 9)], [False, True, False, True, False], id="one attempt"),
        pytest.param([(1, 500), (2, None), (2, 400)], [True, False, True], id="a new attempt begins anew, even at a lower step"),
    ],
)
def test_a_step_that_grew_is_news(beats: list[tuple[int, int | None]], advanced: list[bool]) -> None:
    book = BeatBook(NOW)
    news = [
        book.take(beat(sequence=number, sent_at=100.0 + number, attempt=attempt, step=step), "gpt-1-0", later(number))
        for number, (attempt, step) in enumerate(beats)
    ]
    assert [one is not None and one.advanced for one in news] == advanced


def test_a_stale_worker_of_an_older_attempt_does_not_hide_the_present_one() -> None:
    book = BeatBook(NOW)
    book.take(beat(attempt=2, pod_uid="new"), "gpt-2-0", NOW)
    book.take(beat(attempt=1, pod_uid="old", sequence=99, sent_at=900.0), "gpt-1-0", later(1))
    assert newest(book, "new", "old").pod_uid == "new"


def test_only_pods_that_exist_are_heard_and_the_others_are_forgotten() -> None:
    book = BeatBook(NOW)
    book.take(beat(pod_uid="old"), "gpt-1-0", NOW)
    assert book.of_job(JOB_UID, frozenset({"new"})) == {}
    book.forget_pods(JOB_UID, frozenset({"new"}))
    assert book.of_job(JOB_UID, frozenset({"old"})) == {}


def test_the_channel_counts_running_senders_and_the_silent_ones_among_them() -> None:
    book = BeatBook(NOW)
    for pod_uid, at in (("fresh", 600.0), ("silent", 550.0), ("long gone", -10.0), ("ended", 600.0)):
        book.take(beat(pod_uid=pod_uid, job_uid=f"job of {pod_uid}"), pod_uid, later(at))
    view = book.senders(lambda pod_uid: pod_uid != "ended", later(601), later(30))
    assert (view.listening_since, view.known, view.silent, view.api_outage_until) == (NOW, 2, 1, later(30))


def test_the_count_of_senders_is_at_most_a_second_old() -> None:
    book = BeatBook(NOW)
    assert book.senders(lambda _: True, NOW, None).known == 0
    book.take(beat(), "gpt-1-0", NOW)
    assert book.senders(lambda _: True, later(0.5), None).known == 0
    assert book.senders(lambda _: True, later(1), None).known == 1


def test_a_job_that_is_gone_leaves_nothing_behind() -> None:
    book = BeatBook(NOW)
    book.take(beat(), "gpt-1-0", NOW)
    book.forget_job(JOB_UID)
    assert book.of_job(JOB_UID, frozenset({POD_UID})) == {}
    assert book.senders(lambda _: True, NOW, None).known == 0


def test_silence_counts_from_when_senders_could_reach_us() -> None:
    book = BeatBook(NOW)
    book.listening(later(300))
    assert book.senders(lambda _: True, later(301), None).listening_since == later(300)
