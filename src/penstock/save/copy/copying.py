"""Copy a checkpoint from one tier to another: keep the bytes already there, read back new bytes.

The module knows checkpoints and stores.  The module knows no framework, and does not decide when a
copy is due.  A partial file is resumed piece by piece, by checksums.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import SaveError, TierError
from penstock.places.stores import (
    LocalStore,
    Sparing,
    Store,
    StoredFile,
    beside,
    draft_of,
    make_folders,
)
from penstock.save.checkpoint import (
    HALF,
    INCOMPLETE,
    OF_FILES,
    ONE_OR_TWO,
    SHORTENED,
    UNENDED,
    Checkpoint,
    is_of_one_file,
    lying,
    origin_of,
    own_and_others,
)
from penstock.save.commit import PART_SUFFIX, is_alive
from penstock.save.copy.target import CopyTarget, place_together
from penstock.save.manifest import (
    BESIDE,
    CHUNK_BYTES,
    FileSum,
    Manifest,
    Summing,
    checksum,
    parse,
    to_json,
)
from penstock.save.small.batch import (
    MOST_BYTES,
    MOST_FILES,
    SMALL_BYTES,
    Copy,
    Syncs,
    copy_together,
    read_all,
)
from penstock.save.small.partfiles import PartFiles, is_for_part
from penstock.save.verify import verify

__all__ = [
    "DrainPace",
    "DrainStopped",
    "Trip",
    "UnreadError",
    "Unwanted",
    "copy_checkpoint",
    "copy_file",
    "copy_save",
    "paced",
    "stored_sum",
]

LEAST_TOGETHER = 8  # small files that are worth threads and a sync of the whole file system
BURST_S = 0.25  # of the rate limit: a few pieces at once


class DrainStopped(Exception):  # noqa: N818 - an order, not an accident
    """The drain received an order to end."""


class Unwanted(Exception):  # noqa: N818 - an order, too
    """The checkpoint under copy is no longer needed, and a newer checkpoint exists: the copy ends
    and is removed."""


class UnreadError(TierError):
    """A source file cannot be read: the cause may pass, or be a bad sector."""


class DrainPace:
    """Limit of bytes per second, over all threads."""

    def __init__(
        self,
        limit_bps: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._limit_bps, self._clock, self._sleep = limit_bps, clock, sleep
        self._lock, self._next_s = threading.Lock(), -math.inf

    @property
    def limit_bps(self) -> float | None:
        return self._limit_bps

    def take(self, n_bytes: int) -> None:
        """Wait until n_bytes more bytes may be copied."""
        if not self._limit_bps:
            return
        with self._lock:
            now_s = self._clock()
            begin_s = max(self._next_s, now_s - BURST_S)
            self._next_s = begin_s + n_bytes / self._limit_bps
        if begin_s > now_s:
            self._sleep(begin_s - now_s)


@dataclass(slots=True)
class Trip:
    """Orders and reports of a copy.  progress: is called with the number of bytes copied, and with
    True if the destination already had the bytes."""

    pace: DrainPace
    concurrency: int = 1
    held: Callable[[], None] = lambda: None  # returns when copying may go on; raises Stopped
    progress: Callable[[int, bool], None] = lambda n_bytes, was_there: None


class _Pieces:
    """A source file, read into memory suitable for O_DIRECT, one block per thread."""

    def __init__(self, store: Store, file: StoredFile) -> None:
        self._store, self._found = store, file
        self._own = threading.local()
        self._local: Sparing | None = None
        if isinstance(store, LocalStore):
            with self._told():
                self._local = Sparing(store.path(file.name))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not is_of_one_file(error):
                raise
            where = self._store.where(self._found.name)
            raise UnreadError(f"{where}: cannot be read: {error.strerror}") from error

    def read(self, start: int, length: int) -> memoryview:
        if self._local is None:
            return memoryview(self._store.read(self._found.name, start, length))
        block = getattr(self._own, "block", None)
        if block is None or len(block) < length:
            # Not the file's own length: threads are new for each file.
            block = self._own.block = Sparing.block(length)
        with self._told():
            return self._local.read(block, start, length)

    @property
    def is_sparse(self) -> bool:
        return self._local is not None and self._local.is_sparse

    def is_as_found(self) -> bool:
        """Return True if nobody has written into the file since the listing.  A file that another
        process has replaced counts as unchanged: the opened file is read to the end."""
        if self._local is None:
            return True
        status, file = os.fstat(self._local.number), self._found
        return (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
        self._local = None


def copy_file(
    source: Checkpoint,
    file: StoredFile,
    dest: Store,
    name: str,
    trip: Trip,
    replacing: Callable[[], None] | None = None,
    *,
    is_growing: bool = False,
) -> tuple[FileSum, bool]:
    """Copy a file, or resume an earlier attempt.  Returns the checksums of the file, and True if
    the store itself has compared the bytes.  replacing: as for an Upload.  is_growing: the file may
    grow during the copy; only the bytes present at the listing are copied.  Raises TierError;
    SaveError: the source has changed."""
    inner = source.inner(file)
    saved_sums = _known(source)
    pieces = _Pieces(source.store, file)
    try:
        there = dest.stat(name)
        if there is not None and there.size_bytes == file.size_bytes:
            same = _same(pieces, file, dest, name, trip)
            if same is not None:
                if not is_growing:
                    _unwritten(source, inner, pieces, saved_sums)
                return _checked(same, inner, file, saved_sums, source.store.url), False
        upload = dest.upload(name, file.size_bytes, CHUNK_BYTES)
        upload.mtime_ns = _written_ns(source, file)  # the age until the manifest is written
        upload.mode = source.store.mode(file.name) if isinstance(source.store, LocalStore) else None
        upload.replacing, upload.keeps_holes = replacing, pieces.is_sparse
        try:
            count = -(-file.size_bytes // upload.piece_bytes)

            def carry(number: int) -> bytes:
                start = number * upload.piece_bytes
                trip.held()
                data = pieces.read(start, min(upload.piece_bytes, file.size_bytes - start))
                if len(data) < min(upload.piece_bytes, file.size_bytes - start):
                    raise TierError(f"{source.where}: {inner} was cut short while it was copied")
                sums = b"".join(
                    checksum(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
                )
                trip.pace.take(len(data))  # bytes already there are read, others are written
                was_there = upload.holds(number, data)
                if not was_there:
                    upload.write(number, data)
                trip.progress(len(data), was_there)
                return sums

            if upload.is_ordered or trip.concurrency == 1 or count < 2:
                done = [carry(number) for number in range(count)]
            else:
                done = _spread(carry, count, trip.concurrency)
            sums = _checked(b"".join(done), inner, file, saved_sums, source.store.url)
            if not is_growing:
                _unwritten(source, inner, pieces, saved_sums)  # a mixed file replaces no whole file
            upload.finish()
        finally:
            upload.close()
        return sums, upload.is_confirmed
    finally:
        pieces.close()


def _written_ns(source: Checkpoint, stored: StoredFile) -> int | None:
    """Return the time in ns at which a file was written at the first source; None: unknown."""
    saved = source.manifest.saved if source.manifest is not None else ()
    if saved and source.manifest is not None:
        for file, (_, mtime_ns) in zip(source.manifest.files, saved, strict=True):
            if file.name == source.inner(stored):
                return mtime_ns or stored.mtime_ns
    return stored.mtime_ns


def _unwritten(
    source: Checkpoint, inner: str, pieces: _Pieces, saved_sums: dict[str, FileSum]
) -> None:
    """Raise TierError where a file without manifest was written to during the read."""
    if not saved_sums and not pieces.is_as_found():
        raise TierError(f"{source.where}: {inner} changed while it was copied; next time")


def _spread(carry: Callable[[int], bytes], count: int, threads: int) -> list[bytes]:
    """Carry pieces by several threads; the first error ends all threads."""
    over = threading.Event()

    def task(number: int) -> bytes:
        if over.is_set():
            return b""
        try:
            return carry(number)
        except BaseException:
            over.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(task, range(count)))


def _same(pieces: _Pieces, file: StoredFile, dest: Store, name: str, trip: Trip) -> bytes | None:
    """Return the checksums of the source if the file at the destination has equal bytes."""
    sums = bytearray()
    for start in range(0, file.size_bytes, CHUNK_BYTES):
        trip.held()
        data = pieces.read(start, min(CHUNK_BYTES, file.size_bytes - start))
        mine = checksum(data)
        trip.pace.take(len(data))
        try:
            theirs = checksum(dest.read(name, start, len(data)))
        except TierError as error:
            if is_of_one_file(error):  # the error may be permanent
                return None
            raise
        if theirs != mine:
            return None
        sums += mine
    trip.progress(file.size_bytes, True)
    return bytes(sums)


def _checked(
    sums: bytes, inner: str, file: StoredFile, saved_sums: dict[str, FileSum], where: str
) -> FileSum:
    """Raise SaveError where the source does not match the manifest of the source."""
    made = FileSum(inner, file.size_bytes, sums)
    if saved_sums and saved_sums.get(inner) != made:
        raise SaveError(f"{inner}: not what was saved: {where} has changed it; not copied")
    return made


def copy_checkpoint(
    source: Checkpoint, dest: Store, trip: Trip, *, is_fetched: bool = False
) -> tuple[str, Manifest]:
    """Copy a checkpoint into another tier, verify the copy by reading back, and commit the copy.
    Returns the name of the copy, and the manifest.

    Bytes from an earlier attempt are kept where the checksums match.  An older copy of the same
    name from the same tier is replaced in one atomic step.  Where a store cannot do so, or where
    the name belongs to another checkpoint, the new copy gets the next free name, NAME.2 and so on.
    is_fetched: the destination is a tier where the program may write into the checkpoint again.
    Files at the destination without a manifest and with the contents of the source are not copied:
    the manifest is written anew.  Raises TierError, SaveError, and the exceptions of trip.held().
    """
    if (noted := _noted_anew(source, dest, trip)) is not None:
        return source.name, noted
    target = CopyTarget(source, dest)
    return target.name, _copied_to(target, source, trip, is_fetched)


def copy_save(
    sources: Sequence[Checkpoint],
    dest: Store,
    trip: Trip,
    begins: Callable[[Checkpoint], None] = lambda source: None,
) -> list[tuple[str, Manifest]]:
    """Copy the parts of a save as copy_checkpoint() does.  The older copies of all parts stay until
    the newer copies of all parts are durable and verified.  begins: is called before each part.
    Returns the name of the copy and the manifest of each part."""
    made = list[tuple[CopyTarget, Manifest]]()
    for source in sources:
        begins(source)
        target = CopyTarget(source, dest, waits=True)
        made.append((target, _copied_to(target, source, trip, False)))
    for source in sources:
        if source.manifest is None:
            _unchanged(source)
    place_together(dest, [target for target, _ in made])
    return [(target.name, manifest) for target, manifest in made]


def _copied_to(target: CopyTarget, source: Checkpoint, trip: Trip, is_fetched: bool) -> Manifest:
    target.begin()
    try:
        return _copied(source, target, trip, is_fetched)
    except Unwanted:
        target.abandon()
        raise


def _copied(source: Checkpoint, target: CopyTarget, trip: Trip, is_fetched: bool) -> Manifest:
    wanted = source.files
    if source.manifest is not None:
        names = {file.name for file in source.manifest.files}
        wanted = tuple(file for file in wanted if source.inner(file) in names)
        if len(wanted) != len(names):
            raise SaveError(f"{source.where}: a file of its manifest is missing; not copied")
    sums, unread = [], []
    is_single = not source.is_folder and len(wanted) == 1
    # If a drain ends between the two steps, the format can judge the new bytes; an old manifest
    # would call the new bytes damaged.  For several files the old manifest shows a mixture.
    replacing = target.arrived if is_single else None
    together = _copied_together(source, wanted, target, trip)
    for stored in wanted:
        name = target.prefix + target.inner(source.inner(stored))
        if stored.name in together:
            made, is_confirmed = together[stored.name], True
        else:
            made, is_confirmed = copy_file(source, stored, target.store, name, trip, replacing)
        made = _named(made, target.inner(made.name))
        sums.append(made)
        if not is_confirmed:
            unread.append(made)
    target.arrived()
    # An opened file is read to the end: a single file is whole even if replaced meanwhile.  With
    # several files, a later file may be replaced during the copy.
    if source.manifest is None and not (is_single and isinstance(source.store, LocalStore)):
        _unchanged(source)
    manifest = _manifest_of(source, tuple(sums))
    is_theirs = source.manifest is None
    if is_theirs and target.older is not None and target.older.content == manifest.content:
        manifest = replace(manifest, created_unix_ns=target.older.created_unix_ns)
    saved = _saved_before(manifest, target.older)
    manifest = replace(manifest, called=target.called, saved=saved)
    # A fetched checkpoint is loaded next: the pages should stay in memory.
    unread_back = replace(manifest, files=tuple(unread))
    _read_back(target, unread_back, trip, is_sparing=not is_fetched)
    manifest = replace(manifest, verified_unix_ns=time.time_ns())
    if is_fetched and manifest.source.startswith(OF_FILES):
        files = [target.store.stat(target.prefix + file.name) for file in manifest.files]
        manifest = replace(manifest, as_fetched=lying(target.prefix, files))
    target.commit(to_json(manifest))
    return manifest


def _named(made: FileSum, name: str) -> FileSum:
    return made if made.name == name else replace(made, name=name)


def _known(source: Checkpoint) -> dict[str, FileSum]:
    """Return the files of the manifest by name; empty without a manifest."""
    return {file.name: file for file in source.manifest.files} if source.manifest else {}


def _copied_together(
    source: Checkpoint, wanted: Sequence[StoredFile], target: CopyTarget, trip: Trip
) -> dict[str, FileSum]:
    """Copy the small files into the folder that counts at the commit: sync all files, then read all
    files back.  Return the checksums by name in the source.  Files of an earlier attempt and
    unreadable files are left to copy_file() and have no checksum here.  Raises as copy_file()."""
    dest, done = target.store, dict[str, FileSum]()
    if not (isinstance(source.store, LocalStore) and isinstance(dest, LocalStore)):
        return done
    small = [file for file in wanted if file.size_bytes <= SMALL_BYTES]
    if not target.is_inside or len(small) < LEAST_TOGETHER:
        return done
    syncs, batch, n_bytes = Syncs(), list[tuple[StoredFile, str]](), 0
    most_bytes = min(MOST_BYTES, trip.pace.limit_bps or MOST_BYTES)
    there = _Names(dest)
    files = [(file, target.prefix + target.inner(source.inner(file))) for file in small]
    files = [(file, name) for file, name in files if not there.has(name)]
    if is_for_part(dest, syncs):
        return _copy_natively(source, files, dest, trip, syncs, most_bytes / 2)
    for number, (file, name) in enumerate(files, 1):
        batch.append((file, name))
        n_bytes += file.size_bytes
        if len(batch) >= MOST_FILES or n_bytes >= most_bytes or number == len(files):
            done |= _copy_batch(source, batch, dest, trip, syncs)
            batch, n_bytes = [], 0
    return done


class _Names:
    """The names in folders of a store, each folder listed once."""

    def __init__(self, store: LocalStore) -> None:
        self._store, self._of_folder = store, dict[str, set[str]]()

    def has(self, name: str) -> bool:
        folder, _, base = name.rpartition("/")
        if folder not in self._of_folder:
            self._of_folder[folder] = set()
            with suppress(FileNotFoundError, NotADirectoryError):
                path = self._store.path(folder) if folder else self._store.folder
                self._of_folder[folder] = set(os.listdir(path))  # noqa: PTH208 - only the names
        return base in self._of_folder[folder]


def _copy_natively(
    source: Checkpoint,
    files: Sequence[tuple[StoredFile, str]],
    dest: LocalStore,
    trip: Trip,
    syncs: Syncs,
    most_bytes: float,
) -> dict[str, FileSum]:
    assert isinstance(source.store, LocalStore)
    saved_sums = _known(source)
    sums = dict[str, FileSum]()

    def check(file: StoredFile, mtime_ns: int, summed: bytes) -> None:
        inner = source.inner(file)
        if not saved_sums and mtime_ns != file.mtime_ns:
            raise TierError(f"{source.where}: {inner} changed while it was copied; next time")
        sums[file.name] = _checked(summed, inner, file, saved_sums, source.store.url)

    small = PartFiles(
        source.store, dest, syncs, trip.held, trip.pace.take, check,
        lambda n_bytes: trip.progress(n_bytes, False),
    )  # fmt: skip
    small.copy(files, most_bytes)
    return {name: made for name, made in sums.items() if name in small.done}


def _copy_batch(
    source: Checkpoint,
    batch: Sequence[tuple[StoredFile, str]],
    dest: LocalStore,
    trip: Trip,
    syncs: Syncs,
) -> dict[str, FileSum]:
    assert isinstance(source.store, LocalStore)
    saved_sums = _known(source)
    wanted = {file.name: (file, dest.path(name)) for file, name in batch}
    copies, sums, masks = [], dict[str, bytes](), dict[str, int]()
    for file, path in wanted.values():
        place, new = os.fspath(source.store.path(file.name)), os.fspath(draft_of(path))
        folder = file.name.rpartition("/")[0]
        if folder not in masks:
            masks[folder] = source.store.folder_mask(file.name)
        copies.append(Copy(file.name, place, new, os.fspath(path.parent), masks[folder]))

    def summed(copy: Copy, data: bytes) -> bool:
        parts = range(0, len(data), CHUNK_BYTES)
        sums[copy.name] = b"".join(checksum(data[at : at + CHUNK_BYTES]) for at in parts)
        return True

    def before(part: Sequence[Copy]) -> None:
        trip.held()
        trip.pace.take(sum(copy.status.st_size for copy in part if copy.status is not None))

    def place_copy(copy: Copy, descriptor: int) -> os.stat_result:
        os.replace(copy.new, wanted[copy.name][1])  # noqa: PTH105 - a text
        trip.progress(os.fstat(descriptor).st_size, False)
        return os.fstat(descriptor)

    read_all(copies, lambda part: trip.held(), None, summed)
    copies = [copy for copy in copies if copy.status is not None and copy.error is None]
    done = {}
    for copy in copies:
        file, status = wanted[copy.name][0], copy.status
        assert status is not None
        inner = source.inner(file)
        if not saved_sums and (status.st_size, status.st_mtime_ns) != (
            file.size_bytes,
            file.mtime_ns,
        ):
            raise TierError(f"{source.where}: {inner} changed while it was copied; next time")
        done[copy.name] = _checked(sums[copy.name], inner, file, saved_sums, source.store.url)
    try:
        for folder in {copy.folder for copy in copies}:
            make_folders(Path(folder))
        copy_together(copies, before, place_copy, syncs)
        for copy in copies:
            if copy.error is not None:
                raise copy.error
    except OSError as error:
        raise TierError(
            f"{error.filename or dest.url}: cannot be written: {error.strerror}"
        ) from error
    return done


def _noted_anew(source: Checkpoint, dest: Store, trip: Trip) -> Manifest | None:
    """Write the manifest of files at the destination that have the names and the contents of the
    source, and no valid manifest.  Returns None if there are no files to adopt.  Raises TierError,
    SaveError, and the exceptions of trip.held()."""
    copy = _without_manifest(source, dest)
    if copy is None:
        return None
    sums = []
    for file in source.files:
        saved_sums = _known(source)
        pieces = _Pieces(source.store, file)
        try:
            same = _same(pieces, file, dest, file.name, trip)
            if same is None:
                return None
            sums.append(_checked(same, source.inner(file), file, saved_sums, source.store.url))
            _unwritten(source, source.inner(file), pieces, saved_sums)
        finally:
            pieces.close()
    manifest = _manifest_of(source, tuple(sums))
    copy = replace(copy, manifest=manifest)
    if not verify(copy, "full", paced(trip.held, trip.pace), is_sparing=True).is_whole:
        return None
    manifest = replace(manifest, verified_unix_ns=time.time_ns())
    dest.put(source.manifest_name, to_json(manifest))
    return manifest


def _without_manifest(source: Checkpoint, dest: Store) -> Checkpoint | None:
    """Return the files at the destination that have the names and sizes of the source and have lost
    the manifest; None: no files.  Raises TierError."""
    if not _has_lost_its_manifest(source, dest):
        return None
    if isinstance(dest, LocalStore) and is_alive(dest.path(f"{source.name}{PART_SUFFIX}")):
        return None
    there = dict[str, StoredFile]()
    for file in source.files:
        status = dest.stat(file.name)
        if status is None or status.size_bytes != file.size_bytes:
            return None
        there[file.name] = status
    files = tuple(there.values())
    if source.is_folder:
        own, _ = own_and_others(dest, source.name, source.kind, map(source.inner, source.files))
        is_other = {file.name for file in own} != there.keys()
    else:
        others = (file.name for file in files if file.name != source.name)
        is_other = any(dest.stat(beside(name, BESIDE)) is not None for name in others)
    return None if is_other else replace(source, store=dest, files=files, problem="")


def _has_lost_its_manifest(source: Checkpoint, dest: Store) -> bool:
    """Return True if the destination has no valid manifest and no mark of an unfinished copy.
    Raises TierError."""
    mark = f"{source.name}/{INCOMPLETE}" if source.is_folder else beside(source.name, HALF)
    try:
        if source.called or dest.stat(mark) is not None:
            return False
        if dest.stat(source.manifest_name) is None:
            return True
        parse(dest.read(source.manifest_name), source.manifest_name)
        return False
    except SaveError:  # the manifest is damaged
        return True
    except TierError as error:
        if is_of_one_file(error):
            return False
        raise


def _manifest_of(source: Checkpoint, sums: tuple[FileSum, ...]) -> Manifest:
    if source.manifest is not None:
        made = source.manifest
    else:
        saved = tuple((source.inner(file), file.mtime_ns or 0) for file in source.files)
        made = Manifest((), source.step, kind=source.kind, created_unix_ns=source.mtime_ns)
        is_lasting = source.doubt.endswith((ONE_OR_TWO, UNENDED, SHORTENED))
        made = replace(
            made, saved=saved, doubt=source.doubt if is_lasting else "", state=source.judged
        )
    # The identity from another program's save is kept through every copy.
    is_theirs = made.source.startswith(OF_FILES)
    identity = made.source if is_theirs else source.identity
    return replace(made, files=sums, source=identity, origin=origin_of(source.store), as_fetched="")


def _saved_before(manifest: Manifest, older: Manifest | None) -> tuple[tuple[str, int], ...]:
    """Return the times of writing.  If only some files have new times, as after `touch`, a file
    with the content of the older copy keeps the time there: no save has written the file since."""
    if older is None or not older.saved:
        return manifest.saved
    times, sums = dict(older.saved), older.by_saved_name
    is_all_new = all(times.get(name) != mtime_ns for name, mtime_ns in manifest.saved)
    if is_all_new and older.content != manifest.content:
        return manifest.saved
    return tuple(
        (name, times[name] if name in sums and sums[name].sums == file.sums else mtime_ns)
        for (name, mtime_ns), file in zip(manifest.saved, manifest.files, strict=True)
    )


def _unchanged(source: Checkpoint) -> None:
    """Raise TierError where a checkpoint without manifest was written to during the copy."""
    store, files = source.store, source.files
    if isinstance(store, LocalStore):
        changed = store.first_changed(files)
    else:
        changed = next((file.name for file in files if store.stat(file.name) != file), "")
    if changed:
        raise TierError(f"{source.where}: {changed} changed while it was copied; next time")


def _read_back(target: CopyTarget, manifest: Manifest, trip: Trip, *, is_sparing: bool) -> None:
    if not manifest.files:
        return
    files = tuple(
        StoredFile(target.prefix + file.name, file.size_bytes, None) for file in manifest.files
    )
    copy = Checkpoint(
        target.store, target.place, manifest.kind, target.is_inside, files, None, manifest
    )
    verdict = verify(copy, "full", paced(trip.held, trip.pace), is_sparing=is_sparing)
    if not verdict.is_whole:
        raise TierError(
            f"{target.store.where(target.place)}: reads back other bytes than were written "
            f"({verdict.problems[0]}); the fast copy stays"
        )


def paced(held: Callable[[], None], pace: DrainPace) -> Callable[[int, int], None]:
    """Return a progress callback for verify() that counts bytes read as bytes copied."""
    before = 0

    def progress(done: int, total: int) -> None:
        nonlocal before
        held()
        pace.take(done - before)
        before = done

    return progress


def stored_sum(
    checkpoint: Checkpoint, file: StoredFile, progress: Callable[[int, int], None]
) -> FileSum:
    """Return the checksums of a file.  progress: called with the bytes read
    and the bytes in all."""
    summing = Summing()
    for start in range(0, file.size_bytes, CHUNK_BYTES):
        summing.add(checkpoint.store.read(file.name, start, CHUNK_BYTES))
        progress(min(start + CHUNK_BYTES, file.size_bytes), file.size_bytes)
    return summing.end(checkpoint.inner(file))
