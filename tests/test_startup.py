"""Start-ups whose parts are known: by hand, and of real programs that tell their own clocks."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from findings_examples import a_file, starting_slowly
from fixtures import UNCOMPILED
from penstock.explain import startup
from penstock.explain.findings import Check, Finding, judge
from penstock.explain.measures import Measures, measure
from penstock.explain.report import from_json, report_of, to_json
from synthetic import MS, Synthetic, loop, reads

S = 1000 * MS


def job(start: int = 10 * S, batches: int = 100) -> Synthetic:
    """A loop of 2 s after `start`, in which nothing is done before it but what a test adds."""
    run = Synthetic()
    loop(run, lambda at, batch, process: at + MS, batches=batches, workers=0, compute_ms=20,
         start=start)  # fmt: skip
    return run


def parts(run: Synthetic) -> dict[str, float | None]:
    """Milliseconds by part, without what the loop itself adds."""
    known = measure(run)
    whole = sum(s or 0.0 for s in known.startup_parts.values())
    assert whole == pytest.approx(known.training.startup_s)
    return {
        part: None if s is None else round(s * 1000, 3)
        for part, s in known.startup_parts.items()
        if part != "first batch"
    }


def said(run: Synthetic | Measures, rule: str = "W4") -> Finding | Check:
    known = run if isinstance(run, Measures) else measure(run)
    judged = judge(known)
    return {one.rule: one for one in (*judged.findings, *judged.checks)}[rule]


def found(run: Synthetic | Measures, rule: str = "W4") -> Finding:
    one = said(run, rule)
    assert isinstance(one, Finding), one
    return one


def is_fine(run: Synthetic | Measures, rule: str = "W4") -> str:
    one = said(run, rule)
    assert isinstance(one, Check), one
    assert one.state == "fine", one
    return one.says


def imported(run: Synthetic, name: str, start: int, end: int, depth: int = 1, cpu: int = 0) -> None:
    run.span(f"import {name}", start, end, a=depth, b=cpu)


def listing(run: Synthetic, at: int, n: int = 1000, ms: float = 4, process: int = 1) -> int:
    for number in range(n):
        path = a_file(run, f"/data/set/{number % 3}/{number}.bin")
        at = reads(run, at, process, op="stat", ms=ms, path=path)
    return at


def writing(run: Synthetic, path: str, start: int, end: int, n: int = 4, size: int = MS) -> None:
    """A file that is opened, and written to n times until `end`."""
    run.file(path, path_class="output")
    run.call("open", start, start + MS, path=path)
    for number in range(1, n + 1):
        at = start + (end - start) * number // n - MS
        run.call("write", at, at + MS, path=path, moved=size)


# --- parts ---------------------------------------------------------------------------------------


def test_the_parts_of_a_start_up_are_exclusive_and_sum_to_it() -> None:
    run = job()
    imported(run, "torch", S, 3 * S, cpu=S)
    imported(run, "numpy", 2 * S, 2 * S + 500 * MS, depth=2)  # inside, counted once
    run.file("/env/torch.py", path_class="library")
    run.call("read", S, S + 200 * MS, path="/env/torch.py")  # inside the import
    run.call("open", 3 * S, 3 * S + 100 * MS, path="/env/torch.py")  # outside, and one all the same
    listing(run, 4 * S, n=100, ms=4)
    reads(run, 5 * S, 1, path=a_file(run, "/data/all.npy", 1 << 30), ms=300, size=1 << 30)
    writing(run, "/cache/a.arrow", 6 * S, 7 * S)
    run.span("restore", 8 * S, 8 * S + 700 * MS)
    run.span("checkpoint", 9 * S, 9 * S + 50 * MS)
    run.span("thread cpu", 10 * S - 1, 10 * S, a=4750 * MS, b=1)
    known = parts(run)
    assert known["import"] == 2100
    assert known["listing"] == 400
    assert known["reading"] == 300
    assert known["cache"] == 1000
    assert known["restore"] == 700
    assert known["checkpoint"] == 50
    # 4,750 ms in all, less imports 1,000, at most all of loading 700, saving 50, the cache 1,000,
    # and at most 20 µs and a nanosecond a byte of each call, so all of the large read.
    assert known["cpu"] == pytest.approx(3000 - 1000 - 300 - 100 * 0.02 - 0.02, abs=0.1)
    assert known["not observed"] == pytest.approx(10_000 - 4550 - 1698, abs=1)


def test_the_cpu_time_of_a_start_up_is_what_its_imports_did_not_use() -> None:
    run = job()
    imported(run, "torch", S, 3 * S, cpu=1500 * MS)
    run.span("thread cpu", 10 * S - 1, 10 * S, a=7500 * MS, b=1 + 1500 * MS)
    known = parts(run)
    assert known["cpu"] == 6000
    # 500 ms of the delay may have been in the import.
    assert known["not scheduled"] == pytest.approx(1000, abs=1)
    assert known["not observed"] == pytest.approx(1000, abs=1)


def test_cpu_time_that_was_not_recorded_is_no_zero() -> None:
    run = job()
    known = measure(run)
    assert known.startup_parts["cpu"] is None
    report = report_of(known)
    (part,) = [part for part in report.startup if part.key == "cpu"]
    assert (part.s, part.share, part.state) == (None, None, "not measured")
    assert from_json(to_json(report)) == report


def test_an_import_in_which_the_training_runs_is_none_and_a_span_of_that_name_is_none() -> None:
    run = job()
    imported(run, "train", S, 13 * S)
    imported(run, "torch", 2 * S, 3 * S, depth=2)
    run.span("import images", 4 * S, 6 * S)  # the program's own: a is 0
    assert parts(run)["import"] == 1000


def test_a_listing_in_another_thread_is_no_part_and_no_finding() -> None:
    run = job()
    at = S
    for number in range(1000):
        path = a_file(run, f"/data/{number}")
        run.call("stat", at, at + 4 * MS, path=path, thread=7)
        at += 4 * MS
    assert "listing" not in parts(run)
    is_fine(run)


def test_files_that_are_made_before_the_training_are_a_cache() -> None:
    run = job()
    writing(run, "/cache/a.arrow", S, 3 * S)
    writing(run, "/cache/small.json", 3 * S, 4 * S, size=100)  # of 400 bytes
    writing(run, "/runs/train.log", 4 * S, 5 * S)
    run.call("write", 11 * S, 11 * S + MS, path="/runs/train.log", moved=100)  # and later, too
    run.span("checkpoint", 6 * S, 7 * S)
    writing(run, "/runs/first.pt", 6 * S + MS, 7 * S - MS)
    known = parts(run)
    assert (known["cache"], known["checkpoint"]) == (2000, 1000)


def test_nobody_trains_and_the_program_mostly_lists_or_imports() -> None:
    run = Synthetic()
    end = listing(run, 0)
    run.span("window", 0, end + S, kind="window")
    run.process(1, end=end + S)
    known = measure(run)
    assert startup.mostly(known) == "80 % of its life is opening or listing data files in /data/set"
    assert startup.mostly(known) in report_of(known).verdict.sentence
    run = Synthetic()
    imported(run, "torch", 0, 3 * S)
    run.span("window", 0, 4 * S, kind="window")
    run.process(1, end=4 * S)
    assert startup.mostly(measure(run)) == "75 % of its life are imports (torch 3.00 s)"
    run = Synthetic()
    listing(run, 0)
    run.span("window", 0, 20 * S, kind="window")
    run.process(1, end=20 * S)
    assert startup.mostly(measure(run)) == ""


def test_waits_of_a_program_without_training_are_told() -> None:
    """Such waits were not observed; a wait inside a computing library still is no wait."""
    run = Synthetic()
    run.blocked("receive", S, 4 * S, descriptor="socket:10.0.0.1:80", phase="first byte")
    run.blocked("sem_wait", 4 * S, 5 * S)
    run.blocked("futex", 5 * S, 5 * S + 500 * MS, by="/usr/lib/libgomp.so.1")
    run.span("window", 0, 6 * S, kind="window")
    run.process(1, end=6 * S)
    known = measure(run)
    assert known.startup_parts["network"] == pytest.approx(3.0)
    assert known.startup_parts["waiting"] == pytest.approx(1.0)
    assert sum(s or 0.0 for s in known.startup_parts.values()) == pytest.approx(6.0)
    assert startup.mostly(known) == "50 % of its life is waiting for the network"


# --- W4 ------------------------------------------------------------------------------------------


def test_a_listing_is_told_with_its_folder() -> None:
    run = job()
    listing(run, 2 * S)
    finding = found(run)
    assert finding.gain.value == pytest.approx(4.0)
    assert "listing data takes 4.00 s of 10.0 s of start-up" in finding.evidence[0]
    assert finding.evidence[1] == (
        "1,000 calls (open, stat, list) on 1,000 files in /data/set, 4.00 ms each"
    )
    assert "keep the list of files" in finding.remedies[0].says


def test_a_list_of_files_does_not_help_where_the_files_are_read() -> None:
    run = job()
    at = 2 * S
    for number in range(1000):
        path = a_file(run, f"/data/set/{number}.bin")
        at = reads(run, at, 1, op="open", ms=4, path=path)
        at = reads(run, at, 1, ms=0.01, path=path)
    finding = found(run)
    assert "opening data files takes 4.00 s of 10.0 s of start-up" in finding.evidence[0]
    assert [remedy.says for remedy in finding.remedies] == [
        "pack the files into few large ones (LMDB, tar, TFRecord): one open for all of them"
    ]


def test_a_cache_is_told_with_its_folder_and_its_size() -> None:
    run = job()
    writing(run, "/home/u/.cache/huggingface/datasets/a/cache-1.arrow", S, 4 * S)
    finding = found(run)
    assert finding.gain.value == pytest.approx(3.0)
    assert "4.00 MB, 1 file in /home/u/.cache/huggingface/datasets/a" in finding.evidence[1]
    assert "HF_DATASETS_CACHE" in finding.remedies[0].says


def test_data_that_is_read_before_the_training_is_told() -> None:
    run = job()
    reads(run, S, 1, path=a_file(run, "/data/all.npy", 1 << 30), ms=3000, size=1 << 30)
    finding = found(run)
    assert finding.gain.value == pytest.approx(3.0)
    assert "1.07 GB in /data" in finding.evidence[1]


def test_imports_are_told_as_far_as_they_waited_for_files() -> None:
    def importing(ms: int, cpu: int) -> Synthetic:
        run = job()
        imported(run, "torch", S, 6 * S, cpu=cpu * MS)
        run.file("/env/torch.py", path_class="library")
        reads(run, S, 1, path="/env/torch.py", ms=ms, n=1)
        return run

    finding = found(importing(4000, 900))
    assert finding.gain.value == pytest.approx(4.0)
    assert "imports take 5.00 s" in finding.evidence[0]
    assert "torch 5.00 s" in finding.evidence[1]
    assert "imports 5.00 s" in is_fine(importing(200, 900))
    # In calls all the time, and on a CPU all the time: from memory.
    is_fine(importing(4900, 4900))


def test_compiling_and_a_short_start_up_are_no_findings() -> None:
    run = job()
    run.span("thread cpu", 10 * S - 1, 10 * S, a=9 * S, b=1)
    assert "CPU (model, compiling) 9.00 s" in is_fine(run)
    assert parts(run)["cpu"] == 9000
    is_fine(job(start=100 * MS))


def test_the_largest_part_is_told_with_its_own_gain() -> None:
    run = job()
    end = listing(run, S, n=500)
    reads(run, end, 1, path=a_file(run, "/data/all.npy"), ms=1000)
    finding = found(run)
    assert finding.gain.value == pytest.approx(2.0)
    assert "the rest of the start-up" in finding.evidence[-1]
    assert "reading data 1.00 s" in finding.evidence[-1]


def with_workers(
    setup: int = 0, importing: int = 0, passes: int = 2, command: str = "python train.py"
) -> Synthetic:
    """Passes of one worker each, started anew: after `importing` its loop, then its set-up."""
    run = Synthetic()
    now = S
    for number in range(passes):
        worker, begun = 2 + number, now
        run.span("loader", now, now + 4 * S, index=number + 1, a=1, b=4)
        loop_ns = now + importing
        run.process(worker, start=begun, end=now + 4 * S, parent=1, command=command)
        run.rows["threads"][-1] = (worker, worker, 1000 + worker, "python", True)
        if importing:
            run.span("import torch", begun, loop_ns, process=worker, thread=worker, a=1)
        run.span("worker", loop_ns, now + 4 * S, process=worker, index=0, a=1, b=1001)
        run.span("worker setup", loop_ns, loop_ns + setup, process=worker, index=0)
        at = loop_ns + setup
        for batch in range(20):
            run.fetch(at, at + MS, batch, process=worker, a=number + 1, cpu=0, delay=0)
            run.wait(now, at + MS, batch, a=number + 1)
            now = at = at + 11 * MS
            run.step(now - 10 * MS, now, number * 20 + batch)
    run.process(1, end=now + S)
    return run


def test_what_a_worker_sets_up_is_its_start_also_in_a_later_pass() -> None:
    run = with_workers(setup=2 * S)
    known = measure(run)
    assert known.wait_s("worker start") == pytest.approx(2.0, abs=0.01)  # of the second pass
    assert known.wait_s("idle") == pytest.approx(0.0, abs=0.01)
    assert known.startup_parts["worker start"] == pytest.approx(2.0, abs=0.01)
    finding = found(run)
    assert finding.gain.value == pytest.approx(4.0, abs=0.02)
    assert any("each sets itself up for 2.00 s" in line for line in finding.evidence)
    words = [remedy.says for remedy in finding.remedies]
    assert "persistent_workers" in words[0]
    assert "worker_init_fn" in words[1]


def test_a_recording_without_set_ups_knows_when_a_workers_loop_began() -> None:
    run = with_workers(setup=2 * S)
    rows = run.rows["spans/00000"]
    rows[:] = [row for row in rows if row[3] != "worker setup"]
    known = measure(run)
    assert known.wait_s("worker start") == 0.0
    assert known.wait_s("idle") == pytest.approx(2.0, abs=0.01)


def test_workers_that_import_anew_are_told_with_what_they_import() -> None:
    run = with_workers(importing=3 * S, command="python -c spawn_main", passes=1)
    finding = found(run)
    assert any("each imports anew for 3.00 s: torch 3.00 s" in line for line in finding.evidence)
    words = [remedy.says for remedy in finding.remedies]
    assert "forkserver" in words[0]
    assert not any("persistent_workers" in says for says in words)  # of one pass


def test_the_first_batch_is_told_as_it_was() -> None:
    finding = found(starting_slowly())
    assert finding.gain.value == pytest.approx(3.0, abs=0.01)


# --- C4 ------------------------------------------------------------------------------------------


def restoring(fault_from: int, load_ms: int = 100) -> Synthetic:
    """A file that is mapped by a load of 100 ms; its 300 pages take 10 ms each, from then on."""
    run = job()
    path = a_file(run, "/ckpt/big.pt", 1 << 30)
    run.note("page faults", "measured")
    run.span("restore", S, S + load_ms * MS)
    run.call("mmap", S + MS, S + 2 * MS, path=path, asked=1 << 30)
    for number in range(300):
        run.fault(path, fault_from + number * 11 * MS, 10 * MS, offset=4096 * number)
    return run


def test_a_restore_lasts_until_the_weights_were_read() -> None:
    run = restoring(2 * S)
    run.span("load state", 2 * S - MS, 6 * S)
    (load,) = measure(run).restores
    assert (load.loads, load.duration_s) == (1, pytest.approx(4.101))
    assert (load.faulted_s, load.path, load.size_bytes) == (0.0, "/ckpt/big.pt", 1 << 30)
    finding = found(run, "C4")
    assert finding.gain.value == pytest.approx(4.101)
    assert "1 load, 4.10 s, 1.07 GB at 262 MB/s" in finding.evidence[0]
    assert "/ckpt/big.pt" in finding.evidence[1]
    is_fine(run, "W4")


def test_page_faults_of_the_restored_file_count_wherever_they_happen() -> None:
    run = restoring(3 * S)
    (load,) = measure(run).restores
    assert (load.duration_s, load.faulted_s) == (pytest.approx(3.1), pytest.approx(3.0))
    assert parts(run)["restore"] == 3100
    finding = found(run, "C4")
    assert any("page faults after the load" in line for line in finding.evidence)


def test_page_faults_after_the_first_step_and_of_other_files_are_no_restore() -> None:
    run = restoring(10 * S + 100 * MS)
    other = a_file(run, "/data/other.mdb")
    run.fault(other, 2 * S, S)
    (load,) = measure(run).restores
    assert load.duration_s == pytest.approx(0.1)
    is_fine(run, "C4")


def test_a_load_that_failed_is_time_of_the_start_up_and_no_restore() -> None:
    run = restoring(4 * S)  # page faults of a file that a good load had mapped
    run.call("pread", 1500 * MS, 1600 * MS, path=a_file(run, "/ckpt/bad.pt", 1 << 40), moved=10)
    run.span("restore", 1400 * MS, 1900 * MS, a=5, b=1)
    run.span("load state", 2 * S, 2300 * MS, b=1)  # it has other layers
    run.span("load state", 2500 * MS, 2700 * MS)
    good, bad = measure(run).restores
    assert (good.is_failed, good.loads, good.path) == (False, 1, "/ckpt/big.pt")
    assert good.duration_s == pytest.approx(3.3)
    assert (bad.is_failed, bad.loads, bad.path) == (True, 1, "/ckpt/bad.pt")
    assert bad.duration_s == pytest.approx(0.8)
    assert parts(run)["restore"] == 4100
    finding = found(run, "C4")
    assert finding.gain.value == pytest.approx(3.3)
    run = job()
    run.span("restore", S, 5 * S, a=5, b=1)
    run.span("load state", 6 * S, 9 * S)  # a copy of another model
    assert [(load.is_failed, load.duration_s) for load in measure(run).restores] == [(True, 4.0)]
    assert is_fine(run, "C4") == "no checkpoint was loaded"


def test_loading_samples_is_no_restore_nor_is_a_state_that_no_file_gave() -> None:
    run = job()
    run.span("load state", 2 * S, 8 * S)  # a copy of another model
    for batch in range(3):  # torch.load of a sample, in the wait for its batch
        start = 10 * S + batch * (21 * MS + 1000)
        run.span("restore", start + 100, start + 200, index=batch)
    assert measure(run).restores == ()


# --- real programs -------------------------------------------------------------------------------


def test_a_program_that_makes_files_and_lists_before_it_trains(
    recorded: Callable[..., Any], work: Path
) -> None:
    for folder in range(3):
        (work / "set" / str(folder)).mkdir(parents=True)
        for number in range(100):
            (work / "set" / str(folder) / str(number)).touch()
    run = recorded("""
        import os, time, penstock
        files = [os.path.join(at, name) for at, _, names in os.walk("set") for name in names]
        assert all(os.path.isfile(path) for path in files) and len(files) == 300
        begun = time.perf_counter()
        with open("cache.arrow", "wb", buffering=0) as cache:
            for _ in range(4):
                cache.write(bytes(1 << 20))
                time.sleep(0.1)
            cache.write(b"end")
        took_s = time.perf_counter() - begun
        for _ in range(3):
            with penstock.step():
                pass
        open("took", "w").write(repr(took_s))
    """)
    known = measure(run)
    took_s = float((work / "took").read_text())
    assert 0.4 <= known.startup_parts["cache"] <= took_s
    places = {place.part: place for place in known.startup_places}
    assert places["cache"].path == str(work)
    assert places["cache"].written_bytes == (4 << 20) + 3
    (listed_s,) = run.sql(
        "select sum(duration_ns) / 1e9 from events where op_group = 'metadata' and layer = 'posix'"
        f" and path_class = 'data' and path like '{work}/set%'"
    )[0]
    assert known.startup_parts["listing"] >= listed_s * 0.99
    assert sum(s or 0.0 for s in known.startup_parts.values()) == pytest.approx(
        known.training.startup_s
    )


TORCH = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return torch.tensor([float(number)])

def train(loader):
    for batch in loader:
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()

net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
"""


