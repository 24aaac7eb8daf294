"""Check whether a checkpoint is whole, and choose the checkpoint to start from: the newest whole
checkpoint on any tier.

The module knows manifests and the frameworks' own checksums, and changes only the list of failed
restarts in the tier.
"""

import json
import os
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from penstock.errors import PenstockError, SaveError, TierError
from penstock.places import tiers
from penstock.places.stores import LocalStore, Sparing, Store, StoredFile, open_store
from penstock.save.check.foreign import (
    MOST_METADATA_BYTES,
    Damage,
    Scope,
    Unended,
    check_dcp,
    check_json,
    check_tf,
)
from penstock.save.check.interior import by_folder, read_small
from penstock.save.check.judges import check_file
from penstock.save.check.judges.hdf5 import check_hdf5
from penstock.save.check.orbaxfiles import check_orbax
from penstock.save.check.rankfiles import check_megatron, check_ranks
from penstock.save.check.zarrfiles import check_zarr
from penstock.save.checkpoint import Checkpoint
from penstock.save.commit import STATE
from penstock.save.find.formats import compared, find
from penstock.save.find.tree import text_of
from penstock.save.kept import kept_json
from penstock.save.manifest import FileSum, Manifest, Summing, checksum, n_chunks
from penstock.save.small.batch import LEAST_SYNCED_TOGETHER, SMALL_BYTES, Syncs
from penstock.save.small.smallfiles import TINY_BYTES, SmallFileStore, can_read_together
from penstock.save.unit.names import is_state
from penstock.save.unit.order import newest_first

__all__ = [
    "BY_LENGTH",
    "BY_NAME",
    "FORMATS",
    "LEVELS",
    "NOT_WHOLE",
    "UNCHECKED",
    "WHOLE",
    "CheckpointVerdict",
    "RestartChoice",
    "failure_of",
    "forgive",
    "latest_valid",
    "remember_failure",
    "remembered",
    "verify",
]

LEVELS = ("sizes", "sample", "full")
# States of a verdict, from the strongest to the weakest.
WHOLE = "whole"  # checksums (of a sample or of all) were compared; every data byte has a checksum
BY_LENGTH = "complete by length"  # every file has the length and marks required by the format
BY_NAME = "complete by name"  # every file is present; some files could not be checked
UNCHECKED = "unchecked"  # nothing can be checked in the largest file
NOT_WHOLE = "NOT WHOLE"
STRETCH_CHUNKS = 16
SAMPLE_CHUNKS = 64  # at most 256 MiB: 0.1 s on a fast disk
LOCAL_READERS = 4
SPARING_READERS = 2
# A block is summed while still in the CPU cache.  Four threads on two cores, 1 MiB at a time, gave
# 1,715 to 1,770 MB/s of a ceiling of 1,620 to 1,790; 4 MiB at a time 1,360 to 1,560; past the page
# cache (O_DIRECT) 1,020 to 1,240.
BLOCK_BYTES = 1 << 20
REMOTE_READERS = 8
MOST_REMEMBERED = 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """The result of checking a checkpoint.  problems: the faults found; empty: no fault, and
    `state` names the strength of the check.

    checked_bytes: bytes compared with a checksum; unprotected_bytes: bytes without a checksum in
    the format: only the number of bytes is checked.  unchecked: files in which nothing could be
    checked; by_name: files without a length to compare with.  is_unended: a file looks unfinished
    (cut short, or marked as open), because the writer is still at work or was killed; waiting may
    complete the file.
    """

    checkpoint: Checkpoint
    level: str
    problems: tuple[str, ...]
    checked_bytes: int = 0
    unprotected_bytes: int = 0
    remarks: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    is_unended: bool = False

    @property
    def is_whole(self) -> bool:
        """Return True if no problem was found, also for a checkpoint that is unchecked, or complete
        only by length or by name."""
        return not self.problems

    @property
    def state(self) -> str:
        """Return WHOLE, BY_LENGTH, BY_NAME, UNCHECKED or NOT_WHOLE."""
        if self.problems:
            return NOT_WHOLE
        if self._largest in self.unchecked or self.checkpoint.doubt or self._judged == UNCHECKED:
            return UNCHECKED
        if self.unchecked or self.by_name or self._judged:
            return BY_NAME
        has_sums = self.level != "sizes" and self.checked_bytes and not self.unprotected_bytes
        return WHOLE if has_sums else BY_LENGTH

    @property
    def is_checked(self) -> bool:
        """Return True if at least the length of the largest file was checked.  A restart prefers
        checked checkpoints."""
        is_weak = self._largest in (*self.unchecked, *self.by_name) or self.checkpoint.doubt
        return not (self.problems or is_weak or self._judged == UNCHECKED)

    @property
    def weakness(self) -> str:
        """Return the state that a copy keeps, as copying checks no content: UNCHECKED, BY_NAME, or
        an empty text.  A doubt about missing files is separate."""
        if self._largest in (*self.unchecked, *self.by_name):
            return UNCHECKED
        return BY_NAME if self.unchecked or self.by_name else self._judged

    @property
    def _judged(self) -> str:
        """Return the weak verdict on the source of a copy."""
        return self.checkpoint.manifest.state if self.checkpoint.manifest is not None else ""

    @property
    def _largest(self) -> str:
        files = self.checkpoint.files
        largest = max(files, key=lambda file: file.size_bytes, default=None)
        return self.checkpoint.inner(largest) if largest is not None else ""


