"""A run reduced by rank: additive sums, so ten thousand ranks fit a file.  Knows runs and queries;
knows no byte of a log, no screen.

A reduced file is Parquet: a table (COLUMNS, queries/reduced.sql) of whole-number sums.  The sums of
many ranks are the added sums of each rank, exactly, in any order.  A reduced file has no single
calls, so no patterns of files, no lanes and no small reads.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from penstock.errors import LogError, MissingDependency, RunError
from penstock.explain.measures import (
    BlindSpot,
    BlockingReads,
    CallTimes,
    Coupling,
    Job,
    Machine,
    Measures,
    MetadataCalls,
    Operation,
    PageFaults,
    Pattern,
    Program,
    Rank,
    RankCell,
    Reading,
    Recording,
    Sharing,
    Training,
)
from penstock.explain.questions import prepare, query
from penstock.explain.report import Report, report_of
from penstock.log.header import Header, read_header
from penstock.log.texts import logs_in
from penstock.runs import ctrl_c
from penstock.runs.run import open_run
from penstock.runs.tables import insert_rows
from penstock.safe import checksums, drafts

__all__ = [
    "COLUMNS",
    "SUFFIX",
    "Team",
    "families",
    "measures_of",
    "merge",
    "merge_ranks",
    "reduce_all",
    "reduce_logs",
    "reduce_rank",
    "report_of_reduced",
]

SUFFIX = ".reduced"
_TEXTS = ("kind", "host", "name", "command", "executable", "folder", "layer")
_KEYS = (*_TEXTS, "rank", "world_size", "width", "bin")
_SUMS = ("calls", "moved_bytes", "duration_ns", "steps", "wall_ns", "wait_ns", "waits", "save_ns")
# name: type, in the file's order.
COLUMNS = (
    dict.fromkeys(_TEXTS, "VARCHAR")
    | {"rank": "INTEGER", "world_size": "INTEGER", "width": "INTEGER", "bin": "BIGINT"}
    | dict.fromkeys((*_SUMS, "barrier_ns", "errors", "asked_bytes", "max_ns", "least_ns"), "BIGINT")
)
# The number of logs in a batch, and of files in a merge.  Both numbers bound memory.
BATCH_LOGS = 400
FAN = 64
MOST_BINS = 240
MEMORY = "1GB"
LACKS = (
    "single calls, directories, patterns: this is a run reduced by rank; `penstock report` of a "
    "rank's own folder tells them. Hosts' clocks are as they were"
)
Progress = Callable[[int, int], None]


def families(folder: Path, most_logs: int = BATCH_LOGS) -> list[list[Path]]:
    """Return the logs of a run in batches for separate reduction.

    All logs of a rank are in the same batch.  Raises RunError: no log; LogError: a log of a newer
    format.
    """
    by_rank: dict[int, list[Path]] = {}
    for path in logs_in(folder):
        by_rank.setdefault(_rank(read_header(path)), []).append(path)
    if not by_rank:
        raise RunError(f"{folder}: no log of penstock in it; reduce a run folder")
    batches: list[list[Path]] = [[]]
    for _, paths in sorted(by_rank.items()):
        if batches[-1] and len(batches[-1]) + len(paths) > most_logs:
            batches.append([])
        batches[-1] += paths
    return batches


def reduce_rank(folder: Path, rank: int | None, size: int = 0, host: str | None = None) -> Path:
    """Reduce the logs of a rank to a file in the run folder; other ranks may still run.

    rank: None takes all ranks.  size: the number of ranks of the job.  host: also take the logs of
    `host` without a rank of the job: an inner launcher, as torchrun below srun, numbers ranks
    differently.  Raises RunError: no log of the rank, or as reduce_logs; LogError.
    """
    logs = []
    for path in logs_in(folder):
        header = read_header(path)
        is_of_job = header.rank is not None and header.world_size == size
        is_mine = header.rank == rank if is_of_job else header.host == host
        if rank is None or is_mine:
            logs.append(path)
    if not logs:
        raise RunError(f"{folder}: rank {rank} left no log to reduce")
    target = folder / f"rank-{rank or 0}{SUFFIX}"
    reduce_logs(folder, logs, target)
    return target


def merge_ranks(folder: Path) -> Path:
    """Merge the ranks' reduced files to one file of the run folder, and remove the parts.

    Raises RunError: no reduced file; as merge.
    """
    parts = sorted(folder.glob(f"rank-*{SUFFIX}"))
    target = folder / f"run{SUFFIX}"
    merge(parts, target)
    for part in parts:
        part.unlink(missing_ok=True)
    return target


def _rank(header: Header) -> int:
    return -1 if header.rank is None else header.rank


def reduce_logs(folder: Path, logs: Sequence[Path], target: Path) -> None:
    """Reduce some logs of a run folder to a file; `logs` has all logs of each of the ranks.

    Raises RunError: cannot be read or written; LogError."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=_above(target)) as place:
        for path in (*logs, *_beside(folder, logs)):
            (Path(place) / path.name).symlink_to(path.absolute())
        with open_run(place) as run, run.connection.cursor() as engine:
            prepare(engine)
            engine.execute(f"SET VARIABLE start_unix_ns = {run.start_unix_ns}")
            result = engine.execute(query("reduced"))
            types = {column[0]: COLUMNS[column[0]] for column in result.description}
            rows = result.fetchall()
    with _engine(target.parent) as engine:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        engine.execute(f"CREATE TABLE every ({columns})")
        engine.execute(f"CREATE TABLE found ({', '.join(f'{n} {k}' for n, k in types.items())})")
        insert_rows(engine, "found", types, rows)
        engine.execute("INSERT INTO every BY NAME FROM found")
        _write(engine, "FROM every", target)