def program(body: str) -> str:
    return UNCOMPILED + TORCH + textwrap.dedent(body)


def test_workers_of_a_later_loader_and_their_set_up(recorded: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    run = recorded(
        program("""
        def init(number):
            time.sleep(0.7)
        train(DataLoader([torch.tensor([1.0])] * 2, 1))
        train(DataLoader(Numbers(), 2, num_workers=2, worker_init_fn=init))
        """)
    )
    known = measure(run)
    assert (known.worker_starts.workers, known.worker_starts.again) == (2, 2)
    assert known.worker_starts.fresh == 0
    assert known.worker_starts.setup_s >= 0.7
    assert known.wait_s("worker start") >= 0.6
    assert known.wait_s("idle") <= 0.5 * known.wait_s("worker start")


def test_spawned_workers_tell_what_they_import(recorded: Callable[..., Any], work: Path) -> None:
    pytest.importorskip("torch")
    slow = work / "known_slow"
    slow.mkdir()
    (slow / "__init__.py").write_text("import time\ntime.sleep(0.7)\n")
    run = recorded(
        "import known_slow\n"
        + program("""
        if __name__ == "__main__":
            loader = DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context="spawn")
            train(loader)
        """),
        environment={"PYTHONPATH": os.fspath(work)},
    )
    known = measure(run)
    assert (known.worker_starts.workers, known.worker_starts.fresh) == (1, 1)
    assert known.worker_starts.import_s >= 0.7
    told = {(row.importer, row.package): row.import_s for row in known.startup_imports}
    assert told["worker", "known_slow"] >= 0.7
    assert told["worker", "torch"] > 0
    assert known.startup_parts["worker start"] >= 0.6
    finding = found(known)
    assert any("each imports anew" in line for line in finding.evidence)


@pytest.mark.parametrize("how", ["plain", "mapped", "safetensors"])
def test_a_restore_is_measured_where_the_weights_are_read(
    recorded: Callable[..., Any], work: Path, how: str
) -> None:
    pytest.importorskip("torch")
    if how == "safetensors":
        pytest.importorskip("safetensors")
    run = recorded(
        program("""
        big = torch.nn.Linear(2000, 2000, bias=False)
        how = sys.argv[1]
        if how == "safetensors":
            from safetensors.torch import load_file, save_file
            save_file(big.state_dict(), "big.safetensors")
        else:
            torch.save(big.state_dict(), "big.pt")
        begun = time.perf_counter()
        if how == "plain":
            state = torch.load("big.pt")
        elif how == "mapped":
            state = torch.load("big.pt", mmap=True)
        else:
            state = load_file("big.safetensors")
        loaded = time.perf_counter()
        big.load_state_dict(state)
        ended = time.perf_counter()
        train(DataLoader(Numbers(), 2))
        open("took", "w").write(f"{loaded - begun} {ended - loaded}")
        """),
        args=[how],
    )
    load_s, state_s = map(float, (work / "took").read_text().split())
    (load,) = measure(run).restores
    assert load.loads == 1
    assert load.duration_s - load.faulted_s <= load_s + state_s
    assert Path(load.path or "").name == ("big.safetensors" if how == "safetensors" else "big.pt")
    names = run.sql(
        "select name, count(*) from spans where name in ('restore', 'load state') group by 1"
    )
    assert dict(names) == {"restore": 1, "load state": 1}
