"""Programs of other kinds than a rule is for: what it may not say of them, and what it has to."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from findings_examples import (
    a_file,
    big_reads,
    example,
    faulting,
    files_of,
    mapped,
    saving,
    scanning,
    twice_over,
)
from penstock.explain.findings import (
    FEW_IN_TAIL,
    FEW_SLOW,
    LEAST_ALIKE,
    TAIL,
    Check,
    Finding,
    judge,
)
from penstock.explain.measures import Measures, Storage, measure
from penstock.explain.questions import query
from penstock.explain.report import report_of
from penstock.words import show
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
    assert f"r.waited_ns > {TAIL.value:.0f} * l.p50_ns" in text
    assert FEW_IN_TAIL.value == pytest.approx(1 - 0.90)


# --- D2: small reads that did not come from memory -----------------------------------------------


def few_slow(of: int, slow_ms: float = 60) -> Callable[[Synthetic, int, int, int], int]:
    """Reads of small files from memory, 120 a batch, of which a few take a time slice."""

    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        for n in range(120):
            path = a_file(run, f"/data/{batch * 120 + n}.pt", 5_000)
            is_slow = (batch * 120 + n) % of == of - 1
            at = reads(run, at, process, path=path, ms=slow_ms if is_slow else 0.002, size=5_000)
        return at

    return read


def test_few_reads_that_lost_their_cpu_are_not_bound_by_latency() -> None:
    """24 of 7,200 reads hold nearly all of the time, where nobody measured who lost a CPU."""
    run = job(few_slow(300))
    run.rows["spans/00000"] = [row for row in run.rows["spans/00000"] if row[3] != "fetch delay"]
    assert "24 of 7,080 small reads in 7,080 files took longer" in fine(run, "D2").says
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
    known = measure(run)
    together = replace(known, coupling=replace(known.coupling, how="together"))
    (first, *_) = found(together, "D8").evidence
    assert first.startswith("one of 3 main processes, without a rank, on node1 waits 1.56 s")


# --- remedies: in the words of the loader and of the format --------------------------------------


@pytest.mark.parametrize(
    ("path", "says", "never"),
    [
        ("/d/train.arrow", "read record batches by calls (pyarrow.OSFile)", "lmdb"),
        ("/d/model.safetensors", "safetensors.torch.load(open(path, 'rb').read())", "lmdb"),
        ("/d/tokens.bin", "os.pread, numpy.fromfile", "lmdb"),
        ("/d/x.npy", "os.pread, numpy.fromfile", "lmdb"),
        ("/d/unheard.of", "by calls at their offsets", "lmdb"),
        ("/d/train.lmdb/data.mdb", "lmdb readahead=True", "pyarrow"),
        ("/d/a.sqlite3", "PRAGMA mmap_size=0", "lmdb"),
    ],
)
def test_a_mapped_file_is_advised_in_the_words_of_its_format(
    path: str, says: str, never: str
) -> None:
    told = " ".join(remedy.says for remedy in found(faulting(8, path=path), "D7").remedies)
    assert says in told
    assert never not in told


def loaded_by(name: str | None, run: Synthetic) -> Measures:
    """The same, whose loader an adapter noted, if one did."""
    known = measure(run)
    return replace(known, loaders=(name,) if name else ())


@pytest.mark.parametrize("loader", ["torch", "tensorflow", "grain", None])
def test_a_loader_is_advised_in_its_own_words(loader: str | None) -> None:
    words = {"torch": "DataLoader(", "tensorflow": "tf.data.", "grain": "grain."}
    small = loaded_by(loader, files_of(20)(batches=40, workers=1, compute_ms=5))
    told = [
        remedy.says
        for rule, known in (
            ("D2", small),
            ("D9", replace(example("D9"), loaders=small.loaders)),
            ("D10", replace(example("D10"), loaders=small.loaders)),
        )
        for remedy in found(known, rule).remedies
        if remedy.word == "loader"
    ]
    assert len(told) == 3
    for name, word in words.items():
        assert all(word in says for says in told) == (name == loader), told
        assert any(word in says for says in told) == (name == loader), told


def test_a_loader_is_known_by_what_its_adapter_notes_and_torch_by_its_fetches() -> None:
    run = files_of(20)(batches=4, workers=1)
    assert measure(run).loaders == ("torch",)
    run = Synthetic()
    run.wait(1000 * MS, 1010 * MS, 0)
    run.step(1010 * MS, 1020 * MS, 0)
    run.process(1, end=1030 * MS)
    assert measure(run).loaders == ()
    run = Synthetic()
    run.wait(1000 * MS, 1010 * MS, 0)
    run.step(1010 * MS, 1020 * MS, 0)
    run.note("loader", "grain")
    run.process(1, end=1030 * MS)
    assert measure(run).loaders == ("grain",)


@pytest.mark.parametrize(("name", "says"), [("a.h5", "create_dataset"), ("a.tar", "penstock.feed")])
def test_small_reads_of_one_container_are_not_told_to_be_packed(name: str, says: str) -> None:
    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{name}", 1 << 30)
        return reads(run, at, process, path=path, ms=4, size=60_000, offset=batch * 60_000)

    told = " ".join(remedy.says for remedy in found(job(read), "D2").remedies)
    assert says in told
    assert "pack the files" not in told


def test_many_small_files_are_told_to_be_packed() -> None:
    run = files_of(20)(batches=80, workers=1, compute_ms=5)
    assert any("pack the files" in remedy.says for remedy in found(run, "D2").remedies)


# --- D12: the same bytes again in one epoch ------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.h5", "rdcc_nbytes"),
        ("a.tar", "penstock.feed"),
        ("a.gz", "a seek in a compressed file"),
        ("a.npz", "numpy.load"),
        ("a.unknown", "read only the bytes that a sample needs"),
    ],
)
def test_bytes_read_again_in_an_epoch_are_told_in_the_words_of_the_format(
    name: str, says: str
) -> None:
    finding = found(scanning(name, 20), "D12")
    assert finding.evidence[0].startswith(f"/data/{name}: 41.9 MB, read 20.0x in an epoch")
    assert any(says in remedy.says for remedy in finding.remedies)


def test_bytes_read_again_from_memory_cost_the_cpu_that_decodes_them() -> None:
    """Each chunk is in memory: what is lost is decompressing it, and no unknown file says so."""
    finding = found(scanning("a.h5", 20, read_ms=0.001), "D12")
    assert 0.3 < (finding.share.value or 0) < 0.9
    assert "of the wall time" in fine(scanning("a.unknown", 20, read_ms=0.001), "D12").says


def test_how_often_a_file_was_read_is_one_number_wherever_it_stands() -> None:
    """Per epoch in the finding, of all epochs beside it, and that in the table of files."""
    known = measure(scanning("a.tar", 20, passes=3))
    finding = found(known, "D12")
    assert "read 20.0x in an epoch by one process, 60.0x in all" in finding.evidence[0]
    assert [show(row.read_times, "x") for row in known.files if row.path] == ["60.0x"]
    once = measure(scanning("a.tar", 20))
    assert "in all" not in found(once, "D12").evidence[0]
    assert [show(row.read_times, "x") for row in once.files if row.path] == ["20.0x"]
    assert once.reading.read_bytes / once.reading.size_bytes == pytest.approx(20)


@pytest.mark.parametrize("passes", [1, 4])
def test_reading_a_file_once_an_epoch_is_no_reading_again(passes: int) -> None:
    """Three times what there is a pass, and passes that read it once each, are a way to read."""
    assert "no process read" in fine(scanning("a.h5", 2, passes=passes), "D12").says


def without_loader(name: str, times: int) -> Synthetic:
    """A loop that opens one file in each step and reads as much of it."""
    run, now = Synthetic(), 1000 * MS
    path = a_file(run, f"/data/{name}", 10 << 20)
    for step in range(40):
        at = reads(run, now, 1, op="open", path=path, ms=0.01)
        for n in range(times * 10):
            at = reads(run, at, 1, path=path, ms=1, size=1 << 20, offset=n % 10 << 20)
        run.span("step", now, at + 5 * MS, index=step, kind="step", b=1)
        now = at + 5 * MS
    run.process(1, end=now)
    return run


def test_how_often_data_should_be_read_is_open_without_a_loader() -> None:
    """Each step reads the whole file: an epoch of one step, or a file that is scanned for each."""
    run = scanning("a.h5", 20)
    run.rows["spans/00000"] = [
        row for row in run.rows["spans/00000"] if row[3] not in ("loader", "fetch", "fetch delay")
    ]
    told = "/data/a.h5: 41.9 MB, read 20.0x: 839 MB, 40 opens in 40 steps; how many epochs"
    assert fine(run, "D12", "not judged").says.startswith(told)
    assert "read 40.0x" in fine(without_loader("a.tar", 1), "D12", "not judged").says
    assert "read 80.0x" in fine(without_loader("a.tar", 2), "D12", "not judged").says


def test_an_epoch_has_a_step_so_that_a_file_read_four_times_a_step_is_read_again() -> None:
    run = without_loader("a.tar", 4)
    finding = found(run, "D12")
    tells = "/data/a.tar: 10.5 MB, read 160x: 1.68 GB, 40 opens; 4.00x at least in each step"
    assert finding.evidence[0].startswith(tells)
    assert any("penstock.feed" in remedy.says for remedy in finding.remedies)
    # Three quarters of the reads, which take 40 x 40 ms.
    assert finding.gain.value == pytest.approx(0.75 * 1.6, rel=0.05)
    assert "how many epochs" in fine(without_loader("a.tar", 2), "D12", "not judged").says
    # Two processes may have read it: then it is twice a step for each.
    two = measure(run)
    two = replace(two, recording=replace(two.recording, processes=2))
    assert "how many epochs" in fine(two, "D12", "not judged").says


def test_without_steps_it_is_told_how_often_a_file_was_read_and_no_more() -> None:
    run, now = Synthetic(), 0
    path = a_file(run, "/data/a.db", 1 << 20)
    for _ in range(50):
        now = reads(run, now, 1, path=path, ms=1, size=1 << 20, offset=0)
    run.process(1, end=now)
    assert "read 50.0x" in fine(run, "D12", "not judged").says
    assert fine(files_of(5)(), "D12").says


# --- E1: empty reads at the end of files ---------------------------------------------------------


def test_a_file_that_is_followed_as_it_grows_is_not_asked_for_nothing() -> None:
    """As `tail -f` reads: one open, and reads that find nothing new until something is written."""

    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        path = a_file(run, "/data/stream.jsonl", 4_000_000)
        for _ in range(5):
            at = reads(run, at, process, path=path, ms=2, size=0)
        return reads(run, at, process, path=path, ms=0.1, size=60_000, offset=batch * 60_000)

    assert "wait for files to grow" in fine(job(read), "E1").says


@pytest.mark.parametrize(("empty", "is_found"), [(1, True), (2, True), (3, False)])
def test_one_or_two_empty_reads_a_file_are_asked_for_nothing(empty: int, is_found: bool) -> None:
    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin", 60_000)
        at = reads(run, at, process, op="open", path=path, ms=0.01)
        at = reads(run, at, process, path=path, ms=1)
        return reads(run, at, process, path=path, ms=3, size=0, n=empty)

    run = job(read)
    one = said(run)["E1"]
    assert isinstance(one, Finding) is is_found
    if isinstance(one, Finding):  # bounded by the time in the empty reads, the first batch's not
        assert one.gain.value == pytest.approx(59 * empty * 3e-3)


# --- W1, C1, X1: bounds and guards ---------------------------------------------------------------


def test_what_more_workers_bring_is_at_most_the_wait_less_what_they_still_need() -> None:
    known = example("W1")  # 60 fetches of 30 ms by two workers beside 60 steps of 5 ms
    wait_s = sum(known.wait_parts.values())
    assert found(known, "W1").gain.value == pytest.approx(wait_s, rel=0.01)
    short = replace(known, machine=replace(known.machine, cpus=1.3))  # room for a third one
    finding = found(short, "W1")
    assert "num_workers=3" in finding.remedies[0].says
    left_s = (known.training.wall_s or 0) - (known.training.data_wait_s or 0)
    fetch_s = sum(row.fetch_s for row in known.workers)
    assert finding.gain.value == pytest.approx(wait_s - (fetch_s / 3 - left_s), rel=1e-3)
    assert (finding.gain.value or 0) < 0.8 * wait_s


def test_workers_that_are_idle_for_half_of_the_wait_are_not_too_few() -> None:
    known = example("W1")
    workers = tuple(replace(row, busy_s=0.5 * row.waited_s) for row in known.workers)
    assert "2 workers, busy 50 %" in fine(replace(known, workers=workers), "W1").says


def test_saves_that_stop_no_step_or_failed_are_not_counted_among_those_that_block() -> None:
    known = example("C1")
    first, second, *others = known.checkpoints
    beside = replace(first, blocks=False)
    failed = replace(second, outcome="failed")
    finding = found(replace(known, checkpoints=(beside, failed, *others)), "C1")
    assert finding.evidence[0].startswith("3 saves of 200 ms")
    assert "the time of 1 failed save is in it" in finding.evidence
    assert (finding.gain.value or 0) <= (known.training.checkpoint_block_s or 0)
    idle = tuple(replace(one, blocks=False) for one in known.checkpoints)
    assert fine(replace(known, checkpoints=idle), "C1").says == "no checkpoint stops the steps"


def test_spans_without_a_name_leave_a_recording_incomplete() -> None:
    """Its calls are all there; which of its spans are data waits is not known."""
    known = measure(files_of(5)(batches=20))
    nameless = replace(known, recording=replace(known.recording, nameless_spans=3))
    assert nameless.events_state == known.events_state
    assert "3 spans have no name" in found(nameless, "X1").evidence[0]


# --- X2: what recording costs --------------------------------------------------------------------


def script(programs: int, *, start_ms: int = 5, life_ms: int = 2, cost_ns: int = 20) -> Synthetic:
    """A shell that starts one short program after the other; a recorder starts in each."""
    run, now = Synthetic(), 0
    for number in range(programs):
        at = now + start_ms * MS
        process = run.process(2 + number, start=at, end=at + life_ms * MS, parent=1,
                              command="gzip", attach_ns=start_ms * MS)  # fmt: skip
        run.call("read", at, at + MS, moved=100, process=process)
        now = at + life_ms * MS
    run.process(1, end=now + MS, command="sh pipeline.sh", attach_ns=start_ms * MS)
    run.note("event_cost_ns", str(cost_ns))
    return run


def test_a_script_of_short_programs_pays_for_the_recorders_start_in_each() -> None:
    finding = found(script(60), "X2")
    assert "305 ms for its start in 61 programs" in finding.evidence[0]
    # 60 x 2 ms of gzip and the shell's 421 ms live beside 305 ms of starts.
    assert "36 % of the processes' time" in finding.evidence[0]
    assert "not before the script" in finding.remedies[0].says
    assert finding.gain.value is None


@pytest.mark.parametrize("is_training", [True, False])
def test_a_training_that_starts_many_programs_is_not_sent_to_another_program(
    is_training: bool,
) -> None:
    """`penstock run` stands before the program that trains already."""
    run = script(60)
    now = 60 * 7 * MS
    for step in range(40):
        at = now * step // 40
        trainer = 1 if is_training else 99
        run.span("step", at, at + MS, index=step, kind="step", b=1, process=trainer)
    run.process(1, end=now + MS, command="python train.py", attach_ns=5 * MS)
    if not is_training:
        run.process(99, end=now + MS, command="python train.py", parent=1, attach_ns=5 * MS)
    [remedy] = found(run, "X2").remedies
    assert ("not before the script" in remedy.says) != is_training
    assert ("start one that takes many tasks" in remedy.says) == is_training
    assert not remedy.says.startswith("if")  # as in a script in which nobody trains
    assert found(script(60), "X2").remedies[0].says.startswith("if a program of this script trains")


def test_the_recorders_own_system_calls_are_part_of_what_recording_costs() -> None:
    def job(own_ms: int) -> Synthetic:
        run = Synthetic()
        run.process(1, end=10_000 * MS, own_calls=40_000, own_ns=own_ms * MS)
        run.call("read", 0, MS)
        run.note("event_cost_ns", "20")
        return run

    assert "300 ms for 1 call, 40,000 system calls" in found(job(300), "X2").evidence[0]
    assert "3.0 % of the processes' time" in found(job(300), "X2").evidence[0]
    assert "40,000 system calls" in fine(job(1), "X2").says
    facts = {fact.key: fact for fact in report_of(measure(job(300))).cost}
    assert facts["own_s"].number.value == pytest.approx(0.3)
    assert facts["own_s"].remark == "40,000 calls, with time without a CPU in them"


@pytest.mark.parametrize(("queued_s", "is_judged"), [(0.0, True), (0.8, False), (None, False)])
def test_slow_own_system_calls_of_a_program_without_steps_may_have_lost_their_cpu(
    queued_s: float | None, is_judged: bool
) -> None:
    run = Synthetic()
    run.process(1, end=10_000 * MS, own_calls=1000, own_ns=300 * MS)
    run.call("read", 0, MS)
    run.note("event_cost_ns", "20")
    known = replace(measure(run), startup_parts={"not scheduled": queued_s})
    if is_judged:
        assert "1,000 system calls" in found(known, "X2").evidence[0]
    else:
        assert "time without a CPU" in fine(known, "X2", "not judged").says


def test_own_system_calls_that_lost_their_cpu_are_no_cost_of_recording() -> None:
    def job(delay: float, own_ms: int) -> Measures:
        run = Synthetic()
        loop(run, lambda at, batch, process: reads(run, at, process, ms=10), batches=100,
             workers=1, compute_ms=5, busy=0.1, delay=delay)  # fmt: skip
        run.note("event_cost_ns", "20")
        known = measure(run)
        own = replace(known.recording, own_calls=1000, own_s=own_ms / 1e3)
        return replace(known, recording=own)

    assert "time without a CPU" in fine(job(0.6, 300), "X2", "not judged").says
    assert "1,000 system calls" in found(job(0.0, 300), "X2").evidence[0]


def test_few_programs_or_long_ones_do_not_pay_for_starts() -> None:
    assert "for 14 calls, <0.1 %" in fine(script(14), "X2").says
    assert "61 programs" in fine(script(60, life_ms=400), "X2").says


def test_recorded_calls_are_held_against_the_lives_of_all_processes() -> None:
    """Of processes that live one after the other the run's life says nothing."""
    assert (
        "4.00 ms for 10 calls, 5.6 %"
        in fine(measure(script(10, cost_ns=400_000, life_ms=1)), "X2").says
    )  # little in all
    known = measure(script(10, cost_ns=4_000_000, life_ms=1))
    assert known.recording.lives_s == pytest.approx(10 * 1e-3 + 61e-3)
    assert "40.0 ms for 10 calls, 56 %" in found(known, "X2").evidence[0]


