"""Define the commands that explain a recorded run: arguments in, exit status out."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.shell import (
    AS_JSON,
    NEW_FILE,
    NEW_FOLDER,
    RUN_FOLDER,
    RUN_OR_URL,
    ProgressBar,
    duration,
    ended_like_ctrl_c,
    engine,
    here,
    percent,
    print_json,
    print_rich,
    print_table,
    say,
    short,
    size,
    write_text,
)
from penstock.errors import MissingDependency
from penstock.safe.harmless import cell

if TYPE_CHECKING:
    from penstock.explain.report import Report
    from penstock.runs.run import Run

from penstock.cli.shell import LIMIT_PASSED, NOT_JUDGED, opened_run, print_report, report_of_run

__all__ = [
    "ceiling_command",
    "check_command",
    "compare_command",
    "export_command",
    "import_command",
    "report_command",
    "sql_command",
    "tensorboard_command",
    "timeline_command",
    "whatif_command",
]


AS_PAGE = click.option(
    "-o",
    "--output",
    "--html",
    type=NEW_FILE,
    metavar="FILE",
    help="A page of its own, one file that works offline.",
)


@click.command("report")
@click.argument("run", type=RUN_OR_URL)
@AS_JSON
@AS_PAGE
@click.option("--static", is_flag=True, help="The page without charts: small enough for mail.")
@click.option(
    "--anonymous", is_flag=True, help="Other names for paths, hosts, users, tiers and programs."
)
@click.option(
    "--engine",
    type=engine,
    default="duckdb",
    show_default=True,
    metavar="duckdb|spark[://HOST:PORT]",
    help="What answers: this process, or Spark, here or on a cluster, for billions of events.",
)
def report_command(
    run: Path | str,
    as_json: bool,
    output: Path | None,
    static: bool,
    anonymous: bool,
    engine: str,
) -> None:
    """Explain a run: its waits, their causes and remedies.

    \b
      penstock report penstock-runs/train-20250301-101500
      penstock report runs/tuesday --json | jq .verdict
      penstock report runs/tuesday -o tuesday.html
      penstock report runs/tuesday -o tuesday.html --static
      penstock report runs/tuesday -o tuesday.html --anonymous
      penstock report tuesday.reduced
      penstock report runs/tuesday --engine spark://node1:7077
      penstock report hdfs://node1/runs/tuesday --engine spark://node1:7077
    """
    from penstock.explain.report import to_json
    from penstock.explain.report.anonymous import RUN
    from penstock.explain.report.anonymous import anonymous as renamed

    if static and output is None:
        raise click.UsageError("--static is about a page: name its file with -o")
    _want_page(output)
    if isinstance(run, str) and engine == "duckdb":
        raise click.UsageError(f"{run}: only Spark reads a URL: --engine spark://HOST:PORT")
    if isinstance(run, Path) and run.is_file():
        from penstock.explain.reduce import report_of_reduced

        report = report_of_reduced(run, RUN if anonymous else short(run))
    else:
        report = _report_by(run, engine, RUN if anonymous else None)
    report = renamed(report) if anonymous else report
    if output is not None:
        _write_html(report, output, static)
    if as_json:
        click.echo(to_json(report))
    elif output is None:
        print_report(report, sys.stdout)


@click.command("sql")
@click.argument("run", type=RUN_FOLDER)
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="Rows as CSV with a header.")
@AS_JSON
def sql_command(run: Path, query: str, as_csv: bool, as_json: bool) -> None:
    """Ask the tables of a run a question in SQL (DuckDB's).

    Tables: events, files, processes, threads, spans, counters, notes, ceilings, staged, unseen.

    \b
      penstock sql RUN "select path, sum(moved_bytes) from events group by 1 order by 2 desc"
      penstock sql RUN "from counters" --csv > counters.csv
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two forms of one answer: choose one")
    with opened_run(run) as opened:
        answer = opened.sql(query)
        _WRITERS["csv" if as_csv else "json" if as_json else "table"](
            answer.columns, answer.fetchall()
        )
        if re.search(r"\bevents\b", query, re.IGNORECASE):
            _warn_of_folded(opened)


def _warn_of_folded(run: Run) -> None:
    """Warn that sums over events are too low if some calls are in counters only."""
    ((folded, kept),) = run.sql(
        "SELECT (SELECT sum(folded_events) FROM processes)::BIGINT, (SELECT count(*) FROM events)"
    )
    if folded:
        sys.stdout.flush()
        say(
            f"{folded:,} of {folded + kept:,} calls are past the budget, only in `counters`: "
            "sums and counts over `events` lack them"
        )


def _write_csv(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([cell(value) for value in row] for row in rows)


def _write_json(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    import json

    objects = [dict(zip(names, row, strict=True)) for row in rows]
    click.echo(json.dumps(objects, indent=1, default=str))


_WRITERS: dict[str, Callable[[list[str], list[tuple[Any, ...]]], None]] = {
    "csv": _write_csv,
    "json": _write_json,
    "table": print_table,
}


@click.command("timeline", short_help="Draw a run as a timeline: steps, waits, every file call.")
@click.argument("run", type=RUN_FOLDER)
@click.option(
    "-o",
    "--output",
    type=NEW_FILE,
    metavar="FILE",
    help="Where it goes; the suffix says the format.  [default: RUN.pftrace]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["perfetto", "chrome"]),
    help="Perfetto's own format, or Chrome trace events (JSON).",
)
@click.option(
    "--with",
    "profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PROFILE",
    help="Put the rows into a profile of this run: trace.json[.gz] of PyTorch, .xplane.pb of "
    "TensorFlow or JAX.",
)
@click.option("--from", "from_s", type=float, metavar="S", help="Seconds from the run's start.")
@click.option("--to", "to_s", type=float, metavar="S", help="Seconds from the run's start.")
@click.option(
    "--max-events",
    type=click.IntRange(min=1),
    metavar="N",
    default=1_000_000,
    show_default=True,
    help="Of calls; past it the shortest are gathered, and the file says how many.",
)
def timeline_command(
    run: Path,
    output: Path | None,
    form: str | None,
    profile: Path | None,
    from_s: float | None,
    to_s: float | None,
    max_events: int,
) -> None:
    """Draw a run as a timeline: steps, data waits, fetches and every file call.

    \b
      penstock timeline runs/tuesday                           tuesday.pftrace, for ui.perfetto.dev
      penstock timeline runs/tuesday -o t.json.gz --from 60 --to 65
      penstock timeline runs/tuesday --with trace.json.gz      beside PyTorch's operators
      penstock timeline runs/tuesday --with logs/plugins/profile/1/node.xplane.pb
    """
    from penstock.interop.picture import WantedPicture, draw

    wanted = WantedPicture(output, form, profile, from_s, to_s, max_events)
    with opened_run(run) as opened, ProgressBar("writing the timeline") as progress:
        picture = draw(opened, wanted, progress.advance)
    timeline = picture.timeline
    say(
        f"{short(picture.path)}: {timeline.n_calls:,} calls, {len(timeline.slices):,} stretches, "
        f"rows: {len(timeline.rows):,}"
    )
    if picture.alignment is not None:
        say(f"clocks {picture.alignment.sentence}")
    for remark in (*picture.copied, *timeline.remarks):
        say(remark)
    say(picture.hint)


@click.command(
    "ceiling", short_help="Measure the largest bandwidth of a run's storage, or of a URL."
)
@click.argument("place", metavar="RUN|PATH|URL")
@click.option(
    "--write", "is_writing", is_flag=True, help="Also writes; of a run, its checkpoints'."
)
@click.option("--for", "for_s", type=duration, metavar="TIME", default="60s", show_default=True)
@click.option(
    "--keep", type=RUN_FOLDER, metavar="RUN", help="Of a path or URL: also for reports of this run."
)
@AS_JSON
def ceiling_command(
    place: str, is_writing: bool, for_s: float, keep: Path | None, as_json: bool
) -> None:
    """Measure what storage gives at most: the tiers of a run, any path, an object store.

    Reads existing files, evicted from the page cache first; writes a file without a name.  Of a
    URL, an object or a prefix, it reads ranges with 1, 8 and 64 requests at once.  The result for
    a run is stored in RUN/ceilings.json, and used by its reports.

    \b
      penstock ceiling penstock-runs/train-20250301-101500 --write
      penstock ceiling /mnt/nvme --write --for 20s
      penstock ceiling /mnt/nvme --write --keep RUN       is it faster than where RUN saved?
      penstock ceiling s3://bucket/train/ --keep RUN      how fast does the store answer?
    """
    from penstock.runs.run import open_run
    from penstock.trial import ceiling, endpoint

    is_url = endpoint.is_url(place)
    path = Path(place)
    if is_url and is_writing:
        raise click.UsageError("--write measures folders; writes to an object store cost money")
    if not is_url and not path.exists():
        raise click.BadParameter(f"Path '{place}' does not exist.", param_hint="'RUN|PATH|URL'")
    notes: list[str] = []
    with ended_like_ctrl_c(), ProgressBar("reading logs") as progress:
        if is_url:
            ceilings = endpoint.ceilings_of_url(place, for_s, progress.say)
        elif ceiling.is_run(path):
            with contextlib.closing(open_run(path, progress.advance)) as run:
                ceilings, notes = ceiling.ceilings_of_run(run, is_writing, for_s, progress.say)
            keep = path
        else:
            ceilings = ceiling.ceilings_of_path(path, is_writing, for_s, progress.say)
        if keep is not None:
            ceiling.store(keep, ceilings)
    if as_json:
        click.echo(ceiling.to_json(ceilings))
        for note in notes:
            say(note)
    else:
        print_rich(ceiling.table_of(ceilings, notes))


@click.command("whatif", short_help="Measure the gain of another tier, or of more threads.")
@click.argument("run", type=RUN_FOLDER)
@click.option(
    "--tier",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Reads from copies in this folder; they are removed.",
)
@click.option("--threads", type=click.IntRange(1, 256), metavar="N", help="Reads with N threads.")
@click.option(
    "--readahead",
    type=click.Choice(["normal", "sequential", "random", "willneed", "off"]),
    help="Gives the kernel this hint; off: past the page cache.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), metavar="N", help="Requests at once, a process."
)
@click.option(
    "--latency", type=duration, metavar="TIME", help="Another endpoint: a request's first byte."
)
@click.option("--bandwidth", type=size, metavar="SIZE", help="Its bytes a second, for all.")
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Its requests a second.")
@click.option("--for", "for_s", type=duration, metavar="TIME", default="30s", show_default=True)
@click.option("--budget", type=size, metavar="SIZE", default="4GiB", show_default=True)
@click.option("--warm", is_flag=True, help="Leaves the page cache as it is.")
@AS_JSON
def whatif_command(
    run: Path,
    tier: Path | None,
    threads: int | None,
    readahead: str | None,
    concurrency: int | None,
    latency: float | None,
    bandwidth: int | None,
    requests: int | None,
    for_s: float,
    budget: int,
    warm: bool,
    as_json: bool,
) -> None:
    """Measure the gain of another tier, of more threads or of a read-ahead hint.

    Replays a stretch of the run's reading from the middle of its training: first as recorded, then
    with the change.  --budget limits the bytes copied to a tier.

    With --concurrency, --latency, --bandwidth or --requests: calculates the wait for remote storage
    from the recorded requests, with other requests at once or at another endpoint.

    \b
      penstock whatif RUN --tier /mnt/nvme
      penstock whatif RUN --threads 8 --for 10s
      penstock whatif RUN --readahead willneed
      penstock whatif RUN --concurrency 32 --latency 5ms
    """
    from penstock.runs.run import open_run
    from penstock.trial import whatif

    of_files, of_requests = (tier, threads, readahead), (concurrency, latency, bandwidth, requests)
    if any(value is not None for value in of_requests):
        if any(value is not None for value in of_files):
            raise click.UsageError("files or requests: --tier, --threads, --readahead alone")
        _whatif_remote(run, of_requests, as_json)
        return
    if tier is None and threads is None and readahead is None:
        raise click.UsageError("say what to try: --tier, --threads, --readahead or --concurrency")
    change = whatif.Change(tier, threads, readahead)
    with (
        ended_like_ctrl_c(),
        ProgressBar("reading logs") as progress,
        contextlib.closing(open_run(run, progress.advance)) as opened,
    ):
        answer = whatif.whatif(
            opened,
            change,
            for_s=for_s,
            is_warm=warm,
            budget_bytes=budget,
            progress=progress.say,
        )
    if as_json:
        click.echo(whatif.to_json(answer))
    else:
        print_rich(whatif.table_of(answer))


def _whatif_remote(run: Path, changed: tuple[Any, ...], as_json: bool) -> None:
    from penstock.runs.run import open_run
    from penstock.trial import remote

    with (
        ended_like_ctrl_c(),
        ProgressBar("reading logs") as progress,
        contextlib.closing(open_run(run, progress.advance)) as opened,
    ):
        answer = remote.whatif_remote(opened, remote.RemoteChange(*changed))
    if as_json:
        click.echo(remote.to_json(answer))
    else:
        for sentence in remote.sentences_of(answer):
            click.echo(sentence)


@click.command("tensorboard", short_help="Write a run's numbers as TensorBoard's own files.")
@click.argument("run", type=RUN_FOLDER)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where TensorBoard looks.  [default: RUN/tensorboard]",
)
def tensorboard_command(run: Path, logdir: Path | None) -> None:
    """Write a run's numbers as TensorBoard's own files: curves by step, and the findings as text.

    Any TensorBoard shows these files.  Not needed if penstock is installed beside TensorBoard: then
    a tab shows the runs below the log folder.

    \b
      penstock tensorboard runs/tuesday && tensorboard --logdir runs
      penstock tensorboard runs/tuesday --logdir lightning_logs
    """
    from penstock.explain.report import to_json
    from penstock.views.tensorboard import write_events

    folder = run / "tensorboard" if logdir is None else logdir / run.resolve().name
    with opened_run(run) as opened:
        report = report_of_run(opened)
        write_events(report, folder, opened.start_unix_ns / 1e9)
    if logdir is not None:  # so the tab there shows the report too
        write_text(to_json(report), folder / "penstock-report.json")
    click.echo(f"tensorboard --logdir {short(run if logdir is None else logdir)}")


@click.command("compare")
@click.argument("runs", nargs=-1, type=RUN_FOLDER, metavar="[A B]")
@click.option("--a", "more_a", multiple=True, type=RUN_FOLDER, metavar="RUN", help="A run of A.")
@click.option("--b", "more_b", multiple=True, type=RUN_FOLDER, metavar="RUN", help="A run of B.")
@AS_JSON
@AS_PAGE
def compare_command(
    runs: tuple[Path, ...],
    more_a: tuple[Path, ...],
    more_b: tuple[Path, ...],
    as_json: bool,
    output: Path | None,
) -> None:
    """Compare run B with run A.

    Further runs after B are repetitions of B.  Several runs a side show what is noise.

    \b
      penstock compare runs/before runs/after
      penstock compare runs/before runs/after -o compared.html
      penstock compare --a runs/a1 --a runs/a2 --a runs/a3 --b runs/b1 --b runs/b2
    """
    from penstock.explain import compare
    from penstock.views import comparison as view

    _want_page(output)
    a, b = (*runs[:1], *more_a), (*runs[1:], *more_b)
    if not a or not b:
        raise click.UsageError("two runs are compared: A and B, or --a and --b")
    for side in (a, b):
        twice = [path for path in side if [*map(Path.absolute, side)].count(path.absolute()) > 1]
        if twice:
            raise click.UsageError(f"{twice[0]} stands twice on one side: a repetition is a run")
    made = compare.compare([_report_in(run) for run in a], [_report_in(run) for run in b])
    if output is not None:
        from penstock.views import comparison_page

        write_text(comparison_page.render(made, (here(a[0]), here(b[0]))), output)
    if as_json:
        click.echo(compare.to_json(made))
    elif output is None:
        view.show_on(made, sys.stdout)


def _report_in(folder: Path) -> Report:
    with opened_run(folder) as opened:
        return report_of_run(opened)


@click.command("check", short_help="Check limits of a run; the exit status is for CI.")
@click.argument("run", type=RUN_FOLDER)
@click.option(
    "--max-stall",
    type=percent,
    metavar="PERCENT",
    help="Largest stall, of the wall time: data waits, checkpoints, own file calls.",
)
@click.option(
    "--max-storage",
    type=percent,
    metavar="PERCENT",
    help="Largest part of the stall that waits on storage, of the wall time.",
)
@click.option(
    "--max-remote",
    type=percent,
    metavar="PERCENT",
    help="Largest part of the stall that waits on remote storage, of the wall time.",
)
@click.option(
    "--baseline",
    type=RUN_FOLDER,
    metavar="RUN",
    help="Compare: wall per step and stall not above those of this run.",
)
@click.option(
    "--tolerance",
    type=percent,
    default=5,
    show_default=True,
    metavar="PERCENT",
    help="Allowed excess over the baseline.",
)
@AS_JSON
def check_command(
    run: Path,
    max_stall: float | None,
    max_storage: float | None,
    max_remote: float | None,
    baseline: Path | None,
    tolerance: float,
    as_json: bool,
) -> int:
    """Check limits of a run; the exit status is for CI.

    Exit status 0: all limits are kept.  1: a limit is exceeded; standard error has the limit and
    the excess.  2: bad input.  3: a limit could not be judged, because its number was not measured.

    \b
      penstock check runs/tuesday --max-stall 10
      penstock check runs/tuesday --max-storage 5 --baseline runs/monday --tolerance 5
    """
    from penstock.explain import compare

    asked = (max_stall, max_storage, max_remote)
    if baseline is None and all(share is None for share in asked):
        raise click.UsageError(
            "nothing to check: give --max-stall, --max-storage, --max-remote or --baseline"
        )
    report = _report_in(run)
    limits = compare.limits(report, *(None if share is None else share / 100 for share in asked))
    if baseline is not None:
        limits += compare.baseline_limit(report, _report_in(baseline), tolerance / 100)
    if as_json:
        print_json({"run": here(run), "limits": [asdict(limit) for limit in limits]})
    for limit in limits if not as_json else ():
        if limit.state == "kept":
            click.echo(f"{short(run)}: {limit.says}")
        else:
            say(f"{short(run)}: {limit.says}")
    states = {limit.state for limit in limits}
    return LIMIT_PASSED if "passed" in states else NOT_JUDGED if "not measured" in states else 0


EXPORTS = ("darshan", "dftracer")


@click.command("export")
@click.argument("run", type=RUN_FOLDER)
@click.option("--to", "form", type=click.Choice(EXPORTS), required=True, help="Whose format.")
@click.option(
    "-o",
    "--output",
    type=NEW_FILE,
    metavar="FILE",
    help="Where it goes.  [default: RUN.darshan, RUN.pfw.gz]",
)
def export_command(run: Path, form: str, output: Path | None) -> None:
    """Write a run in another tool's format.

    darshan: one log for all ranks and workers, for PyDarshan, Drishti and the dashboards of
    computing centres (needs the extra penstock[darshan]).  dftracer: a trace for DFAnalyzer; gzip
    if the name ends in .gz.

    \b
      penstock export runs/tuesday --to darshan
      penstock export runs/tuesday --to dftracer -o tuesday.pfw.gz
    """
    from penstock.interop import darshan, dftracer

    write, suffix = {
        "darshan": (darshan.export, ".darshan"),
        "dftracer": (dftracer.export, ".pfw.gz"),
    }[form]
    path = output or Path(f"{run.absolute().name}{suffix}")
    with opened_run(run) as opened, ProgressBar("writing") as progress:
        lacks = write(opened, path, progress.advance)
    for lack in lacks:
        say(lack)
    say(f"wrote {short(path)}")


@click.command("import", short_help="Make a run of logs of Darshan or traces of DFTracer.")
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE...|FOLDER",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=NEW_FOLDER,
    metavar="RUN",
    help="The run folder to be made.",
)
def import_command(sources: tuple[Path, ...], output: Path) -> None:
    """Make a run of what another tool recorded: one file, or those of all processes of a job.

    Logs of Darshan (needs the extra penstock[darshan]) and traces of DFTracer, recognised by their
    contents.  report and sql then work on the run; measures that the other tool did not record are
    not measured.

    \b
      penstock import job.darshan -o runs/job
      penstock import logs-of-one-job/ -o runs/job
      penstock import trace.pfw.gz -o runs/job
    """
    from penstock.interop.foreign import import_foreign

    with ProgressBar("reading") as progress:
        folder = import_foreign(sources, output, progress.advance)
    say(f"made {short(folder)}; penstock report {short(folder)}")


def _report_by(run: Path | str, engine: str, name: str | None = None) -> Report:
    """Return a run's report, computed by DuckDB or Spark.  name: of the run; default: the folder's
    name."""
    if isinstance(run, Path) and engine == "duckdb":
        with opened_run(run) as opened:
            return report_of_run(opened, name)
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of
    from penstock.explain.spark import open_on_spark

    with contextlib.ExitStack() as stack:
        source = run if isinstance(run, str) else stack.enter_context(opened_run(run))
        asked = stack.enter_context(ProgressBar("asking Spark"))
        there = stack.enter_context(open_on_spark(source, engine, asked.advance))
        name = name or (run if isinstance(run, str) else here(run))
        return report_of(measure(there), name)


def _want_page(path: Path | None) -> None:
    """Refuse a file name with the ending of another format."""
    if path is not None and path.suffix.lower() not in ("", ".html", ".htm"):
        raise click.UsageError(f"{path}: a report is written as .html; print it from a browser")


def _write_html(report: Report, path: Path, static: bool) -> None:
    from penstock.views import html

    library = None
    if not static:
        try:
            library = html.chart_library()
        except MissingDependency as error:
            say(str(error))
    write_text(html.render(report, library), path)
