"""Handle a file of a burst buffer: the data, the link, the home, and the exchange of two files."""

from __future__ import annotations

import errno
import os
import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.errors import TierError
from penstock.places.stores import LocalStore, beside, draft_of
from penstock.save.burst import crowd
from penstock.save.checkpoint import Checkpoint
from penstock.save.commit import exchange
from penstock.save.drain.neighbours import STARTING_S
from penstock.save.find.tree import kind_of
from penstock.save.manifest import Manifest
from penstock.save.overwritten.earlier import WAS, was_of
from penstock.save.small import copier
from penstock.save.small.many import end_placed, is_of_many, names_in, placed_in, sweep_many
from penstock.save.verify import verify

__all__ = [
    "FOLDER",
    "HOME",
    "ID_LETTERS",
    "LEFT_BY_DRAIN",
    "LINK",
    "NEW",
    "ON_A_TIER",
    "OWNER",
    "BurstFile",
    "Hidden",
    "_give_way",
    "_link",
    "_put",
    "_sweep",
    "_target",
    "as_checkpoint",
    "change",
    "drop",
    "drop_data",
    "entries",
    "hidden_of",
    "is_marked",
    "is_that",
    "is_torn",
    "mark_home",
    "may_be_torn",
    "merge_marks",
    "put_opened",
    "rename_home",
    "sweep_drafts",
    "sweep_noted",
    "swept_if_renamed",
    "take",
    "torn_of",
    "unmark",
    "was_put",
    "was_replaced",
    "ways_on",
]

FOLDER = "burst"


# Equal to native/burst.h: hidden files beside the program's file, with the program's name.
LINK, NEW = ".penstock-link", ".penstock-new"
HOME = ".penstock-home"
TORN = ".torn"
ID_LETTERS = 25  # before the program's name
_NAME = r"(?P<name>[0-9a-f]{24}-[^/]+)"
ON_A_TIER = re.compile(rf"(?P<tier>/.*)/{FOLDER}/data/{_NAME}")
MANY_IN_FOLDER = 32
MOST_WATCHED = 256  # folders: each takes a descriptor; a process usually has 1,024
MOST_PLAIN_LETTERS = 200  # of a name on the tier: a longer name is shortened beside the path
LEFT_BY_DRAIN = re.compile(rf"\.\.?{_NAME}\.penstock-(?:link|new(?:\.penstock-part)?)")
OWNER = slice(16, 22)  # of the ID letters: the run


class BurstFile(NamedTuple):
    """A file on the tier.

    name: on the tier; starts with the time, so that names sort by creation, and ends with the
    program's name, or with ~ and the end of the program's name.  data_at: the path on the tier.
    home_at: the program's path.  size_bytes: None: the tier was full, and the program writes the
    file at home_at.  is_home: the file has arrived at home_at, or the program was about to remove
    or replace the path.

    Paths are strings: making a Path takes longer than a system call on the path, and making a
    frozen dataclass takes longer than making a tuple."""

    name: str
    data_at: str
    home_at: str
    is_home: bool = False
    size_bytes: int | None = None
    mtime_ns: int = 0

    @property
    def data(self) -> Path:
        return Path(self.data_at)

    @property
    def home(self) -> Path:
        return Path(self.home_at)

    @property
    def folder_at(self) -> str:
        """Return the folder of the program's path."""
        return self.home_at.rpartition("/")[0] or "/"

    def beside(self, end: str) -> Path:
        """Return a path in the program's folder, for this file only."""
        return Path(self.beside_at(end))

    def beside_at(self, end: str) -> str:
        """Return the path of beside() as a string."""
        return f"{self.home_at.rpartition('/')[0]}/.{self.name}{end}"

    @property
    def way(self) -> Path:
        """Return the link on the tier to the program's path."""
        return Path(self.way_at(self.is_home))

    def way_at(self, is_home: bool) -> str:
        """Return the path of `way` for a file with or without the mark of arrival."""
        return f"{self._tier}home/{self.name}{HOME if is_home else ''}"

    @property
    def _tier(self) -> str:
        return self.data_at[: -len("data/") - len(self.name)]

    @property
    def draft(self) -> Path:
        """Return the link on the tier to the path where a drain writes the file."""
        return Path(f"{self._tier}draft/{self.name}")

    @property
    def owner(self) -> str:
        """Return the run that made the file: the text of launch.burst_owner()."""
        return self.name[OWNER]

    @property
    def was(self) -> Path:
        """Return the path of the earlier file with the program's name, kept until this file
        counts."""
        return was_of(self.home)

    def is_linked(self) -> bool:
        """Return True if the program's path is a link to this file."""
        return self.is_at(self.home_at)

    def is_at(self, path: str | Path) -> bool:
        return _target(path) == self.data_at

    def newest(self) -> str:
        """Return the name of the file on the tier to which the program's path leads, else the
        file's own name."""
        path = Path(_target(self.home))
        return path.name if path.parent == self.data.parent else self.name


