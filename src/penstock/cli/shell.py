"""Provide the common parts of all commands: sizes and times as typed, sentences, tables, bars,
Ctrl-C.

The result of a command goes to standard output, all remarks to standard error, an error as a single
line.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from penstock.errors import PenstockError, RunError
from penstock.log.texts import is_log_name
from penstock.safe import drafts
from penstock.safe.harmless import Shown

if TYPE_CHECKING:
    from penstock.explain.report import Report
    from penstock.runs.run import Run

__all__ = [
    "AS_JSON",
    "BAD_INPUT",
    "FOR_GROUP",
    "INTERRUPTED",
    "LIMIT_PASSED",
    "NEW_FILE",
    "NEW_FOLDER",
    "NOT_JUDGED",
    "PROGRESS_AFTER_S",
    "REDUCED_OR_RUN",
    "RUN_FOLDER",
    "RUN_OR_URL",
    "RUN_TO_COME",
    "TIER",
    "NumberRange",
    "ProgressBar",
    "debug",
    "duration",
    "ended_like_ctrl_c",
    "engine",
    "fail",
    "here",
    "on_one_line",
    "opened_run",
    "percent",
    "print_json",
    "print_markdown",
    "print_report",
    "print_rich",
    "print_table",
    "rate",
    "report_of_run",
    "say",
    "say_some",
    "short",
    "size",
    "tell_thawed",
    "version",
    "waiting_time",
    "working",
    "write_text",
]

LIMIT_PASSED, BAD_INPUT, NOT_JUDGED = 1, 2, 3  # exit status
INTERRUPTED = 130  # 128 + SIGINT, as in a shell
MOST_SAID = 20  # lines of a list
PROGRESS_AFTER_S = 2.0  # shorter work needs no bar


class _RunFolder(click.Path):
    """A run folder; for a file instead, for example a log, the message names the folder."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path = Path(value)
        if path.is_file():
            more = f": {path.absolute().parent}" if is_log_name(path.name) else ""
            self.fail(f"{value} is a file; a run is the folder that its logs lie in{more}")
        return super().convert(value, param, ctx)


class _ReducedOrRun(_RunFolder):
    """A run folder, or a file made by `penstock reduce`."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path = Path(value)
        if path.suffix == ".reduced" and path.is_file():
            return path
        return super().convert(value, param, ctx)


class _RunOrUrl(_ReducedOrRun):
    """As _ReducedOrRun, or the URL of a run; the URL stays text."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        is_url = re.match(r"[a-z][a-z0-9+.-]+://.", str(value))
        return str(value) if is_url else super().convert(value, param, ctx)


class _New(click.Path):
    """A file or folder to be made; an unset shell variable does not mean the current folder."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if str(value) == "":
            self.fail("an empty name; say where it goes")
        return super().convert(value, param, ctx)


class _TierName(click.types.StringParamType):
    """The name of a tier, or a folder; a shell completes the names."""

    name = "tier"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        from penstock.places import registry

        try:
            names = [tier.name for tier in registry.registered()]
        except PenstockError:  # a damaged file of tiers is an error of commands, not of a key
            names = []
        matching = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return matching or [CompletionItem(incomplete, type="dir")]


class NumberRange(click.FloatRange):
    """A finite number in a range; click accepts nan in every range, and infinity in most."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number for this")
        return number


RUN_FOLDER = _RunFolder(exists=True, file_okay=False, path_type=Path)
REDUCED_OR_RUN = _ReducedOrRun(exists=True, file_okay=False, path_type=Path)
RUN_OR_URL = _RunOrUrl(exists=True, file_okay=False, path_type=Path)
RUN_TO_COME = _RunFolder(file_okay=False, path_type=Path)
NEW_FOLDER = _New(path_type=Path)
TIER = _TierName()
NEW_FILE = _New(dir_okay=False, path_type=Path)
FOR_GROUP = click.option(
    "--group", is_flag=True, help="The run's folder can be read by your group, not by you alone."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output.")
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


def debug() -> None:
    if os.environ.get("PENSTOCK_DEBUG"):
        import traceback

        traceback.print_exc()


def say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"penstock: {line}", file=sys.stderr, flush=True)


def say_some(lines: Sequence[str], rest: str) -> None:
    """Print the first lines, then the number of lines left.  rest: the words after the number."""
    for line in lines[:MOST_SAID]:
        say(line)
    if len(lines) > MOST_SAID:
        say(f"and {len(lines) - MOST_SAID:,} more{rest}")


def tell_thawed(paths: Sequence[str]) -> None:
    """Name changed sources of frozen copies."""
    said = "said to be frozen, and changed: the original is read"
    say_some([f"{on_one_line(path)}: {said}" for path in paths], " frozen files that changed")


def fail(line: str, status: int) -> NoReturn:
    say(line)
    sys.exit(status)


