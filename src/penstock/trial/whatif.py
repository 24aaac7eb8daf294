"""Estimate the effect of another tier, number of threads or read-ahead.

Replay a stretch of the run's reading unchanged, with the change, and unchanged again to measure the
noise.  Knows patterns, replays and tiers.  The gain is the step loop's wait for reads and metadata
of data files, times the share saved in the replay: an upper bound, marked as doubtful where the
unchanged replay differs from the run.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import TierError
from penstock.explain.measures import Measures, Number, State, measure
from penstock.explain.report import show
from penstock.places import tiers
from penstock.runs.run import Run
from penstock.runs.tables import Array
from penstock.trial.pattern import CallKind, CallPattern, read_pattern
from penstock.trial.replay import Replay, ReplayFiles, SystemCalls, replay

__all__ = [
    "BUDGET_BYTES",
    "UNLIKE",
    "Change",
    "Replayed",
    "WhatIf",
    "replayed_on",
    "table_of",
    "to_json",
    "whatif",
]

PhaseProgress = Callable[[str, float], None]

BUDGET_BYTES = 4 << 30  # copied to a tier at most: a quarter of a minute at 300 MB/s
ROOM_BYTES = 64 << 20  # stays free on the tier: others write there too
PAGE = 4096
FILES_IN_FOLDER = 1000
COPY_BYTES = 4 << 20

# A replay longer or shorter than the run by the factor had other conditions.
UNLIKE = 2.0
# The limit of a replay as a multiple of the window: afterwards the calls made so far are compared.
PATIENCE = 3.0
LEAST_LIMIT_S = 10.0
# The budget must hold LEAST_CALLS calls, or a tenth of the pattern: with fewer calls a single call
# decides.
LEAST_CALLS = 100

_PREFIX = ".penstock-whatif"


@dataclass(frozen=True, slots=True)
class Change:
    """The tried change: a tier (a folder on the tier), threads, a hint; None: unchanged."""

    tier: Path | None = None
    threads: int | None = None
    readahead: str | None = None

    def __str__(self) -> str:
        says = [
            f"on {self.tier}" if self.tier else "",
            f"{self.threads} threads" if self.threads else "",
            f"read-ahead {self.readahead}" if self.readahead else "",
        ]
        return ", ".join(filter(None, says)) or "as recorded"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay, or the run itself, in numbers over the calls common to all replays.

    call_s: time in calls, summed over threads.  bandwidth_bps: bytes by the time with a call in
    flight.  read_p50_s, read_p99_s: of reads with a result.  wall_s: of the whole replay with think
    time.  None: not measured.
    """

    name: str
    threads: int
    calls: int
    reads: int
    moved_bytes: int
    call_s: float
    bandwidth_bps: float | None
    read_p50_s: float | None
    read_p99_s: float | None
    wall_s: float | None
    is_cold: bool | None
    why_not_cold: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer.  critical: the step loop's wait for reads and metadata of data files.

    baseline, again: the two unchanged replays, before and after the variant.  noise: their
    difference as a share of their mean; a variant within the noise shows no difference.  gain: the
    most seconds of wall time saved; negative: slower.  share: of the wall time.  notes:
    reservations.
    """

    run: str
    change: str
    files: int
    window_s: float
    recorded: Replayed
    baseline: Replayed
    variant: Replayed
    again: Replayed
    noise: float | None
    critical: Number
    gain: Number
    share: Number
    empty_call_s: float
    notes: tuple[str, ...]

    @property
    def is_noise(self) -> bool:
        """Return True if the variant differs by no more than two equal replays do."""
        if self.gain.value is None or not self.critical.value or self.noise is None:
            return False
        return abs(self.gain.value) <= self.noise * self.critical.value


def whatif(
    run: Run,
    change: Change,
    *,
    for_s: float = 30.0,
    is_warm: bool = False,
    budget_bytes: int = BUDGET_BYTES,
    calls: tuple[SystemCalls, SystemCalls] | None = None,
    progress: PhaseProgress | None = None,
) -> WhatIf:
    """Replay the run's reading unchanged, with the change, and unchanged again.

    is_warm: leave the page cache as it is; else files are evicted before each replay.  calls: the
    system calls of the two kinds of replay.  progress: is called with the current work and the
    share done.  Raises RunError, TierError.
    """
    tell = progress or (lambda what, share: None)
    tell("measuring the run", 0.0)
    measures = measure(run)
    pattern = read_pattern(run, for_s)
    pack = None
    if change.tier is not None:
        pattern, pack = _packed(pattern, change.tier, budget_bytes)
    as_it_was, as_changed = calls or (None, None)
    limit_s = max(LEAST_LIMIT_S, PATIENCE * pattern.window_s)
    here = ReplayFiles([file.path for file in pattern.files], pattern.offset)

    def play(name: str, target: ReplayFiles, tried: Change, how: SystemCalls | None) -> _Played:
        tell(f"evicting for {name}", 0.0)
        warmth = _warmth(target, is_warm)
        made = replay(
            pattern, target, threads=tried.threads, readahead=tried.readahead, limit_s=limit_s,
            calls=how, progress=lambda share: tell(f"replaying {name}", share),
        )  # fmt: skip
        return _Played(name, made, warmth)

    before = play("as recorded", here, Change(), as_it_was)
    with _copied(pattern, pack, change.tier, tell) if pack else _nothing() as there:
        changed = play(str(change), there or here, change, as_changed)
    after = play("as recorded again", here, Change(), as_it_was)
    played = (before, changed, after)
    both = np.logical_and.reduce([side.made.is_made for side in played])
    parts = [_replayed("the run", pattern, None, both, None)] + [
        _replayed(side.name, pattern, side.made, both, side.warmth) for side in played
    ]
    return _answer(run, change, measures, pattern, parts)


def replayed_on(
    run: Run,
    tier: Path,
    threads: int,
    *,
    for_s: float = 30.0,
    budget_bytes: int = BUDGET_BYTES,
    progress: PhaseProgress | None = None,
) -> tuple[CallPattern, Replay]:
    """Replay a stretch of the run's reading by `threads` from evicted copies on a tier.

    Return the stretch and the replay.  Raises RunError, TierError.
    """
    tell = progress or (lambda what, share: None)
    pattern, pack = _packed(read_pattern(run, for_s), tier, budget_bytes)
    with _copied(pattern, pack, tier, tell) as there:
        _warmth(there, is_warm=False)
        limit_s = max(LEAST_LIMIT_S, PATIENCE * pattern.window_s)
        made = replay(
            pattern, there, threads=threads, limit_s=limit_s,
            progress=lambda share: tell(f"replaying on {tier}", share),
        )  # fmt: skip
    return pattern, made


@dataclass(frozen=True, slots=True, eq=False)
class _Played:
    name: str
    made: Replay
    warmth: tiers.Warmth


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _warmth(target: ReplayFiles, is_warm: bool) -> tiers.Warmth:
    """Evict the files unless is_warm, and return the part of the files in memory afterwards."""
    for path in target.paths if not is_warm else ():
        tiers.evict(path)
    warmth = tiers.warmth_of(target.paths)
    if warmth.is_cold and is_warm:
        return tiers.Warmth(warmth.resident_bytes, warmth.size_bytes, True, "though left as it was")
    return warmth


# --- the touched bytes, packed into files on another tier ----------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Pack:
    """The packing of stretches of files.  first, last: bytes of the file.  file: the position of
    the file.  at: the begin of the stretch in the packed file.  offset: of each call in the packed
    file."""

    file: Array
    first: Array
    last: Array
    at: Array
    offset: Array

    @property
    def size_bytes(self) -> int:
        return int((self.last - self.first).sum())


def _pack(pattern: CallPattern) -> _Pack:
    """Return the union of all pages of the reads, file by file, in order: sequential reads stay
    sequential, random reads stay random, only closer.

    All files are placed on a line, a page apart, so a single scan joins all stretches.
    """
    sizes = np.array([file.size_bytes for file in pattern.files], np.int64)
    rooms = (-(-sizes // PAGE) + 1) * PAGE
    origin = np.cumsum(rooms) - rooms
    is_read = pattern.is_read & (pattern.moved > 0)
    file = pattern.file[is_read]
    offset = pattern.offset[is_read]
    end = np.minimum(-(-(offset + pattern.length[is_read]) // PAGE) * PAGE, sizes[file])
    first, last = origin[file] + offset // PAGE * PAGE, origin[file] + end
    order = np.argsort(first, kind="stable")
    first, last, file = first[order], np.maximum.accumulate(last[order]), file[order]
    is_new = np.ones(len(first), bool)
    is_new[1:] = first[1:] > last[:-1]
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(first)) - 1
    run_first, run_last, run_file = first[starts], last[ends[: len(starts)]], file[starts]
    lengths = run_last - run_first
    before = np.cumsum(lengths) - lengths
    is_first_of_file = np.ones(len(run_file), bool)
    is_first_of_file[1:] = run_file[1:] != run_file[:-1]
    begins = np.maximum.accumulate(np.where(is_first_of_file, before, 0))
    at = before - begins
    packed_size = np.zeros(len(sizes), np.int64)
    np.add.at(packed_size, run_file, lengths)
    # The position of a call within the stretch; an empty read stays beyond the end.
    line = origin[pattern.file] + pattern.offset
    stretch = np.maximum(0, np.searchsorted(run_first, line, side="right") - 1)
    moved_to = packed_size[pattern.file] + np.maximum(0, pattern.offset - sizes[pattern.file])
    if len(run_first):
        inside = at[stretch] + line - run_first[stretch]
        moved_to = np.where(pattern.is_read & (pattern.moved > 0), inside, moved_to)
    shift = origin[run_file]
    return _Pack(run_file, run_first - shift, run_last - shift, at, moved_to)


def _packed(pattern: CallPattern, tier: Path, budget_bytes: int) -> tuple[CallPattern, _Pack]:
    """Return the pattern of as many calls as the budget holds, and the packing.  Raises TierError:
    no room."""
    if not tier.is_dir():
        raise TierError(f"{tier}: no folder; name a folder on the tier that is to be tried")
    pack = _pack(pattern)
    whole_bytes = pack.size_bytes
    if whole_bytes > budget_bytes:
        low, high = 0, len(pattern)  # a number of calls within the budget, and a number above
        while high - low > 1:
            middle = (low + high) // 2
            if _pack(pattern.first(middle, "")).size_bytes <= budget_bytes:
                low = middle
            else:
                high = middle
        least = min(LEAST_CALLS, max(1, len(pattern) // 10))
        if low < least:
            needed_bytes = _pack(pattern.first(least, "")).size_bytes
            raise TierError(
                f"{tier}: a budget of {budget_bytes:,} bytes holds what {low:,} of "
                f"{len(pattern):,} calls touch, too few to say anything; --budget has to be "
                f"{needed_bytes:,} bytes at least"
            )
        pattern = pattern.first(
            low,
            f"cut to the first {low:,} of {len(pattern):,} calls: what they touch fits into "
            f"{budget_bytes / 1e9:.3g} GB on the tier, all would be {whole_bytes / 1e9:.3g} GB",
        )
        pack = _pack(pattern)
    # Each file takes whole blocks, and an inode.
    needed = pack.size_bytes + PAGE * 2 * len(pattern.files) + ROOM_BYTES
    free = tiers.free_bytes(tier)
    if free < needed:
        raise TierError(
            f"{tier}: {free / 1e6:,.0f} MB are free and {needed / 1e6:,.0f} MB needed; "
            "make room, or try a shorter stretch with --for"
        )
    return pattern, pack


@contextmanager
def _copied(
    pattern: CallPattern, pack: _Pack, tier: Path | None, tell: PhaseProgress
) -> Iterator[ReplayFiles]:
    """Yield the packed files on the tier, and remove the files after.  Raises TierError."""
    assert tier is not None
    _remove_stale(tier)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{_host()}-{os.getpid()}-", dir=tier))
    except OSError as error:
        raise TierError(f"{tier}: cannot be written: {error.strerror}") from error
    try:
        paths = _copy(pattern, pack, folder, tell)
        tiers.sync(folder)
        yield ReplayFiles(paths, pack.offset)
    except OSError as error:
        raise TierError(
            f"{tier}: cannot be written: {error.strerror}; nothing is left there"
        ) from (error)
    finally:
        _remove(folder)


def _host() -> str:
    return re.sub(r"\W", "_", platform.node()) or "host"


def _copy(pattern: CallPattern, pack: _Pack, folder: Path, tell: PhaseProgress) -> list[str]:
    paths = []
    bounds = np.searchsorted(pack.file, np.arange(len(pattern.files) + 1)).tolist()
    first, last = pack.first.tolist(), pack.last.tolist()
    done, total = 0, max(1, pack.size_bytes)
    for number, file in enumerate(pattern.files):
        inner = folder / str(number // FILES_IN_FOLDER)
        if not number % FILES_IN_FOLDER:
            inner.mkdir()
        paths.append(str(inner / str(number)))
        with open(paths[-1], "wb", buffering=0) as copy, _source(file.path) as source:
            for stretch in range(bounds[number], bounds[number + 1]):
                _copy_stretch(source, copy.fileno(), first[stretch], last[stretch], file.path)
                done += last[stretch] - first[stretch]
                tell("copying to the tier", done / total)
    return paths


@contextmanager
def _source(path: str) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TierError(f"{path}: cannot be copied: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_stretch(source: int, copy: int, first: int, last: int, path: str) -> None:
    while first < last:
        piece = os.pread(source, min(COPY_BYTES, last - first), first)
        if not piece:
            raise TierError(f"{path}: became shorter while it was copied; try again")
        view = memoryview(piece)
        while view:
            view = view[os.write(copy, view) :]
        first += len(piece)


def _remove(folder: Path) -> None:
    """Remove the copies, even if Ctrl-C is pressed again meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        shutil.rmtree(folder, ignore_errors=True)
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.signal(signal.SIGINT, handler)


