"""List the folders of a store, and find the checkpoints by the names in each folder."""

import errno
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, Store, StoredFile, beside
from penstock.save.checkpoint import (
    ARRIVING,
    HALF,
    INCOMPLETE,
    MARKS,
    OF_A_COPY,
    OURS,
    PLACING,
    TF_DATA,
    UNFINISHED,
    UNFINISHED_MARK,
    UNREAD_MANIFEST,
    UNSEEN,
    Checkpoint,
    is_content,
    is_of_one_file,
    is_overtaken,
    read_half,
    step_of,
)
from penstock.save.commit import PART_SUFFIX, PLACE, PLACE_FOLDER, STATE
from penstock.save.manifest import BESIDE, INSIDE, MOST_BYTES, parse
from penstock.save.overwritten.putback import ASIDE
from penstock.save.unit.longer import with_longer_names
from penstock.save.unit.names import is_state, parts_of
from penstock.save.unit.progress import of_two_saves, without_progress
from penstock.save.unit.recognise import FOLDERS, HF_FOLDER, HF_STATE, is_config, parts_of_trainer
from penstock.save.unit.rules import NameRule, rules_of
from penstock.save.unit.shapes import without_others
from penstock.save.unit.spans import Saves, by_folder, saves_of
from penstock.save.unit.units import BY_RULE, Unit, grouped

__all__ = ["HINTS", "Folder", "StoreTree", "files_of", "is_unfinished", "kind_of", "text_of"]

MOST_TEXT_BYTES = 64 << 10


# Files that frameworks rewrite to name the last checkpoint: copied, but no evidence.
HINTS = ("checkpoint", "latest", "latest_checkpointed_iteration.txt", "last_checkpoint")
DEEPEST = 6  # folders below the tier: lightning_logs/version_0/checkpoints/ is three
_TORCH = (".pt", ".pth", ".ckpt", ".pt2")
_ENDINGS = (*_TORCH, ".bin", ".safetensors", ".keras", ".weights.h5")


# Files that the writer renames at the end: TensorFlow (PREFIX_temp/part-*), the tempfile library of
# Rust (safetensors), torch's DCP and others.
_TF_DRAFT = re.compile(r"_temp/part-\d{5}-of-\d{5}(?:\.[^/]*)?$")


_DRAFT = re.compile(
    rf"(?:^|/)\.tmp[A-Za-z0-9]{{6}}$|\.tmp$|\.incomplete$|\.partial$|{_TF_DRAFT.pattern}"
)


# Files that load a model, beside the weights: configuration, tokenizer, index of the shards.
_HF_BESIDE = (".json", ".txt", ".model", ".jinja", ".py")


UNFINISHED_NAME = "its name says that it is not finished"


class Folder(NamedTuple):
    files: dict[str, StoredFile]  # by name within the folder
    folders: set[str]
    # By the name of a checkpoint of several files: the future manifest, until all files are in
    # place.
    arriving: dict[str, StoredFile]


