"""From the fast tier to the slow one: every checkpoint once, verified, resumed after any end.

Knows checkpoints and stores; knows no framework.  Its only state is what lies in the tiers:
committed on fast and not on slow is work to do.  A file that is half there is taken up piece by
piece, by its checksums.
"""

import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from penstock import recorder
from penstock.errors import PenstockError, SaveError, TierError, TierFull
from penstock.save.commit import (
    MARK,
    PART_SUFFIX,
    STATE,
    Claim,
    claim,
    discard,
    exchange,
    is_alive,
    is_strange,
    make_part,
    sweep,
)
from penstock.save.formats import (
    HALF,
    HINTS,
    INCOMPLETE,
    OF_FILES,
    UNREAD,
    Checkpoint,
    find,
    go_on,
    half_of,
    halves,
    is_of_one_file,
    is_overtaken,
    lying,
    mark_of_half,
    origin_of,
    origins,
    own_and_others,
)
from penstock.save.manifest import (
    BESIDE,
    CHUNK_BYTES,
    INSIDE,
    FileSum,
    Manifest,
    Summing,
    checksum,
    parse,
    to_json,
)
from penstock.save.removals import Removals
from penstock.save.retention import Keep, Proven, doomed_safely, is_by_itself, prune
from penstock.save.verify import Choice, failure_of, latest_valid, remembered, verify
from penstock.save.writer import with_package
from penstock.stores import (
    Found,
    LocalStore,
    Sparing,
    Store,
    beside,
    draft_of,
    fsync_folder,
    open_store,
)

__all__ = [
    "Drain",
    "Drainer",
    "Pace",
    "Settings",
    "Status",
    "Stopped",
    "Trip",
    "Working",
    "Yielding",
    "be_quiet",
    "copy_checkpoint",
    "copy_file",
    "fetch",
    "open_metrics",
    "read_status",
    "recover",
    "refuse_strange",
    "sentence",
]

STATUS = f"{STATE}/drain.json"
METRICS = f"{STATE}/drain.prom"
TIER_MARK = f"{STATE}/tier-id"  # in a slow folder: which one it is, wherever it is mounted
DRAINS_TO = f"{STATE}/drains-to.json"  # on a fast tier: the marks of those it was drained to
# In a slow tier: of what loads a model there, from which fast tier each file is.
BESIDE_MODEL = f"{STATE}/beside-model.json"
MOST_MARK_BYTES, MOST_MARKS_BYTES = 64, 1 << 20
LEAST_DELAY_S, MOST_DELAY_S = 1.0, 60.0  # between attempts: doubled, capped
GRACE_S = 600.0  # of a drain whose training has ended
PATIENCE_S = GRACE_S + 60.0  # with one that a killed training has left at work
HINT_BYTES = 64 << 20  # a line for each checkpoint that was kept; a tokenizer
LOOK_S = 1.0  # file systems of clusters tell nobody of new files: the folder is looked at
LIST_S = 60.0  # a slow tier in which nothing is missing is listed so often: stores charge for lists
# A look at 200,000 files takes 1.4 s of a processor.  Where folders tell that nothing has changed,
# looks take this share of the time at most; but there is one so often.
LOOK_SHARE, MOST_BLIND_S = 0.05, 60.0
UNREAD_TRIES = 5  # half a minute: an error of a mount passes, a bad sector does not
BURST_S = 0.25  # of the rate limit: a few pieces at once


@dataclass(frozen=True, slots=True)
class Settings:
    """How a drain behaves.

    limit_bps: bytes a second, read-back included; None: none.  concurrency: pieces on their way at
    once.  settle_s: a checkpoint without manifest has to be unchanged for so long.  tries: of one
    checkpoint, when draining once.  keep: prunes both tiers by it; None removes nothing.
    """

    limit_bps: float | None = None
    concurrency: int = 2
    settle_s: float = 2.0
    tries: int = 5
    keep: Keep | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What a drain is doing; the file STATE/drain.json on the fast tier is this as JSON.

    backlog: names that are not known to be on the slow tier, next first.  at_risk_s: age of the
    oldest of them: what would be lost if the fast tier died now.  damaged: what cannot be copied,
    as it is not what was saved or cannot be read; damage: why, of each.  looked_unix_ns: the last
    look at all of the fast tier began then; what came later may not be known.
    """

    state: str = "starting"  # draining, paused, idle, waiting (for the slow tier), ended
    pid: int = 0
    updated_unix_ns: int = 0
    looked_unix_ns: int = 0
    current: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    rate_bps: float = 0.0
    backlog: tuple[str, ...] = ()
    backlog_bytes: int = 0
    at_risk_s: float = 0.0
    drained: int = 0
    drained_bytes: int = 0
    skipped_bytes: int = 0
    paused_s: float = 0.0
    last: str = ""
    error: str = ""
    damaged: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    warning: str = ""


class Stopped(Exception):  # noqa: N818 - an order, not an accident
    """The drain was told to end."""


class Unwanted(Exception):  # noqa: N818 - an order, too
    """What is being copied may go, and a newer one is there: the copy ends, and leaves nothing."""


class _UnreadError(TierError):
    """Of what is to be copied: it may pass, or be a bad sector."""


# --- how fast -------------------------------------------------------------------------------------


class Pace:
    """At most so many bytes a second, over all threads."""

    def __init__(
        self,
        limit_bps: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._limit_bps, self._clock, self._sleep = limit_bps, clock, sleep
        self._lock, self._next_s = threading.Lock(), -math.inf

    def take(self, n_bytes: int) -> None:
        """Returns when these bytes may go."""
        if not self._limit_bps:
            return
        with self._lock:
            now_s = self._clock()
            begin_s = max(self._next_s, now_s - BURST_S)
            self._next_s = begin_s + n_bytes / self._limit_bps
        if begin_s > now_s:
            self._sleep(begin_s - now_s)


class Yielding:
    """Whether the training waits for data more than it does without us.

    share: the data wait's share of the last second, or None: not known.  What is usual is learnt
    while nothing is copied.  A wait that goes on while we pause is not ours: it is usual from then
    on.
    """

    RISE = 0.05  # of wall time, and half as much again as usual: less is a job's own scatter
    MOST_PAUSE_S = 30.0
    LEARNT = 30  # seconds of quiet that make what is usual

    def __init__(
        self, share: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share, self._clock = share, clock
        self._quiet: deque[float] = deque(maxlen=self.LEARNT)
        self._looked_s, self._is_rising = -math.inf, False
        self._since_s: float | None = None

    def quiet(self) -> None:
        """Called while nothing is copied."""
        if self._is_due() and (value := self._look()) is not None:
            self._quiet.append(value)

    def _is_due(self) -> bool:
        return self._clock() - self._looked_s >= LOOK_S

    def _look(self) -> float | None:
        self._looked_s = self._clock()
        with suppress(PenstockError, OSError):
            return self._share()
        return None

    def should_pause(self) -> bool:
        if not self._is_due():
            return self._is_rising
        value = self._look()
        if value is None:  # the training may have ended while it waited
            self._is_rising, self._since_s = False, None
            return False
        if not self._quiet:
            self._quiet.append(value)
        usual = statistics.median(self._quiet)
        self._is_rising = value > usual + max(self.RISE, usual / 2)
        if not self._is_rising:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = self._clock()
        elif self._clock() - self._since_s > self.MOST_PAUSE_S:
            self._quiet.clear()
            self._quiet.append(value)
            self._is_rising, self._since_s = False, None
        return self._is_rising


def be_quiet() -> None:
    """The least of processor and disk: for a machine that has both to spare now and then."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 10)
    import ctypes

    number = {"x86_64": 251, "aarch64": 30}.get(platform.machine())  # ioprio_set
    if number is not None:
        best_effort, least = 2, 7
        ctypes.CDLL(None).syscall(number, 1, 0, best_effort << 13 | least)


# --- one checkpoint -------------------------------------------------------------------------------


