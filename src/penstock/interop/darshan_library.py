"""The library of the `darshan` wheel: bytes to a log, a log to arrays.  Knows Darshan's structures;
knows no run and no counter's meaning.

libdarshan-util can write logs, but the wheel's own Python only reads, and the library's private
header is no promised interface: the wheel's version is pinned, and a test writes a log and reads it
back.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import MissingDependency, RunError
from penstock.runs.tables import Array
from penstock.safe import drafts

__all__ = ["DXT_POSIX", "HEATMAP", "POSIX", "STDIO", "VERSIONS", "counter_names", "open_library"]
__all__ += ["read_log", "record_ids", "write_log"]

# darshan-log-format.h: a module's number, and the version of its records in 3.5.
POSIX, STDIO, DXT_POSIX, HEATMAP = 1, 9, 10, 15
VERSIONS = {POSIX: 4, STDIO: 2, DXT_POSIX: 1, HEATMAP: 1}
_RECORDS = {POSIX: ("posix", 69, 17), STDIO: ("stdio", 14, 15)}

WHEEL = "3.5"
_CURE = "pip install 'penstock[darshan]'"

# A block holds the program's name and the mounts, less the job's structure and a zero.
_JOB_RECORD_BYTES = 4096
_NAME_BYTES = 4095  # __DARSHAN_PATH_MAX less the zero
_CHUNK_BYTES = 1 << 30  # sizes are C ints
# More segments in a record than any memory holds: a damaged count.
_MAX_SEGMENTS = 1 << 28
_MAX_RECORDS = 1 << 26

_STRUCTURES = """
struct darshan_job {
    int64_t uid, start_time_sec, start_time_nsec, end_time_sec, end_time_nsec, nprocs, jobid;
    char metadata[1024];
};
struct darshan_mnt_info { char mnt_type[3015]; char mnt_path[3015]; };
struct darshan_mod_info { char *name; int len, ver, idx, partial_flag; };
struct darshan_name_record_info { uint64_t id; char *name; };
void *darshan_log_create(const char *name, int compression, int partial_flag);
void *darshan_log_open(const char *name);
int darshan_log_put_job(void *log, struct darshan_job *job);
int darshan_log_put_exe(void *log, char *text);
int darshan_log_put_mounts(void *log, struct darshan_mnt_info *mounts, int n);
int darshan_log_put_namehash(void *log, void *names);
int darshan_log_put_mod(void *log, int module, void *data, int size, int version);
void darshan_log_close(void *log);
int darshan_log_get_job(void *log, struct darshan_job *job);
int darshan_log_get_exe(void *log, char *text);
int darshan_log_get_mounts(void *log, struct darshan_mnt_info **mounts, int *n);
void darshan_log_get_modules(void *log, struct darshan_mod_info **modules, int *n);
void darshan_log_get_name_records(void *log, struct darshan_name_record_info **names, int *n);
int darshan_log_get_record(void *log, int module, void **record);
void darshan_free(void *memory);
char *darshan_log_get_lib_version(void);
extern char *posix_counter_names[], *posix_f_counter_names[];
extern char *stdio_counter_names[], *stdio_f_counter_names[];
"""


def open_library() -> tuple[Any, Any]:
    """Return the wheel's libdarshan-util and its cffi.

    The wheel's own package is not imported: the import takes seconds.  Raises MissingDependency: no
    wheel, or another version.
    """
    from importlib.util import find_spec

    spec = find_spec("darshan")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(f"Darshan's logs need an extra: {_CURE}")
    package = Path(next(iter(spec.submodule_search_locations)))
    # The build gives the library's name a hash.
    libraries = sorted(package.parent.glob("darshan.libs/libdarshan-util*.so*"))
    try:
        import cffi
    except ModuleNotFoundError as error:
        raise MissingDependency(f"Darshan's logs need an extra: {_CURE}") from error
    ffi = cffi.FFI()
    ffi.cdef(_STRUCTURES)
    try:
        library = ffi.dlopen(str(libraries[0]))
        version = ffi.string(library.darshan_log_get_lib_version()).decode()
    except (IndexError, OSError, AttributeError) as error:
        raise MissingDependency(f"{package}: no libdarshan-util in it: {_CURE}") from error
    if not version.startswith(f"{WHEEL}."):
        raise MissingDependency(f"{package}: is version {version}, {WHEEL} is needed: {_CURE}")
    return library, ffi


def counter_names(module: int) -> tuple[list[str], list[str]]:
    """Return the counters of POSIX or STDIO, integers and times, in the order of a record.

    The names are without the module's prefix.
    """
    library, ffi = open_library()
    name, n, n_times = _RECORDS[module]
    return tuple(  # type: ignore[return-value]  # a pair
        [
            ffi.string(getattr(library, f"{name}_{kind}counter_names")[i]).decode()[len(name) + 1 :]
            for i in range(size)
        ]
        for kind, size in (("", n), ("f_", n_times))
    )


def record_ids(names: Sequence[bytes]) -> Array:
    """Return Darshan's number of a name: Bob Jenkins' 64-bit hash of 1997 (public domain,
    lookup8.c)."""
    import numpy as np

    ids = np.zeros(len(names), np.uint64)
    for first in range(0, len(names), 10_000):
        part = names[first : first + 10_000]
        sizes = np.array([len(name) for name in part], np.uint64)
        rounds = sizes // 24
        room = 24 * (int(rounds.max()) + 1)
        words = np.frombuffer(b"".join(name.ljust(room, b"\0") for name in part), "<u8")
        words = words.reshape(len(part), room // 8)
        a, b = np.zeros(len(part), np.uint64), np.zeros(len(part), np.uint64)
        c = np.full(len(part), 0x9E3779B97F4A7C13, np.uint64)
        for i in range(room // 24):
            at = np.flatnonzero(rounds >= i)
            is_last = rounds[at] == i
            tail = words[at, 3 * i + 2]
            # The lowest byte of the last round's third word is the length's.
            third = np.where(is_last, (tail << np.uint64(8)) + sizes[at], tail)
            state = (a[at] + words[at, 3 * i], b[at] + words[at, 3 * i + 1], c[at] + third)
            a[at], b[at], c[at] = _mixed(*state)
        ids[first : first + len(part)] = c
    return ids


# Shifts of each step of the hash; steps cycle through a, b, c, every second step to the left.
_SHIFTS = (43, 9, 8, 38, 23, 5, 35, 49, 11, 12, 18, 22)


def _mixed(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    import numpy as np

    for i, shift in enumerate(_SHIFTS):
        by = np.uint64(shift)
        a = (a - b - c) ^ (c << by if i % 3 == 1 else c >> by)
        a, b, c = b, c, a
    return a, b, c


# --- a log out -----------------------------------------------------------------------------------


def write_log(
    path: Path,
    job: Mapping[str, int | str],
    program: str,
    mounts: Sequence[tuple[str, str]],
    names: Mapping[int, bytes],
    modules: Mapping[int, Array],
    partial: Sequence[int],
) -> None:
    """Write a log; an existing file is replaced once the new log is whole.

    job: the fields of struct darshan_job.  mounts: (path, type). names: record id to name.
    modules: number to records as bytes; modules in `partial` are incomplete.  Raises RunError.
    """
    library, ffi = open_library()
    flags = sum(1 << module for module in partial)
    try:
        with drafts.by_name(path) as draft:
            log = library.darshan_log_create(os.fsencode(draft), 0, flags)
            if log == ffi.NULL:
                raise RunError(f"{path}: cannot be written; choose a file in a folder that can be")
            failed = _put(library, ffi, log, job, program, mounts, names, modules)
            library.darshan_log_close(log)  # removes the file if a write failed
            if failed or not Path(draft).exists():
                raise RunError(f"{path}: cannot be written ({failed or 'disk full?'})")
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise RunError(f"{path}: {why}; choose a file in a folder that can be") from error


def _put(
    library: Any,
    ffi: Any,
    log: Any,
    job: Mapping[str, int | str],
    program: str,
    mounts: Sequence[tuple[str, str]],
    names: Mapping[int, bytes],
    modules: Mapping[int, Array],
) -> str:
    """Write the regions in a log's order; return the failed region, or ""."""
    fields = {key: text.encode() if isinstance(text, str) else text for key, text in job.items()}
    if library.darshan_log_put_job(log, ffi.new("struct darshan_job *", fields)) < 0:
        return "the job"
    room = _JOB_RECORD_BYTES - ffi.sizeof("struct darshan_job") - 1
    text = program.encode(errors="backslashreplace")[: room // 2].decode(errors="ignore").encode()
    if library.darshan_log_put_exe(log, ffi.new("char[]", text)) < 0:
        return "the program"
    table = ffi.new("struct darshan_mnt_info[]", max(1, len(mounts)))
    left = room - len(text) - 1
    n = 0
    for place, kind in mounts:
        point, of_kind = place.encode()[:3000], kind.encode()[:100]
        left -= len(point) + len(of_kind) + 2
        if left <= 0:
            break
        table[n].mnt_path, table[n].mnt_type = point, of_kind
        n += 1
    if library.darshan_log_put_mounts(log, table, n) < 0:
        return "the mounts"
    if names:
        list_of_names = _linked(ffi, names)
        if library.darshan_log_put_namehash(log, list_of_names[0]) < 0:
            return "the names"
    for module in sorted(modules):
        data = modules[module].view("u1")
        for first in range(0, len(data), _CHUNK_BYTES):
            chunk = data[first : first + _CHUNK_BYTES]
            memory = ffi.from_buffer(chunk.data)
            if library.darshan_log_put_mod(log, module, memory, len(chunk), VERSIONS[module]) < 0:
                return f"module {module}"
    return ""


def _linked(ffi: Any, names: Mapping[int, bytes]) -> Any:
    """Return names as a list for the library: of uthash's links the library follows only `next`,
    the fourth of eight words of a node."""
    import numpy as np

    texts = b"".join(
        number.to_bytes(8, "little") + name[:_NAME_BYTES] + b"\0" for number, name in names.items()
    )
    sizes = np.array([9 + min(len(name), _NAME_BYTES) for name in names.values()], np.uint64)
    memory = np.frombuffer(texts, np.uint8)
    nodes = np.zeros((len(names), 8), np.uint64)
    nodes[:, 0] = memory.ctypes.data + np.cumsum(sizes) - sizes
    nodes[:-1, 3] = nodes.ctypes.data + np.arange(64, 64 * len(names), 64, dtype=np.uint64)
    head = ffi.cast("void *", nodes.ctypes.data)
    return head, nodes, texts  # to be kept as long as the head is used


# --- a log in ------------------------------------------------------------------------------------


def read_log(path: str, into: str) -> None:
    """Read a log into an .npz of plain arrays.

    The log may be any bytes: call read_log in a process that may die.  Raises ValueError, in words:
    an unreadable log.
    """
    import json

    import numpy as np

    library, ffi = open_library()
    log = library.darshan_log_open(os.fsencode(path))
    if log == ffi.NULL:
        raise ValueError("no log of Darshan")
    facts = _facts(library, ffi, log)
    numbers = {module["number"] for module in facts["modules"]}
    arrays: dict[str, Array] = {}
    for module, (name, n, n_times) in _RECORDS.items():
        rows = []
        for record in _records(library, ffi, log, module) if module in numbers else ():
            rows.append(bytes(ffi.buffer(record, 16 + 8 * (n + n_times))))
        data = np.frombuffer(b"".join(rows), "<i8").reshape(len(rows), 2 + n + n_times)
        arrays[f"{name}_records"] = data[:, : 2 + n]
        arrays[f"{name}_times"] = data[:, 2 + n :].view("<f8")
    segments, heads, hosts = [b""], [b""], []
    for record in _records(library, ffi, log, DXT_POSIX) if DXT_POSIX in numbers else ():
        head = bytes(ffi.buffer(record, 104))
        writes, reads = (int.from_bytes(head[i : i + 8], "little", signed=True) for i in (88, 96))
        if not (0 <= writes <= _MAX_SEGMENTS and 0 <= reads <= _MAX_SEGMENTS):
            raise ValueError("a record of single calls with an impossible count")
        heads.append(head[:16] + head[88:104])
        hosts.append(head[24:88].split(b"\0")[0].decode(errors="backslashreplace"))
        segments.append(bytes(ffi.buffer(record + 104, 32 * (writes + reads))))
    arrays["segment_heads"] = np.frombuffer(b"".join(heads), "<i8").reshape(-1, 4)
    arrays["segments"] = np.frombuffer(b"".join(segments), "<i8").reshape(-1, 4)
    facts["hosts"] = hosts
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with drafts.draft(into) as file:
        np.savez(file, allow_pickle=False, **arrays)


def _records(library: Any, ffi: Any, log: Any, module: int) -> Any:
    for _ in range(_MAX_RECORDS):
        out = ffi.new("void **")
        status = library.darshan_log_get_record(log, module, out)
        if status < 0:
            raise ValueError(f"the records of module {module} are damaged")
        if status == 0 or out[0] == ffi.NULL:
            return
        yield ffi.cast("char *", out[0])
        library.darshan_free(out[0])
    raise ValueError("more records than a log can have")


def _facts(library: Any, ffi: Any, log: Any) -> dict[str, Any]:
    def text(pointer: Any) -> str:
        return str(ffi.string(pointer).decode("utf-8", "backslashreplace"))

    job = ffi.new("struct darshan_job *")
    if library.darshan_log_get_job(log, job) < 0:
        raise ValueError("the description of the job is damaged")
    times = ("start_time_sec", "start_time_nsec", "end_time_sec", "end_time_nsec")
    numbers = ("uid", *times, "nprocs", "jobid")
    facts: dict[str, Any] = {name: int(getattr(job, name)) for name in numbers}
    facts["metadata"] = bytes(ffi.buffer(job.metadata)).split(b"\0")[0].decode(errors="replace")
    memory = ffi.new("char[]", _JOB_RECORD_BYTES + 1)
    facts["program"] = "" if library.darshan_log_get_exe(log, memory) < 0 else text(memory)
    n = ffi.new("int *")
    mounts = ffi.new("struct darshan_mnt_info **")
    if library.darshan_log_get_mounts(log, mounts, n) < 0:
        raise ValueError("the list of mounts is damaged")
    facts["mounts"] = [(text(m.mnt_path), text(m.mnt_type)) for m in mounts[0][0 : n[0]]]
    modules = ffi.new("struct darshan_mod_info **")
    library.darshan_log_get_modules(log, modules, n)
    facts["modules"] = [
        {"name": text(m.name), "number": int(m.idx), "is_partial": bool(m.partial_flag)}
        for m in modules[0][0 : n[0]]
    ]
    names = ffi.new("struct darshan_name_record_info **")
    library.darshan_log_get_name_records(log, names, n)
    facts["names"] = [(int(r.id), text(r.name)) for r in names[0][0 : n[0]]]
    return facts
