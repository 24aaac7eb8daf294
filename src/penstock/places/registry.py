"""Keep the tiers named by the user: path, capacity, measured costs.

Knows a small file in the user's configuration folder.  The cost of reads is measured by opening,
reading and closing evicted files of two sizes, each alone.
"""

import json
import os
import re
import secrets
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import TierError, TierGone
from penstock.places import tiers
from penstock.places.tiers import Ceiling
from penstock.safe import bounded, drafts

__all__ = [
    "ENVIRONMENT",
    "Costs",
    "Tier",
    "add",
    "look",
    "measure_costs",
    "registered",
    "remove",
    "set_measured",
    "tier_of",
]

# A path instead of ~/.config/penstock/tiers.json: for tests, and for jobs with differing nodes.
ENVIRONMENT = "PENSTOCK_TIERS"
VERSION = 1
MOST_BYTES = 4 << 20  # of the list's file: a thousand tiers

SMALL_BYTES, N_SMALL = 4 << 10, 48
LARGE_BYTES, N_LARGE = 4 << 20, 8
REQUEST_BYTES = 1 << 20

_PREFIX = ".penstock-costs-"

MARK = ".penstock/tier"  # below a tier's folder: the tier's random number
MOST_MARK_BYTES = 64


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of reading by a single thread: seconds per file opened, read and closed, per further
    read, and per byte."""

    open_s: float
    call_s: float
    byte_s: float

    def of(self, opens: Any, reads: Any, read_bytes: Any) -> Any:
        """Return the seconds for counts of opens, reads and bytes; numbers or arrays."""
        return opens * self.open_s + reads * self.call_s + read_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Tier:
    """A folder for copies.  capacity_bytes: the room for copies; None: all free room.

    read_bps, write_bps: the best measured bandwidth; None: not measured.  mount: the mount point of
    the folder when added.  mark: the mark written when added.  Both are None for a list made by
    hand or by an earlier version; None is not compared.
    """

    name: str
    path: Path
    capacity_bytes: int | None = None
    costs: Costs | None = None
    read_bps: float | None = None
    write_bps: float | None = None
    measured_unix_ns: int | None = None
    mount: str | None = None
    mark: str | None = None


# --- the file ------------------------------------------------------------------------------------


def _file() -> Path:
    variable = os.environ.get(ENVIRONMENT)
    if variable:
        return Path(variable)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")  # noqa: PTH111, PTH118 - a home that is unknown stays text
    return Path(home) / "penstock" / "tiers.json"


def registered() -> list[Tier]:
    """Return all tiers, by name.  Raises TierError: the file is damaged."""
    path = _file()
    try:
        with bounded.opened(path) as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        content = json.loads(text)
        if len(text) > MOST_BYTES or content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r}")
        return sorted(
            (_tier(name, facts) for name, facts in content["tiers"].items()),
            key=lambda tier: tier.name,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cure = "remove it and add the tiers again: penstock tiers add"
        raise TierError(f"{path}: no list of tiers of this version ({error}); {cure}") from error


def _tier(name: str, facts: Mapping[str, Any]) -> Tier:
    costs = facts.get("costs")
    numbers = {key: facts.get(key) for key in ("read_bps", "write_bps")}
    for value in (*numbers.values(), *(costs or {}).values()):
        if value is not None and not (isinstance(value, int | float) and 0 <= value < 1e18):
            raise ValueError(f"{value!r} is no measurement")
    for key in ("capacity_bytes", "measured_unix_ns"):
        value = facts.get(key)
        if value is not None and not (type(value) is int and 0 <= value < 1 << 63):
            raise ValueError(f"{key} is {value!r}")
    for key in ("mount", "mark"):
        if not isinstance(facts.get(key), str | None):
            raise ValueError(f"{key} is {facts[key]!r}")
    return Tier(
        name,
        Path(str(facts["path"])),
        facts.get("capacity_bytes"),
        None if costs is None else Costs(costs["open_s"], costs["call_s"], costs["byte_s"]),
        numbers["read_bps"],
        numbers["write_bps"],
        facts.get("measured_unix_ns"),
        facts.get("mount"),
        facts.get("mark"),
    )


@contextmanager
def _changed() -> Iterator[dict[str, Tier]]:
    """Yield the tiers for a change, and write the whole list when the block ends well.  A single
    writer at a time."""
    import fcntl

    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(f".{path.name}.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            by_name = {tier.name: tier for tier in registered()}
            yield by_name
            facts = {name: _facts(tier) for name, tier in by_name.items()}
            drafts.write(path, json.dumps({"version": VERSION, "tiers": facts}, indent=1))
    except OSError as error:
        where = f"set {ENVIRONMENT} to a file that can be written"
        raise TierError(f"{path}: cannot be written: {error.strerror}; {where}") from error


def _facts(tier: Tier) -> dict[str, Any]:
    facts = asdict(tier) | {"path": str(tier.path)}
    del facts["name"]
    return facts


# --- changes by the user -------------------------------------------------------------------------


def add(name: str, folder: tiers.AnyPath, capacity_bytes: int | None = None) -> Tier:
    """Make a folder a tier.

    A tier added again keeps the measurements, and the capacity unless given; the present mount
    counts from now on.

    Raises TierError: no such folder, not writable, an invalid name or another folder's name, a
    folder inside another tier or around another tier.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise TierError(f"{name!r}: a tier's name is letters, digits, dots and dashes")
    path = Path(folder).expanduser()
    if not path.is_dir():
        if os.path.lexists(path):
            raise TierError(
                f"{path}: no folder; name one on the file system that is to hold copies"
            )
        raise TierError(
            f"{path}: no such folder; mkdir -p {shlex.quote(str(path))}, on the file system that "
            "is to hold copies"
        )
    path = Path(os.path.realpath(path))
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise TierError(f"{path}: mounted read-only; a tier has to take copies")
    try:
        tempfile.TemporaryFile(dir=path).close()  # /proc passes the check above
    except OSError as error:
        raise TierError(
            f"{path}: cannot be written: {error.strerror}; a tier needs a folder of your own"
        ) from error
    with _changed() as by_name:
        before = by_name.get(name)
        if before is not None and before.path != path:
            raise TierError(
                f"{name}: is the tier in {before.path}; penstock stage evict {name} and "
                f"penstock tiers remove {name}, then add it in {path}, or give another name"
            )
        for other in by_name.values():
            if other.name != name:
                _check_apart(other, name, path)
        tier = before or Tier(name, path)
        if capacity_bytes is not None:
            tier = replace(tier, capacity_bytes=capacity_bytes)
        tier = replace(tier, mount=tiers.mount_of(path).point, mark=_marked(path))
        by_name[name] = tier
    return tier


