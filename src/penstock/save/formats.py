"""What is a checkpoint in a tier: ours by its manifest, those of frameworks by what lies there.

Knows names, and which files belong together; opens manifests only.  Whether a checkpoint is whole
is another question: penstock.save.verify.
"""

import errno
import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, Store, StoredFile, beside
from penstock.save.commit import HANDED_IN, MARK, PART_SUFFIX, PLACE, PLACE_FOLDER, STATE
from penstock.save.copies import unlike_its_copy
from penstock.save.folders import with_other_folders
from penstock.save.kept import kept_json
from penstock.save.longer import with_longer_names
from penstock.save.manifest import BESIDE, INSIDE, MOST_BYTES, Manifest, content_of, parse
from penstock.save.mixture import said_of_mixtures
from penstock.save.order import counts_of, newest_first, without_epoch
from penstock.save.putback import ASIDE, BEFOREHAND, TWO_SAVES, mixed
from penstock.save.putback import MARK as PUT_BACK
from penstock.save.recognise import (
    FOLDERS,
    HF_FOLDER,
    HF_STATE,
    is_config,
    parts_of_trainer,
    without_weak,
)
from penstock.save.ruled import with_rules
from penstock.save.rules import NameRule, rules_of
from penstock.save.shapes import Shape, lacking, role_at, shape_of, without_others
from penstock.save.spans import Saves, by_folder, saves_of
from penstock.save.steps import unlike_earlier, with_empty, with_gaps, with_steps
from penstock.save.together import of_one_save
from penstock.save.units import (
    BY_RULE,
    Unit,
    grouped,
    is_state,
    of_two_saves,
    parts_of,
    without_progress,
)

__all__ = [
    "HALF",
    "HINTS",
    "INCOMPLETE",
    "OF_FILES",
    "PLACING",
    "UNREAD",
    "Checkpoint",
    "compared",
    "find",
    "find_file",
    "find_folder",
    "go_on",
    "half_of",
    "halves",
    "is_of_one_file",
    "is_overtaken",
    "is_text",
    "is_unfinished",
    "kind_of",
    "line_of",
    "lying",
    "mark_of_half",
    "origin_of",
    "origins",
    "own_and_others",
    "remains_of",
    "step_of",
]

INCOMPLETE = (
    "penstock-incomplete.json"  # in a folder of a store without renames, until all is there
)
# After the name of a copy that is no folder, until it has its manifest: what it is called by, and
# the tier that it comes from.
HALF = ".penstock.half"
MOST_HALF_BYTES = 64 << 10
MOST_TEXT_BYTES = 64 << 10
GOES_ON = f"{STATE}/goes-on"  # on a fast tier: those that its run had before
MOST_GOES_ON_BYTES = 1 << 20
# Files that frameworks rewrite to name their last checkpoint.  They are copied, never believed.
HINTS = ("checkpoint", "latest", "latest_checkpointed_iteration.txt", "last_checkpoint")
_UNREAD_MANIFEST, _UNSEEN = "its manifest cannot be read", "not all of it can be seen"
_ARRIVING = "not all of it has arrived"
_OF_A_COPY = "a part of a copy that has not ended"
PLACING = f"{_ARRIVING} in its place: the next drain, or `penstock save recover`, ends that"
UNREAD = (_UNREAD_MANIFEST, _UNSEEN)  # a problem that begins so may pass
OF_FILES = "files:"  # the identity of a checkpoint without manifest begins so
# A bad sector, damage of the file system, a file of another user: the others are as they were.
_OF_ONE_FILE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EACCES, errno.EPERM)
DEEPEST = 6  # folders below the tier: lightning_logs/version_0/checkpoints/ is three

