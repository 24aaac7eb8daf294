"""Earlier files of a program's folder: kept until the replacing save is home completely.

    FOLDER/.NAME.penstock-was   NAME before the arriving save; or a link to nowhere, if the arriving
                                save is the first with a file NAME
    FAST/burst/kept/HASH        a link to a folder with earlier files, for the next drain after a
                                killed drain

The files of a save share a folder and a key (see group_of).  The earlier files of a save are
removed together, when no file of the key is left on a fast tier, and are put back together, when
the tier is lost.  Knows names, links and files; knows no framework and no drain.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from penstock.errors import TierError
from penstock.places.stores import beside, fsync_folder
from penstock.save.overwritten.putback import is_state, mark_put_back

__all__ = [
    "NEWER",
    "WAS",
    "EarlierFolders",
    "Mended",
    "give_back",
    "give_back_save",
    "group_of",
    "is_draft",
    "is_earlier",
    "roll_back",
    "was_of",
    "without_digits",
]

WAS = ".penstock-was"  # same suffix as in native/burst.h
NEWER = ".newer"  # suffix of a newer file whose save is otherwise lost
NONE = "penstock-none"  # link target to mark a name without an earlier file
# While the mark exists, earlier files set aside before the mark are obsolete.
LETTING_GO = ".let-go.penstock-new"
KEPT = "kept"
# A program without a write for QUIET_S seconds has written the whole save.  Used without an earlier
# save of the same names, which would show completeness.  Until then the earlier files only take
# room.
QUIET_S = 10.0
STALE_S = 60.0
MOST_BROUGHT = 200_000

_ON_A_TIER = re.compile(r"(/.*)/burst/data/[0-9a-f]{24}-[^/]+")
# The numbers of the parts of a save.
_PART = re.compile(
    r"-\d+-of-\d+|_\d+_\d+(?=\.distcp)|(?:optimizer|model|scheduler|sampler|random_states|rng_state)"
    r"_\d(?=\.)|(?:rank|layer|shard|part|worker|stage|pp|tp|dp|ep|cp|gpu|chunk|block|expert)[_-]?\d+"
    r"|(?<![a-z])(?:consolidated|member|ensemble|fold|agent|client|node|host|proc|process|device"
    r"|replica|partition|slice|env|mp)[._-]?\d+",
    re.IGNORECASE,
)
_DRAFT = re.compile(r"\.tmp.*|\.incomplete\b.*|\.part\b.*", re.IGNORECASE)
_WORD = re.compile(r"(?<![a-z])(last|latest|best|final|newest|current)(?![a-z])", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_ANY_DIGIT = str.maketrans("123456789", "000000000")


def without_digits(name: str) -> str:
    """Return a name with 0 for each digit, so that the names of many parts become equal."""
    return name.translate(_ANY_DIGIT)


def group_of(name: str) -> str:
    """Return the key of a save within a folder; files of the same save share a key.

    The key consists of the numbers and words that differ between saves (`epoch=3-step=200.ckpt`,
    `last.ckpt`), without the numbers of parts (`-00001-of-00006`, `rank0`).  Names without numbers
    and words of this kind share a key.
    """
    key = _key_of(without_digits(name))  # once for all parts of a save
    return _key_of(name) if "0" in key else key


@lru_cache(maxsize=1 << 14)
def _key_of(name: str) -> str:
    bare = _PART.sub("", _DRAFT.sub("", name))
    stem = bare.removesuffix(".h5").rpartition(".")[0] or bare
    return "/".join(word.lower() for word in (*_WORD.findall(stem), *_NUMBER.findall(stem)))


def is_draft(name: str) -> bool:
    """Return True for the name of a draft, to be renamed by the program at the end."""
    return _DRAFT.search(name) is not None


def was_of(home: Path) -> Path:
    """Return the path of a name's earlier file; same name as in native/burst.c."""
    return home.with_name(beside(home.name, WAS, "."))


def _name_of(was: str) -> str:
    """Return the file name to which an earlier file belongs; empty: no name of an earlier file."""
    return was[1 : -len(WAS)] if was.startswith(".") and was.endswith(WAS) else ""


def is_earlier(was: Path) -> bool:
    """Return True if an earlier file exists; a note of absence does not count."""
    with suppress(OSError):
        return stat.S_ISREG(was.lstat().st_mode)
    return False


def _is_none(path: Path) -> bool:
    with suppress(OSError):
        return os.readlink(path) == NONE  # noqa: PTH115 - the raw link text is compared
    return False


