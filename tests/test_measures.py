"""Runs written down by hand, whose waits can be counted by hand, against what is measured."""

import ast
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.explain import measures as module
from penstock.explain import questions
from penstock.explain.measures import PARTS, STORAGE_PARTS, Measures, measure
from penstock.explain.questions import PREPARED, prepare, query
from synthetic import Synthetic, training_job

MS = 1_000_000


def one_wait(start: int, end: int | None, **worker: int) -> Synthetic:
    """A main process whose second batch is waited for from start to end (ms), and one worker.

    The first batch, until 100 ms, belongs to start-up.
    """
    run = Synthetic()
    run.process(1, end=2000 * MS)
    run.worker(2, start=worker.get("begins", 10) * MS, end=1900 * MS)
    run.wait(20 * MS, 100 * MS, 0)
    run.step(20 * MS, 150 * MS, 0)
    run.fetch(20 * MS, 90 * MS, 0, cpu=70 * MS, delay=0)
    run.wait(start * MS, None if end is None else end * MS, 1)
    run.step(150 * MS, 1100 * MS, 1)
    return run


def parts(run: Synthetic) -> dict[str, float]:
    """Milliseconds by part, of the waits in the wall; they must sum to the data wait."""
    known = measure(run)
    assert sum(known.wait_parts.values()) == pytest.approx(known.training.data_wait_s, rel=1e-9)
    return {part: round(s * 1000, 6) for part, s in known.wait_parts.items()}


def test_a_wait_is_a_read_while_the_worker_that_owes_the_batch_reads() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("read", 200 * MS, 300 * MS, process=2, moved=4096)
    assert parts(run) == {"read": 100}


def test_calls_count_by_their_group() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("open", 200 * MS, 210 * MS, process=2)
    run.call("stat", 210 * MS, 215 * MS, process=2)
    run.call("list", 215 * MS, 220 * MS, process=2)
    run.call("pread", 220 * MS, 280 * MS, process=2, moved=1)
    run.call("pwrite", 280 * MS, 300 * MS, process=2, moved=1)
    assert parts(run) == {"metadata": 20, "read": 60, "write": 20}


def test_time_in_a_fetch_outside_calls_is_what_the_processor_and_the_queue_say() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=48 * MS, delay=16 * MS)
    run.call("read", 220 * MS, 240 * MS, process=2, moved=1)
    assert parts(run) == {"read": 20, "cpu": 48, "not scheduled": 16, "blocked": 16}


def test_cpu_time_and_delay_beyond_the_time_outside_calls_were_spent_in_calls() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=75 * MS, delay=25 * MS)
    run.call("read", 200 * MS, 260 * MS, process=2, moved=1)
    # 60 ms in the call, nothing blocked: 25 of them without a CPU, 35 on one.
    assert parts(run) == {"cpu": 40, "cached": 35, "not scheduled": 25}


def test_a_thread_that_lost_its_cpu_in_a_call_did_not_wait_for_storage() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=10 * MS, delay=60 * MS)
    for n in range(10):  # 1 ms each, of a device
        run.call("read", (200 + n) * MS, (201 + n) * MS, process=2, path="/data/a", moved=1)
    run.call("read", 220 * MS, 290 * MS, process=2, path="/data/b", moved=1)
    # 100 - 10 - 60 ms can have been blocked; the calls took 80.  The longest gives the rest.
    assert parts(run) == {"read": 30, "cpu": 10, "not scheduled": 60}
    known = measure(run)
    assert {row.path: round(row.blocking_s * 1000, 6) for row in known.files} == {
        "/data/a": 10,
        "/data/b": 20,
    }
    assert known.data_blocking == {"read": pytest.approx(0.030)}
    assert known.blocking_reads.blocking_s == pytest.approx(0.030)


def test_of_two_calls_that_lost_the_cpu_both_are_cut_to_one_length() -> None:
    run = one_wait(200, 400)
    run.fetch(200 * MS, 400 * MS, 1, cpu=0, delay=60 * MS)
    for path, begin, end in (("/data/a", 200, 250), ("/data/b", 250, 370), ("/data/c", 370, 400)):
        run.call("read", begin * MS, end * MS, process=2, path=path, moved=1)
    assert parts(run) == {"read": 140, "not scheduled": 60}
    blocking = {row.path: round(row.blocking_s * 1000, 6) for row in measure(run).files}
    assert blocking == {"/data/a": 50, "/data/b": 60, "/data/c": 30}


def test_reads_from_memory_are_time_on_a_cpu() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=100 * MS, delay=0)
    for n in range(10):
        run.call("read", (200 + 10 * n) * MS, (209 + 10 * n) * MS, process=2, moved=9 << 20)
    assert parts(run) == {"cpu": 10, "cached": 90}
    known = measure(run)
    assert known.storage_fraction.value == 0
    assert known.blocking_reads.blocking_s == pytest.approx(0)


def test_among_reads_from_memory_the_one_of_the_device_is_what_was_waited_for() -> None:
    run = one_wait(200, 310)
    run.fetch(200 * MS, 310 * MS, 1, cpu=100 * MS, delay=0)
    run.call("read", 200 * MS, 211 * MS, process=2, path="/data/disk", moved=1 << 20)
    for n in range(99):
        run.call("read", (211 + n) * MS, (212 + n) * MS, process=2, path="/data/a", moved=1 << 20)
    # Each takes 1 ms of CPU time: 11 ms were 10 of waiting, 1 ms was none.
    assert parts(run) == {"read": 10, "cached": 100}
    blocking = {row.path: round(row.blocking_s * 1000, 6) for row in measure(run).files}
    assert blocking == {"/data/disk": 10, "/data/a": 0}


