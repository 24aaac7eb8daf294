"""Two independent counts of the same calls: strace's and the recorder's, folded to the same
classes.

A class of call says what was asked of the kernel and not which of its names was used, because libc
chooses the name: `stat` reaches the kernel as newfstatat, `fdatasync` and `fsync` are one question
here.
"""

import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Calls", "differences", "events_of", "ops_of", "recorded_calls", "strace_calls"]

CLASSES = {
    "open": "open openat creat openat2 fopen freopen",
    "close": "close fclose",
    "read": "read pread readv preadv pread64 preadv2 fread",
    "write": "write pwrite writev pwritev pwrite64 pwritev2 fwrite",
    "stat": "stat fstat lstat newfstatat statx",
    "access": "access faccessat faccessat2",
    "lseek": "lseek",
    "sync": "fsync fdatasync",
    "truncate": "truncate ftruncate",
    "unlink": "unlink unlinkat",
    "rename": "rename renameat renameat2",
    "mkdir": "mkdir mkdirat",
    "rmdir": "rmdir",
    "mmap": "mmap",
    "copy": "sendfile copy_file_range copy_range splice",
}
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names.split()}
MOVING = ("read", "write", "copy")

# What is still to be compared of a file that stdio touched: libc buffers its reads and writes, so
# the number of calls is libc's affair, and libc's own calls pass no import slot.
STDIO_CALLS = ("open", "close")
STDIO_BYTES = ("read", "write")


@dataclass(frozen=True, slots=True)
class Calls:
    """How often a class of call was made on a path, and the bytes that it moved."""

    n: int
    moved_bytes: int


Counted = dict[tuple[str, str], Calls]


def strace_calls(command: Sequence[str | Path], folder: Path, logs: Path) -> Counted:
    """Runs a command in a folder under strace; counts the calls on what lies below that folder."""
    logs.mkdir()
    traced = ",".join(f"?{name}" for name in [*CLASS_OF, "chdir", "fchdir"])
    subprocess.run(
        ["strace", "-ff", "-y", "-s", "0", "-e", "signal=none", "-e", f"trace={traced}"]
        + ["-o", str(logs / "log"), *map(str, command)],
        cwd=folder,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    n: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    for log in logs.iterdir():
        for path, kind, result in _strace_lines(log.read_text(), folder):
            n[path, kind] += 1
            moved[path, kind] += max(result, 0) if kind in MOVING else 0
    return {key: Calls(n[key], moved[key]) for key in n if _is_compared(*key, folder)}


_LINE = re.compile(
    r"^(?P<name>\w+)\((?P<arguments>.*)\)\s+= "
    r"(?P<result>-?\d+|0x[0-9a-f]+|\?)(?:<(?P<opened>[^>]*)>)?"
)
_DESCRIPTOR = re.compile(r"\b(?:\d+|AT_FDCWD)<([^>]*)>")
_NAMED = re.compile(r'(?:(?:\d+|AT_FDCWD)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')


def _strace_lines(text: str, folder: Path) -> Iterable[tuple[str, str, int]]:
    for line in text.splitlines():
        if line.startswith(("+++", "---", "???")) or line.endswith("= ? <unavailable>"):
            continue
        match = _LINE.match(line)
        assert match, f"strace wrote a line that this parser does not know: {line!r}"
        name, arguments = match["name"], match["arguments"]
        path = _path_of(name, arguments, match["opened"], folder)
        if name in ("chdir", "fchdir"):
            assert path == str(folder), f"relative names after a change of folder: {line!r}"
            continue
        if path is None or match["result"] == "?":
            continue
        is_rmdir = name == "unlinkat" and "AT_REMOVEDIR" in arguments
        kind = "rmdir" if is_rmdir else CLASS_OF[name]
        yield path, kind, int(match["result"], 0)


def _path_of(name: str, arguments: str, opened: str | None, folder: Path) -> str | None:
    """The file that a call is about: the opened one, the named one, or that of its descriptor."""
    kind = CLASS_OF.get(name)
    if opened is not None and kind == "open":
        return _unescaped(opened)
    named = None if kind in MOVING else _NAMED.search(arguments)
    if named and named[2]:
        base = _unescaped(named[1]) if named[1] else str(folder)
        return os.path.normpath(os.path.join(base, _unescaped(named[2])))
    descriptors = _DESCRIPTOR.findall(arguments)
    if not descriptors:
        return None
    return _unescaped(descriptors[1 if name == "sendfile" else 0])


def _unescaped(text: str) -> str:
    raw = re.sub(rb"\\([0-7]{1,3})", lambda code: bytes([int(code[1], 8)]), os.fsencode(text))
    return os.fsdecode(raw.replace(rb"\"", b'"').replace(rb"\\", b"\\"))


def recorded_calls(run: Any, folder: Path) -> Counted:
    """The same classes from a recording; POSIX and stdio calls of a path are added here and only
    here, for `differences` to judge."""
    n: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    query = """
        select coalesce(nullif(files.resolved_path, ''), files.path), op, count(*),
               sum(coalesce(moved_bytes, 0))
        from events join files using (file)
        where layer in ('posix', 'stdio')
        group by all
    """
    for path, op, calls, moved_bytes in run.sql(query):
        kind = CLASS_OF.get(op)
        if path is None or kind is None:
            continue
        path = os.path.normpath(path.removesuffix(" (deleted)"))
        n[path, kind] += calls
        moved[path, kind] += int(moved_bytes) if kind in MOVING else 0
    return {key: Calls(n[key], moved[key]) for key in n if _is_compared(*key, folder)}


def stdio_paths(run: Any) -> set[str]:
    query = """
        select distinct coalesce(nullif(files.resolved_path, ''), files.path)
        from events join files using (file) where layer = 'stdio'
    """
    return {path for (path,) in run.sql(query) if path}


def differences(strace: Counted, recorded: Counted, stdio: set[str]) -> list[str]:
    """One sentence for each (path, class) on which the two disagree."""
    found = []
    for path, kind in sorted(strace.keys() | recorded.keys()):
        truth = strace.get((path, kind), Calls(0, 0))
        ours = recorded.get((path, kind), Calls(0, 0))
        if path in stdio:
            is_equal = (kind not in STDIO_CALLS or truth.n == ours.n) and (
                kind not in STDIO_BYTES or truth.moved_bytes == ours.moved_bytes
            )
        else:
            is_equal = truth == ours
        if not is_equal:
            found.append(f"{kind} {path}: strace {truth}, recorded {ours}")
    return found


def events_of(run: Any, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """The events on the file of that base name, in the order in which they began, as tuples."""
    chosen = ", ".join(columns or ("op", "moved_bytes", "errno"))
    query = f"select {chosen} from events where parse_filename(path) = ? order by start_ns"
    return [tuple(row) for row in run.sql(query, [name])]


def ops_of(run: Any, name: str) -> dict[str, int]:
    """How often each op was called on the file of that base name, in all processes together."""
    return dict(Counter(op for (op,) in events_of(run, name, "op")))


def moved_by_op(run: Any, name: str) -> dict[str, int]:
    moved: defaultdict[str, int] = defaultdict(int)
    for op, moved_bytes in events_of(run, name, "op", "moved_bytes"):
        moved[op] += moved_bytes or 0
    return dict(moved)


def _is_compared(path: str, kind: str, folder: Path) -> bool:
    """Files below the folder.  Of the folders below it only their making and unmaking: opendir's
    own open, fstat and close are inside libc."""
    if not path.startswith(f"{folder}/"):
        return False
    return kind in ("mkdir", "rmdir", "rename") or not os.path.isdir(path)
