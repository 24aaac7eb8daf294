"""Starts a program with the recorder in it, and stands in for it: signals in, exit status out.

Knows processes and environment variables; knows no log, no report and no screen.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import container, control
from penstock.errors import RunError, StartError

__all__ = [
    "environment",
    "give_up",
    "has_failed",
    "library",
    "make_folder",
    "run",
    "settings",
    "streams",
    "write_facts",
]

# What a shell or a batch system sends to a job.  SIGKILL and SIGSTOP cannot be passed on.
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
SENT_BY_KERNEL = 0x80  # si_code of a signal from the terminal: the whole group has it already
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as a shell says them
FACTS = "run.json"
RUNS = "penstock-runs"


def library() -> Path:
    """The native recorder beside this file.  Raises RunError if the loader could not preload it."""
    path = Path(os.environ.get("PENSTOCK_LIBRARY") or Path(__file__).with_name("librec.so"))
    path = path.absolute()
    if not path.is_file():
        raise RunError(f"{path}: not there; build it with `make native` or reinstall penstock")
    if re.search(r"[\s:]", str(path)):
        raise RunError(
            f"{path}: LD_PRELOAD cannot hold a path with a space or a colon; install elsewhere"
        )
    return path


def make_folder(
    command: Sequence[str],
    folder: Path | None,
    now_s: float | None = None,
    is_paused: bool = False,
) -> Path:
    """A new folder for one run, absolute: `folder`, or penstock-runs/PROGRAM-DATE-TIME.

    One that holds something already is left alone and the next free name is taken, FOLDER-2: two
    runs in one folder would be added up.  is_paused: its processes begin with nothing recorded.
    Raises RunError if it cannot be made or written.
    """
    if folder is None:
        moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
        folder = Path(RUNS) / f"{_program_name(command)}-{moment}"
    folder = folder.expanduser().absolute()
    wanted, number = folder, 1
    try:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            if _claim(folder):
                control.make(folder, control.PAUSE if is_paused else control.RECORD)
                return folder
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
    except OSError as error:
        raise RunError(
            f"{folder}: {error.strerror}; choose a folder that can be written with --output"
        ) from error


def _claim(folder: Path) -> bool:
    """Takes an empty folder by making its facts file, which only one process can."""
    if any(folder.iterdir()):
        return False
    try:
        (folder / FACTS).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _program_name(command: Sequence[str]) -> str:
    """The program, or what Python is to run: `train` of `python -u train.py --epochs 3`."""
    name = Path(command[0]).name
    if re.fullmatch(r"(python|pypy)[\d.]*", name):
        # The last word of the options: a script, or a module after -m; -W and -X take a value.
        found = re.match(r"(?:-[WX] ?\S+ |-[^cm ]\S* )*(?:-m )?([^-\s]\S*)", " ".join(command[1:]))
        if found:
            name = Path(found[1]).name.removesuffix(".py").rpartition(".")[2]
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "run"


def give_up(folder: Path) -> None:
    """Removes the folder of a run that did not begin, if there is nothing in it but our claim."""
    with contextlib.suppress(OSError):  # not empty: not only ours
        (folder / FACTS).unlink(missing_ok=True)
        (folder / control.NAME).unlink(missing_ok=True)
        (folder / container.NAME).unlink(missing_ok=True)
        for path in [*folder.glob("*.faults"), *folder.glob("*.system")]:
            path.unlink(missing_ok=True)
        folder.rmdir()
        if folder.parent.name == RUNS:
            folder.parent.rmdir()


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes run.json, whole or not at all.  Raises RunError."""
    path, draft = folder / FACTS, folder / (FACTS + ".new")
    try:
        draft.write_text(json.dumps(facts, indent=1) + "\n")
        draft.replace(path)
    except OSError as error:
        if not folder.is_dir():
            raise RunError(
                f"{folder}: not there any more; if it was moved, its logs are whole: "
                "penstock report, with the folder's new name"
            ) from error
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise RunError(f"{path}: {error.strerror}; the log itself is not touched") from error