def test_a_call_as_short_as_one_served_from_memory_is_no_wait() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=20 * MS, delay=0)
    for n in range(1000):
        at = 200 * MS + n * 100_000
        run.call("open", at, at + 9_000, process=2)
        run.call("read", at + 10_000, at + 24_000, process=2, moved=60_000)  # 4.3 GB/s
    assert parts(run) == {"cached": 20, "blocked": 80}


def test_a_read_of_4_kib_that_takes_100_us_is_a_wait() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=20 * MS, delay=0)
    for n in range(100):
        at = 200 * MS + n * MS
        run.call("read", at, at + 100_000, process=2, moved=4096)
    assert parts(run) == {"read": 10, "cpu": 20, "blocked": 70}


def test_the_account_of_a_long_call_says_how_much_of_it_was_waiting() -> None:
    """In whatever thread: no fetch has to tell anything."""
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=100 * MS, delay=0)
    run.call("read", 400 * MS, 500 * MS, path="/data/a", moved=1)
    run.account(400 * MS, 500 * MS, cpu=10 * MS, delay=60 * MS)
    run.call("read", 500 * MS, 520 * MS, path="/data/b", moved=1)
    run.span("checkpoint", 600 * MS, 800 * MS)
    run.call("write", 600 * MS, 700 * MS, path="/out/a", moved=1)
    run.account(600 * MS, 700 * MS, cpu=80 * MS, delay=5 * MS)
    known = measure(run)
    assert known.training.training_calls_s == pytest.approx(0.050)
    assert known.checkpoint_parts == pytest.approx({"write": 0.015, "other": 0.185})
    blocking = {row.path: round(row.blocking_s * 1000, 6) for row in known.files}
    assert blocking == {"/data/a": 30, "/data/b": 20, "/out/a": 15}
    assert known.storage_fraction.state == "derived"


def test_a_fetch_takes_no_delay_twice_from_a_call_with_an_account() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=10 * MS, delay=60 * MS)
    run.call("read", 200 * MS, 270 * MS, process=2, moved=1)
    run.account(200 * MS, 270 * MS, delay=60 * MS, process=2)
    assert parts(run) == {"read": 10, "cpu": 10, "not scheduled": 60, "blocked": 20}


def test_an_account_is_of_the_call_of_its_own_thread() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("read", 200 * MS, 300 * MS, process=2, moved=1)
    run.account(200 * MS, 300 * MS, delay=100 * MS, process=2, thread=2)
    assert parts(run) == {"read": 100}


def test_where_no_delay_is_told_long_calls_are_waits_at_most() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS, tells_delay=False)
    run.worker(2, start=10 * MS, end=1900 * MS)
    run.rows["notes"].clear()
    for number in range(10):
        run.step(number * 100 * MS, (number + 1) * 100 * MS, number)
        run.call("read", number * 100 * MS, (number * 100 + 50) * MS, moved=1)
    known = measure(run)
    assert known.cpu_unknown.call_s == pytest.approx(0.500)
    assert known.storage_fraction.value == pytest.approx(0.5)
    assert known.storage_fraction.state == "incomplete"
    assert "time without a CPU was not measured" in known.storage_fraction.why


def test_without_a_measured_delay_cpu_time_alone_bounds_the_calls_of_a_fetch() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=60 * MS)
    run.call("read", 200 * MS, 290 * MS, process=2, moved=1)
    assert parts(run) == {"read": 40, "cpu": 10, "cached": 50}


def test_a_fetch_half_waited_for_gives_half_of_its_processor_time() -> None:
    run = one_wait(250, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=60 * MS, delay=40 * MS)
    assert parts(run) == {"cpu": 30, "not scheduled": 20}


def test_a_worker_busy_with_an_earlier_batch_is_judged_by_that_batch() -> None:
    run = one_wait(200, 300)
    run.fetch(150 * MS, 240 * MS, 7, cpu=0, delay=90 * MS)
    run.fetch(240 * MS, 300 * MS, 1, cpu=60 * MS, delay=0)
    assert parts(run) == {"not scheduled": 40, "cpu": 60}


def test_a_worker_in_no_fetch_is_idle_and_afterwards_hands_over() -> None:
    run = one_wait(200, 300)
    run.fetch(230 * MS, 280 * MS, 1, cpu=50 * MS, delay=0)
    assert parts(run) == {"idle": 30, "cpu": 50, "hand-over": 20}


def test_a_file_call_of_an_idle_worker_is_that_call() -> None:
    run = one_wait(200, 300)
    run.call("open", 205 * MS, 225 * MS, process=2)
    run.fetch(230 * MS, 300 * MS, 1, cpu=70 * MS, delay=0)
    assert parts(run) == {"idle": 10, "metadata": 20, "cpu": 70}


def test_a_batch_that_was_ready_is_handed_over() -> None:
    run = one_wait(200, 202)
    run.fetch(110 * MS, 190 * MS, 1, cpu=0, delay=0)
    run.call("read", 110 * MS, 190 * MS, process=2, moved=1)
    assert parts(run) == {"hand-over": 2}


def test_a_wait_for_a_worker_that_does_not_run_yet_is_worker_start() -> None:
    run = one_wait(200, 300, begins=260)
    run.fetch(270 * MS, 300 * MS, 1, cpu=30 * MS, delay=0)
    assert parts(run) == {"worker start": 60, "idle": 10, "cpu": 30}


