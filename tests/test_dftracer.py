"""DFTracer's traces, out and in, and the two commands for foreign formats."""

import gzip
import json
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, RunError
from penstock.interop import dftracer
from penstock.interop.foreign import import_foreign
from penstock.measures import measure
from penstock.report import report_of, to_json
from penstock.run import open_run
from synthetic import Synthetic, training_job

MS = 1_000_000


def made(run: Synthetic) -> Any:
    assert run.connection
    run.run.made_by = run  # type: ignore[attr-defined]  # its folder lives as long
    return run.run


def events(trace: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    lines = text.decode().splitlines()
    assert (lines[0], lines[-1]) == ("[", "]")
    return [json.loads(line) for line in lines[1:-1]]


def small_job() -> Synthetic:
    """Two steps of 50 ms; the second waits 10 ms for its data and saves for 20 ms at its end."""
    run = Synthetic()
    run.process(1, end=200 * MS)
    run.wait(0, 5 * MS, 0)
    run.step(5 * MS, 55 * MS, 0)
    run.step(55 * MS, 105 * MS, 1)
    run.wait(55 * MS, 65 * MS, 1)
    run.span("checkpoint", 85 * MS, 105 * MS, index=0)
    run.call("pread", 57 * MS, 60 * MS, offset=4096, moved=100, asked=128)
    run.call("open", 56 * MS, 57 * MS, errno=2, path="/data/none")
    return run


def seconds_by(trace: Path, key: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for event in events(trace):
        if event["ph"] == "X":
            sums[event[key]] = sums.get(event[key], 0) + event["dur"] / 1e6
    return sums


class TestOut:
    def test_layers_are_those_of_dfanalyzer(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.pfw"
        assert dftracer.export(made(small_job()), trace) == ()
        by_name, by_category = seconds_by(trace, "name"), seconds_by(trace, "cat")
        assert by_category["compute"] == pytest.approx(0.070)  # 50 + 50 - 10 - 20 ms
        assert by_category["checkpoint"] == pytest.approx(0.020)
        assert by_name["fetch.iter"] == pytest.approx(0.010)
        assert by_name["fetch.init"] == pytest.approx(0.005)
        assert by_name["train"] == pytest.approx(0.100)

    def test_a_call_has_its_file_place_and_result(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.pfw.gz"
        dftracer.export(made(small_job()), trace)
        every = events(trace)
        paths = {e["args"]["value"]: e["args"]["name"] for e in every if e["name"] == "FH"}
        (read,) = [e for e in every if e["name"] == "pread"]
        assert (read["cat"], read["ts"], read["dur"]) == ("POSIX", 57_000, 3_000)
        assert paths[read["args"]["fhash"]] == "/data/a"
        assert read["args"]["ret"] == 100
        (failed,) = [e for e in every if e["name"] == "open"]
        assert (failed["args"]["ret"], failed["args"]["errno"]) == (-1, 2)

    def test_the_demo_agrees_with_our_own_shares(self, tmp_path: Path) -> None:
        """What DFAnalyzer sums; docs/interop.md has the command that lets it do so itself."""
        job = training_job(read_ms=8)
        run = made(job)
        trace = tmp_path / "t.pfw.gz"
        dftracer.export(run, trace)
        ours = {segment.key: segment.s for segment in report_of(measure(run)).wall}
        by_name, by_category = seconds_by(trace, "name"), seconds_by(trace, "cat")
        waited = sum(s for key, s in ours.items() if key.startswith("data"))
        saved = sum(s for key, s in ours.items() if key.startswith("checkpoint"))
        assert by_category["compute"] == pytest.approx(ours["compute"], rel=0.01)
        assert by_name["fetch.iter"] == pytest.approx(waited, rel=0.01)
        assert by_category["checkpoint"] == pytest.approx(saved, rel=0.01)

    def test_what_has_no_place_in_a_trace_is_told(self, tmp_path: Path) -> None:
        run = small_job()
        run.fold("read", 12)
        (said,) = dftracer.export(made(run), tmp_path / "t.pfw")
        assert said.startswith("12 calls past the trace budget")

    def test_a_place_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="choose a file that can be written"):
            dftracer.export(made(small_job()), tmp_path / "no" / "t.pfw")


def foreign(tmp_path: Path, *lines: dict[str, Any] | str) -> Path:
    trace = tmp_path / "foreign.pfw"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    trace.write_text("\n".join(["[", *text, ""]))
    return trace


def event(name: str, cat: str = "POSIX", ts: int = 1000, dur: int = 10, **args: Any) -> Any:
    return {"id": 1, "name": name, "cat": cat, "pid": 7, "tid": 8, "ts": ts, "dur": dur} | {
        "ph": "X",
        "args": args,
    }


class TestIn:
    def test_what_went_out_comes_in_again(self, tmp_path: Path) -> None:
        before = made(training_job(20, read_ms=8))
        trace = tmp_path / "t.pfw.gz"
        dftracer.export(before, trace)
        with open_run(import_foreign([trace], tmp_path / "run")) as after:
            totals = (
                "SELECT op, count(*), sum(moved_bytes), count(DISTINCT path) FROM events"
                " GROUP BY op ORDER BY op"
            )
            assert after.sql(totals).fetchall() == before.sql(totals).fetchall()
            ours = {segment.key: segment.s for segment in report_of(measure(before)).wall}
            again = {segment.key: segment.s for segment in report_of(measure(after)).wall}
        assert again == pytest.approx(ours, abs=1e-3)

    def test_a_trace_of_another_writer_is_understood(self, tmp_path: Path) -> None:
        trace = foreign(
            tmp_path,
            {"name": "HH", "cat": "dftracer", "pid": 7, "tid": 8, "ph": "M"}
            | {"args": {"name": "node7", "value": "h"}},
            event("open64", fhash="f", hhash="h", ret=3),
            event("read", ts=1020, fhash="f", hhash="h", ret="4096", offset=8),
            event("read", ts=1040, fhash="f", hhash="h", ret=-1),
            event("__fxstat64", ts=1050, fhash="f", hhash="h", ret=0),
            event("fwrite", "STDIO", ts=1060, fhash="f", hhash="h", ret=9),
            event("frobnicate", ts=1070, hhash="h"),
            event("loop.iter", "data_loader", ts=1080, hhash="h", step=1),
            {"name": "FH", "cat": "dftracer", "pid": 7, "tid": 8, "ph": "M"}
            | {"args": {"name": "/data/x", "value": "f"}},
        )
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            rows = run.sql(
                "SELECT op, path, moved_bytes, errno, start_ns FROM events ORDER BY start_ns"
            ).fetchall()
            assert rows == [
                ("open", "/data/x", 0, 0, 0),
                ("read", "/data/x", 4096, 0, 20_000),
                ("read", "/data/x", 0, 5, 40_000),
                ("fstat", "/data/x", 0, 0, 50_000),
                ("fwrite", "/data/x", 9, 0, 60_000),
            ]
            names = run.sql("SELECT name FROM spans ORDER BY start_ns").fetchall()
            assert names == [("data wait",), ("wait cpu",)]  # that nobody told who made the batch
            assert run.sql("SELECT pid, host FROM processes").fetchall() == [(7, "node7")]
            gaps = {gap.what: gap.why for gap in report_of(measure(run)).gaps}
        assert gaps["POSIX frobnicate"] == "1 call that Penstock has no name for"

    def test_a_cut_trace_and_lines_that_are_none_are_told(self, tmp_path: Path) -> None:
        trace = foreign(tmp_path, event("read", ret=1), "{nonsense", '{"name": "read", "cat')
        trace.write_bytes(trace.read_bytes()[:-1])
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            state, why = measure(run).counts_state
        assert state == "incomplete"
        assert "1 line is no event" in why
        assert "the trace is cut" in why


def a_pass(pid: int, ppid: int | None, ts: int, *, loads: bool) -> list[Any]:
    """What a process of a foreign trace says: its start, and a batch or a step of 100 µs."""
    args = {} if ppid is None else {"ppid": ppid, "cmd_hash": "c"}
    said = [event("start", "dftracer", ts, 0, **args)]
    if loads:
        said.append(event("reader.next", "reader", ts + 10, 90))
        said.append(event("read", ts=ts + 20, dur=60, ret=4096, fname="/data/x"))
    else:
        said.append(event("fetch.iter", "dataloader", ts + 10, 90))
        said.append(event("compute", "compute", ts + 100, 100))
    return [one | {"pid": pid, "tid": pid} for one in said]


class TestWorkers:
    """Which process works for which, from parents or, without them, from who is there."""

    @pytest.mark.parametrize("tells_parents", [True, False])
    def test_processes_that_load_data_are_workers_of_who_trains(
        self, tells_parents: bool, tmp_path: Path
    ) -> None:
        parent = 7 if tells_parents else None
        trace = foreign(
            tmp_path,
            {"name": "SH", "cat": "dftracer", "pid": 7, "tid": 7, "ph": "M"}
            | {"args": {"name": "python train.py", "value": "c"}},
            *a_pass(7, 1 if tells_parents else None, 1000, loads=False),
            *a_pass(8, parent, 1010, loads=True),
            *a_pass(9, parent, 1015, loads=True),
            *a_pass(10, parent, 1300, loads=True),  # when the others have ended: again number 0
            *a_pass(7, parent, 1300, loads=False),
        )
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            measures = measure(run)
            rows = run.sql(
                'SELECT p.pid, s."index" FROM spans AS s JOIN processes AS p'
                " ON p.process = s.process WHERE s.name = 'worker' ORDER BY pid"
            ).fetchall()
        assert rows == [(8, 0), (9, 1), (10, 0)]
        assert measures.recording.workers == 3
        # The second wait, from 1310 to 1400 µs; meanwhile a worker reads from 1320 to 1380.
        assert measures.wait_parts == pytest.approx({"read": 60e-6, "not observed": 30e-6})
        report = report_of(measures)
        assert report.title == ("train.py" if tells_parents else "run")
        assert not [gap for gap in report.gaps if gap.what == "workers"]

    def test_who_loads_for_whom_is_not_guessed(self, tmp_path: Path) -> None:
        trace = foreign(
            tmp_path,
            *a_pass(7, None, 1000, loads=False),
            *a_pass(8, None, 1000, loads=False),
            *a_pass(9, None, 1010, loads=True),
        )
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            gaps = {gap.what: gap.why for gap in report_of(measure(run)).gaps}
        assert gaps["workers"] == "1 process loading data, the trace does not say for whom"


class TestHostile:
    @pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.95, 0.999])
    def test_a_trace_cut_anywhere_is_a_run_or_a_sentence(self, part: float, tmp_path: Path) -> None:
        trace = tmp_path / "t.pfw.gz"
        dftracer.export(made(training_job(4)), trace)
        data = trace.read_bytes()
        trace.write_bytes(data[: int(len(data) * part)])
        whole = [json.loads(line) for line in self.until_the_cut(trace) if line.startswith(b"{")]
        calls = sum(event["cat"] in ("POSIX", "STDIO") for event in whole if event["ph"] == "X")
        if not any(event["ph"] == "X" for event in whole):
            with pytest.raises(RunError, match=r"cut before its first event|nothing to import"):
                import_foreign([trace], tmp_path / "run")
            return
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            state, why = measure(run).counts_state
            assert (state, why.endswith("the trace is cut")) == ("incomplete", True)
            assert run.sql("SELECT count(*) FROM events").fetchall() == [(calls,)]

    def until_the_cut(self, trace: Path) -> list[bytes]:
        """The whole lines of it, as zlib alone unpacks them."""
        return zlib.decompressobj(31).decompress(trace.read_bytes()).split(b"\n")[:-1]

    def test_the_first_tenth_of_a_trace_has_its_first_calls(self, tmp_path: Path) -> None:
        """Names stand before the first call that uses them, not before all calls."""
        trace = tmp_path / "t.pfw.gz"
        dftracer.export(made(training_job(20)), trace)
        trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 10])
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            ((calls, named),) = run.sql("SELECT count(*), count(path) FROM events").fetchall()
        assert calls == named > 100

    @pytest.mark.parametrize("seed", range(5))
    def test_flipped_bytes_are_a_run_or_a_sentence(self, seed: int, tmp_path: Path) -> None:
        trace = tmp_path / "t.pfw"
        dftracer.export(made(small_job()), trace)
        data, rng = bytearray(trace.read_bytes()), random.Random(seed)
        for _ in range(40):
            data[rng.randrange(len(data))] = rng.randrange(256)
        trace.write_bytes(data)
        try:
            folder = import_foreign([trace], tmp_path / "run")
        except PenstockError:
            return
        with open_run(folder) as run:
            to_json(report_of(measure(run)))

    @pytest.mark.parametrize(
        "line",
        [
            event("read", ts=1 << 62),
            event("read", dur=-5),
            event("read", ts=float("nan")),
            event("read", ts="soon"),
            {**event("read"), "pid": {"a": 1}},
            "[" * 100_000,
            "7",
        ],
        ids=lambda line: str(line)[:40],
    )
    def test_what_cannot_be_is_counted_and_left_out(self, line: Any, tmp_path: Path) -> None:
        trace = foreign(tmp_path, event("write", ret=5), line)
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            assert run.sql("SELECT op FROM events").fetchall() == [("write",)]
            assert measure(run).counts_state == ("incomplete", "1 line is no event")

    def test_numbers_beyond_all_reason_are_not_known(self, tmp_path: Path) -> None:
        trace = foreign(tmp_path, event("read", ret=1, offset=1 << 70, count=-3))
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            assert run.sql("SELECT offset_bytes, asked_bytes FROM events")[0] == (None, None)

    def test_a_trace_without_events_is_refused(self, tmp_path: Path) -> None:
        head = {"name": "FH", "cat": "dftracer", "pid": 1, "ph": "M", "args": {}}
        with pytest.raises(RunError, match="has no event of DFTracer in it"):
            import_foreign([foreign(tmp_path, head)], tmp_path / "run")


