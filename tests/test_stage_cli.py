"""penstock tiers and penstock stage as they are typed, from a recorded run to a served copy."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from fixtures import PENSTOCK
from penstock.places import registry
from penstock.places.registry import Costs

Say = Callable[..., subprocess.CompletedProcess[str]]

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Runs a command in tmp_path, where a tier named fast was measured to cost next to nothing."""
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    (tmp_path / "tier").mkdir()
    registry.add("fast", tmp_path / "tier")
    registry.set_measured("fast", Costs(1e-6, 1e-7, 1e-11), [])

    def run(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PENSTOCK, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.bin").write_bytes(os.urandom(50_000))
    return sorted(folder.iterdir())


@needs_library
def test_from_a_run_to_copies_that_are_verified_and_evicted(
    say: Say, files: list[Path], tmp_path: Path
) -> None:
    if (tmp_path / "tier").stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("the temporary folder is where the files of this test would be")
    program = tmp_path / "train.py"
    program.write_text(
        "import glob, penstock\n"
        "for number, path in enumerate(sorted(glob.glob('data/*.bin'))):\n"
        "    with penstock.step(number):\n"
        "        open(path, 'rb').read()\n"
    )
    say("run", "-q", "-o", "run", sys.executable, program)
    told = json.loads(say("stage", "plan", "run", "--to", "fast", "--json").stdout)
    # The tier lies on the sources' own device here: the plan says so and takes nothing.
    assert told["files"] == 0
    assert any("same device as fast: no gain" in note for note in told["notes"])
    assert told["all_files"] == 8
    chosen = say("stage", "copy", "run", "--to", "fast").stderr
    assert "0 files, nothing to gain\n" in chosen
    assert "lie on fast's own device: name a tier on another" in chosen
    said = say("stage", "copy", "data", "--to", "fast")
    assert said.stdout.startswith("8 files copied, 400 kB")
    assert "8 of 8 files lie on the same device" in said.stderr
    assert say("stage", "status", "fast").stdout.startswith("8 files staged, 400 kB")
    assert "copies of 8 files, 400 kB read, 0 damaged" in say("stage", "verify", "fast").stdout
    copy = tmp_path / "tier" / "staged" / str(files[0]).lstrip("/")
    copy.chmod(0o600)
    copy.write_bytes(b"damaged")
    told = say("stage", "verify", "fast", status=1).stderr.splitlines()
    assert told[0].endswith("7 bytes instead of 50,000")
    assert told[1].startswith("penstock: penstock stage verify fast --evict removes them")
    told = say("stage", "verify", "fast", "--evict", status=1).stderr.splitlines()
    assert told[1].startswith("penstock: these are removed")
    assert say("stage", "copy", "data", "--to", "fast").stdout.startswith("1 file copied")
    said = say("stage", "evict", "fast", "--free", "100KB")
    assert said.stdout == "copies of 2 files removed, 106 kB more room than before\n"
    assert not said.stderr
    assert json.loads(say("stage", "status", "fast", "--json").stdout)["copies"] == 6
    said = say("stage", "evict", "fast", "--free", "1GB")
    assert "copies of 6 files removed" in said.stdout
    assert "less than 1.00 GB: no copy is left on fast" in said.stderr
    assert "copies of 0 files removed" in say("stage", "evict", "fast").stdout
    (tmp_path / "tier").rename(tmp_path / "away")
    assert "tier fast is not there" in say("stage", "plan", "run", "--to", "fast", status=2).stderr


def test_what_cannot_be_copied_is_refused_before_anything_is_done(say: Say, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    copy = ("stage", "copy", "data", "--to", "fast")
    said = say(*copy, "--rank", "4", "--world-size", "4", status=2).stderr
    assert "--rank 4 of --world-size 4: ranks count from 0 to one less" in said
    said = say(*copy, "--mpi", "--rank", "1", status=2).stderr
    assert "--mpi knows the rank" in said
    said = say("stage", "copy", "dat", "--to", "fast", status=2).stderr
    assert "dat: no run, plan, folder or file is there" in said
    said = say("stage", "fill", "s3://bucket/a", "--to", "fast", status=2).stderr
    assert "penstock stage copy s3://bucket/a --to fast" in said
    assert not (tmp_path / "tier" / "staged").exists()


@needs_library
def test_a_plan_for_another_device_is_copied_in_its_order(
    say: Say, files: list[Path], tmp_path: Path
) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to stage to")
    folder = memory / f"penstock-test-{os.getpid()}"
    folder.mkdir()
    try:
        say("tiers", "add", "memory", folder, "--capacity", "1MB", "--no-measure")
        registry.set_measured("memory", Costs(1e-6, 1e-7, 1e-11), [])
        program = tmp_path / "train.py"
        program.write_text(
            "import glob, penstock\n"
            "for number, path in enumerate(sorted(glob.glob('data/*.bin'))):\n"
            "    with penstock.step(number):\n"
            "        open(path, 'rb').read()\n"
        )
        say("run", "-q", "-o", "run", sys.executable, program)
        shown = say(
            "stage", "plan", "run", "--to", "memory", "--budget", "250KB", "-o", "plan.jsonl"
        ).stdout
        assert "4 files of 8, 200 kB of 400 kB: expected to remove" in shown
        assert "random" in shown
        copied = say("stage", "copy", "plan.jsonl", "--to", "memory", "--json").stdout
        assert json.loads(copied)["copied"] == 4
        # A run that read copies does not tell what they bring; those that are there stay.
        say("run", "-q", "-o", "again", "--staged", "memory", sys.executable, program)
        asked = ("stage", "plan", "again", "--to", "memory", "--json")
        held = json.loads(say(*asked, "--budget", "250KB").stdout)
        assert (held["files"], held["size_bytes"], held["gain_s"]) == (4, 200_000, 0.0)
        assert any("4 files read from copies on memory, which" in note for note in held["notes"])
        assert any("none of 4 other files fits" in note for note in held["notes"])
        assert not any("same device" in note for note in held["notes"])
        assert json.loads(say(*asked).stdout)["files"] == 8
        assert json.loads(say("tiers", "list", "--json").stdout)[1]["name"] == "memory"
        assert "200 kB" in say("tiers", "list").stdout
        assert "copies of 4 files removed" in say("stage", "evict", "memory").stdout
        gone = json.loads(say(*asked).stdout)
        assert (gone["files"], gone["all_files"]) == (4, 8)
        assert any("4 files read from copies that memory does not" in n for n in gone["notes"])
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def test_filling_in_the_background_returns_when_the_map_is_there(
    say: Say, files: list[Path], tmp_path: Path
) -> None:
    said = say("stage", "fill", "data", "--to", "fast", "--limit", "1MB/s", "--background").stdout
    assert said.startswith("filling fast at 1 MB/s, process ")
    assert (tmp_path / "tier" / ".penstock" / "staged.map").exists()
    pid = int(said.split("process ")[1].split(";")[0])
    deadline_s = time.monotonic() + 240
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline_s:
        if not Path(f"/proc/{pid}/cmdline").read_bytes():
            break  # it has ended and waits for its parent
        time.sleep(0.05)
    assert json.loads(say("stage", "status", "fast", "--json").stdout)["copies"] == 8


def test_what_a_filling_in_the_background_says_at_its_end_is_in_its_log(
    say: Say, files: list[Path], tmp_path: Path
) -> None:
    registry.add("fast", tmp_path / "tier", 6 * 53_248)
    (tmp_path / "pipe").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "data" / "pipe")
    said = say("stage", "fill", "data", "--to", "fast", "--limit", "50MB/s", "--background").stdout
    pid, log = int(said.split("process ")[1].split(";")[0]), said.rpartition("; ")[2].strip()
    deadline_s = time.monotonic() + 240
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline_s:
        if not Path(f"/proc/{pid}/cmdline").read_bytes():
            break
        time.sleep(0.05)
    told = (tmp_path / log).read_text()
    assert "6 files copied" in told
    assert "1 file left out: no regular file" in told
    assert "2 files left out: fast holds no more" in told


def test_a_file_url_is_the_folder_that_it_names(
    say: Say, files: list[Path], tmp_path: Path
) -> None:
    said = say("stage", "copy", f"file://{tmp_path}/data", "--to", "fast").stdout
    assert said.startswith("8 files copied")
    assert "penstock run --staged fast COMMAND reads them" in said
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "reads them" not in say("stage", "copy", empty, "--to", "fast").stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("stage", "copy", "data", "--to", "slow"), "no such tier (fast)"),
        (("stage", "copy", "nowhere", "--to", "fast"), "no run, plan, folder or file is there"),
        (("stage", "copy", "data", "--to", "fast", "--budget", "1GB"), "--budget chooses files"),
        (("stage", "copy", "data", "--to", "fast", "--policy", "none"), "--policy chooses files"),
        (
            ("stage", "copy", "s3://a/b", "--to", "fast", "--budget", "1GB"),
            "--budget chooses files",
        ),
        (("stage", "copy", "data", "--to", "fast", "--rank", "3"), "--rank 3 of --world-size 1"),
        (("stage", "copy", "data", "--to", "fast", "--limit", "fast"), "write 500MB or 1GiB"),
        (("stage", "fill", "data", "--to", "fast"), "give --limit 50MB/s"),
        (("stage", "evict", "fast", "--free", "1GB", "--stale"), "not both"),
        (("tiers", "add", "no name", "."), "a tier's name is letters"),
        (("tiers", "add", "x", "nowhere"), "no such folder; mkdir -p nowhere"),
        (("tiers", "add", "x", "no where"), "no such folder; mkdir -p 'no where'"),
        (("tiers", "add", "x", "/etc/passwd"), "/etc/passwd: no folder; name one"),
        (("tiers", "remove", "slow"), "no such tier (fast)"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    say: Say, files: list[Path], words: tuple[str, ...], sentence: str
) -> None:
    said = say(*words, status=2).stderr
    assert sentence in said
    assert said.count("\n") == 1


