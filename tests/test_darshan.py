"""Darshan's logs, out and in.  What the wheel's library writes is read back by the wheel's own
Python, which shares nothing with the writer."""

import importlib.metadata
import os
import random
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import MissingDependency, PenstockError, RunError
from penstock.explain.measures import measure
from penstock.explain.report import report_of, to_json
from penstock.interop import darshan as out
from penstock.interop import darshan_logs
from penstock.interop.darshan_library import record_ids
from penstock.interop.foreign import import_foreign
from penstock.runs.run import open_run
from synthetic import Synthetic

darshan = pytest.importorskip("darshan")

MS = 1_000_000
WHEEL = Path(darshan.__file__).parent
SAMPLES = sorted(WHEEL.rglob("*.darshan"))
# Logs of libraries above POSIX only.
REFUSED: set[str] = set()


@pytest.fixture(autouse=True)
def _pandas_is_loud() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def records(log: Path, module: str = "POSIX") -> dict[tuple[str, int], dict[str, Any]]:
    """Counters by (path, rank), as PyDarshan reads them."""
    report = darshan.DarshanReport(str(log), read_all=False)
    report.mod_read_all_records(module)
    found = {}
    for record in report.records[module]:
        names = report.counters[module]
        values = dict(zip(names["counters"], map(int, record["counters"]), strict=True))
        values |= dict(zip(names["fcounters"], map(float, record["fcounters"]), strict=True))
        plain = {name.removeprefix(f"{module}_"): value for name, value in values.items()}
        found[report.name_records[record["id"]], record["rank"]] = plain
    return found


def exported(run: Any, tmp_path: Path) -> Path:
    log = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}.darshan"
    out.export(run, log)
    return log


def made(run: Synthetic) -> Any:
    assert run.connection
    run.run.made_by = run  # type: ignore[attr-defined]  # its folder lives as long
    return run.run


def imported(logs: list[Path], tmp_path: Path) -> Any:
    folder = tmp_path / f"imported-{len(list(tmp_path.glob('imported-*')))}"
    return open_run(darshan_logs.import_logs(logs, folder))


def read_twice() -> Synthetic:
    """A file of 1,000 bytes: opened, read as 600, 400 and nothing, closed; and the same again; then
    written at 2000 and 5000."""
    run = Synthetic()
    run.process(1, end=100 * MS)
    at = 0
    for _ in range(2):
        run.call("open", at, at + MS)
        for offset, moved in ((0, 600), (600, 400), (1000, 0)):
            at += MS
            run.call("read", at, at + MS, offset=offset, moved=moved, asked=600)
        run.call("close", at + MS, at + 2 * MS)
        at += 5 * MS
    run.call("open", at, at + MS)
    for offset in (2000, 5000):
        at += 2 * MS
        run.call("pwrite", at, at + MS, offset=offset, moved=100)
    run.call("close", at + MS, at + 2 * MS)
    return run