def test_making_an_iterator_is_a_wait_of_its_own_less_its_file_calls() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=100 * MS, delay=0)
    run.span("loader start", 1 * MS, 15 * MS, a=1)  # belongs to start-up, as the first batch
    run.span("loader", 1200 * MS, 1900 * MS, index=2)
    run.span("loader start", 1200 * MS, 1500 * MS, a=2)
    run.call("read", 1250 * MS, 1300 * MS, moved=1)
    run.wait(1500 * MS, 1510 * MS, 0, a=2)
    run.step(1100 * MS, 1600 * MS, 2)
    run.fetch(1500 * MS, 1510 * MS, 0, a=2, cpu=10 * MS, delay=0)
    assert parts(run) == {"loader start": 250, "read": 50, "cpu": 110}
    known = measure(run)
    assert known.training.waits == 2  # the making of an iterator brings no batch
    assert known.training.first_batch_s == pytest.approx(0.08)
    (epoch,) = known.epochs
    assert epoch.data_wait_s == pytest.approx(0.31)
    assert epoch.first_wait_s == pytest.approx(0.01)


def test_without_a_fetch_nothing_was_observed() -> None:
    assert parts(one_wait(200, 300)) == {"not observed": 100}


def test_without_a_fetch_the_waiting_threads_own_calls_were_observed() -> None:
    run = one_wait(200, 300)
    run.call("read", 210 * MS, 250 * MS, moved=1)
    assert parts(run) == {"read": 40, "not observed": 60}


def test_without_workers_the_fetch_is_in_the_waiting_thread() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    for batch in range(2):
        run.wait(batch * 200 * MS, (batch * 200 + 100) * MS, batch)
        run.fetch(
            (batch * 200 + 5) * MS, (batch * 200 + 95) * MS, batch, process=1, cpu=50 * MS, delay=0
        )
        run.call("read", (batch * 200 + 10) * MS, (batch * 200 + 50) * MS, moved=1)
        run.step(batch * 200 * MS, (batch + 1) * 200 * MS, batch)
    assert parts(run) == {"read": 40, "cpu": 50, "hand-over": 10}


def test_a_wait_that_brings_no_batch_is_the_end_of_the_pass() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=100 * MS, delay=0)
    run.wait(400 * MS, 430 * MS, -1)
    assert parts(run) == {"cpu": 100, "pass end": 30}


def test_a_batch_that_overtook_the_one_announced_is_the_one_that_is_judged() -> None:
    run = one_wait(200, 300)
    run.span("delivered", 300 * MS + 1, 300 * MS + 2, index=3, a=1)
    run.fetch(200 * MS, 300 * MS, 3, cpu=100 * MS, delay=0)
    assert parts(run) == {"cpu": 100}


def test_reading_a_pipe_is_no_file_call() -> None:
    run = one_wait(200, 300)
    run.file("pipe:", path_class="system", kind="pipe")
    run.call("read", 200 * MS, 250 * MS, process=2, path="pipe:", moved=1)
    run.fetch(250 * MS, 300 * MS, 1, cpu=50 * MS, delay=0)
    assert parts(run) == {"idle": 50, "cpu": 50}


def test_a_blocked_fetch_waits_for_the_calls_of_its_helper_threads() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=20 * MS, delay=0)
    run.call("read", 210 * MS, 260 * MS, process=2, thread=9, moved=1000)
    run.call("open", 240 * MS, 270 * MS, process=2, thread=8)  # 20 ms of it beside the read
    assert parts(run) == {"read": 40, "metadata": 20, "cpu": 20, "blocked": 20}


def test_a_call_of_the_fetching_thread_comes_before_those_of_helpers() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("open", 220 * MS, 250 * MS, process=2)
    run.call("read", 200 * MS, 300 * MS, process=2, thread=9, moved=1)
    assert parts(run) == {"read": 70, "metadata": 30}


def test_helpers_get_no_more_than_the_processor_leaves_of_the_fetch() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=60 * MS, delay=15 * MS)
    run.call("read", 200 * MS, 300 * MS, process=2, thread=9, moved=1)
    assert parts(run) == {"read": 25, "cpu": 60, "not scheduled": 15}


def test_threads_that_save_log_or_fetch_themselves_help_no_fetch() -> None:
    run = one_wait(200, 300)
    run.file("/out/events", path_class="output")
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("open", 200 * MS, 210 * MS, path="/out/events", process=2, thread=9)
    run.call("write", 210 * MS, 300 * MS, path="/out/events", process=2, thread=9, moved=1)
    run.span("fetch", 200 * MS, 300 * MS, process=2, thread=8, index=5, a=1)
    run.call("read", 200 * MS, 300 * MS, process=2, thread=8, moved=1)
    run.call("read", 200 * MS, 300 * MS, process=1, thread=7, moved=1)  # not of the worker
    assert parts(run) == {"blocked": 100}


def test_a_fetch_that_never_ended_does_not_say_whether_it_waits_for_helpers() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, None, 1)
    run.call("read", 200 * MS, 300 * MS, process=2, thread=9, moved=1)
    assert parts(run) == {"not observed": 100}


def test_files_that_helpers_read_block_the_step_loop_as_long_as_the_wait_says() -> None:
    run = one_wait(200, 300)
    run.span("loader", 15 * MS, 350 * MS, index=1, a=1, b=16)
    run.fetch(190 * MS, 300 * MS, 1, cpu=55 * MS, delay=0)
    for thread in (8, 9):
        run.call(
            "read", 190 * MS, 300 * MS, path=f"/data/{thread}", process=2, thread=thread, moved=10
        )
    known = measure(run)
    assert known.wait_parts["read"] == pytest.approx(0.050)
    assert {row.path: row.blocking_s for row in known.files} == {
        "/data/8": pytest.approx(0.025),
        "/data/9": pytest.approx(0.025),
    }
    assert known.blocking_reads.blocking_s == pytest.approx(0.050)
    (epoch,) = known.epochs
    assert epoch.read_bytes == 20


