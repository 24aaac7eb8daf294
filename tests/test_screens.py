"""Screens: what a user reads is true at a glance, for every command alike."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fixtures import PENSTOCK
from penstock import cli
from penstock.explain.measures import Number, measure
from penstock.explain.report import largest_speedup, report_of
from penstock.explain.report.pictures import _carry_on
from penstock.views import html, terminal
from penstock.views.paper import Paper
from penstock.words import show
from synthetic import Synthetic, training_job

MS = 1_000_000

# Commands that print nothing but a line about the files that they wrote or the processes that they
# run, and commands whose output has a form of its own.
WITHOUT_JSON = {
    *("attach", "run", "demo", "export", "import", "reduce", "tensorboard", "timeline", "version"),
    *(
        "slurm prolog",
        "slurm epilog",
        "mcp",
        "window",
        "stage fill",
        "tiers add",
        "tiers remove",
    ),
    "save drain",
}
# The first name of an option, by meaning: one name for one thing.
FIRST_NAMES = {
    "seconds": "--for",
    "plot": "--picture",
    "output": "--output",
    "drawing": "--picture",
}


def commands() -> dict[str, click.Command]:
    """Every command of the package by its words; not the laboratory's."""

    def walk(command: click.Command, words: tuple[str, ...]) -> Any:
        if not isinstance(command, click.Group):
            yield " ".join(words), command
            return
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            if child is not None and (name != "bench" or words):
                yield from walk(child, (*words, name))

    return dict(walk(cli.cli, ()))


def test_every_command_that_answers_a_question_answers_in_json() -> None:
    without = {
        words
        for words, command in commands().items()
        if "as_json" not in {param.name for param in command.params}
    }
    assert without == WITHOUT_JSON


def test_one_thing_has_one_option_name_in_every_command() -> None:
    for words, command in commands().items():
        for param in command.params:
            if isinstance(param, click.Option) and param.name in FIRST_NAMES:
                long = [name for name in param.opts if name.startswith("--")]
                assert long[0] == FIRST_NAMES[param.name], words
            if param.name == "as_json" and words != "sql":
                assert isinstance(param, click.Option)
                assert param.help == "As JSON, on standard output.", words