def _remove_stale(tier: Path) -> None:
    """Remove leftovers of a killed replay: folders of the local host without a living process."""
    begin = f"{_PREFIX}-{_host()}-"
    for entry in tier.glob(f"{begin}*"):
        match = re.fullmatch(re.escape(begin) + r"(\d+)-[a-z0-9_]{8}", entry.name)
        with suppress(OSError):
            is_ours = entry.lstat().st_uid == os.geteuid() and not entry.is_symlink()
            if match and is_ours and not Path(f"/proc/{match[1]}").exists():
                shutil.rmtree(entry, ignore_errors=True)


# --- numbers -------------------------------------------------------------------------------------


def _replayed(
    name: str, pattern: CallPattern, made: Replay | None, both: Array, warmth: tiers.Warmth | None
) -> Replayed:
    """Replay the pattern.  made: None stands for the run itself."""
    duration = pattern.recorded_ns if made is None else made.duration_ns
    moved = pattern.moved if made is None else np.minimum(made.moved, pattern.moved)
    is_read = both & pattern.is_read & (pattern.moved > 0)
    moved_bytes = int(moved[is_read].sum())
    p50, p99 = np.percentile(duration[is_read], [50, 99]) if is_read.any() else (None, None)
    busy_s = None if made is None else _busy_s(made.start_ns[both], duration[both])
    return Replayed(
        name=name,
        threads=pattern.tracks if made is None else made.threads,
        calls=int(both.sum()),
        reads=int(is_read.sum()),
        moved_bytes=moved_bytes,
        call_s=float(duration[both].sum() / 1e9),
        bandwidth_bps=moved_bytes / busy_s if busy_s else None,
        read_p50_s=None if p50 is None else float(p50) / 1e9,
        read_p99_s=None if p99 is None else float(p99) / 1e9,
        wall_s=None if made is None else made.wall_s,
        is_cold=None if warmth is None else warmth.is_cold,
        why_not_cold="" if warmth is None else warmth.why_not_cold,
        is_whole=made is None or made.is_whole,
    )


