"""The places of a study's reads: storage under a condition, cold files, programs that run there.

Knows tiers, groups and processes; knows no study.  A program is cold when less than 2 % of its data
was in memory before; else there is no run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from penstock.errors import RunError, TierError
from penstock.places import tiers
from penstock.words import show
from penstock_lab import tier as slow_tiers
from penstock_lab.folders import nearest
from penstock_lab.groups import Group, device_of
from penstock_lab.tier import SlowTier

__all__ = [
    "LATENCY_BPS",
    "LATENCY_S",
    "NARROW_BPS",
    "NODE_PLACES",
    "ON_DISK",
    "OUR_PATH",
    "PLACES",
    "SERVER_BPS",
    "SERVER_LATENCY_S",
    "SLOTS",
    "THROTTLED_BPS",
    "THROTTLED_HZ",
    "Place",
    "PlaceError",
    "answer_of",
    "at",
    "device",
    "ended",
    "made_cold",
    "nodes",
    "refuse_without",
    "remarks_of",
    "warmed",
]

# A common cloud volume, and a parallel or remote file system's order of magnitude.
THROTTLED_BPS, THROTTLED_HZ = 200e6, 2000.0
LATENCY_S, LATENCY_BPS = 1e-3, 1e9
# A hard disk's order of magnitude, and nobody's drive: Chien's gave IOR 163 MB/s.  A jump takes
# about 8 ms; the queues of kernel and drive, not imitated here, shorten most jumps between reads.
# An open waits for the inode alone: nothing shortens the wait.
SEEK_S, SEEK_BPS, SEEK_OPEN_S = 2e-3, 163e6, 8e-3
# A parallel file system's shape: a metadata server that answers many at once up to a rate, and
# storage servers side by side.  So slow that 28 threads are no load for two cores; one thread reads
# files of 90 kB at about 3 MB/s, as in tf-Darshan's case.
PARALLEL_OPEN_S, PARALLEL_OPENS_HZ = 8e-3, 1000.0
PARALLEL_S, PARALLEL_BPS, PARALLEL_TARGETS = 4e-3, 10e6, 4
# A share of a link with other users: a file of 110 kB takes 9 ms, and an open nothing.
NARROW_BPS = 12e6
MEMORY_SHARE = 0.25
ANY_BYTES = 1 << 30  # of data, to see whether `memory` can be had
SLOTS = 64  # requests served at once by a FUSE tier: slow_tiers.slow's own default

# The view of a cluster's nodes, each through a separate mount and page cache: a disk in each node,
# or a server for all.  So slow that a node's CPUs never are the limit.
NODE_BPS, NODE_LATENCY_S = 100e6, 1e-4
SERVER_BPS, SERVER_LATENCY_S = 100e6, 1e-3

PLACES = ("disk", "throttled", "latency", "seek", "parallel", "narrow", "memory")
ON_DISK = ("disk", "throttled", "memory")
NODE_PLACES = ("local", "shared", "server")
_SAYS = {
    "disk": "the disk as it is",
    "throttled": f"the disk at {THROTTLED_BPS / 1e6:.0f} MB/s and {THROTTLED_HZ:,.0f} requests/s",
    "latency": f"a FUSE tier of {1e3 * LATENCY_S:g} ms a call and {LATENCY_BPS / 1e9:g} GB/s",
    "seek": f"a FUSE tier of one head: {1e3 * SEEK_S:g} ms a jump, {1e3 * SEEK_OPEN_S:g} ms an "
    f"open, {SEEK_BPS / 1e6:.0f} MB/s",
    "parallel": f"a FUSE tier of {PARALLEL_TARGETS} storage servers, each of "
    f"{PARALLEL_BPS / 1e6:.0f} MB/s and {1e3 * PARALLEL_S:g} ms, and a metadata server of "
    f"{PARALLEL_OPENS_HZ:,.0f} requests/s and {1e3 * PARALLEL_OPEN_S:g} ms",
    "narrow": f"a FUSE tier of {NARROW_BPS / 1e6:.0f} MB/s, without latency",
    "memory": "the disk, with memory for a quarter of the data",
    "local": f"for each node a FUSE tier of {1e3 * NODE_LATENCY_S:g} ms a call and "
    f"{NODE_BPS / 1e6:.0f} MB/s of its own",
    "shared": f"for each node a FUSE tier of {1e3 * SERVER_LATENCY_S:g} ms a call and its part of "
    f"{SERVER_BPS / 1e6:.0f} MB/s for all",
    "server": f"for each node a FUSE tier of {1e3 * SERVER_LATENCY_S:g} ms a call, and "
    f"{SERVER_BPS / 1e6:.0f} MB/s that all share",
}

# Lets our programs import the packages of this program.
OUR_PATH = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

EVICTING_THREADS = 16  # on a tier with latency each file waits for opens


class Place(NamedTuple):
    """Storage under a condition.  path: of the data there."""

    name: str
    path: Path
    tier: SlowTier | None = None
    group: Group | None = None


class PlaceError(TierError):
    """This machine or this user cannot have such a place."""


@contextmanager
def at(name: str, folder: Path, data_bytes: int = 0, least_bytes: int = 0) -> Iterator[Place]:
    """Provide the folder as the place, while the block runs.

    data_bytes, least_bytes: of `memory`, the size for the quarter, and the programs' own needs.
    Raises PlaceError.
    """
    with ExitStack() as stack:
        try:
            place = _made(name, folder, stack, data_bytes, least_bytes)
        except TierError as error:
            raise PlaceError(str(error)) from error
        yield place


@contextmanager
def nodes(name: str, folder: Path, n: int) -> Iterator[list[Place]]:
    """Provide the folder as seen from n nodes, each with a separate page cache.  name: of
    NODE_PLACES.

    `shared` divides the server's bandwidth among the nodes; with `server` a node has the bandwidth
    left by the others.

    Raises PlaceError.
    """
    latency_s = NODE_LATENCY_S if name == "local" else SERVER_LATENCY_S
    bandwidth = NODE_BPS if name == "local" else SERVER_BPS / n
    with ExitStack() as stack:
        lines = ""
        if name == "server":
            lines = str(Path(stack.enter_context(TemporaryDirectory())) / "lines")
            bandwidth = SERVER_BPS
        try:
            made = [
                stack.enter_context(
                    slow_tiers.slow(folder, bandwidth=bandwidth, latency_s=latency_s, lines=lines)
                )
                for _ in range(n)
            ]
        except TierError as error:
            raise PlaceError(str(error)) from error
        yield [Place(name, Path(tier.path), tier) for tier in made]


def remarks_of(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each place with a result."""
    there = {row["place"] for row in rows}
    return [f"`{name}`: {_SAYS[name]}" for name in names if name in there]