def _beside(folder: Path, logs: Sequence[Path]) -> Iterator[Path]:
    """Yield the run's facts of launchers, and the page faults for `logs`."""
    launchers = {str(read_header(path).ppid) for path in logs}
    faults = list(folder.glob("*.faults"))
    yield from folder.glob("run*.json")
    yield from (
        path for path in faults if len(faults) == 1 or path.stem.split(".")[-1] in launchers
    )


@dataclass(frozen=True, slots=True)
class Team:
    """The processes that share the work: a single process, or the ranks of an MPI job."""

    world: Any = None
    rank: int = 0
    size: int = 1

    @classmethod
    def of_mpi(cls) -> "Team":
        """Return the team of all ranks of the MPI job.  Raises MissingDependency."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise MissingDependency(
                f"--mpi needs mpi4py and an MPI library ({error}): pip install 'penstock[mpi]'"
            ) from error
        world = MPI.COMM_WORLD
        return cls(world, world.Get_rank(), world.Get_size())

    def agree(self, why: str) -> None:
        """Raise RunError in every rank if any rank has a reason."""
        for reason in self.world.allgather(why) if self.world is not None else [why]:
            if reason:
                raise RunError(reason)


def reduce_all(
    sources: Sequence[Path],
    target: Path,
    most_logs: int = BATCH_LOGS,
    team: Team | None = None,
    progress: Progress | None = None,
) -> None:
    """Reduce runs and reduced files to one reduced file.

    Each member of the team takes a share; the results are merged in a tree, two by two.  Raises
    RunError, in all of the team; LogError.
    """
    team = team or Team()
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=_above(target)) as place:
        own, why = Path(place) / f"own{SUFFIX}", ""
        try:
            _reduce_share(sources, own, most_logs, team, progress)
        except (RunError, LogError) as error:
            if team.world is None:
                raise
            why = str(error)
        team.agree(why)
        why = _meet(own, team)
        team.agree(why)
        if team.rank == 0:
            own.replace(target)


def _above(target: Path) -> Path:
    return target.absolute().parent


def _reduce_share(
    sources: Sequence[Path], own: Path, most_logs: int, team: Team, progress: Progress | None
) -> None:
    works: list[tuple[Path, list[Path]]] = []
    for source in sources:
        if source.is_file():
            works.append((source, []))
        else:
            works += [(source, logs) for logs in families(source, most_logs)]
    mine = works[team.rank :: team.size]
    done: list[Path] = []
    for number, (source, logs) in enumerate(mine):
        if logs:
            done.append(own.with_name(f"part-{number}{SUFFIX}"))
            reduce_logs(source, logs, done[-1])
        else:
            done.append(source)
        if progress:
            progress(number + 1, len(mine))
    if done:
        merge(done, own)
    else:  # the team has more members than the work has parts
        with _engine(own.parent) as engine:
            nothing = (f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
            _write(engine, f"SELECT {', '.join(nothing)} WHERE false", own)


def _meet(own: Path, team: Team) -> str:
    """Merge the team's files two by two: a member sends a file, and the receiver adds the file.

    Return the reason for a failed merge, or "".
    """
    step = 1
    why = ""
    while step < team.size:
        if team.rank % (2 * step):
            team.world.send(own.read_bytes(), dest=team.rank - step)
            break
        if team.rank + step < team.size:
            other = own.with_name(f"other{SUFFIX}")
            drafts.write(other, team.world.recv(source=team.rank + step))
            try:
                merge([own, other], own)
            except RunError as error:
                why = str(error)
        step *= 2
    return why


def merge(files: Sequence[Path], target: Path, progress: Progress | None = None) -> None:
    """Add up reduced files, FAN at a time.  Raises RunError: a rank in two files, an invalid or
    damaged file, no room."""
    level, done, n = list(files), 0, len(files)
    if not level:
        raise RunError("nothing to merge; name reduced files")
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=_above(target)) as place:
        while len(level) > 1 or level[0] in files:
            groups = [level[at : at + FAN] for at in range(0, len(level), FAN)]
            level = []
            for group in groups:
                level.append(Path(place) / f"{done}{SUFFIX}")
                _merge_once(group, level[-1])
                done += 1
                if progress:
                    progress(min(done, n), n)
        level[0].replace(target)


def _merge_once(files: Sequence[Path], target: Path) -> None:
    with _engine(target.parent) as engine:
        every = _read(engine, files)
        engine.execute(f"CREATE VIEW every AS SELECT {', '.join(COLUMNS)} FROM {every}")
        twice = engine.execute(
            "SELECT name, min(rank) FROM every WHERE kind = 'rank' GROUP BY name"
            " HAVING count(*) > 1"
        ).fetchone()
        if twice:
            of = f"rank {twice[1]}" if twice[1] is not None else "a process"
            raise RunError(f"{of} ({twice[0]}) is in two of the files: it would count twice")
        (width,) = engine.execute(
            f"SELECT coalesce(max(width) + greatest(0, ceil(log2(greatest(1, (max(bin << width) -"
            f" min(bin << width)) / (1::BIGINT << max(width)) / {MOST_BINS})))), 20)::INTEGER"
            " FROM every WHERE kind = 'heat'"
        ).fetchall()[0]
        keys = ", ".join(_KEYS)
        sums = ", ".join(
            f"CAST(sum({name}) AS BIGINT) AS {name}" for name in (*_SUMS, "barrier_ns")
        )
        of_files = ", ".join(
            f"CAST(CASE WHEN kind = 'file' THEN max({name}) ELSE sum({name}) END AS BIGINT)"
            f" AS {name}"
            for name in ("errors", "asked_bytes")
        )
        _write(
            engine,
            f"SELECT {keys}, {sums}, {of_files}, max(max_ns) AS max_ns,"
            " min(least_ns) AS least_ns FROM (SELECT * REPLACE ("
            f" CASE WHEN kind = 'heat' THEN bin >> ({width} - width) ELSE bin END AS bin,"
            f" CASE WHEN kind = 'heat' THEN {width} ELSE width END AS width) FROM every)"
            f" GROUP BY {keys} ORDER BY kind, rank, name, bin",
            target,
        )


def _read(engine: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> str:
    names = ", ".join(_quoted(path) for path in files)
    for path in files:
        try:
            checksums.check(path)
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from error
        try:
            columns = engine.execute(f"DESCRIBE FROM read_parquet({_quoted(path)})").fetchall()
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise RunError(f"{path}: no reduced file of penstock: {why}") from error
        if {name: kind for name, kind, *_ in columns} != COLUMNS:
            raise RunError(
                f"{path}: no reduced file of this version of penstock; reduce its run again"
            )
    return f"read_parquet([{names}])"


def _quoted(path: Path) -> str:
    name = str(path)
    for letter in "[*?":  # a letter in brackets is no pattern
        name = name.replace(letter, f"[{letter}]") if letter != "[" else name.replace("[", "[[]")
    return "'" + name.replace("'", "''") + "'"


def _text(words: str) -> str:
    return "'" + words.replace("'", "''") + "'"


def _write(engine: duckdb.DuckDBPyConnection, select: str, target: Path) -> None:
    """Write the rows to a file, whole or not at all."""
    ordered = ", ".join(f'"{name}"' for name in COLUMNS)
    try:
        with drafts.by_name(target) as draft:
            name = draft.replace("'", "''")
            engine.execute(
                f"COPY (SELECT {ordered} FROM ({select})) TO '{name}'"
                " (FORMAT parquet, COMPRESSION zstd,"
                f" KV_METADATA {{{checksums.KEY}: {_text(checksums.MARK)}}})"
            )
            checksums.seal(draft)
    except (duckdb.Error, OSError) as error:
        raise RunError(f"{target}: cannot be written: {str(error).splitlines()[0]}") from error


@contextmanager
def _engine(place: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    spilled = tempfile.mkdtemp(prefix="penstock-", dir=place)
    config: dict[str, Any] = {"memory_limit": MEMORY, "temp_directory": spilled, "threads": 2}
    try:
        with duckdb.connect(":memory:", config=config) as engine:
            engine.execute("SET enable_progress_bar = false")
            ctrl_c.queries_follow()
            yield engine
    finally:
        shutil.rmtree(spilled, ignore_errors=True)


# --- reports of reduced files --------------------------------------------------------------------


def measures_of(path: Path) -> Measures:
    """Return the measures of a reduced file; measures not in the file are empty.  Raises
    RunError."""
    with _engine(Path(tempfile.gettempdir())) as engine, _damage_told(path):
        engine.execute(f"CREATE VIEW every AS FROM {_read(engine, [path])}")
        return _measured(engine)


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Turn errors of computing with impossible sums into a RunError."""
    try:
        yield
    except (duckdb.Error, ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = f"it is damaged, or was made to harm: {str(error).splitlines()[:1]}"
        raise RunError(f"{path}: {why}") from error


# Rules without a need for single calls.
JUDGED = ("D8", "X1")


def report_of_reduced(path: Path, name: str) -> Report:
    """Return the report of a reduced file, with other rules marked as not judged.  Raises
    RunError."""
    measures = measures_of(path)
    with _damage_told(path):
        report = report_of(measures, name)
    why = "a run reduced by rank has no single calls"
    checks = tuple(
        check if check.rule in JUDGED else replace(check, state="not judged", says=why)
        for check in report.checks
    )
    findings = tuple(finding for finding in report.findings if finding.rule in JUDGED)
    return replace(report, checks=checks, findings=findings)


def _measured(engine: duckdb.DuckDBPyConnection) -> Measures:
    engine.execute(f"CREATE VIEW step_bins AS {_STEP_BINS}")
    (coupling,) = _rows(engine, Coupling, query("coupling_by_steps"))
    training, ranks, parts = _training(engine), _ranks(engine), _parts(engine)
    if coupling.how == "together":
        training, ranks, parts = _held_up(engine, coupling, training, ranks, parts)
    return Measures(
        program=_program(engine),
        training=training,
        recording=_recording(engine),
        wait_parts=parts["wait"],
        first_batch_parts=parts["before"],
        checkpoint_parts=parts["save"],
        data_blocking={},
        operations=_operations(engine),
        ranks=ranks,
        coupling=coupling,
        job=_job(engine),
        rank_cells=_cells(engine),
        sharing=_sharing(engine),
        blind_spots=(BlindSpot("not measured", LACKS, 1),),
        **_EMPTY,
    )


_STEP_BINS = (
    "SELECT CAST(name AS BIGINT) AS generation, width AS size, bin, waits AS mains, calls AS whole,"
    " duration_ns // 1000 AS d_us, asked_bytes AS hi, moved_bytes AS lo, wait_ns AS stall_ns,"
    " max_ns AS most_ns, least_ns FROM every WHERE kind = 'step'"
)
# Of the job's loss: a rank that caused a smaller share does not represent all ranks.
MOST_OF_IT = 0.8


def _parts(
    engine: duckdb.DuckDBPyConnection, main: str | None = None
) -> dict[str, dict[str, float]]:
    """Return the parts of waits and checkpoints, in seconds: of a main process, or the mean."""
    parts: dict[str, dict[str, int]] = {"wait": {}, "before": {}, "save": {}}
    of_main = f" AND command = {_text(main)}" if main is not None else ""
    for of, name, ns in _all(
        engine,
        "SELECT layer, name, sum(duration_ns)::BIGINT FROM every WHERE kind = 'part'"
        f"{of_main} GROUP BY layer, name ORDER BY layer, name",
    ):
        parts.setdefault(of, {})[name] = ns
    block_ns = parts["save"].pop("block", 0)
    if block_ns:
        parts["save"]["other"] = max(0, block_ns - sum(parts["save"].values()))
    ((mains,),) = _all(engine, "SELECT count(*) FROM every WHERE kind = 'rank'")
    n = 1 if main is not None else max(1, mains)
    return {
        of: {name: ns / 1e9 / n for name, ns in parts_ns.items()} for of, parts_ns in parts.items()
    }


def _held_up(
    engine: duckdb.DuckDBPyConnection,
    coupling: Coupling,
    training: Training,
    ranks: tuple[Rank, ...],
    parts: dict[str, dict[str, float]],
) -> tuple[Training, tuple[Rank, ...], dict[str, dict[str, float]]]:
    """Return training, ranks and parts of ranks that wait for each other.

    The loss of the job is the delay by the slowest rank, as in queries/shares.sql.  The bins hold
    durations without a rank: the parts are the parts of the slowest rank if the slowest rank causes
    most of the loss, else "not observed".
    """
    lost_s = _lost_s(engine, coupling.size or 1, training.mains)
    ((slow, place),) = _all(
        engine,
        "SELECT name, place FROM (SELECT name, wait_ns + save_ns AS ns, row_number() OVER"
        " (ORDER BY rank, name) - 1 AS place FROM every WHERE kind = 'rank')"
        " ORDER BY ns DESC, place LIMIT 1",
    )
    (row,) = (rank for rank in ranks if rank.process == place)
    own_s = row.data_wait_s + row.checkpoint_block_s
    save_share = row.checkpoint_block_s / own_s if own_s else 0.0
    if own_s < MOST_OF_IT * lost_s:
        wait_s, save_s = training.data_wait_s or 0.0, training.checkpoint_block_s or 0.0
        save_share = save_s / (wait_s + save_s) if wait_s + save_s else 0.0
        held = {"wait": {"not observed": lost_s * (1 - save_share)}, "save": {}}
        if save_share:
            held["save"] = {"other": lost_s * save_share}
    else:
        scale = lost_s / own_s if own_s else 1.0
        held = {
            of: {name: s * scale for name, s in part_s.items()}
            for of, part_s in _parts(engine, slow).items()
        }
        ranks = tuple(replace(rank, lost_s=lost_s if rank is row else 0.0) for rank in ranks)
    training = replace(
        training,
        data_wait_s=lost_s * (1 - save_share),
        checkpoint_block_s=lost_s * save_share,
    )
    return training, ranks, parts | {"wait": held["wait"], "save": held["save"]}


def _lost_s(engine: duckdb.DuckDBPyConnection, size: int, mains: int) -> float:
    """Return the longest stalls in bins of `size` steps, and in larger bins for later steps."""
    ((ns,),) = _all(
        engine,
        "WITH counted AS (SELECT generation, max(mains) AS mains FROM step_bins WHERE size = 1"
        " GROUP BY generation) SELECT coalesce(sum(c.mains * b.most_ns), 0)::BIGINT"
        " FROM step_bins AS b JOIN counted AS c ON c.generation = b.generation"
        f" WHERE b.size = {size} OR (b.size > {size} AND b.bin > 1024)",
    )
    return float(ns) / 1e9 / max(1, mains)


_EMPTY: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("classes", "directories", "files", "request_sizes", "latencies", "file_sizes"),
            *("bandwidth", "step_times", "lanes", "lane_cells", "epochs", "checkpoints"),
            *("processes", "in_flight", "concurrency", "drift", "workers", "restores"),
            *("storage", "ceilings"),
        ),
        (),
    ),
    "reading": Reading(0, 0, 0, 0, None, 0, 0, 0.0, 0, 0, None),
    "call_times": CallTimes(0, 0.0, 0.0, 0.0, 0, None, 0, 0, 0, 0, 0, 0.0),
    "metadata": MetadataCalls(0, 0, 0, 0, 0.0, 0, 0, 0.0),
    "blocking_reads": BlockingReads(
        0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0.0, None, None, None, 0, None, None
    ),
    "pattern": Pattern(0, 0, 0, 0, 0, 0.0, 0.0, 0.0),
    "page_faults": PageFaults(0, 0, 0, 0.0),
    "machine": Machine(None, None, None, None, None),
}