def test_a_read_that_never_returned_is_what_the_job_died_waiting_for() -> None:
    run = one_wait(200, None)
    run.span("loader", 15 * MS, None, index=1)
    run.fetch(210 * MS, None, 1)
    run.call("read", 220 * MS, None, process=2)
    found = parts(run)
    # The worker's log ends at 1900 ms, the main process's 100 ms later.
    assert found == {"idle": 10, "not observed": 110, "read": 1680}


def test_calls_that_overlap_never_exceed_the_wait() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("read", 200 * MS, 290 * MS, process=2, moved=1)
    run.call("open", 210 * MS, 300 * MS, process=2)
    assert parts(run) == {"read": 50, "metadata": 50}


def test_a_call_over_many_slots_of_time_counts_once() -> None:
    run = one_wait(200, 1000)
    for batch in range(50):  # short stretches make narrow slots
        run.fetch((110 + batch) * MS, (111 + batch) * MS, 100 + batch, cpu=0, delay=0)
    run.fetch(210 * MS, 1000 * MS, 1, cpu=0, delay=0)
    run.call("read", 205 * MS, 990 * MS, process=2, moved=1)
    assert parts(run) == {"idle": 5, "read": 785, "blocked": 10}


def test_the_first_batch_belongs_to_startup() -> None:
    known = measure(one_wait(200, 300))
    assert known.training.startup_s == pytest.approx(0.100)
    assert known.training.first_batch_s == pytest.approx(0.080)
    assert known.training.wall_s == pytest.approx(1.000)
    assert known.training.data_wait_s == pytest.approx(0.100)
    assert known.first_batch_parts == pytest.approx({"cpu": 0.070, "hand-over": 0.010})


def test_a_checkpoint_blocks_only_the_thread_that_takes_steps() -> None:
    run = one_wait(200, 300)
    run.span("checkpoint", 400 * MS, 500 * MS, index=0)
    run.call("write", 410 * MS, 470 * MS, path="/out/model.pt", moved=6 * 10**6)
    run.call("fsync", 470 * MS, 490 * MS, path="/out/model.pt")
    run.call("write", 491 * MS, 492 * MS, path="/out/job.log", moved=70)  # the program's output
    run.note("stream", "/out/job.log", process=None)
    run.span("checkpoint", 600 * MS, 900 * MS, index=1, thread=5)
    run.call("write", 610 * MS, 890 * MS, path="/out/async.pt", thread=5, moved=10**6)
    known = measure(run)
    assert known.training.checkpoint_block_s == pytest.approx(0.100)
    assert known.checkpoint_parts == pytest.approx({"write": 0.081, "other": 0.019})
    blocking, background = known.checkpoints
    assert (blocking.blocked_s, blocking.written_bytes, blocking.files) == (0.1, 6 * 10**6, 1)
    assert (blocking.sync_s, blocking.path) == (pytest.approx(0.020), "/out/model.pt")
    assert blocking.bandwidth_bps == pytest.approx(6e7)
    assert (background.blocked_s, background.background_s) == (None, pytest.approx(0.3))


def test_a_checkpoint_inside_a_data_wait_or_another_checkpoint_is_not_counted_twice() -> None:
    run = one_wait(200, 300)
    run.span("checkpoint", 210 * MS, 220 * MS, index=0)
    run.span("checkpoint", 400 * MS, 500 * MS, index=1)
    run.span("checkpoint", 410 * MS, 450 * MS, index=2)
    known = measure(run)
    assert known.training.checkpoint_block_s == pytest.approx(0.100)
    assert known.training.data_wait_s == pytest.approx(0.100)


def test_a_save_after_the_last_step_still_counts() -> None:
    run = one_wait(200, 300)
    run.span("checkpoint", 1150 * MS, 1250 * MS, index=0)
    known = measure(run)
    assert known.training.wall_s == pytest.approx(1.150)
    assert known.training.checkpoint_block_s == pytest.approx(0.100)


def test_of_posix_and_stdio_a_checkpoint_shows_the_layer_that_moved_more() -> None:
    run = one_wait(200, 300)
    run.span("checkpoint", 400 * MS, 500 * MS, index=0)
    run.call("fwrite", 410 * MS, 470 * MS, path="/out/model.pt", moved=1000)
    run.call("write", 470 * MS, 480 * MS, path="/out/model.pt", moved=900)
    (save,) = measure(run).checkpoints
    assert save.written_bytes == 1000


def test_calls_of_the_training_thread_outside_waits_are_its_own() -> None:
    run = one_wait(200, 300)
    run.call("read", 290 * MS, 340 * MS, moved=1)  # 10 ms of it inside the wait
    assert measure(run).training.training_calls_s == pytest.approx(0.040)


def test_two_ranks_count_as_their_mean() -> None:
    run = Synthetic()
    for rank in range(2):
        process = run.process(1 + rank, end=1000 * MS, rank=rank)
        run.step(0, 400 * MS, 0, process=process)
        run.wait(500 * MS, (600 + 100 * rank) * MS, 0, process=process)
        run.step(400 * MS, 1000 * MS, 1, process=process)
    known = measure(run)
    assert known.training.mains == 2
    assert known.training.wall_s == pytest.approx(1.0)
    assert known.training.data_wait_s == pytest.approx(0.150)
    assert known.stall_fraction.value == pytest.approx(0.15)


def test_time_outside_windows_is_not_wall_time() -> None:
    run = one_wait(200, 300)
    run.span("window", 0, 500 * MS, kind="window")
    run.span("window", 900 * MS, 2000 * MS, kind="window")
    assert measure(run).training.wall_s == pytest.approx(0.600)


def test_a_run_without_steps_has_no_fractions() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    run.call("read", 0, 100 * MS, moved=10)
    known = measure(run)
    assert not known.has_training
    assert known.stall_fraction.value is None
    assert known.stall_fraction.state == "not measured"
    assert [(row.op, row.calls) for row in known.operations] == [("read", 1)]


