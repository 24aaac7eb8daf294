"""Evidence of a run for staging: the files as columns, and the loader's batches.  Knows the tables
of a run; judges nothing and reads no file of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import duckdb
import numpy as np
from numpy.typing import NDArray

from penstock.errors import QueryError
from penstock.explain.questions import prepare, query

__all__ = ["MOST_BATCHES", "Batches", "Evidence", "Mounted", "evidence_of", "mounts_of"]

Array = NDArray[Any]

# Of the epochs with the most wait; a batch takes a microsecond of each simulation, and a plan makes
# some fifteen.
MOST_BATCHES = 20_000
LEAST_SLOTS = 3  # of the run's time: a bandwidth seen less often is chance

_QUERIES = (
    "stage_files", "stage_batches", "stage_reads", "stage_levels", "training", "concurrency",
    "epochs", "stage_mounts",
)  # fmt: skip


class EvidenceTables(Protocol):
    """The part of a run the evidence needs; see penstock.explain.measures."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection: ...


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Batches fetched by workers, epoch by epoch, in the order of the step loop.

    pass_number, worker: whole numbers.  start_s, end_s: of the fetch.  asked_s, got_s: of the wait.
    is_counted: the batch is in the wall time.  batch, file, file_s: columns of another length: the
    time of a batch's fetch in calls on a file.
    """

    pass_number: Array
    worker: Array
    start_s: Array
    end_s: Array
    asked_s: Array
    got_s: Array
    is_counted: Array
    batch: Array
    file: Array
    file_s: Array

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The files that a run read but did not write, as columns of one length.

    A file with several names (links) has one row; a file read both from a copy and from the
    original path has two rows.

    device: st_dev when recorded.  opens, reads, read_bytes, time_s: totals of the run.  blocking_s:
    the part of time_s with a blocked step loop.  is_mapped: read through memory.  open_s: the part
    of time_s in opens.  is_asked: a stat or access came shortly before the open.  wait_s, wall_s:
    data wait and wall time in seconds, means over main processes; None: no wait or no training was
    recorded.  levels: bandwidth by number of reads in flight.  batches: None if no worker fetched.
    check_s: seconds to check, at each open of a staged file, that the source is unchanged.
    served_by: the tier of a copy read in the run, so device and times belong to the tier; None: the
    file itself; empty: no copy was read.  names: further paths of a file, by row number.
    is_gainless: a copy on the planned tier would change nothing, see plan.
    """

    paths: tuple[str, ...]
    resolved: tuple[str | None, ...]
    device: Array
    size_bytes: Array
    opens: Array
    reads: Array
    read_bytes: Array
    time_s: Array
    blocking_s: Array
    is_mapped: Array
    open_s: Array
    is_asked: Array
    wait_s: float | None = None
    wall_s: float | None = None
    levels: tuple[tuple[float, float], ...] = ()
    batches: Batches | None = None
    epochs: int = 1
    check_s: float | Array = 0.0
    served_by: tuple[str | None, ...] = ()
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    is_gainless: bool | Array = False
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.paths)


def evidence_of(run: EvidenceTables) -> Evidence:
    """Return a run's evidence from the run's tables.  Raises QueryError."""
    with run.connection.cursor() as engine:
        prepare(engine, _QUERIES)
        _see_mounts(engine)
        files, numbers, names = _by_file(_columns(engine, "stage_files"))
        training = _columns(engine, "training")
        levels = _levels(engine)
        epochs = _columns(engine, "epochs")
        batches = _batches(engine, *numbers)
    wait_s, wall_s = _only(training, "data_wait_s"), _only(training, "wall_s")
    notes = []
    if not len(files["file"]):
        notes.append("no data file was read by a call that was recorded")
    if wait_s is None:
        seen = "no training was seen" if wall_s is None else "no data wait was marked between steps"
        notes.append(f"{seen}: time in calls stands for wait")
    return Evidence(
        tuple(_plain(files["path"]).tolist()),
        tuple(None if path is None else str(path) for path in _objects(files["resolved_path"])),
        _plain(files["device"]).astype(np.int64),
        _plain(files["size_bytes"]).astype(np.int64),
        _plain(files["opens"]),
        _plain(files["reads"]),
        _plain(files["read_bytes"]),
        _plain(files["time_s"]),
        _plain(files["blocking_s"]),
        _plain(files["mapped_bytes"]) > 0,
        _plain(files["open_s"]),
        _plain(files["is_asked"]).astype(bool),
        wait_s,
        wall_s,
        levels,
        batches,
        max(1, len(_plain(epochs["epoch"]))),
        served_by=tuple(_objects(files["served_from"])),
        names=names,
        notes=tuple(notes),
    )


_SUMMED = ("opens", "reads", "read_bytes", "time_s", "blocking_s", "open_s")


