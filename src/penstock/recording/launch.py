"""Start a program with the recorder, forward signals, and return the exit status.

Knows processes and environment variables; knows no log, no report and no screen.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import RunError, StartError
from penstock.installed import native_part
from penstock.recording import container, control
from penstock.safe import bounded, checksums, drafts

__all__ = [
    "RankOfJob",
    "burst_owner",
    "environment",
    "give_up",
    "has_claimed",
    "has_failed",
    "library",
    "make_folder",
    "rank_of_job",
    "ranks_ended",
    "run",
    "settings",
    "streams",
    "without_secrets",
    "write_facts",
]

# Signals of shells and batch systems.  SIGKILL and SIGSTOP cannot be forwarded.
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
SENT_BY_KERNEL = 0x80  # si_code of the terminal's signals, sent to the whole process group
LOOK_S = 1.0  # interval of checks for a child whose SIGCHLD was lost
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as in a shell
FACTS = "run.json"
# Environment variables: keep all arguments; further parts of secrets' names.
KEEP_ARGV, SECRETS = "PENSTOCK_KEEP_ARGV", "PENSTOCK_SECRETS"
LINES = "PENSTOCK_LINES"  # adapters/lines.py samples where fetches spend CPU time
RANK_FACTS = "run-rank-{}.json"
RUNS = "penstock-runs"
# Rank 0 reports for all ranks, and waits at most OTHERS_S for the other ranks, whose programs end
# at about the same time.
OTHERS_S = 5.0
MOST_FACTS_BYTES = 1 << 20
LATE_S = 60.0  # a rank starts at most this long after the end of the first rank to end


def library() -> Path:
    """Return the path of the package's native recorder.

    Raises RunError: the file is missing, or the loader could not preload a path with a space or
    colon.
    """
    path = Path(os.environ.get("PENSTOCK_LIBRARY") or native_part("librec.so"))
    path = path.absolute()
    if not path.is_file():
        raise RunError(f"{path}: not there; build it with `make native` or reinstall penstock")
    if re.search(r"[\s:]", str(path)):
        raise RunError(
            f"{path}: LD_PRELOAD cannot hold a path with a space or a colon; install elsewhere"
        )
    return path


@dataclass(frozen=True, slots=True)
class RankOfJob:
    """A process of a job with several ranks, each under a `penstock run` of its own.

    key: the name of the job, equal for all ranks and unique among running jobs.  is_first_here:
    local rank 0, or no local rank is known.
    """

    key: str
    rank: int
    size: int
    is_first_here: bool = True


class _Launcher(NamedTuple):
    """The environment variables with a launcher's rank, size, local rank and job key."""

    name: str
    rank: str
    size: str
    local: str
    key: tuple[str, ...]


