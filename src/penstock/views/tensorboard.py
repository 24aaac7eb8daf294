"""Show a report in TensorBoard: scalars and a text in plain event files, and the pages of a plugin.

Sees Reports and nothing else: the caller passes the list of runs, and a function from a run to the
run's Report.  A name in a request is looked up among the runs, and never becomes part of a path.
"""

import gzip
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from penstock.errors import MissingDependency, PenstockError, RunError
from penstock.explain.compare import compare
from penstock.explain.report import Finding, Number, Picture, Report, nothing_found, show
from penstock.safe import drafts
from penstock.views.comparison_page import markup_of
from penstock.views.html import chart_library, parts
from penstock.views.markup import HATCH, asset, safe
from penstock.views.pictures import chart_data

__all__ = ["TABS", "Pages", "Scalar", "scalars", "summary", "write_events"]

OURS = ".penstock"  # how the names of our event files end


class Scalar(NamedTuple):
    """A point of a scalar: at_s is seconds since the run began."""

    tag: str
    step: int
    at_s: float
    value: float


# --- level 0: event files -------------------------------------------------------------------------


def write_events(report: Report, folder: Path, start_unix_s: float) -> Path:
    """Write scalars and the findings into an event file in folder, in place of an earlier event
    file.

    Raises MissingDependency without tensorboard, RunError where the folder cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        # EventFileWriter would import an installed TensorFlow: seconds, and warnings.
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "TensorBoard's files need an extra: pip install 'penstock[tensorboard]'"
        ) from error
    points = sorted(scalars(report), key=lambda point: point.step)
    events = [Event(wall_time=start_unix_s, file_version="brain.Event:2")]
    for point in points:
        said = scalar_pb(point.tag, point.value)
        events.append(Event(wall_time=start_unix_s + point.at_s, step=point.step, summary=said))
    last = points[-1] if points else Scalar("", 0, 0.0, 0.0)
    said = text_pb("penstock/findings", summary(report))
    events.append(Event(wall_time=start_unix_s + last.at_s, step=last.step, summary=said))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = [path for path in folder.glob(f"*tfevents*{OURS}") if path.is_file()]
        path = folder / f"events.out.tfevents.{time.time_ns()}{OURS}"
        with drafts.create(path) as file:  # a draft would be read as a second file
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())
        for earlier_file in earlier:  # two files would draw every curve twice
            earlier_file.unlink()
    except OSError as error:
        raise RunError(
            f"{folder}: {error.strerror}; choose a --logdir that can be written"
        ) from error
    return path


def scalars(report: Report) -> Iterator[Scalar]:
    """Yield scalars by step: seconds of a step and of the step's waits, stall, bandwidth.

    At the last step yield the whole run.  A point for several steps is their mean, at the last of
    the steps.
    """
    pictures = {picture.key: picture for picture in report.pictures}
    steps = pictures.get("steps")
    last, end_s = 0, 0.0
    if steps is not None and steps.at_s:
        n = len(steps.at_s) - 1
        rates = _rates(pictures.get("bandwidth"), steps.at_s)
        for place in range(n):
            end_s = steps.at_s[place + 1]
            last = int(steps.x_start + (place + 1) * steps.x_step) - 1
            of = {series.key: series.values[place] or 0.0 for series in steps.series}
            step_s = sum(of.values())
            values = {f"{_named(key)}_s": value for key, value in of.items()} | {"step_s": step_s}
            if step_s and not of.get("unfed"):
                values["stall_share"] = 1 - of.get("compute", 0.0) / step_s
            values |= {f"{group}_MB_per_s": rate[place] / 1e6 for group, rate in rates.items()}
            for name, value in values.items():
                yield Scalar(f"penstock/{name}", last, end_s, value)
    whole: dict[str, Number] = {
        "run_storage_share": report.verdict.storage,
        "run_stall_share": report.verdict.stall,
    }
    for name, number in whole.items():
        if number.value is not None:
            yield Scalar(f"penstock/{name}", last, end_s, number.value)


def _named(key: str) -> str:
    return "data_wait" if key == "data" else key.replace(" ", "_")


def _rates(picture: Picture | None, at_s: Sequence[float]) -> dict[str, list[float]]:
    """Return mean bytes per second, read and written, between each two of at_s.

    Of POSIX and STDIO, never added, the layer that moved more bytes; series are "group class
    layer".
    """
    if picture is None:
        return {}
    layers: dict[tuple[str, str], list[float]] = {}
    for series in picture.series:
        group, *_, layer = series.key.split()
        sums = layers.setdefault((group, layer), [0.0] * len(series.values))
        for place, value in enumerate(series.values):
            sums[place] += value or 0.0
    best: dict[str, list[float]] = {}
    for (group, _), values in layers.items():
        if sum(values) > sum(best.get(group, [-1.0])):
            best[group] = values
    return {group: _means(picture, values, at_s) for group, values in best.items()}


def _means(picture: Picture, values: list[float], at_s: Sequence[float]) -> list[float]:
    """Return the mean of a binned rate over each interval, from the integral up to each end."""

    def integral(s: float) -> float:
        place = min(len(values) - 1, max(0, int((s - picture.x_start) / picture.x_step)))
        inside = min(1.0, max(0.0, (s - picture.x_start) / picture.x_step - place))
        return (sums[place] + inside * values[place]) * picture.x_step

    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [
        (integral(b) - integral(a)) / (b - a) if b > a else 0.0 for a, b in itertools.pairwise(at_s)
    ]


def summary(report: Report) -> str:
    """Return verdict, findings and missing measures as Markdown for TensorBoard's text page."""
    verdict = report.verdict
    said = [(incident.headline, incident.sentence) for incident in report.incidents]
    said.append((verdict.headline, verdict.sentence))
    lines = [line for head, rest in said for line in (f"**{_plain(head)}** {_plain(rest)}", "")]
    for finding in report.findings:
        lines += _told(finding)
    if report.checks and not report.findings:
        lines += [_plain(nothing_found(report)), ""]
    if report.wall:
        lines += ["", "| of the wall time | time | share |", "| --- | --- | --- |"]
        lines += [
            f"| {_plain(s.label)} | {show(s.s, 's')} | {show(s.share, 'share')} |"
            for s in report.wall
        ]
    lines += ["", "Not measured, or not completely:", ""]
    lines += [f"- {_plain(gap.what)} ({gap.state}): {_plain(gap.why)}" for gap in report.gaps]
    return "\n".join(lines)


