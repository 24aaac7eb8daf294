"""A run's rows inside a trace of PyTorch's profiler (trace.json, trace.json.gz).

Knows the keys of Kineto's Chrome traces.  The trace's own events stay unchanged; ours are added, in
rows of their own under the same processes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from penstock.errors import ForeignError
from penstock.interop import chrome
from penstock.interop.chrome_stream import Trace
from penstock.interop.clocks import Alignment, Marks, align, require_overlap
from penstock.interop.timeline import Timeline, span_starts
from penstock.runs.run import Run
from penstock.words import count, show

__all__ = ["TorchProfile", "aligned", "copied", "read", "write"]

Progress = Callable[[int, int], None]

# Of microseconds: 31,000 years. A larger number is no time, and smaller numbers are exact enough.
TIME_LIMIT_US = 1e18
CHUNK = 20_000


@dataclass(frozen=True)
class TorchProfile:
    """A trace file.  Times are ns since 1970 by the profiler's clock.

    waits: {pid: the profiler's view of a loader's next()}. pids: of the trace's events; events of
    an accelerator have the accelerator's number instead.  named: all pids with a name event.
    copies: {direction: (start, end, bytes) of each copy between memory and accelerator}, with CUDA
    profiled.
    """

    path: Path
    trace: Trace
    base_ns: int
    first_ns: int
    last_ns: int
    host: str
    waits: dict[int, list[tuple[int, int]]]
    pids: frozenset[int]
    named: frozenset[int]
    copies: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)


def read(path: Path) -> TorchProfile:
    """Read a trace.  Raises ForeignError: not a PyTorch trace, cut, or too large."""
    trace = Trace(path)
    first_us, last_us = TIME_LIMIT_US, -TIME_LIMIT_US
    waits: dict[int, list[tuple[int, int]]] = {}
    pids: set[int] = set()
    named: set[int] = set()
    copies: dict[str, list[tuple[int, int, int]]] = {}
    for event in trace.events():  # ns since baseTimeNanoseconds, perhaps at the end of the file
        if not _is_object(event):
            continue
        if isinstance(number := event.get("pid"), int):
            named.add(number)
        if event.get("ph") != "X":
            continue
        start_us, us = event.get("ts"), event.get("dur", 0)
        if not _is_time(start_us) or not _is_time(us) or us < 0:
            continue
        first_us, last_us = min(first_us, start_us), max(last_us, start_us + us)
        name, pid = event.get("name"), event.get("pid")
        if direction := _copied(event):
            start_ns = round(start_us * 1000)
            copy = (start_ns, start_ns + round(us * 1000), _bytes(event))
            copies.setdefault(direction, []).append(copy)
        if not isinstance(pid, int) or not 0 < pid < 1 << 31:
            continue
        pids.add(pid)
        if _is_wait(name):
            start_ns = round(start_us * 1000)
            waits.setdefault(pid, []).append((start_ns, start_ns + round(us * 1000)))
    base_ns = _base_of(trace)
    if first_us > last_us:
        raise ForeignError(f"{path}: this profile has no events; record some steps with it")
    # In place: a long profile has a million waits.
    for spans in waits.values():
        for n, (start, end) in enumerate(spans):
            spans[n] = base_ns + start, base_ns + end
    for moved in copies.values():
        for n, (start, end, size) in enumerate(moved):
            moved[n] = base_ns + start, base_ns + end, size
    host = trace.head.get("host_name")
    return TorchProfile(
        path=path,
        trace=trace,
        base_ns=base_ns,
        first_ns=base_ns + round(first_us * 1000),
        last_ns=base_ns + round(last_us * 1000),
        host=host if isinstance(host, str) else "",
        waits=waits,
        pids=frozenset(pids),
        named=frozenset(named),
        copies=copies,
    )


def _base_of(trace: Trace) -> int:
    """Return the zero of the trace's times, ns since 1970. Raises ForeignError."""
    if not trace.has_events:
        raise ForeignError(
            f"{trace.path}: no PyTorch profile: it has no list of traceEvents; give what "
            "export_chrome_trace or tensorboard_trace_handler wrote"
        )
    base_ns = trace.head.get("baseTimeNanoseconds", 0)  # before PyTorch 2.4 times are since 1970
    if not isinstance(base_ns, int) or not 0 <= base_ns < 1 << 62:
        raise ForeignError(f"{trace.path}: baseTimeNanoseconds is no time: {str(base_ns)[:40]}")
    return base_ns


