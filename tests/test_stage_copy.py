"""Copies on a tier: whole, checked, never twice, and what the map says of them."""

import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import TierError
from penstock.places import registry, tiers
from penstock.places.registry import Tier
from penstock.stage import held, manifest, map_of, part, today
from penstock.stage import source as sources
from penstock.stage.copy import _share, copy
from penstock.stage.held import drop, evict, past, status, verify
from penstock.stage.manifest import Identity, Map, StagedCopy, TierPlace, hash_of, hashes, write_map
from penstock.stage.part import Large
from penstock.stage.source import WantedFile, below, find
from penstock.stage.today import now_of
from penstock.stage.work import CopyPace, Work

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    folder = tmp_path / "tier"
    folder.mkdir()
    return registry.add("fast", folder)


def filled(folder: Path, count: int, n_bytes: int = 5000) -> dict[str, bytes]:
    """Files with bytes of their own, below two folders."""
    chance = random.Random(count)
    made = {}
    for number in range(count):
        path = folder / f"class{number % 2}" / f"{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(n_bytes + number))
        made[str(path)] = path.read_bytes()
    return made


def copies(tier: Tier) -> dict[str, bytes]:
    place = TierPlace(tier)
    return {entry.source: place.copy_path(entry).read_bytes() for entry in place.entries().values()}


# Copying


def test_every_file_is_there_whole_with_its_time_and_in_the_map(source: Path, tier: Tier) -> None:
    made = filled(source, 40)
    found = copy(tier, below(source))
    assert (found.copied, found.was_there, found.skipped) == (40, 0, {})
    assert copies(tier) == made
    with Map(map_of("fast")) as served:
        for path in made:
            at = served.copy_of(os.fsencode(path))
            assert at is not None
            assert os.stat(at).st_mtime_ns == os.stat(path).st_mtime_ns
    assert not list(TierPlace(tier).parts.iterdir())


def test_what_is_there_and_unchanged_is_not_copied_again(source: Path, tier: Tier) -> None:
    made = filled(source, 10)
    copy(tier, below(source))
    changed = next(iter(made))
    Path(changed).write_bytes(b"other")
    found = copy(tier, below(source))
    assert (found.copied, found.was_there) == (1, 9)
    assert copies(tier) == made | {changed: b"other"}


def test_a_copy_that_was_damaged_or_removed_is_made_again(source: Path, tier: Tier) -> None:
    made = filled(source, 4)
    copy(tier, below(source))
    one, two, *_ = TierPlace(tier).entries().values()
    TierPlace(tier).copy_path(one).unlink()
    path = TierPlace(tier).copy_path(two)
    path.chmod(0o600)
    path.write_bytes(b"short")
    assert copy(tier, below(source)).copied == 2
    assert copies(tier) == made


def test_names_with_newlines_and_bytes_that_are_no_utf8(source: Path, tier: Tier) -> None:
    names = [b"new\nline", b"caf\xe9", b"tab\t", b'quote"', b" ", "日本".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(source), name), "wb") as file:
            file.write(b"bytes of " + name)
    copy(tier, below(source))
    with Map(map_of("fast")) as served:
        for name in names:
            at = served.copy_of(os.path.join(os.fsencode(source), name))
            assert at is not None
            assert Path(os.fsdecode(at)).read_bytes() == b"bytes of " + name
    assert not verify(tier).corrupted


def test_links_of_one_file_are_one_copy_under_all_their_names(source: Path, tier: Tier) -> None:
    (source / "file").write_bytes(b"bytes")
    os.link(source / "file", source / "hard")
    (source / "soft").symlink_to("file")
    (source / "folder").mkdir()
    (source / "linked").symlink_to("folder")
    (source / "folder" / "inside").write_bytes(b"more")
    found = copy(tier, [*below(source), WantedFile(str(source / "linked" / "inside"))])
    assert found.copied == 2
    with Map(map_of("fast")) as served:
        at = {served.copy_of(os.fsencode(source / name)) for name in ("file", "hard", "soft")}
        assert len(at) == 1
        assert None not in at
        assert served.copy_of(os.fsencode(source / "linked" / "inside")) == served.copy_of(
            os.fsencode(source / "folder" / "inside")
        )