@dataclass(slots=True)
class Trip:
    """What a copy is told and tells.  told: bytes that are through; and whether they were there."""

    pace: Pace
    concurrency: int = 1
    held: Callable[[], None] = lambda: None  # returns when copying may go on; raises Stopped
    told: Callable[[int, bool], None] = lambda n_bytes, was_there: None


class _Pieces:
    """A source file, read into memory that O_DIRECT takes, a block for each thread."""

    def __init__(self, store: Store, found: Found) -> None:
        self._store, self._found = store, found
        self._own = threading.local()
        self._local: Sparing | None = None
        if isinstance(store, LocalStore):
            with self._told():
                self._local = Sparing(store.path(found.name))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not is_of_one_file(error):
                raise
            where = self._store.where(self._found.name)
            raise _UnreadError(f"{where}: cannot be read: {error.strerror}") from error

    def read(self, start: int, length: int) -> memoryview:
        if self._local is None:
            return memoryview(self._store.read(self._found.name, start, length))
        block = getattr(self._own, "block", None)
        if block is None or len(block) < length:
            # Not with the file's own length: threads come and go with each file.
            block = self._own.block = Sparing.block(length)
        with self._told():
            return self._local.read(block, start, length)

    def is_as_found(self) -> bool:
        """Whether nobody has written into it since it was listed.  One that another has replaced
        is that still: what was opened is read to its end."""
        if self._local is None:
            return True
        status, found = os.fstat(self._local.number), self._found
        return (status.st_size, status.st_mtime_ns) == (found.size_bytes, found.mtime_ns)

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
        self._local = None


def copy_file(
    source: Checkpoint,
    found: Found,
    dest: Store,
    name: str,
    trip: Trip,
    replacing: Callable[[], None] | None = None,
) -> tuple[FileSum, bool]:
    """Copies a file, or takes up an earlier attempt.  Returns its checksums, and whether the store
    has compared the bytes by itself.  replacing: as an Upload's.  Raises TierError; SaveError: the
    source has changed."""
    inner = source.inner(found)
    known = {file.name: file for file in source.manifest.files} if source.manifest else {}
    pieces = _Pieces(source.store, found)
    try:
        there = dest.stat(name)
        if there is not None and there.size_bytes == found.size_bytes:
            same = _same(pieces, found, dest, name, trip)
            if same is not None:
                _unwritten(source, inner, pieces, known)
                return _checked(same, inner, found, known, source.store.url), False
        upload = dest.upload(name, found.size_bytes, CHUNK_BYTES)
        upload.mtime_ns = found.mtime_ns  # until it has a manifest, this is what tells its age
        upload.replacing = replacing
        try:
            count = -(-found.size_bytes // upload.piece_bytes)

            def carry(number: int) -> bytes:
                start = number * upload.piece_bytes
                trip.held()
                data = pieces.read(start, min(upload.piece_bytes, found.size_bytes - start))
                if len(data) < min(upload.piece_bytes, found.size_bytes - start):
                    raise TierError(f"{source.where}: {inner} was cut short while it was copied")
                sums = b"".join(
                    checksum(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
                )
                trip.pace.take(len(data))  # what is there is read, what is not is written
                was_there = upload.holds(number, data)
                if not was_there:
                    upload.write(number, data)
                trip.told(len(data), was_there)
                return sums

            if upload.is_ordered or trip.concurrency == 1 or count < 2:
                done = [carry(number) for number in range(count)]
            else:
                done = _spread(carry, count, trip.concurrency)
            sums = _checked(b"".join(done), inner, found, known, source.store.url)
            _unwritten(source, inner, pieces, known)  # it would take the place of a whole one
            upload.finish()
        finally:
            upload.close()
        return sums, upload.is_confirmed
    finally:
        pieces.close()


def _unwritten(source: Checkpoint, inner: str, pieces: _Pieces, known: dict[str, FileSum]) -> None:
    """Raises TierError where a file of which no manifest tells was written to as it was read."""
    if not known and not pieces.is_as_found():
        raise TierError(f"{source.where}: {inner} changed while it was copied; next time")


def _spread(carry: Callable[[int], bytes], count: int, threads: int) -> list[bytes]:
    """Pieces by several threads; the first error ends all."""
    over = threading.Event()

    def one(number: int) -> bytes:
        if over.is_set():
            return b""
        try:
            return carry(number)
        except BaseException:
            over.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(count)))


def _same(pieces: _Pieces, found: Found, dest: Store, name: str, trip: Trip) -> bytes | None:
    """Checksums of the source, if the finished file over there has the same bytes."""
    sums = bytearray()
    for start in range(0, found.size_bytes, CHUNK_BYTES):
        trip.held()
        data = pieces.read(start, min(CHUNK_BYTES, found.size_bytes - start))
        mine = checksum(data)
        trip.pace.take(len(data))
        try:
            theirs = checksum(dest.read(name, start, len(data)))
        except TierError as error:
            if is_of_one_file(error):  # perhaps for ever
                return None
            raise
        if theirs != mine:
            return None
        sums += mine
    trip.told(found.size_bytes, True)
    return bytes(sums)


def _checked(
    sums: bytes, inner: str, found: Found, known: dict[str, FileSum], where: str
) -> FileSum:
    """Raises SaveError where the source is not what its own manifest says."""
    made = FileSum(inner, found.size_bytes, sums)
    if known and known.get(inner) != made:
        raise SaveError(f"{inner}: not what was saved: {where} has changed it; not copied")
    return made


def copy_checkpoint(
    source: Checkpoint, dest: Store, trip: Trip, *, is_fetched: bool = False
) -> tuple[str, Manifest]:
    """Copies a checkpoint into another tier and commits it there, verified by reading it back.
    Its name there, and its manifest.

    What an earlier attempt has copied is kept where its checksums fit.  An older copy of the same
    name from the same tier is replaced in one moment; where a store cannot, or where the name is
    taken by what is not ours to replace, the new one gets the next free name, NAME.2 and so on.
    is_fetched: into the tier where its program may write into it again.
    Raises TierError, SaveError, and what trip.held() raises.
    """
    target = _Target(source, dest)
    target.begin()
    try:
        return target.name, _copied(source, target, trip, is_fetched)
    except Unwanted:
        target.abandon()
        raise


def _copied(source: Checkpoint, target: "_Target", trip: Trip, is_fetched: bool) -> Manifest:
    wanted = source.files
    if source.manifest is not None:
        names = {file.name for file in source.manifest.files}
        wanted = tuple(found for found in wanted if source.inner(found) in names)
        if len(wanted) != len(names):
            raise SaveError(f"{source.where}: a file of its manifest is missing; not copied")
    sums, unread = [], []
    is_single = not source.is_folder and len(wanted) == 1
    # A drain that ends between the two leaves bytes that their own format can judge, and not new
    # ones that an old manifest calls damaged.  Of several files it is what tells a mixture.
    replacing = target.arrived if is_single else None
    for found in wanted:
        name = target.prefix + target.inner(source.inner(found))
        made, is_confirmed = copy_file(source, found, target.store, name, trip, replacing)
        made = replace(made, name=target.inner(made.name))
        sums.append(made)
        if not is_confirmed:
            unread.append(made)
    target.arrived()
    # What was opened is read to its end: one file that was replaced meanwhile is whole, and the
    # next may be replaced meanwhile, too.
    if source.manifest is None and not (is_single and isinstance(source.store, LocalStore)):
        _unchanged(source)
    manifest = _manifest_of(source, tuple(sums))
    manifest = replace(manifest, called=target.called)
    # What was fetched is loaded next: then it lies in memory.
    unread_back = replace(manifest, files=tuple(unread))
    _read_back(target, unread_back, trip, is_sparing=not is_fetched)
    manifest = replace(manifest, verified_unix_ns=time.time_ns())
    if is_fetched and manifest.source.startswith(OF_FILES):
        files = [target.store.stat(target.prefix + file.name) for file in manifest.files]
        manifest = replace(manifest, as_fetched=lying(target.prefix, files))
    target.commit(to_json(manifest))
    return manifest


