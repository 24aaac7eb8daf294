"""What read_log makes of logs: whole, cut, damaged, foreign, hostile."""

import errno
import gzip
import json
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logwriter import (
    EVENT_BYTES,
    HEADER_BYTES,
    NO_EVENT,
    OP,
    START_NS,
    UNIT_BYTES,
    Process,
    block_head,
    counters_unit,
    event,
    events_unit,
    header_page,
    text,
)
from penstock.errors import LogError
from penstock.log.events import Log, read_log
from penstock.log.header import read_header
from penstock.log.layout import ACCESS, EVENT, EVENTS_PER_UNIT, HEADER, REST_OP
from penstock.log.texts import FILE_TEXT, NAME_TEXT, NOTE_TEXT

LOGS = Path(__file__).parent / "logs"
T = START_NS


@pytest.fixture
def write(tmp_path):
    """Writes bytes to a file and reads it as a log."""

    def write(data: bytes) -> Log:
        path = tmp_path / "p.log"
        path.write_bytes(data)
        return read_log(path)

    return write


def ops_of(log: Log) -> list[int]:
    return [int(op) for events in log.events() for op in events.op]


def column(log: Log, name: str) -> list[int]:
    return [int(value) for events in log.events() for value in getattr(events, name)]


def everything(log: Log) -> int:
    """Reads all that a log offers; how many things there were."""
    n = sum(map(len, log.events())) + sum(map(len, log.counters()))
    return n + len(list(log.texts())) + len(log.threads) + len(log.notes())


def small_log() -> bytes:
    """Two threads, texts of each kind, counters of both: all that a log can hold, in five units."""
    process = Process(ticks_per_ns=2.5, start_ticks=10**12)
    process.call("open", 1000, 500, "/data/a.bin")
    process.call("read", 2000, 500, "/data/a.bin", offset=0, asked=4096, moved=4096)
    process.call("read", 3000, 0, "/data/a.bin", thread=2, offset=4096, asked=4096)
    process.step(7, 500, 9000)
    process.note("unseen", "io_uring")
    process.fold({"file": 1, "op": "read", "calls": 3, "moved": 300})
    process.fold({"file": 1, "op": "open", "calls": 2}, is_access=False)
    return process.bytes()


# --- whole logs ----------------------------------------------------------------------------------


def test_an_event_is_read_as_it_was_written(write):
    one = event("pread", T + 5, 7, file=0x12345678, offset=1 << 40, asked=9, moved=8, errno=5)
    (events,) = write(header_page(units=1) + events_unit([one])).events()
    row = {name: getattr(events, name)[0] for name in type(events).__slots__}
    assert row == {
        "thread": 1,
        "op": OP["pread"],
        "errno": errno.EIO,
        "file": 0x12345678,
        "start_ns": T + 5,
        "duration_ns": 7,
        "offset": 1 << 40,
        "asked": 9,
        "moved": 8,
    }


def test_the_header_is_read_as_it_was_written(write):
    page = header_page(
        rank=3, state="failed", error=28, reason=b"the log cannot grow: no space left"
    )
    header = write(page).header
    assert (header.pid, header.ppid, header.host) == (100, 1, "node1")
    assert (header.rank, header.local_rank, header.world_size) == (3, None, None)
    assert (header.state, header.error) == ("failed", 28)
    assert header.reason == "the log cannot grow: no space left"
    assert header.command == ("python", "train.py")
    assert header.boot_id == "000102030405060708090a0b0c0d0e0f"


def test_texts_are_read_as_they_were_written(write):
    tail = [
        text(FILE_TEXT, 1, b"a\xff", "/real", base=2, mode=0o100644, device=3, inode=4, size=5),
        text(NAME_TEXT, 9, "step"),
        text(NOTE_TEXT, 0, "unseen", "io_uring"),
    ]
    log = write(header_page(units=1) + events_unit([], tail))
    file, name, _ = log.texts()
    assert os.fsencode(file.name) == b"a\xff"
    assert (file.id, file.base, file.mode, file.device, file.inode, file.size_bytes) == (
        *(1, 2, 0o100644, 3, 4),
        5,
    )
    assert file.resolved == "/real"
    assert (name.kind, name.id, name.name) == (NAME_TEXT, 9, "step")
    assert log.notes() == [("unseen", "io_uring")]
    assert log.bases == {2}