# The innermost launcher first, as in native/log.c.  Hydra (MPICH, Intel MPI) names no job.
_LOCAL = "MPI_LOCALNRANKS"
_LAUNCHERS = (
    _Launcher(
        *("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ),
    _Launcher(
        *("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMIX_NAMESPACE",),
    ),
    _Launcher("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", (_LOCAL,)),
    _Launcher(
        *("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)
_MORE = ("TORCHELASTIC_RESTART_COUNT", "OMPI_MCA_orte_hnp_uri", "SLURM_RESTART_COUNT")


def rank_of_job(environ: Mapping[str, str]) -> RankOfJob | None:
    """Return the rank and the job of the process, by the launcher's variables.

    None: no launcher, a single rank, or ranks without a common name of their job.
    """
    for name, rank, size, local, keys in _LAUNCHERS:
        numbers = [environ.get(key, "") for key in (rank, size)]
        if not all(text.isascii() and text.isdecimal() and len(text) < 10 for text in numbers):
            continue
        number, of = map(int, numbers)
        if number >= of or not all(environ.get(key) for key in keys):
            continue
        if of == 1:
            return None
        words = [f"{key}={environ.get(key, '')}" for key in (*keys, size, *_MORE)]
        if _LOCAL in keys:
            if environ[_LOCAL] != environ[size]:
                return None  # ranks on several hosts have no common name of their job
            words.append(
                f"{os.uname().nodename} {os.getppid()}"
            )  # the parent of all ranks is Hydra's process
        digest = hashlib.sha256("\n".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:8]
        if name == "slurm":
            said = re.sub(r"[^0-9A-Za-z.]+", "", ".".join(environ[key] for key in keys))
            name = f"slurm-{said[:40]}"
        return RankOfJob(f"{name}-{digest}", number, of, environ.get(local, "0") == "0")
    return None


def make_folder(
    command: Sequence[str],
    folder: Path | None,
    now_s: float | None = None,
    is_paused: bool = False,
    job: RankOfJob | None = None,
    is_for_group: bool = False,
) -> Path:
    """Make a folder for one run and return the absolute path.

    The path is `folder`, or penstock-runs/PROGRAM-DATE-TIME.  If the folder is not empty, take the
    next free name, FOLDER-2: a report would add up two runs in one folder.  All ranks of a job use
    one folder, made by the first rank.  is_paused: processes start without recording.
    is_for_group: the group may read the folder; else only the owner.  Raises RunError: the folder
    cannot be made or written.
    """
    if folder is None:
        moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
        folder = Path(RUNS) / f"{_program_name(command)}-{job.key if job else moment}"
    folder = folder.expanduser().absolute()
    wanted, number = folder, 1
    try:
        while True:
            drafts.run_folder(folder, is_for_group)
            if _claim(folder, job):
                control.make(folder, control.PAUSE if is_paused else control.RECORD)
                return folder
            if job is not None and _join(folder, job):
                return folder
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
    except OSError as error:
        raise RunError(
            f"{folder}: {error.strerror}; choose a folder that can be written with --output"
        ) from error


def _claim(folder: Path, job: RankOfJob | None) -> bool:
    """Claim an empty folder by making the facts file; only one process can."""
    if job is None:
        if any(folder.iterdir()):
            return False
        return _made(folder / FACTS)
    # The file appears with all content, so other ranks never find an empty file.
    if not all(path.name.startswith(f".{FACTS}.") for path in folder.iterdir()):
        return False
    try:
        drafts.write_in_run(folder / FACTS, checksums.sealed_json(_ours(job)), is_new=True)
    except FileExistsError:
        return False
    except OSError:  # a file system without links: the other ranks use other folders
        return _made(folder / FACTS)
    return True


def _made(path: Path) -> bool:
    try:
        drafts.create_in_run(path).close()
    except FileExistsError:
        return False
    return True


def _join(folder: Path, job: RankOfJob) -> bool:
    """Return True if the folder is our job's, and the process is the first of our rank there."""
    first = _facts_in(folder / FACTS)
    if first.get("job") != job.key or first.get("rank") == job.rank:
        return False
    # Keys recur, because torchrun uses the same port by default.
    ended_ns = first.get("end_unix_ns", time.time_ns())
    if not isinstance(ended_ns, int) or abs(time.time_ns() - ended_ns) > LATE_S * 1e9:
        return False
    try:
        with drafts.create_in_run(folder / RANK_FACTS.format(job.rank)) as file:
            file.write(checksums.sealed_json(_ours(job)).encode())
    except FileExistsError:
        return False
    until_s = time.monotonic() + OTHERS_S
    while not (folder / control.NAME).exists() and time.monotonic() < until_s:
        time.sleep(0.01)  # the rank with the claim on the folder is about to make the file
    return True


def _ours(job: RankOfJob) -> dict[str, Any]:
    return {"job": job.key, "rank": job.rank, "ranks": job.size}


def _facts_in(path: Path) -> dict[str, Any]:
    """Return the facts in a file; a damaged or missing file gives none."""
    try:
        facts = bounded.json_of(path, MOST_FACTS_BYTES)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def ranks_ended(folder: Path, wait_s: float = OTHERS_S) -> Iterator[tuple[int, int]]:
    """Yield (ended, joined): the ranks that have ended, and the ranks that joined our folder.

    Yield again and again until all ranks have ended, or wait_s have passed.
    """
    until_s = time.monotonic() + wait_s
    while True:
        ranks = [_facts_in(path) for path in (folder / FACTS, *folder.glob(RANK_FACTS.format("*")))]
        ended = sum("end_unix_ns" in facts for facts in ranks)
        yield ended, len(ranks)
        if ended == len(ranks) or time.monotonic() > until_s:
            return
        time.sleep(0.05)


def _program_name(command: Sequence[str]) -> str:
    """Return the name of the program, or of Python's script or module.

    Example: `train` for `python -u train.py --epochs 3`.
    """
    name = Path(command[0]).name
    if re.fullmatch(r"(python|pypy)[\d.]*", name):
        # The last word of the options: a script, or a module after -m; -W and -X take a value.
        match = re.match(r"(?:-[WX] ?\S+ |-[^cm ]\S* )*(?:-m )?([^-\s]\S*)", " ".join(command[1:]))
        if match:
            name = Path(match[1]).name.removesuffix(".py").rpartition(".")[2]
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "run"


def _facts_path(folder: Path, job: RankOfJob | None) -> Path:
    """Return the path of our facts; a rank that joined has a separate file."""
    own = folder / RANK_FACTS.format(job.rank if job else "")
    return own if job is not None and own.exists() else folder / FACTS


def has_claimed(folder: Path, job: RankOfJob) -> bool:
    """Return True if this rank made the folder."""
    return _facts_path(folder, job).name == FACTS


def give_up(folder: Path, job: RankOfJob | None = None) -> None:
    """Remove the folder of a run that did not begin, if the folder holds nothing but our claim."""
    with contextlib.suppress(OSError):  # not empty: other files are there
        own = _facts_path(folder, job)
        if own.name != FACTS or any(folder.glob(RANK_FACTS.format("*"))):
            if own.name != FACTS:
                own.unlink()
            return
        own.unlink(missing_ok=True)
        (folder / control.NAME).unlink(missing_ok=True)
        (folder / container.NAME).unlink(missing_ok=True)
        for path in [*folder.glob("*.faults"), *folder.glob("*.system")]:
            path.unlink(missing_ok=True)
        folder.rmdir()
        if folder.parent.name == RUNS:
            folder.parent.rmdir()


def write_facts(folder: Path, facts: Mapping[str, Any], job: RankOfJob | None = None) -> None:
    """Write run.json, or the separate file of a joined rank.  Raises RunError.

    The file is written whole or not at all.
    """
    path = _facts_path(folder, job)
    content = {**facts, **(_ours(job) if job else {})}
    try:
        drafts.write_in_run(path, checksums.sealed_json(content, indent=1))
    except OSError as error:
        if not folder.is_dir():
            raise RunError(
                f"{folder}: not there any more; if it was moved, its logs are whole: "
                "penstock report, with the folder's new name"
            ) from error
        raise RunError(f"{path}: {error.strerror}; the log itself is not touched") from error


def has_failed(folder: Path) -> bool:
    """Return True if the recorder ended before the program, with a message on standard error."""
    return (folder / "failed").exists()


def streams() -> list[str]:
    """Return the regular files of standard output and error; the program will inherit the files."""
    paths = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a closed descriptor
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return sorted(set(paths))


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return the words of a command line as in a log, with "…" for the values of secrets.

    The recorder's library replaces the values, so that native/secrets.c alone has the names.
    """
    if KEEP_ARGV in os.environ:
        return list(command)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    out = ctypes.create_string_buffer(len(words) + 4 * len(command) + 1)
    try:
        hide = ctypes.CDLL(str(library())).penstock_hide_secrets
    except (OSError, AttributeError, RunError):  # nothing can be recorded then
        return list(command[:1])
    hide.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    hide.restype = ctypes.c_size_t
    used = hide(words, len(words), out, len(out))
    return [os.fsdecode(word) for word in out.raw[:used].split(b"\0")[:-1]]


def settings(folder: Path, budget_bytes: int) -> dict[str, str]:
    """Return the recorder's environment variables, for any place where the program runs."""
    kept = {name: os.environ[name] for name in (KEEP_ARGV, SECRETS) if name in os.environ}
    ours = {"PENSTOCK_RUN": str(folder), "PENSTOCK_BUDGET": str(budget_bytes)}
    return {**ours, LINES: os.environ.get(LINES, "1"), **kept}


def environment(
    folder: Path,
    budget_bytes: int,
    inherited: Mapping[str, str],
    staged: Path | None = None,
    burst: tuple[Path, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Return the program's environment: the user's, with the recorder before other preloads.

    staged: the map of a tier whose copies the program shall read.  burst: a folder and patterns:
    new files whose names match a pattern are made in the folder first.  Raises RunError: the
    recorder cannot be preloaded.
    """
    preload = str(library())
    others = inherited.get("LD_PRELOAD", "")
    kept = [word for word in re.split(r"[\s:]+", others) if word and word != preload]
    ours = {"LD_PRELOAD": ":".join([preload, *kept]), **settings(folder, budget_bytes)}
    options = inherited.get(SANITIZER, "")
    ours[SANITIZER] = options if ANY_ORDER in options else f"{options}:{ANY_ORDER}".strip(":")
    if staged is not None:
        ours["PENSTOCK_STAGED"] = str(staged)
    if burst is not None:
        place, patterns = burst
        ours |= {"PENSTOCK_BURST": str(place), "PENSTOCK_BURST_PATTERNS": ":".join(patterns)}
        ours["PENSTOCK_BURST_RUN"] = burst_owner(folder)
    return {**inherited, **ours}


# AddressSanitizer ends a program with another library before the sanitizer's; with this option the
# program runs and is checked.  Keep in step with native/spread.c.
SANITIZER, ANY_ORDER = "ASAN_OPTIONS", "verify_asan_link_order=0"


def burst_owner(folder: Path) -> str:
    """Return six digits to mark the run's files in a burst buffer.

    The digits are computed from the run folder.
    """
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:6]


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `command` to the end; return the exit status, -N if signal N ended the program.

    The program shares our terminal, process group and descriptors.  Signals to `penstock run` are
    forwarded; the terminal's signals reach the program directly.  Raises StartError: the program
    cannot be started.
    """
    return _Program(command, environ).wait()


class _Arrived(ctypes.Structure):
    """The siginfo_t of a sent signal, on 64 bits."""

    _fields_ = (
        ("si_signo", ctypes.c_int),
        ("si_errno", ctypes.c_int),
        ("si_code", ctypes.c_int),
        ("_padding", ctypes.c_int),
        ("si_pid", ctypes.c_int),
        ("_rest", ctypes.c_char * 108),
    )


def _arrived(signals: Iterable[int], within_s: float) -> _Arrived | None:
    """Wait for a signal as signal.sigtimedwait does; return None after the timeout.

    CPython 3.11's function returns uninitialised memory if the process was stopped and continued
    after the timeout.
    """
    masks = (ctypes.c_ulong * 16)()
    for number in signals:
        masks[(number - 1) // 64] |= 1 << (number - 1) % 64
    time_left = (ctypes.c_long * 2)(int(within_s), int(within_s % 1 * 1e9))
    arrived = _Arrived()
    number = ctypes.CDLL(None).sigtimedwait(masks, ctypes.byref(arrived), time_left)
    return arrived if number > 0 else None


class _Program:
    """A child process, with forwarding of signals.

    sigtimedwait takes signals one by one: no handler, no thread, and no signal is lost between the
    start and the first wait.  One exception: while a signal is handled here, another thread (of a
    library or a sampler) may receive a SIGCHLD and discard the signal, as when two children end at
    once.  Therefore the child is checked each second.
    """

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
                # Python ignores SIGPIPE and SIGXFSZ; a program expects the default.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )

        try:
            return spawn(command[0], command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a `#!` line: shells, env and nohup run the script with sh.
            script = shutil.which(command[0]) or command[0]
            return spawn("/bin/sh", ["/bin/sh", script, *command[1:]])

    def wait(self) -> int:
        """Return the exit status, -N if signal N ended the program."""
        try:
            while self.status is None:
                arrived = _arrived(self._signals, LOOK_S)
                if arrived is None or arrived.si_signo == signal.SIGCHLD:
                    self._look()
                else:
                    self._pass_on(arrived)
            return self.status
        finally:
            self._restore()

    def _look(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)

    def _pass_on(self, arrived: _Arrived) -> None:
        number = arrived.si_signo
        if arrived.si_code != SENT_BY_KERNEL and not self._came_from_program(arrived.si_pid):
            self._send(number)
        if number == signal.SIGTSTP:
            # stop too: the shell waits for both processes to stop
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the program has ended; SIGCHLD follows
            os.kill(self.pid, number)

    def _came_from_program(self, pid: int) -> bool:
        """Return True if a signal came from the program or a descendant.

        Launchers end their workers by a signal to their own process group: the program has the
        signal already.
        """
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