def _manifest_of(source: Checkpoint, sums: tuple[FileSum, ...]) -> Manifest:
    if source.manifest is not None:
        made = source.manifest
    else:
        made = Manifest((), source.step, kind=source.kind, created_unix_ns=source.mtime_ns)
    # What another program has saved stays that, however often it is copied.
    is_theirs = made.source.startswith(OF_FILES)
    identity = made.source if is_theirs else source.identity
    return replace(made, files=sums, source=identity, origin=origin_of(source.store), as_fetched="")


def _unchanged(source: Checkpoint) -> None:
    """Raises TierError where a checkpoint without manifest was written to while it was copied."""
    for found in source.files:
        if source.store.stat(found.name) != found:
            raise TierError(f"{source.where}: {found.name} changed while it was copied; next time")


def _read_back(target: "_Target", manifest: Manifest, trip: Trip, *, is_sparing: bool) -> None:
    if not manifest.files:
        return
    files = tuple(
        Found(target.prefix + file.name, file.size_bytes, None) for file in manifest.files
    )
    copy = Checkpoint(
        target.store, target.place, manifest.kind, target.is_folder, files, None, manifest
    )
    verdict = verify(copy, "full", _paced(trip.held, trip.pace), is_sparing=is_sparing)
    if not verdict.is_whole:
        raise TierError(
            f"{target.store.where(target.place)}: reads back other bytes than were written "
            f"({verdict.problems[0]}); the fast copy stays"
        )


def _paced(held: Callable[[], None], pace: Pace) -> Callable[[int, int], None]:
    """What verify() is to tell of its progress: reading counts as copying does."""
    before = 0

    def told(done: int, total: int) -> None:
        nonlocal before
        held()
        pace.take(done - before)
        before = done

    return told


class _Target:
    """Where a copy goes.  prefix: before the names of its files, until it is committed."""

    def __init__(self, source: Checkpoint, dest: Store) -> None:
        self.store, self.is_folder = dest, source.is_folder
        self._source = source
        stem, suffix = source.name, ""
        if not self.is_folder and len(source.files) == 1 and "." in source.name.rpartition("/")[2]:
            stem, _, suffix = source.name.rpartition(".")  # last.2.ckpt: what it is stays its end
            suffix = f".{suffix}"
        self.name, again = source.name, 1
        while not self._may_have(self.name):
            again += 1
            self.name = f"{stem}.{again}{suffix}"
        self.place = self.name
        # A name that it was given is not the one that it was saved under.
        self.called = source.called or (source.name if self.name != source.name else "")
        if not self.is_folder:
            self.prefix = source.folder
            return
        if dest.can_rename:
            self.place = f"{self.name}{PART_SUFFIX}"
        self.prefix = f"{self.place}/"

    def inner(self, name: str) -> str:
        """A file's name in the copy, by its name in the source."""
        if self.is_folder or self.name == self._source.name:
            return name
        return self.name.rpartition("/")[2] + name[len(self._source.name.rpartition("/")[2]) :]

    def _manifest_name(self, name: str) -> str:
        return replace(self._source, name=name).manifest_name

    def _may_have(self, name: str) -> bool:
        """Whether the name is free, or that of a copy that this one may replace.  Raises TierError:
        it is being written."""
        if isinstance(self.store, LocalStore) and self.is_folder:
            part = self.store.path(f"{name}{PART_SUFFIX}")
            if is_alive(part):
                raise TierError(f"{part}: is being written by another process; next time")
            try:
                if is_strange(part):
                    return False
            except OSError as error:
                if is_of_one_file(error):
                    return False
                raise
        if name != self._source.name and self._is_taken(self._source.store, name):
            return False  # two of one tier would replace each other for ever
        noted = self._manifest_name(name)
        try:
            if self.store.stat(noted) is not None:
                if self.is_folder and not self.store.can_rename:
                    return False  # a committed name is never written into
                there = parse(self.store.read(noted), noted)
                is_theirs = is_overtaken(there, self.store, name, self.is_folder)
                is_alone = not self.is_folder or self._is_alone(there, name)
                return self._is_older(there) and not is_theirs and is_alone
        except SaveError:  # it cannot be believed, and may be anybody's
            return False
        except TierError as error:
            if is_of_one_file(error):  # nor can this one, perhaps for ever
                return False
            raise
        if not self.is_folder:
            return not self._is_taken(self.store, name) or self._is_half(name)
        if isinstance(self.store, LocalStore):
            return not self.store.path(name).exists()
        return self.store.stat(f"{name}/{INCOMPLETE}") is not None or not any(self.store.list(name))

    def _is_taken(self, store: Store, name: str) -> bool:
        if self.is_folder:
            return any(store.list(name))
        names = [f"{name}{one.name[len(self._source.name) :]}" for one in self._source.files]
        return any(store.stat(one) for one in names)

    def _is_older(self, there: Manifest) -> bool:
        """Whether it is a copy of this one, or of what had its name on the same tier before."""
        mine = self._source.manifest
        known = {self._source.identity, mine.source if mine is not None else ""} - {""}
        if there.identity in known or there.source in known:
            return True
        return bool(there.source) and there.origin in ("", *origins(self._source.store))

    def _is_alone(self, there: Manifest, name: str) -> bool:
        """Whether no other checkpoint lies in its folder, as in that of a Trainer's model: it would
        go with what is replaced."""
        known = (file.name for file in there.files)
        return not own_and_others(self.store, name, there.kind, known)[1]

    def _is_half(self, name: str) -> bool:
        """Whether files without a manifest are a copy of this one, or of what had its name on the
        same tier before, that was ended before it had one."""
        mark = beside(name, HALF)
        if self.store.stat(mark) is None:
            return False
        try:
            called, origin = half_of(self.store, mark)
        except TierError as error:
            if is_of_one_file(error):  # perhaps for ever
                return False
            raise
        wanted = self._source.called or self._source.name
        return called == wanted and origin in ("", *origins(self._source.store))

    def begin(self) -> None:
        if not self.is_folder:
            # Before the first file is there under its name: whose it is until the manifest comes.
            mark = mark_of_half(self.called or self.name, origin_of(self._source.store))
            self.store.put(beside(self.name, HALF), mark)
        elif isinstance(self.store, LocalStore):
            part = self.store.path(self.place)
            if not part.exists():  # else of an earlier attempt, whose files are taken up
                make_part(part, self.store.folder).close()
        else:
            self.store.put(f"{self.place}/{INCOMPLETE}", b"{}")

    def arrived(self) -> None:
        """When the files are there under their names.  A manifest of those that were replaced tells
        nothing of them; until now it said what may be damaged."""
        if not self.is_folder and self.store.stat(self._manifest_name(self.name)) is not None:
            self.store.delete(self._manifest_name(self.name))

    def abandon(self) -> None:
        """Removes what there is of a copy.  Raises TierError."""
        if self.is_folder and isinstance(self.store, LocalStore):
            discard(self.store.path(self.place), self.store.folder)
            return
        # With one file and its manifest still there, nothing of the copy before was replaced yet.
        manifest = self._manifest_name(self.name)
        is_single = not self.is_folder and len(self._source.files) == 1
        is_before = is_single and self.store.stat(manifest) is not None
        for found in self._source.files:
            name = self.prefix + self.inner(self._source.inner(found))
            if isinstance(self.store, LocalStore):
                draft = draft_of(self.store.path(name))
                self.store.delete(os.fspath(draft.relative_to(self.store.folder)))
            if not is_before:
                self.store.delete(name)
        if not is_before:
            self.arrived()
        self.store.delete(
            f"{self.place}/{INCOMPLETE}" if self.is_folder else beside(self.name, HALF)
        )

    def commit(self, manifest: bytes) -> None:
        if not self.is_folder:
            self.store.put(self._manifest_name(self.name), manifest)
            self.store.delete(beside(self.name, HALF))
        elif isinstance(self.store, LocalStore):
            self._commit_locally(self.store, manifest)
        else:
            self.store.put(f"{self.place}/{INSIDE}", manifest)
            self.store.delete(f"{self.place}/{INCOMPLETE}")

    def _commit_locally(self, store: LocalStore, manifest: bytes) -> None:
        part, path = store.path(self.place), store.path(self.name)
        self._drop_strangers(part)
        store.put(f"{self.place}/{INSIDE}", manifest)
        try:
            (part / MARK).unlink(missing_ok=True)
            for folder, _, _ in os.walk(part):
                fsync_folder(folder)
            if not path.exists():
                part.rename(path)
                fsync_folder(path.parent)
                return
            try:
                exchange(part, path)
                fsync_folder(path.parent)
            except OSError:  # no such call here: a moment without either, which recover() mends
                discard(path, store.folder)
                part.rename(path)
                fsync_folder(path.parent)
                return
        except OSError as error:
            raise TierError(f"{path}: cannot be committed: {error.strerror}") from error
        discard(part, store.folder)

    def _drop_strangers(self, part: Path) -> None:
        """Files of an earlier attempt with another version of this checkpoint."""
        wanted = {self._source.inner(found) for found in self._source.files} | {MARK, INSIDE}
        for folder, _, names in os.walk(part):
            for name in names:
                path = Path(folder) / name
                if os.fspath(path.relative_to(part)) not in wanted:
                    path.unlink()