def _target(path: str | Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - compared as it stands there
    except OSError:
        return ""


def entries(
    fast: str | os.PathLike[str], of_home: Path | None = None, gone: Container[str] = ()
) -> list[BurstFile]:
    """Return the files on the tier, newest first.  of_home: only the files of this path; known:
    names of files to leave out.  Raises TierError."""
    folder = Path(os.path.realpath(fast)) / FOLDER
    ways_at, data_at = f"{folder}/home", f"{folder}/data"
    wanted = None if of_home is None else os.fspath(of_home)
    files = []
    names = ways_on(fast)
    ways = {name.removesuffix(HOME): name for name in names if name.endswith(HOME)}
    # Of two links the unmarked link counts: the program created the link during the scan.
    ways |= {name: name for name in names if not name.endswith(HOME)}
    if wanted is None and len(ways) >= crowd.LEAST and copier.is_built():
        left = [
            ways[name] for name in sorted(ways, reverse=True)
            if name not in gone and not name.endswith(LINK)
        ]  # fmt: skip
        return _entries_of_many(data_at, ways_at, left)
    for name in sorted(ways, reverse=True):
        way = ways[name]
        if name in gone or name.endswith(LINK):
            continue
        home = _target(f"{ways_at}/{way}")
        if not home.startswith("/") or wanted not in (None, home):
            continue
        data, size_bytes, mtime_ns = f"{data_at}/{name}", None, 0
        try:
            status = os.stat(data)  # noqa: PTH116 - one of tens of thousands
            size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
        except FileNotFoundError:
            pass
        files.append(BurstFile(name, data, home, way != name, size_bytes, mtime_ns))
    return files


def is_marked(way: str) -> bool:
    """Return whether a link to a program's path has the mark of arrival or replacement."""
    return way.endswith(HOME)


def ways_on(fast: str | os.PathLike[str]) -> list[str]:
    """Return the names of the links to the programs' paths.  Raises TierError."""
    folder = Path(os.path.realpath(fast)) / FOLDER
    try:
        return names_in(folder / "home")
    except OSError as error:
        raise TierError(
            f"{folder}: cannot be listed: {error.strerror}; was a program run with "
            f"`penstock run --burst-buffer {os.fspath(fast)}`?"
        ) from error


def _entries_of_many(data_at: str, ways_at: str, ways: Sequence[str]) -> list[BurstFile]:
    """Return the files with these links in `ways_at`, by the native library.  Raises OSError."""
    files = []
    for way, home, size_bytes, mtime_ns in copier.look(data_at, ways_at, ways):
        if home[:1] != "/":
            continue
        name = way.removesuffix(HOME)
        data = f"{data_at}/{name}"
        if size_bytes >= 0:
            files.append(BurstFile(name, data, home, way != name, size_bytes, mtime_ns))
        elif size_bytes == -1:
            files.append(BurstFile(name, data, home, way != name, None, mtime_ns))
        else:
            status = os.stat(data)  # noqa: PTH116 - for the error
            size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
            files.append(BurstFile(name, data, home, way != name, size_bytes, mtime_ns))
    return files


def is_torn(path: Path, name: str) -> bool:
    """Return True if a file without a writer is a checkpoint cut short, by the format.

    name: the file's future name; the ending shows the format."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(9)
        if not size_bytes:
            return bool(kind_of(name))
        if head[:4] == b"PK\3\4":
            return not zipfile.is_zipfile(path)
        # A length, then JSON.
        is_safetensors = head[8:] == b"{" and int.from_bytes(head[:8], "little") < 1 << 27
        if kind_of(name) == "safetensors" and is_safetensors:
            return not verify(as_checkpoint(path, "safetensors"), "sizes").is_whole
        if head[:8] == b"\x89HDF\r\n\x1a\n" or kind_of(name) == "hdf5":
            return not verify(as_checkpoint(path, "hdf5"), "sizes").is_whole
        if head.startswith((b"\x93NUMPY", b"GGUF")):  # identified by these bytes, whatever the name
            return verify(as_checkpoint(path, "files"), "sizes").is_unended
        if kind_of(name) == "torch" and head[:1] == b"\x80":  # torch.save before 1.6
            return not verify(as_checkpoint(path, "torch"), "sizes").is_whole
    except OSError:
        pass
    return False


def may_be_torn(data: bytes, name: str) -> bool:
    """Return False if the first bytes already show that is_torn() is False."""
    if not data or data.startswith((b"PK\3\4", b"\x89HDF", b"\x93NUMPY", b"GGUF")):
        return True
    kind = kind_of(name)
    return kind in ("safetensors", "hdf5") or (kind == "torch" and data[:1] == b"\x80")


def as_checkpoint(path: Path, kind: str, manifest: Manifest | None = None) -> Checkpoint:
    store = LocalStore(path.parent)
    status = store.stat(path.name)
    files = (status,) if status is not None else ()
    return Checkpoint(store, path.name, kind, False, files, None, manifest)


def torn_of(file: BurstFile) -> Path:
    return file.home.with_name(beside(file.home.name, TORN))


def _put(new: Path, file: BurstFile) -> os.stat_result | None:
    """Replace the link at the program's path by the file itself, atomically, and mark the file as
    home.  Return None, with nothing changed, if the link is gone or has another target.  Raises
    OSError."""
    if not file.is_linked():
        return None
    with _opened(new) as ours:
        return put_opened(os.fspath(new), file, ours)


def put_opened(new: str, file: BurstFile, ours: int) -> os.stat_result | None:
    """Do the work of _put() with a descriptor of `new`.  ours: the descriptor.  Raises OSError."""
    # Without an exchange, the mark comes first: a drain killed in between leaves a link, and by the
    # link the next drain removes the mark.
    if not _change_opened(new, file, file.is_at, ours, lambda: mark_home(file)):
        return None
    mark_home(file)
    with suppress(FileNotFoundError):
        # Until the mark is set, the link shows the next drain: the file is home.
        os.unlink(new)  # noqa: PTH108 - a text
    return os.fstat(ours)


def _link(file: BurstFile, put: os.stat_result) -> None:
    """Replace the file at the program's path by a link to the tier again, if the path still has the
    file that the drain has put there.  put: the status of the drain's file.  Raises OSError."""
    draft = file.beside(LINK)
    draft.unlink(missing_ok=True)
    draft.symlink_to(file.data)
    try:
        if change(draft, file, lambda path: is_that(path, put)):
            unmark(file)
    finally:
        draft.unlink(missing_ok=True)


def change(
    new: Path,
    file: BurstFile,
    is_there: Callable[[str | Path], bool],
    first: Callable[[], None] = lambda: None,
) -> bool:
    """Exchange `new` and the file or link at the program's path, atomically.

    is_there: returns True for the expected file or link.  Return False, with the path unchanged, if
    the path has another file now.  first: called before the change, on a file system that can only
    replace names.  Raises OSError."""
    if not is_there(file.home):
        return False
    with _opened(new) as ours:
        return _change_opened(os.fspath(new), file, is_there, ours, first)


def _change_opened(
    new: str,
    file: BurstFile,
    is_there: Callable[[str | Path], bool],
    ours: int,
    first: Callable[[], None],
) -> bool:
    """Do the work of change() with a descriptor of `new`.  ours: the descriptor.  Raises
    OSError."""
    if not is_there(file.home_at):
        return False
    try:
        exchange(new, file.home_at)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
        # A change by the program in the microsecond between check and rename stays unnoticed.
        if not is_there(file.home_at):
            return False
        first()
        os.replace(new, file.home_at)  # noqa: PTH105 - texts
        return True
    if not is_there(new):
        _give_way(Path(new), file, file.home, ours)
        return False
    return True


def _give_way(new: Path, file: BurstFile, place: Path | None, ours: int) -> None:
    """Undo an exchange at a path that the program had changed just before the exchange.

    `new` now has the program's file, and the program may have renamed the drain's file since.  Move
    the program's file to the present path of the drain's file.  place: the path where the drain's
    file was put.  ours: a descriptor of the drain's file."""
    while place is not None and os.path.lexists(new):
        with suppress(FileNotFoundError), _opened(new) as theirs:
            exchange(new, place)
            if is_that(new, os.fstat(ours)):
                _lead_home(_target(place), file, place)
                return
            _give_way(new, file, place, theirs)  # changed again: the newest file first
            if not is_that(new, os.fstat(theirs)):
                return
        place = None if _was_taken_away(ours, file) else _place_of(ours)
    if _was_taken_away(ours, file):  # the program took the drain's file for a program's file
        replaced = Path(_target(new))
        if replaced.parent == file.data.parent:
            mark_home(file._replace(name=replaced.name, data_at=str(replaced), is_home=False))


def _was_taken_away(ours: int, file: BurstFile) -> bool:
    """Return True if the program has removed or replaced the file that the drain put at a path."""
    status = os.fstat(ours)
    return not status.st_nlink or is_that(file.was, status)


def _place_of(descriptor: int) -> Path | None:
    """Return the present path of an open file; None: not known."""
    place = Path(f"/proc/self/fd/{descriptor}").readlink()
    return place if is_that(place, os.fstat(descriptor)) else None


def _lead_home(target: str, file: BurstFile, place: Path) -> None:
    """Note the new path of a file on the tier, after the program renamed the link.

    target: the target of the link at `place`.  Nothing changes if `place` is the path of `file`."""
    data = Path(target)
    theirs = file._replace(name=data.name, data_at=target, is_home=False)
    if place != file.home and data.parent == file.data.parent and os.path.lexists(theirs.way):
        rename_home(theirs, place)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Return a descriptor of the file or link at the path; the descriptor identifies the file."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take(file: BurstFile) -> bool:
    """Remove the link at the program's path.  Return False if the link is gone or has another
    target.  Raises OSError."""
    if not file.is_linked():
        return False
    mark_home(file)
    file.home.unlink()
    return True


def mark_home(file: BurstFile) -> None:
    """Mark a file as home, on the tier, for the next drain.  The program may remove the file from
    the path: then no path leads to the file, and only the mark shows the arrival."""
    with suppress(OSError):  # the program is removing the path, or the tier is full
        os.replace(file.way_at(file.is_home), file.way_at(True))  # noqa: PTH105


def unmark(file: BurstFile) -> None:
    if file.is_home:
        os.replace(file.way_at(True), file.way_at(False))  # noqa: PTH105


def was_put(file: BurstFile) -> bool:
    """Return True if the file came home, or was replaced by the earlier file, and the drain was
    killed before the mark."""
    return file.data_at in (_target(file.beside(NEW)), _target(file.was))


def was_replaced(file: BurstFile) -> bool:
    """Return True if the program has replaced the file at the path, or has renamed the file and
    rewritten the path."""
    ways = [_target(file.way_at(is_home)) for is_home in (False, True)]
    return ways == ["", file.home_at]


def _sweep(new: Path) -> None:
    """Remove the leftovers of a killed drain from a program's folder.  new: the draft's path."""
    for leftover in _leftovers(new):
        with suppress(NotADirectoryError):  # a file has the folder's name now
            leftover.unlink(missing_ok=True)


@contextmanager
def swept_if_renamed(files: Sequence[BurstFile]) -> Iterator[None]:
    """Sweep the drafts of files, after the block, in each folder that the program has renamed
    meanwhile: no path leads to these drafts if the program has then removed a file."""
    with ExitStack() as stack:
        folders = dict[str, int]()
        for folder in list(dict.fromkeys(file.folder_at for file in files))[:MOST_WATCHED]:
            with suppress(OSError):
                folders[folder] = descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, descriptor)
        try:
            yield
        finally:
            for folder, descriptor in folders.items():
                if not is_that(folder, os.fstat(descriptor)):
                    drafts = [file.beside(NEW) for file in files if file.folder_at == folder]
                    for leftover in (path for new in drafts for path in _leftovers(new)):
                        with suppress(OSError):
                            os.unlink(leftover.name, dir_fd=descriptor)