class StoreTree:
    """The files of a store, by folder."""

    def __init__(self, store: Store, within: Sequence[str], saves: Saves = ()) -> None:
        self.store, self.rules = store, rules_of(store)
        self.saves = by_folder((*saves, *saves_of(store)))
        self.put_back = False  # whether a burst buffer has marked a folder
        self.folders: defaultdict[str, Folder] = defaultdict(lambda: Folder({}, set(), {}))
        self._trainers: dict[str, dict[str, set[str]]] = {}
        self.accelerated: dict[str, set[str]] = {}  # by folder: names of ended save_states, as #
        self.hints: list[StoredFile] = []
        self.n_files = 0
        unseen: dict[str, TierError] = {}
        for folder in within:
            self._list(
                store.list(folder, unseen) if isinstance(store, LocalStore) else store.list(folder)
            )
        top = self.folders[""].files
        if any(map(is_config, top)):  # the tier is a model's own folder
            self.hints += [
                file for name, file in sorted(top.items())
                if name.endswith(_HF_BESIDE) and not name.endswith(BESIDE) and is_content(name)
            ]  # fmt: skip
        self._unseen: dict[str, str] = {}  # reasons, by name of the unreadable folder or file
        for name, error in unseen.items():
            if not is_of_one_file(error):
                raise error
            if self._noted(name) is not None:
                self._unseen[name] = f"{UNSEEN}: {error}"

    def _list(self, files: Iterable[StoredFile]) -> None:
        """Sort files by folder.  A drain looks each second, perhaps at a hundred thousand files:
        each folder is looked up once, and not for each file."""
        last, here = "", self._noted("")
        for file in files:
            folder, _, base = file.name.rpartition("/")
            if folder != last:
                last, here = folder, self._noted(folder)
            self.put_back = self.put_back or base in MARKS
            if base.endswith(ASIDE) and kind_of(base.rpartition(".")[0]):
                continue  # put aside: no part of the checkpoint
            if base in (PLACE, PLACE_FOLDER) and folder.endswith(PART_SUFFIX):
                above, _, part = folder.rpartition("/")
                if (place := self._noted(above)) is not None:
                    place.arriving[part.removesuffix(PART_SUFFIX)] = file
            if here is not None:
                self.n_files += 1
                here.files[base] = file
                if base in HINTS:
                    self.hints.append(file)

    def _noted(self, name: str) -> Folder | None:
        """Return a folder, and record the folder in the folders above; None: no place for
        checkpoints."""
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
            has_copies = any(base.endswith(BESIDE) for base in here.files)  # of files in the folder
            for recognise in (_with_manifest, *(FOLDERS if not has_copies else ())):
                checkpoint = recognise(self, name, here)
                if checkpoint is not None:
                    runs = self._inner_runs(checkpoint, name, here)
                    yield self._as_seen(checkpoint, tuple(f"{run}/" for run in runs))
                    for inner in runs:
                        yield from self.below(inner, depth + 1)
                    return
        is_draft = any(map(UNFINISHED.search, name.split("/")))
        for single in files_of(self.store, name, here, self.rules, self.saves.get(name, ())):
            yield replace(single, problem=single.problem or UNFINISHED_NAME) if is_draft else single
        if depth < DEEPEST:
            for folder in sorted(here.folders):
                yield from self.below(f"{name}/{folder}" if name else folder, depth + 1)

    def _as_seen(self, checkpoint: Checkpoint, runs: tuple[str, ...]) -> Checkpoint:
        """Mark a checkpoint as broken if a part is unread.  runs: folders of other checkpoints."""
        for name, why in self._unseen.items():
            if name.startswith(f"{checkpoint.name}/") and not f"{name}/".startswith(runs):
                return replace(checkpoint, manifest=None, problem=why, is_broken=True)
        return checkpoint

    def _inner_runs(self, checkpoint: Checkpoint, name: str, here: Folder) -> list[str]:
        """Return the folders of checkpoints in a checkpoint's folder: a Trainer's output folder
        holds a model, and checkpoints beside the model."""
        if checkpoint.kind != "hf":
            return []
        return [
            f"{name}/{folder}" for folder in sorted(here.folders) if self.is_hf(f"{name}/{folder}")
        ]

    def trainers(self, above: str) -> dict[str, set[str]]:
        """Return the folders with a name of a Trainer's checkpoint, and the parts in each."""
        if above not in self._trainers:
            self._trainers[above] = {
                folder: parts_of_trainer(self.folders[f"{above}/{folder}" if above else folder])
                for folder in sorted(self.folders[above].folders)
                if HF_FOLDER.fullmatch(folder)
            }
        return self._trainers[above]

    def is_hf(self, name: str) -> bool:
        """Return True for the folder of a Trainer's checkpoint, also of an unfinished
        checkpoint."""
        is_named = HF_FOLDER.fullmatch(name.rsplit("/", 1)[-1]) is not None
        return is_named or HF_STATE in self.folders[name].files

    def all_files(
        self, name: str, skip: Callable[[str], bool] = lambda name: False
    ) -> list[StoredFile]:
        listed: list[StoredFile] = []
        stack = [name]
        while stack:
            folder = stack.pop()
            listed += self.folders[folder].files.values()
            start = f"{folder}/" if folder else ""
            stack += [
                f"{start}{inner}"
                for inner in self.folders[folder].folders
                if not skip(f"{start}{inner}")
            ]
        return sorted(listed, key=lambda file: file.name)

    def checkpoint(
        self, name: str, kind: str, files: Sequence[StoredFile], problem: str = "", why: str = ""
    ) -> Checkpoint:
        """Return the checkpoint that is a folder."""
        kept = [file for file in files if is_content(file.name[len(name) + 1 :])]
        drafts = {file for file in kept if _is_draft(file.name, len(name))}
        if INSIDE in self.folders[name].files or len(drafts) == len(kept):
            drafts = set()
        kept = [file for file in kept if file not in drafts] if drafts else kept
        above, _, last = name.rpartition("/")
        if not problem and any(map(UNFINISHED.search, name.split("/"))):
            problem = UNFINISHED_NAME
        if not problem and f"{last}{UNFINISHED_MARK}" in self.folders[above].files:
            problem = f"{last}{UNFINISHED_MARK} beside it says that it is not finished"
        problem = problem or _without_metadata(kept)
        step = step_of(name)
        if not problem and step is not None:
            # In a folder of a single save the last file would have the final name by now.  In a
            # folder of many saves a new save has begun, and the earlier save is still there.
            problem = _unended(kept, drafts)
        made = Checkpoint(self.store, name, kind, True, tuple(kept), step, None, problem, why=why)
        return replace(made, drafts=tuple(drafts)) if drafts else made