def _all(engine: duckdb.DuckDBPyConnection, text: str) -> list[tuple[Any, ...]]:
    return engine.execute(text).fetchall()


Row = TypeVar("Row")


def _rows(engine: duckdb.DuckDBPyConnection, row: type[Row], text: str) -> tuple[Row, ...]:
    """Return the rows of a query as values: a column becomes the field with the column's name."""
    answer = engine.execute(text)
    names = [column[0] for column in answer.description or []]
    return tuple(row(**dict(zip(names, values, strict=True))) for values in answer.fetchall())


def _program(engine: duckdb.DuckDBPyConnection) -> Program | None:
    rows = _all(
        engine,
        "SELECT command, executable, folder, host FROM every WHERE kind = 'rank'"
        " ORDER BY rank, name LIMIT 1",
    )
    if not rows:
        return None
    command, executable, folder, host = rows[0]
    return Program(command, executable, folder, host, is_main=True)


def _training(engine: duckdb.DuckDBPyConnection) -> Training:
    """Return the training as queries/training.sql does, from whole numbers."""
    (sums,) = _rows(
        engine,
        dict[str, Any],
        "SELECT count(*) AS mains, coalesce(sum(steps), 0)::BIGINT AS steps,"
        " sum(wall_ns) / 1e9 / count(*) AS wall_s,"
        " sum(wait_ns) / 1e9 / count(*) AS data_wait_s,"
        " coalesce(sum(waits), 0)::BIGINT AS waits,"
        " sum(save_ns) / 1e9 / count(*) AS checkpoint_block_s,"
        " sum(duration_ns) / 1e9 / count(*) AS training_calls_s"
        " FROM every WHERE kind = 'rank'",
    )
    ((unfed_steps, unfed_ns),) = _all(
        engine,
        "SELECT coalesce(sum(calls), 0)::BIGINT, coalesce(sum(duration_ns), 0)::BIGINT"
        " FROM every WHERE kind = 'part' AND layer = 'unfed'",
    )
    stalls = [sums[name] or 0.0 for name in ("data_wait_s", "checkpoint_block_s")]
    own_s = sums["training_calls_s"] or 0.0
    return Training(
        **sums,
        startup_s=None,
        first_batch_s=None,
        after_s=None,
        pooled_waits=0,
        unfed_steps=unfed_steps,
        unfed_s=unfed_ns / 1e9 / max(1, sums["mains"]),
        mean_stall_s=sum(stalls) + own_s,
        most_stall_s=_lost_s(engine, 1, sums["mains"]) + own_s,
    )