def test_counters_are_read_as_they_were_written(write):
    record = {"file": 1, "op": "read", "calls": 3, "buckets": range(10), "max_end": -1}
    (access,) = write(header_page(units=1) + counters_unit([record], is_access=True)).counters()
    assert access["calls"].tolist() == [3]
    assert access["buckets"].tolist() == [list(range(10))]
    assert access["max_end"].tolist() == [-1]
    record = {"file": 1, "op": "open", "calls": 2, "last": 77}
    (calls,) = write(header_page(units=1) + counters_unit([record], is_access=False)).counters()
    assert (calls["calls"].tolist(), calls["last"].tolist()) == ([2], [77])


def test_events_of_chosen_ops_are_those_of_all_ops_chosen(write):
    unit = events_unit([event(op, T + 1) for op in ("read", "write", "read", "step")])
    log = write(header_page(units=1) + unit)
    chosen = [int(op) for part in log.events(ops=[OP["read"]]) for op in part.op]
    assert chosen == [OP["read"]] * 2
    assert [len(part) for part in log.events(ops=[])] == [0]


def test_a_part_of_the_blocks_gives_their_events_only(write):
    units = [events_unit([event("read", T + i)], round=i + 1) for i in range(150)]
    log = write(header_page(units=150) + b"".join(units))
    assert column(log, "start_ns") == [T + i for i in range(150)]
    part = [int(ns) for events in log.events(70, 80) for ns in events.start_ns]
    assert part == [T + i for i in range(70, 80)]


def test_slots_that_were_never_written_are_no_events(write):
    # The recorder writes start and op last, and at once: a kill before that leaves the others.
    unfinished = event(0, 1, 0, file=1 << 16, offset=7, asked=9)
    rows = [event("read", T + 1), NO_EVENT, unfinished, event(0, T + 2)]
    unit = events_unit([*rows, event("write", T + 3)], used=10, first=1)
    log = write(header_page(units=1) + unit)
    assert ops_of(log) == [OP["read"], OP["write"]]


@pytest.mark.parametrize(
    "fields",
    [
        {"start": T},
        {"start": T + (1 << 41)},
        {"start": T + 60, "asked": 1 << 32},
        {"start": T + 60, "moved": (1 << 62) + 5},
        {"start": T + 60, "duration": 1 << 50},
    ],
)
def test_what_does_not_fit_an_event_stands_in_its_rest(write, fields):
    wide = event("read", file=0x12345678, offset=-1, errno=5, **fields)
    rows = [event("open", T + 55), wide, event("close", T + (1 << 40))]
    (events,) = write(header_page(units=1) + events_unit(rows, first=T + 50)).events()
    assert events.op.tolist() == [OP["open"], OP["read"], OP["close"]]
    assert events.start_ns.tolist() == [T + 55, wide.start, T + (1 << 40)]
    assert events.duration_ns.tolist() == [10, wide.duration, 10]
    assert events.asked.tolist() == [0, wide.asked, 0]
    assert events.moved.tolist() == [0, wide.moved, 0]
    assert (events.file[1], events.errno[1]) == (0x12345678, 5)


def test_a_duration_too_long_for_its_bits_loses_only_its_lowest(write):
    ticks = (1 << 45) + 12345
    (events,) = write(header_page(units=1) + events_unit([event("read", 1, ticks)])).events()
    assert events.duration_ns.tolist() == [ticks >> 16 << 16]


def test_a_rest_without_its_event_belongs_to_nothing(write):
    wide = event("read", T, asked=1 << 40)
    unit = bytearray(events_unit([wide, event("write", T + 60), wide], first=T + 50))
    unit[64:72] = bytes(8)  # the first event was taken back
    assert column(write(header_page(units=1) + bytes(unit)), "asked") == [0, 1 << 40]
    unit[64:96] = unit[96:128]  # a rest in the first slot, and one after it
    assert column(write(header_page(units=1) + bytes(unit)), "asked") == [0, 1 << 40]


def test_a_call_without_duration_is_in_flight(write):
    log = write(header_page(units=1) + events_unit([event("read", T + 1, 0), event("read", T + 2)]))
    assert column(log, "duration_ns") == [-1, 10]


def test_more_slots_reserved_than_fit_are_not_there(write):
    rows = [event("read", T + 1)] * 3
    assert len(ops_of(write(header_page(units=1) + events_unit(rows, used=9, limit=2)))) == 2


