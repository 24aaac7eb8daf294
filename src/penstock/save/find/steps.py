"""Find the steps of checkpoints with a number without a word in the name: `snap-300.pt`.

A name alone does not show whether the number is a step or the size of a model.  The number is a
step if the number differs between checkpoints of a folder with otherwise equal names, and grows
with the time of writing.  A single checkpoint has no step.  The module knows names and times.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.save.check.rankfiles import has_uncounted, optimizers_of
from penstock.save.checkpoint import OF_FILES, ONE_OR_TWO
from penstock.save.unit.companions import LEAST_NUMBERED, chunks_of_arrays, gap_in, rows_in
from penstock.save.unit.names import (
    MOST_DIGITS,
    Parts,
    are_parts,
    has_data,
    is_part,
    is_run,
    is_state,
    parts_of,
)
from penstock.save.unit.progress import FROZEN_S, IDLE_S, SLOW_BPS, SLOWER
from penstock.save.unit.shapes import LACKS, OLDER
from penstock.save.unit.units import BY_RULE, BY_STEP

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = [
    "rows_at_once",
    "unlike_earlier",
    "with_a_pause",
    "with_absent_chunks",
    "with_doubts",
    "with_empty",
    "with_gaps",
    "with_lost_experts",
    "with_old_ranks",
    "with_rows_at_once",
    "with_steps",
    "with_uncounted",
]

FEWEST_EARLIER = 2  # saves needed to know the parts of a save without a step


def with_steps(
    checkpoints: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()
) -> list[Checkpoint]:
    """Return the checkpoints, with the steps found by comparison.  others: checkpoints of another
    tier."""
    lone = {
        id(checkpoint): key
        for checkpoint in checkpoints
        if checkpoint.step is None and (key := _series_of(checkpoint))
    }
    if not lone:
        return list(checkpoints)
    wanted = set(lone.values())
    series: defaultdict[object, list[tuple[Checkpoint, Parts]]] = defaultdict(list)
    for checkpoint in (*checkpoints, *others):
        # A save may lack the file after which the other checkpoints are named: the save is in the
        # series, too.
        for parts in _all_parts_of(checkpoint):
            if (key := _series_of(checkpoint, parts)) in wanted:
                series[key].append((checkpoint, parts))
    steps = dict[int, int]()
    for rows in series.values():
        place = _place_of_step(rows)
        if place is not None:
            steps |= {id(checkpoint): int(_numbers_of(parts)[place]) for checkpoint, parts in rows}
    return [
        replace(checkpoint, step=steps[id(checkpoint)])
        if id(checkpoint) in lone and id(checkpoint) in steps else checkpoint
        for checkpoint in checkpoints
    ]  # fmt: skip


def _parts_of(checkpoint: Checkpoint) -> Parts:
    return parts_of((checkpoint.called or checkpoint.name).rpartition("/")[2])


def _all_parts_of(checkpoint: Checkpoint) -> list[Parts]:
    own = _parts_of(checkpoint)
    if checkpoint.is_folder or checkpoint.called or len(checkpoint.files) == 1:
        return [own]
    return [own, *(parts_of(file.name.rpartition("/")[2]) for file in checkpoint.files)]


def _numbers_of(parts: Parts) -> tuple[str, ...]:
    return parts.bare or (str(parts.step),)


def _series_of(checkpoint: Checkpoint, parts: Parts | None = None) -> tuple[object, ...] | None:
    """Return a key, equal for checkpoints if the names differ only in numbers; None: no number in
    the name can be a step, or a word shows the step."""
    parts = parts or _parts_of(checkpoint)
    if parts.is_told or (parts.step is None and not parts.bare):
        return None
    folder = (checkpoint.called or checkpoint.name).rpartition("/")[0]
    return folder, checkpoint.is_folder, parts.series, len(parts.bare or "1")


def _place_of_step(rows: Iterable[tuple[Checkpoint, Parts]]) -> int | None:
    """Return the place of the step in the names: the place of the only number that differs.  The
    number must grow with time.  A number filled with zeros needs no comparison of times."""
    times = dict[tuple[str, ...], int]()
    is_counter = False
    for checkpoint, parts in rows:
        numbers = _numbers_of(parts)
        times[numbers] = max(times.get(numbers, 0), checkpoint.mtime_ns)
        is_counter |= parts.step is not None
    varying = [place for place, values in enumerate(zip(*times, strict=True)) if len({*values}) > 1]
    if len(varying) != 1:
        return None
    (place,) = varying
    if any(len(numbers[place]) > MOST_DIGITS for numbers in times):
        return None
    written = [times[numbers] for numbers in sorted(times, key=lambda row: int(row[place]))]
    is_growing = all(before <= after for before, after in pairwise(written))
    return place if is_counter or is_growing else None


def unlike_earlier(
    checkpoints: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()
) -> dict[int, str]:
    """Return problems by id of checkpoint, for saves with dates, hashes or versions in place of
    steps: a checkpoint lacks a part that the four checkpoints before and all later checkpoints
    have.

    The order is the order of writing.  others: checkpoints of another tier."""
    series: defaultdict[object, list[Checkpoint]] = defaultdict(list)
    for checkpoint in (*checkpoints, *others):
        if checkpoint.step is None and _marks_of(checkpoint):
            series[_stamped_series_of(checkpoint)].append(checkpoint)
    said = dict[int, str]()
    for rows in series.values():
        rows.sort(key=lambda checkpoint: checkpoint.mtime_ns)
        for place, checkpoint in enumerate(rows):
            is_judged = (
                checkpoint.manifest is not None
                or checkpoint.problem
                or checkpoint.why.startswith(BY_RULE)
            )
            near = rows[max(0, place - 2 * OLDER) : place + 1 + 2 * OLDER]  # of two tiers
            near = _without_remainders(near)
            if not is_judged and (why := _unlike_near(checkpoint, near)):
                said[id(checkpoint)] = why
    return said


def _without_remainders(rows: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints without remainders of a removal.  A remainder has only some files of a
    copy."""
    names = [frozenset(checkpoint.inner_names) for checkpoint in rows]
    whole = [
        own for checkpoint, own in zip(rows, names, strict=True) if checkpoint.manifest is not None
    ]
    return [
        checkpoint for checkpoint, own in zip(rows, names, strict=True)
        if checkpoint.manifest is not None or not any(own < other for other in whole)
    ]  # fmt: skip


