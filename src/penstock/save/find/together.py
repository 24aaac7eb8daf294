"""Tell a single save from a mixture of two saves, for parts with fixed names.

Several folders may have equal names at each save, as `weights/net.pt` and `states/opt.pt`.  Or the
names in a folder may have no word in common, as `alpha.pt` and `beta.pt`, as `resnet50.pt` and
`head.pt`, or as `0.pt` and `1.pt`.

Files with fixed names show neither a step nor an earlier save.  A record in the tier notes the last
save seen with all parts, and the number of saves with all parts.  From the second complete save on,
a mixture of rewritten and unchanged parts shows a save that has not ended.  The module knows names,
sizes and times.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.places.stores import Store
from penstock.save.commit import STATE
from penstock.save.find.contents import has_content
from penstock.save.find.ruled import families_of_rules
from penstock.save.find.steps import rows_at_once
from penstock.save.find.usual import usual_parts
from penstock.save.kept import kept_json
from penstock.save.unit.folders import PAUSE, place_of
from penstock.save.unit.names import SELECTORS, is_called_checkpoint, parts_of
from penstock.save.unit.progress import FROZEN_S, IDLE_S, begun_again
from penstock.save.unit.rules import rules_of
from penstock.save.unit.units import BY_RULE, EACH_TIME

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["note_saves", "of_one_save", "other_parts"]

RECORD = f"{STATE}/together.json"
MOST_RECORD_BYTES, MOST_FAMILIES = 1 << 20, 100
MOST_PARTS = 64  # files of a family in one folder
LEAST_SAVES = 2  # with all parts
_Lies = dict[str, list[int]]  # by name: size, and time of writing
_Row = dict[str, Any]  # parts and partial: _Lies; n: saves with all parts; pause_ns: within a save


def of_one_save(
    store: Store, checkpoints: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()
) -> list[Checkpoint]:
    """Return the checkpoints, with a problem if the parts are of two saves.

    A copy with a manifest is whole by itself, and so is a part that was not written again: for both
    the text is in `torn`.  others: checkpoints of another tier.  A part with a new time but with
    the content of the copy was not written again.  Raises TierError."""
    families = dict(_families(store, checkpoints))
    said, whole = dict[int, str](), set[int]()
    for family, row in _read(store).items() if families else ():
        parts = families.get(family, ())
        lies = _lies_by_content(row, parts, others)
        if parts and (why := _of_two_saves(row, lies, _least_saves(family))):
            said |= {id(part): why for part in parts}
            before = row["parts"]
            whole |= {id(part) for part in parts if before[part.called or part.name] == _lie(part)}
            whole |= {id(part) for part in parts if part.manifest is not None}
    return [
        (
            replace(checkpoint, torn=why)
            if id(checkpoint) in whole
            else replace(checkpoint, problem=why)
        )
        if (why := said.get(id(checkpoint), "")) and not checkpoint.problem
        else checkpoint
        for checkpoint in checkpoints
    ]


def other_parts(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the other checkpoints of the save of a checkpoint: with an equal step in another
    folder, or with names that two saves have written together, whatever the words.  checkpoints:
    all of the tier.  Raises TierError."""
    if of_step := _of_step(checkpoint, checkpoints):
        return of_step
    rows, name = _read(checkpoint.store), checkpoint.called or checkpoint.name
    for text, members in _families(checkpoint.store, checkpoints):
        names = {other.called or other.name for other in members}
        if name in names and text in rows and rows[text]["n"] >= _least_saves(text):
            return [other for other in members if (other.called or other.name) != name]
    return usual_parts(checkpoint, checkpoints)


