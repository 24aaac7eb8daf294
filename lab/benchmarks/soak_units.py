"""Kill programs of many frameworks and their drain, fill, lose and disturb tiers; then load.

    python lab/benchmarks/soak_units.py [ROUNDS]                 default: 2,000, over all pairs
    python lab/benchmarks/soak_units.py --seed SEED              repeat the round with this seed
        --layout NAME, --fault NAME, --without FAULT         select by a part of the name
        --family NAME                                        the layouts of one import
        --burst                                              rounds under --burst-buffer instead
        --folder FOLDER                                      folder for the tiers
        --at-once N                                          parallel rounds; default: 8
        --hours HOURS                                        no round begins later
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
import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bars import scratch
from soak_bursts import WITHOUT
from soak_children import (
    GAP_IN_PLACE_S,
    SPENT,
    Wrong,
    answered,
    dies_at,
    draining,
    ended,
    forked,
    unspoilt,
)
from soak_faults import BURSTS, FAULTS
from soak_forks import Child, address_of, import_all, serving
from soak_layouts import FAMILIES, LAYOUTS, Layout
from soak_record import FAILED, code_of, record
from soak_s3 import dies_at_request, mirrored, s3_modules, s3_tier

from penstock.errors import PenstockError
from penstock.places.stores import open_store
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import fetch, recover
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import compared, find
from penstock.save.unit.order import newest_first
from penstock.save.verify import verify

__all__ = ["FAULTS", "done", "main"]

MOST_ROUND_S = 1800  # on a machine with other load
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
    parent: int  # the process that has started the families
    chance: random.Random = field(init=False)
    number: int = 0
    step: int = 0
    least: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    far: dict[str, Child] = field(default_factory=dict)  # of the family's process
    seen: dict[tuple[str, tuple[Any, ...]], int] = field(default_factory=dict)
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
        over = [number for word, _, number, _ in words if word == "ended"]
        if not over or (self.layout.is_in_place and over[-1] != self.number):
            return 0
        return over[-1]

    # Processes.

    def program(self, n_saves: int, gap_s: float, tier: Path | None = None) -> None:
        self.stop.unlink(missing_ok=True)
        begin, seed = (self.step + 1, self.number + 1), self.chance.randrange(1 << 30)
        job = {
            "tier": os.fspath(tier or self.fast), "said": os.fspath(self.said), "begin": begin,
            "seed": seed, "n_saves": n_saves, "gap_s": gap_s, "stop": os.fspath(self.stop),
        }  # fmt: skip
        self.far["program"] = Child(self.address, "program", self.layout.name, self.log, job)

    @property
    def address(self) -> str:
        return address_of(self.layout.family, self.parent)

    def drain(self, settings: DrainSettings, grace_s: float, spoil: Callable[[], None]) -> None:
        self.over.unlink(missing_ok=True)
        tiers = self.fast, self.slow_url
        self.pids["drain"] = forked(
            lambda: draining(tiers, settings, self.over, grace_s, spoil), self.log
        )

    def kill(self, name: str) -> None:
        if name in self.far:
            # The ranks are children of the program, and end with the program's process group.
            self.far.pop(name).killed(_has_group)
            return
        pid = self.pids.pop(name, 0)
        if not pid:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        ended(pid, name)

    def ends(self, name: str, within_s: float) -> int | None:
        """Wait for the process's end.  Return the wait status; None: still alive."""
        if name in self.far:
            status = self.far[name].ends(within_s)
            if status is not None:
                del self.far[name]
            return status
        pid = self.pids.get(name)
        if pid is None:
            return None
        until_s = time.monotonic() + within_s
        while True:
            status = ended(pid, name, os.WNOHANG)
            if status is not None:
                del self.pids[name]
                return status
            if time.monotonic() > until_s:
                return None
            time.sleep(0.01)

    def saves(self, n: int, tier: Path | None = None) -> None:
        """Run the program for n saves, until the program ends."""
        self.program(n, 0.05, tier)
        status = self.ends("program", 300)
        if status != 0:
            self.kill("program")
            raise Wrong(f"the program: status {status}: {self.log.read_text()[-1500:]}")

    # Checkpoints on the tiers.

    def look(self, paths: Sequence[Path]) -> dict[str, int]:
        """Return the number of the save at each path, loaded by the framework; 0: not whole.

        A path without a change since the last load is not loaded again.
        """
        states = {os.fspath(path): _state_of(path) for path in paths}
        new = [path for path, state in states.items() if (path, state) not in self.seen]
        if new and "loader" not in self.far:
            log = self.folder / "loader.log"
            self.far["loader"] = Child(self.address, "loader", self.layout.name, log)
        loaded = self.far["loader"].asked(new) if new else {}
        self.seen |= {(path, states[path]): number for path, number in loaded.items()}
        self.facts["loaded"] = self.facts.get("loaded", 0) + len(new)
        return {path: self.seen[path, state] for path, state in states.items()}

    def newest(self) -> tuple[int, int]:
        """Return the newest whole save on the fast and on the slow tier."""
        both = []
        self.mirror()
        for tier in (self.fast, self.slow):
            paths = self.layout.paths(tier) if tier.is_dir() else []
            # In the order of steps; a second copy of a name is called NAME.2.
            paths = sorted(
                paths, key=lambda path: [int(digits) for digits in _NUMBER.findall(path.name)]
            )
            paths = paths[-MOST_LOADED:]
            both.append(max(self.look(paths).values(), default=0))
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
            every = compared([checkpoint for on_tier in tiers for checkpoint in on_tier])
            newest = {
                checkpoint.where
                for on_tier in tiers
                for checkpoint in newest_first(on_tier)[:MOST_LOADED]
            }
            every = [checkpoint for checkpoint in every if checkpoint.where in newest]
            whole = [
                checkpoint
                for checkpoint in every
                if not checkpoint.problem and verify(checkpoint, "full").is_whole
            ]
            path, fetched = self._path_of(choice.where), ""
            chosen = choice.checkpoint
            if is_fetched and chosen is not None and chosen.store.url != os.fspath(self.fast):
                fetched = os.fspath(fetch(chosen, self.fast))
            return {
                "path": path, "step": choice.step,
                "state": choice.state, "rejected": choice.rejected, "failed": failed,
                "whole": [self._path_of(checkpoint.where) for checkpoint in whole],
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
        loaded = self.look(paths)
        named_number = loaded.get(said["path"], 0)
        evidence = f"recover named {said['path']}, {named_number}; rejected {said['rejected']}"
        evidence = f"{evidence}; failed {said['failed']}"
        if not said["path"]:
            raise Wrong(f"{least} is whole somewhere, and nothing is named: {evidence}")
        if not named_number:
            raise Wrong(f"what is named does not load as one save: {evidence}")
        if named_number < least:
            raise Wrong(f"{least} was whole, and an older one is named: {evidence}")
        false = [path for path in said["whole"] if not loaded[path]]
        if false:
            raise Wrong(f"called whole, and does not load as one save: {false}; {evidence}")
        if said["fetched"] and loaded[said["fetched"]] != named_number:
            raise Wrong(f"fetched another one: {said['fetched']}; {evidence}")
        said["found"] = named_number
        return said

    # The order of events in a round.

    def run(self) -> None:
        self.fast.mkdir(parents=True)
        self.slow.mkdir()
        fault = (FAULTS | BURSTS)[self.fault]
        with fault.tiers(self):
            try:
                if fault.is_whole:
                    fault.strike(self)
                else:
                    self._start()
                    fault.strike(self)
                    self._after()
            finally:
                for name in [name for name in (*self.pids, *self.far) if name != "s3"]:
                    self.kill(name)

    def _start(self) -> None:
        """Make a first save on both tiers, and sometimes a second save on the fast tier."""
        self.saves(1)
        begun_s = self.words()[0][3]
        self.facts["save_s"] = self.words()[1][3] - begun_s
        keep = Keep(fast=1, last=None, foreign=True)

        def drained() -> list[str]:
            drain_settings = DrainSettings(settle_s=0, tries=1, keep=keep)
            with Drainer(self.fast, self.slow_url, drain_settings) as working:
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
        n_words = len(self.words())
        wanted = self.chance.choice((1, 1, 2, 3, 4))
        share = self.chance.random() * 1.15
        until_s = time.monotonic() + 20
        while True:
            began = [at for word, _, _, at in self.words()[n_words:] if word == "began"]
            if len(began) >= wanted:
                break
            if time.monotonic() > until_s or self.ends("program", 0) is not None:
                return
            time.sleep(0.004)
        time.sleep(max(0.0, began[wanted - 1] + share * self.facts["save_s"] - time.monotonic()))

    def _after(self) -> None:
        newest = self.hear()
        on_fast, on_slow = self.newest()
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


def _state_of(path: Path) -> tuple[Any, ...]:
    """Return the state of all files of a checkpoint: below a folder, or beside a file."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob("[!.]*")
    rows = []
    for file in sorted(files):
        with suppress(FileNotFoundError):
            status = file.stat()
            if not stat.S_ISDIR(status.st_mode):
                rows.append(
                    (
                        file.name,
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
                )
    return tuple(rows)


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


# --- many rounds ----------------------------------------------------------------------------------


def pair_of(seed: int, layouts: Sequence[str], faults: Sequence[str]) -> tuple[str, str]:
    """A seed stands for a pair, too: --seed alone repeats a round."""
    place = seed % (len(layouts) * len(faults))
    return layouts[place // len(faults)], faults[place % len(faults)]


def done(
    layout: str, fault: str, seed: int, folder: Path, code: str, *, parent: int
) -> dict[str, Any]:
    """Run a round in this process.  The folder of a failed round stays.  code: the digest of the
    code under test.  parent: the process that has started the families."""

    def over(*_: object) -> None:
        raise Wrong(f"the round took more than {MOST_ROUND_S} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(MOST_ROUND_S)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun_s, why = time.monotonic(), ""
    round_ = Round(LAYOUTS[layout], fault, seed, folder, parent)
    try:
        round_.run()
    except (Wrong, PenstockError, OSError, subprocess.CalledProcessError) as error:
        why = f"{type(error).__name__}: {error}" if not isinstance(error, Wrong) else str(error)
    except Exception:
        why = traceback.format_exc()[-1500:]
    signal.alarm(0)
    if not why:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "layout": layout, "fault": fault, "seed": seed, "why": why,
        "wall_s": round(time.monotonic() - begun_s, 2), "cpu_s": _cpu_s(),
        "folder": os.fspath(folder) if why else "",
        "spent": SPENT, "facts": round_.facts, "code": code,
    }  # fmt: skip


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of all ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    far = sum(SPENT.get(name, [0.0])[0] for name in ("program", "loader"))
    return round(sum(usage.ru_utime + usage.ru_stime for usage in used) + far, 2)


def import_ahead(faults: Collection[str], folder: Path) -> None:
    """Import the modules that rounds would import later, each round anew: of a drain, a search and
    a recovery.  The work runs in a child."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    import_all(answered(lambda: _modules(folder), folder, "modules"))
    if any(fault in FAULTS and s3_tier is FAULTS[fault].tiers for fault in faults):
        import_all(answered(lambda: s3_modules(folder), folder, "modules"))
    shutil.rmtree(folder)
    SPENT.clear()
    gc.freeze()  # a collection in a child would copy all pages


def _modules(folder: Path) -> list[str]:
    """Return the modules of this process after a drain and a recovery."""
    fast, slow = folder / "fast", folder / "slow"
    fast.mkdir()
    np.savez(fast / "model-1.npz", a=np.zeros(10))
    for _ in range(2):
        with Drainer(fast, slow, SETTLED) as working:
            working.once()
    recover(fast, slow, SETTLED, level="full")
    return sorted(sys.modules)


@dataclass
class Families:
    """The processes of the families, and the rounds that wait for a place.

    A family that is not ready yet, or has no process any more, gets no place.
    """

    rounds: Sequence[tuple[str, str, int]]
    folder: Path
    pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = {family: self._of(family) for family in FAMILIES}
        self.n = {family: len(rounds) for family, rounds in self.waiting.items()}

    def _of(self, family: str) -> list[tuple[str, str, int]]:
        return [round_ for round_ in reversed(self.rounds) if LAYOUTS[round_[0]].family == family]

    def start(self) -> None:
        for family in [family for family in FAMILIES if self.n[family]]:
            layouts = [
                LAYOUTS[name] for name in dict.fromkeys(round_[0] for round_ in self._of(family))
            ]
            self._told(family).unlink(missing_ok=True)
            work = lambda family=family, layouts=layouts: serving(  # noqa: E731
                family, layouts, self.folder, self._told(family)
            )
            self.pids[family] = forked(work, self.folder / f"{family}.log")

    def _told(self, family: str) -> Path:
        return self.folder / f"{family}.ready"

    def next(self) -> tuple[str, str, int] | None:
        """Return a round of the ready family with the largest share of waiting rounds."""
        ready = [family for family in self.pids if self.waiting[family]]
        ready = [family for family in ready if self._told(family).exists()]
        if not ready:
            return None
        return self.waiting[
            max(ready, key=lambda family: len(self.waiting[family]) / self.n[family])
        ].pop()

    def ended(self, pid: int) -> None:
        self.pids = {
            family: family_pid for family, family_pid in self.pids.items() if family_pid != pid
        }

    def is_over(self) -> bool:
        return not any(self.waiting[family] for family in self.pids)

    def stop(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def soaked(
    rounds: Sequence[tuple[str, str, int]],
    folder: Path,
    results: Path,
    at_once: int,
    until_s: float,
) -> list[dict[str, Any]]:
    """Run the rounds, some side by side; return the result of each round.  until_s: no round
    begins later."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("")
    import_ahead({fault for _, fault, _ in rounds}, folder / "ahead")
    code = code_of("burst" if any(fault in BURSTS for _, fault, _ in rounds) else "units")
    families = Families(rounds, folder)
    families.start()
    running: set[int] = set()
    seen, n_failed = 0, 0
    while running or not (families.is_over() or time.monotonic() > until_s):
        while len(running) < at_once and time.monotonic() < until_s and (round_ := families.next()):
            running.add(_forked_round(round_, folder, results, code))
        time.sleep(0.1)
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                running.discard(pid)
                families.ended(pid)
        lines = results.read_text().splitlines()
        for line in lines[seen:]:
            result = json.loads(line)
            n_failed += bool(result["why"])
            if result["why"]:
                print(f"FAILED --seed {result['seed']}: {result['layout']}, {result['fault']}: "
                      f"{result['why'][:1200]} [{result['folder']}]", flush=True)  # fmt: skip
        if len(lines) // 50 > seen // 50:
            print(f"{len(lines)} of {len(rounds)} rounds, {n_failed} failed", flush=True)
        seen = len(lines)
    families.stop()
    return [json.loads(line) for line in results.read_text().splitlines()]


def _forked_round(round_: tuple[str, str, int], folder: Path, results: Path, code: str) -> int:
    layout, fault, seed = round_
    parent = os.getpid()

    def work() -> None:
        result = done(layout, fault, seed, folder / str(seed), code, parent=parent)
        number = os.open(results, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(number, (json.dumps(result) + "\n").encode())

    return forked(work, folder / "rounds.log")


def recorded(results: Sequence[dict[str, Any]], first: int) -> None:
    """Add rounds to docs/save-soak.json: a row per layout, and one of all rounds under a burst
    buffer."""
    for code in dict.fromkeys(result["code"] for result in results):
        now = [result for result in results if result["code"] == code]
        for layout in LAYOUTS:
            own = [
                result for result in now if result["layout"] == layout and result["fault"] in FAULTS
            ]
            _record("units", layout, own, first)
        _record("burst", "programs", [result for result in now if result["fault"] in BURSTS], first)


def _record(name: str, row: str, own: Sequence[dict[str, Any]], first: int) -> None:
    if not own:
        return
    counts: dict[str, int] = {"rounds": len(own)}
    for result in own:
        what = result["fault"].removeprefix("burst, ")
        counts[what] = counts.get(what, 0) + 1
    for result in own if name == "burst" else ():
        counts[result["layout"]] = counts.get(result["layout"], 0) + 1
    failed = [result for result in own if result["why"]]
    counts |= {FAILED: len(failed)} if failed else {}
    why = "; ".join(f"seed {result['seed']}, {result['fault']}" for result in failed)
    record(name, first, {row: counts}, why, own[0]["code"])


def main() -> None:
    given = _arguments()
    if given.kept:
        results = [json.loads(line) for line in given.kept.read_text().splitlines()]
        recorded(results, min(result["seed"] for result in results))
        return
    folder = given.folder or scratch("soak-units")
    folder.mkdir(parents=True, exist_ok=True)
    first = given.first if given.first is not None else time.time_ns() % 1_000_000
    rounds = _wanted_rounds(given, first)
    if given.seed is None:
        random.Random(first).shuffle(rounds)
        print(f"{len(rounds)} rounds, from seed {first}", flush=True)
    until_s = time.monotonic() + given.hours * 3600
    results_file = given.json or folder / "rounds.json"
    results = soaked(rounds, folder, results_file, given.at_once, until_s)
    failed = [result for result in results if result["why"]]
    spent_s = sum(result["wall_s"] for result in results)
    print(f"units: {len(results)} of {len(rounds)} rounds, {len(failed)} failed, {spent_s:.0f} s")
    if given.record:
        recorded(results, first)
    if len(failed) or len(results) < len(rounds):
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("rounds", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, help="the first of the seeds")
    parser.add_argument("--layout", default="")
    parser.add_argument("--family", choices=list(FAMILIES), help="the layouts of one import")
    parser.add_argument("--fault", default="")
    parser.add_argument(
        "--without", metavar="FAULT", help="leaves out faults with this in the name"
    )
    parser.add_argument("--burst", action="store_true", help="programs under --burst-buffer")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--hours", type=float, default=1000.0, help="no round begins later")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument(
        "--from",
        dest="kept",
        type=Path,
        metavar="FILE",
        help="records rounds that --json has written, and runs none",
    )
    return parser.parse_args()


def _wanted_rounds(given: argparse.Namespace, first: int) -> list[tuple[str, str, int]]:
    """Return as many rounds as asked for, each a layout, a fault and a seed.  first: the first of
    the seeds."""
    names, faults = list(LAYOUTS), list(FAULTS)
    if given.burst:
        names, faults = [name for name in names if name not in WITHOUT], list(BURSTS)
    most = (given.rounds + 1) * len(names) * len(faults)
    rounds: list[tuple[str, str, int]] = []
    for seed in [given.seed] if given.seed is not None else range(first, first + most):
        layout, fault = pair_of(seed, names, faults)
        if _is_wanted(given, layout, fault):
            rounds.append((layout, fault, seed))
        if len(rounds) == given.rounds:
            break
    return rounds


def _is_wanted(given: argparse.Namespace, layout: str, fault: str) -> bool:
    """Tell whether the arguments select a pair, and this user may run the pair."""
    if given.layout.lower() not in layout.lower() or given.fault not in fault:
        return False
    if given.without and given.without in fault:
        return False
    if given.family not in (None, LAYOUTS[layout].family):
        return False
    return not ((FAULTS | BURSTS)[fault].needs_root and os.geteuid())


if __name__ == "__main__":
    main()
