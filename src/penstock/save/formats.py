"""Find the checkpoints in a tier: Penstock's by the manifest, other checkpoints by the files.

The module knows names, groups files, and opens manifests only.  penstock.save.verify checks whether
a checkpoint is whole.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.places.stores import LocalStore, Store, StoredFile, beside
from penstock.save.checkpoint import (
    GOES_ON,
    HALF,
    Checkpoint,
    half_of,
    halves,
    is_content,
    line_of,
    origin_of,
    origins,
)
from penstock.save.copies import unlike_its_copy
from penstock.save.folders import with_other_folders
from penstock.save.manifest import BESIDE
from penstock.save.mixture import said_of_mixtures
from penstock.save.names import is_state, parts_of
from penstock.save.order import counts_of, newest_first
from penstock.save.putback import mixed
from penstock.save.rankfiles import is_of_model
from penstock.save.recognise import (
    HF_FOLDER,
    without_weak,
)
from penstock.save.ruled import with_rules
from penstock.save.rules import rules_of
from penstock.save.scratch import with_scratch_folders
from penstock.save.shapes import Shape, lacking, role_at, shape_of
from penstock.save.shortened import with_shortened
from penstock.save.spans import Saves, by_folder, saves_of
from penstock.save.steps import (
    unlike_earlier,
    with_a_pause,
    with_absent_chunks,
    with_doubts,
    with_empty,
    with_gaps,
    with_lost_experts,
    with_old_ranks,
    with_rows_at_once,
    with_steps,
    with_uncounted,
)
from penstock.save.together import of_one_save
from penstock.save.tree import Folder, StoreTree, files_of, kind_of
from penstock.save.units import BY_RULE

__all__ = ["compared", "find", "find_file", "find_folder", "go_on", "remains_of"]


def go_on(fast: LocalStore, slow: Store, chosen: Checkpoint) -> None:
    """Note the earlier fast tiers of a run that continues on a new fast tier, as each job of a
    batch system may have a separate fast tier.

    chosen: the checkpoint on the slow tier to start from.  The run continues on a new fast tier if
    the slow tier has copies, but none from the fast tier; or if the fast tier is empty and the
    chosen checkpoint came from another fast tier.  Raises TierError."""
    before = {one.manifest.origin for one in find(slow) if one.manifest is not None}
    before = {*before, *(half_of(slow, mark)[1] for mark in halves(slow))} - {""}
    came_from = chosen.manifest.origin if chosen.manifest is not None else ""
    is_moved = came_from not in ("", *origins(fast)) and not find(fast)
    if before and (before.isdisjoint({fast.url, origin_of(fast)}) or is_moved):
        fast.put(GOES_ON, [json.dumps(sorted(before)).encode()])


def find(
    store: Store,
    *,
    hints: list[StoredFile] | None = None,
    rest: list[StoredFile] | None = None,
    within: Sequence[str] = ("",),
    others: Sequence[Checkpoint] = (),
    saves: Saves = (),
) -> list[Checkpoint]:
    """Return every checkpoint of a tier, newest first.

    hints: extended by the pointers beside the checkpoints, and, if the tier is a model's own
    folder, by the files that load the model beside the weights.  rest: extended by all other files
    outside checkpoints.  within: the only folders to search.  others: checkpoints of another tier,
    for comparison.  saves: the files written by each save of a recorded run, in addition to the
    sets kept with the tier.  Raises TierError."""
    tree = StoreTree(store, within, saves)
    found = without_weak([_unmixed(tree, one) for one in tree.below("", 0)])
    found = compared(with_rules(found, tree.rules, others), others)
    found = said_of_mixtures(store, found) if tree.put_back else found
    found = newest_first(of_one_save(store, found, others), others)
    own_hints = hints if hints is not None else []
    if hints is not None:
        own_hints += _hints_of(tree, found)
    if rest is not None:
        rest += _rest_of(tree, found, own_hints)
    return found


def _hints_of(tree: "StoreTree", found: Sequence[Checkpoint]) -> list[StoredFile]:
    """Return the pointers beside the checkpoints, and the files for loading a model."""
    folders = tuple(f"{one.name}/" for one in found if one.is_folder)
    known = {file.name for one in found if not one.is_folder for file in one.files}
    return [one for one in tree.hints if not one.name.startswith(folders) and one.name not in known]


def _rest_of(
    tree: "StoreTree", found: Sequence[Checkpoint], hints: Iterable[StoredFile]
) -> list[StoredFile]:
    """Return the files outside checkpoints, without the hints."""
    known = {file.name for one in found for file in one.files} | {one.name for one in hints}
    own = tuple(f"{one.name}/" for one in found if one.is_folder and one.kind != "hf")
    if len(known) >= tree.n_files:
        return []
    return [
        one for one in tree.all_files("")
        if one.name not in known
        and not one.name.startswith(own)
        and not one.name.endswith((BESIDE, HALF))
        and is_content(one.name.rpartition("/")[2])
    ]  # fmt: skip


def _unmixed(tree: "StoreTree", one: Checkpoint) -> Checkpoint:
    """Add a problem if some files were put back from an older save."""
    if not tree.put_back or one.problem or one.manifest is not None:
        return one
    return replace(one, problem=mixed(one))


# For these kinds the format itself, or the comparison with neighbours, names missing parts.
_TELLS_ALL = ("tensorflow",)
# The format's own index names the data files, or the names show the number of files.
_HAS_INDEX = ("dcp", "deepspeed", "orbax")


def compared(found: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()) -> list[Checkpoint]:
    """Return each checkpoint with the problems found by a comparison.

    A checkpoint is compared with the neighbouring checkpoints and with the copy of the same name.
    Possible problems: a part of earlier checkpoints is missing, or a save has rewritten only some
    files.  The comparison also finds the number in a name that is the step.  others: checkpoints of
    another tier."""
    found, others = with_steps(found, others), with_steps(others, found)
    lines = _lines_of((*found, *others))
    problems = dict[int, str]()
    for alike in lines:
        problems |= _lacking_in(alike)
    of_deepspeed = [line for line in lines if line[0].kind == "deepspeed"]
    doubts = with_uncounted(of_deepspeed)
    problems |= with_lost_experts(of_deepspeed)
    lines = [line for line in lines if line[0].kind not in _HAS_INDEX]
    problems |= unlike_earlier(found, others) | with_gaps(lines) | with_empty(lines)
    copies = _copies_in((*found, *others))
    for one in found if copies else ():
        copy = copies.get(one.name)
        is_open = one.manifest is None and not one.problem and id(one) not in problems
        if copy is not None and is_open and (why := unlike_its_copy(one, copy)):
            problems[id(one)] = why
    doubts |= with_doubts(lines) | with_absent_chunks(lines)
    doubts |= with_rows_at_once(found) | _doubts_of_copies(found)
    uncopied = [one for one in found if one.name not in copies]
    doubts |= with_a_pause(uncopied) | with_old_ranks(uncopied)
    doubts |= with_shortened(found, others) | with_scratch_folders(found, others)
    if problems or doubts:
        found = [
            replace(one, problem=problems.get(id(one), one.problem), doubt=doubts.get(id(one), ""))
            if id(one) in problems or id(one) in doubts
            else one
            for one in found
        ]
    return with_other_folders(found, others)


def _doubts_of_copies(found: Iterable[Checkpoint]) -> dict[int, str]:
    """Return the doubts of the copied saves, by id of checkpoint."""
    return {id(one): one.manifest.doubt for one in found if one.manifest and one.manifest.doubt}


def _lines_of(checkpoints: Iterable[Checkpoint]) -> list[list[Checkpoint]]:
    """Return the checkpoints to compare with each other, by training.  Checkpoints of a user's rule
    need no comparison: the rule names every required part."""
    lines: defaultdict[tuple[str, ...], list[Checkpoint]] = defaultdict(list)
    for one in checkpoints:
        if one.step is not None and one.kind not in _TELLS_ALL and not one.why.startswith(BY_RULE):
            lines[line_of(one)].append(one)
    return list(lines.values())


def _copies_in(checkpoints: Iterable[Checkpoint]) -> dict[str, Checkpoint]:
    """Return the newest copy by the name of the checkpoint, and by the name of each file of a
    checkpoint of several files.  A copy with a doubt shows nothing."""
    copies = dict[str, Checkpoint]()
    for one in checkpoints:
        if one.manifest is None or one.problem or one.manifest.doubt:
            continue
        if one.is_folder:
            names = [one.called or one.name]
        else:
            names = [f"{one.folder}{name}" for name in one.manifest.by_saved_name]
        for name in names:
            copies.setdefault(name, one)  # the first is the newest
    return copies


def _lacking_in(alike: Sequence[Checkpoint]) -> dict[int, str]:
    """Return the problem of each checkpoint of a training that lacks a part of earlier checkpoints,
    by id of checkpoint."""
    first = _roles_of(alike[0])
    if first and all(_roles_of(one) == first for one in alike):
        return {}
    shapes = [(one, _shape_of(one)) for one in alike]
    if len({shape.roles for _, shape in shapes}) == 1:
        return {}
    places = _places_of(alike)
    line = [(one, replace(shape, place=places[id(one)])) for one, shape in shapes]
    line.sort(key=lambda row: row[1].order)
    problems = dict[int, str]()
    rest = _remainders_in(line)
    for place, (one, shape) in enumerate(line):
        beside = line[max(0, place - 8) : place + 9]
        near = [row for it, row in beside if row is not shape and id(it) not in rest]
        if not one.problem and one.manifest is None and (why := lacking(shape, near)):
            problems[id(one)] = why
    return problems


def _remainders_in(line: Iterable[tuple[Checkpoint, Shape]]) -> set[int]:
    """Return the ids of checkpoints with fewer parts than a copy: the removal did not end, or a
    second save of the step did not end.  Neither shows the parts of a whole save."""
    whole = defaultdict[int | None, list[Shape]](list)
    rows = list(line)
    for one, shape in rows:
        if one.manifest is not None and not one.problem:
            whole[one.step].append(shape)
    return {
        id(one)
        for one, shape in rows
        if one.manifest is None and any(shape.roles < other.roles for other in whole[one.step])
    }


def _places_of(line: Sequence[Checkpoint]) -> dict[int, int]:
    """Return the place of each checkpoint in the order of saving, by id(); equal for a checkpoint
    and its copy."""
    counts, place = counts_of(line), 0
    places, before = dict[int, int](), None
    for one in reversed(newest_first(line)):
        if counts[id(one)] != before:
            place, before = place + 1, counts[id(one)]
        places[id(one)] = place
    return places


def remains_of(one: Checkpoint, copies: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the copy of a checkpoint that is only a remainder of the copied files: an interrupted
    removal leaves some of several files.  None: no copy matches."""
    if one.manifest is not None or one.is_folder:
        return None
    own = {one.inner(found): found for found in one.files}
    for copy in copies:
        if copy.manifest is None or len(copy.manifest.files) <= len(own):
            continue  # checked first: of thousands of copies most have a single file
        if copy.is_folder or copy.folder != one.folder:
            continue
        names = {file.name: file.size_bytes for file in copy.manifest.files}
        if all(names.get(name) == found.size_bytes for name, found in own.items()):
            there = {copy.inner(found): found.mtime_ns for found in copy.files}
            is_local = isinstance(copy.store, LocalStore)
            if not is_local or all(there.get(name) == own[name].mtime_ns for name in own):
                return copy
    return None


