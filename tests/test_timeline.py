"""Timelines: what is drawn of a run, and what other programs read in the files."""

import gzip
import io
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import PENSTOCK
from penstock.errors import ForeignError, PenstockError, QueryError, RunError
from penstock.explain import questions
from penstock.explain.questions import prepare, query
from penstock.interop import chrome, clocks, perfetto, timeline, torch_profiler, wire, xplane
from penstock.interop.clocks import WALL_CLOCK, Alignment, Marks, align
from penstock.interop.picture import WantedPicture, draw
from penstock.interop.timeline import Timeline, timeline_of
from synthetic import MS, Synthetic, training_job

UNIX_NS = 1_790_000_000 * 10**9
HOSTILE = '/data/"quoted" \\back\nline\x1b[31m é\u202e</script>.bin'


@pytest.fixture(scope="module")
def job() -> Synthetic:
    made = training_job(60)
    made.connection  # noqa: B018 - makes the tables and the run
    return made


@pytest.fixture(scope="module")
def drawn(job: Synthetic) -> Timeline:
    return timeline_of(job.run)


def of(run: Synthetic, **options: Any) -> Timeline:
    run.connection  # noqa: B018
    return timeline_of(run.run, **options)


def small() -> Synthetic:
    """A step with a data wait in it, a worker's fetch, and calls of each kind; times by hand."""
    run = Synthetic()
    run.process(1, end=100 * MS, command="python train.py")
    run.worker(2, start=1 * MS, end=90 * MS)
    run.step(10 * MS, 50 * MS, 0)
    run.wait(10 * MS, 30 * MS, 0)
    run.fetch(15 * MS, 29 * MS, 0, cpu=3 * MS, delay=2 * MS)
    run.file("/data/a", size=8192)
    run.call("open", 16 * MS, 17 * MS, path="/data/a", process=2)
    sizes = {"moved": 4096, "asked": 8192, "offset": 64}
    run.call("read", 17 * MS, 27 * MS, path="/data/a", process=2, **sizes)
    run.call("open", 28 * MS, 28 * MS + 5, path=HOSTILE, process=2, errno=2)
    run.call("read", 60 * MS, None, path="/data/a")
    return run


# What is drawn


def test_a_job_has_a_row_for_the_stretches_and_one_for_the_calls_of_each_thread(
    drawn: Timeline,
) -> None:
    rows = [(row.process.name.split(" · ")[0], row.kind, row.lane) for row in drawn.rows_from_above]
    assert rows == [
        ("main", "loader", 0),
        ("main", "spans", 0),
        ("main", "calls", 0),
        ("worker 0", "spans", 0),
        ("worker 0", "calls", 0),
        ("worker 1", "spans", 0),
        ("worker 1", "calls", 0),
    ]
    assert Counter(shown.category for shown in drawn.slices) == {
        "step": 60, "data wait": 60, "fetch": 60, "worker": 2, "loader": 1, "checkpoint": 1,
    }  # fmt: skip
    # 16 images a batch of five calls, 400 library files of two, a checkpoint of 42.
    assert len(drawn.calls) == drawn.n_calls == 60 * 16 * 5 + 400 * 2 + 42
    assert len(drawn.flows) == 60
    assert drawn.remarks == []


def test_a_stretch_lasts_as_long_as_the_tables_say(job: Synthetic, drawn: Timeline) -> None:
    for kind, name, category in (
        ("step", "step", "step"), ("span", "data wait", "data wait"), ("span", "fetch", "fetch"),
    ):  # fmt: skip
        known = job.run.sql(
            "SELECT start_ns, start_ns + duration_ns FROM spans "
            "WHERE kind = $kind AND name = $name ORDER BY ALL",
            {"kind": kind, "name": name},
        )
        shown = [(one.start_ns, one.end_ns) for one in drawn.slices if one.category == category]
        assert sorted(shown) == list(known)


def test_an_arrow_leads_from_a_fetch_to_the_wait_for_that_batch(drawn: Timeline) -> None:
    for flow in drawn.flows:
        fetch, wait = drawn.slices[flow.fetch], drawn.slices[flow.wait]
        assert (fetch.category, wait.category) == ("fetch", "data wait")
        assert fetch.facts["number"] == wait.facts["number"]
        assert fetch.end_ns <= wait.end_ns
    assert len({flow.wait for flow in drawn.flows}) == 60


def test_every_slice_says_what_was_recorded_of_it() -> None:
    drawn = of(small())
    assert [(shown.name, shown.start_ns, shown.end_ns) for shown in drawn.slices] == [
        ("step 0", 10 * MS, 50 * MS),
        ("data wait 0", 10 * MS, 30 * MS),
        ("worker 0", 1 * MS, 90 * MS),
        ("fetch 0", 15 * MS, 29 * MS),
    ]
    assert drawn.slices[3].facts == {
        "number": 0, "cpu ns": 3 * MS, "ns ready without a CPU": 2 * MS,
    }  # fmt: skip
    calls = [
        (
            *drawn.name_of_call(place),
            int(drawn.calls.end_ns[place] - drawn.calls.start_ns[place]),
            drawn.facts_of_call(place),
        )
        for place in range(len(drawn.calls))
    ]
    in_flight = {"path": "/data/a", "bytes": 0, "in flight": "not ended when the log ends"}
    assert calls == [
        ("read", "posix,data", 40 * MS, in_flight),
        ("open", "posix,data", MS, {"path": "/data/a"}),
        (
            "read",
            "posix,data",
            10 * MS,
            {"path": "/data/a", "bytes": 4096, "asked bytes": 8192, "offset": 64},
        ),
        ("open", "posix,data", 5, {"path": HOSTILE, "errno": "ENOENT"}),
    ]


def reading_remotely() -> Synthetic:
    """A batch whose worker asks twice, the first answer being a 503; a loop without a loader."""
    run = Synthetic()
    run.process(1, end=400 * MS, command="python train.py")
    run.worker(2, start=1 * MS, end=390 * MS)
    for number, at in enumerate((0, 200 * MS)):
        run.wait(at + 10 * MS, at + 100 * MS, number)
        run.fetch(at + 5 * MS, at + 99 * MS, number)
        run.step(at + 100 * MS, at + 120 * MS, number)
    asks = {"process": 2, "thread": 1}
    run.request(20 * MS, 40 * MS, "/data/0", status=503, **asks)
    run.request(60 * MS, 90 * MS, "/data/0", **asks)
    run.request(120 * MS, 180 * MS, "/data/ahead", **asks)  # nobody waited for it
    run.request(230 * MS, 290 * MS, "/data/1", process=2, thread=7)  # a loop in a thread of its own
    run.request(240 * MS, 280 * MS, "/data/2", process=2, thread=7)
    return run