class TestOut:
    def test_counters_follow_the_definitions_of_darshan(self, tmp_path: Path) -> None:
        ((key, found),) = records(exported(made(read_twice()), tmp_path)).items()
        assert key == ("/data/a", 0)
        expected = {
            "OPENS": 3,
            "READS": 6,
            "WRITES": 2,
            "BYTES_READ": 2000,
            "BYTES_WRITTEN": 200,
            "MAX_BYTE_READ": 999,
            "MAX_BYTE_WRITTEN": 5099,
            # The first read of a pass is at 0, not beyond the last byte, which an open sets to 0;
            # the empty read at the end goes on where the one before it stopped.
            "SEQ_READS": 4,
            "CONSEC_READS": 4,
            # 2000 lies beyond 0; the stride counts from the second write on.
            "SEQ_WRITES": 2,
            "CONSEC_WRITES": 0,
            "STRIDE1_STRIDE": 2900,
            "STRIDE1_COUNT": 1,
            "STRIDE2_COUNT": 0,
            "RW_SWITCHES": 1,
            "SIZE_READ_0_100": 2,  # the empty ones
            "SIZE_READ_100_1K": 4,
            "SIZE_WRITE_0_100": 2,
            # Of equal counts the larger value first; nothing is no size.
            "ACCESS1_ACCESS": 600,
            "ACCESS1_COUNT": 2,
            "ACCESS2_ACCESS": 400,
            "ACCESS3_ACCESS": 100,
            "ACCESS4_COUNT": 0,
            "FILE_NOT_ALIGNED": 6,
            "FILE_ALIGNMENT": 4096,
            "MEM_NOT_ALIGNED": -1,
            "FILENOS": -1,
            "F_READ_TIME": 0.006,
            "F_WRITE_TIME": 0.002,
            "F_META_TIME": 0.006,
            "F_MAX_READ_TIME": 0.001,
            "MAX_READ_TIME_SIZE": 600,
            "F_READ_START_TIMESTAMP": 0.001,
            "F_CLOSE_END_TIMESTAMP": 0.022,
            "SLOWEST_RANK_BYTES": 0,
        }
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)

    def test_time_that_two_threads_share_counts_once(self, tmp_path: Path) -> None:
        run = Synthetic()
        run.process(1, end=100 * MS)
        run.call("pread", 10 * MS, 20 * MS, offset=0, moved=10)
        run.call("pread", 15 * MS, 30 * MS, offset=10, moved=10, thread=2)
        ((_, found),) = records(exported(made(run), tmp_path)).items()
        assert found["F_READ_TIME"] == pytest.approx(0.020)
        assert found["F_MAX_READ_TIME"] == pytest.approx(0.015)

    def test_workers_belong_to_their_rank_and_shared_files_to_all(self, tmp_path: Path) -> None:
        run = Synthetic()
        run.process(1, end=50 * MS, rank=0)
        run.process(2, end=50 * MS, rank=1)
        run.process(3, end=50 * MS, parent=2)  # a worker of rank 1
        for process, ms in ((1, 1), (2, 3), (3, 2)):
            run.call("pread", 0, ms * MS, path="/data/all", offset=0, moved=10, process=process)
        run.call("pread", 5 * MS, 6 * MS, path="/data/one", offset=0, moved=7, process=3)
        found = records(exported(made(run), tmp_path))
        assert set(found) == {("/data/all", -1), ("/data/one", 1)}
        shared = found["/data/all", -1]
        assert (shared["READS"], shared["BYTES_READ"]) == (3, 30)
        assert (shared["FASTEST_RANK"], shared["FASTEST_RANK_BYTES"]) == (0, 10)
        assert (shared["SLOWEST_RANK"], shared["SLOWEST_RANK_BYTES"]) == (1, 20)
        assert shared["F_SLOWEST_RANK_TIME"] == pytest.approx(0.005)
        assert shared["F_VARIANCE_RANK_TIME"] == pytest.approx(0.002**2)
        assert shared["F_VARIANCE_RANK_BYTES"] == pytest.approx(25)

    def test_a_rename_counts_for_both_names(self, tmp_path: Path) -> None:
        run = Synthetic()
        run.process(1, end=50 * MS)
        run.call("open", 0, MS, path="/data/draft")
        run.call("rename", MS, 2 * MS, path="/data/draft")
        place = run.rows["events/00000"][-1]
        run.rows["events/00000"][-1] = (*place[:5], run.file("/data/final"), *place[6:])
        found = records(exported(made(run), tmp_path))
        assert found["/data/draft", 0]["RENAME_SOURCES"] == 1
        assert found["/data/final", 0]["RENAME_TARGETS"] == 1
        (source,) = record_ids([b"/data/draft"])
        assert found["/data/final", 0]["RENAMED_FROM"] % 2**64 == int(source)

    def test_requests_and_connections_are_said_to_be_missing(self, tmp_path: Path) -> None:
        run = read_twice()
        run.request(0, MS, "/data/0")
        run.connected("store.example:443", received_bytes=100, opened_ns=0)
        (said,) = out.export(made(run), tmp_path / "remote.darshan")
        assert said.startswith("1 request and 1 connection have no place")

    def test_calls_past_the_budget_leave_what_is_known(self, tmp_path: Path) -> None:
        run = read_twice()
        run.fold("read", 10, moved_bytes=1000, duration_ns=MS, max_duration_ns=9 * MS, bucket_0=10)
        log = tmp_path / "folded.darshan"
        (said,) = out.export(made(run), log)
        assert "10 calls past the trace budget" in said
        ((_, found),) = records(log).items()
        assert (found["READS"], found["BYTES_READ"]) == (16, 3000)
        assert found["SIZE_READ_0_100"] == 12
        assert found["SEQ_READS"] == found["STRIDE1_COUNT"] == found["MAX_READ_TIME_SIZE"] == -1
        assert found["SEQ_WRITES"] == 2  # of the writes all is known
        modules = darshan.DarshanReport(str(log), read_all=False).modules
        assert modules["POSIX"]["partial_flag"]
        assert modules["DXT_POSIX"]["partial_flag"]

    def test_single_calls_and_the_heat_map_are_in_the_log(self, tmp_path: Path) -> None:
        log = exported(made(read_twice()), tmp_path)
        report = darshan.DarshanReport(str(log), read_all=True)
        (calls,) = report.records["DXT_POSIX"].to_df()
        assert (calls["read_count"], calls["write_count"]) == (6, 2)
        assert calls["read_segments"]["offset"].tolist() == [0, 600, 1000] * 2
        assert calls["write_segments"]["length"].tolist() == [100, 100]
        assert calls["hostname"] == "node1"
        heat = report.heatmaps["POSIX"].to_df(["read"])
        assert heat.to_numpy().sum() == 2000
        assert report.metadata["exe"] == "python train.py"
        assert report.metadata["job"]["nprocs"] == 1

    def test_a_recorded_job_has_the_counts_of_its_workload(
        self, tmp_path: Path, recorded: Any, work: Path
    ) -> None:
        """16 reads of 4096 bytes, one empty one, and a text of two lines through stdio's layer in
        Python, which is POSIX."""
        (work / "data").write_bytes(bytes(65536))
        run = recorded("""
            import os
            fd = os.open("data", os.O_RDONLY)
            while os.read(fd, 4096):
                pass
            os.lseek(fd, 0, os.SEEK_SET)
            os.close(fd)
            fd = os.open("new", os.O_WRONLY | os.O_CREAT)
            os.pwrite(fd, b"x" * 10, 90)
            os.fsync(fd)
            os.close(fd)
        """)
        found = records(exported(run, tmp_path))
        data, new = found[f"{work}/data", 0], found[f"{work}/new", 0]
        assert (data["OPENS"], data["READS"], data["SEEKS"]) == (1, 17, 1)
        assert (data["SEQ_READS"], data["CONSEC_READS"], data["BYTES_READ"]) == (16, 16, 65536)
        assert (data["SIZE_READ_0_100"], data["SIZE_READ_1K_10K"]) == (1, 16)
        assert (new["WRITES"], new["FSYNCS"], new["MAX_BYTE_WRITTEN"]) == (1, 1, 99)
        assert 0 < data["F_READ_TIME"] < data["F_CLOSE_END_TIMESTAMP"]

    def test_the_summary_of_pydarshan_accepts_it(self, tmp_path: Path) -> None:
        log = exported(made(read_twice()), tmp_path)
        command = [sys.executable, "-m", "darshan", "summary", log]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=240)
        assert (tmp_path / f"{log.stem}_report.html").stat().st_size > 100_000

    def test_the_wheel_is_of_the_version_that_was_checked(self) -> None:
        assert importlib.metadata.version("darshan").startswith("3.5.")

    def test_record_ids_are_those_of_darshan(self) -> None:
        """The constants that PyDarshan knows its heat maps by, and names of a sample log."""
        ids = record_ids([b"heatmap:POSIX", b"heatmap:STDIO"]).tolist()
        assert ids == [16592106915301738621, 3989511027826779520]
        (log,) = [path for path in SAMPLES if path.name == "dxt.darshan"]
        names = darshan.DarshanReport(str(log), read_all=False).name_records
        plain = [(number, name) for number, name in names.items() if name.startswith("/")]
        assert record_ids([name.encode() for _, name in plain]).tolist() == [n for n, _ in plain]

    def test_a_place_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="cannot be written"):
            out.export(made(read_twice()), tmp_path / "no" / "folder.darshan")

    def test_without_the_wheel_the_extra_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = made(read_twice())
        monkeypatch.setitem(sys.modules, "darshan", None)
        with pytest.raises(MissingDependency, match=r"penstock\[darshan\]"):
            out.export(run, tmp_path / "a.darshan")
        with pytest.raises(MissingDependency, match=r"penstock\[darshan\]"):
            darshan_logs.import_logs([SAMPLES[0]], tmp_path / "run")