# --- all of them ----------------------------------------------------------------------------------


class Working:
    """A drain at work: its pace, what it says, and when it rests.  What there is to do, and how one
    of it is done, is for those who inherit.
    """

    def __init__(
        self,
        fast: str | os.PathLike[str],
        settings: Settings | None,
        share: Callable[[], float | None] | None,
        told: Callable[[Status], None],
        clock: Callable[[], float],
    ) -> None:
        self.fast = LocalStore(fast)
        self.settings = settings or Settings()
        self.stopping = threading.Event()
        self.status = Status(pid=os.getpid())
        self._told, self._clock = told, clock
        self._pace = Pace(self.settings.limit_bps, clock, self.stopping.wait)
        self._yielding = Yielding(share, clock) if share else None
        self._lock, self._published_s = threading.Lock(), -math.inf
        self._rate: deque[tuple[float, int]] = deque(maxlen=64)
        self._at_risk_since_s: float | None = None  # by the clock of files
        self._claims = ExitStack()

    def __enter__(self) -> Self:
        self._claims.enter_context(claim(self.fast.folder, "drain"))
        return self

    def __exit__(self, *error: object) -> None:
        self._say(state="ended", current="")
        self._publish(is_last=True)
        recorder.note("drain paused", f"{self.status.paused_s:.3f}")
        self._claims.close()

    def stop(self) -> None:
        """From a signal handler or another thread: the copy ends after the pieces under way."""
        self.stopping.set()

    @abstractmethod
    def backlog(self) -> Sequence[Any]:
        """What is still to be done.  Raises TierError."""

    def _owed(self) -> Sequence[Any]:
        """What has to be done before this may end.  Raises TierError."""
        return self.backlog()

    def _is_idle(self, failed: dict[str, str]) -> bool:
        """Whether nothing is left that another attempt could do."""
        return not failed

    @abstractmethod
    def once(self) -> list[str]:
        """Does all there is; returns what could not be done, with the reason.  Raises Stopped, and
        TierError where a tier cannot be listed."""

    @abstractmethod
    def _round(self) -> dict[str, str]:
        """Each that is due, once.  Returns failures by name."""

    def watch(self, is_over: Callable[[], bool], grace_s: float = math.inf) -> list[str]:
        """Drains until is_over() and nothing is left to do, or grace_s after it.  Returns what
        could not be drained.  Raises Stopped."""
        over_s = math.inf
        failed: dict[str, str] = {}
        while True:
            if over_s == math.inf and is_over():
                over_s = self._clock()
            try:
                failed = self._round()
                left = over_s < math.inf and bool(self._owed())
                state = "idle" if self._is_idle(failed) else "waiting"
            except TierError as error:  # a tier is gone, perhaps for an hour
                failed, left, state = {"": str(error)}, True, "waiting"
            self._say(state=state, current="", error=_summed(failed))
            self._publish()
            now_s = self._clock()
            if over_s < math.inf and (not left or now_s - over_s >= grace_s):
                return [sentence(name, why) for name, why in failed.items()]
            self._rest(LOOK_S)

    def _rest(self, seconds: float) -> None:
        if self._yielding:
            self._yielding.quiet()
        if self.stopping.wait(seconds):
            raise Stopped

    def _held(self) -> None:
        """Before each piece: ends where told to, waits while the training starves."""
        while True:
            if self.stopping.is_set():
                raise Stopped
            if self._yielding is None:
                return
            with self._lock:
                is_pausing = self._yielding.should_pause()
            if not is_pausing:
                return
            begun_s = self._clock()
            self._say(state="paused")
            self._publish()
            self.stopping.wait(0.1)
            self._say(state="draining", paused_s=self.status.paused_s + self._clock() - begun_s)

    def _through(self, n_bytes: int, was_there: bool) -> None:
        with self._lock:
            now_s = self._clock()
            self._rate.append((now_s, 0 if was_there else n_bytes))
            span_s = now_s - self._rate[0][0]
            rate = sum(count for _, count in self._rate) / span_s if span_s > 0 else 0.0
            self.status = replace(
                self.status,
                done_bytes=self.status.done_bytes + n_bytes,
                skipped_bytes=self.status.skipped_bytes + (n_bytes if was_there else 0),
                rate_bps=rate,
            )
        self._publish()

    def _say(self, **facts: Any) -> None:
        with self._lock:
            self.status = replace(self.status, **facts)

    def _publish(self, is_last: bool = False) -> None:
        """The status file, once a second; a tier that cannot be written keeps the old one."""
        with self._lock:
            if not is_last and self._clock() - self._published_s < LOOK_S:
                return
            self._published_s = self._clock()
            if (
                since_s := self._at_risk_since_s
            ) is not None:  # it grows while nothing else happens
                self.status = replace(self.status, at_risk_s=max(0.0, time.time() - since_s))
            status = self.status = replace(self.status, updated_unix_ns=time.time_ns())
        with suppress(TierError):
            _write(self.fast.path(STATUS), json.dumps(asdict(status), indent=1))
            _write(self.fast.path(METRICS), open_metrics(status))
        self._told(status)


class _Stillness:
    """Whether a fast tier is as it was at a look that found nothing to do, asked at a price far
    below that of another look.

    A name that comes or goes changes the time of its folder; a checkpoint of another program may
    change in place, so that its files are asked too.  What both hide (two changes within a tick of
    the file system's clock, a file system that keeps no times of folders) is found by the next
    look, which comes after MOST_BLIND_S at the latest.
    """

    def __init__(self, fast: LocalStore, clock: Callable[[], float]) -> None:
        self._fast, self._clock = fast, clock
        self._begun_s = self._until_s = -math.inf
        self._cost_s = 0.0
        self._folders: dict[str, int] = {}  # each with its time
        self._files: dict[str, tuple[int, int | None]] = {}  # each with its size and time

    def begin(self) -> None:
        """Before a look: what changes from now on counts as changed after it."""
        self._begun_s, self._until_s = self._clock(), -math.inf
        # Else a look costs hardly more than this does.
        is_dear = self._cost_s > LOOK_SHARE * LOOK_S
        self._folders = _times_of_folders(self._fast.url) if is_dear else {}

    def note(self, found: Sequence[Checkpoint], hints: Sequence[Found]) -> None:
        """A look has found these, and nothing to do."""
        self._cost_s = self._clock() - self._begun_s
        if not self._folders:
            return
        root = self._fast.url
        self._files = {
            f"{root}/{file.name}": (file.size_bytes, file.mtime_ns)
            for files in (hints, *(one.files for one in found if not one.is_ours))
            for file in files
        }  # fmt: skip
        self._until_s = self._begun_s + min(MOST_BLIND_S, self._cost_s / LOOK_SHARE)

    def lasts(self) -> bool:
        if self._clock() >= self._until_s:
            return False
        try:
            for folder, time_ns in self._folders.items():
                if os.stat(folder).st_ctime_ns != time_ns:  # noqa: PTH116 - Path.stat is slow
                    return False
            for name, facts in self._files.items():
                status = os.stat(name)  # noqa: PTH116
                if (status.st_size, status.st_mtime_ns) != facts:
                    return False
        except OSError:
            return False
        return True