def _roles_of(one: Checkpoint) -> str:
    """Return the roles of a checkpoint's files; an empty string: the checkpoint is a folder, or a
    file is missing."""
    if one.is_folder or (one.manifest and len(one.manifest.files) != len(one.files)):
        return ""
    return "/".join(
        [role_at(parts_of(file.name.rpartition("/")[2]), one.step) for file in one.files]
    )


# Files of every step.  Data files have random names, and the number of processes may change.
_ORBAX_NAMES = re.compile(
    r"(?:(?!ocdbt\.|array_metadatas/)[^/]+/)*"
    r"(?:_CHECKPOINT_METADATA|_METADATA|_sharding|manifest\.ocdbt|commit_success\.txt|metadata"
    r"|checkpoint)"
)


def _shape_of(one: Checkpoint) -> Shape:
    start = f"{one.name}/" if one.is_folder else ""
    files = one.files
    if one.kind == "orbax":
        names = frozenset(filter(_ORBAX_NAMES.fullmatch, map(one.inner, files)))
        return Shape(one.step or 0, names, names)
    if one.kind == "deepspeed":
        names = frozenset(filter(is_of_model, map(one.inner, files)))
        return Shape(one.step or 0, names, names)
    if one.kind == "dcp":
        files = tuple(file for file in files if not file.name.endswith(".distcp"))
    shape = shape_of(one.step or 0, files, start)
    if one.kind == "dcp":  # common to all DCP checkpoints
        shape = replace(shape, roles=shape.roles | {".metadata"}, known=shape.known | {".metadata"})
    if one.manifest is not None and one.manifest.source:  # the time of a copy has no meaning here
        return replace(shape, begin_ns=0, end_ns=0)
    return shape