def _check_apart(other: Tier, name: str, path: Path) -> None:
    """Raise TierError if the folder belongs to another tier, or is inside or around another
    tier."""
    if other.path == path:
        raise TierError(
            f"{path}: is the tier {other.name}, and copies have one owner; "
            f"penstock tiers remove {other.name}, then add {name}"
        )
    if path in other.path.parents or other.path in path.parents:
        how = "lies in" if other.path in path.parents else "holds"
        raise TierError(
            f"{path}: {how} the tier {other.name} ({other.path}), and copies have one owner; "
            f"name a folder beside it, or penstock tiers remove {other.name}"
        )


def _marked(folder: Path) -> str:
    """Return the mark of a tier's folder; make a mark if missing."""
    if owner := _mark_in(folder):
        return owner
    mark = secrets.token_hex(16)
    path = folder / MARK
    try:
        drafts.own_folder(path.parent)
        drafts.write(path, mark)
    except OSError as error:
        raise TierError(
            f"{path}: cannot be written: {error.strerror}; a tier needs a folder of your own"
        ) from error
    return mark


def _mark_in(folder: Path) -> str:
    """Return the mark of a folder; "" without a readable mark."""
    try:
        with open(folder / MARK, "rb") as file:
            return file.read(MOST_MARK_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def look(tier: Tier) -> None:
    """Raise TierGone if the tier's folder is missing, or on another file system, such as an empty
    mount point.

    The folder belongs to the tier with the tier's mark, on any mount, or on the mount point of the
    time of adding: a file system made anew there, for example memory after a reboot, may hold
    copies too.
    """
    cure = f"mount it, or penstock tiers remove {tier.name}"
    if not tier.path.is_dir():
        raise TierGone(f"{tier.path}: tier {tier.name} is not there; {cure}")
    if tier.mount is None or (tier.mark and _mark_in(tier.path) == tier.mark):
        return
    now = tiers.mount_of(tier.path).point
    if now != tier.mount:
        raise TierGone(
            f"{tier.path}: tier {tier.name} is not mounted: it lay on {tier.mount} when it was "
            f"added, and this folder is on {now}; mount it, or if copies are to lie here: "
            f"penstock tiers add {tier.name} {shlex.quote(str(tier.path))}"
        )


def remove(name: str) -> Tier:
    """Forget a tier; the files stay.  Raises TierError: no tier has the name."""
    tier = tier_of(name)
    with _changed() as by_name:
        by_name.pop(tier.name, None)
    return tier


def tier_of(wanted: tiers.AnyPath) -> Tier:
    """Return the tier of a name, or in a folder.  Raises TierError: no such tier."""
    text = os.fspath(wanted)
    registered_tiers = registered()
    for tier in registered_tiers:
        if tier.name == text:
            return tier
    for tier in registered_tiers:
        if "/" in text and tier.path == Path(os.path.realpath(text)):
            return tier
    names = ", ".join(tier.name for tier in registered_tiers) or "none yet"
    raise TierError(
        f"{text}: no such tier ({names}); penstock tiers add NAME FOLDER --capacity 100GB"
    )


def set_measured(name: str, costs: Costs, ceilings: Sequence[Ceiling]) -> Tier:
    """Store the measurements of a tier: the best of each op.  Raises TierError."""
    with _changed() as by_name:
        if name not in by_name:
            raise TierError(f"{name}: no such tier any more")
        best = {
            op: max(
                (ceiling.bandwidth_bps for ceiling in ceilings if ceiling.op == op), default=None
            )
            for op in ("read", "write")
        }
        by_name[name] = tier = replace(
            by_name[name],
            costs=costs,
            read_bps=best["read"],
            write_bps=best["write"],
            measured_unix_ns=time.time_ns(),
        )
    return tier


# --- the cost of a read --------------------------------------------------------------------------


def measure_costs(folder: tiers.AnyPath, clock: Callable[[], float] = time.perf_counter) -> Costs:
    """Write small files below the folder, read the files cold, remove the files; return the costs.

    Raises TierError: no room for 48 MiB, not writable.
    """
    needed = 48 << 20
    free = tiers.free_bytes(folder)
    if free < needed:
        raise TierError(
            f"{os.fspath(folder)}: full: {free >> 20} MiB are free, and measuring what reads cost "
            f"there, which a plan needs, writes {needed >> 20} MiB for a moment; make room there"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as place:
            small = _made(Path(place), N_SMALL, SMALL_BYTES)
            large = _made(Path(place), N_LARGE, LARGE_BYTES)
            for path in (*small, *large):
                tiers.evict(path)
            # The first reads load parts of the kernel and are not counted.
            open_s = statistics.median([_read_s(path, clock) for path in small][4:])
            whole_s = statistics.median([_read_s(path, clock) for path in large][1:])
            for path in large:
                tiers.evict(path)
            call_s = statistics.median(
                [read_s for path in large for read_s in _reads_s(path, clock)]
            )
    except OSError as error:
        raise TierError(f"{os.fspath(folder)}: cannot be written: {error.strerror}") from error
    byte_s = max(0.0, whole_s - open_s) / (LARGE_BYTES - SMALL_BYTES)
    return Costs(open_s, max(0.0, call_s - byte_s * SMALL_BYTES), byte_s)


def _made(folder: Path, count: int, n_bytes: int) -> list[str]:
    paths = []
    for number in range(count):
        path = folder / f"{n_bytes}-{number}"
        path.write_bytes(os.urandom(n_bytes))
        paths.append(str(path))
    return paths


def _read_s(path: str, clock: Callable[[], float]) -> float:
    """Return the seconds to open, stat, read and close a file, as loaders do."""
    buffer = bytearray(REQUEST_BYTES)
    begun_s = clock()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fstat(descriptor)
        while os.readv(descriptor, [buffer]):
            pass
    finally:
        os.close(descriptor)
    return clock() - begun_s


def _reads_s(path: str, clock: Callable[[], float]) -> Iterator[float]:
    """Yield the seconds of single page reads, from the back, so nothing is read ahead."""
    buffer = bytearray(SMALL_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for place in range(6, 0, -1):
            begun_s = clock()
            os.preadv(descriptor, [buffer], place * LARGE_BYTES // 8)
            yield clock() - begun_s
    finally:
        os.close(descriptor)
