"""Filling while a job reads: what is served when, and what gives way."""

import os
from pathlib import Path

import pytest

from penstock import registry
from penstock.errors import TierError
from penstock.registry import Tier
from penstock.stage import map_of
from penstock.stage.copy import copy
from penstock.stage.fill import fill
from penstock.stage.held import verify
from penstock.stage.manifest import Map, Place
from penstock.stage.source import Wanted
from penstock.stage.work import Pace


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

    class Watching(Pace):
        def wait(self, n_bytes: int) -> None:
            served.append(len(held[0].staged()))

    copy(
        tier,
        [Wanted(path) for path in files],
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


def test_filling_goes_in_the_order_of_the_plan(files: list[str], tier: Tier) -> None:
    wanted = [Wanted(path) for path in reversed(files)]
    copy(tier, wanted, threads=1, is_live=True)
    assert [one.source for one in Place(tier).entries().values()] == list(reversed(files))


def test_a_source_that_is_written_while_it_waits_is_served_as_it_is_or_not_at_all(
    files: list[str], tier: Tier
) -> None:
    found = fill(
        tier,
        [Wanted(path) for path in files],
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
    copy(small, [Wanted(path, gain) for path, gain in zip(files, gains, strict=False)])
    found = fill(small, [Wanted(files[4], 9.0), Wanted(files[5], 1.5)], limit_bps=1e9)
    assert {Path(one.source).name for one in Place(small).entries().values()} == set("1234")
    assert "1 staged file gave way to what is worth more, 1 file left out" in found.notes[-1]


@pytest.mark.parametrize(("gain", "came"), [(1.0, 2), (0.0, 1)])
def test_as_little_gives_way_as_has_to_where_nothing_is_known_of_what_is_there(
    files: list[str], tier: Tier, gain: float, came: int
) -> None:
    small = registry.add("fast", tier.path, 5 * 8192)
    copy(small, [Wanted(path) for path in files[:4]])
    fill(small, [Wanted(path, gain) for path in files[4:]], limit_bps=1e9)
    names = {Path(one.source).name for one in Place(small).entries().values()}
    assert (len(names), len(names & {"4", "5"})) == (5, came)


def test_a_folder_fills_what_room_there_is(files: list[str], tier: Tier) -> None:
    small = registry.add("fast", tier.path, 4 * 8192)
    found = fill(small, [Wanted(path) for path in files], limit_bps=1e9)
    assert {Path(one.source).name for one in Place(small).entries().values()} == set("0123")
    assert found.notes[-1].startswith("0 staged files gave way to what is worth more, 2 files left")


def test_a_limit_that_fills_nothing_is_refused(files: list[str], tier: Tier) -> None:
    with pytest.raises(TierError, match="1MB/s or more"):
        fill(tier, [Wanted(files[0])], limit_bps=1000)
