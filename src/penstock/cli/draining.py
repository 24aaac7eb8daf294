"""The common part of `penstock save drain` and `recover`: limits, signals, devices, messages."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.burst import UNFINISHED
from penstock.cli.shell import ProgressBar, duration

if TYPE_CHECKING:
    from penstock.save.drain.drainer import Drainer
    from penstock.save.drain.working import DrainStatus, Working
    from penstock.save.verify import RestartChoice

__all__ = [
    "NOT_WHOLE",
    "WAIT",
    "DrainAnswer",
    "drained",
    "end_drain",
    "fetch_choice",
    "has_come",
    "input_ended",
    "led_elsewhere",
    "limit_drain",
    "mend_places",
    "of_folder",
    "take_named",
    "tell_choice",
    "tell_device",
    "tell_failed",
    "told_drained",
    "told_lines",
    "unknown_files",
    "warned_once",
]

WAIT = click.option(
    "--wait-at-most",
    "wait_s",
    type=duration,
    metavar="TIME",
    help="Limit of the wait for the remaining copies; then exit status 75, the tier unchanged.",
)


NOT_WHOLE = 1
MOST_NAMES = 5  # on a line
INTERRUPTED = 130


def drained(
    working: Working, once: bool, over: Callable[[], bool], grace_s: float, wait_s: float | None
) -> Callable[[], int]:
    """Run a drain.  Return a function that prints the result and returns the exit status."""
    from penstock.save.burst.home import Burst

    is_told = not once
    if once and wait_s is not None:  # drain to the end, for at most wait_s
        once, over = False, lambda: True
    # The followed process has ended: nobody else would copy the rest, so the grace is long.
    do = working.once if once else functools.partial(working.watch, over, wait_s or grace_s)
    ended = DrainLimit(working, over, wait_s)
    failed = _unless_stopped(working, do, ended)
    if failed is None:
        return ended.tell_stopped
    return functools.partial(ended.tell_end, failed, isinstance(working, Burst), is_told)


def _unless_stopped(
    working: Working, do: Callable[[], list[str]], limit: DrainLimit
) -> list[str] | None:
    from penstock.save.copy.copying import DrainStopped

    with working, _stopped_by_signals(working), limit:
        try:
            return do()
        except DrainStopped:
            return None


def has_come(fast: Path, slow: str | None, once: bool, over: Callable[[], bool]) -> bool:
    """Wait for a missing folder.  Returns True if the folder appeared."""
    if once or slow is None or os.path.lexists(fast):
        raise click.BadParameter(f"Directory '{fast}' does not exist.", param_hint="'FAST'")
    click.echo(f"penstock: {fast}: not there yet; waiting for it", err=True)
    while not fast.is_dir():
        is_over = over()
        if is_over and not fast.is_dir():  # the folder may appear at the very end
            click.echo(f"penstock: {fast}: what was followed ended, and it never came", err=True)
            return False
        time.sleep(0.1)
    return True


class DrainLimit(contextlib.AbstractContextManager["DrainLimit"]):
    """Stop a drain wait_s after over(), by a thread; never, if wait_s is None."""

    def __init__(self, working: Working, over: Callable[[], bool], wait_s: float | None) -> None:
        self._working, self._over, self._wait_s = working, over, wait_s
        self._has_ended, self._is_late = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> DrainLimit:
        if self._wait_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._has_ended.set()
        if self._wait_s is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._over():
            if self._has_ended.wait(0.2):
                return
        if not self._has_ended.wait(self._wait_s):
            self._is_late = True
            self._working.stop()

    def tell_stopped(self) -> int:
        """Print the state of a stopped drain.  Returns the exit status."""
        click.echo("penstock: stopped; what is half copied is taken up next time", err=True)
        if not self._is_late:
            return INTERRUPTED
        status = self._working.status
        tell_failed([status.error] if status.error else [])
        click.echo(
            f"penstock: not all was drained within {self._wait_s:g} s: "
            f"{status.backlog_bytes / 1e6:,.1f} MB are on {self._working.fast.url} only",
            err=True,
        )
        return UNFINISHED

    def tell_end(self, failed: list[str], of_burst: bool, is_told: bool) -> int:
        """Print the result of a finished drain.  is_told: the warnings were printed.  Returns the
        exit status."""
        status = self._working.status
        told_drained(replace(status, warning="") if is_told else status, of_burst=of_burst)
        tell_failed(failed)
        if not failed:
            for line in _without_checkpoint(self._working.fast.url) if not status.drained else ():
                click.echo(f"penstock: {line}", err=True)
            return 0
        return UNFINISHED if self._wait_s is not None else NOT_WHOLE


def tell_failed(failed: list[str]) -> None:
    from penstock.views.paper import Paper

    for line in failed:
        click.echo(f"penstock: not drained: {Paper.clean(line)}", err=True)


class DrainAnswer:
    """Callback for a drain's status; also reports the meaning of durable on the slow tier.

    For a server the report comes only after the first answer.
    """

    def __init__(self, fast: Path, slow: str, listener: Callable[[DrainStatus], None]) -> None:
        self._fast, self._slow, self._told = fast, slow, listener
        self._working: Drainer | None = None

    def wait_for(self, working: Drainer) -> None:
        """Report now, or after the first answer to the drain."""
        self._working = working
        if working.slow.is_local:
            self._tell()

    def _tell(self) -> None:
        assert self._working is not None
        durable = self._working.slow.durable
        click.echo(f"penstock: durable on {self._slow}: {durable}", err=True)
        tell_device(self._fast, self._slow)
        self._working = None

    def __call__(self, status: DrainStatus) -> None:
        if self._working is not None and self._working.has_answered:
            self._tell()
        self._told(status)


def tell_device(fast: Path, slow: str) -> None:
    from penstock.save.drain.drainer import same_device

    said = same_device(fast, Path(slow)) if "://" not in slow else ""
    if said:
        click.echo(f"penstock: {said}", err=True)


def warned_once() -> Callable[[ProgressBar, DrainStatus], None]:
    """Return a callback that prints a warning, and the reason to wait, once each.

    The callback prints at once: with --watch a drain may never end.
    """
    said = {""}

    def tell(progress: ProgressBar, status: DrainStatus) -> None:
        if status.warning not in said:
            said.add(status.warning)
            click.echo(f"penstock: {status.warning}", err=True)
        if status.error and status.reason not in said:  # the slow tier is full, or missing
            said.add(status.reason)
            click.echo(f"penstock: {status.error}", err=True)
        told_lines(progress, status)

    return tell


def input_ended() -> bool:
    """Return True if the parent process has closed the pipe, or has ended."""
    import select

    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 1)


def told_drained(status: DrainStatus, is_aside: bool = False, of_burst: bool = True) -> None:
    if status.warning:
        click.echo(f"penstock: {status.warning}", err=True)
    for name in status.damaged if of_burst else ():  # a drain reports the fault of each
        click.echo(f"penstock: {name}: not whole; what it was before is there again", err=True)
    kept = f", {status.skipped_bytes / 1e6:,.1f} MB were there" if status.skipped_bytes else ""
    click.echo(
        f"{status.drained} drained, {status.drained_bytes / 1e6:,.1f} MB{kept}", err=is_aside
    )


def end_drain(pid: int | None) -> Callable[[], bool]:
    """Return a function that reports whether a process has ended.

    The process is identified by a descriptor, as pids are reused.
    """
    if pid is None:
        return lambda: False
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda: True
    return lambda: bool(select.select([descriptor], [], [], 0)[0])


@contextlib.contextmanager
def _stopped_by_signals(working: Working) -> Iterator[None]:
    """Let Ctrl-C, and a batch system's signals, end a drain between two pieces.

    A second Ctrl-C ends the drain at once, without loss.
    """

    def stop(number: int, frame: object) -> None:
        if working.stopping.is_set():
            raise KeyboardInterrupt
        working.stop()

    before = {
        number: signal.signal(number, stop)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fetch_choice(choice: RestartChoice, fast: Path, slow: str) -> tuple[RestartChoice, str]:
    """Return the choice and its path on the fast tier.

    If the choice turns out damaged: an earlier checkpoint and the path, or "".
    """
    from penstock.errors import SaveError, TierError
    from penstock.save.drain.fetching import fetch_save, save_of
    from penstock.save.verify import latest_valid, verify
    from penstock.views.paper import Paper

    damaged: dict[tuple[str, str], str] = {}
    while (checkpoint := choice.checkpoint) is not None:
        if choice.path is not None and fast.resolve() in choice.path.resolve().parents:
            return choice, choice.where
        try:
            fetched = fetch_save(checkpoint, fast)
            others = f", with {_first_of(fetched.beside)}" if fetched.beside else ""
            said = (f"copied to {fetched.path}{others}", *fetched.left)
            for line in said:
                click.echo(f"penstock: {Paper.clean(line)}", err=True)
            return choice, os.fspath(fetched.path)
        except SaveError as error:
            for part in save_of(checkpoint):
                damaged[part.where, part.identity] = str(error)
        except (TierError, OSError) as error:
            problems = verify(checkpoint, "full").problems
            if not problems:  # the choice was on the fast tier
                raise
            damaged[checkpoint.where, checkpoint.identity] = f"{problems[0]} ({error})"
        choice = latest_valid(fast, slow, "full", damaged=damaged)
        tell_choice(choice)
    return choice, ""


def of_folder(choice: RestartChoice, where: str) -> str:
    """Return the path for the training: the folder, if a checkpoint is a folder called by a date,
    with a mark of the end inside, as DreamerV3 writes (`20251128T120000F77/done`)."""
    from penstock.save.unit.companions import is_marker
    from penstock.save.unit.names import parts_of

    checkpoint = choice.checkpoint
    if (
        checkpoint is None
        or checkpoint.is_folder
        or not any(map(is_marker, checkpoint.inner_names))
    ):
        return where
    folder, _, _ = where.rpartition("/")
    is_dated = bool(parts_of(folder.rpartition("/")[2]).stamps) and "/" in checkpoint.name
    return folder if is_dated else where


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def take_named(name: str, fast: Path, slow: str) -> int:
    """Copy a checkpoint of the slow tier by name and print the path.  Return the exit status."""
    from penstock.save.drain.recover import take

    where = take(name.rstrip("/"), fast, slow)
    click.echo(f"penstock: {name}: unchecked if its copy did not end", err=True)
    click.echo(os.fspath(where))
    return 0


def limit_drain(
    stack: contextlib.ExitStack, wait_s: float | None
) -> tuple[Callable[[Working], None], list[DrainLimit]]:
    """Return a callback that lets signals and the time limit end a drain, and a list; the callback
    appends the passed limit to the list."""
    limits: list[DrainLimit] = []

    def limited(working: Working) -> None:
        stack.enter_context(_stopped_by_signals(working))
        limits.append(stack.enter_context(DrainLimit(working, lambda: True, wait_s)))

    return limited, limits


def mend_places(slow: str, fast: Path) -> bool:
    """Mend the links to a lost fast tier.  Return False if no link had the tier as target."""
    from penstock.save.burst.mend import mend

    if "://" in slow:
        raise click.UsageError("SLOW is the folder that the program wrote to")
    mended = mend(slow, fast)
    for place in mended:
        if place.newer is not None:
            now = "what was there before is back, and" if place.is_back else "it is now"
            what = "the newer file is" if place.is_back else ""
            why = f"is of a save of which a part is missing; {now} {what} {place.newer.name}"
            why = why.replace("  ", " ")
        else:
            now = "what was there before is back" if place.is_back else "the link is removed"
            why = f"was on the fast tier only, and is lost; {now}"
        click.echo(f"penstock: {place.place}: {why}", err=True)
    return bool(mended)


def led_elsewhere(slow: str, fast: Path) -> list[str]:
    """Return the links below SLOW another job's burst buffer has left."""
    from penstock.save.burst.mend import led_elsewhere

    return [] if "://" in slow else led_elsewhere([slow], fast)