# Names that a framework gives to what it has not finished, or a program to a folder that it renames
# at the end: `step_4-saving`, `_incomplete`, `.tmp_step_4`.
_UNFINISHED = re.compile(
    r"\.orbax-checkpoint-tmp|^tmp-|^[._]+tmp[._-]|\.tmp$|\.tmp[._-]|[._-]tmp$"
    r"|^[._-]*(?:incomplete|unfinished)(?:[._-]|$)"
    r"|[._-](?:incomplete|unfinished|partial|saving|writing|in_?progress)$"
)
_UNFINISHED_MARK = "-unfinished"  # a file of NeMo beside an unfinished checkpoint
_TORCH = (".pt", ".pth", ".ckpt", ".pt2")
_ENDINGS = (*_TORCH, ".bin", ".safetensors", ".keras", ".weights.h5")
# Files that their writer renames at the end: by TensorFlow (PREFIX_temp/part-*), by the tempfile
# library of Rust (safetensors), by torch's DCP and others.
_TF_DRAFT = re.compile(r"_temp/part-\d{5}-of-\d{5}(?:\.[^/]*)?$")
_DRAFT = re.compile(
    rf"(?:^|/)\.tmp[A-Za-z0-9]{{6}}$|\.tmp$|\.incomplete$|\.partial$|{_TF_DRAFT.pattern}"
)
_TF_DATA = re.compile(r"^(.+)\.data-(\d{5})-of-(\d{5})$")
# What loads a model beside its weights: its configuration, its tokenizer, the index of its shards.
_HF_BESIDE = (".json", ".txt", ".model", ".jinja", ".py")
_OURS = re.compile(r"(step-\d{8,})(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a tier.

    name: the folder, the file, or the common prefix of the files.  files: with names relative to
    the tier.  manifest: None: missing, or not valid, and then `problem` has the reason.  problem:
    why the checkpoint does not count, empty if no problem is known.  is_broken: a writer at work
    never leaves a checkpoint in such a state.  called: a manifest's `called`, also of a copy
    without manifest so far.  why: the reason for the group of files, as text.  drafts: files in the
    folder that a writer has not renamed yet, or never will: no part of the checkpoint.
    """

    store: Store = field(repr=False)
    name: str
    kind: str
    is_folder: bool
    files: tuple[StoredFile, ...] = field(repr=False)
    step: int | None
    manifest: Manifest | None = field(default=None, repr=False)
    problem: str = ""
    is_broken: bool = False
    called: str = ""
    why: str = field(default="", compare=False)
    drafts: tuple[StoredFile, ...] = field(default=(), repr=False, compare=False)
    torn: str = field(default="", compare=False)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def mtime_ns(self) -> int:
        """When it was made: as its manifest says, else as its youngest file does."""
        if self.manifest is not None and self.manifest.created_unix_ns:
            return self.manifest.created_unix_ns
        if len(self.files) == 1:
            return self.files[0].mtime_ns or 0
        return max((file.mtime_ns or 0 for file in self.files), default=0)

    @property
    def manifest_name(self) -> str:
        return f"{self.name}/{INSIDE}" if self.is_folder else beside(self.name, BESIDE)

    @property
    def where(self) -> str:
        return self.store.where(self.name)

    @property
    def is_ours(self) -> bool:
        """Committed or drained by us: what may be removed by rule."""
        return self.manifest is not None

    @property
    def folder(self) -> str:
        """What the names in a manifest are relative to, with a / at its end, or empty."""
        if self.is_folder:
            return f"{self.name}/"
        head, slash, _ = self.name.rpartition("/")
        return head + slash

    def inner(self, found: StoredFile) -> str:
        """A file's name as a manifest has it."""
        return found.name[len(self.folder) :]

    @property
    def identity(self) -> str:
        """Changes when the checkpoint does: its content where a manifest tells it, else what the
        store says of its files."""
        if self.manifest is not None:
            return self.manifest.identity
        return _identity_of(self.name, self.folder, self.files)


@lru_cache(1 << 17)  # a drain asks several times per look
def _identity_of(name: str, folder: str, files: tuple[StoredFile, ...]) -> str:
    # The name counts: names within `model/300` and `ema/300`, sizes and times may be equal.
    return f"{OF_FILES}{content_of([(name, lying(folder, files))])}"


def lying(folder: str, files: Iterable[StoredFile | None]) -> str:
    """How files of a folder lie: changes when one is written to, comes or goes."""
    facts = ((one.name[len(folder) :], one.size_bytes, one.mtime_ns) for one in files if one)
    return f"{OF_FILES}{content_of(facts)}"


def is_overtaken(manifest: Manifest, store: Store, name: str, is_folder: bool) -> bool:
    """Whether a program has written into what we had brought back for it.  Raises TierError."""
    if not manifest.as_fetched:
        return False
    folder = f"{name}/" if is_folder else name[: name.rfind("/") + 1]
    if is_folder:
        own, others = own_and_others(
            store, name, manifest.kind, (file.name for file in manifest.files)
        )
        tops = {one.name[len(folder) :].partition("/")[0] for one in others}
        tops = {top for top in tops if not (top.endswith(PART_SUFFIX) or _UNFINISHED.search(top))}
        names = {one.name for one in others}
        theirs = {
            top for top in tops
            if HF_FOLDER.fullmatch(top) or f"{folder}{top}/{HF_STATE}" in names
        }  # fmt: skip
        # A folder that is no checkpoint of its own is a part of this one, and new.
        return bool(tops - theirs) or lying(folder, own) != manifest.as_fetched
    files = [store.stat(folder + file.name) for file in manifest.files]
    return lying(folder, files) != manifest.as_fetched


def own_and_others(
    store: Store, name: str, kind: str, known: Iterable[str]
) -> tuple[list[StoredFile], list[StoredFile]]:
    """What lies in a checkpoint's folder now: its own files; and others', as those of a Trainer's
    checkpoints below its model: in folders that have none of the known ones.  Raises TierError."""
    start = len(name) + 1
    there = [found for found in store.list(name) if _is_content(found.name[start:])]
    if kind != "hf":
        return there, []
    folders = {inner.partition("/")[0] for inner in known if "/" in inner}
    own, others = list[StoredFile](), list[StoredFile]()
    for found in there:
        folder, slash, _ = found.name[start:].partition("/")
        (own if not slash or folder in folders else others).append(found)
    return own, others


def go_on(fast: LocalStore, slow: Store, chosen: Checkpoint) -> None:
    """What was chosen to begin from lies on the slow tier: where that has nothing of this fast
    tier's yet, or this one is empty and that came from another, the run goes on here that had other
    ones, as each job of a batch system has its own.  Raises TierError."""
    before = {one.manifest.origin for one in find(slow) if one.manifest is not None}
    before = {*before, *(half_of(slow, mark)[1] for mark in halves(slow))} - {""}
    came_from = chosen.manifest.origin if chosen.manifest is not None else ""
    is_moved = came_from not in ("", *origins(fast)) and not find(fast)
    if before and (before.isdisjoint({fast.url, origin_of(fast)}) or is_moved):
        fast.put(GOES_ON, [json.dumps(sorted(before)).encode()])


def origin_of(store: Store) -> str:
    """What a tier's copies have in their manifest: of a folder that is spelled in several ways, as
    through a link, one name."""
    return os.path.realpath(store.folder) if isinstance(store, LocalStore) else store.url


def origins(fast: Store) -> frozenset[str]:
    """The fast tiers whose copies are this one's to replace: its own, and those of its run before
    it.  Raises TierError."""
    found: list[str] = []
    if isinstance(fast, LocalStore):
        rows = kept_json(fast, GOES_ON, MOST_GOES_ON_BYTES)
        found = [str(one) for one in rows] if isinstance(rows, list) else []
    return frozenset((fast.url, origin_of(fast), *found))


def mark_of_half(name: str, origin: str, n_files: int = 1) -> bytes:
    """What a copy without a manifest is called by, the tier that it comes from, and the number of
    its files."""
    return b"\0".join(map(os.fsencode, (name, origin, str(n_files))))


def half_of(store: Store, mark: str) -> tuple[str, str]:
    """What mark_of_half() was told; an empty origin: not known.  Raises TierError."""
    name, origin, _ = _read_half(store, mark)
    return name, origin


def _read_half(store: Store, mark: str) -> tuple[str, str, bool]:
    """Return half_of(), and whether the copy will have several files.  Raises TierError."""
    name, _, rest = store.read(mark, 0, MOST_HALF_BYTES).partition(b"\0")
    origin, _, n_files = rest.partition(b"\0")
    return os.fsdecode(name), os.fsdecode(origin), n_files not in (b"", b"1")


def halves(store: Store) -> dict[str, list[str]]:
    """Marks of copies that have no manifest yet, or have just got it, and the names of what there
    is of each.  Raises TierError."""
    there = [found.name for found in store.list()]
    found: dict[str, list[str]] = {name: [] for name in there if name.endswith(HALF)}
    for name in there if found else ():
        for mark in {beside(one, HALF) for one in (name, _prefix_of(name))}:
            if mark in found:
                found[mark].append(name)
    return found


def _prefix_of(name: str) -> str:
    """What TensorFlow's files of one checkpoint begin with."""
    folder, slash, base = name.rpartition("/")
    match = _TF_DATA.match(base)
    return f"{folder}{slash}{match[1]}" if match else name.removesuffix(".index")


def is_of_one_file(error: TierError | OSError) -> bool:
    """Whether a file cannot be read, and not the tier is gone."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OF_ONE_FILE


_MARKS = (PUT_BACK, TWO_SAVES, BEFOREHAND)


def _is_content(inner: str) -> bool:
    """Of a folder: not one of the files that we put there."""
    is_ours = inner in (INSIDE, MARK, INCOMPLETE) or inner.rpartition("/")[2] in _MARKS
    return not is_ours and HANDED_IN not in inner


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name: the number beside a word such as step or epoch, else
    the only number.  Numbers of ranks, shards and versions do not count as steps."""
    last = name.rsplit("/", 1)[-1]
    ours = _OURS.fullmatch(last)  # also NAME.2
    return parts_of(ours[1] if ours else last).step


def find(
    store: Store,
    *,
    hints: list[StoredFile] | None = None,
    rest: list[StoredFile] | None = None,
    within: Sequence[str] = ("",),
    others: Sequence[Checkpoint] = (),
    saves: Saves = (),
) -> list[Checkpoint]:
    """Return every checkpoint of a tier, newest first.  hints: is extended by the pointers beside
    the checkpoints, and, where the tier is a model's own folder, by the files that load the model
    beside the weights.  rest: is extended by all other files that belong to no checkpoint.  within:
    the only folders to search.  others: checkpoints of another tier, for comparison.  saves:
    what each save of a recorded run wrote, in addition to the sets kept with the tier.  Raises
    TierError."""
    tree = StoreTree(store, within, saves)
    found = without_weak([_unmixed(tree, one) for one in tree.below("", 0)])
    found = compared(with_rules(found, tree.rules, others), others)
    found = said_of_mixtures(store, found) if tree.put_back else found
    found = newest_first(of_one_save(store, found, others), others)
    if hints is not None:
        folders = tuple(f"{one.name}/" for one in found if one.is_folder)
        known = {file.name for one in found if not one.is_folder for file in one.files}
        hints += [
            one for one in tree.hints if not one.name.startswith(folders) and one.name not in known
        ]
    if rest is not None:
        known = {file.name for one in found for file in one.files}
        known |= {one.name for one in hints or ()}
        own = tuple(f"{one.name}/" for one in found if one.is_folder and one.kind != "hf")
        if len(known) < tree.n_files:
            rest += [
                one
                for one in tree.all_files("")
                if one.name not in known
                and not one.name.startswith(own)
                and not one.name.endswith((BESIDE, HALF))
                and _is_content(one.name.rpartition("/")[2])
            ]
    return found


def _unmixed(tree: "StoreTree", one: Checkpoint) -> Checkpoint:
    """Add the problem of files that were put back from an older save."""
    if not tree.put_back or one.problem or one.manifest is not None:
        return one
    return replace(one, problem=mixed(one))


# For these kinds the format itself, or the comparison with neighbours, names missing parts.
_TELLS_ALL = ("dcp", "deepspeed", "orbax", "tensorflow")


def compared(found: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()) -> list[Checkpoint]:
    """Return each checkpoint with the problems that a comparison finds.  A checkpoint is compared
    with the checkpoints beside and with the copy of the same name: a part of earlier checkpoints is
    missing, or a save has rewritten only some files.  The comparison also shows which number in a
    name is the step.  others: checkpoints of another tier."""
    found, others = with_steps(found, others), with_steps(others, found)
    lines: defaultdict[tuple[str, ...], list[Checkpoint]] = defaultdict(list)
    copies = dict[str, Checkpoint]()
    for one in (*found, *others):
        # A rule names every required part.
        if one.step is not None and one.kind not in _TELLS_ALL and not one.why.startswith(BY_RULE):
            lines[line_of(one)].append(one)
        if one.manifest is not None and not one.problem:
            names = (
                [one.called or one.name]
                if one.is_folder
                else [f"{one.folder}{name}" for name in one.manifest.by_saved_name]
            )
            for name in names:
                copies.setdefault(name, one)  # the first is the newest
    said = dict[int, str]()
    for alike in lines.values():
        first = _roles_of(alike[0])
        if first and all(_roles_of(one) == first for one in alike):
            continue
        line = [(one, _shape_of(one)) for one in alike]
        if len({shape.roles for _, shape in line}) == 1:
            continue
        places = _places_of(alike)
        line = [(one, replace(shape, place=places[id(one)])) for one, shape in line]
        line.sort(key=lambda row: row[1].order)
        for place, (one, shape) in enumerate(line):
            near = [other for _, other in line[max(0, place - 8) : place + 9] if other is not shape]
            if not one.problem and one.manifest is None and (why := lacking(shape, near)):
                said[id(one)] = why
    said |= unlike_earlier(found, others) | with_gaps(lines.values()) | with_empty(lines.values())
    for one in found if copies else ():
        copy = copies.get(one.name)
        is_open = one.manifest is None and not one.problem and id(one) not in said
        if copy is not None and is_open and (why := unlike_its_copy(one, copy)):
            said[id(one)] = why
    if said:
        found = [replace(one, problem=said[id(one)]) if id(one) in said else one for one in found]
    return with_other_folders(found, others)


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
    """Return the copy of which these files are a remainder: an interrupted removal leaves some of
    several files.  None: no such copy."""
    if one.manifest is not None or one.is_folder:
        return None
    own = {one.inner(found): found for found in one.files}
    for copy in copies:
        if copy.manifest is None or copy.is_folder or copy.folder != one.folder:
            continue
        names = {file.name: file.size_bytes for file in copy.manifest.files}
        if len(names) > len(own) and all(
            names.get(name) == found.size_bytes for name, found in own.items()
        ):
            there = {copy.inner(found): found.mtime_ns for found in copy.files}
            is_local = isinstance(copy.store, LocalStore)
            if not is_local or all(there.get(name) == own[name].mtime_ns for name in own):
                return copy
    return None


def line_of(one: Checkpoint) -> tuple[str, ...]:
    """Return a key that is equal for the checkpoints of a training within a folder, or within the
    folders of the epochs."""
    folder, _, last = (one.called or one.name).rpartition("/")
    folder = without_epoch(folder)
    if one.is_folder:
        return (folder, re.sub(r"\d+", "#", last))
    parts = parts_of(last)
    if not parts.bare:
        return (folder, "", *parts.key)
    return (folder, "", *parts.key, *(number for number in parts.bare if number != str(one.step)))


def _roles_of(one: Checkpoint) -> str:
    """Return the roles of a checkpoint's files in one folder; an empty string: a folder, or a file
    is missing."""
    if one.is_folder or (one.manifest and len(one.manifest.files) != len(one.files)):
        return ""
    return "/".join(
        [role_at(parts_of(file.name.rpartition("/")[2]), one.step) for file in one.files]
    )


def _shape_of(one: Checkpoint) -> Shape:
    start = f"{one.name}/" if one.is_folder else ""
    shape = shape_of(one.step or 0, one.files, start)
    if one.manifest is not None and one.manifest.source:  # the time of a copy has no meaning here
        return replace(shape, begin_ns=0, end_ns=0)
    return shape


def find_folder(store: LocalStore, name: str) -> list[Checkpoint]:
    """The checkpoint that is this folder at the top of a store, without a look at what lies beside
    it, but for what a Trainer's says of its neighbours; none, where it is none.  Raises
    TierError."""
    within = [name]
    if HF_FOLDER.fullmatch(name):
        with suppress(OSError):
            there = (one.name for one in store.folder.iterdir())
            within = [one for one in there if HF_FOLDER.fullmatch(one)]
    return [one for one in find(store, within=within) if one.name == name]


def find_file(store: Store, name: str) -> Checkpoint | None:
    """Return the checkpoint that contains this file at the top of a store, without a search in
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
    all_of_them = list(_files(store, "", Folder(files, set(), {}), rules_of(store), saves))
    return next((one for one in compared(all_of_them) if found in one.files), None)


class Folder(NamedTuple):
    files: dict[str, StoredFile]  # by their own names
    folders: set[str]
    # By the name of a checkpoint of several files: the future manifest, until all files are in
    # place.
    arriving: dict[str, StoredFile]


class StoreTree:
    """What a store lists, by folder."""

    def __init__(self, store: Store, within: Sequence[str], saves: Saves = ()) -> None:
        self.store, self.rules = store, rules_of(store)
        self.saves = by_folder((*saves, *saves_of(store)))
        self.put_back = False  # whether a burst buffer has marked a folder
        self.folders: defaultdict[str, Folder] = defaultdict(lambda: Folder({}, set(), {}))
        self._trainers: dict[str, dict[str, set[str]]] = {}
        self.accelerated: dict[str, set[str]] = {}  # by folder: names of ended save_states, as #
        self.hints: list[StoredFile] = []
        # A drain looks each second, at a hundred thousand files perhaps: once a folder, not a file.
        last, here = "", self._noted("")
        self.n_files = 0
        unseen: dict[str, TierError] = {}
        for found in itertools.chain.from_iterable(
            store.list(one, unseen) if isinstance(store, LocalStore) else store.list(one)
            for one in within
        ):
            folder, _, base = found.name.rpartition("/")
            if folder != last:
                last, here = folder, self._noted(folder)
            self.put_back = self.put_back or base in _MARKS
            if base.endswith(ASIDE) and kind_of(base.rpartition(".")[0]):
                continue  # put aside: no part of the checkpoint
            if base in (PLACE, PLACE_FOLDER) and folder.endswith(PART_SUFFIX):
                above, _, part = folder.rpartition("/")
                if (place := self._noted(above)) is not None:
                    place.arriving[part.removesuffix(PART_SUFFIX)] = found
            if here is not None:
                self.n_files += 1
                here.files[base] = found
                if base in HINTS:
                    self.hints.append(found)
        top = self.folders[""].files
        if any(map(is_config, top)):  # the tier is a model's own folder
            self.hints += [
                one for name, one in sorted(top.items())
                if name.endswith(_HF_BESIDE) and not name.endswith(BESIDE) and _is_content(name)
            ]  # fmt: skip
        self._unseen: dict[str, str] = {}  # by name, and why
        for name, error in unseen.items():
            if not is_of_one_file(error):
                raise error
            if self._noted(name) is not None:
                self._unseen[name] = f"{_UNSEEN}: {error}"

    def _noted(self, name: str) -> Folder | None:
        """A folder that those above it know; None: it is no place for checkpoints."""
        parts = name.split("/") if name else []
        if parts[:1] == [STATE] or any(part.endswith(PART_SUFFIX) for part in parts):
            return None
        for depth in range(len(parts), 0, -1):
            above = self.folders["/".join(parts[: depth - 1])]
            if parts[depth - 1] in above.folders:
                break
            above.folders.add(parts[depth - 1])
        return self.folders[name]

    def below(self, name: str, depth: int) -> Iterator[Checkpoint]:
        here = self.folders[name]
        if name:
            if why := self._unseen.get(name) or self._unseen.get(f"{name}/{INSIDE}"):
                yield replace(self.checkpoint(name, "files", [], why), is_broken=True)
                return
            above, _, last = name.rpartition("/")
            noted = self.folders[above].arriving.get(last)
            if noted is not None and noted.name.endswith(PLACE_FOLDER):
                yield self.checkpoint(name, "files", self.all_files(name), PLACING)
                return
            has_copies = any(one.endswith(BESIDE) for one in here.files)  # of files in the folder
            for recognise in (_with_manifest, *(FOLDERS if not has_copies else ())):
                found = recognise(self, name, here)
                if found is not None:
                    runs = self._inner_runs(found, name, here)
                    yield self._as_seen(found, tuple(f"{one}/" for one in runs))
                    for inner in runs:
                        yield from self.below(inner, depth + 1)
                    return
        yield from _files(self.store, name, here, self.rules, self.saves.get(name, ()))
        if depth < DEEPEST:
            for folder in sorted(here.folders):
                yield from self.below(f"{name}/{folder}" if name else folder, depth + 1)

    def _as_seen(self, found: Checkpoint, runs: tuple[str, ...]) -> Checkpoint:
        """One that is known in part only is not whole.  runs: folders in it that are others'."""
        for name, why in self._unseen.items():
            if name.startswith(f"{found.name}/") and not f"{name}/".startswith(runs):
                return replace(found, manifest=None, problem=why, is_broken=True)
        return found

    def _inner_runs(self, found: Checkpoint, name: str, here: Folder) -> list[str]:
        """A Trainer's output folder holds a model, and checkpoints beside it."""
        if found.kind != "hf":
            return []
        return [f"{name}/{one}" for one in sorted(here.folders) if self.is_hf(f"{name}/{one}")]

    def trainers(self, above: str) -> dict[str, set[str]]:
        """Folders called as the Trainer calls its checkpoints, and what parts are in each."""
        if above not in self._trainers:
            self._trainers[above] = {
                one: parts_of_trainer(self.folders[f"{above}/{one}" if above else one])
                for one in sorted(self.folders[above].folders)
                if HF_FOLDER.fullmatch(one)
            }
        return self._trainers[above]

    def is_hf(self, name: str) -> bool:
        """A checkpoint of its own; the Trainer's also before it has ended it."""
        is_named = HF_FOLDER.fullmatch(name.rsplit("/", 1)[-1]) is not None
        return is_named or HF_STATE in self.folders[name].files

    def all_files(
        self, name: str, skip: Callable[[str], bool] = lambda name: False
    ) -> list[StoredFile]:
        found: list[StoredFile] = []
        stack = [name]
        while stack:
            folder = stack.pop()
            found += self.folders[folder].files.values()
            start = f"{folder}/" if folder else ""
            stack += [
                f"{start}{one}" for one in self.folders[folder].folders if not skip(f"{start}{one}")
            ]
        return sorted(found, key=lambda one: one.name)

    def checkpoint(
        self, name: str, kind: str, files: Sequence[StoredFile], problem: str = "", why: str = ""
    ) -> Checkpoint:
        """A folder."""
        kept = [one for one in files if _is_content(one.name[len(name) + 1 :])]
        drafts = {one for one in kept if _is_draft(one.name, len(name))}
        if INSIDE in self.folders[name].files or len(drafts) == len(kept):
            drafts = set()
        kept = [one for one in kept if one not in drafts] if drafts else kept
        above, _, last = name.rpartition("/")
        if not problem and any(map(_UNFINISHED.search, name.split("/"))):
            problem = "its name says that it is not finished"
        if not problem and f"{last}{_UNFINISHED_MARK}" in self.folders[above].files:
            problem = f"{last}{_UNFINISHED_MARK} beside it says that it is not finished"
        step = step_of(name)
        if not problem and step is not None:
            # In a folder of one save the last file would have its name by now.  In a folder of many
            # saves a new save has begun, and the earlier save is still there.
            problem = _unended(kept, drafts)
        made = Checkpoint(self.store, name, kind, True, tuple(kept), step, None, problem, why=why)
        return replace(made, drafts=tuple(drafts)) if drafts else made


def _is_draft(name: str, start: int) -> bool:
    """Return True for a file, within the folder whose name ends at start, that its writer has not
    renamed yet."""
    is_perhaps = "tmp" in name or "_temp/" in name or name.endswith((".incomplete", ".partial"))
    return is_perhaps and _DRAFT.search(name, start) is not None


def _unended(files: Sequence[StoredFile], drafts: Iterable[StoredFile]) -> str:
    """Report a draft that is newer than each file.  Returns an empty string if there is none."""
    last_ns = max((one.mtime_ns or 0 for one in files), default=0)
    late = sorted(one.name for one in drafts if (one.mtime_ns or 0) >= last_ns)
    name = late[0].rpartition("/")[2] if late else ""
    return f"{name} has no name yet: the save did not end" if name else ""


# --- folders --------------------------------------------------------------------------------------


def _with_manifest(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    noted = here.files.get(INSIDE)
    if noted is None:
        if INCOMPLETE in here.files:
            files = tree.all_files(name)
            return tree.checkpoint(name, "files", files, _ARRIVING)
        return None
    made = _believed(tree.checkpoint(name, "files", tree.all_files(name)), noted)
    return made if made.is_ours or made.problem else None  # else its own framework's again


def _believed(checkpoint: Checkpoint, noted: StoredFile) -> Checkpoint:
    """With what its manifest says, if that can be believed."""
    where = checkpoint.store.where(noted.name)
    try:
        if noted.size_bytes > MOST_BYTES:
            raise SaveError(f"{where}: a manifest of {noted.size_bytes:,} bytes")
        manifest = parse(checkpoint.store.read(noted.name), where)
        if not manifest.files:  # a rank may have none of a checkpoint's; of nothing, all is whole
            raise SaveError("its manifest names no files")
        checkpoint = _called(checkpoint, manifest.called)
        if is_overtaken(manifest, checkpoint.store, checkpoint.name, checkpoint.is_folder):
            return checkpoint
    except SaveError as error:
        why = str(error).removeprefix(f"{where}: ")
        return replace(checkpoint, problem=why, is_broken=True)
    except TierError as error:
        if getattr(error.__cause__, "errno", None) in (errno.ENOENT, errno.ESTALE):
            # Since the list was made: a folder goes, a file is about to be replaced.
            why = "its manifest went as it was looked at" if checkpoint.is_folder else ""
            return replace(checkpoint, problem=why)
        if not is_of_one_file(error):
            raise
        why = f"{_UNREAD_MANIFEST}: {getattr(error.__cause__, 'strerror', error)}"
        return replace(checkpoint, problem=why, is_broken=True)
    step = checkpoint.step if manifest.step is None else manifest.step
    return replace(checkpoint, manifest=manifest, step=step, kind=manifest.kind)


def _called(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """By the name that it was saved under, which may tell a step: one that a copy was given tells
    none."""
    if not name or name == checkpoint.name:
        return checkpoint
    return replace(checkpoint, called=name, step=step_of(name))


def _noted(checkpoint: Checkpoint, here: Folder) -> Checkpoint:
    """One that is no folder, with what its manifest or its mark says.  A copy that was ended before
    it had its manifest is a checkpoint still: it may have replaced the only older one."""
    store, base = checkpoint.store, checkpoint.name.rpartition("/")[2]
    noted = here.files.get(beside(base, BESIDE))
    half = here.files.get(beside(base, HALF))
    if noted is not None or half is None:
        return _believed(checkpoint, noted) if noted is not None else checkpoint
    try:
        called, _, has_several = _read_half(store, half.name)
        checkpoint = _called(checkpoint, called)
        arriving = replace(checkpoint, problem=_ARRIVING, why=_OF_A_COPY)
        return arriving if has_several else checkpoint
    except TierError as error:
        if getattr(error.__cause__, "errno", None) in (errno.ENOENT, errno.ESTALE):
            noted = store.stat(checkpoint.manifest_name)  # since the list was made
            return _believed(checkpoint, noted) if noted is not None else checkpoint
        if not is_of_one_file(error):
            raise
        return checkpoint


# --- files ----------------------------------------------------------------------------------------


def _files(
    store: Store,
    folder: str,
    here: Folder,
    rules: Sequence[NameRule] = (),
    saves: Sequence[frozenset[str]] = (),
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a folder that are a single file or several files."""
    start = f"{folder}/" if folder else ""
    taken = set[str]()
    for one in (*_arriving(store, start, here), *_with_manifest_beside(store, start, here)):
        names = {found.name[len(start) :] for found in one.files}
        if taken.isdisjoint(names):
            yield one
        taken |= names
    for name in here.files:
        is_draft = _TF_DRAFT.search(f"{start}{name}") is not None
        if name.endswith(".index") and name not in taken and not is_draft:
            for one in _tensorflow(store, start, name.removesuffix(".index"), here):
                taken |= {found.name[len(start) :] for found in one.files}
                yield one
    left = {
        name: found for name, found in here.files.items()
        if name not in taken and not name.startswith(".")
        and not name.endswith((BESIDE, HALF, ".distcp")) and not _UNFINISHED.search(name)
    }  # fmt: skip
    own = [name for name in left if name not in HINTS]
    made = with_longer_names(grouped(own, rules, saves, folder.rpartition("/")[2]), own)
    units = {name: unit for unit in made for name in unit.files}
    ruled = {_kin(name) for name in here.files if any(rule.names(name) for rule in rules)}
    arriving = _with_half(left, here, rules)
    has_notes = any(name.endswith((BESIDE, HALF)) for name in here.files)
    for name, found in left.items():
        unit = units.get(name)
        if ruled and _kin(name) in ruled and not (unit and unit.why.startswith(BY_RULE)):
            continue  # the rule names every file of this step
        if unit is None or len(unit.files) == 1:
            # Of a copy NAME.2 the name may show nothing.
            is_copy = has_notes and beside(name, BESIDE) in here.files
            is_one = kind_of(name) or is_state(name) or unit or is_copy
            if is_one and not is_text(store, found):
                one = _single(store, found, unit)
                one = _noted(one, here) if has_notes else one
                is_part = one.manifest is None and name in arriving
                problem = one.problem or _ARRIVING
                yield replace(one, problem=problem, why=_OF_A_COPY) if is_part else one
        elif name == unit.name:
            one = _as_unit(store, start, here, unit)
            yield replace(one, problem=_ARRIVING) if name in arriving else one


def _with_half(names: Iterable[str], here: Folder, rules: Sequence[NameRule]) -> set[str]:
    """Return the files that form a checkpoint of several files with the file of a mark HALF: the
    copy has not ended.  The mark of a single file concerns no other file: `last.ckpt` and `last.pt`
    are two checkpoints."""
    marked = {name.removesuffix(HALF) for name in here.files if name.endswith(HALF)}
    if not marked:
        return set()
    units = with_longer_names(grouped({*names, *marked}, rules), {*names, *marked})
    several = [unit.files for unit in units if len(unit.files) > 1]
    return {name for files in several if not marked.isdisjoint(files) for name in files}


def _kin(name: str) -> tuple[int | None, tuple[str, ...]]:
    """Return a key that is equal for the files of a checkpoint."""
    return parts_of(name).kin


def _single(store: Store, found: StoredFile, unit: Unit | None) -> Checkpoint:
    kind = kind_of(found.name) or "files"
    step = unit.step if unit is not None else _step_at(found.name)
    problem = _lost(unit.missing) if unit is not None else ""
    why = unit.why if unit is not None else "one file"
    return Checkpoint(store, found.name, kind, False, (found,), step, None, problem, why=why)


def _as_unit(store: Store, start: str, here: Folder, unit: Unit) -> Checkpoint:
    """Return a checkpoint of several files, without a common manifest."""
    files = tuple(without_progress([here.files[name] for name in unit.files]))
    files = files if unit.why.startswith(BY_RULE) else tuple(without_others(files))
    marks = [one.name for one in files if one.name.endswith(".json")]
    problem = _lost(unit.missing) or of_two_saves(files, marks)
    name = f"{start}{unit.name}"
    return Checkpoint(store, name, "files", False, files, unit.step, None, problem, why=unit.why)


def _lost(missing: Sequence[str]) -> str:
    return f"is missing: {', '.join(missing)}" if missing else ""


def _with_manifest_beside(store: Store, start: str, here: Folder) -> Iterator[Checkpoint]:
    """Yield checkpoints of several files with a manifest that names the files, even if some files
    are gone."""
    if not any(name.endswith(BESIDE) for name in here.files):
        return
    names = {name: beside(name, BESIDE) for name in here.files if not name.endswith(BESIDE)}
    gone = (name.removesuffix(BESIDE) for name in here.files if name.endswith(BESIDE))
    names |= {name: f"{name}{BESIDE}" for name in gone if name}
    for name, noted in names.items():
        if noted not in here.files:
            continue
        own = tuple(here.files[one] for one in (name,) if one in here.files)
        single = Checkpoint(store, f"{start}{name}", "files", False, own, None)
        one = _believed(single, here.files[noted])
        if one.manifest is None or len(one.manifest.files) < 2:
            continue
        inside = [file.name for file in one.manifest.files]
        files = tuple(here.files[name] for name in inside if name in here.files)
        yield replace(one, files=files, why="its manifest names its files")


def _arriving(store: Store, start: str, here: Folder) -> Iterator[Checkpoint]:
    """Yield checkpoints of several files that are moving from a part to the final places."""
    for name, noted in sorted(here.arriving.items()):
        if noted.name.endswith(PLACE_FOLDER) and name in here.folders:
            continue  # the folder itself is yielded
        problem, files = PLACING, tuple[StoredFile, ...]()
        try:
            manifest = parse(store.read(noted.name, 0, MOST_BYTES), store.where(noted.name))
            files = tuple(here.files[one.name] for one in manifest.files if one.name in here.files)
        except SaveError as error:
            problem = str(error)
        yield Checkpoint(store, f"{start}{name}", "files", False, files, None, None, problem)


def is_unfinished(name: str) -> bool:
    """Return True if a file has a name for unfinished files."""
    return _is_draft(name, 0) or any(map(_UNFINISHED.search, name.split("/")))


def is_text(store: Store, found: StoredFile) -> bool:
    """Whether a .pth is not torch's but Python's, which names folders in a line each: each venv has
    some.  What cannot be read counts as torch's."""
    if not found.name.endswith(".pth") or not 0 < found.size_bytes <= MOST_TEXT_BYTES:
        return False
    with suppress(TierError, UnicodeDecodeError):
        text = store.read(found.name).decode()
        return all(one.isprintable() or one.isspace() for one in text)
    return False


def _step_at(name: str) -> int | None:
    """Of a file: also by our folder's name, whose manifest somebody has removed."""
    folder = name.rpartition("/")[0].rpartition("/")[2]
    step = step_of(name)
    return step_of(folder) if step is None and _OURS.fullmatch(folder) else step


def kind_of(name: str) -> str:
    """Of a single file by its ending, and of Hugging Face's by its name; empty: no checkpoint."""
    if not name.endswith(_ENDINGS):
        return ""
    if name.endswith(_TORCH) or (name.startswith("pytorch_model") and name.endswith(".bin")):
        return "torch"
    if name.endswith(".safetensors"):
        return "safetensors"
    if name.endswith(".keras"):
        return "keras"
    return "hdf5" if name.endswith(".weights.h5") else ""


def _tensorflow(store: Store, start: str, prefix: str, here: Folder) -> Iterator[Checkpoint]:
    """PREFIX.index and its data files; an index alone is something else's, but for a name that
    TensorFlow gives, beside its pointer."""
    data = []
    for name in here.files:
        match = _TF_DATA.match(name)
        if match and match[1] == prefix:
            data.append((int(match[2]), int(match[3]), here.files[name]))
    if not data and not ("checkpoint" in here.files and re.search(r"-\d+$", prefix)):
        return
    problem = "" if data and len(data) == data[0][1] else "a data file is missing"
    # The index last: it is what makes the others a checkpoint.
    files = [found for _, _, found in sorted(data, key=lambda one: one[0])]
    files.append(here.files[f"{prefix}.index"])
    name = f"{start}{prefix}"
    kind = "tensorflow"
    made = Checkpoint(store, name, kind, False, tuple(files), step_of(name), None, problem)
    yield _noted(replace(made, is_broken=bool(problem)), here)  # the index comes last