def _busy_s(start_ns: Array, duration_ns: Array) -> float:
    """Return the seconds with at least one call in flight."""
    if not len(start_ns):
        return 0.0
    order = np.argsort(start_ns)
    start = start_ns[order]
    end = np.maximum.accumulate(start + duration_ns[order])
    idle = np.maximum(0, start[1:] - end[:-1]).sum()
    return float(end[-1] - start[0] - idle) / 1e9


def _answer(
    run: Run,
    change: Change,
    measures: Measures,
    pattern: CallPattern,
    parts: Sequence[Replayed],
) -> WhatIf:
    recorded, baseline, variant, again = parts
    critical = _critical(measures)
    kept, noise, why = _kept_share(change, baseline, variant, again)
    doubts = [_unlike(recorded, baseline)]
    if kept is not None and noise is not None and abs(1 - kept) <= noise:
        doubts.append(
            f"two replays as recorded differ by {show(noise, 'share')}, and this by no more: "
            "no difference was measured"
        )
    doubt = "; ".join(filter(None, doubts))
    if critical.value is None or kept is None:
        gain = Number(None, "s", "not measured", critical.why if critical.value is None else why)
        share = Number(None, "share", "not measured", gain.why)
    else:
        state: State = "incomplete" if doubt or critical.state == "incomplete" else "derived"
        gain = Number(critical.value * (1 - kept), "s", state, doubt or critical.why)
        wall_s = measures.training.wall_s or 1.0
        share = Number(critical.value * (1 - kept) / wall_s, "share", state, gain.why)
    notes = [*doubts, *pattern.notes, *_doubts(run, change, pattern, parts)]
    return WhatIf(
        run=str(run.folder),
        change=str(change),
        files=len(pattern.files),
        window_s=pattern.window_s,
        recorded=recorded,
        baseline=baseline,
        variant=variant,
        again=again,
        noise=noise,
        critical=critical,
        gain=gain,
        share=share,
        empty_call_s=tiers.empty_call_s(variant.threads),
        notes=tuple(filter(None, notes)),
    )