def test_of_two_blocks_of_one_round_the_fuller_counts(write):
    rows = [event("read", T + i + 1) for i in range(5)]
    units = [
        events_unit(rows[:4], round=7),
        events_unit(rows, round=7),
        events_unit(rows[:1], round=7),
        events_unit(rows[:2], round=8, thread=2),
    ]
    log = write(header_page(units=4) + b"".join(units))
    assert column(log, "thread") == [1] * 5 + [2] * 2
    assert log.damaged_units == 0


def test_a_call_in_flight_that_the_next_block_carries_on_is_told_once(write):
    units = [
        events_unit([event("span", T + 1, 0), event("read", T + 2)], round=1, first=T),
        events_unit([event("span", T + 1, 0)], round=2, first=T + 50, n_carried=1),
        events_unit([event("span", T + 1, 99)], round=3, first=T + 90, n_carried=1),
    ]
    log = write(header_page(units=3) + b"".join(units))
    assert ops_of(log) == [OP["read"], OP["span"]]
    assert column(log, "duration_ns") == [10, 99]


@pytest.mark.parametrize("difference", ["thread", "op", "start"])
def test_another_call_in_flight_is_not_taken_for_the_carried_one(write, difference):
    carried = event("read" if difference == "op" else "span", T + (difference == "start") + 1, 5)
    units = [
        events_unit([event("span", T + 1, 0)], round=1, first=T),
        events_unit(
            [carried], round=2, first=T + 50, n_carried=1, thread=2 if difference == "thread" else 1
        ),
    ]
    assert len(ops_of(write(header_page(units=2) + b"".join(units)))) == 2


def test_a_unit_of_zeros_is_skipped(write):
    units = [bytes(UNIT_BYTES), events_unit([event("read", T + 1)]), bytes(UNIT_BYTES)]
    log = write(header_page(units=3) + b"".join(units))
    assert ops_of(log) == [OP["read"]]
    assert (log.is_torn, log.damaged_units) == (False, 0)


def test_a_hole_of_a_terabyte_is_skipped(tmp_path):
    path = tmp_path / "p.log"
    with open(path, "wb") as file:
        file.write(header_page(units=1 << 24) + events_unit([event("read", T + 1)]))
        try:
            file.seek(HEADER_BYTES + ((1 << 24) - 1) * UNIT_BYTES)
            file.write(events_unit([event("write", T + 2)], round=2))
        except OSError:
            pytest.skip("the file system holds no file of a terabyte")
    log = read_log(path)
    assert ops_of(log) == [OP["read"], OP["write"]]


def test_threads_have_their_latest_name(write):
    units = [
        events_unit([], round=1, thread=2, tid=102, first=T + 9, name=b"pt_data_worker_0"),
        events_unit([], round=2, thread=2, tid=102, first=T + 1, name=b"python"),
        events_unit([], round=3, thread=1, tid=100),
    ]
    log = write(header_page(units=3) + b"".join(units))
    assert log.threads == ((1, 100, "python"), (2, 102, "pt_data_worker_0"))


def test_ticks_become_ns_by_the_logs_own_anchors(write):
    process = Process(ticks_per_ns=3.0, start_ticks=10**15, header={"ticks_per_s": 2_900_000_000})
    process.call("read", 5_000_000_000, 1000)
    log = write(process.bytes())
    assert column(log, "start_ns") == [START_NS + 5_000_000_000]
    assert column(log, "duration_ns") == [1000]


def test_anchors_too_near_to_each_other_give_way_to_the_nominal_rate(write):
    process = Process(ticks_per_ns=3.0, start_ticks=10**15)
    process.header = {"last_ns": START_NS + 9_999_999, "last_ticks": 10**15 + 1}
    process.call("read", 5_000_000_000, 1000)
    assert column(write(process.bytes()), "start_ns") == [START_NS + 5_000_000_000]


