"""Programs whose I/O was counted by hand (tests/workloads), against what their recording holds."""

import errno
import itertools
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counting import events_of, moved_by_op, ops_of
from fixtures import PENSTOCK, thorough
from penstock.log.events import read_log
from penstock.runs.run import open_run

DATA_BYTES = 40960


@pytest.fixture
def data(work: Path) -> Path:
    path = work / "data"
    path.write_bytes(bytes(DATA_BYTES))
    return path


@pytest.fixture
def other(work: Path) -> Path:
    path = work / "other"
    path.write_bytes(bytes(DATA_BYTES))
    return path


def states(run: Any) -> list[str]:
    return [state for (state,) in run.sql("select state from processes order by start_ns")]


def reads_of(run: Any, name: str) -> list[int]:
    return [moved for op, moved in events_of(run, name, "op", "moved_bytes") if op == "read"]


# Reading and writing, in every spelling


@pytest.mark.parametrize(
    "flags",
    [(), ("-D_FILE_OFFSET_BITS=64",), ("-D_FORTIFY_SOURCE=2",), ("-fno-plt",)],
    ids=["plain", "64 bits", "fortified", "no plt"],
)
@pytest.mark.usefixtures("data")
def test_every_way_to_read_is_one_event_with_its_bytes(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], flags: tuple[str, ...]
) -> None:
    run = recorded_command([workload("reads", *flags)])
    columns = ("op", "offset_bytes", "asked_bytes", "moved_bytes", "errno")
    assert events_of(run, "data", "op", "moved_bytes", "errno") == [
        ("open", 0, 0),
        *[("read", 4096, 0)] * 10,
        ("read", 0, 0),
        ("lseek", 0, 0),
        ("read", 7, 0),
        ("readv", 256, 0),
        *[("pread", 512, 0)] * 3,
        ("preadv", 128, 0),
        ("preadv", 32, 0),
        ("pread", 10, 0),
        ("close", 0, 0),
        ("open", 0, 0),
        ("read", 5, 0),
        ("close", 0, 0),
        ("open", 0, 0),
        ("read", 0, errno.EBADF),
        ("close", 0, 0),
    ]
    reads = [row for row in events_of(run, "data", *columns) if "read" in row[0]]
    assert reads[:11] == [("read", i * 4096, 4096, 4096 if i < 10 else 0, 0) for i in range(11)]
    assert reads[11:18] == [
        ("read", 100, 7, 7, 0),
        ("readv", 107, 256, 256, 0),
        *[("pread", 1024, 512, 512, 0)] * 3,
        ("preadv", 0, 128, 128, 0),
        ("preadv", 8, 32, 32, 0),
    ]
    assert reads[18] == ("pread", 40950, 4096, 10, 0)
    assert events_of(run, "missing", "op", "errno") == [("open", errno.ENOENT)]


def test_every_way_to_write_and_to_name_a_file_is_one_event(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("writes")])
    assert events_of(run, "out", "op", "moved_bytes") == [
        ("open", 0),
        *[("write", 1000)] * 4,
        ("pwrite", 10),
        ("writev", 7),
        ("pwritev", 5),
        ("fsync", 0),
        ("fdatasync", 0),
        ("truncate", 0),
        ("fallocate", 0),
        ("close", 0),
        ("rename", 0),
        ("link", 0),
        ("unlink", 0),
    ]
    assert events_of(run, "twin", "op") == [
        ("stat",),
        ("open",),
        ("fstat",),
        ("close",),
        ("access",),
        ("stat",),
        ("stat",),
        ("truncate",),
        ("chmod",),
        ("unlink",),
    ]
    assert sorted(ops_of(run, "way").items()) == [
        ("lstat", 1),
        ("readlink", 1),
        ("symlink", 1),
        ("unlink", 1),
    ]
    assert ops_of(run, "folder") == {"mkdir": 1, "open": 1, "close": 1, "rmdir": 1}