def _critical(measures: Measures) -> Number:
    """Return the step loop's wait for reads and metadata of data files;
    queries/data_blocking.sql."""
    if not measures.has_training:
        return Number(None, "s", "not measured", "no training steps were recorded")
    waited = measures.data_blocking
    return Number(
        waited.get("read", 0.0) + waited.get("metadata", 0.0), "s", *measures.events_state
    )


def _kept_share(
    change: Change, baseline: Replayed, variant: Replayed, again: Replayed
) -> tuple[float | None, float | None, str]:
    """Return the remaining part of the wait, the noise, and the reason for no answer.

    The part is by time in calls, or, with other threads, by the wall time; the noise is the
    difference of two equal replays.
    """
    parts = (baseline, variant, again)
    if change.threads is not None and not all(part.is_whole for part in parts):
        return None, None, "a replay was stopped before its end, so its wall time is not known"
    before, changed, after = (
        part.call_s if change.threads is None else part.wall_s or 0.0 for part in parts
    )
    mean = (before + after) / 2
    if not mean:
        return None, None, "no time passed in calls"
    return changed / mean, abs(before - after) / mean, ""


def _unlike(recorded: Replayed, baseline: Replayed) -> str:
    """Return a remark if the replay as recorded is not like the run."""
    ratio = baseline.call_s / recorded.call_s if recorded.call_s else 1.0
    if 1 / UNLIKE <= ratio <= UNLIKE:
        return ""
    said = (
        f"the replay as recorded took {ratio:.2g} times the run's time in calls, so it does not "
        "reproduce the run"
    )
    if ratio > 1 and baseline.is_cold:
        return f"{said}: that read from memory what here comes from the device; try --warm"
    if ratio > 1:
        return f"{said}: the storage is slower now, or others use it"
    if not baseline.is_cold:
        return f"{said}: here the files were in memory ({baseline.why_not_cold})"
    return f"{said}: its storage or processors were slower then, or shared with others"


