"""Tiers: what is mounted where, what of a file is in memory, and what storage gives at most."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from pagecache import kept
from penstock.errors import TierError
from penstock.places import tiers
from penstock.places.tiers import (
    Ceiling,
    Mount,
    empty_call_s,
    evict,
    free_bytes,
    mount_of,
    read_ceiling,
    resident_bytes,
    warmth_of,
    write_ceiling,
)

MIB = 1 << 20
TABLE = rb"""22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:50 / /data rw - nfs4 server:/export rw
31 27 0:51 / /data/with\040space rw shared:3 - xfs /dev/sdb rw
32 27 0:52 / /data/with\040space rw shared:3 master:1 - tmpfs a\134b rw
broken line
"""


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A file of 8 MiB on a file system that has a device behind it."""
    path = tmp_path / "bytes"
    path.write_bytes(os.urandom(8 * MIB))
    if mount_of(path).kind in tiers.MEMORY_KINDS:
        pytest.skip("the temporary folder is in memory")
    return path


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        (b"/", Mount("/", "ext4", "/dev/vda")),
        (b"/database", Mount("/", "ext4", "/dev/vda")),
        (b"/data", Mount("/data", "nfs4", "server:/export")),
        (b"/data/a/b", Mount("/data", "nfs4", "server:/export")),
        (b"/data/with space/x", Mount("/data/with space", "tmpfs", "a\\b")),
    ],
)
def test_the_longest_mount_point_is_it_and_the_last_of_several(path: bytes, mount: Mount) -> None:
    assert tiers._mount_in(TABLE, path) == mount


def test_the_mount_of_a_symlink_is_that_of_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/version")
    assert mount_of(tmp_path / "link").kind == "proc"


def test_of_what_is_not_there_nothing_is_known(tmp_path: Path) -> None:
    for ask in (mount_of, evict, resident_bytes, free_bytes):
        with pytest.raises(TierError, match="gone"):
            ask(tmp_path / "gone")


def test_what_was_read_is_in_memory_and_what_was_evicted_is_not(on_disk: Path) -> None:
    with kept(on_disk):
        assert resident_bytes(on_disk) == 8 * MIB
        assert not warmth_of([on_disk]).is_cold
    evict(on_disk)
    assert resident_bytes(on_disk) == 0
    assert warmth_of([on_disk]).is_cold
    with on_disk.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        file.read(MIB)
    with kept(on_disk, length=MIB):
        warmth = warmth_of([on_disk])
    assert (warmth.resident_bytes, warmth.is_cold) == (MIB, False)
    assert warmth.why_not_cold == "12 % of it was in memory"


def test_both_ways_of_asking_the_kernel_agree(on_disk: Path) -> None:
    evict(on_disk)
    with on_disk.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(3 * MIB)
        file.read(MIB + 1)
        page = os.sysconf("SC_PAGESIZE")
        with kept(on_disk, first=3 * MIB // page, length=MIB + page):
            assert tiers._mincore(file.fileno(), 8 * MIB) == MIB + page
            by_cachestat, refused = tiers._cachestat(file.fileno())
        assert by_cachestat == MIB + page or refused in (errno.ENOSYS, errno.EPERM)


def test_a_page_that_someone_maps_stays_and_is_seen(on_disk: Path) -> None:
    import mmap

    with on_disk.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: os.sysconf("SC_PAGESIZE")]) > 0
        evict(on_disk)
        assert not warmth_of([on_disk]).is_cold


