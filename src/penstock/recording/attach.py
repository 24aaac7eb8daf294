"""Load the recorder into running processes, and end their recording.

Knows processes, and the programs for reaching into a process; knows no report and no screen.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import LogError, RunError
from penstock.log.header import Header, is_alive, read_header
from penstock.log.texts import logs_in
from penstock.recording import launch
from penstock.recording.kernel_clock import monotonic_ns
from penstock.recording.threads import Look, doing, in_words
from penstock.safe import drafts

__all__ = [
    "Joined",
    "as_owner",
    "command_of",
    "descendants",
    "has_recorder",
    "is_running",
    "join",
    "leave",
    "leave_all",
    "recorded",
    "standing",
    "why_apart",
]

PROC = Path("/proc")
PTRACE_SCOPE = PROC / "sys/kernel/yama/ptrace_scope"
# The exit statuses of native/attach/inject.c.
GONE, NOT_PERMITTED, BUSY, OTHER_KIND, NOT_LOADED = 3, 4, 5, 6, 7
RETURNED = re.compile(r"returned (-?\d+)(?:; thread \d+ stood still for (\d+) us)?")
ALREADY = -114  # EALREADY of native/recorder.h
# A working Python runs a given script within SCRIPT_S.  A Python whose main thread waits does not:
# if another way exists, the script is given up soon.
SCRIPT_S, SCRIPT_ALONE_S = 0.5, 5.0
# leave_all looks for newly started processes.  A program loads the recorder in its first
# milliseconds; the rest is for a machine with busy CPUs.
STARTING_S, LEAVING_S, LOOK_S = 1.0, 10.0, 0.02
BEGUN_S = 60.0  # limit for a begun script, on any machine
ELF64, X86_64 = 2, 62
# Programs that wait for work wake up at times: watchdogs use less CPU than this limit.
LOOKED_S, IDLE_CPU, MOST_TOLD = 1.0, 0.01, 8


@dataclass(frozen=True, slots=True)
class Joined:
    """A recorded process.

    way: the mechanism that loaded the recorder.  still_s: for how long a thread was stopped; None:
    no thread was stopped, or the time is not known.
    """

    pid: int
    way: str
    still_s: float | None


def command_of(pid: int) -> list[str]:
    """Return the arguments of a process, or the name of the process if /proc shows no arguments."""
    words = _bytes_of(pid, "cmdline").split(b"\0")[:-1]
    return [os.fsdecode(word) for word in words] or [_status(pid).get("Name", str(pid))]


def descendants(pid: int) -> list[int]:
    """Return the running descendants of a process; parents before children."""
    pids = []
    for task in _entries(PROC / str(pid) / "task"):
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                pids += [child, *descendants(child)]
    return pids


def is_running(pid: int) -> bool:
    """Return True if the process exists and has not ended; a zombie has ended."""
    return _status(pid).get("State", "Z")[0] not in "ZX"


def why_apart(pid: int) -> str:
    """Return why the kernel's counts of the process cannot be matched with the log, or ""."""
    if len(_status(pid).get("NSpid", "").split()) > 1:
        return "the process has a number of its own, as in a container"
    return ""


@contextlib.contextmanager
def as_owner(pid: int) -> Iterator[None]:
    """As root, use files with the rights of a process's owner.

    Make, write and read the run's folder in this block: the owner may have planted links there.
    Raises RunError: this root cannot act as another user.
    """
    uid, gid = _owner(pid)
    groups = [int(word) for word in _status(pid).get("Groups", "").split()]
    with contextlib.ExitStack() as block:
        try:
            block.enter_context(drafts.acting_user(max(0, uid), gid, groups))
        except OSError as error:
            raise RunError(
                f"process {pid} belongs to user {uid}, and this root cannot write as that user: "
                f"{error.strerror}; attach as that user"
            ) from error
        yield


