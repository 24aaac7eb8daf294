"""Slow tiers: the data through a tier, the counts, the speed by fio, the remains."""

import hashlib
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import PENSTOCK
from penstock.errors import MissingDependency, TierError
from penstock_lab import tier as slow_tiers
from penstock_lab.rates import checks
from penstock_lab.tier import Requests, Speed, made, make, remove, slow
from slowtier import mounts, needs_fuse, nothing_stays  # noqa: F401 - a fixture

needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="no fio: make setup-system")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of 8 MiB, and a state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_bytes(os.urandom(8 << 20))
    return data


def read_past_cache(path: Path, offsets: range, size: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, size) as buffer:
        for offset in offsets:
            assert os.preadv(descriptor, [buffer], offset) == size
    os.close(descriptor)


# Data through a tier


@needs_fuse
def test_the_bytes_are_the_folders_by_read_by_mapping_and_past_the_cache(folder: Path) -> None:
    wanted = hashlib.sha256((folder / "file").read_bytes()).digest()
    with slow(folder) as tier:
        seen = Path(tier.path) / "file"
        assert hashlib.sha256(seen.read_bytes()).digest() == wanted
        with open(seen, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert hashlib.sha256(view).digest() == wanted
        read_past_cache(seen, range(0, 8 << 20, 1 << 20), 1 << 20)
        assert sorted(os.listdir(tier.path)) == ["file"]


@needs_fuse
def test_writes_renames_and_removals_reach_the_folder(folder: Path) -> None:
    with slow(folder) as tier:
        there = Path(tier.path)
        (there / "new").write_bytes(b"x" * 3_000_000)
        with open(there / "new", "ab") as file:
            file.write(b"end")
        os.rename(there / "new", there / "named")
        assert (folder / "named").read_bytes() == b"x" * 3_000_000 + b"end"
        os.truncate(there / "named", 5)
        os.utime(there / "named", ns=(7, 9))
        assert (folder / "named").stat().st_size == 5
        assert (folder / "named").stat().st_mtime_ns == 9
        os.symlink("named", there / "link")
        assert (there / "link").read_bytes() == b"xxxxx"
        (there / "a" / "b").mkdir(parents=True)
        (there / "a" / "b").rmdir()
        for name in ("link", "named"):
            (there / name).unlink()
        assert sorted(os.listdir(folder)) == ["a", "file"]


@needs_fuse
def test_a_removed_file_that_is_open_can_still_be_used(folder: Path) -> None:
    with slow(folder) as tier, open(f"{tier.path}/gone", "w+b", buffering=0) as file:
        os.unlink(file.name)
        file.write(b"still")
        assert os.pread(file.fileno(), 9, 0) == b"still"
        assert os.fstat(file.fileno()).st_size == 5


@needs_fuse
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_what_another_user_makes_is_theirs(folder: Path) -> None:
    for place in (folder, *folder.parents):  # pytest's own folders are for one user
        if place.stat().st_mode & 0o77 != 0:
            break
        place.chmod(0o711)
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (folder / "group").mkdir()
    os.chown(folder / "group", 0, 1234)
    (folder / "group").chmod(0o2777)
    program = """
import os, sys
os.setgroups([])
os.setgid(65533)
os.setuid(65534)
for name in ("open", "group"):
    os.chdir(sys.argv[1] + "/" + name)
    for _ in range(2):
        with open("file", "a") as file:
            file.write("x")
    os.mkdir("folder")
    open("folder/file", "w").close()
    os.symlink("file", "link")
    os.chmod("file", 0o600)
"""
    with slow(folder) as tier:
        Path(tier.path).parent.chmod(0o711)
        subprocess.run([sys.executable, "-c", program, tier.path], check=True)
        (Path(tier.path) / "open" / "roots").touch()
    for name, group in (("open", 65533), ("group", 1234)):
        made = [folder / name / part for part in ("file", "folder", "link", "folder/file")]
        owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in made}
        assert owners == {(65534, group)}
        assert (folder / name / "file").read_text() == "xx"
    assert (folder / "open" / "roots").stat().st_uid == 0