def _without_metadata(files: Sequence[StoredFile]) -> str:
    """Report a folder with data files of DCP and without DCP's index, which is written last."""
    data = {file.name.rpartition("/")[0] for file in files if file.name.endswith(".distcp")}
    if not data:
        return ""
    lost = sorted(data - {file.name.rpartition("/")[0] for file in files if _is_index_of_dcp(file)})
    return f"no {lost[0].rpartition('/')[2]}/.metadata: the save did not end" if lost else ""


def _is_index_of_dcp(file: StoredFile) -> bool:
    return file.name.rpartition("/")[2] == ".metadata"


def _is_draft(name: str, start: int) -> bool:
    """Return True for a file that the writer has not renamed yet.  start: length of the name of the
    checkpoint's folder; only the rest of the name is searched."""
    is_perhaps = "tmp" in name or "_temp/" in name or name.endswith((".incomplete", ".partial"))
    return is_perhaps and _DRAFT.search(name, start) is not None


def _unended(files: Sequence[StoredFile], drafts: Iterable[StoredFile]) -> str:
    """Report a draft that is newer than each file.  Returns an empty string if no draft is."""
    last_ns = max((file.mtime_ns or 0 for file in files), default=0)
    late = sorted(draft.name for draft in drafts if (draft.mtime_ns or 0) >= last_ns)
    name = late[0].rpartition("/")[2] if late else ""
    return f"{name} has no name yet: the save did not end" if name else ""


# --- folders --------------------------------------------------------------------------------------


