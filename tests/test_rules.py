"""Programs of other kinds than a rule is for: what it may not say of them, and what it has to."""

from collections.abc import Callable

import pytest

from findings_examples import a_file, files_of
from penstock.findings import FEW_IN_TAIL, FEW_SLOW, LEAST_ALIKE, TAIL, Check, Finding, judge
from penstock.measures import Measures, measure
from penstock.questions import query
from synthetic import MS, Synthetic, loop, reads


def said(run: Synthetic | Measures) -> dict[str, Finding | Check]:
    """What each rule says of a run."""
    judgement = judge(measure(run) if isinstance(run, Synthetic) else run)
    return {one.rule: one for one in (*judgement.findings, *judgement.checks)}


def found(run: Synthetic | Measures, rule: str) -> Finding:
    one = said(run)[rule]
    assert isinstance(one, Finding), one
    return one


def fine(run: Synthetic | Measures, rule: str, state: str = "fine") -> Check:
    one = said(run)[rule]
    assert isinstance(one, Check), one
    assert one.state == state, one
    return one


def job(read: Callable[[Synthetic, int, int, int], int], **more: object) -> Synthetic:
    """A loop that fetches itself; read(run, at, batch, process) makes the calls of a batch."""
    run = Synthetic()
    options: dict[str, object] = {"workers": 0, "compute_ms": 1, "batches": 60, "busy": 0.0}
    loop(run, lambda *call: read(run, *call), **(options | more))  # type: ignore[arg-type]
    return run


# --- D9: a tail among reads of like size ---------------------------------------------------------


def header_and_payload(run: Synthetic, at: int, batch: int, process: int) -> int:
    path = a_file(run, f"/data/{batch:03d}.h5", 16 << 20)
    at = reads(run, at, process, path=path, op="pread", n=8, ms=0.02, size=8, offset=0)
    return reads(run, at, process, path=path, op="pread", ms=12, size=16 << 20, offset=64)


def test_a_header_and_its_payload_are_no_tail() -> None:
    """HDF5, npz, Parquet: most reads are short ones of a header, most time is in a payload."""
    assert "about as long" in fine(job(header_and_payload), "D9").says


def test_a_slow_payload_among_alike_ones_is_a_tail_whatever_the_headers_take() -> None:
    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        at = header_and_payload(run, at, batch, process)
        path = a_file(run, f"/data/{batch:03d}.h5", 16 << 20)
        return reads(run, at, process, path=path, ms=412 if 30 <= batch < 32 else 12,
                     size=17 << 20)  # fmt: skip

    finding = found(job(read), "D9")
    assert "reads of 16.8 MB to 33.6 MB: 99th percentile" in finding.evidence[0]
    assert finding.gain.value == pytest.approx(2 * 0.4, rel=0.01)  # less the median of 12 ms


def test_a_first_pass_from_the_device_is_no_tail_of_the_passes_from_memory() -> None:
    """One pass of five reads the device: a fifth of the reads takes 300 times as long."""

    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch % 20}.bin", 4 << 20)
        return reads(run, at, process, path=path, ms=20 if batch < 20 else 0.9, size=4 << 20)

    assert "about as long" in fine(job(read, batches=100), "D9").says


def test_reading_ahead_is_no_tail() -> None:
    """One in 32 reads of 4 KiB waits for 128 KiB, the others find them in memory."""

    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        for n in range(64):
            at = reads(run, at, process, ms=0.8 if n % 32 == 0 else 0.002, size=4096,
                       path=a_file(run, "/data/tokens.bin", 1 << 30))  # fmt: skip
        return at

    run = job(read)
    assert "about as long" in fine(run, "D9").says
    finding = found(run, "D2")
    assert finding.evidence[0].startswith("118 of 3,776 small reads in 1 file")


def test_few_reads_are_no_percentile() -> None:
    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        return reads(
            run, at, process, path=a_file(run, f"/data/{batch}"), ms=90 if batch == 9 else 3
        )

    assert "about as long" in fine(job(read, batches=LEAST_ALIKE.value - 1), "D9").says
    assert found(job(read, batches=LEAST_ALIKE.value + 1), "D9")


def test_a_tail_is_the_same_in_the_query() -> None:
    text = query("blocking_reads")
    assert f"l.calls >= {LEAST_ALIKE.value:.0f}" in text
    assert f"l.p90_ns <= {TAIL.value:.0f} * l.p50_ns" in text
    assert f"r.duration_ns > {TAIL.value:.0f} * l.p50_ns" in text
    assert FEW_IN_TAIL.value == pytest.approx(1 - 0.90)


# --- D2: small reads that did not come from memory -----------------------------------------------


def few_slow(of: int, slow_ms: float = 60) -> Callable[[Synthetic, int, int, int], int]:
    """Reads of small files from memory, 120 a batch, of which a few take a time slice."""

    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        for n in range(120):
            path = a_file(run, f"/data/{n}.pt", 5_000)
            is_slow = (batch * 120 + n) % of == of - 1
            at = reads(run, at, process, path=path, ms=slow_ms if is_slow else 0.002, size=5_000)
        return at

    return read


def test_few_reads_that_lost_their_cpu_are_not_bound_by_latency() -> None:
    """24 of 7,200 reads hold nearly all of the time, where nobody measured who lost a CPU."""
    run = job(few_slow(300))
    run.rows["spans/00000"] = [row for row in run.rows["spans/00000"] if row[3] != "fetch delay"]
    assert "24 of 7,080 small reads in 120 files took longer" in fine(run, "D2").says
    assert 1 / 300 < FEW_SLOW.value < 1 / 32


