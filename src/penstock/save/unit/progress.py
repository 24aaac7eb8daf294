"""Detect files of two saves, and files that a save left unchanged, by times and sizes alone."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.places.stores import StoredFile
from penstock.save.unit.names import has_data, is_state, parts_of

__all__ = [
    "FROZEN_S",
    "IDLE_S",
    "SLOWER",
    "SLOW_BPS",
    "begun_again",
    "of_two_saves",
    "without_progress",
    "written_over",
]

# --- files of two saves ---------------------------------------------------------------------------

IDLE_S = 2.0  # between two saves; a shorter gap is a pause within one save
SLOW_BPS = 20e6  # speed of a slow write, for the longest time of writing a file


def of_two_saves(
    files: Sequence[StoredFile], marks: Collection[str], shard: str = r".*-\d+-of-\d+.*"
) -> str:
    """Return why shards are of two saves, or an empty string if there is no evidence.

    marks: names of the files written by each save before or after the shards (an index, a
    configuration).  Evidence is a pause in writing, a mark last written before the pause or next
    after the pause, and a shard of a higher number older than a shard of a lower number.  Numbered
    shards need more evidence: see _is_begun_anew().  shard: pattern of the shards' own names.
    """
    shards = [file for file in files if re.fullmatch(shard, file.name.rpartition("/")[2])]
    mark_files = [file for file in files if file.name in marks]
    written = sorted((*shards, *mark_files), key=_written_ns)
    for earlier, later in itertools.pairwise(written):
        idle_s = (_written_ns(later) - _written_ns(earlier)) / 1e9
        if idle_s - later.size_bytes / SLOW_BPS < IDLE_S:
            continue
        old = [file for file in shards if _written_ns(file) <= _written_ns(earlier)]
        new = [file for file in shards if _written_ns(file) >= _written_ns(later)]
        if old and new and _are_two_saves(old, new, mark_files, idle_s):
            first, last = min(new, key=_written_ns), max(old, key=_written_ns)
            new_name, old_name = (file.name.rpartition("/")[2] for file in (first, last))
            return f"of two saves: {new_name} was written {idle_s:,.0f} s after {old_name}"
    return ""


def _are_two_saves(
    old: Sequence[StoredFile], new: Sequence[StoredFile], marks: Sequence[StoredFile], idle_s: float
) -> bool:
    """Return True if a mark was written between the shards before a pause and the shards after the
    pause, and the newer shards are the first shards of a set."""
    first_ns, last_ns = min(map(_written_ns, new)), max(map(_written_ns, old))
    is_between = any(last_ns <= _written_ns(mark) <= first_ns for mark in marks)
    is_again = max(file.name for file in old) > min(file.name for file in new)
    return is_between and is_again and (idle_s > FROZEN_S or _is_begun_anew(old, new))


def _is_begun_anew(old: Sequence[StoredFile], new: Sequence[StoredFile]) -> bool:
    """Return True if the newer shards are the first shards of a set, as after an unfinished save
    that writes in order.

    A program that writes in another order may pause within a single save: then the shards are in no
    order.  True for shards without a number and a count."""
    sets: defaultdict[tuple[str, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for is_new, files in ((False, old), (True, new)):
        for file in files:
            shard = parts_of(file.name.rpartition("/")[2]).shard
            if shard is None:
                return True
            sets[shard[0], shard[2]].append((shard[1], _written_ns(file), is_new))
    for rows in sets.values():
        rows.sort()
        of_new = [is_new for _, _, is_new in rows]
        times = [[time for _, time, is_new in rows if is_new is side] for side in (True, False)]
        is_first = of_new == sorted(of_new, reverse=True)
        if all(times) and is_first and all(side == sorted(side) for side in times):
            return True
    return False


def _written_ns(file: StoredFile) -> int:
    return file.mtime_ns or 0


def without_progress(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return the files without the descriptions written long after the state: the program writes
    such a description between saves too, so that the checkpoint would always look unfinished."""
    names = {file.name: parts_of(file.name.rpartition("/")[2]) for file in files}
    texts = {name for name, parts in names.items() if parts.is_state_text or parts.is_history}
    last = max((_written_ns(file) for file in files if file.name not in texts), default=0)
    return [
        file for file in files
        if file.name not in texts
        or names[file.name].kin[0] is not None
        or (_written_ns(file) - last) / 1e9 <= FROZEN_S
    ]  # fmt: skip


FROZEN_S = 60.0  # a file older than the rest of a save by more is not written at each save


