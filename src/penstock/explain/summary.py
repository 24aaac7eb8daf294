"""The summary of a run: about 1 kB of JSON beside the logs, to compare thousands of runs.  Knows no
log and no table.

A summary is made from a Report.  Files of strangers are read within bounds: a file of excessive
size, another shape or a newer version is refused with the reason.
"""

import json
import math
import os
import pwd
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.explain.report.shape import Report
from penstock.safe import bounded, drafts

__all__ = [
    "CAUSES",
    "MOST_BYTES",
    "NAME",
    "OF_THE_JOB",
    "SUFFIX",
    "VERSION",
    "RunSummary",
    "parsed",
    "read",
    "summary_of",
    "to_json",
    "user_of",
    "write",
]

VERSION = 1
NAME = "summary.json"  # in a run folder
SUFFIX = ".summary.json"  # of a copy elsewhere
MOST_BYTES = 8192  # of a file; a summary of the longest names has about 3 kB
MOST_LETTERS = 200  # of a name or a path
MOST_FINDINGS = 5
MOST_NUMBER = 1e15  # seconds, bytes: no run has larger numbers

# The causes of waits, by key of the bar of wall time; compute and accelerator are no waits.
CAUSES = {
    "data storage": "data: storage",
    "data network": "data: network",
    "data cpu": "data: CPU (decode)",
    "data other": "data: other",
    "own": "own file calls",
    "checkpoint storage": "checkpoint: storage",
    "checkpoint other": "checkpoint: other",
    "exchange": "other ranks",
    "save": "save in the background",
    "interpreter lock": "interpreter lock",
    "after backward": "between backward pass and optimizer",
    "no CPU": "no CPU",
    "unfed": "compute or data wait",
}
RULE = re.compile(r"[A-Z]{1,2}[0-9]{1,3}")
# Variables of batch systems, by the summary's field.
OF_THE_JOB = {
    "job": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    "partition": ("SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"),
    "account": ("SLURM_JOB_ACCOUNT", "PBS_ACCOUNT"),
}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in numbers.  Times are of one main process; n_mains: the number of main processes.

    waits_s: seconds by key of CAUSES.  findings: the largest gain in seconds, by rule.
    """

    run: str
    title: str
    user: str
    host: str
    job: str
    partition: str
    account: str
    data: str
    level: str
    headline: str
    start_unix_s: float
    life_s: float
    wall_s: float
    n_mains: int
    steps: int
    read_bytes: float
    waits_s: Mapping[str, float] = field(default_factory=dict)
    findings: Mapping[str, float] = field(default_factory=dict)


def summary_of(
    report: Report,
    start_unix_s: float = 0.0,
    user: str = "",
    environ: Mapping[str, str] | None = None,
) -> RunSummary:
    """Return the summary of a report.

    environ: of a process of the job, for the variables of the batch system.
    """
    numbers = {fact.key: fact.number.value for fact in (*report.stretches, *report.reading)}
    waits_s = {
        segment.key: round(segment.s, 3)
        for segment in report.wall
        if segment.key in CAUSES and segment.s >= 0.0005
    }
    gains_s = {
        finding.rule: round(finding.gain.value or 0.0, 3)
        for finding in report.findings[:MOST_FINDINGS]
    }
    wall_s = sum(segment.s for segment in report.wall)
    ranks = report.table("ranks")
    n_mains = max(1, len(ranks.rows), ranks.n_all or 0)
    of_job = {name: _first_of(environ or {}, keys) for name, keys in OF_THE_JOB.items()}
    return RunSummary(
        run=_cut(report.run),
        title=_cut(report.title),
        user=_cut(user),
        host=_cut(report.host),
        data=_cut(_data_of(report)),
        level=report.verdict.level,
        headline=_cut(report.verdict.headline),
        start_unix_s=round(start_unix_s, 3),
        life_s=round(_life_s(report, wall_s), 3),
        wall_s=round(wall_s, 3),
        n_mains=n_mains,
        steps=_steps(report),
        read_bytes=float(numbers.get("read_bytes") or 0.0),
        waits_s=waits_s,
        findings=gains_s,
        **of_job,
    )


def _first_of(environ: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((_cut(environ[key]) for key in keys if environ.get(key)), "")


def _cut(text: str) -> str:
    """Shorten the text to MOST_LETTERS by a cut in the middle: the end identifies more."""
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[: MOST_LETTERS // 3]}…{text[-(MOST_LETTERS - MOST_LETTERS // 3 - 1) :]}"


def _life_s(report: Report, wall_s: float) -> float:
    """Return the seconds from start to end: the sum of the report's stretches."""
    seconds = {fact.key: fact.number.value or 0.0 for fact in report.stretches}
    if "life_s" in seconds:
        return seconds["life_s"]
    return seconds.get("startup_s", 0.0) + wall_s + seconds.get("after_s", 0.0)


