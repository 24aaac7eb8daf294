"""Copy the files beside the checkpoints of a fast tier to the slow tier: pointers, the files that
load a model, and files of no checkpoint.

A pointer, or a file that loads a model, is copied when every checkpoint that the file can name is
on the slow tier.  The module never removes a file, and never overwrites a file from another source.
"""

import json
import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import PART, LocalStore, Store, StoredFile
from penstock.save.checkpoint import Checkpoint, is_of_one_file, origin_of, origins
from penstock.save.commit import STATE
from penstock.save.copy.copying import Trip, copy_file
from penstock.save.find.tree import HINTS, is_unfinished
from penstock.save.kept import kept_json
from penstock.save.unit.names import has_data, may_be_state
from penstock.save.verify import UNCHECKED, verify

__all__ = ["HINT_BYTES", "Beside", "copied_from", "strange"]

# In a slow tier: for each file beside the checkpoints, the fast tier of origin.
CAME_FROM = f"{STATE}/beside-model.json"
MOST_CAME_FROM_BYTES = 16 << 20
LEAST_BYTES_TOLD = 1 << 20  # a smaller file of no checkpoint is rarely a state
HINT_BYTES = 64 << 20  # a line for each kept checkpoint; a tokenizer


def copied_from(slow: Store) -> dict[str, str]:
    """Return the fast tier of origin for each file beside the checkpoints of a slow tier.
    Raises TierError."""
    with suppress(ValueError, TypeError):
        return dict(kept_json(slow, CAME_FROM, MOST_CAME_FROM_BYTES) or {})
    return {}


def strange(store: LocalStore, below: str = "", *, is_deep: bool = True) -> dict[str, str]:
    """Return the entries of a tier, or of a folder, that are not copied, with the reason.

    An entry is not copied if the entry is a link out of the tier, a link to a missing target or to
    a folder, or no file at all (a pipe, a socket, a device).  Links are not followed."""
    root = os.path.realpath(store.folder)
    reasons, stack = dict[str, str](), [below]
    while stack:
        here = stack.pop()
        with suppress(OSError), os.scandir(store.path(here) if here else store.folder) as scan:
            for entry in scan:
                name = f"{here}/{entry.name}" if here else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if is_deep and name != STATE:
                        stack.append(name)
                elif why := _why_strange(entry, root):
                    reasons[name] = why
    return reasons


def _why_strange(entry: os.DirEntry[str], root: str) -> str:
    if entry.is_file(follow_symlinks=False):
        return ""
    if not entry.is_symlink():
        return "it is no file (a pipe, a socket or a device); not copied"
    there = os.path.realpath(entry.path)
    if not os.path.exists(there):  # noqa: PTH110 - a text
        return f"a link to {Path(entry.path).readlink()}, which is not there; not copied"
    if os.path.commonpath((root, there)) != root:
        return f"a link that leads out of the tier, to {there}; not copied"
    return "a link to a folder; not copied" if os.path.isdir(there) else ""  # noqa: PTH112


