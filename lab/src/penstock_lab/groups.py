"""Control groups, v1 and v2: so much of a disk, so much memory, for all programs inside.

Knows the kernel's files and nothing of tiers.  A group is made below this process' group (v1), or
below the nearest group that hands its controllers on (v2), so that no limit of ours lifts
another's.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import TierError

__all__ = [
    "Group",
    "Hierarchy",
    "device_of",
    "from_json",
    "hierarchies",
    "make",
    "own_name",
    "sweep",
]

EMPTIED_WITHIN_S = 20.0  # a process that has just ended still counts for a moment

# Joins the groups, then becomes the command: no shell in between.
JOIN = """
import os, sys
n = int(sys.argv[1])
for folder in sys.argv[2:2 + n]:
    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
os.execvp(sys.argv[2 + n], sys.argv[2 + n:])
"""


class Hierarchy(NamedTuple):
    """A mounted tree of groups, and this process' place in the tree."""

    version: int
    controllers: tuple[str, ...]
    top: str
    own: str


@dataclass(frozen=True, slots=True)
class Group:
    """folders: a folder in each limiting hierarchy.  homes: where processes go back to."""

    folders: tuple[str, ...]
    homes: tuple[str, ...]

    def add(self, pid: int) -> None:
        """Put a running process in, with all threads.  Raises TierError."""
        for folder in self.folders:
            _write(f"{folder}/cgroup.procs", str(pid))

    def wrapped(self, command: Sequence[str]) -> list[str]:
        """Return the command line that joins the group and then becomes the command."""
        return [sys.executable, "-c", JOIN, str(len(self.folders)), *self.folders, *command]

    def is_there(self) -> bool:
        return all(Path(folder).is_dir() for folder in self.folders)

    def remove(self) -> None:
        """Send the processes back, then remove the group.  Raises TierError: the group stays."""
        for folder, home in zip(self.folders, self.homes, strict=True):
            end_s = time.monotonic() + EMPTIED_WITHIN_S
            while Path(folder).is_dir():
                _empty(folder, home)
                try:
                    Path(folder).rmdir()
                except OSError as error:
                    if error.errno == errno.ENOENT:
                        break
                    if error.errno != errno.EBUSY or time.monotonic() > end_s:
                        raise TierError(f"{folder}: cannot be removed: {error.strerror}") from error
                    time.sleep(0.01)


