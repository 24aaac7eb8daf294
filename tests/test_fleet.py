"""`penstock runs`: the summaries of thousands of runs, against sums made by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import PENSTOCK
from penstock.errors import PenstockError
from penstock.explain import summary
from penstock.explain.fleet import fleet_of
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.views import fleet as view
from synthetic import training_job

ONE = summary.RunSummary(
    run="a", title="train.py", user="ann", host="n1", job="7", partition="gpu", account="x",
    data="/data/a", level="highly", headline="HIGHLY I/O BOUND", start_unix_s=2e9, life_s=4000.0,
    wall_s=3600.0, n_mains=1, steps=10, read_bytes=1e9,
    waits_s={"data storage": 1800.0, "unfed": 360.0}, findings={"W1": 900.0},
)  # fmt: skip
TWO = replace(
    ONE, run="b", user="bob", data="/data/b", n_mains=8, start_unix_s=1e9,
    waits_s={"checkpoint storage": 900.0, "no CPU": 90.0}, findings={},
)  # fmt: skip


def kept(folder: Path, one: summary.RunSummary) -> Path:
    folder.mkdir(parents=True)
    (folder / summary.NAME).write_text(summary.to_json(one))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    kept(tmp_path / "all" / "ann" / "a", ONE)
    kept(tmp_path / "all" / "b", TWO)
    (tmp_path / "all" / f"17{summary.SUFFIX}").write_text(summary.to_json(replace(ONE, run="c")))
    return tmp_path / "all"


def test_hours_are_summed_by_cause_user_and_data_set(runs: Path) -> None:
    fleet = fleet_of(runs)
    assert fleet.n_runs == 3
    assert fleet.wall_h == pytest.approx(1 + 1 + 8)
    # A stretch that may be computing is a cause, and no hour waited.
    assert fleet.waited_h == pytest.approx(0.5 + 0.5 + 8 * 990 / 3600)
    tables = {table.key: table.rows for table in fleet.tables}
    assert {row[0]: round(float(row[1] or 0), 6) for row in tables["causes"]} == {
        "checkpoint: storage": 2.0, "data: storage": 1.0,
        "compute or data wait": 0.2, "no CPU": 0.2,
    }  # fmt: skip
    assert [(row[0], round(float(row[1] or 0), 6), row[4]) for row in tables["users"]] == [
        ("bob", 2.2, 1), ("ann", 1.0, 2),
    ]  # fmt: skip
    assert [(row[0], row[1]) for row in tables["data"]] == [("/data/a", 1.0), ("/data/b", 0.0)]
    assert tables["findings"] == (("W1", 0.5, 2),)
    assert [row[0] for row in tables["runs"]] == ["b", "a", "c"]


def test_only_runs_since_a_day_count(runs: Path) -> None:
    assert fleet_of(runs, since_unix_s=1.5e9).n_runs == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ("[" * 5000, "no JSON"),
        ("{}", "no summary"),
        ('{"penstock_summary": 2}', "version 2"),
        (summary.to_json(ONE).replace("3600.0", "1e999"), "wall_s: no number"),
        (summary.to_json(ONE).replace("3600.0", "-1"), "wall_s: no number"),
        (summary.to_json(ONE).replace('"n_mains": 1', '"n_mains": true'), "n_mains: no number"),
        (summary.to_json(ONE).replace('"ann"', '"' + "a" * 300 + '"'), "user: no text"),
        (summary.to_json(ONE).replace("W1", "<b>"), "no names of rules"),
        (" " * 9000, "larger than 8,192 bytes"),
    ],
)
def test_a_file_that_is_no_summary_is_named_and_the_others_count(
    runs: Path, text: str, why: str
) -> None:
    (runs / f"bad{summary.SUFFIX}").write_text(text)
    fleet = fleet_of(runs)
    assert (fleet.n_runs, fleet.n_refused) == (3, 1)
    ((path, reason),) = fleet.refused
    assert path.endswith(f"bad{summary.SUFFIX}")
    assert why in reason


def test_a_pipe_or_a_link_in_place_of_a_summary_does_not_hang(runs: Path) -> None:
    os.mkfifo(runs / f"pipe{summary.SUFFIX}")
    (runs / "loop").symlink_to(runs)
    fleet = fleet_of(runs)
    assert (fleet.n_runs, fleet.n_refused) == (3, 1)


def test_a_summary_reads_back_and_has_about_a_kilobyte(tmp_path: Path) -> None:
    report = report_of(measure(training_job(120, compute_ms=25, read_ms=4, save_every=40)), "r")
    made = summary.summary_of(report, 1e9, "ann", {"SLURM_JOB_ID": "12", "PBS_QUEUE": "gpu"})
    text = summary.to_json(made)
    assert len(text) < 1500
    assert summary.parsed(text.encode()) == made
    assert (made.job, made.partition, made.n_mains, made.steps) == ("12", "gpu", 1, 120)
    assert sum(made.waits_s.values()) == pytest.approx(
        sum(s.s for s in report.wall if s.key != "compute"), abs=0.01
    )
    long = replace(report, title="x" * 10_000, run="y" * 10_000)
    assert len(summary.to_json(summary.summary_of(long))) < summary.MOST_BYTES
    with pytest.raises(PenstockError):
        summary.parsed(text.encode().replace(b"penstock_summary", b"something"))


def test_a_hostile_name_is_text_in_both_views(tmp_path: Path) -> None:
    kept(tmp_path / "r", replace(ONE, user="<script>\x1b[31m", data="/d/\u202e"))
    fleet = fleet_of(tmp_path)
    assert "<script>" not in view.markup_of(fleet)
    assert "\x1b[31m" not in view.render(fleet, 80)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(runs: Path, width: int) -> None:
    kept(runs / "long", replace(ONE, run="r" * 150, data="/data/" + "d" * 150))
    lines = view.render(fleet_of(runs), width).split("\n")
    assert max(map(len, lines)) <= width


def test_a_recorded_run_keeps_a_summary_with_its_batch_job(tmp_path: Path) -> None:
    env = os.environ | {"SLURM_JOB_ID": "4711", "SLURM_JOB_PARTITION": "gpu"}
    command = [sys.executable, "-c", "open('/etc/hostname').read()"]
    quiet = [PENSTOCK, "run", "-q", "-o", "all/quiet", *command]
    for words in ([PENSTOCK, "run", "-o", "all/run", *command], quiet):
        subprocess.run(words, cwd=tmp_path, env=env, check=True, capture_output=True)
    one = summary.read(tmp_path / "all" / "run" / summary.NAME)
    assert (one.run, one.job, one.partition) == ("run", "4711", "gpu")
    assert not (tmp_path / "all" / "quiet" / summary.NAME).exists()

    def asked(*words: str) -> dict[str, object]:
        answer = subprocess.run(
            [PENSTOCK, "runs", "all", "--json", *words],
            cwd=tmp_path, check=True, capture_output=True, text=True,
        )  # fmt: skip
        found: dict[str, object] = json.loads(answer.stdout)
        return found

    assert (asked()["n_runs"], asked()["n_without"]) == (1, 1)
    assert (asked("--make")["n_runs"], asked()["n_without"]) == (2, 0)
    # A later report, outside the batch job, keeps the job's name.
    subprocess.run([PENSTOCK, "report", "all/run"], cwd=tmp_path, check=True, capture_output=True)
    assert summary.read(tmp_path / "all" / "run" / summary.NAME).job == "4711"


@pytest.mark.alone
def test_ten_thousand_runs_are_summed_within_two_seconds(tmp_path: Path) -> None:
    for n in range(10_000):
        user = f"user{n % 50}"
        kept(tmp_path / user / str(n), replace(ONE, run=str(n), user=user, data=f"/d/{n % 200}"))

    def read() -> None:
        for path in tmp_path.rglob(summary.NAME):
            json.loads(path.read_bytes())

    def took_s(work: Callable[[], object]) -> float:
        begin_s = time.process_time()  # two threads of DuckDB count double: an upper bound
        work()
        return time.process_time() - begin_s

    fleet = fleet_of(tmp_path)
    fleet_s = min(took_s(lambda: fleet_of(tmp_path)) for _ in range(3))
    read_s = min(took_s(read) for _ in range(3))
    assert fleet.n_runs == 10_000
    assert fleet.waited_h == pytest.approx(5000)
    # 1.05 s on two busy cores, where reading the files takes 0.5 s; where that takes longer, more.
    assert fleet_s < max(2, 4 * read_s)