def _steps(report: Report) -> int:
    """Return the number of steps, from the words of the subtitle."""
    for words in report.subtitle:
        if match := re.fullmatch(r"([0-9,]+) steps?", words):
            return int(match[1].replace(",", ""))
    return 0


def _data_of(report: Report) -> str:
    """Return the data set with the longest wait: a directory or an endpoint; "" without a wait."""
    rows = []
    table = report.table("directories")
    places = {column.key: place for place, column in enumerate(table.columns)}
    for row in table.rows:
        if row[places["path_class"]] == "data" and row[places["read_bytes"]]:
            waited_s = float(row[places["blocking_s"]] or 0.0)
            rows.append((waited_s, float(row[places["read_bytes"]] or 0), str(row[places["path"]])))
    table = report.table("endpoints")
    places = {column.key: place for place, column in enumerate(table.columns)}
    for row in table.rows:
        if row[places["wait_s"]]:
            received = float(row[places["received_bytes"]] or 0)
            rows.append((float(row[places["wait_s"]] or 0), received, str(row[places["endpoint"]])))
    return max(rows)[2] if rows else ""


def to_json(summary: RunSummary) -> str:
    """Return the summary as JSON, for parsed."""
    return json.dumps({"penstock_summary": VERSION, **asdict(summary)}, allow_nan=False)


def write(summary: RunSummary, folder: Path) -> None:
    """Write the summary into the run folder.  Raises OSError."""
    drafts.write_in_run(folder / NAME, to_json(summary) + "\n")


def read(path: str | os.PathLike[str]) -> RunSummary:
    """Return the summary in a file.  Raises PenstockError with the reason."""
    try:
        return parsed(bounded.read(path, MOST_BYTES))
    except OSError as error:
        raise PenstockError(f"{error.strerror}") from error
    except ValueError as error:
        raise PenstockError(f"{error}") from error


def parsed(text: bytes) -> RunSummary:
    """Return the summary of a JSON text.  Raises PenstockError."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PenstockError("it is no JSON") from error
    if not isinstance(plain, dict) or "penstock_summary" not in plain:
        raise PenstockError("it is no summary of a run")
    if plain["penstock_summary"] != VERSION:
        raise PenstockError(
            f"a summary of version {plain['penstock_summary']!r:.20}, known here is {VERSION}"
        )
    values: dict[str, Any] = {name: check(name, plain.get(name)) for name, check in _CHECKS.items()}
    values["waits_s"] = {key: s for key, s in values["waits_s"].items() if key in CAUSES}
    if not all(RULE.fullmatch(rule) for rule in values["findings"]):
        raise PenstockError("findings: no names of rules")
    return RunSummary(**values)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_LETTERS:
        raise PenstockError(f"{name}: no text of at most {MOST_LETTERS} letters")
    return value


def _number(name: str, value: Any) -> float:
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number or not 0 <= value <= MOST_NUMBER:
        raise PenstockError(f"{name}: no number of a run")
    return float(value)


def _count(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_NUMBER:
        raise PenstockError(f"{name}: no number of a run")
    return value


def _seconds(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > 4 * len(CAUSES):
        raise PenstockError(f"{name}: no seconds by name")
    return {_text(name, key): _number(name, s) for key, s in value.items()}


_OF_TYPE: dict[object, Callable[[str, Any], Any]] = {str: _text, int: _count, float: _number}
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    column.name: _OF_TYPE.get(column.type, _seconds) for column in fields(RunSummary)
}


def user_of(folder: Path) -> str:
    """Return the name of a folder's owner; the number of the owner if no name is known."""
    number = folder.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
