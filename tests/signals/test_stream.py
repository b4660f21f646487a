"""The stream's promises: any split gives the same incidents, memory is bounded, and bytes that are no text do no harm."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signals.lines import BY_ID, CASES, Case, incidents_of, log_of, verdicts_of
from trainer_runtime.signals import Finding, LineStream, gpu, python_errors, torchelastic
from trainer_runtime.signals.classify import RULES
from trainer_runtime.signals.fault_classes import NONE
from trainer_runtime.signals.merge import MAX_INCIDENTS
from trainer_runtime.signals.prefilter import SCENTS, may_matter
from trainer_runtime.signals.stream import MAX_LINE_BYTES, MAX_OPEN_LINES, MAX_WRITERS
from trainer_runtime.signals.xid import XID_LITERAL

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in main\n    raise RuntimeError("CUDA out of memory")\n'
    "ValueError: bad batch 17\n"
)
LITERALS = (
    XID_LITERAL,
    *(rule.literal for rule in RULES if rule.fault_class != NONE),
    torchelastic.EXITED_LITERAL,
    torchelastic.REPORT_START,
    python_errors.TRACEBACK_START,
    *python_errors.CHAINED,
    gpu.OFF_BUS_LITERAL,
    gpu.OFF_BUS_END,
)
"""Every line that means a fault contains one of these, or belongs to a block that such a line began."""
WHOLE_LOG = "\n".join(case.text for case in CASES) + "\n" + TRACEBACK


def incidents_of_pieces(pieces: list[bytes]) -> tuple[Finding, ...]:
    stream = LineStream()
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return stream.incidents


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_split_at_any_byte_changes_nothing(case: Case) -> None:
    data = case.text.encode()
    whole = incidents_of(data)
    assert all(incidents_of_pieces([data[:cut], data[cut:]]) == whole for cut in range(len(data) + 1))


def test_a_whole_log_byte_by_byte_gives_the_same_incidents() -> None:
    data = WHOLE_LOG.encode()
    assert incidents_of_pieces([bytes([byte]) for byte in data]) == incidents_of(data)


@pytest.mark.parametrize("seed", range(30))
def test_a_whole_log_in_random_pieces_gives_the_same_incidents(seed: int) -> None:
    chance = random.Random(seed)
    data, pieces = WHOLE_LOG.encode(), []
    while data:
        size = chance.randint(1, 3000)
        pieces.append(data[:size])
        data = data[size:]
    assert incidents_of_pieces(pieces) == incidents_of(WHOLE_LOG)


def test_every_literal_that_a_rule_looks_for_passes_the_filter() -> None:
    assert [literal for literal in LITERALS if not may_matter(literal.encode())] == []


def test_every_scent_of_the_filter_is_needed() -> None:
    assert [scent for scent in SCENTS if not any(scent in literal for literal in LITERALS)] == []


def test_an_ordinary_line_is_filtered_out() -> None:
    assert not may_matter(b"2026-01-21 04:41:44 INFO step 12034 epoch 3 loss 2.3412 lr 1.2e-04 grad norm 0.83 tokens/s 123456.7\n")


def test_a_line_of_a_million_characters_is_cut_and_the_next_one_is_read() -> None:
    stream = LineStream()
    tracemalloc.start()
    for _ in range(1000):
        stream.feed(b"x" * 1000)
    (_now, peak) = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * MAX_LINE_BYTES
    stream.feed(f"\n{BY_ID['M39'].text}\n".encode())
    assert [finding.fault_class for finding in stream.incidents] == ["gpu_fallen_off"]


def test_a_progress_bar_without_line_ends_hides_nothing() -> None:
    bar = b"".join(b"\r%d%%|####      | %d/100000 [00:12<99:59, 3.1it/s]" % (number // 1000, number) for number in range(100_000))
    assert verdicts_of(bar + b"\rRuntimeError: CUDA error: uncorrectable ECC error encountered\n") == [("gpu_ecc_uncorrectable", "NODE")]


@given(st.binary(max_size=4000))
def test_bytes_that_are_no_text_do_no_harm(junk: bytes) -> None:
    stream = LineStream()
    stream.feed(junk)
    stream.feed(f"\n{BY_ID['M39'].text}\n".encode())
    stream.finish()
    assert "gpu_fallen_off" in [finding.fault_class for finding in stream.incidents]


@given(
    st.lists(st.sampled_from([*SCENTS, "Xid (", "[Rank 1]", "[rank1]: ", "0000:a1:00", "\n", "\x1b[3", "é", "9" * 30, " "]), max_size=60)
)
def test_scrambled_signal_words_raise_nothing(words: list[str]) -> None:
    incidents_of("".join(words))


def test_memory_stays_bounded_while_a_job_prints_unlike_faults_for_ever() -> None:
    stream = LineStream()
    for number in range(5000):
        stream.feed(
            f"[rank{number}]: Traceback (most recent call last):\n[rank{number}]: Weird{'x' * (number % 50)}Error: at {number:x}\n".encode()
        )
        stream.feed(f"[rank{number + 5000}]: Traceback (most recent call last):\n".encode())
    assert len(stream.incidents) <= MAX_INCIDENTS
    assert len(stream._writers) <= MAX_WRITERS


def test_a_traceback_that_never_ends_is_given_up() -> None:
    stream = LineStream()
    stream.feed(b"[rank3]: Traceback (most recent call last):\n")
    stream.feed(b"step 1 loss 2.0\n" * (MAX_OPEN_LINES + 1))
    assert stream.feed(b"[rank3]: ValueError: of something else\n") == []
    assert stream.incidents == ()


@pytest.mark.parametrize(
    "advice",
    [
        "This error may be caused by an uncorrectable ECC error encountered on the device.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1 to see device-side assert triggered.",
        "This is possibly due to CUDA out of memory on another rank.",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    ],
)
def test_advice_is_no_evidence(advice: str) -> None:
    assert verdicts_of(advice) == []


@pytest.mark.parametrize("line", ["Killed", "bash: line 1:  4242 Killed                  python train.py", "+ kill -9 4242"])
def test_a_bare_killed_is_not_memory(line: str) -> None:
    assert verdicts_of(line) == []


def test_a_time_out_after_the_training_is_done_is_teardown() -> None:
    assert verdicts_of(log_of("M03", "M08", "M77"), training_done=True) == []
    assert verdicts_of(log_of("M39"), training_done=True) == [("gpu_fallen_off", "NODE")]


@pytest.mark.parametrize(
    ("prefix", "fields"),
    [
        pytest.param("[rank3]: ", {"rank": 3}, id="torch"),
        pytest.param("[default0]:", {"local_rank": 0}, id="torchrun"),
        pytest.param("[trainer0|11]:", {"local_rank": 0, "rank": 11}, id="torchrun with ranks"),
        pytest.param("[pod/w-1/trainer] [rank4]: ", {"rank": 4}, id="kubectl and torch"),
        pytest.param("2026-01-01T00:00:00.123456789Z [rank4]: ", {"rank": 4}, id="time and torch"),
    ],
)
def test_the_rank_is_read_from_the_prefix(prefix: str, fields: dict[str, int]) -> None:
    (finding,) = incidents_of(f"{prefix}RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert {name: finding.fields[name] for name in finding.fields if name in ("rank", "local_rank")} == fields


def test_the_prefixs_rank_wins_over_the_rank_inside_a_process_group() -> None:
    (finding,) = incidents_of(log_of("M06"))
    assert (finding.fields["rank"], finding.fields["group_rank"]) == (13, 1)


def test_the_rank_in_the_default_group_is_the_global_one() -> None:
    (finding,) = incidents_of(log_of("M16"))
    assert finding.fields["rank"] == 2
