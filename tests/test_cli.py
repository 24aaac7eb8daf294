"""The command line: what it accepts, what it says when it cannot, and where its output goes."""

import csv
import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import penstock
from fixtures import PENSTOCK
from penstock.cli import cli
from penstock.cli.shell import size

COMMANDS = sorted(cli.commands)

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)


def say(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, *words], capture_output=True, text=True, timeout=240, **options
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a program that writes one file in ten pieces."""
    folder = tmp_path_factory.mktemp("cli")
    program = """
file = open("written", "wb", buffering=0)
for _ in range(10):
    file.write(bytes(100))
"""
    finished = say("run", "-q", "-o", "run", sys.executable, "-c", program, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


# What can be in a run


@needs_library
def test_a_name_of_escapes_moves_no_cursor_and_stays_exact_in_csv_and_json(
    tmp_path: Path,
) -> None:
    name = "a\x1b[31m\nb"
    (tmp_path / name).write_text("x")
    say("run", "-q", "-o", "run", sys.executable, "-c", f"open({name!r}).read()", cwd=tmp_path)
    query = "select path as p from files where path like '%31m%'"
    told = say("sql", "run", query, cwd=tmp_path).stdout
    assert "\x1b" not in told
    assert r"/a\x1b[31m\nb" in told
    rows = list(csv.reader(io.StringIO(say("sql", "run", query, "--csv", cwd=tmp_path).stdout)))
    assert rows == [["p"], [str(tmp_path / name)]]
    answer = json.loads(say("sql", "run", query, "--json", cwd=tmp_path).stdout)
    assert answer == [{"p": str(tmp_path / name)}]
    is_forms = say("sql", "run", query, "--csv", "--json", cwd=tmp_path)
    assert (is_forms.returncode, is_forms.stdout) == (2, "")
    assert "--csv and --json are two forms of one answer: choose one" in is_forms.stderr


@needs_library
def test_a_sum_over_events_says_how_many_live_on_only_in_counters(tmp_path: Path) -> None:
    program = """
file = open("f", "wb", buffering=0)
for _ in range(60_000):
    file.write(bytes(10))
"""
    command = ["-o", "run", "--budget", "300kB", sys.executable, "-c", program]
    say("run", "-q", *command, cwd=tmp_path)
    query = "select sum(moved_bytes)::bigint as n from {} where path like '%/f'"
    exact = json.loads(say("sql", "run", query.format("counters"), "--json", cwd=tmp_path).stdout)
    assert exact == [{"n": 600_000}]
    summed = say("sql", "run", query.format("Events"), "--json", cwd=tmp_path)
    assert json.loads(summed.stdout)[0]["n"] < 600_000
    found = re.fullmatch(
        r"penstock: ([\d,]+) of ([\d,]+) calls are past the budget, only in `counters`: "
        r"sums and counts over `events` lack them\n",
        summed.stderr,
    )
    assert found, summed.stderr
    folded, calls = (int(number.replace(",", "")) for number in found.groups())
    every = json.loads(
        say(
            "sql", "run", "select sum(calls)::bigint n from counters", "--json", cwd=tmp_path
        ).stdout
    )
    assert calls == every[0]["n"]
    assert folded < calls
    assert say("sql", "run", query.format("counters"), cwd=tmp_path).stderr == ""


# Arguments


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1048576", 1 << 20),
        ("1GiB", 1 << 30),
        ("1gib", 1 << 30),
        ("2G", 2_000_000_000),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("3k", 3000),
        ("1TB", 10**12),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, n_bytes: int) -> None:
    assert size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "1XB", "-1MB", "0", "1e999", "nan", "one"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 500MB or 1GiB"):
        size(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    finished = say(command, "--help")
    assert finished.returncode == 0
    assert finished.stdout.startswith(f"Usage: penstock {command}")
    assert finished.stderr == ""


def groups(of: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of each command that has commands."""
    yield path
    for name, command in of.commands.items():
        if isinstance(command, click.Group):
            yield from groups(command, *path, name)