# --- D1, D3, D6, C2, C3: of other programs -------------------------------------------------------


def test_a_storm_of_the_training_thread_itself_is_one() -> None:
    """A plain loop that looks at each file before it reads it: no loader, no data wait."""
    run, now = Synthetic(), 1000 * MS
    for step in range(60):
        begun = now
        now = reads(run, now, 1, op="stat", path=a_file(run, f"/data/{step}"), ms=1, n=12)
        now = reads(run, now, 1, op="open", path=f"/data/{step}", ms=1)
        now = reads(run, now, 1, path=f"/data/{step}", ms=0.1)
        now += 5 * MS
        run.span("step", begun, now, index=step, kind="step", b=1)
    run.process(1, end=now)
    finding = found(run, "D1")
    assert finding.gain.value == pytest.approx(60 * 13e-3, rel=0.03)


def test_seeks_in_a_container_are_no_storm() -> None:
    def read(run: Synthetic, at: int, batch: int, process: int) -> int:
        path = a_file(run, "/data/a.tar", 1 << 30)
        at = reads(run, at, process, op="open", path=path, ms=0.01)
        at = reads(run, at, process, op="lseek", path=path, ms=0.001, n=600)
        return reads(run, at, process, path=path, ms=4, offset=batch << 20)

    assert "1 calls per open" in fine(job(read), "D1").says


