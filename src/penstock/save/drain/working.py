"""Pace, pauses and status of a running drain, for any kind of work.

The module knows tiers and status files; the work itself is defined by subclasses.
"""

import errno
import gc
import json
import math
import os
import platform
import statistics
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from penstock.errors import PenstockError, TierError
from penstock.places.stores import LocalStore
from penstock.recording import recorder
from penstock.save.commit import STATE, claim
from penstock.save.copy.copying import DrainPace, DrainStopped
from penstock.save.drain.retention import Keep
from penstock.save.unit.rules import NameRule
from penstock.save.unit.spans import Saves

__all__ = [
    "GRACE_S",
    "LEAST_DELAY_S",
    "LOOK_S",
    "LOOK_SHARE",
    "MOST_BLIND_S",
    "MOST_DELAY_S",
    "PATIENCE_S",
    "DrainSettings",
    "DrainStatus",
    "Working",
    "Yielding",
    "be_quiet",
    "no_collection",
    "open_metrics",
    "read_status",
    "sentence",
]

STATUS = f"{STATE}/drain.json"
METRICS = f"{STATE}/drain.prom"
LEAST_DELAY_S, MOST_DELAY_S = 1.0, 60.0  # between attempts: doubled, capped
GRACE_S = 600.0  # for a drain after the end of the training
PATIENCE_S = GRACE_S + 60.0  # for a drain still at work after a kill of the training
MOST_INDENTED = 1000  # names in the status: a person may want to read a list of this length
LOOK_S = 1.0  # cluster file systems send no events for new files: the folder is polled
# A search of 200,000 files takes 1.4 s of CPU.  While the times of the folders show no change,
# searches take at most this share of the time, with at least one search every MOST_BLIND_S.
LOOK_SHARE, MOST_BLIND_S = 0.05, 60.0


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """Options of a drain.

    limit_bps: bytes per second, read-back included; None: no limit.  concurrency: pieces copied at
    once.  settle_s: how long a checkpoint without manifest must be unchanged.  tries: attempts per
    checkpoint, when draining once.  keep: rules to prune both tiers; None removes nothing.  rules:
    which files form a checkpoint; both tiers store the rules.  saves: returns the files that each
    save of a recorded run wrote.  is_shared: False: a slow folder to which another job drains is
    refused.
    """

    limit_bps: float | None = None
    concurrency: int = 2
    settle_s: float = 2.0
    tries: int = 5
    keep: Keep | None = None
    rules: tuple[NameRule, ...] = ()
    saves: Callable[[], Saves] | None = None
    is_shared: bool = True


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """Status of a drain.  The file STATE/drain.json on the fast tier has the status as JSON.

    backlog: names not known to be on the slow tier, next first.  at_risk_s: age in seconds of the
    oldest checkpoint of the backlog: the work that a failure of the fast tier would lose now.
    damaged: checkpoints that cannot be copied, because of changed bytes or failed reads; damage:
    the reason for each.  looked_unix_ns: the start of the last full search of the fast tier; later
    checkpoints may be unknown.
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
    reason: str = ""  # reason of the error: the slow tier is "full" or "absent"; else empty
    damaged: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    warning: str = ""


class Yielding:
    """Detect that the training waits longer for data while the drain copies.

    share: returns the data wait's share of the last second; None: unknown.  The usual share is
    learnt while the drain is not copying.  If the wait continues while the drain pauses, the drain
    is not the cause: from then on the new share counts as usual.
    """

    RISE = 0.05  # of wall time, or half of the usual share if larger: a smaller rise is scatter
    MOST_PAUSE_S = 30.0
    LEARNT = 30  # seconds without copying that define the usual share

    def __init__(
        self, share: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share, self._clock = share, clock
        self._quiet: deque[float] = deque(maxlen=self.LEARNT)
        self._looked_s, self._is_rising = -math.inf, False
        self._since_s: float | None = None

    def quiet(self) -> None:
        """Learn the usual share.  Called while the drain is not copying."""
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
        if value is None:  # the training may have ended while waiting
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
    """Set the lowest CPU and disk priority: the drain uses only CPU time and disk time that are
    free."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 10)
    import ctypes

    number = {"x86_64": 251, "aarch64": 30}.get(platform.machine())  # ioprio_set
    if number is not None:
        best_effort, least = 2, 7
        ctypes.CDLL(None).syscall(number, 1, 0, best_effort << 13 | least)


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch Python's search for cyclic garbage off within the block.  A look makes hundreds of
    thousands of values without a cycle, and each garbage search visits all values."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Working:
    """A running drain: pace, status and pauses.  Subclasses define and do the work."""

    def __init__(
        self,
        fast: str | os.PathLike[str],
        settings: DrainSettings | None,
        share: Callable[[], float | None] | None,
        listener: Callable[[DrainStatus], None],
        clock: Callable[[], float],
    ) -> None:
        self.fast = LocalStore(fast)
        self.settings = settings or DrainSettings()
        self.stopping = threading.Event()
        self.status = DrainStatus(pid=os.getpid())
        self._told, self._clock = listener, clock
        self._pace = DrainPace(self.settings.limit_bps, clock, self.stopping.wait)
        self._yielding = Yielding(share, clock) if share else None
        self._lock, self._published_s = threading.Lock(), -math.inf
        self._rate: deque[tuple[float, int]] = deque(maxlen=64)
        self.is_over = False  # the followed process has ended: this is the last round
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
        """Stop the drain, from a signal handler or another thread: the copy ends after the pieces
        in flight."""
        self.stopping.set()

    @abstractmethod
    def backlog(self) -> Sequence[Any]:
        """Return the work that is left.  Raises TierError."""

    def _owed(self) -> Sequence[Any]:
        """Return the work that must be done before the drain may end.  Raises TierError."""
        return self.backlog()

    def _is_idle(self, failed: dict[str, str]) -> bool:
        """Return True if another attempt cannot do more."""
        return not failed

    def left(self) -> dict[str, str]:
        """Return names that the drain leaves in place without a failure, with the reason."""
        return {}

    @abstractmethod
    def once(self) -> list[str]:
        """Do all work; return the failures, each with the reason.  Raises Stopped, and TierError
        where a tier cannot be listed."""

    @abstractmethod
    def _round(self) -> dict[str, str]:
        """Do all work that is due, once.  Returns failures by name."""

    def watch(self, is_over: Callable[[], bool], grace_s: float = math.inf) -> list[str]:
        """Drain until is_over() and no work is left, or until grace_s after is_over().  Returns the
        failures.  Raises Stopped."""
        over_s = math.inf
        failed: dict[str, str] = {}
        while True:
            if over_s == math.inf and is_over():
                over_s, self.is_over = self._clock(), True
            try:
                failed = self._round()
                left = over_s < math.inf and bool(self._owed())
                state = "idle" if self._is_idle(failed) else "waiting"
            except TierError as error:  # a tier may be gone for an hour
                failed, left, state = {"": str(error)}, True, "waiting"
            self._say(state=state, current="", error=_summed(failed))
            self._publish()
            now_s = self._clock()
            if over_s < math.inf and (not left or now_s - over_s >= grace_s):
                return [sentence(name, why) for name, why in (failed | self.left()).items()]
            self._rest(LOOK_S)

    def _rest(self, seconds: float) -> None:
        if self._yielding:
            self._yielding.quiet()
        if self.stopping.wait(seconds):
            raise DrainStopped

    def _held(self) -> None:
        """Check before each piece: raise Stopped on an order to end, wait while the training
        starves."""
        while True:
            if self.stopping.is_set():
                raise DrainStopped
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
        """Write the status file, once per second; an unwritable tier keeps the old file."""
        with self._lock:
            if not is_last and self._clock() - self._published_s < LOOK_S:
                return
            self._published_s = self._clock()
            if (
                since_s := self._at_risk_since_s
            ) is not None:  # the age grows while no other event occurs
                self.status = replace(self.status, at_risk_s=max(0.0, time.time() - since_s))
            status = self.status = replace(self.status, updated_unix_ns=time.time_ns())
        with suppress(TierError):
            # Not asdict(): asdict() would copy each of tens of thousands of names.
            facts = {name: getattr(status, name) for name in DrainStatus.__dataclass_fields__}
            # With an indent json uses the Python encoder: seconds for tens of thousands of names.
            indent = 1 if len(status.backlog) < MOST_INDENTED else None
            _write(self.fast.path(STATUS), json.dumps(facts, indent=indent))
            _write(self.fast.path(METRICS), open_metrics(status))
        self._told(status)