def _with_manifest(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    noted = here.files.get(INSIDE)
    if noted is None:
        if INCOMPLETE in here.files:
            files = tree.all_files(name)
            return tree.checkpoint(name, "files", files, ARRIVING)
        return None
    made = _believed(tree.checkpoint(name, "files", tree.all_files(name)), noted)
    return made if made.is_ours or made.problem else None  # else the framework's files decide


def _believed(checkpoint: Checkpoint, noted: StoredFile) -> Checkpoint:
    """Return a checkpoint with the facts of the manifest, or with a problem if the manifest is
    damaged, unreadable or gone.  Raises TierError: the tier fails as a whole."""
    where = checkpoint.store.where(noted.name)
    try:
        if noted.size_bytes > MOST_BYTES:
            raise SaveError(f"{where}: a manifest of {noted.size_bytes:,} bytes")
        manifest = parse(checkpoint.store.read(noted.name), where)
        if not manifest.files:  # without files every check would pass; only a rank may have none
            raise SaveError("its manifest names no files")
        checkpoint = _called(checkpoint, manifest.called)
        if is_overtaken(manifest, checkpoint.store, checkpoint.name, checkpoint.is_folder):
            return checkpoint
    except SaveError as error:
        why = str(error).removeprefix(f"{where}: ")
        return replace(checkpoint, problem=why, is_broken=True)
    except TierError as error:
        if getattr(error.__cause__, "errno", None) in (errno.ENOENT, errno.ESTALE):
            # After the listing a folder was removed, or a file is being replaced.
            why = "its manifest went as it was looked at" if checkpoint.is_folder else ""
            return replace(checkpoint, problem=why)
        if not is_of_one_file(error):
            raise
        why = f"{UNREAD_MANIFEST}: {getattr(error.__cause__, 'strerror', error)}"
        return replace(checkpoint, problem=why, is_broken=True)
    step = checkpoint.step if manifest.step is None else manifest.step
    return replace(checkpoint, manifest=manifest, step=step, kind=manifest.kind)


def _called(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Return a checkpoint with the name and the step of the original save: the name given to a copy
    shows no step."""
    if not name or name == checkpoint.name:
        return checkpoint
    return replace(checkpoint, called=name, step=step_of(name))


def _noted(checkpoint: Checkpoint, here: Folder) -> Checkpoint:
    """Return a checkpoint, other than a folder, with the facts of the manifest or the mark.  An
    interrupted copy without a manifest is a checkpoint too: the copy may have replaced the only
    older checkpoint."""
    store, base = checkpoint.store, checkpoint.name.rpartition("/")[2]
    noted = here.files.get(beside(base, BESIDE))
    half = here.files.get(beside(base, HALF))
    if noted is not None or half is None:
        return _believed(checkpoint, noted) if noted is not None else checkpoint
    try:
        called, _, has_several = read_half(store, half.name)
        checkpoint = _called(checkpoint, called)
        arriving = replace(checkpoint, problem=ARRIVING, why=OF_A_COPY)
        return arriving if has_several else checkpoint
    except TierError as error:
        if getattr(error.__cause__, "errno", None) in (errno.ENOENT, errno.ESTALE):
            noted = store.stat(checkpoint.manifest_name)  # the copy ended after the listing
            return _believed(checkpoint, noted) if noted is not None else checkpoint
        if not is_of_one_file(error):
            raise
        return checkpoint


# --- files ----------------------------------------------------------------------------------------


def files_of(
    store: Store,
    folder: str,
    here: Folder,
    rules: Sequence[NameRule] = (),
    saves: Sequence[frozenset[str]] = (),
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a folder that are a single file or several files."""
    taken = set[str]()
    for checkpoint in _with_marks(store, folder, here):
        taken.update(file.name.rpartition("/")[2] for file in checkpoint.files)
        yield checkpoint
    left = {
        name: file for name, file in here.files.items()
        if name not in taken and not name.startswith(".")
        and not name.endswith((BESIDE, HALF, ".distcp")) and not UNFINISHED.search(name)
    }  # fmt: skip
    yield from _of_names(store, folder, here, left, rules, saves)


def _with_marks(store: Store, folder: str, here: Folder) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a folder that a manifest, a journal or an index of TensorFlow
    names."""
    start = f"{folder}/" if folder else ""
    taken = set[str]()
    for checkpoint in (*_arriving(store, start, here), *_with_manifest_beside(store, start, here)):
        names = {file.name[len(start) :] for file in checkpoint.files}
        if taken.isdisjoint(names):
            yield checkpoint
        taken |= names
    for name in here.files:
        is_draft = _TF_DRAFT.search(f"{start}{name}") is not None
        if name.endswith(".index") and name not in taken and not is_draft:
            yield from _tensorflow(store, start, name.removesuffix(".index"), here)


def _of_names(
    store: Store,
    folder: str,
    here: Folder,
    left: dict[str, StoredFile],
    rules: Sequence[NameRule],
    saves: Sequence[frozenset[str]],
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a folder that the names of the files show."""
    start = f"{folder}/" if folder else ""
    units = _units_of(folder, left, rules, saves)
    ruled = {_kin(name) for name in here.files if any(rule.names(name) for rule in rules)}
    arriving = _with_half(left, here, rules)
    has_notes = any(name.endswith((BESIDE, HALF)) for name in here.files)
    for name, file in left.items():
        unit = units.get(name)
        is_ruled = unit is not None and unit.why.startswith(BY_RULE)
        if ruled and _kin(name) in ruled and not is_ruled:
            continue  # the rule names every file of this step
        if unit is None or len(unit.files) == 1:
            checkpoint = _of_one_file(store, file, unit, here if has_notes else None)
            yield from (
                _arriving_part(checkpoint, name in arriving) if checkpoint is not None else ()
            )
        elif name == unit.name:
            checkpoint = _as_unit(store, start, here, unit)
            yield replace(checkpoint, problem=ARRIVING) if name in arriving else checkpoint


def _units_of(
    folder: str,
    left: dict[str, StoredFile],
    rules: Sequence[NameRule],
    saves: Sequence[frozenset[str]],
) -> dict[str, Unit]:
    """Return the unit of each file."""
    own = [name for name in left if name not in HINTS]
    times = {name: left[name].mtime_ns or 0 for name in own}
    made = with_longer_names(grouped(own, rules, saves, folder.rpartition("/")[2], times), own)
    return {name: unit for unit in made for name in unit.files}


def _of_one_file(
    store: Store, file: StoredFile, unit: Unit | None, notes: Folder | None
) -> Checkpoint | None:
    """Return the checkpoint of a file; None: the file is no checkpoint.  notes: the folder, if
    manifests or marks are beside the files."""
    name = file.name.rpartition("/")[2]
    # The name of a copy, NAME.2, may show no kind.
    is_copy = notes is not None and beside(name, BESIDE) in notes.files
    if not (kind_of(name) or is_state(name) or unit or is_copy) or text_of(store, file) is not None:
        return None
    checkpoint = _single(store, file, unit)
    return _noted(checkpoint, notes) if notes is not None else checkpoint


def _arriving_part(checkpoint: Checkpoint, is_arriving: bool) -> Iterator[Checkpoint]:
    """Yield a file, with the problem of a copy that has not ended."""
    is_part = is_arriving and checkpoint.manifest is None
    yield (
        replace(checkpoint, problem=checkpoint.problem or ARRIVING, why=OF_A_COPY)
        if is_part
        else checkpoint
    )


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


def _single(store: Store, file: StoredFile, unit: Unit | None) -> Checkpoint:
    kind = kind_of(file.name) or "files"
    step = unit.step if unit is not None else _step_at(file.name)
    problem = _lost(unit.missing) if unit is not None else ""
    why = unit.why if unit is not None else "one file"
    return Checkpoint(store, file.name, kind, False, (file,), step, None, problem, why=why)


def _as_unit(store: Store, start: str, here: Folder, unit: Unit) -> Checkpoint:
    """Return a checkpoint of several files, without a common manifest."""
    files = tuple(without_progress([here.files[name] for name in unit.files]))
    files = files if unit.why.startswith(BY_RULE) else tuple(without_others(files))
    marks = [file.name for file in files if file.name.endswith(".json")]
    problem = _lost(unit.missing) or of_two_saves(files, marks)
    if len(files) == 1:  # the copy of a single file has a manifest of its own
        lone = replace(_single(store, files[0], unit), step=unit.step, problem=problem)
        return _noted(lone, here)
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
        own = tuple(here.files[base] for base in (name,) if base in here.files)
        single = Checkpoint(store, f"{start}{name}", "files", False, own, None)
        checkpoint = _believed(single, here.files[noted])
        if checkpoint.manifest is None or len(checkpoint.manifest.files) < 2:
            continue
        inside = [file.name for file in checkpoint.manifest.files]
        files = tuple(here.files[name] for name in inside if name in here.files)
        yield replace(checkpoint, files=files, why="its manifest names its files")


def _arriving(store: Store, start: str, here: Folder) -> Iterator[Checkpoint]:
    """Yield checkpoints of several files that are moving from a part to the final places."""
    for name, noted in sorted(here.arriving.items()):
        if noted.name.endswith(PLACE_FOLDER) and name in here.folders:
            continue  # the folder itself is yielded
        problem, files = PLACING, tuple[StoredFile, ...]()
        try:
            manifest = parse(store.read(noted.name, 0, MOST_BYTES), store.where(noted.name))
            files = tuple(
                here.files[file.name] for file in manifest.files if file.name in here.files
            )
        except SaveError as error:
            problem = str(error)
        yield Checkpoint(store, f"{start}{name}", "files", False, files, None, None, problem)


def is_unfinished(name: str) -> bool:
    """Return True if a file has a name for unfinished files."""
    return _is_draft(name, 0) or any(map(UNFINISHED.search, name.split("/")))


_ZIP = b"PK\3\4"


def text_of(store: Store, file: StoredFile, endings: str | tuple[str, ...] = ".pth") -> str | None:
    """Return the text of a small file with the ending; None: no text, or an unreadable file.
    Python's .pth files list folders, as in each venv; torch's .pth files are no texts."""
    if not file.name.endswith(endings) or not 0 < file.size_bytes <= MOST_TEXT_BYTES:
        return None
    with suppress(TierError, UnicodeDecodeError):
        data = store.read(file.name)
        is_cut = _ZIP.startswith(data[: len(_ZIP)])  # the first bytes of a file of torch
        text = data.decode()
        is_text = not is_cut and all(letter.isprintable() or letter.isspace() for letter in text)
        return text if is_text else None
    return None


def _step_at(name: str) -> int | None:
    """Return the step of a file.  The step may be in the name of a Penstock folder without a
    manifest, if somebody has removed the manifest."""
    folder = name.rpartition("/")[0].rpartition("/")[2]
    step = step_of(name)
    return step_of(folder) if step is None and OURS.fullmatch(folder) else step


def kind_of(name: str) -> str:
    """Return the kind of a single file, by the ending, and for Hugging Face by the name; empty: no
    checkpoint."""
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
    """Yield the checkpoint of PREFIX.index and the data files.  An index without data files belongs
    to another program, unless TensorFlow's pointer is beside the index and PREFIX ends with a
    number as TensorFlow's names do."""
    data = []
    for name in here.files:
        match = TF_DATA.match(name)
        if match and match[1] == prefix:
            data.append((int(match[2]), int(match[3]), here.files[name]))
    if not data and not ("checkpoint" in here.files and re.search(r"-\d+$", prefix)):
        return
    problem = "" if data and len(data) == data[0][1] else "a data file is missing"
    # The index last: only the index makes the data files a checkpoint.
    files = [file for _, _, file in sorted(data, key=lambda row: row[0])]
    files.append(here.files[f"{prefix}.index"])
    name = f"{start}{prefix}"
    kind = "tensorflow"
    made = Checkpoint(store, name, kind, False, tuple(files), step_of(name), None, problem)
    yield _noted(replace(made, is_broken=bool(problem)), here)  # the index comes last