@needs_fuse
def test_an_error_of_the_folder_is_the_tiers(folder: Path) -> None:
    with slow(folder) as tier:
        for name, error in (("no", FileNotFoundError), ("file/x", NotADirectoryError)):
            with pytest.raises(error):
                open(f"{tier.path}/{name}").close()
        with pytest.raises(FileExistsError):
            os.mkdir(f"{tier.path}/file")


@needs_fuse
def test_a_tier_can_be_mounted_over_its_own_folder(folder: Path) -> None:
    with slow(folder, at=folder) as tier:
        assert tier.path == str(folder)
        assert (folder / "file").stat().st_size == 8 << 20
        assert tier.requests().metadata > 0
    assert (folder / "file").stat().st_size == 8 << 20


# Counts


@needs_fuse
def test_requests_are_counted_one_by_one(folder: Path) -> None:
    with slow(folder) as tier:
        seen = Path(tier.path) / "file"
        seen.stat()
        before = tier.requests()
        read_past_cache(seen, range(0, 10 * 4096, 4096), 4096)
        read_past_cache(seen, range(0, 3 << 20, 1 << 20), 1 << 20)
        asked = tier.requests() - before
        assert (asked.reads, asked.read_bytes) == (13, 10 * 4096 + (3 << 20))
        assert asked.read_sizes == {4096: 10, 1 << 20: 3}
        assert (asked.opens, asked.writes) == (2, 0)
        with open(f"{tier.path}/new", "wb", buffering=0) as file:
            file.write(bytes(4096))
        asked = tier.requests() - before
        assert (asked.writes, asked.written_bytes, asked.written_sizes) == (1, 4096, {4096: 1})


def test_a_difference_of_requests_leaves_out_sizes_without_any() -> None:
    before = Requests(1, 4096, 0, 0, 1, 1, 1, {4096: 1}, {})
    after = Requests(3, 12288, 0, 0, 1, 1, 2, {4096: 1, 8192: 2}, {})
    assert (after - before).read_sizes == {8192: 2}


# Speed.  Upper bounds are strict: a tier is never faster than stated.  Lower bounds are wide: the
# machine may be busy; `tier make` is the judge on a quiet machine.


