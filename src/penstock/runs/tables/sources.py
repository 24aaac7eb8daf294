"""The place of a log in the run: the host's clock, the parent, the steps, the texts, the end."""

import posixpath
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made_by
from pathlib import Path
from typing import Any

import numpy as np

from penstock.log.events import Events, Log
from penstock.log.header import Header
from penstock.log.layout import TIME_LIMIT_NS
from penstock.log.texts import FILE_TEXT, Text
from penstock.recording.container import Mounts, host_path
from penstock.recording.endings import Ended, signal_name
from penstock.runs import clocks
from penstock.runs.tables.stored import INT32_MAX, INT64_MAX, Array, utf8

__all__ = [
    "CLOCK_SLACK_NS",
    "Folders",
    "Launch",
    "LogSource",
    "ProcessSteps",
    "Surroundings",
    "Survey",
    "boot_of",
    "bounded",
    "clocks_of",
    "ending_of",
    "file_row",
    "host_of",
    "or_last",
    "parents_of",
    "process_row",
    "steps_in",
]

_KINDS = {
    0o100000: "regular",
    0o040000: "directory",
    0o010000: "pipe",
    0o140000: "socket",
    0o020000: "device",
    0o060000: "device",
    0o120000: "other",
}

# Clocks of two processes of a host agree within the reading of their anchors, microseconds.
CLOCK_SLACK_NS = 1_000_000

# The year 2116; log.TIME_LIMIT_NS has the reason for limits.
UNIX_LIMIT_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Launch:
    """The record of `penstock run` about the launched program.  None means not known.

    pid: of `penstock run`, the program's parent.  end_ns: after the program's end, ns of the host's
    CLOCK_MONOTONIC.  status: the exit status, -N for signal N.  streams: the files of standard
    output and error.
    """

    host: str
    pid: int
    end_ns: int | None
    status: int | None
    streams: tuple[str, ...]

    def ended(self, header: Header) -> bool:
        """Return True if the log belongs to the launched program, and the program has ended."""
        is_it = header.ppid == self.pid and header.host == self.host
        return is_it and self.end_ns is not None and self.status is not None

    @property
    def state(self) -> tuple[str, str]:
        """Return state and reason of a program with a log without an end."""
        status = self.status or 0
        if status >= 0:
            return "exited", f"with status {status}, without a last word to the recorder"
        return "killed", f"by {signal_name(-status)}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about a run besides its logs.

    running: names of logs with a live process.  elsewhere: logs of processes that cannot be looked
    up here.  skipped: files that are no logs, with the reason.  launches: of `penstock run`.
    machine: notes on the host, (key, value).  faults: files of page faults.  system: files of host
    samples.  mounts: of a container, with the folder outside.  clocks: by boot, the measured
    offset: (other boot, other boot's clock minus this boot's clock in ns, error in ns).
    """

    running: Collection[str] = ()
    elsewhere: Collection[str] = ()
    skipped: Mapping[str, str] = made_by(default_factory=dict)
    launches: Sequence[Launch] = ()
    machine: Sequence[tuple[str, str]] = ()
    faults: Sequence[Path] = ()
    system: Sequence[Path] = ()
    mounts: Mounts = made_by(default_factory=dict)
    clocks: Mapping[str, tuple[str, int, int]] = made_by(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LogSource:
    """A log and its place in the run."""

    process: int
    parent: int | None
    log: Log
    ns_per_tick: float
    shift_ns: int  # added to the host's CLOCK_MONOTONIC to get ns since the run's start
    is_alive: bool
    is_elsewhere: bool  # the process cannot be looked up here
    threads: Array  # numbers in the log, ascending
    first_thread: int  # the run's number of the log's first thread

    @property
    def start_ns(self) -> int:
        """Return when the recording of the process began, in ns since the run's start."""
        return bounded(self.log.header.start_ns) + self.shift_ns


@dataclass(frozen=True, slots=True, eq=False)
class ProcessSteps:
    """Steps of a process by start; ns since the run's start."""

    start_ns: Array
    end_ns: Array
    number: Array

    def at(self, ns: Array) -> Array:
        """Return the step under way at each moment; -1 if no step is under way."""
        latest = np.searchsorted(self.start_ns, ns, side="right") - 1
        is_inside = (latest >= 0) & (ns < self.end_ns[latest])
        number: Array = np.where(is_inside, self.number[latest], -1)
        return number

    def moved(self, ns: int) -> "ProcessSteps":
        """Return the steps moved by `ns`; an unfinished step stays open."""
        is_open = self.end_ns == INT64_MAX
        return ProcessSteps(
            self.start_ns + ns, np.where(is_open, INT64_MAX, self.end_ns + ns), self.number
        )

    def finished(self) -> clocks.ClockSteps:
        """Return the finished steps."""
        ended = self.end_ns != INT64_MAX
        return clocks.ClockSteps(self.number[ended], self.start_ns[ended], self.end_ns[ended])


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Facts of a log needed before any log's events can become rows."""

    steps: ProcessSteps
    started: Events  # fork, exec and spawn
    names: dict[int, str]
    objects: dict[int, str]  # paths of the waiting programs and libraries