@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_a_flipped_bit_in_the_clocks_of_a_header_is_refused(write, rate):
    """Of those that move a time by more than a minute; lower ones are within seconds of it."""
    process = Process(ticks_per_ns=rate, start_ticks=START_NS if rate == 1.0 else 10**15)
    process.call("read", 5_000_000_000, 1000)
    data = process.bytes()
    for field in ("start_ticks", "start_ns", "last_ticks", "last_ns"):
        place = HEADER.fields[field][1]
        for bit in range(38, 64):
            flipped = bytearray(data)
            flipped[place + bit // 8] ^= 1 << bit % 8
            with pytest.raises(LogError, match="clocks in its header do not agree"):
                write(bytes(flipped))


# --- cut logs ------------------------------------------------------------------------------------


def interesting_cuts(data: bytes) -> list[int]:
    """Every byte near where something begins or ends; elsewhere every 509th."""
    ends = [HEADER_BYTES + i * UNIT_BYTES for i in range(len(data) // UNIT_BYTES)]
    near = {end + i for end in ends for i in (*range(-400, 0), *range(500))}
    return sorted(
        {*range(4096, len(data), 509), *near, len(data)} & set(range(4096, len(data) + 1))
    )


def test_a_log_cut_anywhere_is_a_log(tmp_path):
    data = small_log()
    whole = read_log(_written(tmp_path, data))
    most = everything(whole)
    found = []
    with open(tmp_path / "p.log", "r+b") as file:
        for cut in reversed(interesting_cuts(data)):
            file.truncate(cut)
            log = read_log(tmp_path / "p.log")
            found.append(everything(log))
            assert log.is_torn == (cut < len(data)), cut
            assert log.damaged_units == 0, cut
    assert found[0] == most
    assert found == sorted(found, reverse=True), "a longer prefix never says less"
    assert found[-1] == 0


def test_every_whole_event_of_a_cut_unit_is_read(tmp_path):
    data = header_page(units=1) + events_unit([event("read", T + i + 1) for i in range(5)])
    for whole in range(6):
        for rest in (0, EVENT_BYTES - 1) if whole < 5 else (0,):
            cut = data[: HEADER_BYTES + 64 + whole * EVENT_BYTES + rest]
            assert len(ops_of(read_log(_written(tmp_path, cut)))) == whole


def test_a_log_cut_between_units_is_torn(write):
    data = header_page(units=2) + events_unit([event("read", T + 1)])
    log = write(data)
    assert log.is_torn
    assert ops_of(log) == [OP["read"]]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 4095])
def test_a_log_cut_in_its_header_is_refused_in_a_sentence(write, size):
    with pytest.raises(LogError, match=r"p\.log: (cut after|no bytes)"):
        write(header_page()[:size])


def _written(folder: Path, data: bytes) -> Path:
    path = folder / "p.log"
    path.write_bytes(data)
    return path


# --- foreign, newer, damaged ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"PK\3\4" + bytes(9000), "not a log of penstock"),
        (b"hello", "not a log of penstock"),
        (bytes(70_000), "empty, its process died before it wrote a header"),
        (
            header_page(version=9),
            "written by format 9, newest known here is 1; upgrade penstock to read it",
        ),
        (header_page(version=0), "format 0, which never existed"),
        (header_page(unit_bytes=4096), "unit_bytes = 4096 where format 1 has 65536"),
        (header_page(event_bytes=0), "event_bytes = 0 where format 1 has 32"),
        (header_page(header_bytes=1 << 31), "header_bytes = 2147483648 where"),
    ],
)
def test_what_is_no_log_of_this_format_is_refused_in_a_sentence(write, data, says):
    with pytest.raises(LogError, match=says) as caught:
        write(data)
    assert "\n" not in str(caught.value)
    assert "p.log" in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(LogError, match="cannot be opened: No such file"):
        read_log(tmp_path / "none.log")
    with pytest.raises(LogError, match="Is a directory"):
        read_log(tmp_path)
    with pytest.raises(LogError, match="cannot be opened"):
        read_log("a\0b")


def test_a_file_that_goes_or_shrinks_after_it_was_opened_is_no_traceback(tmp_path):
    path = _written(tmp_path, small_log())
    log = read_log(path)
    os.truncate(path, HEADER_BYTES)
    assert sum(map(len, log.events())) == 0
    assert list(log.texts()) == []
    path.unlink()
    with pytest.raises(LogError, match="No such file"):
        list(log.events())


@pytest.mark.parametrize(
    ("unit", "kept"),
    [
        (events_unit([event("read", T + 1)], magic=1), 0),
        (events_unit([event("read", T + 1)], kind=4), 0),
        (events_unit([event("read", T + 1)], kind=0), 0),
        (events_unit([event("read", T + 1)], texts=0), 1),
        (events_unit([event("read", T + 1)], texts=1 << 31), 1),
        (events_unit([event("read", T + 1)], texts=64), 0),
        (events_unit([event("read", T + 1)], used=2**32 - 1, limit=2**32 - 1), 1),
        (bytes(8) + b"x" + bytes(UNIT_BYTES - 9), 0),
        (counters_unit([], is_access=True, used=1000, limit=1000), 0),
    ],
)
def test_a_damaged_unit_is_counted_and_the_next_is_read(write, unit, kept):
    log = write(header_page(units=2) + unit + events_unit([event("write", T + 2)], round=2))
    assert log.damaged_units == 1
    assert ops_of(log) == [OP["read"]] * kept + [OP["write"]]