def _unlike_near(checkpoint: Checkpoint, near: Sequence[Checkpoint]) -> str:
    """Name a part that a checkpoint lacks and all nearby checkpoints have; empty: no part is
    missing."""
    stamps = _marks_of(checkpoint)
    apart = [other for other in near if _marks_of(other) != stamps]
    before = [other for other in apart if other.mtime_ns < checkpoint.mtime_ns][-OLDER:]
    after = [other for other in apart if other.mtime_ns >= checkpoint.mtime_ns]
    if len({_marks_of(other) for other in before}) < FEWEST_EARLIER:
        return ""
    is_in_turn = _are_in_turn([*before, checkpoint, *after])
    own = _roles_of(checkpoint, is_in_turn)
    common = frozenset.intersection(*(_roles_of(other, is_in_turn) for other in (*before, *after)))
    lost = sorted(common - own)
    if not lost or not own & common:
        return ""
    return f"no {lost[0]}{LACKS}{before[-1].name.rpartition('/')[2]} has"


def _marks_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the texts that distinguish the saves: from the file's name, else from the folder's."""
    if checkpoint.is_folder:
        return _parts_of(checkpoint).stamps
    folder = (checkpoint.called or checkpoint.name).rpartition("/")[0].rpartition("/")[2]
    is_save = folder and not is_run(folder) and not parts_of(folder).rank
    of_folder = parts_of(folder).stamps or tuple(re.findall(r"\d+", folder))
    return _parts_of(checkpoint).marks or (of_folder if is_save else ())


def _stamped_series_of(checkpoint: Checkpoint) -> tuple[object, ...]:
    parts = _parts_of(checkpoint)
    if checkpoint.is_folder:
        folder, _, last = (checkpoint.called or checkpoint.name).rpartition("/")
        return folder, re.sub(r"\d+", "#", last)
    rest = tuple(text for text in parts.key if text not in parts.marks)
    above, _, folder = (checkpoint.called or checkpoint.name).rpartition("/")[0].rpartition("/")
    if not parts.marks:
        is_hash = folder in parts_of(folder).stamps
        folder = "#" if is_hash else re.sub(r"\d+", "#", folder)
    return above, folder, rest, parts.bare, len(parts.marks)


def _are_in_turn(row: Sequence[Checkpoint]) -> bool:
    """Return True if each save was written before the next save, as in a single training.  The
    files of a copy have the time of the copy and do not count."""
    begun = [
        min(file.mtime_ns or 0 for file in checkpoint.files)
        if checkpoint.manifest is None and checkpoint.files
        else 0
        for checkpoint in row
    ]
    pairs = zip(row, begun[1:], strict=False)
    return all(not begin_ns or checkpoint.mtime_ns <= begin_ns for checkpoint, begin_ns in pairs)


def _roles_of(checkpoint: Checkpoint, are_all: bool) -> frozenset[str]:
    """Return the roles of a checkpoint's files.  are_all: include files without words of a
    training's state."""
    if checkpoint.is_folder:
        return frozenset(are_parts(checkpoint.inner_names))
    names = (file.name.rpartition("/")[2] for file in checkpoint.files)
    return frozenset(
        parts.role
        for parts in map(parts_of, names if are_all else filter(is_part, names))
        if are_all or parts.is_component or parts.rank
    )


