"""Test the end of a drain that cannot empty the tier: message, exit status, time limit."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.save.burst.tier import prepare
from penstock.save.drain.working import DrainStatus, read_status

ROOT = Path(__file__).parents[1]
MB = 1 << 20


def penstock(*words: Any, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, **options)
    assert ended.returncode == status, ended.stderr
    return ended


@contextmanager
def mounted(folder: Path, *words: str | Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *words, folder], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], capture_output=True)


def said(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines without the remarks that both tiers of this test may be on one device."""
    return [
        line
        for line in ended.stderr.splitlines()
        if "of this folder" not in line and "on one device" not in line
    ]


SAVES = """
    import os, sys, time
    for number in range(4):
        with open(f"{sys.argv[1]}/step-{number}.pt", "wb") as file:
            file.write(os.urandom(1 << 20))
    time.sleep(float(sys.argv[2]))
    sys.exit(int(sys.argv[3]))
"""


def run(fast: Path, slow: Path, *words: Any, sleep_s: float = 0, own: int = 0) -> list[Any]:
    command = ["run", "-q", "-o", fast.parent / f"run-{time.time_ns()}", "--burst-buffer", fast]
    source = textwrap.dedent(SAVES)
    return [*command, *words, sys.executable, "-c", source, slow, sleep_s, own]


def test_a_full_slow_tier_is_named_with_what_is_at_risk_and_ends_with_its_own_status(
    fast: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "slow", "-t", "tmpfs", "-o", "size=3m", "tmpfs") as slow:
        ended = penstock(*run(fast, slow, "--wait-at-most", "4s"), status=75)
        # If the reason is known late, an earlier line reports the wait for the drain.
        told = [line for line in said(ended) if "the slow tier is full" in line]
        assert len(told) == 2, ended.stderr
        first, last = told
        assert all("no room" in line for line in told)
        assert "waiting" in first
        on_tier = [path.name for path in (fast / "burst/data").iterdir()]
        assert f"{len(on_tier) * 1.048576:,.1f} MB of checkpoints in {len(on_tier)} file" in last
        assert "step-" in last
        assert f"penstock save recover {fast}" in last
        assert 0 < len(on_tier) < 4
        left = sorted(path.name for path in slow.iterdir() if path.is_symlink())
        assert len(left) == len(on_tier)
        # The program's own status wins; a drain by hand has a status as well.
        penstock(*run(fast, slow, "--wait-at-most", "1s", own=3), status=3)
        assert "no room" in penstock("save", "drain", fast, status=1).stderr
        late = penstock("save", "drain", fast, "--wait-at-most", "1s", status=75).stderr
        assert "no room" in late
        assert "not all was drained within 1 s" in late
        penstock("save", "recover", fast, "--wait-at-most", "1s", status=75)
        subprocess.run(["mount", "-o", "remount,size=30m", slow], check=True)
        penstock("save", "recover", fast)
        assert not any(path.is_symlink() for path in slow.iterdir())
        assert {path.stat().st_size for path in slow.glob("step-?.pt")} == {MB}


@pytest.mark.parametrize("is_ended", [False, True])
def test_with_both_tiers_full_the_reason_is_on_the_screen_while_the_drain_is_waited_for(
    tmp_path: Path, is_ended: bool
) -> None:
    """The drain's status has no room on the fast tier either."""
    with (
        mounted(tmp_path / "slow", "-t", "tmpfs", "-o", "size=2m", "tmpfs") as slow,
        mounted(tmp_path / "fast", "-t", "tmpfs", "-o", "size=3m", "tmpfs") as fast,
    ):
        source = """
            import os, sys, time
            for number in range(3):
                with open(f"{sys.argv[1]}/step-{number}.pt", "wb") as file:
                    file.write(os.urandom(1 << 20))
            time.sleep(3)  # the drain finds the slow tier full
            with open(sys.argv[2] + "/filler", "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError:
                    pass
        """
        words = ["run", "-q", "-o", tmp_path / "run", "--burst-buffer", fast]
        words += ["--wait-at-most", "6s"] if not is_ended else []
        command = [sys.executable, "-m", "penstock", *map(str, words), sys.executable, "-c"]
        process = subprocess.Popen(
            [*command, textwrap.dedent(source), slow, fast], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        limit = threading.Timer(60, process.kill)
        limit.start()
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if is_ended and "the slow tier is full" in line:
                    process.send_signal(signal.SIGINT)
                    is_ended = False
            process.wait(60)
        finally:
            limit.cancel()
            process.kill()
            if status := read_status(fast):  # after Ctrl-C the drain goes on
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)
        told = [line for line in lines if "the slow tier is full" in line]
        assert len(told) == 2, "".join(lines)
        assert all("no room" in line for line in told)


