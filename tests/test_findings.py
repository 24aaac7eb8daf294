"""Each rule finds what it is for, and nothing where there is nothing: runs whose truth is known."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.findings import RULES, WORTH, Check, Finding, describe_rules, judge
from penstock.measures import measure
from synthetic import MS, Synthetic, loop, reads, training_job

FINDINGS = Path(__file__).parent.parent / "docs" / "findings.md"
S = 1000 * MS


def said(run: Synthetic) -> dict[str, Finding | Check]:
    """What each rule says of a run."""
    judgement = judge(measure(run))
    return {one.rule: one for one in (*judgement.findings, *judgement.checks)}


def found(run: Synthetic, rule: str) -> Finding:
    one = said(run)[rule]
    assert isinstance(one, Finding), one
    return one


def fine(run: Synthetic, rule: str, state: str = "fine") -> Check:
    one = said(run)[rule]
    assert isinstance(one, Check), one
    assert one.state == state, one
    return one


def tells(finding: Finding, *words: str) -> None:
    text = " ".join(finding.evidence)
    for word in words:
        assert word in text, text


def a_file(run: Synthetic, path: str = "/data/a.jpg", size: int = 60_000) -> str:
    run.file(path, size=size)
    return path


def files_of(ms: float, *, stat_ms: float = 0.01, stats: int = 1) -> Callable[..., Synthetic]:
    """A job that opens, examines and reads a file a batch."""

    def job(**more: object) -> Synthetic:
        run = Synthetic()

        def fetch(at: int, batch: int, process: int) -> int:
            path = a_file(run, f"/data/{batch}.jpg")
            at = reads(run, at, process, op="open", ms=stat_ms, path=path)
            at = reads(run, at, process, op="stat", ms=stat_ms, path=path, n=stats)
            return reads(run, at, process, ms=ms, path=path)

        loop(run, fetch, **more)  # type: ignore[arg-type]
        return run

    return job


def test_a_control_job_has_no_finding() -> None:
    # As CIFAR-10 in memory: the data is read once, before the steps; checkpoints are small.
    run = Synthetic()
    a_file(run, "/data/cifar.bin", 180_000_000)
    reads(run, 100 * MS, 1, path="/data/cifar.bin", n=6, ms=10, size=30_000_000, offset=0)
    run.file("/out/model.pt", path_class="output", size=0)

    def save(now: int, batch: int) -> int:
        if batch % 50 != 49:
            return now
        run.call("write", now, now + MS, path="/out/model.pt", moved=3_000_000)
        run.span("checkpoint", now, now + MS, index=batch)
        return now + MS

    loop(run, lambda at, batch, process: at + 1000, workers=0, compute_ms=10, between=save)
    measures = measure(run)
    assert measures.storage_fraction.value == pytest.approx(2 / 1002, rel=0.01)
    assert judge(measures).findings == ()
    assert "0.2 % of the wall time" in fine(run, "C1").says


# --- how data is read ----------------------------------------------------------------------------


def test_metadata_storm() -> None:
    run = files_of(1, stat_ms=2, stats=12)(batches=40, workers=1, compute_ms=5)
    finding = found(run, "D1")
    tells(finding, "506 calls on 39 data files", "13.3 per open", "2.00 ms each", "most in /data")
    # 27 ms a fetch, 26 of them open and stat; 5 ms are computed meanwhile, twice ahead.
    assert finding.gain.value == pytest.approx(measure(run).wait_s("metadata"))
    assert finding.share.value == pytest.approx(0.8, abs=0.1)


def test_opening_and_closing_is_no_storm() -> None:
    assert "per open" in fine(files_of(20)(batches=40, workers=1), "D1").says


def test_small_reads() -> None:
    finding = found(files_of(20)(batches=40, workers=1, compute_ms=5), "D2")
    tells(finding, "40 files, median 60.0 kB", "a read in the median", "while waiting")
    assert finding.gain.value == pytest.approx(39 * 15e-3, rel=0.1)
    assert any("whatif" in remedy.command for remedy in finding.remedies)


def test_small_reads_from_memory_are_no_storage() -> None:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        return reads(run, at, process, path=a_file(run, f"/data/{batch}.jpg"), n=400, ms=0.008)

    loop(run, fetch, batches=40, workers=0, compute_ms=3)
    assert "comes from memory" in fine(run, "D2").says
    # Half of them fast: then those that are waited for are slow all the same.
    run = Synthetic()

    def half(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.jpg")
        at = reads(run, at, process, path=path, n=60, ms=0.008)
        return reads(run, at, process, path=path, n=40, ms=1)

    loop(run, half, batches=40, workers=0, compute_ms=3)
    assert found(run, "D2")


def big_reads(*, ceiling: float | None = None, size: int = 4_000_000) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin", size)
        return reads(run, at, process, ms=40, size=size, path=path, offset=0)

    loop(run, fetch, batches=60, workers=1, compute_ms=5)
    run.note("mount", "/\text4\t/dev/sda")
    if ceiling:
        run.ceiling("/", "read", ceiling)
    return run


def test_large_reads_are_not_small() -> None:
    assert "under 256 KiB" in fine(big_reads(), "D2").says


def test_bandwidth_at_the_ceiling() -> None:
    # 4 MB in 40 ms, one after another.
    run = big_reads(ceiling=105e6)
    finding = found(run, "D3")
    tells(finding, "B/s while waiting", "105 MB/s measured")
    assert fine(run, "W1", "suppressed").says.startswith("D3 explains it")


def test_bandwidth_below_the_ceiling() -> None:
    assert "%" in fine(big_reads(ceiling=400e6), "D3").says


def test_small_reads_near_the_ceiling_are_fine() -> None:
    run = files_of(20)(batches=40, workers=1, compute_ms=5)
    run.note("mount", "/\text4\t/dev/sda")
    run.ceiling("/", "read", 4e6)  # 60 kB in 20 ms are 3 MB/s
    assert "reads are small, but" in judged_without(run, "D3", "D2").says


def judged_without(run: Synthetic, other: str, rule: str) -> Check:
    """What a rule says itself, whatever another one says of it."""
    measures = measure(run)
    (one,) = [one for one in RULES if one.rule == rule]
    told = one.judges(measures)
    return Check(rule, other, "", told.says)  # type: ignore[union-attr]


def test_without_a_ceiling_bandwidth_is_not_judged() -> None:
    assert "penstock ceiling RUN" in fine(big_reads(), "D3", "not judged").says


def lmdb_like(offsets: Callable[[int], int]) -> Synthetic:
    run = Synthetic()
    a_file(run, "/data/data.mdb", 1 << 30)

    def fetch(at: int, batch: int, process: int) -> int:
        for i in range(8):
            at = reads(run, at, process, path="/data/data.mdb", op="pread", ms=3, size=8192,
                       offset=offsets(batch * 8 + i))  # fmt: skip
        return at

    loop(run, fetch, batches=60, workers=1, compute_ms=5)
    return run


def test_random_reads_of_a_large_file() -> None:
    run = lmdb_like(lambda i: (i * 7_919_137 + 1) % (1 << 30) // 4096 * 4096)
    finding = found(run, "D4")
    tells(finding, "480 reads in 1 large file were random", "8.19 kB", "3.00 ms each")
    tells(finding, "read amplification: not measured")
    assert finding.gain.value == pytest.approx(measure(run).wait_s("read"), rel=0.02)
    assert fine(run, "D2", "suppressed").says.startswith("D4 explains it")


def test_a_large_file_read_in_order_is_not_random() -> None:
    assert "0 % of 480 reads" in fine(lmdb_like(lambda i: i * 8192), "D4").says


def cliff(*, memory: int | None, slow_from: int = 60) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin", 1 << 20)
        return reads(run, at, process, ms=4 if batch < slow_from else 20, size=1 << 20, path=path)

    loop(run, fetch, batches=120, workers=0, compute_ms=10)
    if memory:
        run.note("memory_bytes", str(memory))
    return run


def test_a_cache_cliff() -> None:
    finding = found(cliff(memory=64 << 20), "D5")
    # The truth is step 61, 4 ms and 5x; a piece of 1/64 of the time holds a step on either side.
    tells(finding, "from step 6", "a step waits 20.0 ms, before 4.20 ms", "takes 4.69x as long")
    tells(finding, "126 MB of data on 67.1 MB of memory")
    assert finding.gain.value == pytest.approx(60 * 16e-3, rel=0.1)


def test_data_that_fits_the_memory_has_no_cliff() -> None:
    assert "fits the memory" in fine(cliff(memory=1 << 30), "D5").says


def test_a_second_pass_from_memory_is_no_cliff() -> None:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch % 60}.bin", 1 << 20)
        return reads(run, at, process, ms=20 if batch < 60 else 1, size=1 << 20, path=path)

    loop(run, fetch, batches=120, workers=0, compute_ms=10)
    assert "after the largest change" in fine(run, "D5").says


def twice_over(kind: str) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/mnt/data/{batch % 30}.bin", 1 << 20)
        return reads(run, at, process, ms=20, size=1 << 20, path=path)

    loop(run, fetch, batches=60, workers=0, compute_ms=10)
    run.note("mount", "/\text4\t/dev/sda")
    run.note("mount", f"/mnt\t{kind}\tserver:/export")
    return run


def test_the_same_data_again_over_the_network() -> None:
    finding = found(twice_over("nfs4"), "D6")
    tells(finding, "on /mnt (nfs4) was read 2.00x", "62.9 MB")
    assert finding.gain.value == pytest.approx(59 * 20e-3 / 2, rel=0.01)


def test_a_local_file_system_is_no_network() -> None:
    assert "over a network" in fine(twice_over("xfs"), "D6").says


def test_without_mounts_the_network_is_not_judged() -> None:
    assert "not noted" in fine(files_of(20)(batches=20), "D6", "not judged").says


def mapped(faults: int, *, delay: float = 0.05) -> Synthetic:
    """Batches of 30 ms, a tenth of it on a processor, from a file that is mapped."""
    run = Synthetic()
    run.call("mmap", 1, 2, path=a_file(run, "/data/data.mdb", 1 << 30), asked=1 << 30)

    def fetch(at: int, batch: int, process: int) -> int:
        end = at + 30 * MS
        if faults:
            run.span("fetch faults", end + 2, end + 3, process=process, index=batch, a=1, b=faults)
        return end

    loop(run, fetch, batches=50, workers=1, compute_ms=5, busy=0.1, delay=delay)
    return run


def test_page_faults_of_mapped_files() -> None:
    finding = found(mapped(12), "D7")
    tells(
        finding, "1 data file mapped (1.07 GB)", "600 pages not in memory stopped 50 fetches of 50"
    )
    # Of each wait of 25 ms, 85 % are in no call, on no processor and not waiting for one.
    assert finding.gain.value == pytest.approx(49 * 25e-3 * 0.85, rel=0.03)


def test_mapped_files_in_memory_are_fine() -> None:
    assert "no fetch stopped" in fine(mapped(0), "D7").says
    assert fine(files_of(20)(batches=20), "D7")


def test_page_faults_that_nobody_counted_are_not_judged() -> None:
    run = Synthetic()
    run.call("mmap", 1, 2, path=a_file(run, "/data/data.mdb"), asked=4096)
    now = 1000 * MS
    for batch in range(20):  # a loader that tells no fetches
        run.wait(now, now + 10 * MS, batch)
        run.step(now + 10 * MS, now + 20 * MS, batch)
        now += 20 * MS
    run.process(1, end=now)
    assert "1 data file mapped" in fine(run, "D7", "not judged").says


def unequal(slow: float) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin")
        return reads(run, at, process, ms=20 * (slow if process == 3 else 1), path=path)

    loop(run, fetch, batches=80, workers=4, compute_ms=6)
    return run


def test_a_straggling_worker() -> None:
    finding = found(unequal(2.5), "D8")
    tells(finding, "worker 1 takes 50.0 ms a batch, the others 20.0 ms")
    assert 0 < finding.gain.value <= measure(unequal(2.5)).training.data_wait_s


def test_equal_workers_are_balanced() -> None:
    assert "balanced" in fine(unequal(1.2), "D8").says


def two_ranks(slow_ms: float) -> Synthetic:
    run = Synthetic()
    for rank, ms in ((0, 10.0), (1, slow_ms)):
        loop(run, lambda at, batch, process, ms=ms: reads(run, at, process, ms=ms, size=1 << 20),
             batches=50, workers=0, compute_ms=20, main=1 + 10 * rank, rank=rank)  # fmt: skip
    return run


def test_a_straggling_rank() -> None:
    finding = found(two_ranks(30), "D8")
    tells(finding, "rank 1 on node1 waits 1.47 s for data, the others 490 ms")
    assert finding.gain.value == pytest.approx(49 * 20e-3)


def test_equal_ranks_are_balanced() -> None:
    assert "balanced" in fine(two_ranks(12), "D8").says


def with_tail(every: int, factor: float) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin")
        for i in range(10):
            is_slow = every and (batch * 10 + i) % every == 0
            at = reads(run, at, process, ms=factor if is_slow else 1, path=path)
        return at

    loop(run, fetch, batches=100, workers=0, compute_ms=5)
    return run


def test_tail_latency() -> None:
    finding = found(with_tail(50, 40), "D9")
    tells(finding, "the median", "44 % of the blocking reads' time")
    assert finding.gain.value == pytest.approx(20 * 40e-3, rel=0.06)


def test_even_latencies_have_no_tail() -> None:
    assert "99th percentile" in fine(with_tail(50, 8), "D9").says


def test_empty_reads() -> None:
    def job(empty_ms: float) -> Synthetic:
        run = Synthetic()

        def fetch(at: int, batch: int, process: int) -> int:
            path = a_file(run, f"/data/{batch}.bin")
            at = reads(run, at, process, ms=5, path=path)
            return reads(run, at, process, ms=empty_ms, size=0, path=path)

        loop(run, fetch, batches=60, workers=0, compute_ms=5)
        return run

    finding = found(job(3), "E1")
    tells(finding, "50 % of 120 reads are empty")
    assert finding.gain.value == pytest.approx(59 * 3e-3)
    assert "of the wall time" in fine(job(0.01), "E1").says
    assert "0 % of 60 reads" in fine(files_of(5)(batches=60), "E1").says


def crowded(kept: float, size: int = 4 << 20) -> Synthetic:
    """Phases of one and of four readers at once; together they get `kept` of what one gets."""
    run = Synthetic()
    at = 1000 * MS
    for phase in range(40):
        readers = 1 if phase % 2 else 4
        took = int(5 * MS * readers / (kept if readers > 1 else 1))
        until = at + 800 * MS
        while at < until:
            for reader in range(readers):
                path = a_file(run, f"/data/{reader}.bin", 1 << 30)
                run.call("pread", at, at + took, path=path, moved=size, process=2 + reader,
                         offset=0)  # fmt: skip
            at += took
    run.fetch(1000 * MS, 1100 * MS, 0, process=2, cpu=0, delay=0)
    run.wait(1000 * MS, 1100 * MS, 0)
    run.step(1100 * MS, 1100 * MS + 1, 0)
    run.fetch(1100 * MS, at, 1, process=2, cpu=0, delay=0)
    run.wait(1100 * MS + 1, at, 1)
    run.step(at, at + MS, 1)
    run.process(1, end=at + 2 * MS)
    for worker in range(4):
        run.worker(2 + worker, start=1000 * MS, end=at, number=worker)
    return run


def test_too_many_readers() -> None:
    finding = found(crowded(0.5), "E2")
    tells(
        finding, "MB/s with 5 reads under way", "MB/s with 1"
    )  # a slot at a phase's edge counts 5
    assert finding.remedies[1].command == "penstock whatif RUN --threads 1"


def test_more_readers_that_share_the_device_are_fine() -> None:
    assert "under way" in fine(crowded(1.0), "E2").says


def test_small_reads_do_not_seek_each_other_away() -> None:
    assert fine(crowded(0.5, size=16384), "E2")


# --- workers -------------------------------------------------------------------------------------


def test_too_few_workers() -> None:
    run = files_of(30)(batches=60, workers=2, compute_ms=5, busy=0.1)
    run.note("cpus", "16")
    finding = found(run, "W1")
    # 60 fetches of 30 ms while 60 steps take 5 ms: six and one to spare.
    tells(finding, "2 workers, busy", "the steps 30", "16 processors")
    assert finding.remedies[0].says == "DataLoader(num_workers=8)"


def test_no_workers_at_all() -> None:
    finding = found(files_of(30)(batches=60, workers=0, compute_ms=30), "W1")
    tells(finding, "no workers", "how many processors there are was not noted")
    assert finding.remedies[0].says == "DataLoader(num_workers=2)"


def test_more_workers_need_processors() -> None:
    run = files_of(30)(batches=60, workers=2, compute_ms=5, busy=1.0)
    run.note("cpus", "3")
    assert "leave no room" in fine(run, "W1").says


def test_idle_workers_are_enough() -> None:
    assert fine(files_of(3)(batches=60, workers=4, compute_ms=20), "W1")


def decoding(cpu: float, delay: float) -> Synthetic:
    run = Synthetic()
    loop(run, lambda at, batch, process: at + 30 * MS, batches=60, workers=1, compute_ms=5,
         busy=cpu, delay=delay)  # fmt: skip
    return run


def test_decode_bound() -> None:
    finding = found(decoding(0.9, 0.05), "W2")
    tells(finding, "90 % of the data wait")
    assert finding.remedies[0].says.startswith("not I/O")


def test_waiting_for_files_is_not_decoding() -> None:
    assert "on the processor" in fine(files_of(30)(batches=30, workers=1), "W2").says


def test_fetches_without_a_processor() -> None:
    run = decoding(0.4, 0.5)
    run.note("cpus", "2")
    finding = found(run, "W3")
    tells(
        finding, "50 % of the data wait", "2 workers and ranks want one, 2 processors: others use"
    )
    assert "wait for 2 processors already" in fine(run, "W1").says
    run = decoding(0.4, 0.5)
    run.note("cpus", "1")
    assert "fewer workers" in found(run, "W3").remedies[0].says
    assert fine(decoding(0.9, 0.05), "W3")


def test_workers_of_each_pass_are_judged_by_their_own_pass() -> None:
    run = Synthetic()
    now = S
    for epoch in range(4):  # a worker for each pass, always fetching
        worker = 2 + epoch
        run.span("loader", now, now + 40 * 30 * MS, index=epoch + 1, a=1, b=4)
        start = now
        for batch in range(40):
            run.fetch(now, now + 30 * MS, batch, process=worker, a=epoch + 1, cpu=MS, delay=0)
            run.wait(now + 5 * MS, now + 30 * MS, batch, a=epoch + 1)
            run.step(now + 30 * MS, now + 35 * MS, epoch * 40 + batch)
            now += 30 * MS
        run.worker(worker, start=start, end=now, number=0)
    run.process(1, end=now + S)
    run.note("cpus", "8")
    tells(found(run, "W1"), "1 worker, busy 100 % of the wait")


def test_slow_startup() -> None:
    run = Synthetic()
    loop(run, lambda at, batch, process: at + (3 * S if not batch else MS), batches=100,
         workers=1, compute_ms=10)  # fmt: skip
    finding = found(run, "W4")
    tells(finding, "first batch after 3", "of the first batch: ", "cpu 1.5")
    assert finding.share.value == pytest.approx(3 / (1 + 3 + 1), rel=0.05)
    assert "first batch after" in fine(files_of(3)(batches=100), "W4").says


# --- checkpoints ---------------------------------------------------------------------------------


def saving(
    *, ranks: int = 1, size: int = 50_000_000, grows: int = 0, every: int = 20, ms: int = 200
) -> Synthetic:
    run = Synthetic()
    for rank in range(ranks):
        main = 1 + 10 * rank
        path = f"/out/{rank}.pt"
        run.file(path, path_class="output", size=0)

        def save(now: int, batch: int, main: int = main, rank: int = rank, path: str = path) -> int:
            if batch % every != every - 1:
                return now
            end = now + ms * MS
            run.call("write", now, end, path=path, moved=size + rank * grows, process=main)
            run.span("checkpoint", now, end, index=batch, process=main)
            return end

        loop(run, lambda at, batch, process: at + 1000, workers=0, compute_ms=10, main=main,
             between=save, rank=rank if ranks > 1 else None)  # fmt: skip
    run.note("mount", "/\text4\t/dev/sda")
    return run


def test_a_checkpoint_blocks() -> None:
    finding = found(saving(), "C1")
    tells(finding, "5 saves of 200 ms, 50.0 MB each at 250 MB/s", "100 % of it in file calls")
    assert finding.gain.value == pytest.approx(1.0)
    assert finding.share.value == pytest.approx(0.5, abs=0.01)
    assert "of the wall time" in fine(saving(ms=2), "C1").says


def test_a_slow_checkpoint_target() -> None:
    run = saving()
    run.ceiling("/mnt/nvme", "write", 2e9)
    finding = found(run, "C2")
    tells(finding, "250 MB/s in the calls; /mnt/nvme gives 2.00 GB/s")
    assert finding.gain.value == pytest.approx(1.0 * (1 - 0.25 / 2))
    run = saving()
    run.ceiling("/mnt/nvme", "write", 300e6)
    assert "250 MB/s" in fine(run, "C2").says
    assert "penstock ceiling PATH --write --keep RUN" in fine(saving(), "C2", "not judged").says


def test_ranks_write_the_same_bytes() -> None:
    finding = found(saving(ranks=4), "C3")
    tells(finding, "5 saves by 4 ranks", "750 MB too many", "contents are not compared")
    assert "different sizes" in fine(saving(ranks=4, grows=5_000_000), "C3").says
    assert "one rank" in fine(saving(), "C3").says


def test_a_slow_restart() -> None:
    def job(load_s: float) -> Synthetic:
        run = Synthetic()
        a_file(run, "/data/model.pt", 1 << 30)
        run.span("restore", MS, int(load_s * S))
        reads(run, 2 * MS, 1, path="/data/model.pt", ms=load_s * 900, size=1 << 30, offset=0)
        loop(run, lambda at, batch, process: at + 1000, workers=0, start=int(load_s * S) + MS)
        return run

    finding = found(job(40), "C4")
    tells(finding, "1 load, 40.0 s, 1.07 GB at 26.8 MB/s")
    assert finding.share.value == pytest.approx(40 / 41, rel=0.02)
    assert "1 load" in fine(job(2), "C4").says


# --- the recording -------------------------------------------------------------------------------


def test_an_incomplete_recording() -> None:
    run = files_of(20)(batches=20, folded_events=5000)
    finding = found(run, "X1")
    tells(finding, "5,000 calls past the trace budget")
    assert finding.gain.value is None
    assert finding.gain.state == "not measured"
    assert fine(files_of(20)(batches=20), "X1")


def test_the_cost_of_recording() -> None:
    def job(cost_ns: int) -> Synthetic:
        run = files_of(1, stats=50)(batches=60)
        run.note("event_cost_ns", str(cost_ns))
        return run

    tells(found(job(200_000), "X2"), "3,120 calls")
    assert fine(job(50), "X2")
    assert fine(files_of(1)(batches=20), "X2", "not judged")


# --- judging -------------------------------------------------------------------------------------


def without_steps(*, stats: int = 1, size: int = 60_000, read_ms: float = 1) -> Synthetic:
    """A program that is no training, or a foreign recording of one: half of its time is I/O."""
    run = Synthetic()
    at = 0
    for number in range(50):
        path = a_file(run, f"/data/{number}", size)
        at = reads(run, at, 1, op="open", path=path, ms=0.1, n=stats)
        at = reads(run, at, 1, path=path, ms=read_ms, size=size)
    run.process(1, end=2 * at)
    return run


def test_without_steps_time_in_calls_is_judged() -> None:
    finding = found(without_steps(), "D2")
    tells(
        finding, "50 reads of 60.0 kB in the mean, 1.00 ms each", "nobody is known to have waited"
    )
    assert finding.gain.value == pytest.approx(50e-3)
    assert finding.share.value == pytest.approx(0.5 / 1.1)
    assert "50 reads of 4.00 MB" in fine(without_steps(size=4_000_000), "D2").says
    finding = found(without_steps(stats=30), "D1")
    tells(finding, "75 % of the time in file calls, 1,500 calls")
    assert "9.1 % of the time" in fine(without_steps(), "D1").says
    assert fine(without_steps(), "D4", "not judged")
    assert fine(without_steps(), "W1", "not judged").says == "no training steps seen"


def test_without_steps_a_small_share_of_the_run_is_fine() -> None:
    run = without_steps(read_ms=0.01)
    run.process(2, end=10 * S)
    assert "of the run: 50 reads" in fine(run, "D2").says


def test_every_rule_says_something_once() -> None:
    judgement = judge(measure(training_job(compute_ms=40, read_ms=6)))
    rules = [one.rule for one in (*judgement.findings, *judgement.checks)]
    assert sorted(rules) == sorted(rule.rule for rule in RULES)
    gains = [finding.gain.value or 0.0 for finding in judgement.findings]
    assert gains == sorted(gains, reverse=True)
    assert all((f.share.value or 1.0) >= WORTH for f in judgement.findings)


def test_a_gain_is_never_more_than_what_was_waited() -> None:
    measures = measure(training_job(compute_ms=20, read_ms=9, save_ms=1500))
    stall_s = (measures.training.data_wait_s or 0) + (measures.training.checkpoint_block_s or 0)
    for finding in judge(measures).findings:
        assert (finding.gain.value or 0.0) <= stall_s * 1.001, finding


def test_a_finding_of_incomplete_events_says_so() -> None:
    run = files_of(20)(batches=40, workers=1, compute_ms=5, folded_events=5000)
    assert found(run, "D2").gain.state == "incomplete"


def test_the_document_shows_the_rules_as_they_are() -> None:
    assert describe_rules().strip() in FINDINGS.read_text()


def test_no_two_rules_share_a_name() -> None:
    assert len({rule.rule for rule in RULES}) == len({rule.title for rule in RULES}) == len(RULES)
    silenced = {other for rule in RULES for other in rule.suppresses}
    assert silenced <= {rule.rule for rule in RULES}
    assert json.dumps([rule.source for rule in RULES])
