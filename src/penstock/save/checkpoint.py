"""Describe a checkpoint in a tier: the files, the marks, and whether a program has overwritten a
fetched copy.  Lists no store."""

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store, StoredFile, beside
from penstock.save.commit import HANDED_IN, MARK, PART_SUFFIX, STATE, WAITS
from penstock.save.kept import kept_json
from penstock.save.manifest import BESIDE, INSIDE, Manifest, content_of
from penstock.save.overwritten.putback import BEFOREHAND, TWO_SAVES
from penstock.save.overwritten.putback import MARK as PUT_BACK
from penstock.save.unit.names import parts_of
from penstock.save.unit.order import without_epoch
from penstock.save.unit.recognise import HF_FOLDER, HF_STATE

__all__ = [
    "ARRIVING",
    "GOES_ON",
    "HALF",
    "INCOMPLETE",
    "MARKS",
    "OF_A_COPY",
    "OF_FILES",
    "ONE_OR_TWO",
    "OURS",
    "PLACING",
    "SHORTENED",
    "TF_DATA",
    "UNENDED",
    "UNFINISHED",
    "UNFINISHED_MARK",
    "UNREAD",
    "UNREAD_MANIFEST",
    "UNSEEN",
    "Checkpoint",
    "half_of",
    "halves",
    "is_content",
    "is_of_one_file",
    "is_overtaken",
    "line_of",
    "lying",
    "mark_of_half",
    "origin_of",
    "origins",
    "own_and_others",
    "parts_of_half",
    "read_half",
    "step_of",
]

INCOMPLETE = (
    "penstock-incomplete.json"  # in a folder of a store without renames, until all files are there
)


# Suffix of the mark beside a copy other than a folder, until the copy has a manifest.  The mark
# contains the name of the save and the tier of origin.
HALF = ".penstock.half"
MOST_HALF_BYTES = 1 << 20
GOES_ON = f"{STATE}/goes-on"  # on a fast tier: the earlier fast tiers of the run
MOST_GOES_ON_BYTES = 1 << 20
UNREAD_MANIFEST, UNSEEN = "its manifest cannot be read", "not all of it can be seen"
ARRIVING = "not all of it has arrived"
# Doubts that the copy of a checkpoint keeps, because no other save can remove the doubts.
ONE_OR_TWO = "of one save or of two"
UNENDED = "its copy did not end: nothing shows that all files have arrived"
OF_A_COPY = "a part of a copy that has not ended"
SHORTENED = "cut short, or shorter on purpose"
PLACING = f"{ARRIVING} in its place: the next drain, or `penstock save recover`, ends that"
UNREAD = (UNREAD_MANIFEST, UNSEEN)  # a problem with either prefix may pass
OF_FILES = "files:"  # prefix of the identity of a checkpoint without manifest


# A bad sector, damage of the file system, a file of another user: other files are readable.
OF_ONE_FILE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EACCES, errno.EPERM)


# Names of unfinished files and folders of frameworks, and of folders that a program renames at the
# end: `step_4-saving`, `_incomplete`, `.tmp_step_4`.
UNFINISHED = re.compile(
    r"\.orbax-checkpoint-tmp|^tmp-|^[._]+tmp[._-]|\.tmp$|\.tmp[._-]|[._-]tmp$"
    r"|^[._-]*(?:incomplete|unfinished)(?:[._-]|$)"
    r"|[._-](?:incomplete|unfinished|partial|saving|writing|in_?progress)$"
)


