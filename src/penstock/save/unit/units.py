"""Group the files of a folder into checkpoints, where no index of a format names the files.

Knows names, sizes and times.  Groupings from strong to weak: a rule of the user; shards numbered
`-00001-of-00004`; files with equal step and different content (`model-300.pt`, `optim-300.pt`);
files without a step, with names of parts of a training's state (`model.pt`, `optimizer.pt`).

The files of a group are copied, kept, judged and removed together: a wrong guess costs room and no
data.  Therefore likely groups are made, and a part counts as missing only where older checkpoints
of the same training have the part.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from penstock.save.unit.companions import add_companions, is_marker
from penstock.save.unit.divided import divided
from penstock.save.unit.epochs import join_epochs
from penstock.save.unit.names import (
    DESCRIPTIONS,
    NO_STATE,
    SELECTORS,
    Parts,
    is_moment,
    is_state,
    may_be_state,
    parts_of,
)
from penstock.save.unit.numbered import has_numbered_parts, join_numbered_parts
from penstock.save.unit.rules import NameRule

__all__ = ["BY_RULE", "BY_SAVE", "BY_STEP", "EACH_TIME", "Unit", "grouped", "lost_shards"]

BY_RULE = "the rule --unit"
BY_STEP = "the step by the rule --unit"
BY_SAVE = "files that one save of the recorded run wrote"
_Kin = tuple[int | None, tuple[str, ...]]

# Further endings: the files belong to a checkpoint of equal step, if the words match.
_WITH_STATE = {
    "dat", "raw", "state", "weights", "optim", "opt", "model", "blob", "sd", "mdl", "onnx", "gz",
    "zst", "lz4",
}  # fmt: skip


_BY_THEMSELVES = {".pt", ".pth", ".ckpt", ".safetensors", ".keras"}


# Rewritten at each save; `best` and `top` of two files may be of different steps.
EACH_TIME = {"last", "latest", "final"}
_LEADS = ("model", "weights", "net", "params", "state", "checkpoint", "ckpt", "netg", "generator")


@dataclass(frozen=True, slots=True)
class Unit:
    """Files of a folder that form a checkpoint.

    name: the file that gives the checkpoint its name.  why: the reason for the group.  missing:
    known parts without a file.
    """

    name: str
    files: tuple[str, ...]
    step: int | None
    why: str
    missing: tuple[str, ...] = ()


def grouped(
    names: Iterable[str],
    rules: Sequence[NameRule] = (),
    saves: Sequence[frozenset[str]] = (),
    folder: str = "",
    times: Mapping[str, int] = MappingProxyType({}),
) -> list[Unit]:
    """Return the units of a folder, by the names of the files.

    A file in no unit is no checkpoint, or is a single-file checkpoint without a step.  saves: for
    each save of a recorded run, the written files.  folder: the folder's own name.  times: when
    each file was written, in ns.
    """
    left = dict.fromkeys(sorted(names))
    units = list[Unit]()
    own_rules = [rule for rule in rules if not rule.is_over_folders]
    for rule in own_rules:
        units += _by_rule(rule, left) if not rule.is_of_a_step else []
    by_key = _by_kin(left)
    join_numbered_parts(by_key, times)
    join_epochs(by_key)
    _add_equal_stems(left, by_key)
    candidates = [parts_of(name) for name in left if may_be_state(name) or is_marker(name)]
    add_companions(candidates, by_key, is_state, bool(folder and parts_of(folder).stamps))
    for (number, _), members in by_key.items():
        if number is None:
            for some, missing in divided(members, times):
                units += _stepless(some, missing)
            continue
        for some in _by_epoch(members):
            units += _of_a_number(number, some)
    for rule in own_rules:
        units = _with_step(units, rule, left) if rule.is_of_a_step else units
    return _with_saves(units, left, saves) if saves else units


def _by_kin(names: Iterable[str]) -> defaultdict[_Kin, list[Parts]]:
    """Return the files that may form checkpoints, by Parts.kin."""
    by_kin: defaultdict[_Kin, list[Parts]] = defaultdict(list)
    for name in names:
        parts = parts_of(name)
        if is_state(name) or _is_description_of_a_save(parts) or _is_of_a_step(parts):
            by_kin[parts.kin].append(parts)
    return by_kin


def _is_description_of_a_save(parts: Parts) -> bool:
    """Return True for `meta_000300.json`, an index of shards, and descriptions of a state."""
    if not parts.name.lower().endswith(DESCRIPTIONS):
        return False
    is_index = parts.ending.endswith(".index.json")
    is_text = parts.is_state_text or parts.is_history
    return bool(parts.kin[0] is not None or is_index or parts.stamps or is_text)


def _is_of_a_step(parts: Parts) -> bool:
    """Return True for an average of an optimizer, and for `optim_300.dat`."""
    if parts.name.lower().endswith(DESCRIPTIONS):
        return False
    has_ending = parts.name.rpartition(".")[2].lower() in _WITH_STATE
    is_part = has_ending and parts.step is not None and parts.is_component
    return is_moment(parts.name) or is_part


def _with_step(units: Sequence[Unit], rule: NameRule, left: Iterable[str]) -> list[Unit]:
    """Return the units with the step from a rule with a single name.

    A file of the rule without a unit becomes a checkpoint, too.
    """
    steps = {name: int(m["step"]) for name in left if (m := rule.patterns[0].fullmatch(name))}
    made = list[Unit]()
    for unit in units:
        step = next((steps.pop(name) for name in unit.files if name in steps), None)
        why = f"{unit.why}, {BY_STEP} {rule.text!r}"
        made.append(unit if step is None else replace(unit, step=step, why=why))
    why = f"one file, {BY_STEP} {rule.text!r}"
    return [*made, *(Unit(name, (name,), step, why) for name, step in steps.items())]


def _add_equal_stems(
    names: Iterable[str],
    by_key: dict[_Kin, list[Parts]],
) -> None:
    """Add files of any other ending, if name and step are those of a state's file."""
    taken = {member.name for members in by_key.values() for member in members}
    stems: dict[str, list[Parts]] | None = None
    for name in names:
        if name in taken or name.rpartition(".")[2].lower() in NO_STATE:
            continue
        parts = parts_of(name)
        if parts.kin[0] is None or not parts.ending:
            continue
        if stems is None:
            stems = {
                member.name.removesuffix(member.ending): members
                for (number, _), members in by_key.items() if number is not None
                for member in members if is_state(member.name)
            }  # fmt: skip
        if (members := stems.get(name.removesuffix(parts.ending))) is not None:
            members.append(parts)


