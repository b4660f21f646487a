"""The ranks' output on real pipes: passed on unchanged, read for signals, never in anybody's way."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.launch.harness import until
from trainer_runtime.launch import tail as tail_module
from trainer_runtime.launch.tail import Found, Tail

XID = b"NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE\n"


@dataclass
class Console:
    """What the container's log would hold."""

    read_fd: int
    write_fd: int
    data: bytearray = field(default_factory=bytearray)

    def collect(self) -> None:
        while chunk := os.read(self.read_fd, 65536):
            self.data += chunk


@pytest.fixture
def console() -> Iterator[Console]:
    console = Console(*os.pipe())
    thread = threading.Thread(target=console.collect)
    thread.start()
    yield console
    close(console.write_fd)
    thread.join(timeout=10)
    os.close(console.read_fd)


def close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # the test closed it


def make_tail() -> tuple[Tail, queue.SimpleQueue[Found]]:
    found: queue.SimpleQueue[Found] = queue.SimpleQueue()
    return Tail(found.put), found


def test_every_byte_of_a_rank_comes_out_in_its_order(console: Console) -> None:
    tail, _found = make_tail()
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, console.write_fd, rank=0)
    sent = os.urandom(3_000_000)
    rest = sent
    while rest:
        rest = rest[os.write(write_fd, rest[:70_000]) :]
    os.close(write_fd)
    tail.finish(10)
    os.close(console.write_fd)
    until(lambda: len(console.data) == len(sent), "all bytes", 10)
    assert bytes(console.data) == sent


def test_the_lines_of_two_ranks_do_not_mix(console: Console) -> None:
    tail, _found = make_tail()
    pipes = [os.pipe() for _ in range(2)]
    for rank, (read_fd, _write_fd) in enumerate(pipes):
        tail.add(read_fd, console.write_fd, rank=rank)
    for number in range(200):
        for rank, (_read_fd, write_fd) in enumerate(pipes):
            os.write(write_fd, f"rank {rank} ".encode())
        for _read_fd, write_fd in pipes:
            os.write(write_fd, f"line {number}\n".encode())
    for _read_fd, write_fd in pipes:
        os.close(write_fd)
    tail.finish(10)
    os.close(console.write_fd)
    expected = sorted(f"rank {rank} line {number}" for rank in range(2) for number in range(200))
    until(lambda: len(console.data) >= sum(len(line) + 1 for line in expected), "all lines", 10)
    assert sorted(console.data.decode().splitlines()) == expected


def test_the_beginning_of_a_line_does_not_wait_for_ever(console: Console) -> None:
    tail, _found = make_tail()
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, console.write_fd, rank=0)
    os.write(write_fd, b"password? ")
    until(lambda: bytes(console.data) == b"password? ", "the prompt", 10)
    os.close(write_fd)
    tail.finish(10)


def test_a_signal_cut_between_two_reads_is_found_with_its_rank(console: Console) -> None:
    tail, found = make_tail()
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, console.write_fd, rank=7)
    os.write(write_fd, XID[:20])
    until(lambda: bytes(console.data) == XID[:20], "the first half", 10)
    os.write(write_fd, XID[20:])
    news = found.get(timeout=10)
    assert (news.rank, news.finding.fault_class) == (7, "gpu_ecc_uncorrectable")
    os.close(write_fd)
    tail.finish(10)


def test_the_last_line_is_read_even_without_its_end(console: Console) -> None:
    tail, found = make_tail()
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, console.write_fd, rank=0)
    os.write(write_fd, XID.rstrip())
    os.close(write_fd)
    tail.finish(10)
    assert found.get(timeout=1).finding.fault_class == "gpu_ecc_uncorrectable"


def test_a_parser_that_cannot_keep_up_holds_nothing_back(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MAX_UNREAD_BYTES", 100_000)
    may_go_on = threading.Event()
    tail = Tail(lambda _found: None if may_go_on.wait(20) else None)
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, console.write_fd, rank=0)
    os.write(write_fd, XID)
    line = b"x" * 999 + b"\n"
    for _ in range(2000):
        os.write(write_fd, line)
    until(lambda: len(console.data) == len(XID) + 2000 * len(line), "all output", 20)
    assert tail._unread_bytes <= 100_000
    may_go_on.set()
    os.close(write_fd)
    tail.finish(10)


def test_ranks_go_on_when_nobody_reads_the_log_any_more() -> None:
    tail, found = make_tail()
    log_read_fd, log_write_fd = os.pipe()
    os.close(log_read_fd)
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, log_write_fd, rank=0)
    for _ in range(1000):
        os.write(write_fd, b"x" * 1000 + b"\n")
    os.write(write_fd, XID)
    assert found.get(timeout=10).finding.fault_class == "gpu_ecc_uncorrectable"
    os.close(write_fd)
    tail.finish(10)
    os.close(log_write_fd)


def test_output_that_a_stray_process_holds_open_does_not_hold_up_the_end(console: Console) -> None:
    tail, _found = make_tail()
    read_fd, write_fd = os.pipe()
    tail.add(read_fd, console.write_fd, rank=0)
    os.write(write_fd, b"last words\n")
    tail.finish(10)
    until(lambda: bytes(console.data) == b"last words\n", "the last words", 10)
    os.close(write_fd)