def _mark_of(slow: Store) -> str:
    """Empty: it has none.  Raises TierError: it cannot be read, which says nothing of it."""
    if slow.stat(TIER_MARK) is None:
        return ""
    return slow.read(TIER_MARK, 0, MOST_MARK_BYTES).decode(errors="replace").strip()


def _known_marks(fast: LocalStore) -> dict[str, str]:
    """Of the folders that this fast tier was drained to, by their paths."""
    with suppress(TierError, ValueError, RecursionError):
        rows = json.loads(fast.read(DRAINS_TO, 0, MOST_MARKS_BYTES))
        if isinstance(rows, dict):
            return {str(one): str(mark) for one, mark in rows.items()}
    return {}


def _marked(fast: LocalStore, slow: LocalStore) -> str:
    """The slow folder's mark, made if it has none, and remembered on the fast tier, each where
    there is room: a full tier is what a drain is for.  Empty: it has none.  Raises TierError."""
    mark = _mark_of(slow)
    with suppress(TierFull):
        if not mark:
            made = uuid.uuid4().hex
            slow.put(TIER_MARK, [made.encode()])
            mark = made
        known, path = _known_marks(fast), origin_of(slow)
        if known.get(path) != mark:
            fast.put(DRAINS_TO, [json.dumps(known | {path: mark}).encode()])
    return mark


def refuse_strange(fast: LocalStore, slow: LocalStore, mark: str | None = None) -> None:
    """Raises TierError where the slow folder is another one than before: what is written there
    would be in the mount point, and lost sight of with the next mount.  mark: the one that it had;
    None: the one that the fast tier remembers."""
    known = _known_marks(fast).get(origin_of(slow), "") if mark is None else mark
    if known and _mark_of(slow) != known:
        raise TierError(
            f"{slow.url}: is not the folder that {fast.url} was drained to: is it mounted?  If it "
            f"is to begin anew there, remove {fast.path(DRAINS_TO)}"
        )


def _times_of_folders(root: str) -> dict[str, int]:
    """When names came or went last, which nobody can set back.  Our own folder has none: we write
    there each second.  Empty: they cannot be told."""
    times = {}
    with suppress(OSError):
        for folder, inner, _ in os.walk(root):
            times[folder] = os.stat(folder).st_ctime_ns  # noqa: PTH116
            if STATE in inner:
                inner.remove(STATE)
        return times
    return {}


