"""`penstock run --ahead` at the limits: little memory, storage that goes away, files that are cut,
programs that read past the page cache or advise the kernel themselves, and two jobs on one node.

The page cache (cachestat), the kernel's counts of a memory group and the programs' own results are
the truth.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.places.tiers import evict, resident_bytes
from penstock_lab import tier as slow_tiers
from slowtier import WHY_NO_FUSE
from test_ahead import SIZE, Ran, ahead, cold, data, started, weights
from test_ahead_programs import folder

__all__ = ["ahead", "data", "folder", "weights"]

MOST_S = 120.0
GROUP_BYTES = 64 << 20
BIG = 160 << 20


# --- memory groups -------------------------------------------------------------------------------


class Group:
    """A memory control group of this test, v1 or v2."""

    def __init__(self, path: Path, is_v2: bool) -> None:
        self.path = path
        self._limit = "memory.max" if is_v2 else "memory.limit_in_bytes"
        self._events = "memory.events" if is_v2 else "memory.oom_control"

    def limit(self, n_bytes: int) -> None:
        (self.path / self._limit).write_text(str(n_bytes))

    def kills(self) -> int:
        """Return how many processes the kernel ended for want of memory."""
        for line in (self.path / self._events).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def enter(self) -> None:
        """Bring the calling process into the group; for preexec_fn."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