def _by_file(
    columns: dict[str, Array],
) -> tuple[dict[str, Array], tuple[Array, Array], dict[int, tuple[str, ...]]]:
    """Merge rows of one file; return the columns, file numbers with rows, and further names.

    Rows with equal device, inode and size are one file; a file system may reuse the inode of a
    removed file.
    """
    columns = {
        name: _plain(column) if name in _SUMMED else column for name, column in columns.items()
    }
    number = _plain(columns["file"])
    keys = [_plain(columns[name]).astype(np.int64) for name in ("size_bytes", "device", "inode")]
    place = np.arange(len(number))
    inodes = np.sort(keys[2][keys[2] != 0])
    if not (inodes[1:] == inodes[:-1]).any():
        return columns, (number, place), {}
    order = np.lexsort(keys)  # stable: of equal rows the first stays first
    is_other = np.ones(len(order), bool)
    is_other[1:] = (keys[2][order[1:]] == 0) | np.any(
        [key[order[1:]] != key[order[:-1]] for key in keys], axis=0
    )
    first = np.empty_like(place)
    first[order] = order[is_other][np.cumsum(is_other) - 1]
    is_kept = first == place
    row = (np.cumsum(is_kept) - 1)[first]
    names: dict[int, tuple[str, ...]] = {}
    for again in np.flatnonzero(~is_kept).tolist():
        names[int(row[again])] = (*names.get(int(row[again]), ()), str(columns["path"][again]))
    merged = {name: column[is_kept] for name, column in columns.items()}
    for name in _SUMMED:
        merged[name] = np.bincount(row, columns[name])
    for name in ("is_asked", "mapped_bytes"):
        merged[name] = np.bincount(row, _plain(columns[name])) > 0
    return merged, (number, row), names


@dataclass(frozen=True, slots=True)
class Mounted:
    """Files of a run on one file system.  mount: None if not noted.  read_bps: the measured
    ceiling; None: not measured."""

    mount: str | None
    files: int
    read_bps: float | None


def mounts_of(run: EvidenceTables) -> list[Mounted]:
    """Return the file systems of files allowed to be staged, without files read from a tier's
    copies.

    Raises QueryError.
    """
    with run.connection.cursor() as engine:
        prepare(engine, ("stage_mounts",))
        _see_mounts(engine)
        rows = engine.execute("SELECT mount, files, read_bps FROM stage_mounts").fetchall()
    return [Mounted(*row) for row in rows]


def _see_mounts(engine: duckdb.DuckDBPyConnection) -> None:
    """Create the view stage_mounts, read by stage_levels.  No report reads the view, so `prepare`
    does not create the view for all runs."""
    engine.execute(f"CREATE OR REPLACE TEMP VIEW stage_mounts AS\n{query('stage_mounts')}")


def _levels(engine: duckdb.DuckDBPyConnection) -> tuple[tuple[float, float], ...]:
    """Return bandwidth by number of reads in flight: the measured ceiling, else the run's bandwidth
    beside all other work."""
    run, measured = _columns(engine, "concurrency"), _columns(engine, "stage_levels")
    shown = [
        (float(level), float(bps))
        for level, slots, bps in zip(
            _plain(run["level"]), _plain(run["slots"]), _plain(run["bandwidth_bps"]), strict=True
        )
        if slots >= LEAST_SLOTS
    ]
    levels = [
        (float(level), float(bps))
        for level, bps in zip(
            _plain(measured["level"]), _plain(measured["bandwidth_bps"]), strict=True
        )
    ]
    return tuple(levels if len(levels) > 1 else shown)


def _columns(engine: duckdb.DuckDBPyConnection, name: str) -> dict[str, Array]:
    try:
        columns: dict[str, Array] = engine.execute(query(name)).fetchnumpy()
    except duckdb.Error as error:
        raise QueryError(f"queries/{name}.sql: {error}") from error
    return columns


def _plain(column: Array) -> Array:
    """Return a column without a mask.  NULL becomes zero, a value not used by the columns."""
    return column.filled(0) if isinstance(column, np.ma.MaskedArray) else column


def _objects(column: Array) -> list[Any]:
    return list(column.tolist())


def _only(columns: dict[str, Array], name: str) -> float | None:
    values = columns[name].tolist()
    return None if not values or values[0] is None else float(values[0])


def _batches(engine: duckdb.DuckDBPyConnection, files: Array, row: Array) -> Batches | None:
    """Return the batches.  files: numbers in the tables, in order; row: the row of each file."""
    columns = {name: _plain(column) for name, column in _columns(engine, "stage_batches").items()}
    if not len(columns["pass"]):
        return None
    kept = _longest_passes(columns)
    columns = {name: column[kept] for name, column in columns.items()}
    reads = {name: _plain(column) for name, column in _columns(engine, "stage_reads").items()}
    order = np.argsort(columns["fetch_id"], kind="stable")
    place = np.searchsorted(columns["fetch_id"][order], reads["fetch_id"])
    place = np.minimum(place, len(order) - 1)
    batch = order[place]
    file = np.searchsorted(files, reads["file"])
    is_known = (
        (columns["fetch_id"][batch] == reads["fetch_id"])
        & (file < len(files))
        & (files[np.minimum(file, max(0, len(files) - 1))] == reads["file"])
        if len(files)
        else np.zeros(len(batch), bool)
    )
    return Batches(
        columns["pass"],
        columns["worker"] - 1,
        columns["start_ns"] / 1e9,
        columns["end_ns"] / 1e9,
        columns["asked_ns"] / 1e9,
        columns["got_ns"] / 1e9,
        columns["in_wall"].astype(bool),
        batch[is_known],
        row[file[is_known]],
        reads["ns"][is_known] / 1e9,
    )


def _longest_passes(columns: dict[str, Array]) -> Array:
    """Return the batches to keep: whole epochs, most wait first, up to MOST_BATCHES."""
    numbers, place = np.unique(columns["pass"], return_inverse=True)
    waited = np.bincount(place, columns["got_ns"] - columns["asked_ns"])
    counts = np.bincount(place)
    kept = np.zeros(len(numbers), bool)
    room = MOST_BATCHES
    for number in np.argsort(-waited, kind="stable").tolist():
        if room <= 0:
            break
        kept[number] = True
        room -= int(counts[number])
    chosen = np.flatnonzero(kept[place])
    return chosen[: max(MOST_BATCHES, 1)]