def test_bytes_faster_than_the_device_come_from_memory_and_not_from_its_ceiling() -> None:
    for ceiling, is_found in ((105e6, True), (60e6, False)):
        run = big_reads(ceiling=ceiling)
        assert isinstance(said(run)["D3"], Finding) is is_found
    assert "came from memory" in fine(big_reads(ceiling=60e6), "D3").says


def test_each_host_reading_all_of_it_once_reads_nothing_again() -> None:
    known = measure(twice_over("nfs4"))
    assert isinstance(said(known)["D6"], Finding)
    on_two = replace(known, recording=replace(known.recording, hosts=2))
    assert "by each of 2 hosts" in fine(on_two, "D6").says


def test_shards_of_equal_size_are_not_said_to_be_the_same() -> None:
    assert "shards, or the same bytes" in fine(saving(ranks=4), "C3", "not judged").says
    assert isinstance(said(saving(ranks=4, shared=True))["C3"], Finding)


def test_a_checkpoint_that_no_call_writes_is_not_slow() -> None:
    assert "mapped files" in fine(saving(size=0, other_bps=2e9), "C2", "not judged").says


def test_a_page_fault_that_nobody_timed_bounds_its_gain() -> None:
    """One fault in a fetch that sleeps for a second on something else."""
    run = mapped(1)
    known = measure(run)
    pages = replace(known.page_faults, faults=3, blocked_s=1.0)
    finding = said(replace(known, page_faults=pages))["D7"]
    assert isinstance(finding, Finding)
    assert finding.gain.value == pytest.approx(0.3)