def test_requests_have_rows_and_arrows_to_the_waits_that_were_for_them() -> None:
    drawn = of(reading_remotely())
    requests = [shown for shown in drawn.slices if shown.category == "request"]
    assert [(shown.name, shown.start_ns, shown.end_ns) for shown in requests] == [
        ("GET 503", 20 * MS, 40 * MS), ("GET", 60 * MS, 90 * MS), ("GET", 120 * MS, 180 * MS),
        ("GET", 230 * MS, 290 * MS), ("GET", 240 * MS, 280 * MS),
    ]  # fmt: skip
    assert requests[1].facts == {
        "endpoint": "store.example:443", "path": "/data/0", "status": 200, "bytes": 100_000,
        "ns to first byte": 27 * MS, "ns of back-off before": 20 * MS,
    }  # fmt: skip
    arrows = [
        (drawn.slices[flow.fetch].start_ns, drawn.slices[flow.wait].facts["number"])
        for flow in drawn.flows
        if drawn.slices[flow.fetch].category == "request"
    ]
    assert sorted(arrows) == [(20 * MS, 0), (60 * MS, 0), (230 * MS, 1), (240 * MS, 1)]
    known = perfetto_of(replace(drawn, start_unix_ns=UNIX_NS))
    assert len(known["arrows"]) == len(drawn.flows) == 6
    assert all(len(ends) == 2 for ends in known["arrows"].values())


def test_a_request_of_a_loop_without_a_loader_leads_to_the_step_after_it() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS, command="python train.py")
    store = "socket:store.example:443"
    for number in range(10):
        at = number * 100 * MS
        run.request(at + 10 * MS, at + 60 * MS, f"/data/{number}", thread=1)
        run.blocked("receive", at + 11 * MS, at + 59 * MS, descriptor=store, received=90_000,
                    phase="first byte")  # fmt: skip
        run.step(at + 70 * MS, at + 100 * MS, number)
    drawn = of(run)
    led = {
        (drawn.slices[flow.fetch].facts["path"], drawn.slices[flow.wait].name)
        for flow in drawn.flows
    }
    assert led == {(f"/data/{number}", f"step {number}") for number in range(1, 10)}


def test_all_queries_of_a_timeline_are_prepared_for() -> None:
    """A query that is not asked for by name here would miss what it reads."""
    drawn = {name for name in questions.names() if name.startswith("timeline_")}
    assert drawn == set(timeline.ASKED) - {"lives"}


def test_counters_are_the_bandwidth_of_the_report(job: Synthetic, drawn: Timeline) -> None:
    with job.connection.cursor() as engine:
        prepare(engine, (*timeline.ASKED, "bandwidth"))
        known: Counter[str] = Counter()
        for layer, group, _, _, _, n_bytes in engine.execute(query("bandwidth")).fetchall():
            known[f"{group} bandwidth, {layer}"] += n_bytes
    found = {
        rate.name: sum(
            value * (until - since) / 1e9
            for value, since, until in zip(
                rate.bytes_per_s, rate.start_ns, rate.start_ns[1:], strict=False
            )
        )
        for rate in drawn.rates
    }
    assert found == pytest.approx(dict(known), rel=1e-6)
    assert all(
        rate.bytes_per_s[-1] == 0 and rate.start_ns[-1] == drawn.to_ns for rate in drawn.rates
    )


def test_of_a_part_of_the_run_what_overlaps_it_is_drawn_and_cut_at_its_ends(
    job: Synthetic,
) -> None:
    part, whole = of(job, from_s=4.0, to_s=4.5), of(job)
    from_ns, to_ns = 4_000_000_000, 4_500_000_000
    expected: Counter[Any] = Counter()
    for (start, end, name, category, facts), n in all_slices(whole).items():
        if start < to_ns and end >= from_ns:
            is_cut = start < from_ns or end > to_ns
            facts |= {("cut here, ns in all", end - start)} if is_cut else set()
            expected[max(start, from_ns), min(end, to_ns), name, category, facts] += n
    assert all_slices(part) == expected
    assert sum("cut here" in str(facts) for *_, facts in expected) >= 5  # a loader, two workers …
    assert {rate.start_ns[-1] for rate in part.rates} == {to_ns}


@pytest.mark.parametrize("stretch", [(50, None), (-5, -1), (2, 1), (math.nan, None), (1, 1)])
def test_a_stretch_without_anything_is_refused(
    job: Synthetic, stretch: tuple[float | None, float | None]
) -> None:
    with pytest.raises(QueryError):
        of(job, from_s=stretch[0], to_s=stretch[1])


def test_past_the_limit_short_calls_are_gathered_and_none_is_lost(job: Synthetic) -> None:
    every, few = of(job), of(job, max_slices=500)
    assert 0 < len(few.calls) <= 500
    assert few.calls.calls.sum() == few.n_calls == len(every.calls)
    for column in ("moved_bytes", "busy_ns", "reads", "writes", "errors"):
        assert getattr(few.calls, column).sum() == getattr(every.calls, column).sum()
    # What is as long as a pixel stands for itself.
    long = every.calls.end_ns - every.calls.start_ns >= few.pixel_ns
    alone = few.calls.calls == 1
    assert set(every.calls.start_ns[long].tolist()) <= set(few.calls.start_ns[alone].tolist())
    assert few.gathered_calls + alone.sum() == few.n_calls
    assert few.remarks == [
        f"{few.gathered_calls:,} of {few.n_calls:,} calls, each shorter than "
        f"{few.pixel_ns / 1e6:.3g} ms, are gathered into {few.gathered_slices:,} slices"
    ]
    place = int(np.flatnonzero(few.calls.calls > 1)[0])
    facts = few.facts_of_call(place)
    assert facts["calls"] == few.calls.calls[place]
    assert few.name_of_call(place) == (f"{facts['calls']} calls", "gathered")


def test_one_slice_a_thread_is_the_least(job: Synthetic) -> None:
    assert len(of(job, max_slices=1).calls) == 3


def test_calls_that_live_on_as_sums_are_said_to_be_missing() -> None:
    run = small()
    run.fold("read", 1234)
    assert of(run).remarks == [
        "1,234 calls of the run are known as sums only (past its trace budget, or imported as "
        "counters), and not shown"
    ]


