"""Waits whose loader does not say who makes a batch, written down by hand, against the measures."""

import random
from typing import Any

import pytest

from penstock.explain.measures import measure
from penstock.explain.report import report_of
from synthetic import Synthetic

MS = 1_000_000


def pooled(start: int, end: int, cpu: int | None, index: int = 1) -> Synthetic:
    """A process whose second batch is waited for from start to end (ms) at a loader that does not
    say who makes it.  The first batch, until 100 ms, belongs to start-up."""
    run = Synthetic()
    run.process(1, end=2000 * MS)
    for number, (first, last) in enumerate([(20, 100), (start, end)]):
        run.wait(first * MS, last * MS, number if number == 0 else index)
        if cpu is not None:
            run.span("wait cpu", last * MS + 1, last * MS + 2, index=number, a=1, b=cpu * MS)
    run.step(20 * MS, 150 * MS, 0)
    run.step(150 * MS, 1100 * MS, 1)
    return run


def parts(run: Synthetic) -> dict[str, float]:
    """Milliseconds by part, of the waits in the wall; they must sum to the data wait."""
    known = measure(run)
    assert sum(known.wait_parts.values()) == pytest.approx(known.training.data_wait_s, rel=1e-9)
    return {part: round(s * 1000, 6) for part, s in known.wait_parts.items()}


def test_what_any_thread_of_the_process_reads_meanwhile_is_a_read() -> None:
    run = pooled(200, 300, cpu=0)
    run.call("pread", 190 * MS, 240 * MS, thread=7, moved=1)
    run.call("pread", 280 * MS, 320 * MS, thread=8, moved=1)
    assert parts(run) == {"read": 60, "blocked": 40}


def test_what_several_threads_do_at_once_is_shared_and_counts_once() -> None:
    run = pooled(200, 300, cpu=0)
    run.call("pread", 200 * MS, 240 * MS, thread=7, moved=1)
    run.call("pread", 200 * MS, 240 * MS, thread=8, moved=1)
    run.call("open", 220 * MS, 260 * MS, thread=9)
    # 20 ms of two reads; 20 ms of two reads and an open, a third each; 20 ms of the open.
    assert parts(run) == {
        "read": pytest.approx(20 + 40 / 3, abs=1e-6),
        "metadata": pytest.approx(20 / 3 + 20, abs=1e-6),
        "blocked": 40,
    }


def delayed(*waits: tuple[int, int, int, int | None]) -> Synthetic:
    """Waits after the first batch: from, to, CPU time and delay of all threads (ms)."""
    run = Synthetic()
    run.process(1, end=9000 * MS)
    run.wait(20 * MS, 100 * MS, 0)
    run.span("wait cpu", 100 * MS + 1, 100 * MS + 2, index=0, a=1, b=0)
    run.step(20 * MS, 150 * MS, 0)
    for number, (first, last, cpu, delay) in enumerate(waits, 1):
        run.wait(first * MS, last * MS, number)
        run.span("wait cpu", last * MS + 1, last * MS + 2, index=number, a=1, b=cpu * MS)
        if delay is not None:
            run.span("wait delay", last * MS + 3, last * MS + 4, index=number, a=1, b=delay * MS)
        run.step(last * MS, (last + 50) * MS, number)
    return run


def test_time_in_which_the_loaders_threads_had_no_cpu_is_not_scheduled() -> None:
    run = delayed((200, 300, 30, 20))
    run.call("pread", 200 * MS, 210 * MS, thread=7, moved=1)
    assert parts(run) == {"read": 10, "cpu": 30, "not scheduled": 20, "blocked": 40}


def test_of_many_threads_that_want_a_cpu_the_wait_is_shared_as_their_times_are() -> None:
    assert parts(delayed((200, 300, 100, 300))) == {"cpu": 25, "not scheduled": 75}


def test_a_wait_whose_delay_was_not_asked_for_is_as_the_others() -> None:
    run = delayed((200, 300, 40, 20), (400, 500, 20, None), (600, 700, 60, 30))
    # Half as much delay as CPU time in the two waits that tell it.
    assert parts(run) == {"cpu": 120, "not scheduled": 60, "blocked": 120}
    assert measure(run).cpu_unknown.waits == 0


def test_without_any_delay_time_without_a_cpu_may_be_in_what_is_blocked() -> None:
    run = delayed((200, 300, 40, None))
    assert parts(run) == {"cpu": 40, "blocked": 60}
    assert measure(run).cpu_unknown.waits == 2
    (gap,) = [gap for gap in report_of(measure(run)).gaps if gap.what == "2 data waits"]
    assert "without a run-queue delay" in gap.why