def test_a_limit_of_ci_is_judged_in_json_too(tmp_path: Path) -> None:
    from test_compare import write_run

    write_run(tmp_path / "bad", 40)
    finished = subprocess.run(
        [PENSTOCK, "check", "bad", "--max-stall", "10", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    (limit,) = json.loads(finished.stdout)["limits"]
    assert (limit["key"], limit["state"]) == ("stall", "passed")


def test_a_ratio_is_never_zero_times() -> None:
    assert show(0.0004, "x") == "<0.01x"
    assert show(0.0061, "x") == "0.01x"
    assert show(0, "x") == "0x"


def test_the_bound_on_the_speed_is_of_the_waits_that_the_verdict_names() -> None:
    verdict = report_of(measure(training_job(120, compute_ms=25, read_ms=4))).verdict
    none = Number(0.0, "share")
    local = replace(verdict, max_speedup=Number(1.25, "x"), remote=none)
    assert largest_speedup(local) == "Without the wait on storage: at most 1.25x as fast."
    remote = replace(verdict, max_speedup=Number(1.01, "x"), remote=Number(0.74, "share"))
    assert "on remote storage: at most 4.0" in largest_speedup(remote)
    both = replace(verdict, max_speedup=Number(1.25, "x"), remote=Number(0.3, "share"))
    assert largest_speedup(both) == (
        "Without the wait on storage and remote storage: at most 2.00x as fast."
    )
    assert largest_speedup(replace(local, max_speedup=Number(1.001, "x"))) == ""


def test_a_bound_far_above_the_measured_waits_stands_beside_their_part() -> None:
    report = report_of(measure(training_job(120, compute_ms=25, read_ms=4)))
    verdict, none = report.verdict, Number(0.0, "share")
    open_ = replace(
        verdict, storage=Number(0.11, "share"), max_speedup=Number(4.0, "x"), remote=none
    )
    assert largest_speedup(open_) == (
        "Without the wait on storage: 1.12x as fast by the measured waits, at most 4.00x if all"
        " time of unknown use is such a wait."
    )
    shown = " ".join(terminal.render(replace(report, verdict=open_), 60).replace("│", " ").split())
    assert largest_speedup(open_) in shown  # wrapped, not cut
    assert largest_speedup(replace(open_, storage=none)) == ""  # nothing was measured
    narrow = replace(open_, max_speedup=Number(1.13, "x"))
    assert largest_speedup(narrow).endswith("at most 1.13x as fast.")
    far = replace(open_, remote=Number(0.4, "share"))
    assert largest_speedup(far) == (
        "Without the wait on storage and remote storage: 2.04x as fast by the measured waits."
    )


def test_rules_about_things_that_the_run_lacks_are_counted_and_not_listed() -> None:
    report = report_of(measure(training_job(120, compute_ms=25, read_ms=4)))
    text = terminal.render(report, 100)
    fine = text[text.index("Checked and fine") :]
    assert re.match(r"Checked and fine  \d+ rules not applicable to this run\n", fine)
    assert "slow restart" not in fine.split("\n\n")[0]  # no checkpoint was loaded
    assert "not applicable" in html.render(report)


def test_a_command_in_a_sentence_of_the_page_is_code_without_backticks() -> None:
    run = training_job(120, compute_ms=25, read_ms=4, save_every=40)
    page = html.render(report_of(measure(run)))
    body = page[page.index("<body") : page.index("<script", page.index("<body"))]
    assert "<code>penstock tiers add fast FOLDER</code>" in body
    assert "`" not in body


def test_a_share_of_one_per_cent_is_not_drawn_as_a_quarter() -> None:
    paper = Paper(80, is_utf8=True)
    one, quarter, half, all_of_it = paper.shade([0.01, 0.25, 0.5, 1.0])
    assert len({" ", one, quarter, half, all_of_it}) == 5
    assert paper.shade([0.0, 0.06]) == f" {quarter}"
    assert Paper(80, is_utf8=False).shade([0.01, 0.25]).isascii()


def test_a_level_holds_until_its_next_sample() -> None:
    values = [None, 0.4, None, None, 0.5, None]
    _carry_on(values)
    assert values == [None, 0.4, 0.4, 0.4, 0.5, 0.5]


def test_the_time_of_the_run_and_the_wall_time_of_the_training_have_two_names() -> None:
    report = report_of(measure(training_job(120, compute_ms=25, read_ms=4)))
    assert report.subtitle[0].endswith(" s in total")
    idle = Synthetic()
    idle.process(1, end=2000 * MS)
    assert report_of(measure(idle)).subtitle[0] == "2.00 s"


def test_the_rest_of_the_data_wait_is_named_by_its_two_largest_parts() -> None:
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.worker(2, start=0, end=1400 * MS)
    run.step(0, 100 * MS, 0)
    run.wait(100 * MS, 400 * MS, 1)
    run.fetch(100 * MS, 270 * MS, 1, cpu=10 * MS, delay=130 * MS)
    run.step(100 * MS, 1000 * MS, 1)
    labels = [segment.label for segment in report_of(measure(run)).wall]
    assert not any(label == "data wait: other" for label in labels), labels
    assert any(label.startswith("data wait: mostly ") for label in labels), labels


def test_a_shell_completes_the_names_of_tiers(tmp_path: Path) -> None:
    env = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / "nvme").mkdir()
    added = subprocess.run(
        [PENSTOCK, "tiers", "add", "fastest", tmp_path / "nvme", "--no-measure"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert added.returncode == 0, added.stderr
    for line, words in (("run --staged fa", 3), ("stage status fa", 3), ("tiers measure f", 3)):
        finished = subprocess.run(
            [PENSTOCK],
            env=env
            | {
                "_PENSTOCK_COMPLETE": "bash_complete",
                "COMP_WORDS": f"penstock {line}",
                "COMP_CWORD": str(words),
            },
            capture_output=True,
            text=True,
        )
        assert "plain,fastest" in finished.stdout, line


def test_stopping_a_recording_passes_over_children_that_have_ended() -> None:
    """Such a child is gone, or a zombie of a parent that does not wait."""
    code = "import os, time; pid = os.fork(); pid or os._exit(0); print(pid, flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
            finished = subprocess.run(
                [PENSTOCK, "attach", str(parent.pid), "--children", "--stop"],
                capture_output=True,
                text=True,
            )
            assert finished.returncode == 0, finished.stderr
            assert f"process {child}" not in finished.stderr
        finally:
            parent.send_signal(signal.SIGKILL)


def test_long_work_says_so_in_a_log_too() -> None:
    code = (
        "import time; from penstock.cli import shell; shell.PROGRESS_AFTER_S = 0.05\n"
        "with shell.ProgressBar('reading logs') as progress:\n"
        "    progress.advance(1, 4); time.sleep(float({0!r}))"
    )

    def lines(seconds: str, **env: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code.format(seconds)],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "PENSTOCK_PROGRESS"} | env,
        ).stderr

    assert lines("0.4") == "penstock: reading logs …, 25%\n"
    assert lines("0.4", PENSTOCK_PROGRESS="off") == ""
    assert lines("0") == ""


def test_the_query_of_the_readme_is_about_the_data_set() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    query = re.search(r'penstock sql \S+ "([^"]+)"', text)
    assert query is not None
    assert "path_class = 'data'" in query[1]


def test_the_smallest_experiments_print_their_figures() -> None:
    makefile = (Path(__file__).parent.parent / "lab" / "Makefile").read_text()
    assert "pytest -rP lab/tests -m" in makefile