def fio(path: Path, *options: str) -> dict[str, Any]:
    command = [
        "fio", "--name=x", f"--filename={path}", "--rw=randread", "--direct=1", "--time_based",
        "--runtime=1", "--ioengine=psync", "--thread", "--group_reporting", "--output-format=json",
        "--readonly", "--randseed=1", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"])


@pytest.mark.alone
@needs_fuse
@needs_fio
def test_fio_finds_the_latency(folder: Path) -> None:
    with slow(folder, latency_s=0.004) as tier:
        measured = fio(Path(tier.path) / "file", "--bs=4k")
    # The fastest: a busy machine adds any time to the others.
    assert 0.004 <= measured["clat_ns"]["min"] / 1e9 < 0.008


@pytest.mark.alone
@needs_fuse
@needs_fio
def test_fio_finds_the_bandwidth_that_all_share(folder: Path) -> None:
    with slow(folder, bandwidth=50e6) as tier:
        measured = fio(Path(tier.path) / "file", "--bs=256k", "--numjobs=4")
    assert 0.6 * 50e6 < measured["bw_bytes"] < 1.06 * 50e6


@pytest.mark.alone
@needs_fuse
@needs_fio
def test_fio_finds_the_rate_that_all_share(folder: Path) -> None:
    with slow(folder, iops=500) as tier:
        measured = fio(Path(tier.path) / "file", "--bs=4k", "--numjobs=4")
    assert 0.6 * 500 < measured["iops"] < 1.06 * 500


@pytest.mark.alone
@needs_fuse
@needs_fio
def test_a_slot_serves_one_request_at_a_time(folder: Path) -> None:
    with slow(folder, latency_s=0.005, slots=2) as tier:
        measured = fio(Path(tier.path) / "file", "--bs=4k", "--numjobs=6")
        assert tier.requests().most_in_flight == 2
    assert measured["iops"] < 1.02 * 2 / 0.005


@needs_fuse
def test_an_open_costs_metadata_time(folder: Path) -> None:
    for number in range(10):
        (folder / f"{number}").touch()
    with slow(folder, metadata_s=0.02) as tier:
        start = time.monotonic()
        for number in range(10):
            open(f"{tier.path}/{number}").close()
        assert time.monotonic() - start >= 10 * 0.02


@needs_fuse
def test_opens_of_all_users_pass_at_the_metadata_rate(folder: Path) -> None:
    """Many at once: each waits its time, and together the opens wait for the rate."""
    names = [f"{number}" for number in range(40)]
    for name in names:
        (folder / name).touch()
    with slow(folder, metadata_s=0.1, metadata_hz=100) as tier:
        for name in names:
            os.stat(f"{tier.path}/{name}")  # look-ups in a folder wait for each other
        before = tier.requests().metadata
        start = time.monotonic()
        with ThreadPoolExecutor(40) as team:
            for _ in team.map(lambda name: open(f"{tier.path}/{name}").close(), names):
                pass
        took_s = time.monotonic() - start
        asked = tier.requests().metadata - before
    assert asked == len(names)
    assert took_s > 0.95 * len(names) / 100  # 0.1 s more, less the requests at once after a pause
    assert took_s < 0.5 * len(names) * 0.1  # singly each would wait for the others


@needs_fuse
@pytest.mark.parametrize("targets", [1, 4])
def test_servers_side_by_side_have_the_bandwidth_each(folder: Path, targets: int) -> None:
    """16 MB in stripes of 1 MB, read by 16 threads: 20 MB/s of each server."""
    size, n = 1 << 20, 16
    (folder / "striped").write_bytes(bytes(size * n))
    with slow(folder, bandwidth=20e6, targets=targets) as tier:
        descriptor = os.open(f"{tier.path}/striped", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        start = time.monotonic()
        with ThreadPoolExecutor(n) as team:
            read = team.map(lambda number: len(os.pread(descriptor, size, number * size)), range(n))
            assert sum(read) == size * n
        took_s = time.monotonic() - start
        os.close(descriptor)
    whole_s = size * n / 20e6 / targets
    assert 0.9 * whole_s - 0.01 < took_s < 1.8 * whole_s


@needs_fuse
@pytest.mark.parametrize("is_shared", [False, True])
def test_tiers_with_one_file_of_lines_share_a_bandwidth(
    folder: Path, tmp_path: Path, is_shared: bool
) -> None:
    """Two mounts of 20 MB/s read 8 MB each, side by side; each has a separate page cache."""
    size = 8 << 20
    (folder / "large").write_bytes(bytes(size))
    lines = tmp_path / "lines" if is_shared else ""
    with (
        slow(folder, bandwidth=20e6, lines=lines) as first_tier,
        slow(folder, bandwidth=20e6, lines=lines) as second_tier,
    ):
        start = time.monotonic()
        with ThreadPoolExecutor(2) as team:
            for data in team.map(
                lambda tier: Path(tier.path, "large").read_bytes(), (first_tier, second_tier)
            ):
                assert len(data) == size
        took_s = time.monotonic() - start
        assert [tier.requests().read_bytes for tier in (first_tier, second_tier)] == [size, size]
    whole_s = size / 20e6 * (1 + is_shared)
    assert 0.9 * whole_s - 0.01 < took_s < 1.4 * whole_s


@needs_fuse
def test_lines_are_shared_on_after_a_tier_was_killed(folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    with slow(folder, bandwidth=1e9, lines=lines) as first_tier:
        os.kill(first_tier.pid, signal.SIGKILL)
        with slow(folder, bandwidth=1e9, lines=lines) as second_tier:
            assert Path(second_tier.path, "file").read_bytes() == (folder / "file").read_bytes()


def test_what_hides_another_limit_is_not_measured_as_it() -> None:
    assert [check.what for check in checks(200e6, 2000, 1e-3)] == [
        "latency",
        "bandwidth",
        "requests",
    ]
    assert [check.what for check in checks(200e6, 50, 0)] == ["requests"]
    assert [check.what for check in checks(None, 100, 1e-3)] == ["requests"]
    assert [check.what for check in checks(1e6, 2000, 0)] == ["bandwidth"]


# Permanent tiers, and the remains of killed tiers


@pytest.mark.alone
@needs_fuse
def test_a_tier_that_was_made_is_listed_and_removed(folder: Path) -> None:
    tier = make("slow", folder, Speed(latency_s=1e-3), is_verified=False)
    assert tier.path == f"{folder}-slow"
    assert [slow_tier.name for slow_tier in made()] == ["slow"]
    assert made()[0].is_alive()
    assert os.listdir(tier.path) == ["file"]
    with pytest.raises(TierError, match="there is such a tier"):
        make("slow", folder, Speed(), is_verified=False)
    remove("slow")
    assert made() == []
    assert not Path(tier.path).exists()
    with pytest.raises(TierError, match="no such tier; there are: none"):
        remove("slow")


@pytest.mark.alone
@needs_fuse
def test_a_tier_that_cannot_keep_its_speed_is_refused_and_undone(folder: Path) -> None:
    with pytest.raises(TierError, match=r"of 900 GB/s asked; this machine cannot keep it"):
        make("fast", folder, Speed(bandwidth_bps=900e9))
    assert made() == []
    assert os.listdir(folder) == ["file"]
    assert not Path(f"{folder}-fast").exists()


@needs_fuse
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_make_that_is_ended_can_be_undone(folder: Path, number: signal.Signals) -> None:
    words = ["make", "slow", str(folder), "--latency", "1s"]  # measured for a minute
    maker = subprocess.Popen([PENSTOCK, "bench", "tier", *words], stderr=subprocess.DEVNULL)
    while f"{folder}-slow" not in mounts():
        assert maker.poll() is None
    maker.send_signal(number)
    with suppress(subprocess.TimeoutExpired):
        maker.wait(30)
    if maker.poll() is None:  # Python loses an interrupt in a callback of its imports
        maker.send_signal(number)
    assert maker.wait(240) == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    if number == signal.SIGKILL:
        assert [slow_tier.name for slow_tier in made()] == ["slow"]
        remove("slow")
        (folder / f".penstock-tier-{maker.pid}").unlink(missing_ok=True)
    assert made() == []
    assert f"{folder}-slow" not in mounts()
    assert os.listdir(folder) == ["file"]


@pytest.mark.alone
@needs_fuse
@pytest.mark.parametrize("speed", [Speed(bandwidth_bps=1e6), Speed(requests_hz=50, latency_s=5e-3)])
def test_what_is_very_slow_is_measured_too(folder: Path, speed: Speed) -> None:
    tier = make("slow", folder, speed)
    remove("slow")
    assert "asked" in tier.measured


@needs_fuse
def test_a_mount_over_other_files_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TierError, match="not empty; --at FOLDER"):
        make("slow", folder, Speed(), at=tmp_path, is_verified=False)
    assert made() == []


@needs_fuse
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_folder_that_was_there_stays_and_one_that_was_made_goes(
    folder: Path, tmp_path: Path, is_there: bool, is_beside: bool
) -> None:
    mount = tmp_path / ("data-slow" if is_beside else "elsewhere")
    if is_there:
        mount.mkdir()
    at = None if is_beside else mount
    assert make("slow", folder, Speed(), at=at, is_verified=False).path == str(mount)
    remove("slow")
    assert mount.exists() == is_there
    assert sorted(os.listdir(folder)) == ["file"]


@needs_fuse
def test_one_name_that_is_wrong_does_not_keep_the_others(folder: Path) -> None:
    for name in ("a1", "a2"):
        make(name, folder, Speed(), is_verified=False)
    with pytest.raises(TierError, match="wrong: no such tier"):
        remove("a1", "wrong", "a2")
    assert made() == []


@needs_fuse
def test_what_a_damaged_note_is_of_is_removed(folder: Path) -> None:
    for name in ("slow", "other"):
        make(name, folder, Speed(), is_verified=False)
    slow_tiers._note("slow").write_text('{"name": "sl')
    with pytest.raises(TierError, match="penstock bench tier remove slow"):
        make("slow", folder, Speed(), is_verified=False)
    remove("slow")
    assert f"{folder}-slow" not in mounts()
    assert [slow_tier.is_alive() for slow_tier in made()] == [True]
    assert not list(slow_tiers._note("slow").parent.glob("slow*"))
    make("slow", folder, Speed(), is_verified=False)
    remove("slow", "other")


def test_a_tier_that_would_hold_itself_is_refused(folder: Path) -> None:
    with pytest.raises(TierError, match="/: a tier of all there is would be seen through itself"):
        make("slow", "/", Speed(), is_verified=False)
    (folder / "in").mkdir()
    (folder.parent / "link").symlink_to(folder)
    for at in (folder / "in", folder / "new", folder.parent / "link" / "new"):
        with pytest.raises(TierError, match="would be seen through itself; --at FOLDER"):
            make("slow", folder, Speed(), at=at, is_verified=False)
        with pytest.raises(TierError, match="would be seen through itself"), slow(folder, at=at):
            pass
    assert made() == []
    assert sorted(os.listdir(folder)) == ["file", "in"]


@needs_fuse
@pytest.mark.parametrize("killed", ["maker", "server", "both"])
def test_a_killed_tier_leaves_nothing_after_the_next(folder: Path, killed: str) -> None:
    program = f"""
import time
from penstock_lab.tier import slow
with slow({str(folder)!r}, latency_s=1e-3) as tier:
    print(tier.path, tier.pid, flush=True)
    time.sleep(60)
"""
    maker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert maker.stdout
    path, pid = maker.stdout.readline().split()
    if killed != "maker":
        os.kill(int(pid), signal.SIGKILL)
    maker.send_signal(signal.SIGINT if killed == "server" else signal.SIGKILL)
    maker.wait()
    deadline = time.monotonic() + 240  # the server ends with its maker
    while slow_tiers._is_running(int(pid)) and time.monotonic() < deadline:
        pass
    with slow(folder) as tier:  # sweeps
        assert os.listdir(tier.path) == ["file"]
    assert path not in mounts()
    assert not Path(path).parent.exists()


@needs_fuse
def test_a_tier_whose_server_died_is_told_and_removed(folder: Path) -> None:
    tier = make("slow", folder, Speed(), is_verified=False)
    os.kill(tier.pid, signal.SIGKILL)
    while slow_tiers._is_running(tier.pid):
        pass
    assert not made()[0].is_alive()
    shown = subprocess.run([PENSTOCK, "bench", "tier", "list"], capture_output=True, text=True)
    assert "gone; `penstock bench tier remove slow` tidies up" in shown.stdout
    remove("slow")
    assert tier.path not in mounts()


# Refusals in a sentence


@pytest.mark.parametrize(
    ("name", "speed", "said"),
    [
        ("../up", Speed(), "no name for a tier"),
        ("", Speed(), "no name for a tier"),
        ("x", Speed(latency_s=61), "between 0 and 60 s"),
        ("x", Speed(latency_s=float("nan")), "between 0 and 60 s"),
        ("x", Speed(slots=0), "1 to 4096"),
        ("x", Speed(bandwidth_bps=0.5), "1 to 1e12"),
        ("x", Speed(jitter=2), "0 to 1"),
        ("x", Speed(targets=257), "1 to 256"),
        ("x", Speed(metadata_hz=0.1), "1 to 1e12"),
    ],
)
def test_a_tier_that_cannot_be_is_refused(folder: Path, name: str, speed: Speed, said: str) -> None:
    with pytest.raises(TierError, match=said):
        make(name, folder, speed)
    assert made() == []


@pytest.mark.parametrize(
    ("speed", "at", "said"),
    [
        (Speed(latency_s=5e-3, seek_s=2e-3), None, "a latency, jumps of a head: leave that out"),
        (Speed(stream_bps=1e6, metadata_s=1e-3), None, "of one request, a time of an open: leave"),
        (Speed(jitter=0.1, slots=2), None, "jitter, slots: leave"),
        (Speed(bandwidth_bps=1e8), "there", r"a place of its own \(--at\): leave"),
    ],
)
def test_what_a_control_group_cannot_do_is_refused(
    folder: Path, speed: Speed, at: str | None, said: str
) -> None:
    with pytest.raises(TierError, match=said):
        make("slow", folder, speed, kind="cgroup", at=at, is_verified=False)
    assert made() == []


def test_a_missing_folder_is_refused(folder: Path) -> None:
    with pytest.raises(TierError, match="no such folder"), slow(folder / "no"):
        pass


def test_without_a_compiler_or_libfuse_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="apt install gcc pkg-config libfuse3-dev fuse3"):
        slow_tiers.build(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8,
))  # fmt: skip
def test_a_damaged_note_is_no_tier(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        slow_tiers._tier_from(value, "slow")


@given(st.data())
def test_a_note_with_one_wrong_part_is_no_tier_or_the_same(data: st.DataObject) -> None:
    speed = {"bandwidth_bps": 1.0, "requests_hz": None, "latency_s": 0.0, "jitter": 0.0,
             "stream_bps": None, "metadata_s": 0.0, "slots": 64}  # fmt: skip
    note = {"name": "slow", "kind": "fuse", "folder": "/a", "path": "/a-slow", "speed": speed,
            "memory_bytes": None, "pid": 1, "start_ticks": 2, "boot": "b", "stats": "",
            "group": None, "measured": "", "is_temporary": False}  # fmt: skip
    assert slow_tiers._tier_from(note, "slow").speed.bandwidth_bps == 1.0
    key = data.draw(st.sampled_from(["kind", "folder", "pid", "speed", "boot", "stats"]))
    wrong = data.draw(st.lists(st.integers(), max_size=1) | st.none() | st.just({"x": 1}))
    with pytest.raises((ValueError, TypeError, KeyError)):
        slow_tiers._tier_from(note | {key: wrong}, "slow")


# The command line


@pytest.mark.alone
@needs_fuse
def test_the_command_line_makes_lists_and_removes(folder: Path) -> None:
    def say(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([PENSTOCK, "bench", "tier", *words], capture_output=True, text=True)

    words = ["make", "t1", str(folder), "--latency", "1ms", "--bandwidth", "200MB/s"]
    finished = say(*words, "--unverified")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == f"t1: {folder}-t1: not measured\n"
    assert "200 MB/s, 1.00 ms latency" in say("list").stdout
    value = json.loads(say("list", "--json").stdout)
    assert value[0]["is_alive"] is True
    assert value[0]["requests"]["reads"] == 0
    refused = say("run", "t1", "true")
    assert refused.returncode == 2
    assert "a FUSE tier needs no group" in refused.stderr
    assert say("remove", "t1").returncode == 0
    assert say("list").stdout == ""


@pytest.mark.parametrize(
    "words",
    [["tier"], ["tier", "make"], ["tier", "list"], ["tier", "remove"], ["tier", "run"], ["data"],
     ["ladder"], ["model"]],
)  # fmt: skip
def test_every_command_shows_an_example(words: list[str]) -> None:
    finished = subprocess.run(
        [PENSTOCK, "bench", *words, "--help"], capture_output=True, text=True, check=True
    )
    assert f"penstock bench {' '.join(words)} " in finished.stdout.split("Usage:")[1][60:]
