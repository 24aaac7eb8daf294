"""Limits for a reader: CPU time, memory, writes outside its folder,
unpickling, undocumented errors.  The module knows no reader."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

MOST_CPU_S = 10.0
MOST_BYTES = 300_000_000
_MAKING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
           "os.chmod", "os.chown", "shutil.rmtree", "shutil.copyfile", "shutil.move")  # fmt: skip
_ALLOWED = ("/proc/", "/dev/null")


class Harm(BaseException):
    """A reader exceeded a limit.  A BaseException, which no reader catches."""


_own: list[str] = []  # folders in which a reader may write while it is watched
_harm: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _own:
        return
    if event == "pickle.find_class":
        _harm.append(f"unpickled {arguments!r:.200}")
    elif event == "open":
        path, _, flags = (*arguments, None, None)[:3]
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            _judge(path, event)
    elif event in _MAKING and arguments:
        for path in arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]:
            _judge(path, event)


def _judge(path: Any, event: str) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return  # a descriptor: its opening was judged
    if not os.path.isabs(os.fsdecode(path)):
        return  # below a folder's descriptor, or the current folder, which is the reader's own
    name = os.path.normpath(os.fsdecode(path))
    if not name.startswith((*_own, *_ALLOWED)):
        _harm.append(f"{event} of {name}")


sys.addaudithook(_audit)


def _memory() -> dict[str, int]:
    """Return bytes of this process: VmRSS (now) and VmHWM (peak since the last reset)."""
    with open("/proc/self/status", "rb") as file:
        lines = [line.split() for line in file if line.startswith((b"VmRSS", b"VmHWM"))]
    return {words[0].decode().rstrip(":"): int(words[1]) * 1024 for words in lines}


def _set_back() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


@contextmanager
def watched(place: Path) -> Iterator[None]:
    """Watch a reader that may write in place and among temporary files.  Raises Harm."""

    def too_slow(number: int, frame: FrameType | None) -> None:
        raise Harm(f"took more than {MOST_CPU_S:g} s of a CPU")

    _set_back()
    before_bytes = _memory()["VmRSS"]
    old = signal.signal(signal.SIGPROF, too_slow)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    _own[:] = [str(place), tempfile.gettempdir() + "/penstock-", "/dev/shm/penstock"]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
        _own.clear()
        told, _harm[:] = list(_harm), []
    if told:
        raise Harm(told[0])
    grown = _memory()["VmHWM"] - before_bytes
    if grown > MOST_BYTES:
        raise Harm(f"took {grown / 1e6:,.0f} MB")


Read = Callable[[Path], object]


def tried(read: Read, errors: tuple[type[BaseException], ...], path: Path, place: Path) -> str:
    """Return why the reading of a file is a finding, "" if not."""
    try:
        with watched(place):
            read(path)
    except errors:
        return ""
    except Harm as harm:
        return str(harm)
    except Exception as error:  # the finding itself
        frames = []
        at = error.__traceback__
        while at is not None:
            frames.append(f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}")
            at = at.tb_next
        return f"{type(error).__name__}: {error!s:.200} ({' > '.join(frames[-4:])})"
    return ""
