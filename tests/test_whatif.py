"""What-if: which calls are taken from a run, how they are made again, and what is said of it."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from fixtures import PENSTOCK
from pagecache import kept
from penstock.errors import RunError, TierError
from penstock.explain.measures import Number, measure
from penstock.places import tiers
from penstock.places.tiers import Ceiling
from penstock.runs.run import Run
from penstock.trial import ceiling, whatif
from penstock.trial.pattern import CallKind, CallPattern, DataFile, read_pattern
from penstock.trial.replay import AHEAD, PAGE, Replay, ReplayFiles, SystemCalls, replay
from penstock.trial.whatif import Change
from synthetic import MS, Synthetic

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)
KIB = 1 << 10


def opened(job: Synthetic) -> Run:
    assert job.connection
    job.run.made_by = job  # type: ignore[attr-defined]  # whose folder goes with it
    return job.run


def read_whole(
    job: Synthetic, path: Path, at: int, size: int, *, process: int = 1, each: int = MS
) -> int:
    """Opens, reads twice (the second time at the end) and closes; when that is done."""
    job.file(str(path), size=size)
    place = {"path": str(path), "process": process}
    job.call("open", at, at + each, **place)
    job.call("read", at + each, at + 2 * each, moved=size, asked=size + 1, offset=0, **place)
    job.call("read", at + 2 * each, at + 3 * each, moved=0, asked=1, offset=size, **place)
    job.call("close", at + 3 * each, at + 4 * each, **place)
    return at + 4 * each


def small_files(folder: Path, n: int = 20, size: int = 10_000) -> list[Path]:
    paths = [folder / f"{number:04}" for number in range(n)]
    for path in paths:
        path.write_bytes(os.urandom(size))
    return paths


def reading_job(paths: Sequence[Path], size: int = 10_000, steps: int = 10) -> Synthetic:
    """Reads the files in the main thread, 4 ms each and 1 ms apart, while a wait lasts: all of the
    training is data wait, and 4 of 5 parts of it reads and metadata."""
    job = Synthetic()
    job.process(end=(steps + len(paths)) * 10 * MS)
    job.step(0, MS, 0)
    at = MS
    for number, path in enumerate(paths):
        job.wait(at, at + 5 * MS, number)
        job.fetch(at, at + 5 * MS, number, process=1)
        at = read_whole(job, path, at, size) + MS
    job.step(at, at + MS, 1)
    return job


# Which calls


def test_a_pattern_is_what_the_run_did_call_by_call(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 3)
    pattern = read_pattern(opened(reading_job(paths)))
    assert [CallKind(kind).name for kind in pattern.kind] == ["OPEN", "READ", "READ", "CLOSE"] * 3
    assert [pattern.files[place].path for place in pattern.file[::4]] == list(map(str, paths))
    assert pattern.offset.tolist() == [0, 0, 10_000, 0] * 3
    assert pattern.length.tolist() == [0, 10_001, 1, 0] * 3
    assert pattern.moved.tolist() == [0, 10_000, 0, 0] * 3
    assert (pattern.think_ns // MS).tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert set(pattern.recorded_ns) == {MS}
    assert pattern.tracks == 1
    assert pattern.notes == ()


def test_each_thread_of_each_process_is_a_track(tmp_path: Path) -> None:
    (path,) = small_files(tmp_path, 1)
    job = Synthetic()
    for process in (1, 2, 3):
        job.process(process, end=MS * 100)
        read_whole(job, path, process * MS // 2, 10_000, process=process)
    pattern = read_pattern(opened(job))
    assert pattern.tracks == 3
    # The first thought of a thread begins with the window.
    assert [pattern.think_ns[pattern.track == track][0] for track in range(3)] == [0, MS // 2, MS]


def test_the_middle_of_the_training_is_taken(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 20)
    job = reading_job(paths)  # 1 to 101 ms
    pattern = read_pattern(opened(job), for_s=0.020)
    assert pattern.window_s == 0.020
    places = {int(pattern.files[place].path[-4:]) for place in pattern.file}
    assert places == {8, 9, 10, 11} or places == {8, 9, 10, 11, 12}


def test_too_many_calls_shorten_the_stretch_and_that_is_said(tmp_path: Path) -> None:
    pattern = read_pattern(opened(reading_job(small_files(tmp_path, 20))), max_calls=30)
    assert 20 <= len(pattern) <= 30
    assert pattern.window_s < 0.05
    assert pattern.notes[0].startswith("shortened from 0.098 to 0.0")


def test_what_cannot_be_made_again_is_counted(tmp_path: Path) -> None:
    (path,) = small_files(tmp_path, 1)
    job = reading_job([path])
    at, place = 2 * MS, {"path": str(path)}
    job.call("mmap", at, at + 1, **place)
    job.call("fread", at, at + 1, moved=5, **place)
    job.call("fread", at + 1, at + 2, moved=5, **place)
    job.call("read", at, at + 1, errno=5, **place)
    job.call("read", at, None, **place)
    job.call("read", at, at + 1, moved=7, **place)
    job.call("lseek", at, at + 1, **place)
    pattern = read_pattern(opened(job))
    assert len(pattern) == 4
    (note,) = pattern.notes
    for said in ("2 made through stdio", "1 mmap", "1 that failed", "1 that had not returned"):
        assert said in note
    assert "1 reads at an unknown place" in note
    assert "lseek" not in note


def test_files_that_are_gone_or_changed_are_left_out_and_counted(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 6)
    job = reading_job(paths)
    paths[0].unlink()
    paths[1].write_bytes(b"shorter")
    paths[2].write_bytes(bytes(10_001))
    paths[3].unlink()
    os.mkfifo(paths[3])
    pattern = read_pattern(opened(job))
    assert [file.path for file in pattern.files] == [str(path) for path in paths[4:]]
    assert pattern.notes == (
        "of 6 files: 1 gone, 2 of another size, 1 no regular files now, left out",
    )
    # The time of calls that are left out is thought: those after them come no earlier.
    assert pattern.think_ns[0] == 20 * MS


def test_a_file_whose_size_was_never_seen_must_hold_what_was_read(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 2)
    job = reading_job(paths)
    job.rows["files"] = [(*row[:-1], None) for row in job.rows["files"]]
    paths[0].write_bytes(b"shorter")
    assert [file.path for file in read_pattern(opened(job)).files] == [str(paths[1])]


def test_when_nothing_is_left_a_sentence_says_so(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 2)
    job = reading_job(paths)
    for path in paths:
        path.unlink()
    with pytest.raises(RunError, match="nothing to replay: of 2 files: 2 gone now"):
        read_pattern(opened(job))
    with pytest.raises(RunError, match="no POSIX call on a data file is recorded; none"):
        read_pattern(opened(Synthetic()))
    stdio = Synthetic()
    stdio.call("fread", 0, 1, moved=5)
    with pytest.raises(RunError, match="its 1 reads passed through stdio"):
        read_pattern(opened(stdio))


def test_a_name_that_is_no_text_is_found(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(raw, "wb") as file:
        file.write(bytes(10))
    job = Synthetic()
    read_whole(job, Path(f"{tmp_path}/caf\\xe9"), 0, 10)
    assert [os.fsencode(file.path) for file in read_pattern(opened(job)).files] == [raw]


# Made again


class Listener:
    """Calls that note what was asked, by whom, and answer as the system does."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.asked: list[tuple[int, str, Any]] = []

    def calls(self) -> SystemCalls:
        def heard(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                if name == "preadv":
                    length = sum(len(part) for part in args[1])
                    self.note(name, (self.path(args[0]), args[2], length))
                    time.sleep(self.delay_s)
                elif name == "open":
                    self.note(name, args[0])
                elif name == "advise":
                    self.note(name, (self.path(args[0]), *args[1:]))
                else:
                    self.note(name, args[0] if name == "stat" else self.path(args[0]))
                return real(*args)

            return call

        real = SystemCalls()
        names = [field.name for field in fields(SystemCalls)]
        return SystemCalls(**{name: heard(name, getattr(real, name)) for name in names})

    def note(self, name: str, what: Any) -> None:
        self.asked.append((threading.get_ident(), name, what))

    @staticmethod
    def path(descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}")


def pattern_of(
    rows: Sequence[tuple[CallKind, int, int, int, int]], paths: Sequence[Path], think_ns: int = 0
) -> CallPattern:
    """rows: kind, track, file, offset, bytes."""
    kind, track, file, offset, length = (
        np.array(column, np.int64) for column in zip(*rows, strict=True)
    )
    return CallPattern(
        kind, track, file, offset, length, length, np.full(len(rows), think_ns),
        np.full(len(rows), MS), tuple(DataFile(str(p), p.stat().st_size) for p in paths),
        int(track.max()) + 1, 1.0,
    )  # fmt: skip


def here(pattern: CallPattern) -> ReplayFiles:
    return ReplayFiles([file.path for file in pattern.files], pattern.offset)


def whole_files(paths: Sequence[Path], tracks: int = 1) -> CallPattern:
    rows = []
    for number in range(0, len(paths), tracks):
        for kind in (CallKind.STAT, CallKind.OPEN, CallKind.FSTAT, CallKind.READ, CallKind.CLOSE):
            for track in range(tracks):
                length = 10_000 if kind == CallKind.READ else 0
                rows.append((kind, track, number + track, 0, length))
    return pattern_of(rows, paths)


NAMES = {
    CallKind.OPEN: "open",
    CallKind.CLOSE: "close",
    CallKind.STAT: "stat",
    CallKind.FSTAT: "fstat",
    CallKind.READ: "preadv",
}


def test_each_thread_does_what_its_own_did_in_order(tmp_path: Path) -> None:
    pattern = whole_files(small_files(tmp_path, 8), tracks=2)
    listener = Listener()
    made = replay(pattern, here(pattern), calls=listener.calls())
    assert made.is_whole
    assert made.is_made.all()
    assert made.moved.sum() == 80_000
    by_thread: dict[int, list[str]] = {}
    for thread, name, what in listener.asked:
        path = what[0] if isinstance(what, tuple) else what
        by_thread.setdefault(thread, []).append(f"{name} {path}")
    wanted = [
        [
            f"{NAMES[CallKind(kind)]} {pattern.files[file].path}"
            for kind, file, of in zip(pattern.kind, pattern.file, pattern.track, strict=True)
            if of == track
        ]
        for track in range(2)
    ]
    assert sorted(by_thread.values()) == sorted(wanted)
    # In the pattern's order, whatever the order of the threads.
    assert (np.diff(made.start_ns[pattern.track == 0]) > 0).all()


def test_from_a_queue_each_file_is_one_threads_and_none_is_left(tmp_path: Path) -> None:
    pattern = whole_files(small_files(tmp_path, 12), tracks=2)
    listener = Listener(0.002)
    made = replay(pattern, here(pattern), threads=4, calls=listener.calls())
    assert made.is_made.all()
    assert made.threads == 4
    units: dict[str, set[int]] = {}
    for thread, name, what in listener.asked:
        if name != "stat":  # comes before the open, so by itself
            units.setdefault(what[0] if isinstance(what, tuple) else what, set()).add(thread)
    assert all(len(threads) == 1 for threads in units.values())
    assert len({thread for threads in units.values() for thread in threads}) == 4
    assert sorted(name for _, name, _ in listener.asked) == sorted(
        name for name in NAMES.values() for _ in range(12)
    )


def test_thought_between_calls_is_kept(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 1)
    rows = [(CallKind.READ, 0, 0, 0, 100)] * 400
    for think_ns, whole_s in ((50_000, 0.020), (250_000, 0.100)):  # shorter and longer than a sleep
        pattern = pattern_of(rows, paths, think_ns)
        made = replay(pattern, here(pattern))
        assert made.wall_s >= whole_s * 0.95
        assert made.duration_ns.sum() < whole_s * 1e9  # is not in the calls


def test_a_file_that_was_open_before_is_opened_once_and_not_timed(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 1)
    rows = [(CallKind.READ, track, 0, 0, 100) for track in (0, 1)] * 10 + [
        (CallKind.CLOSE, 0, 0, 0, 0)
    ]
    pattern = pattern_of(rows, paths)
    listener = Listener()
    before = os.listdir("/proc/self/fd")
    made = replay(pattern, here(pattern), calls=listener.calls())
    names = [name for _, name, _ in listener.asked]
    assert (names.count("open"), names.count("preadv"), names.count("close")) == (1, 20, 0)
    assert made.is_made.tolist() == [True] * 20 + [False]  # nothing to close
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_reads_longer_than_the_buffer_are_one_call(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(11 << 20))
    pattern = pattern_of([(CallKind.READ, 0, 0, 5, 10 << 20)], [path])
    made = replay(pattern, here(pattern))
    assert made.moved.tolist() == [10 << 20]


def test_time_that_is_up_ends_it_and_what_was_done_is_known(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 1)
    pattern = pattern_of([(CallKind.READ, 0, 0, 0, 100)] * 100, paths)
    made = replay(pattern, here(pattern), limit_s=1.0, calls=Listener(0.1).calls())
    assert not made.is_whole
    done = int(made.is_made.sum())
    assert 1 <= done < 30
    assert made.is_made[:done].all()
    # A long thought ends then too.
    begin = time.monotonic()
    slow = pattern_of([(CallKind.READ, 0, 0, 0, 100)] * 2, paths, think_ns=30 * 10**9)
    assert not replay(slow, here(slow), limit_s=0.05).is_whole
    assert time.monotonic() - begin < 29


def test_a_hint_is_given_once_for_each_read_and_before_it(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(100 * PAGE))
    places = random.Random(1).sample(range(100), 50)
    pattern = pattern_of([(CallKind.READ, 0, 0, place * PAGE, PAGE) for place in places], [path])
    listener = Listener()
    replay(pattern, here(pattern), readahead="willneed", calls=listener.calls())
    hinted: list[int] = []
    read: list[int] = []
    for _, name, what in listener.asked:
        if name == "advise":
            assert what[2:] == (PAGE, os.POSIX_FADV_WILLNEED)
            hinted.append(what[1] // PAGE)
            assert len(hinted) - len(read) <= AHEAD
        elif name == "preadv":
            read.append(what[1] // PAGE)
            assert len(read) == 1 or read[-1] in hinted
    assert read == places
    assert hinted == places[1:]


@pytest.mark.parametrize("readahead", ["normal", "sequential", "random"])
def test_a_hint_for_the_whole_file_is_given_at_its_open(tmp_path: Path, readahead: str) -> None:
    pattern = whole_files(small_files(tmp_path, 3))
    listener = Listener()
    replay(pattern, here(pattern), readahead=readahead, calls=listener.calls())
    names = [name for _, name, _ in listener.asked]
    assert names == ["stat", "open", "advise", "fstat", "preadv", "close"] * 3
    wanted = getattr(os, f"POSIX_FADV_{readahead.upper()}")
    assert {what[3] for _, name, what in listener.asked if name == "advise"} == {wanted}


def test_past_the_page_cache_requests_are_whole_pages_and_nothing_stays(tmp_path: Path) -> None:
    (path,) = small_files(tmp_path, 1, 10_000)
    if tiers.mount_of(path).kind in tiers.MEMORY_KINDS:
        pytest.skip("the temporary folder is in memory")
    rows = [
        (CallKind.READ, 0, 0, 100, 5000),
        (CallKind.READ, 0, 0, 8000, 2000),
        (CallKind.READ, 0, 0, 10_000, 0),
    ]
    pattern = pattern_of(rows, [path])
    tiers.evict(path)
    listener = Listener()
    made = replay(pattern, here(pattern), readahead="off", calls=listener.calls())
    asked = [what[1:] for _, name, what in listener.asked if name == "preadv"]
    assert asked == [(0, 2 * PAGE), (PAGE, 2 * PAGE), (3 * PAGE, PAGE)]
    assert made.moved.tolist() == [2 * PAGE, 10_000 - PAGE, 0]
    assert tiers.resident_bytes(path) == 0


def test_a_file_that_goes_away_meanwhile_is_a_sentence_and_leaves_no_descriptor(
    tmp_path: Path,
) -> None:
    paths = small_files(tmp_path, 8)
    pattern = whole_files(paths, tracks=2)
    paths[5].unlink()
    before, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    with pytest.raises(RunError, match="0005: cannot be replayed: No such file"):
        replay(pattern, here(pattern))
    assert len(os.listdir("/proc/self/fd")) == before
    assert set(threading.enumerate()) <= threads


# Packed on a tier


def test_what_is_read_from_the_tier_is_what_was_read_from_the_file(tmp_path: Path) -> None:
    source, tier = tmp_path / "source", tmp_path / "tier"
    source.mkdir()
    tier.mkdir()
    chance = random.Random(7)
    sizes = [0, 1, PAGE, PAGE + 1, 300_000, 1_000_003, 7 * PAGE, 50_000]
    paths = []
    for number, size in enumerate(sizes):
        paths.append(source / f"{number}")
        paths[-1].write_bytes(chance.randbytes(size))
    rows = []
    for _ in range(300):
        file = chance.randrange(len(sizes) - 1)  # the last is opened and never read
        offset = chance.randrange(sizes[file] + 1)
        rows.append(
            (CallKind.READ, 0, file, offset, min(chance.randrange(20_000), sizes[file] - offset))
        )
    rows.append((CallKind.OPEN, 0, len(sizes) - 1, 0, 0))
    pattern = pattern_of(rows, paths)
    pack = whatif._pack(pattern)
    with whatif._copied(pattern, pack, tier, lambda what, share: None) as target:
        assert sum(Path(path).stat().st_size for path in target.paths) == pack.size_bytes
        assert Path(target.paths[-1]).stat().st_size == 0
        for place, (_, _, file, offset, length) in enumerate(rows):
            with open(target.paths[file], "rb") as copy:
                copy.seek(target.offset[place])
                found = copy.read(length) if length else copy.read()[:1] * (offset == sizes[file])
            assert found == paths[file].read_bytes()[offset : offset + length]
    assert list(tier.iterdir()) == []
    for file in range(len(sizes)):  # what came later in the file does so in the copy
        places = [i for i, row in enumerate(rows) if row[2] == file and row[4]]
        order = sorted(places, key=lambda i: rows[i][3])
        assert (np.diff(pack.offset[order]) >= 0).all()


def test_only_touched_pages_are_copied_and_reads_in_order_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "container"
    path.write_bytes(bytes(100 * PAGE))
    rows = [(CallKind.READ, 0, 0, (40 + i) * PAGE, PAGE) for i in range(10)]
    rows += [(CallKind.READ, 0, 0, 10 * PAGE + 7, 10), (CallKind.READ, 0, 0, 40 * PAGE, PAGE)]
    pack = whatif._pack(pattern_of(rows, [path]))
    assert pack.size_bytes == 11 * PAGE
    assert pack.offset.tolist() == [PAGE * (1 + i) for i in range(10)] + [7, PAGE]


def test_a_budget_cuts_the_stretch_and_that_is_said(tmp_path: Path) -> None:
    pattern = whole_files(small_files(tmp_path, 10))
    cut, pack = whatif._packed(pattern, tmp_path, 45_000)
    assert pack.size_bytes == 40_000
    assert len(cut) == 4 * 5 + 3  # up to the read that would be past it
    assert "cut to the first 23 of 50 calls" in cut.notes[-1]
    with pytest.raises(TierError, match=r"holds what 0 of 1 calls touch.* has to be 10,000 bytes"):
        whatif._packed(
            pattern_of([(CallKind.READ, 0, 0, 0, 9999)], small_files(tmp_path, 1)), tmp_path, 5
        )


def test_a_full_tier_is_refused_before_a_byte_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = whole_files(small_files(tmp_path, 2))
    monkeypatch.setattr(tiers, "free_bytes", lambda folder: 1_000_000)
    with pytest.raises(TierError, match=r"1 MB are free and 67 MB needed; make room"):
        whatif._packed(pattern, tmp_path, 1 << 30)


def test_a_tier_that_fills_up_meanwhile_is_left_as_it_was(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    program = f"""
import resource, sys
from pathlib import Path
from penstock.trial import whatif
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_whatif import small_files, whole_files
pattern = whole_files(small_files(Path({str(tmp_path)!r}), 3))
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
with whatif._copied(pattern, whatif._pack(pattern), Path({str(tier)!r}), print):
    pass
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "cannot be written: File too large; nothing is left there" in finished.stderr
    assert list(tier.iterdir()) == []


def test_only_what_a_dead_replay_of_this_host_left_is_removed(tmp_path: Path) -> None:
    host = whatif._host()
    dead = subprocess.Popen(["true"])
    dead.wait()
    stale = tmp_path / f".penstock-whatif-{host}-{dead.pid}-abcdefgh"
    kept = [
        tmp_path / f".penstock-whatif-{host}-{os.getpid()}-abcdefgh",
        tmp_path / f".penstock-whatif-{host}-{dead.pid}-abcdefgh.mine",
        tmp_path / f".penstock-whatif-elsewhere-{dead.pid}-abcdefgh",
    ]
    for folder in (stale, *kept):
        folder.mkdir()
    whatif._remove_stale(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


# What it brings


def with_delays(was_s: float, is_s: float) -> tuple[SystemCalls, SystemCalls]:
    return Listener(was_s).calls(), Listener(is_s).calls()


@pytest.mark.alone  # the delays are real
def test_the_gain_is_the_wait_for_data_files_times_what_is_gone_of_the_calls(
    tmp_path: Path,
) -> None:
    paths = small_files(tmp_path, 20)
    run = opened(reading_job(paths))
    known = measure(run)
    assert known.data_blocking == pytest.approx({"read": 0.040, "metadata": 0.040})
    answer = whatif.whatif(run, Change(readahead="normal"), calls=with_delays(0.020, 0.005))
    assert answer.critical.value == pytest.approx(0.080)
    mean_s = (answer.baseline.call_s + answer.again.call_s) / 2
    assert answer.gain.value == pytest.approx(0.080 * (1 - answer.variant.call_s / mean_s))
    assert 0.3 < answer.gain.value / 0.080 < 0.85  # of 20 ms, 15 are gone
    assert answer.share.value == pytest.approx(answer.gain.value / known.training.wall_s)
    assert answer.recorded.call_s == pytest.approx(0.080)
    assert (answer.baseline.calls, answer.baseline.reads) == (80, 20)
    assert answer.variant.moved_bytes == 200_000
    assert answer.baseline.read_p50_s == pytest.approx(0.020, rel=0.5)


def test_what_is_slower_is_said_to_be(tmp_path: Path) -> None:
    run = opened(reading_job(small_files(tmp_path, 20)))
    answer = whatif.whatif(run, Change(readahead="random"), calls=with_delays(0.001, 0.050))
    assert answer.gain.value is not None
    assert answer.gain.value < 0
    assert "read-ahead random: slower, by" in shown(answer)


def test_a_budget_that_holds_hardly_a_call_is_refused(tmp_path: Path) -> None:
    paths = small_files(tmp_path, 1)
    rows = [(CallKind.READ, 0, 0, i * PAGE, PAGE) for i in range(1200)]
    paths[0].write_bytes(bytes(1200 * PAGE))
    with pytest.raises(TierError, match=r"holds what 1 of 1,200 calls touch.*409,600 bytes"):
        whatif._packed(pattern_of(rows, paths), tmp_path, PAGE)


@pytest.mark.parametrize("branch", ["gain", "slower", "not measured"])
def test_every_verdict_says_that_it_is_incomplete(tmp_path: Path, branch: str) -> None:
    run = opened(reading_job(small_files(tmp_path, 5)))
    answer = whatif.whatif(run, Change(threads=1), calls=with_delays(0.001, 0.001))
    value = {"gain": 0.05, "slower": -0.05, "not measured": None}[branch]
    answer = replace(
        answer,
        gain=Number(value, "s", "incomplete", "why"),
        share=Number(value, "share", "incomplete", "why"),
        noise=0.0,
    )
    assert "incomplete: " in shown(answer)


@pytest.mark.alone
def test_with_threads_the_gain_is_by_the_wall(tmp_path: Path) -> None:
    run = opened(reading_job(small_files(tmp_path, 20)))
    answer = whatif.whatif(run, Change(threads=4), calls=with_delays(0.040, 0.040))
    assert answer.variant.threads == 4
    assert answer.baseline.wall_s is not None
    assert answer.again.wall_s is not None
    mean_s = (answer.baseline.wall_s + answer.again.wall_s) / 2
    assert answer.gain.value == pytest.approx(0.080 * (1 - answer.variant.wall_s / mean_s))
    assert 0.4 < answer.gain.value / 0.080 < 0.8  # a quarter of the time stays
    assert "processors for that are assumed" in shown(answer)


def test_a_replay_unlike_the_run_is_not_believed(tmp_path: Path) -> None:
    run = opened(reading_job(small_files(tmp_path, 5)))
    answer = whatif.whatif(run, Change(readahead="normal"), calls=with_delays(0.040, 0.010))
    assert answer.gain.state == "incomplete"
    assert "so it does not reproduce the run" in answer.notes[0]


def test_no_difference_beyond_the_noise_is_no_gain(tmp_path: Path) -> None:
    part = whatif.Replayed("", 1, 1, 1, 1, 1.0, 1.0, 1.0, 1.0, 9.0, True, "", True)
    kept, noise, _ = whatif._kept_share(
        Change(readahead="off"), replace(part, call_s=1.2), replace(part, call_s=0.9), part
    )
    assert (kept, noise) == (pytest.approx(0.9 / 1.1), pytest.approx(0.2 / 1.1))
    run = opened(reading_job(small_files(tmp_path, 10)))
    answer = whatif.whatif(run, Change(readahead="normal"), calls=with_delays(0.040, 0.004))
    assert not answer.is_noise
    answer = replace(answer, noise=0.9)
    assert answer.is_noise
    assert "no difference that is larger than the noise" in shown(answer)


def test_without_training_the_gain_is_not_measured(tmp_path: Path) -> None:
    job = Synthetic()
    job.process(end=MS * 100)
    read_whole(job, small_files(tmp_path, 1)[0], 0, 10_000)
    answer = whatif.whatif(opened(job), Change(tier=tmp_path))
    assert (answer.gain.value, answer.gain.state) == (None, "not measured")
    assert answer.gain.why == "no training steps were recorded"
    assert answer.variant.moved_bytes == 10_000
    assert any("no gain is to be had" in note for note in answer.notes)
    assert "gain: not measured" in shown(answer)
    assert json.loads(whatif.to_json(answer))["gain"]["value"] is None


def test_time_in_which_a_call_is_under_way_is_counted_once() -> None:
    start = np.array([50, 0, 5, 100])
    duration = np.array([10, 20, 5, 1])
    assert whatif._busy_s(start, duration) == pytest.approx(31e-9)
    made = Replay(start, duration, duration, 1.0, True, 1)
    assert made.is_made.all()


def shown(answer: whatif.WhatIf) -> str:
    import io

    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=200).print(whatif.table_of(answer))
    return stream.getvalue()


# The commands


JOB = """
import os, sys, time, penstock
folder = sys.argv[1]
for name in sorted(os.listdir(folder)):
    with penstock.step():
        with open(os.path.join(folder, name), "rb") as file:
            file.read()
        time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[[float], Path]:
    """Records a program that reads 40 files of 10 kB, and says where the run is."""
    data = tmp_path / "data"
    data.mkdir()
    small_files(data, 40)

    def record(pause_s: float) -> Path:
        command = [sys.executable, "-c", JOB, str(data), str(pause_s)]
        finished = say("run", "-q", "-o", str(tmp_path / "run"), *command, cwd=tmp_path)
        assert finished.returncode == 0, finished.stderr
        return tmp_path / "run"

    return record


def say(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, *words], capture_output=True, text=True, timeout=240, **options
    )


@needs_library
def test_a_recorded_job_is_replayed_on_a_file_system_in_memory(
    job: Callable[[float], Path],
) -> None:
    if tiers.mount_of("/dev/shm").kind != "tmpfs" or not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm is no tmpfs to write to")
    run = job(0.002)
    before = set(os.listdir("/dev/shm"))
    finished = say("whatif", run, "--tier", "/dev/shm", "--json")
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["files"] == 40
    for part in ("recorded", "baseline", "variant", "again"):
        assert answer[part]["moved_bytes"] == 400_000
        assert answer[part]["calls"] >= 160  # open, read, read at the end, close, and stats
    assert answer["variant"]["why_not_cold"] == "in memory by nature"
    on_disk = tiers.mount_of(run).kind not in tiers.MEMORY_KINDS
    assert answer["baseline"]["is_cold"] == answer["again"]["is_cold"] == on_disk
    assert answer["critical"]["value"] is not None  # what lies in memory holds up nobody
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "whatif" in name]
    with kept(*(run.parent / "data").iterdir()):
        table = say("whatif", run, "--threads", "2", "--warm")
    assert "as recorded" in table.stdout
    assert "100 % of it was in memory" in table.stdout or not on_disk
    assert "2 threads" in table.stdout


@needs_library
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_replay_that_is_interrupted_leaves_nothing(
    job: Callable[[float], Path], tmp_path: Path, number: signal.Signals
) -> None:
    run = job(0.05)  # a replay takes two seconds
    tier = tmp_path / "tier"
    tier.mkdir()
    running = subprocess.Popen(
        [PENSTOCK, "whatif", run, "--tier", tier], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while not list(tier.rglob("0039")) and not list(tier.glob(".penstock-whatif-*/0/39")):
        assert running.poll() is None, running.stderr
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(number)
    _, said = running.communicate(timeout=240)
    assert running.returncode == 130
    assert said.strip() == "penstock: interrupted"
    assert list(tier.iterdir()) == []


@needs_library
def test_a_runs_ceilings_are_kept_whole_and_read_by_reports(job: Callable[[float], Path]) -> None:
    run = job(0.0)
    finished = say("ceiling", run, "--for", "2s", "--write")
    assert finished.returncode == 0, finished.stderr
    assert "read sequential 1024 KiB" in finished.stdout
    assert "no checkpoint went to a folder that is there" in finished.stdout
    stored = json.loads((run / "ceilings.json").read_text())["ceilings"]
    assert {tuple(one) for one in stored} == {tuple(field.name for field in fields(Ceiling))}
    assert say("sql", run, "select count(*) from ceilings").returncode == 0
    assert not list(run.glob(".ceilings*"))


def test_new_ceilings_replace_those_of_the_same_tier_and_op_only(tmp_path: Path) -> None:
    one = Ceiling("/a", "/", "ext4", "read", "random", 4096, 1, 5.0, 1.0, True, "", 1.0, 1)
    ceiling.store(tmp_path, [one, replace(one, op="write")])
    ceiling.store(tmp_path, [replace(one, bandwidth_bps=7.0)])
    stored = json.loads((tmp_path / "ceilings.json").read_text())["ceilings"]
    assert [(c["op"], c["bandwidth_bps"]) for c in stored] == [("write", 5.0), ("read", 7.0)]
    (tmp_path / "ceilings.json").write_text("not json")
    ceiling.store(tmp_path, [one])
    assert len(json.loads((tmp_path / "ceilings.json").read_text())["ceilings"]) == 1


def test_a_ceiling_of_a_path_is_printed_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    finished = say("ceiling", tmp_path / "file", "--for", "1s", "--json")
    found = json.loads(finished.stdout)
    assert {one["path"] for one in found} == {str(tmp_path / "file")}
    assert {one["op"] for one in found} == {"read"}
    refused = say("ceiling", tmp_path)
    assert refused.returncode == 2
    assert "holds less than 64 MiB to read; --write makes a file" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["whatif", "."], "say what to try: --tier, --threads, --readahead or --concurrency"),
        (["whatif", ".", "--threads", "0"], "--threads"),
        (["whatif", ".", "--threads", "2", "--for", "soon"], "write 30s or 2m"),
        (["whatif", ".", "--threads", "2", "--for", "-1s"], "write 30s or 2m"),
        (["whatif", ".", "--tier", "gone"], "gone"),
        (["whatif", ".", "--readahead", "most"], "--readahead"),
        (["ceiling", "gone"], "gone"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    finished = say(*words, cwd=tmp_path)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert said in finished.stderr
    assert len(finished.stderr.splitlines()) == 1