def test_a_run_of_sums_only_is_refused() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    run.fold("read", 1234)
    with pytest.raises(QueryError, match="only sums of 1,234 calls"):
        of(run)


def test_of_some_processes_rows_are_theirs_and_their_childrens() -> None:
    run = Synthetic()
    for process, parent in ((1, None), (2, 1), (3, 2), (4, None)):
        run.process(process, end=MS, parent=parent)
        run.call("read", 0, 10, process=process)
        run.span("pass", 0, 20, process=process)
    some = of(run, pids=[1002])
    assert [row.process.pid for row in some.rows_from_above] == [1002, 1002, 1003, 1003]
    assert (some.n_calls, len(some.slices), some.left_out) == (2, 2, 2)
    assert some.remarks == ["2 other processes of the run are not shown; bandwidth is of all"]
    assert of(run, pids=[5]).n_calls == 4, "a profile of a process that was not recorded"


def test_processes_with_one_pid_get_numbers_of_their_own() -> None:
    run = Synthetic()
    for process in (1, 2):
        run.process(process, end=MS)
        run.call("read", 0, 10, process=process)
    run.rows["processes"] = [(row[0], 77, *row[2:]) for row in run.rows["processes"]]
    numbers = [row.process.number for row in of(run).rows]
    assert len(set(numbers)) == 2
    assert 77 not in numbers


def test_what_overlaps_without_nesting_gets_another_row() -> None:
    run = Synthetic()
    run.process(1, end=100)
    for start, end in ((0, 50), (10, 60), (20, 30), (70, 80)):
        run.span(f"from {start}", start, end)
    drawn = of(run)
    assert [(shown.name, shown.row) for shown in drawn.slices] == [
        ("from 0", 0), ("from 10", 1), ("from 20", 0), ("from 70", 0),
    ]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=40))
def test_slices_of_one_lane_nest(stretches: list[tuple[int, int]]) -> None:
    stretches.sort(key=lambda stretch: (stretch[0], -stretch[1]))
    starts = np.array([start for start, _ in stretches], np.int64)
    ends = np.array([start + length for start, length in stretches], np.int64)
    lanes, cut = timeline._lanes(starts, ends)
    assert (ends - cut <= timeline.ROUNDING_NS).all()
    assert (cut <= ends).all()
    for lane in set(lanes.tolist()):
        placed = [(int(s), int(e)) for s, e, k in zip(starts, cut, lanes, strict=True) if k == lane]
        for place, (start, end) in enumerate(placed):
            for later, until in placed[place + 1 :]:
                assert later >= end or until <= end or later == start


# Perfetto