def _leftovers(new: Path) -> tuple[Path, ...]:
    """Return the paths beside a program's file that a drain uses.  new: the draft's path."""
    return new, new.with_name(f"{new.name.removesuffix(NEW)}{LINK}"), draft_of(new)


def sweep_noted(note: Path, swept: str = "") -> None:
    """Sweep the draft path in a note, by _sweep(): the file may have moved to another folder.
    swept: a path already swept."""
    new = _target(note)
    with suppress(OSError):  # the program's folder may be gone, or another machine's
        if new.startswith("/") and new.endswith(f"/.{note.name}{NEW}") and new != swept:
            _sweep(Path(new))
    with suppress(OSError):
        note.unlink(missing_ok=True)


def drop(file: BurstFile) -> None:
    """Remove a file from the tier, and the leftovers of a copy from the program's folder."""
    new = file.beside(NEW)
    _sweep(new)
    sweep_noted(file.draft, os.fspath(new))
    if _target(file.was) == file.data_at:  # see was_put()
        file.was.unlink(missing_ok=True)
    drop_data(file)
    Path(f"{file.way_at(False)}{LINK}").unlink(missing_ok=True)


def drop_data(file: BurstFile) -> None:
    """Remove a file on the tier that has no other traces: first the file, then the links to the
    program's path."""
    for place in (file.data_at, file.way_at(False), file.way_at(True)):
        with suppress(FileNotFoundError):
            os.unlink(place)  # noqa: PTH108 - a text


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden names of a program's folder that belong to a drain.  of: the names on the tier of
    the files with hidden names."""

    names: frozenset[str]
    of: frozenset[str]
    is_any_was: bool

    def has_was(self, file: BurstFile) -> bool:
        """Return True if the file's path, or the name under which the file was made, has an earlier
        file."""
        if not self.is_any_was:
            return False
        bases = (file.home_at.rpartition("/")[2], file.name[ID_LETTERS:])
        return any(beside(base, WAS, ".") in self.names for base in bases)

    def has_any(self, file: BurstFile) -> bool:
        """Return True if anything in the folder may belong to the file."""
        return file.name in self.of or len(file.name) > MOST_PLAIN_LETTERS or self.has_was(file)


def hidden_of(folders: Iterable[str]) -> dict[str, Hidden]:
    """Return the hidden names of folders that occur often: one listing of such a folder is cheaper
    than a look-up of the names of each file."""
    hidden = {}
    for folder, count in Counter(folders).items():
        if count < MANY_IN_FOLDER:
            continue
        with suppress(OSError):
            names = frozenset(name for name in names_in(folder) if name.startswith("."))
            left = (LEFT_BY_DRAIN.fullmatch(name) for name in names)
            of = frozenset(match["name"] for match in left if match)
            hidden[folder] = Hidden(names, of, any(name.endswith(WAS) for name in names))
    return hidden


def merge_marks(folder: Path) -> None:
    """Move the mark to the rewritten link of each file whose link was rewritten after the mark."""
    names = set(names_in(folder / "home"))
    for marked in names:
        way = marked.removesuffix(HOME)
        if way != marked and way in names:
            with suppress(FileNotFoundError):
                (folder / "home" / way).replace(folder / "home" / marked)


def sweep_drafts(folder: Path) -> None:
    """Sweep the leftovers of files removed by the program, after a drain or the program was killed
    in the middle of a file."""
    draft, data = folder / "draft", folder / "data"

    def sweep(place: str, name: str) -> None:
        with suppress(OSError):  # the program's folder may be gone
            _sweep(Path(place, f".{name}{NEW}"))

    drafts = names_in(draft) if draft.is_dir() else []
    for note, names in placed_in(os.fspath(draft), drafts):
        for name in names:
            with suppress(OSError):  # gone from the tier, or marked
                os.rename(folder / "home" / name, folder / "home" / f"{name}{HOME}")  # noqa: PTH104
        end_placed(note)
    for name in drafts:
        if not is_of_many(name) and not os.path.lexists(data / name):
            sweep_noted(draft / name)
    if any(map(is_of_many, drafts)):
        sweep_many(os.fspath(draft), lambda name: os.path.lexists(data / name), sweep)
    for name in names_in(folder / "home"):
        if name.endswith(LINK) and not os.path.lexists(data / name.removesuffix(LINK)):
            (folder / "home" / name).unlink(missing_ok=True)
    for name in names_in(data):  # see burst_writing() in native/burst.c
        if name.endswith(NEW):
            with suppress(OSError):
                if time.time() - (data / name).stat().st_mtime > STARTING_S:
                    (data / name).unlink(missing_ok=True)


def is_that(path: str | Path, status: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.lstat(path), status)
    return False


def rename_home(file: BurstFile, place: Path) -> None:
    draft = file.way.with_name(file.name + LINK)
    draft.unlink(missing_ok=True)
    draft.symlink_to(place)
    draft.replace(file.way)
