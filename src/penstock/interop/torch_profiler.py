"""A run's rows inside a trace of PyTorch's profiler (trace.json, trace.json.gz).

Knows the keys of Kineto's Chrome traces.  What was in the trace stays as it was; ours is added, in
rows of its own under the same processes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from penstock import bounded
from penstock.errors import ForeignError
from penstock.interop import chrome
from penstock.interop.clocks import Alignment, Marks, align, require_overlap
from penstock.interop.timeline import Timeline, span_starts
from penstock.run import Run
from penstock.words import count, show

__all__ = ["TorchProfile", "aligned", "copied", "read", "write"]

Progress = Callable[[int, int], None]

# Viewers fail at 2-3 GB (google/perfetto#1392): what is larger is no profile that anyone looks at,
# or was packed to fill memory.
MAX_BYTES = 4 << 30
# Of microseconds: 31,000 years.  A larger number is no time, and smaller ones are exact enough.
TIME_LIMIT_US = 1e18
CHUNK = 20_000


@dataclass(frozen=True)
class TorchProfile:
    """One trace file.  Times are ns since 1970 by the profiler's clock.

    waits: {pid: what the profiler saw of a loader's next()}.  pids: of its events; those of an
    accelerator have its number there.  copies: {direction: (start, end, bytes) of each copy between
    memory and accelerator}, where CUDA was profiled.
    """

    path: Path
    document: dict[str, Any]
    base_ns: int
    first_ns: int
    last_ns: int
    host: str
    waits: dict[int, list[tuple[int, int]]]
    pids: frozenset[int]
    copies: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)


def read(path: Path) -> TorchProfile:
    """Reads a trace.  Raises ForeignError: not a PyTorch trace, cut, or too large."""
    document = _document(path)
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise ForeignError(
            f"{path}: no PyTorch profile: it has no list of traceEvents; give what "
            "export_chrome_trace or tensorboard_trace_handler wrote"
        )
    base_ns = document.get("baseTimeNanoseconds", 0)  # before PyTorch 2.4 times are since 1970
    if not isinstance(base_ns, int) or not 0 <= base_ns < 1 << 62:
        raise ForeignError(f"{path}: baseTimeNanoseconds is no time: {str(base_ns)[:40]}")
    first_us, last_us = TIME_LIMIT_US, -TIME_LIMIT_US
    waits: dict[int, list[tuple[int, int]]] = {}
    pids: set[int] = set()
    copies: dict[str, list[tuple[int, int, int]]] = {}
    for event in events:
        if not _is_object(event) or event.get("ph") != "X":
            continue
        start_us, us = event.get("ts"), event.get("dur", 0)
        if not _is_time(start_us) or not _is_time(us) or us < 0:
            continue
        first_us, last_us = min(first_us, start_us), max(last_us, start_us + us)
        name, pid = event.get("name"), event.get("pid")
        if direction := _copied(event):
            start_ns = base_ns + round(start_us * 1000)
            one = (start_ns, start_ns + round(us * 1000), _bytes(event))
            copies.setdefault(direction, []).append(one)
        if not isinstance(pid, int) or not 0 < pid < 1 << 31:
            continue
        pids.add(pid)
        if _is_wait(name):
            start_ns = base_ns + round(start_us * 1000)
            waits.setdefault(pid, []).append((start_ns, start_ns + round(us * 1000)))
    if first_us > last_us:
        raise ForeignError(f"{path}: this profile has no events; record some steps with it")
    host = document.get("host_name")
    return TorchProfile(
        path=path,
        document=document,
        base_ns=base_ns,
        first_ns=base_ns + round(first_us * 1000),
        last_ns=base_ns + round(last_us * 1000),
        host=host if isinstance(host, str) else "",
        waits=waits,
        pids=frozenset(pids),
        copies=copies,
    )


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
    """What the profile's copies between memory and accelerator come to, and how much of their time
    lies in data waits of the run: a sentence a direction."""
    offset_ns = run.start_unix_ns + alignment.offset_ns
    waits = sorted(
        (offset_ns + start, offset_ns + end)
        for pid in profile.pids
        for start, end in span_starts(run, "data wait", pid)
    )
    told = []
    for way, copies in sorted(profile.copies.items(), reverse=True):
        ns = sum(end - start for start, end, _ in copies)
        inside_ns = sum(_shared(waits, start, end) for start, end, _ in copies)
        told.append(
            f"{count(len(copies), 'copy')} {DIRECTIONS[way]}: "
            f"{show(sum(size for _, _, size in copies), 'B')} in {show(ns / 1e9, 's')}, "
            f"{show(inside_ns / 1e9, 's')} of it during data waits"
        )
    return tuple(told)


def _shared(waits: list[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """How much of a stretch lies in stretches that do not overlap and stand in order."""
    at = max(0, bisect_right(waits, (start_ns, 1 << 63)) - 1)
    shared = 0
    for begun, ended in waits[at:]:
        if begun >= end_ns:
            break
        shared += max(0, min(ended, end_ns) - max(begun, start_ns))
    return shared


def _document(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        packed = path.stat().st_size
        most = min(MAX_BYTES, bounded.most_unpacked(packed)) if is_packed else MAX_BYTES
        with gzip.open(path, "rb") if is_packed else open(path, "rb") as file:
            data = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ForeignError(f"{path}: its gzip is damaged or cut: {error}; copy it again") from error
    except OSError as error:
        raise ForeignError(f"{path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ForeignError(
            f"{path}: more than {MAX_BYTES >> 30} GiB of JSON, which no viewer opens; profile "
            "fewer steps"
        )
    if len(data) > most or (is_packed and bounded.parsed_bytes(data) > bounded.most_parsed(packed)):
        raise ForeignError(f"{path}: {bounded.grows(most)}")
    try:
        document = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ForeignError(f"{path}: no PyTorch profile: byte {error.start} is no UTF-8") from error
    except RecursionError as error:
        raise ForeignError(f"{path}: no PyTorch profile: it is nested without end") from error
    except ValueError as error:
        raise ForeignError(f"{path}: no PyTorch profile, or cut: {error}") from error
    if not isinstance(document, dict):
        raise ForeignError(f"{path}: no PyTorch profile: the JSON is no object")
    return document


def _is_time(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -TIME_LIMIT_US < value < TIME_LIMIT_US
    )


def _is_wait(name: object) -> bool:
    """As torch.utils.data.dataloader names the next() of its iterators."""
    return (
        isinstance(name, str)
        and name.startswith("enumerate(DataLoader)#")
        and name.endswith(".__next__")
    )


def aligned(profile: TorchProfile, run: Run) -> Alignment:
    """How the two clocks lie.  Raises ForeignError: the profile is of another time or machine."""
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
    """Writes the trace with the run's rows in it."""
    about = {**chrome.facts(timeline), "clocks": alignment.sentence}
    pids = (event.get("pid") for event in profile.document["traceEvents"] if _is_object(event))
    known = {pid for pid in pids if isinstance(pid, int)}
    head = {key: value for key, value in profile.document.items() if key != "traceEvents"}
    stream.write(chrome.dumps({**head, "penstock": about})[:-1].encode())
    stream.write(b', "traceEvents": [\n')
    base_ns = profile.base_ns - alignment.offset_ns - timeline.start_unix_ns
    before = b""
    for texts in (
        (chrome.dumps(event) for event in profile.document["traceEvents"]),
        chrome.events(timeline, base_ns, progress, known, alignment.sentence),
    ):
        for chunk in chrome.chunks(texts):
            stream.write(before + ",\n".join(chunk).encode())
            before = b",\n"
    stream.write(b"\n]}\n")


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