def hostile_texts() -> dict[str, bytes]:
    def sized(size: int) -> bytes:
        return struct.pack("<IHH", size, FILE_TEXT, 0) + bytes(120)

    return {
        "no size": sized(0),
        "one byte": sized(1),
        "smaller than a header": sized(40),
        "no room for two strings": sized(48),
        "not a multiple of 8": sized(57),
        "beyond the unit": sized(136),
        "ten million entries": sized(10_000_000),
        "all there is": sized(2**32 - 8),
        "strings without end": text(FILE_TEXT, 1, b"a" * 39, b"")[:48] + b"x" * 48,
        "one string without end": text(FILE_TEXT, 1, b"a" * 39, b"")[:48] + b"x" * 47 + b"\0",
    }


@pytest.mark.parametrize("tail", hostile_texts().values(), ids=hostile_texts().keys())
def test_a_text_that_makes_no_sense_ends_the_texts_of_its_block(write, tail):
    good = text(NAME_TEXT, 1, "step")
    log = write(header_page(units=1) + events_unit([event("read", T + 1)], [good, tail]))
    assert [found.name for found in log.texts()] == ["step"]
    assert log.damaged_units == 1
    assert ops_of(log) == [OP["read"]]


def test_numbers_at_their_limits_are_read_without_overflow(write):
    most = 2**64 - 1
    read = OP["read"] << 16
    slots = [
        (most ^ (0xFF << 16) | read, most, -(2**63), 2**32 - 1, 2**32 - 1),
        (read, most, 2**63 - 1, 2**32 - 1, 2**32 - 1),
        (REST_OP << 16, most, -1, 2**32 - 1, 2**32 - 1),
        (read, most, 0, 1, 1),
        (REST_OP << 16, most, -1, 2**32 - 1, 2**31 - 1),
    ]
    body = np.array(slots, EVENT).tobytes()
    for clock in ("ns", "tsc"):
        page = header_page(
            units=1,
            clock=clock,
            **dict.fromkeys(("start_ns", "start_unix_ns", "last_ns"), most),
            **dict.fromkeys(("start_ticks", "last_ticks"), most),
            ticks_per_s=10**11,
        )
        unit = events_unit(used=len(slots))
        log = write(page + unit[:64] + body + unit[64 + len(body) :])
        for events in log.events():
            assert events.moved.tolist() == [2**32 - 1, 0, 2**63 - 1]
            assert events.asked.tolist() == [2**32 - 1, 0, 0]
            assert (np.abs(events.start_ns) <= 2**62).all()
            assert (events.duration_ns >= 0).all()