def test_an_empty_run_is_measured() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    known = measure(run)
    assert known.operations == ()
    assert known.recording.processes == 1


def test_folded_calls_are_in_the_totals_and_make_single_calls_incomplete() -> None:
    run = one_wait(200, 300)
    run.rows["processes"].clear()
    run.process(1, end=2000 * MS, folded_events=90)
    run.call("read", 0, 10 * MS, moved=100)
    run.fold("read", 90, moved_bytes=9000, duration_ns=900 * MS, max_duration_ns=20 * MS)
    known = measure(run)
    (read,) = known.operations
    assert (read.calls, read.moved_bytes, read.time_s) == (91, 9100, pytest.approx(0.910))
    assert known.counts_state == ("measured", "")
    state, why = known.events_state
    assert state == "incomplete"
    assert "90" in why
    assert known.storage_fraction.state == "incomplete"
    assert known.stall_fraction.state == "derived"


@pytest.mark.parametrize("lack", [{"lost_events": 3}, {"is_torn": True}, {"damaged_units": 1}])
def test_a_log_that_is_not_whole_makes_counts_incomplete(lack: dict[str, Any]) -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS, **lack)
    assert measure(run).counts_state[0] == "incomplete"


def test_totals_are_the_counters() -> None:
    run = training_job(40)
    known = measure(run)
    expected = run.connection.execute(
        "SELECT layer, op, sum(calls), sum(errors), sum(asked_bytes), sum(moved_bytes), "
        "sum(duration_ns) / 1e9, max(max_duration_ns) / 1e9 FROM counters GROUP BY layer, op"
    ).fetchall()
    found = [
        (o.layer, o.op, o.calls, o.errors, o.asked_bytes, o.moved_bytes, o.time_s, o.max_s)
        for o in known.operations
    ]
    assert sorted(found) == sorted(expected)


def test_quantiles_are_within_two_and_a_half_per_cent() -> None:
    run = Synthetic()
    run.process(1, end=10**12)
    durations = (np.random.default_rng(3).lognormal(11, 2, 2000) + 100).astype(int).tolist()
    for place, duration in enumerate(durations):
        run.call("read", place * 10**8, place * 10**8 + duration, moved=1)
    (read,) = measure(run).operations
    assert read.p50_s == pytest.approx(
        np.quantile(durations, 0.5, method="inverted_cdf") / 1e9, rel=0.025
    )
    assert read.p99_s == pytest.approx(
        np.quantile(durations, 0.99, method="inverted_cdf") / 1e9, rel=0.025
    )


def test_bandwidth_keeps_every_byte() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    run.call("read", 100 * MS, 400 * MS, moved=3 * 10**6)
    run.call("read", 500 * MS, 500 * MS + 10, moved=1000)
    known = measure(run)
    assert sum(row.moved_bytes for row in known.bandwidth) == pytest.approx(3_001_000)
    assert max(row.bin for row in known.bandwidth) < 600
    peak = max(row.moved_bytes / row.bin_s for row in known.bandwidth if row.moved_bytes > 1000)
    assert peak == pytest.approx(1e7, rel=0.01)


def test_a_folder_of_class_folders_is_one_directory() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    for number in range(12):
        run.call("read", number * MS, (number + 1) * MS, path=f"/d/train/c{number}/a/x", moved=5)
    run.call("read", 20 * MS, 21 * MS, path="/d/val/y", moved=5)
    rows = {row.path: (row.files, row.folders, row.read_bytes) for row in measure(run).directories}
    assert rows == {"/d/train": (12, 12, 60), "/d/val": (1, 1, 5)}


def test_blocking_time_of_files_is_the_storage_part_of_waits_and_checkpoints() -> None:
    known = measure(training_job(120, save_every=40, read_ms=4, compute_ms=20))
    blocking_s = sum(row.blocking_s for row in known.directories)
    assert known.data_storage_s > 0.1
    assert blocking_s == pytest.approx(
        known.data_storage_s + known.checkpoint_storage_s + known.training.training_calls_s,
        rel=1e-6,
    )


def test_only_the_largest_files_have_a_row_and_the_others_share_one() -> None:
    known = measure(training_job(60))
    *rows, others = known.files
    assert len(rows) == 100
    assert others.path is None
    assert sum(row.files for row in known.files) == known.reading.files + len(known.checkpoints)


def test_rereading_is_counted_by_the_file() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    run.file("/data/once", size=100)
    run.file("/data/thrice", size=100)
    for number, path in enumerate(["once", "thrice", "thrice", "thrice"]):
        start = number * 10 * MS
        run.call("open", start, start + MS, path=f"/data/{path}")
        run.call("read", start + MS, start + 2 * MS, path=f"/data/{path}", moved=100, offset=0)
        run.call("read", start + 2 * MS, start + 3 * MS, path=f"/data/{path}", asked=50, offset=100)
    reading = measure(run).reading
    assert (reading.files, reading.reads, reading.empty_reads, reading.opens) == (2, 8, 4, 4)
    assert (reading.reread_files, reading.reread_bytes) == (1, 200)


