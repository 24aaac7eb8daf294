"""DFTracer's traces, out and in, and the two commands for foreign formats."""

import gzip
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, RunError
from penstock.explain.measures import measure
from penstock.explain.report import report_of, to_json
from penstock.interop import dftracer
from penstock.interop.foreign import import_foreign
from penstock.runs.run import open_run
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

    def test_a_request_is_an_event_and_a_connection_has_no_place(self, tmp_path: Path) -> None:
        run = small_job()
        run.request(10 * MS, 30 * MS, "/data/0", thread=1, size=4096, range_offset_bytes=64)
        run.requested("store.example:443", 40 * MS, 5 * MS, path="/data/1", status=None,
                      error="timeout", first_byte_ns=None)  # fmt: skip
        run.requested("store.example:443", 50 * MS, 9 * MS, requests=7)
        run.connected("store.example:443", received_bytes=4096, opened_ns=10 * MS)
        trace = tmp_path / "t.pfw"
        said = dftracer.export(made(run), trace)
        assert said[0].startswith("1 connection with bytes and times")
        assert said[1].startswith("7 requests that are known as sums only")
        first, failed = [e for e in events(trace) if e["cat"] == "http"]
        assert (first["name"], first["ts"], first["dur"]) == ("GET", 10_000, 20_000)
        del first["args"]["hhash"], failed["args"]["hhash"]
        assert first["args"] == {
            "endpoint": "store.example:443", "path": "/data/0", "status": 200, "ret": 4096,
            "offset": 64, "first_byte": 18_000,
        }  # fmt: skip
        assert failed["args"] == {"endpoint": "store.example:443", "path": "/data/1", "ret": 0}

    def test_a_place_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="choose a file that can be written"):
            dftracer.export(made(small_job()), tmp_path / "no" / "t.pfw")


def foreign(tmp_path: Path, *lines: dict[str, Any] | str) -> Path:
    trace = tmp_path / "foreign.pfw"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    trace.write_text("\n".join(["[", *text, ""]))
    return trace