# --- the content of a folder ----------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """The files with a common key.

    kept: names with an earlier file or with the note of absence.  links: link targets, by the names
    of the links to a fast tier.  files: names of regular files.
    """

    kept: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)


def _groups(folder: Path) -> dict[str, _Group]:
    """Return the groups of a folder by key.  Raises OSError."""
    groups: dict[str, _Group] = {}
    with os.scandir(folder) as scan:
        for entry in scan:
            name = _name_of(entry.name)
            # A name too long for the suffix is shortened: the earlier file is a separate group.
            is_ours = bool(name) and was_of(folder / name).name == entry.name
            group = groups.setdefault(group_of(name or entry.name), _Group())
            if is_ours:
                group.kept.add(name)
            elif entry.is_symlink():
                with suppress(OSError):
                    target = os.readlink(entry.path)  # noqa: PTH115
                    if _ON_A_TIER.fullmatch(target) and ".penstock-" not in entry.name:
                        group.links[entry.name] = target
            elif entry.is_file(follow_symlinks=False) and is_state(entry.name):
                group.files.add(entry.name)
    return groups


# --- for a drain ----------------------------------------------------------------------------------


class EarlierFolders:
    """The folders with earlier files known to a drain.  For use in a single thread."""

    def __init__(
        self,
        tier_folder: Path,
        clock: Callable[[], float] = time.monotonic,
        is_ended: Callable[[Path, str], bool | None] = lambda folder, key: None,
    ) -> None:
        """Read the notes of folders on the tier.

        is_ended: returns True if the last save of a folder's files with a key has all files; None:
        unknown.
        """
        self._notes, self._clock, self._is_ended = tier_folder / KEPT, clock, is_ended
        self._folders: set[Path] = set()
        # By folder and key.  _came: names that came home since the save was last complete.  _new:
        # names in _came without an earlier file.  _before: all names that came home before.
        # _busy_s: when a name was last seen on the tier or came home.  _begun: the first file on
        # the tier with an earlier file.
        self._came: dict[tuple[Path, str], set[str]] = {}
        self._new: dict[tuple[Path, str], set[str]] = {}
        self._before: dict[tuple[Path, str], set[str]] = {}
        self._busy_s: dict[tuple[Path, str], float] = {}
        self._begun: dict[tuple[Path, str], str] = {}
        self._listed: set[Path] = set()  # folders with all keys in _busy_s
        self._seen: set[str] = set()  # files on the tier at the last look
        with suppress(OSError):
            for note in self._notes.iterdir():
                folder = os.readlink(note)  # noqa: PTH115
                if folder.startswith("/"):
                    self._folders.add(Path(folder))

    def keep(self, home: Path) -> None:
        """Keep the earlier file of a path until the whole save is home."""
        folder = home.parent
        self._busy_s.setdefault((folder, group_of(home.name)), self._clock())
        if folder in self._folders:
            return
        self._folders.add(folder)
        with suppress(OSError):  # on a full tier no note is made: only the current drain knows
            self._notes.mkdir(exist_ok=True)
            self._note(folder).symlink_to(folder)

    def _note(self, folder: Path) -> Path:
        return self._notes / hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]

    def came(self, name: str, home: Path, has_earlier: bool) -> None:
        """Record that a file of a save is home.  name: on the tier; starts with the time."""
        self.came_at(name, home.parent, home.name, has_earlier)

    def came_at(self, name: str, folder: Path, base: str, has_earlier: bool) -> None:
        """Record an arrival as came() does, for the path folder / base."""
        self.came_together(folder, [(name, base)], has_earlier)

    def came_together(
        self, folder: Path, files: Iterable[tuple[str, str]], has_earlier: bool
    ) -> None:
        """Record arrivals as came_at() does, for files of a folder.

        files: pairs of the name on the tier and the name in the folder.
        """
        of_key: dict[str, list[tuple[str, str]]] = {}
        for name, base in files:
            of_key.setdefault(group_of(base), []).append((name, base))
        for key, ours in of_key.items():
            at = folder, key
            came, new = self._came.setdefault(at, set()), self._new.setdefault(at, set())
            begun = None if has_earlier else self._begun.get(at)
            for name, base in ours:
                if base in came:  # the next save of the same names has begun
                    self._before[at] = self._before.get(at, set()) | came
                    came.clear()
                came.add(base)
                if begun is not None and name >= begun:
                    new.add(base)
            self._busy_s[at] = self._clock()
        if sum(map(len, self._came.values())) > MOST_BROUGHT:
            self._came.clear()
            self._new.clear()

    def let_go(
        self, left: Mapping[str, str], is_over: bool, ask: Callable[[], Mapping[str, str]]
    ) -> None:
        """Remove the earlier files of completely arrived saves.

        left: the paths of the files on the fast tier, by tier name.  ask: returns `left` anew.
        is_over: no program writes any more.  Raises the exceptions of `ask`.
        """
        self._see(left)
        pending = self._pending(left)
        for folder in sorted(self._folders):
            with suppress(OSError):  # the next look retries
                self._let_go_of(folder, pending.get(folder, {}), is_over, ask)

    def _see(self, left: Mapping[str, str]) -> None:
        """Record the saves begun since the last look, if the saves replace earlier saves."""
        new = left.keys() - self._seen
        self._seen = set(left)
        of_folder: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(new):
            folder, _, base = left[name].rpartition("/")
            of_folder.setdefault(folder or "/", []).append((name, base))
        for folder, files in of_folder.items():
            with suppress(OSError):  # the program has removed the folder
                if not any(name.endswith(WAS) for name in os.listdir(folder)):  # noqa: PTH208
                    continue
                at = Path(folder)
                groups = _groups(at)
                for name, base in files:
                    key = group_of(base)
                    if base in groups.get(key, _Group()).kept:
                        self.keep(at / base)
                        self._begun.setdefault((at, key), name)

    def _pending(self, left: Mapping[str, str]) -> dict[Path, dict[str, set[str]]]:
        pending: dict[Path, dict[str, set[str]]] = {}
        of_text = {str(folder): folder for folder in self._folders}
        for home in left.values() if of_text else ():
            folder, _, base = home.rpartition("/")
            at = of_text.get(folder or "/")
            if at is not None:
                pending.setdefault(at, {}).setdefault(group_of(base), set()).add(base)
        return pending

    def _let_go_of(
        self,
        folder: Path,
        pending: Mapping[str, set[str]],
        is_over: bool,
        ask: Callable[[], Mapping[str, str]],
    ) -> None:
        """Remove the earlier files of a folder's completely arrived saves.

        Raises OSError and the exceptions of `ask`.
        """
        blocked = {key for key, names in pending.items() if not all(map(_DRAFT.search, names))}
        for key in blocked:
            self._busy_s[folder, key] = self._clock()
            self._note_new(folder, key)
        keys = {key for at, key in self._busy_s if at == folder} - blocked
        may_go = any(key in pending or self._is_whole(folder, key, is_over) for key in keys)
        if folder in self._listed and not may_go:
            return
        try:
            groups = _groups(folder)
        except (FileNotFoundError, NotADirectoryError):
            groups = {}
        # A file may have moved from a full tier to its path since the last look: no link any more.
        now_pending = self._pending(ask()).get(folder, {})
        blocked |= {key for key in now_pending if key not in pending}
        self._listed.add(folder)
        is_left = False
        for key, group in groups.items():
            if not group.kept:
                continue
            self._busy_s.setdefault((folder, key), -math.inf)
            if key in blocked or not self._may_go(folder, key, group, is_over):
                is_left = True
                continue
            _remove_earlier(folder, group.kept)
            self._before[folder, key] = self._came.pop((folder, key), set())
            self._new.pop((folder, key), None)
            self._begun.pop((folder, key), None)
        if not is_left and not blocked:
            self._forget(folder)

    def _may_go(self, folder: Path, key: str, group: _Group, is_over: bool) -> bool:
        """Return True if the save after the earlier files of a group is home."""
        of_next = {name for name in group.links if _is_of_next(name, group)}
        is_whole = bool(of_next) or self._is_whole(folder, key, is_over)
        is_unended = self._is_ended(folder, key) is False
        return is_whole and not is_unended and not group.links.keys() - of_next

    def _forget(self, folder: Path) -> None:
        with suppress(TierError, OSError):  # the list of put-back files is obsolete now
            mark_put_back(folder, {})
        self._folders.discard(folder)
        self._listed.discard(folder)
        self._busy_s = {at: busy_s for at, busy_s in self._busy_s.items() if at[0] != folder}
        self._note(folder).unlink(missing_ok=True)
        with suppress(OSError):  # other folders have notes there
            self._notes.rmdir()

    def _is_whole(self, folder: Path, key: str, is_over: bool) -> bool:
        """Return True if a save is home completely; no file of the save may be on the tier."""
        at = folder, key
        is_ended = self._is_ended(folder, key)
        if is_ended is not None:
            return is_ended
        before = self._before.get(at)
        is_quiet = self._clock() - self._busy_s.get(at, -math.inf) >= QUIET_S
        return is_over or is_quiet or bool(before and before <= self._came.get(at, set()))

    def _note_new(self, folder: Path, key: str) -> None:
        """Mark the new names of an incomplete save as having no earlier file.

        A later rollback then does not count the new files to the earlier save.  Raises OSError.
        """
        new = self._new.get((folder, key), set())
        while new:
            name = new.pop()
            with suppress(FileExistsError):
                if not (folder / name).is_symlink():
                    was_of(folder / name).symlink_to(NONE)


def _is_of_next(name: str, group: _Group) -> bool:
    """Return True if a draft belongs to the save after the current save.

    The file with the draft's final name was replaced already or, if the final name is unknown,
    every file was.
    """
    if not _DRAFT.search(name):
        return False
    final = _DRAFT.sub("", name)
    return final in group.kept if final else group.files <= group.kept


def _remove_earlier(folder: Path, names: Iterable[str]) -> None:
    """Remove all earlier files of the names; after a failure the mark stays.  Raises OSError."""
    ordered = sorted(names)
    mark = folder / LETTING_GO
    if len(ordered) > 1:
        mark.unlink(missing_ok=True)
        mark.touch(mode=0o600)
    for name in ordered:
        was_of(folder / name).unlink(missing_ok=True)
    mark.unlink(missing_ok=True)


# --- after the loss of a tier ---------------------------------------------------------------------


class Mended(NamedTuple):
    """A lost file, or a file newer than the restored save.

    is_back: the earlier file is at the path again.  newer: the new name of the file formerly at the
    path.
    """

    place: Path
    is_back: bool
    newer: Path | None = None


def roll_back(folder: Path, lost: Iterable[str]) -> list[Mended]:
    """Put back the earlier save of a folder with lost files.

    Files of the lost save that are home already are renamed to NAME.newer.  The files to put back
    are listed first, so that a reader can recognise newer files.  roll_back() may be interrupted
    and repeated at any point.  Raises TierError, OSError.
    """
    mended: list[Mended] = []
    names = set(lost)
    _remove_stale(folder)
    groups = _groups(folder)
    of_key: dict[str, set[str]] = {}
    for name in names:
        of_key.setdefault(group_of(name), set()).add(name)
    back: dict[str, tuple[int, int]] = {}
    old: set[str] = set()
    for key, its in of_key.items():
        group = groups.get(key, _Group())
        if all(_is_of_next(name, group) for name in its):
            old |= group.kept - its  # the current save has arrived completely
            group.kept &= its
        back |= _older(folder, group, its)
    if back:
        mark_put_back(folder, back)
    for key, its in sorted(of_key.items()):
        group = groups.get(key, _Group())
        for name in sorted(group.kept - its):  # first: a remaining lost link identifies the save
            if (mended_file := _put_back(folder / name)) is not None:
                mended.append(mended_file)
        fsync_folder(folder)
        for name in sorted(its):
            mended.append(_end_lost(folder / name))
    for name in old:
        was_of(folder / name).unlink(missing_ok=True)
    for key, group in groups.items():
        if key not in of_key and not group.links:
            _forget_old(folder, group.kept)
    fsync_folder(folder)
    return mended


def give_back_save(
    home: Path,
    begun_ns: int,
    returned: tuple[int, int] | None,
    lead_aside: Callable[[Path, Path], bool],
) -> list[Path]:
    """Put back the earlier files of a save in which a file is torn for good; return the paths.

    Call before the earlier file of the torn file is put back: the result would be a mixture.

    home: path of the torn file; the torn file stays unchanged.  begun_ns: when the torn file was
    begun.  returned: size in bytes and time in ns of the torn file's earlier file; None: no earlier
    file.  lead_aside: puts the earlier file in the place of a link to the tier and moves the link
    to a second path; returns False if the link's target is torn as well and is handled separately.
    Raises TierError, OSError.
    """
    folder, key = home.parent, group_of(home.name)
    group = _groups(folder).get(key, _Group())
    others = {}
    for name in (group.files | group.links.keys()) - {home.name}:
        with suppress(FileNotFoundError):  # link to a lost tier
            status = (folder / name).stat()
            others[name] = status.st_size, status.st_mtime_ns
    if returned is None:  # the program continued after the file: the save did not end there
        older = {name: facts for name, facts in others.items() if facts[1] > begun_ns}
        older = others if older else {}
    else:
        older = _nearer(others, {home.name: returned}, begun_ns)
    if older.keys() >= others.keys():
        return []
    back = {
        name: (status.st_size, status.st_mtime_ns)
        for name in group.kept - {home.name}
        if is_earlier(was := was_of(folder / name)) and (status := was.stat())
    }
    mine = {} if returned is None else {home.name: returned}
    mark_put_back(folder, older | back | mine)
    done = []
    for name in sorted(group.kept - {home.name}):
        place = folder / name
        newer = place.with_name(beside(name, NEWER))
        if name in group.links and name in back:
            if lead_aside(place, newer):
                done.append(place)
        elif name in group.files and _put_back(place) is not None:
            done.append(place)
    fsync_folder(folder)
    return done


def give_back(homes: Iterable[Path]) -> list[Mended]:
    """Put back the earlier files of paths; a path without an earlier file is unchanged.

    May be interrupted and repeated.  Raises OSError.
    """
    done = [mended_file for home in homes if (mended_file := _put_back(home)) is not None]
    for folder in dict.fromkeys(file.place.parent for file in done):
        fsync_folder(folder)
    return done


def _end_lost(place: Path) -> Mended:
    """Put the earlier file of a lost path back, or remove the link.  Raises OSError."""
    was = was_of(place)
    if is_earlier(was):
        was.replace(place)
        return Mended(place, True)
    place.unlink(missing_ok=True)
    if _is_none(was):
        was.unlink(missing_ok=True)
    return Mended(place, False)


def _put_back(home: Path) -> Mended | None:
    """Put the earlier file of a path back; None: the path is unchanged.  Raises OSError."""
    was, newer = was_of(home), home.with_name(beside(home.name, NEWER))
    if _is_same(was, home):
        was.unlink(missing_ok=True)  # set aside by a program killed before the next step
        return None
    if _is_none(was):
        if home.is_symlink() or not home.exists():
            was.unlink(missing_ok=True)
            return None
        home.replace(newer)
        was.unlink(missing_ok=True)
        return Mended(home, False, newer)
    if not is_earlier(was):
        return None
    if home.is_symlink() or not home.exists():
        was.replace(home)
        return Mended(home, True)
    newer.unlink(missing_ok=True)
    try:
        newer.hardlink_to(home)
    except OSError:
        home.replace(newer)
    was.replace(home)
    return Mended(home, True, newer)


def _is_same(path: Path, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.lstat(), other.lstat())
    return False


def _remove_stale(folder: Path) -> None:
    """Remove earlier files left by a drain killed during the removal.  Raises OSError."""
    try:
        since_ns = (folder / LETTING_GO).stat().st_ctime_ns
    except FileNotFoundError:
        return
    for group in _groups(folder).values():
        for name in group.kept:
            was = was_of(folder / name)
            if was.lstat().st_ctime_ns <= since_ns:
                was.unlink(missing_ok=True)
    (folder / LETTING_GO).unlink(missing_ok=True)


def _forget_old(folder: Path, names: Iterable[str]) -> None:
    """Remove old earlier files of a completely arrived save, if the drain was lost with the tier.

    Raises OSError.
    """
    wases = [was_of(folder / name) for name in names]
    if all(time.time() - was.lstat().st_ctime > STALE_S for was in wases):
        for was in wases:
            was.unlink(missing_ok=True)


def _older(folder: Path, group: _Group, lost: set[str]) -> dict[str, tuple[int, int]]:
    """Return the size in bytes and time in ns of each file of the earlier save.

    The files are the files to put back, and the files never replaced.  Raises OSError.
    """
    back: dict[str, tuple[int, int]] = {}
    for name in group.kept:
        was = was_of(folder / name)
        if is_earlier(was):
            status = was.stat()
            back[name] = status.st_size, status.st_mtime_ns
    if not back:
        return {}
    begun_ns = min(map(_made_ns, (group.links.get(name, "") for name in lost)), default=0)
    others = {}
    for name in group.files - group.kept - lost:
        status = (folder / name).stat()
        others[name] = status.st_size, status.st_mtime_ns
    return back | _nearer(others, back, begun_ns)


def _nearer(
    others: Mapping[str, tuple[int, int]], back: Mapping[str, tuple[int, int]], begun_ns: int
) -> dict[str, tuple[int, int]]:
    """Return the other files that belong to the restored save, by time.

    A file belongs to the nearer save: the files put back, or the save begun at begun_ns.  Only the
    times show to which of the two saves a file belongs.
    """
    newest_ns = max(mtime_ns for _, mtime_ns in back.values())
    return {
        name: (size_bytes, mtime_ns)
        for name, (size_bytes, mtime_ns) in others.items()
        if mtime_ns <= newest_ns or mtime_ns - newest_ns < begun_ns - mtime_ns
    }


def _made_ns(target: str) -> int:
    """Return when a link's target on the tier was made, in ns, from the target's name."""
    with suppress(ValueError):
        return int(Path(target).name[:16], 16)
    return 0
