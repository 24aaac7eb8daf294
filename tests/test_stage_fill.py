"""Filling while a job reads: what is served when, and what gives way."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from penstock.errors import TierError
from penstock.places import registry
from penstock.places.registry import Tier
from penstock.safe import drafts
from penstock.stage import fill as filling
from penstock.stage import manifest, map_of, part, work
from penstock.stage.copy import copy
from penstock.stage.fill import fill, fill_following
from penstock.stage.held import drop, evict, verify
from penstock.stage.manifest import Map, TierPlace
from penstock.stage.source import WantedFile
from penstock.stage.work import CopyPace


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}").write_bytes(os.urandom(8192))
    return [str(folder / f"{number}") for number in range(6)]


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    (tmp_path / "tier").mkdir()
    return registry.add("fast", tmp_path / "tier")


def test_a_program_that_has_the_map_is_served_each_copy_as_it_comes(
    files: list[str], tier: Tier
) -> None:
    served: list[int] = []
    held: list[Map] = []

    class Watching(CopyPace):
        def wait(self, n_bytes: int) -> None:
            served.append(len(held[0].staged()))

    copy(
        tier,
        [WantedFile(path) for path in files],
        threads=1,
        pace=Watching(None),
        is_live=True,
        ready=lambda: held.append(Map(map_of("fast"))),
    )
    with held[0] as one:
        assert served == [0, 1, 2, 3, 4, 5]
        assert len(one.staged()) == 6
        at = one.copy_of(os.fsencode(files[3]))
        assert at is not None
        assert Path(os.fsdecode(at)).read_bytes() == Path(files[3]).read_bytes()
    assert not verify(tier).corrupted


def test_following_serves_each_copy_as_it_comes_with_one_map_a_round(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []
    maps: list[int] = []
    path = TierPlace(tier).map

    def wait(self: CopyPace, n_bytes: int) -> None:
        with Map(path) as one:
            served.append(len(one.staged()))
            maps.append(path.stat().st_ino)

    monkeypatch.setattr(filling._Breathing, "wait", wait)
    monkeypatch.setattr(filling, "THREADS", 1)
    monkeypatch.setattr(filling, "LOOKED_EVERY_S", 0.0)
    looks = [[WantedFile(one) for one in files[:4]], [WantedFile(one) for one in files[4:]]]
    fill_following(tier, lambda: looks.pop(0) if looks else [], lambda: not looks, limit_bps=1e9)
    assert served == [0, 1, 2, 3, 4, 5]
    assert len(set(maps)) == 2
    assert path.stat().st_ino == maps[-1]
    assert map_of("fast") == path
    assert path.stat().st_ino == maps[-1]
    with Map(path) as one:
        assert one.staged() == {os.fsencode(file) for file in files}
    assert not verify(tier).corrupted


def test_what_another_staging_told_and_did_not_map_is_in_the_map_that_is_asked_for(
    files: list[str], tier: Tier
) -> None:
    copy(tier, [WantedFile(files[5])])
    place = TierPlace(tier)
    (other,) = place.entries().values()
    place.append(gone=[other.copy])
    # Another staging has made a copy, told of it and was killed, while this one was at work.
    copy(
        tier,
        [WantedFile(path) for path in files[:2]],
        is_live=True,
        ready=lambda: place.append([other]),
    )
    with Map(map_of("fast")) as now:
        assert now.staged() == {os.fsencode(path) for path in (*files[:2], files[5])}


def test_filling_goes_in_the_order_of_the_plan(files: list[str], tier: Tier) -> None:
    wanted = [WantedFile(path) for path in reversed(files)]
    copy(tier, wanted, threads=1, is_live=True)
    assert [one.source for one in TierPlace(tier).entries().values()] == list(reversed(files))


def test_a_source_that_is_written_while_it_waits_is_served_as_it_is_or_not_at_all(
    files: list[str], tier: Tier
) -> None:
    found = fill(
        tier,
        [WantedFile(path) for path in files],
        limit_bps=1e9,
        ready=lambda: Path(files[5]).write_bytes(b"written since") and None,
    )
    # Which of the two depends on whether it was still young when it was found.
    assert (found.copied, found.skipped) in ((6, {}), (5, {"still being written": 1}))
    with Map(map_of("fast")) as now:
        at = now.copy_of(os.fsencode(files[5]))
        assert (at is not None) == (found.copied == 6)
        assert at is None or Path(os.fsdecode(at)).read_bytes() == b"written since"
        assert len(now.staged()) == found.copied


def test_what_is_staged_gives_way_to_what_is_worth_more(files: list[str], tier: Tier) -> None:
    small = registry.add("fast", tier.path, 4 * 8192)
    gains = [1.0, 2.0, 3.0, 4.0]
    copy(small, [WantedFile(path, gain) for path, gain in zip(files, gains, strict=False)])
    found = fill(small, [WantedFile(files[4], 9.0), WantedFile(files[5], 1.5)], limit_bps=1e9)
    assert {Path(one.source).name for one in TierPlace(small).entries().values()} == set("1234")
    assert "1 staged file gave way to what is worth more, 1 file left out" in found.notes[-1]


@pytest.mark.parametrize(("gain", "came"), [(1.0, 2), (0.0, 1)])
def test_as_little_gives_way_as_has_to_where_nothing_is_known_of_what_is_there(
    files: list[str], tier: Tier, gain: float, came: int
) -> None:
    small = registry.add("fast", tier.path, 5 * 8192)
    copy(small, [WantedFile(path) for path in files[:4]])
    fill(small, [WantedFile(path, gain) for path in files[4:]], limit_bps=1e9)
    names = {Path(one.source).name for one in TierPlace(small).entries().values()}
    assert (len(names), len(names & {"4", "5"})) == (5, came)


def test_a_folder_fills_what_room_there_is(files: list[str], tier: Tier) -> None:
    small = registry.add("fast", tier.path, 4 * 8192)
    found = fill(small, [WantedFile(path) for path in files], limit_bps=1e9)
    assert {Path(one.source).name for one in TierPlace(small).entries().values()} == set("0123")
    assert found.notes[-1].startswith("0 staged files gave way to what is worth more, 2 files left")


def test_a_file_with_two_names_gives_way_to_none_of_them_and_takes_room_once(
    files: list[str], tier: Tier
) -> None:
    links = [f"{files[0]}-linked", f"{files[3]}-linked"]
    for name in links:
        os.link(name.removesuffix("-linked"), name)
    small = registry.add("fast", tier.path, 4 * 8192)
    copy(small, [WantedFile(path, 1.0) for path in files[:3]])
    wanted = [WantedFile(links[0], 0.5), WantedFile(files[3], 0.5), WantedFile(links[1], 0.5)]
    found = fill(small, wanted, limit_bps=1e9)
    assert (found.copied, found.was_there, found.notes[1:]) == (1, 1, ())
    with Map(map_of("fast")) as now:
        assert now.staged() == {os.fsencode(path) for path in (*files[:4], *links)}


def test_copies_of_what_has_changed_give_way_first_and_what_has_grown_takes_its_room(
    files: list[str], tier: Tier
) -> None:
    small = registry.add("fast", tier.path, 4 * 8192)
    copy(small, [WantedFile(path, 9.0) for path in files[:4]])
    Path(files[0]).write_bytes(os.urandom(8192))
    with open(files[1], "ab") as file:
        file.write(os.urandom(8192))
    # A stale copy goes though it is worth most; the grown file has room for two, or goes without.
    found = fill(small, [WantedFile(files[1], 10.0), WantedFile(files[4], 1.0)], limit_bps=1e9)
    names = {Path(one.source).name for one in TierPlace(small).entries().values()}
    assert names == set("123")
    assert "1 file left out" in found.notes[-1]
    with Map(map_of("fast")) as now:
        at = now.copy_of(os.fsencode(files[1]))
        assert at is not None
        assert len(Path(os.fsdecode(at)).read_bytes()) == 2 * 8192


@pytest.mark.parametrize("times", [1, 9])
def test_a_filling_goes_on_where_another_staging_takes_the_room_that_it_made(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    small = registry.add("fast", tier.path, 3 * 8192)
    taken = [0]

    def beside(tier: Tier, wanted: list[WantedFile], **ways: Any) -> Any:
        if wanted and taken[0] < times:
            taken[0] += 1
            evict(tier)
            copy(tier, [WantedFile(files[4], 5.0), WantedFile(files[5], 1.0)])
        return copy(tier, wanted, **ways)

    monkeypatch.setattr(filling, "copy", beside)
    wanted = [WantedFile(path, 2.0) for path in files[:2]]
    looks = [wanted, [WantedFile(files[2], 9.0)]]
    monkeypatch.setattr(filling, "LOOKED_EVERY_S", 0.0)
    ended = fill_following(
        small, lambda: looks.pop(0) if looks else [], lambda: not looks, limit_bps=1e9
    )
    names = {Path(one.source).name for one in TierPlace(small).entries().values()}
    if times == 1:
        assert (len(names), {"4", "2"} <= names, ended.copied) == (3, True, 3)
        assert "2 staged files gave way to what is worth more" in ended.notes[-1]
    else:
        assert names == {"4", "5", "2"}
        assert "2 files left out" in ended.notes[-1]


@pytest.mark.parametrize("chunk_bytes", [64 << 20, 4096])
def test_a_filling_goes_on_where_a_file_finds_no_room_or_none_does_for_a_while(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    # What statvfs tells is not all: of quotas, and of who writes meanwhile, it tells nothing.
    monkeypatch.setattr(manifest, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(filling, "LOOKED_EVERY_S", 0.0)
    tries = dict.fromkeys(files, 0)
    real, one_at_a_time = part.CopyPart.chunk, Lock()

    def chunk(self: part.CopyPart, first: int) -> bytes:
        if first + chunk_bytes >= 8192:
            with one_at_a_time:
                tries[self.source.path] += 1
                is_first = tries[files[0]] + tries[files[2]] == 1
            if self.source.path == files[1] or is_first:
                raise OSError(errno.ENOSPC, "No space left on device", self.path)
        return real(self, first)

    monkeypatch.setattr(part.CopyPart, "chunk", chunk)
    looks = [
        [WantedFile(one, 1.0) for one in files[:3]],
        [WantedFile(one, 1.0) for one in files[3:]],
    ]
    ended = fill_following(
        tier, lambda: looks.pop(0) if looks else [], lambda: not looks, limit_bps=1e9
    )
    assert sorted(tries[files[one]] for one in (0, 2)) == [1, 2]  # the first to come is refused
    assert [tries[files[one]] for one in (1, 3, 4, 5)] == [3, 1, 1, 1]
    names = {Path(one.source).name for one in TierPlace(tier).entries().values()}
    assert (names, ended.copied, ended.was_there, ended.skipped) == (set("02345"), 5, 0, {})
    assert "1 file left out: fast holds no more" in ended.notes[-1]
    assert not list(TierPlace(tier).parts.iterdir())
    assert not verify(tier).corrupted
    with Map(map_of("fast")) as now:
        assert {Path(os.fsdecode(one)).name for one in now.staged()} == names


def test_a_tier_that_is_full_is_not_tried_with_each_file(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def chunk(self: part.CopyPart, first: int) -> bytes:
        tried.append(self.source.path)
        raise OSError(errno.EDQUOT, "Disk quota exceeded", self.path)

    monkeypatch.setattr(part.CopyPart, "chunk", chunk)
    monkeypatch.setattr(work, "MOST_FULL", 2)
    found = fill(tier, [WantedFile(path) for path in files], limit_bps=1e9)
    assert 3 * 2 <= len(tried) <= 3 * 3  # a thread may be at one more
    assert (found.copied, found.skipped) == (0, {})
    assert "6 files left out" in found.notes[-1]


def test_a_limit_that_fills_nothing_is_refused(files: list[str], tier: Tier) -> None:
    with pytest.raises(TierError, match="1MB/s or more"):
        fill(tier, [WantedFile(files[0])], limit_bps=1000)


def test_what_a_changed_file_was_gives_way_to_what_it_is_and_nothing_else_does(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = registry.add("fast", tier.path, 4 * 8192)
    monkeypatch.setattr(filling, "LOOKED_EVERY_S", 0.0)
    rounds = iter([files[:4], files[4:5], files[:1]])
    left = 3

    def look() -> list[WantedFile]:
        nonlocal left
        left -= 1
        some = next(rounds, [])
        if left == 0:
            Path(files[0]).write_bytes(os.urandom(8192))
        # The last brings as much as another that is there.
        return [WantedFile(one, 0.1 if one == files[4] else 1.0) for one in some]

    fill_following(tier, look, lambda: left <= 0, limit_bps=1e9)
    assert {one.source for one in TierPlace(tier).entries().values()} == set(files[:4])
    assert not verify(tier).corrupted
    with Map(map_of("fast")) as now:
        at = now.copy_of(os.fsencode(files[0]))
        assert at is not None
        assert Path(os.fsdecode(at)).read_bytes() == Path(files[0]).read_bytes()


@pytest.mark.parametrize("is_filling", [True, False])
def test_a_kill_amid_making_room_leaves_no_copy_that_nobody_knows_and_no_room_taken(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch, is_filling: bool
) -> None:
    tier = registry.add("fast", tier.path, 3 * 8192)
    copy(tier, [WantedFile(path) for path in files[:3]])
    place = TierPlace(tier)

    def killed(*told: object, **more: object) -> None:
        raise MemoryError

    going = [one for one in place.entries().values() if one.source in files[:2]]
    with monkeypatch.context() as patched:
        patched.setattr(TierPlace, "append_locked", killed)
        with pytest.raises(MemoryError):
            drop(place, going)
    there = {one.name for one in place.copies.rglob("*") if one.is_file()}
    assert there <= {Path(one.source).name for one in place.entries().values()}
    wanted = [WantedFile(path) for path in files[3:5]]
    found = fill(tier, wanted, limit_bps=1e9) if is_filling else copy(tier, wanted)
    assert found.copied == 2
    assert not any("gave way" in note for note in found.notes)
    assert {one.source for one in place.entries().values()} == {*files[2:5]}


def test_a_copy_that_is_about_to_be_put_in_place_is_not_dropped(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, real = TierPlace(tier), part.CopyPart._put
    dropped = []

    def put(self: part.CopyPart, path: str, folder: str) -> None:
        dropped.append(drop(place, list(place.entries().values())))
        real(self, path, folder)

    monkeypatch.setattr(part.CopyPart, "_put", put)
    copy(tier, [WantedFile(files[0])])
    assert dropped == [[]]
    assert [one.source for one in place.entries().values()] == [files[0]]
    assert not verify(tier).corrupted


def _meanwhile(tier: Tier, wanted: list[WantedFile]) -> Callable[[], None]:
    """Another copying, once, when this one has seen that there is room for it."""
    left = [wanted]
    return lambda: None if not left else copy(tier, left.pop()) and None


def test_what_another_staging_took_meanwhile_leaves_no_more_than_the_capacity(
    files: list[str], tier: Tier
) -> None:
    tier = registry.add("fast", tier.path, 4 * 8192)
    mine, others = ([WantedFile(path) for path in part] for part in (files[:3], files[3:]))
    with pytest.raises(TierError, match=r"full after 1 files, .*its capacity is used up"):
        copy(tier, mine, ready=_meanwhile(tier, others))
    assert len(TierPlace(tier).entries()) == 4
    assert sum(one.is_file() for one in TierPlace(tier).copies.rglob("*")) == 4
    assert not list(TierPlace(tier).parts.iterdir())
    assert not verify(tier).corrupted


def test_a_filling_makes_room_again_where_another_took_it_meanwhile(
    files: list[str], tier: Tier
) -> None:
    tier = registry.add("fast", tier.path, 4 * 8192)
    mine = [WantedFile(path, 1.0) for path in files[:3]]
    others = [WantedFile(path, 0.5) for path in files[3:]]
    found = fill(tier, mine, limit_bps=1e9, ready=_meanwhile(tier, others))
    assert (found.copied, found.skipped) == (3, {})
    held = {one.source for one in TierPlace(tier).entries().values()}
    assert set(files[:3]) < held
    assert len(held) == 4
    assert not verify(tier).corrupted


def test_a_killed_staging_leaves_nothing_that_the_next_does_not_end(
    files: list[str], tier: Tier
) -> None:
    place = TierPlace(tier)
    copy(tier, [WantedFile(files[0])])
    before = {one.name for one in place.own.iterdir()}
    seen: list[set[str]] = []
    copy(
        tier,
        [WantedFile(path) for path in files],
        ready=lambda: seen.append({one.name for one in place.own.iterdir()}),
    )
    assert seen == [before]  # a kill comes at any moment
    (place.own / f".{place.map.name}.0123456789abcdef").write_bytes(b"half")
    copy(tier, [WantedFile(path) for path in files])
    assert {one.name for one in place.own.iterdir()} == before


def test_a_line_that_a_kill_left_without_a_copy_takes_no_room(
    files: list[str], tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = registry.add("fast", tier.path, 2 * 8192)

    def killed(self: part.CopyPart, *told: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(part.CopyPart, "_put", killed)
        close = part.CopyPart.close
        patched.setattr(part.CopyPart, "close", lambda self: close(self, is_kept=True))
        with pytest.raises(KeyboardInterrupt):
            copy(tier, [WantedFile(files[0], 9.0)], threads=1)
    assert len(TierPlace(tier).entries()) == len(list(TierPlace(tier).parts.iterdir())) == 1
    found = fill(tier, [WantedFile(path, 1.0) for path in files[1:3]], limit_bps=1e9)
    assert found.copied == 2
    assert {one.source for one in TierPlace(tier).entries().values()} == set(files[1:3])
    assert not list(TierPlace(tier).parts.iterdir())


def test_a_long_journal_is_written_the_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def seen(path: Path, text: str, *, real: Any = drafts.write_in_run) -> None:
        sizes.append(len(text))
        real(path, text)

    monkeypatch.setattr(drafts, "write_in_run", seen)
    journal = filling.Journal(tmp_path / "fill.json", "fast", 1e6)
    for number in range(1, 5001):
        journal.add(number, number + 1, 1, True)
        if number % 999 == 0:
            told = json.loads(journal.path.read_text())["windows"]
            assert number / 1.01 - 1 <= len(told) <= number
    assert sum(sizes) < 110 * sizes[-1]
    journal.end()
    assert len(json.loads(journal.path.read_text())["windows"]) == 5000