def written_over(
    files: Mapping[str, StoredFile],
    before: Mapping[str, StoredFile],
    has_content: Callable[[str], bool] = lambda name: False,
    are_all_written: bool = False,
) -> str:
    """Report a save that has rewritten some files of a checkpoint and not the other files.  Return
    an empty string if no file was rewritten, or all were rewritten by a single save, or no content
    has changed.

    files: by name within the checkpoint, as ranks and parts have equal names in different folders;
    before: the files at the last copy.  has_content: returns True if a rewritten file still has the
    content of the last copy, as after `touch`.  are_all_written: each save writes all files, by a
    rule of the user.

    Files that the previous save had not written with the rest are not compared.
    """
    earlier = before if are_all_written else _written_each_time(before)
    same, changed = list[str](), list[str]()
    for name in files.keys() & earlier.keys():
        now, there = files[name], earlier[name]
        is_same = (now.size_bytes, now.mtime_ns) == (there.size_bytes, there.mtime_ns)
        (same if is_same else changed).append(name)
    if not same:
        return _begun_again_after(files, earlier, has_content)
    # An index is written last: if only indices changed, the save of the copy has ended since.
    if all(name.endswith(".index.json") for name in changed):
        return ""
    late = sorted(set(same) & _of_the_last_stretch(earlier))
    if not late or all(map(has_content, changed)):
        return ""
    n = len(late) + len(changed)
    return (
        f"{len(changed)} of its {n} files were written again and {len(late)} were not, as "
        f"{late[0]}: the save has not ended"
    )


def _begun_again_after(
    files: Mapping[str, StoredFile],
    earlier_files: Mapping[str, StoredFile],
    has_content: Callable[[str], bool],
) -> str:
    """Report that all files were written since the copy, but by two saves.  Descriptions and
    indices are not compared: a program may write a description or an index alone."""
    names = {
        name
        for name in files.keys() & _of_the_last_stretch(earlier_files)
        if not name.endswith(".json") and not parts_of(name.rpartition("/")[2]).is_state_text
    }
    began = begun_again(
        {name: (files[name].size_bytes, _written_ns(files[name])) for name in names},
        {name: _written_ns(earlier_files[name]) for name in names},
    )
    if began is None or has_content(began[1]):
        return ""
    first, again = began
    idle_s = (_written_ns(files[again]) - _written_ns(files[first])) / 1e9
    return (
        f"of two saves: {again} was written {idle_s:,.0f} s after {first}, "
        "and before it in the save of the copy"
    )


SLOWER = 3  # times the longest pause in the save before: the limit of a pause within a save


def begun_again(
    now: Mapping[str, tuple[int, int]], before: Mapping[str, int], slower: float | None = None
) -> tuple[str, str] | None:
    """Return two files of different saves: the last file of a complete save, and the first file of
    the next save, which has not ended.  None: no evidence.

    now: size and time of writing, by name; before: times in a whole save.  Evidence is a long
    pause, and an order that starts again: all files after the pause now were before the other files
    in the whole save.  slower: the least pause, in times the longest pause in the whole save; None:
    SLOWER for files of ranks, which may end in any order, else 1.
    """
    if len(now) < 2 or not all(before.get(name) for name in now):
        return None
    row = sorted(now, key=lambda name: now[name][1])
    times = sorted(before[name] for name in now)
    usual_ns = max(later - earlier for earlier, later in itertools.pairwise(times))
    if slower is None:
        has_ranks = any(parts_of(name.rpartition("/")[2]).rank for name in now)
        slower = SLOWER if has_ranks else 1
    for place in range(1, len(row)):
        earlier, later = row[place - 1], row[place]
        pause_ns = now[later][1] - now[earlier][1] - now[later][0] / SLOW_BPS * 1e9
        is_first = max(before[name] for name in row[place:]) < min(
            before[name] for name in row[:place]
        )
        if is_first and pause_ns > max(IDLE_S * 1e9, slower * usual_ns):
            return earlier, later
    return None


def _written_each_time(before: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
    """Return the files that each save writes, judged by name."""
    is_known = any(is_state(name.rpartition("/")[2]) for name in before)
    # Prefixes of the names, up to a dot.
    heads = {name[:at] for name in before for at, letter in enumerate(name) if letter == "."}
    return {
        name: file
        for name, file in before.items()
        if is_state(last := name.rpartition("/")[2])
        or last.endswith(".index.json")
        or parts_of(last).is_state_text
        or name in heads
        or (not is_known and has_data(name))
    }


def _of_the_last_stretch(files: Mapping[str, StoredFile]) -> set[str]:
    """Return the files written after the last long pause."""
    row = sorted(files, key=lambda name: _written_ns(files[name]))
    begin = 0
    for place, (earlier, later) in enumerate(itertools.pairwise(row), 1):
        if (_written_ns(files[later]) - _written_ns(files[earlier])) / 1e9 > FROZEN_S:
            begin = place
    return set(row[begin:])