def _of_step(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the other checkpoints of the save of a step."""
    if checkpoint.step is None:
        return []
    family, part = place_of(checkpoint.called or checkpoint.name, checkpoint.is_folder)
    places = (
        (other, place_of(other.called or other.name, other.is_folder)) for other in checkpoints
    )
    parts = [
        other for other, place in places
        if other.step == checkpoint.step and place[0] == family and place[1] != part
    ]  # fmt: skip
    names = {other.name for other in parts}
    usual = usual_parts(checkpoint, checkpoints)
    return parts + [other for other in usual if other.name not in names]


def note_saves(
    store: Store, checkpoints: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()
) -> None:
    """Record the saves in the tier.  others: see of_one_save().  Raises TierError."""
    families = dict(_families(store, checkpoints))
    if not families:
        return
    before = _read(store)
    rows = before | {
        family: _noted(
            _with_times(before.get(family), parts, others), _lies(parts), _least_saves(family)
        )
        for family, parts in families.items()
    }
    if len(rows) > MOST_FAMILIES:  # names that change at each save make families without an end
        latest = sorted(rows, key=lambda family: max(_times_of(rows[family])), reverse=True)
        rows = {family: rows[family] for family in latest[:MOST_FAMILIES]}
    if rows != before:
        store.put(RECORD, [json.dumps({"version": 1, "families": rows}).encode()])


def _families(
    store: Store, checkpoints: Sequence[Checkpoint]
) -> Iterator[tuple[str, list[Checkpoint]]]:
    """Yield the trainings with parts in several folders or under several names, each with a text
    that is equal on both tiers."""
    if any(checkpoint.step is None and BY_RULE in checkpoint.why for checkpoint in checkpoints):
        yield from families_of_rules(checkpoints, rules_of(store))
    families: defaultdict[object, list[Checkpoint]] = defaultdict(list)
    beside: defaultdict[object, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        if checkpoint.step is not None or BY_RULE in checkpoint.why:
            continue
        name = checkpoint.called or checkpoint.name
        folder, _, last = name.rpartition("/")
        if not any(map(str.isdigit, last.partition(".")[0])):
            families[_family_of(name, checkpoint.is_folder)].append(checkpoint)
        if not checkpoint.is_folder:  # `alpha.pt` and `beta.pt`, `resnet50.pt` and `head.pt`
            beside[folder, _selection(last)].append(checkpoint)
    taken = set[str]()
    rows = rows_at_once(checkpoints)
    few = (members for members in beside.values() if len(members) <= MOST_PARTS)
    for members in (*families.values(), *few, *rows):
        names = sorted(member.called or member.name for member in members)
        places = {place_of(member.called or member.name, member.is_folder) for member in members}
        is_one_each = len(places) == len(members) > 1 or members in rows  # as many as parts
        if is_one_each and taken.isdisjoint(names):
            taken.update(names)
            yield "\n".join(names), members


def _family_of(name: str, is_folder: bool) -> object:
    """Return a key, equal for the parts of a training in several folders."""
    above = name.rpartition("/")[0].rpartition("/")[0]
    if not is_folder and is_called_checkpoint(above.rpartition("/")[2]):
        return above  # `latest/generator/weights.pth`
    return place_of(name, is_folder)[0]


def _selection(name: str) -> frozenset[str]:
    """Return the words and stamps of a name by which it is of other saves than the names beside it:
    `best.pt` beside `last.pt`, but not `latest.pkl` beside `replay.npz`."""
    parts = parts_of(name)
    return frozenset(parts.key) & ((SELECTORS - EACH_TIME) | set(parts.stamps))


def _least_saves(family: str) -> int:
    """Return the number of saves with all parts after which the parts count as written together; a
    rule of the user needs only one save."""
    return 1 if family.startswith(BY_RULE) else LEAST_SAVES


def _lies(parts: Sequence[Checkpoint]) -> _Lies:
    return {part.called or part.name: _lie(part) for part in parts}


def _lies_by_content(row: _Row, parts: Sequence[Checkpoint], others: Sequence[Checkpoint]) -> _Lies:
    """Return _lies(), with the recorded size and time for a part with the content of the copy."""
    before, lies = row["parts"], _lies(parts)
    copies = {other.called or other.name: other for other in others if other.manifest is not None}
    for part in parts:
        name = part.called or part.name
        if (
            lies[name] != before.get(name)
            and name in copies
            and _has_content_of(part, copies[name])
        ):
            lies[name] = before.get(name, lies[name])
    return lies


def _with_times(
    row: _Row | None, parts: Sequence[Checkpoint], others: Sequence[Checkpoint]
) -> _Row | None:
    """Return the row, with the new time for a part that was touched but not written again."""
    if row is None:
        return None
    lies, by_content = _lies(parts), _lies_by_content(row, parts, others)
    before: _Lies = row["parts"]
    kept = {
        name: lies[name] if by_content.get(name) == lie and name in lies else lie
        for name, lie in before.items()
    }
    return row | {"parts": kept}


def _has_content_of(checkpoint: Checkpoint, copy: Checkpoint) -> bool:
    sums = copy.manifest.by_saved_name if copy.manifest is not None else {}
    return all(
        checkpoint.inner(file) in sums
        and has_content(checkpoint.store, file, sums[checkpoint.inner(file)])
        for file in checkpoint.files
    )


def _lie(checkpoint: Checkpoint) -> list[int]:
    return [checkpoint.size_bytes, checkpoint.mtime_ns]


def _read(store: Store) -> dict[str, _Row]:
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        rows = (kept_json(store, RECORD, MOST_RECORD_BYTES) or {"families": {}})["families"]
        return {str(family): _checked(row) for family, row in rows.items()}
    return {}


def _checked(row: _Row) -> _Row:
    """Return a row of the record in the expected types.  Raises ValueError, TypeError, KeyError:
    another program wrote the record."""
    lies = [
        {str(name): [int(fact) for fact in facts[:2]] for name, facts in row[key].items()}
        for key in ("parts", "partial")
    ]
    n, pause_ns = int(row["n"]), int(row["pause_ns"])
    return {"parts": lies[0], "partial": lies[1], "n": n, "pause_ns": pause_ns}


def _of_two_saves(row: _Row, now: _Lies, least: int) -> str:
    before: _Lies = row["parts"]
    if row["n"] < least or before.keys() != now.keys():
        return ""
    changed = sorted(name for name in now if now[name] != before[name])
    same = sorted(now.keys() - set(changed))
    if changed and same:
        return f"of two saves: {changed[0]} was written again and {same[0]} was not"
    if not changed or not (_is_apart(row, now) or _is_begun_again(row, now)):
        return ""
    by_time = sorted(now, key=lambda name: now[name][1])
    first, last = by_time[0], by_time[-1]
    pause_s = (now[last][1] - now[first][1]) / 1e9
    return f"of two saves: {last} was written {pause_s:,.0f} s after {first}"


def _is_apart(row: _Row, now: _Lies) -> bool:
    """Return True if the pause between the parts is as long as a pause between two saves."""
    before: _Lies = row["parts"]
    between_ns = max(at for _, at in now.values()) - max(at for _, at in before.values())
    usual_ns: int = row["pause_ns"]
    return _pause(now) > max(PAUSE * usual_ns, IDLE_S * 1e9, between_ns / 2)


def _is_begun_again(row: _Row, now: _Lies) -> bool:
    """Return True if the order of the parts shows a save that has started and not ended."""
    lies = {name: (size_bytes, at_ns) for name, (size_bytes, at_ns) in now.items()}
    return begun_again(lies, {name: at for name, (_, at) in row["parts"].items()}) is not None


def _times_of(row: _Row) -> list[int]:
    return [at_ns for _, at_ns in row["parts"].values()] or [0]


def _pause(lies: _Lies) -> int:
    times = [at for _, at in lies.values()]
    return max(times) - min(times)


def _noted(row: _Row | None, now: _Lies, least: int) -> _Row:
    """Return the new row.  If a part was written twice while another part was not, the parts are
    not written together: the count starts again."""
    if row is None or row["parts"].keys() != now.keys():
        n = 1 if _pause(now) <= FROZEN_S * 1e9 else 0
        return {"parts": now, "partial": {}, "n": n, "pause_ns": _pause(now) if n else 0}
    changed = {name: now[name] for name in now if now[name] != row["parts"][name]}
    if not changed:
        return row
    partial: _Lies = row["partial"]
    is_again = least > 1 and any(
        name in changed and changed[name][1] - at > IDLE_S * 1e9
        for name, (_, at) in partial.items()
    )
    if len(changed) < len(now):
        return row | {"partial": changed, "n": 0 if is_again else row["n"]}
    is_torn = _is_apart(row, now) or _is_begun_again(row, now)
    if row["n"] >= least and is_torn and not is_again:
        return row | {"partial": now}
    n = 1 if is_again else row["n"] + 1
    pause_ns = max(_pause(now), 0 if is_again else row["pause_ns"])
    return {"parts": now, "partial": {}, "n": n, "pause_ns": pause_ns}
