"""Ranks reduced one by one and merged in any order tell what the whole run tells, exactly."""

import itertools
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import logwriter
from fixtures import PENSTOCK
from penstock.errors import RunError
from penstock.explain.findings import RULES
from penstock.explain.measures import Measures, measure
from penstock.explain.reduce import COLUMNS, families, measures_of, merge, reduce_logs
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from stepping import Ranks, even, now_and_then, one_slow, together

MS = 1_000_000
RANKS = 7


def job(folder: Path, ranks: int = RANKS, *, steps: int = 6, step_ns: int = 20 * MS) -> Path:
    """Ranks that wait for data, save, meet at barriers, each a little otherwise; rank 0 writes."""
    folder.mkdir()
    for rank in range(ranks):
        process = logwriter.Process(
            pid=100 + rank,
            unix_s=0.001 * rank,
            header={"rank": rank, "local_rank": rank % 2, "world_size": ranks,
                    "host": f"node{rank // 2}".encode(), "folder": b"/work",
                    "boot_id": bytes([1 + rank // 2] * 16)},
        )  # fmt: skip
        process.span("loader", 0, 900 * MS, 1, 0, 8)
        at = 10 * MS
        for step in range(steps):
            read_ns = (3 + rank) * MS + 1000 * step + 7 * rank
            process.span("data wait", at, read_ns + 500, step, 1, 1000)
            process.span("fetch", at + 100, read_ns, step, 1, read_ns // 10)
            for path, n in ((f"/data/own-{rank}", 3), ("/data/common", 1)):
                process.file(path, mode=0o100644, inode=1, size=50_000)
                process.call("read", at + 200, read_ns // 5 + n, path, asked=1 << 12,
                             moved=4000 + rank)  # fmt: skip
                at += read_ns // 4
            at += read_ns
            process.step(step, at, step_ns, b=1)
            process.span("barrier", at + MS, (ranks - rank) * MS)
            at += step_ns
        process.span("checkpoint", at, 30 * MS, 0)
        name = "/out/model" if rank == 0 else f"/out/part-{rank}"
        file = process.file(name, mode=0o100644, inode=2, size=0)
        process.call("write", at + MS, 7 * MS, name, asked=9000, moved=9000)
        process.call("open", at, 5000, name)
        process.fold({"file": file, "op": "fsync", "calls": 2, "errors": 0, "ticks": 3000 + rank,
                      "max_ticks": 2000})  # fmt: skip
        process.header["folded"] = 2
        path = process.write(folder)
        path.rename(folder / f"node{rank // 2}.{100 + rank}.1.events")
    return folder


def reduced(folder: Path, place: Path) -> list[Path]:
    """A file for each rank, each made of its own log alone."""
    place.mkdir()
    files = []
    for number, logs in enumerate(families(folder, most_logs=1)):
        files.append(place / f"{number}.reduced")
        reduce_logs(folder, logs, files[-1])
    return files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Measures:
    with open_run(job(tmp_path_factory.mktemp("whole") / "run")) as run:
        return measure(run)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("files")
    return reduced(job(place / "run"), place / "reduced")


def same(merged: Measures, whole: Measures) -> None:
    """Every number that a reduced file gives, against the run's own."""
    assert [(r.rank, r.host, r.steps, r.wall_s, r.data_wait_s, r.checkpoint_block_s, r.barrier_s,
             r.own_s) for r in merged.ranks] == [
        (r.rank, r.host, r.steps, r.wall_s, r.data_wait_s, r.checkpoint_block_s, r.barrier_s,
         r.own_s) for r in whole.ranks]  # fmt: skip
    assert merged.operations == whole.operations
    ours, theirs = merged.training, whole.training
    for name in ("mains", "steps", "wall_s", "data_wait_s", "waits", "checkpoint_block_s"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert merged.job == whole.job
    for name in ("processes", "hosts", "workers", "calls", "folded", "lost", "torn", "killed"):
        assert getattr(merged.recording, name) == getattr(whole.recording, name), name
    assert [(s.readers, s.files, s.size_bytes, s.read_bytes) for s in merged.sharing] == [
        (s.readers, s.files, s.size_bytes, s.read_bytes) for s in whole.sharing
    ]
    # Parts are rounded to whole ns once a rank.
    for name in ("wait_parts", "first_batch_parts", "checkpoint_parts"):
        assert getattr(merged, name) == pytest.approx(getattr(whole, name), abs=1e-9 * RANKS)
    assert ours.training_calls_s == pytest.approx(theirs.training_calls_s, abs=1e-9 * RANKS)


@pytest.mark.parametrize("order", ["all at once", "one by one", "as a tree", "backwards"])
def test_merged_ranks_are_the_run(
    files: list[Path], whole: Measures, tmp_path: Path, order: str
) -> None:
    target = tmp_path / "all.reduced"
    if order == "all at once":
        merge(files, target)
    elif order == "backwards":
        merge(files[::-1], target)
    elif order == "one by one":
        shutil.copy(files[0], target)
        for file in files[1:]:
            merge([target, file], tmp_path / "next.reduced")
            (tmp_path / "next.reduced").replace(target)
    else:
        level, number = list(files), itertools.count()
        while len(level) > 1:
            pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
            level = []
            for pair in pairs:
                level.append(tmp_path / f"{next(number)}.reduced")
                merge(pair, level[-1])
        level[0].rename(target)
    same(measures_of(target), whole)


def test_ranks_of_hours_are_merged(tmp_path: Path) -> None:
    folder = job(tmp_path / "run", ranks=2, steps=4, step_ns=3 * 3600 * 1000 * MS)
    merge(reduced(folder, tmp_path / "reduced"), tmp_path / "all.reduced")
    with open_run(folder) as run:
        whole = measure(run)
    merged = measures_of(tmp_path / "all.reduced")
    assert [rank.wall_s for rank in merged.ranks] == [rank.wall_s for rank in whole.ranks]
    assert merged.ranks[0].wall_s > 9 * 3600


def test_what_the_merge_gives_is_what_was_written(files: list[Path], tmp_path: Path) -> None:
    """By arithmetic from the job above, not by another of our sums."""
    merge(files, tmp_path / "all.reduced")
    merged = measures_of(tmp_path / "all.reduced")
    ops = {row.op: row for row in merged.operations}
    assert ops["read"].calls == RANKS * 6 * 2
    assert ops["read"].moved_bytes == sum(6 * 2 * (4000 + rank) for rank in range(RANKS))
    assert ops["write"].moved_bytes == RANKS * 9000
    assert ops["fsync"].calls == 2 * RANKS
    assert [row.steps for row in merged.ranks] == [6] * RANKS
    assert [row.read_bytes for row in merged.ranks] == [12 * (4000 + n) for n in range(RANKS)]
    common, own = merged.sharing
    assert (common.readers, common.files, own.readers, own.files) == (RANKS, 1, 1, RANKS)
    assert (common.size_bytes, own.size_bytes) == (50_000, RANKS * 50_000)
    # The heat holds all waits, the first batch's too, at whatever width.
    heat_s = sum(cell.wait_s for cell in merged.rank_cells)
    waits_s = sum((3 + r) * 1e-3 + 1e-6 * s + 7e-9 * r + 5e-7 for r in range(RANKS)
                  for s in range(6))  # fmt: skip
    assert heat_s == pytest.approx(waits_s, abs=1e-7)


def reduced_and_whole(ranks: Ranks, place: Path) -> tuple[Measures, Measures]:
    folder = ranks.logs(place / "run")
    merge(reduced(folder, place / "reduced"), place / "all.reduced")
    with open_run(folder) as run:
        return measures_of(place / "all.reduced"), measure(run)


def test_what_a_straggler_costs_the_job_is_in_the_sums(tmp_path: Path) -> None:
    ranks = together(6, 40, one_slow(60, rank=2), even(20, 24))
    merged, whole = reduced_and_whole(ranks, tmp_path)
    assert merged.coupling == whole.coupling
    assert merged.coupling.how == "together"
    assert merged.stall_fraction.value == pytest.approx(ranks.lost, rel=0.02)
    for name in ("stall_fraction", "mean_stall", "stall_most"):
        assert getattr(merged, name).value == pytest.approx(getattr(whole, name).value), name
    # Longest in most steps, not in all: what others were longest in counts as the slow one's.
    assert merged.wait_parts == pytest.approx(whole.wait_parts, rel=0.01)
    assert merged.data_storage_s == whole.data_storage_s == 0
    verdicts = [report_of(one).verdict.sentence.split("; ")[-1] for one in (merged, whole)]
    assert verdicts[0] == verdicts[1]
    assert "rank 2's data wait" in verdicts[0]


def test_stragglers_by_turns_are_in_the_sums_and_their_causes_are_not(tmp_path: Path) -> None:
    ranks = together(6, 80, now_and_then(20), even(20, 24))
    merged, whole = reduced_and_whole(ranks, tmp_path)
    assert merged.coupling == whole.coupling
    assert merged.stall_fraction.value == pytest.approx(whole.stall_fraction.value)
    assert merged.stall_fraction.value == pytest.approx(ranks.lost, rel=0.02)
    assert list(merged.wait_parts) == ["not observed"]
    assert merged.storage_fraction.state == "incomplete"


def test_a_rank_in_two_files_is_refused(files: list[Path], tmp_path: Path) -> None:
    merge(files[:3], tmp_path / "some.reduced")
    with pytest.raises(RunError, match=r"rank 2 \(node1 102 .* would count twice"):
        merge([tmp_path / "some.reduced", files[2]], tmp_path / "all.reduced")
    assert not (tmp_path / "all.reduced").exists()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet" * 100])
def test_what_is_no_reduced_file_is_refused(
    files: list[Path], tmp_path: Path, content: bytes
) -> None:
    bad = tmp_path / "bad[1].reduced"
    bad.write_bytes(content)
    with pytest.raises(RunError, match="no reduced file of penstock"):
        merge([files[0], bad], tmp_path / "all.reduced")
    good = tmp_path / "a'b[*]?.reduced"  # a name that is a pattern is a name
    shutil.copy(files[1], good)
    merge([files[0], good], tmp_path / "all.reduced")


def test_the_command_reduces_runs_and_merges_files(whole: Measures, tmp_path: Path) -> None:
    folder = job(tmp_path / "run")
    out = tmp_path / "all.reduced"
    done = subprocess.run(
        [PENSTOCK, "reduce", folder, "-o", out], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    same(measures_of(out), whole)
    report = subprocess.run([PENSTOCK, "report", out], capture_output=True, text=True, timeout=240)
    assert report.returncode == 0, report.stderr
    assert "Data wait, by rank" in report.stdout
    assert "this is a run reduced by rank" in report.stdout.replace("\n", " ")
    # What it cannot judge it does not call fine.
    found = re.search(r"(\d+) rules: a run reduced by rank has no single calls", report.stdout)
    assert found, report.stdout
    assert len(RULES) - 4 <= int(found[1]) < len(RULES)
    assert "rank 6 on node3 waits 45.0 ms for data" in report.stdout
    assert "0 checkpoints" not in report.stdout
    assert not list(tmp_path.glob("penstock-*"))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_each_rank_reduces_its_own_log_at_the_end_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(50_000))
    program = (
        "import os, penstock\n"
        "rank = int(os.environ['OMPI_COMM_WORLD_RANK'])\n"
        "for step in range(3):\n"
        "    with penstock.step(step):\n"
        "        file = os.open('data', os.O_RDONLY)\n"
        "        for _ in range(5 + rank): os.read(file, 1000)\n"
        "        os.close(file)\n"
    )
    run = tmp_path / "run"
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", PENSTOCK, "run", "--reduce",
         "-o", run, "--", sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("run/run.reduced. Next:") == 1, done.stderr
    assert [path.name for path in run.glob("*.reduced")] == ["run.reduced"]
    merged = measures_of(run / "run.reduced")
    assert [(row.rank, row.steps) for row in merged.ranks] == [(n, 3) for n in range(4)]
    read = [3000 * (5 + n) for n in range(4)]
    assert [row.read_bytes for row in merged.ranks] == read
    assert [(s.readers, s.read_bytes) for s in merged.sharing if s.size_bytes == 50_000] == [
        (4, sum(read))
    ]


@pytest.mark.skipif(
    find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="mpi4py or mpirun is not installed",
)
def test_ranks_of_mpi_reduce_and_merge_in_a_tree(whole: Measures, tmp_path: Path) -> None:
    folder = job(tmp_path / "run")
    out = tmp_path / "all.reduced"
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", PENSTOCK, "reduce", folder,
         "-o", out, "--mpi", "--logs", "2"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all.reduced") == 1
    same(measures_of(out), whole)


def test_the_columns_are_stable() -> None:
    """A file of another shape is refused: a change here needs its runs reduced again."""
    assert len(COLUMNS) == 24
