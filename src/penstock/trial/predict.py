"""Predict the wait of a recorded training on other storage, or with other workers, CPUs or ranks.

Knows runs, replays and the model of a prefetching loader.  The recording gives each batch's calls,
CPU time and consumption; the place gives the time of calls: stated (latency, bandwidth, requests
per second), or measured by a replay of the run's own reads on a tier.  The model has to reproduce
the run as recorded: else there is no prediction.  docs/predict.md has the limits.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import RunError
from penstock.explain import questions
from penstock.explain.measures import Number, State
from penstock.explain.report import show
from penstock.explain.verdict import level_of
from penstock.runs.run import Run
from penstock.trial import whatif
from penstock.trial.pattern import CallKind
from penstock.trial.prefetching import BatchWork, Limits, Loop, LoopTime, simulate

__all__ = [
    "CallCosts",
    "Forecast",
    "Scenario",
    "costs_on",
    "predict",
    "stated",
    "table_of",
    "to_json",
    "workers_of",
]

PhaseProgress = Callable[[str, float], None]

PREFETCH = 2  # PyTorch's default; a recording does not hold the loader's own
NEAR = 0.10  # of the wall time: the model of the run as recorded has to be as near
MOST_OTHER = 0.10  # largest share of the wall time in fetches outside of file calls and CPU time
MOST_BATCHES = 100_000
LEAST_KNOWN = 0.9  # of the bytes of data: a smaller share in fetches leaves storage unknown
NAMES = 16  # looked up to measure a look-up
MOST_GAP_S = 5e-3  # of a worker between two fetches
ALONE = "assumed: with other workers or processors the CPUs serve this job alone"

_PREPARED = ("loader_waits", "roles", "timed_spans", "file_calls", "step_balances", "mains")

# The calls of each fetch on data files. A stretch of a file is in memory after the first read.
_CALLS = """
WITH calls AS (
    SELECT
        c.process, c.thread, c.start_ns, c.start_ns + c.duration_ns AS end_ns, c.duration_ns,
        o.op, o.op_group, coalesce(c.moved_bytes, 0) AS moved_bytes,
        row_number() OVER (
            PARTITION BY c.file, c.offset_bytes, o.op_group ORDER BY c.start_ns
        ) > 1 AS is_again,
        o.op IN ('open', 'stat', 'lstat', 'access') AND row_number() OVER (
            PARTITION BY c.file, o.op IN ('open', 'stat', 'lstat', 'access') ORDER BY c.start_ns
        ) = 1 AS is_new
    FROM file_calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE c.path_class = 'data' AND c.duration_ns IS NOT NULL
        AND o.op_group IN ('read', 'metadata') AND o.layer = 'posix'
)
SELECT
    f.fetch_id,
    sum(c.duration_ns) / 1e9 AS call_s,
    count(*) FILTER (WHERE c.is_new) AS names,
    count(*) FILTER (WHERE c.op = 'open') AS opens,
    count(*) FILTER (WHERE c.op IN ('stat', 'lstat', 'access')) AS stats,
    count(*) FILTER (WHERE c.op_group = 'read' AND c.moved_bytes > 0) AS reads,
    count(*) FILTER (WHERE c.op_group = 'read' AND c.moved_bytes > 0 AND NOT c.is_again)
        AS first_reads,
    coalesce(sum(c.moved_bytes) FILTER (WHERE c.op_group = 'read'), 0) AS moved_bytes,
    coalesce(sum(c.moved_bytes) FILTER (WHERE c.op_group = 'read' AND NOT c.is_again), 0)
        AS first_bytes
FROM calls AS c
ASOF JOIN fetch_list AS f
    ON f.process = c.process AND f.thread = c.thread AND f.start_ns <= c.start_ns
WHERE c.end_ns <= f.end_ns
GROUP BY f.fetch_id
"""


# Reads of data, perhaps outside of the fetches' POSIX calls.
_ELSEWHERE = """
SELECT
    coalesce(sum(c.moved_bytes) FILTER (WHERE o.op_group = 'read'), 0) AS read_bytes,
    count(*) FILTER (WHERE o.op = 'mmap') AS mappings