def test_few_reads_that_waited_while_the_cpu_was_theirs_are_bound_by_latency() -> None:
    finding = found(job(few_slow(300)), "D2")
    assert finding.gain.value == pytest.approx(24 * 60e-3, rel=0.011)


def test_small_reads_of_files_that_the_job_made_are_told_with_these_files() -> None:
    """No file of class data is read at all: the finding's numbers are those of its own reads."""

    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        run.file(f"/out/cache-{batch}.arrow", path_class="output", size=60_000)
        return reads(run, at, process, path=f"/out/cache-{batch}.arrow", ms=5)

    told = " ".join(found(job(read), "D2").evidence)
    assert "59 of 59 small reads in 59 files" in told
    assert "0 files" not in told
    assert "hardly any" not in told


def test_large_reads_with_small_headers_are_not_small() -> None:
    assert "under 256 KiB" in fine(job(header_and_payload), "D2").says


def test_small_files_from_a_slow_tier_are_small_reads() -> None:
    assert found(files_of(20)(batches=40, workers=0), "D2").gain.value == pytest.approx(39 * 20e-3)


# --- D8: a straggler is slow in its fetches ------------------------------------------------------


def two_workers(
    start_ms: int, slow_ms: float, *, first_ms: float = 0, delay: float = 0
) -> Synthetic:
    """Worker 0 owes the first batch and begins start_ms after it was asked for; its fetches take
    slow_ms, the first one first_ms more, a share of them without a CPU; the other's take 20 ms."""
    run, now = Synthetic(), 1000 * MS
    run.wait(now - 10 * MS, now, 0, a=9)  # a loader of its own before: the training has begun
    run.step(now, now + MS, 0)
    begun = free = now + start_ms * MS
    frees = [free, free]
    for batch in range(40):
        number = batch % 2
        took = 20.0 if number else slow_ms + (first_ms if batch == 0 else 0)
        begin = max(frees[number], now if batch > 3 else begun)
        end = begin + int(took * MS)
        run.fetch(begin, end, batch, process=2 + number, a=1, cpu=0,
                  delay=0 if number else int(took * MS * delay))  # fmt: skip
        frees[number] = end
        run.wait(now + MS, max(now + 2 * MS, end), batch, a=1)
        now = max(now + 2 * MS, end) + MS
        run.step(now - MS, now, batch + 1)
    run.process(1, end=now + MS)
    for number in range(2):
        run.worker(2 + number, start=begun, end=now, number=number)
    return run


def test_a_worker_that_starts_late_is_no_straggler() -> None:
    """Nineteen seconds of imports in spawned workers: they are the start of the loader, W4's."""
    run = two_workers(19_000, 24)
    assert "balanced" in fine(run, "D8").says
    assert measure(run).wait_s("worker start") == pytest.approx(19, rel=0.01)
    finding = found(two_workers(19_000, 50), "D8")
    assert finding.gain.value == pytest.approx(19 * 30e-3, rel=0.1)
    assert "worker 0 takes 50.0 ms a batch, the others 20.0 ms" in finding.evidence[0]


def test_a_first_fetch_that_opens_the_data_set_makes_no_straggler() -> None:
    assert "balanced" in fine(two_workers(10, 20, first_ms=3000), "D8").says


def test_a_worker_without_a_cpu_is_no_straggler() -> None:
    assert "balanced" in fine(two_workers(10, 50, delay=0.6), "D8").says


def with_evaluator(steps: bool) -> Synthetic:
    """Two trainers that wait 10 ms of each 30, and their parent, which evaluates afterwards."""
    run, now = Synthetic(), 0
    for rank in range(2):
        now = loop(run, lambda at, batch, process: reads(run, at, process, ms=10), batches=40,
                   workers=0, compute_ms=20, main=2 + 10 * rank)  # fmt: skip
    for batch in range(40):
        run.fetch(now, now + 50 * MS, batch, process=1)
        run.wait(now, now + 50 * MS, batch)
        if steps:
            run.span("step", now, now + 50 * MS, index=batch, b=2, kind="step")
        now += 50 * MS
    run.process(1, end=now)
    return run


@pytest.mark.parametrize("steps", [False, True])
def test_a_process_that_only_evaluates_is_no_trainer_where_others_step(steps: bool) -> None:
    known = measure(with_evaluator(steps))
    assert known.training.mains == 2
    assert known.training.wall_s == pytest.approx(39 * 30e-3, rel=0.03)
    assert known.training.data_wait_s == pytest.approx(39 * 10e-3, rel=0.01)
    assert "balanced" in fine(known, "D8").says


def test_a_program_that_only_evaluates_is_judged_by_itself() -> None:
    run = with_evaluator(False)
    run.rows["spans/00000"] = [row for row in run.rows["spans/00000"] if row[2] != "step"]
    assert measure(run).training.mains == 3


def test_processes_without_a_rank_are_not_called_ranks() -> None:
    run = Synthetic()
    for place, ms in enumerate((10.0, 10.0, 40.0)):
        loop(run, lambda at, batch, process, ms=ms: reads(run, at, process, ms=ms), batches=40,
             workers=0, compute_ms=20, main=1 + 10 * place)  # fmt: skip
    (first, *_) = found(run, "D8").evidence
    assert first.startswith("one of 3 main processes, without a rank, on node1 waits 1.56 s")
