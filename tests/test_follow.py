"""Logs that grow while they are read: each call is told once, whenever one looks."""

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from logwriter import START_NS, Event, Process, event, events_unit, header_page, text
from penstock.errors import LogError
from penstock.log.events import read_log
from penstock.log.follow import Follower, News
from penstock.log.texts import FILE_TEXT, NAME_TEXT

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)
PAGE = {"state": "running", "units": 64}


class Growing:
    """A log on disk whose units are written one by one, as the recorder does it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.log"
        self.path.write_bytes(header_page(**PAGE) + bytes(64 * 65536))
        self.follower = Follower(self.path)

    def put(self, unit: int, data: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(65536 * (unit + 1))
            file.write(data)

    def look(self) -> News:
        return self.follower.look()

    def starts(self) -> list[int]:
        return (self.look().finished.start_ns - START_NS).tolist()


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


def reads(*starts: int) -> list[Event]:
    return [event("read", START_NS + start, 5) for start in starts]


def open_read(start: int) -> Event:
    return event("read", START_NS + start, 0)


def test_what_is_new_is_told_once(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1, 2), round=1, first=START_NS))
    assert growing.starts() == [1, 2]
    assert growing.starts() == []
    growing.put(0, events_unit(reads(1, 2, 30), round=1, first=START_NS))
    assert growing.starts() == [30]


def test_a_call_under_way_is_shown_until_it_ends_and_then_told(growing: Growing) -> None:
    growing.put(0, events_unit([*reads(1), open_read(2), *reads(3)], round=1, first=START_NS))
    news = growing.look()
    assert (news.finished.start_ns - START_NS).tolist() == [1, 3]
    assert (news.in_flight.start_ns - START_NS).tolist() == [2]
    assert len(growing.look().in_flight) == 1
    growing.put(0, events_unit(reads(1, 2, 3), round=1, first=START_NS))
    news = growing.look()
    assert (news.finished.start_ns - START_NS).tolist() == [2]
    assert len(news.in_flight) == 0


def test_a_block_that_filled_between_two_looks_is_read_from_its_copy(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1, 2), round=1, first=START_NS))
    assert growing.starts() == [1, 2]
    growing.put(1, events_unit(reads(1, 2, 3, 4), round=1, first=START_NS))
    growing.put(2, events_unit(reads(11, 12), round=2, first=START_NS + 10))
    growing.put(0, events_unit(reads(21), round=3, first=START_NS + 20))
    assert growing.starts() == [3, 4, 11, 12, 21]
    assert growing.starts() == []


def test_a_call_that_is_carried_over_is_told_when_it_ends(growing: Growing) -> None:
    growing.put(0, events_unit([*reads(1)], round=1, first=START_NS))
    assert growing.starts() == [1]
    growing.put(1, events_unit([*reads(1), open_read(2), *reads(3)], round=1, first=START_NS))
    growing.put(
        0, events_unit([open_read(2), *reads(11)], round=2, first=START_NS + 10, n_carried=1)
    )
    news = growing.look()
    assert (news.finished.start_ns - START_NS).tolist() == [3, 11]
    assert (news.in_flight.start_ns - START_NS).tolist() == [2]
    growing.put(0, events_unit(reads(2, 11), round=2, first=START_NS + 10, n_carried=1))
    assert growing.starts() == [2]


def test_a_call_that_began_and_was_carried_between_looks_is_not_lost(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1), round=1, first=START_NS))
    assert growing.starts() == [1]
    growing.put(1, events_unit([*reads(1), open_read(2), *reads(3)], round=1, first=START_NS))
    growing.put(0, events_unit(reads(2, 11), round=2, first=START_NS + 10, n_carried=1))
    assert sorted(growing.starts()) == [2, 3, 11]


def test_a_copy_that_may_still_be_written_waits(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1, 2), round=1, first=START_NS))
    growing.put(1, events_unit(reads(1), round=1, first=START_NS))  # its second page is to come
    assert growing.starts() == [1, 2]
    growing.put(1, events_unit(reads(1, 2, 3), round=1, first=START_NS))
    growing.put(0, events_unit(reads(9), round=2, first=START_NS + 8))
    assert growing.starts() == [3, 9]


def test_spans_that_a_fold_keeps_in_their_block_are_told_once(growing: Growing) -> None:
    span = event("span", START_NS + 2, 5)
    growing.put(0, events_unit([*reads(1), span, *reads(3)], round=1, first=START_NS))
    assert growing.starts() == [1, 2, 3]
    growing.put(0, events_unit([span, *reads(11)], round=2, first=START_NS + 10, n_carried=1))
    assert growing.starts() == [11]
    assert growing.starts() == []


def test_threads_are_told_apart_and_may_come_late(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1), round=1, thread=1, first=START_NS))
    assert growing.starts() == [1]
    growing.put(2, events_unit(reads(5), round=2, thread=2, first=START_NS))
    growing.put(3, events_unit(reads(5, 6), round=3, thread=3, first=START_NS))
    news = growing.look()
    assert news.finished.thread.tolist() == [2, 3, 3]


def test_texts_come_with_the_look_that_sees_them(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1), [text(NAME_TEXT, 7, "data wait")], first=START_NS))
    assert [(one.id, one.name) for one in growing.look().texts] == [(7, "data wait")]


def test_a_file_is_found_when_it_is_asked_for(growing: Growing) -> None:
    growing.put(0, events_unit(reads(1), [text(FILE_TEXT, 9, "/data/a")], first=START_NS))
    growing.look()
    found = growing.follower.find_file(9)
    assert found is not None
    assert found.name == "/data/a"
    assert growing.follower.find_file(10) is None


def test_the_first_look_reads_only_the_latest_blocks_of_a_long_log(growing: Growing) -> None:
    for n in range(6):
        unit = events_unit(
            reads(100 * n + 1), [text(NAME_TEXT, n, str(n))], round=1 + n, first=START_NS + 100 * n
        )
        growing.put(n + 1, unit)
    growing.put(0, events_unit(reads(601), round=7, first=START_NS + 600))
    follower = Follower(growing.path, backlog_units=2)
    news = follower.look()
    assert (news.finished.start_ns - START_NS).tolist() == [401, 501, 601]
    assert {one.id for one in news.texts} == set(range(6))
    assert news.skipped_ns == START_NS + 306
    assert follower.look().skipped_ns is None


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400), at=st.integers(0, 3 * 65536), units=st.integers(0, 1 << 40))
def test_whatever_a_log_holds_a_look_ends(
    data: bytes, at: int, units: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.log"
    log = bytearray(
        header_page(state="running", units=units)
        + events_unit(reads(1, 2), [text(NAME_TEXT, 1, "x")], first=START_NS)
        + events_unit(reads(1), round=2, first=START_NS)
    )
    log[at : at + len(data)] = data
    path.write_bytes(bytes(log))
    follower = Follower(path)
    with contextlib.suppress(LogError):
        for _ in range(2):
            follower.look()
        follower.find_file(3)


def test_a_log_of_a_finished_process_is_told_whole(tmp_path: Path) -> None:
    process = Process()
    for n in range(4000):
        process.call("read", 1000 * (n + 1), 500, "/data/a", moved=n)
    path = process.write(tmp_path)
    told = Follower(path).look(is_over=True).finished
    assert told.moved.tolist() == list(range(4000))


@needs_library
def test_every_call_of_three_busy_threads_is_told_once(tmp_path: Path) -> None:
    program = """
        import os, sys, threading, time, penstock
        def work():
            fd = os.open("/proc/self/exe", os.O_RDONLY)
            for _ in range(20000):
                os.pread(fd, 10, 0)
            while not os.path.exists(sys.argv[2]):
                os.pread(fd, 10, 0)
                time.sleep(0.001)
            os.close(fd)
        with penstock.record(sys.argv[1]):
            threads = [threading.Thread(target=work) for _ in range(3)]
            [thread.start() for thread in threads]
            with penstock.span("all of it"):
                [thread.join() for thread in threads]
    """
    (tmp_path / "run").mkdir()
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", textwrap.dedent(program), tmp_path / "run", seen]
    process = subprocess.Popen(command)
    looks, followers = [], {}
    is_over = False
    while not is_over:
        is_over = process.poll() is not None
        for path in tmp_path.glob("run/*.events"):
            try:
                looks.append(followers.setdefault(path, Follower(path)).look().finished)
            except LogError:  # its header is being made
                assert not is_over
        if len(looks) > 10:
            seen.touch()
    assert process.returncode == 0
    (path,) = followers
    whole = list(read_log(path).events())
    for name in ("start_ns", "moved"):
        told = np.sort(np.concatenate([getattr(one, name) for one in looks]))
        there = np.sort(np.concatenate([getattr(one, name)[one.duration_ns >= 0] for one in whole]))
        if name == "start_ns":  # the clock's rate is known better at the end
            assert len(told) == len(there)
        else:
            assert np.array_equal(told, there)
