"""A data file's header: padded to a page whatever its length, and proven against the index before it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trainer_runtime.checkpoint.image import PAGE_BYTES, BadHeader, Placed, check_header, header_bytes, header_length

TENSORS = {"a": Placed("a", "F32", (2,), 0, 8), "e": Placed("e", "F32", (0,), 8, 8), "b": Placed("b", "U8", (3,), 8, 11)}
HEADER = header_bytes(TENSORS.values())
SIZE = len(HEADER) + 11


@pytest.mark.parametrize("count", [0, 1, 40, 5000])
def test_the_data_begins_on_a_page(count: int) -> None:
    header = header_bytes(Placed(f"tensor-{number}", "U8", (1,), number, number + 1) for number in range(count))
    assert len(header) % PAGE_BYTES == 0
    assert header_length(header[:8]) == len(header)
    assert len(json.loads(header[8:])) == count + 1


def test_a_header_that_the_index_describes_passes() -> None:
    check_header(HEADER, SIZE, TENSORS)


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    table = json.loads(HEADER[8:])
    change(table)
    return HEADER[:8] + json.dumps(table).encode()


BAD = [
    pytest.param(HEADER[:8] + b"{", SIZE, TENSORS, "not JSON", id="not JSON"),
    pytest.param(HEADER[:8] + b"[]", SIZE, TENSORS, "not a JSON object", id="a list"),
    pytest.param(changed(lambda table: table.pop("a")), SIZE, TENSORS, r"differ in tensors: \['a'\]", id="a tensor too few"),
    pytest.param(changed(lambda table: table.update(z=1)), SIZE, TENSORS, r"differ in tensors: \['z'\]", id="a tensor too many"),
    pytest.param(changed(lambda table: table["a"].update(dtype="I32")), SIZE, TENSORS, "a: the header says", id="another dtype"),
    pytest.param(changed(lambda table: table["b"].update(shape=[1, 3])), SIZE, TENSORS, "b: the header says", id="another shape"),
    pytest.param(HEADER, SIZE + 1, TENSORS, "make 4107 bytes, the file has 4108", id="a byte too many"),
    pytest.param(
        header_bytes([Placed("a", "U8", (1,), 0, 1), Placed("b", "U8", (1,), 2, 3)]),
        4099,
        {"a": Placed("a", "U8", (1,), 0, 1), "b": Placed("b", "U8", (1,), 2, 3)},
        "b: begins at 2, but the tensor before it ends at 1",
        id="a hole",
    ),
]


@pytest.mark.parametrize(("header", "size", "expected", "message"), BAD)
def test_a_header_that_differs_is_named(header: bytes, size: int, expected: dict[str, Placed], message: str) -> None:
    with pytest.raises(BadHeader, match=message):
        check_header(header, size, expected)


@pytest.mark.parametrize("first_bytes", [b"", b"1234567", b"\xff" * 8], ids=["empty", "short", "absurd length"])
def test_a_length_that_cannot_be_is_named(first_bytes: bytes) -> None:
    with pytest.raises(BadHeader, match="shorter than|more than safetensors' limit"):
        header_length(first_bytes)