def penstock(*words: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


class TestCommands:
    def test_import_tells_a_format_by_its_contents(self, tmp_path: Path) -> None:
        trace = tmp_path / "misnamed.darshan"
        dftracer.export(made(small_job()), tmp_path / "t.pfw.gz")
        (tmp_path / "t.pfw.gz").rename(trace)
        done = penstock("import", trace, "-o", "run", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "penstock: made run; penstock report run\n"
        done = penstock("report", "run", cwd=tmp_path)
        assert "2 steps" in done.stdout
        for form in ("dftracer", "darshan"):
            done = penstock("export", "run", "--to", form, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        assert (tmp_path / "run.pfw.gz").exists()
        assert (tmp_path / "run.darshan").exists()

    def test_a_foreign_file_is_refused_in_a_line(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("nothing")
        done = penstock("import", "notes.txt", "-o", "run", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("penstock: notes.txt: is neither a log of Darshan")
        assert done.stderr.count("\n") == 1

    def test_a_folder_that_is_not_empty_is_left_alone(self, tmp_path: Path) -> None:
        dftracer.export(made(small_job()), tmp_path / "t.pfw")
        done = penstock("import", "t.pfw", "-o", ".", cwd=tmp_path)
        assert done.returncode == 2
        assert "not empty" in done.stderr
