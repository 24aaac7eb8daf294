"""`penstock runs`: many runs at once."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from penstock.cli.shell import (
    AS_JSON,
    NEW_FILE,
    ProgressBar,
    ended_like_ctrl_c,
    opened_run,
    print_json,
    report_of_run,
    say,
    say_some,
    short,
    write_text,
)
from penstock.errors import PenstockError

__all__ = ["runs_command"]

DAY_S = 86_400.0


@click.command("runs", short_help="Sum the waits of many runs: by cause, user, data set.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=100_000),
    metavar="N",
    help="Only runs that began in the last N days.",
)
@click.option(
    "--make", "is_making", is_flag=True, help="First write the summary of each run without one."
)
@AS_JSON
@click.option(
    "-o", "--output", type=NEW_FILE, metavar="FILE", help="A page of its own, without a script."
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send each run to a collector of OpenTelemetry: http://host:4318.",
)
def runs_command(
    folder: Path,
    days: float | None,
    is_making: bool,
    as_json: bool,
    output: Path | None,
    otlp: str | None,
) -> None:
    """Sum the waits of all runs below a folder: by cause, user, data set and rule.

    Reads the summary of each run (summary.json, about 1 kB, written when the run is reported) and
    files *.summary.json; damaged files are counted and named.

    \b
      penstock runs penstock-runs
      penstock runs /shared/penstock --days 30 -o month.html
      penstock runs /shared/penstock --json | jq .waited_h
      penstock runs /shared/penstock --days 1 --otlp http://collector:4318
    """
    from penstock.explain.fleet import fleet_of
    from penstock.views import fleet as view

    with ended_like_ctrl_c(), ProgressBar("reading summaries") as progress:
        if is_making:
            _make_missing(folder)
        since = time.time() - days * DAY_S if days is not None else 0.0
        fleet = fleet_of(folder, since, progress.advance)
        n_sent = _sent(folder, since, otlp) if otlp is not None else 0
    if otlp is not None:
        say(f"{n_sent:,} runs sent to {otlp}")
    if output is not None:
        write_text(view.markup_of(fleet), output)
    if as_json:
        print_json(asdict(fleet))
    elif output is None:
        view.show_on(fleet, sys.stdout)


def _sent(folder: Path, since_unix_s: float, address: str) -> int:
    from penstock.explain.fleet import summaries
    from penstock.interop.otlp import send

    return send(summaries(folder, since_unix_s), address)


def _make_missing(folder: Path) -> None:
    """Write the missing summaries, by a report of each run; name the runs without a report."""
    from penstock.explain.fleet import without_summary

    failed = []
    for run in without_summary(folder):
        try:
            with opened_run(run) as opened:
                report_of_run(opened)
        except PenstockError as error:
            failed.append(f"{short(run)}: {error}")
    say_some(failed, " runs without a report")
