"""Manage a recording from the run's folder to the last write of run.json.

Knows how to load the recorder into a program, and the files of a run folder.  Knows no report, no
remedy and no command line: messages for the user go to `say`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import RunError

if TYPE_CHECKING:
    from penstock.recording.beside import PageFaultWatch
    from penstock.recording.container import Container
    from penstock.recording.launch import RankOfJob

__all__ = ["Session", "begin", "facts_of", "write_end"]

Say = Callable[[str], None]


@dataclass(slots=True)
class Session:
    """A run under `penstock run`.

    folder: the run folder; None: the program runs unrecorded.  environ: the program's environment.
    facts: the content of run.json.  job: the rank in a job of several ranks.
    """

    folder: Path | None
    environ: dict[str, str]
    facts: dict[str, Any]
    job: RankOfJob | None
    say: Say

    def enter(self, box: Container, command: Sequence[str], budget: int) -> Sequence[str]:
        """Return the words that start the command inside a container, with the recorder.

        If the recorder cannot be loaded there, the words start the command unrecorded.
        """
        from penstock.recording import launch

        self.facts["container"] = list(box.words)
        self.environ = dict(os.environ)
        if self.folder is not None:
            try:
                settings = launch.settings(self.folder, budget)
                return box.command(command, self.folder, launch.library(), settings)
            except RunError as error:
                self.say(f"{error}; the program runs unrecorded")
                self.give_up()
                self.folder = None
        return [*box.words, *command]

    def run(
        self,
        started: Sequence[str],
        draining: contextlib.AbstractContextManager[Any],
        box: Container | None = None,
        data: Sequence[Path] = (),
        ahead_bytes: int = 0,
    ) -> int:
        """Run the program; observe the host and page faults beside the program.

        Return the exit status.  draining: a context, entered while the program runs.  data: files
        whose share in memory is measured; without data, the files opened by the program.
        ahead_bytes: the limit of reading ahead; 0: no reading ahead.  Raises StartError.
        """
        from penstock.recording import launch
        from penstock.recording.ahead import READING, ReadAhead
        from penstock.recording.beside import Host, PageFaultWatch

        if self.folder is None:
            return launch.run(started, self.environ)
        apart = f"{box.program} starts no child of ours" if box and box.is_apart else ""
        offset = self._offset(self.folder)
        is_first = self.job is None or self.job.is_first_here
        seen = {"before": _resident(data, self.folder)} if data and is_first else {}
        host = Host(self.folder, bool(apart), is_first)
        ahead = ReadAhead(ahead_bytes, self.folder, apart)
        with draining, offset, host, PageFaultWatch(self.folder, apart) as faults, ahead:
            status = launch.run(started, {**self.environ, **ahead.environ})
        if ahead_bytes:
            self.facts["ahead"] = ahead.facts
            if ahead.state != READING:
                self.say(f"nothing was read ahead: {ahead.state}")
        if is_first:
            self.facts["residency"] = seen | {"after": _resident(data, self.folder)}
        self.facts |= getattr(offset, "facts", {})
        if box is not None:
            self._note_inside(self.folder, faults)
        if faults.state != "measured":
            self.facts["page_faults"] = faults.state
        return status

    def give_up(self) -> None:
        """Remove the folder of a program that did not start or is not recorded."""
        from penstock.recording import launch

        if self.folder is not None:
            launch.give_up(self.folder, self.job)

    def _note_inside(self, folder: Path, faults: PageFaultWatch) -> None:
        """Add the targets of the container's mounts to run.json.

        Page faults count only if the container has the host's process numbers.
        """
        from penstock.recording import container

        inside = container.read_inside(folder)
        if inside is None:
            because = "it ended before, or changes what it is given"
            self.say(f"the container started nothing of ours: {because}")
            return
        self.facts["mounts"] = container.host_mounts(inside, container.own_mounts())
        if not inside.has_our_processes:
            faults.drop("the container has process numbers of its own")

    def _offset(self, folder: Path) -> Any:
        """Return a context that measures the clock offset between a job's hosts."""
        from penstock.recording import launch
        from penstock.recording.offset import Offset

        job = self.job
        if job is None or not (launch.has_claimed(folder, job) or job.is_first_here):
            return contextlib.nullcontext()
        return Offset(folder, launch.has_claimed(folder, job))


def begin(
    command: Sequence[str],
    output: Path | None,
    budget: int,
    *,
    version: str,
    say: Say,
    is_paused: bool = False,
    copies: Path | None = None,
    burst: tuple[Path, tuple[str, ...]] | None = None,
    job: RankOfJob | None = None,
    is_for_group: bool = False,
) -> Session:
    """Make the run's folder, the program's environment and run.json.

    copies: the map of a tier's staged copies.  burst: a fast tier, and patterns of names for the
    tier.  If the folder cannot be made, the program runs unrecorded, and `say` gets the reason.
    """
    from penstock.recording import launch

    folder = None
    streams = launch.streams()
    facts = {**facts_of(command, version), "launcher_pid": os.getpid(), "streams": streams}
    try:
        folder = launch.make_folder(
            command, output, is_paused=is_paused, job=job, is_for_group=is_for_group
        )
        environ = launch.environment(folder, budget, os.environ, copies, burst)
        launch.write_facts(folder, facts, job)
    except RunError as error:
        say(f"{error}; the program runs unrecorded")
        if folder is not None:
            launch.give_up(folder, job)
        return Session(None, dict(os.environ), facts, job, say)
    return Session(folder, environ, facts, job, say)


def facts_of(command: Sequence[str], version: str) -> dict[str, Any]:
    """Return the content of run.json for a run that begins now."""
    from penstock.recording import launch, machine

    return {
        "command": launch.without_secrets(command),
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "penstock": version,
        "start_unix_ns": time.time_ns(),
        "machine": machine.facts(may_start=True),
    }


def write_end(
    folder: Path,
    facts: dict[str, Any],
    status: int | None,
    say: Say,
    job: RankOfJob | None = None,
) -> None:
    """Write run.json of an ended run.  Raises RunError: the run's folder is missing."""
    from penstock.log import seals
    from penstock.recording import container, launch
    from penstock.recording.kernel_clock import monotonic_ns

    ended: dict[str, Any] = {"end_unix_ns": time.time_ns(), "end_monotonic_ns": monotonic_ns()}
    inside = container.read_inside(folder)
    if inside is not None:
        ended |= {"container_sum": container.sum_of(folder)}
    if inside is None or inside.has_our_processes:
        seals.seal_ended(folder)
    try:
        launch.write_facts(folder, {**facts, **ended, "status": status}, job)
    except RunError as error:
        if not folder.is_dir():
            raise
        # if the recorder failed, the full disk is reported already
        if not launch.has_failed(folder):
            say(str(error))


def _resident(data: Sequence[Path], folder: Path) -> list[int | str]:
    """Return the entry of run.json on memory residency.

    The entry holds files, their bytes, bytes in memory, whether all files were counted, and whether
    the files were named or opened.
    """
    from penstock.places.residency import opened, resident

    residency = resident(data or opened(folder))
    more = "more" if residency.left_out else "all"
    how = "named" if data else "opened"
    return [residency.files, residency.size_bytes, residency.resident_bytes, more, how]
