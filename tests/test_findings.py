"""Each rule finds what it is for, and nothing where there is nothing: runs whose truth is known."""

import importlib
import pkgutil
import re
import shlex
from dataclasses import replace

import click
import pytest

import findings_page
from findings_examples import (
    EXAMPLES,
    S,
    a_file,
    asking_again,
    big_reads,
    cliff,
    costly,
    crowded,
    decoding,
    each_rank_reads,
    each_worker_reads,
    examined_first,
    example,
    faulting,
    fetched_again,
    files_of,
    from_a_store,
    in_pieces,
    late_at_times,
    lmdb_like,
    mapped,
    refused_often,
    restarting,
    saving,
    short_of_workers,
    starting_remotely,
    starting_slowly,
    twice_over,
    two_ranks,
    unequal,
    with_tail,
    without_steps,
)
from penstock.cli import cli
from penstock.explain import findings
from penstock.explain.findings import RULES, RUN, WORTH, Check, Finding, Rule, judge
from penstock.explain.findings import reads as reads_rules
from penstock.explain.findings.rule import Fine, RuleResult
from penstock.explain.measures import Measures, measure
from penstock.explain.questions import query
from penstock.explain.report import report_of
from synthetic import MS, Synthetic, loop, reads, training_job


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


def tells(finding: Finding, *words: str) -> None:
    text = " ".join(finding.evidence)
    for word in words:
        assert word in text, text


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
    run = example("D1")
    finding = found(run, "D1")
    tells(finding, "506 calls on 39 data files", "13.3 per open", "2.00 ms each", "most in /data")
    # 27 ms a fetch, 26 of them open and stat; 5 ms are computed meanwhile, twice ahead.
    assert finding.gain.value == pytest.approx(run.wait_s("metadata"))
    assert finding.share.value == pytest.approx(0.8, abs=0.1)


def test_either_a_share_of_the_wait_or_many_calls_per_open_is_a_storm() -> None:
    measures = example("D1")
    few = replace(measures, metadata=replace(measures.metadata, opens=measures.metadata.calls))
    little = replace(measures, data_blocking={"read": 1e6})
    neither = replace(few, data_blocking={"read": 1e6})
    assert isinstance(reads_rules.metadata_storm(few), RuleResult)
    assert isinstance(reads_rules.metadata_storm(little), RuleResult)
    assert isinstance(reads_rules.metadata_storm(neither), Fine)


def test_opening_and_closing_is_no_storm() -> None:
    assert "per open" in fine(files_of(20)(batches=40, workers=1), "D1").says


def test_small_reads() -> None:
    finding = found(files_of(20)(batches=40, workers=1, compute_ms=5), "D2")
    tells(
        finding,
        "39 of 39 small reads in 39 files",
        "15.0 ms of waiting each",
        "mean read 60.0 kB",
        "while waiting",
    )
    assert finding.gain.value == pytest.approx(39 * 15e-3, rel=0.1)
    assert any("whatif" in remedy.command for remedy in finding.remedies)


