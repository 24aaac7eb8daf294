"""Apply a user's rule with names in several folders.

Example of a rule: `weights/model-{step}.pt states/optim-{step}.pt`.

Each part is copied separately.  A save counts when each name of the rule has a file, and when
copies and times of writing do not show files of different saves.  Knows names, times and the sums
of manifests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.save.contents import has_content
from penstock.save.folders import FolderSave, in_order, of_two_saves
from penstock.save.progress import FROZEN_S
from penstock.save.rules import NameRule
from penstock.save.units import BY_RULE, BY_STEP

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["families_of_rules", "with_rules"]

_Key = tuple[str, int | None]  # the base folder of the names of the rule; the step
_Parts = dict[int, list["Checkpoint"]]  # by the number of the name in the rule


def with_rules(
    found: Sequence[Checkpoint], rules: Sequence[NameRule], others: Sequence[Checkpoint] = ()
) -> list[Checkpoint]:
    """Return the checkpoints, with a problem where the files do not fit a rule.

    Problems: a file of the rule is missing, or the files are of two saves.  A copy with
    a manifest is whole by itself: the problem is stored in `torn`.  others: checkpoints of another
    tier.
    """
    made = list(found)
    for rule in rules:
        if rule.is_over_folders:
            made = _with_rule(made, rule, others)
    return made


def families_of_rules(
    found: Sequence[Checkpoint], rules: Sequence[NameRule]
) -> Iterable[tuple[str, list[Checkpoint]]]:
    """Yield the files of each rule without a step, with a key that is equal on both tiers."""
    for rule in rules:
        if rule.is_over_folders and len(rule.patterns) > 1:
            for (base, step), parts in _saves_of(found, rule).items():
                if step is None and all(len(row) == 1 for row in parts.values()):
                    yield f"{BY_RULE}\n{rule.text}\n{base}", [row[0] for row in parts.values()]


def _saves_of(found: Iterable[Checkpoint], rule: NameRule) -> dict[_Key, _Parts]:
    saves: defaultdict[_Key, _Parts] = defaultdict(dict)
    for one in found:
        for number, save in _places(one, rule):
            saves[save].setdefault(number, []).append(one)
    return saves


def _with_rule(
    found: Sequence[Checkpoint], rule: NameRule, others: Sequence[Checkpoint]
) -> list[Checkpoint]:
    on_both, own, copies = (_saves_of(some, rule) for some in ((*found, *others), found, others))
    mixed = _mixed(own, copies)
    saves = {id(one): save for save, parts in own.items() for row in parts.values() for one in row}
    names = rule.text.split()
    made: list[Checkpoint] = []
    for one in found:
        if id(one) not in saves:
            made.append(one)
            continue
        save = saves[id(one)]
        base, step = save
        if rule.is_of_a_step:
            made.append(replace(one, step=step, why=f"{one.why}, {BY_STEP} {rule.text!r}"))
            continue
        lost = [
            f"{base}/{name}".lstrip("/").replace("{step}", str(step))
            for number, name in enumerate(names) if number not in on_both[save]
        ]  # fmt: skip
        why = f"is missing: {', '.join(lost)}" if lost else mixed.get(save, "")
        one = replace(one, step=step, why=f"{BY_RULE} {rule.text!r}")
        if one.manifest is not None:
            made.append(replace(one, torn=why))
        else:
            made.append(replace(one, problem=one.problem or why))
    return made


# --- files of two saves ---------------------------------------------------------------------------


def _mixed(own: dict[_Key, _Parts], copies: dict[_Key, _Parts]) -> dict[_Key, str]:
    """Return the reason for each save with files of two saves."""
    said = dict[_Key, str]()
    bases = defaultdict[str, list[FolderSave]](list)
    for (base, step), parts in own.items():
        if why := _unlike_copies(parts, copies.get((base, step), {})):
            said[base, step] = why
        if step is not None:
            bases[base].append(
                FolderSave.of(step, {((str(n),), ()): row for n, row in parts.items()})
            )
    for base, unordered in bases.items():
        saves = in_order(unordered)
        for place, save in enumerate(saves):
            if why := of_two_saves(save, saves[:place]):
                said.setdefault((base, save.step), why)
    return said


def _unlike_copies(parts: _Parts, copies: _Parts) -> str:
    """Report a save with some files rewritten since the copy, and other files not rewritten.

    Each part is copied separately, so the copies may be of two saves although the files are of a
    single save.  Therefore an unchanged file counts as not rewritten only if its time is nearer to
    the old content of a rewritten file than to the new content.  A file a minute older than the
    others at the copy is written only once.
    """
    same, changed = dict[str, int](), list[_Changed]()
    before_ns = list[int]()
    for number, row in parts.items():
        for one in row:
            copy = next((other for other in copies.get(number, ()) if _is_copy(other, one)), None)
            if copy is None or copy.manifest is None:
                continue
            sums, times = copy.manifest.by_saved_name, dict(copy.manifest.saved)
            for file in one.files:
                if (name := one.inner(file)) not in times:
                    continue
                before_ns.append(times[name])
                if (file.size_bytes, file.mtime_ns) == (sums[name].size_bytes, times[name]):
                    same[file.name] = times[name]
                else:
                    has_same = partial(has_content, one.store, file, sums[name])
                    changed.append(_Changed(file.name, times[name], file.mtime_ns or 0, has_same))
    until_ns = max(before_ns, default=0) - FROZEN_S * 1e9
    for new in sorted(changed, key=lambda one: one.name):
        middle_ns = (new.before_ns + new.now_ns) / 2
        old = sorted(name for name, at in same.items() if until_ns <= at < middle_ns)
        if old and not new.has_same():
            return f"of two saves: {new.name} was written again and {old[0]} was not"
    return ""


class _Changed(NamedTuple):
    name: str
    before_ns: int
    now_ns: int
    has_same: Callable[[], bool]  # whether the content is unchanged


def _is_copy(copy: Checkpoint, one: Checkpoint) -> bool:
    is_open = one.manifest is None and copy.manifest is not None
    return is_open and (copy.called or copy.name) == one.name


def _places(one: Checkpoint, rule: NameRule) -> list[tuple[int, _Key]]:
    """Return the names of the rule with a file in a checkpoint."""
    if one.manifest is not None and one.called and not one.is_folder:
        names = [f"{one.folder}{name}" for name in one.manifest.by_saved_name]
    else:
        names = [file.name for file in one.files]
    found = list[tuple[int, _Key]]()
    for name in names:
        parts = name.split("/")
        for number, pattern in enumerate(rule.patterns):
            depth = rule.depths[number]
            match = pattern.fullmatch("/".join(parts[-depth:])) if len(parts) >= depth else None
            if match:
                step = match.groupdict().get("step")
                base = "/".join(parts[:-depth])
                found.append((number, (base, int(step) if step else None)))
                break
    return found
