"""The faults of a round of soak_units.py: what is killed, filled, lost or disturbed, and when.

Knows rounds, and judges no checkpoint by itself.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak_bursts import memory_tier, under_burst
from soak_children import Wrong, fails_on, unspoilt
from soak_s3 import s3_tier

from penstock.save.drain.working import DrainSettings

if TYPE_CHECKING:
    from soak_units import Round

__all__ = ["BURSTS", "FAULTS", "Fault"]

ENOUGH = "4g"  # room of a tier for a round without shortage


@contextmanager
def _plain_tiers(round_: Round) -> Iterator[None]:
    yield


@contextmanager
def _small(tier: str, round_: Round) -> Iterator[None]:
    """Mount a separate file system as the tier, so that a fault can change the size."""
    at = round_.folder / tier
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ENOUGH}", "none", at], check=True)
    try:
        yield
    finally:
        for name in [*round_.pids, *round_.far]:
            round_.kill(name)
        subprocess.run(["umount", "-l", at], check=True)


def _sized(at: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", at], check=True)


def _filled(at: Path, save_bytes: int, chance: random.Random) -> None:
    """Leave room for a part of the next saves."""
    there = os.statvfs(at)
    used = (there.f_blocks - there.f_bfree) * there.f_frsize
    _sized(at, str(used + int(save_bytes * (0.2 + 2.2 * chance.random()))))


def _save_bytes(round_: Round) -> int:
    files = [path for path in round_.slow.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if "penstock" not in path.name)


def _program(round_: Round) -> None:
    round_.program(1000, round_.gap_s())
    round_.drain(round_.settings(), round_.chance.choice((3.0, 15.0)), unspoilt)
    _until(round_, round_.chance.random() < 0.7)
    round_.kill("program")
    round_.over.touch()
    if round_.ends("drain", 40) is None:
        round_.facts["drain"] = "had to be killed"
        round_.kill("drain")


def _until(round_: Round, is_in_save: bool) -> None:
    if is_in_save:
        round_.wait_in_save()
    else:
        time.sleep(round_.chance.random() * 6)


def _drain(round_: Round) -> None:
    round_.program(1000, round_.gap_s())
    at = round_.chance.random() < 0.7 and round_.chance.choice((12, 40, 90, 200, 400))
    number = round_.chance.randrange(1, at) if at else 0
    round_.drain(round_.settings(), 3.0, round_.deadly(number))
    round_.facts["dies_at"] = number
    if number:
        round_.facts["died"] = round_.ends("drain", 9) == signal.SIGKILL
    else:
        time.sleep(round_.chance.random() * 7)
    round_.kill("drain")
    time.sleep(round_.chance.choice((0.0, 0.0, 0.5, 1.0)))
    round_.stop.touch()
    status = round_.ends("program", 60)
    if status:
        raise Wrong(f"the program: status {status}: {round_.log.read_text()[-1500:]}")


def _both(round_: Round) -> None:
    round_.program(1000, round_.gap_s())
    is_counted = round_.chance.random() < 0.5
    number = round_.chance.randrange(1, round_.chance.choice((40, 120, 300))) if is_counted else 0
    round_.drain(round_.settings(), 3.0, round_.deadly(number))
    round_.facts["dies_at"] = number
    if number:
        round_.facts["died"] = round_.ends("drain", round_.chance.random() * 9) == signal.SIGKILL
    if round_.chance.random() < 0.7:
        round_.wait_in_save()
    else:
        time.sleep(round_.chance.random() * 4)
    names = ["program", "drain"]
    round_.chance.shuffle(names)
    for name in names:
        round_.kill(name)
        time.sleep(round_.chance.random() * 0.05)


def _lost(round_: Round) -> None:
    _both(round_)


def _full_fast(round_: Round) -> None:
    save_bytes = _save_bytes(round_)
    _filled(round_.fast, save_bytes, round_.chance)
    round_.program(1000, round_.gap_s())
    round_.drain(round_.settings(), 3.0, unspoilt)
    status = round_.ends("program", 3 + round_.chance.random() * 6)
    round_.facts["program"] = status
    if round_.chance.random() < 0.5:
        round_.kill("drain")
    round_.kill("program")
    round_.over.touch()
    round_.ends("drain", 20)
    round_.kill("drain")
    if round_.chance.random() < 0.5:  # else `recover` meets a full tier
        _sized(round_.fast, ENOUGH)
    else:
        round_.facts["is_full"] = True
        said = round_.judge(max(round_.hear(), round_.least), DrainSettings(tries=1))
        round_.least = max(round_.least, said["found"])
        _sized(round_.fast, ENOUGH)


def _some_killed(round_: Round) -> None:
    """Kill the program, the drain or both; the other one ends by itself."""
    for name in round_.chance.choice((("program",), ("drain",), ("program", "drain"))):
        round_.kill(name)
    round_.stop.touch()
    round_.ends("program", 60)
    round_.over.touch()
    round_.ends("drain", 15)
    round_.kill("drain")
    round_.kill("program")


def _full_slow(round_: Round) -> None:
    _filled(round_.slow, _save_bytes(round_), round_.chance)
    round_.program(1000, round_.gap_s())
    round_.drain(round_.settings(), 3.0, unspoilt)
    time.sleep(3 + round_.chance.random() * 4)
    if round_.chance.random() < 0.5:
        round_.wait_in_save()
    _some_killed(round_)
    said = round_.judge(max(round_.hear(), round_.least), DrainSettings(tries=1))
    round_.facts["while full"] = said["failed"]
    round_.least = max(round_.least, said["found"])
    _sized(round_.slow, ENOUGH)


def _faulty(round_: Round) -> None:
    share = round_.chance.choice((0.01, 0.03, 0.1, 0.4))
    round_.facts["share"] = share
    round_.program(1000, round_.gap_s())
    round_.drain(
        round_.settings(), 3.0, fails_on(round_.slow, round_.chance.randrange(1 << 30), share)
    )
    time.sleep(2 + round_.chance.random() * 5)
    if round_.chance.random() < 0.3:  # unmounted for a while
        away = round_.folder / "away"
        round_.slow.rename(away)
        if round_.chance.random() < 0.5:
            round_.slow.mkdir()  # an empty mount point
        time.sleep(round_.chance.random() * 3)
        if round_.slow.is_dir():
            shutil.rmtree(round_.slow)
        away.rename(round_.slow)
    if round_.chance.random() < 0.6:
        round_.wait_in_save()
    _some_killed(round_)


@dataclass(frozen=True, slots=True)
class Fault:
    """is_whole: `strike` makes the whole round."""

    strike: Callable[[Round], None]
    tiers: Callable[[Round], Any] = _plain_tiers
    is_lost: bool = False
    needs_root: bool = False
    is_whole: bool = False


FAULTS = {
    "program killed": Fault(_program),
    "drain killed": Fault(_drain),
    "both killed": Fault(_both),
    "fast tier lost": Fault(_lost, is_lost=True),
    "fast tier full": Fault(_full_fast, lambda round_: _small("fast", round_), needs_root=True),
    "slow tier full": Fault(_full_slow, lambda round_: _small("slow", round_), needs_root=True),
    "slow tier with faults": Fault(_faulty),
    "S3, drain killed": Fault(_drain, s3_tier),
    "S3, both killed": Fault(_both, s3_tier),
    "S3, fast tier lost": Fault(_lost, s3_tier, is_lost=True),
}
BURSTS = {
    f"burst, {name}": Fault(under_burst(doomed), memory_tier, is_whole=True)
    for name, doomed in (("program killed", "program"), ("drain killed", "drain"),
                         ("all killed", "all"), ("node lost", "lost"))
}  # fmt: skip