def _doubts(
    run: Run, change: Change, pattern: CallPattern, parts: Sequence[Replayed]
) -> Iterator[str]:
    hosts = {host for (host,) in run.sql("SELECT DISTINCT host FROM processes") if host}
    if hosts and hosts != {platform.node()}:
        yield f"recorded on {', '.join(sorted(hosts)[:3])}, replayed on {platform.node()}"
    if change.tier is not None:
        there, here = tiers.mount_of(change.tier), tiers.mount_of(pattern.files[0].path)
        if there == here:
            yield f"the tier is where the data lie already ({there.point}): no gain is to be had"
    if change.threads is not None:
        yield (
            "what threads do between calls runs side by side too: processors for that are assumed"
        )
    for part in parts:
        if not part.is_whole:
            yield f"{part.name}: stopped before its end, compared are {part.calls:,} calls"
    if int((pattern.kind == CallKind.OPEN).sum()) == 0 and change.threads is not None:
        yield "no file is opened in this stretch: each call is handed out by itself"


# --- to be seen ----------------------------------------------------------------------------------


def to_json(answer: WhatIf) -> str:
    """Return the answer as a JSON object."""
    return json.dumps(asdict(answer), indent=1)


def table_of(answer: WhatIf) -> Any:
    """Return the answer as a value for printing with rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    parts = (answer.recorded, answer.baseline, answer.variant, answer.again)
    for part in parts:
        table.add_column(Text(part.name), justify="right", overflow="fold")
    cold = {True: "cold", False: "not cold", None: ""}
    rows: list[tuple[str, Callable[[Replayed], str]]] = [
        ("threads", lambda part: f"{part.threads:,}"),
        ("calls", lambda part: f"{part.calls:,}"),
        ("bytes read", lambda part: show(part.moved_bytes, "B")),
        ("time in calls", lambda part: show(part.call_s, "s")),
        ("bandwidth", lambda part: show(part.bandwidth_bps, "B/s")),
        ("a read, p50", lambda part: show(part.read_p50_s, "s")),
        ("a read, p99", lambda part: show(part.read_p99_s, "s")),
        ("wall", lambda part: show(part.wall_s, "s")),
        ("cache", lambda part: cold[part.is_cold]),
        ("", lambda part: part.why_not_cold),
    ]
    for name, cell in rows:
        table.add_row(name, *[Text(cell(part)) for part in parts])
    lines: list[Any] = [
        Text(f"{answer.run}: {show(answer.window_s, 's')} of it, {answer.files:,} data files"),
        Text(),
        table,
        Text(),
        Text(_verdict(answer), style="bold"),
        *[Text(f"  {note}", style="dim") for note in answer.notes],
        Text(f"  a call of the replay by itself costs {show(answer.empty_call_s, 's')}", "dim"),
    ]
    return Group(*lines)


def _verdict(answer: WhatIf) -> str:
    said = _gain_in_words(answer)
    # A difference within the noise makes the gain incomplete; the reason is reported.
    of = answer.critical if answer.is_noise else answer.gain
    return f"incomplete: {said}" if of.state == "incomplete" else said


def _gain_in_words(answer: WhatIf) -> str:
    if answer.gain.value is None or answer.critical.value is None:
        return f"gain: not measured: {answer.gain.why}"
    of = f"of the {show(answer.critical.value, 's')} that training waits for data files"
    if answer.is_noise:
        return f"{answer.change}: no difference that is larger than the noise"
    share = show(abs(answer.share.value or 0.0), "share")
    if answer.gain.value < 0:
        return f"{answer.change}: slower, by {show(-answer.gain.value, 's')} ({share} of the wall)"
    gain = show(answer.gain.value, "s")
    return f"{answer.change}: at most {gain} {of} would be gone ({share} of the wall)"