class TestIn:
    @pytest.mark.parametrize("log", SAMPLES, ids=lambda log: f"{log.parent.name}/{log.name[:24]}")
    def test_a_sample_of_the_wheel_becomes_a_run_with_a_report(
        self, log: Path, tmp_path: Path
    ) -> None:
        with imported([log], tmp_path) as run:
            measures = measure(run)
            report = report_of(measures)
            to_json(report)  # no number that is none
            totals = dict(
                run.sql("SELECT op, sum(calls) FROM counters WHERE layer = 'posix' GROUP BY op")
            )
        truth = records(log).values() if "POSIX" in _modules(log) else ()
        for op, name in (("read", "READS"), ("write", "WRITES"), ("lseek", "SEEKS")):
            assert totals.get(op, 0) == sum(record[name] for record in truth)
        recording, reading = measures.recording, measures.reading
        if not recording.counters_only:
            assert reading.empty_reads is not None
        elif not recording.has_events and reading.reads:
            assert reading.empty_reads is None  # Darshan's counters do not say
        assert any(gap.what == "failed calls" for gap in report.gaps)

    def test_counters_alone_are_told_as_such(self, tmp_path: Path) -> None:
        (log,) = [path for path in SAMPLES if path.name == "sample-goodost.darshan"]
        with imported([log], tmp_path) as run:
            state, why = measure(run).events_state
        assert (state, why) == (
            "not measured",
            "counters of Darshan: single calls were not recorded",
        )

    def test_what_went_out_comes_in_again(self, tmp_path: Path) -> None:
        log = exported(made(read_twice()), tmp_path)
        with imported([log], tmp_path) as run:
            rows = run.sql(
                "SELECT op, calls, moved_bytes, duration_ns FROM counters ORDER BY op"
            ).fetchall()
            reads = run.sql(
                "SELECT offset_bytes, moved_bytes, start_ns FROM events WHERE op = 'read'"
                " ORDER BY start_ns LIMIT 3"
            ).fetchall()
            assert measure(run).events_state == ("measured", "")
        # Closes are not counted, their time is with the opens.
        assert rows == [
            ("open", 3, 0, 6 * MS),
            ("read", 6, 2000, 6 * MS),
            ("write", 2, 200, 2 * MS),
        ]
        assert reads == [(0, 600, MS), (600, 400, 2 * MS), (1000, 0, 3 * MS)]

    def test_what_darshan_marks_partial_is_incomplete(self, tmp_path: Path) -> None:
        run = read_twice()
        run.fold("read", 10, moved_bytes=1000)
        with imported([exported(made(run), tmp_path)], tmp_path) as again:
            state, why = measure(again).counts_state
            outputs = again.sql("SELECT path FROM files WHERE path_class = 'output'").fetchall()
        assert state == "incomplete"
        assert "Darshan marks POSIX as incomplete" in why
        assert outputs == [("/data/a",)]

    def test_logs_of_two_jobs_are_refused(self, tmp_path: Path) -> None:
        other = Synthetic()
        other.process(7, end=10 * MS)
        other.call("open", 0, MS, process=7)
        logs = [exported(made(one), tmp_path) for one in (read_twice(), other)]
        with pytest.raises(RunError, match="import the logs of one job at a time"):
            darshan_logs.import_logs(logs, tmp_path / "run")

    def test_logs_of_the_processes_of_one_job_are_one_run(self, tmp_path: Path) -> None:
        logs = [exported(made(read_twice()), tmp_path) for _ in range(3)]
        folder = import_foreign([logs[0].parent], tmp_path / "run")
        with open_run(folder) as run:
            assert run.sql("SELECT count(*), sum(calls) FROM processes, counters")[0] == (27, 99)
            assert run.sql("SELECT count(*) FROM processes")[0] == (3,)


