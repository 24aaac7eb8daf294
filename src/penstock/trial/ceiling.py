"""Measure the ceilings of the tiers of a run, with the run's own files; or of any path.

Knows runs and tiers.  Reads existing files and, on request, writes a file without a name.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.errors import RunError, TierError
from penstock.explain.measures import measure
from penstock.log.texts import logs_in
from penstock.places import tiers
from penstock.places.tiers import Ceiling
from penstock.runs.run import Run
from penstock.safe import bounded, checksums, drafts

__all__ = ["ceilings_of_path", "ceilings_of_run", "is_run", "store", "table_of", "to_json"]

PhaseProgress = Callable[[str, float], None]

# Of a tier's files: enough files that a single scan does not fit in memory, and few enough to evict
# a dozen times.
MOST_BYTES = 4 << 30
MOST_FILES = 2000
LOOKED_AT = 50_000  # files of a folder or a run with a look-up of the size
ASKED_AT_ONCE = 16  # a server takes milliseconds for each
ENOUGH_BYTES = 64 << 20  # less is read in a few hundredths of a second: no ceiling
MADE_BYTES = 1 << 30

# A warm-up, and three kinds of requests by at most five numbers of threads.
MEASUREMENTS = 16

_DATA_FILES = f"""
    SELECT path, resolved_path FROM files
    WHERE path_class = 'data' AND kind = 'regular' AND file IN (
        SELECT file FROM events
        WHERE layer = 'posix' AND (op_group = 'read' AND moved_bytes > 0 OR op = 'mmap')
            OR layer = 'stdio' AND op_group = 'read'
        UNION SELECT file FROM counters WHERE folded)
    ORDER BY size_bytes DESC NULLS LAST LIMIT {LOOKED_AT}"""


def is_run(path: Path) -> bool:
    """Return True if a folder holds a run: logs, or the tables of an imported run."""
    return path.is_dir() and ((path / "tables" / "manifest.json").exists() or bool(logs_in(path)))


def ceilings_of_run(
    run: Run, is_writing: bool = False, for_s: float = 60.0, progress: PhaseProgress | None = None
) -> tuple[list[Ceiling], list[str]]:
    """Measure each tier of the run's data files and, if is_writing, of the run's checkpoints.

    The measurement takes at most for_s seconds in all.  Return the ceilings, and remarks on tiers
    that could not be measured.  Raises RunError: no file of the run exists any more; TierError.
    """
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        paths = pool.map(_there, run.sql(_DATA_FILES))
        groups = _by_mount(paths)
    folders = _saved_to(run) if is_writing else {}
    if not groups and not folders:
        raise RunError(
            f"{run.folder}: none of its data files is there any more; measure the folder where "
            "they were: penstock ceiling PATH"
        )
    notes = (
        [] if groups else ["none of the run's data files is there any more: reading not measured"]
    )
    if is_writing and not folders:
        notes.append("no checkpoint went to a folder that is there: writing not measured")
    steps = MEASUREMENTS * (len(groups) + len(folders))
    tell = _counted(progress, steps)
    each_s = for_s / steps
    ceilings: list[Ceiling] = []
    for files in groups.values():
        ceilings += tiers.read_ceiling(files, each_s, tell)
    for folder in folders.values():
        ceilings += tiers.write_ceiling(folder, each_s, tell)
    return ceilings, notes


def ceilings_of_path(
    path: Path, is_writing: bool = False, for_s: float = 30.0, progress: PhaseProgress | None = None
) -> list[Ceiling]:
    """Measure reads of a file, or of the files below a folder.  is_writing: measure writes to the
    folder, and reads of a file made there.

    Raises TierError.
    """
    is_file = path.is_file()
    steps = MEASUREMENTS * (1 + is_writing)
    tell = _counted(progress, steps)
    each_s = for_s / steps
    if is_writing and not is_file:
        with _made(path) as made:
            ceilings = tiers.read_ceiling([made], each_s, tell, place=path)
    else:
        files = [str(path)] if is_file else _first_group(_below(path))
        if not is_file and sum(Path(file).stat().st_size for file in files) < ENOUGH_BYTES:
            least = f"{ENOUGH_BYTES >> 20} MiB"
            raise TierError(f"{path}: holds less than {least} to read; --write makes a file")
        ceilings = tiers.read_ceiling(files, each_s, tell)
    if is_writing:
        ceilings += tiers.write_ceiling(path.parent if is_file else path, each_s, tell)
    return ceilings


def _counted(progress: PhaseProgress | None, steps: int) -> Callable[[str], None]:
    done = [0]

    def tell(what: str) -> None:
        if progress:
            progress(what, min(0.99, done[0] / steps))
        done[0] += 1

    return tell


def _below(folder: Path) -> Iterator[str]:
    """Yield the files below a folder on the folder's own mount; links are not followed."""
    device = _device(str(folder))
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _device(f"{place}/{name}") == device]
        yield from (f"{place}/{name}" for name in sorted(names))


def _there(names: tuple[str, str | None]) -> str:
    """Return the existing path: a file's path or the resolved path."""
    path, resolved = names
    return path if _device(path) >= 0 else resolved or path


