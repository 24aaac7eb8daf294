"""What of files lies in memory, against what was put there and taken out."""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.places import tiers
from penstock.places.residency import Resident, resident
from synthetic import training_job

PAGE = mmap.PAGESIZE


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """64 pages, of which none is in memory."""
    path = tmp_path / "data.bin"
    with open(path, "wb") as file:
        file.write(os.urandom(64 * PAGE - 100))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident([path]).resident_bytes:
        pytest.skip("this file system keeps its pages")
    return path


def touch(path: Path, pages: list[int]) -> None:
    """Brings single pages into memory, without their neighbours."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        for page in pages:
            assert memory[page * PAGE] >= 0


@pytest.mark.parametrize("has_cachestat", [True, False])
def test_pages_that_were_read_are_in_memory_and_no_others(
    cold: Path, has_cachestat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_cachestat:
        monkeypatch.setattr(tiers, "_cachestat", lambda descriptor: (None, errno.ENOSYS))
    size = 64 * PAGE - 100
    touch(cold, [3, 17, 40])
    assert resident([cold]) == Resident(1, size, 3 * PAGE, False)
    touch(cold, [63])  # the last one is not whole
    assert resident([cold]).resident_bytes == 4 * PAGE
    cold.read_bytes()
    assert resident([cold]) == Resident(1, size, size, False)


def test_folders_are_walked_and_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        (data / name).write_bytes(b"x" * PAGE)
    assert resident([data]) == Resident(2, 2 * PAGE, 2 * PAGE, False)
    os.mkfifo(data / "pipe")
    (data / "gone").symlink_to("nowhere")
    assert resident([data, tmp_path / "none"]) == Resident(2, 2 * PAGE, 2 * PAGE, True)


def test_it_ends_with_its_time_and_its_number_of_files(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x")
    assert resident([tmp_path], most_files=4) == Resident(4, 4, 4, True)
    ticks = iter(range(100))
    found = resident([tmp_path], most_s=3, clock=lambda: float(next(ticks)))
    assert (found.files, found.left_out) == (3, True)


def test_a_file_that_the_kernel_tells_nothing_of_is_in_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x")

    monkeypatch.setattr(tiers, "_cachestat", lambda descriptor: (None, errno.EPERM))
    assert resident([tmp_path]) == Resident(0, 0, 0, True)


COLD = """
import os, sys
with open(sys.argv[1], "rb", buffering=0) as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    file.read(10 * 4096)
"""


@pytest.mark.parametrize("is_named", [True, False])
def test_a_run_tells_what_lay_in_memory(
    cold: Path, is_named: bool, work: Path, recorded: Callable[..., Any]
) -> None:
    run = recorded(COLD, args=[cold], options=["--data", str(cold)] if is_named else [])
    known = {one.moment: one for one in measure(run).residency}
    after = known["after"]
    assert (after.files, after.size_bytes) == (1, 64 * PAGE - 100)
    assert 10 * 4096 <= after.resident_bytes < 64 * PAGE - 100
    assert (after.is_named, after.left_out, after.hosts) == (is_named, False, 1)
    report = report_of(measure(run))
    gaps = {gap.what for gap in report.gaps}
    if not is_named:
        assert known.keys() == {"after"}
        assert "data in memory before" in gaps
        return
    assert known["before"].resident_bytes == 0
    assert "data in memory before" not in gaps
    facts = {fact.key: fact for fact in report.reading}
    assert facts["resident_before"].number.value == 0
    assert facts["resident_after"].number.value == pytest.approx(
        after.resident_bytes / (64 * PAGE - 100)
    )
    assert "1 file: the data named by --data" in facts["resident_after"].remark


def test_of_several_hosts_the_one_with_the_least_is_told_and_damaged_notes_are_none() -> None:
    run = training_job(4)
    run.note("resident before", "3\t300\t120\tall\tnamed")
    run.note("resident before", "3\t300\t90\tmore\tnamed")
    run.note("resident after", "three\t\t-")
    (seen,) = measure(run).residency
    assert (seen.moment, seen.hosts, seen.resident_bytes, seen.left_out) == ("before", 2, 90, True)
    (fact,) = [fact for fact in report_of(measure(run)).reading if "resident" in fact.key]
    assert (fact.number.state, fact.number.value) == ("incomplete", 0.3)
    assert fact.remark.endswith("the least of 2 hosts")