def test_a_call_of_the_loaders_threads_that_lost_the_cpu_did_not_read_so_long() -> None:
    run = delayed((200, 300, 10, 50))
    run.call("pread", 200 * MS, 260 * MS, thread=7, path="/data/a", moved=1)
    run.account(200 * MS, 260 * MS, delay=50 * MS, thread=7)
    assert parts(run) == {"read": 10, "cpu": 10, "not scheduled": 50, "blocked": 30}
    (row,) = [row for row in measure(run).files if row.path == "/data/a"]
    assert row.blocking_s == pytest.approx(0.010)


def test_a_graph_tells_the_delay_of_all_threads_since_it_was_called() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    for number, (call, got, us) in enumerate(((0, 40, 30_000), (100, 200, 100_000))):
        run.span("graph", call * MS, call * MS + 1, a=0, b=1 + 500 * MS)
        run.span("get next", got * MS, got * MS + 1, thread=9, a=us, b=20 * MS)
        run.span("get next delay", got * MS + 2, got * MS + 3, thread=9, b=1 + 560 * MS)
        run.step(call * MS, (got + 50) * MS, number)
    assert parts(run) == {"cpu": 20, "not scheduled": 60, "blocked": 20}


def test_the_waiting_threads_own_calls_count_too() -> None:
    run = pooled(200, 300, cpu=0)
    run.call("pread", 200 * MS, 250 * MS, thread=1, moved=1)
    assert parts(run) == {"read": 50, "blocked": 50}


def test_what_the_process_used_of_the_processor_beside_calls_is_cpu() -> None:
    run = pooled(200, 300, cpu=30)
    run.call("pread", 200 * MS, 250 * MS, thread=7, moved=1)
    assert parts(run) == {"read": 50, "cpu": 30, "blocked": 20}
    busy = pooled(200, 300, cpu=400)  # eight threads that decode
    busy.call("pread", 200 * MS, 250 * MS, thread=7, moved=1)
    assert parts(busy) == {"read": 50, "cpu": 50}


def test_a_save_in_the_background_is_not_what_a_batch_waits_for() -> None:
    run = pooled(200, 300, cpu=0)
    run.file("/out/model", path_class="output")
    run.call("write", 200 * MS, 300 * MS, thread=7, path="/out/model", moved=1)
    assert parts(run) == {"blocked": 100}


def test_other_processes_than_workers_do_not_count() -> None:
    run = pooled(200, 300, cpu=0)
    run.process(2, start=0, end=1900 * MS, parent=1)
    run.call("read", 200 * MS, 300 * MS, process=2, moved=1)
    assert parts(run) == {"blocked": 100}


def test_workers_reads_count_and_what_else_they_did_is_not_observed() -> None:
    run = pooled(200, 300, cpu=10)
    run.worker(2, start=10 * MS, end=1900 * MS)
    run.call("read", 200 * MS, 240 * MS, process=2, thread=5, moved=1)
    assert parts(run) == {"read": 40, "cpu": 10, "not observed": 50}


@pytest.mark.parametrize(("received", "is_maker"), [(1000, True), (999, False), (0, False)])
def test_a_process_that_may_have_sent_the_batch_counts_though_no_adapter_knows_it(
    received: int, is_maker: bool
) -> None:
    run = pooled(200, 300, cpu=0)
    run.process(2, start=0, end=1900 * MS, parent=1)
    run.call("read", 200 * MS, 290 * MS, process=2, moved=1)
    run.file("pipe:", kind="pipe")
    run.call("write", 290 * MS, 291 * MS, process=2, path="pipe:", moved=1000)
    if received:
        run.call("read", 298 * MS, 299 * MS, path="pipe:", thread=7, moved=received)
    assert parts(run) == ({"read": 90, "not observed": 10} if is_maker else {"blocked": 100})


def test_a_program_that_ended_before_the_first_wait_sent_no_batch() -> None:
    """Keras asks `uname -p` as it starts."""
    run = pooled(200, 300, cpu=0)
    run.process(2, start=5 * MS, end=15 * MS, parent=1, command="uname")
    run.file("pipe:", kind="pipe")
    run.call("write", 10 * MS, 11 * MS, process=2, path="pipe:", moved=7)
    run.call("read", 12 * MS, 13 * MS, path="pipe:", thread=1, moved=7)
    assert parts(run) == {"blocked": 100}


def test_a_pass_that_is_over_is_no_wait_for_a_batch() -> None:
    run = pooled(200, 300, cpu=0, index=-1)
    run.call("pread", 200 * MS, 300 * MS, thread=7, moved=1)
    assert parts(run) == {"pass end": 100}