def _modules(log: Path) -> Any:
    return darshan.DarshanReport(str(log), read_all=False).modules


class TestHostile:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return exported(made(read_twice()), tmp_path)

    def damaged(self, data: bytes, tmp_path: Path, name: str) -> None:
        """A run, or a sentence: nothing else may come of it."""
        path = tmp_path / name
        path.write_bytes(data)
        said = ""
        try:
            folder = import_foreign([path], tmp_path / f"run-{name}")
        except PenstockError as error:
            said = str(error)
        else:
            with open_run(folder) as run:
                to_json(report_of(measure(run)))
        assert not said or (str(path) in said and "\n" not in said)

    def test_a_log_of_a_version_to_come_is_named_with_it(self, tmp_path: Path) -> None:
        data = bytearray(SAMPLES[0].read_bytes())
        data[:8] = b"9.99".ljust(8, b"\0")
        (tmp_path / "new.darshan").write_bytes(data)
        with pytest.raises(RunError, match=r"it says version 9\.99; 3\.x is read"):
            import_foreign([tmp_path / "new.darshan"], tmp_path / "run")

    @pytest.mark.parametrize("part", [0, 0.001, 0.1, 0.4, 0.7, 0.99])
    def test_a_log_cut_anywhere_is_told(self, part: float, log: Path, tmp_path: Path) -> None:
        data = log.read_bytes()
        self.damaged(data[: int(len(data) * part)], tmp_path, "cut")

    @pytest.mark.parametrize("seed", range(5))
    def test_a_log_with_flipped_bytes_is_told(self, seed: int, log: Path, tmp_path: Path) -> None:
        rng = random.Random(seed)
        data = bytearray(log.read_bytes())
        for _ in range(1 + seed % 3):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        self.damaged(bytes(data), tmp_path, "flipped")

    def test_a_header_that_points_anywhere_is_told(self, log: Path, tmp_path: Path) -> None:
        data = bytearray(log.read_bytes())
        for at in range(32, 400, 8):
            data[at : at + 8] = struct.pack("<Q", 1 << 62)
        self.damaged(bytes(data), tmp_path, "points")

    @pytest.mark.parametrize("data", [b"", b"{}", b"PK\x03\x04" + bytes(100), os.urandom(5000)])
    def test_a_foreign_file_is_told(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "foreign"
        path.write_bytes(data)
        with pytest.raises(RunError, match="neither a log of Darshan nor a trace of DFTracer"):
            import_foreign([path], tmp_path / "run")

    def test_huge_counts_are_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from penstock.interop import darshan_counters

        count = darshan_counters.count

        def enormous(*given: Any) -> Any:
            records = count(*given)
            records.counters["BYTES_READ"][:] = 1 << 62
            return records

        monkeypatch.setattr(darshan_counters, "count", enormous)
        log = exported(made(read_twice()), tmp_path)
        with pytest.raises(RunError, match="is damaged: POSIX_BYTES_READ is 4611686018427387904"):
            darshan_logs.import_logs([log], tmp_path / "run")

    def test_a_reader_that_dies_is_told(self, log: Path, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(darshan_logs, "_READER", "import os; os.kill(os.getpid(), 11)")
        with pytest.raises(RunError, match=r"Darshan's library died of it \(signal 11\)"):
            darshan_logs.import_logs([log], tmp_path / "run")