def from_json(value: Any) -> Group:
    """Return a group from its written form.  Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("no group")
    return Group(_names(value.get("folders")), _names(value.get("homes")))


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("no names of groups")
    return tuple(value)


def _empty(folder: str, home: str) -> None:
    with suppress(OSError):
        for pid in Path(f"{folder}/cgroup.procs").read_text().split():
            with suppress(OSError, TierError):
                _write(f"{home}/cgroup.procs", pid)


def make(
    name: str,
    folder: str | None = None,
    bandwidth_bps: float | None = None,
    requests_hz: float | None = None,
    memory_bytes: int | None = None,
    trees: Sequence[Hierarchy] | None = None,
    cpus: float | None = None,
) -> Group:
    """Make a group with limits for the disk below the folder, for memory and for CPU time.

    Version 1 does not limit buffered writes, because the kernel does not know the writer.  Raises
    TierError (and leaves nothing): no rights, no controller, no separate disk.
    """
    trees = hierarchies() if trees is None else trees
    group = Group((), ())
    wishes: list[tuple[str, dict[str, str]]] = []
    if folder is not None and (bandwidth_bps or requests_hz):
        wishes.append(("blkio", _disk_limits(trees, device_of(folder), bandwidth_bps, requests_hz)))
    if memory_bytes:
        wishes.append(("memory", _memory_limits(trees, memory_bytes)))
    if cpus:
        wishes.append(("cpu", _cpu_limits(trees, cpus)))
    if not wishes:
        raise TierError(f"{name}: nothing to limit: give a bandwidth, a rate, memory or CPUs")
    try:
        for controller, files in wishes:
            tree = _tree(trees, controller)
            place = f"{_parent(tree, controller)}/{name}"
            if place not in group.folders:
                _mkdir(place)
                group = Group((*group.folders, place), (*group.homes, tree.own))
            for file, text in files.items():
                _write(f"{place}/{file}", text)
    except BaseException:
        with suppress(TierError):
            group.remove()
        raise
    return group


def own_name() -> str:
    """Return a name for a group that is to end with this process: `sweep` knows the owner by the
    name."""
    return f"penstock.{os.getpid()}.{time.monotonic_ns()}"


def sweep() -> None:
    """Remove the groups left by killed programs: groups by `own_name`, without processes."""
    for tree in hierarchies():
        for controller in {"blkio", "io", "memory", "cpu"} & set(tree.controllers):
            with suppress(TierError):
                for place in Path(_parent(tree, controller)).glob("penstock.*.*"):
                    if not Path(f"/proc/{place.name.split('.')[1]}").exists():
                        with suppress(OSError):
                            place.rmdir()


def hierarchies(mounts: str | None = None, own: str | None = None) -> list[Hierarchy]:
    """Return the control groups' trees of this machine, from the texts of mountinfo and cgroup."""
    mounts = _text("/proc/self/mountinfo") if mounts is None else mounts
    own = _text("/proc/self/cgroup") if own is None else own
    places: dict[frozenset[str], str] = {}
    for line in own.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        places[frozenset(names.split(",")) if names else frozenset({"v2"})] = path
    trees = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        where, facts = before.split(), after.split()
        if len(where) < 5 or len(facts) < 3 or facts[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if facts[0] == "cgroup2" else 1
        of_tree = {"v2"} if version == 2 else set(facts[2].split(",")) - {"rw", "ro"}
        mine = next((path for names, path in places.items() if names & of_tree), None)
        if mine is None:
            continue
        top = where[4]
        below = mine.removeprefix(where[3].rstrip("/")).strip("/")
        controllers = _controllers_v2(top) if version == 2 else tuple(sorted(of_tree))
        trees.append(Hierarchy(version, controllers, top, f"{top}/{below}".rstrip("/")))
    return trees


def _controllers_v2(top: str) -> tuple[str, ...]:
    return tuple(_text(f"{top}/cgroup.controllers").split())


def device_of(folder: str) -> str:
    """Return MAJOR:MINOR of the disk below a folder; limits belong to the disk, not the partition.

    Raises TierError: there is no disk, as below tmpfs, overlay, NFS.
    """
    number = Path(folder).stat().st_dev
    pair = f"{os.major(number)}:{os.minor(number)}"
    place = Path(f"/sys/dev/block/{pair}")
    if not place.exists():
        raise TierError(
            f"{folder}: lies on no disk of its own (device {pair}), so there is nothing to limit; "
            "use a FUSE tier"
        )
    if (place / "partition").exists():
        return (place.resolve().parent / "dev").read_text().strip()
    return pair


def _tree(trees: Sequence[Hierarchy], controller: str) -> Hierarchy:
    for tree in trees:
        if {controller, "io" if controller == "blkio" else controller} & set(tree.controllers):
            return tree
    name = "io (v2) or blkio (v1)" if controller == "blkio" else controller
    raise TierError(f"this kernel offers no {name} controller; use a FUSE tier for slow storage")


def _parent(tree: Hierarchy, controller: str) -> str:
    """Return the place for a new group: v2 permits only places with the controller handed on."""
    if tree.version == 1:
        return tree.own
    name = "io" if controller == "blkio" else controller
    place = tree.own
    while True:
        if name in _text(f"{place}/cgroup.subtree_control").split():
            return place
        if place == tree.top or not place.startswith(tree.top):
            raise TierError(
                f"{tree.top}: the {name} controller is not handed on to groups; as root: "
                f"echo +{name} > {tree.top}/cgroup.subtree_control"
            )
        place = place.rpartition("/")[0]


def _disk_limits(
    trees: Sequence[Hierarchy], device: str, bandwidth: float | None, rate: float | None
) -> dict[str, str]:
    if _tree(trees, "blkio").version == 2:
        parts = [f"rbps={bandwidth:.0f} wbps={bandwidth:.0f}"] if bandwidth else []
        parts += [f"riops={rate:.0f} wiops={rate:.0f}"] if rate else []
        return {"io.max": f"{device} {' '.join(parts)}"}
    files = {}
    for op in ("read", "write"):
        if bandwidth:
            files[f"blkio.throttle.{op}_bps_device"] = f"{device} {bandwidth:.0f}"
        if rate:
            files[f"blkio.throttle.{op}_iops_device"] = f"{device} {rate:.0f}"
    return files


def _memory_limits(trees: Sequence[Hierarchy], memory_bytes: int) -> dict[str, str]:
    is_v2 = _tree(trees, "memory").version == 2
    return {"memory.max" if is_v2 else "memory.limit_in_bytes": str(memory_bytes)}


PERIOD_US = 100_000


def _cpu_limits(trees: Sequence[Hierarchy], cpus: float) -> dict[str, str]:
    quota = f"{cpus * PERIOD_US:.0f}"
    if _tree(trees, "cpu").version == 2:
        return {"cpu.max": f"{quota} {PERIOD_US}"}
    return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}


def _mkdir(place: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", place.rpartition("/")[2]):
        raise TierError(f"{place}: no name for a control group")
    try:
        Path(place).mkdir()
    except FileExistsError as error:
        raise TierError(
            f"{place}: there is such a group already; rmdir it if it is yours"
        ) from error
    except OSError as error:
        raise TierError(
            f"{place}: no control group can be made: {error.strerror}; it takes root, or a group "
            "that was delegated to this user"
        ) from error


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise TierError(f"{path}: the kernel refuses {text!r}: {error.strerror}") from error


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