def test_a_loader_that_says_who_fetches_is_not_judged_by_other_threads() -> None:
    run = pooled(200, 300, cpu=None)
    run.call("pread", 200 * MS, 300 * MS, thread=7, moved=1)
    assert parts(run) == {"not observed": 100}


def test_files_are_blamed_for_their_share_of_a_pooled_wait() -> None:
    run = pooled(200, 300, cpu=0)
    run.call("pread", 200 * MS, 240 * MS, thread=7, path="/data/a", moved=1)
    run.call("pread", 220 * MS, 240 * MS, thread=8, path="/data/b", moved=1)
    blocking = {file.path: file.blocking_s for file in measure(run).files if file.path}
    assert blocking == {"/data/a": pytest.approx(0.030), "/data/b": pytest.approx(0.010)}


# Batches that a graph asked for


def graph(*calls: tuple[int, int, int]) -> Synthetic:
    """Steps whose graph is called at `call` and has its batch at `got` (ms), for which it waited
    `us`."""
    run = Synthetic()
    run.process(1, end=2000 * MS)
    for number, (call, got, us) in enumerate(calls):
        run.span("graph", call * MS, call * MS + 1, a=1000 * MS + call * MS)
        run.span(
            "get next", got * MS, got * MS + 1, thread=9, a=us, b=1000 * MS + call * MS + 7 * MS
        )
        run.step(call * MS, (got + 50) * MS, number)
    return run


def test_a_batch_that_a_graph_asked_for_is_waited_for_by_the_thread_that_called_it() -> None:
    run = graph((0, 40, 30_000), (100, 150, 20_000), (300, 380, 80_000))
    run.call("pread", 320 * MS, 350 * MS, thread=8, moved=1)
    known = measure(run)
    assert (known.training.steps, known.training.waits) == (3, 2)
    assert known.training.first_batch_s == pytest.approx(0.030)
    assert known.training.data_wait_s == pytest.approx(0.100)
    assert parts(run) == {"read": 30, "cpu": 14, "blocked": 56}


def test_a_graph_that_asks_twice_in_one_call_tells_its_processor_time_once() -> None:
    run = graph((0, 40, 30_000), (100, 150, 20_000))
    run.span("get next", 180 * MS, 180 * MS + 1, thread=9, a=10_000, b=9999 * MS)
    assert parts(run) == {"cpu": 7, "blocked": 13, "not observed": 10}


def test_a_graph_that_finds_the_end_of_the_pass_waits_for_no_batch() -> None:
    run = graph((0, 40, 30_000), (100, 150, 20_000))
    run.span("graph", 250 * MS, 250 * MS + 1, a=0)
    run.span("get next", 260 * MS, 260 * MS + 1, thread=9, a=5_000, b=0)
    run.span("delivered", 261 * MS, 261 * MS + 1)
    run.span("checkpoint", 300 * MS, 310 * MS)
    known = measure(run)
    assert known.training.waits == 1
    assert parts(run)["pass end"] == 5


def test_what_python_asked_for_is_not_counted_again_in_c() -> None:
    run = pooled(200, 300, cpu=0)
    run.span("graph", 10 * MS, 10 * MS + 1, a=0)
    for end in (99, 299):
        run.span("get next", end * MS, end * MS + 1, thread=9, a=50_000, b=0)
    assert measure(run).training.data_wait_s == pytest.approx(0.100)


# Steps


@pytest.mark.parametrize(
    ("origins", "counted"), [((2, 2, 2), 3), ((0, 2, 0), 2), ((1, 0, 2), 1), ((2, 1, 1), 2)]
)
def test_iterations_are_steps_where_there_are_no_others(
    origins: tuple[int, ...], counted: int
) -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    for number, origin in enumerate(origins):
        start = number * 100 * MS
        run.span("step", start, start + 90 * MS, index=number, b=origin, kind="step")
    known = measure(run)
    assert known.training.steps == counted
    assert sum(point.steps for point in known.step_times) == counted


def slow_parts(calls: Any, wait: tuple[int, int], cpu: int) -> dict[str, float]:
    """The definition again, instant by instant."""
    found = {"read": 0.0, "metadata": 0.0}
    outside = 0
    for now in range(*wait):
        under_way = [op for op, first, last in calls if first <= now < last]
        for op in under_way:
            found["read" if op == "pread" else "metadata"] += 1 / len(under_way)
        outside += not under_way
    found["cpu"] = min(outside, cpu)
    found["blocked"] = outside - found["cpu"]
    return {part: ticks for part, ticks in found.items() if ticks > 1e-9}