def _without_checkpoint(fast: str) -> list[str]:
    """Return a sentence if FAST has files and no checkpoint: a drain copies each by itself."""
    alone = unknown_files(fast, is_alone=True)
    return [
        f"{line}: each file is copied by itself, and no rule and no restart counts it "
        "(--unit 'NAME-{step}.EXT' names the files of a checkpoint)"
        for line in alone
    ]


def unknown_files(slow: str, is_alone: bool = False) -> list[str]:
    """Return a sentence about the files of a tier outside checkpoints; empty: none.  is_alone: only
    if the tier has no checkpoint."""
    from penstock.errors import TierError
    from penstock.places.stores import StoredFile, open_store
    from penstock.save.find.formats import find

    rest = list[StoredFile]()
    with contextlib.suppress(TierError, OSError):  # the choice has reported the reason
        if find(open_store(slow), rest=rest) and is_alone:
            return []
    if not rest:
        return []
    newest = max(rest, key=lambda file: file.mtime_ns or 0)
    files = "1 file" if len(rest) == 1 else f"{len(rest):,} files, the newest"
    return [f"{slow} has {files} {newest.name}, of no checkpoint that Penstock knows"]


def tell_choice(choice: RestartChoice, elsewhere: Sequence[str] = ()) -> None:
    """Print the choice.  elsewhere: sentences on further files with a possible state."""
    from penstock.save.verify import BY_NAME, UNCHECKED
    from penstock.views.paper import Paper

    for where, why in choice.rejected:
        click.echo(f"penstock: {Paper.clean(f'passed over {where}: {why}')}", err=True)
    for said in (*elsewhere, *filter(None, [choice.other_run])):
        click.echo(f"penstock: {Paper.clean(said)}", err=True)
    if choice.state in (BY_NAME, UNCHECKED):
        doubt = choice.checkpoint.doubt if choice.checkpoint is not None else ""
        said = f"{choice.where}: {choice.state}: {doubt or 'not all of it could be checked'}"
        click.echo(f"penstock: {Paper.clean(said)}", err=True)
    if choice.checkpoint is None:
        now = "" if elsewhere else ": begin anew"
        click.echo(f"penstock: no whole checkpoint on any tier{now}", err=True)
    else:
        step = "" if choice.step is None else f" (step {choice.step})"
        click.echo(f"penstock: begin from {Paper.clean(choice.where)}{step}", err=True)


def told_lines(progress: ProgressBar, status: DrainStatus) -> None:
    paused = " (paused for the training)" if status.state == "paused" else ""
    what = f"{status.current or status.state}{paused}"
    progress.advance(status.done_bytes, max(1, status.total_bytes), what)