def read_perfetto(data: bytes) -> dict[str, Any]:
    """The trace as its own classes read it, put together as the trace processor does."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace.FromString(data)
    assert trace.packet[0].sequence_flags == 1
    tracks: dict[int, Any] = {}
    texts: dict[str, dict[int, str]] = {"category": {}, "name": {}, "key": {}, "text": {}}
    events = []
    for packet in trace.packet:
        known = packet.interned_data
        for kind, entries in (
            ("category", known.event_categories), ("name", known.event_names),
            ("key", known.debug_annotation_names),
        ):  # fmt: skip
            texts[kind].update({entry.iid: entry.name for entry in entries})
        for entry in known.debug_annotation_string_values:
            texts["text"][entry.iid] = entry.str.decode()
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in tracks
            facts = {
                texts["key"][fact.name_iid]: fact.int_value
                if fact.HasField("int_value")
                else fact.string_value or texts["text"][fact.string_value_iid]
                for fact in event.debug_annotations
            }
            category = ",".join(texts["category"][iid] for iid in event.category_iids)
            name = texts["name"].get(event.name_iid)
            events.append((packet.timestamp, event, name, category, facts))
    return {"tracks": tracks, **replayed(sorted(events, key=lambda event: event[0]))}


def replayed(events: list[tuple[Any, ...]]) -> dict[str, Any]:
    slices, values, stacks = [], [], {}
    arrows: dict[int, list[str | None]] = {}
    for at_ns, event, name, category, facts in events:
        stack = stacks.setdefault(event.track_uuid, [])
        if event.type == event.TYPE_SLICE_BEGIN:
            stack.append((at_ns, name, category, facts))
            for flow in event.flow_ids:
                arrows.setdefault(flow, []).append(name)
        elif event.type == event.TYPE_SLICE_END:
            start_ns, name, category, facts = stack.pop()
            slices.append((event.track_uuid, start_ns, at_ns, name, category, facts))
            for flow in event.terminating_flow_ids:
                assert len(arrows[flow]) == 1, "an arrow that ends before it begins"
                arrows[flow].append(name)
        else:
            values.append((event.track_uuid, at_ns, event.double_counter_value))
    assert not any(stacks.values()), "a slice without an end"
    return {"slices": slices, "values": values, "arrows": arrows}


def perfetto_of(drawn: Timeline) -> dict[str, Any]:
    stream = io.BytesIO()
    perfetto.write(drawn, stream)
    return read_perfetto(stream.getvalue())


def all_slices(drawn: Timeline) -> Counter[Any]:
    """(start, end, name, category, facts) of everything that is drawn."""
    found: Counter[Any] = Counter()
    for shown in drawn.slices:
        facts = frozenset(shown.facts.items())
        found[shown.start_ns, shown.end_ns, shown.name, shown.category, facts] += 1
    for place in range(len(drawn.calls)):
        times = int(drawn.calls.start_ns[place]), int(drawn.calls.end_ns[place])
        facts = frozenset(drawn.facts_of_call(place).items())
        found[(*times, *drawn.name_of_call(place), facts)] += 1
    return found


@pytest.mark.parametrize("options", [{}, {"max_slices": 300}, {"from_s": 4, "to_s": 5}])
def test_perfetto_reads_every_slice_with_its_time_and_facts(
    job: Synthetic, options: dict[str, Any]
) -> None:
    drawn = replace(of(job, **options), start_unix_ns=UNIX_NS)
    known = perfetto_of(drawn)
    found = Counter(
        (start - UNIX_NS, end - UNIX_NS, name, category, frozenset(facts.items()))
        for _, start, end, name, category, facts in known["slices"]
        if category != "penstock"
    )
    assert found == all_slices(drawn)
    assert len(known["arrows"]) == len(drawn.flows)
    for fetch, wait in known["arrows"].values():
        assert fetch.replace("fetch", "data wait") == wait
    rates = {(uuid, at_ns): value for uuid, at_ns, value in known["values"]}
    assert len(rates) == sum(len(rate.start_ns) for rate in drawn.rates)
    assert sum(rates.values()) * 1e6 == pytest.approx(
        sum(sum(rate.bytes_per_s) for rate in drawn.rates)
    )


def test_perfetto_gets_a_track_for_each_row_under_its_process(drawn: Timeline) -> None:
    tracks = perfetto_of(drawn)["tracks"]
    processes = {t.uuid: t.process.pid for t in tracks.values() if t.HasField("process")}
    assert sorted(processes.values()) == [1001, 1002, 1003]
    rows = [track for track in tracks.values() if track.parent_uuid in processes]
    assert len(rows) == len(drawn.rows)
    threads = {(t.thread.pid, t.thread.tid) for t in rows if t.HasField("thread")}
    assert threads == {(1001, 1001), (1002, 1002), (1003, 1003)}
    names = Counter(t.name for t in rows if not t.HasField("thread"))
    assert names == {
        "loader passes": 1, "file calls of python 1001": 1, "file calls of python 1002": 1,
        "file calls of python 1003": 1,
    }  # fmt: skip
    assert sum(t.HasField("counter") for t in tracks.values()) == len(drawn.rates) == 2


@pytest.mark.parametrize("form", [perfetto, chrome])
def test_a_file_is_whole_however_many_parts_it_is_written_in(
    drawn: Timeline, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    def written() -> tuple[Any, list[tuple[int, int]]]:
        stream, told = io.BytesIO(), []
        form.write(drawn, stream, lambda done, total: told.append((done, total)))
        data = stream.getvalue()
        known = read_perfetto(data)["slices"] if form is perfetto else json.loads(data)
        return known, told

    at_once, _ = written()
    monkeypatch.setattr(form, "CHUNK", 7)
    in_parts, told = written()
    assert in_parts == at_once
    total = len(drawn.calls)
    assert told == [(min(done, total), total) for done in range(7, total + 7, 7)]


def test_the_file_says_what_was_gathered(job: Synthetic) -> None:
    drawn = of(job, max_slices=300)
    (about,) = (s for s in perfetto_of(drawn)["slices"] if s[4] == "penstock")
    assert drawn.remarks[0] in about[3]
    assert about[5]["gathered calls"] == drawn.gathered_calls
    stream = io.BytesIO()
    chrome.write(drawn, stream)
    assert json.loads(stream.getvalue())["otherData"]["remarks"] == drawn.remarks


# Chrome


def chrome_of(drawn: Timeline) -> dict[str, Any]:
    stream = io.BytesIO()
    chrome.write(drawn, stream)
    return json.loads(stream.getvalue())


def ns(us: float) -> int:
    return round(us * 1000)


@pytest.mark.parametrize("options", [{}, {"max_slices": 300}])
def test_chrome_events_hold_every_slice_with_its_time_and_facts(
    job: Synthetic, options: dict[str, Any]
) -> None:
    drawn = of(job, **options)
    events = chrome_of(drawn)["traceEvents"]
    found = Counter(
        (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["name"], e["cat"], frozenset(e["args"].items()))
        for e in events
        if e["ph"] == "X" and e["cat"] != "penstock"
    )
    assert found == all_slices(drawn)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {
        (e["pid"], e["tid"]) for e in events if e["ph"] == "X" and e["cat"] != "penstock"
    } <= named
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(begins) == len(ends) == 60
    assert all(begins[arrow]["ts"] < ends[arrow]["ts"] for arrow in begins)


def test_names_from_outside_are_only_text_in_both_formats() -> None:
    run = small()
    run.span(HOSTILE, 60 * MS, 70 * MS)
    drawn = of(run)
    names = {event["name"] for event in chrome_of(drawn)["traceEvents"]}
    assert HOSTILE in names
    assert HOSTILE in {name for _, _, _, name, _, _ in perfetto_of(drawn)["slices"]}


# Clocks


def marks_of(times: list[int], length: int = 1_000_000) -> list[tuple[int, int]]:
    return [(start, start + length) for start in times]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(-900_000_000, 900_000_000),
    st.integers(0, 2**32 - 1),
    st.integers(10, 200),
    st.integers(0, 10_000),
)
def test_the_offset_of_two_clocks_is_found_and_its_error_is_that_of_the_marks(
    offset_ns: int, seed: int, n: int, jitter_ns: int
) -> None:
    rng = np.random.default_rng(seed)
    ours = UNIX_NS + np.cumsum(rng.integers(20 * MS, 80 * MS, n))
    theirs = ours + offset_ns + rng.integers(-jitter_ns, jitter_ns + 1, n)
    seen = theirs[n // 5 :]  # a profile begins in the middle of a run
    found = align([Marks("steps", marks_of(ours.tolist()), marks_of(seen.tolist()))])
    assert found.pairs == len(seen)
    assert abs(found.offset_ns - offset_ns) <= jitter_ns
    assert found.error_ns is not None
    assert found.error_ns <= 2 * jitter_ns


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 100), st.integers(0, 300))
def test_marks_that_have_nothing_in_common_align_nothing(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    ours = (UNIX_NS + rng.integers(0, 5 * 10**9, n)).tolist()
    theirs = (UNIX_NS + rng.integers(0, 5 * 10**9, m)).tolist()
    assert align([Marks("steps", marks_of(ours), marks_of(theirs))]) == WALL_CLOCK


def test_steps_like_a_metronome_are_aligned_to_the_nearest() -> None:
    ours = [UNIX_NS + 100 * MS * step for step in range(100)]
    theirs = [at + 3 * MS for at in ours[40:60]]
    found = align([Marks("steps", marks_of(ours), marks_of(theirs))])
    assert (found.offset_ns, found.error_ns, found.pairs) == (3 * MS, 0, 20)


def test_a_crowd_of_our_marks_elsewhere_does_not_draw_theirs_away() -> None:
    """A program that starts opens hundreds of files in the time of one mark."""
    rng = np.random.default_rng(3)
    ours = (UNIX_NS + np.cumsum(rng.integers(500_000, 2 * MS, 30))).tolist()
    crowd = [UNIX_NS - 600 * MS + 40_000 * place for place in range(800)]
    found = align([Marks("open", marks_of([*crowd, *ours]), marks_of([at + 900 for at in ours]))])
    assert (found.offset_ns, found.error_ns, found.pairs) == (900, 0, 30)


def test_of_several_marks_the_most_exact_are_taken() -> None:
    rng = np.random.default_rng(1)
    ours = (UNIX_NS + np.cumsum(rng.integers(20 * MS, 80 * MS, 30))).tolist()
    rough = [at + int(shift) for at, shift in zip(ours, rng.integers(0, 90_000, 30), strict=True)]
    exact = [at + 500 for at in ours]
    found = align([
        Marks("rough", marks_of(ours), marks_of(rough)),
        Marks("exact", marks_of(ours), marks_of(exact)),
    ])  # fmt: skip
    assert (found.marks, found.offset_ns, found.error_ns) == ("exact", 500, 0)
    assert found.sentence == (
        "aligned by 30 pairs of exact: offset 0.5 µs, error 0.0 µs (median absolute deviation)"
    )
    assert WALL_CLOCK.sentence == "aligned by wall clock only; error unknown"


# PyTorch's profiler


def torch_trace(run: Synthetic, shift_us: float = 250.0, **more: Any) -> dict[str, Any]:
    """What Kineto writes of a job: its first ten batches, by a clock that is ahead."""
    base_us = 5_000_000.0
    waits = [row for row in run.rows["spans/00000"] if row[3] == "data wait"][:10]
    events: list[Any] = [
        {"ph": "M", "name": "process_name", "pid": 1001, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x",
         "ts": base_us + waits[0][7] / 1000, "dur": 1e6},
    ]  # fmt: skip
    for row in waits:
        events.append({
            "ph": "X", "cat": "user_annotation", "pid": 1001, "tid": 1001,
            "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            "ts": base_us + row[7] / 1000 + shift_us, "dur": row[8] / 1000,
        })  # fmt: skip
    base_ns = UNIX_NS - round(base_us * 1000)
    head = {"schemaVersion": 1, "host_name": "node1", "baseTimeNanoseconds": base_ns}
    return {**head, "displayTimeUnit": "ms", "traceEvents": events, "traceName": "é.json"} | more


@pytest.fixture
def dated(job: Synthetic) -> Any:
    """The job's run at a wall clock."""
    job.run.start_unix_ns = UNIX_NS
    yield job
    job.run.start_unix_ns = 0


