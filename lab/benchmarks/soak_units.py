"""Kill programs of many frameworks and their drain, fill, lose and disturb tiers; then load.

    python lab/benchmarks/soak_units.py [ROUNDS]                 default: 2,000, over all pairs
    python lab/benchmarks/soak_units.py --seed SEED              repeat the round with this seed
        --layout NAME, --fault NAME, --without FAULT         select by a part of the name
        --folder FOLDER                                      folder for the tiers
        --at-once N                                          parallel rounds; default: 4
        --json FILE                                          a line for each round
        --record                                             adds the rounds to docs/save-soak.json

A round: a program saves again and again, a drain runs beside with random retention, a fault comes
at a random moment, mostly in the middle of a save or of a copy.  Then `recover` runs, and the
framework loads the named checkpoint: every number in every tensor must be of one save, and the
save must not be older than the newest completed save on a remaining tier.  Each checkpoint that
Penstock calls whole must load as one save, too.  Then the program saves once more, and `recover`
must name the new save.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bars import scratch
from soak_children import (
    GAP_IN_PLACE_S,
    SavingProgram,
    Wrong,
    answered,
    die_with_parent,
    dies_at,
    draining,
    fails_on,
    forked,
    saving,
    unspoilt,
)
from soak_layouts import FAMILIES, LAYOUTS, Layout, ready
from soak_record import FAILED, code_of, record
from soak_s3 import dies_at_request, mirrored, s3_modules, s3_tier

from penstock.errors import PenstockError
from penstock.places.stores import open_store
from penstock.save.drain import Drainer
from penstock.save.formats import compared, find
from penstock.save.order import newest_first
from penstock.save.recover import fetch, recover
from penstock.save.retention import Keep
from penstock.save.verify import verify
from penstock.save.working import DrainSettings

__all__ = ["FAULTS", "done", "main"]

MOST_ROUND_S = 900  # on a machine with other load
ENOUGH = "4g"  # room of a tier for a round without shortage
MOST_LOADED = 4  # on each tier: the newest
GAPS_S = (0.2, 1.0, 2.5, 4.0)  # most, between two saves
SETTLED = DrainSettings(settle_s=0, tries=1)


_NUMBER = re.compile(r"\d+")


# --- a round --------------------------------------------------------------------------------------


@dataclass
class Round:
    """One round in a separate folder.

    number, step: of the last save begun.  least: `recover` must not name a save with a lower
    number, because this save was whole before.
    """

    layout: Layout
    fault: str
    seed: int
    folder: Path
    chance: random.Random = field(init=False)
    number: int = 0
    step: int = 0
    least: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    slow_url: str = ""  # of S3: `slow` is a copy of the bucket then

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.fast, self.slow = self.folder / "fast", self.folder / "slow"
        self.said, self.stop = self.folder / "said", self.folder / "stop"
        self.over, self.log = self.folder / "over", self.folder / "log"
        self.slow_url = os.fspath(self.slow)

    # Lines written by the program.

    def words(self) -> list[tuple[str, int, int, float]]:
        rows = self.said.read_text().splitlines() if self.said.exists() else []
        split = (row.split() for row in rows if len(row.split()) == 4)
        return [(word, int(step), int(number), float(at)) for word, step, number, at in split]

    def hear(self) -> int:
        """Return the newest complete save, if not overwritten; 0: none."""
        words = self.words()
        if words:
            self.step = max(step for _, step, _, _ in words)
            self.number = max(number for _, _, number, _ in words)
        ended = [number for word, _, number, _ in words if word == "ended"]
        if not ended or (self.layout.is_in_place and ended[-1] != self.number):
            return 0
        return ended[-1]

    # Processes.

    def program(self, n_saves: int, gap_s: float) -> int:
        self.stop.unlink(missing_ok=True)
        begin, seed = (self.step + 1, self.number + 1), self.chance.randrange(1 << 30)
        job = SavingProgram(
            self.layout, self.fast, self.said, begin, seed, n_saves, gap_s, self.stop
        )
        pid = forked(
            lambda: saving(job),
            self.log,
            is_group=True,
        )
        with suppress(OSError):
            os.setpgid(pid, pid)
        self.pids["program"] = pid
        return pid

    def drain(self, settings: DrainSettings, grace_s: float, spoil: Callable[[], None]) -> None:
        self.over.unlink(missing_ok=True)
        tiers = self.fast, self.slow_url
        self.pids["drain"] = forked(
            lambda: draining(tiers, settings, self.over, grace_s, spoil), self.log
        )

    def kill(self, name: str) -> None:
        pid = self.pids.pop(name, 0)
        if not pid:
            return
        with suppress(ProcessLookupError):
            if name == "program":
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        # The ranks are children of the program, and end with the program's process group.
        while name == "program" and _has_group(pid):
            time.sleep(0.005)

    def ends(self, name: str, within_s: float) -> int | None:
        """Wait for the process's end.  Return the wait status; None: still alive."""
        pid = self.pids.get(name)
        if pid is None:
            return None
        until_s = time.monotonic() + within_s
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self.pids[name]
                return status
            if time.monotonic() > until_s:
                return None
            time.sleep(0.01)

    def saves(self, n: int) -> None:
        """Run the program for n saves, until the program ends."""
        self.program(n, 0.05)
        status = self.ends("program", 300)
        if status != 0:
            self.kill("program")
            raise Wrong(f"the program: status {status}: {self.log.read_text()[-1500:]}")

    # Checkpoints on the tiers.

    def look(self, name: str, paths: Sequence[Path]) -> dict[str, int]:
        """Return the number of the save at each path, loaded by the framework; 0: not whole."""

        def loaded() -> dict[str, Any]:
            found = {}
            for path in paths:
                try:
                    values = self.layout.load(path)
                    found[str(path)] = int(values.pop()) if len(values) == 1 else 0
                    if values:
                        print(f"{path}: of several saves: {values}", flush=True)
                except BaseException as error:  # DCP's is no Exception
                    print(f"{path}: {type(error).__name__}: {error}"[:600], flush=True)
                    found[str(path)] = 0
            return found

        return answered(loaded, self.folder, name) if paths else {}

    def newest(self, name: str) -> tuple[int, int]:
        """Return the newest whole save on the fast and on the slow tier."""
        both = []
        self.mirror()
        for tier in (self.fast, self.slow):
            paths = self.layout.paths(tier) if tier.is_dir() else []
            # In the order of steps; a second copy of a name is called NAME.2.
            paths = sorted(paths, key=lambda path: [int(one) for one in _NUMBER.findall(path.name)])
            paths = paths[-MOST_LOADED:]
            both.append(max(self.look(f"{name}-{tier.name}", paths).values(), default=0))
        return both[0], both[1]

    def mirror(self) -> None:
        """Copy the slow tier to `slow`, if the tier is no folder."""
        if self.is_remote:
            answered(lambda: mirrored(self.slow_url, self.slow), self.folder, "mirror")

    @property
    def is_remote(self) -> bool:
        return "://" in self.slow_url

    def deadly(self, number: int) -> Callable[[], None]:
        """SIGKILL of the drain at a numbered change of a tier; 0: none."""
        if not number:
            return unspoilt
        return dies_at_request(1 + number // 4) if self.is_remote else dies_at(number)

    def _path_of(self, where: str) -> str:
        """Return the path from which a framework can load a checkpoint."""
        return where.replace(self.slow_url, os.fspath(self.slow), 1)

    def recovered(self, settings: DrainSettings, is_fetched: bool) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            choice, failed = recover(self.fast, self.slow_url, settings, level="full")
            tiers = [find(open_store(tier)) for tier in (self.fast, self.slow_url)]
            every = compared([one for found in tiers for one in found])
            newest = {one.where for found in tiers for one in newest_first(found)[:MOST_LOADED]}
            every = [one for one in every if one.where in newest]
            whole = [one for one in every if not one.problem and verify(one, "full").is_whole]
            path, fetched = self._path_of(choice.where), ""
            one = choice.checkpoint
            if is_fetched and one is not None and one.store.url != os.fspath(self.fast):
                fetched = os.fspath(fetch(one, self.fast))
            return {
                "path": path, "step": choice.step,
                "state": choice.state, "rejected": choice.rejected, "failed": failed,
                "whole": [self._path_of(one.where) for one in whole],
                "fetched": fetched,
            }  # fmt: skip

        return answered(work, self.folder, "recover")

    def judge(
        self, least: int, settings: DrainSettings, is_fetched: bool = False
    ) -> dict[str, Any]:
        """Recover, and load the named checkpoint and all checkpoints called whole."""
        said = self.recovered(settings, is_fetched)
        self.mirror()
        named = [said["path"], said["fetched"]]
        paths = [Path(path) for path in dict.fromkeys([*named, *said["whole"]]) if path]
        loaded = self.look("loaded", paths)
        found = loaded.get(said["path"], 0)
        told = f"recover named {said['path']}, {found}; rejected {said['rejected']}"
        told = f"{told}; failed {said['failed']}"
        if not said["path"]:
            raise Wrong(f"{least} is whole somewhere, and nothing is named: {told}")
        if not found:
            raise Wrong(f"what is named does not load as one save: {told}")
        if found < least:
            raise Wrong(f"{least} was whole, and an older one is named: {told}")
        false = [path for path in said["whole"] if not loaded[path]]
        if false:
            raise Wrong(f"called whole, and does not load as one save: {false}; {told}")
        if said["fetched"] and loaded[said["fetched"]] != found:
            raise Wrong(f"fetched another one: {said['fetched']}; {told}")
        said["found"] = found
        return said

    # The order of events in a round.

    def run(self) -> None:
        self.fast.mkdir(parents=True)
        self.slow.mkdir()
        with FAULTS[self.fault].tiers(self):
            try:
                self._start()
                FAULTS[self.fault].strike(self)
                self._after()
            finally:
                for name in [name for name in self.pids if name != "s3"]:
                    self.kill(name)

    def _start(self) -> None:
        """Make a first save on both tiers, and sometimes a second save on the fast tier."""
        self.saves(1)
        begun_s = self.words()[0][3]
        self.facts["save_s"] = self.words()[1][3] - begun_s
        keep = Keep(fast=1, last=None, foreign=True)

        def drained() -> list[str]:
            one = DrainSettings(settle_s=0, tries=1, keep=keep)
            with Drainer(self.fast, self.slow_url, one) as working:
                return working.once()

        if failed := answered(drained, self.folder, "first"):
            raise Wrong(f"the first drain: {failed}")
        self.hear()
        self.least = self.number
        if self.chance.random() < 0.4 and not self.layout.is_in_place:
            self.saves(1)
            self.hear()

    def settings(self) -> DrainSettings:
        keep = None
        if self.chance.random() < 0.85:
            last = self.chance.choice((None, 1, 2, 3))
            keep = Keep(fast=self.chance.choice((0, 1, 1, 2)), last=last, foreign=True)
        limit_bps = self.chance.choice((None, None, 2e6, 6e6))
        self.facts["keep"] = f"{keep}, {limit_bps}"
        return DrainSettings(limit_bps, keep=keep)

    def gap_s(self) -> float:
        return 1.5 if self.layout.is_in_place else self.chance.choice(GAPS_S)

    def wait_in_save(self) -> None:
        """Wait for a moment in or near a save, by chance the first, second, third or fourth."""
        known = len(self.words())
        wanted = self.chance.choice((1, 1, 2, 3, 4))
        share = self.chance.random() * 1.15
        until_s = time.monotonic() + 20
        while True:
            began = [at for word, _, _, at in self.words()[known:] if word == "began"]
            if len(began) >= wanted:
                break
            if time.monotonic() > until_s or self.ends("program", 0) is not None:
                return
            time.sleep(0.004)
        time.sleep(max(0.0, began[wanted - 1] + share * self.facts["save_s"] - time.monotonic()))

    def _after(self) -> None:
        newest = self.hear()
        on_fast, on_slow = self.newest("found")
        self.facts |= {"ended": newest, "on_fast": on_fast, "on_slow": on_slow}
        words = self.words()
        self.facts["is_in_save"] = bool(words) and words[-1][0] == "began"
        least = max(newest, self.least)
        if max(on_fast, on_slow) < least:
            raise Wrong(f"{least} was ended, and is on no tier: {self.facts}")
        least = max(on_slow, min(least, max(on_fast, on_slow)))
        if FAULTS[self.fault].is_lost:
            shutil.rmtree(self.fast)
            self.fast.mkdir()
            least = max(on_slow, self.facts.get("promised", 0))
        is_fetched = self.chance.random() < 0.5
        said = self.judge(least, DrainSettings(), is_fetched)
        self.facts |= {"found": said["found"], "left": said["failed"]}
        self._again(said)

    def _again(self, said: dict[str, Any]) -> None:
        """Save once more from there, as the next job would: the new save is then the newest."""
        if self.layout.is_in_place:
            time.sleep(GAP_IN_PLACE_S)
        self.step = said["step"] if said["step"] is not None else self.step
        self.saves(1)
        self.hear()
        said = self.judge(self.number, SETTLED)
        left = [path for tier in (self.fast, self.slow) for path in _leftovers(tier)]
        if left:
            raise Wrong(f"left over: {left}")


def _has_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _leftovers(tier: Path) -> list[str]:
    trash = [*(tier / ".penstock" / "trash").glob("*")]
    parts = [path for path in tier.rglob("*") if path.name.endswith((".part", ".half"))]
    return [os.fspath(path) for path in trash + parts]


# --- faults ---------------------------------------------------------------------------------------


@contextmanager
def _plain_tiers(one: Round) -> Iterator[None]:
    yield


@contextmanager
def _small(tier: str, one: Round) -> Iterator[None]:
    """Mount a separate file system as the tier, so that a fault can change the size."""
    at = one.folder / tier
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ENOUGH}", "none", at], check=True)
    try:
        yield
    finally:
        for name in list(one.pids):
            one.kill(name)
        subprocess.run(["umount", "-l", at], check=True)


