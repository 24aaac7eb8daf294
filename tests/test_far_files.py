"""The recorder makes no request to a slow file system that the program does not make."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures import PENSTOCK, strace_works
from penstock.log.header import read_header
from penstock.recording.launch import library
from penstock.runs.run import open_run
from penstock_lab import tier as slow_tiers
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

FILES = 20
FILE_BYTES = 3000

# Opens each file without asking for its attributes, as readers in C do, then one as Python does; by
# absolute and by relative path, through a link, and one to append to.  Prints how much the file
# system was asked for meanwhile: reads, bytes, writes, bytes, opens, all other requests.
PROGRAM = """
import os, struct, sys

folder, counters = sys.argv[1:]

def asked():
    with open(counters, "rb") as file:
        return struct.unpack("6Q", file.read(48))

before = asked()
for name in sorted(os.listdir(folder)):
    fd = os.open(f"{folder}/{name}", os.O_RDONLY)
    while os.read(fd, 1 << 16):
        pass
    os.close(fd)
os.chdir(folder)
for name in ("0", "1", "2"):
    fd = os.open(name, os.O_RDONLY)
    other = os.dup(fd)
    os.read(other, 100)
    os.close(fd)
    os.close(other)
with open(f"{folder}/3", "rb") as file:
    file.read()
fd = os.open(f"{folder}/4", os.O_WRONLY | os.O_APPEND)
os.write(fd, b"more")
os.close(fd)
print(*(now - then for now, then in zip(asked(), before)))
"""


@contextmanager
def far(folder: Path, mount: Path, fresh_s: int) -> Iterator[Path]:
    """Mount the folder through FUSE; yield the file with the counters of requests.  The kernel asks
    for names and attributes again after fresh_s."""
    counters = mount.with_name("counters")
    command = [slow_tiers.build(), folder, mount, counters, f"attributes_s={fresh_s}", "watch=1"]
    server = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline()
        yield counters
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def files_below(folder: Path, run: Path) -> dict[str, tuple[str, str, int]]:
    """Return the resolved path, kind and size of each recorded file below a folder."""
    query = "select path, resolved_path, kind, size_bytes from files"
    with open_run(run) as opened:
        rows = opened.sql(f"{query} where path like '{folder}/%'").fetchall()
    return {path: (resolved, kind, size) for path, resolved, kind, size in rows}


@needs_fuse
@pytest.mark.parametrize("fresh_s", [60, 0], ids=["until they are read", "never"])
def test_a_recorded_program_makes_no_request_more(tmp_path: Path, fresh_s: int) -> None:
    """After a read the kernel asks for a file's attributes again, as its access time is old.  Where
    nothing is cached, each lookup of a name is a request too."""
    folder, mount, run = tmp_path / "data", tmp_path / "far", tmp_path / "run"
    folder.mkdir()
    mount.mkdir()
    for number in range(FILES):
        (folder / str(number)).write_bytes(os.urandom(FILE_BYTES))
    (folder / "link").symlink_to("0")
    with far(folder, mount, fresh_s) as counters:
        program = [sys.executable, "-c", PROGRAM, str(mount), str(counters)]
        asked = []
        for how in ([], [], [str(PENSTOCK), "run", "-q", "-o", str(run)]):
            (folder / "4").write_bytes(bytes(FILE_BYTES))
            asked.append(subprocess.check_output([*how, *program], text=True).split())
        _, plain, recorded = asked
    assert recorded == plain
    found = files_below(mount, run)
    assert found.pop(f"{mount}/link") == (f"{mount}/0", "regular", FILE_BYTES)
    assert found.pop(f"{mount}/4") == (f"{mount}/4", "regular", FILE_BYTES + len("more"))
    assert found == {
        path: (path, "regular", FILE_BYTES)
        for path in (f"{mount}/{n}" for n in range(FILES))
        if path[-2:] != "/4"
    }


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_sandbox_that_refuses_statx_hides_no_size(
    work: Path, tmp_path: Path, workload: Callable[..., Path], number: int
) -> None:
    (work / "file").write_bytes(bytes(FILE_BYTES))
    run = tmp_path / "run"
    source = f"import os; os.close(os.open({str(work / 'file')!r}, os.O_RDONLY))"
    program = [str(workload("without_statx")), str(number), sys.executable, "-c", source]
    subprocess.run(
        [str(PENSTOCK), "run", "-q", "-o", str(run), *program], check=True, capture_output=True
    )
    path = f"{work}/file"
    assert files_below(work, run) == {path: (path, "regular", FILE_BYTES)}


def test_the_recorders_own_system_calls_are_counted(
    work: Path, tmp_path: Path, workload: Callable[..., Path]
) -> None:
    """How many more there are for 400 files than for 100, by strace and by the recorder."""
    if not strace_works():
        pytest.skip("strace is missing or may not trace here: make setup-system")
    program = workload("many_files")

    def added(files: int) -> tuple[int, int]:
        folder = tmp_path / f"run-{files}"
        folder.mkdir()
        environ = {"LD_PRELOAD": str(library()), "PENSTOCK_RUN": str(folder)}
        calls = []
        for extra in ({}, environ):
            traced = tmp_path / f"calls-{files}-{len(extra)}"
            given = [word for item in extra.items() for word in ("-E", "=".join(item))]
            command = ["strace", "-f", "-o", traced, *given, program, str(files)]
            subprocess.run(list(map(str, command)), cwd=work, check=True, capture_output=True)
            calls.append(len(traced.read_text().splitlines()))
        (log,) = folder.glob("*.events")
        return calls[1] - calls[0], read_header(log).own_calls

    few, many = added(100), added(400)
    by_strace, by_recorder = (high - low for low, high in zip(few, many, strict=True))
    assert by_recorder > 300 * 4
    assert by_recorder == pytest.approx(by_strace, rel=0.02)