def test_rows_lie_where_the_profilers_clock_has_them(dated: Synthetic, tmp_path: Path) -> None:
    source = tmp_path / "trace.json.gz"
    before = torch_trace(dated)
    source.write_bytes(gzip.compress(json.dumps(before).encode()))
    output = tmp_path / "merged.json"
    picture = draw(dated.run, WantedPicture(output=output, profile=source))
    assert picture.alignment is not None
    assert abs(picture.alignment.offset_ns - 250_000) <= 1
    assert picture.alignment.error_ns == 0
    assert picture.alignment.pairs == 10

    after = json.loads(output.read_bytes())
    n = len(before["traceEvents"])
    assert after["traceEvents"][:n] == before["traceEvents"]
    assert {key: after[key] for key in before if key != "traceEvents"} == {
        key: before[key] for key in before if key != "traceEvents"
    }
    assert after["penstock"]["clocks"] == picture.alignment.sentence
    ours = after["traceEvents"][n:]
    theirs = {e["ts"] for e in before["traceEvents"] if e.get("cat") == "user_annotation"}
    waits = {e["ts"] for e in ours if e.get("cat") == "data wait"}
    assert {round(ts * 1000) for ts in theirs} <= {round(ts * 1000) for ts in waits}
    rows = {(e["pid"], e["tid"]) for e in ours if e["ph"] == "X"}
    assert (1001, 1001) not in rows, "our slices are in the profiler's row"
    assert not any(e["name"] == "process_name" and e["pid"] == 1001 for e in ours)
    shown = [e for e in ours if e["ph"] == "X" and str(e.get("cat", "")).startswith("posix")]
    assert len(shown) == len(picture.timeline.calls) > 500
    assert {e["pid"] for e in shown} == {1002, 1003}, "the workers are the profiled one's children"


def test_cuda_copies_of_a_profile_are_told_beside_the_data_waits(
    dated: Synthetic, tmp_path: Path
) -> None:
    """Two copies of 1 MB to the device, 100 us each, one in a wait, one for 40 us; one back."""
    trace = torch_trace(dated)
    wait = next(e for e in trace["traceEvents"] if e.get("cat") == "user_annotation")
    assert wait["dur"] > 100
    for name, ts, size in (
        ("Memcpy HtoD (Pinned -> Device)", wait["ts"], 10**6),
        ("Memcpy HtoD (Pageable -> Device)", wait["ts"] + wait["dur"] - 40, 10**6),
        ("Memcpy DtoH (Device -> Pinned)", wait["ts"] + wait["dur"] + 500, 4),
        ("Memcpy DtoD (Device -> Device)", wait["ts"], 10**9),
        ("Memcpy HtoD", "no time", 10**9),
    ):
        event = {"ph": "X", "cat": "gpu_memcpy", "pid": 0, "tid": 7, "name": name, "ts": ts}
        trace["traceEvents"].append({**event, "dur": 100.0, "args": {"bytes": size}})
    source = tmp_path / "trace.json"
    source.write_text(json.dumps(trace))
    picture = draw(dated.run, WantedPicture(output=tmp_path / "merged.json", profile=source))
    assert picture.copied == (
        "2 copies to the accelerator: 2.00 MB in 200 µs, 140 µs of it during data waits",
        "1 copy from the accelerator: 4 B in 100 µs, 0 s of it during data waits",
    )