# As Kineto names CUDA's copies: "Memcpy HtoD (Pinned -> Device)", of category gpu_memcpy.
DIRECTIONS = {"HtoD": "to the accelerator", "DtoH": "from the accelerator"}


def _copied(event: dict[str, Any]) -> str:
    name = event.get("name")
    if event.get("cat") != "gpu_memcpy" or not isinstance(name, str):
        return ""
    return next((way for way in DIRECTIONS if name.startswith(f"Memcpy {way}")), "")


def _bytes(event: dict[str, Any]) -> int:
    args = event.get("args")
    size = args.get("bytes") if _is_object(args) else None
    return size if isinstance(size, int) and 0 <= size < 1 << 62 else 0


def copied(profile: TorchProfile, run: Run, alignment: Alignment) -> tuple[str, ...]:
    """Return a sentence per direction on the profile's copies between memory and accelerator.

    A sentence gives the sum of the copies, and the share of copy time in data waits of the run.
    """
    offset_ns = run.start_unix_ns + alignment.offset_ns
    waits = sorted(
        (offset_ns + start, offset_ns + end)
        for pid in profile.pids
        for start, end in span_starts(run, "data wait", pid)
    )
    sentences = []
    for way, copies in sorted(profile.copies.items(), reverse=True):
        ns = sum(end - start for start, end, _ in copies)
        inside_ns = sum(_shared(waits, start, end) for start, end, _ in copies)
        sentences.append(
            f"{count(len(copies), 'copy')} {DIRECTIONS[way]}: "
            f"{show(sum(size for _, _, size in copies), 'B')} in {show(ns / 1e9, 's')}, "
            f"{show(inside_ns / 1e9, 's')} of it during data waits"
        )
    return tuple(sentences)


def _shared(waits: list[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """Return how much of a stretch is inside ordered stretches without overlap."""
    at = max(0, bisect_right(waits, (start_ns, 1 << 63)) - 1)
    shared = 0
    for begun, ended in waits[at:]:
        if begun >= end_ns:
            break
        shared += max(0, min(ended, end_ns) - max(begun, start_ns))
    return shared


def _is_time(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -TIME_LIMIT_US < value < TIME_LIMIT_US
    )


def _is_wait(name: object) -> bool:
    """Return True for torch.utils.data.dataloader's name of an iterator's next()."""
    return (
        isinstance(name, str)
        and name.startswith("enumerate(DataLoader)#")
        and name.endswith(".__next__")
    )


def aligned(profile: TorchProfile, run: Run) -> Alignment:
    """Return the alignment of the two clocks.  Raises ForeignError: the profile is of another time
    or machine."""
    hosts = [profile.host] if profile.host else []
    require_overlap(profile.path, run, profile.first_ns, profile.last_ns, hosts)
    candidates = []
    for pid, theirs in profile.waits.items():
        spans = span_starts(run, "data wait", pid)
        ours = [(run.start_unix_ns + start, run.start_unix_ns + end) for start, end in spans]
        candidates.append(Marks("data waits", ours, theirs))
    return align(candidates)


def write(
    profile: TorchProfile,
    timeline: Timeline,
    alignment: Alignment,
    stream: BinaryIO,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the trace with the run's rows."""
    about = {**chrome.facts(timeline), "clocks": alignment.sentence}
    named = set(profile.named)
    head = dict(profile.trace.head)
    stream.write(chrome.dumps({**head, "penstock": about})[:-1].encode())
    stream.write(b', "traceEvents": [\n')
    base_ns = profile.base_ns - alignment.offset_ns - timeline.start_unix_ns
    before = b""
    for texts in (
        (chrome.dumps(event) for event in profile.trace.events()),
        chrome.events(timeline, base_ns, progress, named, alignment.sentence),
    ):
        for chunk in chrome.chunks(texts):
            stream.write(before + ",\n".join(chunk).encode())
            before = b",\n"
    stream.write(b"\n]}\n")


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
