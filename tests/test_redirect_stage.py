"""`penstock stage copy`, then `penstock run --staged`: what the one writes the other reads."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.explain.measures import measure
from penstock.runs.run import open_run
from penstock_lab import tier as slow_tiers
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("penstock.places.registry") is None,
    reason="this checkout has no penstock.stage yet",
)

OLD_NS = 1_600_000_000_000_000_000
NAMES = [b"a", b"b c", b"line\nbreak", b"no utf-8 \xff", b"deep/er/d"]
PROGRAM = """
import os, sys
for folder, _, names in os.walk(b"."):
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            assert file.read() == path[2:] * 100, path
            assert os.fstat(file.fileno()) == os.stat(path)
"""


@pytest.fixture
def command(tmp_path: Path, work: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs penstock in the working folder, with tiers of its own."""
    environment = os.environ | {"PENSTOCK_TIERS": str(tmp_path / "tiers.json")}

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PENSTOCK, *words],
            cwd=work, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip

    return run


@pytest.fixture
def staged(command: Callable[..., Any], tmp_path: Path, work: Path) -> Path:
    """The folder of the tier `fast`, which has a copy of each file of the working folder."""
    for name in NAMES:
        path = Path(os.fsdecode(os.fsencode(work) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name * 100)
        os.utime(path, ns=(OLD_NS, OLD_NS))
    tier = tmp_path / "fast"
    tier.mkdir()
    for words in (
        ("tiers", "add", "fast", tier, "--no-measure"),
        ("stage", "copy", work, "--to", "fast"),
    ):
        done = command(*words)
        assert done.returncode == 0, done.stderr
    return tier


@contextmanager
def mounted(folder: Path, *words: str | Path) -> Iterator[None]:
    """What `mount` with these words puts at a folder."""
    if os.geteuid():
        pytest.skip("only root may mount")
    done = subprocess.run(["mount", *words, folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def memory_at(folder: Path) -> AbstractContextManager[None]:
    """A file system of its own at a folder, which is there without it too."""
    folder.mkdir(exist_ok=True)
    return mounted(folder, "-t", "tmpfs", "-o", "size=64m", "tmpfs")


def opens_of(folder: Path) -> dict[str, int]:
    with open_run(folder) as run:
        return dict(run.sql("select outcome, sum(opens)::bigint from staged group by 1").fetchall())


def test_a_program_reads_what_was_staged(
    command: Callable[..., Any], staged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = command(
        "run", "-q", "-o", folder, "--verify", "--staged", "fast", sys.executable, "-c", PROGRAM
    )
    assert done.returncode == 0, done.stderr
    assert opens_of(folder) == {"served": len(NAMES)}


def test_copies_of_files_below_a_folder_named_url_are_known_by_their_paths(
    command: Callable[..., Any], staged: Path, tmp_path: Path, work: Path
) -> None:
    there = f"{staged}/staged{os.path.realpath(work)}"
    apart = f"{staged}/staged/url/file{os.path.realpath(work)}"  # as if it were below /url
    os.makedirs(os.path.dirname(apart))
    os.rename(there, apart)
    manifest = staged / ".penstock" / "manifest.jsonl"
    first, *lines = map(json.loads, manifest.read_text().splitlines())
    lines = [one | {"copy": f"url/file/{one['copy']}"} for one in lines]
    manifest.write_text("".join(json.dumps(one) + "\n" for one in [first, *lines]))
    folder = tmp_path / "run"
    program = f"""
{PROGRAM}
with open("a", "rb") as file:
    own = f"/proc/self/fd/{{file.fileno()}}"
    assert os.readlink(own) == os.path.abspath("a")
    assert os.stat(own) == os.stat("a")
"""
    done = command("run", "-q", "-o", folder, "--staged", "fast", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert opens_of(folder) == {"served": len(NAMES) + 1}
    # Without lines they are strays, which are known by the file that they are of.
    manifest.write_text(json.dumps(first) + "\n")
    assert (
        f"{len(NAMES)} of which the manifest tells nothing"
        in command("stage", "status", "fast").stdout
    )


def test_a_dropped_copy_is_told_and_staged_again(
    command: Callable[..., Any], staged: Path, tmp_path: Path, work: Path
) -> None:
    program = "open('a', 'r+b').close(); open('a', 'rb').close()"
    first, second = tmp_path / "first", tmp_path / "second"
    command("run", "-q", "-o", first, "--staged", "fast", sys.executable, "-c", program)
    assert opens_of(first) == {"dropped": 1, "written": 1}
    assert "1 dropped" in command("stage", "status", "fast").stdout
    assert command("stage", "copy", work, "--to", "fast").returncode == 0
    command(
        "run", "-q", "-o", second, "--staged", "fast", sys.executable, "-c", "open('a').close()"
    )
    assert opens_of(second) == {"served": 1}


def test_a_copy_that_is_not_what_was_staged_is_refused(
    command: Callable[..., Any], staged: Path, work: Path
) -> None:
    copy = Path(f"{staged}/staged{os.path.realpath(work)}/a")
    status = copy.stat()
    copy.chmod(0o600)
    copy.write_bytes(b"x" * status.st_size)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = command("run", "-q", "--verify", "--staged", "fast", "touch", "ran")
    assert done.returncode == 1
    assert "1 copy is not what was staged; nothing was run" in done.stderr
    assert not (work / "ran").exists()
    # Its cure is one.
    cures = [line.strip("`") for line in done.stderr.split("`")[1::2]]
    assert cures == [
        "penstock stage verify fast --evict",
        "penstock stage copy RUN --to fast",
    ]
    assert command("stage", "verify", "fast", "--evict").returncode == 1
    assert command("stage", "copy", work, "--to", "fast").stdout.startswith("1 file copied")
    assert command("run", "-q", "--verify", "--staged", "fast", "touch", "ran").returncode == 0
    assert (work / "ran").exists()


def test_copies_on_a_tier_that_has_become_read_only_are_served(
    command: Callable[..., Any], staged: Path, tmp_path: Path
) -> None:
    with mounted(staged, "--bind", staged):
        subprocess.run(["mount", "-o", "remount,ro,bind", staged], check=True)
        folder = tmp_path / "run"
        done = command(
            "run", "-q", "-o", folder, "--verify", "--staged", "fast", sys.executable, "-c", PROGRAM
        )
        assert done.returncode == 0, done.stderr
        assert opens_of(folder) == {"served": len(NAMES)}
        told = command("stage", "evict", "fast").stderr
        assert "cannot be written: Read-only file system; mount it to be written" in told


def test_a_tier_that_is_none_is_said_before_anything_runs(
    command: Callable[..., Any], work: Path
) -> None:
    done = command("run", "-q", "--staged", "nowhere", "touch", "ran")
    assert (done.returncode, (work / "ran").exists()) == (2, False)
    assert "no such tier" in done.stderr
    assert command("run", "-q", "--verify", "touch", "ran").returncode == 2


def test_an_unmounted_tier_is_refused_and_nothing_is_written_below_it(
    command: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    """The mount point stays, as /mnt/nvme does after a start of the machine."""
    for name in ("a", "b"):
        (work / name).write_bytes(name.encode() * 100)
        os.utime(work / name, ns=(OLD_NS, OLD_NS))
    tier, run = tmp_path / "nvme", tmp_path / "run"
    program = "open('a', 'rb').read(); open('b', 'rb').read(); open('b', 'rb').read()"
    with memory_at(tier):
        assert command("tiers", "add", "nv", tier, "--no-measure").returncode == 0
        assert command("stage", "copy", work, "--to", "nv").stdout.startswith("2 files copied")
        assert command("stage", "status", "nv").stdout.startswith("2 files staged")
    # Copies of an earlier time below the mount point are not the tier's either.
    for left in (False, True):
        if left:
            shutil.copytree(work, f"{tier}/staged{work}")
            (tier / ".penstock").mkdir()
            (tier / ".penstock" / "manifest.jsonl").write_bytes(b'{"version": 1, "tier": "nv"}\n')
        before = sorted(tier.rglob("*"))
        for words in (
            ("stage", "status", "nv"),
            ("stage", "verify", "nv"),
            ("stage", "evict", "nv"),
            ("stage", "copy", work, "--to", "nv"),
            ("stage", "fill", work, "--to", "nv", "--limit", "50MB/s"),
            ("tiers", "measure", "nv"),
            ("run", "-q", "--burst-buffer", "nv", "true"),
        ):
            done = command(*words)
            assert done.returncode == 2, (words, done.stdout)
            assert f"tier nv is not mounted: it lay on {tier}" in done.stderr, words
            assert f"mount it, or if copies are to lie here: penstock tiers add nv {tier}" in (
                done.stderr
            )
        assert "not there" in command("tiers", "list").stdout
        folder = Path(f"{run}-{left}")
        done = command(
            "run", "-o", folder, "--verify", "--staged", "nv", sys.executable, "-c", program
        )
        assert done.returncode == 0, done.stderr
        assert "the originals are read" in done.stderr
        with open_run(folder) as opened:
            told = [(one.outcome, one.opens) for one in measure(opened).staged]
        assert told == [("lost", 3)]
        assert sorted(tier.rglob("*")) == before
    # What is made anew at the mount point is the tier, empty; and so is what is said to be it.
    with memory_at(tier):
        assert command("stage", "status", "nv").stdout.startswith("0 files staged")
    assert command("tiers", "add", "nv", tier, "--no-measure").returncode == 0
    assert command("stage", "copy", work, "--to", "nv").returncode == 0


def test_a_tier_that_is_mounted_elsewhere_is_known_by_its_mark(
    command: Callable[..., Any], staged: Path, tmp_path: Path
) -> None:
    with mounted(staged, "--bind", staged):
        said = command("stage", "status", "fast").stdout
        assert said.startswith(f"{len(NAMES)} files staged")
        (staged / ".penstock" / "tier").write_text("of another tier")
        assert command("stage", "status", "fast").returncode == 2


READ = """
import sys, time
for name in sys.argv[1]:
    time.sleep(0.01)
    with open(f"data/{name}", "rb") as file:
        assert file.read() == name.encode() * 5000, name
"""


@needs_fuse
@pytest.mark.slow
@pytest.mark.parametrize("numbers", ["made up", "one for all"])
def test_files_whose_numbers_a_remount_gives_to_others_are_never_mixed_up(
    command: Callable[..., Any],
    tmp_path: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: str,
) -> None:
    """A real file system as of an archive: all files of one size, time and number of links, and of
    inode numbers that are told in the order of the first looks, or are the same."""
    program = Path(slow_tiers.__file__).with_name("slowfs.c").read_text()
    asked = "    return answer(fstatat(root, below_root(path), status, AT_SYMLINK_NOFOLLOW));\n"
    opened = "        return answer(fstat((int)file->fh, status));\n"
    alike = """{
        int failed = answer(%s);
        if (!S_ISDIR(status->st_mode)) {
            status->st_mtim = status->st_ctim = (struct timespec){1600000000, 0};
            status->st_nlink = 2;
            status->st_ino = 7;
        }
        return failed;
    }
"""
    for before in (asked, opened):
        assert program.count(before) == 1
        program = program.replace(before, alike % before.strip()[len("return answer(") : -2])
    if numbers == "made up":
        assert "use_ino = 1;" in program
        program = program.replace("use_ino = 1;", "use_ino = 0;")
    (tmp_path / "slowfs.c").write_text(program)
    monkeypatch.setattr(slow_tiers, "__file__", str(tmp_path / "tier.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    origin, tier = tmp_path / "origin", tmp_path / "fast"
    for folder in (origin, tier, work / "data"):
        folder.mkdir()
    for name in "abcd":
        (origin / name).write_bytes(name.encode() * 5000)
    assert command("tiers", "add", "fast", tier).returncode == 0

    def mounted_and(looks: str, *words: str | Path) -> str:
        with slow_tiers.slow(origin, latency_s=0.003, at=work / "data"):
            numbered = [(work / "data" / name).stat().st_ino for name in looks]
            assert len(set(numbered)) == (len(looks) if numbers == "made up" else 1)
            done = command(*words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def reading(*words: str | Path) -> tuple[str | Path, ...]:
        return ("run", "-q", *words, sys.executable, "-c", READ, "abcd")

    mounted_and("abcd", *reading("-o", tmp_path / "first"))
    mounted_and("dcab", "stage", "plan", tmp_path / "first", "--to", "fast", "-o", "plan.jsonl")
    assert len((work / "plan.jsonl").read_text().splitlines()) == 1 + 4
    mounted_and("badc", "stage", "copy", "plan.jsonl", "--to", "fast")
    assert len(list((tier / "staged").rglob("[abcd]"))) == 4
    mounted_and("cdba", "stage", "copy", "plan.jsonl", "--to", "fast")
    mounted_and("bdac", *reading("-o", tmp_path / "staged", "--staged", "fast"))
    assert opens_of(tmp_path / "staged") == {"served": 4}
