"""Find the checkpoints in a tier: Penstock's by the manifest, other checkpoints by the files.

The module knows names, groups files, and opens manifests only.  penstock.save.verify checks whether
a checkpoint is whole.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.places.stores import LocalStore, Store, StoredFile, beside
from penstock.save.check.rankfiles import is_of_model
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
from penstock.save.find.copies import may_be_of_two_saves, unlike_its_copy
from penstock.save.find.ruled import with_rules
from penstock.save.find.scratch import with_scratch_folders
from penstock.save.find.shortened import with_shortened
from penstock.save.find.steps import (
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
from penstock.save.find.together import of_one_save
from penstock.save.find.tree import Folder, StoreTree, files_of, kind_of
from penstock.save.find.unfetched import with_unfetched
from penstock.save.find.usual import without_usual
from penstock.save.manifest import BESIDE
from penstock.save.overwritten.mixture import said_of_mixtures
from penstock.save.overwritten.putback import mixed
from penstock.save.unit.folders import with_other_folders
from penstock.save.unit.names import is_state, parts_of
from penstock.save.unit.order import counts_of, newest_first
from penstock.save.unit.recognise import HF_FOLDER, without_weak
from penstock.save.unit.rules import rules_of
from penstock.save.unit.shapes import Shape, lacking, role_at, shape_of
from penstock.save.unit.spans import Saves, by_folder, saves_of
from penstock.save.unit.units import BY_RULE

__all__ = ["compared", "find", "find_file", "find_folder", "go_on", "remains_of"]


def go_on(fast: LocalStore, slow: Store, chosen: Checkpoint) -> None:
    """Note the earlier fast tiers of a run that continues on a new fast tier, as each job of a
    batch system may have a separate fast tier.

    chosen: the checkpoint on the slow tier to start from.  The run continues on a new fast tier if
    the slow tier has copies, but none from the fast tier; or if the fast tier is empty and the
    chosen checkpoint came from another fast tier.  Raises TierError."""
    before = {
        checkpoint.manifest.origin for checkpoint in find(slow) if checkpoint.manifest is not None
    }
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
    other_rest: Sequence[StoredFile] = (),
) -> list[Checkpoint]:
    """Return every checkpoint of a tier, newest first.

    hints: extended by the pointers beside the checkpoints, and, if the tier is a model's own
    folder, by the files that load the model beside the weights.  rest: extended by all other files
    outside checkpoints.  within: the only folders to search.  others: checkpoints of another tier,
    for comparison; other_rest: the files outside them.  saves: the files written by each save of a
    recorded run, in addition to the sets kept with the tier.  Raises TierError."""
    tree = StoreTree(store, within, saves)
    checkpoints = without_weak([_unmixed(tree, checkpoint) for checkpoint in tree.below("", 0)])
    outside = [*_rest_of(tree, checkpoints, ()), *other_rest]
    checkpoints = compared(with_rules(checkpoints, tree.rules, others), others, outside)
    checkpoints = said_of_mixtures(store, checkpoints) if tree.put_back else checkpoints
    checkpoints = newest_first(
        of_one_save(store, with_unfetched(store, checkpoints), others), others
    )
    own_hints = hints if hints is not None else []
    if hints is not None:
        own_hints += _hints_of(tree, checkpoints)
    if rest is not None:
        rest += _rest_of(tree, checkpoints, own_hints)
    return checkpoints


def _hints_of(tree: "StoreTree", checkpoints: Sequence[Checkpoint]) -> list[StoredFile]:
    """Return the pointers beside the checkpoints, and the files for loading a model."""
    folders = tuple(f"{checkpoint.name}/" for checkpoint in checkpoints if checkpoint.is_folder)
    names = {
        file.name
        for checkpoint in checkpoints
        if not checkpoint.is_folder
        for file in checkpoint.files
    }
    return [
        hint for hint in tree.hints if not hint.name.startswith(folders) and hint.name not in names
    ]


def _rest_of(
    tree: "StoreTree", checkpoints: Sequence[Checkpoint], hints: Iterable[StoredFile]
) -> list[StoredFile]:
    """Return the files outside checkpoints, without the hints."""
    names = {file.name for checkpoint in checkpoints for file in checkpoint.files} | {
        hint.name for hint in hints
    }
    own = tuple(
        f"{checkpoint.name}/"
        for checkpoint in checkpoints
        if checkpoint.is_folder and checkpoint.kind != "hf"
    )
    if len(names) >= tree.n_files:
        return []
    return [
        file for file in tree.all_files("")
        if file.name not in names
        and not file.name.startswith(own)
        and not file.name.endswith((BESIDE, HALF))
        and is_content(file.name.rpartition("/")[2])
    ]  # fmt: skip


def _unmixed(tree: "StoreTree", checkpoint: Checkpoint) -> Checkpoint:
    """Add a problem if some files were put back from an older save."""
    if not tree.put_back or checkpoint.problem or checkpoint.manifest is not None:
        return checkpoint
    return replace(checkpoint, problem=mixed(checkpoint))


# For these kinds the format itself, or the comparison with neighbours, names missing parts.
_TELLS_ALL = ("tensorflow",)
# The format's own index names the data files, or the names show the number of files.
_HAS_INDEX = ("dcp", "deepspeed", "orbax")


def compared(
    checkpoints: Sequence[Checkpoint],
    others: Sequence[Checkpoint] = (),
    rest: Sequence[StoredFile] = (),
) -> list[Checkpoint]:
    """Return each checkpoint with the problems found by a comparison.

    A checkpoint is compared with the neighbouring checkpoints and with the copy of the same name.
    Possible problems: a part of earlier checkpoints is missing, or a save has rewritten only some
    files.  The comparison also finds the number in a name that is the step.  others: checkpoints of
    another tier.  rest: the files of no checkpoint."""
    checkpoints, others = with_steps(checkpoints, others), with_steps(others, checkpoints)
    lines = _lines_of((*checkpoints, *others))
    problems = dict[int, str]()
    for alike in lines:
        problems |= _lacking_in(alike)
    of_deepspeed = [line for line in lines if line[0].kind == "deepspeed"]
    doubts = with_uncounted(of_deepspeed)
    problems |= with_lost_experts(of_deepspeed)
    lines = [line for line in lines if line[0].kind not in _HAS_INDEX]
    problems |= unlike_earlier(checkpoints, others) | with_gaps(lines) | with_empty(lines)
    copies = _copies_in((*checkpoints, *others))
    unlike, perhaps = _unlike_copies(checkpoints, copies, problems)
    problems, doubts = problems | unlike, doubts | perhaps
    doubts |= with_doubts(lines) | with_absent_chunks(lines)
    doubts |= with_rows_at_once(checkpoints) | _doubts_of_copies(checkpoints)
    uncopied = [checkpoint for checkpoint in checkpoints if checkpoint.name not in copies]
    doubts |= with_a_pause(uncopied) | with_old_ranks(uncopied)
    doubts |= with_shortened(checkpoints, others) | with_scratch_folders(checkpoints, others)
    doubts = without_usual(checkpoints, others, rest) | doubts
    if problems or doubts:
        checkpoints = [
            replace(
                checkpoint,
                problem=problems.get(id(checkpoint), checkpoint.problem),
                doubt=doubts.get(id(checkpoint), ""),
            )
            if id(checkpoint) in problems or id(checkpoint) in doubts
            else checkpoint
            for checkpoint in checkpoints
        ]
    return with_other_folders(checkpoints, others)


def _unlike_copies(
    checkpoints: Iterable[Checkpoint], copies: Mapping[str, Checkpoint], problems: Container[int]
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the problems and the doubts of a comparison with the copies of the same names, by id
    of checkpoint.  copies: by name; problems: ids of the checkpoints with a problem."""
    unlike, perhaps = dict[int, str](), dict[int, str]()
    for checkpoint in checkpoints if copies else ():
        copy = copies.get(checkpoint.name)
        is_open = (
            checkpoint.manifest is None
            and not checkpoint.problem
            and id(checkpoint) not in problems
        )
        if copy is None or not is_open:
            continue
        if why := unlike_its_copy(checkpoint, copy):
            unlike[id(checkpoint)] = why
        elif why := may_be_of_two_saves(checkpoint, copy):
            perhaps[id(checkpoint)] = why
    return unlike, perhaps