@pytest.mark.parametrize("words", [[], ["--wait-at-most", "1s"]])
def test_a_recovery_to_a_full_slow_tier_names_the_newest_checkpoint_on_the_fast_one(
    fast: Path, tmp_path: Path, words: list[str]
) -> None:
    data = (2).to_bytes(8, "little") + b"{}"  # of safetensors, without a tensor
    prepare(fast)
    with mounted(tmp_path / "slow", "-t", "tmpfs", "-o", "size=64k", "tmpfs") as slow:
        (slow / "step-1.safetensors").write_bytes(data)
        (slow / "filler").write_bytes(bytes(os.statvfs(slow).f_bavail * 4096 - 3 * 4096))
        for step in (2, 3):
            name = f"{time.time_ns():016x}00000{step}00-step-{step}.safetensors"
            (fast / "burst/home" / name).symlink_to(slow / f"step-{step}.safetensors")
            (fast / "burst/data" / name).write_bytes(
                (14 << 10).to_bytes(8, "little") + b"{}".ljust(14 << 10)
            )
            (slow / f"step-{step}.safetensors").symlink_to(fast / "burst/data" / name)
        ended = penstock("save", "recover", fast, slow, *words, status=75 if words else 1)
        assert ended.stdout == f"{slow}/step-3.safetensors\n", ended.stderr
        assert "no room" in ended.stderr


def unmount_once(slow: Path, is_time: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_time() and time.monotonic() < until_s:
        time.sleep(0.05)
    subprocess.run(["umount", "-l", slow], capture_output=True)


def test_a_slow_tier_that_goes_before_the_drain_has_seen_the_files_is_named(
    fast: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "slow", "-t", "tmpfs", "tmpfs") as slow:
        (slow / "out").mkdir()
        words = run(fast, slow / "out", "--burst-limit", "200KB/s", sleep_s=1)
        data = fast / "burst/data"
        is_saved = (slow, lambda: bool(list(data.glob("*-step-3.pt"))))
        threading.Thread(target=unmount_once, args=is_saved).start()
        ended = penstock(*words, status=1)
    last = ended.stderr.splitlines()[-1]
    assert "4.2 MB of checkpoints in 4 files are on the fast tier only" in last
    assert f"the slow tier is not there: {slow}/out: is not there: is its file" in last


def test_an_absent_slow_tier_is_not_called_full_and_gets_its_files_once_it_is_back(
    fast: Path, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    slow = tmp_path / "slow"
    words = run(fast, slow / "out", "--burst-limit", "200KB/s", "--wait-at-most", "5s", sleep_s=4)
    (tmp_path / "real/out").mkdir()
    with mounted(slow, "-t", "tmpfs", "tmpfs"):
        (slow / "out").mkdir()
        are_seen = (slow, lambda: len((read_status(fast) or DrainStatus("")).backlog) == 4)
        threading.Thread(target=unmount_once, args=are_seen).start()
        ended = penstock(*words, status=75)
    assert "the slow tier is not there" in ended.stderr
    assert "is its file system mounted?" in ended.stderr
    assert "full" not in ended.stderr
    assert len(list((fast / "burst/data").iterdir())) == 4
    # A later drain has not seen that folder: the drain names the files and keeps the files.
    assert "mount its file system" in penstock("save", "drain", fast, status=1).stderr
    (slow / "out").mkdir()
    for way in (fast / "burst/home").iterdir():  # as after a new mount
        way.readlink().symlink_to(fast / "burst/data" / way.name)
    penstock("save", "recover", fast)
    assert {path.stat().st_size for path in (slow / "out").iterdir()} == {MB}


def test_a_drain_that_brings_everything_says_nothing_of_a_limit(fast: Path, work: Path) -> None:
    assert said(penstock(*run(fast, work, "--wait-at-most", "60s"))) == []
    penstock("run", "--wait-at-most", "5s", "true", status=2)
    penstock("save", "drain", fast, "--wait-at-most", "5s")


# The folder of the training


def test_a_watching_drain_waits_for_its_folder(tmp_path: Path) -> None:
    fast, slow = tmp_path / "run1", tmp_path / "slow1"
    source = f"""
import os, time, zipfile
time.sleep(2)
os.mkdir({str(fast)!r})
with zipfile.ZipFile({str(fast / "step-1.pt")!r}, "w") as file:
    file.writestr("a/data.pkl", b"1")
time.sleep(1)
"""
    with subprocess.Popen([sys.executable, "-c", source]) as program:
        words = ("--watch", "--follow", program.pid, "--keep-fast", 2, "--foreign")
        told = penstock("save", "drain", fast, slow, *words)
    assert told.stderr.count("not there yet; waiting for it") == 1
    assert (slow / "step-1.pt").exists()


def test_a_watching_drain_ends_where_its_folder_never_comes(tmp_path: Path) -> None:
    fast, slow = tmp_path / "run1", tmp_path / "slow1"
    with subprocess.Popen(["sleep", "1"]) as program:
        words = ("--watch", "--follow", program.pid)
        told = penstock("save", "drain", fast, slow, *words, status=1)
    assert "what was followed ended, and it never came" in told.stderr
    assert "does not exist" in penstock("save", "drain", fast, slow, status=2).stderr
    (tmp_path / "file").touch()
    penstock("save", "drain", tmp_path / "file", slow, "--watch", status=2)