def join(pid: int, folder: Path, budget_bytes: int) -> Joined:
    """Start to record a running process into `folder`.

    An error never ends or stops the process.  Call with the rights of the process's owner: see
    as_owner.  Raises RunError: the process has ended, belongs to another user, is of an unsupported
    kind, is traced, or is recorded already.
    """
    library = launch.library()
    _check(pid, library, folder)
    result, way, still_s = _call(pid, library, "penstock_attach", str(folder), budget_bytes, folder)
    if result == ALREADY:
        raise RunError(
            f"process {pid} is recorded already; `penstock attach {pid} --stop` ends that"
        )
    if result < 0:
        raise RunError(f"process {pid} cannot write into {folder}: {os.strerror(-result)}")
    return Joined(pid, way, still_s)


def leave(pid: int, folder: Path | None = None) -> Joined | None:
    """End the recording of a process; the process continues.

    folder: the run folder of the join, where the interpreter may find a script.  None: the process
    had ended, or was not recorded.  Raises RunError as join does; the recording then continues.
    """
    if not is_running(pid):
        return None
    try:
        result, way, still_s = _call(pid, launch.library(), "penstock_stop", "", 0, folder)
    except RunError:
        if not is_running(pid):
            return None
        raise
    return Joined(pid, way, still_s) if result == 0 else None


def leave_all(folder: Path, joined: Iterable[int]) -> dict[int, str]:
    """End the recording of `joined` and of all processes recorded into `folder`.

    The processes continue.  Return the reason, as a sentence, for each process still recorded.  The
    joined processes are asked whatever their logs show; their new descendants are searched until
    none is found.
    """
    errors: dict[int, str] = {}

    def ask(pid: int) -> None:
        try:
            leave(pid, folder)
        except RunError as error:
            errors[pid] = str(error)

    joined = tuple(joined)
    for pid in filter(has_recorder, joined):
        ask(pid)
    asked: set[tuple[int, int]] = set()
    begun_s = time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < LEAVING_S:
        others = {(header.pid, header.start_ns) for header in _open(folder)} - asked
        for pid, _ in sorted(others):
            ask(pid)
        asked |= others
        if not others:
            if passed_s > STARTING_S or not _starting(folder, joined):
                break
            time.sleep(LOOK_S)
    for pid in recorded(folder):
        errors.setdefault(pid, f"process {pid} was asked to end its recording, and has not")
    return {pid: error for pid, error in sorted(errors.items()) if is_running(pid)}


def standing(look: Look) -> list[str]:
    """Describe each process of an earlier look, if all have hardly run since.

    The description has the time without running.  Empty: a process worked, or the interval was too
    short for a statement.
    """
    passed_s = (monotonic_ns() - look.ns) / 1e9
    threads = doing(look)
    if passed_s < LOOKED_S or not threads or sum(thread.cpu for thread in threads) >= IDLE_CPU:
        return []
    if any(thread.state == "R" for thread in threads):
        return []
    reasons = [f"used less than {IDLE_CPU:.0%} of a CPU in {passed_s:.1f} s".replace("%", " %")]
    for thread in threads:
        if thread.pid == thread.tid and len(reasons) <= MOST_TOLD:
            since = f" for {thread.still_s:.1f} s" if thread.still_s is not None else ""
            reasons.append(
                f"process {thread.pid} {in_words(thread.state, thread.call, thread.path)}{since}"
            )
    return reasons


def has_recorder(pid: int) -> bool:
    """Return True if the recorder was ever loaded into the process."""
    return f"/{launch.library().name}\n".encode() in _bytes_of(pid, "maps")


def recorded(folder: Path) -> list[int]:
    """Return the processes of this host recorded into `folder`.

    Joined processes and their descendants count.
    """
    return [header.pid for header in _open(folder) if header.state == "running"]


def _open(folder: Path) -> list[Header]:
    """Return the logs of this host's processes with import slots that point to the recorder."""
    headers = []
    for path in logs_in(folder):
        with contextlib.suppress(LogError, OSError):
            header = read_header(path)
            if header.state in ("running", "failed") and is_alive(header):
                headers.append(header)
    return headers