@pytest.mark.parametrize(
    "words", list(groups(cli)), ids=lambda words: " ".join(words) or "penstock"
)
def test_a_list_of_commands_says_each_in_one_whole_line_of_80_columns(
    words: tuple[str, ...],
) -> None:
    told = say(*words, "--help", env=os.environ | {"COLUMNS": "80"}).stdout
    group: Any = cli
    for word in words:
        group = group.commands[word]
    begin = re.search(r"^(Commands|Record):$", told, re.MULTILINE)
    assert begin
    lines = told[begin.end() :].partition("\n  Completion")[0].split("\n")
    told_of = [line.split()[0] for line in lines if re.match(r"  \S+  ", line)]
    assert sorted(told_of) == sorted(group.commands)
    assert len(told_of) == sum(line.startswith(" ") for line in lines)
    assert not any(line.endswith("...") or len(line) > 80 for line in lines)


def test_commands_that_take_a_run_or_a_program_show_examples() -> None:
    for command in ("run", "report", "sql"):
        assert f"penstock {command} " in say(command, "--help").stdout.split("Usage:")[1][40:]


def test_without_a_command_the_help_is_shown() -> None:
    assert say().stdout == say("--help").stdout
    assert "Completion in bash" in say().stdout


def test_completion_offers_the_commands() -> None:
    finished = say(
        env=os.environ
        | {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock re", "COMP_CWORD": "1"}
    )
    assert "report" in finished.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-command"], "No such command 'no-such-command'"),
        (["run"], "Missing argument 'COMMAND...'"),
        (["run", "--bogus", "true"], "No such option '--bogus'"),
        (["run", "--budget", "much", "true"], "'much' is no size"),
        (["report", "/nowhere"], "Directory '/nowhere' does not exist"),
        (["sql", "/tmp"], "Missing argument 'QUERY'"),
        (["run", "-o", "", "true"], "'-o' / '--output': an empty name; say where it goes"),
        (["import", "/etc/hostname", "-o", ""], "an empty name; say where it goes"),
        (["report", "/tmp", "-o", ""], "an empty name; say where it goes"),
        (["report", __file__], f"{__file__} is a file; a run is the folder that its logs lie in;"),
        (["watch", __file__], f"{__file__} is a file; a run is the folder that its logs lie in;"),
    ],
)
def test_a_wrong_argument_is_one_line_that_says_what_and_what_now(
    words: list[str], said: str
) -> None:
    finished = say(*words)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith("penstock: ")
    assert said in finished.stderr
    assert finished.stderr.endswith("--help says how\n")
    assert finished.stderr.count("\n") == 1


def test_a_folder_without_a_run_is_one_line_and_status_2(tmp_path: Path) -> None:
    for words in (["report", tmp_path], ["sql", tmp_path, "select 1"]):
        finished = say(*words)
        assert finished.returncode == 2
        assert finished.stdout == ""
        assert finished.stderr.startswith("penstock: ")
        assert str(tmp_path) in finished.stderr
        assert finished.stderr.count("\n") == 1


def test_a_folder_of_other_files_is_told_without_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(b"junk\n")
    assert say("report", tmp_path).stderr == (
        f"penstock: {tmp_path}: no log of penstock in it ({tmp_path}/train.log: not a log of "
        "penstock); record one with: penstock run COMMAND\n"
    )


def test_debug_shows_the_traceback_and_otherwise_there_is_none(tmp_path: Path) -> None:
    assert "Traceback" not in say("report", tmp_path).stderr
    debugged = say("report", tmp_path, env=os.environ | {"PENSTOCK_DEBUG": "1"})
    assert "Traceback" in debugged.stderr
    assert debugged.returncode == 2


def test_python_m_penstock_is_penstock() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "penstock", "version"], capture_output=True, text=True
    )
    assert finished.stdout == say("version").stdout
    assert finished.stdout.startswith("penstock ")


@pytest.mark.alone
def test_help_takes_less_than_150_ms_and_loads_no_engine() -> None:
    # 60 ms on one EPYC core.  Processor time, and the best of many, in turns with Python's own
    # start: 12 ms there, and where that takes longer, this may.
    def took_s(*command: str | Path) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    rounds = [(took_s(PENSTOCK, "--help"), took_s(sys.executable, "-c", "pass")) for _ in range(15)]
    help_s, python_s = map(min, zip(*rounds, strict=True))
    assert help_s < 0.150 * max(1.0, python_s / 0.012)
    program = "import sys, penstock.cli; print([m for m in ('duckdb', 'rich') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert loaded.stdout == "[]\n"