def test_reads_that_the_kernel_served_from_memory_are_bound_by_no_device() -> None:
    """Its account of a local file system says so, whatever single calls took."""
    for rule in ("D2", "D9"):
        known = example(rule)
        untold = replace(known.recording, fetches_without_delay=1)
        ext4 = (Storage("/", "ext4", "data", 1, 1, known.devices.asked_bytes, 0, None, None),)
        devices = replace(known.devices, job_read_bytes=known.devices.asked_bytes // 10)
        held = replace(known, storage=ext4, devices=devices, recording=untold)
        assert "came from memory" in fine(held, rule).says
        cold = replace(held, devices=replace(devices, job_read_bytes=known.devices.asked_bytes))
        assert found(cold, rule)
        fuse = replace(held, storage=(replace(ext4[0], kind="fuse"),))  # which nobody counts
        assert found(fuse, rule)


def test_small_reads_that_waited_while_their_thread_had_a_cpu_are_no_copies_from_memory() -> None:
    known = example("D2")
    ext4 = (Storage("/", "ext4", "data", 1, 1, known.devices.asked_bytes, 0, None, None),)
    assert known.page_faults.fetches
    assert not known.recording.fetches_without_delay
    assert found(
        replace(known, storage=ext4, devices=replace(known.devices, job_read_bytes=0)), "D2"
    )


def test_a_tail_is_not_judged_where_threads_have_no_cpu() -> None:
    known = example("D9")
    waits = known.wait_parts | {"not scheduled": 0.3 * (known.training.data_wait_s or 0)}
    assert "wait for a processor" in fine(replace(known, wait_parts=waits), "D9", "not judged").says


def test_a_file_that_the_job_made_is_read_again_too() -> None:
    """A cache that the program wrote before it trains is of class output."""
    run = scanning("a.h5", 20)
    run.rows["files"] = [
        tuple("output" if cell == "data" else cell for cell in row) for row in run.rows["files"]
    ]
    assert any("rdcc_nbytes" in one.says for one in found(run, "D12").remedies)