def test_stdio_is_recorded_as_the_program_sees_it(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    (work / "text").write_text("ninechars\n" * 100)
    run = recorded_command([workload("stdio")])
    text, out = ops_of(run, "text"), ops_of(run, "out")
    assert (text["fopen"], text["fclose"], out["fopen"], out["fclose"]) == (5, 5, 1, 1)
    # fread 4, fgets 100 and the empty one, getline 100 and 1, fgetc 1,000 and 1: fscanf's number is
    # libc's.
    assert text["fread"] >= 4 + 101 + 101 + 1001
    assert moved_by_op(run, "text")["fread"] in (5 * 1000, 5 * 1000 - 1)
    assert (out["fwrite"], moved_by_op(run, "out")["fwrite"]) == (40, 1210)
    assert out["fflush"] == 1
    assert not set(text) - {"fopen", "fread", "fclose"}


def test_cxx_streams_are_recorded(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    (work / "text").write_text("ninechars\n" * 100)
    run = recorded_command([workload("streams.cc")])
    assert sum(moved_by_op(run, "out").values()) == 1000
    assert sum(moved_by_op(run, "text").values()) == 1000
    assert [error for (error,) in events_of(run, "missing", "errno")] == [errno.ENOENT]


@pytest.mark.usefixtures("data")
def test_copies_inside_the_kernel_name_both_files(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("copies")])
    assert events_of(run, "data", "op", "moved_bytes", "parse_filename(other_path)") == [
        ("open", 0, None),
        ("sendfile", 1000, "out"),
        ("copy_range", 2000, "out"),
        ("splice", 3000, events_of(run, "data", "parse_filename(other_path)")[3][0]),
        ("close", 0, None),
    ]


@pytest.mark.usefixtures("data")
def test_after_a_read_through_syscall_the_position_is_asked_anew(
    recorded: Callable[..., Any], work: Path
) -> None:
    """The recorder keeps a descriptor's position; what moved it otherwise makes it unsure."""
    (work / "data").write_bytes(bytes(1000))
    run = recorded("""
        import ctypes, os, platform
        libc = ctypes.CDLL(None)
        number = {"x86_64": 0, "aarch64": 63}[platform.machine()]
        fd = os.open("data", os.O_RDONLY)
        os.read(fd, 10)
        assert libc.syscall(number, fd, ctypes.create_string_buffer(100), 100) == 100
        os.read(fd, 50)
    """)
    rows = run.sql(
        "select offset_bytes, moved_bytes from events "
        "where path like '%/data' and op_group = 'read' order by start_ns"
    )
    assert [tuple(row) for row in rows] == [(0, 10), (10, 100), (110, 50)]


@pytest.mark.usefixtures("data")
def test_calls_through_syscall_are_decoded(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("syscalls")])
    assert ops_of(run, "data") == {"open": 1, "read": 3, "pread": 2, "lseek": 1, "close": 1}
    assert moved_by_op(run, "data") | {"open": 0} == {
        "open": 0,
        "read": 300,
        "pread": 400,
        "lseek": 0,
        "close": 0,
    }
    assert ops_of(run, "out") == {"open": 1, "write": 2, "fsync": 1, "close": 1, "unlink": 1}


@pytest.mark.usefixtures("data")
def test_asynchronous_requests_move_their_bytes_when_they_are_collected(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("aio")])
    data, out = ops_of(run, "data"), ops_of(run, "out")
    assert (data["aio_read"], data["aio_read_done"]) == (6, 6)
    assert (out["aio_write"], out["aio_write_done"]) == (3, 3)
    assert moved_by_op(run, "data")["aio_read_done"] == 6000
    assert moved_by_op(run, "out")["aio_write_done"] == 1500


@pytest.mark.usefixtures("data")
def test_mappings_are_calls_without_bytes_read(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("maps")])
    assert events_of(run, "data", "op", "offset_bytes", "asked_bytes")[1:3] == [
        ("mmap", 0, 40960),
        ("mmap", 8192, 4096),
    ]
    assert ops_of(run, "data") == {"open": 1, "mmap": 2, "close": 1}
    assert ops_of(run, "out") == {"open": 1, "truncate": 1, "mmap": 1, "close": 1}


