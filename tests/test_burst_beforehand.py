"""The drain of a burst buffer is killed at each change of a file system, and its tier is lost.

The truth is the number in each file.  The folder alone shows whether its files are of one save:
what is named as a checkpoint is of one save, and `recover` makes the folder of one save.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from burstkills import AT_ONCE
from fixtures import thorough
from penstock.save.burst.home import Burst
from penstock.save.burst.mend import mend
from penstock.save.burst.tier import prepare
from penstock.save.commit import STATE
from penstock.save.overwritten.putback import BEFOREHAND
from penstock.save.verify import latest_valid
from test_burst_mixtures import FLAT, FOLDERS, FOUR, Program

CHANGES = ("rename", "replace", "unlink", "link", "symlink", "mkdir", "fsync")


@pytest.fixture
def fast(fast: Path) -> Path:
    prepare(fast)
    (fast / STATE).mkdir()
    return fast


def changes_of(work: Callable[[], object], dies_at: int = 0) -> int:
    """Do the work in a child that ends at this change of a file system; 0: at no change.  Return
    the number of changes; 0: the child has ended before its work."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        n = 0

        def counted(do: Callable[..., object]) -> Callable[..., object]:
            def now(*given: object, **named: object) -> object:
                nonlocal n
                n += 1
                if n == dies_at:
                    os._exit(9)
                return do(*given, **named)

            return now

        for name in CHANGES:
            setattr(os, name, counted(getattr(os, name)))
        status = 1
        try:
            work()
            os.write(writing, str(n).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    said = os.read(reading, 100)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (0 if said else 9)
    return int(said or b"0")


@pytest.mark.parametrize(
    ("names", "n_files"),
    [
        (FOLDERS, 1), (FOUR, -1),
        *(thorough(names, n, like="others") for names, n in
          [(FLAT, 1), (FLAT, -1), (FOLDERS, -1), (FOUR, 1)]),
    ],
)  # fmt: skip
def test_a_tier_that_is_lost_before_the_mark_leaves_no_mixture_that_is_named(
    fast: Path, work: Path, tmp_path: Path, names: Sequence[str], n_files: int
) -> None:
    """The third save is killed between two of its files, and its drain at any point after."""
    program = Program(fast, work)
    with program.alive() as look:
        program.save(names, (1, 2), look)
        look()
        for name in names[:n_files]:
            program.write(name, 3)
    kept = tmp_path / "kept"
    kept.mkdir()
    for folder in (fast, work):
        shutil.copytree(folder, kept / folder.name, symlinks=True)

    def drain() -> None:
        with Burst(fast, AT_ONCE) as one:
            one._round()
            one._round()

    n = changes_of(drain)
    assert n > 5
    numbers = set[tuple[int, ...]]()
    for dies_at in range(1, n + 1):
        for folder in (fast, work):
            shutil.rmtree(folder)
            shutil.copytree(kept / folder.name, folder, symlinks=True)
        changes_of(drain, dies_at)
        shutil.rmtree(fast)
        links = [name for name in names if (work / name).is_symlink()]
        if not links:
            numbers.add(tuple(program.numbers(names)))
            is_one = len(set(program.numbers(names))) == 1
            assert is_one or latest_valid(work).path is None, (dies_at, program.numbers(names))
        mend(work, fast)
        assert len(set(program.numbers(names))) == 1, (dies_at, program.numbers(names))
        assert latest_valid(work).path is not None
        fast.mkdir()
    old, new = [2] * len(names[n_files:]), [3] * len(names[:n_files])
    assert (*new, *old) in numbers  # the kill in question has happened


@pytest.mark.parametrize("names", [FLAT, FOLDERS], ids=["flat", "folders"])
def test_the_mark_goes_when_the_save_is_home_while_the_program_goes_on(
    fast: Path, work: Path, names: Sequence[str]
) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        program.save(names, (1, 2), look)
        program.write(names[0], 3)
        look()
        marks = {path.parent for path in work.rglob(BEFOREHAND)}
        assert marks == {(work / name).parent for name in names}
        assert latest_valid(work).path is None
        program.write(names[1], 3)
        look()
        look()
        assert not list(work.rglob(BEFOREHAND))
        assert latest_valid(work).path is not None


def test_a_file_that_not_every_save_writes_has_no_mark(fast: Path, work: Path) -> None:
    program = Program(fast, work)
    with program.alive() as look:
        for number, names in enumerate((FLAT, FLAT[:1], FLAT[:1], FLAT[:1])):
            for name in names:
                program.write(name, number)
                look()
        look()
        assert not list(work.rglob(BEFOREHAND))
        assert latest_valid(work).path is not None
