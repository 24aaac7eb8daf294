"""State shared by the threads of a copying: rate, counts, tasks, the end.

Knows threads and the manifest's lines; reads and writes no file's bytes.
"""

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import TierError
from penstock.stage.manifest import StagedCopy, TakenRoom, TierPlace
from penstock.stage.source import SourceFile, count

if TYPE_CHECKING:
    from penstock.stage.part import Large

__all__ = ["FULL", "NO_ROOM", "CopyPace", "CopyStopped", "Progress", "Work", "run_all"]

Progress = Callable[[int, int], None]

HEARD_S = 0.1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ROOM = "no room on the tier"
MOST_NAMED = 8
MOST_FULL = 8  # files: where so many had no room, others are not tried


class CopyPace:
    """A common rate limit of all threads, in bytes per second; None: no limit."""

    def __init__(
        self,
        limit_bps: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limit_bps = limit_bps
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_s = clock()  # when the next byte may pass

    def wait(self, n_bytes: int) -> None:
        """Wait until n_bytes may pass."""
        if not self.limit_bps:
            return
        with self._lock:
            now_s = self._clock()
            # Unused rate is saved for a tenth of a second, no longer.
            self._free_s = max(self._free_s, now_s - 0.1) + n_bytes / self.limit_bps
            wait_s = self._free_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


class CopyStopped(Exception):  # noqa: N818 - no error: another thread has one, or the user
    """The copying ends early."""


@dataclass(slots=True)
class _Line:
    """A line of the manifest, and the outcome of the write."""

    entry: StagedCopy
    is_told: bool = False
    error: BaseException | None = None


@dataclass(slots=True)
class Work:
    """The shared state of a copying's threads."""

    place: TierPlace
    pace: CopyPace
    total_bytes: int
    progress: Progress | None
    now: Callable[[StagedCopy], None] | None = None
    is_ordered: bool = False  # as given, not the large first
    goes_on: bool = False  # with the others where there is no room for a file
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    errors: list[BaseException] = field(default_factory=list)
    done_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    elsewhere: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    large: list["Large"] = field(default_factory=list)
    in_the_way: set[str] = field(default_factory=set)
    taken: TakenRoom | None = None  # of a tier with a capacity
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _untold: list["_Line"] = field(default_factory=list)

    def moved(self, n_bytes: int) -> None:
        with self.lock:
            self.done_bytes += n_bytes

    def skip(self, why: str, source: SourceFile) -> None:
        with self.lock:
            count(self.skipped, why)
            self.done_bytes += source.identity.size_bytes

    def skip_for(self, what: object, source: SourceFile) -> None:
        """Skip a source because of a foreign file in the way; name the first such files."""
        why = f"{what} is not ours, and in the way"
        with self.lock:
            self.in_the_way.add(why)
            is_named = why in self.skipped or len(self.in_the_way) <= MOST_NAMED
        self.skip(why if is_named else "other things that are not ours are in the way", source)

    def is_left_out(self, error: OSError) -> bool:
        """Return True if the error skips only the error's file; after many skipped files the
        copying ends."""
        if not self.goes_on or error.errno not in FULL:
            return False
        with self.lock:
            count(self.skipped, NO_ROOM)
            self.is_over |= self.skipped[NO_ROOM] >= MOST_FULL
        return True

    def tell(self, entry: StagedCopy) -> None:
        """Append a copy's line to the manifest, before the copy appears, so every copy has a line.

        Lines of several threads are written together by the first thread.  Raises OSError.
        """
        line = _Line(entry)
        with self.lock:
            self._untold.append(line)
        with self._telling:
            if not line.is_told:
                with self.lock:
                    lines, self._untold = self._untold, []
                self._append(lines)
        if line.error is not None:
            raise line.error

    def _append(self, lines: list["_Line"]) -> None:
        error: BaseException | None = None
        try:
            with self.place.locked():
                self._append_locked(lines)
        except TierError as refused:
            error = refused.__cause__ if isinstance(refused.__cause__, OSError) else refused
        except BaseException as whatever:  # no line was written: nobody may go on
            error = whatever
        for line in lines:
            line.is_told, line.error = True, error or line.error

    def _append_locked(self, lines: list["_Line"]) -> None:
        """Append lines; a line fails if another staging has taken the room."""
        gone = []
        if self.taken is not None:
            self.taken.look()
            for line in lines:
                if not self.taken.has_room(line.entry):
                    gone.append(line.entry.copy)  # the earlier copy was removed for the new copy
                    line.error = OSError(errno.EDQUOT, "its capacity is used up")
        self.place.append_locked([line.entry for line in lines if line.error is None], gone)

    def finished(self, entry: StagedCopy) -> None:
        """Count a copy in place."""
        with self.lock:
            self.copied += 1
            self.copied_bytes += entry.identity.size_bytes
            self.fresh.add(entry.copy)
        if self.now is not None:
            self.now(entry)


def run_all(work: Work, take: Callable[[int], Callable[[], None] | None], n_threads: int) -> None:
    """Do all tasks; raise the first error of a thread once all threads have ended.

    take: returns the next task for a thread by number, or None; a single thread at a time calls
    `take`.
    """
    taking = threading.Lock()

    def labour(number: int) -> None:
        try:
            while not work.is_over:
                try:
                    with taking:
                        task = take(number)
                    if task is None:
                        return
                    task()
                except OSError as error:
                    if not work.is_left_out(error):
                        raise
        except CopyStopped:
            pass
        except BaseException as error:
            work.is_over = True
            work.errors.append(error)

    threads = [
        threading.Thread(target=labour, args=(number,), daemon=True) for number in range(n_threads)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(HEARD_S)  # in pieces, so Ctrl-C is handled in between
                if work.progress is not None:
                    work.progress(min(work.done_bytes, work.total_bytes), work.total_bytes)
    finally:
        work.is_over = True
        for thread in threads:
            thread.join()
        for large in work.large:
            large.part.close()
    if work.errors:
        raise work.errors[0]