def _starting(folder: Path, joined: Iterable[int]) -> bool:
    """Return True if a descendant program is about to be recorded into `folder`.

    The environment of such a program has the recorder, and the log is still missing.
    """
    mark = b"PENSTOCK_RUN=" + os.fsencode(os.path.realpath(folder))
    for parent in joined:
        for pid in descendants(parent):
            has_mark = mark in _bytes_of(pid, "environ").split(b"\0")
            if has_mark and not logs_in(folder, f"*.{pid}.*"):
                return True
    return False


# --- obstacles -----------------------------------------------------------------------------------


def _check(pid: int, library: Path, folder: Path) -> None:
    status = _status(pid)
    if not status and not (PROC / "self").exists():
        raise RunError(f"{PROC} is not mounted here, without it no process is found: mount it")
    if not status:
        raise RunError(f"process {pid}: not there; `ps` lists those that are")
    if pid == os.getpid():
        raise RunError(f"process {pid} is this command itself")
    state = status.get("State", "?")[0]
    if state in "ZX":
        raise RunError(f"process {pid} has ended and only waits for its parent; nothing runs in it")
    if int(status.get("TracerPid", 0)):
        tracer = status["TracerPid"]
        raise RunError(
            f"process {pid} is traced by process {tracer} ({_status(int(tracer)).get('Name', '?')})"
            ", and only one can; end that first"
        )
    if state in "Tt":
        raise RunError(f"process {pid} is stopped; let it go on first: kill -CONT {pid}")
    _check_program(pid)
    _check_view(pid, library, folder)


def _check_program(pid: int) -> None:
    try:
        with open(PROC / str(pid) / "exe", "rb") as file:
            head = file.read(20)
        maps = (PROC / str(pid) / "maps").read_text(errors="replace")
    except PermissionError as error:
        raise RunError(_not_permitted(pid)) from error
    except FileNotFoundError as error:
        raise RunError(f"process {pid} is the kernel's own, or has just ended") from error
    except OSError as error:
        raise RunError(f"process {pid}: {error.strerror}; it has just ended") from error
    machine = struct.unpack_from("<H", head, 18)[0] if len(head) == 20 else 0
    if head[:5] != b"\x7fELF" + bytes([ELF64]):
        raise RunError(f"process {pid} is a 32-bit program; only 64-bit ones are recorded")
    if machine == X86_64 and os.uname().machine != "x86_64":
        raise RunError(f"process {pid} runs under an emulator, which hides its calls")
    if not re.search(r"/libc(\.so\.6|-2\.\d+\.so)( \(deleted\))?$", maps, re.MULTILINE):
        raise RunError(
            f"process {pid} is a static program or has another C library than glibc: nothing can "
            "be loaded into it"
        )


def _check_view(pid: int, library: Path, folder: Path) -> None:
    """Check that the recorder and the run folder have the same paths in the process.

    Raises RunError.
    """
    root = PROC / str(pid) / "root"
    for path in (library, folder):
        try:
            there, here = Path(f"{root}{path}").stat(), path.stat()
        except PermissionError as error:
            raise RunError(_not_permitted(pid)) from error
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            raise RunError(
                f"process {pid} sees other files, as in a container: {path} is not the same to it; "
                "run penstock inside, or bind that folder into it"
            )


def _not_permitted(pid: int) -> str:
    """Return, as a sentence, the kernel's rule against the attach."""
    uid, _ = _owner(pid)
    if os.geteuid() not in (0, uid):
        return f"process {pid} belongs to user {uid}; attach as that user, or as root"
    with contextlib.suppress(OSError, ValueError):
        scope = int(PTRACE_SCOPE.read_text())
        if scope == 3:
            return f"process {pid}: this kernel lets nobody attach (ptrace_scope 3, until a reboot)"
        if scope == 2 or (scope == 1 and os.geteuid()):
            return (
                f"process {pid}: this kernel lets only root attach to a running process "
                f"(ptrace_scope {scope}): sudo penstock attach {pid}; or start it by `penstock run`"
            )
    return (
        f"process {pid}: the kernel does not permit to attach: a container without CAP_SYS_PTRACE, "
        "another user namespace, or a program that forbids it; start it by `penstock run`"
    )