def refuse_without(names: Sequence[str], folder: Path) -> None:
    """Check the places; FOLDER may be missing.  Raises PlaceError: none of the places is possible
    there."""
    why: PlaceError | None = None
    for name in names:
        try:
            if name in ON_DISK and tiers.mount_of(nearest(folder)).kind in tiers.MEMORY_KINDS:
                raise PlaceError(
                    f"{folder}: lies in memory, where nothing is ever cold; name a folder on a disk"
                )
            if name in NODE_PLACES:
                with nodes(name, nearest(folder), 1):
                    return
            with at(name, nearest(folder), ANY_BYTES):
                return
        except PlaceError as error:
            why = why or (PlaceError(f"{name}: {error}") if len(names) > 1 else error)
    if why:
        raise why


def _made(name: str, folder: Path, stack: ExitStack, data_bytes: int, least_bytes: int) -> Place:
    if name == "throttled":
        capped = slow_tiers.capped(folder, bandwidth=THROTTLED_BPS, iops=THROTTLED_HZ)
        return Place(name, folder, None, stack.enter_context(capped))
    if name == "memory":
        memory_bytes = int(data_bytes * MEMORY_SHARE)
        if memory_bytes < least_bytes:
            raise TierError(
                f"a quarter of the data is {show(memory_bytes, 'B')}, less than the programs need "
                f"themselves; {show(least_bytes / MEMORY_SHARE, 'B')} of data have room"
            )
        capped = slow_tiers.capped(folder, memory_bytes=memory_bytes)
        return Place(name, folder, None, stack.enter_context(capped))
    if name == "latency":
        slow = slow_tiers.slow(folder, bandwidth=LATENCY_BPS, latency_s=LATENCY_S)
    elif name == "seek":
        slow = slow_tiers.slow(folder, bandwidth=SEEK_BPS, seek_s=SEEK_S, metadata_s=SEEK_OPEN_S)
    elif name == "parallel":
        slow = slow_tiers.slow(
            folder, bandwidth=PARALLEL_BPS, latency_s=PARALLEL_S, metadata_s=PARALLEL_OPEN_S,
            metadata_hz=PARALLEL_OPENS_HZ, targets=PARALLEL_TARGETS,
        )  # fmt: skip
    elif name == "narrow":
        slow = slow_tiers.slow(folder, bandwidth=NARROW_BPS)
    else:
        return Place(name, folder)
    tier = stack.enter_context(slow)
    return Place(name, Path(tier.path), tier)


# --- cold or not at all --------------------------------------------------------------------------


