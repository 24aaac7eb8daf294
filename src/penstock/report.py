"""Measures in, a Report out: what every view shows, in the order it is shown.  Knows no medium.

A Report is a frozen value and its JSON is the interface of `--json`: keys are stable, `report` is
the version.  Every number keeps its state; a cell that was not measured is None.
"""

import json
import math
import re
import shlex
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock import startup
from penstock.errors import PenstockError
from penstock.failures import error_name
from penstock.findings import RUN, Check, Finding, Remedy, judge
from penstock.incidents import Incident, incidents_of
from penstock.measures import (
    STORAGE_PARTS,
    Checkpoint,
    FileTotal,
    HistogramBin,
    InFlight,
    Lane,
    Measures,
    Number,
    State,
    Training,
)
from penstock.verdict import MODERATELY, Verdict, verdict_of
from penstock.words import Cell, count, show

__all__ = [
    "VERSION",
    "Cell",
    "Check",
    "Column",
    "Definition",
    "Fact",
    "Finding",
    "Gap",
    "Incident",
    "Mark",
    "Number",
    "Part",
    "Picture",
    "Remedy",
    "Report",
    "Rest",
    "Segment",
    "Series",
    "State",
    "Table",
    "Verdict",
    "from_json",
    "nothing_found",
    "report_of",
    "show",
    "to_json",
]

VERSION = 1

PART_LABELS = {
    "read": "read",
    "write": "write",
    "metadata": "open, stat, list",
    "page fault": "page fault",
    "cpu": "CPU (decode)",
    "cached": "file calls from memory",
    "not scheduled": "not scheduled",
    "blocked": "blocked elsewhere",
    "network": "network",
    "idle": "worker idle",
    "loader start": "loader start",
    "worker start": "worker start",
    "pass end": "end of the pass",
    "hand-over": "hand-over",
    "not observed": "not observed",
}