def memory_group() -> tuple[Path, bool] | str:
    """Return the folder in which a group can be made and whether it is v2, or why there is none."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup")
        if "memory" in controllers.split(","):
            return root / "memory" / path.lstrip("/"), False
        if not controllers and (root / "cgroup.subtree_control").exists():
            enabled = (root / path.lstrip("/") / "cgroup.subtree_control").read_text().split()
            if "memory" in enabled:
                return root / path.lstrip("/"), True
    return "no memory controller for groups below ours"


@pytest.fixture
def group() -> Iterator[Group]:
    where = memory_group()
    if isinstance(where, str):
        pytest.skip(where)
    path, is_v2 = where[0] / f"penstock-test-{os.getpid()}", where[1]
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made: {error.strerror}")
    made_here = Group(path, is_v2)
    try:
        made_here.limit(GROUP_BYTES)
        yield made_here
    finally:
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                path.rmdir()
                break
            time.sleep(0.1)


HELD = """
memory = mapped(mmap.MADV_RANDOM)
held = bytearray(24 << 20)  # the program's own memory is not given up for what is read ahead
held[::4096] = b"x" * len(held[::4096])
time.sleep(2)
sum(memory[at] for at in range(0, len(memory), 4096))
print(len(held))
"""


def test_a_memory_group_bounds_what_is_read(folder: Path, group: Group) -> None:
    """Weights of 160 MB in a group of 64 MB: half of what it has left is read, nobody is killed."""
    head = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    big = folder / "big.safetensors"
    with big.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _ in range(BIG >> 20):
            file.write(os.urandom(1 << 20))
    evict(big)
    command, run_folder = started(folder, HELD, big)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=group.enter
    ) as launcher:
        highest = 0
        until_s = time.monotonic() + 1.5
        while launcher.poll() is None and time.monotonic() < until_s:
            highest = max(highest, resident_bytes(big) or 0)
            time.sleep(0.02)
        printed, _ = launcher.communicate(timeout=MOST_S)
    assert launcher.returncode == 0
    assert int(printed) == 24 << 20
    assert group.kills() == 0
    assert highest <= GROUP_BYTES // 2
    facts = json.loads((run_folder / "run.json").read_text())["ahead"]
    assert facts["state"] == "on"


# --- storage that goes away ----------------------------------------------------------------------

LOOKS = """
memory = mapped(mmap.MADV_RANDOM)
print("mapped", flush=True)
sys.stdin.readline()
time.sleep(0.5)
print("alive", flush=True)
"""


@pytest.fixture
def leaving(folder: Path) -> Iterator[Any]:
    """Return a slow tier with weights that are read for some seconds."""
    if WHY_NO_FUSE:
        pytest.skip(WHY_NO_FUSE)
    behind = folder / "behind"
    behind.mkdir()
    head = json.dumps({"a": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    cold(behind / "w.safetensors", len(head).to_bytes(8, "little") + head)
    with slow_tiers.slow(behind, latency_s=0.05) as tier:
        yield tier


@pytest.mark.parametrize("how", ["unmounted", "killed"])
def test_storage_that_vanishes_ends_neither_program_nor_report(
    leaving: Any, folder: Path, how: str
) -> None:
    """The program never touches a page: only the reader meets the loss."""
    place = Path(leaving.path)
    command, run_folder = started(folder, LOOKS, place / "w.safetensors")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdin
        assert launcher.stdout
        assert launcher.stdout.readline() == "mapped\n"
        time.sleep(0.3)  # the reader is at work
        if how == "unmounted":
            subprocess.run(["umount", "-l", place], check=True)
        else:
            os.kill(server_of(place), 9)
        began_s = time.monotonic()
        printed, _ = launcher.communicate("go\n", timeout=MOST_S)
    assert (launcher.returncode, printed) == (0, "alive\n")
    assert time.monotonic() - began_s < 30
    facts = json.loads((run_folder / "run.json").read_text())["ahead"]
    assert facts["state"] == "on"
    if how == "killed":  # a file that is open outlives its mount
        assert sum(entry[1] for entry in facts["files"]) <= 0.6 * SIZE, "failed reads are no reads"


def server_of(place: Path) -> int:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if words and b"slowfs" in words[0] and os.fsencode(place) in words:
                return int(entry.name)
    raise AssertionError("the tier has no server")


# --- files that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [0, 100, 10 << 20])
def test_a_file_cut_while_it_is_read_ends_no_reader(
    leaving: Any, folder: Path, ahead: Ran, n_bytes: int
) -> None:
    """Cut at several lengths while requests are under way; then another file is read as usual."""
    source = f"""
    import os
    memory = mapped()
    time.sleep(0.3)
    os.truncate(path, {n_bytes})
    time.sleep(0.5)
    path = {str(folder / "other.safetensors")!r}
    memory = mapped()
    await_resident(0.97 * len(memory))
    """
    head = json.dumps({"a": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    cold(folder / "other.safetensors", len(head).to_bytes(8, "little") + head)
    facts, _ = ahead(source, Path(leaving.path) / "w.safetensors")
    assert facts["state"] == "on", "a reader that a signal ended has another state"
    other = [entry for entry in facts["files"] if "other" in entry[6]]
    assert [entry[1] > 0.5 * SIZE for entry in other] == [True]


# --- programs with ways of their own -------------------------------------------------------------


def test_a_program_that_reads_past_the_page_cache_is_left_alone(data: Path, ahead: Ran) -> None:
    facts, printed = ahead(
        """
        import os
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        room = mmap.mmap(-1, 1 << 20)
        total = 0
        while got := os.readv(file, [room]):
            total += got
            time.sleep(0.01)
        print(total, resident_bytes(path))
        """,
        data,
    )
    total, resident = map(int, printed.split())
    assert total == data.stat().st_size
    assert resident < 1 << 20
    assert facts["files"] == []


def test_small_files_read_past_the_page_cache_do_not_fill_it(folder: Path, ahead: Ran) -> None:
    """Files that are opened by O_DIRECT are not read from memory: reading them ahead is in vain."""
    place = folder / "set"
    place.mkdir()
    for number in range(400):
        (place / f"{number:05}.bin").write_bytes(os.urandom(65536))
        evict(place / f"{number:05}.bin")
    facts, printed = ahead(
        """
        import os
        from pathlib import Path
        room = mmap.mmap(-1, 1 << 16)
        files = sorted(Path(path).iterdir())
        for file in files:
            handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
            assert os.readv(handle, [room]) == 65536
            time.sleep(0.004)
            os.close(handle)
        print(sum(map(resident_bytes, files)))
        """,
        place,
    )
    assert int(printed) < 1 << 20
    assert facts["files"] == []


def test_what_a_program_drops_is_read_ahead_once_at_most(data: Path, ahead: Ran) -> None:
    """MADV_DONTNEED and POSIX_FADV_DONTNEED as it goes: page tables show little of it."""
    facts, printed = ahead(
        """
        import os
        memory = mapped(mmap.MADV_RANDOM)
        file = os.open(path, os.O_RDONLY)
        total = 0
        for at in range(0, len(memory), 1 << 20):
            total += len(memory[at : at + (1 << 20)])
            memory.madvise(mmap.MADV_DONTNEED, at, min(1 << 20, len(memory) - at))
            os.posix_fadvise(file, at, 1 << 20, os.POSIX_FADV_DONTNEED)
            time.sleep(0.01)
        time.sleep(1)
        print(total)
        """,
        data,
    )
    assert int(printed) == data.stat().st_size
    assert sum(entry[1] for entry in facts["files"]) <= 1.02 * SIZE


def test_random_access_with_advice_is_read_as_without(data: Path, ahead: Ran) -> None:
    """MADV_RANDOM turns the kernel's read-ahead off for the program's mapping, and stays so."""
    _, printed = ahead(
        """
        memory = mapped(mmap.MADV_RANDOM)
        memory[30 << 20]
        time.sleep(0.5)
        print(resident_bytes(path))
        """,
        data,
    )
    assert int(printed) <= 65536


# --- two jobs ------------------------------------------------------------------------------------


def test_two_jobs_share_what_one_of_them_reads(weights: Path, tmp_path: Path) -> None:
    """The second begins while the first reads; when the first has ended, the second goes on."""
    first, first_folder = started(tmp_path, "memory = mapped(); time.sleep(0.05)", weights)
    source = "memory = mapped(); time.sleep(1); await_resident(0.97 * len(memory)); print('all')"
    second, second_folder = started(tmp_path, source, weights)
    with subprocess.Popen(first), subprocess.Popen(second, stdout=subprocess.PIPE) as job:
        printed, _ = job.communicate(timeout=MOST_S)
    assert printed == b"all\n"
    read = 0
    for place in (first_folder, second_folder):
        facts = json.loads((place / "run.json").read_text())["ahead"]
        read += sum(entry[1] for entry in facts["files"])
    # The requests that the first had under way at its end are in memory, and counted by none.
    assert 0.6 * SIZE < read < 1.1 * SIZE