def test_a_profile_without_marks_is_aligned_by_wall_clock_and_says_so(
    dated: Synthetic, tmp_path: Path
) -> None:
    trace = torch_trace(dated)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "user_annotation"]
    source = tmp_path / "trace.json"
    source.write_text(json.dumps(trace))
    picture = draw(dated.run, WantedPicture(output=tmp_path / "m.json", profile=source))
    assert picture.alignment == WALL_CLOCK
    assert "aligned by wall clock only; error unknown" in (tmp_path / "m.json").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"host_name": "elsewhere"}, "is of the machine elsewhere, the run of node1"),
        ({"baseTimeNanoseconds": UNIX_NS + 3600 * 10**9}, "is of 2026-09-21 .* the run of"),
        ({"baseTimeNanoseconds": "soon"}, "is no time"),
        ({"baseTimeNanoseconds": 10**30}, "is no time"),
        ({"traceEvents": {}}, "no list of traceEvents"),
        ({"traceEvents": []}, "has no events"),
        (
            {"traceEvents": [None, 1, "x", {"ph": "X", "ts": "1"}, {"ph": "X", "ts": 1e300}]},
            "events",
        ),
        ({"traceEvents": [{"ph": "X", "ts": 10**400, "dur": 1}]}, "events"),
        ({"traceEvents": [{"ph": "X", "ts": math.nan, "dur": math.inf}]}, "events"),
    ],
)
def test_a_profile_of_another_run_or_of_nothing_is_refused_in_a_sentence(
    dated: Synthetic, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    source = tmp_path / "trace.json"
    source.write_text(json.dumps(torch_trace(dated, **more)))
    with pytest.raises(ForeignError, match=said) as raised:
        draw(dated.run, WantedPicture(output=tmp_path / "m.json", profile=source))
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("*m.json*")), "something was written"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"traceEvents": [',
        b'{"traceEvents": [{"ph": "X", "ts": 1' ,
        b"\xff\xfe{}",
        b'{"traceEvents": "\xe9"}',
        b"[" * 200_000,
        b'{"traceEvents":' + b'[{"a":' * 50_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
        gzip.compress(b'{"traceEvents": []}' * 1000)[:60],
        gzip.compress(b"{}")[:-4] + b"\0\0\0\0",
        b"\x1f\x8b",
        b"\x1f\x8bgarbage",
        b"\0" * 100,
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_json_trace_is_refused_in_a_sentence(tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(data)
    with pytest.raises(ForeignError, match=r"trace\.json: ") as raised:
        torch_profiler.read(source)
    assert len(str(raised.value)) < 400


def test_half_of_a_surrogate_pair_passes_through(dated: Synthetic, tmp_path: Path) -> None:
    trace = torch_trace(dated)
    trace["traceEvents"].append({"ph": "i", "name": "\ud800", "ts": 1, "pid": 1, "tid": 1})
    source = tmp_path / "trace.json"
    source.write_text(json.dumps(trace))
    draw(dated.run, WantedPicture(output=tmp_path / "m.json", profile=source))
    after = json.loads((tmp_path / "m.json").read_bytes())
    assert after["traceEvents"][: len(trace["traceEvents"])] == trace["traceEvents"]


TRAIN = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self):
        for i in range(64):
            open(f"{i}.bin", "wb").write(bytes(20_000 + i))
    def __len__(self):
        return 64
    def __getitem__(self, i):
        with open(f"{i}.bin", "rb", buffering=0) as file:
            return torch.frombuffer(bytearray(file.read(4096)), dtype=torch.uint8).float()

if __name__ == "__main__":
    loader = DataLoader(Files(), batch_size=4, num_workers=2)
    model = torch.nn.Linear(4096, 8)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for batch in loader:
            model(batch).mean().backward()
    profiler.export_chrome_trace("trace.json")
"""


def test_a_real_profile_of_pytorch_is_aligned_by_the_waits_of_its_loader(
    recorded: Callable[..., Any], work: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    run = recorded(TRAIN)
    picture = draw(run, WantedPicture(output=tmp_path / "m.json.gz", profile=work / "trace.json"))
    found = picture.alignment
    assert found is not None
    assert found.marks == "data waits"
    # Of 16 and the one that ends the pass.  The first may be cold; on a busy machine the program is
    # stopped between the mark of the loader and that of the profiler in a few more.
    assert found.pairs >= 11
    assert found.error_ns is not None
    # Tens of microseconds on a busy machine; a wrong pairing would be milliseconds off.
    assert found.error_ns < 200_000
    assert abs(found.offset_ns) < 5_000_000
    before = json.loads((work / "trace.json").read_text())["traceEvents"]
    after = json.loads(gzip.decompress((tmp_path / "m.json.gz").read_bytes()))["traceEvents"]
    assert after[: len(before)] == before
    reads = [
        e for e in after[len(before) :]
        if e["ph"] == "X" and e["name"] == "read" and e["args"].get("path", "").endswith(".bin")
    ]  # fmt: skip
    assert len(reads) == 64
    assert {e["args"]["bytes"] for e in reads} == {4096}
    # The consumer cannot have a batch before its files are read.
    last_wait = max(e["ts"] + e["dur"] for e in before if "__next__" in str(e.get("name")))
    assert max(e["ts"] + e["dur"] for e in reads) < last_wait


# XPlane


@pytest.fixture(scope="module")
def xspace() -> Any:
    """XSpace as protobuf's own library has it, from xplane.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    kinds = {"i": 3, "u": 4, "d": 1, "s": 9, "b": 12}
    for name, spec in {
        "XSpace": "planes:1*XPlane errors:2*s warnings:3*s hostnames:4*s",
        "XPlane": "id:1i name:2s lines:3*XLine event_metadata:4*EventEntry "
        "stat_metadata:5*StatEntry stats:6*XStat",
        "XLine": "id:1i name:2s timestamp_ns:3i events:4*XEvent duration_ps:9i display_name:11s",
        "XEvent": "metadata_id:1i offset_ps:2i duration_ps:3i stats:4*XStat",
        "XStat": "metadata_id:1i double_value:2d uint64_value:3u int64_value:4i str_value:5s "
        "bytes_value:6b ref_value:7u",
        "EventEntry": "key:1i value:2.Meta",
        "StatEntry": "key:1i value:2.Meta",
        "Meta": "id:1i name:2s",
    }.items():
        message = file.message_type.add(name=name)
        for field, number, star, kind in re.findall(r"(\w+):(\d+)(\*|\.)?(\w+)", spec):
            label = 3 if star == "*" else 1
            added = message.field.add(name=field, number=int(number), label=label)
            if kind in kinds:
                added.type = kinds[kind]
            else:
                added.type, added.type_name = 11, f".x.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("x.XSpace"))


def profile_of(xspace: Any, *, relative: bool = True, accelerator: bool = False) -> bytes:
    """A job of 20 named stretches, 40 ms apart, from the run's fourth second on; ours lag 70 µs."""
    space = xspace()
    start_ns = UNIX_NS + 4 * 10**9
    host = space.planes.add(id=7, name="/host:CPU")
    host.event_metadata.add(key=3).value.name = "validation"
    line = host.lines.add(id=-5, name="python", timestamp_ns=900 if relative else start_ns + 900)
    for place in range(20):
        line.events.add(metadata_id=3, offset_ps=mark_ns(place) * 1000, duration_ps=10**9)
    if accelerator:
        space.planes.add(id=9, name="/device:GPU:0").lines.add(id=1, timestamp_ns=line.timestamp_ns)
    if relative:
        task = space.planes.add(name="Task Environment")
        task.stat_metadata.add(key=1).value.name = "profile_start_time"
        task.stats.add(metadata_id=1, uint64_value=start_ns)
    space.hostnames.append("node1")
    # A field of a version to come, between others.
    unknown = wire.message(900, b"\x01\x02") + wire.number(901, 5)
    return unknown + bytes(space.SerializeToString())


def mark_ns(place: int) -> int:
    return place * 40 * MS + place * place * 100_000


@pytest.fixture(scope="module")
def marked() -> Synthetic:
    run = training_job(60)
    for place in range(20):
        start = 4 * 10**9 + 900 + mark_ns(place) - 70_000
        run.span("validation", start, start + MS, thread=1)
    run.connection  # noqa: B018
    run.run.start_unix_ns = UNIX_NS
    return run


@pytest.mark.parametrize("relative", [True, False])
def test_rows_go_into_a_plane_of_their_own_after_the_profiles_bytes(
    xspace: Any, marked: Synthetic, tmp_path: Path, relative: bool
) -> None:
    source, output = tmp_path / "node1.xplane.pb", tmp_path / "out.xplane.pb"
    before = profile_of(xspace, relative=relative)
    source.write_bytes(before)
    picture = draw(marked.run, WantedPicture(output=output, profile=source))
    assert picture.alignment == Alignment(70_000, 0, 20, "stretches named 'validation'")
    after = output.read_bytes()
    assert after[: len(before)] == before
    *old, own = xspace.FromString(after).planes
    assert own.name == xplane.OWN_PLANE
    assert own.id not in {plane.id for plane in old}
    base_ns = 4 * 10**9 if relative else -UNIX_NS
    assert lines_of(own, base_ns - 70_000) == all_slices(picture.timeline)
    assert b"aligned by 20 pairs" in after


def lines_of(plane: Any, base_ns: int) -> Counter[Any]:
    """Slices of our lines by the run's clock, with their facts; the line about the file is left."""
    events = {entry.key: entry.value.name for entry in plane.event_metadata}
    stats = {entry.key: entry.value.name for entry in plane.stat_metadata}
    found: Counter[Any] = Counter()
    for line in plane.lines:
        if line.name == "python" or line.name == "penstock":
            continue
        for event in line.events:
            start_ns, rest = divmod(event.offset_ps, 1000)
            assert not rest
            facts = {
                stats[stat.metadata_id]: stats[stat.ref_value]
                if stat.ref_value
                else stat.int64_value
                for stat in event.stats
            }
            kind = facts.pop("kind")
            start_ns += line.timestamp_ns + base_ns
            end_ns = start_ns + event.duration_ps // 1000
            found[start_ns, end_ns, events[event.metadata_id], kind, frozenset(facts.items())] += 1
    return found


def test_beside_an_accelerator_rows_go_into_the_hosts_plane(
    xspace: Any, marked: Synthetic, tmp_path: Path
) -> None:
    """XProf draws no third kind of plane then."""
    source, output = tmp_path / "node1.xplane.pb", tmp_path / "out.xplane.pb"
    before = profile_of(xspace, accelerator=True)
    source.write_bytes(before)
    picture = draw(marked.run, WantedPicture(output=output, profile=source))
    old = list(wire.fields(memoryview(before)))
    new = list(wire.fields(memoryview(output.read_bytes())))
    assert len(old) == len(new)
    for (number, kind, was), (_, _, now) in zip(old, new, strict=True):
        is_host = number == 1 and b"/host:CPU" in bytes(was)
        assert bytes(now)[: len(bytes(was))] == bytes(was) if is_host else now == was, (
            number,
            kind,
        )
    (host,) = [p for p in xspace.FromString(output.read_bytes()).planes if p.name == "/host:CPU"]
    assert lines_of(host, 4 * 10**9 - 70_000) == all_slices(picture.timeline)
    ids = [line.id for line in host.lines]
    assert len(set(ids)) == len(ids)
    keys = [entry.key for entry in host.event_metadata]
    assert len(set(keys)) == len(keys)


def test_an_xplane_of_another_time_or_machine_is_refused(
    xspace: Any, job: Synthetic, marked: Synthetic, tmp_path: Path
) -> None:
    source = tmp_path / "node1.xplane.pb"
    source.write_bytes(profile_of(xspace))
    wanted = WantedPicture(output=tmp_path / "out.pb", profile=source)
    with pytest.raises(ForeignError, match=r"this profile is of 2026-09-21 .* the run of 1970"):
        draw(job.run, wanted)  # its clock says 1970
    space = xspace.FromString(source.read_bytes())
    space.hostnames[0] = "node2"
    source.write_bytes(space.SerializeToString())
    with pytest.raises(ForeignError, match="is of the machine node2, the run of node1"):
        draw(marked.run, wanted)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0b", b"\xff" * 20, b"\0\0",
     b'{"traceEvents": []}', wire.message(1, b""), wire.message(1, wire.message(2, "/host:CPU")),
     wire.message(1, wire.message(2, "/host:CPU") + wire.message(3, wire.number(3, -1))),
     wire.message(1, wire.message(2, "x") + wire.message(3, b"\x22\x7f"))],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_xplane_is_refused_in_a_sentence(tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "x.xplane.pb"
    source.write_bytes(data)
    with pytest.raises(ForeignError, match=r"x\.xplane\.pb: no profile of TensorFlow or JAX"):
        xplane.read(source)


def read_and_write(data: bytes, folder: Path, drawn: Timeline) -> bytes | None:
    source = folder / "fuzz.xplane.pb"
    source.write_bytes(data)
    try:
        profile = xplane.read(source)
    except ForeignError:
        return None
    stream = io.BytesIO()
    xplane.write(profile, drawn, WALL_CLOCK, stream)
    return stream.getvalue()


@pytest.mark.parametrize("accelerator", [False, True])
def test_a_cut_profile_is_refused_or_whole_planes_of_it_are_kept(
    xspace: Any, tmp_path: Path, accelerator: bool
) -> None:
    drawn = of(small())
    data = profile_of(xspace, accelerator=accelerator)
    results = [read_and_write(data[:size], tmp_path, drawn) for size in range(0, len(data), 3)]
    assert sum(result is None for result in results) > len(results) * 0.8
    for result in results:
        if result is not None:
            xspace.FromString(result)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_damaged_profile_is_refused_or_read_never_a_crash(
    xspace: Any, tmp_path: Path, data: st.DataObject
) -> None:
    drawn = of_small()
    whole = bytearray(profile_of(xspace, accelerator=data.draw(st.booleans())))
    if data.draw(st.booleans()):
        whole = bytearray(data.draw(st.binary(max_size=200)))
    for _ in range(data.draw(st.integers(1, 5)) if whole else 0):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    result = read_and_write(bytes(whole), tmp_path, drawn)
    if result is not None:
        list(wire.fields(memoryview(result)))  # still a message


_small: list[Timeline] = []


def of_small() -> Timeline:
    if not _small:
        _small.append(of(small()))
    return _small[0]


JAX = """
import os, jax, jax.numpy as jnp
for i in range(30):
    open(f"{i}.bin", "wb").write(bytes(100_000 + i))
step = jax.jit(lambda x: (x @ x).sum())
x = jnp.ones((200, 200))
step(x).block_until_ready()
jax.profiler.start_trace("profile")
for i in range(30):
    with jax.profiler.TraceAnnotation("read data"):
        with open(f"{i}.bin", "rb") as file:
            file.read()
    step(x).block_until_ready()
jax.profiler.stop_trace()
"""


def test_a_real_profile_of_jax_shows_reads_inside_the_annotation_that_made_them(
    recorded: Callable[..., Any], work: Path, tmp_path: Path, xspace: Any
) -> None:
    pytest.importorskip("jax")
    run = recorded(JAX)
    (source,) = work.glob("profile/plugins/profile/*/*.xplane.pb")
    picture = draw(run, WantedPicture(profile=source))
    assert picture.alignment is not None
    assert picture.alignment.marks == "calls of open"
    assert picture.alignment.pairs >= 28
    assert picture.path == source.parent.with_name(f"{source.parent.name}-io") / source.name
    before, after = source.read_bytes(), picture.path.read_bytes()
    assert after[: len(before)] == before
    planes = xspace.FromString(after).planes
    annotated = [
        (start, end) for name, start, end in named(planes, "/host:CPU") if name == "read data"
    ]
    reads = [(start, end) for name, start, end in named(planes, xplane.OWN_PLANE) if name == "read"]
    inside = [any(a <= s and e <= b for a, b in annotated) for s, e in reads]
    assert len(annotated) == 30
    assert sum(inside) >= 55  # of 60, two a file: a clock is exact to microseconds


def named(planes: Any, name: str) -> list[tuple[str, int, int]]:
    (plane,) = (plane for plane in planes if plane.name == name)
    names = {entry.key: entry.value.name for entry in plane.event_metadata}
    return [
        (names[event.metadata_id], start, start + event.duration_ps)
        for line in plane.lines
        for event in line.events
        for start in [line.timestamp_ns * 1000 + event.offset_ps]
    ]


# Bytes


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_many_numbers_are_written_as_one_is(values: list[int]) -> None:
    assert wire.varints(np.array(values, np.int64)) == [wire.varint(value) for value in values]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1) | st.binary())))
