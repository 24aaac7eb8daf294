"""Cut the power of file systems and fill tiers: each file system is made for the soak, as root.

The module knows Penstock's own checkpoints.
"""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from soak_own import N_NUMBERS, SIZE_BYTES, is_what_was_saved, kinds, leftovers, save

from penstock.errors import PenstockError
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings
from penstock.save.training.checkpointer import Checkpointer
from penstock.save.verify import latest_valid

__all__ = ["full", "power"]

POWER_S = 33.0  # longer than ext4 (5 s) and xfs (30 s) delay writes
POWER_AT_ONCE = 6


def power(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """Copy the image of a file system t seconds after a commit, as a power cut leaves the image.
    After the mount has replayed the journal, the committed checkpoint must be whole.

    Repeat without any fsync: here some checkpoints must be lost, else the check cannot fail.
    """
    why = _not_permitted()
    if why:
        print(f"power: not done: {why}")
        return {}
    done = {}
    for kind in kinds("ext4", "xfs"):
        if not shutil.which(f"mkfs.{kind}"):
            print(f"power: {kind}: not done: there is no mkfs.{kind}")
            continue
        times = [POWER_S * n / max(1, rounds - 1) for n in range(rounds)]
        with ThreadPoolExecutor(POWER_AT_ONCE) as pool:
            steps = list(pool.map(lambda after_s, kind=kind: _cut(kind, after_s), times))
        for after_s, step in zip(times, steps, strict=True):
            if step != 2:
                raise SystemExit(f"power: {kind}: cut {after_s:.2f} s after the commit: {step}")
        print(f"power: {kind}: {rounds} of {rounds} cuts left the new checkpoint whole", flush=True)
        with _no_sync():
            unsynced = [_cut(kind, after_s) for after_s in times[: max(1, rounds // 12)]]
        whole = sum(step == 2 for step in unsynced)
        print(f"power: {kind}, nothing synced: {whole} of {len(unsynced)} whole")
        if whole == len(unsynced):
            raise SystemExit(f"power: {kind}: the cut is none: whole without any fsync")
        done[kind] = {
            "cuts": rounds, "whole": rounds, "without fsync, cuts": len(unsynced),
            "without fsync, whole": whole,
        }  # fmt: skip
    return done


@contextmanager
def _no_sync() -> Iterator[None]:
    kept = os.fsync, os.fdatasync
    os.fsync = os.fdatasync = lambda descriptor: None
    try:
        yield
    finally:
        os.fsync, os.fdatasync = kept


def _not_permitted() -> str:
    if os.geteuid() != 0:
        return "loop devices and mounts are for root"
    if (
        not shutil.which("losetup")
        or subprocess.run(["losetup", "-f"], capture_output=True).returncode
    ):
        return "there is no loop device here"
    return ""


@contextmanager
def _mounted(kind: str, image: Path, at: Path) -> Iterator[Path]:
    """Mount an image.  kind: the file system to make in the image first; empty: none."""
    at.mkdir(exist_ok=True)
    if kind:
        with image.open("wb") as file:
            file.truncate(320 << 20)  # xfs wants 300 MB
        # No blocks reserved for root: the soak runs as root, and the disk must become full.
        force = ["-F", "-m", "0"] if kind == "ext4" else ["-f"]
        subprocess.run([f"mkfs.{kind}", "-q", *force, image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def _copy_of_a_moment(image: Path, cut: Path) -> None:
    """Copy the image as of one moment: the copy counts if equal to the image afterwards."""
    for _ in range(20):
        subprocess.run(["cp", "--sparse=always", image, cut], check=True)
        if not subprocess.run(["cmp", "-s", image, cut]).returncode:
            return
    raise AssertionError(f"{image}: written on and on; no copy is of one moment")


def _cut(kind: str, after_s: float) -> int | None:
    """Return the step that Penstock chooses after the cut."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="penstock-power-") as place:
        image, cut = Path(place) / "image", Path(place) / "cut"
        with _mounted(kind, image, Path(place) / "mount") as mount:
            for step in (1, 2):
                save(mount / "tier", step)
            time.sleep(after_s)
            _copy_of_a_moment(image, cut)
        with _mounted("", cut, Path(place) / "mount") as mount:
            choice = latest_valid(mount / "tier", level="full")
            is_right = choice.path is not None and is_what_was_saved(choice.path, choice.step or 0)
            return choice.step if is_right else None


# --- full -----------------------------------------------------------------------------------------


def full(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """Fill a tier at a random byte of the next checkpoint.  The error must name the tier, the older
    checkpoint must stay whole, and after the next start a save must work and leave no leftovers."""
    why = _not_permitted()
    if why:
        print(f"full: not done: {why}")
        return {}
    done = {}
    for kind in kinds("tmpfs", "ext4", "xfs"):
        if kind != "tmpfs" and not shutil.which(f"mkfs.{kind}"):
            print(f"full: {kind}: not done: there is no mkfs.{kind}")
            continue
        counts = dict.fromkeys(("rounds", "refused", "had room"), 0)
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm", prefix="penstock-full-") as place,
            _small(kind, Path(place)) as mount,
        ):
            for _ in range(rounds):
                writer = chance.choices(list(FILLING), (3, 1, 3))[0]
                error = _filled(mount, Path(place) / "other", writer, chance)
                counts["rounds"] += 1
                counts["refused" if error else "had room"] += 1
                counts[f"by {writer}"] = counts.get(f"by {writer}", 0) + 1
        print(f"full: {kind}: {counts}, all older ones whole, no leftovers", flush=True)
        done[kind] = counts
    return done


@contextmanager
def _small(kind: str, place: Path) -> Iterator[Path]:
    at = place / "mount"
    if kind != "tmpfs":
        with _mounted(kind, place / "image", at):
            yield at
        return
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def _by_commit(tier: Path, other: Path, step: int) -> None:
    save(tier, step)


def _by_checkpointer(tier: Path, other: Path, step: int) -> None:
    with Checkpointer(tier, keep=Keep(last=9), on_error="warn") as ckpt:
        ckpt.save(step, {"x": np.full(N_NUMBERS, step, "f8")}).local.result()


def _by_drain(tier: Path, other: Path, step: int) -> None:
    save(other, step)
    with Drainer(other, tier, DrainSettings(settle_s=0, tries=1)) as working:
        failed = working.once()
    if failed:
        raise PenstockError(str(failed))


FILLING: dict[str, Callable[[Path, Path, int], None]] = {
    "commit": _by_commit,
    "Checkpointer": _by_checkpointer,
    "drain": _by_drain,
}


def _filled(mount: Path, other: Path, writer: str, chance: random.Random) -> str:
    """Save once with little room and once with enough room.  Return the first save's error; empty
    without an error."""
    tier, ballast = mount / "tier", mount / "ballast"
    for old in (tier, other):
        shutil.rmtree(old, ignore_errors=True)
    save(tier, 1)
    other.mkdir()
    room = int(chance.random() * 1.1 * SIZE_BYTES)
    free = os.statvfs(mount)
    with ballast.open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - room))
    error = ""
    try:
        FILLING[writer](tier, other, 2)
    except PenstockError as failure:
        error = str(failure)
    circumstances = f"{mount}, {room:,} bytes of room, {writer}: {error or 'no error'}"
    words = ("no room", "full", "No space left")
    if error and not (any(word in error for word in words) and str(mount) in error):
        raise SystemExit(f"full: the error names neither place nor cause: {circumstances}")
    choice = latest_valid(tier, level="full")
    if choice.step != (1 if error else 2) or choice.path is None:
        raise SystemExit(f"full: {choice}: {circumstances}")
    ballast.unlink()
    shutil.rmtree(other)
    recover(tier, other, DrainSettings(settle_s=0))
    if left := leftovers(tier) + leftovers(other):
        raise SystemExit(f"full: after the next start: {left}: {circumstances}")
    save(tier, 3)
    if latest_valid(tier, level="full").step != 3:
        raise SystemExit(f"full: the next save: {circumstances}")
    return error