def test_a_file_read_from_itself_and_from_its_copy_is_one() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS, rank=0, world_size=2)
    run.process(2, end=1000 * MS, rank=1, world_size=2)
    run.step(0, 100 * MS)
    run.note("tier", "fast")
    for name, tier in (("a", None), ("a", "fast"), ("b", None)):
        run.file(f"/data/{name}", size=100, tier=tier)
    for number, (name, tier) in enumerate((("a", None), ("a", "fast"), ("b", None))):
        start = number * 10 * MS
        run.call("open", start, start + MS, path=f"/data/{name}", tier=tier)
        run.call("read", start + MS, start + 2 * MS, path=f"/data/{name}", moved=100, tier=tier)
    known = measure(run)
    told = [(row.path, row.opens, row.read_bytes, row.read_times) for row in known.files]
    assert told == [("/data/a", 2, 200, 2.0), ("/data/b", 1, 100, 1.0)]
    assert (known.reading.files, known.reading.size_bytes, known.reading.reread_files) == (
        2,
        200,
        1,
    )
    assert [row.files for row in known.directories] == [2]
    assert [row.files for row in known.classes if row.layer == "posix"] == [2]
    assert [(row.exponent, row.n) for row in known.file_sizes] == [(6, 2)]
    assert (known.metadata.opens, known.metadata.files) == (3, 2)
    assert [(row.files, row.size_bytes, row.read_bytes) for row in known.sharing] == [(2, 200, 300)]


def test_epochs_know_their_batches_bytes_and_waits() -> None:
    run = one_wait(200, 300)
    run.span("loader", 15 * MS, 350 * MS, index=1, a=1, b=16)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("read", 210 * MS, 220 * MS, process=2, moved=1000)
    run.call("read", 30 * MS, 40 * MS, process=2, moved=500)
    for path, path_class in (("/lib/a.py", "library"), ("/proc/stat", "system")):
        run.file(path, path_class=path_class)
        run.call("read", 230 * MS, 240 * MS, process=2, path=path, moved=7000)
    (epoch,) = measure(run).epochs
    assert (epoch.batches, epoch.read_bytes, epoch.workers, epoch.batch_size) == (2, 1500, 1, 16)
    assert epoch.data_wait_s == pytest.approx(0.180)
    assert epoch.first_wait_s == pytest.approx(0.080)


def test_a_step_owns_what_happens_since_the_step_before() -> None:
    run = one_wait(200, 300)
    run.span("checkpoint", 400 * MS, 500 * MS, index=0)
    first, second = measure(run).step_times
    assert (first.step_s, first.data_wait_s) == (pytest.approx(0.050), 0)
    assert second.step_s == pytest.approx(0.950)
    assert (second.data_wait_s, second.checkpoint_s) == (pytest.approx(0.1), pytest.approx(0.1))


def test_programs_without_a_log_are_listed() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    run.rows["unseen"].append((1, 77, "/bin/busybox", "static"))
    *_, last = measure(run).processes
    assert (last.role, last.command, last.reason) == ("not recorded", "/bin/busybox", "static")


def level(left_of: Callable[[float], float], left: float, most: float) -> float:
    """Where a function that grows has a value."""
    low, high = 0.0, most
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if left_of(middle) > left else (middle, high)
    return (low + high) / 2


def held_shares(begin: int, finish: int, cpu: int, delay: int, calls: Any) -> tuple[Any, float]:
    """Of each instant of a fetch the part in which storage held it up; CPU time inside calls.

    As bounds.sql defines it: calls of about one length (1/16 octave) are as long as their mean."""
    length = finish - begin
    pieces = [(max(first, begin), min(last, finish), last - first) for first, last in calls]
    pieces = [piece for piece in pieces if piece[1] > piece[0]]
    whole = sum(last - first for first, last, _ in pieces)
    over = min(whole, max(0, whole + cpu + delay - length))
    late = min(over, delay)
    bins: dict[int, list[tuple[float, int]]] = {}
    for first, last, ticks in pieces:
        bins.setdefault(int(16 * math.log2(ticks * 10_000)), []).append(
            ((last - first) / ticks, ticks)
        )
    alike = [
        (sum(n for n, _ in of), sum(n * ticks for n, ticks in of) / sum(n for n, _ in of))
        for of in bins.values()
    ]
    most = max((ticks for _, ticks in alike), default=0.0)
    high, low = most + length, 0.0
    if late:
        high = level(lambda at: sum(n * min(ticks, at) for n, ticks in alike), whole - late, most)
    if over > late:
        cut = [(n, min(ticks, high)) for n, ticks in alike]
        low = level(lambda at: sum(n * min(ticks, at) for n, ticks in cut), over - late, most)
    left = [
        (first, last, max(0.0, min(ticks, high) - low) / ticks) for first, last, ticks in pieces
    ]
    actual = sum((last - first) * share for first, last, share in left)
    held = np.zeros(length)
    for first, last, share in left:
        held[first - begin : last - begin] = share * (whole - over) / actual if actual else 0
    return held, min(cpu, over - late)


def slow_parts(
    waits: Any, fetches: Any, calls: Any, helpers: Any, worker: int, end: int
) -> dict[str, float]:
    """The definitions again, instant by instant: the truth for small whole numbers."""
    reading = np.zeros(end, bool)
    for first, last in calls:
        reading[first:last] = True
    groups = {group: np.zeros(end) for group in ("read", "metadata")}
    for group, first, last in helpers:
        groups[group][first:last] += 1
    helping = groups["read"] + groups["metadata"]
    found = dict.fromkeys(PARTS, 0.0)
    for index, first, last in waits:
        owed = next((fetch for fetch in fetches if fetch[0] == index and fetch[1] < last), None)
        for now in range(first, last):
            under_way = next((fetch for fetch in fetches if fetch[1] <= now < fetch[2]), None)
            if owed is None:
                found["not observed"] += 1
            elif now < worker and now < owed[2]:
                found["worker start"] += 1
            elif now >= owed[2]:
                found["hand-over"] += 1
            elif under_way is None:
                found["read" if reading[now] else "idle"] += 1
            else:
                _, begin, finish, cpu, delay = under_way
                held, cached = held_shares(begin, finish, cpu, delay, calls)
                helped = (~reading[begin:finish] & (helping[begin:finish] > 0)).sum()
                left = finish - begin - held.sum()
                share = min(1, max(0, left - cpu - delay) / helped) if helped else 0
                rest = 1 - held[now - begin]
                found["read"] += held[now - begin]
                if helping[now] and not reading[now]:
                    for group, calls_of in groups.items():
                        found[group] += share * calls_of[now] / helping[now]
                    rest -= share
                whole = max(left - share * helped, cpu + delay)
                if rest > 0 and whole > 0:
                    found["cpu"] += rest * (cpu - cached) / whole
                    found["cached"] += rest * cached / whole
                    found["not scheduled"] += rest * delay / whole
                    found["blocked"] += rest * (1 - (cpu + delay) / whole)
    return {part: ticks for part, ticks in found.items() if ticks > 1e-6}