FROM file_calls AS c
JOIN ops AS o ON o.op_number = c.op_number
WHERE c.path_class = 'data'
"""


@dataclass(frozen=True, slots=True)
class CallCosts:
    """The time of calls at a place: seconds to look up a new name, of an open, a stat and a read,
    and per byte.

    bandwidth_bps, requests_hz: the capacity of the place for all readers together; measured costs
    contain these limits in the times.
    """

    name_s: float
    open_s: float
    stat_s: float
    read_s: float
    byte_s: float
    bandwidth_bps: float = math.inf
    requests_hz: float = math.inf
    name: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The change.  None: as recorded.

    memory_bytes: of a node's page cache; repeated reads come from the cache if all data of the run
    fits.
    """

    costs: CallCosts | None = None
    workers: int | None = None
    prefetch: int | None = None
    cpus: float | None = None
    ranks: int = 1
    memory_bytes: int | None = None

    def __str__(self) -> str:
        words = [
            self.costs.name if self.costs else "",
            f"{self.workers} workers" if self.workers is not None else "",
            f"prefetch {self.prefetch}" if self.prefetch is not None else "",
            f"{self.cpus:g} CPUs" if self.cpus is not None else "",
            f"{self.ranks} ranks" if self.ranks > 1 else "",
        ]
        return ", ".join(filter(None, words)) or "as recorded"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer: the loops over batches of a run, as measured, as modelled, and with the change.

    wall, share: the predicted wall time and the share in data waits; without a value, the reason.
    off: the error of the model for the run as recorded, in shares of the wall time.
    """

    run: str
    change: str
    batches: int
    recorded: LoopTime
    modelled: LoopTime
    off: float
    wall: Number
    share: Number
    notes: tuple[str, ...]


# --- the run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """A batch's fetch as recorded, with the load."""

    own_s: float  # in storage, as recorded
    other_s: float
    cpu_s: float
    delay_s: float  # ready, without a CPU
    names: int
    opens: int
    stats: int
    reads: int
    first_reads: int
    moved_bytes: float
    first_bytes: float

    def at(self, costs: CallCosts | None, is_remembered: bool, with_delay: bool) -> BatchWork:
        """Return the fetch with the costs of a place; None: as recorded."""
        other_s = self.other_s + (self.delay_s if with_delay else 0.0)
        if costs is None:
            return BatchWork(self.own_s, 0.0, 0.0, other_s, self.cpu_s)
        reads = self.first_reads if is_remembered else self.reads
        n_bytes = self.first_bytes if is_remembered else self.moved_bytes
        storage_s = (
            self.names * costs.name_s
            + self.opens * costs.open_s + self.stats * costs.stat_s
            + reads * costs.read_s + n_bytes * costs.byte_s
        )  # fmt: skip
        requests = self.names + self.opens + self.stats + reads
        return BatchWork(storage_s, requests, n_bytes, other_s, self.cpu_s)


@dataclass(frozen=True, slots=True)
class _Pass:
    """An epoch of a loader: the work, and the loop without the fetches."""

    works: Sequence[_Work]
    loop: Loop
    workers: int


@dataclass(frozen=True, slots=True)
class _Training:
    """The epochs of a training.

    recorded: with the waits at the begin and the end of an epoch; the waits are in fixed_wait_s.
    between_s: outside of all epochs.
    """

    passes: Sequence[_Pass]
    recorded: LoopTime
    between_s: float
    fixed_wait_s: float
    cpus: float
    data_bytes: float
    elsewhere: str  # why some reads of data are outside of the fetches' calls; "": none


def _refuse(why: str) -> RunError:
    return RunError(f"no prediction: {why}")