def test_listing_is_recorded_and_relative_names_follow_the_folder(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    folder = work / "folder"
    folder.mkdir()
    for i in range(10):
        (folder / f"file{i}").write_text("hello")
    run = recorded_command([workload("folders")])
    listed = ops_of(run, "folder")
    assert (listed["opendir"], listed["closedir"]) == (1, 1)
    # Entries that libc had in its buffer are gathered into the next readdir that asks the kernel.
    assert 1 <= listed["readdir"] <= 13
    entries = events_of(run, "folder", "op", "result")
    assert sum(n for op, n in entries if op == "readdir") == 12
    assert events_of(run, "file0", "op", "moved_bytes", "path")[-3:] == [
        ("open", 0, f"{folder}/file0"),
        ("read", 5, f"{folder}/file0"),
        ("close", 0, f"{folder}/file0"),
    ]


@pytest.mark.usefixtures("data")
def test_errno_is_what_it_would_be_without_the_recorder(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("errno_kept")])
    assert ops_of(run, "data") == {"open": 1, "pread": 1000, "close": 1}


# Descriptors


@pytest.mark.usefixtures("data")
def test_closing_every_descriptor_does_not_end_the_recording(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("close_all")])
    assert reads_of(run, "data") == [10, 11, 12, 13]
    assert ops_of(run, "data")["open"] == 4
    assert states(run) == ["exited"]


@pytest.mark.usefixtures("data", "other")
def test_a_descriptor_follows_dup_over_every_number(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("dup_over")])
    assert ops_of(run, "data")["pread"] == 255
    assert ops_of(run, "other")["pread"] == 127


@pytest.mark.usefixtures("data")
def test_an_inherited_descriptor_has_its_path(
    recorded_command: Callable[..., Any], work: Path
) -> None:
    recorded_command(["sh", "-c", "cat < data > out"])
    run = recorded_command(["sh", "-c", "cat < data > out"])
    moved = moved_by_op(run, "data")
    assert moved.get("read", 0) + moved.get("copy_range", 0) == DATA_BYTES
    assert (work / "out").stat().st_size == DATA_BYTES


# Threads, signals, ends


@pytest.mark.usefixtures("data")
def test_reads_inside_a_signal_handler_are_all_recorded(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    run = recorded_command([workload("signals")])
    preads, opens = map(int, (work / "counts").read_text().split())
    assert ops_of(run, "data") == {"open": opens, "pread": preads, "close": opens - 1}


@pytest.mark.usefixtures("data")
def test_reads_at_the_end_of_threads_and_of_the_process_are_recorded(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("thread_end")])
    sizes = [moved for op, moved in events_of(run, "data", "op", "moved_bytes") if op == "pread"]
    assert {size: sizes.count(size) for size in set(sizes)} == {8: 200, 16: 200, 24: 1, 32: 1}


@pytest.mark.usefixtures("data")
def test_512_threads_at_once_lose_nothing(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("many_threads")])
    assert ops_of(run, "data") == {"open": 512, "pread": 5120, "close": 512}
    assert moved_by_op(run, "data")["pread"] == 5120 * 4096
    [(threads,)] = run.sql(
        """
        select count(distinct thread) from events
        where op = 'pread' and parse_filename(path) = 'data'
        """
    )
    assert threads == 512


@pytest.mark.parametrize("n", [2000, thorough(100_000, like="2000")])
def test_many_files_each_keep_their_name(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path, n: int
) -> None:
    run = recorded_command([workload("many_files"), str(n)])
    rows = run.sql(
        """
        select op, count(*), count(distinct path), sum(moved_bytes) from events
        where starts_with(path, ?) and regexp_matches(path, '/f\\d{7}$') group by op order by op
        """,
        [str(work)],
    )
    assert [tuple(row) for row in rows] == [
        ("close", 2 * n, n, 0),
        ("open", 2 * n, n, 0),
        ("read", n, n, 64 * n),
        ("unlink", n, n, 0),
        ("write", n, n, 64 * n),
    ]


def test_a_socket_that_leads_to_no_network_has_a_name_of_its_own(
    recorded: Callable[..., Any], work: Path
) -> None:
    run = recorded("""
    import os, socket
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], file=open("port", "w"))
    for one, other in (
        socket.socketpair(),
        (socket.create_connection(server.getsockname()), server.accept()[0]),
    ):
        os.write(one.fileno(), b"four")
        os.read(other.fileno(), 4)
    """)
    query = "select path, sum(moved_bytes)::integer from events where path like 'socket:%'"
    query += " and op = 'read' group by all order by all"
    port = (work / "port").read_text().strip()
    rows = [(f"socket:accepted:{port}", 4), ("socket:unix", 4)]
    assert [tuple(row) for row in run.sql(query)] == rows


