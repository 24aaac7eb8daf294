"""Apply a user's rule whose names are in several folders: `weights/model-{step}.pt
states/optim-{step}.pt`.

Each part is copied by itself; a save counts when each name of the rule has a file.  The module
knows names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.save.rules import Rule
from penstock.save.units import BY_RULE

if TYPE_CHECKING:
    from penstock.save.formats import Checkpoint

__all__ = ["with_rules"]

_Save = tuple[str, int | None]  # the folder to which the names of the rule are relative; the step


def with_rules(
    found: Sequence[Checkpoint], rules: Sequence[Rule], others: Sequence[Checkpoint] = ()
) -> list[Checkpoint]:
    """Return the checkpoints, with a problem where a rule names a file that is not there.  A copy
    with a manifest is whole by itself, and has the text in `torn`.  others: checkpoints of another
    tier."""
    made = list(found)
    for rule in rules:
        if rule.is_over_folders:
            made = _with_rule(made, rule, others)
    return made


def _with_rule(
    found: Sequence[Checkpoint], rule: Rule, others: Sequence[Checkpoint]
) -> list[Checkpoint]:
    there: defaultdict[_Save, set[int]] = defaultdict(set)
    saves = dict[int, _Save]()
    for one in (*found, *others):
        for number, save in _places(one, rule):
            there[save].add(number)
            saves[id(one)] = save
    names = rule.text.split()
    made: list[Checkpoint] = []
    for one in found:
        if id(one) not in saves:
            made.append(one)
            continue
        save = saves[id(one)]
        base, step = save
        lost = [
            f"{base}/{name}".lstrip("/").replace("{step}", str(step))
            for number, name in enumerate(names) if number not in there[save]
        ]  # fmt: skip
        why = f"is missing: {', '.join(lost)}" if lost else ""
        one = replace(one, step=step, why=f"{BY_RULE} {rule.text!r}")
        if one.manifest is not None:
            made.append(replace(one, torn=why))
        else:
            made.append(replace(one, problem=one.problem or why))
    return made


def _places(one: Checkpoint, rule: Rule) -> list[tuple[int, _Save]]:
    """Return the names of the rule that the files of a checkpoint have."""
    if one.manifest is not None and one.called and not one.is_folder:
        names = [f"{one.folder}{name}" for name in one.manifest.by_saved_name]
    else:
        names = [file.name for file in one.files]
    found = list[tuple[int, _Save]]()
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