def _doubts_of_copies(checkpoints: Iterable[Checkpoint]) -> dict[int, str]:
    """Return the doubts of the copied saves, by id of checkpoint."""
    return {
        id(checkpoint): checkpoint.manifest.doubt
        for checkpoint in checkpoints
        if checkpoint.manifest and checkpoint.manifest.doubt
    }


def _lines_of(checkpoints: Iterable[Checkpoint]) -> list[list[Checkpoint]]:
    """Return the checkpoints to compare with each other, by training.  Checkpoints of a user's rule
    need no comparison: the rule names every required part."""
    lines: defaultdict[tuple[str, ...], list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        if (
            checkpoint.step is not None
            and checkpoint.kind not in _TELLS_ALL
            and not checkpoint.why.startswith(BY_RULE)
        ):
            lines[line_of(checkpoint)].append(checkpoint)
    return list(lines.values())


def _copies_in(checkpoints: Iterable[Checkpoint]) -> dict[str, Checkpoint]:
    """Return the newest copy by the name of the checkpoint, and by the name of each file of a
    checkpoint of several files.  A copy with a doubt shows nothing."""
    copies = dict[str, Checkpoint]()
    for checkpoint in checkpoints:
        if checkpoint.manifest is None or checkpoint.problem or checkpoint.manifest.doubt:
            continue
        if checkpoint.is_folder:
            names = [checkpoint.called or checkpoint.name]
        else:
            names = [f"{checkpoint.folder}{name}" for name in checkpoint.manifest.by_saved_name]
        for name in names:
            copies.setdefault(name, checkpoint)  # the first is the newest
    return copies


def _lacking_in(alike: Sequence[Checkpoint]) -> dict[int, str]:
    """Return the problem of each checkpoint of a training that lacks a part of earlier checkpoints,
    by id of checkpoint."""
    if _are_of_equal_names(alike):
        return {}
    first = _roles_of(alike[0])
    if first and all(_roles_of(checkpoint) == first for checkpoint in alike):
        return {}
    shapes = [(checkpoint, _shape_of(checkpoint)) for checkpoint in alike]
    if len({shape.roles for _, shape in shapes}) == 1:
        return {}
    places = _places_of(alike)
    line = [
        (checkpoint, replace(shape, place=places[id(checkpoint)])) for checkpoint, shape in shapes
    ]
    line.sort(key=lambda row: row[1].order)
    problems = dict[int, str]()
    rest = _remainders_in(line)
    for place, (checkpoint, shape) in enumerate(line):
        beside = line[max(0, place - 8) : place + 9]
        near = [row for it, row in beside if row is not shape and id(it) not in rest]
        if not checkpoint.problem and checkpoint.manifest is None and (why := lacking(shape, near)):
            problems[id(checkpoint)] = why
    return problems


def _are_of_equal_names(alike: Sequence[Checkpoint]) -> bool:
    """Return True if the checkpoints are a single save and copies with equal names of files, so
    that no part can be missing."""
    first = alike[0]
    return all(
        (checkpoint.step, checkpoint.kind, checkpoint.is_folder)
        == (first.step, first.kind, first.is_folder)
        and len(checkpoint.files) == len(first.files)
        and checkpoint.inner_names == first.inner_names
        for checkpoint in alike[1:]
    )


def _remainders_in(line: Iterable[tuple[Checkpoint, Shape]]) -> set[int]:
    """Return the ids of checkpoints with fewer parts than a copy: the removal did not end, or a
    second save of the step did not end.  Neither shows the parts of a whole save."""
    whole = defaultdict[int | None, list[Shape]](list)
    rows = list(line)
    for checkpoint, shape in rows:
        if checkpoint.manifest is not None and not checkpoint.problem:
            whole[checkpoint.step].append(shape)
    return {
        id(checkpoint)
        for checkpoint, shape in rows
        if checkpoint.manifest is None
        and any(shape.roles < other.roles for other in whole[checkpoint.step])
    }


def _places_of(line: Sequence[Checkpoint]) -> dict[int, int]:
    """Return the place of each checkpoint in the order of saving, by id(); equal for a checkpoint
    and its copy."""
    counts, place = counts_of(line), 0
    places, before = dict[int, int](), None
    for checkpoint in reversed(newest_first(line)):
        if counts[id(checkpoint)] != before:
            place, before = place + 1, counts[id(checkpoint)]
        places[id(checkpoint)] = place
    return places


def remains_of(checkpoint: Checkpoint, copies: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the copy of a checkpoint that is only a remainder of the copied files: an interrupted
    removal leaves some of several files.  None: no copy matches."""
    if checkpoint.manifest is not None or checkpoint.is_folder:
        return None
    own = {checkpoint.inner(file): file for file in checkpoint.files}
    for copy in copies:
        if copy.manifest is None or len(copy.manifest.files) <= len(own):
            continue  # checked first: of thousands of copies most have a single file
        if copy.is_folder or copy.folder != checkpoint.folder:
            continue
        names = {file.name: file.size_bytes for file in copy.manifest.files}
        if all(names.get(name) == file.size_bytes for name, file in own.items()):
            there = {copy.inner(file): file.mtime_ns for file in copy.files}
            is_local = isinstance(copy.store, LocalStore)
            if not is_local or all(there.get(name) == own[name].mtime_ns for name in own):
                return copy
    return None


def _roles_of(checkpoint: Checkpoint) -> str:
    """Return the roles of a checkpoint's files; an empty string: the checkpoint is a folder, or a
    file is missing."""
    if checkpoint.is_folder or (
        checkpoint.manifest and len(checkpoint.manifest.files) != len(checkpoint.files)
    ):
        return ""
    return "/".join(
        [
            role_at(parts_of(file.name.rpartition("/")[2]), checkpoint.step)
            for file in checkpoint.files
        ]
    )


# Files of every step.  Data files have random names, and the number of processes may change.
_ORBAX_NAMES = re.compile(
    r"(?:(?!ocdbt\.|array_metadatas/)[^/]+/)*"
    r"(?:_CHECKPOINT_METADATA|_METADATA|_sharding|manifest\.ocdbt|commit_success\.txt|metadata"
    r"|checkpoint)"
)


def _shape_of(checkpoint: Checkpoint) -> Shape:
    start = f"{checkpoint.name}/" if checkpoint.is_folder else ""
    files = checkpoint.files
    if checkpoint.kind == "orbax":
        names = frozenset(filter(_ORBAX_NAMES.fullmatch, map(checkpoint.inner, files)))
        return Shape(checkpoint.step or 0, names, names)
    if checkpoint.kind == "deepspeed":
        names = frozenset(filter(is_of_model, map(checkpoint.inner, files)))
        return Shape(checkpoint.step or 0, names, names)
    if checkpoint.kind == "dcp":
        files = tuple(file for file in files if not file.name.endswith(".distcp"))
    shape = shape_of(checkpoint.step or 0, files, start)
    if checkpoint.kind == "dcp":  # common to all DCP checkpoints
        shape = replace(
            shape, roles=shape.roles | {".metadata"}, components=shape.components | {".metadata"}
        )
    if (
        checkpoint.manifest is not None and checkpoint.manifest.source
    ):  # the time of a copy has no meaning here
        return replace(shape, begin_ns=0, end_ns=0)
    return shape


def find_folder(store: LocalStore, name: str) -> list[Checkpoint]:
    """Return the checkpoint in a folder at the top of a store, or an empty list.  Neighbouring
    folders are not read, except for a Trainer's checkpoint: the neighbours are compared.  Raises
    TierError."""
    within = [name]
    if HF_FOLDER.fullmatch(name):
        with suppress(OSError):
            there = (path.name for path in store.folder.iterdir())
            within = [neighbour for neighbour in there if HF_FOLDER.fullmatch(neighbour)]
    return [checkpoint for checkpoint in find(store, within=within) if checkpoint.name == name]


def find_file(store: Store, name: str) -> Checkpoint | None:
    """Return the checkpoint that contains a file at the top of a store, without a search in
    folders; None: the file belongs to no checkpoint.  Raises TierError."""
    status = store.stat(name) if kind_of(name) or is_state(name) else None
    if status is None:
        return None
    files = {name: status}
    if isinstance(store, LocalStore):
        with suppress(OSError):
            names = [entry.name for entry in os.scandir(store.folder) if entry.is_file()]
            files |= {name: there for name in names if (there := store.stat(name)) is not None}
    noted = {beside(name, ending): store.stat(beside(name, ending)) for ending in (BESIDE, HALF)}
    files |= {other: there for other, there in noted.items() if there is not None}
    saves = by_folder(saves_of(store)).get("", ())
    all_of_them = list(files_of(store, "", Folder(files, set(), {}), rules_of(store), saves))
    return next(
        (checkpoint for checkpoint in compared(all_of_them) if status in checkpoint.files), None
    )