def _recording(engine: duckdb.DuckDBPyConnection) -> Recording:
    rows = _all(engine, "SELECT name, calls FROM every WHERE kind = 'about'")
    about: dict[str, int] = dict(rows)
    facts: dict[str, Any] = {name: about.get(name, 0) for name in _ABOUT}
    ((hosts,),) = _all(engine, "SELECT count(DISTINCT host) FROM every WHERE kind = 'rank'")
    return Recording(hosts=hosts, has_events=False, **facts, **_NOT_KNOWN)


_NOT_KNOWN: dict[str, Any] = {
    **dict.fromkeys(("killed_seen", "killed_mains", "later_mains", "unseen_programs"), 0),
    **dict.fromkeys(("nameless_spans", "mapped_files", "mapped_bytes", "in_flight"), 0),
    **dict.fromkeys(("life_s", "attach_s", "slots", "event_cost_ns", "counters_only")),
    **dict.fromkeys(("imported_lacks",)),
    "fetches_without_delay": 0,
}
_ABOUT = (
    *("processes", "workers", "calls", "folded", "lost", "unseen_calls", "torn", "damaged_units"),
    *("running", "failed", "killed", "unknown_ends"),
)


def _operations(engine: duckdb.DuckDBPyConnection) -> tuple[Operation, ...]:
    """Return the operations as queries/operations.sql does."""
    return _rows(
        engine,
        Operation,
        """
        WITH running AS (
            SELECT layer, name, bin, sum(calls) OVER (PARTITION BY layer, name) AS total,
                sum(calls) OVER (PARTITION BY layer, name ORDER BY bin) AS up_to
            FROM every WHERE kind = 'latency'
        ), quantiles AS (
            SELECT layer, name,
                2 ** ((min(bin) FILTER (WHERE up_to >= 0.50 * total) + 0.5) / 16) / 1e9 AS p50_s,
                2 ** ((min(bin) FILTER (WHERE up_to >= 0.99 * total) + 0.5) / 16) / 1e9 AS p99_s
            FROM running GROUP BY layer, name
        )
        SELECT s.layer, s.name AS op, s.calls, s.errors, s.asked_bytes, s.moved_bytes,
            s.duration_ns / 1e9 AS time_s,
            s.duration_ns / 1e9 / nullif(s.calls, 0) AS mean_s,
            CASE WHEN q.p50_s IS NOT NULL THEN least(q.p50_s, s.max_ns / 1e9) END AS p50_s,
            CASE WHEN q.p99_s IS NOT NULL THEN least(q.p99_s, s.max_ns / 1e9) END AS p99_s,
            s.max_ns / 1e9 AS max_s
        FROM every AS s LEFT JOIN quantiles AS q ON q.layer = s.layer AND q.name = s.name
        WHERE s.kind = 'op'
        ORDER BY time_s DESC NULLS LAST, s.layer, s.name
        """,
    )


