"""Programs of other kinds than a rule is for: what it must not say of them, and what it must say."""

from collections.abc import Callable

import pytest

from findings_examples import a_file, files_of
from penstock.findings import FEW_IN_TAIL, FEW_SLOW, LEAST_ALIKE, TAIL, Check, Finding, judge
from penstock.measures import Measures, measure
from penstock.questions import query
from synthetic import Synthetic, loop, reads


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
    """HDF5, npz, Parquet: most reads are short ones of a header, most of the time is in a payload."""
    assert "about as long" in fine(job(header_and_payload), "D9").says


def test_a_slow_payload_among_alike_ones_is_a_tail_whatever_the_headers_take() -> None:
    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        at = header_and_payload(run, at, batch, process)
        path = a_file(run, f"/data/{batch:03d}.h5", 16 << 20)
        return reads(run, at, process, path=path, ms=300 if 30 <= batch < 32 else 12,
                     size=17 << 20)  # fmt: skip

    finding = found(job(read), "D9")
    assert "reads of 16.8 MB to 33.6 MB: 99th percentile" in finding.evidence[0]
    assert finding.gain.value == pytest.approx(2 * 0.288, rel=0.01)  # less the median of 12 ms


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

