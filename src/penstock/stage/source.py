"""Find files to copy: each file once for all names, with an identity that changes with the file.

Knows file systems and stores; knows only the paths of copies.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.errors import TierError
from penstock.places import tiers
from penstock.stage import manifest
from penstock.stage.manifest import MOST_PATH_BYTES, Identity, TierPlace, hash_of

if TYPE_CHECKING:
    from penstock.places.stores import Store, StoredFile

__all__ = [
    "ASKED_AT_ONCE",
    "LOCAL",
    "Kinds",
    "SourceFile",
    "WantedFile",
    "below",
    "count",
    "find",
    "find_in",
    "found_again",
    "identity_in",
    "path_of",
    "touched_ns",
]

# A change within a tick of the file system's clock does not change a file's times. The listed file
# systems tick with the kernel, at most 10 ms; servers and FUSE may tick in whole seconds, FAT in
# two.
LOCAL = ("ext4", "xfs", "btrfs", "tmpfs", "ext3", "ext2", "zfs", "f2fs")
LOCAL_TICK_NS, OTHER_TICK_NS = 20_000_000, 2_000_000_000

ASKED_AT_ONCE, ASKED_TOGETHER = 16, 16384

# File systems with inode numbers made up at each mount.
FORGETFUL = ("fuse", "fuseblk", "overlay", "9p", "virtiofs")
# File systems where even two existing files may have equal numbers and equal times.
UNSURE = ("fuse", "fuseblk")

TIME_BEYOND = "changed before 1678 or after 2261, as its time says; touch it"
APART = "url/file/"  # before a path below /url, as copies of URLs lie there; no store is a file://


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to copy, by the path programs open.  gain_s: see StagedCopy."""

    path: str
    gain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to copy, with all names of the file."""

    path: str  # resolved
    identity: Identity
    names: tuple[str, ...]
    gain_s: float
    is_ino_kept: bool
    tick_ns: int
    before: tuple[int, int] | None = None  # an invalid copy found by the search
    is_far: bool = False  # on a file system of a server, or FUSE
    is_told_apart: bool = True  # by numbers, from all existing files
    store: "Store | None" = None  # the store of the file, if not on local file systems
    name: str = ""  # in the store

    @property
    def copy(self) -> str:
        """Return the path of the copy below staged/."""
        if self.store is not None:
            return "url/" + self.path.replace("://", "/", 1)
        path = self.path.lstrip("/")
        return f"{APART}{path}" if path.startswith("url/") else path


def path_of(copy: str) -> str:
    """Return the source's path of a copy below staged/."""
    return f"/{copy.removeprefix(APART)}"