def cut(draw: Any, n: int, low: int, high: int, least: int = 0) -> list[tuple[int, int]]:
    """From least to n intervals that do not overlap."""
    numbers = st.integers(low, high)
    edges = sorted(draw(st.lists(numbers, min_size=2 * least, max_size=2 * n, unique=True)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@st.composite
def random_run(draw: Any) -> Any:
    end = 400
    fetches = [
        (index, *span, draw(st.integers(0, 60)), draw(st.integers(0, 60)))
        for index, span in enumerate(cut(draw, 6, 60, end))
    ]
    waits = list(enumerate(cut(draw, 6, 60, end)))
    calls = cut(draw, 12, 0, end)
    worker = draw(st.integers(0, 150))
    return [(i, *span) for i, span in waits], fetches, calls, [], worker, end


@st.composite
def helped_run(draw: Any) -> Any:
    """Two batches waited for, each fetched with the help of two threads."""
    cpu = st.integers(0, 80)
    fetches = [(i, 20 + 120 * i, 120 + 120 * i, draw(cpu), draw(cpu) // 4) for i in range(2)]
    waits = [(i, draw(st.integers(15, 70)) + 120 * i, 125 + 120 * i) for i in range(2)]
    helpers = [
        (group, *span) for group in ("read", "metadata") for span in cut(draw, 6, 0, 260, least=3)
    ]
    return waits, fetches, cut(draw, 4, 0, 260), helpers, 10, 260


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_run() | helped_run())
def test_parts_are_what_an_instant_by_instant_count_finds(case: Any) -> None:
    waits, fetches, calls, helpers, worker, end = case
    unit = 10_000  # so that slots are narrower than the run
    run = Synthetic()
    run.process(1, end=(end + 50) * unit)
    run.worker(2, start=worker * unit, end=end * unit)
    run.step(0, 10 * unit, 0)
    run.step(10 * unit, (end + 20) * unit, 1)
    for index, first, last in waits:
        run.wait(first * unit, last * unit, index)
    for index, first, last, cpu, delay in fetches:
        run.fetch(first * unit, last * unit, index, cpu=cpu * unit, delay=delay * unit)
    for first, last in calls:
        run.call("read", first * unit, last * unit, process=2, moved=0)
    for group, first, last in helpers:
        op, thread = ("open", 8) if group == "metadata" else ("read", 9)
        run.call(op, first * unit, last * unit, process=2, thread=thread)
    # As `measure` asks, of this question and what it reads alone: there are many cases.
    with run.connection.cursor() as engine:
        prepare(engine, ("data_wait",))
        parts = engine.execute(query("data_wait")).fetchall()
    found = {
        part: s * 1e9 / unit for in_wall, part, s in parts if in_wall and s * 1e9 > unit * 1e-6
    }
    assert found == pytest.approx(slow_parts(*case), rel=1e-6, abs=1e-4)
    whole = sum(last - first for _, first, last in waits)
    assert sum(found.values()) == pytest.approx(whole, rel=1e-6)


def test_shares_sum_to_one_in_a_job() -> None:
    known = measure(training_job(80, compute_ms=15))
    assert known.wait_share(*PARTS) == pytest.approx(1, abs=1e-9)
    assert known.wait_share(*STORAGE_PARTS) == pytest.approx(
        known.data_storage_s / known.training.data_wait_s
    )


def test_every_query_says_what_it_defines() -> None:
    names = questions.names()
    assert set(PREPARED) < set(names)
    for name in names:
        assert query(name).startswith("--"), f"{name}.sql begins with no definition"
    package = Path(module.__file__).parents[2]
    askers = [package / "explain" / f"{name}.py" for name in ("questions", "reduce")]
    for part in ("explain/measures", "interop", "stage"):
        askers += package.glob(f"{part}/*.py")
    text = "".join(asker.read_text() for asker in askers)
    asked = set(re.findall(r'"(\w+)(?:\.sql)?"', text))
    assert set(names) <= asked, "a query that nothing asks"


def test_each_measure_of_a_job_is_of_its_declared_type() -> None:
    known = measure(training_job(30))
    for field in fields(Measures):
        rows = getattr(known, field.name)
        for row in rows if isinstance(rows, tuple) else ():
            for cell in fields(row) if is_dataclass(row) else ():
                value = getattr(row, cell.name)
                assert isinstance(
                    value, cell.type | None if isinstance(cell.type, type) else cell.type
                ), f"{field.name}.{cell.name} is {value!r}"


def cells(run: Synthetic) -> dict[tuple[str, int], tuple[float, int, float, float]]:
    """By label of the lane and second: bytes, calls, ms in calls, ms waited for."""
    known = measure(run)
    labels = {lane.lane: f"{lane.role} {lane.process}" for lane in known.lanes}
    found: dict[tuple[str, int], tuple[float, int, float, float]] = {}
    for cell in known.lane_cells:
        key = (labels[cell.lane], int(cell.bin * cell.bin_s))
        before = found.get(key, (0, 0, 0, 0))
        new = (cell.moved_bytes, cell.calls, cell.call_s * 1000, cell.wait_s * 1000)
        found[key] = tuple(a + b for a, b in zip(before, new, strict=True))  # type: ignore[assignment]
    return {key: tuple(round(value, 6) for value in of) for key, of in found.items()}  # type: ignore[misc]


def test_a_lane_has_its_threads_calls_and_what_the_loop_waited_for_it() -> None:
    run = one_wait(200, 300)
    run.fetch(200 * MS, 300 * MS, 1, cpu=0, delay=0)
    run.call("read", 210 * MS, 260 * MS, process=2, moved=4000)
    run.call("write", 1500 * MS, 1600 * MS, process=1, moved=700)
    assert cells(run) == {
        ("worker 2", 0): (4000, 1, 50, 100),
        ("main 1", 1): (700, 1, 100, 0),
    }


def test_of_posix_and_stdio_a_lane_shows_the_bytes_of_the_layer_that_moved_more() -> None:
    run = one_wait(200, 201)
    run.call("read", 500 * MS, 510 * MS, process=2, moved=4000)
    run.call("fread", 500 * MS, 512 * MS, process=2, moved=3000)
    found = cells(run)[("worker 2", 0)]
    assert found[:3] == (4000, 2, 22)


def test_lanes_keep_every_byte_second_and_call() -> None:
    run = training_job(60, compute_ms=10)
    known = measure(run)
    (sums,) = run.connection.execute(
        "select sum(moved_bytes) filter (where op_group in ('read', 'write')), count(*),"
        " sum(duration_ns) / 1e9 from events"
    ).fetchall()
    lanes = known.lane_cells
    assert sum(cell.moved_bytes for cell in lanes) == pytest.approx(float(sums[0]))
    assert sum(cell.calls for cell in lanes) == sums[1]
    assert sum(cell.call_s for cell in lanes) == pytest.approx(sums[2])
    training = known.training
    waited = (training.data_wait_s or 0) + (training.checkpoint_block_s or 0)
    assert sum(cell.wait_s for cell in lanes) == pytest.approx(waited)
    assert max(cell.bin for cell in lanes) < 2000


def test_of_many_threads_the_256_with_the_most_time_are_lanes() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    for thread in range(1, 301):
        run.call("read", thread * MS, thread * MS + thread * 1000, thread=thread, moved=1)
    known = measure(run)
    assert len(known.lanes) == 256
    assert known.lanes[0].all_lanes == 300
    assert {lane.thread for lane in known.lanes} == set(range(45, 301))
    assert max(cell.bin for cell in known.lane_cells) < 36_000 // 256


def test_a_point_of_steps_knows_where_it_lies_in_time() -> None:
    run = one_wait(200, 300)
    points = measure(run).step_times
    assert [(point.start_s, point.end_s) for point in points] == [(0.1, 0.15), (0.15, 1.1)]


def test_a_call_in_flight_is_in_its_lane_until_the_end_of_its_process() -> None:
    run = one_wait(200, 201)
    run.call("read", 1400 * MS, None, process=2)
    found = cells(run)
    assert found[("worker 2", 1)] == (0, 1, 500, 0)


class ReversedColumns:
    """A connection whose queries select their columns in the opposite order."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def cursor(self) -> Self:
        return type(self)(self._connection.cursor())

    def execute(self, text: str) -> Self:
        self._connection.execute(text)
        return self

    @property
    def description(self) -> list[Any]:
        return self._connection.description[::-1]

    def fetchall(self) -> list[Any]:
        return [row[::-1] for row in self._connection.fetchall()]


def test_measures_do_not_depend_on_the_order_of_a_query_s_columns() -> None:
    run = training_job(30)
    reversed_run = SimpleNamespace(connection=ReversedColumns(run.connection))
    texts, numbers = texts_and_numbers(measure(run))
    reversed_texts, reversed_numbers = texts_and_numbers(measure(reversed_run))
    assert reversed_texts == texts
    assert reversed_numbers == pytest.approx(numbers)  # threads add in any order


def texts_and_numbers(measures: object) -> tuple[list[str], list[float]]:
    parts = re.split(r"(\d+\.\d+(?:e[+-]\d+)?)", repr(measures))
    return parts[::2], [float(part) for part in parts[1::2]]


def test_every_measure_is_read_outside_of_its_row() -> None:
    source = Path(module.__file__).parent.parent.parent
    names = set[str]()  # attributes, and words of texts that are no docstrings; no locals
    for path in source.rglob("*.py"):
        if path.parent != Path(module.__file__).parent or path.name == "whole.py":
            nodes = list(ast.walk(ast.parse(path.read_text())))
            docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            for node in nodes:
                if isinstance(node, ast.Constant) and id(node) not in docs:
                    names |= set(re.findall(r"\w+", str(node.value)))
    rows = [getattr(module, name) for name in module.__all__]
    for row in filter(is_dataclass, rows):
        own = set(re.findall(r"self\.(\w+)", inspect.getsource(row)))
        unread = {field.name for field in fields(row)} - names - own
        assert not unread, row.__name__


def test_what_disks_gave_and_took_is_not_mixed_up() -> None:
    run = one_wait(200, 300)
    for at, read, written, job_read, job_written in ((0, 5, 7, 11, 13), (900, 105, 207, 311, 413)):
        run.sample(at * MS, "disk", "vda", read_bytes=read, written_bytes=written)
        run.sample(at * MS, "job", read_bytes=job_read, written_bytes=job_written)
    known = measure(run).devices
    assert (known.disk_read_bytes, known.disk_written_bytes) == (100, 200)
    assert known.job_read_bytes == 300