@needs_library
def test_a_run_without_a_report_imports_no_numpy(tmp_path: Path) -> None:
    """At its end `penstock run` reads from the logs which files the program opened."""
    data = tmp_path / "data"
    data.write_bytes(bytes(5000))
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", "cat", data]
    environ = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "penstock.places.residency" in imported
    assert not imported & {"numpy", "duckdb", "rich"}
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["residency"]["after"][:2] == [1, 5000]


# Answers


@needs_library
def test_sql_answers_as_a_table_as_csv_and_as_json(run_folder: Path) -> None:
    query = "select op, count(*) n, sum(moved_bytes) bytes from events where path like '%written'"
    query += " and op = 'write' group by op"
    assert "write" in say("sql", run_folder, query).stdout
    rows = list(csv.reader(io.StringIO(say("sql", run_folder, query, "--csv").stdout)))
    assert rows == [["op", "n", "bytes"], ["write", "10", "1000"]]
    answer = json.loads(say("sql", run_folder, query, "--json").stdout)
    assert answer == [{"op": "write", "n": 10, "bytes": 1000}]


@needs_library
def test_a_query_that_is_none_is_one_line(run_folder: Path) -> None:
    for query in (
        "selec 1",
        "select nothing from events",
        "drop table events",
        "select 1; select 2",
    ):
        finished = say("sql", run_folder, query)
        assert finished.returncode == 2, query
        assert finished.stdout == ""
        assert finished.stderr.startswith("penstock: ")
        assert "Traceback" not in finished.stderr


@needs_library
def test_a_reader_that_has_seen_enough_is_no_error(run_folder: Path) -> None:
    query = "select * from range(1000000)"
    finished = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "-", PENSTOCK, "sql", run_folder]
        + [query, "--csv"],
        capture_output=True,
        text=True,
    )
    assert finished.stdout == "range\n"
    assert finished.stderr == ""
    assert finished.returncode == 0


@needs_library
def test_a_report_is_text_or_json(run_folder: Path) -> None:
    text = say("report", run_folder)
    assert text.returncode == 0, text.stderr
    assert text.stderr == ""
    report = json.loads(say("report", run_folder, "--json").stdout)
    assert report["verdict"]["headline"] in text.stdout


@needs_library
def test_a_page_is_written_whole_or_not_at_all(run_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    finished = say("report", run_folder, "-o", page)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    finished = say("report", run_folder, "-o", tmp_path / "absent" / "page.html")
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [page]


def test_a_page_without_charts_is_small_and_one_with_them_carries_its_library(
    run_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    live, static = tmp_path / "live.html", tmp_path / "static.html"
    assert say("report", run_folder, "-o", live).stderr == ""
    assert say("report", run_folder, "-o", static, "--static").stderr == ""
    assert 'id="library"' in live.read_text()
    assert 'id="library"' not in static.read_text()
    assert static.stat().st_size < 150_000


def without(package: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """penstock in a Python that has no such package."""
    program = (
        "import sys; sys.modules[sys.argv.pop(1)] = None; from penstock.cli import main; main()"
    )
    command = [sys.executable, "-c", program, package, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_without_plotly_the_page_stands_still_and_the_extra_is_named(
    run_folder: Path, tmp_path: Path
) -> None:
    said = without("plotly", "report", run_folder, "-o", tmp_path / "page.html")
    assert said.returncode == 0
    assert re.fullmatch(r"penstock: charts .*'penstock\[html\]'.*\n", said.stderr)
    assert "<table" in (tmp_path / "page.html").read_text()
    said = without("plotly", "report", run_folder, "-o", tmp_path / "page.html", "--static")
    assert said.stderr == ""


def test_tensorboards_files_go_where_it_looks_and_the_next_command_is_printed(
    run_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    said = say("tensorboard", run_folder)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("tensorboard --logdir ")
    assert len(list((run_folder / "tensorboard").glob("*tfevents*"))) == 1
    said = say("tensorboard", run_folder, "--logdir", tmp_path)
    assert said.stdout == f"tensorboard --logdir {tmp_path}\n"
    names = {path.name.partition(".")[0] for path in (tmp_path / "run").iterdir()}
    assert names == {"events", "penstock-report"}


def test_without_tensorboard_the_extra_is_named(run_folder: Path) -> None:
    said = without("tensorboard", "tensorboard", run_folder)
    assert said.returncode == 2
    assert re.fullmatch(r"penstock: .*'penstock\[tensorboard\]'\n", said.stderr)