def has_failed(folder: Path) -> bool:
    """Whether the recorder has ended before its program, and has said why on standard error."""
    return (folder / "failed").exists()


def streams() -> list[str]:
    """The regular files that standard output and error go to, as the program will inherit them."""
    paths = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return sorted(set(paths))


def settings(folder: Path, budget_bytes: int) -> dict[str, str]:
    """What the recorder asks its environment for, wherever the program runs."""
    return {"PENSTOCK_RUN": str(folder), "PENSTOCK_BUDGET": str(budget_bytes)}


def environment(
    folder: Path,
    budget_bytes: int,
    inherited: Mapping[str, str],
    staged: Path | None = None,
    burst: tuple[Path, Sequence[str]] | None = None,
) -> dict[str, str]:
    """The program's environment: the user's, and the recorder ahead of what they preload.

    staged: the map of a tier whose copies the program is to be given.  burst: the folder that new
    files go to first whose names fit one of the patterns.
    Raises RunError if the recorder cannot be preloaded."""
    preload = str(library())
    others = inherited.get("LD_PRELOAD", "")
    kept = [word for word in re.split(r"[\s:]+", others) if word and word != preload]
    ours = {"LD_PRELOAD": ":".join([preload, *kept]), **settings(folder, budget_bytes)}
    if staged is not None:
        ours["PENSTOCK_STAGED"] = str(staged)
    if burst is not None:
        place, patterns = burst
        ours |= {"PENSTOCK_BURST": str(place), "PENSTOCK_BURST_PATTERNS": ":".join(patterns)}
    return {**inherited, **ours}


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs `command` to its end and returns its exit status, -N if signal N ended it.

    The program shares our terminal, process group and descriptors.  Signals sent to us reach it;
    those of the terminal it has already.  Raises StartError if it cannot be started.
    """
    return _Program(command, environ).wait()


class _Program:
    """A child that we stand in for.  Signals are taken one by one with sigwaitinfo: no handler, no
    thread, and none is lost between the start and the first wait."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._signals = {signal.SIGCHLD, *FORWARDED}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        # An ignored SIGCHLD, inherited from some daemons, would leave no status to wait for.
        self._on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.status: int | None = None
        try:
            self.pid = self._start(command, environ)
        except OSError as error:
            self._restore()
            is_absent = isinstance(error, FileNotFoundError)
            raise StartError(
                f"{command[0]}: {'not found' if is_absent else error.strerror}; nothing was run",
                NOT_FOUND if is_absent else NOT_EXECUTABLE,
            ) from error

    def _start(self, command: Sequence[str], environ: Mapping[str, str]) -> int:
        def spawn(program: str, arguments: Sequence[str]) -> int:
            return os.posix_spawnp(
                program,
                list(arguments),
                dict(environ),
                setsigmask=self._mask,
                # Python ignores these two when it starts; a program expects the default.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )

        try:
            return spawn(command[0], command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without its first line; a shell, env and nohup give it to sh.
            script = shutil.which(command[0]) or command[0]
            return spawn("/bin/sh", ["/bin/sh", script, *command[1:]])

    def wait(self) -> int:
        """The exit status, -N if signal N ended it."""
        try:
            while self.status is None:
                self._pass_on(signal.sigwaitinfo(self._signals))
            return self.status
        finally:
            self._restore()

    def _pass_on(self, arrived: signal.struct_siginfo) -> None:
        number = arrived.si_signo
        if number == signal.SIGCHLD:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            return
        if arrived.si_code != SENT_BY_KERNEL and not self._came_from_program(arrived.si_pid):
            self._send(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)  # the shell waits for us to stop too

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended; SIGCHLD says so next
            os.kill(self.pid, number)

    def _came_from_program(self, pid: int) -> bool:
        """A signal to its own group, as launchers end their workers: it has that already."""
        for _ in range(64):  # deeper than any real tree of processes
            if pid == self.pid:
                return True
            if pid <= 1:
                return False
            pid = _parent(pid)
        return False

    def _restore(self) -> None:
        signal.signal(signal.SIGCHLD, self._on_child or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])
