"""What the table of hooks misses, counted from below.

Every system call of a program passes the audit (tests/audit/audit.c); those that touch files
outside a recorded call are the table's holes.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import penstock

# libc reads these for itself (time zone, number of processors, character sets, names of users): its
# own calls pass no import slot.
LIBC_READS = ("/etc/", "/sys/devices/system/cpu", "/proc/", "/usr/lib/", "/usr/share/zoneinfo")
FILE_CALLS = {"open", "openat", "read", "pread64", "write", "pwrite64", "writev", "readv", "unlink"}
FILE_CALLS |= {
    "rename",
    "stat",
    "lstat",
    "statx",
    "fsync",
    "ftruncate",
    "copy_file_range",
    "sendfile",
}

PROGRAMS = {
    "python": """
import gzip, mmap, os, shutil, sqlite3, tempfile, zipfile
open("a", "w").write("hello"); open("a").read()
shutil.copy("a", "b"); os.rename("b", "c"); os.stat("c"); os.listdir("."); os.unlink("c")
gzip.open("g", "wb").write(b"x" * 9999); gzip.open("g").read()
zipfile.ZipFile("z", "w").write("a"); zipfile.ZipFile("z").read("a")
sqlite3.connect("d").execute("create table t (x)").connection.commit()
with open("a", "rb") as file: mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:]
with tempfile.TemporaryFile() as file: file.write(b"x")
""",
    "numpy": """
import numpy
numpy.save("n.npy", numpy.zeros(1000)); numpy.load("n.npy"); numpy.load("n.npy", mmap_mode="r")
numpy.zeros(10).tofile("n.bin"); numpy.fromfile("n.bin"); numpy.memmap("n.bin", dtype="f8")
numpy.savez("n.npz", a=numpy.zeros(3)); dict(numpy.load("n.npz"))
""",
    "PIL": """
from PIL import Image
for suffix in ("jpg", "png", "tif", "webp"):
    Image.new("RGB", (64, 64)).save("i." + suffix); Image.open("i." + suffix).load()
""",
    "torch": """
import torch
torch.save(torch.zeros(1000), "t.pt"); torch.load("t.pt"); torch.load("t.pt", mmap=True)
torch.save(torch.zeros(9), "l.pt", _use_new_zipfile_serialization=False); torch.load("l.pt")
torch.from_file("f", size=10, shared=True)
""",
    "lmdb": """
import lmdb
env = lmdb.open("db", map_size=1 << 20)
with env.begin(write=True) as transaction: transaction.put(b"k", b"v" * 999)
with env.begin() as transaction: transaction.get(b"k")
""",
}


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("audit") / "audit.so"
    source = Path(__file__).parent / "audit" / "audit.c"
    compiler = [os.environ.get("CC", "cc"), "-O1", "-Wall", "-Wextra", "-fPIC", "-shared"]
    subprocess.run([*compiler, source, "-o", library, "-ldl", "-pthread"], check=True)
    return library


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="syscall user dispatch is x86's here")
@pytest.mark.parametrize("package", PROGRAMS)
def test_no_call_on_a_file_of_the_program_misses_the_table(
    package: str, audit: Path, tmp_path: Path
) -> None:
    if not importlib.util.find_spec(package if package != "python" else "os"):
        pytest.skip(f"{package} is not installed")
    inside, missed, paths = audited(PROGRAMS[package], audit, tmp_path)
    foreign = [path for path in paths if path and not path.startswith(LIBC_READS)]
    assert foreign == []
    # Each file that libc opens for itself is one open and at most three reads.
    opened = sum(1 for path in paths if path)
    lost = {call: n for call, n in missed.items() if call in FILE_CALLS}
    assert sum(lost.values()) <= 4 * opened, (lost, paths)
    assert inside["openat"] + inside["open"] > 10  # the audit was on, and so was the recorder


def test_the_audit_sees_a_call_that_passes_no_slot(audit: Path, tmp_path: Path) -> None:
    program = """
import ctypes
libc = ctypes.CDLL(None); libc.setmntent.restype = ctypes.c_void_p
assert libc.setmntent(b"seen-by-libc-only", b"w")
"""
    _, missed, paths = audited(program, audit, tmp_path)
    assert missed["openat"] >= 1
    assert "seen-by-libc-only" in paths


def audited(
    program: str, audit: Path, folder: Path
) -> tuple[Counter[str], Counter[str], list[str]]:
    """(system calls inside recorded ones, missed ones, the paths that missed ones named)."""
    recorder = Path(penstock.__file__).parent / "librec.so"
    (folder / "run").mkdir()
    (folder / "work").mkdir()
    environment = os.environ | {
        "LD_PRELOAD": f"{recorder}:{audit}",
        "AUDIT_OUT": str(folder / "audit"),
        "PENSTOCK_RUN": str(folder / "run"),
    }
    subprocess.run(
        [sys.executable, "-c", program], cwd=folder / "work", env=environment, check=True
    )
    names = call_names()
    inside: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    paths = []
    for line in (folder / "audit").read_text().splitlines():
        if line.startswith("missed "):
            paths.append(line.split(" ", 2)[2])
            continue
        number, in_call, _own, _loader, outside = map(int, line.split())
        inside[names[number]] += in_call
        missed[names[number]] += outside
    return inside, missed, paths


def call_names() -> dict[int, str]:
    """The kernel's numbers, from its own header."""
    header = subprocess.run(
        [
            os.environ.get("CC", "cc"),
            "-E",
            "-dM",
            "-include",
            "sys/syscall.h",
            "-x",
            "c",
            "/dev/null",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {int(n): name for name, n in re.findall(r"#define __NR_(\w+) (\d+)", header)}
