"""Penstock in Python: recorded runs, their reports, and comparisons of reports.

run = penstock.open_run("runs/tuesday")
report = run.report()
report.verdict, report.findings
run.sql("SELECT path, sum(moved_bytes) FROM events GROUP BY path").df()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from penstock.explain import compare
from penstock.explain.compare import Comparison
from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of
from penstock.places.classes import PathRule
from penstock.runs.run import Run, open_as
from penstock.views import notebook

__all__ = ["OpenRun", "Report", "compare_runs", "open_run"]


notebook.join()


class OpenRun(Run):
    """The tables of a recorded run, and its report.  Made by open_run.

    A context manager; `close` removes temporary files.  `sql` answers a query in DuckDB's SQL.
    """

    def report(self) -> Report:
        """Return the Report: verdict, findings, tables, pictures.

        Raises PenstockError: the recording is damaged.  Source: docs/reading.md.
        """
        return report_of(measure(self), str(self.folder))


def open_run(
    folder: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    classes: Sequence[PathRule] = (),
) -> OpenRun:
    """Open a run folder; make its tables first if they are missing or older than the logs.

    progress: called with (done, total) blocks while tables are made.  classes: rules for paths,
    before the rules in RUN/classes.toml and Penstock's own.
    Raises RunError: no such folder, no log in it, no room; LogError: a log of a newer format.
    """
    return open_as(OpenRun, folder, progress, classes)


Comparable = str | os.PathLike[str] | OpenRun | Report


def compare_runs(
    a: Comparable | Sequence[Comparable], b: Comparable | Sequence[Comparable]
) -> Comparison:
    """Compare B with A: run folders, opened runs or Reports; several a side are repetitions.

    Raises RunError: a folder holds no run.
    """
    return compare.compare(_reports(a), _reports(b))


def _reports(side: Comparable | Sequence[Comparable]) -> list[Report]:
    several = [side] if isinstance(side, str | os.PathLike | OpenRun | Report) else side
    return [_report(run) for run in several]


def _report(run: Comparable) -> Report:
    if isinstance(run, Report):
        return run
    if isinstance(run, OpenRun):
        return run.report()
    with open_run(run) as opened:
        return opened.report()