Unit = Literal["s", "B", "B/s", "share", "count", "x", "text", "path"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar of wall time; the shares of all segments sum to one."""

    key: str
    label: str
    s: float
    share: float
    state: State


@dataclass(frozen=True, slots=True)
class Part:
    """What a wait was made of; share is of the whole wait, None with s None: not measured."""

    key: str
    label: str
    s: float | None
    share: float | None
    is_storage: bool
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A number with a label and, where it needs one, a remark."""

    key: str
    label: str
    number: Number
    remark: str


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: unit and state hold for all its cells."""

    key: str
    title: str
    unit: Unit
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Things without a row of their own: how many, and the cells of the row that sums them."""

    n: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, one cell a column.

    rest: what has no row, of each layer.  n_all: how many things there are in all, those of rest
    too, where one of them may have several rows; None: a row each.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str
    rest: tuple[Rest, ...] = ()
    n_all: int | None = None

    def things(self, rows: Sequence[tuple[Cell, ...]]) -> int:
        """How many things these rows tell of."""
        if self.n_all is None:
            return len(rows)
        places = [
            n for n, column in enumerate(self.columns) if column.key in ("path", "path_class")
        ]
        return len({tuple(row[place] for place in places) for row in rows})


@dataclass(frozen=True, slots=True)
class Series:
    """One value a bin; None: nothing there."""

    key: str
    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A height in a picture that means something, such as a storage ceiling, in its y_unit.

    group: the first word of the keys of the series that it is for ("read"); "": for all.
    """

    label: str
    value: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Binned values over an axis of equal bins, and in words what they show.

    lines, stack, lanes and ranks: bin i begins at x_start + i * x_step, in x_unit.
    bars: bin i holds 2^(x_start + i) to 2^(x_start + i + 1) of x_unit.
    lanes, ranks: a series is a row, its values are heat.
    at_s: of bins that are not equally long in time, where each begins and the last ends, in seconds
    since the run began.
    """

    key: str
    title: str
    kind: Literal["lines", "stack", "bars", "lanes", "ranks"]
    x_label: str
    x_unit: Unit
    x_start: float
    x_step: float
    y_label: str
    y_unit: Unit
    series: tuple[Series, ...]
    words: str
    state: State
    why: str
    marks: tuple[Mark, ...] = ()
    at_s: tuple[float, ...] = ()

    def edge(self, place: int) -> str:
        """Where a bin of bars begins, in words: bytes in powers of two."""
        value = 2.0 ** (self.x_start + place) * 10**self.x_step
        if self.x_unit == "B":
            return _binary(value)
        # Two digits: an edge is a power of two nanoseconds, and stands beside others.
        text = show(float(f"{value:.2g}"), self.x_unit)
        return re.sub(r"\.0+(?= )|(?<=\.[1-9])0+(?= )", "", text)


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not measured, or not completely."""

    what: str
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Definition:
    """What a word of the report means."""

    word: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that a view sees of a run; run is its folder as the user named it."""

    report: int
    run: str
    title: str
    command: str
    folder: str
    host: str
    subtitle: tuple[str, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    wall: tuple[Segment, ...]
    stretches: tuple[Fact, ...]
    wait: tuple[Part, ...]
    first_batch: tuple[Part, ...]
    checkpoint: tuple[Part, ...]
    reading: tuple[Fact, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    gaps: tuple[Gap, ...]
    cost: tuple[Fact, ...]
    definitions: tuple[Definition, ...]
    incidents: tuple[Incident, ...] = ()
    startup: tuple[Part, ...] = ()  # of a run in which nobody trains: of the program's life

    @property
    def startup_s(self) -> float:
        """What the parts of the start-up sum to."""
        return sum(part.s or 0.0 for part in self.startup)

    @property
    def shows_startup(self) -> bool:
        """Whether it is worth a picture: more than 2 s, or 5 % of it and the wall time."""
        whole_s = self.startup_s + sum(segment.s for segment in self.wall)
        return self.startup_s > STARTUP_S or (
            bool(self.wall) and self.startup_s >= MODERATELY * whole_s > 0
        )

    def table(self, key: str) -> Table:
        """Raises KeyError."""
        return {table.key: table for table in self.tables}[key]

    def picture(self, key: str) -> Picture:
        """Raises KeyError."""
        return {picture.key: picture for picture in self.pictures}[key]


def report_of(measures: Measures, run: str = "RUN") -> Report:
    """Puts measures in the order and the words of the report; run is its folder as the user named
    it, for the commands of remedies."""
    program = measures.program
    judgement = judge(measures)
    command = program.command if program else ""
    return Report(
        report=VERSION,
        run=run,
        title=_name(command, program.executable if program else ""),
        command=command,
        folder=program.folder if program else "",
        host=program.host if program else "",
        subtitle=_subtitle(measures),
        verdict=verdict_of(measures),
        findings=tuple(_with_run(finding, run) for finding in judgement.findings),
        checks=tuple(replace(check, says=_typed(check.says, run)) for check in judgement.checks),
        wall=_wall(measures),
        stretches=_stretches(measures),
        wait=_wait_parts(measures),
        first_batch=_parts(measures.first_batch_parts, measures.events_state),
        checkpoint=_parts(
            measures.checkpoint_parts,
            measures.events_state,
            PART_LABELS | {"other": "not in file calls"},
        ),
        reading=_reading(measures),
        tables=_tables(measures),
        pictures=_pictures(measures),
        gaps=_gaps(measures),
        cost=_cost(measures),
        definitions=DEFINITIONS,
        incidents=incidents_of(measures),
        startup=_startup(measures),
    )


def nothing_found(report: Report) -> str:
    """What a view says of a report without findings: it need not mean that all is well."""
    said = "Nothing found that costs enough to be worth a change."
    if report.verdict.level in ("moderately", "highly"):
        said = f"No rule explains what the training waits for{_largest_parts(report)}."
    unjudged = sum(check.state == "not judged" for check in report.checks)
    if not unjudged:
        return said
    return f"{said} {unjudged} of {count(len(report.checks), 'rule')} could not be judged."


def _largest_parts(report: Report) -> str:
    """The largest part of the data wait, in brackets; "" without a data wait."""
    known = [part for part in report.wait if part.share is not None]
    if not known:
        return ""
    part = max(known, key=lambda part: part.share or 0.0)
    return f" ({show(part.share, 'share')} of the data wait: {part.label})"


def _with_run(finding: Finding, run: str) -> Finding:
    """The finding with commands that can be typed as they stand."""
    typed = tuple(
        replace(remedy, command=_typed(remedy.command, run)) for remedy in finding.remedies
    )
    return replace(finding, remedies=typed)


def _typed(text: str, run: str) -> str:
    """The text with the run's folder, quoted for a shell, in place of the RUN of findings."""
    return text.replace(RUN, shlex.quote(run))


def _binary(size_bytes: float) -> str:
    power = max(0, min(6, int(math.log2(max(1, size_bytes))) // 10))
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[power]
    return f"{size_bytes / 1024**power:.0f} {unit}"


def to_json(report: Report, indent: int | None = 2) -> str:
    """The report as JSON text; from_json of it equals the report."""
    return json.dumps(_plain(report), indent=indent, ensure_ascii=True, allow_nan=False)


def from_json(text: str) -> Report:
    """The report of a JSON text.  Raises PenstockError for another version or shape."""
    try:
        plain = json.loads(text)
        found = plain["report"]
        if found != VERSION:
            raise PenstockError(
                f"a report of version {found}, known here is {VERSION}; make it anew from its run"
            )
        report: Report = _built(Report, plain)
    except (KeyError, TypeError, ValueError) as error:
        raise PenstockError(f"no report of Penstock: {error!r}") from error
    return report


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _built(kind: Any, plain: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(
            **{
                field.name: _built(hints[field.name], plain[field.name])
                for field in fields(kind)
                # What a report of an earlier release lacks has its default.
                if field.name in plain or field.default is MISSING
            }
        )
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(_built(inner, item) for item in plain)
    if get_origin(kind) in (Union, types.UnionType, Literal) or kind in (str, int, float, bool):
        if not isinstance(plain, str | int | float | bool | None):
            raise TypeError(f"{plain!r} where {kind} belongs")
        return plain
    raise TypeError(f"{kind} is not part of a report")


SHELLS = ("sh", "bash", "dash", "ksh", "zsh")


def _name(command: str, executable: str) -> str:
    """The script or module of a command line, without env; else its program."""
    try:
        words = shlex.split(command)
    except ValueError:  # cut in the middle of a quoted word
        words = command.split()
    program = (words[0] if words else executable).rsplit("/", 1)[-1] or "run"
    while program == "env" and any("=" not in word and word[:1] != "-" for word in words[1:]):
        words = words[1:]
        if "=" not in words[0] and words[0][:1] != "-":
            program = words[0].rsplit("/", 1)[-1]
    if not program.startswith("python") and program not in SHELLS:
        return program
    for place, word in enumerate(words[1:], 1):
        if word == "-m" and place + 1 < len(words) and program not in SHELLS:
            return words[place + 1]
        if re.fullmatch(r"-[a-zA-Z]*c", word):  # bash -ec: a command, no script
            return f"{program} -c"
        if not word.startswith("-"):
            return word.rsplit("/", 1)[-1]
    return program


def _subtitle(measures: Measures) -> tuple[str, ...]:
    known, training = measures.recording, measures.training
    words = [show(known.life_s, "s")] if known.life_s is not None else []
    if known.running:  # where it cannot be overlooked: all numbers are of this moment
        words.insert(0, "still running")
    if known.failed:
        words.insert(0, "recording ended early")
    if measures.pauses:
        words.append(f"{show(_paused_s(measures), 's')} of it not recorded")
    if known.killed_mains:
        is_one = training.mains <= 1
        words.insert(0, "killed" if is_one else f"{known.killed_mains} of {training.mains} killed")
    if training.steps:
        words.append(count(training.steps, "step"))
    mains = training.mains
    if mains > 1:
        words.append(count(mains, "main process"))
    workers = max((epoch.workers or 0 for epoch in measures.epochs), default=0)
    if workers:
        words.append(count(workers, "worker") + (" each" if mains > 1 else ""))
    elif known.workers:
        words.append(count(known.workers, "worker"))
    others = known.processes - mains - known.workers
    if others > 0:
        words.append(count(others, "other process" if mains else "process"))
    if known.hosts > 1:
        words.append(count(known.hosts, "host"))
    return tuple(words)


# What the training thread waits for that is no data; each has a segment of its own.
STANDING = (
    ("accelerator", "waits for the accelerator"),
    ("exchange", "waits for other ranks"),
    ("save", "waits for a save in the background"),
    ("interpreter lock", "interpreter lock"),
    ("no CPU", "ready without a CPU"),
)


def _wall(measures: Measures) -> tuple[Segment, ...]:
    if not measures.has_training:
        return ()
    training = measures.training
    wall_s = training.wall_s or 1.0
    wait_s, save_s = training.data_wait_s or 0.0, training.checkpoint_block_s or 0.0
    own_s = training.training_calls_s or 0.0
    left_s = max(0.0, wall_s - wait_s - save_s - own_s)
    unsure_s = min(left_s, measures.unsure_share * wall_s) if measures.unsure else 0.0
    compute_s = left_s - unsure_s
    stood = []
    for key, label in STANDING:
        s = min(compute_s, measures.standing.get(key, 0.0))
        stood.append((key, label, s))
        compute_s -= s
    storage_s, cpu_s = measures.data_storage_s, measures.wait_s("cpu")
    network_s = measures.wait_s("network")
    save_storage_s = min(save_s, measures.checkpoint_storage_s)
    seconds = [
        ("compute", "compute", compute_s),
        *stood,
        ("unfed", "compute or data wait: not known which", unsure_s),
        ("own", "file calls of the training thread", own_s),
        ("data storage", "data wait: storage", storage_s),
        ("data cpu", "data wait: CPU (decode)", cpu_s),
        ("data network", "data wait: network", network_s),
        ("data other", "data wait: other", max(0.0, wait_s - storage_s - network_s - cpu_s)),
        ("checkpoint storage", "checkpoint: storage", save_storage_s),
        ("checkpoint other", "checkpoint: other", save_s - save_storage_s),
    ]
    whole_s = sum(s for _, _, s in seconds) or 1.0
    state, _ = measures.events_state
    derived: State = "derived" if state == "measured" else state
    return tuple(
        Segment(key, label, s, s / whole_s, "not measured" if key == "unfed" else derived)
        for key, label, s in seconds
        if s > 0
    )


def _stretches(measures: Measures) -> tuple[Fact, ...]:
    training, known = measures.training, measures.recording
    if not measures.has_training:
        life = Fact("life_s", "life", Number(known.life_s, "s"), "")
        return (life, _moved(measures, "read"), _moved(measures, "written"))
    waits = _waits(training)
    blocking = [save for save in measures.checkpoints if save.blocks]
    saves = count(sum(save.is_good for save in blocking), "checkpoint")
    if failed := sum(save.outcome in ("failed", "cut off") for save in blocking):
        saves += f", {failed} failed"
    if training.checkpoint_block_s and not measures.checkpoints:
        saves = ""  # a run reduced by rank knows the time, not how many
    per = ", a mean over main processes" if training.mains > 1 else ""
    facts = [
        (
            "startup_s",
            "start-up",
            training.startup_s,
            _first(training.first_batch_s),
        ),
        (
            "wall_s",
            "wall",
            training.wall_s,
            f"{count(training.steps, 'step')}{per}",
        ),
        ("data_wait_s", "data wait", training.data_wait_s or 0.0, waits),
        ("checkpoint_block_s", "checkpoint block", training.checkpoint_block_s or 0.0, saves),
        ("after_s", "after the last step", training.after_s, ""),
    ]
    quality = measures.spans_state
    if quality[0] == "measured" and measures.missing:
        quality = "incomplete", measures.missing
    told = [Fact(key, label, Number(s, "s", *quality), remark) for key, label, s, remark in facts]
    if measures.unsure:
        told[2] = _data_wait_seen(measures, told[2])
    return (*told, *_of_ranks(measures), *_idle_waiting(measures))


def _of_ranks(measures: Measures) -> tuple[Fact, ...]:
    """What the ranks waited in the mean, beside what the job lost."""
    how = {
        "together": "ranks wait for each other: the times above are of the one that holds up all",
        "apart": "ranks do not wait for each other: the times above are means",
        "not known": "whether ranks wait for each other is not known: the times above are means",
    }.get(measures.coupling.how)
    if how is None or measures.training.mains < 2:
        return ()
    return (Fact("mean_stall", "stall, mean over ranks", measures.mean_stall, how),)


def _waits(training: Training) -> str:
    """How many data waits there were, and who told them."""
    told = [count(training.waits, "wait")] if training.waits else []
    if training.inferred_waits:
        told.append(f"{count(training.inferred_waits, 'wait')} in no known loader")
    return ", ".join(told) or "no loader seen"


def _data_wait_seen(measures: Measures, fact: Fact) -> Fact:
    """The data wait of a run in which some of it may not have been seen: never a zero."""
    if not measures.training.waits and not fact.number.value:
        return replace(fact, number=Number(None, "s", "not measured", measures.unsure), remark="")
    number = replace(fact.number, state="incomplete", why=measures.unsure)
    return replace(fact, number=number, remark=f"at least, {fact.remark}")


def _idle_waiting(measures: Measures) -> tuple[Fact, ...]:
    """How much of the data wait the accelerators were idle, as far as samples tell."""
    share = measures.idle_waiting.share
    if share is None:
        return ()
    least, most = share
    of = count(measures.idle_waiting.accelerators, "accelerator")
    between = "" if most - least < 0.05 else f"at least, {show(most, 'share')} at most, "
    idle = Number(least, "share", "derived")
    return (Fact("accelerator_idle", "idle while waiting", idle, f"{between}{of} by NVML"),)


def _moved(measures: Measures, how: Literal["read", "written"]) -> Fact:
    """What was read from, or written to, the job's own files, in the layer that moved more."""
    layers: dict[str, int] = dict.fromkeys(("posix", "stdio"), 0)
    for row in measures.files:
        layers[row.layer] += row.read_bytes if how == "read" else row.written_bytes
    layer = max(layers, key=lambda layer: layers[layer])
    state, why = measures.counts_state
    moved = Number(layers[layer], "B", state, why)
    if state == "incomplete" and not layers[layer]:  # none that is known of: no zero
        moved = Number(None, "B", "not measured", why)
    of_it = "" if layer == "posix" else ", by STDIO"
    return Fact(f"{how}_bytes", how, moved, f"data and output files{of_it}")


def _first(first_batch_s: float | None) -> str:
    return "" if first_batch_s is None else f"first batch {show(first_batch_s, 's')}"


def _wait_parts(measures: Measures) -> tuple[Part, ...]:
    parts = _parts(measures.wait_parts, measures.events_state)
    if measures.training.pooled_waits:
        parts = tuple(_pooled(part) for part in parts)
    if not parts or not measures.recording.mapped_files or measures.faults.is_measured:
        return parts
    mapped = count(measures.recording.mapped_files, "data file")
    why = f"{mapped} mapped into memory: {measures.faults.quality[1]}"
    return (
        *parts,
        Part("page fault", PART_LABELS["page fault"], None, None, True, "not measured", why),
    )


def _pooled(part: Part) -> Part:
    """Of waits whose loader does not say who makes a batch."""
    if part.state == "incomplete" or part.key not in (*STORAGE_PARTS, "cpu", "blocked"):
        return part
    why = "the loader does not say who makes a batch: any thread that may have is looked at"
    return replace(part, state="derived", why=why)


def _parts(
    seconds: Any, quality: tuple[State, str], labels: dict[str, str] = PART_LABELS
) -> tuple[Part, ...]:
    whole = sum(seconds.values())
    if not whole:
        return ()
    parts = []
    for key, s in sorted(seconds.items(), key=lambda item: -item[1]):
        state, why = quality
        if state == "measured" and key in ("cpu", "cached", "not scheduled", "blocked"):
            state, why = "derived", "spread evenly over the fetch's time outside file calls"
        parts.append(Part(key, labels[key], s, s / whole, key in STORAGE_PARTS, state, why))
    return tuple(parts)


def _startup(measures: Measures) -> tuple[Part, ...]:
    whole = sum(s or 0.0 for s in measures.startup_parts.values())
    return tuple(
        Part(
            key,
            startup.LABELS[key],
            s,
            None if s is None else s / whole,
            key in startup.STORAGE,
            *startup.quality(measures, key),
        )
        for key, s in measures.startup_parts.items()
        if whole
    )


# The facts about reading data: key, label, unit.
READING = (
    ("files", "data files read", "count"),
    ("read_bytes", "read from them", "B"),
    ("read_times", "read / size of the files", "x"),
    ("device_bytes", "read from devices, by the whole job", "B"),
    ("read_amplification", "of them for a byte asked for", "x"),
    ("reread_files", "files read more than once", "count"),
    ("metadata_per_file", "metadata calls per data file", "count"),
    ("empty_reads", "empty reads at end of file", "count"),
)


def _reading(measures: Measures) -> tuple[Fact, ...]:
    facts = _read_by_calls(measures)
    if mapped := measures.recording.mapped_files:
        number = Number(mapped, "count", *measures.counts_state)
        remark = "what is read through a mapping makes no call: its bytes are in no number here"
        facts += (Fact("mapped_files", "data files mapped", number, remark),)
    return (*facts, *_resident(measures))


def _resident(measures: Measures) -> tuple[Fact, ...]:
    """What of the data lay in memory, before and after."""
    facts = []
    for seen in measures.residency:
        share = _ratio(seen.resident_bytes, seen.size_bytes)
        state: State = "incomplete" if seen.left_out else "measured"
        why = "files were left out: too many, or not ours to look at" if seen.left_out else ""
        of = "the data named by --data" if seen.is_named else "the files that it opened"
        hosts = f"; the least of {seen.hosts} hosts" if seen.hosts > 1 else ""
        remark = (
            f"{show(seen.resident_bytes, 'B')} of {show(seen.size_bytes, 'B')}, "
            f"{count(seen.files, 'file')}: {of}{hosts}"
        )
        if share is not None:
            label = f"in memory {seen.moment} the run"
            facts.append(
                Fact(f"resident_{seen.moment}", label, Number(share, "share", state, why), remark)
            )
    return tuple(facts)


def _read_by_calls(measures: Measures) -> tuple[Fact, ...]:
    data, devices = measures.reading, measures.devices
    if not data.files:
        return ()
    amplified = devices.read_amplification
    values = {
        "device_bytes": devices.job_read_bytes,
        "read_amplification": amplified.value,
        "files": data.files,
        "read_bytes": data.read_bytes,
        "read_times": _ratio(data.read_bytes, data.size_bytes),
        "reread_files": data.reread_files,
        "metadata_per_file": _ratio(data.metadata, data.files),
        "empty_reads": data.empty_reads,
    }
    size, median = show(data.size_bytes, "B"), show(data.file_bytes_p50, "B")
    remarks = {
        "files": f"{size} together, median {median}",
        "read_bytes": "as asked of the system, from memory or device",
        "device_bytes": _by_devices(measures),
        "read_amplification": f"{show(devices.asked_bytes, 'B')} by calls, libraries included",
        "reread_files": f"{show(data.reread_bytes, 'B')} again" if data.reread_files else "",
        "metadata_per_file": f"{show(data.metadata_s, 's')} in them, all threads together",
        "empty_reads": f"{show(_ratio(data.empty_reads or 0, data.reads), 'share')} of "
        + count(data.reads, "read"),
    }
    return tuple(
        Fact(key, label, Number(values[key], unit, *measures.counts_state), remarks.get(key, ""))
        for key, label, unit in READING
        if values[key] is not None
    )


def _by_devices(measures: Measures) -> str:
    """What else moved meanwhile: a file system over a network, or in user space, is no device of
    this host and may be in no account but its own."""
    seen = measures.devices
    if seen.disk_read_bytes is None:
        return "by the kernel's account"
    return (
        f"by the kernel's account, libraries included; this host's disks gave "
        f"{show(seen.disk_read_bytes, 'B')} to all programs"
    )


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


# Columns by key: title, unit, and whether its cells need single events.
COLUMNS: dict[str, tuple[str, Unit, bool]] = {
    "asked_bytes": ("bytes asked", "B", False),
    "apart_s": ("apart", "s", False),
    "at_risk_s": ("oldest of them", "s", False),
    "background_s": ("off the step loop", "s", False),
    "backlog": ("backlog", "count", False),
    "bandwidth_bps": ("bandwidth", "B/s", True),
    "barrier_s": ("in barriers", "s", False),
    "batch_size": ("batch size", "count", False),
    "batches": ("batches", "count", False),
    "beneath": ("beneath", "text", False),
    "blocked_s": ("blocked", "s", False),
    "blocking_s": ("blocked", "s", True),
    "busy_share": ("of the wait busy", "share", False),
    "call_s": ("in file calls", "s", True),
    "calls": ("calls", "count", False),
    "calls_s": ("in file calls", "s", True),
    "checkpoint_block_s": ("checkpoints", "s", False),
    "command": ("command", "text", False),
    "copied_bytes": ("copied", "B", False),
    "costed": ("of so many", "count", False),
    "cpu_s": ("on a processor", "s", False),
    "data_wait_s": ("data wait", "s", False),
    "drained": ("files drained", "count", False),
    "drained_bytes": ("drained", "B", False),
    "durable_max_s": ("longest", "s", False),
    "durable_mean_s": ("durable after", "s", False),
    "durable_s": ("durable after", "s", False),
    "duration_s": ("duration", "s", False),
    "ended": ("ended", "text", False),
    "end_risk_s": ("at risk at the end", "s", False),
    "epoch": ("pass", "count", False),
    "errno": ("error", "text", False),
    "error_s": ("wrong by at most", "s", False),
    "errors": ("errors", "count", False),
    "fast": ("fast tier", "path", False),
    "fetch_s": ("in fetches", "s", False),
    "fetches": ("batches", "count", False),
    "files": ("files", "count", False),
    "filling": ("filling", "text", False),
    "first_s": ("first at", "s", False),
    "first_wait_s": ("of it first batch", "s", False),
    "folders": ("folders", "count", False),
    "good": ("of them good", "count", False),
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
    "local_s": ("local after", "s", False),
    "lost_s": ("lost time", "s", False),
    "lost_to_durable_s": ("with the drain", "s", False),
    "max_s": ("longest", "s", False),
    "mean_fetch_s": ("a batch", "s", False),
    "major": ("major", "count", False),
    "mapped_s": ("mapping pages in memory", "s", False),
    "mean_s": ("mean", "s", False),
    "metadata_s": ("in metadata", "s", False),
    "mount": ("mounted at", "path", False),
    "mean_read_s": ("a read", "s", True),
    "minor": ("minor", "count", False),
    "mode": ("mode", "text", False),
    "moved_s": ("moved by", "s", False),
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
    "risk_s": ("at risk", "s", False),
    "role": ("role", "text", False),
    "save": ("checkpoint", "count", False),
    "saves": ("saves", "count", False),
    "seconds": ("time", "s", False),
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
    "tier": ("tier", "text", False),
    "time_s": ("time in calls", "s", False),
    "wait_share": ("data wait", "share", True),
    "waited": ("minor that waited", "count", False),
    "waited_s": ("waited", "s", False),
    "worker": ("worker", "count", False),
    "workers": ("workers", "count", False),
    "wall_s": ("wall", "s", False),
    "write_ceiling_bps": ("writes at most", "B/s", False),
    "write_s": ("in writes", "s", False),
    "written_bytes": ("written", "B", False),
}

OFF_THE_LOOP = "Off the step loop: in the background, or before the training. "
# Tables by key, in the report's order: title, columns, note.  A column is an attribute of the
# measures' row of that name, or made by CELLS.
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
        "Passes of the loader",
        "epoch start_s duration_s data_wait_s first_wait_s batches read_bytes workers batch_size",
        "Bytes are those asked of the system while fetching: from the second pass on they may come"
        " from memory.",
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
    "fault_files": (
        "Page faults of mapped files",
        "path blocking_s waited_s major waited minor max_s mapped_s size_bytes path_class",
        "Major: a page was read for it. Waited: minor ones of 10 µs and more, whose page was being"
        " read ahead. Bytes do not follow from faults: one may bring many pages.",
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

# Cells that are not the attribute of their name.
CELLS: dict[str, Callable[[Any], Cell]] = {
    "is_finished": lambda row: None if row.is_finished else "no",
    "asked_bytes": lambda row: row.asked_bytes or None,
    "busy_share": lambda row: _ratio(row.busy_s, row.waited_s),
    "mean_fetch_s": lambda row: _ratio(row.fetch_s, row.fetches),
    "ended": lambda row: _ended(row),
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


def _ended(save: Checkpoint) -> str | None:
    """How a save ended, unless well."""
    error = error_name(save.errno) if save.errno else None
    if save.outcome is None and error:
        return f"well, after {error}"
    return ", ".join(filter(None, (save.outcome, error))) or None


def _tables(measures: Measures) -> tuple[Table, ...]:
    tables = []
    for key, (title, names, note) in TABLES.items():
        columns = []
        for name in names.split():
            heading, unit, needs_events = COLUMNS[name]
            state, why = measures.events_state if needs_events else measures.counts_state
            if key == "fault_files" and state == "measured":
                state, why = measures.faults.quality
            columns.append(Column(name, heading, unit, state, why))
        found: Sequence[Any] = getattr(measures, key)
        if key == "ranks":  # of one there is nothing to compare
            found = sorted(found, key=lambda row: -row.data_wait_s) if len(found) > 1 else ()
        rest = [row for row in found if isinstance(row, FileTotal) and row.path is None]
        if key == "checkpoints" and all(save.blocks for save in measures.checkpoints):
            note = note.removeprefix(OFF_THE_LOOP)  # no such column is shown
        tables.append(
            Table(
                key,
                title,
                tuple(columns),
                tuple(
                    tuple(_cell(column, row) for column in columns)
                    for row in found
                    if row not in rest
                ),
                note,
                tuple(
                    Rest(row.files, tuple(_cell(column, _named(row)) for column in columns))
                    for row in rest
                ),
                getattr(found[0], N_ALL[key]) if key in N_ALL and found else None,
            )
        )
    return tuple(tables)


# Where a thing may have a row for each layer, and where not all have one: how many there are.
N_ALL = {"files": "all_files", "directories": "all_directories", "fault_files": "all_files"}


def _cell(column: Column, row: Any) -> Cell:
    """What was not measured is no zero, whatever the query made of no rows."""
    if column.state == "not measured":
        return None
    cell: Cell = CELLS.get(column.key, attrgetter(column.key))(row)
    return cell


def _named(row: FileTotal) -> FileTotal:
    """The row that stands for the files without a row of their own."""
    return replace(row, path=count(row.files, "other file"))


def _pictures(measures: Measures) -> tuple[Picture, ...]:
    pictures = (
        _step_picture(measures),
        _bandwidth_picture(measures),
        *_lane_pictures(measures),
        _rank_picture(measures),
        *_host_pictures(measures),
        _histogram(measures, "request_sizes", "Request sizes", "B", "call", measures.request_sizes),
        _histogram(measures, "latencies", "Latencies", "s", "call", measures.latencies, -9),
        _histogram(measures, "file_sizes", "File sizes", "B", "file", measures.file_sizes),
    )
    return tuple(picture for picture in pictures if picture is not None)


def _unsure_of_steps(measures: Measures) -> tuple[float, ...]:
    """Seconds of a step that may be data wait, by point: the run's, where no loader was seen."""
    points = measures.step_times
    if not measures.unsure:
        return (0.0,) * len(points)
    unfed_s = sum(point.unfed_s * point.steps for point in points)
    unsure_s = measures.unsure_share * (measures.training.wall_s or 0.0) * measures.training.mains
    share = min(1.0, unsure_s / unfed_s) if unfed_s else 0.0
    return tuple(point.unfed_s * share for point in points)


def _step_picture(measures: Measures) -> Picture | None:
    points = measures.step_times
    if not points:
        return None
    slowest = max(points, key=lambda point: point.max_step_s)
    mean_s = sum(point.step_s * point.steps for point in points) / sum(
        point.steps for point in points
    )
    per = max(point.steps for point in points)
    unsure = _unsure_of_steps(measures)
    series = (
        Series(
            "compute",
            "compute",
            tuple(
                max(0.0, p.step_s - p.data_wait_s - p.checkpoint_s - unsure_s)
                for p, unsure_s in zip(points, unsure, strict=True)
            ),
        ),
        *([Series("unfed", "compute or data wait", unsure)] if measures.unsure else []),
        Series("data", "data wait", tuple(p.data_wait_s for p in points)),
        Series("checkpoint", "checkpoint", tuple(p.checkpoint_s for p in points)),
    )
    return Picture(
        "steps", "Step times", "stack", "step", "count", 1, per, "time", "s", series,
        f"A step took {show(mean_s, 's')} on average; the longest, "
        f"{show(slowest.max_step_s, 's')}, is near step {slowest.first_step:,}."
        + (f" Each bar is the mean of {per} steps." if per > 1 else ""),
        "measured", "",
        at_s=(*(point.start_s for point in points), points[-1].end_s),
    )  # fmt: skip


def _bandwidth_picture(measures: Measures) -> Picture | None:
    bins = measures.bandwidth
    if not bins:
        return None
    bin_s = bins[0].bin_s
    n_bins = _n_bins(measures, bin_s)
    values: dict[tuple[str, str, str], list[float | None]] = {}
    for row in bins:
        key = (row.op_group, row.path_class, row.layer)
        values.setdefault(key, _unpaused(measures, n_bins, bin_s))[row.bin] = (
            row.moved_bytes / bin_s
        )
    most = max(sum(v or 0 for v in column) for column in values.values())
    series, words = [], []
    for (group, path_class, layer), column in sorted(values.items()):
        total = sum(v or 0 for v in column)
        # What is a hundredth of the largest is a line along the axis.
        if total < 0.01 * most:
            continue
        label = f"{group} {path_class}" + ("" if layer == "posix" else f" ({layer.upper()})")
        series.append(Series(f"{group} {path_class} {layer}", label, tuple(column)))
        peak = max(v or 0 for v in column)
        at_most = f"{show(peak, 'B/s')} in {show(bin_s, 's')}"
        words.append(f"{label}: {show(total * bin_s, 'B')}, at most {at_most}")
    state, why = measures.events_state
    return Picture(
        "bandwidth", "Bandwidth over time", "lines", "time since the run began", "s", 0.0, bin_s,
        "bandwidth", "B/s", tuple(series), "; ".join(words) + ".", state, why,
        marks=_ceilings(measures),
    )  # fmt: skip


def _n_bins(measures: Measures, bin_s: float) -> int:
    """Bins of this length up to where the last picture over time ends: they share an axis."""
    ends_s = [(row.bin + 1) * row.bin_s for row in measures.bandwidth]
    ends_s += [(cell.bin + 1) * cell.bin_s for cell in measures.lane_cells]
    return math.ceil(round(max(ends_s) / bin_s, 6))


# What the host's samples are called, and by which key a view colours them.
HOST_LINES = {
    "disk read_bytes": ("read disk", "read from disks"),
    "network received_bytes": ("read network", "received"),
    "disk written_bytes": ("write disk", "written to disks"),
    "network sent_bytes": ("write network", "sent"),
    "processors": ("compute processors", "processors busy"),
    "memory": ("heat memory", "memory in use"),
}


def _host_pictures(measures: Measures) -> tuple[Picture, ...]:
    """What the host did meanwhile, whoever asked for it: sampled each second."""
    rows = measures.system_rates
    if not rows or not (measures.bandwidth or measures.lane_cells):
        return ()
    bin_s = rows[0].bin_s
    n_bins = _n_bins(measures, bin_s)
    pictures = []
    drawn: tuple[tuple[str, str, Unit], ...] = (
        ("system", "Devices and network of the host", "B/s"),
        ("host", "Processors, memory and accelerators of the host", "share"),
    )
    for key, title, unit in drawn:
        values: dict[str, list[float | None]] = {}
        for row in rows:
            if row.unit == unit and row.bin < n_bins:
                line = values.setdefault(row.what, [None] * n_bins)
                line[row.bin] = float(f"{row.value:.4g}")
        known = [(*_host_line(what), tuple(line)) for what, line in values.items() if any(line)]
        series = tuple(Series(name, label, line) for name, label, line in sorted(known))
        if not series:
            continue
        words = [
            f"{one.label}: at most {show(max(v or 0 for v in one.values), unit)}" for one in series
        ]
        pictures.append(
            Picture(
                key=key,
                title=title,
                kind="lines",
                x_label="time since the run began",
                x_unit="s",
                x_start=0.0,
                x_step=bin_s,
                y_label="bandwidth" if unit == "B/s" else "share",
                y_unit=unit,
                series=series,
                words="Of all programs there, each second. " + "; ".join(words) + ".",
                state="measured",
                why="",
            )
        )
    return tuple(pictures)


def _host_line(what: str) -> tuple[str, str]:
    return HOST_LINES.get(what, (f"data-cpu {what}", f"{what} busy"))


def _ceilings(measures: Measures) -> tuple[Mark, ...]:
    """What was measured of the tiers that most was read from and written to."""
    marks = []
    for group, path_class in (("read", "data"), ("write", "output")):
        rows = [row for row in measures.storage if row.path_class == path_class]
        row = max(rows, key=attrgetter("read_bytes", "written_bytes"), default=None)
        ceiling_bps = getattr(row, f"{group}_ceiling_bps", None)
        if row and ceiling_bps:
            marks.append(
                Mark(f"{row.mount} gives at most {show(ceiling_bps, 'B/s')}", ceiling_bps, group)
            )
    return tuple(marks)


# Attribute of LaneCell: key, title, what the heat is, unit, and how the words begin.
HEATS: dict[str, tuple[str, str, str, Unit, str]] = {
    "wait_s": ("lanes_wait", "Waited for, by lane", "time waited for", "s", "The step loop waited"),
    "call_s": ("lanes_time", "Time in file calls, by lane", "time in calls", "s", "In file calls:"),
    "moved_bytes": ("lanes_bytes", "Bytes moved, by lane", "bytes", "B", "Moved:"),
    "calls": ("lanes_calls", "File calls, by lane", "calls", "count", "File calls:"),
}


def _lane_pictures(measures: Measures) -> Iterator[Picture]:
    """One picture for each heat, all with the same lanes and bins."""
    cells, lanes = measures.lane_cells, measures.lanes
    if not cells:
        return
    n_bins, labels = _n_bins(measures, cells[0].bin_s), _lane_labels(lanes)
    left_out = lanes[0].all_lanes - len(lanes)
    more = f" {count(left_out, 'lane')} with less time in calls are left out." if left_out else ""
    for name, (key, title, heat, unit, begins) in HEATS.items():
        rows: dict[int, list[float | None]] = {lane.lane: [None] * n_bins for lane in lanes}
        sums = dict.fromkeys(rows, 0.0)
        for cell in cells:
            value = getattr(cell, name)
            if value:
                # Four digits: more than a colour or a pointing hand can tell.
                rows[cell.lane][cell.bin] = float(f"{value:.4g}")
                sums[cell.lane] += value
        most = max(sums, key=lambda lane: sums[lane])
        words = f"{begins} {show(sum(sums.values()), unit)}"
        if sums[most] and len(lanes) > 1:
            words += f", most of it for {labels[most]}: {show(sums[most], unit)}"
        series = tuple(Series(f"lane {n}", labels[n], tuple(row)) for n, row in rows.items())
        state, why = measures.events_state
        yield Picture(
            key, title, "lanes", "time since the run began", "s", 0.0, cells[0].bin_s, heat, unit,
            series, f"{words}.{more}", state, why,
        )  # fmt: skip


def _rank_picture(measures: Measures) -> Picture | None:
    """Where which rank waited for data; several in a row where there are many."""
    cells = measures.rank_cells
    if not any(cell.wait_s for cell in cells):
        return None
    bin_s = cells[0].bin_s
    n_bins = max(cell.bin for cell in cells) + 1
    n_rows = max(cell.row for cell in cells) + 1
    labels, rows = {}, {row: [0.0] * n_bins for row in range(n_rows)}
    for cell in cells:
        is_one = cell.first == cell.last
        labels[cell.row] = f"rank {cell.first}" if is_one else f"ranks {cell.first}-{cell.last}"
        rows[cell.row][cell.bin] = float(f"{cell.wait_s:.4g}")
    waits = [row.data_wait_s for row in measures.ranks]
    mean_s, slow = sum(waits) / len(waits), max(measures.ranks, key=attrgetter("data_wait_s"))
    name = f"rank {slow.rank}" if slow.rank is not None else f"process {slow.process}"
    words = f"A mean of {show(mean_s, 's')} of data wait; most for {name}: " + show(
        slow.data_wait_s, "s"
    )
    if mean_s:
        words += f", {show(slow.data_wait_s / mean_s, 'x')} the mean"
    more = (
        " A row of several ranks shows the one that waits longest." if n_rows < len(waits) else ""
    )
    state, why = measures.spans_state
    return Picture(
        "rank_waits", "Data wait, by rank", "ranks", "time since the run began", "s", 0.0, bin_s,
        "time waited", "s",
        tuple(
            Series(f"heat {row}", labels[row], tuple(v or None for v in values))
            for row, values in rows.items()
        ),
        f"{words}.{more}", state, why,
    )  # fmt: skip


def _lane_labels(lanes: Sequence[Lane]) -> dict[int, str]:
    """What each lane is called, no two alike."""
    mains = {lane.process for lane in lanes if lane.role == "main"}
    labels = {}
    for lane in lanes:
        if lane.role == "worker":
            who = "worker" if lane.worker is None else f"worker {lane.worker}"
            who += f", loader {lane.loader}" * ((lane.loader or 1) > 1)
        else:
            who = "main" if lane.process in mains else f"process {lane.pid}"
        rank = "" if lane.rank is None else f"rank {lane.rank} "
        is_first = lane.is_main_thread or lane.role == "main"
        labels[lane.lane] = f"{rank}{who}" + (
            "" if is_first else f", {lane.name or f'thread {lane.nth}'}"
        )
    once = Counter(labels.values())
    for lane in lanes:
        if once[labels[lane.lane]] > 1:
            is_thread = not lane.is_main_thread and lane.tid is not None
            if lane.processes > 1:  # of none of them alone
                labels[lane.lane] += f" {lane.nth}"
            else:
                labels[lane.lane] += f" {lane.tid}" if is_thread else f" (pid {lane.pid})"
    return labels


def _unpaused(measures: Measures, n_bins: int, bin_s: float) -> list[float | None]:
    """Zeros; nothing where a bin lies in a pause of every main process."""
    values: list[float | None] = [0.0] * n_bins
    processes = {pause.process for pause in measures.pauses}
    if not processes or len(processes) < measures.training.mains:
        return values
    for place in range(n_bins):
        begin_s, end_s = place * bin_s, (place + 1) * bin_s
        inside = {
            pause.process
            for pause in measures.pauses
            if pause.start_s <= begin_s and pause.end_s >= end_s
        }
        if inside == processes:
            values[place] = None
    return values


def _histogram(
    measures: Measures,
    key: str,
    title: str,
    unit: Unit,
    counted: str,
    bins: Sequence[HistogramBin],
    power: int = 0,
) -> Picture | None:
    """counted: one of what is counted; power: of ten, from the bins' unit to unit."""
    if not bins:
        return None
    low, high = min(row.exponent for row in bins), max(row.exponent for row in bins)
    groups: dict[tuple[str, str], list[float | None]] = {}
    for row in bins:
        column = groups.setdefault((row.layer, row.op_group), [None] * (high - low + 1))
        column[row.exponent - low] = row.n
    state, why = measures.counts_state if key == "file_sizes" else measures.events_state
    series = tuple(
        Series(
            f"{group} {layer}".strip(),
            group + ("" if layer != "stdio" else " (STDIO)"),
            tuple(column),
        )
        for (layer, group), column in sorted(groups.items())
    )
    picture = Picture(
        key,
        title,
        "bars",
        title.lower(),
        unit,
        low,
        power,
        f"{counted}s",
        "count",
        series,
        "",
        state,
        why,
    )
    words = []
    for one in series:
        total, most = sum(v or 0 for v in one.values), max(v or 0 for v in one.values)
        at = one.values.index(most)
        words.append(
            f"{one.label}: {count(round(total), counted)}, "
            f"most often {picture.edge(at)} to {picture.edge(at + 1)}"
        )
    return replace(picture, words="; ".join(words) + ".")


def _imported_gap(why: str | None, has_events: bool) -> tuple[Gap, ...]:
    """Why an imported run lacks single calls."""
    return (
        (Gap("single calls", "incomplete" if has_events else "not measured", why),) if why else ()
    )


NETWORK = "in calls on sockets: their endpoints, requests and bytes are not recorded"


def _of_network(measures: Measures) -> tuple[Gap, ...]:
    network_s = measures.wait_s("network")
    why = f"{show(network_s, 's')} of the data wait {NETWORK}"
    return (Gap("network requests", "not measured", why),) if network_s else ()


def _gaps(measures: Measures) -> tuple[Gap, ...]:
    """What this run lacks, then what every run of this version lacks."""
    known = measures.recording
    incomplete: list[tuple[int, str, str]] = [
        (known.folded, "single call", "past the trace budget: in counters only"),
        (known.nameless_spans, "span", "whose name was cut off: in no data wait, no checkpoint"),
        (known.lost, "call", "of which only the number is left"),
        (known.torn, "log", "cut short"),
        (known.damaged_units, "part of logs", "damaged"),
        (known.failed, "recorder", "that ended before its process"),
        (known.running, "process", "not at its end yet"),
        (
            known.later_mains,
            "main process",
            "that began when another one had ended: several jobs in one folder are told as one",
        ),
        (known.killed_seen, "process", "killed: its end is known to a second"),
        (
            known.killed - known.killed_seen,
            "process",
            "killed: seen until its last event; when it was killed is not known",
        ),
        (known.unknown_ends, "process", "whose end is not known here: seen until its last event"),
        (known.in_flight, "file call", "that had not returned when the log ended"),
    ]
    missing: list[tuple[int, str, str]] = [
        (known.unseen_programs, "program", "that left no log: static, or with another libc"),
        (known.unseen_calls, "call", "to io_uring or cuFile, whose contents are not seen"),
        (
            known.fetches_without_delay,
            "fetch",
            "without a run-queue delay: not scheduled counts as blocked elsewhere",
        ),
        (
            measures.cpu_unknown.waits,
            "data wait",
            "without a run-queue delay: not scheduled counts as blocked elsewhere",
        ),
    ]
    return (
        *_paused(measures),
        *_of_network(measures),
        *(Gap(count(n, what), "incomplete", why) for n, what, why in incomplete if n),
        *(
            Gap(
                f"{call.op} {call.path or 'of a file that is not known'}", "incomplete", _hung(call)
            )
            for call in measures.in_flight
        ),
        *(Gap(count(n, what), "not measured", why) for n, what, why in missing if n),
        *_imported_gap(known.counters_only, known.has_events),
        *(
            Gap(spot.value.partition(": ")[0], "not measured", spot.value.partition(": ")[2])
            if spot.key == "not measured"
            else Gap(spot.key.removesuffix(" incomplete"), "incomplete", spot.value)
            for spot in measures.blind_spots
        ),
        *_job_gaps(measures),
        *_filling_gap(measures),
        *_faults_gap(measures),
        *_device_gaps(measures),
        Gap(
            "direct system calls",
            "not measured",
            "a call that passes no import slot is not seen: static programs, libc's own",
        ),
    )


SKEWED_S = 60.0  # clocks that are set by hand, or not at all


def _job_gaps(measures: Measures) -> Iterator[Gap]:
    """Ranks that are not here or twice here, and clocks that tell no order."""
    job = measures.job
    if job.size is not None and job.ranks < job.size:
        n, more = job.size - job.ranks, ", …" * (job.size - job.ranks > 8)
        yield Gap(
            f"{n:,} of {count(job.size, 'rank')}",
            "not measured",
            f"left no log here: {job.missing}{more}; folders of other nodes are joined by "
            "`penstock gather`",
        )
    if job.doubled:
        why = "two trainings at once have one of these numbers: two jobs in one folder, told as one"
        yield Gap(f"ranks {job.doubled}", "incomplete", why)
    for clock in measures.clocks:
        if clock.apart_s is not None and clock.how == "wall clock":
            why = (
                f"its processes and the others' are {show(clock.apart_s, 's')} apart by the clocks "
                "of their hosts: one of these is wrong, or they were no job together"
            )
            yield Gap(f"clock of {clock.host}", "incomplete", why)
        elif clock.how == "wall clock":
            why = "taken as it was: no steps that hosts take together, and no offset was measured"
            yield Gap(f"clock of {clock.host}", "not measured", why)
        elif abs(clock.moved_s) > SKEWED_S:
            why = f"it is {show(abs(clock.moved_s), 's')} off, by {clock.how}; its times were moved"
            yield Gap(f"clock of {clock.host}", "incomplete", why)


def _faults_gap(measures: Measures) -> tuple[Gap, ...]:
    """Why page faults are not known, or not all of them."""
    known, (state, why) = measures.recording, measures.faults.quality
    if state == "measured":
        return ()
    mapped = (
        f"; {count(known.mapped_files, 'data file')}, {show(known.mapped_bytes, 'B')}, are mapped"
        if known.mapped_files
        else ""
    )
    return (Gap("page faults", state, f"{why}{mapped}"),)


def _device_gaps(measures: Measures) -> tuple[Gap, ...]:
    seen = measures.devices
    gaps = []
    if seen.job_read_bytes is None:
        why = "bytes are asked of the system, not got from the device"
        gaps.append(Gap("page cache", "not measured", why))
    elif seen.read_amplification.value is None:
        gaps.append(Gap("read amplification", "not measured", seen.read_amplification.why))
    if not seen.accelerators:
        gaps.append(Gap("accelerator", "not measured", "compute is what is left of the wall time"))
    if not any(one.moment == "before" for one in measures.residency):
        why = "name the data with `penstock run --data PATH`"
        gaps.append(Gap("data in memory before", "not measured", why))
    return tuple(gaps)


def _filling_gap(measures: Measures) -> tuple[Gap, ...]:
    if not any(row.is_cut for row in measures.filling):
        return ()
    why = (
        "killed before the run's end: what it did last is not told, up to 3 s of copying or a pause"
    )
    return (Gap("filling of a tier", "incomplete", why),)


def _paused(measures: Measures) -> tuple[Gap, ...]:
    """Time that is in no number, not even in compute: one line, however often it was paused."""
    if not measures.pauses:
        return ()
    processes = len({pause.process for pause in measures.pauses})
    s = _paused_s(measures)
    times = count(len(measures.pauses), "pause")
    of = f" of {processes} processes, a mean over them" if processes > 1 else ""
    return (Gap(f"{show(s, 's')} not recorded", "not measured", f"as asked: {times}{of}"),)


def _paused_s(measures: Measures) -> float:
    """A mean over the processes that were paused."""
    s = sum(pause.end_s - pause.start_s for pause in measures.pauses)
    return s / len({pause.process for pause in measures.pauses})


def _hung(call: InFlight) -> str:
    who = call.role if call.pid is None else f"{call.role} {call.pid}"
    return f"{who} had been in it for {show(call.s, 's')} when its log ended"


def _cost(measures: Measures) -> tuple[Fact, ...]:
    known = measures.recording
    each_ns = known.event_cost_ns
    slots = "" if known.slots is None else f"{count(known.slots, 'import slot')} rewritten"
    facts = [
        Fact("attach_s", "to begin recording", _measured_or_not(known.attach_s, "s"), slots),
        Fact("calls", "calls recorded", Number(known.calls, "count", *measures.counts_state), ""),
        Fact(
            "event_s",
            "in the recorder, all threads together",
            Number(known.calls * each_ns / 1e9, "s", "derived", "calls times the cost of one")
            if each_ns is not None
            else Number(
                None, "s", "not measured", "the cost of one call was not measured in this run"
            ),
            f"{show(each_ns / 1e9, 's')} a call" if each_ns is not None and known.calls else "",
        ),
    ]
    return tuple(facts)


def _measured_or_not(value: float | None, unit: str) -> Number:
    if value is None:
        return Number(None, unit, "not measured", "not in the log")
    return Number(value, unit)


# From here on a start-up is shown in parts; a shorter one is what any Python takes.
STARTUP_S = 2.0

DEFINITIONS = tuple(
    Definition(*line.split(": ", 1))
    for line in """\
wall: from the first step, its batch being there, to the last step, data wait or checkpoint
start-up: before it, since the recording began, by the thread that will train: imports, listing, \
reading, making files, loading a checkpoint, worker start, first batch, other file calls, CPU
data wait: the consumer is blocked in the outermost next() of a loader, or in making its iterator
checkpoint block: the step loop cannot advance because of a save
stall: data wait and checkpoint block
waits on storage: what of the stall is spent held up in file calls, and the training thread's own \
file calls: not the time in them on a CPU, nor without one
not, moderately, highly: less than 5 %, 5 to 20 %, more than 20 % of the wall time
at most 1.26x as fast: if all waiting on storage went away and nothing else changed
read, write, open/stat/list: the worker that owed the batch was held up in a file call: the thread \
that fetches, or a helper thread that it was blocked for; never longer than the fetch was neither \
on a CPU nor waiting for one
page fault: the same of a page of a mapped file that was not in memory
CPU (decode): it was in a fetch, in no file call, on a CPU
file calls from memory: it was in a fetch, in a file call, on a CPU: copying, looking up names
not scheduled: it was in a fetch, in a file call or not, ready to run, but had no CPU
network: it was in a fetch, blocked in a call on a socket, or any thread was that got an answer
blocked elsewhere: it was in a fetch, none of these: asleep on something that is no file call
no known loader: the training thread was blocked, while it computed nothing, for another thread or \
program; the parts are what that one did meanwhile
compute or data wait, not known which: steps without a known loader, in which nothing shows what \
the training thread did
worker idle: it was in no fetch and had not begun the one that was owed
loader start: the loader made its iterator: data set pickled, workers started
worker start: the worker that owed the batch was not running yet
end of the pass: the pass was over, the loader ended its workers
hand-over: it was done, and the batch on its way: pickling, queue, pinned memory
not observed: nothing is known of who made the batch
tf.data and Grain: they do not say who made a batch: calls of any thread that may have made it count
time in calls: inside file calls, summed over threads: more than anyone waited
""".splitlines()
)