def made_cold(files: Sequence[Path], place: Place) -> float:
    """Evict files and return the share in memory.  Raises TierError: the files are not cold;
    PlaceError: the files never are cold there.

    The files are read before: where a host lends memory, the first touch of a page costs more than
    a disk read, and belongs to nobody's I/O.  Below a FUSE tier the bytes stay in memory: the tier
    is measured, not the disk.
    """
    from concurrent.futures import ThreadPoolExecutor

    below = files if place.tier is None else [_below(place, file) for file in files]
    with ThreadPoolExecutor(EVICTING_THREADS) as team:
        for _ in team.map(_warm, below):
            pass
        for _ in team.map(tiers.evict, files):
            pass
        mount = tiers.mount_of(files[0])
        warmths = list(team.map(lambda file: tiers.warmth_of([file], mount), files))
    size = sum(warmth.size_bytes for warmth in warmths)
    hidden = next((warmth.why_not_cold for warmth in warmths if warmth.resident_bytes is None), "")
    resident = sum(warmth.resident_bytes or 0 for warmth in warmths)
    is_memory = mount.kind in tiers.MEMORY_KINDS
    if hidden or is_memory or resident >= tiers.COLD_SHARE * max(1, size):
        why = hidden or (
            "in memory by nature" if is_memory else f"{resident / size:.0%} of it was in memory"
        ).replace("%", " %")
        named = files[0] if len(files) == 1 else files[0].parent
        if is_memory:
            raise PlaceError(f"{named}: not cold: {why}")
        raise TierError(f"{named}: not cold: {why}; does another program have it mapped?")
    return resident / max(1, size)


def warmed(files: Sequence[Path]) -> None:
    """Read files into memory.  Raises TierError: the files do not stay there."""
    for file in files:
        _warm(file)
        size = file.stat().st_size
        resident = tiers.resident_bytes(file)
        if resident is not None and resident < (1 - tiers.COLD_SHARE) * size:
            raise TierError(f"{file}: {show(size - resident, 'B')} of it do not stay in memory")


def _below(place: Place, file: Path) -> Path:
    assert place.tier is not None
    return Path(place.tier.folder) / file.relative_to(place.tier.path)


def _warm(file: Path) -> None:
    if (tiers.resident_bytes(file) or 0) >= file.stat().st_size:
        return
    buffer = bytearray(1 << 20)
    with open(file, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def device(place: Place) -> tuple[int, int]:
    """Reads so far, and their bytes: of the tier, or of the whole disk; -1: not counted."""
    if place.tier is not None:
        asked = place.tier.requests()
        return asked.reads, asked.read_bytes
    try:
        numbers = Path(f"/sys/dev/block/{device_of(str(place.path))}/stat").read_text().split()
        return int(numbers[0]), 512 * int(numbers[2])
    except (TierError, OSError):
        return -1, 0


# --- a program there -----------------------------------------------------------------------------


def answer_of(
    module: str,
    job: Mapping[str, Any],
    place: Place,
    at_ready: Callable[[], None],
    timeout_s: float,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `python -m MODULE` for a job, in the place's group, and return the answer.

    The program reads the job as a line of JSON, prints "ready", waits for a line, and prints JSON;
    an object with "error" is a failure.  at_ready: called in between.  before: words of a starting
    command.  Raises RunError; TierError: the program cannot run at all.
    """
    program = subprocess.Popen(
        [*before, sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | OUR_PATH | dict(environment or {}),
        start_new_session=True,
    )
    what = module.rpartition(".")[2]
    try:
        assert program.stdin
        assert program.stdout
        with suppress(BrokenPipeError):  # ended already; the answer comes next
            program.stdin.write(json.dumps(dict(job)) + "\n")
            program.stdin.flush()
        line = program.stdout.readline()
        if line != "ready\n":
            raise TierError(f"{what}: cannot be run: {_refused(line) or _said(program)}")
        at_ready()
        if place.group is not None:
            place.group.add(program.pid)
        answer, _ = program.communicate("go\n", timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{what}: did not end in {timeout_s:.0f} s") from error
    finally:
        ended(program)
    try:
        result = json.loads(answer)
    except ValueError as error:
        raise RunError(f"killed or failed: {_said(program)}") from error
    if "error" in result:
        raise RunError(result["error"])
    return dict(result)


def ended(program: subprocess.Popen[Any]) -> None:
    """End a program with a separate session, and all its children: with `penstock run` the training
    too, which would read on beside the next run."""
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


def _refused(line: str) -> str:
    """Return a program's answer in place of "ready"; nothing: no answer."""
    try:
        return str(json.loads(line)["error"])
    except (ValueError, KeyError, TypeError):
        return line.strip()


def _said(program: subprocess.Popen[str]) -> str:
    try:
        lines = program.stderr.read().strip().splitlines() if program.stderr else []
    except ValueError:
        lines = []
    return lines[-1] if lines else "it said nothing"