def find_folder(store: LocalStore, name: str) -> list[Checkpoint]:
    """Return the checkpoint in a folder at the top of a store, or an empty list.  Neighbouring
    folders are not read, except for a Trainer's checkpoint: the neighbours are compared.  Raises
    TierError."""
    within = [name]
    if HF_FOLDER.fullmatch(name):
        with suppress(OSError):
            there = (one.name for one in store.folder.iterdir())
            within = [one for one in there if HF_FOLDER.fullmatch(one)]
    return [one for one in find(store, within=within) if one.name == name]


def find_file(store: Store, name: str) -> Checkpoint | None:
    """Return the checkpoint that contains a file at the top of a store, without a search in
    folders; None: the file belongs to no checkpoint.  Raises TierError."""
    found = store.stat(name) if kind_of(name) or is_state(name) else None
    if found is None:
        return None
    files = {name: found}
    if isinstance(store, LocalStore):
        with suppress(OSError):
            names = [entry.name for entry in os.scandir(store.folder) if entry.is_file()]
            files |= {name: there for name in names if (there := store.stat(name)) is not None}
    noted = {beside(name, ending): store.stat(beside(name, ending)) for ending in (BESIDE, HALF)}
    files |= {other: there for other, there in noted.items() if there is not None}
    saves = by_folder(saves_of(store)).get("", ())
    all_of_them = list(files_of(store, "", Folder(files, set(), {}), rules_of(store), saves))
    return next((one for one in compared(all_of_them) if found in one.files), None)