def lines_of(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    """A trace as version 2.2 writes it: a line each, without brackets."""
    trace = tmp_path / "trace.pfw"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
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

    def test_a_trace_of_version_2_2_is_read(self, tmp_path: Path) -> None:
        """No bracket, a number for the phase, a type: the beginning of a trace of the wheel."""
        head = {"cat": "dftracer", "type": 1, "pid": 7, "tid": 7, "ph": 4}
        unit = {"hhash": "h", "name": "time_metric", "value": "US"}
        file = {"hhash": "h", "name": "/data/x", "value": "f"}
        call = {"cat": "POSIX", "type": 3, "pid": 7, "tid": 7, "dur": 2, "ph": 1}
        args = {"hhash": "h", "fhash": "f"}
        trace = lines_of(
            tmp_path,
            {"name": "HH", **head, "args": {"hhash": "h", "name": "vm", "value": "h"}},
            {"name": "CM", **head, "args": unit},
            {"name": "start", **head, "ph": 1, "id": 1, "ts": 900, "dur": 0, "args": {"ppid": 1}},
            {"name": "FH", **head, "args": file},
            {"id": 2, "name": "open64", **call, "ts": 1000, "args": {**args, "flags": 524288}},
            {"id": 3, "name": "lseek64", **call, "ts": 1010, "args": {**args, "ret": 0}},
            {"id": 4, "name": "read", **call, "ts": 1020, "args": {**args, "ret": 4096}},
            {"id": 5, "name": "read", **call, "ts": 1030, "args": {**args, "ret": 1304}},
        )
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            assert run.sql(
                "SELECT op, path, moved_bytes, start_ns, duration_ns FROM events ORDER BY start_ns"
            ).fetchall() == [
                ("open", "/data/x", 0, 100_000, 2000),
                ("lseek", "/data/x", 0, 110_000, 2000),
                ("read", "/data/x", 4096, 120_000, 2000),
                ("read", "/data/x", 1304, 130_000, 2000),
            ]
            assert measure(run).counts_state == ("measured", "")

    @pytest.mark.parametrize(("given", "unit_ns"), [("NS", 1), ("US", 1000), ("MS", 1_000_000)])
    def test_times_are_in_the_unit_that_the_trace_names(
        self, given: str, unit_ns: int, tmp_path: Path
    ) -> None:
        began = 1_795_640_317_000_000_000 // unit_ns
        trace = lines_of(
            tmp_path,
            {"name": "CM", "cat": "dftracer", "type": 1, "pid": 7, "tid": 8, "ph": 4}
            | {"args": {"name": "time_metric", "value": given}},
            event("read", ts=began, dur=0, ret=1) | {"ph": 1},
            event("read", ts=began + 5, dur=3, ret=1) | {"ph": 1},
        )
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            rows = run.sql("SELECT start_ns, duration_ns FROM events ORDER BY start_ns").fetchall()
            gaps = [gap.what for gap in report_of(measure(run)).gaps]
            began_ns = run.start_unix_ns
        assert rows == [(0, 0), (5 * unit_ns, 3 * unit_ns)]
        assert began_ns == began * unit_ns
        assert ("times below milliseconds" in gaps) == (given == "MS")

    def test_calls_that_were_aggregated_are_counted_and_told(self, tmp_path: Path) -> None:
        def sums(name: str, cat: str, **args: Any) -> Any:
            return {"name": name, "cat": cat, "type": 3, "ts": 1000, "ph": 3, "pid": 7, "tid": 8,
                    "args": args}  # fmt: skip

        trace = lines_of(
            tmp_path,
            sums("read", "POSIX", dft_cnt=12, dur_sum=11, dur_min=0, dur_max=3, ret_sum=20_000,
                 ret_min=0, ret_max=4096),
            sums("write", "POSIX", dft_cnt=3, dur=5, ret=100),
            sums("pread64", "POSIX", dft_cnt=2, dur_sum=9, ret_sum=99, ret_min=-1, ret_max=100),
            sums("compute", "compute", dft_cnt=4, dur_sum=61),
            sums("cpu", "sys", user_pct=12.5) | {"ph": 2},
        )  # fmt: skip
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            rows = run.sql(
                "SELECT op, calls, moved_bytes, duration_ns FROM counters ORDER BY op"
            ).fetchall()
            assert rows == [
                ("pread", 2, 0, 9000),  # one failed: how much the other moved is not known
                ("read", 12, 20_000, 11_000),
                ("write", 3, 300, 15_000),
            ]
            report = report_of(measure(run))
            gaps = {gap.what: gap.why for gap in report.gaps}
        assert gaps["single calls"] == "aggregated by DFTracer: 17 calls without their moments"
        assert gaps["compute compute"].startswith("4 spans, 0.000061 s together, aggregated")
        assert gaps["samples of the system"].startswith("1 in the trace, of 1 counter")
        read = next(
            fact for fact in (*report.stretches, *report.reading) if fact.key == "read_bytes"
        )
        assert (read.number.value, read.number.state) == (None, "not measured")

    def test_without_results_the_bytes_are_not_known(self, tmp_path: Path) -> None:
        """As DFTracer writes by default: names and times, and nothing else."""
        trace = lines_of(tmp_path, event("read") | {"ph": 1}, event("close", ts=1020) | {"ph": 1})
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            rows = run.sql("SELECT op, moved_bytes FROM events ORDER BY start_ns").fetchall()
            assert rows == [("read", None), ("close", 0)]
            state, why = measure(run).counts_state
            gaps = {gap.what for gap in report_of(measure(run)).gaps}
        assert state == "incomplete"
        assert why.startswith("reads and writes have no bytes in the trace")
        assert "files" in gaps

    def test_traces_without_a_byte_are_told(self, tmp_path: Path) -> None:
        whole = lines_of(tmp_path, event("read", ret=1))
        empty = tmp_path / "child-fork.pfw.gz"
        empty.touch()
        (tmp_path / "notes.txt").touch()
        for sources in ([whole, empty], [tmp_path]):
            folder = tmp_path / f"run-{len(sources)}"
            with open_run(import_foreign(sources, folder)) as run:
                state, why = measure(run).counts_state
            assert state == "incomplete"
            assert why.startswith("1 trace is empty: DFTracer made the file")
        with pytest.raises(RunError, match="is empty; nothing to import"):
            import_foreign([empty], tmp_path / "none")

    def test_a_phase_that_is_not_known_is_told(self, tmp_path: Path) -> None:
        trace = lines_of(tmp_path, event("read", ret=1), event("read", ts=1020) | {"ph": 9})
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            assert measure(run).counts_state == (
                "incomplete", "1 line has a phase unknown to Penstock, 9"
            )  # fmt: skip

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


def names_of(run: Any) -> dict[str, int]:
    """How many spans have each name."""
    return dict(run.sql("SELECT name, count(*) FROM spans GROUP BY name").fetchall())


class TestLayers:
    """A category says where time goes; steps and checkpoints are counted by names."""

    def test_making_the_framework_and_the_checkpointer_is_neither_step_nor_save(
        self, tmp_path: Path
    ) -> None:
        framework, checkpoint = "TorchFramework", "PyTorchCheckpointing"
        trace = foreign(
            tmp_path,
            event(f"{framework}.__init__", "ai_framework", 0, 5),
            event(f"{framework}.get_loader", "ai_framework", 10, 5),
            event(f"{framework}.compute", "ai_framework", 20, 1_000_000),
            event(f"{checkpoint}.__init__", "checkpoint", 1_000_100, 5),
        )
        with open_run(import_foreign([trace], tmp_path / "run")) as run:
            measures = measure(run)
            report = report_of(measures)
        assert (measures.training.steps, len(measures.checkpoints)) == (1, 0)
        # No wait is in the trace: whether the step waited is not known.
        assert report.verdict.headline.startswith("NOT JUDGED")
        stall = report.verdict.stall
        assert (stall.value, stall.state) == (None, "not measured")

    def test_the_epochs_of_dlio_are_its_computes_and_its_saves(self, tmp_path: Path) -> None:
        """Two epochs of 100 steps, four saves each, of two parts: 200 computes, 8 saves."""
        lines, at = [event("checkpoint.init", "checkpoint", 0, 5)], 100
        for step in range(200):
            lines.append(event("fetch.iter", "dataloader", at, 10, count=step % 100 + 1))
            lines.append(event("TorchFramework.trace_object", "ai_framework", at + 11, 1))
            lines.append(event("compute", "compute", at + 15, 80, step=step % 100 + 1))
            lines.append(event("fetch.block", "dataloader", at + 10, 89, count=step % 100 + 1))
            at += 100
            if step % 25 == 24:
                lines.append(event("capture", "checkpoint", at + 5, 30))
                lines.append(event("get_tensor_core", "checkpoint", at + 6, 10))
                lines.append(event("capture", "checkpoint", at + 40, 51))  # cut to microseconds
                lines.append(event("PyTorchCheckpointing.save_checkpoint", "checkpoint", at, 90))
                at += 100
        lines.append(event("restart", "checkpoint", at, 50))
        lines.append(event("PyTorchCheckpointing.finalize", "checkpoint", at + 60, 5))
        with open_run(import_foreign([foreign(tmp_path, *lines)], tmp_path / "run")) as run:
            measures = measure(run)
            spans = names_of(run)
        assert (measures.training.steps, len(measures.checkpoints)) == (200, 8)
        assert (spans["data wait"], spans["restore"], spans["capture"]) == (200, 1, 16)
        assert measures.training.checkpoint_block_s == pytest.approx(8 * 90e-6)

    def test_a_loop_that_marks_parts_of_a_step_is_counted_by_its_batches(
        self, tmp_path: Path
    ) -> None:
        lines = []
        for at in range(0, 400, 100):
            lines.append(event("fetch.iter", "dataloader", at, 10))
            lines.append(event("forward", "compute", at + 20, 20))
            lines.append(event("backward", "compute", at + 50, 20))
            lines.append(event("step", "compute", at + 80, 10))
            lines.append(event("fetch.block", "dataloader", at + 10, 85))
        with open_run(import_foreign([foreign(tmp_path, *lines)], tmp_path / "run")) as run:
            assert measure(run).training.steps == 4
        whole = [line for line in lines if line["name"] != "fetch.block"]
        with open_run(import_foreign([foreign(tmp_path, *whole)], tmp_path / "bare")) as run:
            assert measure(run).training.steps == 4  # an optimizer's step is in each

    def test_parts_of_a_step_without_a_loop_are_no_steps(self, tmp_path: Path) -> None:
        lines = [event("forward", "compute", 10, 5), event("backward", "compute", 20, 5)]
        with open_run(import_foreign([foreign(tmp_path, *lines)], tmp_path / "run")) as run:
            measures = measure(run)
            gaps = {gap.what: gap.why for gap in report_of(measures).gaps}
        assert measures.training.steps == 0
        assert gaps["steps"] == "none of the spans backward, forward is an iteration"

    def test_a_foreign_span_takes_no_name_of_ours(self, tmp_path: Path) -> None:
        """A worker of another tool, or a paused loop, is no loader worker of Penstock's."""
        lines = [event(name, "app", at) for at, name in enumerate(("worker", "fetch", "paused"))]
        with open_run(import_foreign([foreign(tmp_path, *lines)], tmp_path / "run")) as run:
            assert names_of(run) == {"app.worker": 1, "app.fetch": 1, "app.paused": 1}


needs_wheel = pytest.mark.skipif(
    find_spec("dftracer") is None, reason="dftracer is not installed: its wheels are for x86-64"
)


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., list[Path]]:
    """Runs workloads/dftracer_job.py, for three epochs, under the installed DFTracer."""

    def run(**switches: str) -> list[Path]:
        folder = tmp_path / "data"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).write_bytes(bytes(5000))
        program = Path(__file__).parent / "workloads" / "dftracer_job.py"
        done = subprocess.run(
            [sys.executable, program, tmp_path / "trace", folder, "3"],
            env=os.environ | {"DFTRACER_ENABLE": "1"} | switches,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return sorted(tmp_path.glob("trace*.pfw*"))

    return run


# What the comment of the workload says, for three epochs; the child's file is the seventh.
CALLS = [("close", 14, 0), ("open", 14, 0), ("read", 22, 50_000), ("write", 6, 90_000)]


@needs_wheel
class TestWheel:
    """Traces that the newest DFTracer writes, of known calls and spans."""

    def test_calls_steps_waits_and_saves_are_those_of_the_program(
        self, traced: Callable[..., list[Path]], tmp_path: Path
    ) -> None:
        traces = traced(DFTRACER_INC_METADATA="1")
        assert len(traces) == 2  # the job's and its child's
        with open_run(import_foreign(traces, tmp_path / "run")) as run:
            calls = (
                "SELECT op, count(*), sum(moved_bytes) FROM events WHERE path LIKE '%/data/%'"
                " GROUP BY op ORDER BY op"
            )
            assert run.sql(calls).fetchall() == CALLS
            measures = measure(run)
            spans = names_of(run)
            assert run.sql("SELECT count(*) FROM processes WHERE parent IS NULL")[0] == (1,)
        assert (measures.training.steps, len(measures.checkpoints)) == (6, 3)
        assert (spans["data wait"], spans["restore"]) == (6, 1)

    def test_nanoseconds_are_nanoseconds(
        self, traced: Callable[..., list[Path]], tmp_path: Path
    ) -> None:
        traces = traced(DFTRACER_INC_METADATA="1", DFTRACER_TIME_METRIC="NS")
        with open_run(import_foreign(traces, tmp_path / "run")) as run:
            measures = measure(run)
            assert measures.training.steps == 6
            assert measures.counts_state == ("measured", "")
            assert abs(run.start_unix_ns / 1e9 - traces[0].stat().st_mtime) < 3600

    def test_aggregated_calls_are_the_same_sums(
        self, traced: Callable[..., list[Path]], tmp_path: Path
    ) -> None:
        traces = traced(DFTRACER_INC_METADATA="1", DFTRACER_ENABLE_AGGREGATION="1")
        with open_run(import_foreign(traces, tmp_path / "run")) as run:
            calls = (
                "SELECT op, sum(calls)::BIGINT, sum(moved_bytes)::BIGINT FROM counters"
                " WHERE op <> 'fork' GROUP BY op ORDER BY op"
            )
            assert run.sql(calls).fetchall() == CALLS
            gaps = {gap.what: gap.why for gap in report_of(measure(run)).gaps}
        assert gaps["compute compute"].startswith("6 spans")
        assert gaps["checkpoint capture"].startswith("6 spans")

    def test_without_metadata_bytes_and_files_are_not_known(
        self, traced: Callable[..., list[Path]], tmp_path: Path
    ) -> None:
        with open_run(import_foreign(traced(), tmp_path / "run")) as run:
            measures = measure(run)
            reads = run.sql("SELECT count(*), sum(moved_bytes) FROM events WHERE op = 'read'")
            assert reads.fetchall() == [(22, None)]
        assert (measures.training.steps, len(measures.checkpoints)) == (6, 3)
        assert measures.counts_state[0] == "incomplete"


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