def _owner(pid: int) -> tuple[int, int]:
    """Return the effective user and group of a process."""
    status = _status(pid)
    uid, gid = (status.get(key, "-1 -1").split()[1] for key in ("Uid", "Gid"))
    return int(uid), int(gid)


# --- ways in -------------------------------------------------------------------------------------


def _call(
    pid: int, library: Path, function: str, text: str, number: int, folder: Path | None
) -> tuple[int, str, float | None]:
    """Make the process call function(text, number).

    Return the result, the way, and for how long a thread was stopped.  The way is Python's
    remote_exec if this Python and the process's Python have the same version and support
    remote_exec, else a thread stopped at a system-call boundary, else gdb.
    """
    injector = library.with_name("inject")
    if hasattr(sys, "remote_exec") and folder and _python_of(pid) == sys.version_info[:2]:
        script_s = SCRIPT_S if injector.is_file() else SCRIPT_ALONE_S
        result = _by_python(pid, library, function, text, number, folder, script_s)
        if result is not None:
            return result, "sys.remote_exec", None
    with _signals_wait():
        if injector.is_file():
            return _by_injector(injector, pid, library, function, text, number)
        if shutil.which("gdb"):
            return _by_gdb(pid, library, function, text, number), "gdb", None
    raise RunError(
        f"{injector}: not there; it is built on x86-64, elsewhere gdb does its work: install gdb"
    )


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold back Ctrl-C until the process has been released."""
    mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _by_injector(
    injector: Path, pid: int, library: Path, function: str, text: str, number: int
) -> tuple[int, str, float | None]:
    command = [str(injector), str(pid), str(library), function, text, str(number)]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    said = ended.stdout.strip()
    match = RETURNED.fullmatch(said)
    if ended.returncode == 0 and match:
        return int(match[1]), "ptrace", int(match[2]) / 1e6
    if ended.returncode == NOT_PERMITTED:
        raise RunError(_not_permitted(pid))
    raise RunError(
        {
            GONE: f"process {pid} has ended meanwhile",
            BUSY: f"process {pid}: no thread came to a safe point in time, it goes on unchanged; "
            "try again",
            OTHER_KIND: f"process {pid} is no program that a library can be loaded into",
            NOT_LOADED: f"process {pid} cannot load the recorder: {said}",
        }.get(ended.returncode, f"process {pid} cannot be recorded: {said or ended.returncode}")
    )


# gdb runs no script from beside a program or library of the user.
GDB = (
    *("gdb", "-nx", "-q", "-batch", "-iex", "set auto-load off"),
    *("-iex", "set auto-solib-add off"),
)


def gdb_can_call() -> bool:
    """Return True if gdb can call a function in a process of ours.

    A gdb without knowledge of all registers of this CPU fails halfway, and the program gets an
    error number that no call returns (512).
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["cat"], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
    ) as ours:
        try:
            assert ours.stdin
            assert ours.stdout
            ours.stdin.write(b"x")  # the echo shows that the program has loaded and is waiting
            ours.stdout.read(1)
            words = ["-p", str(ours.pid), "-ex", "sharedlibrary libc",
                     "-ex", 'printf "returned %d\\n", ((int(*)(void))getpid)()']  # fmt: skip
            ended = subprocess.run(
                [*GDB, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
        finally:
            ours.kill()
    match = RETURNED.search(ended.stdout)
    return match is not None and int(match[1]) == ours.pid


def _by_gdb(pid: int, library: Path, function: str, text: str, number: int) -> int:
    if not gdb_can_call():
        raise RunError(
            f"process {pid}: the gdb here cannot call a function in a process, tried with one of "
            "our own; install a newer gdb, or start the job by `penstock run`"
        )
    # Load symbols of the C library only: a framework's symbols would take gdb seconds, with the
    # process stopped.
    load = f'((void*(*)(const char*,int))dlopen)("{_quoted(str(library))}",258)'
    find = f'((void*(*)(void*,const char*))dlsym)($h,"{function}")'
    call = f'((int(*)(const char*,unsigned long))$f)("{_quoted(text)}",{number})'
    # Type names of the program's language would need the program's symbols; plain casts do not.
    steps = [
        "sharedlibrary libc",
        "sharedlibrary libdl",
        f"set $h = {load}",
        f"set $f = {find}",
        f'printf "returned %d\\n", {call}',
    ]
    words = [*GDB, "-p", str(pid), *(word for step in steps for word in ("-ex", step))]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    match = RETURNED.search(ended.stdout)
    if match:
        return int(match[1])
    if "not permitted" in ended.stderr:
        raise RunError(_not_permitted(pid))
    last = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
    raise RunError(f"process {pid}: gdb cannot bring the recorder in: {last[0]}")


def _quoted(text: str) -> str:
    """Return the text as written inside gdb's quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _by_python(
    pid: int,
    library: Path,
    function: str,
    text: str,
    number: int,
    folder: Path,
    script_s: float,
) -> int | None:
    """Call by remote_exec; return None if the interpreter did not run the script in time.

    A later run of the script does nothing.
    """
    word = os.urandom(8).hex()
    script, answer = folder / f"attach-{word}.py", folder / f"attach-{word}.result"
    # the first to remove the file, the script or this process, decides whether the call happens
    leave = folder / f"attach-{word}.leave"
    drafts.write(
        script,
        "import os\n"
        "try:\n"
        f"    os.unlink({str(leave)!r})\n"
        "except OSError:\n"
        "    pass\n"
        "else:\n"
        "    try:\n"
        "        import ctypes\n"
        f"        library = ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)\n"
        f"        library.{function}.argtypes = (ctypes.c_char_p, ctypes.c_uint64)\n"
        f"        result = library.{function}({os.fsencode(text)!r}, {number})\n"
        "    except Exception:\n"
        "        result = ''\n"
        f"    with open({str(answer) + '.new'!r}, 'x') as file:\n"
        "        file.write(str(result))\n"
        f"    os.rename({str(answer) + '.new'!r}, {str(answer)!r})\n",
        mode=0o600,
    )
    drafts.write(leave, "", mode=0o600)
    try:
        sys.remote_exec(pid, str(script))  # type: ignore[attr-defined]  # of Python 3.14
        said = _answer(pid, leave, answer, script_s)
    except (OSError, RuntimeError):
        said = ""  # the next way reports the reason
    for path in (leave, answer):
        path.unlink(missing_ok=True)
    # if None, keep the script: the interpreter would complain about a missing file
    if said is not None:
        script.unlink(missing_ok=True)
    return int(said) if said and re.fullmatch(r"-?\d{1,9}", said) else None


def _answer(pid: int, leave: Path, answer: Path, script_s: float) -> str | None:
    """Return the script's output; "": no output will come.

    None: the script did not begin, and will do nothing.
    """
    has_begun, until_s = False, time.monotonic() + script_s
    while is_running(pid):
        with contextlib.suppress(FileNotFoundError):
            return _short_text(answer)
        if time.monotonic() > until_s:
            if has_begun:
                break
            try:
                leave.unlink()
            except FileNotFoundError:  # the script has begun: wait for the answer
                has_begun, until_s = True, time.monotonic() + BEGUN_S
            else:
                return None
        time.sleep(0.005)
    return ""


def _short_text(path: Path) -> str:
    """Return a short file written by another user's process, without waiting for a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, 64).decode(errors="replace") if is_file else ""
    finally:
        os.close(descriptor)


def _python_of(pid: int) -> tuple[int, int] | None:
    """Return the version of a process's Python, by the name of the library or program."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
            match = re.search(r"/(?:lib)?python(3)\.(\d+)(?:\.so[\d.]*)?$", line)
            if match:
                return int(match[1]), int(match[2])
    return None


# --- /proc ---------------------------------------------------------------------------------------


def _status(pid: int) -> dict[str, str]:
    lines = _bytes_of(pid, "status").decode(errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _bytes_of(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
