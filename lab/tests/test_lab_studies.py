"""Studies: kept and continued results, the meaning of different, and the shapes of results."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import PENSTOCK
from penstock import cli
from penstock.errors import MissingDependency, RunError, TierError
from penstock.places import tiers
from penstock.recording import machine
from penstock.runs.run import open_run
from penstock_lab import (
    beside,
    control,
    data,
    inputs,
    ladder,
    needs,
    pipeline,
    places,
    provenance,
    requests,
    scale,
    sets,
    storage,
    study,
    windows,
)
from penstock_lab.folders import scratch
from penstock_lab.pipeline import PipelineJob
from penstock_lab.places import Place, PlaceError, remarks_of
from penstock_lab.study import KeptRuns, Measure, Point, Study, StudyResult
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import study_page

ONE_BY_ONE_HZ = 1050  # at most, on a tier of a millisecond

CASES = [{"place": place, "threads": n} for place in ("disk", "moon") for n in (1, 2)]
STUDY = Study(
    "read", "A study", ("place", "threads"),
    (Measure("rate", "rate", "count", 1), Measure("wait", "wait", "s", -1)),
)  # fmt: skip


@contextmanager
def at(name: str) -> Iterator[Place]:
    if name == "moon":
        raise PlaceError("no way there")
    yield Place(name, Path("/"))


def carried(kept: KeptRuns, run: Any, repeats: int = 2, **options: Any) -> Any:
    return study.carried_out(kept, CASES, run, at, repeats=repeats, seed=1, **options)


# Kept runs


def test_every_case_is_run_once_a_repeat_and_the_first_once_for_nothing(tmp_path: Path) -> None:
    seen: list[int] = []

    def run(place: Place, case: dict[str, Any]) -> dict[str, float]:
        seen.append(case["threads"])
        return {"rate": 10.0 * len(seen)}

    rows, remarks = carried(KeptRuns(tmp_path, {"x": 1}), run)
    assert len(seen) == 1 + 4
    assert 10.0 not in [row["rate"] for row in rows]
    assert sorted(row["threads"] for row in rows) == [1, 1, 2, 2]
    assert remarks == ["moon: left out: no way there"]
    # Remarks describe only places with a result.
    assert remarks_of(("disk", "latency"), rows) == ["`disk`: the disk as it is"]


def test_programs_that_are_compared_run_one_after_the_other(tmp_path: Path) -> None:
    cases = [
        {"place": "disk", "by": by, "threads": n} for by in ("theirs", "ours") for n in range(20)
    ]
    seen: list[tuple[str, int]] = []

    def run(place: Place, case: dict[str, Any]) -> dict[str, float]:
        seen.append((case["by"], case["threads"]))
        return {"rate": 1.0}

    study.carried_out(
        KeptRuns(tmp_path, {}), cases, run, at, repeats=2, seed=1, is_warmed=False, together="by"
    )
    assert len(set(seen)) == len(cases)
    pairs = [(first, second) for first, second in zip(seen[::2], seen[1::2], strict=True)]
    assert all(first[1] == second[1] for first, second in pairs)
    assert [first[0] for first, _ in pairs] == ["theirs"] * 20 + ["ours"] * 20
    assert [first[1] for first, _ in pairs[:20]] != list(range(20))  # the others are mixed


def test_an_interrupted_study_goes_on_where_it_ended(tmp_path: Path) -> None:
    seen: list[Any] = []

    def run(place: Place, case: dict[str, Any]) -> dict[str, float]:
        seen.append(case)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return {"rate": float(len(seen))}

    with pytest.raises(KeyboardInterrupt):
        carried(KeptRuns(tmp_path, {"x": 1}), run)
    with open(tmp_path / "runs.jsonl", "a") as file:
        file.write('{"place": "di')  # killed during the write
    rows, _ = carried(KeptRuns(tmp_path, {"x": 1}), run)
    assert len(seen) == 4 + 1 + 2
    assert len(rows) == 4
    assert carried(KeptRuns(tmp_path, {"x": 1}), run)[0] == rows
    assert len(seen) == 7
    with pytest.raises(TierError, match="holds runs of other settings or data"):
        KeptRuns(tmp_path, {"x": 2})


def test_the_machine_is_that_of_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "machine_of", lambda path: {"unix_s": 1})
    kept = KeptRuns(tmp_path, {})
    assert kept.machine() == {"unix_s": 1}
    monkeypatch.setattr(study, "machine_of", lambda path: {"unix_s": 2})
    assert KeptRuns(tmp_path, {}).machine() == {"unix_s": 2}  # no run was made then
    kept.add({"rate": 1.0})
    monkeypatch.setattr(study, "machine_of", lambda path: {"unix_s": 3})
    assert KeptRuns(tmp_path, {}).machine() == {"unix_s": 2}


def test_a_run_without_a_result_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    def run(place: Place, case: dict[str, Any]) -> dict[str, float]:
        if case["threads"] == 2:
            raise RunError("out of memory")
        return {"rate": 1.0}

    rows, remarks = carried(KeptRuns(tmp_path, {}), run, repeats=1)
    assert [row["threads"] for row in rows] == [1]
    assert "place disk, threads 2: no result: out of memory" in remarks


def test_a_repeat_whose_recording_came_to_nothing_is_a_remark(tmp_path: Path) -> None:
    """open_run's errors for an empty folder, and for a damaged log, end no study."""
    folders = {1: tmp_path / "empty", 2: tmp_path / "damaged"}
    for folder in folders.values():
        folder.mkdir()
    (folders[2] / "a.1.events").write_bytes(b"no log of Penstock")

    def run(place: Place, case: dict[str, Any]) -> dict[str, float]:
        if folder := folders.get(case["threads"]):
            with open_run(folder) as recorded:
                return {"rate": len(recorded.sql("FROM events").fetchall())}
        return {"rate": 1.0}

    rows, remarks = carried(KeptRuns(tmp_path / "study", {}), run, repeats=1)
    assert rows == []
    results = [remark.partition(": no result: ") for remark in remarks]
    assert [case for case, is_one, _ in results if is_one] == [
        "place disk, threads 1",
        "place disk, threads 2",
    ]


# Points, and output


def found_of(rates: dict[int, list[float]], folder: Path | None = None) -> StudyResult:
    rows = [
        {"place": "disk", "threads": n, "repeat": repeat, "rate": rate, "wait": 1 / rate}
        for n, some in rates.items()
        for repeat, rate in enumerate(some)
    ]
    points = study.points_of(STUDY, rows, CASES)
    return StudyResult(STUDY, "ci", {"seed": 1}, {"cpus": "2"}, points, rows, ["a remark"], {})


def test_the_median_and_the_spread_are_shown_and_read_back(tmp_path: Path) -> None:
    result = found_of({1: [10.0, 30.0, 20.0], 2: [50.0]})
    assert [(p["rate"], p.least["rate"], p.most["rate"]) for p in result.points] == [
        (20.0, 10.0, 30.0),
        (50.0, 50.0, 50.0),
    ]
    written = study.write_found(tmp_path, result)
    assert [path.name for path in written] == ["read.json", "read.csv", "read.md"]
    assert "| disk | 1 | 20 (10 to 30) | 50.0 ms |" in written[2].read_text()
    assert len(written[1].read_text().splitlines()) == 1 + 4
    assert study.read_found(written[0]).points == result.points
    assert study.read_found(written[0]).measures == STUDY.measures


def test_the_machine_has_the_disk_below_the_path_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tiers.mount_of(tmp_path).point
    facts = [("cpus", "2"), ("beneath", f"{ours}\tsda, turns"), ("beneath", "/mnt/usb\tsdb"),
             ("flash", "/mnt/nvme\tnvme0\t5"), ("mount", "/mnt/usb\text4\t/dev/sdb")]  # fmt: skip
    monkeypatch.setattr(machine, "facts", lambda: facts)
    assert study.host_of(tmp_path) == {"cpus": "2", "beneath": "sda, turns"}
    described = study.machine_of(tmp_path)
    assert described["beneath"] == "sda, turns"
    assert "flash" not in described


