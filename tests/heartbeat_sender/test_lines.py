"""Lines through a pipe come whole, however they were cut on the way."""

from __future__ import annotations

import os

import pytest

from trainer_runtime.heartbeat.lines import whole_lines


@pytest.mark.parametrize(
    ("writes", "lines"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"ne\nt", b"wo\n"], [b"one", b"two"]),
        ([b"one\ntw"], [b"one"]),
        ([b"\n"], [b""]),
        ([], []),
    ],
    ids=["two at once", "in pieces", "the last one unfinished", "an empty one", "nothing"],
)
def test_lines_come_whole_and_an_unfinished_last_one_does_not_come(writes: list[bytes], lines: list[bytes]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        for data in writes:
            os.write(writing, data)
        os.close(writing)
        assert list(whole_lines(stream)) == lines