def with_gaps(lines: Iterable[Sequence[Checkpoint]]) -> dict[int, str]:
    """Return problems by id of checkpoint, for checkpoints with a gap in the numbers of the files:
    `0.bin`, `1.bin` and `3.bin`.  A file is not missing if another checkpoint lacks the file too.
    lines: the checkpoints of each training."""
    said = dict[int, str]()
    for line in lines:
        inner = dict[int, set[str]]()
        for checkpoint in line:
            if (
                checkpoint.manifest is not None
                or checkpoint.problem
                or len(checkpoint.files) < LEAST_NUMBERED
            ):
                continue
            if not inner:
                inner = {id(other): set(other.inner_names) for other in line}
            elsewhere = [inner[id(other)] for other in line if other is not checkpoint]
            name = gap_in(inner[id(checkpoint)], elsewhere)
            if name:
                said[id(checkpoint)] = f"no {name}: a gap in the numbers of its files"
    return said


def with_doubts(lines: Iterable[Sequence[Checkpoint]]) -> dict[int, str]:
    """Return doubts by id of checkpoint, for the only save of a training with numbered files.  No
    name states the number of files, and no other save shows the number.  A marker, or a file
    written after the numbered files, shows the end of the save."""
    said = dict[int, str]()
    for line in lines:
        if len({checkpoint.step for checkpoint in line}) > 1:
            continue
        for checkpoint in line:
            is_ours = checkpoint.manifest is not None and not checkpoint.manifest.source.startswith(
                OF_FILES
            )
            if not is_ours and not checkpoint.problem and (n := _most_numbered(checkpoint)):
                said[id(checkpoint)] = (
                    f"{n} numbered files, and no name or other save shows how many"
                )
    return said


def with_uncounted(lines: Iterable[Sequence[Checkpoint]]) -> dict[int, str]:
    """Return doubts by id of checkpoint, for the only save of DeepSpeed with files of layers or
    experts: no file states the number of layers or experts, and no other save shows the number."""
    return {
        id(checkpoint): "no file or other save shows how many layers and experts there are"
        for line in lines
        if len({checkpoint.step for checkpoint in line}) == 1
        for checkpoint in line
        if has_uncounted(checkpoint.inner_names)
    }


def with_lost_experts(lines: Iterable[Sequence[Checkpoint]]) -> dict[int, str]:
    """Return problems by id of checkpoint, for saves of DeepSpeed without the file of an expert's
    optimizer that the save before has, with an equal number of data-parallel ranks."""
    said = dict[int, str]()
    for line in lines:
        rows = sorted(
            (checkpoint for checkpoint in line if checkpoint.step is not None),
            key=lambda checkpoint: checkpoint.step or 0,
        )
        for before, checkpoint in pairwise(rows):
            there, now = (optimizers_of(it.inner_names) for it in (before, checkpoint))
            lost = min(there.of_experts - now.of_experts, default="")
            if lost and there.n_ranks == now.n_ranks > 0 and checkpoint.manifest is None:
                said[id(checkpoint)] = f"no {lost}{LACKS}step {before.step} has"
    return said


