"""Decide whether the last save of a program that reuses file names has ended.

A *round* is the set of files written before a name occurs for the second time.  A name in each of
the last rounds is written by each save: while the present round lacks the name, the save has not
ended.  A single round is enough only for names of a training's state (`model.pt`, `optim.pt`);
other names need two rounds, as a program may write a name once only.

Files of a training share a folder and the key of penstock.save.overwritten.earlier.group_of, or are
in folders named after parts of a state (`weights/last.pt`, `states/last.pt`).  Names with the
number of a step are never written twice and are not followed.  Numbers without a word (`0.pt` to
`3.pt`, `opt_00.npz`) count the parts of a save under two conditions.  The numbers of a round have
no gap from 0 or 1.  The pauses between the files are short beside the pause between the rounds: a
program with a ring of slots writes a single slot per save.  A description in each save
(`trainer_state.json`) is not written to the fast tier: the time of the file at the path shows
whether the last save has written the description.

The module knows names and times, and reads no file except the record on the fast tier.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import PenstockError, TierError
from penstock.places.stores import LocalStore
from penstock.save.commit import STATE
from penstock.save.kept import kept_json
from penstock.save.overwritten.earlier import group_of, is_draft, without_digits
from penstock.save.unit.divided import without_resharded
from penstock.save.unit.folders import place_of
from penstock.save.unit.names import is_part_of_a_training, parts_of
from penstock.save.unit.spans import Saves

__all__ = ["Rounds", "Write"]

RECORD = f"{STATE}/rounds.json"
MOST_RECORD_BYTES = 16 << 20
MOST_NAMES, MOST_FAMILIES, MOST_ROW_DIGITS = 1024, 100, 4
# A program that twice in a row writes some names without the others does not write the names
# together.  A single case may be a restart of the program.
MOST_MISSES = 2
# A pause between two rounds is longer than a pause within a round by this factor at least.
PAUSE = 3
_KEY_WORDS = re.compile(r"(?<![a-z])(last|latest|best|final|newest|current)(?![a-z])", re.I)


class Write(Protocol):
    """A file that the program has begun.  name: on the tier, sorts by time; home_at: the program's
    present path of the file; owner: the run."""

    @property
    def name(self) -> str: ...

    @property
    def home_at(self) -> str: ...

    @property
    def owner(self) -> str: ...


def _begun_ns(name: str) -> int:
    """Return the time in a name on the tier."""
    with suppress(ValueError):
        return int(name[:16], 16)
    return 0


@dataclass(slots=True)
class _Family:
    """The rounds of a training.

    rounds: the last two ended rounds, the older first.  now: the files of the present round, with
    the times at which the files were begun.  misses: number of rounds in a row that ended without
    some usual names.  ahead: names that were written once more than the other names in a round with
    misses.  is_held: a save of an earlier run has not ended.  together: names of the only round
    that a single save of the recorded run wrote.  span: the times at which the first and the last
    file of the round before were begun."""

    owner: str = ""
    rounds: list[list[str]] = field(default_factory=list)
    now: dict[str, int] = field(default_factory=dict)
    misses: int = 0
    ahead: list[str] = field(default_factory=list)
    is_held: bool = False
    together: list[str] = field(default_factory=list)
    span: list[int] = field(default_factory=list)

    def usual(self) -> set[str]:
        """Return the names that each save writes, by the evidence of the last rounds."""
        if len(self.rounds) > 1:
            return set(self.rounds[0]) & set(self.rounds[1])
        first_round = set(self.rounds[0]) if self.rounds else set[str]()
        rows = {path for path in first_round if _row_of(path) is not None}
        is_save = len(first_round) > 1 and all(map(_is_part, first_round - rows))
        return first_round if is_save else (first_round & set(self.together)) | rows

    def missing(self) -> set[str]:
        """Return the names that the present round lacks; empty: the save has ended, or nothing is
        known."""
        usual = self.usual()
        if usual.isdisjoint(self.now):
            return set()
        sizes = dict.fromkeys(self.now, 0)
        return set(without_resharded(usual - self.now.keys(), {}, sizes))

    def add(self, write: Write) -> None:
        path = write.home_at
        if write.owner != self.owner:
            self.is_held = self.is_held or bool(self.missing())
            if not self.missing() and self.now:
                self._end_round(_begun_ns(write.name))
            self.owner, self.now, self.misses, self.ahead = write.owner, {}, 0, []
        if path in self.now:
            if self.ahead and path not in self.ahead:  # a rank that was a save behind
                self.ahead = []
                self.now[path] = _begun_ns(write.name)
                return
            self._end_round(_begun_ns(write.name))
            self.now = {}
        self.now[path] = _begun_ns(write.name)
        if self.is_held and self.usual() and self.usual() <= self.now.keys():
            self.is_held = False

    def _end_round(self, next_ns: int) -> None:
        """End the present round.  next_ns: when the first file of the next round was begun."""
        missing = self.missing()
        self.span = [min(self.now.values()), max(self.now.values())]
        if missing and self.misses + 1 < MOST_MISSES:
            self.misses += 1
            self.ahead = [path for path in self.now if path in self.usual()]
            return
        if missing:  # a second miss in a row: the names are not written together
            self.rounds, self.is_held = [], False
        self.misses, self.ahead = 0, []
        rows = _rows_at_once(self.now, next_ns)
        names = [path for path in self.now if path in rows or _row_of(path) is None]
        self.rounds = [*self.rounds, names][-2:]

    def old_descriptions(self) -> list[str]:
        """Return the descriptions that the round before wrote and the present round did not."""
        usual = self.usual()
        if not self.span or not self.now or usual.isdisjoint(self.now):
            return []
        begun_ns = min(self.now.values())
        nearer_ns = (begun_ns - self.span[1]) // 2
        since_ns, until_ns = self.span[0] - nearer_ns, self.span[1] + nearer_ns
        times = _descriptions_in({path.rpartition("/")[0] for path in usual})
        return sorted(path for path, at_ns in times.items() if since_ns <= at_ns <= until_ns)


def _is_part(path: str) -> bool:
    folder, _, base = path.rpartition("/")
    stem = _KEY_WORDS.sub("", base.partition(".")[0]).strip("-_")
    return is_part_of_a_training(stem or folder.rpartition("/")[2])


def _descriptions_in(folders: Iterable[str]) -> dict[str, int]:
    """Return when each description of a state was written, by path."""
    times = dict[str, int]()
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as scan:
            for entry in scan:
                if entry.name.endswith(".json") and parts_of(entry.name).is_state_text:
                    times[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
    return times


@lru_cache(1 << 12)
def _row_of(path: str) -> tuple[str, int] | None:
    """Return the path with # for the only number without a word, and the number; None: there is no
    number without a word."""
    folder, _, base = path.rpartition("/")
    key = group_of(base)
    if not key.isdigit() or len(key) > MOST_ROW_DIGITS or parts_of(base).is_told:
        return None
    return f"{folder}/{re.sub('[0-9]+', '#', base)}", int(key)


def _rows_at_once(now: Mapping[str, int], next_ns: int) -> set[str]:
    """Return the numbered names of a round whose numbers count the parts of one save."""
    rows = defaultdict[str, dict[int, str]](dict)
    for path in now:
        if (row_key := _row_of(path)) is not None:
            rows[row_key[0]][row_key[1]] = path
    between_ns = next_ns - max(now.values(), default=0)
    parts = set[str]()
    for row in rows.values():
        times = sorted(now[path] for path in row.values())
        pause_ns = max((right - left for left, right in pairwise(times)), default=0)
        has_no_gap = min(row) in (0, 1) and max(row) - min(row) == len(row) - 1
        if len(row) > 1 and has_no_gap and PAUSE * pause_ns <= between_ns:
            parts.update(row.values())
    return parts


def _family_of(path: str) -> str:
    """Return the family of a path; empty: the path is not followed."""
    folder, _, base = path.rpartition("/")
    return _family_in(folder, _key_of(base))


def _key_of(base: str) -> str:
    return "" if _row_of(base) is not None else group_of(base)


def _followed_in(folder: str, base: str) -> str:
    """Return the family of a path; empty: the path is a draft, or is not followed."""
    key = _followed_like(folder, without_digits(base))  # once for all parts of a save
    if key is not None:
        return key
    return "" if is_draft(base) else _family_in(folder, _key_of(base))


@lru_cache(1 << 12)
def _followed_like(folder: str, shape: str) -> str | None:
    """Return the family of all names that differ in digits only; None: the digits decide."""
    if "0" in group_of(shape):
        return None
    return "" if is_draft(shape) else _family_in(folder, _key_of(shape))


@lru_cache(1 << 12)
def _family_in(folder: str, key: str) -> str:
    if any(map(str.isdigit, key)):
        return ""
    rest = place_of(f"{folder.lstrip('/')}/model.pt", False)[0][0]
    return "/".join((*(rest if isinstance(rest, tuple) else ()), f"\n{key}"))


class Rounds:
    """The saves of the programs whose files are on a tier.  Used by one thread."""

    def __init__(self, tier: Path) -> None:
        self._store = LocalStore(tier, makes_folders=False)
        self._families: dict[str, _Family] = {}
        self._seen: dict[str, str] = {}  # by name on the tier: the path at the last look
        self._followed = set[str]()  # names of the files in a family
        self._ignored = set[str]()  # families of too many names
        self._kept, self._has_learned = "", False
        with suppress(TierError, TypeError, KeyError, ValueError, AttributeError):
            self._read(kept_json(self._store, RECORD, MOST_RECORD_BYTES))

    def _read(self, record: Any) -> None:
        """Read a record.  Raises TypeError, KeyError, ValueError, AttributeError: another program
        wrote the record."""
        if record is None or record["version"] != 1:
            return
        for key, row in record["families"].items():
            rounds = [[str(name) for name in names] for names in row["rounds"][-2:]]
            now = {str(path): int(begun_ns) for path, begun_ns in row["now"].items()}
            ahead = [str(path) for path in row["ahead"]]
            together = [str(path) for path in row.get("together", ())]
            misses, is_held = int(row["misses"]), bool(row["is_held"])
            span = [int(number) for number in row.get("span", ())[:2]]
            self._families[str(key)] = _Family(
                str(row["owner"]), rounds, now, misses, ahead, is_held, together, span
            )
        self._seen = {str(name): str(path) for name, path in record["seen"].items()}
        self._followed = set(self._seen)

    def saw(self, writes: Sequence[Write], are_all: bool = True) -> None:
        """Record the files on the tier, including replaced files.  are_all: False if the tier may
        have other files."""
        fresh = [write for write in writes if self._seen.get(write.name) != write.home_at]
        newest = dict[str, str]()
        if any(write.name in self._seen for write in fresh):
            newest = {
                written_file.home_at: written_file.name
                for written_file in sorted(writes, key=lambda written_file: written_file.name)
            }
        for write in sorted(fresh, key=lambda file: file.name):
            before = self._seen.get(write.name)
            if before is not None:
                if write.name in self._followed and newest.get(before, "") > write.name:
                    continue  # moved to free the name for the next file
                self.forget(write.name)  # a draft until now
            self._seen[write.name] = write.home_at
            folder, _, base = write.home_at.rpartition("/")
            key = _followed_in(folder, base)
            if not key or key in self._ignored:
                continue
            self._followed.add(write.name)
            family = self._families.setdefault(key, _Family(write.owner))
            family.add(write)
            if len(family.now) > MOST_NAMES or len(self._families) > MOST_FAMILIES:
                del self._families[key]
                self._ignored.add(key)
        if are_all and len(self._seen) > len(writes):
            there = {write.name for write in writes}
            self._seen = {name: path for name, path in self._seen.items() if name in there}
            self._followed &= there

    def forget(self, name: str) -> None:
        """Undo a write: the file has another path now, or the earlier file was put back."""
        path = self._seen.pop(name, "")
        is_followed = name in self._followed
        self._followed.discard(name)
        family = self._families.get(_family_of(path)) if is_followed else None
        if family is not None and family.now.get(path) == _begun_ns(name):
            del family.now[path]

    def keep(self) -> None:
        """Write the record for the next drain.  Raises TierError."""
        families = {
            key: {
                "owner": family.owner, "rounds": family.rounds, "now": family.now,
                "misses": family.misses, "ahead": family.ahead, "is_held": family.is_held,
                "together": family.together, "span": family.span,
            }
            for key, family in self._families.items()
            if family.now or family.rounds
        }  # fmt: skip
        seen = {name: self._seen[name] for name in sorted(self._followed)} if families else {}
        record = {"version": 1, "families": families, "seen": seen}
        text = json.dumps(record)
        if text != self._kept and (families or self._kept):
            self._store.put(RECORD, [text.encode()])
        self._kept = text

    def is_ended(self, folder: Path, key: str) -> bool | None:
        """Return whether the last save has all files of a folder and a key; None: unknown."""
        is_row = key.isdigit()  # a row is followed with the names without a number
        family = self._families.get(_family_in(f"{folder}", "" if is_row else key))
        if family is None:
            return None
        if family.is_held or family.missing() or family.old_descriptions():
            return False
        if is_row:
            return None
        return True if family.usual() & family.now.keys() else None

    def learn(self, saves: Callable[[], Saves] | None) -> None:
        """Read from the recorded run, once, the files of each save.  The reading is needed if a
        program has ended in the second save and the names of the first save show too little.
        saves: names relative to /."""
        unsure = [
            family_seen for family_seen in self._families.values()
            if len(family_seen.rounds) == 1 and family_seen.now and not family_seen.usual()
            and set(family_seen.rounds[0]) - family_seen.now.keys()
        ]  # fmt: skip
        if saves is None or self._has_learned or not unsure:
            return
        self._has_learned = True
        with suppress(PenstockError, OSError):
            name_sets = [frozenset(f"/{name}" for name in save) for save in saves()]
            for family in unsure:
                sets = (save & set(family.rounds[0]) for save in name_sets)
                together = max(sets, key=len, default=frozenset[str]())
                family.together = sorted(together) if len(together) > 1 else []

    def of_paths(self, paths: Iterable[str]) -> Iterator[tuple[str, dict[str, int], set[str]]]:
        """Yield the present saves with files at some paths: the family, the times at which the
        usual files of the save were begun, and the usual names."""
        seen = set[str]()
        for path in paths if self._families else ():
            key = _family_of(path)
            family = self._families.get(key) if key and key not in seen else None
            seen.add(key)
            usual = family.usual() if family is not None else set()
            if family is not None and len(usual) > 1:
                yield (
                    key,
                    {
                        usual_path: at
                        for usual_path, at in family.now.items()
                        if usual_path in usual
                    },
                    usual,
                )

    def is_open(self, key: str) -> bool:
        """Return True if the present save of a family lacks files."""
        family = self._families.get(key)
        if family is None:
            return False
        return family.is_held or bool(family.missing() or family.old_descriptions())

    def unended(self) -> Iterator[tuple[str, dict[str, int], set[str]]]:
        """Yield the unended saves: the family, the files written again with the times at which the
        files were begun, and the files not written again."""
        for key, family in tuple(self._families.items()):
            missing = family.missing() | set(family.old_descriptions())
            if missing or family.is_held:
                usual = family.usual()
                again = {path: at for path, at in family.now.items() if path in usual}
                yield key, again, missing or usual - again.keys()

    def ended(self) -> Iterator[str]:
        """Yield the paths of the last saves with proof of the end."""
        for family in self._families.values():
            usual = family.usual()
            is_whole = not (family.is_held or family.missing() or family.old_descriptions())
            if usual and usual & family.now.keys() and is_whole:
                yield from usual

    def give_up(self, key: str) -> None:
        """Forget a family and expect no more files: the present save counts as ended."""
        self._families.pop(key, None)