def test_sockets_and_pipes_are_counted_and_share_a_name(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    texts = []
    for n in (10, 10_000):
        run = recorded_command([workload("many_sockets"), str(n)])
        rows = run.sql(
            """
            select path, op, file_kind, path_class, count(*), sum(moved_bytes) from events
            where path like 'socket:%' or path like 'pipe:%' group by all order by all
            """
        )
        assert [tuple(row) for row in rows] == [
            ("pipe:", "close", "pipe", "system", 2 * n, 0),
            ("pipe:", "read", "pipe", "system", n, n),
            ("pipe:", "write", "pipe", "system", n, n),
            ("socket:unix", "close", "socket", "system", 2 * n, 0),
            ("socket:unix", "read", "socket", "system", 2 * n, 2 * n),
            ("socket:unix", "write", "socket", "system", 2 * n, 2 * n),
        ]
        [log] = run.folder.glob("*.events")
        texts.append(sum(1 for _ in read_log(log).texts()))
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("data")
def test_a_cancelled_thread_leaves_its_read_in_flight_and_the_rest_whole(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("cancelled")])
    assert ops_of(run, "data") == {"open": 1, "pread": 150}
    [(in_flight,)] = run.sql(
        """
        select count(*) from events
        where op = 'read' and file_kind = 'pipe' and duration_ns is null
        """
    )
    assert in_flight == 100


@pytest.mark.usefixtures("data")
def test_constructors_of_the_program_are_recorded(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("constructor")])
    assert reads_of(run, "data") == [21, 22]


# How a process may end


@pytest.mark.parametrize(
    ("how", "status", "state"),
    [
        ("_exit", 0, {"exited", "killed"}),
        ("kill", -signal.SIGKILL, {"killed"}),
        ("segv", -signal.SIGSEGV, {"killed"}),
        ("abort", -signal.SIGABRT, {"killed"}),
    ],
)
@pytest.mark.usefixtures("data")
def test_nothing_is_lost_however_the_process_ends(
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    how: str,
    status: int,
    state: set[str],
) -> None:
    run = recorded_command([workload("killed"), how], status=status)
    assert ops_of(run, "data") == {"open": 1, "pread": 25000}
    assert set(states(run)) <= state


@pytest.mark.usefixtures("data")
def test_a_process_killed_inside_a_call_leaves_that_call_in_flight(
    tmp_path: Path, work: Path, workload: Callable[..., Path]
) -> None:
    folder = tmp_path / "run"
    command = [PENSTOCK, "run", "-q", "-o", folder, "--", workload("killed"), "hang"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE) as launched:
        assert launched.stdout is not None
        assert launched.stdout.read(1) == b"!"
        pid = pid_of_log(next(folder.glob("*.events")))
        _wait_until_it_sleeps(pid)
        os.kill(pid, signal.SIGKILL)
    run = open_run(folder)
    assert ops_of(run, "data") == {"open": 1, "pread": 25000}
    hanging = run.sql("select op, file_kind from events where duration_ns is null")
    assert list(hanging) == [("read", "pipe")]


def _wait_until_it_sleeps(pid: int) -> None:
    deadline = time.monotonic() + 240
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "S":
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.usefixtures("data")
def test_a_kill_at_any_moment_loses_nothing_that_was_acknowledged(
    tmp_path: Path, work: Path, workload: Callable[..., Path]
) -> None:
    program = workload("acknowledged")
    for number, calls in enumerate((1_000, 30_000, 200_000, 1_000_000)):
        folder = tmp_path / f"run-{number}"
        (work / "acknowledged").write_bytes(bytes(4096))
        launched = subprocess.Popen([PENSTOCK, "run", "-q", "-o", folder, "--", program], cwd=work)
        with launched, open(work / "acknowledged", "rb") as told:
            while sum(struct.unpack("4Q", os.pread(told.fileno(), 32, 0))) < calls:
                assert launched.poll() is None
                os.sched_yield()
            os.kill(next(pid_of_log(path) for path in folder.glob("*.events")), signal.SIGKILL)
        done = sum(struct.unpack("4Q", (work / "acknowledged").read_bytes()[:32]))
        with open_run(folder) as run:
            [(finished, in_flight)] = run.sql(
                """
                select count(duration_ns), count(*) - count(duration_ns) from events
                where op = 'pread' and parse_filename(path) = 'data'
                """
            )
        assert done <= finished <= done + 4
        assert in_flight <= 4