def test_files_of_one_made_up_inode_number_are_copies_of_their_own(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an archive that FUSE shows: one inode number and one time for all.
    for name in ("a", "b"):
        (source / name).write_bytes(name.encode())
    os.link(source / "b", source / "linked")
    kind = tiers.mount_of(str(source)).kind.partition(".")[0]
    monkeypatch.setattr(sources, "FORGETFUL", (kind,))
    real = sources._resolved

    def resolved(path: str, folders: dict[str, str]) -> tuple[str, os.stat_result]:
        found, status = real(path, folders)
        told = list(status)
        told[1] = 7
        return found, os.stat_result(told, {"st_mtime_ns": 5, "st_ctime_ns": 5})

    monkeypatch.setattr(sources, "_resolved", resolved)
    found, _ = find(
        [WantedFile(str(source / name)) for name in ("a", "b", "linked")], TierPlace(tier)
    )
    assert [(Path(one.path).name, len(one.names)) for one in found] == [("a", 0), ("b", 1)]


def test_an_inode_number_that_another_mount_gave_is_no_proof_of_one_file(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = tiers.mount_of(str(source)).kind.partition(".")[0]
    monkeypatch.setattr(sources, "FORGETFUL", (kind,))
    for name in ("a", "b"):
        (source / name).write_bytes(name.encode())
        os.utime(source / name, ns=(10**18, 10**18))
    copy(tier, [WantedFile(str(source / "a"))])
    place = TierPlace(tier)
    (entry,) = place.entries().values()
    # After the next mount "b" has the number that "a" had, and both are of one time.
    place.append([replace(entry, identity=Identity.of((source / "b").stat()))])
    assert copy(tier, [WantedFile(str(source / "b"))]).copied == 1
    with Map(map_of("fast")) as served:
        at = served.copy_of(os.fsencode(source / "b"))
    assert at is not None
    assert Path(os.fsdecode(at)).read_bytes() == b"b"

    evict(tier)
    copy(tier, [WantedFile(str(source / "a"))])
    os.link(source / "a", source / "c")
    copy(tier, [WantedFile(str(source / "a"))])  # a link more is another ctime
    assert copy(tier, [WantedFile(str(source / "c"))]).was_there == 1


def test_a_name_is_served_the_copy_that_was_told_of_last(source: Path, tier: Tier) -> None:
    one, other = source / "one", source / "other"
    one.write_bytes(b"one")
    other.write_bytes(b"other")

    def served() -> bytes:
        copy(tier, below(source))
        with Map(map_of("fast")) as now:
            at = now.copy_of(os.fsencode(other))
        assert at is not None
        return Path(os.fsdecode(at)).read_bytes()

    assert served() == b"other"
    other.unlink()
    os.link(one, other)
    assert served() == b"one"
    other.unlink()
    other.write_bytes(b"again")
    assert served() == b"again"


def test_a_copying_brings_back_nothing_that_was_evicted_meanwhile(source: Path, tier: Tier) -> None:
    filled(source, 2)
    copy(tier, below(source))
    os.link(source / "class0" / "0.bin", source / "later")
    (source / "new").write_bytes(b"new")
    copy(tier, [WantedFile(str(source / "class0" / "0.bin"))])

    class Evicting(CopyPace):
        def wait(self, n_bytes: int) -> None:
            evict(tier)

    # The link is a further name of a copy that is there, which is told at the end.
    copy(tier, below(source), threads=1, pace=Evicting(None))
    now = status(tier)
    assert (now.copies, now.missing) == (len(copies(tier)), 0)


def test_a_copy_that_was_made_anew_is_not_removed_for_what_it_was_before(
    source: Path, tier: Tier
) -> None:
    (source / "file").write_bytes(b"before")
    copy(tier, below(source))
    place = TierPlace(tier)
    seen = list(place.entries().values())
    (source / "file").write_bytes(b"after")
    copy(tier, below(source))
    # Another staging looked before that, and makes room now.
    assert drop(place, seen) == []
    assert copies(tier) == {str(source / "file"): b"after"}
    with Map(map_of("fast")) as served:
        assert served.copy_of(os.fsencode(source / "file")) is not None

    # A name more is no other copy.
    seen = list(place.entries().values())
    place.append([replace(seen[0], names=("/another",))])
    assert [one.copy for one in drop(place, seen)] == [seen[0].copy]
    assert not (place.copies / seen[0].copy).exists()


def test_copies_of_what_was_there_before_are_told_and_what_is_known_is_not_asked_again(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("written", "replaced", "gone", "same", "moved"):
        (source / name).write_bytes(b"12345")
    copy(tier, below(source))
    (source / "written").write_bytes(b"54321")
    (source / "other").write_bytes(b"12345")
    os.rename(source / "other", source / "replaced")
    (source / "gone").unlink()
    entries = sorted(TierPlace(tier).entries().values(), key=lambda one: one.source, reverse=True)
    # Where inode numbers are made up at each mount, another one alone tells nothing.
    (moved,) = (one for one in entries if one.source.endswith("moved"))
    identity = replace(moved.identity, ino=moved.identity.ino + 1)
    entries += [
        replace(moved, identity=identity, copy="x", is_ino_kept=kept) for kept in (False, True)
    ]
    found = past(entries)
    assert sorted(Path(one.source).name for one in found) == ["moved", "replaced", "written"]
    assert found[-1].is_ino_kept

    rows = now_of([one.source for one in entries])
    seen = {one.source: at for at, one in enumerate(entries[1:], 1)}
    asked: list[str] = []
    monkeypatch.setattr(held, "now_of", lambda paths: (asked.extend(paths), now_of(paths))[1])
    assert past(entries, seen, rows) == found
    assert asked == [entries[0].source]


def test_a_copy_is_served_under_no_name_that_another_copy_has(source: Path, tier: Tier) -> None:
    (source / "one").write_bytes(b"one")
    copy(tier, below(source))
    place = TierPlace(tier)
    (one,) = place.entries().values()
    other = StagedCopy(str(source / "other"), "other", Identity(1, 2, 3, 4, 5), "", (one.source,))
    with Map(place.map) as now:
        now.mark(other, "is_staged", 1, other.identity)
        number = now.find(os.fsencode(one.source))
        assert number is not None
        assert now.slot(number)["size_bytes"] == 3


def test_a_file_that_became_a_folder_and_one_again_is_copied(source: Path, tier: Tier) -> None:
    place = source / "one"
    place.write_bytes(b"file")
    (source / "other").write_bytes(b"other")
    copy(tier, below(source))
    place.unlink()
    place.mkdir()
    (place / "inside").write_bytes(b"inside")
    copy(tier, below(source))
    others = {str(source / "other"): b"other"}
    assert copies(tier) == {str(place / "inside"): b"inside"} | others
    shutil.rmtree(place)
    place.write_bytes(b"again")
    copy(tier, below(source))
    assert copies(tier) == {str(place): b"again"} | others


def test_what_is_no_file_is_left_out_and_counted(source: Path, tier: Tier) -> None:
    os.mkfifo(source / "pipe")
    (source / "dangling").symlink_to("nowhere")
    (source / "file").write_bytes(b"x")
    found = copy(tier, [*below(source), WantedFile(str(source / "gone")), WantedFile("/\0")])
    assert found.copied == 1
    assert found.skipped == {
        "no regular file": 1,
        "gone": 2,
        "no path that a file can have": 1,
    }


def test_a_time_that_no_line_can_tell_costs_that_file_alone(source: Path, tier: Tier) -> None:
    for name in ("a", "late"):
        (source / name).write_bytes(b"abc")
    late_s = 10_000_000_000  # of the year 2286
    os.utime(source / "late", (late_s, late_s))
    if (source / "late").stat().st_mtime != late_s:
        pytest.skip("this file system knows no such time")
    found = copy(tier, below(source))
    assert (found.copied, found.skipped) == (1, {sources.TIME_BEYOND: 1})
    assert (status(tier).copies, status(tier).strays) == (1, 0)
    told = [str(source / "a"), str(source / "late")]
    assert now_of(told)["size_bytes"].tolist() == [3, today.UNSEEN]


def test_an_empty_file_is_a_copy_too(source: Path, tier: Tier) -> None:
    (source / "empty").touch()
    copy(tier, below(source))
    assert copies(tier) == {str(source / "empty"): b""}
    assert not verify(tier).corrupted


def test_large_files_are_copied_in_chunks_and_checked_as_the_whole(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", MIB)
    data = random.Random(1).randbytes(5 * MIB + 17)
    (source / "large").write_bytes(data)
    assert copy(tier, below(source)).copied_bytes == len(data)
    assert copies(tier) == {str(source / "large"): data}
    (entry,) = TierPlace(tier).entries().values()
    assert entry.checksum == told_checksum(data, MIB)
    assert not verify(tier).corrupted


def told_checksum(data: bytes, chunk_bytes: int) -> str:
    """As FORMAT-stage.md says it, by other means than the package's."""
    import xxhash

    digests = [
        xxhash.xxh3_64(data[first : first + chunk_bytes]).digest()
        for first in range(0, max(1, len(data)), chunk_bytes)
    ]
    if len(digests) == 1:
        return f"xxh3_64:{digests[0].hex()}"
    return f"xxh3_64/{chunk_bytes}:{xxhash.xxh3_64(b''.join(digests)).hexdigest()}"


@pytest.mark.parametrize("refusal", ["", "later"])
def test_what_is_not_in_memory_is_copied_past_it(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    # Sizes about pages and pieces; a chunk that ends amid a page is no chunk of ours.
    monkeypatch.setattr(manifest, "CHUNK_BYTES", 2 * MIB)
    monkeypatch.setattr(part, "PIECE_BYTES", MIB)
    sizes = (0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB + 4099)
    made = {str(source / f"{size}"): random.Random(size).randbytes(size) for size in sizes}
    for path, data in made.items():
        Path(path).write_bytes(data)
        tiers.evict(path)
    if not all(tiers.resident_bytes(path) == 0 for path in made):
        pytest.skip("this file system keeps all in memory, or does not say")
    reads: list[bool] = []
    preadv = os.preadv

    def seen(descriptor: int, buffers: list[memoryview], at: int) -> int:
        reads.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        if reads[-1] and refusal:
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", seen)
    found = copy(tier, below(source), threads=3)
    assert found.copied == len(made)
    assert copies(tier) == made
    assert any(reads)
    assert all(reads) or refusal
    if not refusal:
        assert all(tiers.resident_bytes(path) == 0 for path in made)
    assert not verify(tier).corrupted


def test_what_is_in_memory_is_taken_from_there(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(source, 6, 100_000)
    set_direct: list[bool] = []
    monkeypatch.setattr(part, "_set_direct", lambda number, to: set_direct.append(to))
    assert copy(tier, below(source)).copied == 6
    assert copies(tier) == made
    assert set_direct == []


def test_small_files_are_copied_beside_the_large_and_none_is_left(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", 4096)
    sizes = [10, 20, 4095, 4096, 4097, 10_000, 36_000]
    for size in sizes:
        (source / f"{size}").write_bytes(bytes(size))
    found, _ = find(below(source), TierPlace(tier))
    place = TierPlace(tier)
    place.make()
    for is_ordered in (False, True):
        work = Work(place, CopyPace(None), sum(sizes), None, is_ordered=is_ordered)
        tasks = part.Tasks(work, found)
        first, second = tasks.take(0), tasks.take(1)
        assert first is not None
        assert second is not None
        taken = [first, second]
        while (task := tasks.take(len(taken) % 3)) is not None:
            taken.append(task)
        # Four small files, and 2 + 3 + 9 chunks.
        assert len(taken) == 18
        begun = [large.part.source.identity.size_bytes for large in work.large]
        assert begun == ([10_000, 36_000, 4097] if is_ordered else [36_000, 10_000, 4097])
        for task in taken[::-1]:
            task()
        assert work.copied == 7
        assert not verify(tier).corrupted
        evict(tier)


def test_files_of_several_folders_are_asked_for_at_once_and_told_in_order(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(source, 20)
    asked: list[str] = []
    monkeypatch.setattr(sources, "ASKED_AT_ONCE", 1)
    resolved = sources._resolved

    def seen(path: str, folders: dict[str, str]) -> tuple[str, os.stat_result]:
        asked.append(path)
        return resolved(path, folders)

    monkeypatch.setattr(sources, "_resolved", seen)
    wanted = list(below(source))
    found, _ = find(wanted, TierPlace(tier))
    assert [one.path for one in found] == [one.path for one in wanted]
    assert sorted(asked) == sorted(made)
    assert [Path(path).parent.name for path in asked] == ["class0", "class1"] * 10


@pytest.mark.parametrize("chunk_bytes", [manifest.CHUNK_BYTES, 4])
def test_a_file_that_only_its_open_refuses_is_left_out_and_the_others_are_copied(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    made = filled(source, 4)
    refused = next(iter(made))
    opened = os.open

    def asked(path: Any, *told: Any, **more: Any) -> int:
        if path == refused:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *told, **more)

    monkeypatch.setattr(manifest, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(os, "open", asked)
    found = copy(tier, below(source))
    assert (found.copied, found.skipped) == (3, {"not readable": 1})


def test_folders_that_an_eviction_removes_as_they_are_made_are_made_again(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(source, 4)
    makedirs, calls = os.makedirs, dict.fromkeys(("class0", "class1"), 0)

    def removed(path: str, *told: Any, **more: Any) -> None:
        name = Path(path).name  # it calls itself for the folders above
        if name in calls:
            calls[name] += 1
            if calls[name] < 3:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        makedirs(path, *told, **more)

    monkeypatch.setattr(os, "makedirs", removed)
    assert copy(tier, below(source), threads=1).copied == 4
    assert set(calls.values()) == {3}
    assert copies(tier) == made


def test_a_rank_counts_what_others_are_to_copy_anew_and_not_what_makes_way_for_it(
    source: Path, tier: Tier
) -> None:
    made = list(filled(source, 20, 4000))
    small = registry.add("fast", tier.path, 20 * 4096)
    copy(small, below(source))
    (ours, *_), (theirs, *_) = (
        [one.path for one in _share(find(below(source), TierPlace(small))[0], rank, 2)]
        for rank in range(2)
    )
    Path(ours).write_bytes(b"changed")
    Path(theirs).write_bytes(bytes(2 * 4096))
    for rank in range(2):  # whoever comes first
        with pytest.raises(TierError, match="are taken"):
            copy(small, below(source), rank=rank, world_size=2)
    assert len(TierPlace(small).entries()) == 20 - 2  # of what has changed nothing is served
    Path(theirs).write_bytes(b"changed too")
    assert sum(copy(small, below(source), rank=n, world_size=2).copied for n in range(2)) == 2
    assert copies(small) == {path: Path(path).read_bytes() for path in made}


@pytest.mark.parametrize("chunk_bytes", [64 << 20, 4096])
def test_what_is_not_ours_and_in_the_way_costs_that_file_and_is_named(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", chunk_bytes)
    made = list(filled(source, 4))
    (source / "below").mkdir()
    (source / "below" / "a").write_bytes(bytes(5000))
    copies_at = f"{TierPlace(tier).copies}"
    theirs = Path(f"{copies_at}{made[0]}/theirs")
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    Path(f"{copies_at}{source}/below").write_bytes(b"theirs too")
    found = copy(tier, below(source))
    assert found.copied == 3
    assert found.skipped == {
        f"{copies_at}{made[0]} is not ours, and in the way": 1,
        f"{copies_at}{source}/below is not ours, and in the way": 1,
    }
    assert theirs.read_bytes() == b"theirs"
    assert not list(TierPlace(tier).parts.iterdir())
    assert {one.source for one in TierPlace(tier).entries().values()} == set(made[1:])
    assert not verify(tier).corrupted


def test_nothing_behind_a_link_among_the_copies_is_written_or_removed(
    source: Path, tier: Tier
) -> None:
    (source / "a").write_bytes(b"abc")
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "b").write_bytes(b"abcd")
    copy(tier, below(source))
    place = Path(f"{TierPlace(tier).copies}{source}")
    shutil.rmtree(place)
    place.symlink_to(source)  # as if the originals were copies
    before = (source / "a").stat()
    os.utime(source / "a")
    found = copy(tier, below(source))
    assert found.skipped == {f"{place} is not ours, and in the way": 1}
    evict(tier)
    assert (source / "a").read_bytes() == b"abc"
    assert (source / "a").stat().st_ino == before.st_ino
    assert (source / "deep" / "er" / "b").read_bytes() == b"abcd"
    place.unlink()
    assert copy(tier, below(source)).copied == 2


def test_a_file_below_a_folder_named_url_has_another_place_than_urls(
    source: Path, tier: Tier
) -> None:
    (source / "a").write_bytes(b"1")
    (found,), _ = find(below(source), TierPlace(tier))
    assert replace(found, path="/url/s3/bucket/a").copy == "url/file/url/s3/bucket/a"
    assert replace(found, path="/urls/a").copy == "urls/a"
    for path in ("/url/s3/bucket/a", "/urls/a", "/a"):
        assert sources.path_of(replace(found, path=path).copy) == path


def test_ranks_copy_shares_that_are_disjoint_and_together_all(source: Path, tier: Tier) -> None:
    made = filled(source, 60)
    counts = [copy(tier, below(source), rank=rank, world_size=4).copied for rank in range(4)]
    assert sum(counts) == 60
    assert all(5 < count < 30 for count in counts)
    assert copies(tier) == made
    with pytest.raises(TierError, match="rank 4 of 4"):
        copy(tier, below(source), rank=4, world_size=4)


def test_two_stagings_at_once_copy_no_file_twice(source: Path, tier: Tier) -> None:
    made = filled(source, 200)
    script = """
        import sys
        from penstock.places import registry
        from penstock.stage.copy import copy
        from penstock.stage.source import below
        print(copy(registry.tier_of("fast"), below(sys.argv[1]), threads=3).copied)
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), source], stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    assert [one.wait() for one in running] == [0, 0, 0]
    counts = [int(one.stdout.read()) for one in running if one.stdout]
    lines = TierPlace(tier).manifest.read_text().count('"checksum"')
    # A file that one has found missing may be copied by another before it is looked at.
    assert sum(counts) == lines == 200
    assert copies(tier) == made


def test_the_rate_is_that_of_all_threads_together() -> None:
    clock = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    pace = CopyPace(1000.0, lambda: clock[0], sleep)
    for _ in range(50):
        pace.wait(100)
    assert 4.8 <= clock[0] <= 5.0
    assert max(slept) <= 0.11


def test_progress_ends_with_all_bytes(source: Path, tier: Tier) -> None:
    made = filled(source, 20)
    seen: list[tuple[int, int]] = []
    copy(tier, below(source), progress=lambda done, total: seen.append((done, total)))
    total = sum(map(len, made.values()))
    assert all(done <= whole == total for done, whole in seen)


# Trouble


def test_a_tier_that_is_too_small_is_refused_before_anything_is_copied(
    source: Path, tier: Tier
) -> None:
    filled(source, 10, 10_000)
    small = registry.add("fast", tier.path, capacity_bytes=50_000)
    with pytest.raises(TierError, match=r"123 kB are to be copied.* 50\.0 kB 0 B are taken"):
        copy(small, below(source))
    assert copies(small) == {}


def test_a_full_disk_stops_the_copying_and_what_is_staged_stays_valid(
    source: Path, tmp_path: Path, tier: Tier
) -> None:
    made = filled(source, 40, 60_000)
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True
    ).returncode:
        pytest.skip("a small tmpfs cannot be mounted here: needs root")
    try:
        full = registry.add("full", mount)
        # What is free is looked at first; here another takes it meanwhile.
        before, tiers.free_bytes = tiers.free_bytes, lambda folder: 1 << 40
        try:
            with pytest.raises(TierError, match=r"full after .* files.*staged and valid"):
                copy(full, below(source))
        finally:
            tiers.free_bytes = before
        there = copies(full)
        assert 5 < len(there) < 20
        assert all(made[path] == data for path, data in there.items())
        assert not verify(full).corrupted
        assert not list(TierPlace(full).parts.iterdir())
        with Map(map_of("full")) as served:
            assert {os.fsdecode(path) for path in served.staged()} == set(there)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_limit_on_the_size_of_files_is_told(source: Path, tier: Tier) -> None:
    (source / "large").write_bytes(bytes(3 * MIB))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        with pytest.raises(TierError, match="File too large"):
            copy(tier, below(source))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert copies(tier) == {}
    assert not list(TierPlace(tier).parts.iterdir())


def test_a_source_that_grows_while_it_is_copied_is_copied_as_it_is_then(
    source: Path, tier: Tier
) -> None:
    path = source / "file"
    path.write_bytes(b"before")

    class Growing(CopyPace):
        def wait(self, n_bytes: int) -> None:
            if path.read_bytes() == b"before":
                path.write_bytes(b"after it grew")

    assert copy(tier, below(source), pace=Growing(None), threads=1).copied == 1
    assert copies(tier) == {str(path): b"after it grew"}


def test_a_source_that_never_rests_is_left_out(source: Path, tier: Tier) -> None:
    path = source / "file"
    path.write_bytes(b"0")

    class Restless(CopyPace):
        def wait(self, n_bytes: int) -> None:
            path.write_bytes(path.read_bytes() + b"0")

    found = copy(tier, below(source), pace=Restless(None), threads=1)
    assert found.skipped == {"changed while it was copied": 1}
    assert copies(tier) == {}
    assert not list(TierPlace(tier).parts.iterdir())


def test_sources_that_are_deleted_under_way_are_left_out_and_the_others_copied(
    source: Path, tier: Tier
) -> None:
    made = filled(source, 12)
    gone = sorted(made)[6:]

    class Deleting(CopyPace):
        def wait(self, n_bytes: int) -> None:
            for path in gone:
                Path(path).unlink(missing_ok=True)

    found = copy(tier, below(source), threads=1, pace=Deleting(None))
    # The one that was open when its name went has changed: it has a link less.
    assert set(found.skipped) <= {"gone", "changed while it was copied"}
    assert sum(found.skipped.values()) == 6
    assert copies(tier) == {path: data for path, data in made.items() if path not in gone}
    assert not verify(tier).corrupted


def test_ctrl_c_leaves_no_part_behind(source: Path, tier: Tier) -> None:
    filled(source, 30)

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(tier, below(source), progress=interrupted, pace=CopyPace(100_000.0))
    assert not list(TierPlace(tier).parts.iterdir())
    assert not verify(tier).corrupted


KILLED = """
    import sys
    from penstock.places import registry
    from penstock.stage import manifest
    from penstock.stage.copy import copy
    from penstock.stage.source import below
    manifest.CHUNK_BYTES = 1 << 16
    print("go", flush=True)
    copy(registry.tier_of("fast"), below(sys.argv[1]), limit_bps=float(sys.argv[2]))
"""


def test_after_a_kill_anywhere_all_that_is_told_is_whole_and_the_rest_follows(
    source: Path, tier: Tier
) -> None:
    made = filled(source, 20, 20_000)
    (source / "large").write_bytes(random.Random(2).randbytes(700_000))
    made[str(source / "large")] = (source / "large").read_bytes()
    chance = random.Random(5)
    for _ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(KILLED), source, "3e6"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            running.stdout.readline()
            time.sleep(chance.random() * 0.3)
            running.kill()
        for path, data in copies(tier).items():
            assert data == made[path]
    subprocess.run([*command[:-1], "1e12"], check=True)
    assert copies(tier) == made
    assert not verify(tier).corrupted
    assert not list(TierPlace(tier).parts.iterdir())


def test_a_large_file_goes_on_where_the_kill_left_it(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", MIB)
    data = random.Random(3).randbytes(6 * MIB)
    (source / "large").write_bytes(data)
    place = TierPlace(tier)
    place.make()
    (one,), _ = find(below(source), place)
    work = Work(place, CopyPace(None), len(data), None)
    large = Large(work, one)
    assert large.begin() == [n * MIB for n in range(6)]
    for first in (0, 3 * MIB):
        large.copy_chunk(first)
    large.part.close(is_kept=True)  # what a kill leaves
    passed: list[int] = []

    class Counting(CopyPace):
        def wait(self, n_bytes: int) -> None:
            passed.append(n_bytes)

    assert copy(tier, below(source), pace=Counting(None)).copied == 1
    assert sum(passed) == 4 * MIB
    assert copies(tier) == {str(source / "large"): data}
    assert not verify(tier).corrupted


def test_a_kill_between_line_and_copy_leaves_no_older_copy_of_the_same_size_and_time(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source / "file"
    path.write_bytes(b"before")
    copy(tier, below(source))
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"behind")
    os.utime(path, ns=times)

    def killed(work: Work, entry: StagedCopy) -> None:
        work.place.append([entry])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Work, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            copy(tier, below(source))
    with Map(map_of("fast")) as served:
        at = served.copy_of(os.fsencode(path))
        assert at is None or not os.path.exists(at)
    assert copy(tier, below(source)).copied == 1
    assert copies(tier) == {str(path): b"behind"}


def test_the_same_device_is_said_to_gain_nothing(source: Path, tier: Tier) -> None:
    filled(source, 2)
    (note,) = copy(tier, below(source)).notes
    assert "2 of 2 files lie on the same device" in note


def test_a_device_that_gives_its_folders_another_number_is_the_same(overlay: Path) -> None:
    folders = [overlay / "source", overlay / "tier"]
    for folder in folders:
        folder.mkdir()
    filled(folders[0], 2)
    (note,) = copy(Tier("fast", folders[1]), below(folders[0])).notes
    assert "2 of 2 files lie on the same device" in note
    assert tiers.device_of(folders[1]) == (folders[0] / "class0" / "0.bin").stat().st_dev


def test_a_tier_that_is_gone_or_read_only_says_so(tmp_path: Path, tier: Tier, source: Path) -> None:
    filled(source, 2)
    shutil.rmtree(tier.path)
    with pytest.raises(TierError, match="is not there"):
        copy(tier, below(source))
    with pytest.raises(TierError, match="is not there"):
        map_of("fast")
    for look in (status, verify, evict):
        with pytest.raises(TierError, match="tier fast is not there; mount it"):
            look(tier)
    with pytest.raises(TierError, match="no such folder"):
        registry.add("other", tmp_path / "nowhere")


# Verify, status, evict


def test_verify_finds_every_kind_of_damage(source: Path, tier: Tier) -> None:
    filled(source, 6, 10_000)
    copy(tier, below(source))
    place = TierPlace(tier)
    entries = sorted(place.entries().values(), key=lambda one: one.copy)
    flipped, cut, gone, touched, swapped, _ = (place.copy_path(entry) for entry in entries)
    for path in (flipped, cut, touched):
        path.chmod(0o600)
    times = (flipped.stat().st_atime_ns, flipped.stat().st_mtime_ns)
    with open(flipped, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 1]))
    os.utime(flipped, ns=times)
    os.truncate(cut, 100)
    gone.unlink()
    os.utime(touched)
    swapped.unlink()
    swapped.mkdir()
    found = verify(tier)
    assert [one.why for one in found.corrupted] == [
        "other bytes than were copied",
        f"100 bytes instead of {entries[1].identity.size_bytes:,}",
        "gone",
        "changed",
        "no regular file",
    ]
    swapped.rmdir()
    verify(tier, is_mending=True)
    assert verify(tier).copies == 1
    with Map(map_of("fast")) as served:
        assert len(served.staged()) == 1


def test_status_counts_what_has_become_of_the_sources(source: Path, tier: Tier) -> None:
    made = filled(source, 5)
    copy(tier, below(source))
    changed, gone, *_ = made
    Path(changed).write_bytes(b"other")
    os.unlink(gone)
    found = status(tier)
    assert (found.copies, found.stale, found.orphans, found.missing) == (5, 1, 1, 0)
    assert found.size_bytes == sum(map(len, made.values()))


def test_eviction_takes_the_useless_first_then_those_of_least_gain_per_byte(
    source: Path, tier: Tier
) -> None:
    for name, size in (("a", 4000), ("b", 4000), ("c", 8000), ("d", 4000)):
        (source / name).write_bytes(bytes(size))
    gains = {"a": 1.0, "b": 2.0, "c": 2.5, "d": 9.0}
    copy(tier, [WantedFile(str(source / name), gain) for name, gain in gains.items()])
    (source / "d").write_bytes(b"changed")
    assert evict(tier, free_bytes=8000) == (2, 8000, 2 * 4096)
    assert {Path(path).name for path in copies(tier)} == {"b", "c"}
    assert evict(tier) == (2, 12000, 3 * 4096)
    assert copies(tier) == {}
    assert not list(TierPlace(tier).copies.iterdir())


def test_room_on_a_tier_above_its_capacity_begins_where_that_is_reached(
    source: Path, tier: Tier
) -> None:
    for number in range(10):
        (source / str(number)).write_bytes(bytes(4000))
    copy(tier, below(source))
    small = registry.add("fast", tier.path, 5 * 4096)
    assert evict(small, free_bytes=100) == (6, 24_000, 4096)
    assert status(small).free_bytes == 4096
    assert evict(small, free_bytes=100) == (1, 4000, 4096)
    assert evict(small, free_bytes=1 << 30) == (3, 12_000, 3 * 4096)


def test_copies_that_a_damaged_manifest_lost_are_counted_and_go(source: Path, tier: Tier) -> None:
    filled(source, 5)
    copy(tier, below(source))
    place = TierPlace(tier)
    lines = place.manifest.read_bytes().splitlines(keepends=True)
    place.manifest.write_bytes(b"".join([*lines[:2], lines[2][:40] + b"\n", *lines[3:]]))
    lost = json.loads(lines[2])["copy"]
    (place.copies / lost).with_name("mine").write_bytes(b"user's")
    found = status(tier)
    assert (found.copies, found.strays, found.foreign) == (4, 1, 1)
    assert found.stray_bytes == (place.copies / lost).stat().st_size
    assert evict(tier, free_bytes=1)[0] == 1
    assert not (place.copies / lost).exists()
    assert (status(tier).copies, status(tier).strays) == (4, 0)
    assert evict(tier)[0] == 4
    assert [path.name for path in place.copies.rglob("*") if path.is_file()] == ["mine"]


def test_a_map_that_finds_no_room_says_what_makes_some(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*told: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(manifest, "_map_bytes", full)
    with pytest.raises(TierError, match=r"staged\.map: .* on device; penstock stage evict makes"):
        copy(tier, below(source))


def test_a_map_that_is_damaged_amid_what_was_dropped_is_written_anew(
    source: Path, tier: Tier
) -> None:
    filled(source, 4)
    copy(tier, below(source))
    place = TierPlace(tier)
    one = next(iter(place.entries().values()))
    with Map(place.map) as found:
        found.mark(one, "is_dropped", 1)
        number = found.find(os.fsencode(one.source))
    assert number is not None
    with place.map.open("r+b") as file:
        file.seek(manifest.HEADER.itemsize + number * manifest.SLOT.itemsize + 8)
        file.write(b"\xff" * 8)  # where the path is
    copy(tier, below(source))
    with Map(place.map) as found:
        assert found.copy_of(os.fsencode(one.source))


def test_a_number_that_no_float_holds_is_no_line(source: Path, tier: Tier) -> None:
    (source / "a").write_bytes(b"abc")
    copy(tier, below(source))
    place = TierPlace(tier)
    lines = place.manifest.read_text().splitlines(keepends=True)
    with place.manifest.open("a") as file:
        file.write(lines[-1].replace('"gain_s": 0.0', f'"gain_s": 1{"0" * 400}'))
    assert [one.gain_s for one in place.entries().values()] == [0.0]


def test_what_is_free_is_what_copies_may_still_take(source: Path, tier: Tier) -> None:
    filled(source, 2)
    small = registry.add("fast", tier.path, 100_000)
    copy(small, below(source))
    assert status(small).free_bytes == 100_000 - 4 * 4096


def test_copies_of_what_does_not_answer_are_not_stale(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(source, 3)
    copy(tier, below(source))
    real = os.stat

    def stat(path: Any, **ways: Any) -> os.stat_result:
        if path in made:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, **ways)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(today, "_native", lambda: None)
    assert (status(tier).orphans, status(tier).not_asked) == (0, 3)
    assert evict(tier, is_stale_only=True).copies == 0


def test_sources_are_asked_many_at_once_and_each_file_system_by_itself(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list(filled(source, 6))
    copy(tier, below(source))
    place = TierPlace(tier)
    moved = [one for one in place.entries().values() if one.source in made[:2]]
    place.append([replace(one, identity=replace(one.identity, dev=7)) for one in moved])
    Path(made[0]).unlink()
    Path(made[3]).write_bytes(b"changed")
    asked: list[list[str]] = []
    monkeypatch.setattr(held, "now_of", lambda paths: (asked.append(paths), now_of(paths))[1])
    told: list[tuple[int, int]] = []
    found = status(tier, lambda done, all_of_it: told.append((done, all_of_it)))
    assert (found.orphans, found.stale, found.not_asked) == (1, 1, 0)
    assert sorted(map(sorted, asked)) == sorted([sorted(made[:2]), sorted(made[2:])])
    assert told == [(0, 6)]
    assert evict(tier, is_stale_only=True).copies == 2


@pytest.mark.parametrize("chunk_bytes", [64 << 20, 4096])
def test_a_kill_just_before_a_copy_got_its_name_is_taken_up_by_who_may_not_write_to_it(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", chunk_bytes)
    made = filled(source, 2)
    place = TierPlace(tier)

    def killed(*told: object) -> None:
        raise KeyboardInterrupt

    def opened(path: Any, flags: int, *more: Any, real: Any = os.open, **way: Any) -> int:
        writes = flags & os.O_ACCMODE != os.O_RDONLY and os.path.exists(path)
        if writes and not os.stat(path).st_mode & 0o200:  # as it is for all users but root
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return int(real(path, flags, *more, **way))

    def copied_and_killed() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", killed)
            patched.setattr(
                part.CopyPart,
                "close",
                lambda self, close=part.CopyPart.close: close(self, is_kept=True),
            )
            with pytest.raises(KeyboardInterrupt):
                copy(tier, below(source), threads=1)
        assert any(not one.stat().st_mode & 0o200 for one in place.parts.glob("*.part"))

    copied_and_killed()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opened)
        assert copy(tier, below(source)).copied == 2
    assert copies(tier) == made
    evict(tier)
    copied_and_killed()
    monkeypatch.setattr(os, "open", opened)
    evict(tier)
    assert not list(place.parts.iterdir())


def test_a_sweep_leaves_a_part_that_came_in_place_of_what_it_saw(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(source, 1)
    place = TierPlace(tier)
    place.make()
    (one,), _ = find(below(source), place)
    work = Work(place, CopyPace(None), 0, None)
    left, anew = part.CopyPart(work, one), part.CopyPart(work, one)
    assert left.hold()
    flock = fcntl.flock

    def meanwhile(descriptor: int, how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".part") and left.descriptor >= 0:
            left.close()
            assert anew.hold()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    part.sweep(place, ())
    assert anew.descriptor >= 0
    assert os.path.exists(anew.path)
    anew.close()


def test_a_sweep_does_not_wait_for_who_writes_to_a_fifo(tier: Tier) -> None:
    place = TierPlace(tier)
    place.make()
    os.mkfifo(place.parts / "0123456789abcdef.part")
    part.sweep(place, ())
    assert not list(place.parts.iterdir())


def test_a_sweep_takes_no_file_from_who_is_about_to_copy_it(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(source, 1)
    place = TierPlace(tier)
    place.make()
    (one,), _ = find(below(source), place)
    ours = part.CopyPart(Work(place, CopyPace(None), 0, None), one)
    Path(ours.path).touch()
    holding = threading.Thread(target=ours.hold)
    unlink = Path.unlink

    def meanwhile(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".part":
            holding.start()
            holding.join(0.1)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", meanwhile)
    part.sweep(place, ())
    holding.join()
    assert ours.descriptor >= 0
    assert os.path.exists(ours.path)
    ours.close()


def test_what_files_were_makes_way_at_once_for_what_they_are(source: Path, tier: Tier) -> None:
    (source / "a").write_bytes(bytes(4096))
    (source / "b").write_bytes(bytes(2 * 4096))
    small = registry.add("fast", tier.path, 3 * 4096)
    assert copy(small, below(source)).copied == 2
    (source / "a").write_bytes(bytes(2 * 4096))
    (source / "b").write_bytes(bytes(4096))
    assert copy(small, below(source), threads=1).copied == 2
    assert not verify(small).corrupted


def test_a_copy_that_another_staging_has_just_put_in_place_is_not_useless(
    source: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(source, 1)
    copy(tier, below(source))
    place = TierPlace(tier)
    answers = iter(["gone"])  # as it was when it was looked for
    monkeypatch.setattr(
        held, "why_bad", lambda *told, real=held.why_bad: next(answers, None) or real(*told)
    )
    assert held.useless(place, place.entries().values()) == []


def test_nothing_but_our_own_is_ever_removed(source: Path, tier: Tier) -> None:
    (tier.path / "mine").write_bytes(b"user's")
    filled(source, 3)
    copy(tier, below(source))
    beside = next(TierPlace(tier).copies.rglob("*.bin")).parent / "users"
    beside.write_bytes(b"user's too")
    evict(tier)
    assert (tier.path / "mine").read_bytes() == b"user's"
    assert beside.read_bytes() == b"user's too"


# The map


def fnv(path: bytes) -> int:
    """FNV-1a as its authors write it."""
    found = 0xCBF29CE484222325
    for byte in path:
        found = ((found ^ byte) * 0x100000001B3) % (1 << 64)
    return found


SLOT_NAMES = (
    "size", "mtime", "ctime", "mtime_ns", "ctime_ns", "ino", "dev", "flags", "staged", "dropped",
)  # fmt: skip


def looked_up(path: Path, wanted: bytes) -> tuple[bytes, dict[str, int]] | None:
    """A second reader of FORMAT-stage.md, by struct alone: what a C program does."""
    data = path.read_bytes()
    magic, version, order, size, slots, slots_at, _, blob_at, blob, *_ = struct.unpack_from(
        "<8sIIQQQQQQ", data
    )
    assert (magic, version, order, size) == (b"PSTKSTG\0", 1, 0x01020304, len(data))
    assert blob_at + blob == size
    assert data[blob_at] == data[-1] == 0
    number = (fnv(wanted) ^ (fnv(wanted) >> 32)) & (slots - 1)
    while True:
        slot = struct.unpack_from("<QQQIIQqqIIQQIBB", data, slots_at + 96 * number)
        if not slot[1]:
            return None
        if slot[0] == fnv(wanted) and data[slot[1] : slot[1] + slot[3] + 1] == wanted + b"\0":
            copy_path = data[slot[2] : slot[2] + slot[4]]
            names = [
                "size",
                "mtime",
                "ctime",
                "mtime_ns",
                "ctime_ns",
                "ino",
                "dev",
                "flags",
                "staged",
                "dropped",
            ]
            return copy_path, dict(zip(names, slot[5:], strict=True))
        number = (number + 1) & (slots - 1)


def entry_of(path: str, size: int = 1) -> StagedCopy:
    return StagedCopy(path, path.lstrip("/"), Identity(size, -1, 2_000_000_001, 3, 4), "xxh3_64:00")


PATHS = st.lists(
    st.binary(min_size=1, max_size=60)
    .filter(lambda name: b"\0" not in name and b"/" not in name and name not in (b".", b".."))
    .map(lambda name: os.fsdecode(b"/" + name)),
    unique=True,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(PATHS)
def test_every_path_is_found_by_a_second_reader_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str]
) -> None:
    place = TierPlace(Tier("t", tmp_path_factory.mktemp("map")))
    place.make()
    entries = [entry_of(path, number) for number, path in enumerate(paths)]
    path = write_map(place, entries)
    for entry in entries:
        found = looked_up(path, os.fsencode(entry.source))
        assert found is not None
        at, slot = found
        assert at == os.fsencode(place.copy_path(entry))
        assert slot == {
            "size": entry.identity.size_bytes,
            "mtime": -1, "mtime_ns": 999_999_999, "ctime": 2, "ctime_ns": 1,
            "ino": 3, "dev": 4, "flags": 1, "staged": 1, "dropped": 0,
        }  # fmt: skip
        assert looked_up(path, os.fsencode(entry.source) + b"x") is None or (
            f"{entry.source}x" in paths
        )


def test_hashes_of_many_are_those_of_each() -> None:
    chance = random.Random(0)
    paths = [b"", b"a", *(chance.randbytes(chance.randrange(200)) for _ in range(200))]
    assert hashes(paths).tolist() == [fnv(path) for path in paths]
    assert [hash_of(path) for path in paths] == hashes(paths).tolist()
    assert hashes([]).tolist() == []


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_map_is_refused_or_read_but_never_more(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = TierPlace(Tier("t", tmp_path_factory.mktemp("map")))
    place.make()
    path = write_map(place, [entry_of(f"/f{number}") for number in range(5)])
    damaged = bytearray(path.read_bytes())
    # The file's length goes with the name of the temporary folder: places are drawn as shares.
    if data.draw(st.booleans()):
        damaged = damaged[: int(data.draw(st.floats(0, 1)) * len(damaged))]
    for share, byte in data.draw(st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)))):
        if damaged:
            damaged[int(share * len(damaged))] = byte
    path.write_bytes(damaged)
    try:
        with Map(path) as found:
            for number in range(5):
                found.copy_of(f"/f{number}".encode())
            found.dropped()
            found.staged()
    except TierError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=80) | st.from_type(dict).map(lambda _: b"{}"), max_size=20))
def test_a_hostile_manifest_brings_no_copy_outside_of_the_tier(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    place = TierPlace(Tier("t", tmp_path_factory.mktemp("manifest")))
    place.make()
    good = entry_of("/data/a")
    outside = [
        json.dumps(json.loads(good.line()) | {"copy": copy_path}).encode()
        for copy_path in ("../x", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\0b")
    ]
    nested = [b"[" * 5000, b'{"gone": []}', b'{"version": 1}', b"null", b'"text"', b"7"]
    place.manifest.write_bytes(b"\n".join([*lines, *outside, *nested, good.line()]))
    entries = place.entries()
    assert "data/a" in entries
    for entry in entries.values():
        assert place.copy_path(entry).resolve().is_relative_to(place.copies)


def test_a_line_that_a_crash_cut_costs_only_itself(source: Path, tier: Tier) -> None:
    filled(source, 3)
    copy(tier, below(source))
    place = TierPlace(tier)
    data = place.manifest.read_bytes()
    place.manifest.write_bytes(data[:-20])
    assert len(place.entries()) == 2
    assert copy(tier, below(source)).copied == 1
    assert len(place.entries()) == 3


def test_a_newer_manifest_is_refused_in_a_sentence(tier: Tier) -> None:
    place = TierPlace(tier)
    place.make()
    place.manifest.write_bytes(b'{"version": 9}\n')
    with pytest.raises(TierError, match="of version 9, known here is 1"):
        place.entries()


def test_what_a_program_dropped_stays_dropped_until_it_is_copied_anew(
    source: Path, tier: Tier
) -> None:
    made = filled(source, 4)
    copy(tier, below(source))
    first = next(iter(made))
    place = TierPlace(tier)
    with Map(place.map) as served:
        entry = place.entries()[first.lstrip("/")]
        served.mark(entry, "is_dropped", 1)
        assert served.copy_of(os.fsencode(first)) is None
    with place.locked():
        write_map(place, place.entries().values())
    with Map(place.map) as served:
        assert served.dropped() == {os.fsencode(first)}
    assert copy(tier, below(source)).copied == 1
    with Map(place.map) as served:
        assert not served.dropped()
        assert len(served.staged()) == 4


def test_an_older_map_says_that_a_newer_is_in_its_place(source: Path, tier: Tier) -> None:
    filled(source, 2)
    copy(tier, below(source))
    with Map(TierPlace(tier).map) as older:
        filled(source, 4)
        copy(tier, below(source))
        assert older._bytes[manifest.RETIRED_AT] == 1
        assert len(older.staged()) == 2


def test_a_map_that_a_kill_left_old_is_written_anew_when_it_is_asked_for(
    source: Path, tier: Tier
) -> None:
    filled(source, 2)
    copy(tier, below(source))
    place = TierPlace(tier)
    os.utime(place.map, ns=(0, 0))
    place.append([entry_of("/late")])
    with Map(map_of("fast")) as served:
        assert b"/late" in served.staged()


def test_nothing_staged_says_what_to_do(tier: Tier) -> None:
    with pytest.raises(TierError, match="penstock stage copy"):
        map_of("fast")


def test_the_format_in_the_docs_is_that_of_the_code() -> None:
    text = (Path(__file__).parent.parent / "docs" / "FORMAT-stage.md").read_text()
    told = {}
    for line in text.splitlines():
        for half in (line[4:49], line[49:]):
            words = half.split()
            if len(words) >= 3 and words[0].isdigit() and words[1][0] in "u8is":
                told[words[2]] = int(words[0])
    known = {
        name: offset
        for dtype in (manifest.HEADER, manifest.SLOT)
        for name, (_, offset, *_) in dtype.fields.items()
    }
    assert {name: told.get(name) for name in known} == known


# The manifest's lines


def _entries(n: int) -> list[StagedCopy]:
    return [
        StagedCopy(f"/d/{at}", f"d/{at}", Identity(at, 1, 1, 1, 1), f"a:{at}") for at in range(n)
    ]


def _until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 20
    while not is_so() and time.monotonic() < ends_s:
        time.sleep(0.001)


def _told(work: Work, entries: list[StagedCopy]) -> list[BaseException | None]:
    """What came of telling each in a thread of its own, all at once."""
    came: list[BaseException | None] = []

    def tell(entry: StagedCopy) -> None:
        try:
            work.tell(entry)
            came.append(None)
        except BaseException as error:
            came.append(error)

    threads = [threading.Thread(target=tell, args=(one,)) for one in entries]
    with work.place.locked():  # one waits for this, the others for that one
        threads[0].start()
        _until(lambda: work._telling.locked() and not work._untold)
        for thread in threads[1:]:
            thread.start()
        _until(lambda: len(work._untold) == len(entries) - 1)
    for thread in threads:
        thread.join()
    return came


def test_lines_that_threads_tell_meanwhile_are_written_together(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TierPlace(tier)
    place.make()
    counts, append = [], TierPlace.append_locked

    def counted(self: TierPlace, entries: Any = (), gone: Any = ()) -> None:
        known = list(entries)
        counts.append(len(known))
        append(self, known, gone)

    monkeypatch.setattr(TierPlace, "append_locked", counted)
    entries = _entries(8)
    assert _told(Work(place, CopyPace(None), 0, None), entries) == [None] * 8
    assert counts == [1, 7]
    assert place.entries() == {entry.copy: entry for entry in entries}


@pytest.mark.parametrize("kind", [OSError, MemoryError])
def test_a_line_that_could_not_be_written_is_an_error_to_each_that_told_it(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    place = TierPlace(tier)
    place.make()

    def refused(self: TierPlace, entries: Any = (), gone: Any = ()) -> None:
        if kind is OSError:
            raise TierError("full") from OSError(errno.ENOSPC, "full")
        raise kind

    monkeypatch.setattr(TierPlace, "append_locked", refused)
    came = _told(Work(place, CopyPace(None), 0, None), _entries(8))
    assert [type(error) for error in came] == [kind] * 8
    assert not place.entries()