def _by_epoch(members: list[Parts]) -> list[list[Parts]]:
    """Divide the files of a step by the epoch, where the steps of each epoch begin anew."""
    if len({member.coarse for member in members if member.coarse}) < 2:
        return [members]
    epochs: defaultdict[tuple[str, ...], list[Parts]] = defaultdict(list)
    for member in members:
        epochs[member.coarse].append(member)
    return list(epochs.values())


def _with_saves(
    units: Sequence[Unit], left: Collection[str], saves: Sequence[frozenset[str]]
) -> list[Unit]:
    """Add groups of files written by the same save, if the names show no rule.

    Such a name has no step and no selector, and the file is in no group.
    """
    single = {unit.name for unit in units if len(unit.files) == 1 and unit.step is None}
    of_group = {name for unit in units for name in unit.files} - single
    made, taken = list[Unit](), set[str]()
    for save in saves:
        own = sorted(
            name for name in save
            if name in left and name not in of_group and name not in taken and _shows_no_rule(name)
        )  # fmt: skip
        state = [name for name in own if name.rpartition(".")[2].lower() not in NO_STATE]
        if len(own) > 1 and state:
            lead = min(state, key=lambda name: (_place_as_lead(parts_of(name)), name))
            made.append(Unit(lead, tuple(own), None, BY_SAVE))
            taken.update(own)
    return [*(unit for unit in units if unit.name not in taken), *made]


def _shows_no_rule(name: str) -> bool:
    parts = parts_of(name)
    return parts.kin[0] is None and parts.shard is None and SELECTORS.isdisjoint(parts.key)