def test_the_spread_stands_where_there_is_one(tmp_path: Path) -> None:
    def halved(points: list[Point]) -> list[Point]:
        return [study.with_value(point, "rate", 0.5) for point in points]

    derived = replace(STUDY, derive=halved)
    rows = [{"place": "disk", "threads": 1, "rate": n, "wait": 0.01 * n} for n in (1, 2, 3)]
    cases = [{"place": "disk", "threads": 1}]
    points = study.points_of(derived, rows, cases)
    text = study.markdown_of(StudyResult(derived, "ci", {}, {}, points, rows, [], {}))
    assert "| disk | 0.50 | 20.0 ms (10.0 ms to 30.0 ms) |" in text


def test_the_machine_is_told_as_people_read_it() -> None:
    facts = {
        "cpus": "2", "memory_bytes": "25276514304", "cpu": "EPYC", "read_ahead_kib": 8192,
        "beneath": "/\tvda, turns, or does not say, read-ahead 8192 KiB", "unix_s": 0, "x": None,
    }  # fmt: skip
    assert study.machine_table(facts).splitlines()[2:] == [
        "| processors | 2 x EPYC |", "| memory | 25.3 GB |", "| read-ahead, KiB | 8192 |",
        "| disk | vda (may seek; read-ahead 8192 KiB) |", "| begun | 1970-01-01 00:00 UTC |",
    ]  # fmt: skip
    said = study_page.machine_words(facts)
    assert said.startswith("Machine: processors 2 x EPYC, memory 25.3 GB,")
    table = study.machine_table(study.machine_of(Path("/tmp")))
    assert re.search(r"\| memory \| \d[\d.]* [MGT]B \|", table)


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="no run gave a number: a remark"):
        study.write_found(tmp_path, found_of({}))