def _ranks(engine: duckdb.DuckDBPyConnection) -> tuple[Rank, ...]:
    return _rows(
        engine,
        Rank,
        "SELECT row_number() OVER (ORDER BY rank, name) - 1 AS process, rank, host, steps,"
        " wall_ns / 1e9 AS wall_s, wait_ns / 1e9 AS data_wait_s,"
        " save_ns / 1e9 AS checkpoint_block_s, barrier_ns / 1e9 AS barrier_s,"
        " greatest(0, wall_ns - wait_ns - save_ns - coalesce(barrier_ns, 0)) / 1e9 AS own_s,"
        " moved_bytes AS read_bytes, coalesce(duration_ns, 0) / 1e9 AS calls_s"
        " FROM every WHERE kind = 'rank' ORDER BY rank, name LIMIT 10000",
    )


def _job(engine: duckdb.DuckDBPyConnection) -> Job:
    ((size, ranks),) = _all(
        engine,
        "SELECT max(world_size), count(DISTINCT rank) FROM every WHERE kind = 'rank'",
    )
    missing = _all(
        engine,
        "SELECT string_agg(CAST(rank AS VARCHAR), ', ' ORDER BY rank) FROM (SELECT rank FROM"
        f" (SELECT unnest(range({min(size or 0, 1_000_000)})) AS rank) WHERE rank NOT IN (SELECT"
        " rank FROM every WHERE kind = 'rank' AND rank IS NOT NULL) ORDER BY rank LIMIT 8)",
    )
    return Job(size, ranks, missing[0][0], None)


