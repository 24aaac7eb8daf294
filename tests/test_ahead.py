"""`penstock run --ahead`: mapped files come into memory before the program touches them.  The page
cache (cachestat, mincore) and the kernel's count of page faults are the truth."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.installed import native_part
from penstock.places.tiers import MEMORY_KINDS, evict, mount_of, resident_bytes
from penstock.recording.ahead import FileAhead

pytestmark = pytest.mark.skipif(
    not Path(native_part("readahead")).exists(), reason="the reader is not built: make native"
)

SIZE = 48 << 20
MOST_S = 120.0

# What the programs below share: the truth by cachestat, and waiting for it.
HEAD = """
import mmap, random, resource, sys, time
from penstock.places.tiers import resident_bytes

path = sys.argv[1]

def mapped(advice=None):
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if advice is not None:
        memory.madvise(advice)
    return memory

def await_resident(least_bytes):
    until_s = time.monotonic() + 120
    while resident_bytes(path) < least_bytes:
        if time.monotonic() > until_s:
            sys.exit(f"only {resident_bytes(path)} of {least_bytes} bytes in memory")
        time.sleep(0.01)

def major_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a cold file without a known format."""
    if mount_of(tmp_path).kind in MEMORY_KINDS:
        pytest.skip("temporary files are in memory here: nothing can be read ahead")
    return cold(tmp_path / "data.bin", b"")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a cold file that begins as safetensors do."""
    if mount_of(tmp_path).kind in MEMORY_KINDS:
        pytest.skip("temporary files are in memory here: nothing can be read ahead")
    head = json.dumps({"a": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    return cold(tmp_path / "w.safetensors", len(head).to_bytes(8, "little") + head)


def cold(path: Path, head: bytes) -> Path:
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        file.write(head)
        for _ in range(SIZE >> 20):
            file.write(block)
    evict(path)
    return path


Ran = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def ahead(tmp_path: Path) -> Ran:
    """Runs Python source under `penstock run --ahead`: the facts of the run, and its output."""

    def run(source: str, path: Path, *options: str) -> tuple[dict[str, Any], str]:
        command, folder = started(tmp_path, source, path, *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        facts: dict[str, Any] = json.loads((folder / "run.json").read_text())["ahead"]
        return facts, done.stdout

    return run


def started(
    tmp_path: Path, source: str, path: Path, *options: str
) -> tuple[list[str | Path], Path]:
    number = len(list(tmp_path.glob("program-*")))
    program = tmp_path / f"program-{number}.py"
    program.write_text(HEAD + textwrap.dedent(source))
    folder = tmp_path / f"run-{number}"
    words = [PENSTOCK, "run", "-q", "-o", folder, "--ahead", *options]
    return [*words, sys.executable, program, path], folder


def only(facts: dict[str, Any]) -> FileAhead:
    (words,) = facts["files"]
    return FileAhead(*words)


def test_weights_are_read_as_a_whole_when_they_are_mapped(weights: Path, ahead: Ran) -> None:
    facts, printed = ahead(
        """
        memory = mapped()
        await_resident(0.97 * len(memory))
        before = major_faults()
        sum(memory[at] for at in range(0, len(memory), 4096))
        print(major_faults() - before)
        time.sleep(2)  # as a training holds its weights: on a busy machine too, touches are seen
        """,
        weights,
    )
    file = only(facts)
    assert int(printed) <= 20, "page faults waited for the disk"
    assert (file.order, file.path, facts["state"]) == ("weights", str(weights), "on")
    assert 0.9 * SIZE < file.read_bytes <= weights.stat().st_size
    assert 0.9 * file.read_bytes < file.hit_bytes <= file.read_bytes


def test_the_report_lists_files_read_ahead(weights: Path, recorded: Callable[..., Any]) -> None:
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of

    source = f"{HEAD}\nmemory = mapped()\nawait_resident(0.97 * len(memory))"
    run = recorded(source, args=[weights], options=["--ahead"])
    table = report_of(measure(run)).table("ahead")
    (row,) = [dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows]
    assert (row["path"], row["access"], row["why"]) == (str(weights), "weights", None)
    assert row["ahead_bytes"] > 0.9 * SIZE


def test_a_file_read_in_order_is_read_ahead_of_the_program(data: Path, ahead: Ran) -> None:
    facts, _ = ahead(
        """
        memory = mapped(mmap.MADV_RANDOM)  # the kernel reads nothing ahead
        for at in range(0, 4 << 20, 4096):
            memory[at]
        await_resident(16 << 20)
        for at in range(0, len(memory), 4096):
            memory[at]
        time.sleep(0.5)
        """,
        data,
    )
    file = only(facts)
    assert file.order == "in order"
    assert file.read_bytes > 12 << 20
    assert file.hit_bytes > 0.9 * file.read_bytes


def test_a_file_read_at_random_is_read_as_a_whole(data: Path, ahead: Ran) -> None:
    facts, _ = ahead(
        """
        memory = mapped(mmap.MADV_RANDOM)
        places = list(range(0, len(memory), 65536))
        random.Random(1).shuffle(places)
        for at in places[:len(places) // 2]:
            memory[at]
            time.sleep(0.0005)  # as a training reads
        await_resident(0.97 * len(memory))
        """,
        data,
    )
    file = only(facts)
    assert file.order == "random"
    assert file.read_bytes > 0.3 * SIZE


def test_a_file_of_which_little_is_touched_stays_on_the_disk(data: Path, ahead: Ran) -> None:
    facts, _ = ahead(
        """
        memory = mapped(mmap.MADV_RANDOM)
        for at in (0, 20 << 20, 30 << 20):
            memory[at]
        time.sleep(1)
        """,
        data,
    )
    assert facts["files"] == []
    assert (resident_bytes(data) or 0) < 1 << 20


def test_no_more_is_read_than_the_limit_allows(weights: Path, ahead: Ran) -> None:
    facts, printed = ahead(
        """
        memory = mapped(mmap.MADV_RANDOM)
        await_resident(7 << 20)
        time.sleep(0.5)
        print(resident_bytes(path))
        """,
        weights,
        "--ahead-limit",
        "8MiB",
    )
    assert int(printed) <= 9 << 20
    assert only(facts).read_bytes <= 8 << 20


def test_nothing_more_is_read_for_a_program_that_has_ended(weights: Path, ahead: Ran) -> None:
    facts, _ = ahead(
        """
        import subprocess
        subprocess.run([sys.executable, "-c", '''
        import mmap, sys, time
        from penstock.places.tiers import resident_bytes
        with open(sys.argv[1], "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        while resident_bytes(sys.argv[1]) < 7 << 20:
            time.sleep(0.01)
        ''', path], check=True)
        time.sleep(1.8)  # the reader looks at the free memory each second
        """,
        weights,
        "--ahead-limit",
        "8MiB",
    )
    assert only(facts).read_bytes <= 8 << 20


def test_weights_that_nobody_touches_leave_the_memory_again(tmp_path: Path, ahead: Ran) -> None:
    big = tmp_path / "big.safetensors"
    head = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    with big.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _ in range(80):
            file.write(os.urandom(1 << 20))
    evict(big)
    facts, _ = ahead(
        """
        memory = mapped(mmap.MADV_RANDOM)
        await_resident(0.97 * len(memory))
        memory.close()
        while resident_bytes(path) > 4 << 20:
            time.sleep(0.05)
        """,
        big,
    )
    assert only(facts).order == "off"
    assert only(facts).why == "weights that the program did not touch"


def test_what_is_in_memory_is_not_read_again(weights: Path, ahead: Ran) -> None:
    weights.read_bytes()
    if (resident_bytes(weights) or 0) < weights.stat().st_size:
        pytest.skip("this kernel reclaims what was read a moment ago")
    facts, _ = ahead("memory = mapped(); time.sleep(0.5)", weights)
    assert facts["files"] == []


def test_a_file_that_is_cut_meanwhile_ends_nothing(weights: Path, ahead: Ran) -> None:
    facts, _ = ahead(
        """
        import os
        memory = mapped()
        await_resident(1 << 20)
        os.truncate(path, 100)
        time.sleep(0.3)
        """,
        weights,
    )
    assert facts["state"] == "on"


def test_two_jobs_on_a_node_read_a_file_once(weights: Path, tmp_path: Path) -> None:
    source = "memory = mapped(); await_resident(0.97 * len(memory))"
    jobs = []
    for _ in range(2):
        command, folder = started(tmp_path, source, weights)
        jobs.append((subprocess.Popen(command), folder))
    assert [process.wait(240) for process, _ in jobs] == [0, 0]
    facts = [json.loads((folder / "run.json").read_text())["ahead"] for _, folder in jobs]
    total = sum(FileAhead(*words).read_bytes for fact in facts for words in fact["files"])
    assert 0.9 * SIZE < total < 1.1 * SIZE


LOOK = """
import os
for name in os.listdir("/proc"):
    try:
        words = open(f"/proc/{name}/stat").read() if name.isdecimal() else ""
    except OSError:
        continue
    if "(readahead)" in words and int(words.rpartition(")")[2].split()[1]) == os.getppid():
        print(name, flush=True)
"""


def test_without_the_option_nothing_runs_beside_the_program(recorded: Callable[..., Any]) -> None:
    run = recorded(f"{LOOK}\nprint('looked')")
    facts = json.loads((run.folder / "run.json").read_text())
    assert "ahead" not in facts


def test_the_reader_ends_with_a_killed_launcher(weights: Path, tmp_path: Path) -> None:
    command, _ = started(tmp_path, f"{LOOK}\nimport time; time.sleep(60)", weights)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        reader = int(launcher.stdout.readline())
        children = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal()]
        programs = [pid for pid in children if parent(pid) == launcher.pid and pid != reader]
        launcher.kill()
        until_s = time.monotonic() + MOST_S
        while Path(f"/proc/{reader}/comm").exists() and time.monotonic() < until_s:
            if Path(f"/proc/{reader}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.01)
        assert time.monotonic() < until_s
        for pid in programs:
            os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_limit_needs_the_option() -> None:
    done = subprocess.run(
        [PENSTOCK, "run", "--ahead-limit", "1GiB", "true"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--ahead-limit goes with --ahead" in done.stderr


@pytest.mark.parametrize(
    "line", [b"", b"weights\t1\t2\t3\t4\t", b"weights\tx\t2\t3\t4\t\t/a", b"a\t-1\t2\t3\t4\t\t/a"]
)
def test_a_damaged_line_is_no_file(line: bytes) -> None:
    assert FileAhead.parse(line) is None


def test_a_line_is_a_file() -> None:
    path = b"/data/\xff of two words"
    parsed = FileAhead.parse(b"random\t1\t2\t3\t4\t\t" + path)
    assert parsed == FileAhead("random", 1, 2, 3, 4, "", os.fsdecode(path))