def with_old_ranks(checkpoints: Iterable[Checkpoint]) -> dict[int, str]:
    """Return doubts by id of checkpoint, for checkpoints without a manifest and with a pause of
    more than a minute between the writes of two ranks: the older files may be of the save
    before."""
    said = dict[int, str]()
    for checkpoint in checkpoints:
        times = defaultdict[str, list[int]](list)
        for file in (
            checkpoint.files if checkpoint.manifest is None and not checkpoint.problem else ()
        ):
            if rank := parts_of(file.name.rpartition("/")[2]).rank:
                times["".join(rank)].append(file.mtime_ns or 0)
        rows = sorted(times.items(), key=lambda row: max(row[1]))
        largest = max((file.size_bytes for file in checkpoint.files), default=0)
        for (old, before), (new, after) in pairwise(rows):
            idle_s = (min(after) - max(before)) / 1e9
            if idle_s > FROZEN_S + largest / SLOW_BPS:
                said[id(checkpoint)] = f"{old} wrote {idle_s:,.0f} s before {new}: {ONE_OR_TWO}"
    return said


# Kinds without a final index or marker.
_WITHOUT_INDEX = ("files", "folder")


def with_a_pause(checkpoints: Iterable[Checkpoint]) -> dict[int, str]:
    """Return doubts by id of checkpoint, for checkpoints without a step and a manifest, and with a
    pause between the writes of two parts.

    The files from after the pause may be of a new, unended save, and the files from before the
    pause of the save before.  A pause, less the time to write the next part, counts if the pause is
    longer than IDLE_S and longer than SLOWER times every other pause."""
    said = dict[int, str]()
    for checkpoint in checkpoints:
        if (
            checkpoint.step is not None
            or checkpoint.manifest is not None
            or checkpoint.problem
            or len(checkpoint.files) < 2
        ):
            continue
        parts = [file for file in checkpoint.files if is_state(file.name.rpartition("/")[2])]
        if checkpoint.kind not in _WITHOUT_INDEX or not all(file.mtime_ns for file in parts):
            continue
        row = sorted(parts, key=lambda file: file.mtime_ns or 0)
        pauses = [
            ((new.mtime_ns or 0) - (old.mtime_ns or 0)) / 1e9 - new.size_bytes / SLOW_BPS
            for old, new in pairwise(row)
        ]
        longest, *others = sorted(pauses, reverse=True) or [0.0]
        if longest > max(IDLE_S, SLOWER * max(others, default=0.0)):
            at = pauses.index(longest)
            old, new = (file.name.rpartition("/")[2] for file in row[at : at + 2])
            said[id(checkpoint)] = f"{new} was written {longest:,.0f} s after {old}: {ONE_OR_TWO}"
    return said


def with_absent_chunks(lines: Iterable[Sequence[Checkpoint]]) -> dict[int, str]:
    """Return doubts by id of checkpoint, for saves without a chunk of a Zarr array, if each of the
    last OLDER earlier saves has the chunk.  An absent chunk means the array's fill value, or a lost
    file."""
    said = dict[int, str]()
    for line in lines:
        chunks = {id(checkpoint): chunks_of_arrays(checkpoint.inner_names) for checkpoint in line}
        if not any(chunks.values()):
            continue
        for checkpoint in line:
            older = {other.step for other in line if (other.step or 0) < (checkpoint.step or 0)}
            steps = sorted(filter(None, older))[-OLDER:]
            before = [chunks[id(other)] for other in line if other.step in steps]
            lost = (
                min(frozenset.intersection(*before) - chunks[id(checkpoint)], default="")
                if before
                else ""
            )
            if lost:
                said[id(checkpoint)] = (
                    f"{lost}: absent (a fill value, or lost), and step {steps[-1]} has it"
                )
    return said


def _most_numbered(checkpoint: Checkpoint) -> int:
    """Return the number of files in the longest row of numbered files without a later file; 0: no
    row."""
    rows = rows_in(checkpoint.inner_names)
    if checkpoint.manifest is not None:
        times = dict(checkpoint.manifest.saved)
    else:
        written = (file.mtime_ns or 0 for file in checkpoint.files)
        times = dict(zip(checkpoint.inner_names, written, strict=True))
    last_ns = max(times.values(), default=0)
    last = [name for name, at_ns in times.items() if at_ns == last_ns]
    return max(
        (
            n for (start, end), n in rows.items()
            if not last_ns or any(name.startswith(start) and name.endswith(end) for name in last)
        ),
        default=0,
    )  # fmt: skip


