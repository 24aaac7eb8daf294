"""Export a run as a log of Darshan: a single log for all ranks and workers.

Knows the calls of a run that Darshan would count; knows neither Darshan's definitions
(darshan_counters) nor Darshan's bytes (darshan_library).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import RunError
from penstock.explain.questions import query
from penstock.interop import darshan_counters as counters
from penstock.interop import darshan_library as library
from penstock.runs.run import Run
from penstock.runs.tables import Array, translated
from penstock.words import count

__all__ = ["export"]

# The calls of a part of the files are sorted and counted at once: 400 MB.
PART_CALLS = 4_000_000

# darshan-heatmap.c
MAX_BINS = 200
FIRST_BIN_S = 0.1

HEATMAPS = (b"heatmap:POSIX", b"heatmap:STDIO")

UNKNOWN_MOUNTS = [("/", "unknown")]

_HOST_BYTES = 64


def export(
    run: Run,
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, ...]:
    """Write the run as a log of Darshan 3.5; return remarks on facts without a place in the log.

    A worker's calls belong to the worker's rank; a file touched by every rank has one record.
    progress: is called with (done, total) parts.  Raises MissingDependency, RunError.
    """
    library.open_library()  # before any work is done
    refusal = f"{run.folder}: cannot be turned into a log of Darshan"
    with translated(refusal, RunError), run.connection.cursor() as engine:
        return _Export(run, engine, progress or (lambda done, total: None)).write(Path(path))


class _Export:
    def __init__(self, run: Run, engine: Any, progress: Callable[[int, int], None]) -> None:
        self.run, self.engine, self.progress = run, engine, progress
        self._prepare("darshan_ranks")
        self._prepare("darshan_names")
        self.words = {"kinds": list(counters.KINDS), "timers": list(counters.TIMERS)}
        self._prepare("darshan_kinds", **self.words)
        self._prepare("darshan_renames")
        named = engine.execute("SELECT path FROM darshan_names ORDER BY number").fetchall()
        self.names = [path.encode() for (path,) in named]
        self.ids = library.record_ids(self.names)
        self.ranks = 1 + self._one("SELECT coalesce(max(rank), 0) FROM darshan_ranks")
        self.end_ns = self._one(
            "SELECT coalesce(max(ns), 0) FROM (SELECT max(end_ns) AS ns FROM processes UNION ALL"
            " SELECT max(start_ns + duration_ns) FROM events_raw UNION ALL"
            " SELECT max(last_ns) FROM folded_raw)"
        )

    def _prepare(self, name: str, **parameters: Any) -> None:
        self.engine.execute(f"CREATE TEMP TABLE {name} AS {query(name)}", parameters)

    def _one(self, query: str) -> int:
        return int(self.engine.execute(query).fetchone()[0])

    def write(self, path: Path) -> tuple[str, ...]:
        """Count part by part and write the log."""
        modules: dict[int, list[Array]] = {}
        self.used: set[int] = set()  # files with a record
        folded = self._columns("darshan_folded")
        parts = 1 + self._one("SELECT count(*) FROM events_raw") // PART_CALLS
        for part in range(parts):
            calls = _sorted(self._columns("darshan_calls", parts=parts, part=part, **self.words))
            here = _where(folded, folded["number"] % parts == part)
            for module, is_stdio in ((library.POSIX, False), (library.STDIO, True)):
                records = counters.count(
                    _where(calls, calls["is_stdio"] == is_stdio),
                    _where(here, here["is_stdio"] == is_stdio),
                    self.ranks,
                )
                modules.setdefault(module, []).append(self._record_bytes(module, records))
                if not is_stdio:
                    segments = self._segments(_where(calls, ~calls["is_stdio"]), records)
                    modules.setdefault(library.DXT_POSIX, []).append(segments)
            self.progress(part + 1, parts + 1)
        modules[library.HEATMAP] = [self._heatmaps()]
        whole = {module: _joined(pieces) for module, pieces in modules.items()}
        whole = {module: data for module, data in whole.items() if len(data)}
        partial, lacks = self._lacks(folded)
        names = {int(self.ids[number]): self.names[number] for number in sorted(self.used)}
        names |= {int(library.record_ids([name])[0]): name for name in HEATMAPS}
        library.write_log(path, self._job(), self._program(), self._mounts(), names, whole, partial)
        self.progress(parts + 1, parts + 1)
        requests, connections = self.engine.execute(
            "SELECT (SELECT coalesce(sum(requests), 0)::BIGINT FROM requests),"
            " (SELECT coalesce(sum(connections), 0)::BIGINT FROM connections)"
        ).fetchone()
        if requests or connections:
            lost = count(requests, "request"), count(connections, "connection")
            said = f"{' and '.join(lost)} have no place in a log of Darshan"
            lacks += (f"{said}, which has records of files only",)
        return lacks

    def _columns(self, name: str, **parameters: Any) -> dict[str, Array]:
        columns: dict[str, Array] = self.engine.execute(query(name), parameters).fetchnumpy()
        return columns

    def _record_bytes(self, module: int, records: counters.Records) -> Array:
        """Return the log's records: id, rank, counters, times; by rank, records of all ranks
        last."""
        import numpy as np

        self.used.update(records.number.tolist())
        of_log, times = library.counter_names(module)
        heads = np.stack([self.ids[records.number].view(np.int64), records.rank], axis=1)
        values, seconds = counters.rows(records, of_log), counters.rows(records, times)
        if "RENAMED_FROM" in of_log:  # a record's id, 0 for none: the last place of ids
            ids = np.append(self.ids, np.uint64(0)).view(np.int64)
            values[:, of_log.index("RENAMED_FROM")] = ids[records.counters["RENAMED_FROM"]]
        rows = np.concatenate([heads, values, seconds.view(np.int64)], axis=1)
        order = np.lexsort((records.number, -records.rank))
        return np.ascontiguousarray(rows[order]).reshape(-1)

    def _segments(self, calls: dict[str, Array], records: counters.Records) -> Array:
        """Return DXT records, one per file and rank: writes, then reads, in order."""
        import numpy as np

        kinds = calls["kind"]
        write = counters.KINDS.index("write") + 1
        moves = (kinds == write) | (kinds == counters.KINDS.index("read") + 1)
        calls = _where(calls, moves & (calls["start_ns"] >= 0))
        is_read = calls["kind"] != write
        order = np.lexsort((calls["end_ns"], is_read, calls["number"], calls["rank"]))
        calls, is_read = _where(calls, order), is_read[order]
        n = len(is_read)
        key = calls["rank"].astype(np.int64) * (len(self.names) + 1) + calls["number"]
        first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]][:n])
        record = np.repeat(np.arange(len(first)), np.diff(np.r_[first, n]))
        reads = np.bincount(record[is_read], minlength=len(first)).astype(np.int64)
        all_of_it = np.diff(np.r_[first, n])
        begins = 13 * np.arange(len(first)) + 4 * first
        words = np.zeros(13 * len(first) + 4 * n, np.int64)
        number, rank = calls["number"][first], calls["rank"][first]
        shared = records.number[records.rank < 0]
        words[begins] = self.ids[number].view(np.int64)
        words[begins + 1] = rank
        words[begins + 2] = np.where(np.isin(number, shared), -1, 0)
        hosts = np.stack([self._host(i) for i in range(self.ranks)])
        words[begins[:, None] + 3 + np.arange(8)] = hosts[rank]
        words[begins + 11], words[begins + 12] = all_of_it - reads, reads
        places = begins[record] + 13 + 4 * (np.arange(n) - first[record])
        words[places], words[places + 1] = calls["offset_bytes"], calls["moved_bytes"]
        for i, name in ((2, "start_ns"), (3, "end_ns")):
            words[places + i] = (calls[name] / 1e9).view(np.int64)
        return words

    def _host(self, rank: int) -> Array:
        import numpy as np

        row = self.engine.execute(
            "SELECT min(host) FROM processes JOIN darshan_ranks USING (process) WHERE"
            " darshan_ranks.rank = ?",
            [rank],
        ).fetchone()
        name = (row[0] or "").encode()[: _HOST_BYTES - 1].ljust(_HOST_BYTES, b"\0")
        return np.frombuffer(name, np.int64)

    def _heatmaps(self) -> Array:
        """Return a record per layer and rank with moved bytes; all have the same bins."""
        import numpy as np

        width_s, end_s = FIRST_BIN_S, max(self.end_ns / 1e9, 1e-9)
        while end_s > width_s * MAX_BINS:
            width_s *= 2
        n = int(np.ceil(end_s / width_s))
        width_ns = round(width_s * 1e9)
        bins = self._columns("darshan_heatmap", width_ns=width_ns, bins=n)
        pieces = []
        for is_stdio, name in enumerate(HEATMAPS):
            (number,) = library.record_ids([name]).view(np.int64)
            of_layer = _where(bins, bins["is_stdio"] == bool(is_stdio))
            for rank in np.unique(of_layer["rank"]):
                here = _where(of_layer, of_layer["rank"] == rank)
                words = np.zeros(6 + 2 * n, np.int64)
                words[:2] = number, rank
                words[2] = np.float64(width_s).view(np.int64)
                words[3] = n
                words[6 + here["bin"] + np.where(here["is_write"], 0, n)] = here["bytes"]
                pieces.append(words)
        return _joined(pieces)

    def _lacks(self, folded: dict[str, Array]) -> tuple[list[int], tuple[str, ...]]:
        """Return the modules to be marked partial, with reasons as sentences."""
        past = self._one(
            "SELECT coalesce(sum(calls), 0) FROM folded_raw JOIN darshan_names USING (file)"
        )
        lost = self._one(
            "SELECT coalesce(sum(lost_events), 0) + count(*) FILTER (WHERE is_torn)"
            " + coalesce(sum(damaged_units), 0) FROM processes"
        )
        partial, said = set(), []
        if past:
            partial |= {library.POSIX, library.DXT_POSIX, library.HEATMAP}
            if folded["is_stdio"].any():
                partial |= {library.STDIO}
            said.append(
                f"{past:,} calls past the trace budget, or imported as counters, are in counters "
                "only: what needs their order or their offsets is -1, not measured; the log is "
                "marked incomplete"
            )
        astray = self._one(
            "SELECT count(*) FROM events_raw JOIN darshan_names USING (file) JOIN darshan_kinds"
            " USING (op_number) WHERE layer = 'posix' AND kind IN ('read', 'write') AND errno = 0"
            " AND offset_bytes IS NULL"
        )
        if astray:
            partial |= {library.POSIX, library.DXT_POSIX}
            said.append(
                f"{astray:,} reads and writes are at unknown offsets: what needs them is -1, not"
                " measured; the log is marked incomplete"
            )
        if lost:
            partial |= {library.POSIX, library.STDIO, library.DXT_POSIX, library.HEATMAP}
            said.append("the recording lost calls: the log is marked incomplete")
        return sorted(partial), tuple(said)

    def _job(self) -> dict[str, int | str]:
        start_ns = self.run.start_unix_ns
        end_ns = start_ns + self.end_ns
        owner = 0
        with suppress(OSError):
            owner = self.run.folder.stat().st_uid
        return {
            "uid": owner,
            "start_time_sec": start_ns // 10**9,
            "start_time_nsec": start_ns % 10**9,
            "end_time_sec": end_ns // 10**9,
            "end_time_nsec": end_ns % 10**9,
            "nprocs": self.ranks,
            "jobid": self._one("SELECT coalesce(arg_min(pid, process), 0) FROM processes"),
            "metadata": "lib_ver=3.5.0\nwritten_by=penstock",
        }

    def _program(self) -> str:
        """Return the command of the training process, else of the first process."""
        row = self.engine.execute(
            "SELECT coalesce(nullif(p.command, ''), p.executable, '') FROM processes AS p ORDER BY"
            " p.process IN (SELECT process FROM spans WHERE kind = 'step') DESC,"
            " p.rank NULLS LAST, p.start_ns, p.process LIMIT 1"
        ).fetchone()
        return " ".join(str(row[0]).split()) if row else ""  # a line, by the format

    def _mounts(self) -> list[tuple[str, str]]:
        """Return the mount points of file systems, as noted at the begin of the recording; the
        longest first.

        Never empty: without a mount, Darshan's readers do not find the end of the program's name.
        """
        rows = self.engine.execute(
            "SELECT DISTINCT value FROM notes WHERE key = 'mount'"
        ).fetchall()
        pairs = [row[0].partition("\t")[::2] for row in rows]
        mounts = [(path, kind) for path, kind in pairs if path.startswith("/") and kind]
        return sorted(mounts, key=lambda mount: -len(mount[0])) or UNKNOWN_MOUNTS


def _sorted(calls: dict[str, Array]) -> dict[str, Array]:
    """Return calls as Darshan sees them: by process, layer and file, in order of the calls'
    ends."""
    import numpy as np

    keys = ("start_ns", "end_ns", "number", "is_stdio", "process")
    return _where(calls, np.lexsort([calls[key] for key in keys]))


def _where(columns: dict[str, Array], mask: Array) -> dict[str, Array]:
    return {name: column[mask] for name, column in columns.items()}


def _joined(pieces: list[Array]) -> Array:
    import numpy as np

    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
