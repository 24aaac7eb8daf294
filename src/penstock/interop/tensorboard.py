"""Provide Penstock's tab in TensorBoard: find the runs below the logdir, pass reports to the view.

The entry point `tensorboard_plugins` names Plugin.  A run is a folder with logs or tables of
Penstock, or a report written by `penstock report --json` or `penstock tensorboard`.
"""

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin

from penstock.errors import PenstockError, RunError
from penstock.explain.measures import measure
from penstock.explain.report import Report, from_json, report_of
from penstock.log.header import looks_like_log
from penstock.log.texts import is_log_name, logs_in
from penstock.runs.run import open_run
from penstock.views.tensorboard import Pages

__all__ = ["Plugin", "Runs"]

MOST_FOLDERS = 20_000  # looked into: a logdir may be a whole home folder
DEEPEST = 12
MOST_KEPT = 8  # reports in memory, some megabytes each
MOST_LOGS_TRIED = 3  # other programs' logs have the same ending
MOST_JSON_BYTES = 64 << 20  # a report is smaller; larger files are skipped
LISTED_S = 5.0  # TensorBoard asks several times a page whether there is anything to show
REPORT_START = re.compile(rb'\s*\{\s*"report"\s*:\s*\d')

State = tuple[object, ...]


class Runs:
    """The runs below some folders, by path below the folder; a report is made on request.

    roots: for each folder, the prefix of the names ("" for none), and the folder.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self._roots = roots
        self._listing_lock, self._report_lock = threading.Lock(), threading.Lock()
        self._found: dict[str, Path] = {}
        self._listed_s: float | None = None
        self._kept: OrderedDict[str, tuple[State, Report]] = OrderedDict()

    def names(self) -> list[str]:
        """Return all existing runs, sorted in the human order (d2 before d10); at most LISTED_S
        old."""
        return sorted(self._listing(), key=_as_counted)

    def report(self, name: str) -> Report:
        """Return the report of a run, made anew if the run's files have changed.

        Raises KeyError: not in names(); PenstockError: an unreadable run.
        """
        path = self._listing()[name]
        with self._report_lock:  # serial: each report may use all CPUs and much memory
            state = _state(path)
            kept = self._kept.get(name)
            if kept is None or kept[0] != state:
                kept = self._kept[name] = (state, _report(path))
            self._kept.move_to_end(name)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return kept[1]

    def _listing(self) -> Mapping[str, Path]:
        with self._listing_lock:
            if self._listed_s is None or time.monotonic() - self._listed_s > LISTED_S:
                self._found = {
                    str(Path(prefix, name)): path
                    for prefix, root in self._roots.items()
                    for name, path in _runs_below(root)
                }
                self._listed_s = time.monotonic()
            return self._found


def _runs_below(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each run; folders inside a run folder belong to the run."""
    looked = 0
    for place, below, files in os.walk(root):
        looked += 1
        folder = Path(place)
        inside = folder.relative_to(root)
        if _is_run(folder, files):
            yield str(inside) if inside.parts else root.name, folder
            below.clear()
            continue
        for file in files:
            if file.endswith(".json") and REPORT_START.match(_begin(folder / file)):
                yield str(inside / file), folder / file
        below[:] = sorted(name for name in below if not name.startswith("."))
        if looked >= MOST_FOLDERS or len(inside.parts) >= DEEPEST:
            below.clear()


def _is_run(folder: Path, files: list[str]) -> bool:
    """Return True if the folder has a log, or tables of an imported run."""
    logs = [name for name in files if is_log_name(name)][:MOST_LOGS_TRIED]
    if any(looks_like_log(_begin(folder / name)) for name in logs):
        return True
    return (folder / "tables" / "manifest.json").is_file()


def _begin(path: Path) -> bytes:
    """Return the first page of a file; nothing of a pipe: a read would wait for a writer."""
    try:
        if path.is_file():
            with open(path, "rb") as file:
                return file.read(4096)
    except OSError:
        pass
    return b""


def _as_counted(name: str) -> list[tuple[int, str]]:
    """Return a sort key with numbers in a name by value; other text sorts behind."""
    return [
        (int(part), part) if part.isdecimal() and part.isascii() else (1 << 62, part)
        for part in re.split(r"([0-9]{1,18})", name)
    ]


def _state(path: Path) -> State:
    """Return names, sizes and times of a report's sources: equal states mean equal reports."""
    names = [path]
    if path.is_dir():
        names = [*logs_in(path), path / "classes.toml", path / "tables/manifest.json"]
    state: list[object] = []
    for name in names:
        with suppress(OSError):
            status = name.stat()
            state.append((name.name, status.st_size, status.st_mtime_ns))
    return tuple(state)


def _report(path: Path) -> Report:
    if path.is_dir():
        with closing(open_run(path)) as run:
            return report_of(measure(run), str(path))
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise RunError(f"{path}: too large for a report")
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    except PenstockError as error:
        raise RunError(f"{path}: {error}") from error


def _roots(logdir: str, spec: str) -> dict[str, Path]:
    """Parse TensorBoard's --logdir, or its --logdir_spec: NAME:FOLDER,FOLDER,..."""
    roots = {"": logdir} if logdir else {}
    for part in filter(None, spec.split(",")):
        name, colon, folder = part.partition(":")
        is_named = colon and "/" not in name
        roots[name if is_named else part] = folder if is_named else part
    return {name: Path(folder).expanduser().absolute() for name, folder in roots.items()}


class Plugin(base_plugin.TBPlugin):  # type: ignore[misc]  # tensorboard has no types
    """The tab "Penstock"."""

    plugin_name = "penstock"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        spec = getattr(context.flags, "logdir_spec", "") or ""
        self._runs = Runs(_roots(context.logdir or "", spec))
        self._pages = Pages(self._runs.names, self._runs.report, context.logdir or spec)

    def get_plugin_apps(self) -> dict[str, Any]:
        return self._pages.routes()

    def is_active(self) -> bool:
        return bool(self._runs.names())

    def frontend_metadata(self) -> Any:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Penstock")