def percent(value: str | float) -> float:
    """Parse a share as typed: 10, 2.5, 10%."""
    try:
        number = float(str(value).strip().removesuffix("%"))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no number of per cent, write 10 or 2.5") from error
    if not 0 <= number <= 100:  # also refuses nan
        raise click.BadParameter(f"{value!r} is not between 0 and 100 %")
    return number


def size(value: str | int) -> int:
    """Parse bytes as typed: 1GiB, 500MB, 2G, 1048576."""
    text = str(value).strip().upper().removesuffix("B")
    number = text.rstrip("KMGTI")
    try:
        n_bytes = int(float(number) * UNITS[text[len(number) :].strip()])
    except (KeyError, ValueError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is no size, write 500MB or 1GiB") from error
    if n_bytes <= 0:
        raise click.BadParameter(f"{value!r} leaves no room, write 500MB or 1GiB")
    return n_bytes


def duration(value: str | float) -> float:
    """Parse seconds as typed: 30s, 500ms, 2m, 30."""
    text = str(value).strip().lower()
    number = text.rstrip("ms")
    try:
        seconds = float(number) * {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0}[text[len(number) :]]
    except (KeyError, ValueError) as error:
        raise click.BadParameter(f"{value!r} is no time, write 30s or 2m") from error
    if not 0 < seconds <= 86_400:
        raise click.BadParameter(f"{value!r} is no time for this, write 30s or 2m")
    return seconds


def waiting_time(value: str | float) -> float:
    """Parse seconds as typed; 0: do not wait."""
    return 0.0 if str(value).strip().lower() in ("0", "0s", "0.0") else duration(value)


def engine(value: str) -> str:
    """Check the name of a query engine: duckdb, spark, or a master of Spark."""
    if value not in ("duckdb", "spark") and not re.match(r"(spark|local|yarn|k8s)\b", value):
        raise click.BadParameter(f"{value!r} is no engine: duckdb, spark or spark://HOST:PORT")
    return value


def rate(value: str | int) -> int:
    """Parse bytes per second as typed: 200MB/s, 1GiB/s, 200MB."""
    text = str(value).strip()
    return size(text[:-2] if text.lower().endswith("/s") else text)


MOST_RICH_ROWS = 1000  # rich takes 0.5 ms per row


def print_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Print a table; a long table without adapting the columns to the terminal."""
    if len(rows) > MOST_RICH_ROWS:
        _print_long(names, rows)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from penstock.views.paper import Paper

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(names):
        is_number = all(isinstance(row[place], int | float | None) for row in rows)
        table.add_column(
            Text(Paper.clean(name)), justify="right" if is_number else "left", overflow="fold"
        )
    for row in rows:
        # Names of files are foreign: the names may hold control characters.
        table.add_row(*[Text("" if cell is None else Paper.clean(str(cell))) for cell in row])
    # Into a pipe or a file, lines are as long as their cells.
    Console(file=Shown.through(sys.stdout), width=None if sys.stdout.isatty() else 10_000).print(
        table
    )


def _print_long(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    from penstock.views.paper import Paper

    lines = [["" if cell is None else Paper.clean(str(cell)) for cell in row] for row in rows]
    columns = list(zip(*rows, strict=True))
    is_number = [
        all(isinstance(value, int | float | None) for value in column) for column in columns
    ]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    for line in (names, ["─" * width for width in widths], *lines):
        cells = zip(line, widths, is_number, strict=True)
        shown = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)
        click.echo(f" {'   '.join(shown).rstrip()}")


def print_markdown(text: str) -> None:
    """Print Markdown: with fitted tables in a terminal, unchanged into a pipe or a file."""
    import shutil

    from penstock.views.markdown import fitted

    if sys.stdout.isatty():
        text = fitted(text, shutil.get_terminal_size().columns)
    click.echo(text, nl=False)


def print_json(facts: Any) -> None:
    import json

    click.echo(json.dumps(facts, indent=1, default=str))


def print_rich(shown: Any) -> None:
    from rich.console import Console

    # Into a pipe or a file, lines are as long as their cells.
    Console(file=Shown.through(sys.stdout), width=None if sys.stdout.isatty() else 10_000).print(
        shown
    )


def here(path: Path) -> str:
    """Return a path relative to the current folder; ./ before a name like an option."""
    here = os.path.relpath(path)
    if here.startswith(".."):
        return str(path)
    return f"./{here}" if here.startswith("-") else here


def on_one_line(path: str) -> str:
    """Return a path as printable text on one line, with unprintable characters escaped."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def short(path: Path) -> str:
    """Return a path as typed by a user in a shell here."""
    import shlex

    return shlex.quote(here(path))


def write_text(text: str, path: Path, otherwise: str = "choose a file that can be written") -> None:
    """Write all of a file or nothing: readers never see half a file.  Raises RunError, with the
    cure."""
    try:
        drafts.write(path, text)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; {otherwise}") from error


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Treat a batch system's signals, and a closed terminal, as Ctrl-C, so unfinished files are
    removed."""
    import signal

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ProgressBar:
    """A bar on standard error for work longer than a glance.

    Without a terminal: a line (none with PENSTOCK_PROGRESS=off), then a line after 10 times as
    long, and so on.
    """

    def __init__(self, what: str, is_of_bytes: bool = False) -> None:
        self._what = what
        self._is_of_bytes = is_of_bytes

    def __enter__(self) -> ProgressBar:
        import threading
        import time

        self._clock = time.monotonic
        self._start_s = self._clock()
        self._bar: Any = None
        self._share: float | None = None
        self._ended = threading.Event()
        self._speaker: threading.Thread | None = None
        if not sys.stderr.isatty() and os.environ.get("PENSTOCK_PROGRESS") != "off":
            self._speaker = threading.Thread(target=self._speak, daemon=True)
            self._speaker.start()
        return self

    def _speak(self) -> None:
        """Print the current work to a pipe or a log: after 2 s, 20 s, 200 s."""
        pause_s = PROGRESS_AFTER_S
        while not self._ended.wait(pause_s):
            is_known = self._share is not None and self._share < 1
            share = f", {self._share:.0%}" if is_known else ""
            say(f"{self._what} …{share}")
            pause_s = 9 * (self._clock() - self._start_s)

    def say(self, what: str, share: float) -> None:
        """Show the current work, and the share done."""
        self.advance(round(1000 * share), 1000, what)

    def advance(self, done: int, total: int, what: str | None = None) -> None:
        """Show done of total, both in equal units.  what: the current work from now on."""
        self._what = what or self._what
        self._share = done / total if total else None
        if self._bar is None:
            if not sys.stderr.isatty() or self._clock() - self._start_s < PROGRESS_AFTER_S:
                return
            from rich import progress
            from rich.console import Console

            columns = progress.Progress.get_default_columns()
            if self._is_of_bytes:
                at = (progress.DownloadColumn(), progress.TransferSpeedColumn())
                columns = (*columns[:2], *at, progress.TimeRemainingColumn())
            self._bar = progress.Progress(
                *columns, console=Console(file=Shown.through(sys.stderr)), transient=True
            )
            self._task = self._bar.add_task(self._what, total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, description=self._what)

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()


@contextlib.contextmanager
def working(what: str, is_of_bytes: bool = False) -> Iterator[ProgressBar]:
    """Show a bar for long work; treat a batch system's signals as Ctrl-C."""
    with ended_like_ctrl_c(), ProgressBar(what, is_of_bytes) as progress:
        yield progress


def version() -> str:
    # The folder beside an installed package has the version in the folder's name;
    # importlib.metadata would read mail headers, a tenth of the CPU time of `penstock run`.
    beside = [path.name for path in Path(__file__).parents[2].glob("penstock-*.dist-info")]
    if len(beside) == 1:
        return beside[0].removesuffix(".dist-info").partition("-")[2]
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "not installed"


def report_of_run(run: Run, name: str | None = None) -> Report:
    """Return the report of a run; keep its summary in the run's folder if the run is over."""
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of

    report = report_of(measure(run), name or here(run.folder))
    if not run.is_running:
        _keep_summary(report, run)
    return report


def _keep_summary(report: Report, run: Run) -> None:
    """Write the run's summary unless a summary as new as the tables exists.

    The names of the batch system are known only in the job; a later report keeps them.
    """
    from dataclasses import replace

    from penstock.explain import summary

    path = run.folder / summary.NAME
    if drafts.is_of_another(run.folder):
        return
    try:
        made = summary.summary_of(
            replace(report, run=run.folder.name),
            run.start_unix_ns / 1e9,
            summary.user_of(run.folder),
            os.environ if _is_of_this_job(run) else None,
        )
        with contextlib.suppress(PenstockError):
            before = summary.read(path)
            names = {name: getattr(before, name) for name in summary.OF_THE_JOB}
            made = replace(made, **{key: text for key, text in names.items() if text})
            if before == made:
                return
        summary.write(made, run.folder)
    except OSError:
        debug()  # a folder of another user, or a full disk: the user asked for the report only


def _is_of_this_job(run: Run) -> bool:
    """Return True if the current process began the run: the batch system's names belong to the
    run's job."""
    launched = run.manifest.get("launched") or ()
    return any(facts.get("launcher_pid") == os.getpid() for facts in launched)


def print_report(report: Report, stream: TextIO, is_brief: bool = False) -> None:
    """Print the report; is_brief: the end of a run, one screen."""
    from penstock.views import terminal

    terminal.show_on(report, stream, is_brief)


@contextlib.contextmanager
def opened_run(folder: Path) -> Iterator[Run]:
    """Open the run's tables, with a bar on a terminal for long work."""
    from penstock.runs.run import open_run

    with (
        ProgressBar("reading logs") as progress,
        contextlib.closing(open_run(folder, progress.advance)) as run,
    ):
        yield run