class Beside:
    """Copier of the files beside the checkpoints.

    hints, rest: files on the fast tier at the last search, from formats.find().  left: uncopied
    files, with the reason.  left_alone, unchecked: the texts of warnings.
    """

    def __init__(self, fast: LocalStore, slow: Store, look: Callable[[], None]) -> None:
        """Prepare a copier.  look: raises TierError where the slow tier is missing."""
        self._fast, self._slow, self._look = fast, slow, look
        self.hints: list[StoredFile] = []
        self.rest: list[StoredFile] = []
        self._there: set[StoredFile] = set()  # files that the slow tier has too
        self.left: dict[str, str] = {}
        self.left_alone = self.unchecked = ""

    @property
    def warnings(self) -> tuple[str, str]:
        return self.left_alone, self.unchecked

    def forget(self) -> None:
        """Forget the files of the last search."""
        self.hints, self.rest = [], []

    def copy(self, trip: Trip, out: Collection[str], settle_s: float) -> bool:
        """Copy the changed files.  Return True if a file was copied, or is known to be there now.

        out: names of uncopied checkpoints; settle_s: how long a file of no checkpoint must be
        unchanged; 0: the last call, when files that cannot be copied at all are listed too.  Raises
        TierError: a tier is gone."""
        n_before = len(self._there)
        self.left = strange(self._fast) if not settle_s else {}
        held = tuple(
            f"{held_name}/" for held_name in out
        )  # a link alone would take the checkpoint's name
        for name in [name for name in self.left if not name.startswith(held)]:
            if self._is_linked(name):
                del self.left[name]
        for file in (*self.hints, *self.rest):
            is_hint = file in self.hints
            is_done = file in self._there or file.name in self.left
            if is_done or (is_hint and file.size_bytes > HINT_BYTES):
                continue
            try:
                if is_hint:
                    self._copy_hint(file, out)
                else:
                    self._copy_rest(file, trip, settle_s)
            except SaveError as error:
                self.left[file.name] = str(error)
            except TierError as error:
                if not is_of_one_file(error):  # else the next round retries the file
                    raise
                self.left[file.name] = str(error)
        is_more = len(self._there) > n_before
        self._there &= {*self.hints, *self.rest}
        return is_more

    def _copy_hint(self, file: StoredFile, out: Collection[str]) -> None:
        data = self._fast.read(file.name)
        # A pointer with changes since the search may name a later checkpoint too.
        if self._fast.stat(file.name) != file or _names(data, out):
            return
        self._look()
        there = self._slow.stat(file.name)
        if there is None or self._slow.read(file.name) != data:
            is_pointer = file.name.rpartition("/")[2] in HINTS
            if not is_pointer and not self._is_ours(file.name, there):
                self._leave(file.name)
                return
            self._slow.put(file.name, data)
        self._there.add(file)

    def _is_linked(self, name: str) -> bool:
        """Make the link on the slow tier, if the target is a folder of the fast tier (`latest`).
        Returns True if the slow tier has the link.  Raises TierError."""
        path, slow = self._fast.path(name), self._slow
        there = os.path.realpath(path)
        if not isinstance(slow, LocalStore) or not os.path.isdir(there):  # noqa: PTH112
            return False
        target = os.path.relpath(there, os.path.realpath(path.parent))
        root = os.path.realpath(self._fast.folder)
        if os.path.commonpath((root, there)) != root or there == root:
            return False
        self._look()
        new = slow.path(name)
        draft = new.with_name(f".{new.name}{PART}")
        if not new.is_symlink() and os.path.lexists(new):
            return False
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            draft.symlink_to(target)
            draft.replace(new)
        except OSError:
            return False
        return True

    def _copy_rest(self, file: StoredFile, trip: Trip, settle_s: float) -> None:
        if is_unfinished(file.name):
            self.left[file.name] = "its name says that it is not finished; not copied"
            return
        if time.time() - (file.mtime_ns or 0) / 1e9 < settle_s:
            return  # a later round retries the file
        if self._fast.path(file.name).is_symlink():
            above, _, _ = file.name.rpartition("/")
            why = strange(self._fast, above, is_deep=False).get(file.name)
            if why:
                self.left[file.name] = why
                return
        self._look()
        there = self._slow.stat(file.name)
        lies = (file.size_bytes, file.mtime_ns)
        if there is not None and (there.size_bytes, there.mtime_ns) == lies:
            self._there.add(file)
            return
        if not self._is_ours(file.name, there):
            self._leave(file.name)
            return
        checkpoint = Checkpoint(self._fast, file.name, "files", False, (file,), None)
        if why := _why_torn(checkpoint):
            self.left[file.name] = f"{why}; not copied: the copy of an earlier state stays"
            return
        copy_file(checkpoint, file, self._slow, file.name, trip, is_growing=True)
        self._there.add(file)
        if not self.unchecked and file.size_bytes >= LEAST_BYTES_TOLD and _is_unchecked(checkpoint):
            self.unchecked = f"{file.name}, a file of no checkpoint, is copied: {NOTHING_SHOWS}"

    def _leave(self, name: str) -> None:
        self.left[name] = (
            f"{self._slow.url}: {name} is another program's, and stays as it is; give each run a "
            "SLOW of its own"
        )
        self.left_alone = self.left[name]

    def _is_ours(self, name: str, there: StoredFile | None) -> bool:
        """Return True if the name on the slow tier is free, or the present file came from this fast
        tier: another run may have a file with an equal name there.  If True, record the fast tier
        as the origin.  Raises TierError."""
        came_from = copied_from(self._slow)
        if there is not None and came_from.get(name) not in origins(self._fast):
            return False
        origin = origin_of(self._fast)
        if came_from.get(name) != origin:
            self._slow.put(CAME_FROM, [json.dumps(came_from | {name: origin}).encode()])
        return True


def _why_torn(checkpoint: Checkpoint) -> str:
    """Return why a file of no checkpoint is cut short, by the content; empty if the file is whole,
    or cannot hold a state."""
    base = checkpoint.name.rpartition("/")[2]
    if "." in base and not may_be_state(base):
        return ""
    problems = verify(checkpoint, "sizes").problems if checkpoint.size_bytes else ()
    return "; ".join(why for why in problems if not why.startswith("cannot be read"))


NOTHING_SHOWS = "unchecked, as nothing in it shows that its writing had ended"


def _is_unchecked(checkpoint: Checkpoint) -> bool:
    """Return True for a file without a length in the format, which may be a state."""
    return has_data(checkpoint.name) and verify(checkpoint, "sizes").state == UNCHECKED


def _names(hint: bytes, out: Collection[str]) -> bool:
    """Return True if the first line of a pointer, the newest, names an uncopied checkpoint."""
    names = (re.escape(os.fsencode(name.rpartition("/")[2])) for name in out)
    line = hint.partition(b"\n")[0]
    return any(re.search(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % name, line) for name in names)