def with_empty(lines: Iterable[Sequence[Checkpoint]]) -> dict[int, str]:
    """Return problems by id of checkpoint, for checkpoints with an empty file, if the file is empty
    in no other checkpoint: the program was killed between the open and the first write.  lines: the
    checkpoints of each training."""
    said = dict[int, str]()
    for line in lines:
        for checkpoint in line:
            if checkpoint.manifest is not None or checkpoint.problem:
                continue
            for file in checkpoint.files:
                if file.size_bytes or not has_data(file.name):
                    continue
                alike = [
                    (other, there) for other in line if other is not checkpoint
                    for there in other.files if _with_signs(there.name) == _with_signs(file.name)
                ]  # fmt: skip
                if alike and all(there.size_bytes for _, there in alike):
                    like = max((other for other, _ in alike), key=lambda other: other.mtime_ns)
                    said[id(checkpoint)] = (
                        f"{checkpoint.inner(file)}: empty, and in {like.name} it is not"
                    )
    return said


def _with_signs(name: str) -> str:
    return re.sub(r"[0-9]+", "#", name)


def rows_at_once(checkpoints: Iterable[Checkpoint]) -> list[list[Checkpoint]]:
    """Return rows of checkpoints with numbers that may count the parts of a single save:
    `opt_0.npz` to `opt_3.npz`.

    No word marks the number as a step.  The numbers have no gap and begin with 0 or 1.  Between
    most neighbours a program had no time to train, or the higher number is the older file.
    """
    series: defaultdict[object, dict[int, Checkpoint]] = defaultdict(dict)
    for checkpoint in checkpoints:
        parts, key = _parts_of(checkpoint), _series_of(checkpoint)
        is_ruled = checkpoint.why.startswith(BY_RULE) or BY_STEP in checkpoint.why
        is_sure = is_ruled or any(named.is_told for named in _all_parts_of(checkpoint))
        if key is None or len(_numbers_of(parts)) > 1 or is_sure:
            continue
        of_series, number = series[key], int(_numbers_of(parts)[0][:MOST_DIGITS])
        if number not in of_series or of_series[number].mtime_ns < checkpoint.mtime_ns:
            of_series[number] = checkpoint
    rows: list[list[Checkpoint]] = []
    for by_number in series.values():
        numbers = sorted(by_number)
        if len(numbers) < 2 or numbers[0] > 1 or numbers[-1] - numbers[0] >= len(numbers):
            continue
        row = [by_number[number] for number in numbers]
        n_at_once = sum(
            (right.mtime_ns - left.mtime_ns) / 1e9 - right.size_bytes / SLOW_BPS < IDLE_S
            for left, right in pairwise(row)
        )
        if 2 * n_at_once > len(row) - 1:
            rows.append(row)
    return rows


def with_rows_at_once(checkpoints: Iterable[Checkpoint]) -> dict[int, str]:
    """Return doubts by id of checkpoint, for single files with numbers that may count steps, or the
    parts of a single save: `weights.0.pt` to `weights.3.pt`.  A rule of the user ends the doubt."""
    single = [
        checkpoint
        for checkpoint in checkpoints
        if not checkpoint.is_folder and len(checkpoint.files) == 1
    ]
    said = dict[int, str]()
    for row in rows_at_once(single):
        first, last = (checkpoint.name.rpartition("/")[2] for checkpoint in (row[0], row[-1]))
        why = f"{first} to {last} may be {len(row)} steps or {len(row)} parts of one save (--unit)"
        saves = {_source_of(checkpoint) for checkpoint in row}
        # A file and the copy of the file on another tier have the same doubt.
        said |= {
            id(checkpoint): why
            for checkpoint in single
            if _source_of(checkpoint) in saves and not checkpoint.problem
        }
    return said


def _source_of(checkpoint: Checkpoint) -> str:
    """Return the identity of the file, or of the file from which the copy was made."""
    return (
        checkpoint.manifest.source if checkpoint.manifest is not None else ""
    ) or checkpoint.identity
