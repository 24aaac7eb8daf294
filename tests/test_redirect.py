"""Opens that find the staged copy of their file: which do, which do not, and that a program cannot
tell the difference.  A marked copy holds c's, its source o's: what was read says which was opened.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_lab.tier import slow
from slowtier import needs_fuse
from stagedmap import COMPARE_INODE, DROPPED_AT, STAGED_AT, Tier

SIZE = 5000
OLD_NS = 1_600_000_000_000_000_000


@pytest.fixture
def source(work: Path) -> Path:
    path = work / "staged"
    path.write_bytes(b"o" * SIZE)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


@pytest.fixture
def tier(tmp_path: Path, source: Path) -> Tier:
    """Holds a marked copy of the source."""
    tier = Tier(tmp_path / "tier", [source])
    tier.mark(source)
    return tier


@pytest.fixture
def staged(recorded: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Runs Python source with the tier's copies; `opened(name)` in it is c or o."""

    def run(tier: Tier, source: str, **options: Any) -> Any:
        prologue = (
            "def opened(path):\n    with open(path, 'rb') as file:\n        return file.read(1)\n"
        )
        environment = {"PENSTOCK_STAGED": str(tier.map)} | options.pop("environment", {})
        return recorded(prologue + source, environment=environment, **options)

    return run


def outcomes(run: Any) -> dict[str, int]:
    """Opens of staged files, by what came of them."""
    return dict(run.sql("select outcome, sum(opens)::bigint from staged group by outcome"))


# Which opens are redirected


@pytest.mark.parametrize(
    "flags",
    [(), ("-D_FILE_OFFSET_BITS=64",), ("-D_FORTIFY_SOURCE=2",)],
    ids=["", "64", "fortified"],
)
def test_every_spelling_of_an_open_finds_the_copy_and_no_stat_tells(
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    tier: Tier,
    source: Path,
    work: Path,
    flags: tuple[str, ...],
) -> None:
    (work / "link").symlink_to(source)
    said = work / "said"
    run = recorded_command(
        ["sh", "-c", f'"$0" "$1" > {said}', workload("staged_opens", *flags), source],
        environment={"PENSTOCK_STAGED": str(tier.map)},
    )
    found = dict(line.split() for line in said.read_text().splitlines())
    opens = {name: byte for name, byte in found.items() if byte in "co"}
    assert {name for name, byte in opens.items() if byte == "o"} == {"freopen", "openat2"}
    assert len(opens) == 13
    assert {name for name, answer in found.items() if answer == "n"} == set()
    assert outcomes(run) == {"served": 12}