def _told(finding: Finding) -> list[str]:
    gain = "not measured" if finding.gain.value is None else show(finding.gain.value, "s")
    if finding.share.value is not None:
        gain += f", {show(finding.share.value, 'share')} of {finding.of}"
    says = [_plain(line) for line in finding.evidence]
    for remedy in finding.remedies:
        says.append(_plain(remedy.says) + (f" {_code(remedy.command)}" if remedy.command else ""))
    head = f"**{_plain(finding.rule)} {_plain(finding.title)}** (gain up to {gain})"
    return [head, "", *(f"- {line}" for line in says), ""]


def _plain(text: str) -> str:
    """Return foreign text as one line of Markdown without markup."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~" else letter for letter in line)


def _code(text: str) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"`{line}`"


# --- level 1: the plugin's pages ------------------------------------------------------------------

# key: title, parts of the page, and the text for a run without any of the parts.
TABS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "overview": (
        "Overview",
        ("verdict", "findings", "waits", "reading", "checks", "gaps", "cost", "words"),
        "",
    ),
    "steps": ("Steps", ("steps", "epochs", "workers"), "No training steps were seen in this run."),
    "timeline": ("Timeline", ("time", "processes"), "Nothing of this run has a time."),
    "files": (
        "Files",
        ("directories", "files", "sizes", "operations", "classes", "storage"),
        "No file calls were recorded in this run.",
    ),
    "checkpoints": (
        "Checkpoints",
        ("saving", "checkpoints"),
        "No checkpoint was seen in this run. torch.save is found by itself; anything else is marked"
        ' with penstock.span("checkpoint").',
    ),
}
CHARTED = ("steps", "timeline")
SCRIPTS = {"/index.js": "tensorboard.js", "/charts.js": "charts.js", "/page.js": "page.js"}

Environ = dict[str, Any]
Start = Callable[[str, list[tuple[str, str]]], Any]
App = Callable[[Environ, Start], Iterable[bytes]]


class Pages:
    """The plugin's routes as WSGI applications.

    runs: returns names.  report: makes a Report of a name, raises KeyError for an unknown run,
    PenstockError for an unreadable run.
    """

    def __init__(
        self, runs: Callable[[], Sequence[str]], report: Callable[[str], Report], place: str
    ) -> None:
        self._runs, self._report, self._place = runs, report, place

    def routes(self) -> dict[str, App]:
        """Return a dict from the path below the plugin's path to the application."""
        return {
            **{path: _script(name) for path, name in SCRIPTS.items()},
            "/page.css": _app("text/css", lambda _: asset("page.css").encode()),
            "/plotly.js": _library,
            "/runs": _app("application/json", self._listing),
            "/page": _app("application/json", self._page),
            "/compare": _app("application/json", self._compared),
        }

    def _listing(self, _: dict[str, str]) -> bytes:
        tabs = [{"key": key, "title": tab[0], "parts": tab[1]} for key, tab in TABS.items()]
        tabs.append({"key": "compare", "title": "Compare", "parts": ()})
        return _json({"runs": list(self._runs()), "place": self._place, "tabs": tabs})

    def _page(self, asked: dict[str, str]) -> bytes:
        _, names, nothing = TABS[asked["tab"]]
        try:
            report = self._report(asked["run"])
        except PenstockError as error:
            return _json({"error": str(error)})
        markup = parts(report, names) or f'<p class="card">{safe(nothing)}</p>'
        head = (
            f'<h1>{safe(report.title)}</h1><p class="facts">{safe(" · ".join(report.subtitle))}</p>'
        )
        data = json.loads(chart_data(report)) if asked["tab"] in CHARTED else None
        if data and "time" not in names:  # nothing is beside lanes here, so nothing makes room
            data["lanes"] = None
        return _json({"html": HATCH + head + markup, "data": data})

    def _compared(self, asked: dict[str, str]) -> bytes:
        names = asked["before"], asked["after"]
        try:
            before, after = (self._report(name) for name in names)
        except PenstockError as error:
            return _json({"error": str(error)})
        markup = markup_of(compare([before], [after]), names)
        return _json({"html": HATCH + markup, "data": None})


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, allow_nan=False).encode()