@given(
    st.binary(max_size=80)
    | st.sampled_from(
        [b"{}", b"[]", b"null", b'{"points": [1], "measures": []}', b'{"points": {}}']
    )
)
@settings(max_examples=40)
def test_what_is_no_result_is_refused(content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with pytest.raises(TierError, match="no result of a study"):
            study.read_found(Path(file.name))


# Two results side by side


def test_what_lies_within_the_spread_is_the_same(tmp_path: Path) -> None:
    pairs = {
        "a": {1: [100.0, 90.0, 110.0], 2: [200.0, 199.0, 201.0]},
        "b": {1: [108.0, 95.0, 120.0], 2: [300.0, 290.0, 310.0]},
    }
    paths = [
        study.write_found(tmp_path / name, found_of(rates))[0] for name, rates in pairs.items()
    ]
    comparison = beside.compared(paths[0], paths[1])
    verdicts = {
        (difference.factors["threads"], difference.measure): difference.verdict
        for difference in comparison.differences
    }
    assert verdicts == {
        (1, "rate"): "same", (1, "wait"): "same", (2, "rate"): "better", (2, "wait"): "better",
    }  # fmt: skip
    again = beside.compared(paths[1], paths[0])
    assert [difference.verdict for difference in again.differences].count("worse") == 2
    assert comparison.differences[2].ratio == pytest.approx(1.5)
    said = beside.markdown_of(comparison, ("a", "b"))
    assert "| disk | 2 | rate | 200 | 300 | 1.50x | better |" in said


def test_results_of_other_settings_say_so_before_any_verdict(tmp_path: Path) -> None:
    rates = {1: [100.0, 90.0, 110.0]}
    for name, share in (("a", 0.1), ("b", 1.0)):
        when = {"mtime_ns": 5 if name == "a" else 6}  # of a ladder's LMDB
        result = replace(found_of(rates), settings={"scale": share, "seed": 1} | when)
        study.write_found(tmp_path / name, result)
    compared = beside.compared(tmp_path / "a" / "read.json", tmp_path / "b" / "read.json")
    assert compared.settings == {"scale": (0.1, 1.0)}
    said = beside.markdown_of(compared, ("a", "b"))
    assert "* They were not asked for the same (scale): a verdict may be of that." in said
    same = beside.compared(tmp_path / "a" / "read.json", tmp_path / "a" / "read.json")
    assert "not asked" not in beside.markdown_of(same, ("a", "a"))


def test_a_machine_is_the_same_where_people_would_say_so(tmp_path: Path) -> None:
    """Bytes that a kernel kept for itself, a mount that older results named, a setting."""
    machines = [
        {"memory_bytes": "25276514304", "beneath": "/\tvda, mq-deadline", "steps": 10, "cpus": "2"},
        {"memory_bytes": "25276510208", "beneath": "vda, mq-deadline", "steps": 20, "cpus": "4"},
    ]  # fmt: skip
    for name, machine_facts in zip("ab", machines, strict=True):
        result = replace(
            found_of({1: [100.0]}), machine=machine_facts,
            settings={"n_steps": machine_facts["steps"]},
        )  # fmt: skip
        study.write_found(tmp_path / name, result)
    compared = beside.compared(tmp_path / "a" / "read.json", tmp_path / "b" / "read.json")
    assert compared.machine == {"processors": ("2", "4")}
    assert compared.settings == {"n_steps": (10, 20)}


def judged(a: Point, b: Point, better: int = -1) -> Any:
    return beside._difference(Measure("stall", "stall", "share", better), a, b)


def point_of(value: Any, least: Any = None, most: Any = None, repeats: int = 3) -> Point:
    return Point({"place": "disk"}, repeats, {"stall": value}, {"stall": least}, {"stall": most})


@pytest.mark.parametrize(
    ("a", "b", "verdict", "ratio"),
    [
        # A range from 0 begins there.
        (point_of(0.3, 0.0, 0.5), point_of(0.05, 0.04, 0.06), "same", 1 / 6),
        (point_of(20, 10, 95), point_of(100, 0, 300), "same", 5.0),
        # Twice as much as nothing is nothing: there is no ratio, and a difference.
        (point_of(0.0, 0.0, 0.0), point_of(0.9, 0.8, 0.95), "worse", None),
        (point_of(0.9, 0.8, 0.95), point_of(0.0, 0.0, 0.0), "better", 0.0),
        (point_of(0.0, 0.0, 0.0), point_of(0.0, 0.0, 0.0), "same", None),
        (point_of(0.5, 0.4, 0.6), point_of(None), "only in A", None),
        (point_of(None), point_of(0.5, 0.4, 0.6), "only in B", None),
        # A single run, and a number computed from several cases, have no spread.
        (point_of(1.0, 1.0, 1.0, 1), point_of(2.0, 2.0, 2.0, 1), "no spread", 2.0),
        (point_of(1.0), point_of(2.0), "no spread", 2.0),
        (point_of(1.0, 0.9, 1.1), point_of(2.0), "no spread", 2.0),
        (point_of(1.0), point_of(1.04), "same", 1.04),
        (point_of(-1.0, -1.0, -1.0), point_of(2.0, 2.0, 2.0), "worse", -2.0),
    ],
)
def test_a_difference_is_judged_by_what_is_known(
    a: Point, b: Point, verdict: str, ratio: float | None
) -> None:
    difference = judged(a, b)
    assert difference.verdict == verdict
    assert difference.ratio == (None if ratio is None else pytest.approx(ratio))


def test_what_only_one_result_has_and_what_has_no_spread_is_shown(tmp_path: Path) -> None:
    first = study.write_found(tmp_path / "a", found_of({1: [100.0], 2: [100.0, 101.0]}))[0]
    second = study.write_found(tmp_path / "b", found_of({1: [300.0], 2: [200.0, 201.0]}))[0]
    value = json.loads(second.read_bytes())
    value["points"][1]["values"]["wait"] = None
    second.write_text(json.dumps(value))
    said = beside.markdown_of(beside.compared(first, second), ("a", "b"))
    assert "| disk | 1 | rate | 100 | 300 | 3.00x | no spread |" in said
    assert "| – | – | only in A |" in said
    assert "| better | same | worse | no spread | only in A |" in said


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize("which", ["values", "least", "repeats"])
def test_what_is_no_finite_number_is_refused(number: str, which: str, tmp_path: Path) -> None:
    path = study.write_found(tmp_path, found_of({1: [1.0, 2.0]}))[0]
    value = json.loads(path.read_bytes())
    if which == "repeats":
        value["points"][0]["repeats"] = "HERE"
    else:
        value["points"][0][which]["rate"] = 12345.0
    path.write_text(json.dumps(value).replace('"HERE"', number).replace("12345.0", number))
    with pytest.raises(TierError, match="no finite number, so nothing to compare"):
        beside.compared(path, path)


def test_results_of_two_studies_and_without_a_common_case_are_refused(tmp_path: Path) -> None:
    a = study.write_found(tmp_path / "a", found_of({1: [1.0]}))[0]
    other = found_of({1: [1.0]})
    b = study.write_found(
        tmp_path / "b", replace(other, study=replace(STUDY, name="train"))
    )[0]  # fmt: skip
    with pytest.raises(TierError, match=r"of the study read, .* of train"):
        beside.compared(a, b)
    c = study.write_found(tmp_path / "c", found_of({2: [1.0]}))[0]
    said = "no case in common: threads is 1 in one, 2 in the other; run both with the same options"
    with pytest.raises(TierError, match=said):
        beside.compared(a, c)


def test_a_study_whose_numbers_are_neither_better_nor_worse_has_no_empty_table(
    tmp_path: Path,
) -> None:
    result = found_of({1: [1.0]})
    neither = tuple(replace(measure, better=0) for measure in STUDY.measures)
    result = replace(result, study=replace(STUDY, measures=neither, derive=None))
    path = study.write_found(tmp_path, result)[0]
    said = beside.markdown_of(beside.compared(path, path), ("a", "b"))
    assert said == (
        "`read`: A is a, B is b.\n\nNo number of this study is better or worse than another.\n"
    )


# A program that cannot run


@pytest.mark.parametrize(
    ("missing", "job", "said"),
    [
        ("torch", {"loader": "torch"}, "the loader torch needs PyTorch: pip install torch"),
        ("torch", {"model": "alexnet"}, "the model alexnet needs PyTorch: pip install torch"),
        ("tensorflow", {"loader": "tf.data"}, "TensorFlow: pip install tensorflow-cpu"),
    ],
)
def test_what_a_program_lacks_is_named(
    missing: str, job: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / f"{missing}.py").write_text(
        f"raise ModuleNotFoundError('No module named {missing}', name='{missing}')"
    )
    (tmp_path / "file").write_bytes(bytes(4096))
    path = os.pathsep.join([str(tmp_path), places.OUR_PATH["PYTHONPATH"]])
    asked = {"files": [str(tmp_path / "file")], "work": "read"} | job
    with pytest.raises(TierError, match=f"pipeline: cannot be run: .*{said}"):
        places.answer_of(
            "penstock_lab.pipeline", asked, Place("disk", tmp_path), lambda: None, 60.0,
            environment={"PYTHONPATH": path},
        )  # fmt: skip


def test_what_a_program_said_before_it_ended_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('no way')")
    job = {"files": ["x" * 1000] * 1000}  # more than a pipe holds
    with pytest.raises(TierError, match="broken: cannot be run: no way"):
        places.answer_of(
            "broken", job, Place("disk", tmp_path), lambda: None, 60.0,
            environment={"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip


def test_an_interrupted_study_leaves_no_training_behind(tmp_path: Path) -> None:
    """The study started `penstock run`; the training is a child of `penstock run`."""
    (tmp_path / "endless.py").write_text(
        "import os, pathlib, time\n"
        "print('ready', flush=True)\n"
        "pathlib.Path('draft').write_text(str(os.getpid()))\n"
        "os.rename('draft', 'pid')\n"
        "time.sleep(60)\n"
    )
    study_of = (
        "from pathlib import Path\n"
        "from penstock_lab import places\n"
        f"run = [{str(PENSTOCK)!r}, 'run', '-q', '-o', 'recorded', '--']\n"
        "places.answer_of('endless', {}, places.Place('disk', Path('.')), lambda: None, 60, run)\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", study_of], cwd=tmp_path, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    while job.poll() is None and not (tmp_path / "pid").exists():
        time.sleep(0.02)
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    training = int((tmp_path / "pid").read_text())
    end_s = time.monotonic() + 5
    while Path(f"/proc/{training}/cwd").exists() and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not Path(f"/proc/{training}/cwd").exists()  # an ended process has no folder


# The pipeline


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data.made("caltech101", tmp_path_factory.mktemp("images"), 48)


@pytest.mark.parametrize("loader", ["threads", "torch"])
@pytest.mark.parametrize(("threads", "prefetch"), [(1, 0), (4, 2)])
def test_every_file_is_read_once_an_epoch(
    images: Path, loader: str, threads: int, prefetch: int
) -> None:
    files = pipeline.files_below(images)
    if loader == "torch":
        pytest.importorskip("torch")
    job = PipelineJob(
        tuple(map(str, files)), threads, batch=10, prefetch=prefetch, epochs=2, loader=loader
    )
    done = pipeline.trained(job)
    assert done.samples == 2 * 48
    assert done.read_bytes == 2 * sum(path.stat().st_size for path in files)
    assert len(done.waits_s) == len(done.ends_s) == 2 * 5
    assert sum(done.step_bytes) == done.read_bytes


@pytest.mark.parametrize(
    ("model", "needs"), [("alexnet", "torch"), ("alexnet-tensorflow", "tensorflow")]
)
def test_a_step_of_alexnet_computes(images: Path, model: str, needs: str) -> None:
    pytest.importorskip(needs)
    files = tuple(map(str, pipeline.files_below(images)[:6]))
    job = PipelineJob(files, 2, "resize", batch=3, prefetch=1, side=64, model=model)
    done = pipeline.trained(job)
    assert done.samples == 6
    assert done.compute_s > 0


def test_pictures_are_decoded_and_resized(images: Path) -> None:
    files = tuple(map(str, pipeline.files_below(images)[:4]))
    sample = pipeline._sample_of(PipelineJob(files, work="resize", side=20))
    size, pixels = sample(files[0])
    assert size == Path(files[0]).stat().st_size
    assert pixels.shape == (20, 20, 3)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_no_more_than_the_prefetch_is_read_while_a_step_computes(prefetch: int) -> None:
    asked: list[str] = []

    class Team:
        def submit(self, sample: Any, path: str) -> Any:
            asked.append(path)
            from concurrent.futures import Future

            future: Future[Any] = Future()
            future.set_result((1, path))
            return future

    files = [f"{number}" for number in range(40)]
    job = PipelineJob(tuple(files), batch=8, prefetch=prefetch)
    batches = pipeline._batches(job, Team(), lambda path: None, files)  # type: ignore[arg-type]
    for number, (moved, batch) in enumerate(batches, 1):
        assert (moved, batch) == (8, files[8 * number - 8 : 8 * number])
        assert len(asked) == min(40, 8 * (number + prefetch))


# Requests


def test_metadata_calls_leave_nothing(tmp_path: Path) -> None:
    for op in requests.METADATA:
        job = requests.RequestsJob(str(tmp_path), op, threads=2, seconds=0.05)
        assert requests.measured(job)["calls_hz"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_a_pass_through_the_page_cache_asks_for_no_block_twice(order: str) -> None:
    job = requests.RequestsJob("x", "read", order, 10, threads=3, is_direct=False)
    seen = [place for thread in range(3) for place in requests._places(job, 12, thread)]
    assert sorted(seen) == [10 * block for block in range(12)]


def test_what_threads_had_begun_before_the_first_call_ended_does_not_count() -> None:
    # Each 20 calls every 0.2 s, the second thread 10 ms later: of both together 60 calls in 0.21 s.
    job = requests.RequestsJob("x", "read", threads=2, seconds=0.35)

    def work(thread: int, end_s: float) -> requests._Ended:
        last = end_s - 0.09 - 0.01 * thread
        return requests._Ended([last - 0.4, last - 0.2, last], [20, 20, 20])

    assert requests._team(job, work) == pytest.approx(200)


@pytest.mark.alone
@needs_fuse
def test_a_tier_of_a_millisecond_gives_as_many_calls_as_there_are_in_flight(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(bytes(4 << 20))
    with places.at("latency", tmp_path) as place:
        for threads, depth in ((1, 1), (4, 1), (1, 4)):
            job = requests.RequestsJob(
                str(place.path / "file"), "read", "random", 4096, threads, depth, seconds=0.3
            )
            # FUSE's own share of a call and a busy machine: less, never more than a millisecond
            # each allows; with four, in the best of tries, more than possible one after the other.
            n = threads * depth
            least = 100 if n == 1 else ONE_BY_ONE_HZ
            rates: list[float] = []
            deadline = time.monotonic() + 240
            while not rates or (max(rates) <= least and time.monotonic() < deadline):
                rates.append(requests.measured(job)["calls_hz"])
            assert least < max(rates) < ONE_BY_ONE_HZ * n


@pytest.mark.alone
@needs_fuse
def test_one_head_jumps_between_files_and_not_within_one(tmp_path: Path) -> None:

    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(2 << 20))

    def took_s(order: list[tuple[str, int]]) -> float:
        with places.at("seek", tmp_path) as place:
            descriptors = {
                name: os.open(place.path / name, os.O_RDONLY | os.O_DIRECT) for name in ("a", "b")
            }
            import mmap

            begun = time.monotonic()
            with mmap.mmap(-1, 65536) as buffer:
                for name, block in order:
                    os.preadv(descriptors[name], [buffer], block * 65536)
            took = time.monotonic() - begun
            for descriptor in descriptors.values():
                os.close(descriptor)
            return took

    deadline = time.monotonic() + 240
    along: list[float] = []
    across: list[float] = []
    # In turns: a machine that is busy for a while slows both.
    while not along or (min(along) >= min(across) / 2 and time.monotonic() < deadline):
        along.append(took_s([(name, block) for name in ("a", "b") for block in range(30)]))
        across.append(took_s([(name, block) for block in range(30) for name in ("a", "b")]))
    assert min(across) > 60 * places.SEEK_S * 0.9
    assert min(along) < min(across) / 2


# The studies themselves, at the smallest scale: the shape of the results


def bench(folder: Path, name: str, *words: str) -> dict[str, Any]:
    command = [PENSTOCK, "bench", name, str(folder), "--scale", "ci", "--repeats", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return result_of(folder, name)


def result_of(folder: Path, name: str) -> dict[str, Any]:
    """Return a study's result, with a picture and a page with the command that repeats the
    study."""
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    docs = folder / "docs"
    docs.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_page, "EXPERIMENTS", docs)
        study_page.taken(name, folder)
        page = study_page.measured(name)
    assert "| the study | here |" in page
    assert f"    penstock bench {name} " in page
    assert f"({name}/{name}.png)" in page
    print(page)  # the figures; `make experiments SCALE=ci` shows them
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_bytes())
    shutil.rmtree(docs)
    return result


def points(result: dict[str, Any], **factors: Any) -> list[Point]:
    return [
        Point(**point)
        for point in result["points"]
        if all(point["factors"][key] == value for key, value in factors.items())
    ]


@pytest.mark.alone
@pytest.mark.experiment(study="read")
@needs_fuse
def test_more_threads_read_faster_where_each_file_waits(tmp_path: Path) -> None:
    result = bench(tmp_path, "read", "--on", "latency")
    (single,) = points(result, work="read", threads=1)
    (many,) = points(result, work="read", threads=8)
    assert many["speedup"] > 2
    assert single["resident"] < 0.02
    assert 0 < single["of_ceiling"] < 1
    # An open, and the bytes: the rate of a millisecond each.
    assert single["images_hz"] < 500


@pytest.mark.alone
@pytest.mark.experiment(study="train")
@needs_fuse
def test_reading_ahead_hides_input_behind_computing(tmp_path: Path) -> None:
    result = bench(tmp_path, "train", "--on", "latency")
    longest = inputs.TRAIN_COMPUTE_S["ci"][-1]
    (without,) = points(result, prefetch=0, compute=longest)
    (ahead,) = points(result, prefetch=1, compute=longest)
    # Each of four batches is waited for, or only the first.
    assert ahead["stall"] < 0.8 * without["stall"]
    # Without computing nearly all time is waiting; the rest is the loop's own, more on a busy CPU.
    assert points(result, prefetch=0, compute=0.0)[0]["stall"] > max(0.5, without["stall"])
    assert 0 < without["of_ceiling"] < ahead["of_ceiling"] < 1
    assert "`of the ceiling` on `latency` is of " in " ".join(result["remarks"])
    fewer = bench(tmp_path, "train", "--on", "latency", "--threads", "2")  # in the same folder
    assert {point["factors"]["threads"] for point in fewer["points"]} == {2}
    assert "threads" not in fewer["settings"]  # more may be added


@pytest.mark.alone
@pytest.mark.experiment(study="ceiling")
@pytest.mark.slow
@needs_fuse
def test_ceilings_are_measured_and_fio_finds_them_on_a_tier(tmp_path: Path) -> None:
    words = ["--fio"] if shutil.which("fio") else []
    result = bench(tmp_path, "ceiling", "--on", "latency", *words)
    (queued,) = points(result, op="read", order="random", depth=8)
    assert queued["calls_hz"] > ONE_BY_ONE_HZ
    for point in points(result, op="read", order="random", request_bytes=4096, depth=1):
        assert point["calls_hz"] > ONE_BY_ONE_HZ  # 4 threads
    for point in points(result, cache="direct"):
        if words and point["op"] == "read" and point["request_bytes"] > 4096:
            assert point["of_fio"] > 0.1  # a fifth of a second each says no more
    assert points(result, op="create")[0]["calls_hz"] < ONE_BY_ONE_HZ
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["read", "out", "--on", "moon"], "'moon' is not one of"),
        (["read", "out", "--scale", "huge"], "'huge' is not one of"),
        (["compare", "a.json", "b.json"], "a.json"),
        (["scale", "out", "--iops", "nan"], "nan is no number for this"),
        (["checkpoint", "out", "--scale", "inf"], "inf is not in the range"),
        (["data", "all", "out", "--scale", "nan"], "nan is no number for this"),
        (["data", "all", "out", "--scale", "2"], "more than 0, at most 1"),
        (["data", "all", "out", "--raw"], "leave out --as and --raw"),
        (["data", "all", "out", "--as", "tar"], "leave out --as and --raw"),
        (["data", "cifar10", ""], "an empty name"),
        (["tier", "make", "t", ".", "--iops", "nan"], "nan is no number for this"),
    ],
)
def test_a_wrong_wish_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([PENSTOCK, "bench", *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


STUDIES = (
    "ceiling", "read", "train", "control", "diagnosis", "window", "cases", "mlperf", "factors",
    "scale", "data", "ladder", "checkpoint", "exchange", "burst", "nodes",
)  # fmt: skip
# Files and folders of studies in their folder, now or earlier.
NAMES = (
    "fast", "fast-below", "slow", "saved", "recorded", "recorded-staged", "config", "data", "dlio",
    "lmdb", "lmdb.partial", "penstock-bench", "ranks", "set", "set.partial",
)  # fmt: skip


def penstock(*words: str) -> int:
    """Return the status of a command, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["penstock", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("name", STUDIES)
def test_a_folder_of_somebody_else_stays_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in NAMES:
        (tmp_path / "out" / each).mkdir(parents=True)
        (tmp_path / "out" / each / "mine").write_text(each)
    (tmp_path / "out" / f"{name}.json").write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    assert penstock("bench", name, *(["all"] if name == "data" else []), "out", "--yes") == 2
    said = capsys.readouterr().err
    assert "out: is not empty, and what is in it is no study's" in said
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("folder", ["mine", "mine/below", "locked/new"])
def test_a_folder_that_can_be_none_is_told_before_anything_is_asked(
    folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "mine").write_text("x")
    (tmp_path / "locked").mkdir()
    access = os.access
    monkeypatch.setattr(  # root may write everywhere except to read-only mounts
        os, "access", lambda path, how: Path(path).name != "locked" and access(path, how)
    )
    monkeypatch.setattr(tiers, "free_bytes", lambda _: 10**13)
    monkeypatch.chdir(tmp_path)
    words = ["all"] if name == "data" else []
    more = [] if name in ("data", "ladder", "checkpoint") else ["--scale", "full"]
    assert penstock("bench", name, *words, folder, *more) == 2
    said = capsys.readouterr().err
    assert re.search(
        r"mine: is there and no folder|'mine' is a file|locked: cannot be written", said
    )
    assert "will be written" not in said
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["locked", "mine"]


def test_a_folder_that_is_removed_was_made_by_a_study(tmp_path: Path) -> None:
    place = tmp_path / "work"
    with scratch(place) as work:
        (work / "saved").mkdir()
        with pytest.raises(TierError, match="another study works there"), scratch(place):
            pass
        assert (work / "saved").is_dir()
        shutil.copytree(work, tmp_path / "killed")
    assert not place.exists()
    (tmp_path / "killed").rename(place)
    with scratch(place) as work:
        assert not (work / "saved").exists()
    place.mkdir()  # killed in the first moment
    with scratch(place):
        pass
    (tmp_path / "mine").write_text("x")
    (tmp_path / "folder").mkdir()
    for target in ("mine", "folder"):
        place.symlink_to(target)
        with pytest.raises(TierError, match="was not made by penstock bench"), scratch(place):
            pass
        place.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "mine"]


def test_lmdbs_of_the_formula_lie_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "provenance-lmdb").mkdir()
    (tmp_path / "provenance-lmdb" / "mine").write_text("x")
    provenance.measure(tmp_path, 10)
    assert [path.name for path in tmp_path.rglob("*")] == ["provenance-lmdb", "mine"]


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not there")
@pytest.mark.parametrize("op", ["read", "write"])
def test_fio_is_given_the_file_and_no_other(op: str, tmp_path: Path) -> None:
    """fio takes a:b for two files."""
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    file = tmp_path / "a:b" / "file"
    file.write_bytes(bytes(1 << 20))
    job = requests.RequestsJob(str(file), op, "sequential", 1 << 16, 1, 1, True, 0.1, 1)
    with places.at("disk", file.parent) as place:
        assert storage._by_fio(job, place) > 0
    assert (tmp_path / "a").read_bytes() == bytes(1 << 20)
    assert any(file.read_bytes()) == (op == "write")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a:b", "file"]


@pytest.mark.parametrize(("is_ours_first", "again"), [(True, 3), (False, 2)])
def test_fio_is_run_around_ours_and_once_in_its_place(is_ours_first: bool, again: int) -> None:
    """On a machine that gets faster with each run."""
    runs = iter(range(1, 5))

    def ours() -> dict[str, float]:
        return {"bandwidth_bps": float(next(runs)), "calls_hz": 1.0}

    row = storage._beside(ours, lambda: float(next(runs)), is_ours_first)
    assert row["bandwidth_bps"] == 5 - again
    assert row["fio_bps"] == (1 + 4) / 2
    assert row["of_fio"] == (5 - again) / 2.5
    assert row["fio_of_fio"] == again / 2.5


def test_ours_and_fio_come_first_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = storage.cases_of("ci", ["disk"])[0]
    assert case["cache"] == "direct"
    turns: list[bool] = []

    def beside_fio(ours: Any, fio: Any, is_ours_first: bool) -> dict[str, float]:
        turns.append(is_ours_first)
        return {"bandwidth_bps": 1.0}

    monkeypatch.setattr(storage, "cases_of", lambda scale, names: [case, case | {"threads": 9}])
    monkeypatch.setattr(storage, "_beside", beside_fio)
    measured = replace(storage.StorageSettings("ci", repeats=4), is_beside_fio=True)
    storage.measured(tmp_path, measured)
    assert sum(turns[1:]) == 4  # of two cases by four repeats, beside the warm-up runs
    rows = study.rows_of(tmp_path / "runs.jsonl")
    by_case = {n: [turn for row, turn in zip(rows, turns[1:], strict=True) if row["threads"] == n]
               for n in (4, 9)}  # fmt: skip
    assert by_case == {4: [True, False, True, False], 9: [True, False, True, False]}


@pytest.mark.parametrize("name", ["read", "control", "ladder", "checkpoint", "data", "model"])
def test_without_matplotlib_nothing_is_begun(name: str, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "matplotlib.py").write_text(
        "raise ModuleNotFoundError('No module named matplotlib', name='matplotlib')"
    )
    kept = study_page.EXPERIMENTS / "ladder" / "ladder.json"
    words = {"data": ["all", "out"], "model": [str(kept), "-o", "out"]}.get(name, ["out"])
    path = os.pathsep.join([str(tmp_path / "without"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [PENSTOCK, "bench", name, *words], capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "will be written" not in done.stderr
    assert done.returncode != 0
    assert "pip install penstock-lab" in done.stderr
    assert not (tmp_path / "out").exists()


FRAMEWORKS = ("torch", "tensorflow")


@pytest.mark.parametrize(
    ("hidden", "words", "said"),
    [
        (FRAMEWORKS, "mlperf out", "--workload unet3d needs PyTorch: pip install torch"),
        (FRAMEWORKS, "mlperf out --workload cosmoflow", "--workload cosmoflow needs TensorFlow: "),
        (FRAMEWORKS, "read out --loader torch", "--loader torch needs PyTorch: "),
        (FRAMEWORKS, "read out --loader tf.data", "--loader tf.data needs TensorFlow: "),
        (FRAMEWORKS, "train out --model alexnet", "--model alexnet needs PyTorch: "),
        (FRAMEWORKS, "train out --model alexnet-tensorflow", "needs TensorFlow: "),
        (FRAMEWORKS, "control out", "the job needs PyTorch: "),
        (FRAMEWORKS, "checkpoint out", "saving states needs PyTorch: "),
        (FRAMEWORKS, "scale out --launcher torchrun", "--launcher torchrun needs PyTorch: "),
        (("mpi4py",), "scale out --launcher mpirun", "--launcher mpirun needs mpi4py: "),
        (("lmdb",), "factors out", "LMDBs needs py-lmdb: pip install penstock-lab"),
        (("lmdb",), "ladder out", "LMDBs needs py-lmdb: "),
        (("lmdb",), "provenance out --records 100000", "LMDBs needs py-lmdb: "),
        (("lmdb",), "data malware out --as lmdb", "--as lmdb needs py-lmdb: "),
        (("PIL",), "data imagenet out --raw", "making pictures needs Pillow: "),
        (("PIL",), "cases out --scale full", "making pictures needs Pillow: "),
        (("PIL",), "window out --scale full", "making pictures needs Pillow: "),
        (("PIL",), "read out --scale full", "making pictures needs Pillow: "),
    ],
)
def test_what_a_study_lacks_is_told_before_anything_is_asked_or_written(
    hidden: tuple[str, ...], words: str, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    find = needs.find_spec
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name in hidden else find(name))
    monkeypatch.setattr(needs.shutil, "which", lambda name: name)
    monkeypatch.setattr(tiers, "free_bytes", lambda _: 10**13)
    monkeypatch.chdir(tmp_path)
    assert penstock("bench", *words.split()) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "(import" not in message
    assert "will be written" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "is_begun"),
    [("cases out", False), ("factors out", False), ("read out --on latency --on disk", True)],
)
def test_without_any_of_its_places_a_study_is_not_begun(
    words: str, is_begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refused(*arguments: Any, **more: Any) -> None:
        raise TierError("no /dev/fuse here")

    def no(said: str, err: bool) -> bool:
        print(said, file=sys.stderr)
        return False

    monkeypatch.setattr(click, "confirm", no)
    monkeypatch.setattr(places.slow_tiers, "slow", refused)
    monkeypatch.setattr(needs, "look_for", lambda needs: None)
    monkeypatch.setattr(tiers, "free_bytes", lambda _: 10**13)
    monkeypatch.chdir(tmp_path)
    assert penstock("bench", *words.split(), "--scale", "full") == (130 if is_begun else 2)
    said = capsys.readouterr().err
    assert ("no /dev/fuse here" in said) != is_begun
    assert ("will be written" in said) == is_begun
    assert list(tmp_path.iterdir()) == []


def test_what_lies_in_memory_is_never_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs, "look_for", lambda needs: None)
    monkeypatch.setattr(tiers, "MEMORY_KINDS", {tiers.mount_of(tmp_path).kind})
    assert penstock("bench", "read", f"{tmp_path}/out", "--on", "disk", "--scale", "full") == 2
    assert "lies in memory, where nothing is ever cold" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(PlaceError, match="not cold: "):
        places.made_cold([tmp_path / "file"], Place("disk", tmp_path))


def test_a_module_is_looked_for_without_the_time_that_its_import_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text("1 / 0")
    (tmp_path / "torch").mkdir()  # a folder without a file of Python is no module
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in FRAMEWORKS:  # another test may have imported the framework
        monkeypatch.delitem(sys.modules, name, raising=False)
    needs.look_for({"tensorflow": "--x"})
    with pytest.raises(MissingDependency, match=r"^--y needs PyTorch: pip install torch$"):
        needs.look_for({"torch": "--y"})


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        ("PIL", "OSError", "read out --on disk --scale ci"),
        ("lmdb", "ImportError", "data malware out --scale 0.0001 --as lmdb"),
        ("lmdb", "OSError", "ladder out --data 1MB --on disk"),
        ("lmdb", "ImportError", "provenance out --records 10"),
        ("matplotlib", "ImportError", "control out --scale ci"),
        ("torch", "ImportError", "control out --scale ci"),
        ("tensorflow", "OSError", "mlperf out --workload cosmoflow --on disk --scale ci"),
    ],
)
def test_a_module_that_is_broken_is_told_with_its_reason(
    module: str, error: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / f"{module}.py").write_text(f"raise {error}('libx.so.12: cannot open')")
    path = os.pathsep.join([str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [PENSTOCK, "bench", *words.split()], capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "libx.so.12: cannot open" in done.stderr.strip().splitlines()[-1]
    assert "an error of our own" not in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fio", "--x needs fio: apt install fio"),
        ("mpirun", "--x needs mpirun: apt install openmpi-bin"),
        ("/away/dlio", "--x needs /away/dlio, and there is no such program"),
    ],
)
def test_a_program_that_is_missing_is_told(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependency) as error:
        needs.look_for({"lmdb": "y", name: "--x"})
    assert str(error.value) == said


def test_an_interrupted_study_says_how_to_go_on(tmp_path: Path) -> None:
    command = [
        PENSTOCK,
        "bench",
        "read",
        "out",
        "--scale",
        "small",
        "--on",
        "disk",
        "--repeats",
        "9",
    ]
    job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    runs = tmp_path / "out" / "runs.jsonl"
    while job.poll() is None and (not runs.exists() or runs.stat().st_size < 10):
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 130
    assert "what was measured is in out: the same command goes on" in said
    assert len(study.rows_of(runs)) >= 1
    assert not (tmp_path / "out" / "read.json").exists()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("make_lmdb", "nothing was measured yet: the same command begins anew"),
        ("climb", "nothing was measured yet; out/lmdb stays: the same command goes on"),
    ],
)
def test_interrupted_before_a_result_it_says_that_there_is_none(
    where: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ladder, where, interrupted)
    monkeypatch.setattr(places, "refuse_without", lambda names, folder: None)
    assert penstock("bench", "ladder", "out", "--data", "1MB", "--on", "disk") == 130
    message = capsys.readouterr().err
    assert said in message
    assert "what was measured" not in message


def test_only_data_that_is_whole_is_said_to_stay(tmp_path: Path) -> None:
    assert study.data_in(tmp_path) is None
    (tmp_path / "data" / "malware-5-1.partial").mkdir(parents=True)
    assert study.data_in(tmp_path) is None
    (tmp_path / "data" / "malware-5-1").mkdir()
    assert study.data_in(tmp_path) == tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "kinds", "beside_bytes"),
    [
        ("read", {"imagenet-chien": 256}, 2 * storage.FILE_BYTES["small"]),
        ("train", {"caltech101": 512}, 0),
        ("window", {"imagenet-stream": 1600, "malware": 160}, 0),
        ("cases", {"imagenet-alexnet": 400, "malware": 100}, 1),
        ("control", {"cifar10": 10_000}, 0),
        ("ceiling", {}, storage.FILE_BYTES["small"]),
        ("factors", {}, 800_000_000),
        ("scale", {}, 128 * 60 * 30_600),
        ("mlperf", {}, 6_900_000_000),
    ],
)
def test_all_that_a_study_writes_has_room_or_none_of_it_is_begun(
    name: str, kinds: dict[str, int], beside_bytes: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sets = [data.plan(kind, scale=n / data.KINDS[kind].n).disk_bytes for kind, n in kinds.items()]
    # Each set has room there, and not the data beside.
    monkeypatch.setattr(tiers, "free_bytes", lambda _: (sum(sets) + beside_bytes) / 0.9 - 10)
    monkeypatch.setattr(study, "write_texts", None)
    monkeypatch.setattr(needs, "look_for", lambda needs: None)
    monkeypatch.setattr(places, "refuse_without", lambda names, folder: None)
    done = CliRunner().invoke(cli.cli, ["bench", name, str(tmp_path / "new" / "out"), "-y"])
    assert isinstance(done.exception, TierError)
    assert re.search(r"out: needs .+, and .+ can be used there", str(done.exception))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_much_data_is_asked_for_before_it_is_made(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "free_bytes", lambda _: 10**12)
    monkeypatch.setattr(places, "refuse_without", lambda names, folder: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.cli, ["bench", "cases", "out", "--scale", "full"], input=answer)
    assert done.exit_code == 130  # as after Ctrl-C
    assert "nothing was written; --yes goes on without asking" in done.stderr
    # 49.2 GB of data, and the copies of files below 2 MB.
    assert "out: 53.0 GB will be written; go on?" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
@pytest.mark.experiment(study="control")
@pytest.mark.slow
def test_a_training_that_computes_is_not_called_io_bound(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Importing torch from a cold disk would be a tenth of so short a training.
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    result = bench(tmp_path, "control")
    (point,) = points(result, recorder="penstock")
    assert point["is_io_bound"] == 0
    assert point["checkpoints"] == point["checkpoints_made"] == 3
    assert point["checkpoint_bytes"] == point["checkpoint_bytes_made"] > 0
    assert point["data_bytes"] == 640 * 3073  # through stdio, as np.fromfile reads
    # Interpreter and PyTorch: beyond Darshan's former room.
    assert point["files"] > 500
    assert any("NOT I/O BOUND" in remark.upper() for remark in result["remarks"])
    again = bench(tmp_path, "control")  # nothing is run, and all is said again
    assert again["points"] == result["points"]
    assert again["remarks"] == result["remarks"]


def test_darshan_is_found_beside_its_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    program = tmp_path / "bin" / "darshan-config"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert control.darshan_library() == ""
    (tmp_path / "lib" / "libdarshan.so").write_bytes(b"")
    assert control.darshan_library() == str(tmp_path / "lib" / "libdarshan.so")


def test_what_a_log_of_darshan_kept_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("darshan")
    (tmp_path / "data").write_bytes(b"0123456789")
    read = "import sys; [open(name, 'rb').read() for name in sys.argv[1:]]"
    run = [PENSTOCK, "run", "-q", "-o", "run", sys.executable, "-c", read, "data", "data"]
    subprocess.run(run, cwd=tmp_path, check=True)
    export = [PENSTOCK, "export", "run", "--to", "darshan", "-o", "a.darshan"]
    subprocess.run(export, cwd=tmp_path, check=True, capture_output=True)
    row = control.kept_by_darshan(tmp_path / "a.darshan", tmp_path)
    assert (row["is_partial"], row["checkpoints_kept"]) == (0, 1)  # a single file, read twice
    assert 1 <= row["files"] < 400
    assert re.fullmatch(r"3\.\d+\.\d+", row["darshan"])  # the version in the log
    with pytest.raises(RunError, match="wrote no log"):
        control.kept_by_darshan(tmp_path / "b.darshan", tmp_path)


# Windows beside the device


def test_windows_are_compared_with_what_the_device_gave_meanwhile() -> None:
    samples = [(float(second), 100 * second) for second in range(11)]
    spans = [(0.5, 2.5), (2.5, 4.5), (4.5, 4.6)]
    # 200 bytes in each of the first two; the third is shorter than a sample.
    assert windows.deviation_of(
        windows.joined(spans, [200, 150, 1000], 1.0), samples
    ) == pytest.approx([0, 0.25])


def test_windows_shorter_than_two_samples_are_compared_together() -> None:
    samples = [(float(second), 100 * second) for second in range(11)]
    spans = [(0.5, 1.7), (1.7, 2.9), (2.9, 4.1), (4.1, 5.3), (5.3, 6.5)]
    # 240 bytes in each two windows; the fifth is alone.
    seen = [100, 140, 180, 120, 500]
    together = windows.joined(spans, seen, 2.0)
    assert windows.deviation_of(together, samples) == pytest.approx([0, 0.25])
    curve = windows._curve(together, samples)  # and drawn together
    assert curve is not None
    assert [at for at, _ in curve["windows"]] == pytest.approx([1.2, 3.6])


def test_what_is_begun_behind_the_last_step_is_no_window() -> None:
    done = pipeline.PipelineResult(waits_s=[1.0], ends_s=[float(n) for n in range(1, 11)])
    done.windows = ["a", "b", "of no step"]
    assert windows._of_steps(done) == ["a", "b"]
    done.ends_s.append(11.0)
    assert windows._of_steps(done) == done.windows


def test_a_window_spans_from_the_last_step_before_it_to_its_own_last() -> None:
    done = pipeline.PipelineResult(waits_s=[1.0], ends_s=[float(n) for n in range(1, 13)])
    done.windows = ["a", "b", "c"]
    assert windows._spans(done) == [(0.0, 5.0), (5.0, 10.0), (10.0, 12.0)]


@pytest.mark.alone
@pytest.mark.experiment(study="window")
@pytest.mark.slow
@needs_fuse
def test_windows_see_what_was_read_and_the_device_agrees(tmp_path: Path) -> None:
    result = bench(tmp_path, "window", "--on", "seek")
    for kind in windows.SETS:
        most = windows.SETS[kind]["ci"][0]
        (whole,) = points(result, data=kind, recorder="whole run", files=most)
        (parts,) = points(result, data=kind, recorder="windows", files=most)
        (fewer,) = points(result, data=kind, recorder="whole run", files=most // 4)
        assert whole["seen"] == fewer["seen"] == 1
        assert fewer["bandwidth_bps"] * fewer["epoch_s"] < whole["bandwidth_bps"] * whole["epoch_s"]
        # Reads under way between two windows are in neither.
        assert 0.6 < parts["seen"] <= 1
        assert parts["windows"] >= 4
        assert 0 < whole["of_ceiling"] < 1.1
    assert parts["deviation"] < 0.5  # the malware's windows are long enough to be compared
    again = bench(tmp_path, "window", "--on", "seek")  # nothing is run, and all is drawn again
    assert again["more"]["curves"] == result["more"]["curves"] != {}


# Two cases


@pytest.mark.alone
@pytest.mark.experiment(study="cases")
@pytest.mark.slow
@needs_fuse
def test_few_threads_read_large_files_faster_and_many_small_ones(tmp_path: Path) -> None:
    for repeats in ("1", "3"):  # a second's epochs may mislead, twice more of each may not
        result = bench(
            tmp_path, "cases", "--on", "seek", "--repeats", repeats
        )  # the last result counts
        by_name = {(p["data"], p["how"]): p for p in points(result)}
        small = by_name["malware", "1 thread, files below 2 MB staged"]
        # About 1.07 times one thread's; a fast tier slower than the slow tier showed as 0.7.
        if small["against"] > 0.9:
            break
    assert small["against"] > 0.9
    assert by_name["images", "28 threads"]["against"] > 1.3
    assert all(0 < p["of_ceiling"] < 1.2 for p in by_name.values())
    assert by_name["malware", "16 threads"]["against"] < 0.9
    chosen = by_name["malware", "1 thread, as many bytes of Penstock's choice staged"]
    # 40 % of the files with 8 % of the bytes, as in the paper; ours takes no more.
    assert small["staged_share"] == pytest.approx(0.4, abs=0.05)
    assert 0.04 < small["bytes_share"] < 0.12
    assert 0 < chosen["staged_bytes"] <= small["staged_bytes"] + 4096 * small["staged_files"]
    frozen = by_name["malware", "1 thread, files below 2 MB staged, frozen"]
    assert frozen["staged_files"] == small["staged_files"]
    assert not (tmp_path / "fast").exists()


# The pages


def test_sections_of_performance_name_the_versions_that_they_compare_with() -> None:
    from peers import COMPARED
    from table import PAGE, RESULTS, page

    results = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page(results)
    for section in COMPARED.keys() & results.keys():
        assert list(results[section]["peers"]) == list(COMPARED[section]), section
    kept = json.loads((study_page.EXPERIMENTS / "feed.json").read_text())
    assert set(kept["peers"]) == set(COMPARED["feed_training"])
    words = study_page.machine_words(
        json.loads((study_page.EXPERIMENTS / "control" / "control.json").read_text())["machine"]
    )
    assert re.search(r"torch \d+\.\d+.*Darshan \d+\.\d+", words)


def test_versions_of_peers_are_those_that_are_installed() -> None:
    from peers import compared, versions

    versions_here = versions("feed_training")
    assert versions_here == {"py-lmdb": metadata.version("lmdb"),
                     "torch": metadata.version("torch").partition("+")[0]}  # fmt: skip
    assert compared("views", {}) == ""
    assert compared("counts", {}) == "Compared with strace (no version kept)."


@pytest.mark.parametrize("name", study_page.STUDIES)
def test_a_page_is_what_its_results_say(name: str) -> None:
    _, mark, rest = (study_page.EXPERIMENTS / f"{name}.md").read_text().partition(study_page.BEGIN)
    shown, end, _ = rest.partition(study_page.END)
    assert mark
    assert end
    assert shown.strip() == study_page.measured(name).strip()
    for folder in (study_page.EXPERIMENTS / name, *study_page.EXPERIMENTS.glob(f"{name}-*")):
        if (folder / f"{name}.json").exists():
            text = (folder / f"{name}.md").read_text()
            assert text == study_page.with_machine(folder, name)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("ladder", "--scale ci", {"processes": (1, 4), "for_s": 0.5, "data": 50_000_000}),
        ("ladder", "--scale ci --for 7s", {"for_s": 7.0, "repeats": 1}),
        ("ladder", "", {"processes": (1, 2, 4, 8), "for_s": 5.0, "repeats": 3}),
        ("checkpoint", "--scale ci", {"scale": 0.01, "steps": 10, "compute": 0.02}),
        ("checkpoint", "--scale full --seed 7", {"scale": 1.0, "steps": 100, "seed": 7}),
        ("checkpoint", "--steps 50 --scale small", {"scale": 0.1, "steps": 50, "every": 10}),
        ("checkpoint", "--scale 0.5", {"scale": 0.5, "steps": 100}),
    ],
)
def test_every_study_has_the_three_scales(
    name: str, given: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    command = cli.cli.commands["bench"].commands[name]  # type: ignore[attr-defined]
    params = command.make_context(name, [str(tmp_path), *given.split()]).params
    assert {key: params[key] for key in expected} == expected
    with pytest.raises(click.BadParameter):
        command.make_context(name, [str(tmp_path), "--scale", "huge"])


def examples() -> list[list[str]]:
    """Return every place of the docs and the help with commands that make a study, in order."""
    help_of = [
        command.help or ""
        for command in cli.cli.commands["bench"].commands.values()  # type: ignore[attr-defined]
    ]
    texts = [page.read_text() for page in sorted(study_page.EXPERIMENTS.glob("*.md"))]
    return [
        re.findall(r"^ *(penstock bench (?!model|compare|tier|data).*)", text, re.MULTILINE)
        for text in (*texts, *help_of)
    ]


def test_examples_can_be_typed_one_after_the_other() -> None:
    """No folder is named twice with different common settings."""
    asked = r"--(?:scale|for|data|slow|model|lmdb|bandwidth|seed) \S+|--fio"
    for commands in examples():
        words_by_folder: dict[str, list[str]] = {}
        for command in commands:
            words = sorted(set(re.findall(asked, command)) - {"--scale small"})
            assert words_by_folder.setdefault(command.split()[3], words) == words, command


def test_a_page_shows_a_second_result_below_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_page, "EXPERIMENTS", tmp_path / "docs")
    monkeypatch.setitem(study_page.BESIDE, "read", lambda points, result_json: [])
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "read.md"
    page.write_text(f"before\n{study_page.BEGIN}{study_page.END}after\n")
    study.write_found(tmp_path / "first", found_of({1: [1.0]}))
    study.write_found(tmp_path / "second", found_of({1: [7.0]}))
    study_page.main(["read", str(tmp_path / "second"), "loaders"])
    study_page.main(["read", str(tmp_path / "first")])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert re.findall(r"penstock bench read (\S+)|\]\((\S+)\.csv\)", text) == [
        ("read", ""), ("", "read/read"), ("read-loaders", ""), ("", "read-loaders/read"),
    ]  # fmt: skip


def test_the_command_of_a_page_repeats_the_run() -> None:
    """In the form that click reads again."""
    scale_settings = {
        "bandwidth_bps": 2e11, "requests_hz": 5e6, "latency_s": 5e-4, "link_bps": 12_500_000_000,
        "seed": 7,
    }  # fmt: skip
    points = [
        Point({"place": place, "launcher": launcher, "scaling": "weak", "ranks": ranks},
              3, {}, {}, {})
        for place, launcher, ranks in (
            ("shared", "mpirun", 1), ("shared", "mpirun", 16), ("cluster", "simulated", 9216)
        )
    ]  # fmt: skip
    said = study_page.command_of(study.Read("scale", "small", scale_settings, {}, (), points))
    command = cli.cli.commands["bench"].commands["scale"]  # type: ignore[attr-defined]
    params = command.make_context("scale", said.split()[3:]).params
    assert {key: params[key] for key in scale_settings} == scale_settings
    assert (params["launchers"], params["ranks"]) == (("mpirun",), (1, 16))
    assert (params["places"], params["repeats"]) == (("shared",), 3)
    asked_for = {"n_steps": 50, "every": 5, "compute_s": 0.05, "ratio": 8.0, "slow": "/lustre"}
    ways = [Point({"way": way}, 1, {}, {}, {}) for way in ("none", "slow")]
    said = study_page.command_of(study.Read("checkpoint", "", asked_for, {}, (), ways))
    assert said == (
        "penstock bench checkpoint checkpoint --steps 50 --every 5 --compute 50ms --ratio 8 "
        "--ways none,slow --slow /lustre --repeats 1"
    )


def test_a_page_says_how_far_from_fio_its_cases_and_fio_are() -> None:
    cases = [
        Point(
            {"place": "disk", "op": "read", "order": "random", "request_bytes": 4096,
             "threads": n, "depth": 1, "cache": "direct"},
            3, {"bandwidth_bps": 1e6, "of_fio": of_fio, "fio_of_fio": again}, {}, {},
        )
        for n, of_fio, again in ((1, 0.9, 0.99), (2, 0.98, 1.02), (4, 1.2, 0.8))
    ]  # fmt: skip
    rows = [(what, here) for what, _, here in study_page._ceiling(cases, {}) if "fio" in what]
    assert rows == [
        ("`disk`: by threads, beside fio",
         "1 of 3 cases are within 5 %, 2 of fio beside itself; the median is 0.98x"),
        ("`disk`: by threads, farther from fio where fio itself is not",
         "read random 4 KiB, threads 1: 0.90x"),
    ]  # fmt: skip


def test_a_page_says_how_many_files_a_second_a_place_makes_and_opens() -> None:
    cases = [
        Point({"place": "disk", "op": op}, 3, {"bandwidth_bps": None, "calls_hz": hz}, {}, {})
        for op, hz in (("create", 1325.0), ("create", 3820.0), ("unlink", 434.0))
    ]
    said = {what: here for what, _, here in study_page._ceiling(cases, {})}
    assert said["`disk`: files a second, at most"] == "3,820 made, 434 removed"


@pytest.mark.parametrize(
    ("ratios", "shown"),
    [((10.5, 31.3), ["15", "20", "30"]), ((2.21, 8.7), ["2.21", "8.7"]), ((3.0,), ["3"])],
)
def test_the_picture_of_train_has_plain_numbers_wherever_its_points_are(
    ratios: tuple[float, ...], shown: list[str]
) -> None:
    """AlexNet computes 10 to 31 times as long as the input takes."""
    points = [
        Point({"place": "latency", "threads": 1, "prefetch": 1, "compute": "alexnet"},
              1, {"ratio": ratio, "stall": 0.1}, {"stall": None}, {"stall": None})
        for ratio in ratios
    ]  # fmt: skip
    figure = study.pyplot().figure()
    inputs._train_drawn(figure, points)
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels(which="both")]
    assert list(dict.fromkeys(filter(None, labels))) == shown


@pytest.mark.parametrize(
    ("unit", "least", "most", "shown"),
    [
        ("B", 2e3, 3e7, ["10 kB", "100 kB", "1 MB", "10 MB"]),
        ("count", 36, 9216, ["100", "1,000", "10,000"]),
        ("count", 92, 3030, ["100", "200", "500", "1,000", "2,000"]),
        ("count", 0.4, 6, ["0.50", "1", "2", "5"]),
        ("count", 160, 510, ["200", "300", "400"]),
        ("count", 1, 1, ["0.10", "0.20", "0.50", "1", "2", "5", "10"]),
    ],
)
def test_a_logarithmic_axis_reads_as_people_write(
    unit: str, least: float, most: float, shown: list[str]
) -> None:
    figure = study.pyplot().figure()
    axis = figure.subplots()
    axis.plot([least, most], [1, 2])
    study.logarithmic(axis.xaxis, unit)
    figure.canvas.draw()
    low, high = axis.get_xlim()
    labels = zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)
    assert [label.get_text() for at, label in labels if low <= at <= high] == shown
    assert not any(label.get_text() for label in axis.get_xticklabels(minor=True))


@pytest.mark.parametrize("n_places", [1, 2])
def test_the_picture_of_ceiling_shows_each_label_whole(n_places: int) -> None:
    kept = study.read_found(study_page.EXPERIMENTS / "ceiling" / "ceiling.json").points
    places = list(dict.fromkeys(point["place"] for point in kept))[:n_places]
    figure = study.pyplot().figure()
    storage.STUDY.draw(figure, [point for point in kept if point["place"] in places])
    figure.canvas.draw()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
    for axis in figure.axes:
        assert axis.get_tightbbox().y0 >= box.y1


@pytest.mark.parametrize("name", ["scale", "read", "ceiling", "data"])
def test_no_picture_has_powers_of_ten(name: str) -> None:
    figure = study.pyplot().figure()
    kept = study.read_found(study_page.EXPERIMENTS / name / f"{name}.json").points
    if name == "data":
        sizes = [{"kind": "x", "form": "folder", "content": "jpeg", "published_median_bytes": 4e4,
                  "quantiles": [1000 * 1.1**n for n in range(sets.QUANTILES)]}]  # fmt: skip
        sets._drawn(figure, sizes)
    else:
        draw = {"scale": scale._drawn, "read": inputs.READ.draw, "ceiling": storage.STUDY.draw}
        draw[name](figure, kept)
    figure.canvas.draw()
    texts = [
        label.get_text()
        for axis in figure.axes
        for label in (*axis.get_xticklabels(which="both"), *axis.get_yticklabels(which="both"))
    ]
    assert any(texts)
    assert not [text for text in texts if "$" in text or "^" in text or "e+" in text]


def test_the_command_of_a_page_names_what_is_not_usual() -> None:
    factors = {"place": "latency", "loader": "tf.data", "by": "dlio_benchmark", "threads": 3}
    point = Point(factors, 2, {}, {}, {})
    read = study.Read("read", "ci", {"model": "alexnet", "is_beside_fio": True}, {}, (), [point])
    said = study_page.command_of(read)
    assert said == (
        "penstock bench read read --scale ci --on latency --loader tf.data --threads 3 "
        "--model alexnet --fio --dlio dlio_benchmark --repeats 2"
    )
    usual = Point(factors | {"threads": 2}, 2, {}, {}, {})
    assert "--threads" not in study_page.command_of(replace(read, points=[usual]))