@pytest.mark.parametrize("seed", [1, 2])
def test_parts_are_what_an_instant_by_instant_count_finds(seed: int) -> None:
    """Two hundred waits of 100 ms, each with calls of up to twelve threads over it."""
    chance = random.Random(seed)
    run = Synthetic()
    run.process(1, end=10**12)
    run.step(0, 10 * MS, 0)
    expected: dict[str, float] = {}
    for number in range(1, 201):
        start, cpu = number * 1000, chance.choice([0, chance.randrange(120)])
        run.wait((start + 200) * MS, (start + 300) * MS, number)
        run.span("wait cpu", (start + 300) * MS + 1, (start + 300) * MS + 2, a=1, b=cpu * MS)
        calls = []
        for thread in range(chance.randrange(13)):
            op, first = chance.choice(["pread", "open"]), start + chance.randrange(150, 350)
            calls.append((op, first, first + chance.randrange(1, 121)))
            run.call(op, first * MS, calls[-1][2] * MS, thread=2 + thread, moved=1)
        for part, ticks in slow_parts(calls, (start + 200, start + 300), cpu).items():
            expected[part] = expected.get(part, 0) + ticks
    run.step(100 * MS, 202_000 * MS, 1)
    assert parts(run) == pytest.approx(expected, rel=1e-6)


def test_a_report_says_which_numbers_rest_on_threads_that_do_not_tell() -> None:
    told = pooled(200, 300, cpu=30)
    told.call("pread", 200 * MS, 250 * MS, thread=7, moved=1)
    parts = {part.key: part for part in report_of(measure(told), "run").wait}
    assert parts["read"].state == "derived"
    assert "who makes a batch" in parts["read"].why
    known = pooled(200, 300, cpu=None)
    known.call("read", 200 * MS, 250 * MS, moved=1)
    parts = {part.key: part for part in report_of(measure(known), "run").wait}
    assert (parts["read"].state, parts["read"].why) == ("measured", "")


def processes_that_decode(
    stands: tuple[int, int] | None = None,
    *,
    moved: int = 100_000,
    first: str = "/data/x",
    at_ms: int = 200,
) -> Synthetic:
    """A wait from 200 to 300 ms.  A worker process reads for 20 ms, then computes, or stands still
    for a part, until it hands over the batch at 290 ms; a second worker makes another batch."""
    run = pooled(200, 300, cpu=5)
    run.file("pipe:", path_class="system", kind="pipe")
    for process in (2, 3):
        run.worker(process, start=0, end=1900 * MS, number=process - 2)
        run.call("read", 150 * MS, 151 * MS, path=first, process=process, moved=1)
    run.call("read", at_ms * MS, (at_ms + 20) * MS, process=2, moved=moved)
    if stands:
        run.blocked("sem_wait", stands[0] * MS, stands[1] * MS, process=2)
    run.call("write", 290 * MS, 291 * MS, path="pipe:", process=2, moved=50_000)
    run.call("read", 291 * MS, 292 * MS, path="pipe:", moved=50_000)
    run.blocked("sem_wait", 291 * MS, 1500 * MS, process=2)
    run.blocked("sem_wait", 1000 * MS, 1500 * MS, process=3)
    return run


def test_a_worker_process_that_reads_and_computes_decodes() -> None:
    found = parts(processes_that_decode())
    assert found["read"] == pytest.approx(21, abs=1.1)
    assert found["cpu"] == pytest.approx(75, abs=6)
    assert found.get("not observed", 0) < 10


@pytest.mark.parametrize(
    ("run", "cpu_ms"),
    [
        (processes_that_decode(stands=(221, 289)), 5),  # waits for something: no computation
        (processes_that_decode(moved=100), 5),  # reads no data: a monitor of the job
        (processes_that_decode(first="pipe:", at_ms=260), 5),  # no data before: it may import
    ],
    ids=["stands", "reads nothing", "starts"],
)
def test_a_worker_process_that_stands_starts_or_reads_no_data_decodes_nothing(
    run: Synthetic, cpu_ms: int
) -> None:
    found = parts(run)
    assert found["cpu"] == pytest.approx(cpu_ms, abs=4)
    assert found["not observed"] > 60


def test_a_worker_process_that_makes_another_batch_does_not_decode_this_batch() -> None:
    run = processes_that_decode(stands=(221, 289))
    run.call("read", 152 * MS, 153 * MS, process=3, moved=100_000)  # and computes ever since
    run.wait(400 * MS, 450 * MS, 2)  # for the batch of that process
    run.span("wait cpu", 450 * MS + 1, 450 * MS + 2, index=2, a=1, b=0)
    run.call("write", 440 * MS, 441 * MS, path="pipe:", process=3, moved=50_000)
    run.call("read", 441 * MS, 442 * MS, path="pipe:", moved=50_000)
    assert parts(run)["cpu"] == pytest.approx(5 + 50, abs=5)