def test_a_recorded_event_names_the_programs_path_and_the_tier(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    run = staged(tier, "import os\nassert opened('staged') == b'c'\nos.stat('staged')")
    rows = set(run.sql(f"select op, served_from from events where path = '{source}'"))
    assert {("open", "fast"), ("read", "fast"), ("stat", None)} <= rows
    assert not {path for (path,) in run.sql("select path from files")} & {str(tier.copy_of(source))}
    [(resolved,)] = run.sql("select resolved_path from files where served_from is not null")
    assert resolved == str(tier.copy_of(source))


def test_a_path_is_found_however_it_is_spelled(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    program = """
import mmap, os, pathlib, shutil, sys
path = sys.argv[1]
os.symlink(".", "folder")
assert opened("folder/staged") == b"c", "through a linked folder"
assert opened("/proc/self/cwd/staged") == b"c"
assert pathlib.Path("staged").read_bytes()[:1] == b"c"
fd = os.open(path, os.O_RDONLY)
assert opened(f"/proc/self/fd/{fd}") == opened(f"/dev/fd/{fd}") == b"c"
assert mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:1] == b"c"
shutil.copyfile("staged", "other")
assert opened("other") == b"c", "copied inside the kernel"
parent = os.open("..", os.O_RDONLY)
assert os.read(os.open("work/staged", os.O_RDONLY, dir_fd=parent), 1) == b"c"
os.chdir("..")
assert opened("work/staged") == opened("work/../work//staged") == b"c"
os.chdir("/")
assert opened(path) == opened(path[1:]) == b"c"
"""
    staged(tier, program, args=[source])


def test_names_that_are_no_utf8_and_hold_newlines_are_found(
    staged: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    source = Path(os.fsdecode(os.fsencode(work) + b"/a\xff\nb c"))
    source.write_bytes(b"o")
    tier = Tier(tmp_path / "tier", [source])
    tier.mark(source)
    run = staged(tier, "import os\nassert [opened(name) for name in os.listdir(b'.')] == [b'c']")
    assert list(run.sql("select served_from from files where path like '%b c'")) == [("fast",)]


def test_a_second_name_of_a_source_is_found_if_the_map_has_it(
    staged: Callable[..., Any], tmp_path: Path, work: Path, source: Path
) -> None:
    (work / "known").hardlink_to(source)
    (work / "unknown").hardlink_to(source)
    tier = Tier(tmp_path / "tier", [source], {str(work / "known"): source})
    tier.mark(source)
    staged(tier, "assert (opened('known'), opened('unknown')) == (b'c', b'o')")


@pytest.mark.parametrize(
    "way",
    [
        "pid = os.fork()\nif not pid: os._exit(opened('staged') != b'c')\n"
        "assert os.waitpid(pid, 0)[1] == 0",
        "import subprocess\nassert subprocess.check_output(['head', '-c1', 'staged']) == b'c'",
        "import subprocess\n"
        "assert subprocess.check_output(['head', '-c1', 'staged'], env={}) == b'c'",
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    for kind in ('fork', 'spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(kind).Pool(2) as pool:\n"
        "            assert pool.map(opened, ['staged'] * 4) == [b'c'] * 4, kind",
        "import threading\nfound = []\n"
        "ts = [threading.Thread(target=lambda: found.extend(opened('staged') for _ in range(50)))"
        " for _ in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; assert found == [b'c'] * 400",
    ],
    ids=["fork", "exec", "clean environment", "multiprocessing", "threads"],
)
def test_children_and_threads_are_served_too(
    staged: Callable[..., Any], tier: Tier, way: str
) -> None:
    staged(tier, f"import os\n{way}")


def test_a_descriptor_from_before_a_fork_is_known_as_the_programs_file(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    run = staged(
        tier,
        "import os\nfd = os.open('staged', 0)\nif not os.fork():\n"
        "    assert os.fstat(fd) == os.stat('staged')\n    os.read(fd, 1)\n    os._exit(0)\n"
        "assert os.wait()[1] == 0",
    )
    rows = run.sql("select path, served_from from events where op = 'read' and moved_bytes = 1")
    assert list(rows) == [(str(source), "fast")]


def test_a_pause_ends_no_redirection(
    recorded_command: Callable[..., Any], tier: Tier, source: Path
) -> None:
    program = "import os; assert os.read(os.open('staged', 0), 1) == b'c'"
    run = recorded_command(
        [sys.executable, "-c", program],
        options=["--paused"],
        environment={"PENSTOCK_STAGED": str(tier.map)},
    )
    assert not list(run.sql(f"from events where path = '{source}'"))


# What a program may see


def test_a_program_cannot_tell_a_copy_by_its_numbers(
    staged: Callable[..., Any], tier: Tier
) -> None:
    staged(
        tier,
        """
import io, os
fd = os.open("staged", os.O_RDONLY)
assert os.fstat(fd) == os.stat("staged") == os.stat(f"/proc/self/fd/{fd}") == os.stat(fd)
assert os.path.samefile(fd, "staged") and os.path.sameopenfile(fd, os.open("staged", 0))
assert os.readlink(f"/proc/self/fd/{fd}") == os.path.realpath("staged")
assert os.path.realpath(f"/proc/self/fd/{fd}") == os.path.realpath("staged")
assert os.path.getsize("staged") == os.fstat(fd).st_size == len(open("staged", "rb").read())
assert os.get_inheritable(fd) is False
with os.scandir(".") as entries:
    assert [entry.inode() for entry in entries if entry.name == "staged"] == [os.fstat(fd).st_ino]
assert os.dup(fd) > fd and os.open("staged", 0) == fd + 3, "the lowest free number"
""",
    )


def test_a_copy_on_an_overlay_is_the_programs_file_too(
    staged: Callable[..., Any], source: Path, overlay: Path
) -> None:
    tier = Tier(overlay, [source])
    tier.mark(source)
    assert overlay.stat().st_dev != tier.map.stat().st_dev
    run = staged(
        tier,
        "import os\nassert opened('staged') == b'c'\nfile = open('staged')\n"
        "assert os.path.samestat(os.fstat(file.fileno()), os.stat('staged'))",
    )
    assert outcomes(run) == {"served": 2}


def test_what_is_open_stays_the_program_s_file_when_the_copy_is_evicted(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    program = f"""
import importlib.util
import os
fd = os.open("staged", os.O_RDONLY)
os.unlink({str(tier.copy_of(source))!r})
assert os.fstat(fd) == os.stat("staged")
assert os.pread(fd, 1, 0) == b"c" and opened("staged") == b"o"
"""
    assert outcomes(staged(tier, program)) == {"served": 1, "gone": 1}


def test_a_source_that_changes_after_the_open_is_the_old_one_to_the_descriptor(
    staged: Callable[..., Any], tier: Tier
) -> None:
    staged(
        tier,
        """
import importlib.util
import os
before = os.stat("staged")
fd = os.open("staged", os.O_RDONLY)
with open("new", "wb") as file:
    file.write(b"n" * 7)
os.rename("new", "staged")
now = os.fstat(fd)
assert (now.st_ino, now.st_size, now.st_mtime_ns) == (
    before.st_ino, before.st_size, before.st_mtime_ns)
assert not os.path.samefile(fd, "staged") and opened("staged") == b"n"
""",
    )


def test_writing_through_proc_reaches_the_source_and_never_the_copy(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    staged(
        tier,
        "import os\nfd = os.open('staged', 0)\n"
        "with open(f'/proc/self/fd/{fd}', 'wb') as file: file.write(b'new')\n"
        "assert open('staged', 'rb').read() == b'new'",
    )
    assert source.read_bytes() == b"new"
    assert tier.copy_of(source).read_bytes() == b"c" * SIZE
    assert tier.is_dropped(source)


# What ends it: the original, and why


CHANGES = """
open(path, "r+b").close()
open(path, "ab").close()
os.close(os.open(path, os.O_WRONLY))
os.close(os.open(name, os.O_RDWR))
os.close(os.open(link, os.O_RDWR))
os.close(os.open(name, os.O_RDONLY | os.O_TRUNC)); put(path)
os.truncate(name, 10)
os.rename(name, "away"); os.rename("away", name)
put("new"); os.replace("new", name)
os.unlink(name); put(name)
shutil.copyfile("/etc/passwd", name); put(name)
assert libc.fopen(os.fsencode(name), b"r+")
""".strip().splitlines()


def test_a_program_that_changes_a_source_drops_its_copy(
    staged: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    sources = [work / f"s{number}" for number in range(len(CHANGES))]
    for number, source in enumerate(sources):
        source.write_bytes(b"o" * SIZE)
        (work / f"link{number}").symlink_to(source)
    tier = Tier(tmp_path / "tier", sources)
    for source in sources:
        tier.mark(source)
    program = f"""
import ctypes, os, shutil
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
def put(path):
    with open(path, "wb") as file:
        file.write(b"o")
for number, change in enumerate({CHANGES!r}):
    name, link = f"s{{number}}", f"link{{number}}"
    path = os.path.abspath(name)
    assert opened(path) == b"c", change
    exec(change)
    assert opened(path) == opened(name) == opened(link) == b"o", change
"""
    run = staged(tier, program)
    assert [tier.is_dropped(source) for source in sources] == [True] * len(sources)
    found = outcomes(run)
    assert found["served"] == len(CHANGES)
    assert found["dropped"] >= 3 * len(CHANGES)
    assert found["written"] >= len(CHANGES)


def test_an_open_that_may_not_write_drops_nothing(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    run = staged(
        tier,
        "import os\n"
        "for how in ('x', 'r+b'):\n"
        "    try:\n"
        "        open('staged' if how == 'x' else 'staged/', how)\n"
        "    except OSError:\n"
        "        pass\n"
        "assert opened('staged') == b'c'",
    )
    assert outcomes(run) == {"served": 1}
    assert not tier.is_dropped(source)


def rewritten(tier: Tier, source: Path) -> None:
    """Other bytes, with size, time and place as before: only the change time tells."""
    source.write_bytes(b"n" * SIZE)
    os.utime(source, ns=(OLD_NS, OLD_NS))


def replaced(tier: Tier, source: Path) -> None:
    new = source.with_name("new")
    shutil.copy2(source, new)
    new.replace(source)


def damaged(tier: Tier, source: Path) -> None:
    tier.copy_of(source).write_bytes(b"c")


def retimed(tier: Tier, source: Path) -> None:
    os.utime(tier.copy_of(source))


SINCE: list[tuple[Callable[[Tier, Path], Any], str]] = [
    (rewritten, "changed"),
    (replaced, "changed"),
    (lambda tier, source: os.utime(source), "changed"),
    (lambda tier, source: source.chmod(0o600), "changed"),
    (lambda tier, source: os.truncate(source, 1), "changed"),
    (damaged, "damaged"),
    (retimed, "damaged"),
    (lambda tier, source: tier.copy_of(source).unlink(), "gone"),
    (lambda tier, source: tier.byte(source, STAGED_AT, 0), "absent"),
    (lambda tier, source: tier.byte(source, DROPPED_AT, 1), "dropped"),
]


def test_whatever_changed_since_staging_opens_the_original_and_says_why(
    staged: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    sources = [work / f"s{number}" for number in range(len(SINCE))]
    for source in sources:
        source.write_bytes(b"o" * SIZE)
        os.utime(source, ns=(OLD_NS, OLD_NS))
    tier = Tier(tmp_path / "tier", sources)
    for source, (change, _) in zip(sources, SINCE, strict=True):
        tier.mark(source)
        change(tier, source)
    first = [source.read_bytes()[:1] for source in sources]
    run = staged(tier, f"assert [opened(f's{{n}}') for n in range({len(SINCE)})] == {first!r}")
    assert b"c" not in first
    assert outcomes(run) == dict(Counter(outcome for _, outcome in SINCE))
    assert list(run.sql("from files where served_from is not null")) == []


@needs_fuse
def test_a_server_is_asked_nothing_more_of_what_is_not_staged(
    recorded: Callable[..., Any],
    tier: Tier,
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first open in a folder finds out where its name leads: from the kernel alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    behind, far = tmp_path / "behind", work / "far"
    far.mkdir()
    for folder in ("a", "b", "c"):
        (behind / folder).mkdir(parents=True)
        (behind / folder / "file").write_bytes(b"o" * SIZE)
    program = "for name in 'abc':\n    open(f'far/{name}/file', 'rb').read()\n"
    asked = []
    for environment in ({}, {"PENSTOCK_STAGED": str(tier.map)}):
        with slow(behind, at=far) as place:  # a new mount: nothing is known of it
            recorded(program, environment=environment)
            asked.append(place.requests().metadata)
    assert asked[0] == asked[1]
    assert asked[0] >= 3


@needs_fuse
@pytest.mark.parametrize("name", ["far/file", "link"], ids=["by its path", "by a link"])
def test_a_source_that_another_machine_changes_is_found_out_though_attributes_are_cached(
    staged: Callable[..., Any],
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The kernel keeps attributes of the mount for a minute; the server's own file changes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    behind, far = tmp_path / "behind", work / "far"
    behind.mkdir()
    far.mkdir()
    (behind / "file").write_bytes(b"o" * SIZE)
    (work / "link").symlink_to("far/file")
    with slow(behind, at=far):
        tier = Tier(tmp_path / "tier", [far / "file"])
        tier.mark(far / "file")
        run = staged(
            tier,
            "import os, sys\n"
            "path, behind = sys.argv[1:]\n"
            "assert opened(path) == b'c'\n"
            "before = os.stat(path)\n"
            "with open(behind, 'r+b') as file:\n"
            "    file.write(b'n' * 5000)\n"
            "assert os.stat(path).st_mtime_ns == before.st_mtime_ns, 'nothing is cached here'\n"
            "with open(path, 'rb') as file:\n"
            "    assert file.read(1) != b'c'\n",
            args=[name, behind / "file"],
        )
    assert outcomes(run) == {"served": 1, "changed": 1}


def test_a_tier_that_vanishes_is_not_missed(staged: Callable[..., Any], tier: Tier) -> None:
    program = "import shutil, sys\nassert opened('staged') == b'c'\nshutil.rmtree(sys.argv[1])\n"
    run = staged(tier, f"{program}assert opened('staged') == b'o'", args=[tier.folder])
    assert outcomes(run) == {"served": 1, "gone": 1}


def test_a_map_that_is_cut_under_the_job_stages_nothing_more(
    staged: Callable[..., Any], tier: Tier
) -> None:
    program = "import os, sys\nassert opened('staged') == b'c'\nos.truncate(sys.argv[1], 0)\n"
    run = staged(tier, f"{program}assert opened('staged') == b'o'", args=[tier.map])
    assert outcomes(run) == {"served": 1}


def test_o_direct_opens_the_original(staged: Callable[..., Any], tier: Tier, source: Path) -> None:
    run = staged(
        tier,
        "import os, mmap\nfd = os.open('staged', os.O_DIRECT)\nmemory = mmap.mmap(-1, 8192)\n"
        "assert os.preadv(fd, [memory], 0) == 5000 and memory[:1] == b'o'",
    )
    assert outcomes(run) == {"direct": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_a_copy_gives_no_right_that_the_source_does_not_give(
    staged: Callable[..., Any], tmp_path: Path, work: Path, source: Path
) -> None:
    source.chmod(0o600)
    tier = Tier(tmp_path / "tier", [source])
    tier.copy_of(source).chmod(0o644)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder != Path("/") and folder.owner() == "root" and "pytest" in str(folder):
            folder.chmod(0o755)
    run = staged(
        tier,
        """
import importlib.util
import os
os.seteuid(65534)
try:
    os.open("staged", os.O_RDONLY)
except PermissionError:
    os.seteuid(0)
else:
    raise SystemExit("it may not be read")
""",
    )
    assert outcomes(run) == {"denied": 1}


def test_opens_that_are_for_no_bytes_of_a_file_are_left_alone(
    staged: Callable[..., Any], tier: Tier, work: Path
) -> None:
    run = staged(
        tier,
        "import os\nfor flags in (os.O_PATH, os.O_CREAT, os.O_PATH | os.O_NOFOLLOW):\n"
        "    os.close(os.open('staged', flags))\n"
        "os.listdir('.'); os.close(os.open('.', os.O_RDONLY)); os.open('/dev/null', os.O_RDONLY)\n"
        "os.mkfifo('pipe'); os.close(os.open('pipe', os.O_RDONLY | os.O_NONBLOCK))",
    )
    assert outcomes(run) == {}


def test_errors_are_the_systems(staged: Callable[..., Any], tier: Tier) -> None:
    staged(
        tier,
        """
import errno, os
def error(path, flags=0):
    try:
        os.open(path, flags)
    except OSError as error:
        return error.errno
os.symlink("staged", "link")
os.symlink("nowhere", "dangling")
assert error("absent") == error(b"") == error("dangling") == errno.ENOENT
assert error("staged/x") == errno.ENOTDIR
assert error("link", os.O_NOFOLLOW) == errno.ELOOP
assert error("staged", os.O_DIRECTORY) == errno.ENOTDIR
assert error("a" * 300) == error("b/" * 3000) == errno.ENAMETOOLONG
""",
    )


def test_a_window_in_a_program_finds_copies_too(tier: Tier, work: Path, tmp_path: Path) -> None:
    program = """
import sys
import penstock
def opened():
    with open("staged", "rb") as file:
        return file.read(1)
try:
    penstock.record("run", staged="staged")
except penstock.RecorderError as error:
    assert "no map" in str(error)
else:
    raise SystemExit("a file that is no map was taken")
with penstock.record("run", staged=sys.argv[1]):
    assert opened() == b"c"
assert opened() == b"o"
"""
    subprocess.run([sys.executable, "-c", program, tier.map], cwd=work, check=True, timeout=240)


# The map


def test_a_newer_map_is_taken_while_the_program_runs(
    staged: Callable[..., Any], tier: Tier, source: Path, work: Path
) -> None:
    later = work / "later"
    later.write_bytes(b"o")
    staged(
        tier,
        f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from stagedmap import Tier
sources = [Path("staged"), Path("later")]
assert opened("later") == b"o"
tier = Tier(Path({str(tier.folder)!r}), sources)
for source in sources:
    tier.mark(source)
assert opened("later") == b"c" == opened("staged")
""",
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PSTKSTG\0",
        bytes(4096),
        b"PSTKSTG\0" + (2).to_bytes(4, "little") + bytes(4000),
        b"\xff" * 5000,
    ],
    ids=["empty", "short", "zeros", "newer", "ones"],
)
def test_a_map_that_is_none_is_told_and_changes_nothing(
    staged: Callable[..., Any], tier: Tier, content: bytes
) -> None:
    tier.map.write_bytes(content)
    run = staged(tier, "assert opened('staged') == b'o'")
    assert list(run.sql("select value from notes where key = 'tier lost'")) != []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: needs root")
def test_a_map_of_another_user_is_refused(staged: Callable[..., Any], tier: Tier) -> None:
    os.chown(tier.map, 1234, 1234)
    run = staged(tier, "import os\nos.seteuid(0)\nassert opened('staged') == b'o'")
    assert list(run.sql("select value from notes where key = 'tier lost'")) != []


def test_an_inode_is_compared_only_where_the_map_says_so(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    with tier.map.open("r+b") as file:
        at = tier.slot_at[os.fsencode(os.path.realpath(source))]
        file.seek(at + 64)
        file.write(b"\7")
    assert outcomes(staged(tier, "assert opened('staged') == b'o'")) == {"changed": 1}
    with tier.map.open("r+b") as file:
        file.seek(at + 80)
        file.write(bytes([COMPARE_INODE & 0]))
    assert outcomes(staged(tier, "assert opened('staged') == b'c'")) == {"served": 1}


def test_the_report_says_what_came_of_the_opens(
    staged: Callable[..., Any], tier: Tier, source: Path
) -> None:
    from penstock.explain.measures import measure

    run = staged(
        tier, "for _ in range(3): opened('staged')\nopen('staged', 'ab').close()\nopened('staged')"
    )
    rows = [(row.tier, row.outcome, row.opens, row.files) for row in measure(run).staged]
    assert rows == [
        ("fast", "served", 3, 1), ("fast", "dropped", 1, None), ("fast", "written", 1, None)
    ]  # fmt: skip


def test_no_byte_is_stale_while_writers_race(tmp_path: Path) -> None:
    """lab/benchmarks/soak_redirect.py for 60 of its 2,000 rounds."""
    path = Path(__file__).parent.parent / "lab" / "benchmarks" / "soak_redirect.py"
    spec = importlib.util.spec_from_file_location("soak_redirect", path)
    assert spec is not None
    assert spec.loader is not None
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    seen, opens = soak.race(tmp_path, 60, seed=6)
    assert seen["wrong"] == 0
    assert opens["served"] > 100
    assert opens["changed"] > 0
