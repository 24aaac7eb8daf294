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

from penstock.save.find.contents import has_content
from penstock.save.unit.folders import FolderSave, in_order, of_two_saves
from penstock.save.unit.progress import FROZEN_S
from penstock.save.unit.rules import NameRule
from penstock.save.unit.units import BY_RULE, BY_STEP

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["families_of_rules", "with_rules"]

_Key = tuple[str, int | None]  # the base folder of the names of the rule; the step
_Parts = dict[int, list["Checkpoint"]]  # by the number of the name in the rule


def with_rules(
    checkpoints: Sequence[Checkpoint], rules: Sequence[NameRule], others: Sequence[Checkpoint] = ()
) -> list[Checkpoint]:
    """Return the checkpoints, with a problem where the files do not fit a rule.

    Problems: a file of the rule is missing, or the files are of two saves.  A copy with
    a manifest is whole by itself: the problem is stored in `torn`.  others: checkpoints of another
    tier.
    """
    made = list(checkpoints)
    for rule in rules:
        if rule.is_over_folders:
            made = _with_rule(made, rule, others)
    return made


def families_of_rules(
    checkpoints: Sequence[Checkpoint], rules: Sequence[NameRule]
) -> Iterable[tuple[str, list[Checkpoint]]]:
    """Yield the files of each rule without a step, with a key that is equal on both tiers."""
    for rule in rules:
        if rule.is_over_folders and len(rule.patterns) > 1:
            for (base, step), parts in _saves_of(checkpoints, rule).items():
                if step is None and all(len(row) == 1 for row in parts.values()):
                    yield f"{BY_RULE}\n{rule.text}\n{base}", [row[0] for row in parts.values()]


def _saves_of(checkpoints: Iterable[Checkpoint], rule: NameRule) -> dict[_Key, _Parts]:
    saves: defaultdict[_Key, _Parts] = defaultdict(dict)
    for checkpoint in checkpoints:
        for number, save in _places(checkpoint, rule):
            saves[save].setdefault(number, []).append(checkpoint)
    return saves


def _with_rule(
    checkpoints: Sequence[Checkpoint], rule: NameRule, others: Sequence[Checkpoint]
) -> list[Checkpoint]:
    on_both, own, copies = (
        _saves_of(some, rule) for some in ((*checkpoints, *others), checkpoints, others)
    )
    mixed = _mixed(own, copies)
    saves = {
        id(checkpoint): save
        for save, parts in own.items()
        for row in parts.values()
        for checkpoint in row
    }
    names = rule.text.split()
    made: list[Checkpoint] = []
    for checkpoint in checkpoints:
        if id(checkpoint) not in saves:
            made.append(checkpoint)
            continue
        save = saves[id(checkpoint)]
        base, step = save
        if rule.is_of_a_step:
            made.append(
                replace(checkpoint, step=step, why=f"{checkpoint.why}, {BY_STEP} {rule.text!r}")
            )
            continue
        lost = [
            f"{base}/{name}".lstrip("/").replace("{step}", str(step))
            for number, name in enumerate(names) if number not in on_both[save]
        ]  # fmt: skip
        why = f"is missing: {', '.join(lost)}" if lost else mixed.get(save, "")
        checkpoint = replace(checkpoint, step=step, why=f"{BY_RULE} {rule.text!r}")
        if checkpoint.manifest is not None:
            made.append(replace(checkpoint, torn=why))
        else:
            made.append(replace(checkpoint, problem=checkpoint.problem or why))
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
        for checkpoint in row:
            copy = next(
                (other for other in copies.get(number, ()) if _is_copy(other, checkpoint)), None
            )
            if copy is None or copy.manifest is None:
                continue
            sums, times = copy.manifest.by_saved_name, dict(copy.manifest.saved)
            for file in checkpoint.files:
                if (name := checkpoint.inner(file)) not in times:
                    continue
                before_ns.append(times[name])
                if (file.size_bytes, file.mtime_ns) == (sums[name].size_bytes, times[name]):
                    same[file.name] = times[name]
                else:
                    has_same = partial(has_content, checkpoint.store, file, sums[name])
                    changed.append(_Changed(file.name, times[name], file.mtime_ns or 0, has_same))
    until_ns = max(before_ns, default=0) - FROZEN_S * 1e9
    for new in sorted(changed, key=lambda new_file: new_file.name):
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


def _is_copy(copy: Checkpoint, checkpoint: Checkpoint) -> bool:
    is_open = checkpoint.manifest is None and copy.manifest is not None
    return is_open and (copy.called or copy.name) == checkpoint.name


def _places(checkpoint: Checkpoint, rule: NameRule) -> list[tuple[int, _Key]]:
    """Return the names of the rule with a file in a checkpoint."""
    if checkpoint.manifest is not None and checkpoint.called and not checkpoint.is_folder:
        names = [f"{checkpoint.folder}{name}" for name in checkpoint.manifest.by_saved_name]
    else:
        names = [file.name for file in checkpoint.files]
    places = list[tuple[int, _Key]]()
    for name in names:
        parts = name.split("/")
        for number, pattern in enumerate(rule.patterns):
            depth = rule.depths[number]
            match = pattern.fullmatch("/".join(parts[-depth:])) if len(parts) >= depth else None
            if match:
                step = match.groupdict().get("step")
                base = "/".join(parts[:-depth])
                places.append((number, (base, int(step) if step else None)))
                break
    return places