UNFINISHED_MARK = "-unfinished"  # a file of NeMo beside an unfinished checkpoint
TF_DATA = re.compile(r"^(.+)\.data-(\d{5})-of-(\d{5})$")
OURS = re.compile(r"(step-\d{8,})(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a tier.

    name: the folder, the file, or the common prefix of the files.  files: with names relative to
    the tier.  manifest: None: missing or not valid; if not valid, `problem` has the reason.
    problem: why the checkpoint does not count; empty: no problem is known.  is_broken: a writer at
    work never leaves a checkpoint in this state.  called: a manifest's `called`, also of a copy
    without manifest so far.  why: the reason for the group of files, as text.  drafts: files in the
    folder that a writer has not renamed yet, or never will: no part of the checkpoint.  torn: why a
    copy of two saves counts for no restart.  doubt: why the files may be incomplete.  judged: the
    verdict before a copy, if weak, for the manifest of the copy.
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
    doubt: str = field(default="", compare=False)
    judged: str = field(default="", compare=False)
    # Once asked:
    _identity: str = field(default="", init=False, repr=False, compare=False)
    _inner_names: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def mtime_ns(self) -> int:
        """Return the time of the save: from the manifest, else from the youngest file."""
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
        """Return True if Penstock committed or drained the checkpoint, and may remove the
        checkpoint by rule."""
        return self.manifest is not None

    @property
    def folder(self) -> str:
        """Return the folder to which names in a manifest are relative: ends in /, or is empty."""
        if self.is_folder:
            return f"{self.name}/"
        head, slash, _ = self.name.rpartition("/")
        return head + slash

    def inner(self, file: StoredFile) -> str:
        """Return the name of a file as used in a manifest."""
        if self.is_folder:
            return file.name[len(self.name) + 1 :]
        return file.name[self.name.rfind("/") + 1 :]

    @property
    def inner_names(self) -> tuple[str, ...]:
        """Return inner() of each file."""
        if not self._inner_names:  # of many files, a search asks several times
            start = self.name.rfind("/") + 1 if not self.is_folder else len(self.name) + 1
            names = tuple([file.name[start:] for file in self.files])
            object.__setattr__(self, "_inner_names", names)
        return self._inner_names

    @property
    def identity(self) -> str:
        """Return a text that changes with the checkpoint: from the content if there is a manifest,
        else from the names, sizes and times of the files."""
        if self.manifest is not None:
            return self.manifest.identity
        if not self._identity:  # of many files, even the look in the cache takes milliseconds
            identity = _identity_of(self.name, self.folder, self.files)
            object.__setattr__(self, "_identity", identity)
        return self._identity


@lru_cache(1 << 17)  # a drain asks several times per look
def _identity_of(name: str, folder: str, files: tuple[StoredFile, ...]) -> str:
    # The name counts: names within `model/300` and `ema/300`, sizes and times may be equal.
    return f"{OF_FILES}{content_of([(name, lying(folder, files))])}"


def lying(folder: str, files: Iterable[StoredFile | None]) -> str:
    """Return a text that changes when a file of a folder is written, added or removed."""
    facts = ((file.name[len(folder) :], file.size_bytes, file.mtime_ns) for file in files if file)
    return f"{OF_FILES}{content_of(facts)}"


def is_overtaken(manifest: Manifest, store: Store, name: str, is_folder: bool) -> bool:
    """Return True if a program has written into a copy that Penstock fetched to the fast tier.
    Raises TierError."""
    if not manifest.as_fetched:
        return False
    folder = f"{name}/" if is_folder else name[: name.rfind("/") + 1]
    if is_folder:
        own, others = own_and_others(
            store, name, manifest.kind, (file.name for file in manifest.files)
        )
        tops = {other.name[len(folder) :].partition("/")[0] for other in others}
        tops = {top for top in tops if not (top.endswith(PART_SUFFIX) or UNFINISHED.search(top))}
        names = {other.name for other in others}
        theirs = {
            top for top in tops
            if HF_FOLDER.fullmatch(top) or f"{folder}{top}/{HF_STATE}" in names
        }  # fmt: skip
        # A folder that is no separate checkpoint is a new part of the checkpoint.
        return bool(tops - theirs) or lying(folder, own) != manifest.as_fetched
    files = [store.stat(folder + file.name) for file in manifest.files]
    return lying(folder, files) != manifest.as_fetched


def own_and_others(
    store: Store, name: str, kind: str, names: Iterable[str]
) -> tuple[list[StoredFile], list[StoredFile]]:
    """Return the files in a checkpoint's folder now: the checkpoint's own files, and the files of
    other checkpoints.

    A Trainer keeps checkpoints below the model: a folder without any known file belongs to another
    checkpoint.  names: names of the checkpoint's files.  Raises TierError."""
    start = len(name) + 1
    there = [file for file in store.list(name) if is_content(file.name[start:])]
    if kind != "hf":
        return there, []
    folders = {inner.partition("/")[0] for inner in names if "/" in inner}
    own, others = list[StoredFile](), list[StoredFile]()
    for file in there:
        folder, slash, _ = file.name[start:].partition("/")
        (own if not slash or folder in folders else others).append(file)
    return own, others


def origin_of(store: Store) -> str:
    """Return the name of a tier in the manifests of copies.  A folder with several spellings, for
    example through a link, has a single name."""
    return os.path.realpath(store.folder) if isinstance(store, LocalStore) else store.url


def origins(fast: Store) -> frozenset[str]:
    """Return the fast tiers with copies that this fast tier may replace: the tier itself, and the
    earlier fast tiers of the run.  Raises TierError."""
    places: list[str] = []
    if isinstance(fast, LocalStore):
        rows = kept_json(fast, GOES_ON, MOST_GOES_ON_BYTES)
        places = [str(row) for row in rows] if isinstance(rows, list) else []
    return frozenset((fast.url, origin_of(fast), *places))


def mark_of_half(
    name: str, origin: str, n_files: int = 1, identity: str = "", names: Sequence[str] = ()
) -> bytes:
    """Return the mark of a copy without a manifest: the name of the save, the tier of origin and
    the number of files; for several files also the identity of the source, and the names in the
    copy, if MOST_HALF_BYTES suffices."""
    mark = b"\0".join(map(os.fsencode, (name, origin, str(n_files))))
    rest = b"\0".join(map(os.fsencode, (identity, *names)))
    return mark if not names or len(mark) + len(rest) > MOST_HALF_BYTES - 1 else mark + b"\0" + rest


def half_of(store: Store, mark: str) -> tuple[str, str]:
    """Return the name and the origin in a mark of mark_of_half(); an empty origin: not known.
    Raises TierError."""
    name, origin, _ = read_half(store, mark)
    return name, origin


def read_half(store: Store, mark: str) -> tuple[str, str, bool]:
    """Return the name, the origin, and whether the copy will have several files.  Raises
    TierError."""
    name, _, rest = store.read(mark, 0, MOST_HALF_BYTES).partition(b"\0")
    origin, _, rest = rest.partition(b"\0")
    return os.fsdecode(name), os.fsdecode(origin), rest.partition(b"\0")[0] not in (b"", b"1")


def parts_of_half(store: Store, mark: str) -> tuple[str, list[str]]:
    """Return the identity of the source of a copy of several files, and the names of the files in
    the copy; no names: the mark of one file, or of older code.  Raises TierError."""
    fields = store.read(mark, 0, MOST_HALF_BYTES).split(b"\0")[3:]
    return os.fsdecode(fields[0]) if fields else "", [os.fsdecode(part) for part in fields[1:]]


def halves(store: Store) -> dict[str, list[str]]:
    """Return the marks of copies without a manifest, or with a manifest just written, and the names
    of the present files of each copy.  Raises TierError."""
    there = (
        list(store.names())
        if isinstance(store, LocalStore)
        else [file.name for file in store.list()]
    )
    marks: dict[str, list[str]] = {name: [] for name in there if name.endswith(HALF)}
    for name in there if marks else ():
        for mark in {beside(base, HALF) for base in (name, _prefix_of(name))}:
            if mark in marks:
                marks[mark].append(name)
    return marks


def _prefix_of(name: str) -> str:
    """Return the common prefix of TensorFlow's files of a checkpoint."""
    folder, slash, base = name.rpartition("/")
    match = TF_DATA.match(base)
    return f"{folder}{slash}{match[1]}" if match else name.removesuffix(".index")


def is_of_one_file(error: TierError | OSError) -> bool:
    """Return True if the error concerns a single file, and not the whole tier."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in OF_ONE_FILE


MARKS = (PUT_BACK, TWO_SAVES, BEFOREHAND)


def is_content(inner: str) -> bool:
    """Return True if a file in a folder is content, and not a file of Penstock."""
    is_ours = inner in (INSIDE, MARK, INCOMPLETE, WAITS) or inner.rpartition("/")[2] in MARKS
    return not is_ours and HANDED_IN not in inner


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name: the number beside a word such as step or epoch, else
    the only number.  Numbers of ranks, shards and versions do not count as steps."""
    last = name.rsplit("/", 1)[-1]
    ours = OURS.fullmatch(last)  # also NAME.2
    return parts_of(ours[1] if ours else last).step


def line_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return a key that is equal for the checkpoints of a training within a folder, or within the
    folders of the epochs."""
    folder, _, last = (checkpoint.called or checkpoint.name).rpartition("/")
    folder = without_epoch(folder)
    if checkpoint.is_folder:
        return (folder, re.sub(r"\d+", "#", last))
    parts = parts_of(last)
    if not parts.bare:
        return (folder, "", *parts.key)
    return (
        folder,
        "",
        *parts.key,
        *(number for number in parts.bare if number != str(checkpoint.step)),
    )