def test_small_reads_from_memory_are_no_storage() -> None:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        return reads(run, at, process, path=a_file(run, f"/data/{batch}.jpg"), n=400, ms=0.008)

    loop(run, fetch, batches=40, workers=0, compute_ms=3)
    assert "0 of 15,600 small reads in 39 files took longer" in fine(run, "D2").says
    # Half of them fast: then those that are waited for are slow all the same.
    run = Synthetic()

    def half(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.jpg", 6_000_000)
        at = reads(run, at, process, path=path, n=60, ms=0.008)
        return reads(run, at, process, path=path, n=40, ms=1)

    loop(run, half, batches=40, workers=0, compute_ms=3)
    assert found(run, "D2")


def buffered(slow_ms: float) -> Synthetic:
    """Each batch calls fread 100 times; every tenth call fills the buffer of the stream."""
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.npy", 40_000)
        for _ in range(10):
            at = reads(run, at, process, op="fread", path=path, n=9, ms=0.001, size=400)
            at = reads(run, at, process, op="fread", path=path, ms=slow_ms, size=400)
        return at

    loop(run, fetch, batches=40, workers=0, compute_ms=3)
    return run


def test_reads_of_stdio_count_if_they_fill_the_buffer() -> None:
    finding = found(buffered(2), "D2")
    tells(finding, "390 of 390 small reads in 39 files", "2.00 ms of waiting each")
    assert finding.gain.value == pytest.approx(390 * 2e-3, rel=0.02)


def test_reads_of_stdio_from_memory_are_no_storage() -> None:
    assert "no read of data blocked" in fine(buffered(0.008), "D2").says


def test_a_buffer_that_is_filled_now_and_then_is_no_tail() -> None:
    assert fine(buffered(2), "D9")


def test_large_reads_are_not_small() -> None:
    assert "no small read" in fine(big_reads(), "D2").says


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
    assert f"penstock ceiling {RUN}" in fine(big_reads(), "D3", "not judged").says


def test_random_reads_of_a_large_file() -> None:
    run = example("D4")
    finding = found(run, "D4")
    tells(finding, "480 reads in 1 large file were random", "8.19 kB", "3.00 ms each")
    tells(finding, "device bytes per byte requested: not measured")
    assert finding.gain.value == pytest.approx(run.wait_s("read"), rel=0.02)
    assert fine(run, "D2", "suppressed").says.startswith("D4 explains it")


def test_a_large_file_read_in_order_is_not_random() -> None:
    assert "0 % of 480 reads" in fine(lmdb_like(lambda i: i * 8192), "D4").says


def test_a_cache_cliff() -> None:
    finding = found(example("D5"), "D5")
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


def test_the_same_data_again_over_the_network() -> None:
    finding = found(example("D6"), "D6")
    tells(finding, "on /mnt (nfs4) was read 2.00x", "62.9 MB")
    assert finding.gain.value == pytest.approx(59 * 20e-3 / 2, rel=0.01)


def test_a_local_file_system_is_no_network() -> None:
    assert "over a network" in fine(twice_over("xfs"), "D6").says


def test_without_mounts_the_network_is_not_judged() -> None:
    assert "not noted" in fine(files_of(20)(batches=20), "D6", "not judged").says


def test_page_faults_name_the_file_and_what_reads_it_better() -> None:
    finding = found(example("D7"), "D7")
    tells(finding, "/data/train.lmdb/data.mdb: 150 major page faults", "1.20 s in them, 8.00 ms")
    # Each wait begins 5 ms after its fetch, in the first of three faults.
    assert finding.gain.value == pytest.approx(49 * 20e-3, rel=0.01)
    assert finding.remedies[0].command == "penstock feed bench /data/train.lmdb/data.mdb"
    in_memory = faulting(0.002, is_major=False)
    assert "no page of 1 mapped data file had to be waited for" in fine(in_memory, "D7").says


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


def test_a_straggling_worker() -> None:
    finding = found(example("D8"), "D8")
    tells(finding, "worker 1 takes 50.0 ms a batch, the others 20.0 ms")
    assert 0 < finding.gain.value <= example("D8").training.data_wait_s


def test_a_worker_that_straggles_in_each_pass_is_found_though_each_pass_has_new_ones() -> None:
    run, now = Synthetic(), 1000 * MS
    for number in range(6):
        begun = now
        for batch in range(8):  # four for each worker: too few to judge a process by
            process = 2 + 2 * number + batch % 2
            done = reads(
                run, now, process, path=a_file(run, f"/data/{batch}"), ms=20 + batch % 2 * 30
            )
            run.fetch(now, done, batch, process=process, a=1 + number)
            run.wait(now, done + 1000, batch, a=1 + number)
            run.step(done + 1000, done + 5 * MS, 8 * number + batch)
            now = done + 5 * MS
        for worker in range(2):
            run.worker(2 + 2 * number + worker, start=begun, end=now, number=worker)
    run.process(1, end=now)
    finding = found(run, "D8")
    tells(finding, "worker 1 takes 50.0 ms a batch, the others 20.0 ms")
    # 24 fetches that take 30 ms longer than the others'.
    assert finding.gain.value == pytest.approx(24 * 30e-3, rel=0.01)


def test_workers_of_loaders_of_other_sizes_are_not_mixed() -> None:
    run, now = Synthetic(), 1000 * MS
    for batch in range(60):  # iterator 1: two workers, 20 ms; iterator 2: one that takes 200 ms
        is_other = batch % 3 == 2
        process = 4 if is_other else 2 + batch % 3
        done = reads(run, now, process, path=a_file(run, f"/d/{batch}"), ms=200 if is_other else 20)
        run.fetch(now, done, batch, process=process, a=2 if is_other else 1)
        run.wait(now, done + 1000, batch, a=2 if is_other else 1)
        run.step(done + 1000, done + 5 * MS, batch)
        now = done + 5 * MS
    run.process(1, end=now)
    for process, number in ((2, 0), (3, 1), (4, 0)):
        run.worker(process, start=1000 * MS, end=now, number=number)
    assert "balanced" in fine(run, "D8").says


def test_calls_that_ranks_made_together_are_divided_by_all_ranks() -> None:
    # As Darshan records a file that four ranks share: no rank, no pid, one sum of times.
    run = Synthetic()
    for rank in range(4):
        run.process(rank, end=1000 * MS, rank=rank)
    run.rows["processes"] = [(row[0], None, *row[2:]) for row in run.rows["processes"]]
    run.fold("read", 4000, process=None, duration_ns=2000 * MS, moved_bytes=4000 * 1000)  # type: ignore[arg-type]
    measures = measure(run)
    assert measures.recording.processes == 4
    assert measures.call_times.processes == 4
    assert measures.call_times.read_s == pytest.approx(0.5)
    assert found(measures, "D2").gain.value == pytest.approx(0.5)


def test_equal_workers_are_balanced() -> None:
    assert "balanced" in fine(unequal(1.2), "D8").says


def ranks_that(how: str, run: Synthetic) -> Measures:
    measures = measure(run)
    return replace(measures, coupling=replace(measures.coupling, how=how))


def test_a_straggling_rank() -> None:
    finding = found(ranks_that("together", two_ranks(30)), "D8")
    tells(finding, "rank 1 on node1 waits 1.47 s for data, the others 490 ms")
    assert finding.gain.value == pytest.approx(49 * 20e-3)


def test_equal_ranks_are_balanced() -> None:
    assert "balanced" in fine(ranks_that("together", two_ranks(12)), "D8").says


def test_of_trainings_that_do_not_wait_for_each_other_none_is_a_straggler() -> None:
    """Such as the trials of a search."""
    assert "balanced" in fine(ranks_that("apart", two_ranks(30)), "D8").says


def test_each_rank_reads_all_of_the_data() -> None:
    finding = found(example("D10"), "D10")
    tells(
        finding,
        "a rank reads 100 % of the data set's 41.9 MB in a pass: 4 ranks read 168 MB in 1 pass",
        "a share each would be 41.9 MB",
    )
    waited_s = example("D10").data_storage_s
    assert finding.gain.value == pytest.approx(0.75 * waited_s)


def test_each_worker_reads_all_of_the_data() -> None:
    tells(
        found(example("D13"), "D13"),
        "of 24 files a pass reads, each of 4 workers reads 24 files",
        "101 MB were read of 25.2 MB in 1 pass: each item comes 4 times",
    )
    shared = fine(measure(each_worker_reads(0.25)), "D13").says
    assert shared == "of 24 files a pass reads, each of 4 workers reads 0 files"


def test_workers_that_read_all_files_of_a_mapped_style_data_set_are_fine() -> None:
    """Each item may need its whole file, of which it is but one."""
    run = each_worker_reads(1.0)
    run.rows["spans/00000"] = [row for row in run.rows["spans/00000"] if row[3] != "fetch end"]
    assert "no IterableDataset" in fine(measure(run), "D13").says


@pytest.mark.parametrize(("share", "passes"), [(0.25, 1), (0.25, 4), (0.5, 2)])
def test_ranks_that_read_a_share_each_pass_are_fine(share: float, passes: int) -> None:
    """In four passes a rank may well come to see all of it, a quarter at a time."""
    measures = measure(each_rank_reads(share, passes))
    assert f"reads {100 * share:.3g}" in fine(measures, "D10").says.replace(".0 %", " %")


def test_who_should_have_read_what_is_open_without_a_loader() -> None:
    run = each_rank_reads(1.0)
    run.rows["spans/00000"] = [row for row in run.rows["spans/00000"] if row[3] != "loader"]
    assert "no pass of a loader" in fine(measure(run), "D10", "not judged").says


def test_a_straggler_is_what_others_wait_for_at_barriers() -> None:
    run = two_ranks(30)
    run.span("barrier", 2000 * MS, 2400 * MS, process=1)
    run.span("barrier", 2390 * MS, 2400 * MS, process=11)
    tells(
        found(ranks_that("together", run), "D8"),
        "the others wait for it at barriers: 400 ms, it itself 10.0 ms",
    )


def test_tail_latency() -> None:
    finding = found(example("D9"), "D9")
    tells(
        finding,
        "reads of 32.8 kB to 65.5 kB",
        "41.5x the median",
        "43 % of the blocking reads' time",
    )
    assert finding.gain.value == pytest.approx(19 * 39e-3, rel=0.01)


def test_even_latencies_have_no_tail() -> None:
    assert "about as long" in fine(with_tail(50, 8), "D9").says


def test_empty_reads() -> None:
    finding = found(example("E1"), "E1")
    tells(finding, "50 % of 120 reads are empty")
    assert finding.gain.value == pytest.approx(59 * 3e-3)
    assert "of the wall time" in fine(asking_again(0.01), "E1").says
    assert "0 % of 60 reads" in fine(files_of(5)(batches=60), "E1").says


def test_too_many_readers() -> None:
    finding = found(example("E2"), "E2")
    tells(finding, "MB/s with 4 reads under way", "MB/s with 1")
    assert finding.remedies[1].command == f"penstock whatif {RUN} --threads 1"


def test_the_published_case_of_too_many_readers_is_one() -> None:
    # tf-Darshan's large files on a disk: 94 MB/s with one thread, 77 MB/s with 16.
    tells(found(crowded(77 / 94, crowd=16), "E2"), "with 16 reads under way")
    assert "under way" in fine(crowded(0.9, crowd=16), "E2").says


def test_more_readers_that_share_the_device_are_fine() -> None:
    assert "under way" in fine(crowded(1.0), "E2").says


def test_small_reads_do_not_seek_each_other_away() -> None:
    assert fine(crowded(0.5, size=16384), "E2")


# --- workers -------------------------------------------------------------------------------------


def test_requests_to_a_store_one_after_another() -> None:
    run = example("N1")
    finding = found(run, "N1")
    tells(finding, "the wait for store.example:443", "45.0 ms to the first byte", "100 kB each")
    tells(finding, "at most 1.10 under way at once", "1 connection")
    # Of the 96 ms of a pair of requests 90 are for first bytes.
    assert finding.gain.value == pytest.approx(run.wait_s("network") * 45 / 48, rel=0.02)
    assert finding.remedies[0].says == "DataLoader(num_workers=21)"
    assert fine(run, "W1", "suppressed")


def test_one_late_answer_is_not_shortened_by_more_requests_at_once() -> None:
    run = measure(from_a_store(first_ms=3, transfer_ms=1, late_ms=4000))
    finding = found(run, "N1")
    tells(finding, "one answer came after 4.00 s, which is not in the gain")
    assert run.wait_s("network") > 4
    assert finding.gain.value == pytest.approx(
        0.13, abs=0.03
    )  # 59 x (8 - 5) ms, 6 of 8 first bytes
    assert all("one answer" not in says for says in found(example("N1"), "N1").evidence)


def test_a_store_that_sends_slowly_needs_no_more_requests_at_once() -> None:
    says = fine(from_a_store(first_ms=3, transfer_ms=45), "N1").says
    assert "of the wait for store.example:443 is for first bytes" in says


def test_many_requests_at_once_are_not_judged() -> None:
    says = fine(from_a_store(at_once=32), "N1", "not judged").says
    assert "whether store.example:443 answers more at once as fast was not measured" in says


def test_a_measured_store_tells_whether_it_answers_more_at_once() -> None:
    def judged(hz: float, at_once: int = 32) -> Finding | Check:
        return said(from_a_store(at_once=at_once, ceiling_bps=hz * 100_000))["N1"]

    # 32 at once are 32 answers in 48 ms and less, up to 711 a second.
    more = judged(3000)
    assert isinstance(more, Finding)
    tells(more, "requests/s or fewer; the endpoint answered 3,000/s of 100 kB, 64 at once")
    at_its_ceiling = judged(800)
    assert isinstance(at_its_ceiling, Check)
    assert at_its_ceiling.state == "fine"
    # One at a time, and the store gives no more.
    assert isinstance(judged(22, at_once=1), Check)


def test_a_store_at_its_ceiling() -> None:
    run = example("N2")
    finding = found(run, "N2")
    tells(finding, "2.50 MB/s measured, 64 requests at once", "store.example:443")
    assert finding.gain.value == pytest.approx(run.wait_s("network"))
    far = from_a_store(first_ms=2, transfer_ms=46, ceiling_bps=25e6)
    assert "or less while waiting, 25.0 MB/s measured" in fine(far, "N2").says
    unknown = from_a_store(first_ms=2, transfer_ms=46)
    assert "penstock ceiling URL --keep RUN" in fine(unknown, "N2", "not judged").says
    assert "is for bytes after the first" in fine(example("N1"), "N2").says


def test_connections_opened_anew() -> None:
    run = example("N6")
    finding = found(run, "N6")
    tells(finding, "119 of 120 connections to store.example:443 opened anew", "40.0 ms each")
    tells(finding, "for 1.0 answers each")
    tells(finding, "TLS handshakes, 20.0 ms each,")
    # A pair takes 126 ms, 80 of them to connect; the step hides the first 5.
    assert finding.gain.value == pytest.approx(run.wait_s("network") * 75 / 121, rel=0.01)


def test_requests_that_are_refused_and_repeated() -> None:
    run = example("N3")
    finding = found(run, "N3")
    tells(finding, "30 of 147 requests to store.example:443 failed", "30 of them refused")
    # Each refusal takes 10 ms and a pause of 30; what was asked before the first step is no wait.
    assert finding.gain.value == pytest.approx(30 * 0.04, rel=0.05)
    assert "adaptive" in finding.remedies[0].says
    own_loop = found(refused_often(4, is_counted=False), "N3")
    tells(own_loop, "30 retries", "1.20 s of all threads")
    broken = found(refused_often(4, status=500), "N3")
    assert "refused" not in " ".join(broken.evidence)
    assert "0 of 117 requests" in fine(fetched_again(120), "N3").says
    # A missing object is an answer, which no client repeats.
    assert "0 of 147" in fine(refused_often(4, status=404), "N3").says


def test_the_same_objects_again() -> None:
    run = example("N4")
    finding = found(run, "N4")
    tells(finding, "4.00 MB of 40 objects at store.example:443 fetched 2.92x", "up to 3 times")
    assert finding.gain.value == pytest.approx(run.wait_s("network") * (1 - 40 / 117), rel=0.01)
    assert "fetched 1" in fine(fetched_again(120), "N4").says
    assert "fetched 1" in fine(in_pieces(8192), "N4").says  # other ranges are other bytes


def test_lists_and_heads() -> None:
    run = example("N5")
    tells(found(run, "N5"), "117 of 235 requests to store.example:443 are LIST or HEAD", "50 %")
    assert found(run, "N5").gain.value == pytest.approx(run.wait_s("network") / 2, rel=0.02)
    assert "9.0 % of their time" in fine(examined_first(2), "N5").says


def test_late_answers() -> None:
    finding = found(example("N7"), "N7")
    tells(
        finding, "6 of 117 answers of store.example:443 began after more than 10 times", "9.00 ms"
    )
    assert finding.gain.value == pytest.approx(6 * 0.261, rel=0.02)
    assert fine(late_at_times(20, 50), "N7")
    assert fine(late_at_times(3, 300), "N7")  # another kind of request, not a tail


def test_small_ranges_of_large_objects() -> None:
    run = example("N8")
    tells(found(run, "N8"), "117 of 117 fetches", "ranges below 64 KiB of large objects, 100 %")
    assert "0 of 117" in fine(in_pieces(1 << 20), "N8").says
    assert "0 of 117" in fine(fetched_again(40), "N8").says


def test_requests_that_no_adapter_saw_are_not_judged() -> None:
    for rule in ("N3", "N4", "N5", "N7", "N8"):
        assert "only connections" in fine(example("N1"), rule, "not judged").says
        assert "no data wait" in fine(example("D2"), rule).says


def test_a_kept_connection_is_not_opened_anew() -> None:
    assert "no data wait" in fine(example("N1"), "N6").says
    assert "no data wait" in fine(example("D2"), "N6").says
    assert "no data wait" in fine(example("D2"), "N1").says


def test_too_few_workers() -> None:
    finding = found(example("W1"), "W1")
    # 60 fetches of 30 ms while 60 steps take 5 ms: six and one to spare.
    tells(finding, "2 workers, busy", "the steps 30", "16 CPUs")
    assert finding.remedies[0].says == "DataLoader(num_workers=8)"


def test_no_workers_at_all() -> None:
    finding = found(files_of(30)(batches=60, workers=0, compute_ms=30), "W1")
    tells(finding, "no workers", "how many CPUs there are was not noted")
    assert finding.remedies[0].says == "DataLoader(num_workers=2)"


def test_more_workers_need_processors() -> None:
    run = files_of(30)(batches=60, workers=2, compute_ms=5, busy=1.0)
    run.note("cpus", "3")
    assert "leave no room" in fine(run, "W1").says


def test_idle_workers_are_enough() -> None:
    assert fine(files_of(3)(batches=60, workers=4, compute_ms=20), "W1")


def test_decode_bound() -> None:
    finding = found(example("W2"), "W2")
    tells(finding, "90 % of the data wait")
    assert finding.remedies[0].says.startswith("not I/O")


def test_waiting_for_files_is_not_decoding() -> None:
    assert "on a CPU" in fine(files_of(30)(batches=30, workers=1), "W2").says


def test_waiting_for_a_processor_to_decode_is_decoding() -> None:
    # 40 % decodes, 50 % waits to decode, however many processors the node has: others use them.
    run = decoding(0.4, 0.5, cpus=16)
    assert isinstance(said(run)["W2"], Finding)
    assert isinstance(said(run)["W3"], Finding)
    assert "none for another worker" in fine(run, "W1").says


def test_a_share_at_the_threshold_is_not_said_to_be_fine_at_it() -> None:
    run = short_of_workers()
    made = measure(run)
    workers = tuple(replace(row, busy_s=0.8996 * row.waited_s) for row in made.workers)
    assert "busy less than 90 %" in fine(replace(made, workers=workers), "W1").says


def test_an_open_that_waits_for_another_program_is_no_storm() -> None:
    run = files_of(20)(batches=40, workers=1, compute_ms=5)
    files = measure(run).metadata.files
    run = files_of(20)(batches=40, workers=1, compute_ms=5)
    run.call("open", 1100 * MS, 121_100 * MS, path="/scratch/pipe_7", process=2)
    made = measure(run)
    assert (made.metadata.blocked_files, made.metadata.blocked_opens) == (1, 1)
    assert made.metadata.blocked_s == pytest.approx(120)
    assert made.metadata.files == files + 1
    assert "1 open of 1 file that took 120 s each, as of a pipe" in fine(made, "D1").says


def test_without_steps_an_open_that_waits_for_another_program_is_no_storm() -> None:
    run = without_steps()
    run.call("open", 0, 60_000 * MS, path="/scratch/pipe_7")
    assert "1 open of 1 file that took 60" in fine(run, "D1").says
    many = without_steps()
    for number in range(40):  # a server that hardly answers is one
        many.call("open", 0, 2000 * MS, path=f"/data/slow{number}")
    assert found(many, "D1").gain.value is not None


def test_fetches_without_a_processor() -> None:
    run = example("W3")
    finding = found(run, "W3")
    tells(
        finding,
        "50 % of the data wait",
        "2 workers and ranks need a CPU, 2 CPUs; other programs use",
    )
    assert "wait for a CPU already" in fine(run, "W1").says
    assert "fewer workers" in found(decoding(0.4, 0.5, cpus=1), "W3").remedies[0].says
    assert fine(decoding(0.9, 0.05), "W3")
    blocked = found(decoding(0.1, 0.3, cpus=1), "W3").remedies[0].says  # 60 % of it elsewhere
    assert "more CPUs" in blocked
    assert "fewer workers" not in blocked


def test_a_quota_is_how_many_cpus_there_are() -> None:
    run = decoding(0.3, 0.6, cpus=16)
    run.note("cpus of process", "16\tffff\t0.5\t/sys/fs/cgroup/job")
    run.note("cpu throttled", "120\t3.2\t/sys/fs/cgroup/job")
    finding = found(run, "W3")
    tells(finding, "quota is 0.5 CPUs: it stopped the job 120 times, 3.20 s")
    assert "raise the CPU quota" in finding.remedies[0].says
    idle = decoding(0.3, 0.6, cpus=16)  # a quota that hardly ever stopped it is not why
    idle.note("cpus of process", "16\tffff\t8\t/sys/fs/cgroup/job")
    idle.note("cpu throttled", "1\t0.002\t/sys/fs/cgroup/job")
    finding = found(idle, "W3")
    tells(finding, "2 workers and ranks need a CPU, 8 CPUs; other programs use them too")
    assert "quota" not in finding.remedies[0].says
    short = files_of(30)(batches=60, workers=1, compute_ms=5, busy=0.4)
    short.note("cpus of process", "16\tffff\t1\t/sys/fs/cgroup/job")
    assert "1 CPU leave no room for more" in fine(short, "W1").says


def test_threads_of_a_loader_that_have_no_cpu_are_told_as_workers_are() -> None:
    run = Synthetic()
    now = S
    for batch in range(20):
        run.wait(now, now + 100 * MS, batch)
        run.span("wait cpu", now + 100 * MS + 1, now + 100 * MS + 2, index=batch, a=1, b=40 * MS)
        run.span("wait delay", now + 100 * MS + 3, now + 100 * MS + 4, index=batch, b=120 * MS)
        run.step(now + 100 * MS, now + 110 * MS, batch)
        now += 110 * MS
    run.process(1, end=now)
    run.note("cpus", "2")
    finding = found(run, "W3")
    tells(finding, "for 75 % of the data wait", "the loader's threads share 2 CPUs")
    assert "workers" not in finding.remedies[0].says


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
    tells(found(example("W4"), "W4"), "listing data takes 12.0 s", "on 3,000 files in /data/train")
    finding = found(starting_slowly(), "W4")
    tells(finding, "first batch after 3", "of the first batch: ", "cpu 1.5")
    assert finding.share.value == pytest.approx(3 / (1 + 3 + 1), rel=0.05)
    assert "first batch after" in fine(files_of(3)(batches=100), "W4").says


def test_a_slow_first_batch_from_remote_storage_names_the_phase() -> None:
    run = starting_remotely()
    finding = found(run, "W4")
    tells(finding, "of the first batch: network: back-off 2.40 s, network: first byte 400 ms",
          "from remote storage: store.example:443")  # fmt: skip
    parts = {part.key: part.s for part in report_of(measure(run)).first_batch}
    assert parts["network back-off"] == pytest.approx(2.4, abs=0.01)
    assert parts["network connect"] == pytest.approx(0.1, abs=0.01)


# --- checkpoints ---------------------------------------------------------------------------------


def test_a_checkpoint_blocks() -> None:
    finding = found(example("C1"), "C1")
    tells(finding, "5 saves of 200 ms, 50.0 MB each at 250 MB/s", "100 % of it in file calls")
    assert finding.gain.value == pytest.approx(1.0)
    assert finding.share.value == pytest.approx(0.5, abs=0.01)
    assert "of the wall time" in fine(saving(ms=2), "C1").says


def test_what_a_run_does_already_is_no_remedy() -> None:
    words = [remedy.command or remedy.says for remedy in found(saving(), "C1").remedies]
    assert ["--burst-buffer" in words[0], "Checkpointer" in words[1]] == [True] * 2
    run = saving()
    run.note("burst tier", "/fast")
    run.note("checkpointer", '{"life": 1000, "rank": 0, "fast": "/nvme", "slow": null}')
    run.note("save", "1 1000 0 5 3000 good 1 4096 0.1 0.0 0.5 0.9 0.15 -")
    finding = found(run, "C1")
    tells(finding, "with files on the fast tier /fast already")
    words = [remedy.command or remedy.says for remedy in finding.remedies]
    assert not [said for said in words if "--burst-buffer" in said or "Checkpointer" in said]


def test_a_slow_checkpoint_target() -> None:
    finding = found(example("C2"), "C2")
    tells(finding, "250 MB/s in the calls; /mnt/nvme gives 2.00 GB/s")
    assert finding.gain.value == pytest.approx(1.0 * (1 - 0.25 / 2))
    assert "250 MB/s" in fine(saving(other_bps=300e6), "C2").says
    assert f"penstock ceiling PATH --write --keep {RUN}" in fine(saving(), "C2", "not judged").says


def test_ranks_write_the_same_bytes() -> None:
    finding = found(example("C3"), "C3")
    tells(finding, "5 saves by 4 ranks to /out/model.pt", "750 MB too many")
    assert "shards, or the same bytes" in fine(saving(ranks=4), "C3", "not judged").says
    assert "different sizes" in fine(saving(ranks=4, grows=5_000_000), "C3").says
    assert "one rank" in fine(saving(), "C3").says


def test_a_slow_restart() -> None:
    finding = found(example("C4"), "C4")
    tells(finding, "1 load, 40.0 s, 1.07 GB at 26.8 MB/s")
    assert finding.share.value == pytest.approx(40 / 41, rel=0.02)
    # A load that is short and yet much of the job is told, too.
    assert found(restarting(2), "C4").gain.value == pytest.approx(2.0, rel=0.01)
    assert "1 load" in fine(restarting(0.04), "C4").says


# --- the recording -------------------------------------------------------------------------------


def test_an_incomplete_recording() -> None:
    run = files_of(20)(batches=20, folded_events=5000)
    finding = found(run, "X1")
    tells(finding, "5,000 calls past the trace budget")
    assert finding.gain.value is None
    assert finding.gain.state == "not measured"
    assert fine(files_of(20)(batches=20), "X1")


def test_the_cost_of_recording() -> None:
    tells(found(example("X2"), "X2"), "3,120 calls")
    assert fine(costly(50), "X2")
    assert fine(files_of(1)(batches=20), "X2", "not judged")


# --- judging -------------------------------------------------------------------------------------


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


def test_a_storm_is_much_of_the_wait_or_many_calls_a_file_and_each_alone_is_one() -> None:
    # Four opens of 5 ms each beside a read of 8: 71 % of the wait, 1 call per open.
    slow = files_of(8, stat_ms=20, stats=0)(batches=40, workers=1, compute_ms=5)
    tells(found(slow, "D1"), "1 per open")
    # Thirty looks of 0.1 ms beside a read of 17: 16 % of the wait, 31 calls per open.
    many = files_of(17, stat_ms=0.1, stats=30)(batches=40, workers=1, compute_ms=0.2, busy=0.0)
    tells(found(many, "D1"), "31.8 per open", "of the wait for storage")
    assert fine(files_of(17, stat_ms=0.5, stats=3)(batches=40, workers=1, compute_ms=5), "D1")


def test_the_finding_that_would_bring_most_comes_first() -> None:
    findings = judge(example("C1")).findings + judge(example("D1")).findings
    both = judge(measure(training_job(compute_ms=20, read_ms=9, save_ms=1500))).findings
    gains = [finding.gain.value for finding in both if finding.gain.value is not None]
    assert findings
    assert len(set(gains)) >= 2
    assert gains == sorted(gains, reverse=True)


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


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.rule in EXAMPLES], ids=lambda rule: rule.rule
)
def test_each_rule_promises_no_more_than_the_time_that_its_evidence_is_of(rule: Rule) -> None:
    """Before it is cut to the wall time: of the rank that waits longest, as D8 is of one."""
    known = example(rule.rule)
    training = known.training
    promised_s = getattr(rule.judges(known), "gain_s", None) or 0.0
    if rule.rule in ("C4", "W4"):
        most_s = (training.startup_s or 0) + (training.wall_s or 0)
    elif rule.rule.startswith("C"):
        most_s = training.checkpoint_block_s or 0
    else:
        waits = [training.data_wait_s or 0, *(row.data_wait_s for row in known.ranks)]
        most_s = max(waits) + (training.training_calls_s or 0)
    assert promised_s <= most_s * 1.001
    assert promised_s > 0 or rule.rule in ("C5", "D13", "F1", "X1", "X2")


