"""The report's tables: columns and rows, with headings and notes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from penstock.explain import startup
from penstock.explain.failures import error_name
from penstock.explain.measures import Endpoint, FileTotal, Measures, RecordedCheckpoint
from penstock.explain.report.shape import Column, Rest, Table, Unit
from penstock.words import Cell, count

__all__ = ["ratio", "tables_of"]


def ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


# Columns by key: title, unit, and whether the cells need single events.
COLUMNS: dict[str, tuple[str, Unit, bool]] = {
    "asked_bytes": ("bytes asked", "B", False),
    "answers": ("answers", "count", False),
    "apart_s": ("apart", "s", False),
    "at_risk_s": ("oldest of them", "s", False),
    "background_s": ("off the step loop", "s", False),
    "backlog": ("backlog", "count", False),
    "bandwidth_bps": ("bandwidth", "B/s", True),
    "barrier_s": ("in barriers", "s", False),
    "access": ("access", "text", False),
    "ahead_bytes": ("read ahead", "B", False),
    "batch_size": ("batch size", "count", False),
    "batches": ("batches", "count", False),
    "beneath": ("beneath", "text", False),
    "blocked_s": ("blocked", "s", False),
    "blocking_s": ("blocked", "s", True),
    "busy_share": ("of the wait busy", "share", False),
    "call_s": ("in file calls", "s", True),
    "called": ("called", "text", False),
    "calls": ("calls", "count", False),
    "calls_s": ("in file calls", "s", True),
    "checkpoint_block_s": ("checkpoints", "s", False),
    "command": ("command", "text", False),
    "connect_s": ("mean connect", "s", False),
    "connections": ("connections", "count", False),
    "copied_bytes": ("copied", "B", False),
    "costed": ("of so many", "count", False),
    "cpu_s": ("on a CPU", "s", False),
    "data_wait_s": ("data wait", "s", False),
    "drained": ("files drained", "count", False),
    "drained_bytes": ("drained", "B", False),
    "durable_max_s": ("longest", "s", False),
    "durable_mean_s": ("durable after", "s", False),
    "durable_s": ("durable after", "s", False),
    "duration_s": ("duration", "s", False),
    "ended": ("ended", "text", False),
    "end_risk_s": ("at risk at the end", "s", False),
    "endpoint": ("endpoint", "text", False),
    "epoch": ("epoch", "count", False),
    "errno": ("error", "text", False),
    "error_s": ("wrong by at most", "s", False),
    "errors": ("errors", "count", False),
    "fast": ("fast tier", "path", False),
    "fetch_s": ("in fetches", "s", False),
    "fetches": ("batches", "count", False),
    "files": ("files", "count", False),
    "filling": ("filling", "text", False),
    "failed": ("failed", "count", False),
    "first_byte_s": ("to first byte", "s", False),
    "first_s": ("first at", "s", False),
    "first_wait_s": ("of it first batch", "s", False),
    "folders": ("folders", "count", False),
    "good": ("of them good", "count", False),
    "function": ("function", "text", False),
    "handshake_s": ("mean TLS handshake", "s", False),
    "hit_bytes": ("of it used", "B", False),
    "host": ("host", "text", False),
    "how": ("aligned by", "text", False),
    "import_s": ("time", "s", False),
    "importer": ("by", "text", False),
    "is_finished": ("finished", "text", False),
    "kind": ("file system", "text", False),
    "last_s": ("last at", "s", False),
    "layer": ("layer", "text", False),
    "left_bytes": ("left", "B", False),
    "left_files": ("files left", "count", False),
    "life_s": ("recorded", "s", False),
    "line": ("line", "text", False),
    "local_s": ("local after", "s", False),
    "lost_s": ("lost time", "s", False),
    "lost_to_durable_s": ("with the drain", "s", False),
    "max_s": ("longest", "s", False),
    "mean_fetch_s": ("mean of a batch", "s", False),
    "major": ("major", "count", False),
    "mapped_s": ("mapping pages in memory", "s", False),
    "mean_s": ("mean", "s", False),
    "metadata_s": ("in metadata", "s", False),
    "mount": ("mounted at", "path", False),
    "mean_read_s": ("a read", "s", True),
    "minor": ("minor", "count", False),
    "min_rtt_s": ("least round trip", "s", False),
    "mode": ("mode", "text", False),
    "moved_s": ("moved by", "s", False),
    "most_at_once": ("at once", "count", False),
    "moved_bytes": ("bytes moved", "B", False),
    "node_bytes": ("once a host", "B", False),
    "op": ("operation", "text", False),
    "opens": ("opens", "count", False),
    "outcome": ("what came of it", "text", False),
    "own_s": ("the rest", "s", False),
    "owed_s": ("waited for", "s", False),
    "package": ("package", "text", False),
    "part": ("part", "text", False),
    "p50_s": ("median", "s", True),
    "p99_s": ("99th percentile", "s", True),
    "path": ("path", "path", False),
    "path_class": ("class", "text", False),
    "paused_s": ("drain paused", "s", False),
    "pid": ("pid", "text", False),
    "processes": ("processes", "count", False),
    "rank": ("rank", "count", False),
    "read_bytes": ("read", "B", False),
    "read_ceiling_bps": ("reads at most", "B/s", False),
    "read_s": ("in reads", "s", False),
    "read_times": ("read / size", "x", False),
    "readers": ("ranks", "count", False),
    "reads": ("reads", "count", True),
    "received_bytes": ("received", "B", False),
    "retransmits": ("sent again", "count", False),
    "risk_s": ("at risk", "s", False),
    "role": ("role", "text", False),
    "rtt_s": ("round trip", "s", False),
    "samples": ("samples", "count", False),
    "save": ("checkpoint", "count", False),
    "saves": ("saves", "count", False),
    "seconds": ("time", "s", False),
    "sent_bytes": ("sent", "B", False),
    "size_bytes": ("size", "B", False),
    "slow": ("slow tier", "path", False),
    "slower": ("slower", "share", True),
    "slower_error": ("error", "share", True),
    "spread_s": ("steps end within", "s", False),
    "start_s": ("at", "s", False),
    "state": ("state", "text", False),
    "step": ("step", "count", False),
    "steps": ("steps", "count", False),
    "sync_s": ("in syncs", "s", True),
    "touched_bytes": ("used at all", "B", False),
    "tier": ("tier", "text", False),
    "time_s": ("time in calls", "s", False),
    "transfer_s": ("in transfer", "s", False),
    "wait_s": ("data wait", "s", True),
    "wait_share": ("data wait", "share", True),
    "waited": ("minor that waited", "count", False),
    "waited_s": ("waited", "s", False),
    "why": ("reason", "text", False),
    "worker": ("worker", "count", False),
    "workers": ("workers", "count", False),
    "wall_s": ("wall", "s", False),
    "whose": ("whose", "text", False),
    "write_ceiling_bps": ("writes at most", "B/s", False),
    "write_s": ("in writes", "s", False),
    "written_bytes": ("written", "B", False),
    "backoff_s": ("back-off", "s", False),
    "broken": ("5xx", "count", False),
    "bucket": ("bucket", "text", False),
    "busy_s": ("in requests", "s", False),
    "bytes_p50": ("median size", "B", False),
    "duration_p50_s": ("median", "s", False),
    "duration_p99_s": ("99th percentile", "s", False),
    "first_byte_p50_s": ("first byte, median", "s", False),
    "first_byte_p99_s": ("first byte, 99th percentile", "s", False),
    "is_operation": ("inner requests unseen", "text", False),
    "moved": ("3xx", "count", False),
    "object_bytes_p50": ("median object", "B", False),
    "ok": ("2xx", "count", False),
    "operation": ("operation", "text", False),
    "partial": ("not read to the end", "count", False),
    "paths": ("paths", "count", False),
    "refused": ("4xx", "count", False),
    "requests": ("requests", "count", False),
    "retries": ("retries", "count", False),
    "throttled": ("throttled", "count", False),
    "unanswered": ("no answer", "count", False),
}

OFF_THE_LOOP = "Off the step loop: in the background, or before the training. "
# Tables by key, in the report's order: title, columns, note.  A column is the equally named
# attribute of the measures' row, or made by CELLS.
TABLES: dict[str, tuple[str, str, str]] = {
    "directories": (
        "Largest directories",
        "path blocking_s time_s read_bytes written_bytes files folders calls path_class layer",
        "Blocked: the step loop stood still for these calls. A directory with more than 8"
        " directories in it stands for all that lies below.",
    ),
    "files": (
        "Largest files",
        "path blocking_s time_s read_bytes written_bytes read_times size_bytes opens calls"
        " path_class layer",
        "Blocked: the step loop stood still for these calls. Data and output files.",
    ),
    "endpoints": (
        "Connections",
        "endpoint wait_s waited_s connections most_at_once failed answers received_bytes sent_bytes"
        " first_byte_s transfer_s connect_s handshake_s rtt_s min_rtt_s retransmits whose",
        "TCP connections. Data wait: of the training; waited: all threads together. Answers: bytes"
        " that came after a send, of HTTP/1.1 the requests and handshakes. To first byte: a mean"
        " over answers; in transfer: all of them together. Whose: the job's own if both ends are"
        " processes of the job.",
    ),
    "remote_requests": (
        "Requests to remote storage",
        "endpoint bucket operation requests busy_s received_bytes sent_bytes first_byte_p50_s"
        " first_byte_p99_s duration_p50_s duration_p99_s bytes_p50 object_bytes_p50 most_at_once"
        " ok moved refused broken throttled unanswered retries backoff_s lost_s partial paths"
        " processes is_operation",
        "Requests over HTTP of clients that Penstock knows; other clients are only in the table of"
        " connections. Time in requests: all threads together. Lost: requests that failed, and the"
        " back-off before their retries.",
    ),
    "operations": (
        "Operations",
        "op layer calls moved_bytes asked_bytes time_s mean_s p50_s p99_s max_s errors",
        "POSIX and STDIO are counted apart and never added. Time in calls is that of all threads"
        " together.",
    ),
    "classes": (
        "Data, output, libraries, system",
        "path_class layer files calls read_bytes written_bytes read_s write_s metadata_s",
        "Pipes, sockets and terminals are no files: their time is spent waiting for others.",
    ),
    "checkpoints": (
        "Checkpoints",
        "save start_s blocked_s background_s written_bytes bandwidth_bps call_s sync_s files path"
        " is_finished ended",
        f"{OFF_THE_LOOP}The path is that of the largest file.",
    ),
    "failures": (
        "Calls that failed",
        "errno op path calls first_s last_s pid path_class",
        "What fails in any program (a path that is looked for in vain, EEXIST, EAGAIN, ENOTTY) is"
        " not here. The process is the first that met it.",
    ),
    "epochs": (
        "Epochs of the loader",
        "epoch start_s duration_s data_wait_s first_wait_s batches read_bytes workers batch_size",
        "Bytes are those of data files, asked of the system while fetching: from the second epoch"
        " on they may come from memory.",
    ),
    "workers": (
        "Workers of the loader",
        "worker pid rank owed_s fetches mean_fetch_s fetch_s cpu_s busy_share",
        "Waited for: the step loop stood still for batches that this worker owed.",
    ),
    "ranks": (
        "Ranks",
        "rank data_wait_s checkpoint_block_s barrier_s own_s wall_s steps read_bytes host",
        "The longest data wait first. In barriers: in those that are known as such; what ranks wait"
        " for each other elsewhere, as in the exchange of gradients, is in the rest.",
    ),
    "sharing": (
        "Data files by how many ranks read them",
        "readers files size_bytes read_bytes node_bytes",
        "Once a host: what would be read if the ranks of a host shared what they read; at least,"
        " where they read different parts of a file.",
    ),
    "clocks": (
        "Clocks of hosts",
        "host how moved_s error_s spread_s steps",
        "No step ends on one host before it has begun on all: that bounds how wrong times between"
        " hosts may be. Steps end within: from the 10th to the 90th percentile.",
    ),
    "storage": (
        "Storage seen",
        "mount kind path_class files size_bytes read_bytes written_bytes read_ceiling_bps"
        " write_ceiling_bps beneath",
        "What a file system gives at most is measured by `penstock ceiling`.",
    ),
    "fetch_lines": (
        "Lines of fetches by CPU time",
        "path line function called cpu_s samples",
        "Sampled some 50 times a second, later 10 times, while batches are made: the innermost line"
        " of the program's own code, or of a package's function where a fetch runs packages only."
        " Called: a Python function; time in functions written in C counts for the line that"
        " calls them. PENSTOCK_LINES=0 turns the samples off.",
    ),
    "fault_files": (
        "Page faults of mapped files",
        "path blocking_s waited_s major waited minor max_s mapped_s size_bytes path_class",
        "Major: a page was read for it. Waited: minor ones of 10 µs and more, whose page was being"
        " read ahead. Bytes do not follow from faults: one may bring many pages.",
    ),
    "ahead": (
        "Files read ahead",
        "path access ahead_bytes hit_bytes touched_bytes size_bytes why",
        "Used: touched by the program after the reading, in blocks of 64 KiB. Touches just before"
        " the end of a mapping are not seen: the bytes used are a lower bound. Off: reading ahead"
        " was stopped for the reason given, and the memory of unused bytes was given back.",
    ),
    "staged": (
        "Opens of staged files",
        "outcome opens files read_bytes time_s tier",
        "Served: the staged copy was opened. Any other: the file itself, and why; lost: the tier"
        " was not there, all opens of data files. `penstock stage status` shows the copies.",
    ),
    "filling": (
        "Filling a tier meanwhile",
        "filling seconds copied_bytes reads mean_read_s slower slower_error wait_share",
        "Reads of the files themselves beside the copying, and in the pauses that it makes to"
        " compare. Only slower compares the two: reads of as many bytes, those read before apart;"
        " none: too few. What is no more than two or three of its errors is chance. Mean"
        " times may be of a cold epoch and of a warm one. Copying counts in whole stretches, which"
        " may begin before the program and end after it.",
    ),
    "burst": (
        "Checkpoints by a fast tier",
        "tier files written_bytes time_s drained drained_bytes durable_mean_s durable_max_s"
        " left_files left_bytes at_risk_s paused_s",
        "Durable: from the last write until the file is in its own place, synced. Left: on the fast"
        " tier only when the drain ended; what a loss of that tier would cost. `penstock save drain"
        " TIER` brings it home.",
    ),
    "checkpointers": (
        "Checkpointers",
        "fast slow saves good blocked_s lost_s costed durable_mean_s durable_max_s backlog risk_s"
        " end_risk_s",
        "Lost: of the training, by the blocks and the slower steps beside writing and drain, in"
        " those saves where it could be measured. Backlog: the most that were not durable when one"
        " more was called. At risk: the most training time that a loss of the fast tier would have"
        " cost; at the end: what it would cost then. Of rank 0.",
    ),
    "tiered_saves": (
        "Saves of the Checkpointer",
        "step mode blocked_s lost_s lost_to_durable_s local_s durable_s backlog risk_s size_bytes"
        " waited_s outcome",
        "Times are from the call. Lost: by the block and the slower steps beside the writing, and"
        " with those beside the drain. Blocking: the caller waited until it was on the fast tier."
        " Backlog: earlier ones that were not durable. At risk: the training time that a loss of"
        " the fast tier would have cost just before this was durable.",
    ),
    "startup_places": (
        "Files of the start-up",
        "part path files calls read_bytes written_bytes time_s",
        "Of each part of the start-up the deepest folder that holds 80 % of its time in calls, by"
        " the thread that will train; of files that it makes, from the open to the last write.",
    ),
    "startup_imports": (
        "Imports",
        "package importer processes import_s cpu_s calls_s",
        "Outermost imports until the training, or until a loader's worker is ready; of all"
        " processes of a kind together.",
    ),
    "processes": (
        "Processes",
        "pid role host state life_s calls time_s command",
        "",
    ),
}

# Cells other than the equally named attribute.
CELLS: dict[str, Callable[[Any], Cell]] = {
    "is_finished": lambda row: None if row.is_finished else "no",
    "asked_bytes": lambda row: row.asked_bytes or None,
    "busy_share": lambda row: ratio(row.busy_s, row.waited_s),
    "mean_fetch_s": lambda row: ratio(row.fetch_s, row.fetches),
    "ended": lambda row: _ended(row),
    "first_byte_s": lambda row: ratio(row.first_byte_s, row.answers),
    "whose": lambda row: "the job's own" if row.is_own else "accepted" if row.is_accepted else None,
    "errno": lambda row: error_name(row.errno),
    "errors": lambda row: row.errors or None,
    "layer": lambda row: row.layer.upper(),
    "moved_bytes": lambda row: row.moved_bytes or None,
    "part": lambda row: startup.LABELS[row.part],
    "pid": lambda row: None if row.pid is None else str(row.pid),
    "state": lambda row: ", ".join(filter(None, (row.state, row.reason))),
    "role": lambda row: (
        f"worker {row.worker}"
        if row.worker is not None
        else row.role
        if row.rank is None
        else f"{row.role}, rank {row.rank}"
    ),
}


def _ended(save: RecordedCheckpoint) -> str | None:
    """Return how a save ended; None if the save succeeded."""
    error = error_name(save.errno) if save.errno else None
    if save.outcome is None and error:
        return f"well, after {error}"
    return ", ".join(filter(None, (save.outcome, error))) or None


def tables_of(measures: Measures) -> tuple[Table, ...]:
    """Return all tables of a report, in the order of TABLES; a table may have no rows."""
    return tuple(_table(key, measures) for key in TABLES)


def _table(key: str, measures: Measures) -> Table:
    title, names, note = TABLES[key]
    columns = tuple(_column(key, name, measures) for name in names.split())
    rows = _rows(key, measures)
    rest = [row for row in rows if isinstance(row, FileTotal) and row.path is None]
    if key == "checkpoints" and all(save.blocks for save in measures.checkpoints):
        note = note.removeprefix(OFF_THE_LOOP)  # the table lacks the column of the note
    return Table(
        key,
        title,
        columns,
        tuple(_cells(columns, row) for row in rows if row not in rest),
        note,
        tuple(Rest(row.files, _cells(columns, _named(row))) for row in rest),
        getattr(rows[0], N_ALL[key]) if key in N_ALL and rows else None,
    )


def _column(key: str, name: str, measures: Measures) -> Column:
    """Return a column of the table `key`, with the state of the measures in the cells."""
    heading, unit, needs_events = COLUMNS[name]
    state, why = measures.events_state if needs_events else measures.counts_state
    if key == "fault_files" and state == "measured":
        state, why = measures.faults.quality
    return Column(name, heading, unit, state, why)


def _rows(key: str, measures: Measures) -> Sequence[Any]:
    """Return the values in the rows of the table `key`."""
    if key == "endpoints":
        return _endpoints(measures)
    rows: Sequence[Any] = getattr(measures, key)
    if key != "ranks":
        return rows
    if len(rows) < 2:  # a single rank has nothing to be compared with
        return ()
    return sorted(rows, key=lambda row: -row.data_wait_s)


@dataclass(frozen=True, slots=True)
class _WaitedEndpoint:
    """An endpoint with the endpoint's part of the data wait."""

    row: Endpoint
    wait_s: float | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)


def _endpoints(measures: Measures) -> Sequence[_WaitedEndpoint]:
    """Return the endpoints, the longest data wait first."""
    waited = dict.fromkeys((row.endpoint for row in measures.endpoints), 0.0)
    for part in measures.network:
        if part.endpoint in waited:
            waited[part.endpoint] += part.s
    rows = [_WaitedEndpoint(row, waited[row.endpoint] or None) for row in measures.endpoints]
    return sorted(rows, key=lambda row: (-(row.wait_s or 0.0), -row.received_bytes))


# The number of things where a thing may have a row per layer, and where some have no row.
N_ALL = {"files": "all_files", "directories": "all_directories", "fault_files": "all_files"}


def _cells(columns: Sequence[Column], row: Any) -> tuple[Cell, ...]:
    return tuple(_cell(column, row) for column in columns)


def _cell(column: Column, row: Any) -> Cell:
    """Return a cell; None in an unmeasured column, even if the query returned a value."""
    if column.state == "not measured":
        return None
    cell: Cell = CELLS.get(column.key, attrgetter(column.key))(row)
    return cell


def _named(row: FileTotal) -> FileTotal:
    """Return the row for all files without a separate row; the path becomes "N other files"."""
    return replace(row, path=count(row.files, "other file"))
