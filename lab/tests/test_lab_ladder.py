"""The ladder: every rung reads every record once, cold or not at all; and its model."""

import json
import math
import mmap
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import PENSTOCK
from penstock.errors import TierError
from penstock_lab import ladder, model, study
from penstock_lab.ladder import (
    LadderPoint,
    LadderRun,
    LadderSettings,
    climb,
    make_lmdb,
    points_of,
    read_results,
)
from penstock_lab.model import Behaviour, Cluster, SharedStorage, simulated_hz
from penstock_lab.rungs import RUNGS
from slowtier import WHY_NO_DISK, WHY_NO_MEMORY, needs_fuse, nothing_stays  # noqa: F401 - a fixture

N_RECORDS, RECORD_BYTES = 300, 20_000
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder") / "lmdb"
    make_lmdb(folder, N_RECORDS * RECORD_BYTES, RECORD_BYTES)
    return folder


def only(
    place: str, *rungs: str, processes: tuple[int, ...] = (2,), repeats: int = 1
) -> LadderSettings:
    return LadderSettings(
        rungs or tuple(RUNGS), processes, (place,), repeats, seconds=20.0, batch=16
    )


def lengths(folder: Path) -> list[int]:
    environment = lmdb.open(str(folder), readonly=True, lock=False)
    with environment, environment.begin() as transaction:
        return [len(value) for _, value in transaction.cursor()]


# The data


def test_the_lmdb_has_the_records_that_were_asked_for(data: Path) -> None:
    record_lengths = lengths(data)
    assert len(record_lengths) == N_RECORDS
    assert 0.7 * RECORD_BYTES <= min(record_lengths) <= max(record_lengths) <= 1.3 * RECORD_BYTES
    assert sum(record_lengths) == pytest.approx(N_RECORDS * RECORD_BYTES, rel=0.05)
    before = (data / "data.mdb").stat().st_mtime_ns
    make_lmdb(data, 1, 1)  # is there
    assert (data / "data.mdb").stat().st_mtime_ns == before


def test_an_lmdb_that_was_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_lmdb(tmp_path / "x", 1_000_000, 1000, progress=stop)
    assert list(tmp_path.iterdir()) == []


# Runs


@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_reads_every_record_once(data: Path, tmp_path: Path, rung: str) -> None:
    # `get` asks by the key: the contents are compared with the contents of `get`.
    runs, remarks = climb(data, only("disk", "get", rung, processes=(3,)), tmp_path)
    assert remarks == []
    for run in runs:
        assert (run.records, run.record_bytes) == (N_RECORDS, sum(lengths(data)))
        assert run.resident_share < 0.02
        # Evicted, so read from the disk: LMDB's own pages beside the records are 2 to 10 %.
        assert 0.98 < run.device_bytes / run.record_bytes < 1.5
        assert 0 < run.total_s - run.sleep_s <= 1.05 * (run.user_s + run.system_s) + 0.1