def pid_of_log(path: Path) -> int:
    return int(path.name.rsplit(".", 3)[1])


# Many processes


@pytest.mark.usefixtures("data")
def test_children_that_are_forked_beside_reading_threads_record_in_logs_of_their_own(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("fork_threads")])
    assert ops_of(run, "data") == {"open": 1, "pread": 2400}
    rows = run.sql(
        """
        select origin, count(distinct process), count(*) from events join processes using (process)
        where op = 'pread' group by origin order by origin
        """
    )
    assert [tuple(row) for row in rows] == [("fork", 8, 400), ("run", 1, 2000)]


@pytest.mark.usefixtures("data")
def test_a_vfork_child_disturbs_neither_the_parent_nor_its_own_program(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("vfork_exec"), workload("copy")])
    data = ops_of(run, "data")
    assert (data["open"], data["pread"], data["read"]) == (5 + 5, 10, 5 * 11)
    assert ops_of(run, "copy")["write"] == 5 * 10
    assert len(states(run)) == 1 + 5


@pytest.mark.usefixtures("data")
def test_every_way_to_start_a_program_is_recorded_in_it(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("spawns"), workload("copy")])
    assert ops_of(run, "data") == {"open": 8, "read": 8 * 11, "close": 8}
    assert moved_by_op(run, "copy")["write"] == 8 * DATA_BYTES


