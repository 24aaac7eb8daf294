"""What lies beside the checkpoints of a fast tier, brought to the slow one: pointers, what loads a
model, and all that belongs to no checkpoint.

Pointers and what loads a model come when all that they can name is there.  Nothing of it is ever
removed, and nothing is written over that came from elsewhere.
"""

import json
import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.save.commit import STATE
from penstock.save.copying import Trip, copy_file
from penstock.save.formats import (
    HINTS,
    Checkpoint,
    is_of_one_file,
    is_unfinished,
    origin_of,
    origins,
)
from penstock.stores import PART, Found, LocalStore, Store

__all__ = ["Beside", "strange"]

# In a slow tier: of what lies beside checkpoints there, from which fast tier each file is.
CAME_FROM = f"{STATE}/beside-model.json"
MOST_CAME_FROM_BYTES = 16 << 20
HINT_BYTES = 64 << 20  # a line for each checkpoint that was kept; a tokenizer


def strange(store: LocalStore, below: str = "", *, is_deep: bool = True) -> dict[str, str]:
    """What lies in a tier, or in a folder of it, and is neither a file nor a folder of its own, and
    why it is not copied: links that lead out of the tier, to nothing or to a folder, and what is no
    file at all.  Links are not followed."""
    root = os.path.realpath(store.folder)
    found, stack = dict[str, str](), [below]
    while stack:
        here = stack.pop()
        with suppress(OSError), os.scandir(store.path(here) if here else store.folder) as scan:
            for entry in scan:
                name = f"{here}/{entry.name}" if here else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if is_deep and name != STATE:
                        stack.append(name)
                elif why := _why_strange(entry, root):
                    found[name] = why
    return found


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
    """hints, rest: on the fast tier, at the last look, as formats.find() gives them.  left: what
    was not copied, and why.  left_alone: what is to be warned of."""

    def __init__(self, fast: LocalStore, slow: Store, look: Callable[[], None]) -> None:
        """look: raises TierError where the slow tier is not there."""
        self._fast, self._slow, self._look = fast, slow, look
        self.hints: list[Found] = []
        self.rest: list[Found] = []
        self._there: set[Found] = set()  # those that the slow tier has, too
        self.left: dict[str, str] = {}
        self.left_alone = ""

    def forget(self) -> None:
        """Before another look."""
        self.hints, self.rest = [], []

    def copy(self, trip: Trip, out: Collection[str], settle_s: float) -> None:
        """What has changed.  out: names of checkpoints that were not copied; settle_s: how long a
        file that belongs to none has to be unchanged; 0: this is the end, and what cannot be copied
        at all is looked for, too.  Raises TierError: a tier is gone."""
        self.left = strange(self._fast) if not settle_s else {}
        for name in [name for name in self.left if self._is_linked(name)]:
            del self.left[name]
        for found in (*self.hints, *self.rest):
            is_hint = found in self.hints
            is_done = found in self._there or found.name in self.left
            if is_done or (is_hint and found.size_bytes > HINT_BYTES):
                continue
            try:
                if is_hint:
                    self._copy_hint(found, out)
                else:
                    self._copy_rest(found, trip, settle_s)
            except SaveError as error:
                self.left[found.name] = str(error)
            except TierError as error:
                if not is_of_one_file(error):  # else the next look comes back to it
                    raise
                self.left[found.name] = str(error)
        self._there &= {*self.hints, *self.rest}

    def _copy_hint(self, found: Found, out: Collection[str]) -> None:
        data = self._fast.read(found.name)
        # One that has changed since the look may name what came after it, too.
        if self._fast.stat(found.name) != found or _names(data, out):
            return
        self._look()
        there = self._slow.stat(found.name)
        if there is None or self._slow.read(found.name) != data:
            is_pointer = found.name.rpartition("/")[2] in HINTS
            if not is_pointer and not self._is_ours(found.name, there):
                self._leave(found.name)
                return
            self._slow.put(found.name, data)
        self._there.add(found)

    def _is_linked(self, name: str) -> bool:
        """Whether the slow tier has a link as this one, to a folder of its own tier: `latest`.
        Raises TierError."""
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

    def _copy_rest(self, found: Found, trip: Trip, settle_s: float) -> None:
        if is_unfinished(found.name):
            self.left[found.name] = "its name says that it is not finished; not copied"
            return
        if time.time() - (found.mtime_ns or 0) / 1e9 < settle_s:
            return  # a later look comes back to it
        if self._fast.path(found.name).is_symlink():
            above, _, _ = found.name.rpartition("/")
            why = strange(self._fast, above, is_deep=False).get(found.name)
            if why:
                self.left[found.name] = why
                return
        self._look()
        there = self._slow.stat(found.name)
        lies = (found.size_bytes, found.mtime_ns)
        if there is not None and (there.size_bytes, there.mtime_ns) == lies:
            self._there.add(found)
            return
        if not self._is_ours(found.name, there):
            self._leave(found.name)
            return
        one = Checkpoint(self._fast, found.name, "files", False, (found,), None)
        copy_file(one, found, self._slow, found.name, trip, is_growing=True)
        self._there.add(found)

    def _leave(self, name: str) -> None:
        self.left[name] = (
            f"{self._slow.url}: {name} is another program's, and stays as it is; give each run a "
            "SLOW of its own"
        )
        self.left_alone = self.left[name]

    def _is_ours(self, name: str, there: Found | None) -> bool:
        """Whether a file may be put under this name on the slow tier, which then knows from which
        fast tier it is: another run there has the like.  Raises TierError."""
        came_from: dict[str, str] = {}
        if self._slow.stat(CAME_FROM) is not None:
            with suppress(ValueError, RecursionError, TypeError):
                came_from = dict(json.loads(self._slow.read(CAME_FROM, 0, MOST_CAME_FROM_BYTES)))
        if there is not None and came_from.get(name) not in origins(self._fast):
            return False
        origin = origin_of(self._fast)
        if came_from.get(name) != origin:
            self._slow.put(CAME_FROM, [json.dumps(came_from | {name: origin}).encode()])
        return True


def _names(hint: bytes, out: Collection[str]) -> bool:
    """Whether a pointer's first line, where the newest stands, names what is not copied."""
    names = (re.escape(os.fsencode(name.rpartition("/")[2])) for name in out)
    line = hint.partition(b"\n")[0]
    return any(re.search(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % name, line) for name in names)