def _rows(engine: Any, text: str) -> list[dict[str, Any]]:
    answer = engine.execute(text)
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _training(run: Run) -> _Training:
    """Read the epochs of the only rank.  Raises RunError: a fact outside the model."""
    with run.connection.cursor() as engine:
        questions.prepare(engine, _PREPARED)
        mains = _rows(engine, "FROM mains")
        if len(mains) != 1:
            raise _refuse(f"{len(mains)} processes train; a run of one rank is needed")
        engine.execute("CREATE TEMP TABLE fetch_list AS " + questions.query("fetches"))
        fetches = _rows(engine, "FROM fetch_list WHERE has_batch ORDER BY start_ns")
        calls = {row["fetch_id"]: row for row in _rows(engine, _CALLS)}
        waits = _rows(engine, "FROM loader_waits ORDER BY start_ns")
        workers = {
            row["index"]: row["a"]
            for row in _rows(engine, "FROM timed_spans WHERE kind = 'span' AND name = 'loader'")
        }
        balances = _rows(engine, "SELECT sum(cpu_ns) AS cpu, sum(end_ns - start_ns) AS s "
                                 "FROM step_balances")  # fmt: skip
        notes = _rows(engine, "SELECT value FROM notes WHERE key = 'cpus'")
        elsewhere = _elsewhere(_rows(engine, _ELSEWHERE)[0], calls.values())
    if not fetches:
        raise _refuse("no fetches of batches were recorded: PyTorch's DataLoader tells them")
    if len(fetches) > MOST_BATCHES:
        raise _refuse(f"{len(fetches):,} batches are more than {MOST_BATCHES:,}: record a window")
    works = {(row["iterator"], row["index"]): (row, _work(row, calls)) for row in fetches}
    waits = [row for row in waits if row["iterator"] is not None]
    busy = _share(balances)
    groups = _grouped(waits)
    passes = [
        _pass(rows, works, int(workers.get(iterator) or 0), busy)
        for iterator, rows in groups.items()
        if any(row["index"] is not None for row in rows)
    ]
    if not passes:
        raise _refuse("no batch was waited for")
    begin_ns, end_ns = waits[0]["start_ns"], max(mains[0]["last_ns"], waits[-1]["end_ns"])
    wall_s = (end_ns - begin_ns) / 1e9
    inside_s = sum(_length_s(rows) for rows in groups.values())
    fixed_s = sum(row["end_ns"] - row["start_ns"] for row in waits if row["index"] is None) / 1e9
    wait_s = sum(row["end_ns"] - row["start_ns"] for row in waits) / 1e9
    first_bytes = sum(work.first_bytes for _, work in works.values())
    cpus = float(notes[0]["value"]) if notes else math.inf
    return _Training(
        passes, LoopTime(wall_s, wait_s), max(0.0, wall_s - inside_s), fixed_s, cpus, first_bytes,
        elsewhere,
    )  # fmt: skip


def _elsewhere(data: dict[str, Any], calls: Iterable[dict[str, Any]]) -> str:
    if data["mappings"]:
        return "data files are mapped: what their pages cost elsewhere is in no call"
    moved_bytes = sum(call["moved_bytes"] for call in calls)
    if moved_bytes < LEAST_KNOWN * data["read_bytes"] or not moved_bytes:
        return (
            f"{show(float(moved_bytes), 'B')} of {show(float(data['read_bytes']), 'B')} of data "
            "were read by POSIX calls of the threads that fetch"
        )
    return ""


def _length_s(rows: Sequence[dict[str, Any]]) -> float:
    return float(rows[-1]["end_ns"] - rows[0]["start_ns"]) / 1e9


def _share(balances: Sequence[dict[str, Any]]) -> float:
    """Return how many CPUs the training thread uses; 1 if not measured."""
    cpu, whole = (balances[0][key] for key in ("cpu", "s")) if balances else (None, None)
    return min(1.0, float(cpu) / float(whole)) if cpu is not None and whole else 1.0