@pytest.mark.usefixtures("data")
def test_a_static_program_runs_as_ever_and_is_named_as_unseen(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    static = workload("copy", "-static")
    run = recorded_command(["sh", "-c", f"{static} data copied; true"])
    assert (work / "copied").stat().st_size == DATA_BYTES
    assert ops_of(run, "copied") == {}
    assert [program for (program,) in run.sql("select program from unseen")] == [str(static)]


# Where the import slots may be


BINDINGS = {"lazy": "-Wl,-z,lazy", "now": "-Wl,-z,now"}
RELROS = {"norelro": "-Wl,-z,norelro", "relro": "-Wl,-z,relro"}
CODES = {"pie": ("-fPIE", "-pie"), "fixed": ("-fno-pie", "-no-pie")}
PLTS = {"plt": (), "noplt": ("-fno-plt",)}
HASHES = {"gnu": "-Wl,--hash-style=gnu", "sysv": "-Wl,--hash-style=sysv"}


@pytest.mark.parametrize(
    ("binding", "relro", "code", "plt", "hashes"),
    [
        pytest.param(*kind, id=" ".join(kind))
        for kind in itertools.product(BINDINGS, RELROS, CODES, PLTS, ["gnu"])
    ]
    + [pytest.param("lazy", "relro", "pie", "plt", "sysv", id="sysv hash")],
)
@pytest.mark.usefixtures("data", "other")
def test_a_slot_is_found_wherever_the_linker_put_it(
    recorded_command: Callable[..., Any],
    tmp_path: Path,
    binding: str,
    relro: str,
    code: str,
    plt: str,
    hashes: str,
) -> None:
    links = [BINDINGS[binding], RELROS[relro], HASHES[hashes], *PLTS[plt]]
    run = recorded_command([plugin_host(tmp_path, links, CODES[code])])
    assert ops_of(run, "data") == {"open": 6, "read": 24, "close": 6}
    assert moved_by_op(run, "data")["read"] == 9 * 10 + 15 * 40
    assert ops_of(run, "other") == {"open": 2, "read": 6, "close": 2}


@pytest.mark.usefixtures("data")
def test_a_plugin_that_registers_itself_is_seen_from_the_next_look_up_on(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    """A limit (docs/limits.md): after dlopen, slots are rewritten at the next dlopen or dlsym."""
    plugin = workload("registering", "-shared", "-fPIC")
    run = recorded_command([workload("registry", "-rdynamic"), plugin])
    assert reads_of(run, "data") == [52, 52, 52]


def plugin_host(folder: Path, links: list[str], code: tuple[str, ...]) -> Path:
    """The program of plugin_host.c, the library that it is linked with, and the plug-in of that
    one, which only the library's own RUNPATH leads to."""
    sources = Path(__file__).parent / "workloads"
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
    libraries = folder / "lib"
    (libraries / "plugins").mkdir(parents=True)
    library = [*compiler, "-shared", "-fPIC", *links]
    commands = [
        [*library, "-o", libraries / "plugins/libplugin.so", sources / "plugin.c"],
        [*library, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/plugins"]
        + ["-o", libraries / "libplugin_loader.so", sources / "plugin_loader.c", "-ldl"],
        [*compiler, *links, *code, "-Wl,-rpath,$ORIGIN/lib", "-L", libraries]
        + ["-o", folder / "plugin_host", sources / "plugin_host.c", "-lplugin_loader", "-ldl"],
    ]
    for command in commands:
        subprocess.run(command, check=True)
    return folder / "plugin_host"


@pytest.mark.usefixtures("data")
def test_a_library_that_wraps_the_same_call_is_still_called(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    """Another tool's wrapper counts the reads of a copy; its counts are those without us."""
    preload = {"LD_PRELOAD": str(workload("interposer", "-shared", "-fPIC"))}
    copy = [workload("copy"), "data", "copied"]
    subprocess.run(copy, cwd=work, env=os.environ | preload, check=True)
    alone = (work / "reads-copy").read_text()
    run = recorded_command(copy, environment=preload)
    assert (alone, (work / "reads-copy").read_text()) == ("11\n", "11\n")
    assert ops_of(run, "data") == {"open": 1, "read": 11, "close": 1}


# Python


def test_ten_reads_of_4096_bytes_are_ten_events(recorded: Callable[..., Any], data: Path) -> None:
    run = recorded("""
        with open("data", "rb", buffering=0) as file:
            for _ in range(10):
                file.read(4096)
    """)
    assert reads_of(run, data.name) == [4096] * 10


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.usefixtures("data")
def test_workers_of_every_start_method_are_recorded(
    recorded: Callable[..., Any], method: str
) -> None:
    run = recorded(
        """
        import multiprocessing, sys

        def read(i):
            with open("data", "rb", buffering=0) as file:
                return len(file.read(100 + i))

        if __name__ == "__main__":
            with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
                assert sum(pool.map(read, range(50))) == 50 * 100 + sum(range(50))
        """,
        args=[method],
    )
    assert (ops_of(run, "data")["open"], ops_of(run, "data")["read"]) == (50, 50)
    assert moved_by_op(run, "data")["read"] == 50 * 100 + sum(range(50))


@pytest.mark.parametrize(
    "leave", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)", "raise SystemExit(0)"]
)
@pytest.mark.usefixtures("data")
def test_a_forked_child_is_whole_however_it_leaves(
    recorded: Callable[..., Any], leave: str
) -> None:
    run = recorded(f"""
        import os, sys
        fd = os.open("data", os.O_RDONLY)
        pid = os.fork()
        if pid == 0:
            for i in range(2000):
                os.pread(fd, 10, i)
            {leave}
        os.waitpid(pid, 0)
        os.pread(fd, 11, 0)
    """)
    assert ops_of(run, "data")["pread"] == 2001


def test_a_window_records_what_lies_inside_it(recorded_command: Callable[..., Any]) -> None:
    """`penstock.record` in a process that nothing was preloaded into, any number of times."""
    pytest.importorskip("penstock.recording.recorder")


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_a_program_that_replaces_itself_keeps_both_halves(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], data: Path
) -> None:
    copy = workload("copy")
    run = recorded_command(["bash", "-c", f"read -r -n 5 x < {data.name}; exec {copy} data copy"])
    assert ops_of(run, "copy")["write"] == 10
    assert "execed" in states(run)