def test_a_finding_of_incomplete_events_says_so() -> None:
    run = files_of(20)(batches=40, workers=1, compute_ms=5, folded_events=5000)
    assert found(run, "D2").gain.state == "incomplete"


def test_the_document_shows_the_rules_and_examples_as_they_are() -> None:
    """`python tests/findings_page.py` writes it."""
    assert findings_page.page() == findings_page.PLACE.read_text()


def test_a_small_read_is_the_same_in_the_query() -> None:
    assert f"BETWEEN 1 AND {findings.SMALL_READ_BYTES.value - 1:.0f}" in query("blocking_reads")


def every_command() -> set[str]:
    """All that a finding or a check of the examples tells to type."""
    told = set()
    for rule in RULES:
        judgement = judge(example(rule.rule))
        for finding in judgement.findings:
            told |= {remedy.command for remedy in finding.remedies if remedy.command}
        for check in judgement.checks:
            told |= set(re.findall(r"`(penstock [^`]+)`", check.says))
    return told


def test_each_command_that_is_told_is_one_that_penstock_knows() -> None:
    commands = every_command()
    assert len(commands) > 5
    for text in commands:
        _, *words = shlex.split(text)
        command, context = cli, click.Context(cli, info_name="penstock")
        while isinstance(command, click.Group):
            name = words.pop(0)
            found = command.get_command(context, name)
            assert found is not None, f"{text}: there is no {name}"
            command, context = found, click.Context(found, context, info_name=name)
        values, left, _ = command.make_parser(context).parse_args(words)
        assert not left, text
        missing = [one.name for one in command.params if one.required and not values.get(one.name)]
        assert missing == [], text


def test_a_run_folder_is_named_by_the_token_and_never_by_a_word() -> None:
    commands = every_command()
    assert any(RUN in command for command in commands)
    assert [one for one in commands if re.search(r"\bRUN\b", one.replace(RUN, ""))] == []


def test_no_two_rules_share_a_name() -> None:
    assert len({rule.rule for rule in RULES}) == len({rule.title for rule in RULES}) == len(RULES)
    silenced = {other for rule in RULES for other in rule.suppresses}
    assert silenced <= {rule.rule for rule in RULES}


def test_each_number_that_a_rule_compares_with_has_its_reason() -> None:
    thresholds = {one for rule in RULES for one in rule.thresholds}
    assert all(one.because and not one.because.endswith(".") for one in thresholds)
    modules = [
        importlib.import_module(f"{findings.__name__}.{one.name}")
        for one in pkgutil.iter_modules(findings.__path__)
    ]
    values = [value for module in modules for value in vars(module).values()]
    declared = {value for value in values if isinstance(value, findings.Threshold)}
    assert declared == thresholds
    numbers = re.compile(r"\d")  # in a rule's own words a number would be said twice
    assert [rule.rule for rule in RULES if numbers.search(rule.judges.__doc__ or "")] == []
