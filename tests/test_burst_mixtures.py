"""A program under `--burst-buffer` is killed between two files of a save under the same names.

The truth is the number in each file: after a recovery all files are of one save, the last one that
had ended.  Where it cannot be put back, no checkpoint is named.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from burstkills import AT_ONCE
from penstock.save.burst.drain import finish
from penstock.save.burst.file import HOME
from penstock.save.burst.home import Burst
from penstock.save.burst.mend import mend
from penstock.save.burst.tier import prepare
from penstock.save.commit import STATE
from penstock.save.drain.neighbours import hold
from penstock.save.overwritten import rounds
from penstock.save.overwritten.earlier import WAS, was_of
from penstock.save.overwritten.mixture import TICK_NS, mixture_of
from penstock.save.overwritten.putback import TWO_SAVES
from penstock.save.overwritten.rounds import Rounds
from penstock.save.verify import latest_valid

FLAT = ("model.safetensors", "optim.safetensors")
FOLDERS = ("weights/last.safetensors", "states/last.safetensors")
FOUR = tuple(f"{part}_last.safetensors" for part in ("policy", "critic", "alpha", "zeta"))
RANKS = tuple(f"consolidated.{rank:02d}.safetensors" for rank in range(2))
MEMBERS = tuple(f"fold{number}_member_{number}.safetensors" for number in range(3))
NUMBERS = tuple(f"{number}.safetensors" for number in (3, 2, 1, 0))
WITH_ROW = ("model.safetensors", *(f"opt_{number:02d}.safetensors" for number in range(2)))
LAYOUTS = [FLAT, FOLDERS, FOUR, RANKS, MEMBERS, NUMBERS, WITH_ROW]
POINTS = [(names, n_files) for names in LAYOUTS for n_files in range(1, len(names) + 1)]


@pytest.fixture
def fast(fast: Path) -> Path:
    prepare(fast)
    (fast / STATE).mkdir()
    return fast


def content(number: int) -> bytes:
    head = json.dumps({"w": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes([number]) * 100


class Program:
    """Writes as native/burst.c does, by its own clock: a second apart, saves a minute apart."""

    def __init__(self, fast: Path, work: Path, owner: str = "000001") -> None:
        self.fast, self.work, self.owner = fast, work, owner
        self.now_ns, self.number = time.time_ns() - 3600 * 10**9, 0

    @contextmanager
    def alive(self) -> Iterator[Callable[[], Any]]:
        """Yield the looks of the drain beside the program."""
        lock = hold(self.fast / STATE / f"running-{self.owner}")
        try:
            with Burst(self.fast, AT_ONCE) as drain:
                yield drain._round
        finally:
            os.close(lock)

    def write(self, name: str, number: int, draft: str = "") -> None:
        """draft: the ending under which the file is written and then renamed."""
        self.now_ns += (60 if number != self.number else 1) * 10**9
        self.number = number
        home = self.work / name
        home.parent.mkdir(exist_ok=True)
        made = f"{self.now_ns:016x}{self.owner}00-{home.name}{draft}"
        way, data = self.fast / "burst/home" / made, self.fast / "burst/data" / made
        way.symlink_to(home)
        data.write_bytes(content(number))
        os.utime(data, ns=(self.now_ns, self.now_ns))
        was = was_of(home)
        if home.is_symlink():
            before = self.fast / "burst/home" / home.readlink().name
            before.replace(before.with_name(before.name + HOME))
            home.unlink()
        elif home.exists() and not os.path.lexists(was):
            home.rename(was)
        home.unlink(missing_ok=True)
        home.symlink_to(data)

    def save(
        self, names: Sequence[str], numbers: Sequence[int], look: Callable[[], object]
    ) -> None:
        """Write all names once for each number; the drain looks after each save."""
        for number in numbers:
            for name in names:
                self.write(name, number)
            look()

    def numbers(self, names: Sequence[str]) -> list[int]:
        return [(self.work / name).read_bytes()[-1] for name in names]

    def hidden(self) -> list[str]:
        return sorted(path.name for path in self.work.rglob(".*"))


def test_the_slots_of_a_ring_are_saves_of_their_own(fast: Path, work: Path) -> None:
    """Each slot is written in a save of its own, a minute after the slot before."""
    names = [f"{slot}.safetensors" for slot in range(3)]
    program = Program(fast, work)
    with program.alive() as look:
        for number in range(1, 9):
            program.save([names[number % 3]], [number], look)
    status, failed = finish(fast, AT_ONCE)
    assert (failed, "of two saves" in status.warning) == ([], False)
    assert program.numbers(names) == [6, 7, 8]
    assert latest_valid(work, level="full").path is not None


@pytest.mark.parametrize(("is_written", "is_seen"), [(True, True), (False, True), (False, False)])
def test_a_description_that_the_last_save_did_not_write_shows_a_mixture(
    fast: Path, work: Path, is_written: bool, is_seen: bool
) -> None:
    """is_seen: the drain looks between the description and the next save."""
    text = work / "trainer_state.json"

    def describe(number: int) -> None:
        text.write_text(json.dumps({"step": number}))
        os.utime(text, ns=(program.now_ns + 10**8, program.now_ns + 10**8))

    program = Program(fast, work)
    with program.alive() as look:
        for number in (1, 2, 3):
            program.save(FLAT, [number], look)
            if is_written or number < 3:
                describe(number)
                if is_seen:
                    look()
    status, failed = finish(fast, AT_ONCE)
    choice = latest_valid(work, level="full")
    assert failed == []
    if is_written:
        assert choice.path is not None and "of two saves" not in status.warning  # noqa: PT018
        return
    assert choice.path is None
    assert "trainer_state.json was not" in choice.rejected[0][1]
    mend(work, fast)
    assert program.numbers(FLAT) == ([2, 2] if is_seen else [3, 3])  # else of the first save
    assert (latest_valid(work, level="full").path is not None) == is_seen


@pytest.mark.parametrize("when", ["each file", "each save", "at the end"])
@pytest.mark.parametrize(("names", "n_files"), POINTS)
def test_a_save_that_was_killed_between_two_files_gives_way_to_the_save_before(
    fast: Path, work: Path, names: Sequence[str], n_files: int, when: str
) -> None:
    """The drain looks after each file, after each save or only at the end."""
    program = Program(fast, work)
    with program.alive() as look:
        for number in (1, 2, 3):
            for name in names[: n_files if number == 3 else None]:
                program.write(name, number)
                if when == "each file":
                    look()
            if when == "each save" or (number == 1 and when == "at the end"):
                look()
    status, failed = finish(fast, AT_ONCE)
    assert failed == []
    is_whole = n_files == len(names)
    assert program.numbers(names) == [3] * n_files + [2] * (len(names) - n_files)
    choice = latest_valid(work, level="full")
    if is_whole:
        assert choice.path is not None
        assert "of two saves" not in status.warning
        assert program.hidden() == []
        return
    assert choice.path is None
    assert "was written again and" in choice.rejected[0][1]
    assert f"penstock save recover {fast}" in status.warning
    again = mend(work, fast)
    assert [one.newer for one in again if one.is_back]
    before = 1 if when == "at the end" else 2  # the second save never was on the slow tier
    assert program.numbers(names) == [before] * len(names)
    assert latest_valid(work, level="full").path is not None
    assert program.hidden() == []
    assert mend(work, fast) == []


@pytest.mark.parametrize("names", LAYOUTS)
def test_the_save_before_is_put_back_by_any_later_command_and_with_another_tier(
    fast: Path, work: Path, tmp_path: Path, names: Sequence[str]
) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        program.save(names, (1, 2), look)
        program.write(names[0], 3)
        look()  # the drain is killed here, too: the next one knows no more than the tier
    finish(fast, AT_ONCE)
    finish(fast, AT_ONCE)
    shutil.rmtree(fast)
    other = tmp_path / "other"
    mend(work, other)
    assert program.numbers(names) == [2] * len(names)
    assert latest_valid(work).path is not None


@pytest.mark.parametrize("names", [FLAT, FOLDERS])
def test_drains_that_are_killed_after_each_file_know_the_last_save_that_ended(
    fast: Path, work: Path, names: Sequence[str]
) -> None:
    program = Program(fast, work)
    lock = hold(fast / STATE / "running-000001")
    for number in (1, 2, 3):
        for name in names[: 1 if number == 3 else None]:
            program.write(name, number)
            with Burst(fast, AT_ONCE) as drain:
                drain._round()
    os.close(lock)
    finish(fast, AT_ONCE)
    mend(work, fast)
    assert program.numbers(names) == [2] * len(names)
    assert latest_valid(work).path is not None


def test_a_recorded_program_that_renames_into_place_is_followed_too(
    recorded: Callable[..., Any], fast: Path, work: Path
) -> None:
    """With the native redirection; killed before the second rename of the second save."""
    environment = {
        "PENSTOCK_BURST": str(fast / "burst"),
        "PENSTOCK_BURST_PATTERNS": "*.safetensors:*.safetensors.*",
    }
    for number in (1, 2):
        recorded(
            f"""
            import os, time
            for name in {FLAT!r}:
                time.sleep(0.05)
                with open(name + ".tmp", "wb") as file:
                    file.write({content(number)!r})
                if {number} == 2 and name == {FLAT[1]!r}:
                    os._exit(0)
                os.replace(name + ".tmp", name)
            """,
            environment=environment,
        )
        finish(fast, AT_ONCE)
    program = Program(fast, work)
    assert program.numbers(FLAT) == [2, 1]
    assert latest_valid(work).path is None
    mend(work, fast)
    assert program.numbers(FLAT) == [1, 1]
    assert latest_valid(work).path is not None


def test_a_put_back_that_is_interrupted_goes_on(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        for number in (1, 2, 3):
            for name in FOUR[: 3 if number == 3 else 4]:
                program.write(name, number)
            look()
    finish(fast, AT_ONCE)
    replace, n_done = Path.replace, 0

    def killed(path: Path, target: Path) -> Path:
        nonlocal n_done
        if WAS in path.name:
            n_done += 1
            if n_done == 2:
                raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            mend(work, fast)
    assert latest_valid(work).path is None
    mend(work, fast)
    assert program.numbers(FOUR) == [2] * 4
    assert latest_valid(work).path is not None


def test_the_next_whole_save_ends_the_mark_and_lets_the_earlier_files_go(
    fast: Path, work: Path
) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        program.save(FLAT, (1, 2), look)
        program.write(FLAT[0], 3)
    finish(fast, AT_ONCE)
    assert program.hidden() == [f".{FLAT[0]}{WAS}", TWO_SAVES]
    resumed = Program(fast, work, "000002")
    resumed.now_ns = program.now_ns
    with resumed.alive() as look:
        resumed.write(FLAT[0], 4)
        look()
        assert f".{FLAT[0]}{WAS}" in program.hidden()  # of the last save that had ended
        assert latest_valid(work).path is None
        resumed.write(FLAT[1], 4)
        look()
    assert "of two saves" not in finish(fast, AT_ONCE)[0].warning
    assert program.numbers(FLAT) == [4, 4]
    assert latest_valid(work).path is not None
    assert program.hidden() == []


def test_a_torn_file_gives_way_by_itself_and_leaves_no_mark(fast: Path, work: Path) -> None:
    """Killed in the middle of the first file of the third save."""
    program = Program(fast, work)
    with program.alive() as look:
        program.save(FLAT, (1, 2), look)
        program.write(FLAT[0], 3)
    data = (work / FLAT[0]).readlink()
    data.write_bytes(content(3)[:-50])
    os.utime(data, ns=(program.now_ns, program.now_ns))
    finish(fast, AT_ONCE)
    assert program.numbers(FLAT) == [2, 2]
    assert latest_valid(work).path is not None
    assert program.hidden() == []


def test_a_torn_file_behind_a_save_that_never_came_home_leaves_the_save_before(
    fast: Path, work: Path
) -> None:
    """Save 4 follows save 3 before a look of the drain, and is killed in its last file."""
    program = Program(fast, work)
    with program.alive() as look:
        program.save(FLAT, (1, 2), look)
        program.save(FLAT, (3, 4), lambda: None)
    data = (work / FLAT[1]).readlink()
    data.write_bytes(content(4)[:-50])
    os.utime(data, ns=(program.now_ns, program.now_ns))
    finish(fast, AT_ONCE)
    assert len(set(program.numbers(FLAT))) == 1
    assert latest_valid(work).path is not None


WRITTEN_ONCE = [["model", "optim", "vocab"], ["model", "optim"], ["model", "optim"]]
THIRD = [["model", "optim"], ["model"], ["model"], ["model", "optim"], ["model"], ["model"]]
ALONE = [["model"], ["model"], ["model"]]
SINGLE = [["alpha", "beta"], ["alpha"]]  # one save shows nothing of names that say nothing


@pytest.mark.parametrize("saves", [WRITTEN_ONCE, THIRD, ALONE, SINGLE])
def test_a_file_that_not_every_save_writes_is_not_missing(
    fast: Path, work: Path, saves: list[list[str]]
) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        for number, names in enumerate(saves):
            for name in names:
                program.write(f"{name}.safetensors", number)
                look()
    status, failed = finish(fast, AT_ONCE)
    assert failed == []
    assert "of two saves" not in status.warning
    assert latest_valid(work).path is not None
    assert program.hidden() == []


def test_a_file_that_the_program_removed_is_not_missing(fast: Path, work: Path) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        program.save(FLAT, (1, 2), look)
        program.write(FLAT[0], 3)  # the weights of the end
        look()
        (work / FLAT[1]).unlink()
    assert "of two saves" not in finish(fast, AT_ONCE)[0].warning
    assert latest_valid(work).path is not None
    assert program.hidden() == []


# The rounds


@dataclass(frozen=True)
class Begun:
    name: str
    home_at: str
    owner: str


class Seen:
    """Rounds of files by name, each begun a second after the one before."""

    def __init__(self, tier: Path) -> None:
        (tier / STATE).mkdir(exist_ok=True)
        self.tier, self.rounds, self.n, self.there = tier, Rounds(tier), 0, dict[str, Begun]()

    def wrote(self, *names: str, owner: str = "a", look: bool = True) -> None:
        for name in names:
            self.n += 1
            made = f"{self.n * 10**9:016x}00000000-{name}"
            self.there[made] = Begun(made, f"/out/{name}", owner)
            if look:
                self.rounds.saw([*self.there.values()])

    def renamed(self, old: str, new: str) -> None:
        for made, write in self.there.items():
            if write.home_at == f"/out/{old}":
                self.there[made] = Begun(made, f"/out/{new}", write.owner)

    def missing(self) -> list[str]:
        return sorted(path for _, _, paths in self.rounds.unended() for path in paths)


def test_a_file_renamed_into_place_is_written_when_it_has_its_name(tmp_path: Path) -> None:
    for ending in (".tmp", ".new"):  # an ending that says draft, and one that does not
        seen = Seen(tmp_path)
        for _ in range(2):
            for name in ("model.pt", "optim.pt"):
                seen.wrote(name + ending)
                seen.renamed(name + ending, name)
                seen.rounds.saw([*seen.there.values()])
        assert seen.missing() == []
        seen.wrote("model.pt" + ending)
        seen.renamed("model.pt" + ending, "model.pt")
        seen.wrote("optim.pt.tmp")
        assert seen.missing() == ["/out/optim.pt"]
        seen.renamed("optim.pt.tmp", "optim.pt")
        seen.rounds.saw([*seen.there.values()])
        assert seen.missing() == []


def test_a_file_that_is_moved_away_before_the_next_is_written_counts_once(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    for _ in range(3):
        seen.renamed("model.pt", "model_old.pt")
        seen.wrote("model.pt", look=False)
        seen.wrote("optim.pt")
    assert seen.missing() == []


def test_a_rank_that_is_a_save_behind_at_the_end_is_not_missing(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.wrote(*("rank_0.pt", "rank_1.pt") * 2)
    seen.wrote("rank_0.pt", "rank_0.pt", "rank_1.pt", "rank_1.pt")
    assert seen.missing() == []


def test_rounds_go_on_in_the_next_drain_and_a_broken_record_is_none(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.wrote("alpha.pt", "beta.pt", "alpha.pt", "beta.pt", "alpha.pt")
    seen.rounds.keep()
    seen.rounds = Rounds(tmp_path)
    seen.rounds.saw([*seen.there.values()])
    assert seen.missing() == ["/out/beta.pt"]
    record = tmp_path / rounds.RECORD
    for text in ("[", '{"version": 1}', '{"version": 1, "families": {"a": 1}, "seen": {}}'):
        record.write_text(text)
        assert list(Rounds(tmp_path).unended()) == []


def test_a_program_that_writes_a_file_without_the_others_twice_writes_it_alone(
    tmp_path: Path,
) -> None:
    seen = Seen(tmp_path)
    seen.wrote(*("model.pt", "optim.pt") * 2, "model.pt")
    assert seen.missing() == ["/out/optim.pt"]
    seen.wrote("model.pt")
    assert seen.missing() == ["/out/optim.pt"]  # perhaps it was restarted in between
    seen.wrote("model.pt")
    assert seen.missing() == []


# The mark


def test_a_mark_of_others_moves_no_file_outside_the_folder(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(b"new")
    was_of(outside).write_bytes(b"old")
    (work / "a.safetensors").write_bytes(content(1))
    facts = {
        path: [path.stat().st_size, path.stat().st_mtime_ns]
        for path in (outside, work / "a.safetensors")
    }
    mark: dict[str, Any] = {
        "again": {"../secret": facts[outside]},
        "not": {"a.safetensors": facts[work / "a.safetensors"]},
    }
    for name in ("../secret", str(outside)):
        mark["again"] = {name: facts[outside]}
        (work / TWO_SAVES).write_text(json.dumps({"version": 1, "saves": [mark]}))
        assert mend(work, tmp_path / "tier") == []
        assert outside.read_bytes() == b"new"
    for text in (
        "[]",
        "{",
        '{"version": 1, "saves": 3}',
        '{"version": 1, "saves": [{"again": 1}]}',
    ):
        (work / TWO_SAVES).write_text(text)
        assert latest_valid(work).path is not None


def test_a_file_of_the_same_tick_as_the_newer_one_is_not_called_older(tmp_path: Path) -> None:
    for name, at in (("a.pt", 10**18), ("b.pt", 10**18 - TICK_NS // 2)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, ns=(at, at))
    again, missing = {str(tmp_path / "a.pt"): 10**18}, [str(tmp_path / "b.pt")]
    assert mixture_of(again, missing) is None
    os.utime(tmp_path / "b.pt", ns=(1, 1))
    assert mixture_of(again, missing) is not None


@pytest.mark.parametrize("is_span", [True, False])
def test_a_recorded_save_shows_which_files_belong_together(
    tmp_path: Path, work: Path, is_span: bool
) -> None:
    """Names without a meaning, and a program that is killed in its second save."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import contextlib, os, time
import penstock

for number in (1, 2):
    with penstock.span("checkpoint") if {is_span} else contextlib.nullcontext():
        for name in ("alpha.safetensors", "beta.safetensors"):
            if number == 2 and name[0] == "b":
                os._exit(0)
            with open(name, "wb") as file:
                file.write({content(0)[:-100]!r} + bytes([number]) * 100)
            time.sleep(0.1)
    time.sleep(0.5)
""")
    fast = tmp_path / "fast"
    fast.mkdir()
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", tmp_path / "run"]
    words = [*command, "--burst-buffer", fast, "--", sys.executable, program]
    ended = subprocess.run(list(map(str, words)), cwd=work, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    numbers = [(work / f"{name}.safetensors").read_bytes()[-1] for name in ("alpha", "beta")]
    assert numbers == [2, 1]
    said = "alpha.safetensors was written again and beta.safetensors was not"
    assert (said in ended.stderr) is is_span, ended.stderr
    assert (latest_valid(work).path is None) is is_span