def _by_rule(rule: NameRule, left: dict[str, None]) -> list[Unit]:
    by_step: defaultdict[int | None, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in left:
        for number, pattern in enumerate(rule.patterns):
            if match := pattern.fullmatch(name):
                step_text = match.groupdict().get("step")
                by_step[int(step_text) if step_text else None][number].append(name)
                break
    units, wanted = [], rule.text.split()
    for step, members in by_step.items():
        names = [name for number in sorted(members) for name in members[number]]
        lost = [wanted_name for number, wanted_name in enumerate(wanted) if number not in members]
        lost = [wanted_name.replace("{step}", str(step)) for wanted_name in lost]
        why = f"{BY_RULE} {rule.text!r}"
        units.append(Unit(names[0], tuple(names), step, why, tuple(lost)))
        for name in names:
            del left[name]
    return units


def _of_a_number(number: int, members: Sequence[Parts]) -> list[Unit]:
    """Group the files of a step, or of a number that may be a step."""
    if len(members) == 1 and is_state(members[0].name):
        return [_unit(members, members[0].step, "one file")]
    if not any(is_state(member.name) for member in members):
        return []
    step = next((member.step for member in members if member.step is not None), None)
    what = "number" if step is None else "step"
    why = f"files of {what} {number} in one folder" if len(members) > 1 else "one file"
    return [_unit(members, step, why)]


def _stepless(members: Sequence[Parts], missing: tuple[str, ...] = ()) -> list[Unit]:
    """Group parts of a training's state without a step, and the shards of any kind.

    missing: files of the save that belong to another save.
    """
    state = [member for member in members if is_state(member.name)]
    if not state:
        return []
    beside = [member for member in members if not is_state(member.name)]
    parts = _parts_of_a_state(state, members[0])
    texts = _texts_of(parts, beside)
    if _are_one_role([*parts, *texts]) and not any(part.shard for part in parts):
        parts, texts = [], []
    of_parts = {part.name for part in parts}
    rest = [state_file for state_file in state if state_file.name not in of_parts]
    made = [(some, "shards, by their numbers") for some in _shard_sets(rest)]
    made += [(some, _WHY_PARTS) for some in _runs(rest)]
    if parts:
        made.append(([*parts, *texts], _WHY_PARTS))
    indices = [member for member in beside if member not in texts]
    units = [_unit(_with_indices(some, indices), None, why) for some, why in made]
    return _with_missing(units, state, missing) if missing else units


def _with_missing(
    units: Sequence[Unit], state: Iterable[Parts], missing: tuple[str, ...]
) -> list[Unit]:
    units = units or [
        Unit(state_file.name, (state_file.name,), None, "one file") for state_file in state
    ]
    return [replace(unit, missing=(*unit.missing, *missing)) for unit in units]


def _with_indices(members: Sequence[Parts], indices: Iterable[Parts]) -> list[Parts]:
    starts = {member.shard[0] for member in members if member.shard is not None}
    own = [index for index in indices if index.name.removesuffix(".index.json") in starts]
    return [*members, *own]


_WHY_PARTS = "parts of one training's state in one folder"


def _parts_of_a_state(state: Sequence[Parts], first: Parts) -> list[Parts]:
    """Return the files that are parts by a word or a rank, or that each save writes again."""
    # `last.ckpt` and `last.pt` come from two different savers.
    is_each_time = not EACH_TIME.isdisjoint(first.key) and any(
        state_file.words or state_file.ending.lower() not in _BY_THEMSELVES for state_file in state
    )
    is_each_time |= has_numbered_parts(state)
    return [
        state_file
        for state_file in state
        if state_file.is_component or state_file.rank or is_each_time
    ]


def _texts_of(parts: Sequence[Parts], beside: Sequence[Parts]) -> list[Parts]:
    """Return the descriptions and other files of the parts of a state."""
    texts = [
        member for member in beside
        if member.is_state_text or member.is_history or (member.stamps and member.is_component)
    ]  # fmt: skip
    if _are_one_role(parts):
        texts = [text for text in texts if text.stamps]
    if not parts:
        return texts
    others = [member for member in beside if may_be_state(member.name) or is_marker(member.name)]
    return texts + [other for other in others if other not in texts]  # `vectorizer_v3.joblib`


def _are_one_role(members: Iterable[Parts]) -> bool:
    return len({member.role for member in members}) < 2


def _runs(state: Iterable[Parts]) -> list[list[Parts]]:
    """Return the files of each run named in the files: `bert_model.pt`, `bert_optimizer.pt`."""
    runs: defaultdict[tuple[str, ...], list[Parts]] = defaultdict(list)
    for state_file in state:
        if state_file.shard is None and 0 < len(state_file.strange) < len(state_file.words):
            runs[state_file.strange].append(state_file)
    return [some for some in runs.values() if not _are_one_role(some)]


def _shard_sets(state: Iterable[Parts]) -> list[list[Parts]]:
    sets: defaultdict[str, list[Parts]] = defaultdict(list)
    for state_file in state:
        if state_file.shard is not None:
            sets[state_file.shard[0]].append(state_file)
    return list(sets.values())


def _unit(members: Sequence[Parts], step: int | None, why: str) -> Unit:
    if len(members) == 1 and members[0].shard is None:
        return Unit(members[0].name, (members[0].name,), step, why)
    names = sorted(member.name for member in members)
    state = [member for member in members if is_state(member.name)]
    lead = min(state, key=lambda state_file: (_place_as_lead(state_file), state_file.name))
    return Unit(lead.name, tuple(names), step, why, lost_shards(names))


def lost_shards(names: Iterable[str]) -> tuple[str, ...]:
    """Name the missing shards of files numbered `-00001-of-00004`."""
    sets: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in names:
        shard = parts_of(name).shard
        if shard is not None:
            sets[shard[0], shard[2]][shard[1]] = name
    said = []
    for (_, count), there in sorted(sets.items()):
        first = 0 if 0 in there else 1
        n_lost = count - sum(first <= number < count + first for number in there)
        if n_lost:
            lost = next(n for n in range(first, count + first) if n not in there)
            name = next(iter(there.values()))
            match = re.search(r"(?<=[-_.])\d+(?=-of-)", name)
            begin, end = match.span() if match else (0, 0)
            more = f" and {n_lost - 1} more of {count}" if n_lost > 1 else ""
            said.append(f"{name[:begin]}{lost:0{end - begin}d}{name[end:]}{more}")
    return tuple(said)


def _place_as_lead(parts: Parts) -> int:
    return min((_LEADS.index(word) for word in parts.words if word in _LEADS), default=len(_LEADS))