def _grouped(waits: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return the waits of each iterator.  Raises RunError: two are consumed at the same time."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in waits:
        groups.setdefault(row["iterator"], []).append(row)
    ends = sorted((rows[0]["start_ns"], rows[-1]["end_ns"]) for rows in groups.values())
    if any(later[0] < earlier[1] for earlier, later in pairwise(ends)):
        raise _refuse("two loaders are consumed at the same time")
    return groups


def _work(row: dict[str, Any], calls: dict[int, dict[str, Any]]) -> _Work:
    call = calls.get(row["fetch_id"], {})
    cpu_s, delay_s = (row["cpu_ns"] or 0) / 1e9, (row["delay_ns"] or 0) / 1e9
    off_s = max(0.0, (row["end_ns"] - row["start_ns"]) / 1e9 - cpu_s - delay_s)
    own_s = min(off_s, call.get("call_s", 0.0))
    return _Work(
        own_s, off_s - own_s, cpu_s, delay_s,
        call.get("names", 0), call.get("opens", 0), call.get("stats", 0), call.get("reads", 0),
        call.get("first_reads", 0),
        float(call.get("moved_bytes", 0)), float(call.get("first_bytes", 0)),
    )  # fmt: skip


def _pass(
    rows: Sequence[dict[str, Any]],
    works: dict[tuple[int, int], tuple[dict[str, Any], _Work]],
    workers: int,
    busy: float,
) -> _Pass:
    """Return an epoch.  Raises RunError: batches without a fetch, or out of order."""
    batches = [row for row in rows if row["index"] is not None]
    numbers = [row["index"] for row in batches]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise _refuse("batches came out of order")
    works_read = [works.get((row["iterator"], row["index"])) for row in batches]
    fetched = [work for work in works_read if work is not None]
    if len(fetched) < len(works_read):
        raise _refuse(
            f"{len(works_read) - len(fetched)} of {len(works_read)} batches have no known fetch"
        )
    begin_ns = rows[0]["start_ns"]
    ends = [*(row["start_ns"] for row in batches[1:]), batches[-1]["end_ns"]]
    consume_s = [
        max(0.0, (until - row["end_ns"]) / 1e9) for row, until in zip(batches, ends, strict=True)
    ]
    fetches = [fetch for fetch, _ in fetched]
    ready = [
        row["end_ns"] - max(row["start_ns"], fetch["end_ns"])
        for row, fetch in zip(batches, fetches, strict=True)
    ]
    loop = Loop(
        fetches=(),
        consume_s=consume_s,
        start_s=_starts_s(fetches, begin_ns) if workers else (0.0,),
        before_s=(batches[0]["start_ns"] - begin_ns) / 1e9,
        after_s=(rows[-1]["end_ns"] - batches[-1]["end_ns"]) / 1e9,
        hand_s=max(0.0, float(np.median(ready)) / 1e9),
        gap_s=_gap_s(fetches, [row["end_ns"] for row in batches], workers) if workers else 0.0,
        consume_cpus=busy,
    )  # fmt: skip
    return _Pass([work for _, work in fetched], loop, workers)


def _starts_s(fetches: Sequence[dict[str, Any]], begin_ns: int) -> tuple[float, ...]:
    """Return the start of each worker, since the begin of the epoch."""
    first: dict[int, int] = {}
    for row in fetches:
        first[row["process"]] = min(row["start_ns"], first.get(row["process"], row["start_ns"]))
    return tuple(sorted(max(0.0, (ns - begin_ns) / 1e9) for ns in first.values()))


def _gap_s(fetches: Sequence[dict[str, Any]], taken_ns: Sequence[int], workers: int) -> float:
    """Return a worker's usual time from the earliest possible start of a fetch to the start.

    taken_ns: when the training had taken over each batch; a worker may then fetch a further batch.
    """
    ends: dict[int, int] = {}
    gaps = []
    for place, row in enumerate(fetches):
        if row["process"] in ends:
            asked = place - workers * PREFETCH
            could_ns = max(ends[row["process"]], taken_ns[asked] if asked >= 0 else 0)
            gaps.append(row["start_ns"] - could_ns)
        ends[row["process"]] = row["end_ns"]
    usual = float(np.median(gaps)) / 1e9 if gaps else 0.0
    return min(max(0.0, usual), MOST_GAP_S)


# --- the place -----------------------------------------------------------------------------------


def stated(latency_s: float, bandwidth_bps: float, requests_hz: float) -> CallCosts:
    """Return the costs of storage where the look-up of a name, and each open, stat and read, takes
    a request."""
    words = [
        f"{show(latency_s, 's')} a request" if latency_s else "",
        f"{show(bandwidth_bps, 'B/s')}" if bandwidth_bps < math.inf else "",
        f"{requests_hz:,.0f} requests/s" if requests_hz < math.inf else "",
    ]
    return CallCosts(
        latency_s, latency_s, latency_s, latency_s, 1 / bandwidth_bps, bandwidth_bps, requests_hz,
        name=", ".join(filter(None, words)),
    )  # fmt: skip


def workers_of(run: Run) -> int:
    """Return the largest number of workers of a loader of the run."""
    rows = run.sql("SELECT max(a) FROM spans WHERE kind = 'span' AND name = 'loader'").fetchall()
    return int(rows[0][0] or 0)


def costs_on(
    run: Run,
    tier: Path,
    readers: int,
    *,
    for_s: float = 30.0,
    budget_bytes: int = whatif.BUDGET_BYTES,
    progress: PhaseProgress | None = None,
) -> CallCosts:
    """Measure calls on a tier: the run's own, replayed by `readers` threads from copies there.

    Raises RunError, TierError.
    """
    pattern, made = whatif.replayed_on(
        run, tier, readers, for_s=for_s, budget_bytes=budget_bytes, progress=progress
    )

    def mean_s(*kinds: CallKind) -> float:
        mask = made.is_made & np.isin(pattern.kind, kinds)
        return float(made.duration_ns[mask].mean()) / 1e9 if mask.any() else 0.0

    is_read = made.is_made & pattern.is_read & (made.moved > 0)
    read_s, byte_s = _line(made.moved[is_read], made.duration_ns[is_read] / 1e9)
    return CallCosts(
        _name_s(tier), mean_s(CallKind.OPEN), mean_s(CallKind.STAT), read_s, byte_s,
        name=f"on {tier}",
    )  # fmt: skip


def _name_s(tier: Path) -> float:
    """Measure the look-up of a new name.

    Names of the copies are in the cache since the copying, so the measurement asks for missing
    names.
    """
    start_s = time.perf_counter()
    for _ in range(NAMES):
        (tier / f".penstock-{secrets.token_hex(8)}").exists()
    return (time.perf_counter() - start_s) / NAMES


def _line(sizes: Any, times: Any) -> tuple[float, float]:
    """Fit seconds of a read = a + b x bytes, neither negative; the mean over all reads is exact."""
    if not len(sizes):
        return 0.0, 0.0
    mean_bytes, mean_s = float(sizes.mean()), float(times.mean())
    spread = float(((sizes - mean_bytes) ** 2).sum())
    if spread <= 0:
        return mean_s, 0.0
    slope = float(((sizes - mean_bytes) * (times - mean_s)).sum()) / spread
    slope = min(max(slope, 0.0), mean_s / mean_bytes)
    return mean_s - slope * mean_bytes, slope


# --- the answer ----------------------------------------------------------------------------------


def predict(run: Run, change: Scenario, name: str = "") -> Forecast:
    """Simulate the run's loops over batches as recorded, and with the change.

    name: of the run, in the answer.  Raises RunError: the run has a fact outside the model.
    """
    training = _training(run)
    if change.costs is not None and training.elsewhere:
        raise _refuse(training.elsewhere)
    recorded = training.recorded
    as_was = replace(change, costs=None, workers=None, cpus=None, ranks=1)
    modelled = _simulated(training, as_was)
    off = (modelled.wall_s - recorded.wall_s) / recorded.wall_s if recorded.wall_s else math.inf
    predicted = _simulated(training, change)
    why = ""
    if abs(off) > NEAR:
        why = (
            f"the model has {show(modelled.wall_s, 's')} for the run as recorded, which took "
            f"{show(recorded.wall_s, 's')}"
        )
    wall, share = predicted.wall_s, predicted.wait_s / predicted.wall_s if predicted.wall_s else 0.0
    notes = _notes(training, change)
    state: State = "not measured" if why else "derived"
    if not why and _other_share(training) > MOST_OTHER:
        state, why = "incomplete", notes[0]
    return Forecast(
        run=name,
        change=str(change),
        batches=sum(len(one_pass.works) for one_pass in training.passes),
        recorded=recorded,
        modelled=modelled,
        off=off,
        wall=Number(None if state == "not measured" else wall, "s", state, why),
        share=Number(None if state == "not measured" else share, "share", state, why),
        notes=tuple(notes),
    )


def _simulated(training: _Training, change: Scenario) -> LoopTime:
    costs = change.costs
    is_remembered = _is_remembered(training, change)
    # With unchanged CPUs and workers a fetch waits for a CPU as recorded, including waits for other
    # programs.
    is_as_busy = change.cpus is None and change.workers is None
    cpus = training.cpus if change.cpus is None else change.cpus
    limits = Limits(
        cpus=math.inf if is_as_busy else cpus,
        bandwidth_bps=costs.bandwidth_bps if costs else math.inf,
        requests_hz=costs.requests_hz if costs else math.inf,
    )
    wall_s, wait_s = training.between_s, training.fixed_wait_s
    for epoch in training.passes:
        workers = epoch.workers if change.workers is None else change.workers
        fetches = [work.at(costs, is_remembered, is_as_busy) for work in epoch.works]
        loops = [
            replace(epoch.loop, fetches=_rotated(fetches, rank, change.ranks))
            for rank in range(change.ranks)
        ]
        outcome = simulate(loops, workers, change.prefetch or PREFETCH, limits)
        wall_s, wait_s = wall_s + outcome.wall_s, wait_s + outcome.wait_s
    return LoopTime(wall_s, wait_s)


def _is_remembered(training: _Training, change: Scenario) -> bool:
    return change.memory_bytes is None or training.data_bytes <= change.memory_bytes


def _rotated(fetches: list[BatchWork], rank: int, ranks: int) -> list[BatchWork]:
    """Return the batches of another rank: the given batches, from another position on."""
    place = rank * len(fetches) // ranks
    return fetches[place:] + fetches[:place]


def _other_share(training: _Training) -> float:
    """Return the largest share of the wall time in fetches outside of calls and CPU time."""
    other_s = sum(
        work.other_s / max(1, epoch.workers) for epoch in training.passes for work in epoch.works
    )
    return other_s / training.recorded.wall_s if training.recorded.wall_s else 0.0


def _notes(training: _Training, change: Scenario) -> list[str]:
    notes = []
    if (other := _other_share(training)) > MOST_OTHER:
        notes.append(
            f"{show(other, 'share')} of the time, fetches were in no file call and on no CPU: this "
            "time is taken over as it was"
        )
    if change.costs is not None:
        notes.append(
            "each stretch of data is read cold once, and comes from memory afterwards"
            if _is_remembered(training, change)
            else "all reads reach the storage: the data does not fit in memory"
        )
    if change.ranks > 1:
        notes.append("each rank has a node of its own and as many batches; the exchange between "
                     "ranks takes no time here")  # fmt: skip
    if change.workers and not all(epoch.workers for epoch in training.passes):
        notes.append("the start of workers takes no time here: the run has none to learn from")
    if change.prefetch is None and any(epoch.workers for epoch in training.passes):
        notes.append(f"prefetch factor {PREFETCH}, PyTorch's default (--prefetch)")
    return notes


def to_json(answer: Forecast) -> str:
    """Return the answer as JSON, as the dataclasses are."""
    return json.dumps(asdict(answer), indent=2, allow_nan=False)


def table_of(answer: Forecast) -> Any:
    """Return the answer as a value for printing with rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "recorded", "model of it", answer.change):
        table.add_column(Text(name), justify="right" if name else "left", overflow="fold")
    forecasts = (answer.recorded, answer.modelled)
    walls = [show(forecast.wall_s, "s") for forecast in forecasts]
    shares = [
        show(forecast.wait_s / forecast.wall_s if forecast.wall_s else 0.0, "share")
        for forecast in forecasts
    ]
    rates = [
        f"{answer.batches / forecast.wall_s:.3g}" if forecast.wall_s else "–"
        for forecast in forecasts
    ]
    wall = answer.wall.value
    table.add_row("loops over batches", *walls, show(wall, "s"))
    table.add_row("batches a second", *rates, f"{answer.batches / wall:.3g}" if wall else "–")
    table.add_row("data wait", *shares, show(answer.share.value, "share"))
    return Group(
        Text(f"{answer.run}: {answer.batches:,} batches"),
        Text(),
        table,
        Text(),
        Text(_sentence(answer), style="bold"),
        *[Text(f"  {note}", style="dim") for note in (ALONE, *answer.notes)],
    )


def _sentence(answer: Forecast) -> str:
    if answer.wall.value is None or answer.share.value is None:
        return f"not judged: {answer.wall.why}"
    level = level_of(answer.share.value)
    ratio = answer.recorded.wall_s / answer.wall.value
    speed = f"{ratio:.2f}x as fast" if ratio >= 1 else f"{1 / ratio:.2f}x as long"
    said = f"{answer.change}: {level} input bound, {speed} as the recorded run"
    return f"incomplete: {said}" if answer.wall.state == "incomplete" else said