@dataclass(frozen=True, slots=True)
class _HostClock:
    """The clock shared by all logs of a boot.

    unix_minus_ns: CLOCK_REALTIME minus CLOCK_MONOTONIC.  ns_per_tick: the counter's rate; None if
    the clock is in ns, or if each log has a rate of its own.
    """

    unix_minus_ns: int
    ns_per_tick: float | None


def boot_of(log: Log) -> str:
    """Return a name for a log's clock: the host's boot, or the log's path if no boot is known."""
    return log.header.boot_id if log.header.boot_id.strip("0") else log.path


def host_of(log: Log) -> tuple[str, str]:
    """Return a name for a log's host; pids are unique within a host.

    Two containers of a boot have separate pids, and separate host names.
    """
    return boot_of(log), log.header.host


def clocks_of(logs: list[Log]) -> dict[str, _HostClock]:
    """Return the clock of each boot.

    The offset is from the earliest log, so a host's processes stay in order if the host's wall
    clock is set.  The rate is from the log with the longest time between the two anchors.
    """
    earliest: dict[str, Log] = {}
    longest: dict[str, Log] = {}
    for log in logs:
        boot = boot_of(log)
        if log.header.start_ns < earliest.setdefault(boot, log).header.start_ns:
            earliest[boot] = log
        if log.header.clock == "tsc" and log.anchored_ns > (
            longest[boot].anchored_ns if boot in longest else 0
        ):
            longest[boot] = log
    clocks = {}
    for boot, log in earliest.items():
        offset = bounded(log.header.start_unix_ns, UNIX_LIMIT_NS) - bounded(log.header.start_ns)
        rate = longest[boot].ns_per_tick if boot in longest else None
        clocks[boot] = _HostClock(offset, rate)
    return clocks


def bounded(number: int, limit: int = TIME_LIMIT_NS) -> int:
    """Limit a number, so sums with a damaged number still fit 64 bits."""
    return min(number, limit)


def parents_of(logs: list[Log], starts: list[int]) -> list[int | None]:
    """Return each log's parent: the latest earlier log on the host with the parent's pid.

    The logs are in order of start.
    """
    latest: dict[tuple[str, str, int], int] = {}
    parents: list[int | None] = []
    for process, log in enumerate(logs):
        parents.append(latest.get((*host_of(log), log.header.ppid)))
        latest[*host_of(log), log.header.pid] = process
    return parents


def steps_in(events: Events, shift_ns: int) -> ProcessSteps:
    """Return the steps in STEP events.

    Steps marked by hand (1) outrank steps an adapter found (0), and both outrank the iterations of
    a loader (2): queries/steps.sql.  A continuation of an adapter's step (3) is part of the step.
    An unfinished step has no origin.
    """
    is_ended = events.duration_ns >= 0
    for origins in ((1,), (0, 3), (2,)):
        is_of = np.isin(events.moved, origins)
        if (is_of & is_ended).any():
            events = events.where(is_of & is_ended | _is_last(events))
            break
    events = events.where(np.lexsort((events.start_ns, events.thread)))
    start = events.start_ns + shift_ns
    end = np.where(events.duration_ns < 0, np.iinfo(np.int64).max, start + events.duration_ns)
    heads = np.flatnonzero(events.moved != 3)
    if len(heads) < len(events):
        heads = np.union1d([0], heads)
        end = np.maximum.reduceat(end, heads)
    number = np.where(events.offset > INT32_MAX, -1, events.offset)[heads]
    order = np.argsort(start[heads], kind="stable")
    return ProcessSteps(start[heads][order], end[order], number[order])


def _is_last(events: Events) -> Array:
    """Mark the step that began last, if unfinished."""
    last: Array = np.zeros(len(events), bool)
    if len(events):
        place = int(np.argmax(events.start_ns))
        last[place] = events.duration_ns[place] < 0
    return last