def _sized(at: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", at], check=True)


def _filled(at: Path, save_bytes: int, chance: random.Random) -> None:
    """Leave room for a part of the next saves."""
    there = os.statvfs(at)
    used = (there.f_blocks - there.f_bfree) * there.f_frsize
    _sized(at, str(used + int(save_bytes * (0.2 + 2.2 * chance.random()))))


def _save_bytes(one: Round) -> int:
    files = [path for path in one.slow.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if "penstock" not in path.name)


def _program(one: Round) -> None:
    one.program(1000, one.gap_s())
    one.drain(one.settings(), one.chance.choice((3.0, 15.0)), unspoilt)
    _until(one, one.chance.random() < 0.7)
    one.kill("program")
    one.over.touch()
    if one.ends("drain", 40) is None:
        one.facts["drain"] = "had to be killed"
        one.kill("drain")


def _until(one: Round, is_in_save: bool) -> None:
    if is_in_save:
        one.wait_in_save()
    else:
        time.sleep(one.chance.random() * 6)


def _drain(one: Round) -> None:
    one.program(1000, one.gap_s())
    at = one.chance.random() < 0.7 and one.chance.choice((12, 40, 90, 200, 400))
    number = one.chance.randrange(1, at) if at else 0
    one.drain(one.settings(), 3.0, one.deadly(number))
    one.facts["dies_at"] = number
    if number:
        one.facts["died"] = one.ends("drain", 9) == signal.SIGKILL
    else:
        time.sleep(one.chance.random() * 7)
    one.kill("drain")
    time.sleep(one.chance.choice((0.0, 0.0, 0.5, 1.0)))
    one.stop.touch()
    status = one.ends("program", 60)
    if status:
        raise Wrong(f"the program: status {status}: {one.log.read_text()[-1500:]}")


def _both(one: Round) -> None:
    one.program(1000, one.gap_s())
    is_counted = one.chance.random() < 0.5
    number = one.chance.randrange(1, one.chance.choice((40, 120, 300))) if is_counted else 0
    one.drain(one.settings(), 3.0, one.deadly(number))
    one.facts["dies_at"] = number
    if number:
        one.facts["died"] = one.ends("drain", one.chance.random() * 9) == signal.SIGKILL
    if one.chance.random() < 0.7:
        one.wait_in_save()
    else:
        time.sleep(one.chance.random() * 4)
    names = ["program", "drain"]
    one.chance.shuffle(names)
    for name in names:
        one.kill(name)
        time.sleep(one.chance.random() * 0.05)


def _lost(one: Round) -> None:
    _both(one)


def _full_fast(one: Round) -> None:
    save_bytes = _save_bytes(one)
    _filled(one.fast, save_bytes, one.chance)
    one.program(1000, one.gap_s())
    one.drain(one.settings(), 3.0, unspoilt)
    status = one.ends("program", 3 + one.chance.random() * 6)
    one.facts["program"] = status
    if one.chance.random() < 0.5:
        one.kill("drain")
    one.kill("program")
    one.over.touch()
    one.ends("drain", 20)
    one.kill("drain")
    if one.chance.random() < 0.5:  # else `recover` meets a full tier
        _sized(one.fast, ENOUGH)
    else:
        one.facts["is_full"] = True
        said = one.judge(max(one.hear(), one.least), DrainSettings(tries=1))
        one.least = max(one.least, said["found"])
        _sized(one.fast, ENOUGH)


def _some_killed(one: Round) -> None:
    """Kill the program, the drain or both; the other one ends by itself."""
    for name in one.chance.choice((("program",), ("drain",), ("program", "drain"))):
        one.kill(name)
    one.stop.touch()
    one.ends("program", 60)
    one.over.touch()
    one.ends("drain", 15)
    one.kill("drain")
    one.kill("program")


def _full_slow(one: Round) -> None:
    _filled(one.slow, _save_bytes(one), one.chance)
    one.program(1000, one.gap_s())
    one.drain(one.settings(), 3.0, unspoilt)
    time.sleep(3 + one.chance.random() * 4)
    if one.chance.random() < 0.5:
        one.wait_in_save()
    _some_killed(one)
    said = one.judge(max(one.hear(), one.least), DrainSettings(tries=1))
    one.facts["while full"] = said["failed"]
    one.least = max(one.least, said["found"])
    _sized(one.slow, ENOUGH)


def _faulty(one: Round) -> None:
    share = one.chance.choice((0.01, 0.03, 0.1, 0.4))
    one.facts["share"] = share
    one.program(1000, one.gap_s())
    one.drain(one.settings(), 3.0, fails_on(one.slow, one.chance.randrange(1 << 30), share))
    time.sleep(2 + one.chance.random() * 5)
    if one.chance.random() < 0.3:  # unmounted for a while
        away = one.folder / "away"
        one.slow.rename(away)
        if one.chance.random() < 0.5:
            one.slow.mkdir()  # an empty mount point
        time.sleep(one.chance.random() * 3)
        if one.slow.is_dir():
            shutil.rmtree(one.slow)
        away.rename(one.slow)
    if one.chance.random() < 0.6:
        one.wait_in_save()
    _some_killed(one)


@dataclass(frozen=True, slots=True)
class Fault:
    strike: Callable[[Round], None]
    tiers: Callable[[Round], Any] = _plain_tiers
    is_lost: bool = False
    needs_root: bool = False


FAULTS = {
    "program killed": Fault(_program),
    "drain killed": Fault(_drain),
    "both killed": Fault(_both),
    "fast tier lost": Fault(_lost, is_lost=True),
    "fast tier full": Fault(_full_fast, lambda one: _small("fast", one), needs_root=True),
    "slow tier full": Fault(_full_slow, lambda one: _small("slow", one), needs_root=True),
    "slow tier with faults": Fault(_faulty),
    "S3, drain killed": Fault(_drain, s3_tier),
    "S3, both killed": Fault(_both, s3_tier),
    "S3, fast tier lost": Fault(_lost, s3_tier, is_lost=True),
}


# --- many rounds ----------------------------------------------------------------------------------


def pair_of(seed: int, layouts: Sequence[str], faults: Sequence[str]) -> tuple[str, str]:
    """A seed stands for a pair, too: --seed alone repeats a round."""
    place = seed % (len(layouts) * len(faults))
    return layouts[place // len(faults)], faults[place % len(faults)]


def done(
    layout: str, fault: str, seed: int, folder: Path, *, is_kept: bool = True
) -> dict[str, Any]:
    """Run a round in this process.  The folder of a failed round stays."""

    def over(*_: object) -> None:
        raise Wrong(f"the round took more than {MOST_ROUND_S} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(MOST_ROUND_S)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun_s, why = time.monotonic(), ""
    one = Round(LAYOUTS[layout], fault, seed, folder)
    try:
        one.run()
    except (Wrong, PenstockError, OSError, subprocess.CalledProcessError) as error:
        why = f"{type(error).__name__}: {error}" if not isinstance(error, Wrong) else str(error)
    except Exception:
        why = traceback.format_exc()[-1500:]
    signal.alarm(0)
    if not why or not is_kept:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "layout": layout, "fault": fault, "seed": seed, "why": why,
        "wall_s": round(time.monotonic() - begun_s, 2), "cpu_s": _cpu_s(),
        "folder": os.fspath(folder) if why else "",
        "facts": one.facts, "code": code_of("units"),
    }  # fmt: skip


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    whose = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(one) for one in whose]
    return round(sum(one.ru_utime + one.ru_stime for one in used), 2)


def import_ahead(rounds: Sequence[tuple[str, str, int]], folder: Path) -> None:
    """Import the modules that rounds would import later, each round anew: of a save and a load by
    each layout, and of a drain to S3.  The saves, the loads and the drain run in children."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in dict.fromkeys(layout for layout, _, _ in rounds):
        layout = LAYOUTS[name]
        _import(answered(lambda layout=layout: _modules_of(layout, folder), folder, "modules"))
    if any(s3_tier is FAULTS[fault].tiers for _, fault, _ in rounds):
        _import(answered(lambda: s3_modules(folder), folder, "modules"))
    shutil.rmtree(folder)
    gc.freeze()  # a collection in a child would copy all pages


def _modules_of(layout: Layout, folder: Path) -> list[str]:
    """Return the modules of this process after a save, as rank 0, and a load."""
    tier, store = folder / "tier", folder / "store"
    shutil.rmtree(tier, ignore_errors=True)
    store.unlink(missing_ok=True)
    tier.mkdir()

    def saved(rank: int) -> None:
        os.environ |= {"SOAK_RANK": str(rank), "SOAK_STORE": os.fspath(store)}
        layout.opened()(tier, 1, 1, lambda: None)

    ranks = range(1, layout.n_ranks)
    pids = [forked(lambda rank=rank: saved(rank), folder / "rank.log") for rank in ranks]
    saved(0)
    for pid in pids:
        os.waitpid(pid, 0)
    layout.load(layout.paths(tier)[0])
    return sorted(sys.modules)


def _import(names: Sequence[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # some names are of no file
                importlib.import_module(name)


def _family(
    family: str, rounds: Sequence[tuple[str, str, int]], folder: Path, results: Path, tokens: int
) -> None:
    """Import a family's frameworks once, and fork a process for each round."""
    if why := ready(family, [LAYOUTS[layout] for layout, _, _ in rounds]):
        raise SystemExit(f"{family}: {why}")
    import_ahead(rounds, folder / family.replace(" ", "-"))
    read, write = tokens >> 16, tokens & 0xFFFF
    for layout, fault, seed in rounds:
        os.read(read, 1)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork():
            continue
        try:
            die_with_parent()
            found = done(layout, fault, seed, folder / str(seed))
            line = json.dumps(found) + "\n"
            number = os.open(results, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(number, line.encode())
        finally:
            os.write(write, b"x")
            os._exit(0)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def soaked(
    rounds: Sequence[tuple[str, str, int]], folder: Path, results: Path, at_once: int
) -> list[dict[str, Any]]:
    """Run the rounds, some side by side; return the result of each round."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("")
    pids = []
    for family in FAMILIES:
        own = [one for one in rounds if LAYOUTS[one[0]].family == family]
        if own:
            # A share of the places: the first family that is ready does not take all places.
            read, write = os.pipe()
            os.write(write, b"x" * max(1, round(at_once * len(own) / len(rounds))))
            tokens = read << 16 | write
            work = lambda family=family, own=own, tokens=tokens: _family(  # noqa: E731
                family, own, folder, results, tokens
            )
            pids.append(forked(work, folder / f"{family}.log"))
    seen, n_failed = 0, 0
    while pids:
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        time.sleep(0.5)
        lines = results.read_text().splitlines()
        for line in lines[seen:]:
            found = json.loads(line)
            n_failed += bool(found["why"])
            if found["why"]:
                print(f"FAILED --seed {found['seed']}: {found['layout']}, {found['fault']}: "
                      f"{found['why'][:1200]} [{found['folder']}]", flush=True)  # fmt: skip
        if len(lines) // 50 > seen // 50:
            print(f"{len(lines)} of {len(rounds)} rounds, {n_failed} failed", flush=True)
        seen = len(lines)
    return [json.loads(line) for line in results.read_text().splitlines()]


def recorded(found: Sequence[dict[str, Any]], first: int) -> None:
    """Add rounds to docs/save-soak.json, a row per layout."""
    for code in dict.fromkeys(one["code"] for one in found):
        for layout in LAYOUTS:
            own = [one for one in found if one["layout"] == layout and one["code"] == code]
            counts: dict[str, int] = {"rounds": len(own)} if own else {}
            for one in own:
                counts[one["fault"]] = counts.get(one["fault"], 0) + 1
            failed = [one for one in own if one["why"]]
            counts |= {FAILED: len(failed)} if failed else {}
            why = "; ".join(f"seed {one['seed']}, {one['fault']}" for one in failed)
            if own:
                record("units", first, {layout: counts}, why, code)


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("rounds", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, help="the first of the seeds")
    parser.add_argument("--layout", default="")
    parser.add_argument("--fault", default="")
    parser.add_argument(
        "--without", metavar="FAULT", help="leaves out faults with this in the name"
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument(
        "--from",
        dest="kept",
        type=Path,
        metavar="FILE",
        help="records rounds that --json has written, and runs none",
    )
    given = parser.parse_args()
    if given.kept:
        lines = [json.loads(line) for line in given.kept.read_text().splitlines()]
        recorded(lines, min(one["seed"] for one in lines))
        return
    folder = given.folder or scratch("soak-units")
    folder.mkdir(parents=True, exist_ok=True)
    names, faults = list(LAYOUTS), list(FAULTS)
    first = given.first if given.first is not None else time.time_ns() % 1_000_000
    most = (given.rounds + 1) * len(names) * len(faults)
    seeds = [given.seed] if given.seed is not None else range(first, first + most)
    rounds = []
    for seed in seeds:
        layout, fault = pair_of(seed, names, faults)
        is_wanted = given.layout.lower() in layout.lower() and given.fault in fault
        is_wanted = is_wanted and not (given.without and given.without in fault)
        if is_wanted and not (FAULTS[fault].needs_root and os.geteuid()):
            rounds.append((layout, fault, seed))
        if len(rounds) == given.rounds:
            break
    if given.seed is None:
        random.Random(first).shuffle(rounds)
        print(f"{len(rounds)} rounds, from seed {first}", flush=True)
    results = given.json or folder / "rounds.json"
    found = soaked(rounds, folder, results, given.at_once)
    failed = [one for one in found if one["why"]]
    spent_s = sum(one["wall_s"] for one in found)
    print(f"units: {len(found)} of {len(rounds)} rounds, {len(failed)} failed, {spent_s:.0f} s")
    if given.record:
        recorded(found, first)
    if len(failed) or len(found) < len(rounds):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