def test_a_file_that_another_program_has_mapped_is_not_called_cold(
    data: Path, tmp_path: Path
) -> None:
    with open(data / "data.mdb", "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with view:
        assert sum(view[:: mmap.PAGESIZE]) >= 0
        with pytest.raises(TierError, match=r"data.mdb: not cold: .* another program"):
            climb(data, only("disk", "get", processes=(1,)), tmp_path)
    assert read_results(tmp_path) == []


def test_an_interrupted_ladder_goes_on_where_it_ended(data: Path, tmp_path: Path) -> None:
    messages: list[str] = []

    def stop(what: str, share: float) -> None:
        messages.append(what)
        if len(messages) == 3:
            raise KeyboardInterrupt

    wanted = only("disk", "skip", "get", processes=(1, 2))
    with pytest.raises(KeyboardInterrupt):
        climb(data, wanted, tmp_path, stop)
    assert len(read_results(tmp_path)) == 2
    with open(tmp_path / "runs.jsonl", "a") as file:
        file.write('{"place": "disk", "ru')  # killed during the write
    runs, _ = climb(data, wanted, tmp_path)
    assert len(runs) == 4
    messages.clear()
    assert climb(data, wanted, tmp_path, lambda what, share: messages.append(what))[0] == runs
    assert messages == []
    with pytest.raises(TierError, match="holds runs of other settings or data"):
        climb(data, replace(wanted, batch=8), tmp_path)


def test_places_and_rungs_can_be_measured_one_at_a_time(data: Path, tmp_path: Path) -> None:
    first, _ = climb(data, only("disk", "get", processes=(1,)), tmp_path)
    both, _ = climb(data, only("disk", "dio", processes=(1,)), tmp_path)
    assert both[:1] == first
    assert [run.rung for run in both] == ["get", "dio"]


def test_no_two_dots_of_the_picture_stand_on_each_other() -> None:
    ticks, n = [1, 2, 4, 8], len(RUNGS)
    at = {
        (processes, number): ladder._slot(ticks, processes, number, n)
        for processes in ticks
        for number in range(n)
    }
    assert len(set(at.values())) == len(at)
    assert all(round(place) == ticks.index(processes) for (processes, _), place in at.items())
    assert len(set(ladder.LOOKS.values())) == n
    assert set(ladder.LOOKS) == set(RUNGS)


def test_a_record_that_two_rungs_read_differently_ends_the_ladder() -> None:
    from penstock_lab.rungs import RungJob, RungResult

    done = RungResult("process", 1, 5, 1, 0.0, 1.0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0, [(7, 5, 123)])
    job = RungJob("get", "x", 1, 1, 1.0)
    truth = {7: (5, 123)}
    ladder.compared(job, [done], truth)
    truth[7] = (5, 124)
    with pytest.raises(TierError, match="record 7 is not what another rung read"):
        ladder.compared(job, [done], truth)


def test_asleep_is_of_the_thread_that_uses_the_records() -> None:
    """Two threads that read ahead may compute longer than the process lasts."""
    from penstock_lab.places import Place
    from penstock_lab.rungs import RungJob, RungResult

    done = [
        RungResult("process", 9, 9, 9, 0.0, 1.0, 9, 0.25, 1.5, 0.5, 0, 0, 0, 0, [])
        for _ in range(2)
    ]
    sums = ladder.summed(
        Place("disk", Path("/")), RungJob("feed", "/", 2, 1, 1.0), done, 0.0, ((0, 0),) * 2
    )
    run = LadderRun(repeat=0, **sums)
    assert (run.sleep_s, run.user_s, run.system_s, run.total_s) == (1.5, 3.0, 1.0, 2.0)
    assert ladder._asleep(run) == 0.75


def test_no_rung_takes_an_index_from_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.feed.index import CACHED_RECORDS

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_lmdb(tmp_path / "lmdb", CACHED_RECORDS * 2000, 1000)
    climb(tmp_path / "lmdb", only("disk", "feed", "index", processes=(1,)), tmp_path / "out")
    assert not list((tmp_path / "cache").rglob("*.idx"))


@pytest.mark.alone
@pytest.mark.experiment(study="ladder")
@needs_fuse
def test_on_the_latency_tier_faults_are_requests_and_readers_need_fewer(
    data: Path, tmp_path: Path
) -> None:
    wanted = replace(only("latency", "get-random", "coal", "feed-shuffled"), processes=(1,))
    runs_by_rung = {run.rung: run for run in climb(data, wanted, tmp_path)[0]}
    pages = sum(-(-(length + 16) // 4096) for length in lengths(data))
    # Each page of each record is fetched, and a few of the tree.  Each is a request, except pages
    # that come with LMDB's own read of the header.
    assert pages <= runs_by_rung["get-random"].device_bytes / 4096 <= 1.2 * pages
    assert 0.98 * pages <= runs_by_rung["get-random"].device_requests <= 1.2 * pages
    assert runs_by_rung["feed-shuffled"].device_requests < 1.6 * N_RECORDS
    # 25 faults of a millisecond against a few requests: wide margins, the machine may be busy.
    assert runs_by_rung["feed-shuffled"].records_hz > 3 * runs_by_rung["get-random"].records_hz
    assert runs_by_rung["coal"].records_hz > 3 * runs_by_rung["get-random"].records_hz


@pytest.mark.skipif(bool(WHY_NO_DISK), reason=WHY_NO_DISK)
def test_the_throttled_disk_gives_no_more_than_it_is_said_to(data: Path, tmp_path: Path) -> None:
    (run,), _ = climb(data, only("throttled", "get-random", processes=(1,)), tmp_path)
    assert run.major_faults > 4 * N_RECORDS
    # 2,000 a second; the first tenth of a second may come at once.
    assert run.wall_s >= run.major_faults / ladder.THROTTLED_HZ - 0.25


@pytest.mark.skipif(bool(WHY_NO_MEMORY), reason=WHY_NO_MEMORY)
def test_a_quarter_of_little_data_is_no_memory_to_run_in(data: Path, tmp_path: Path) -> None:
    runs, remarks = climb(data, only("memory", "get"), tmp_path)
    assert runs == []
    assert "memory: left out: a quarter of the data is" in remarks[0]


# Results


def run_of(rung: str, processes: int, hz: float, place: str = "latency") -> LadderRun:
    return LadderRun(
        place, rung, processes, 0, 1000, 30_000_000, 1000 / hz, 0.0, hz, 30_000 * hz, 31_000_000,
        8000, 0.1, 0.05, 1.0, 8000, 10, 8000, 5, 0.0,
    )  # fmt: skip


def test_the_median_of_repeats_and_their_spread_are_shown() -> None:
    runs = [run_of("get", 1, hz) for hz in (50.0, 40.0, 90.0)]
    (point,) = points_of(runs)
    assert (point.run.records_hz, point.least_hz, point.most_hz, point.repeats) == (50, 40, 90, 3)
    text = ladder.markdown_of(runs, {"cpus": "2"})
    assert "| get | 1 | 50 | 40–90 |" in text
    # device/asked, requests, switches, faults; user, system and asleep, all a record; wall, set-up
    numbers = "| 1.03 | 8.00 | 8.01 | 8.00 | 0.01 | 100 | 50.00 | 1,000 | 87 % | 20.00 | 0.00 |"
    assert numbers in text


def test_results_are_written_and_read_back(tmp_path: Path) -> None:
    runs = [run_of(rung, n, 100.0 * n) for rung in RUNGS for n in (1, 2)]
    written = ladder.write_results(tmp_path, runs, {"cpus": "2"}, ["a remark"])
    assert [path.suffix for path in written] == [".json", ".csv", ".md", ".png"]
    assert written[3].read_bytes().startswith(b"\x89PNG")
    assert len(written[1].read_text().splitlines()) == 1 + len(runs)
    points, machine = model.read_points(written[0])
    assert points == points_of(runs)
    assert machine == {"cpus": "2"}


@given(st.binary(max_size=200) | st.sampled_from([b"{}", b'{"points": [{}]}', b"[]", b"null"]))
@settings(max_examples=50)
def test_what_is_no_ladder_is_refused(content: bytes) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"penstock-test-ladder-{os.getpid()}.json"
    path.write_bytes(content)
    try:
        with pytest.raises(TierError, match=r"no ladder\.json"):
            model.read_points(path)
    finally:
        path.unlink()


@given(st.lists(st.binary(max_size=80), max_size=5))
@settings(max_examples=30)
def test_lines_that_are_no_runs_are_left_out(lines: list[bytes]) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"penstock-test-runs-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    good = json.dumps({**dict.fromkeys(LadderRun.__slots__, 0), "rung": "get", "place": "disk"})
    (folder / "runs.jsonl").write_bytes(b"\n".join([*lines, good.encode(), b'{"cut']))
    try:
        assert [run.rung for run in read_results(folder)][-1:] == ["get"]
    finally:
        (folder / "runs.jsonl").unlink()
        folder.rmdir()


# The model, with answers computed by hand

FREE = SharedStorage(math.inf, math.inf, 0.0)


def behaviour(rung: str = "get-random", **changes: float) -> Behaviour:
    return replace(Behaviour(rung, 8.0, 32_768, 30_000, 0.0, 0.0, 1.0), **changes)


def test_one_process_waits_for_each_request() -> None:
    storage = replace(FREE, latency_s=0.001)
    assert simulated_hz(behaviour(), storage, Cluster(1, 1, 1)) == pytest.approx(1 / 0.008)
    # 2 ms of computing between.
    with_cpu = behaviour(cpu_s=0.002)
    assert simulated_hz(with_cpu, storage, Cluster(1, 1, 1)) == pytest.approx(1 / 0.010)


def test_processes_wait_side_by_side_until_the_storage_is_full() -> None:
    storage = replace(FREE, latency_s=0.001)
    assert simulated_hz(behaviour(), storage, Cluster(4, 8, 8)) == pytest.approx(32 / 0.008)
    narrow = replace(storage, bandwidth_bps=32_768_000)
    assert simulated_hz(behaviour(), narrow, Cluster(4, 8, 8)) == pytest.approx(1000, rel=0.05)
    few = replace(storage, requests_hz=2000)
    assert simulated_hz(behaviour(), few, Cluster(4, 8, 8)) == pytest.approx(250, rel=0.05)
    link = replace(storage, link_bps=3_276_800)
    assert simulated_hz(behaviour(), link, Cluster(4, 8, 8)) == pytest.approx(400, rel=0.05)


def test_cores_are_shared_by_the_processes_of_a_node() -> None:
    busy = behaviour("get", cpu_s=0.001)
    assert simulated_hz(busy, FREE, Cluster(1, 8, 2)) == pytest.approx(2000, rel=0.05)
    assert simulated_hz(busy, FREE, Cluster(3, 8, 2)) == pytest.approx(6000, rel=0.05)


def test_a_node_that_walks_reads_everything() -> None:
    storage = replace(FREE, bandwidth_bps=32_768_000)
    walking = behaviour("skip")
    for nodes in (1, 2, 8):
        records_hz = simulated_hz(walking, storage, Cluster(nodes, 4, 4))
        assert records_hz == pytest.approx(1000 / nodes, rel=0.1)


def test_the_fitted_points_are_met_and_the_others_are_checked() -> None:
    runs = [run_of(rung, n, 100.0 * n) for rung in ("get-random", "feed") for n in (1, 4)]
    checks = model.checked([LadderPoint(run, 1, 1, 1) for run in runs], 8, 128 << 10)
    assert [check.is_fitted for check in checks] == [True, False, True, False]
    for check in checks:
        assert check.error == pytest.approx(0, abs=0.1 if check.rung == "get-random" else 0.7)
    text = model.markdown_of(
        checks, {"get": [(1, 10.0)]}, SharedStorage(1e9, 1e5, 1e-3), "1 a node"
    )
    assert "Error of the 2 that gave no parameter" in text


def test_sizes_are_whole_nodes_beyond_one() -> None:
    assert model._sizes(36, 9216)[:8] == [1, 2, 4, 8, 16, 32, 36, 72]
    assert model._sizes(36, 9216)[-1] == 9216
    assert model._sizes(4, 2) == [1, 2]


def test_a_ladder_without_the_tier_that_counts_is_refused_with_what_is_missing() -> None:
    point = LadderPoint(run_of("get", 1, 100.0, "disk"), 1, 1, 1)
    with pytest.raises(TierError, match="the model needs"):
        model.checked([point], 2, 128 << 10)


# The command line


@pytest.mark.experiment(study="ladder")
@needs_fuse
def test_the_command_line_climbs_and_extends(tmp_path: Path) -> None:
    def say(*words: str) -> str:
        done = subprocess.run(
            [PENSTOCK, "bench", *words], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = ["--data", "2MB", "--record", "20kB", "--on", "latency", "--processes", "1,2"]
    said = say("ladder", "out", *small, "--repeats", "1", "--rungs", "get-random,coal")
    assert "| get-random | 2 |" in said
    said = say("model", "out/ladder.json", "--to", "100")
    assert "| rung | 1 | 2 | 4 | 8 | 16 | 32 | 36 | 72 | 108 |" in said
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"ladder.png", "model.png", "model.json", "model.md"} <= names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rungs", "nfs"], "nfs: no such rung; there are: skip"),
        (["--processes", "0"], "1 to 256 of them"),
        (["--processes", "a"], "write numbers, 1,2,4,8"),
        (["--on", "moon"], "'moon' is not one of"),
    ],
)
def test_a_wrong_wish_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [PENSTOCK, "bench", "ladder", "out", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_lmdb_is_found_in_memory_under_any_name_of_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs, remarks = climb(
        Path(os.path.relpath(data)), only("disk", "dio", processes=(1,)), tmp_path
    )
    assert remarks == []
    assert [run.records for run in runs] == [N_RECORDS]


def test_what_is_kept_is_read_by_compare_and_its_command_is_what_was_asked(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "lab" / "benchmarks")
    from study_page import command_of

    study.read_found(ROOT / "docs" / "experiments" / "ladder" / "ladder.json")
    wanted = only("disk", "get", processes=(1,))
    runs, _ = climb(data, wanted, tmp_path)
    (written, *_) = ladder.write_results(tmp_path, runs, {})
    assert command_of(study.read_found(written)) == (
        "penstock bench ladder ladder --data 6.00MB --record 20000 --on disk --processes 1 "
        "--rungs get --for 20s --batch 16 --repeats 1"
    )


def test_the_page_of_the_ladder_is_what_its_results_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "lab" / "benchmarks")
    import ladder_page

    _, _, rest = ladder_page.PAGE.read_text().partition(ladder_page.BEGIN)
    shown, mark, _ = rest.partition(ladder_page.END)
    assert mark
    assert shown.strip() == ladder_page.measured().strip()


def test_an_lmdb_without_a_record_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "empty"), map_size=1 << 20).close()
    with pytest.raises(TierError, match="holds no record"):
        climb(tmp_path / "empty", only("disk"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