def test_fields_are_read_as_they_were_written(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(
        wire.number(field, value) if isinstance(value, int) else wire.message(field, value)
        for field, value in written
    )
    found = [
        (field, value if isinstance(value, int) else bytes(value))
        for field, _, value in wire.fields(memoryview(data))
    ]
    assert found == written


# Files and the command


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("t.pftrace", b"\x0a"),
        ("t.pftrace.gz", b"\x1f\x8b"),
        ("t.json", b"{"),
        ("t.json.gz", b"\x1f\x8b"),
    ],
)
def test_the_name_says_the_format(job: Synthetic, tmp_path: Path, name: str, start: bytes) -> None:
    picture = draw(job.run, WantedPicture(output=tmp_path / name))
    data = picture.path.read_bytes()
    assert data.startswith(start)
    data = gzip.decompress(data) if name.endswith(".gz") else data
    if ".json" in name:
        assert json.loads(data)["traceEvents"]
    else:
        assert len(read_perfetto(data)["slices"]) == 5827  # what Perfetto's own UI counts
    assert os.listdir(tmp_path) == [name]


def test_what_cannot_be_written_is_refused_in_a_sentence(job: Synthetic, tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text(json.dumps(torch_trace(job, baseTimeNanoseconds=0)))
    for wanted, said in (
        (WantedPicture(output=tmp_path / "t.txt"), "the name says no format"),
        (WantedPicture(output=tmp_path / "no" / "t.json"), "No such file or directory; choose"),
        (WantedPicture(profile=source, output=source), "that is the profile itself"),
        (WantedPicture(profile=source, format="chrome"), "leave out --format"),
        (WantedPicture(profile=tmp_path / "x.csv"), "rows go into trace.json"),
    ):
        with pytest.raises(PenstockError, match=said):
            draw(job.run, wanted)
    assert os.listdir(tmp_path) == ["trace.json"]
    assert issubclass(RunError, PenstockError)


def test_the_command_draws_a_recorded_run(recorded: Callable[..., Any], tmp_path: Path) -> None:
    run = recorded("""
        for i in range(20):
            open(f"{i}", "wb", buffering=0).write(bytes(1000))
    """)
    picture = tmp_path / "t.pftrace"
    said = command("timeline", run.folder, "-o", picture)
    assert re.search(r"calls, \d+ stretch", said)  # what the interpreter imports by itself
    assert "https://ui.perfetto.dev" in said
    written = [
        facts
        for _, _, _, name, _, facts in read_perfetto(picture.read_bytes())["slices"]
        if name == "write"
    ]
    assert [facts["bytes"] for facts in written] == [1000] * 20
    said = command("timeline", run.folder, "-o", tmp_path / "t.json.gz", "--max-events", "10")
    assert "are gathered into" in said
    assert "vizviewer" in said
    said = command("timeline", run.folder, "--from", "1e9", status=2)
    assert said.startswith("penstock: nothing lies between")
    assert said.count("\n") == 1


def test_the_command_gathers_at_the_limit_that_the_drawing_has() -> None:
    assert f"[default: {timeline.MAX_SLICES}" in " ".join(command("timeline", "--help").split())


def command(*arguments: str | Path, status: int = 0) -> str:
    finished = subprocess.run(
        [PENSTOCK, *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert finished.returncode == status, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stdout + finished.stderr


def test_drawing_imports_no_library_of_a_format() -> None:
    program = """
import sys
from penstock.interop import picture
heavy = {"google.protobuf", "perfetto", "torch", "tensorflow", "jax"}
assert not heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_profile_that_overlaps_by_a_moment_is_taken(dated: Synthetic) -> None:
    clocks.require_overlap("x", dated.run, UNIX_NS - 5, UNIX_NS, ["NODE1.cluster"])
    with pytest.raises(ForeignError):
        clocks.require_overlap("x", dated.run, UNIX_NS - 5, UNIX_NS - 1, [])