@dataclass(frozen=True, slots=True)
class RestartChoice:
    """The checkpoint to start from.  path: None: no checkpoint to start from, or a checkpoint
    behind the URL in `where`.  rejected: newer checkpoints and reasons, newest first.  state: state
    of the checkpoint's verdict.  other_run: a sentence if the checkpoint may be of another run."""

    path: Path | None
    step: int | None
    level: str
    rejected: tuple[tuple[str, str], ...]
    where: str = ""
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    state: str = ""
    other_run: str = ""


def verify(
    checkpoint: Checkpoint,
    level: str = "full",
    progress: Progress | None = None,
    *,
    seed: int | None = None,
    is_sparing: bool = False,
) -> CheckpointVerdict:
    """Check a checkpoint.  Return a verdict with the problems found.

    level: sizes (names and sizes), sample (some checksums) or full (all checksums, read from the
    device: the files' pages are first dropped from the page cache).  progress: called with the
    bytes done and the bytes in all.  is_sparing: check against a manifest more slowly, with less
    CPU time, beside a training.  Raises SaveError, only for an unknown level.
    """
    if level not in LEVELS:
        raise SaveError(f"{level!r} is no level; choose {', '.join(LEVELS)}")
    if checkpoint.problem:
        return CheckpointVerdict(checkpoint, level, (checkpoint.problem,))
    done, total = 0, checkpoint.size_bytes

    def meter(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress:
            progress(done, total)

    scope, is_unended = Scope(level, random.Random(seed), meter), False
    try:
        reading = _read_together(checkpoint, level)
        if checkpoint.manifest is not None:
            problems = _by_manifest(reading, checkpoint.manifest, scope, is_sparing)
        else:
            problems, is_unended = _by_format(reading, scope)
    except (PenstockError, OSError) as error:
        problems = [f"cannot be read: {error}"]
    return CheckpointVerdict(
        checkpoint, level, tuple(problems), scope.read_bytes, scope.unprotected_bytes,
        tuple(scope.remarks), tuple(scope.unchecked), tuple(scope.by_name),
        is_unended,
    )  # fmt: skip


def _read_together(checkpoint: Checkpoint, level: str) -> Checkpoint:
    """Return the checkpoint on a store that reads many small files at once, where the check needs
    all bytes of these files, or the files are so small that a read costs no more than an open.

    level: for a full check, each file is read from the device: a file's pages are dropped, here or
    at the reading.  Many files are first written out by a single sync of the file system, if the
    file system allows; other files by a sync each."""
    store, files = checkpoint.store, checkpoint.files
    has_sums, is_full = checkpoint.manifest is not None, level == "full"
    if not isinstance(store, LocalStore) or (has_sums and not is_full):
        return checkpoint
    is_synced = is_full and len(files) >= LEAST_SYNCED_TOGETHER and _are_synced(store, files)
    # On a file system without such a sync, threads read sooner than a call for many files.
    most_bytes = SMALL_BYTES if has_sums and is_synced else 0 if has_sums else TINY_BYTES
    is_together = can_read_together(store, files, most_bytes)
    if is_full:
        for file in files:
            if not (is_together and is_synced and file.size_bytes <= most_bytes):
                with suppress(TierError):
                    tiers.evict(store.path(file.name), is_synced)
    if not is_together:
        return checkpoint
    return replace(
        checkpoint, store=SmallFileStore(store, files, most_bytes, is_from_device=is_synced)
    )


def _are_synced(store: LocalStore, files: Sequence[StoredFile]) -> bool:
    """Write out the file systems of the files.  Return False if a sync may leave out a file."""
    with suppress(TierError, OSError):
        names = {file.name.rpartition("/")[0] for file in files}
        folders = [store.path(name) if name else store.folder for name in names]
        devices = {folder.stat().st_dev: folder for folder in folders}
        if all(Syncs().is_together(device, str(at)) for device, at in devices.items()):
            for folder in devices.values():
                tiers.sync(folder)
            return True
    return False


# --- by manifest ----------------------------------------------------------------------------------


def _by_manifest(
    checkpoint: Checkpoint, manifest: Manifest, scope: Scope, is_sparing: bool
) -> list[str]:
    sizes = {checkpoint.inner(stored): stored.size_bytes for stored in checkpoint.files}
    problems = []
    for file in manifest.files:
        if file.name not in sizes:
            problems.append(f"{file.name}: is missing")
        elif sizes[file.name] != file.size_bytes:
            problems.append(f"{file.name}: {sizes[file.name]:,} bytes of {file.size_bytes:,}")
    if problems or scope.level == "sizes":
        return problems
    work = [
        (file, chunk)
        for file in manifest.files
        for chunk in range(n_chunks(file.size_bytes, manifest.chunk_bytes))
    ]
    if scope.level == "sample" and len(work) > SAMPLE_CHUNKS:
        ends = {0, len(work) - 1}
        drawn = ends | set(scope.chance.sample(range(len(work)), SAMPLE_CHUNKS - 2))
        work = [work[place] for place in sorted(drawn)]
    wrong = list[tuple[FileSum, int, str]]()
    if isinstance(checkpoint.store, SmallFileStore):
        work = _left_of_small(
            checkpoint, checkpoint.store, manifest.chunk_bytes, work, scope, wrong
        )  # fmt: skip
    wrong += _wrong_chunks(checkpoint, manifest.chunk_bytes, work, scope, is_sparing)
    wrong.sort(key=lambda finding: (finding[0].name, finding[1]))
    return [
        f"{file.name}: bytes {chunk * manifest.chunk_bytes:,} and on are not what was saved ({why})"
        for file, chunk, why in wrong[:5]
    ] + ([f"and {len(wrong) - 5} more chunks"] if len(wrong) > 5 else [])


Work = tuple[FileSum, int]


def _left_of_small(
    checkpoint: Checkpoint,
    store: SmallFileStore,
    chunk_bytes: int,
    work: Sequence[Work],
    scope: Scope,
    wrong: list[tuple[FileSum, int, str]],
) -> list[Work]:
    """Compare the small files that are read together.  Return the other chunks.  wrong: receives
    the chunks with a wrong checksum."""
    left, folder, n_bytes = list[Work](), checkpoint.folder, 0
    for file, chunk in work:
        data = store.content(folder + file.name)
        if data is None or len(data) != file.size_bytes:
            left.append((file, chunk))
            continue
        data = data[chunk * chunk_bytes : (chunk + 1) * chunk_bytes]
        if checksum(data) != file.sum_of(chunk):
            wrong.append((file, chunk, "its checksum differs"))
        n_bytes += len(data)
        if n_bytes >= BLOCK_BYTES:
            scope.add(n_bytes)
            n_bytes = 0
    scope.add(n_bytes)
    return left


def _wrong_chunks(
    checkpoint: Checkpoint, chunk_bytes: int, work: Sequence[Work], scope: Scope, is_sparing: bool
) -> list[tuple[FileSum, int, str]]:
    """Return the chunks with a wrong checksum or a read error, each with the reason.  Several
    threads read the chunks."""
    waiting: queue.SimpleQueue[Sequence[Work]] = queue.SimpleQueue()
    is_local = isinstance(checkpoint.store, LocalStore)
    most = (SPARING_READERS if is_sparing else LOCAL_READERS) if is_local else REMOTE_READERS
    readers = min(most, max(1, len(work)))
    # In stretches the kernel reads ahead while a checksum is computed.  With several stretches per
    # reader, all readers end together.
    stretch = max(1, min(STRETCH_CHUNKS, len(work) // (4 * readers)))
    for start in range(0, len(work), stretch):
        waiting.put(work[start : start + stretch])
    for _ in range(readers):
        waiting.put(())
    lock, wrong = threading.Lock(), list[tuple[FileSum, int, str]]()
    ended: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        with closing(_chunks_of(checkpoint, chunk_bytes, is_sparing)) as reading:
            while stretch_of_work := waiting.get():
                for file, chunk in stretch_of_work:
                    if over.is_set():
                        return
                    try:
                        file_sum, n_bytes = reading.summed(file, chunk)
                        why = "" if file_sum == file.sum_of(chunk) else "its checksum differs"
                    except (TierError, OSError) as error:
                        why, n_bytes = f"cannot be read: {error}", 0
                    with lock:
                        if why:
                            wrong.append((file, chunk, why))
                        try:
                            scope.add(n_bytes)
                        except BaseException as error:  # the drain must end
                            ended.append(error)
                            over.set()

    threads = [threading.Thread(target=read, daemon=True) for _ in range(readers)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # with a timeout, so that Ctrl-C is handled
    finally:
        over.set()
    if ended:
        raise ended[0]
    return sorted(wrong, key=lambda finding: (finding[0].name, finding[1]))


class _Chunks:
    """Reads the chunks of a checkpoint's files, in a single thread."""

    def __init__(self, checkpoint: Checkpoint, chunk_bytes: int) -> None:
        self._store, self._folder = checkpoint.store, checkpoint.folder
        self._chunk_bytes = chunk_bytes

    def summed(self, file: FileSum, chunk: int) -> tuple[bytes, int]:
        """Return the checksum of a chunk, and the number of bytes read."""
        start = chunk * self._chunk_bytes
        length = min(self._chunk_bytes, file.size_bytes - start)
        data = self._store.read(self._folder + file.name, start, length)
        return checksum(data), len(data)

    def close(self) -> None:
        """Do nothing: behind a URL there is nothing to close."""


class _LocalChunks(_Chunks):
    """Reads chunks of local files through a small block of memory; opens each file once."""

    def __init__(self, checkpoint: Checkpoint, store: LocalStore, chunk_bytes: int) -> None:
        super().__init__(checkpoint, chunk_bytes)
        self._local = store
        self._block = memoryview(bytearray(min(BLOCK_BYTES, chunk_bytes)))
        self._name, self._number = "", -1

    def summed(self, file: FileSum, chunk: int) -> tuple[bytes, int]:
        if self._name != file.name:
            self.close()
            path = self._local.path(self._folder + file.name)
            self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._name = file.name
            with suppress(OSError):
                os.posix_fadvise(self._number, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        place = chunk * self._chunk_bytes
        left = min(self._chunk_bytes, file.size_bytes - place)
        summing = Summing(self._chunk_bytes)
        while left:
            count = os.preadv(self._number, [self._block[:left]], place)
            if not count:
                break
            summing.add(self._block[:count])
            place, left = place + count, left - count
        file_sum = summing.end(file.name)
        return file_sum.sums, file_sum.size_bytes

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
        self._name, self._number = "", -1


class _SparingChunks(_Chunks):
    """Reads chunks of local files past the page cache, a chunk per request."""

    def __init__(self, checkpoint: Checkpoint, store: LocalStore, chunk_bytes: int) -> None:
        super().__init__(checkpoint, chunk_bytes)
        self._local = store
        self._block = Sparing.block(chunk_bytes)
        self._name = ""
        self._file: Sparing | None = None

    def summed(self, file: FileSum, chunk: int) -> tuple[bytes, int]:
        if self._file is None or self._name != file.name:
            self.close()
            self._file = Sparing(self._local.path(self._folder + file.name))
            self._name = file.name
        place = chunk * self._chunk_bytes
        data = self._file.read(self._block, place, min(self._chunk_bytes, file.size_bytes - place))
        return checksum(data), len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _chunks_of(checkpoint: Checkpoint, chunk_bytes: int, is_sparing: bool) -> _Chunks:
    if isinstance(checkpoint.store, LocalStore):
        kind = _SparingChunks if is_sparing else _LocalChunks
        return kind(checkpoint, checkpoint.store, chunk_bytes)
    return _Chunks(checkpoint, chunk_bytes)


# --- by format ------------------------------------------------------------------------------------


def _by_format(checkpoint: Checkpoint, scope: Scope) -> tuple[list[str], bool]:
    """Check a checkpoint without a manifest by the framework's own files.  Return the first
    problem, and whether the problem looks like a writer at work."""
    try:
        for file in checkpoint.files:
            _check_tail(checkpoint, file)
        FORMATS.get(checkpoint.kind, _check_files)(checkpoint, scope)
    except Damage as damage:
        return [str(damage)], isinstance(damage, Unended)
    return [], False


def _check_tail(checkpoint: Checkpoint, stored: StoredFile) -> None:
    """Check the end of a file for a hole: after a power cut, delayed allocation may leave a file
    without the last bytes.  Raises Damage."""
    store = checkpoint.store
    if not stored.size_bytes or not isinstance(store, LocalStore):
        return
    is_cut = store.is_cut(stored.name) if isinstance(store, SmallFileStore) else None
    if is_cut:
        raise Unended(f"{checkpoint.inner(stored)}: its end was never written (a hole in the file)")
    if is_cut is not None:
        return
    with checkpoint.store.open(stored.name) as file:
        try:
            last = os.lseek(file.fileno(), stored.size_bytes - 1, os.SEEK_DATA)
        except OSError as error:
            import errno

            if error.errno == errno.ENXIO:
                name = checkpoint.inner(stored)
                raise Unended(f"{name}: its end was never written (a hole in the file)") from None
            return  # the file system does not report holes
        assert last == stored.size_bytes - 1


def _check_file(checkpoint: Checkpoint, stored: StoredFile, scope: Scope) -> None:
    """Check a file by the ending and the first bytes.  Raises Damage."""
    name = checkpoint.inner(stored)
    if not stored.size_bytes:
        # An empty file may be a marker (DONE, _SUCCESS, a lock); a state file or .json must have
        # content.
        if is_state(name.rpartition("/")[2]) or name.endswith(".json"):
            raise Unended(f"{name}: empty")
        return
    if name.endswith(".json"):
        check_json(read_small(checkpoint, stored), name)
        return
    if name.endswith(_DESCRIBING) or ".tfevents." in name:
        scope.unprotected_bytes += stored.size_bytes
        return
    if _is_counter(checkpoint, stored):
        scope.by_name[name] = None
        return
    with closing(checkpoint.store.open(stored.name)) as file:
        check_file(file, name, stored.size_bytes, scope)


_COUNTERS = (".ckpt", ".pt")  # may contain a text, such as the number of the epoch
_COUNTS = re.compile(
    r"(?:\w+: *)?(?:[-+]?\d[\d.]*(?:[eE][-+]?\d+)?|nan|null|true|false)", re.IGNORECASE
)


def _is_counter(checkpoint: Checkpoint, file: StoredFile) -> bool:
    """Return True if a file has only numbers, as SpeechBrain's `counter.ckpt` and `brain.ckpt`
    have.  Other texts, such as the error page of a server, are no state."""
    text = text_of(checkpoint.store, file, _COUNTERS)
    if text is None:
        return False
    return all(_COUNTS.fullmatch(line.strip()) for line in text.split("\n") if line.strip())


def _check_files(checkpoint: Checkpoint, scope: Scope) -> None:
    """Check each file by the file's format, and related files of a folder together.  Raises
    Damage."""
    _check_dcp_folders(checkpoint, scope)
    judged = check_zarr(checkpoint, scope)
    for folder, files in by_folder(checkpoint).items():
        check_ranks(checkpoint, folder, files)
        for name, file in files.items():
            is_judged = f"{folder}{name}" in judged or name.endswith(_TEXTS) or _is_dcp(name)
            if not is_judged and text_of(checkpoint.store, file) is None:
                _check_file(checkpoint, file, scope)


_TEXTS = (".txt", ".md", ".jinja")
# Files beside weights: tokenizers, code, settings, logs.
_DESCRIBING = (".model", ".py", ".yaml", ".yml", ".toml", ".csv", ".log", ".tiktoken", ".html")


def _check_hdf5(checkpoint: Checkpoint, scope: Scope) -> None:
    for stored in checkpoint.files:
        with closing(checkpoint.store.open(stored.name)) as file:
            check_hdf5(file, checkpoint.inner(stored), stored.size_bytes, scope)


def _is_dcp(name: str) -> bool:
    return name == ".metadata" or name.endswith(".distcp")


def _check_dcp_folders(checkpoint: Checkpoint, scope: Scope) -> None:
    """Check DCP's files, in any folder of the checkpoint.  Raises Damage."""
    folders = by_folder(checkpoint)
    roots = tuple(folder for folder, files in folders.items() if ".metadata" in files)
    for folder, files in folders.items():
        if any(name.endswith(".distcp") for name in files) and not folder.startswith(roots):
            raise Damage(f"{folder}.metadata: is missing: the save did not end")
    for root in roots:
        below = {
            folder[len(root) :] + name: file
            for folder, files in folders.items()
            if folder.startswith(root)
            for name, file in files.items()
        }
        _check_dcp_files(checkpoint, root, below, scope)


def _check_dcp_files(
    checkpoint: Checkpoint, root: str, files: dict[str, StoredFile], scope: Scope
) -> None:
    sizes = {name: file.size_bytes for name, file in files.items()}

    def opened(name: str) -> BinaryIO:
        return checkpoint.store.open(files[name].name)

    metadata = read_small(checkpoint, files[".metadata"], MOST_METADATA_BYTES)
    try:
        check_dcp(metadata, sizes, opened, scope)
    except Damage as damage:
        raise Damage(f"{root}{damage}") from damage


def _check_megatron(checkpoint: Checkpoint, scope: Scope) -> None:
    if remark := check_megatron(checkpoint):
        scope.remarks[remark] = None
        scope.by_name["mp_rank_*"] = None
    _check_files(checkpoint, scope)


def _check_hf(checkpoint: Checkpoint, scope: Scope) -> None:
    names = {checkpoint.inner(file) for file in checkpoint.files}
    for file in checkpoint.files:
        name = checkpoint.inner(file)
        if name.endswith(".index.json"):
            index = check_json(read_small(checkpoint, file), name)
            shards = index.get("weight_map") if isinstance(index, dict) else None
            if not isinstance(shards, dict):
                raise Damage(f"{name}: names no files")
            for shard in sorted({str(shard_name) for shard_name in shards.values()}):
                if shard not in names:
                    raise Damage(f"{shard}: named in {name} and not there")
    _check_files(checkpoint, scope)


def _check_tensorflow(checkpoint: Checkpoint, scope: Scope) -> None:
    index, data = checkpoint.files[-1], checkpoint.files[:-1]
    check_tf(
        read_small(checkpoint, index),
        {number: file.size_bytes for number, file in enumerate(data)},
        lambda number: checkpoint.store.open(data[number].name),
        scope,
    )


def _check_saved_model(checkpoint: Checkpoint, scope: Scope) -> None:
    """Check that the graph is present and that the variables match TensorFlow's index."""
    files = {checkpoint.inner(file): file for file in checkpoint.files}
    variables = [file for name, file in files.items() if name.startswith("variables/variables.")]
    index = files.get("variables/variables.index")
    data = sorted(
        (variable for variable in variables if variable is not index),
        key=lambda variable: variable.name,
    )
    if data and index is None:
        raise Damage("variables/variables.index: is missing: the save did not end")
    if index is not None:
        count = re.search(r"-of-(\d{5})$", data[0].name) if data else None
        if count is None or int(count[1]) != len(data):
            raise Damage("variables/: a data file is missing")
        _check_tensorflow(replace(checkpoint, files=(*data, index)), scope)
    for file in checkpoint.files:
        if file not in variables:
            if not file.size_bytes and file.name.endswith(".pb"):
                raise Damage(f"{checkpoint.inner(file)}: empty")
            scope.unprotected_bytes += file.size_bytes


def _check_pipeline(checkpoint: Checkpoint, scope: Scope) -> None:
    """Check that each part named in a pipeline's index is present."""
    files = {checkpoint.inner(file): file for file in checkpoint.files}
    index = check_json(read_small(checkpoint, files["model_index.json"]), "model_index.json")
    folders = {name.partition("/")[0] for name in files if "/" in name}
    for part, component in index.items() if isinstance(index, dict) else ():
        is_part = isinstance(component, list) and len(component) == 2 and all(component)
        if is_part and not part.startswith("_") and part not in folders:
            raise Damage(f"{part}: named in model_index.json and not there")
    _check_hf(checkpoint, scope)


# Every kind of checkpoint; the table "Formats" of docs/save.md has a row for each.
FORMATS: dict[str, Callable[[Checkpoint, Scope], None]] = {
    "accelerate": _check_files,
    "dcp": _check_dcp_folders,
    "deepspeed": _check_files,
    "files": _check_files,
    "folder": _check_files,
    "hdf5": _check_hdf5,
    "hf": _check_hf,
    "keras": _check_files,
    "megatron": _check_megatron,
    "nemo": _check_files,
    "orbax": check_orbax,
    "safetensors": _check_files,
    "tensorflow": _check_tensorflow,
    "torch": _check_files,
    "diffusers": _check_pipeline,
    "savedmodel": _check_saved_model,
}


# --- the choice for a restart ---------------------------------------------------------------------


_OTHER = ", and another one is checked"


def latest_valid(
    fast: str | os.PathLike[str] | Store,
    slow: str | os.PathLike[str] | Store | None = None,
    level: str = "sample",
    progress: Progress | None = None,
    *,
    wanted: Callable[[Checkpoint], bool] = lambda checkpoint: True,
    damaged: Mapping[tuple[str, str], str] | None = None,
) -> RestartChoice:
    """Return the newest whole checkpoint over the union of the tiers; a fast copy before a slow
    copy.

    wanted: filter; other checkpoints are not listed as rejected.  damaged: known faults, by `where`
    and identity of the checkpoint.

    penstock.save.unit.order defines "newest".  An unchecked checkpoint, or a checkpoint complete by
    name only, is returned only if no other checkpoint is whole.  Checkpoints with a failed restart
    are rejected.  An unreachable tier is listed as rejected.  Raises SaveError: unknown level.
    """
    checkpoints: list[Checkpoint] = []
    rejected: list[tuple[str, str]] = []
    failed: dict[str, str] = {}
    rest: list[StoredFile] = []
    for tier in (slow, fast):  # copies show missing parts, or parts of another save
        if tier is None:
            continue
        store = tier if isinstance(tier, Store) else open_store(tier)
        try:
            there = find(store, others=checkpoints, rest=rest, other_rest=tuple(rest))
            checkpoints = [*there, *checkpoints]
            failed |= remembered(store)
        except PenstockError as error:
            rejected.append((store.url, f"not looked at: {error}"))
    weak: list[RestartChoice] = []
    for checkpoint in newest_first(filter(wanted, compared(checkpoints))):
        why = (damaged or {}).get((checkpoint.where, checkpoint.identity), "")
        why = why or failure_of(checkpoint, failed) or checkpoint.torn
        state = NOT_WHOLE
        if not why:
            verdict = verify(checkpoint, level, progress)
            why, state = "; ".join(verdict.problems), verdict.state
            if not why and not verdict.is_checked:
                why = f"{state}: {checkpoint.doubt}" if checkpoint.doubt else f"{state}{_OTHER}"
                weak.append(_chosen(checkpoint, level, rejected, state))
        if why:
            rejected.append((checkpoint.where, why))
            continue
        return _chosen(checkpoint, level, rejected, state)
    if weak:
        choice = next(
            (option for option in weak if option.checkpoint and not option.checkpoint.doubt),
            weak[0],
        )
        passed = ((where, why.removesuffix(_OTHER)) for where, why in choice.rejected)
        return replace(choice, rejected=tuple(passed))
    return RestartChoice(None, None, level, tuple(rejected))


def _chosen(
    checkpoint: Checkpoint, level: str, rejected: Sequence[tuple[str, str]], state: str
) -> RestartChoice:
    store = checkpoint.store
    path = store.path(checkpoint.name) if isinstance(store, LocalStore) else None
    return RestartChoice(
        path, checkpoint.step, level, tuple(rejected), checkpoint.where, checkpoint, state
    )


def _key(checkpoint: Checkpoint, is_copy: bool = False) -> str:
    return f"{checkpoint.where if is_copy else checkpoint.name} {checkpoint.identity}"


def failure_of(checkpoint: Checkpoint, failures: Mapping[str, str]) -> str:
    """Return how a restart from a checkpoint, or from the source of a copy, has failed; empty: no
    restart has failed.

    failures: the failed restarts of all tiers, by `remembered`."""
    why = failures.get(_key(checkpoint), "") or failures.get(_key(checkpoint, is_copy=True), "")
    if not why and checkpoint.manifest is not None and checkpoint.manifest.source:
        why = failures.get(f"{checkpoint.name} {checkpoint.manifest.source}", "")
    return why


def remembered(store: Store) -> dict[str, str]:
    """Return the failed restarts of a tier: the reason by checkpoint.  An unreadable list counts as
    empty: the list must not keep a job from starting."""
    with suppress(TierError):
        rows = kept_json(store, _FAILED, 16 << 20)
        if isinstance(rows, dict):
            return {str(key): str(why) for key, why in rows.items()}
    return {}


_FAILED = f"{STATE}/failed-restarts.json"


def remember_failure(checkpoint: Checkpoint, why: str, *, is_copy: bool = False) -> None:
    """Note a failed restart from a checkpoint: `latest_valid` rejects the checkpoint from now on.

    Other bytes under the same name are another checkpoint.  is_copy: the bytes are damaged on this
    tier, and a copy on another tier may be whole.  Raises TierError: the tier cannot be written.
    """
    rows = remembered(checkpoint.store)
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    rows[_key(checkpoint, is_copy)] = f"a restart from it failed on {day}: {why}"
    kept = dict(list(rows.items())[-MOST_REMEMBERED:])
    checkpoint.store.put(_FAILED, json.dumps(kept, indent=1).encode())


def forgive(store: Store, only: Checkpoint | None = None) -> int:
    """Forget the failed restarts of a tier, or of a checkpoint in the tier.  Return the number of
    forgotten restarts.  Raises TierError."""
    rows = remembered(store)
    kept: dict[str, str] = {}
    if only is not None:
        marks = {_key(only), _key(only, is_copy=True)}
        if only.manifest is not None and only.manifest.source:
            marks.add(f"{only.name} {only.manifest.source}")
        kept = {key: why for key, why in rows.items() if key not in marks}
    if kept and len(kept) < len(rows):
        store.put(_FAILED, json.dumps(kept, indent=1).encode())
    elif rows and not kept:
        store.delete(_FAILED)
    return len(rows) - len(kept)