def or_last(rank: int | None) -> int:
    return INT32_MAX if rank is None else rank


def _rank(rank: int | None) -> int | None:
    return rank if rank is None or rank <= INT32_MAX else None  # damaged


def ending_of(
    source: LogSource, latest_ns: int | None, launch: Launch | None, seen: Ended | None
) -> tuple[str, str, int | None]:
    """Return state and reason of a process, and its end in ns since the run's start; None: running.

    latest_ns: the latest moment in the log's events.  seen: the end, as other processes observed
    the end.
    """
    header = source.log.header
    last_ns = bounded(header.last_ns) + source.shift_ns
    if header.state != "running":
        return header.state, header.reason, last_ns
    if source.is_alive:
        return "running", header.reason, None
    last_ns = max(source.start_ns, last_ns, latest_ns or 0)
    if launch and launch.end_ns is not None and launch.ended(header):
        return *launch.state, max(last_ns, bounded(launch.end_ns) + source.shift_ns)
    if source.is_elsewhere:
        host = header.host or "that its log does not name"
        return "unknown", f"on host {host}: ask there whether it is alive", last_ns
    reason = "when is not known: the end is that of its last event"
    if seen is None:
        return "killed", reason, last_ns
    if seen.alive_ns is not None:
        reason = "" if seen.status is not None else "how is not known"
        last_ns = max(last_ns, bounded(seen.alive_ns) + source.shift_ns)
    return "killed", ", ".join(filter(None, (seen.by, reason))), last_ns


def process_row(
    source: LogSource,
    state: str,
    reason: str,
    end_ns: int | None,
    status: int | None,
    read_ns: int | None,
    no_calls: int,
) -> tuple[Any, ...]:
    """Return the row of a process.  no_calls: folded events that are no calls."""
    header, log = source.log.header, source.log
    folded = max(0, header.folded - no_calls)
    return (
        source.process,
        header.pid,
        header.ppid,
        source.parent,
        utf8(header.host),
        _rank(header.rank),
        _rank(header.local_rank),
        _rank(header.world_size),
        header.origin,
        utf8(header.executable),
        utf8(shlex.join(header.command)),
        utf8(header.folder),
        source.start_ns,
        end_ns,
        state,
        utf8(reason) or None,
        status,
        read_ns if state == "running" else None,
        *map(bounded, (folded, header.lost, header.unseen, header.attach_ns)),
        header.slots,
        utf8(Path(log.path).name),
        log.is_torn,
        log.damaged_units,
        bounded(header.waits_from_ns) or None,
        bounded(header.own_calls) or None,
        bounded(round(header.own_ticks * header.ns_per_tick)) if header.own_calls else None,
    )


class Folders:
    """Paths of a log's file texts; a name may be relative to a folder with an id."""

    def __init__(self, log: Log) -> None:
        self.texts: dict[int, Text] = {}
        for text in log.texts() if log.bases else ():
            # A folder's own text counts; without an own text, the path where the folder was found.
            if text.kind == FILE_TEXT and text.id in log.bases:
                self.texts.setdefault(text.id, text)
                if not self.texts[text.id].name:
                    self.texts[text.id] = text

    def path(self, text: Text) -> str:
        """Return the path of a text; relative if the folder is not known; "" without a name."""
        name = text.name
        if name.startswith("/") and "/." not in name and "//" not in name and name[-1] != "/":
            return name  # most are in normal form
        parts = [name]
        seen: set[int] = set()
        while not parts[-1].startswith("/"):
            if not parts[-1] or text.base in seen or text.base not in self.texts:
                return name and parts[0]
            seen.add(text.base)
            text = self.texts[text.base]
            parts.append(text.name or text.resolved)
        path = posixpath.normpath("/".join(reversed(parts)))
        return path[1:] if path.startswith("//") else path


def file_row(process: int, text: Text, path: str, mounts: Mounts) -> tuple[Any, ...]:
    kind: str | None = None
    if text.mode:
        kind = _KINDS.get(text.mode & 0o170000, "other")
    if kind == "device" and re.match(r"/dev/(pts/|tty|console|ptmx)", text.resolved or path):
        kind = "terminal"
    return (
        process,
        text.id,
        utf8(host_path(mounts, path)) or None,
        utf8(host_path(mounts, text.resolved)) or None,
        kind,
        text.device & INT64_MAX if text.inode else None,
        text.inode & INT64_MAX if text.inode else None,
        text.size_bytes if text.mode and text.size_bytes >= 0 else None,
        min(text.tier, 2),
    )