class Drainer(Working):
    """The drain of one pair of tiers, in this process.  Use as a context: it holds both claims.

    patience_s: how long another one may still have them, as that of a killed job has until it has
    drained all, or for its grace.  Raises SaveError: another process drains them, or they are one
    folder; TierError, also where the slow folder is not the one that this fast tier was drained to
    before: not mounted, perhaps.
    """

    def __init__(
        self,
        fast: str | os.PathLike[str],
        slow: str | os.PathLike[str],
        settings: Settings | None = None,
        patience_s: float = 0.0,
        *,
        share: Callable[[], float | None] | None = None,
        told: Callable[[Status], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(fast, settings, share, told, clock)
        self.slow = open_store(slow)
        self._patience_s = patience_s
        self._slow_mark, self._is_remembered = "", False  # and on the fast tier
        self._seen: dict[str, tuple[str, float]] = {}
        self._judged: dict[str, tuple[str, str]] = {}  # of others: identity, what is wrong
        self._unfinished: set[str] = set()  # on the fast tier, at the last look
        self._damaged: dict[str, tuple[str, str]] = {}  # on the fast tier: identity, what is wrong
        self._unread: dict[str, tuple[str, int]] = {}  # on the fast tier: identity, times
        # By name: identity, not before, delay, why.
        self._again: dict[str, tuple[str, float, float, str]] = {}
        self._arrived: set[str] = set()  # what the slow tier had when it was listed last
        self._listed_s = self._pruned_s = -math.inf
        self._proven, self._is_swept, self._is_ended = Proven(), False, False
        self._removals = Removals(self.fast, self.slow, self._look_at_slow)
        self._current: Checkpoint | None = None
        self._looked_s = -math.inf
        self._hints: list[Found] = []  # on the fast tier, at the last look
        self._hinted: set[Found] = set()  # those that the slow tier has, too
        self._still = _Stillness(self.fast, clock)
        self._held_back = self._renamed = self._left_alone = ""  # what is to be warned of
        _apart(self.fast, self.slow)

    def __enter__(self) -> Self:
        with ExitStack() as claims:
            claims.enter_context(self._claimed(self.fast))
            if isinstance(self.slow, LocalStore):
                self._slow_mark = _known_marks(self.fast).get(origin_of(self.slow), "")
                self._look_at_slow()  # before anything is made there
                claims.enter_context(self._claimed(self.slow))
                self._look_at_slow()  # it may have been unmounted while another drain had it
                self._mark_slow()
                self._say(state="starting", error="", warning="")
            self._claims = claims.pop_all()
        return self

    def _claimed(self, tier: LocalStore) -> Claim:
        def tell(said: str) -> None:
            if tier is self.fast:  # the status file is the other one's
                self._told(replace(self.status, warning=said))
                return
            with suppress(TierError):
                self._backlog(self.backlog())
            self._say(state="waiting", error=said, warning=said)
            self._publish(is_last=True)

        return claim(tier.folder, "drain", self._patience_s, tell)

    def _mark_slow(self) -> None:
        assert isinstance(self.slow, LocalStore)
        self._slow_mark = _marked(self.fast, self.slow)
        self._is_remembered = origin_of(self.slow) in _known_marks(self.fast)

    def _look_at_slow(self) -> None:
        """Raises TierError: as refuse_strange(); until what is remembered is removed, as that
        says."""
        if not isinstance(self.slow, LocalStore):
            return
        try:
            refuse_strange(self.fast, self.slow, self._slow_mark)
        except TierError:
            if not self._is_remembered or self.fast.stat(DRAINS_TO) is not None:
                raise
            self._mark_slow()

    def backlog(self) -> list[Checkpoint]:
        """What is on the fast tier and not on the slow one, newest first: the newest is worth most
        if the machine dies.  Raises TierError."""
        begun_unix_ns = time.time_ns()
        self._still.begin()
        self._hints = []
        found = find(self.fast, hints=self._hints)
        on_fast = [one for one in found if not one.problem or one.is_broken]
        self._unfinished = {one.name for one in found if one.problem and not one.is_broken}
        self._damaged = {one.name: self._damaged[one.name] for one in on_fast if self._wrong(one)}
        missing = self._missing(on_fast)
        if all(self._wrong(one) for one in missing):
            self._still.note(found, self._hints)
        self._say(looked_unix_ns=begun_unix_ns)
        self._say_damaged()
        return missing

    def _say_damaged(self) -> None:
        damage = tuple(why for _, why in self._damaged.values())
        self._say(damaged=tuple(self._damaged), damage=damage)

    def _is_lasting(self, one: Checkpoint) -> bool:
        """Whether it could not be read for the last so many times."""
        identity, tries = self._unread.get(one.name, ("", 0))
        tries = tries + 1 if identity == one.identity else 1
        self._unread[one.name] = (one.identity, tries)
        return tries >= UNREAD_TRIES

    def _owed(self) -> list[Checkpoint]:
        return [one for one in self.backlog() if not self._wrong(one)]

    def _is_idle(self, failed: dict[str, str]) -> bool:
        return set(failed) <= set(self._damaged)

    def _wrong(self, one: Checkpoint) -> str:
        """What is known to be wrong with it as it lies on the fast tier; empty: nothing."""
        identity, why = self._damaged.get(one.name, ("", ""))
        return why if identity == one.identity else ""

    def damaged(self) -> dict[tuple[str, str], str]:
        """What was read on the fast tier and found damaged, as latest_valid takes it."""
        return {
            (self.fast.where(name), identity): why
            for name, (identity, why) in self._damaged.items()
        }

    def _missing(self, on_fast: Sequence[Checkpoint]) -> list[Checkpoint]:
        is_known = {one.identity for one in on_fast if not self._wrong(one)} <= self._arrived
        if is_known and self._clock() - self._listed_s < LIST_S:
            return []
        try:
            self._look_at_slow()
            on_slow, self._listed_s = find(self.slow), self._clock()
        except TierError:  # what it had when it was listed last is all that is known to be there
            self._backlog([one for one in on_fast if one.identity not in self._arrived])
            raise
        self._removals.saw(on_slow)
        self._arrived = {
            mark
            for one in on_slow
            if one.manifest is not None and not one.problem
            for mark in (one.manifest.source, one.manifest.identity)
        }
        # What another program has on the slow tier, as it was when it was brought to the fast one.
        theirs = {(one.name, one.identity) for one in on_slow if not one.is_ours}
        self._arrived |= {
            one.identity
            for one in on_fast
            if (made := one.manifest) is not None
            and (made.called or one.name, made.source) in theirs
        }
        missing = [one for one in on_fast if one.identity not in self._arrived]
        keep = self.settings.keep
        if keep is not None and not keep.foreign:
            is_held = sum(not one.is_ours and not one.problem for one in on_fast) > keep.fast
            self._held_back = HELD_BACK if is_held else ""
            self._warn()
        if keep is None or not missing:
            return missing
        # What the slow tier would drop at once, and the fast one keeps anyway, stays at home.
        as_ours = {
            one.name: one
            if one.is_ours
            else replace(one, manifest=Manifest((), one.step, source=one.identity))
            for one in missing
        }
        failed = remembered(self.fast) | remembered(self.slow)
        failed |= {
            f"{one.name} {one.identity}": why for one in missing if (why := self._wrong(one))
        }
        # Another program's may be damaged: until it was read, no older one stays at home for it.
        unread = [
            one for one in missing
            if not one.is_ours and self._judged.get(one.name, ("", ""))[0] != one.identity
        ]  # fmt: skip
        known = [*on_slow, *(as_ours[one.name] for one in missing if one not in unread)]

        def doomed(more: Sequence[Checkpoint]) -> set[str]:
            found = doomed_safely([*known, *more], keep, failed, self._proven, self.fast)
            return {one.name for one in found if one.store is self.fast}

        dropped = doomed(())
        dropped |= {one.name for one in unread if one.name in doomed([as_ours[one.name]])}
        may_go = [one for one in on_fast if (one.is_ours or keep.foreign) and not one.problem]
        stays = [one.name for one in may_go if not failure_of(one, failed)][: keep.fast]
        going = {one.name for one in may_go if one.name not in stays and is_by_itself(one)}
        return [one for one in missing if one.name not in dropped - going]

    def _is_settled(self, one: Checkpoint) -> bool:
        """Ours are whole by nature; others have to stay as they are for a while."""
        if one.manifest is not None:
            return True
        identity, since_s = self._seen.get(one.name, ("", 0.0))
        now_s = self._clock()
        if identity != one.identity:
            self._seen[one.name] = (one.identity, now_s)
            since_s = now_s
        age_s = time.time() - one.mtime_ns / 1e9
        return age_s >= self.settings.settle_s or now_s - since_s >= self.settings.settle_s

    def _judge(self, one: Checkpoint) -> None:
        """Reads what another program has saved: the manifest of a copy would vouch for what a power
        cut has spoilt before.  Raises SaveError: it is damaged, or cut short; TierError."""
        if one.problem.startswith(UNREAD):
            raise _UnreadError(f"{one.where}: {one.problem}")
        if one.problem:
            raise SaveError(f"{one.problem}; not copied")
        if one.manifest is not None:
            return
        identity, why = self._judged.get(one.name, ("", ""))
        if identity != one.identity:
            told = _paced(self._held, self._pace)
            problems = verify(one, "sizes").problems or verify(one, "full", told).problems
            why = "; ".join(problems)
            if why.startswith("cannot be read"):
                raise _UnreadError(f"{one.where}: {why}")
            if "cannot be read" not in why:  # else it may be another time
                self._judged[one.name] = (one.identity, why)
        if why:
            raise SaveError(f"{why}; not copied: save it again, or remove it")

    def once(self) -> list[str]:
        """Drains all there is; returns what could not be drained, with the reason.  Raises Stopped,
        and TierError where a tier cannot be listed."""
        failed: dict[str, str] = {}
        for attempt in range(self.settings.tries):
            failed = self._round()
            is_settling = any(not self._is_settled(one) for one in self.backlog())
            if not set(failed) - set(self.status.damaged) and not is_settling:
                break
            if attempt + 1 < self.settings.tries:
                delay_s = min(MOST_DELAY_S, LEAST_DELAY_S * 2**attempt)
                self._rest(self.settings.settle_s if not failed else delay_s)
                self._again.clear()
        return [sentence(name, why) for name, why in failed.items()]

    def _round(self) -> dict[str, str]:
        """Each checkpoint that is due, once.  Returns failures by name."""
        failed, is_new = dict[str, str](), self._listed_s == -math.inf
        is_waiting = False
        try:
            self._removals.carry_out(is_new)
        except TierError as error:  # the look at what is owed tells what that means
            failed[""] = str(error)
        left = [] if self._still.lasts() else self.backlog()
        if isinstance(self.slow, LocalStore) and not self._is_swept:
            self._is_swept = True
            sweep(self.slow.folder, keep=[one.name for one in left])
        self._backlog(left)
        while left:
            one = left.pop(0)
            identity, not_before_s, delay_s, why = self._again.get(one.name, ("", 0.0, 0.0, ""))
            if identity != one.identity:  # also where there is another one of this name by now
                not_before_s, delay_s = -math.inf, LEAST_DELAY_S
            if self._clock() < not_before_s:
                failed[one.name] = why
                continue
            if not self._is_settled(one):
                is_waiting = True
                continue
            try:
                self._judge(one)
                self._drain(one)
                self._again.pop(one.name, None)
                self._say(error="")
            except (PenstockError, OSError) as error:
                failed[one.name] = why = str(error)
                again_s = self._clock() + delay_s
                self._again[one.name] = (
                    one.identity, again_s, min(MOST_DELAY_S, 2 * delay_s), why
                )  # fmt: skip
                self._say(error=sentence(one.name, why))
                is_lasting = isinstance(error, _UnreadError) and self._is_lasting(one)
                if isinstance(error, SaveError) or is_lasting:
                    self._damaged[one.name] = (one.identity, why)
                    self._say_damaged()
            except Unwanted:
                pass
            is_new = True
            self._prune()
            self._removals.carry_out()
            is_waiting = False
            due = self.backlog()
            self._backlog(due)
            left = [other for other in due if other.name not in {*failed, one.name}]
        if not is_waiting and set(failed) <= set(self._damaged):
            self._copy_hints()
        if self._clock() - self._pruned_s >= LIST_S:
            self._prune()
        if not self._is_ended:
            self._is_ended = True
            with suppress(TierError):  # the next start comes back to it
                self.end_halves()
        return failed | {name: why for name, (_, why) in self._damaged.items()}

    def end_halves(self) -> None:
        """Of copies from this fast tier that were killed before they had their manifest, and that
        nothing there will end any more: what came whole gets one, what did not goes.  Raises
        TierError, Stopped."""
        if not (marks := halves(self.slow)):
            return
        known = ("", *origins(self.fast))
        waiting = {one.called or one.name for one in self._owed()}
        found = {beside(one.name, HALF): one for one in find(self.slow) if not one.is_folder}
        for mark, names in marks.items():
            with suppress(TierError):  # of this one; the next start comes back to it
                called, origin = half_of(self.slow, mark)
                if origin not in known:
                    continue
                if self.slow.stat(_manifest_beside(mark)) is not None or (
                    called not in waiting and self._is_ended_half(mark, names, found.get(mark))
                ):
                    self.slow.delete(mark)

    def _is_ended_half(self, mark: str, names: Sequence[str], one: Checkpoint | None) -> bool:
        if one is not None and not one.problem:
            return self._is_adopted(one, half_of(self.slow, mark)[1])
        for name in names:  # some of several files
            if beside(name, HALF) != mark:
                self.slow.delete(name)
        return True

    def _is_adopted(self, one: Checkpoint, origin: str) -> bool:
        """Gives a copy its manifest, if its own format says that it is whole.  Of several files one
        may be of another version, which only checksums tell."""
        told = _paced(self._held, self._pace)
        verdict = verify(one, "full", told)
        if not verdict.is_whole or (len(one.files) > 1 and verdict.unprotected_bytes):
            return False
        sums = tuple(_sum_of(one, found, _paced(self._held, self._pace)) for found in one.files)
        # Another program's, and not to be taken for what the fast tier has: that was not compared.
        manifest = Manifest(
            sums, one.step, kind=one.kind, created_unix_ns=one.mtime_ns,
            verified_unix_ns=time.time_ns(), source=f"{OF_FILES}{one.identity}", origin=origin,
            called=one.called,
        )  # fmt: skip
        self.slow.put(one.manifest_name, to_json(manifest))
        return True

    def _held(self) -> None:
        """Also ends a copy that nobody wants any more."""
        super()._held()
        with self._lock:
            one, now_s = self._current, self._clock()
            if one is None or now_s - self._looked_s < LOOK_S:
                return
            self._looked_s = now_s
        self._look_at_slow()
        with suppress(TierError):
            self._removals.thin(one)
            if self._removals.is_over(one):
                raise Unwanted

    def _prune(self) -> None:
        self._pruned_s = self._clock()
        if self.settings.keep is not None:
            with suppress(TierError):  # told by the next round that needs the tier
                prune(self.fast, self.slow, self.settings.keep, self._proven)

    def _drain(self, one: Checkpoint) -> None:
        self._say(state="draining", current=one.name, done_bytes=0, total_bytes=one.size_bytes)
        trip = Trip(self._pace, self.settings.concurrency, self._held, self._through)
        with recorder.span("drain", -1 if one.step is None else one.step):
            self._current = one
            try:
                name, manifest = copy_checkpoint(one, self.slow, trip)
            finally:
                self._current = None
        self._look_at_slow()  # a small one is copied between two looks
        if name != one.name and not self._renamed:  # the first one tells it of all
            self._renamed = (
                f"{one.name} is {name} on {self.slow.url}: another run has the name there; "
                "`penstock save recover FAST SLOW` before the first save goes on with that run"
            )
            self._warn()
        self._proven.note(self.slow.where(name), manifest.identity)
        self._damaged.pop(one.name, None)
        self._unread.pop(one.name, None)
        self._say_damaged()
        self._say(
            drained=self.status.drained + 1,
            drained_bytes=self.status.drained_bytes + manifest.size_bytes,
            last=one.name,
        )

    def _warn(self) -> None:
        said = (self._held_back, self._renamed, self._left_alone)
        self._say(warning="; ".join(filter(None, said)))

    def _backlog(self, all_left: Sequence[Checkpoint]) -> None:
        left = [one for one in all_left if not self._wrong(one)]
        times = [one.mtime_ns for one in left if one.mtime_ns]  # 0: none of its files can be seen
        self._at_risk_since_s = min(times) / 1e9 if times else None
        self._say(
            backlog=tuple(one.name for one in left),
            backlog_bytes=sum(one.size_bytes for one in left),
            at_risk_s=max(0.0, time.time() - min(times) / 1e9) if times else 0.0,
        )

    def _copy_hints(self) -> None:
        """Pointers such as TensorFlow's `checkpoint`, when everything they can name is there."""
        for found in self._hints:
            if found in self._hinted or found.size_bytes > HINT_BYTES:
                continue
            try:
                self._copy_hint(found)
            except TierError as error:
                if not is_of_one_file(error):  # else the next look comes back to it
                    raise
        self._hinted &= set(self._hints)

    def _copy_hint(self, found: Found) -> None:
        data = self.fast.read(found.name)
        # One that has changed since the look may name what came after it, too.
        if self.fast.stat(found.name) != found or self._names_damaged(data):
            return
        self._look_at_slow()
        there = self.slow.stat(found.name)
        if there is None or self.slow.read(found.name) != data:
            is_pointer = found.name.rpartition("/")[2] in HINTS
            if is_pointer or self._is_ours_beside(found.name, there):
                self.slow.put(found.name, data)
            else:
                self._left_alone = (
                    f"{self.slow.url}: {found.name} is another program's, and stays as it is; "
                    f"with that of {self.fast.url} what was drained there could not be loaded: "
                    "give each model a SLOW of its own"
                )
                self._warn()
        self._hinted.add(found)

    def _is_ours_beside(self, name: str, there: Found | None) -> bool:
        """Whether what loads a model may be put under this name on the slow tier, which then knows
        from which fast tier it is: another model there has the like.  Raises TierError."""
        came_from: dict[str, str] = {}
        if self.slow.stat(BESIDE_MODEL) is not None:
            with suppress(ValueError, RecursionError, TypeError):
                came_from = dict(json.loads(self.slow.read(BESIDE_MODEL, 0, MOST_MARKS_BYTES)))
        if there is not None and came_from.get(name) not in origins(self.fast):
            return False
        origin = origin_of(self.fast)
        if came_from.get(name) != origin:
            self.slow.put(BESIDE_MODEL, [json.dumps(came_from | {name: origin}).encode()])
        return True

    def _names_damaged(self, hint: bytes) -> bool:
        """Whether a pointer's first line, where the newest stands, names what is not copied."""
        out = (*self._damaged, *self._unfinished)
        names = (re.escape(os.fsencode(name.rpartition("/")[2])) for name in out)
        line = hint.partition(b"\n")[0]
        return any(re.search(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % name, line) for name in names)


def _sum_of(one: Checkpoint, found: Found, told: Callable[[int, int], None]) -> FileSum:
    """told: of what was read, and of how much."""
    summing = Summing()
    for start in range(0, found.size_bytes, CHUNK_BYTES):
        summing.add(one.store.read(found.name, start, CHUNK_BYTES))
        told(min(start + CHUNK_BYTES, found.size_bytes), found.size_bytes)
    return summing.end(one.inner(found))


def _summed(failed: dict[str, str]) -> str:
    """One reason, and how many more there are: each is tried again by itself."""
    first = next((sentence(name, why) for name, why in failed.items()), "")
    return f"{first}; and {len(failed) - 1} more" if len(failed) > 1 else first


def sentence(name: str, why: str) -> str:
    """What could not be drained, named once: the reason may begin with it, or with its path."""
    where = why.partition(": ")[0]
    return why if not name or where == name or where.endswith(f"/{name}") else f"{name}: {why}"


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and not synced: it is of this minute."""
    draft = path.with_name(f"{path.name}.new")
    with suppress(OSError):
        draft.write_text(text)
        draft.replace(path)


def _apart(fast: LocalStore, slow: Store) -> None:
    """Raises SaveError where the tiers are one folder, or one lies in the other."""
    if not fast.folder.is_dir():
        raise TierError(f"{fast.url}: no such folder; the fast tier is where the training saves")
    if isinstance(slow, LocalStore):
        here, there = fast.folder.resolve(), slow.folder.resolve()
        if here == there or here in there.parents or there in here.parents:
            raise SaveError(f"{fast.url} and {slow.url}: one lies in the other; name two folders")


HELD_BACK = (
    "checkpoints of another program stay on the fast tier, more of them than --keep-fast says; "
    "--foreign lets them go once they are drained"
)


def same_device(fast: Path, slow: Path) -> str:
    """A sentence where a drain from one to the other protects from no disk's death, else empty.
    slow may not be there yet."""
    there = slow
    while not os.path.exists(there):  # noqa: PTH110 - Path.exists raises what is not to end a drain
        there = there.parent
    if fast.stat().st_dev != there.stat().st_dev:
        return ""
    return (
        f"{fast} and {slow} are on the same device: a save is copied there once more, and is no "
        "safer for it"
    )


def read_status(fast: str | os.PathLike[str]) -> Status | None:
    """What the drain of this tier said last; None: there was none."""
    path = Path(fast) / STATUS
    try:
        if path.stat().st_size > 1 << 22:
            return None
        rows = json.loads(path.read_bytes())
        if not isinstance(rows, dict):
            return None
        known = {one: rows[one] for one in Status.__dataclass_fields__ if one in rows}
        known |= {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
        return Status(**known)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def open_metrics(status: Status) -> str:
    """A status in OpenMetrics: for node_exporter's text files, or any scraper."""
    rows = (
        ("backlog_checkpoints", "gauge", "Checkpoints not on the slow tier", len(status.backlog)),
        ("backlog_bytes", "gauge", "Their bytes", status.backlog_bytes),
        ("at_risk_seconds", "gauge", "Age of the oldest of them", status.at_risk_s),
        ("rate_bytes_per_second", "gauge", "Of the last pieces", status.rate_bps),
        ("drained_checkpoints", "counter", "Since the drain began", status.drained),
        ("drained_bytes", "counter", "Since the drain began", status.drained_bytes),
        ("paused_seconds", "counter", "For the training's data", status.paused_s),
        ("damaged_checkpoints", "gauge", "Not what was saved", len(status.damaged)),
        ("failing", "gauge", "1: the last attempt failed", int(bool(status.error))),
    )
    lines = []
    for name, kind, text, value in rows:
        total = "_total" if kind == "counter" else ""
        lines += [
            f"# TYPE penstock_drain_{name} {kind}",
            f"# HELP penstock_drain_{name} {text}.",
            f"penstock_drain_{name}{total} {value:g}" if isinstance(value, float)
            else f"penstock_drain_{name}{total} {value}",
        ]  # fmt: skip
    return "\n".join([*lines, "# EOF", ""])


# --- from elsewhere -------------------------------------------------------------------------------


def fetch(checkpoint: Checkpoint, fast: str | os.PathLike[str]) -> Path:
    """Brings a checkpoint from the slow tier to the fast one, verified; where it then lies.

    Raises TierError; SaveError: it is damaged.
    """
    if checkpoint.manifest is None:  # else what is copied is compared with that
        problems = verify(checkpoint, "full").problems
        if problems:
            raise SaveError(f"{checkpoint.where}: {problems[0]}; not brought to the fast tier")
    store = LocalStore(fast)
    name, _ = copy_checkpoint(checkpoint, store, Trip(Pace(None), 4), is_fetched=True)
    return store.path(name)


def _forget_halves(fast: LocalStore) -> None:
    """Marks of fetches that did not end: what they had begun is swept.  One that has filled some of
    several files needs its mark, to be taken up; so does one under a name that it was given, which
    tells no step.  Raises TierError."""
    for mark, names in halves(fast).items():
        with suppress(TierError):  # of this one
            is_filled = any(".data-" in name for name in names)
            is_given = bool(names) and beside(half_of(fast, mark)[0], HALF) != mark
            if fast.stat(_manifest_beside(mark)) is not None or not (is_filled or is_given):
                fast.delete(mark)


def _manifest_beside(mark: str) -> str:
    return f"{mark.removesuffix(HALF)}{BESIDE}"


def recover(
    fast: str | os.PathLike[str],
    slow: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    level: str = "sample",
    patience_s: float = 0.0,
    told: Callable[[Status], None] = lambda status: None,
    drainer: Callable[[Drainer], None] = lambda drainer: None,
) -> tuple[Choice, list[str]]:
    """After a job, or before the next: sweeps what it left, drains the rest, and says from which
    checkpoint to begin, and what could not be drained.

    patience_s: as of Drainer; told: of its warnings, too.  drainer: is given the Drainer, to stop
    it.  Raises SaveError: a job saves there, or another drain is at work; TierError, Stopped.
    """
    with ExitStack() as stack:
        working = Drainer(fast, slow, settings, patience_s=patience_s, told=told)
        stack.enter_context(claim(fast, "job"))
        stack.enter_context(working)
        drainer(working)
        sweep(fast)
        with suppress(TierError):  # the next recover() comes back to it
            _forget_halves(working.fast)
        failed = working.once()
        if isinstance(working.slow, LocalStore):
            sweep(working.slow.folder, keep=[one.name for one in working.backlog()])
        with suppress(TierError):
            working.end_halves()
    choice = latest_valid(fast, slow, level, damaged=working.damaged())
    if choice.checkpoint is not None and choice.checkpoint.store.url != working.fast.url:
        with suppress(TierError):  # its copies get names of their own, as another run's
            go_on(working.fast, working.slow, choice.checkpoint)
    return choice, failed


@dataclass(slots=True)
class Drain:
    """A drain in a process of its own, beside the training; outlives it by at most grace_s.

    fast, slow: the tiers.  limit_bps: bytes a second.  run: a run's folder: the drain pauses while
    that run's data wait rises.  Its words go to STATE/drain.log on the fast tier.
    """

    fast: str | os.PathLike[str]
    slow: str | os.PathLike[str]
    limit_bps: float | None = None
    concurrency: int = 2
    keep: Keep | None = None
    run: str | os.PathLike[str] | None = None
    grace_s: float = GRACE_S
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def command(self) -> list[str]:
        """What start() runs."""
        words = [sys.executable, "-m", "penstock", "save", "drain", "--watch"]
        words += ["--follow", str(os.getpid()), "--grace", f"{self.grace_s:g}s"]
        words += ["--concurrency", str(self.concurrency)]
        if self.limit_bps:
            words += ["--limit", f"{int(self.limit_bps)}B/s"]
        if self.run is not None:
            words += ["--run", os.fspath(self.run)]
        if self.keep is not None:
            words += ["--keep-fast", str(self.keep.fast), "--every", str(self.keep.every)]
            words += ["--keep-last", str(self.keep.last)] if self.keep.last is not None else []
            words += ["--best", self.keep.best] if self.keep.best else []
            words += ["--best-n", str(self.keep.best_n)]
            words += ["--foreign"] if self.keep.foreign else []
        return [*words, "--", os.fspath(self.fast), os.fspath(self.slow)]

    def start(self) -> None:
        """Raises TierError: the fast tier is not there."""
        _apart(LocalStore(self.fast), open_store(self.slow))
        folder = Path(self.fast) / STATE
        try:
            folder.mkdir(exist_ok=True)
            with (folder / "drain.log").open("ab") as log:
                self._process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=with_package(),
                    start_new_session=True,  # Ctrl-C in the training's terminal is not for it
                )
        except OSError as error:
            raise TierError(f"{folder}: {error.strerror}; no drain was started") from error

    def status(self) -> Status | None:
        """What it said last; None before its first word."""
        return read_status(self.fast)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def how_ended(self) -> str:
        """For messages; empty while it is alive."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return "" if self._process is not None else "it was not started"
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"

    def stop(self, timeout_s: float = 30.0) -> int | None:
        """Ends it after the pieces under way; what is half copied is taken up next time.  Its exit
        status; None: it was not started, or had to be killed."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
