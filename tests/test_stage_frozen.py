"""`penstock stage copy --frozen`: opens make no call on the slow tier, and a changed file is named
at the run's start and read from there.  strace is the truth about calls."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import PENSTOCK, strace_works
from penstock.errors import TierError
from penstock.places.registry import Tier
from penstock.stage import frozen, manifest

OLD_NS = 1_600_000_000_000_000_000
PROGRAM = """
import os, sys
folder = sys.argv[1]
os.path.lexists("/the-program-begins")
for number in range(20):
    with open(f"{folder}/{number}", "rb") as file:
        print(file.read().decode())
        os.fstat(file.fileno())
os.chdir(folder)
os.path.lexists("/it-has-changed-its-folder")
for number in range(20):
    with open(str(number), "rb") as file:
        file.read()
os.path.lexists("/the-program-ends")
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs penstock with tiers of its own."""
    environment = os.environ | {"PENSTOCK_TIERS": str(tmp_path / "tiers.json")}

    def run(*words: str | Path, before: tuple[str | Path, ...] = ()) -> object:
        return subprocess.run(
            [*before, PENSTOCK, *words], env=environment, capture_output=True, text=True
        )

    return run  # type: ignore[return-value]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(20):
        write(folder / str(number), f"old {number}")
    return folder


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(OLD_NS, OLD_NS))


@pytest.fixture
def tier(tmp_path: Path, command: Command, data: Path) -> Path:
    """Return the folder of the tier `fast`, which has frozen copies of all files of data."""
    folder = tmp_path / "fast"
    folder.mkdir()
    for words in (
        ("tiers", "add", "fast", folder, "--no-measure"),
        ("stage", "copy", data, "--to", "fast", "--frozen"),
    ):
        done = command(*words)
        assert done.returncode == 0, done.stderr
    return folder


def calls_on(
    data: Path, tmp_path: Path, command: Command, first: str, last: str
) -> tuple[list[str], list[str]]:
    """Run the program under strace; return the output, and the calls between two marks with a
    path of the data."""
    if not strace_works():
        pytest.skip("strace is not there, or may trace nothing here")
    trace = tmp_path / "trace"
    words = ("run", "-q", "-o", tmp_path / "run", "--staged", "fast", sys.executable, "-c", PROGRAM)
    done = command(*words, data, before=("strace", "-f", "-o", trace))
    assert done.returncode == 0, done.stderr
    lines = trace.read_text().splitlines()
    begin, end = (next(n for n, line in enumerate(lines) if mark in line) for mark in (first, last))
    return done.stdout.splitlines(), [ln for ln in lines[begin:end] if f'"{data}' in ln]


def test_opens_of_frozen_files_make_no_call_on_their_file_system(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    printed, calls = calls_on(data, tmp_path, command, "/the-program-begins", "/the-program-ends")
    assert printed == [f"old {number}" for number in range(20)]
    assert [call for call in calls if not re.search("chdir|getcwd", call)] == []


def test_opens_of_staged_files_that_are_not_frozen_ask_for_each(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    assert command("stage", "evict", "fast").returncode == 0
    assert command("stage", "copy", data, "--to", "fast").returncode == 0
    _, calls = calls_on(data, tmp_path, command, "/the-program-begins", "/it-has-changed")
    assert (
        len({re.search(rf'"{data}/(\d+)"', call)[1] for call in calls if f"{data}/" in call}) == 20
    )  # type: ignore[index]


def read(tmp_path: Path, command: Command, data: Path) -> tuple[list[str], str]:
    folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
    done = command(
        "run", "-q", "-o", folder, "--staged", "fast", sys.executable, "-c", PROGRAM, data
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_frozen_file_that_has_changed_is_named_at_the_start_and_read_itself(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    (data / "7").write_text("new 7")
    printed, told = read(tmp_path, command, data)
    assert printed[7] == "new 7"
    assert printed[8] == "old 8"
    assert f"{data}/7: said to be frozen, and changed" in told
    assert f"{data}/8" not in told


def test_a_frozen_file_that_was_staged_anew_is_frozen_again(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    write(data / "7", "new 7")
    read(tmp_path, command, data)
    assert command("stage", "copy", data, "--to", "fast", "--frozen").returncode == 0
    printed, told = read(tmp_path, command, data)
    assert printed[7] == "new 7"
    assert told == ""


def test_a_name_that_leads_elsewhere_by_now_is_not_served(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(data)
    assert command("stage", "copy", link, "--to", "fast", "--frozen").returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    for number in range(20):
        write(other / str(number), f"other {number}")
    link.unlink()
    link.symlink_to(other)
    printed, _ = read(tmp_path, command, link)
    assert printed[0] == "other 0"


def test_copying_other_files_freezes_no_changed_file_again(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    """A program that runs has the map open: its mark must stay away once it was taken off."""
    (data / "7").write_text("new 7")
    read(tmp_path, command, data)
    more = tmp_path / "more"
    more.mkdir()
    write(more / "a", "a")
    assert command("stage", "copy", more, "--to", "fast", "--frozen").returncode == 0
    with manifest.Map(tier / ".penstock" / "staged.map") as found:
        marked = found.frozen()
    assert os.fsencode(data / "7") not in marked
    assert {os.fsencode(data / "8"), os.fsencode(more / "a")} <= marked


def test_a_program_that_writes_a_frozen_file_reads_what_it_wrote(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    source = """
import sys
path = f"{sys.argv[1]}/3"
print(open(path).read())
with open(path, "w") as file:
    file.write("new 3")
print(open(path).read())
"""
    words = ("run", "-q", "-o", tmp_path / "run-w", "--staged", "fast", sys.executable, "-c")
    assert command(*words, source, data).stdout.split("\n")[:2] == ["old 3", "new 3"]


def test_a_frozen_copy_that_is_gone_is_read_from_its_source(
    tmp_path: Path, command: Command, data: Path, tier: Path
) -> None:
    read(tmp_path, command, data)
    copy = tier / "staged" / str(data).lstrip("/") / "5"
    copy.unlink()
    printed, _ = read(tmp_path, command, data)
    assert printed[5] == "old 5"


def test_verify_names_frozen_files_that_have_changed(
    command: Command, data: Path, tier: Path
) -> None:
    assert command("stage", "verify", "fast").returncode == 0
    (data / "7").write_text("new 7")
    done = command("stage", "verify", "fast", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["thawed"] == [str(data / "7")]


def test_a_map_that_cannot_be_marked_serves_no_changed_file(
    monkeypatch: pytest.MonkeyPatch, command: Command, data: Path, tier: Path
) -> None:
    """A read-only tier: its map keeps the mark, so the run must not begin."""
    (data / "7").write_text("new 7")
    opened = manifest.mmap.mmap

    def read_only(fd: int, length: int, **_: object) -> object:
        return opened(fd, length, access=manifest.mmap.ACCESS_READ)

    monkeypatch.setattr(manifest.mmap, "mmap", read_only)
    with pytest.raises(TierError, match="has changed: run without --staged"):
        frozen.check(Tier("fast", tier))