def test_a_log_is_read_in_bounded_memory(tmp_path):
    rows = [event("read", T + i + 1) for i in range(EVENTS_PER_UNIT)]
    path = tmp_path / "p.log"
    with open(path, "wb") as file:
        file.write(header_page(units=2000))
        for i in range(2000):
            file.write(events_unit(rows, round=i + 1))
    tracemalloc.start()
    try:
        n = sum(map(len, read_log(path).events()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n == 2000 * EVENTS_PER_UNIT
    assert peak < 40 << 20, "131 MB of log in batches of 4 MiB"


def tries_to_read(path: Path) -> None:
    """Reads a log whole; whatever is in it, only LogError may come of it."""
    try:
        log = read_log(path)
    except LogError:
        return
    n = everything(log)
    assert n < 100_000


@pytest.mark.parametrize("value", [0x00, 0x01, 0x7F, 0xFF])
def test_no_byte_of_the_header_can_break_the_reader(tmp_path, value):
    data = bytearray(small_log())
    path = _written(tmp_path, bytes(data))
    fields = 4096 - 2048  # the arguments are only text
    with open(path, "r+b") as file:
        for at in range(fields):
            file.seek(at)
            file.write(bytes([value]))
            file.flush()
            tries_to_read(path)
            file.seek(at)
            file.write(data[at : at + 1])
        file.flush()
    assert everything(read_log(path)) > 0


@pytest.mark.parametrize("value", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_no_byte_of_a_block_can_break_the_reader(tmp_path, value):
    data = small_log()
    path = _written(tmp_path, data)
    starts = range(HEADER_BYTES, len(data), UNIT_BYTES)
    places = [at for start in starts for at in (*range(start, start + 300),)]
    places += [at for start in starts for at in range(start + UNIT_BYTES - 300, start + UNIT_BYTES)]
    with open(path, "r+b", buffering=0) as file:
        for at in places:
            os.pwrite(file.fileno(), bytes([value]), at)
            tries_to_read(path)
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert path.read_bytes() == data


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(small_log()) - 1)
            | st.integers(0, 200)
            | st.sampled_from(
                [HEADER_BYTES + i * UNIT_BYTES + j for i in range(4) for j in range(64)]
            ),
            st.binary(min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_no_scribble_can_break_the_reader(tmp_path, scribbles):
    data = bytearray(small_log())
    for at, value in scribbles:
        data[at : at + len(value)] = value
    tries_to_read(_written(tmp_path, bytes(data)))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=3 * UNIT_BYTES))
def test_no_content_after_a_header_can_break_the_reader(tmp_path, content):
    tries_to_read(_written(tmp_path, header_page(units=3) + content))
    block = block_head(kind=1, used=2046, limit=2046, texts=64 + len(content) % 60_000, round=1)
    tries_to_read(_written(tmp_path, header_page(units=3) + block + content))


def test_one_start_in_a_million_calls_in_flight_takes_no_longer(write):
    # Each block carries what the block before has in flight, all at one moment: no search may be
    # quadratic in them.
    units = [
        events_unit(
            [event("read", T + 1, 0)] * 1023, round=i + 1, thread=i % 7, n_carried=1023, first=i + 1
        )
        for i in range(200)
    ]
    log = write(header_page(units=200) + b"".join(units))
    assert len(ops_of(log)) == 7 * 1023


# --- golden logs: every version that was ever written is read for ever -------------------------


# Fields that were appended to the header since: logs made before have zeros there.
NEW_IN_HEADER = {"waits_from_ns": 0, "own_calls": 0, "own_ticks": 0}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log.gz")), ids=lambda path: path.name)
def test_a_golden_log_is_read_as_on_the_day_it_was_written(tmp_path, path):
    log = read_log(_written(tmp_path, gzip.decompress(path.read_bytes())))
    expected = json.loads(path.with_name(path.name.replace(".log.gz", ".json")).read_text())
    expected["header"] = NEW_IN_HEADER | expected["header"]
    assert golden(log) == expected


def golden(log: Log) -> dict[str, object]:
    """All that is in a log, as JSON has it."""
    header = {name: getattr(log.header, name) for name in type(log.header).__slots__}
    events = [
        [int(getattr(part, name)[i]) for name in type(part).__slots__]
        for part in log.events()
        for i in range(len(part))
    ]
    counters = [
        [kind, *row.tolist()]
        for part in log.counters()
        for kind in ("access" if part.dtype == ACCESS else "calls",)
        for row in part
    ]
    found = {
        "header": header,
        "threads": log.threads,
        "texts": [list(text[:10]) for text in log.texts()],
        "events": events,
        "counters": counters,
        "is_torn": log.is_torn,
        "damaged_units": log.damaged_units,
    }
    plain: dict[str, object] = json.loads(json.dumps(found, default=np.ndarray.tolist))
    return plain


def test_there_is_a_golden_log_of_every_version():
    from penstock.log.texts import VERSION

    versions = {read_version(gzip.decompress(path.read_bytes())) for path in LOGS.glob("*.log.gz")}
    assert versions >= set(range(1, VERSION + 1))


def read_version(data: bytes) -> int:
    return int.from_bytes(data[8:12], "little")


def test_opens_of_staged_files_are_counted_by_what_came_of_them(tmp_path):
    process = Process()
    process.header = {"opens": [0, 7, *[0] * 7, 2, 0, 1, *[0] * 4]}
    process.file("/data/a", tier=1)
    process.call("open", 5, file=process.file("/data/b"))
    log = read_log(_written(tmp_path, process.bytes()))
    assert log.header.opens == (("served", 7), ("written", 2), ("outcome 11", 1))
    assert {text.name: text.tier for text in log.texts() if text.name} == {
        "/data/a": 1,
        "/data/b": 0,
    }


def test_the_header_alone_is_that_of_the_whole_log(tmp_path):
    path = _written(tmp_path, small_log())
    assert read_header(path) == read_log(path).header