def _device(path: str) -> int:
    """Return the device of a path; -1: missing."""
    try:
        return Path(path).stat().st_dev
    except (OSError, ValueError):
        return -1


def _first_group(paths: Iterable[str]) -> list[str]:
    return next(iter(_by_mount(paths).values()), [])


def _by_mount(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the largest readable files of each mount, up to MOST_BYTES and MOST_FILES."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        asked = list(islice(paths, LOOKED_AT))
        sizes = pool.map(_readable_bytes, asked)
        sized = [(size, path) for size, path in zip(sizes, asked, strict=True) if size]
    groups: dict[str, list[str]] = {}
    rooms: dict[str, int] = {}
    points: dict[str, str] = {}
    for size, path in sorted(sized, reverse=True):
        folder = path.rpartition("/")[0]
        if folder not in points:
            points[folder] = tiers.mount_of(folder or "/").point
        point = points[folder]
        room = rooms.setdefault(point, MOST_BYTES)
        if room > 0 and len(groups.setdefault(point, [])) < MOST_FILES:
            groups[point].append(path)
            rooms[point] = room - size
    return groups


def _readable_bytes(path: str) -> int:
    """Return the size of a readable file, else 0."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return 0
    is_one = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
    return status.st_size if is_one else 0


def _saved_to(run: Run) -> dict[str, Path]:
    """Return a folder of checkpoints for each mount."""
    folders: dict[str, Path] = {}
    for checkpoint in measure(run).checkpoints:
        folder = Path(checkpoint.path).parent if checkpoint.path else None
        if folder is not None and folder.is_dir():
            folders.setdefault(tiers.mount_of(folder).point, folder)
    return folders


@contextmanager
def _made(folder: Path) -> Iterator[str]:
    """Yield a file for reading, without a name, so the file vanishes with the process."""
    import tempfile

    room = int(tiers.free_bytes(folder) * tiers.SHARE_OF_ROOM)
    size = min(MADE_BYTES, room) >> 20
    if size << 20 < ENOUGH_BYTES:
        raise TierError(f"{folder}: full: a file to read needs {4 * ENOUGH_BYTES >> 20} MiB free")
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            data = os.urandom(1 << 20)
            for _ in range(size):
                file.write(data)
            yield f"/proc/self/fd/{file.fileno()}"
    except OSError as error:
        raise TierError(f"{folder}: cannot be written: {error.strerror}") from error


def store(folder: Path, ceilings: Sequence[Ceiling]) -> Path:
    """Write RUN/ceilings.json whole or not at all; entries of other tiers and ops stay.

    Raises RunError.
    """
    path = folder / "ceilings.json"
    measured = {(ceiling.mount, ceiling.op) for ceiling in ceilings}
    kept = [row for row in _stored(path) if (row.get("mount"), row.get("op")) not in measured]
    try:
        rows = [*kept, *map(asdict, ceilings)]
        drafts.write_in_run(path, checksums.sealed_json({"ceilings": rows}, indent=1))
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _stored(path: Path) -> list[dict[str, Any]]:
    try:
        content = bounded.json_of(path)
    except (OSError, ValueError):
        return []
    if isinstance(content, dict):
        content = content.get("ceilings")
    return [row for row in content if isinstance(row, dict)] if isinstance(content, list) else []


def to_json(ceilings: Sequence[Ceiling]) -> str:
    """Return all measurements as a JSON list of objects."""
    return json.dumps([asdict(ceiling) for ceiling in ceilings], indent=1)


def table_of(ceilings: Sequence[Ceiling], notes: Sequence[str] = ()) -> Any:
    """Return the best ceiling of each kind as a value for printing with rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from penstock.explain.report import show

    best: dict[tuple[str, str, str, int, int], Ceiling] = {}
    for ceiling in ceilings:
        at_once = ceiling.threads if ceiling.kind == "remote" else 0
        key = (ceiling.mount, ceiling.op, ceiling.order, ceiling.request_bytes, at_once)
        if key not in best or ceiling.bandwidth_bps > best[key].bandwidth_bps:
            best[key] = ceiling
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tier")
    table.add_column("requests")
    for name in ("threads", "bandwidth", "calls/s"):
        table.add_column(name, justify="right")
    table.add_column("cache")
    for ceiling in best.values():
        cells = (
            f"{ceiling.mount} ({ceiling.kind})",
            f"{ceiling.op} {ceiling.order} {ceiling.request_bytes >> 10} KiB",
            f"{ceiling.threads}",
            show(ceiling.bandwidth_bps, "B/s"),
            f"{ceiling.calls_hz:,.0f}",
            ("cold" if ceiling.op == "read" else "synced")
            if ceiling.is_cold
            else ceiling.why_not_cold,
        )
        table.add_row(*[Text(cell) for cell in cells])
    lines: list[Any] = [table, *[Text(note, "dim") for note in notes]]
    local = [ceiling.threads for ceiling in ceilings if ceiling.kind != "remote"]
    if local:
        cost = tiers.empty_call_s(max(local))
        lines.append(Text(f"A call that moves nothing costs {show(cost, 's')} here.", "dim"))
    return Group(*lines)