class Kinds:
    """The kinds of file systems, each asked once by an existing path."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, dev: int, path: str) -> str:
        if dev not in self._known:
            try:
                self._known[dev] = tiers.mount_of(path).kind.partition(".")[0]
            except TierError:
                return "unknown"  # gone since the look: the next path answers
        return self._known[dev]

    def one_name(self, dev: int, path: str) -> str:
        """Return the path without links if numbers do not identify a file on the file system, else
        ""."""
        return os.path.realpath(path) if self.of(dev, path) in UNSURE else ""


def below(folder: tiers.AnyPath) -> Iterator[WantedFile]:
    """Yield all files below a folder, by path; links to folders are not followed.  Raises
    TierError."""
    if not os.path.isdir(folder):  # noqa: PTH112 - also bytes that are no UTF-8
        yield WantedFile(os.path.abspath(folder))  # noqa: PTH100
        return
    for place, folders, names in os.walk(os.path.abspath(folder)):  # noqa: PTH100
        folders.sort()
        yield from (WantedFile(f"{place}/{name}") for name in sorted(names))


def find(
    wanted: Iterable[WantedFile], place: TierPlace, progress: Callable[[int], None] | None = None
) -> tuple[list[SourceFile], dict[str, int]]:
    """Resolve and look at each file; hard links and symlinks of a file become one source.

    Return the sources, and the number of skipped files by reason.
    """
    sources: dict[Identity | tuple[Identity, str], SourceFile] = {}
    skipped: dict[str, int] = {}
    folders: dict[str, str] = {}
    kinds = Kinds()
    ours = os.path.realpath(place.tier.path) + "/"
    for number, (want, path, status, why_not) in enumerate(_asked(wanted, folders, ours, place)):
        if progress is not None and number % 1000 == 0:
            progress(number)
        if why_not or status is None:
            count(skipped, why_not)
            continue
        kind = kinds.of(status.st_dev, path)
        # Not by the inode alone: some FUSE file systems have a single number for many files, and a
        # single time for all files of an archive.
        identity = Identity.of(status)
        is_told_apart = kind not in FORGETFUL or (kind not in UNSURE and status.st_nlink > 1)
        key = identity if is_told_apart else (identity, path)
        before = sources.get(key)
        names = {want.path, path, *((before.path, *before.names) if before else ())}
        first = before.path if before else path
        sources[key] = SourceFile(
            first,
            identity,
            tuple(sorted(names - {first})),
            want.gain_s + (before.gain_s if before else 0.0),
            kind not in FORGETFUL,
            LOCAL_TICK_NS if kind in LOCAL else OTHER_TICK_NS,
            is_far=kind not in LOCAL,
            is_told_apart=is_told_apart,
        )
    return list(sources.values()), skipped


def _asked(
    wanted: Iterable[WantedFile], folders: dict[str, str], ours: str, place: TierPlace
) -> Iterator[tuple[WantedFile, str, os.stat_result | None, str]]:
    """Yield each file's path and status, or the reason against a copy, in order.

    Many files are asked at once, as a server takes milliseconds for each.  Files asked at once are
    in different folders: some file systems (FUSE) let one process at a time look into a folder.
    """

    def ask(want: WantedFile) -> tuple[WantedFile, str, os.stat_result | None, str]:
        try:
            path, status = _resolved(want.path, folders)
        except FileNotFoundError:
            return want, "", None, "gone"
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path that a file can have"
            return want, "", None, str(why).lower()
        return want, path, status, _unfit(path, status, ours, place)

    left = iter(wanted)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        while some := list(islice(left, ASKED_TOGETHER)):
            seen: dict[str, int] = {}
            turns = []  # number of earlier files of the same folder
            for want in some:
                folder = want.path[: want.path.rfind("/")]
                turns.append(seen.setdefault(folder, 0))
                seen[folder] += 1
            order = sorted(range(len(some)), key=turns.__getitem__)
            asked = dict(zip(order, pool.map(ask, [some[place] for place in order]), strict=True))
            yield from (asked[place] for place in range(len(some)))


def identity_in(file: "StoredFile") -> Identity:
    """Return the identity of a store's file.

    ino: the store's mark as a number.  Where a store gives neither time nor mark, files of equal
    size count as equal.
    """
    number = hash_of(file.mark.encode()) if file.mark else 0
    return Identity(file.size_bytes, file.mtime_ns or 0, 0, number, 0)


def find_in(store: "Store", place: TierPlace) -> tuple[list[SourceFile], dict[str, int]]:
    """Find the files of a store.  Raises TierError, with what to check."""
    sources: list[SourceFile] = []
    skipped: dict[str, int] = {}
    try:
        listed = list(store.list())
    except TierError as error:
        raise TierError(
            f"{error}; nothing was copied: is the server up, its address right, and are the "
            "credentials for it?"
        ) from error
    folders = {folder for file in listed for folder in _above(file.name)}
    most_name_bytes = os.pathconf(place.copies, "PC_NAME_MAX")
    for file in listed:
        source = SourceFile(
            f"{store.url.rstrip('/')}/{file.name}",
            identity_in(file),
            (),
            0.0,
            True,
            0,
            store=store,
            name=file.name,
        )
        if not _can_be_path(source.copy, most_name_bytes):
            count(skipped, "a name that no path can have")
        elif not source.identity.has_line():
            count(skipped, TIME_BEYOND)
        elif file.name in folders:
            count(skipped, "a name that others have as their folder")
        elif len(os.fsencode(f"{place.copies}/{source.copy}")) > MOST_PATH_BYTES:
            count(skipped, "path too long for a copy")
        else:
            sources.append(source)
    if not sources and not skipped:
        raise TierError(f"{store.url}: holds no file that can be seen, or is no folder; look there")
    return sources, skipped


def _can_be_path(copy: str, most_name_bytes: int) -> bool:
    parts = copy.split("/")
    try:
        longest = max(len(os.fsencode(part)) for part in parts)
    except UnicodeEncodeError:
        return False
    is_whole = {"", ".", ".."}.isdisjoint(parts) and "\0" not in copy
    return is_whole and longest <= most_name_bytes


def _above(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def count(skipped: dict[str, int], why: str) -> None:
    skipped[why] = skipped.get(why, 0) + 1


def _resolved(path: str, folders: dict[str, str]) -> tuple[str, os.stat_result]:
    """Return a path without links, and the file's status.  Each folder is resolved once."""
    folder, _, name = path.rpartition("/")
    if folder not in folders:
        folders[folder] = os.path.realpath(folder or "/", strict=True).rstrip("/")
    resolved = f"{folders[folder]}/{name}"
    status = os.lstat(resolved)
    if stat.S_ISLNK(status.st_mode) or name in ("", ".", ".."):
        resolved = os.path.realpath(resolved, strict=True)
        status = os.stat(resolved)  # noqa: PTH116 - text, as all paths here
    return resolved, status


def _unfit(path: str, status: os.stat_result, ours: str, place: TierPlace) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if path.startswith(ours):
        return "lies on the tier already"
    if len(os.fsencode(f"{place.copies}{path}")) > MOST_PATH_BYTES:
        return "path too long for a copy"
    if not Identity.of(status).has_line():
        return TIME_BEYOND
    if not os.access(path, os.R_OK):
        return "not readable"
    return ""


def found_again(source: SourceFile) -> SourceFile | None:
    """Return the source in the current state; None: missing, large, or not a file of the local
    machine."""
    if source.store is not None:
        return None
    try:
        status = os.stat(source.path)  # noqa: PTH116
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > manifest.CHUNK_BYTES:
        return None
    return replace(source, identity=Identity.of(status))


def touched_ns(source: SourceFile) -> int:
    return max(source.identity.mtime_ns, source.identity.ctime_ns)