def _app(kind: str, answer: Callable[[dict[str, str]], bytes]) -> App:
    """Return an application for GET; a KeyError from `answer` becomes a missing page."""

    def app(environ: Environ, start: Start) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD", "GET") not in ("GET", "HEAD"):
            return _send(start, "405 Method Not Allowed", "text/plain", b"only GET")
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True, max_num_fields=8)
        try:
            body = answer({name: values[0] for name, values in query.items()})
        except KeyError:
            return _send(start, "404 Not Found", "text/plain", b"no such run or page")
        return _send(start, "200 OK", kind, body)

    return app


def _send(
    start: Start, status: str, kind: str, body: bytes, *more: tuple[str, str]
) -> Iterable[bytes]:
    headers = [
        ("Content-Type", f"{kind}; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("X-Content-Type-Options", "nosniff"),
        *(more or (("Cache-Control", "no-store"),)),
    ]
    start(status, headers)
    return [body]


def _script(name: str) -> App:
    return _app("text/javascript", lambda _: asset(name).encode())


@cache
def _packed(library: bytes) -> bytes:
    return gzip.compress(library, 6, mtime=0)


def _library(environ: Environ, start: Start) -> Iterable[bytes]:
    """Return the chart library; without a library, the pages keep still pictures."""
    try:
        body = chart_library()
    except MissingDependency as error:
        says = f"console.info({json.dumps(str(error))});".encode()
        return _send(start, "200 OK", "text/javascript", says)
    kept = ("Cache-Control", "private, max-age=3600")
    if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
        packed = _packed(body)
        coding = ("Content-Encoding", "gzip")
        return _send(start, "200 OK", "text/javascript", packed, kept, coding)
    return _send(start, "200 OK", "text/javascript", body, kept)