def _cells(engine: duckdb.DuckDBPyConnection) -> tuple[RankCell, ...]:
    cells = _rows(
        engine,
        RankCell,
        """
        WITH placed AS (
            SELECT name, rank, row_number() OVER (ORDER BY rank, name) - 1 AS place,
                count(*) OVER () AS n
            FROM every WHERE kind = 'rank'
        ), rows_of AS (
            SELECT *, place // CAST(ceil(n / 64) AS BIGINT) AS "row" FROM placed
        ), named AS (
            SELECT "row", min(coalesce(rank, place)) AS "first",
                max(coalesce(rank, place)) AS "last"
            FROM rows_of GROUP BY "row"
        ), heat AS (
            SELECT r."row", h.bin - min(h.bin) OVER () AS bin, h.width, h.wait_ns
            FROM every AS h JOIN rows_of AS r ON r.name = h.name WHERE h.kind = 'heat'
        )
        SELECT n."row", n."first", n."last", coalesce(h.bin, 0) AS bin,
            (SELECT 2.0 ** max(width) / 1e9 FROM every WHERE kind = 'heat') AS bin_s,
            coalesce(max(h.wait_ns), 0) / 1e9 AS wait_s
        FROM named AS n LEFT JOIN heat AS h ON h."row" = n."row"
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 4
        """,
    )
    return () if any(cell.bin_s is None for cell in cells) else cells


def _sharing(engine: duckdb.DuckDBPyConnection) -> tuple[Sharing, ...]:
    return _rows(
        engine,
        Sharing,
        "SELECT calls AS readers, count(*) AS files, sum(asked_bytes)::BIGINT AS size_bytes,"
        " sum(moved_bytes)::BIGINT AS read_bytes, NULL AS node_bytes"
        " FROM every WHERE kind = 'file' AND errors = 0 AND calls > 0"
        " GROUP BY calls ORDER BY calls DESC LIMIT 200",
    )