def _summed(failed: dict[str, str]) -> str:
    """Return the first reason, and the number of other failures: each failure is retried
    separately."""
    first = next((sentence(name, why) for name, why in failed.items()), "")
    return f"{first}; and {len(failed) - 1} more" if len(failed) > 1 else first


def sentence(name: str, why: str) -> str:
    """Return a sentence with the name and the reason.  The name stands once, even if the reason
    starts with the name or the path."""
    where = why.partition(": ")[0]
    return why if not name or where == name or where.endswith(f"/{name}") else f"{name}: {why}"


def _write(path: Path, text: str) -> None:
    """Write a file atomically, without fsync: the status soon changes.

    On a full tier the function overwrites the blocks of the old file, if the text fits: a reader
    may meet an incomplete text.
    """
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return
        data = text.encode()
        with suppress(OSError), path.open("r+b", buffering=0) as file:
            if len(data) <= os.fstat(file.fileno()).st_blocks * 512:
                file.write(data)
                file.truncate()


def read_status(fast: str | os.PathLike[str]) -> DrainStatus | None:
    """Return the last status of a fast tier's drain; None: there was no drain."""
    path = Path(fast) / STATUS
    try:
        if path.stat().st_size > 1 << 22:
            return None
        rows = json.loads(path.read_bytes())
        if not isinstance(rows, dict):
            return None
        values = {
            dataclass_field: rows[dataclass_field]
            for dataclass_field in DrainStatus.__dataclass_fields__
            if dataclass_field in rows
        }
        values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return DrainStatus(**values)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def open_metrics(status: DrainStatus) -> str:
    """Format a status as OpenMetrics, for node_exporter's text files or any scraper."""
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