def test_a_tier_of_more_than_its_file_system_holds_is_told(say: Say, tmp_path: Path) -> None:
    (tmp_path / "huge").mkdir()
    said = say("tiers", "add", "huge", "huge", "--capacity", "9000TB", "--no-measure")
    assert "huge: its capacity is 9.00 PB, and its file system holds " in said.stderr
    assert not say("tiers", "add", "huge", "huge", "--capacity", "1MB", "--no-measure").stderr


def test_a_tier_that_is_too_small_to_be_measured_may_be_added_without(
    monkeypatch: pytest.MonkeyPatch, say: Say, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    from penstock.cli.stage import tiers_group
    from penstock.errors import TierError
    from penstock.places import tiers

    (tmp_path / "small").mkdir()
    monkeypatch.setattr(tiers, "free_bytes", lambda folder: 1 << 20)
    told = CliRunner().invoke(tiers_group, ["add", "small", str(tmp_path / "small")])
    assert isinstance(told.exception, TierError)
    assert "full: 1 MiB are free" in str(told.exception)
    assert "--no-measure" in str(told.exception)
    assert [one.name for one in registry.registered()] == ["fast"]


def test_every_command_explains_itself_with_an_example(say: Say) -> None:
    from penstock.cli.stage import stage_group, tiers_group

    for group in (stage_group, tiers_group):
        for name in group.commands:
            assert f"penstock {group.name} {name}" in say(group.name or "", name, "--help").stdout


@needs_library
def test_a_damaged_copy_of_an_odd_name_is_told_on_one_line(say: Say, tmp_path: Path) -> None:
    source = tmp_path / "odd"
    source.mkdir()
    name = os.fsdecode(b"new\nline\xff")
    (source / name).write_bytes(b"abc")
    say("stage", "copy", source, "--to", "fast")
    copy = Path(f"{tmp_path}/tier/staged{source}/{name}")
    copy.unlink()
    escaped = f"{source}/new\\nline\\xff"
    assert f"{escaped}: gone\n" in say("stage", "verify", "fast", status=1).stderr
    told = say("run", "--staged", "fast", "--verify", "true", status=1).stderr
    assert f"{escaped}: its copy: gone\n" in told