def test_a_file_in_memory_is_never_called_cold() -> None:
    if mount_of("/dev/shm").kind != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs")
    path = Path(f"/dev/shm/penstock-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(MIB))
        evict(path)
        warmth = warmth_of([path])
        assert (warmth.is_cold, warmth.why_not_cold) == (False, "in memory by nature")
        assert {c.why_not_cold for c in read_ceiling([path], 0.05)} == {"in memory by nature"}
    finally:
        path.unlink()


def test_another_users_file_may_not_be_looked_at() -> None:
    if os.geteuid():
        pytest.skip("needs root to become someone else")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others
        Path(folder).chmod(0o755)
        path = Path(folder, "bytes")
        path.write_bytes(bytes(8 * MIB))
        path.chmod(0o444)
        if mount_of(path).kind in tiers.MEMORY_KINDS:
            pytest.skip("the temporary folder is in memory")
        evict(path)
        child = os.fork()
        if not child:
            os.setuid(65534)
            # Before Linux 6.14 cachestat answers everyone; mincore would call all of it resident.
            found = warmth_of([path])
            is_hidden = found.resident_bytes is None and not found.is_cold
            os._exit(0 if is_hidden or found.resident_bytes == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Ceilings


def test_every_byte_is_read_once_whatever_the_number_of_threads(tmp_path: Path) -> None:
    sizes = [3 * MIB + 5, MIB, 70_000, 1, 0]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}").write_bytes(bytes(size))
    total = sum(sizes)
    for ceiling in read_ceiling(sorted(tmp_path.iterdir()), 30):
        moved = ceiling.bandwidth_bps * ceiling.seconds
        calls = ceiling.calls_hz * ceiling.seconds
        if ceiling.order == "sequential":
            assert (round(moved), round(calls)) == (total, 4 + 1 + 1 + 1)
        else:
            blocks = sum(size // ceiling.request_bytes for size in sizes)
            assert (round(moved), round(calls)) == (blocks * ceiling.request_bytes, blocks)
        assert (ceiling.path, ceiling.op) == (str(tmp_path), "read")


def test_requests_are_of_three_kinds_and_threads_climb_from_one(on_disk: Path) -> None:
    found = read_ceiling([on_disk], 0.2)
    kinds = [("sequential", MIB), ("random", 4096), ("random", 65536)]
    assert list(dict.fromkeys((c.order, c.request_bytes) for c in found)) == kinds
    for kind in kinds:
        climbed = [c for c in found if (c.order, c.request_bytes) == kind]
        assert [c.threads for c in climbed] == list(tiers.THREADS[: len(climbed)])
    assert all(c.is_cold and not c.why_not_cold for c in found)
    assert all(c.mount == mount_of(on_disk).point for c in found)


def test_more_threads_are_tried_only_while_they_bring_a_tenth() -> None:
    given = {1: 100.0, 2: 200.0, 4: 219.0, 8: 900.0}

    def measure(threads: int) -> Ceiling:
        return Ceiling("", "", "", "read", "", 1, threads, given[threads], 1.0, True, "", 1.0, 1)

    assert [c.threads for c in tiers._climb(measure)] == [1, 2, 4]


def test_an_empty_call_is_measured() -> None:
    assert 1e-8 < empty_call_s(2) < 1e-2


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(TierError, match="no bytes to read"):
        read_ceiling([tmp_path / "empty"])
    with pytest.raises(TierError, match="no bytes to read"):
        read_ceiling([])


def test_writing_leaves_nothing_and_keeps_to_its_room(tmp_path: Path) -> None:
    found = write_ceiling(tmp_path, 0.3, max_bytes=4 * MIB)
    assert list(tmp_path.iterdir()) == []
    for ceiling in found:
        assert 0 < ceiling.bandwidth_bps * ceiling.seconds < 4 * MIB + 1
        assert (ceiling.op, ceiling.path) == ("write", str(tmp_path))
    assert {c.is_cold for c in found} == {mount_of(tmp_path).kind not in tiers.MEMORY_KINDS}


def test_a_full_tier_is_refused_before_a_byte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "free_bytes", lambda folder: 60 * MIB)
    with pytest.raises(TierError, match="full: writing is measured where 64 MiB are free"):
        write_ceiling(tmp_path)


def test_a_limit_on_file_size_is_a_sentence(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from penstock.places.tiers import write_ceiling\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "write_ceiling(sys.argv[1], 0.2, max_bytes=4 << 20)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True
    )
    assert finished.returncode == 1
    assert "TierError" in finished.stderr
    assert "cannot be written: File too large" in finished.stderr
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_thread_that_fails_ends_the_others_and_is_heard() -> None:
    def fail(team: tiers._Team) -> tuple[int, int]:
        raise TierError("lost")

    def go_on(team: tiers._Team) -> tuple[int, int]:
        while not team.is_over:
            time.sleep(0.001)
        return 1, 1

    before = set(threading.enumerate())  # other tests' servers may have theirs
    with pytest.raises(TierError, match="lost"):
        tiers._Team(60).run([go_on, fail, go_on])
    assert set(threading.enumerate()) <= before
