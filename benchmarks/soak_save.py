"""What ends a save, a drain, a prune or a recovery, a thousand times; cut power; damaged bytes.

    python benchmarks/soak_save.py kills [ROUNDS]      SIGKILL at random moments; 1,000 unless told,
                                                       a third of them beside another program
    python benchmarks/soak_save.py burst [ROUNDS]      the same of programs under --burst-buffer, of
                                                       their drain and of `penstock run`; 1,000
    python benchmarks/soak_save.py power [ROUNDS]      a loop device copied 0 to 33 s after the
                                                       commit; ext4 and xfs, 36 each; needs root
    python benchmarks/soak_save.py damage [ROUNDS]     flips, zeros, cuts at level full; 1,000
    python benchmarks/soak_save.py full [ROUNDS]       a tier with room for a part of the next
                                                       checkpoint; 200 on each of three file systems
    python benchmarks/soak_save.py gone [SECONDS]      the slow tier is away; 3,600 unless told
    python benchmarks/soak_save.py                     all of them

A third word after power and full names one file system, after kills it is `own` or `foreign`.  The
first difference ends the soak with the folder that shows it.  SEED repeats the choices.
--record adds what was done to docs/save-soak.json, of which a table in docs/save.md is made;
several pieces add up as long as the code of saving stays the same.  A soak that failed is recorded
too, and stays on record for that code.  `code` prints the digests of the code as it is now.
"""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from bars import PENSTOCK, ROOT, machine, scratch
from safetensors.numpy import load_file

from penstock.cli.save import _fetched
from penstock.errors import PenstockError
from penstock.save.checkpointer import Checkpointer
from penstock.save.commit import STATE, begin, commit
from penstock.save.drain import Drain, Drainer, recover
from penstock.save.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE
from penstock.save.retention import Keep, prune
from penstock.save.verify import latest_valid, verify
from penstock.save.working import Settings, read_status
from penstock.stores import LocalStore

sys.path.insert(0, str(ROOT / "tests"))
from burstkills import SIZE, Saves

__all__ = ["burst", "damage", "full", "gone", "kills", "page_of", "power"]

RESULTS = ROOT / "docs" / "save-soak.json"
PAGE = ROOT / "docs" / "save.md"
TABLE_BEGINS, TABLE_ENDS = "<!-- soak -->\n", "<!-- /soak -->\n"

# A file that a Checkpointer restores from, and that safetensors reads: one array full of the step.
N_NUMBERS = (2 * CHUNK_BYTES + 12_352) // 8
_TEXT = json.dumps(
    {"x": {"dtype": "F64", "shape": [N_NUMBERS], "data_offsets": [0, 8 * N_NUMBERS]}}
).encode()
HEAD = len(_TEXT).to_bytes(8, "little") + _TEXT
SIZE_BYTES = len(HEAD) + 8 * N_NUMBERS
KEPT = 3
ENDED_WITHIN_S = 90.0  # a writer or a drain whose training was killed
POWER_S = 33.0  # past what ext4 and xfs keep back: 5 s and 30 s
POWER_AT_ONCE = 6

# Each prints what it promises, before it can be killed for the next thing.
PROGRAM = """
    import os, signal, sys, threading, time
    from penstock.save import drain, retention
    from penstock.save.commit import begin, commit, sweep
    from penstock.save.working import Settings
    import struct
    from penstock.stores import LocalStore
    fast, slow, what, delay, step = sys.argv[1:6]
    def die():
        time.sleep(float(delay))
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, b"ready\\n")
    threading.Thread(target=die, daemon=True).start()
    keep = retention.Keep(fast=1, last=3)
    settings = Settings(settle_s=0, tries=1, keep=keep)
    while True:
        if what == "save":
            part = begin(fast, int(step))
            data = {head} + struct.pack("<d", int(step)) * {n}
            part.write("state.safetensors", [data])
            part.write("state.json", [b"{}"])
            commit(part)
            os.write(1, b"durable %d\\n" % int(step))
            step = int(step) + 1
            if step % 4 == 0:
                time.sleep(9)
        elif what == "prune":
            retention.prune(LocalStore(fast), LocalStore(slow), keep)
        elif what == "recover":
            drain.recover(fast, slow, settings)
        else:
            with drain.Drainer(fast, slow, settings) as working:
                working.once()
""".replace("{head}", repr(HEAD)).replace("{n}", str(N_NUMBERS))

# A training: its Checkpointer has a writer and a drain, each a process of its own.  One of the
# three, or all of them, are killed.
TRAINING = """
    import os, random, signal, sys, threading, time
    import numpy as np
    from penstock.save.checkpointer import Checkpointer, Keep
    fast, slow, seed, delay, newest = sys.argv[1:6]
    keep = Keep(fast=1, last=3)
    ckpt = Checkpointer(fast, slow, keep=keep, on_error="warn")
    state = {"x": np.zeros({n})}
    step = ckpt.restore(state, default=0)
    if step < int(newest) or (state["x"] != step).any():
        os.write(1, b"wrong %d\\n" % step)
    everybody = [os.getpid(), ckpt._writer.pid, ckpt._drain._process.pid]
    chance = random.Random(int(seed))
    def die():
        time.sleep(float(delay))
        for pid in everybody if chance.random() < 0.4 else [chance.choice(everybody)]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(chance.random() / 4)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=die, daemon=True).start()
    while True:
        step += 1
        state["x"][:] = step
        try:
            handle = ckpt.save(step, state)
            handle.local.result()
            os.write(1, b"durable %d\\n" % step)
        except Exception:
            continue  # its writer was killed
""".replace("{n}", str(N_NUMBERS))


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--record"]
    is_recorded = "--record" in sys.argv
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    wanted = words[0] if words else "all"
    if wanted == "code":
        print(f"burst {_code('burst')}, the others {_code('kills')}")
        return
    if wanted not in ("all", *SOAKS):
        raise SystemExit(f"{wanted}: no such soak; there are: {', '.join(SOAKS)}")
    for name, (soak, usual) in SOAKS.items():
        if wanted in ("all", name):
            chance = random.Random(seed)
            try:
                found = soak(chance, int(words[1]) if len(words) > 1 else usual)
            except (SystemExit, AssertionError, PenstockError) as ended:
                if is_recorded:
                    _record(name, seed, {"": {FAILED: 1}}, str(ended).replace(f"{ROOT}/", ""))
                raise
            if is_recorded:
                _record(name, seed, found)


# --- what was done --------------------------------------------------------------------------------


def _record(name: str, seed: int, found: dict[str, dict[str, Any]], failure: str = "") -> None:
    """Adds what a soak did to what stands there of the same code, and writes the page's table."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    code = _code(name)
    for row, counted in found.items():
        before = kept.get(f"{name} {row}".strip(), {})
        if before.get("code") != code:
            before = {"counts": {}, "seeds": []}
        counts = dict(before["counts"])
        for key, value in counted.items():
            counts[key] = max(counts.get(key, 0), value) if key.startswith("most ") else (
                counts.get(key, 0) + value
            )  # fmt: skip
        why = {"failure": failure or before.get("failure", "")}
        kept[f"{name} {row}".strip()] = (why if any(why.values()) else {}) | {
            "counts": counts, "seeds": [*before["seeds"], seed], "code": code,
            "day": str(datetime.now(UTC).date()), "machine": machine().partition(", load")[0],
        }  # fmt: skip
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page_of(PAGE.read_text(), kept))


def _code(soak: str) -> str:
    """Of everything that a checkpoint's life depends on in that soak: what serves programs under
    --burst-buffer imports the rest, and nothing of the rest imports it."""
    package = ROOT / "src" / "penstock"
    files = [*sorted((package / "save").glob("*.py")), package / "stores.py", package / "tiers.py"]
    if soak == "burst":
        files += [ROOT / "native" / "burst.c", ROOT / "native" / "hook_open.h"]
    else:
        files.remove(package / "save" / "burst.py")
    files.remove(package / "save" / "lost.py")  # it knows no file: what a save has cost
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def page_of(page: str, kept: dict[str, dict[str, Any]]) -> str:
    """docs/save.md with the table of what the soaks did."""
    head, _, rest = page.partition(TABLE_BEGINS)
    _, _, tail = rest.partition(TABLE_ENDS)
    rows = [
        "| soak | done | what was done | failed | code | day |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    ]
    for name in sorted({*kept, *WANTED}):
        key, wanted = WANTED.get(name, ("", 0))
        if name not in kept:
            rows.append(f"| {name} | 0 of {wanted:,} {key} | not run | | | |\n")
            continue
        one = kept[name]
        counts = ", ".join(
            f"{what} {value:,}" for what, value in one["counts"].items() if what != FAILED
        )
        done = f"{one['counts'].get(key, 0):,} of {wanted:,} {key.removeprefix('most ')}"
        failed = one["counts"].get(FAILED, 0)
        why = f": {one['failure']}".replace("|", "/").replace("\n", " ") if failed else ""
        rows.append(
            f"| {name} | {done if wanted else ''} | {counts} | {failed}{why} | {one['code']} | "
            f"{one['day']} |\n"
        )
    machines = "\n\n".join(sorted({one["machine"] for one in kept.values()}))
    return "".join([head, TABLE_BEGINS, *rows, "\n", machines, "\n", TABLE_ENDS, tail])


# --- kills ----------------------------------------------------------------------------------------


def kills(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """After each kill the newest that was durable, or a newer one, is chosen, and is its bytes."""
    folder = _emptied("kills")
    fast, slow = folder / "fast", folder / "slow"
    fast.mkdir(parents=True)
    others = [_Trainer(folder / "trainer"), _Last(folder / "last")]
    _adopt_orphans()
    newest = 0
    own = dict.fromkeys(("save", "drain", "prune", "recover", "training"), 0)
    foreign = dict.fromkeys(FOREIGN, 0)
    wanted = _kinds("own", "foreign")
    for n in range(rounds):
        if "foreign" in wanted and (n % 3 == 2 or "own" not in wanted):
            what = chance.choices(list(FOREIGN), list(FOREIGN.values()))[0]
            chance.choice(others).killed(what, chance)
            foreign[what] += 1
        else:
            what = chance.choices(list(own), (4, 4, 1, 2, 2))[0] if newest else "save"
            newest = _killed(folder, what, chance, newest)
            own[what] += 1
        if n % 50 == 49:
            print(f"{n + 1} kills: {own}, step {newest}; foreign: {foreign}", flush=True)
    choice, failed = recover(fast, slow, Settings(settle_s=0))
    left = _leftovers(fast) + _leftovers(slow)
    if (choice.step or 0) < newest or failed or left:
        raise SystemExit(f"{folder}: after recovery: step {choice.step}, {failed}, {left}")
    for other in others:
        other.end()
    shutil.rmtree(folder)
    print(f"kills: {rounds} ({own}; foreign: {foreign}), nothing durable was lost, no leftovers")
    done = {f"in {what}": times for what, times in own.items()}
    done |= {f"foreign: in {what}": times for what, times in foreign.items()}
    return {"": {"kills": rounds} | {what: times for what, times in done.items() if times}}


def _killed(folder: Path, what: str, chance: random.Random, newest: int) -> int:
    """Starts one of them, kills it, and looks.  Returns the newest step that is durable."""
    fast, slow = folder / "fast", folder / "slow"
    delay_s = chance.random() ** 2 * (0.15 if what == "save" else 0.5)
    program, word, step = PROGRAM, what, newest + 1
    if what == "training":
        program, word, step = TRAINING, str(chance.randrange(1 << 30)), newest
    command = [sys.executable, "-c", textwrap.dedent(program), fast, slow, word, delay_s, step]
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if finished.returncode != -signal.SIGKILL or "wrong" in finished.stdout:
        raise SystemExit(
            f"{folder}: {what}, step {newest}: status {finished.returncode}, {finished.stdout} "
            f"{finished.stderr[-2000:]}"
        )
    for line in finished.stdout.splitlines():
        newest = max(newest, int(line.split()[1])) if line.startswith("durable ") else newest
    _await_orphans()
    return _still_there(folder, fast, slow, newest, what)


def _adopt_orphans() -> None:
    """A writer or a drain that outlives its training becomes our child, whoever started it."""
    import ctypes

    set_child_subreaper = 36  # linux/prctl.h
    if ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0):
        raise SystemExit("the kernel gives us no orphans to wait for")


def _await_orphans() -> None:
    """A drain that was killed may have been started again, just before its training ended."""
    end_s = time.monotonic() + ENDED_WITHIN_S
    with suppress(ChildProcessError):  # there is none left
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if time.monotonic() > end_s:
                    raise SystemExit(
                        f"a writer or a drain: alive {ENDED_WITHIN_S:.0f} s after its training"
                    )
                time.sleep(0.02)


def _await_end(pid: int) -> None:
    """Of a drain that outlives its program to finish what it was given, and of its threads: its
    locks are theirs too."""
    end_s = time.monotonic() + ENDED_WITHIN_S
    with suppress(OSError):  # it is gone
        while (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            or len([*Path(f"/proc/{pid}/task").iterdir()]) > 1
        ):
            if time.monotonic() > end_s:
                raise SystemExit(f"process {pid}: alive {ENDED_WITHIN_S:.0f} s after its training")
            time.sleep(0.02)


def _leftovers(tier: Path) -> list[Path]:
    """Of whatever did not come to its end: drafts, parts, what was on its way out."""
    trash = [*(tier / STATE / "trash").glob("*")]
    return trash + [path for path in tier.rglob("*") if path.name.endswith(".part")]


def _still_there(folder: Path, fast: Path, slow: Path, newest: int, what: str) -> int:
    choice = latest_valid(fast, slow, "full")
    if not newest and choice.path is None:
        return 0
    if choice.path is None or (choice.step or 0) < newest:
        raise SystemExit(f"{folder}: killed in {what}: step {newest} was durable, and {choice}")
    assert choice.step is not None
    if not _is_what_was_saved(choice.path, choice.step):
        raise SystemExit(f"{choice.path}: killed in {what}: other bytes than were saved")
    for one in find(LocalStore(slow)):
        verdict = verify(one, "full")
        if not verdict.is_whole:
            raise SystemExit(f"{one.where}: committed on the slow tier, {verdict.problems}")
    return choice.step


def _is_what_was_saved(path: Path, step: int) -> bool:
    """Read by the format's own library."""
    return bool((load_file(path / "state.safetensors")["x"] == step).all())


def _save(tier: Path, step: int) -> Path:
    part = begin(tier, step)
    part.write("state.safetensors", [HEAD + np.full(N_NUMBERS, step, "<f8").tobytes()])
    # By another program, which syncs nothing.
    try:
        (part.path / "state.json").write_text("{}" + " " * 10_000)
    except OSError as error:
        raise PenstockError(f"{part.path}: the other program: {error}") from None
    return commit(part)


def _emptied(name: str) -> Path:
    """A folder of this soak alone: two of them may run side by side."""
    folder = scratch("soak-save") / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# --- kills beside another program -----------------------------------------------------------------

# What is killed, and how often.  node: the fast tier is lost, and what slow has is brought back.
FOREIGN = {"program": 3, "drain": 4, "prune": 3, "recover": 2, "node": 1}
FOREIGN_S = 0.7  # most, until something is killed
SETTLE_S = 0.05


@dataclass
class _Other:
    """A program that knows nothing of Penstock saves while `drain --foreign`, `prune` and `recover
    --fetch` work on its folder.  Each is a fork of this process, so that it begins at once.

    ended: what it has written to its end and has not begun to write again, by name; slow: what was
    whole on the slow tier, by name.
    """

    folder: Path
    keep: Keep = field(init=False)
    last: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    slow: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tier in self.tiers:
            tier.mkdir(parents=True)

    @property
    def tiers(self) -> tuple[Path, Path]:
        return self.folder / "fast", self.folder / "slow"

    def write(self, fast: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
        """One save: told of what begins, and of what has ended, before anything else is done."""
        raise NotImplementedError

    def number_in(self, tier: Path, name: str) -> int:
        """What was saved under this name; 0: it is not whole.  Knows the format, and not us."""
        raise NotImplementedError

    def look(self, what: str, numbers: dict[str, int]) -> None:
        """At what `keep` allows; numbers: what is whole on the fast tier."""
        raise NotImplementedError

    def killed(self, what: str, chance: random.Random) -> None:
        fast, _ = self.tiers
        if what == "node":
            shutil.rmtree(fast)
            fast.mkdir()
            self.ended.clear()
        begun = {}
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as log:
            seed = chance.randrange(1 << 30)
            if what in ("recover", "node"):
                begun[what] = _forked(lambda: self._recover(), log)
            else:
                if what == "program" or chance.random() < 0.8:
                    begun["program"] = _forked(lambda: self._save(said.fileno(), seed), log)
                if what == "drain" or chance.random() < 0.6:
                    limit_bps = chance.choice((None, 1e8))
                    begun["drain"] = _forked(lambda: self._drain(limit_bps), log)
                if what == "prune":
                    begun["prune"] = _forked(self._prune, log)
            time.sleep(chance.random() * FOREIGN_S)
            for doomed in (what, *begun):
                if doomed in begun:
                    os.kill(begun[doomed], signal.SIGKILL)
                    time.sleep(chance.random() / 20)
            for name, pid in begun.items():
                _, status = os.waitpid(pid, 0)
                if status != signal.SIGKILL and (status or name not in ("recover", "node")):
                    log.seek(0)
                    raise SystemExit(f"{self.folder}: {name}: {status}: {log.read()[-3000:]}")
            said.seek(0)
            self._hear(said.read())
        self._look(what)

    def _save(self, said: int, seed: int) -> None:
        chance, number = random.Random(seed), self.last
        while True:
            number += 1
            for word, name in self.write(self.tiers[0], number, chance):
                os.write(said, f"{word} {name} {number}\n".encode())
            time.sleep(0.02 + chance.random() ** 2 * 0.3)

    def _drain(self, limit_bps: float | None) -> None:
        keep = self.keep
        with Drainer(
            *self.tiers, Settings(limit_bps, settle_s=SETTLE_S, tries=1, keep=keep)
        ) as working:
            while True:
                working.once()
                time.sleep(0.01)

    def _prune(self) -> None:
        fast, slow = map(LocalStore, self.tiers)
        while True:
            prune(fast, slow, self.keep)

    def _recover(self) -> None:
        fast, slow = self.tiers
        keep = self.keep
        choice, _ = recover(fast, slow, Settings(settle_s=SETTLE_S, tries=2, keep=keep))
        if choice.checkpoint is not None:
            _fetched(choice, fast, os.fspath(slow))

    def _hear(self, said: str) -> None:
        for line in said.splitlines():
            word, name, number = line.split()
            self.last = max(self.last, int(number))
            if word == "began":
                self.ended.pop(name, None)
            else:
                self.ended[name] = int(number)

    def _look(self, what: str) -> None:
        fast, slow = self.tiers
        on_fast = {one.name: self.number_in(fast, one.name) for one in find(LocalStore(fast))}
        there = find(LocalStore(slow))
        on_slow = {one.name: self.number_in(slow, one.name) for one in there}
        self.look(what, on_fast)
        self.stays(what, on_slow)
        for one in there:
            if one.is_ours and not on_slow[one.name]:
                self.fail(what, f"{one.where}: drained, and not whole")
        self.slow = {name: number for name, number in on_slow.items() if number}
        choice = latest_valid(fast, slow, "full")
        wanted = self.newest({**{f"fast {name}": n for name, n in on_fast.items()},
                              **{f"slow {name}": n for name, n in on_slow.items()}})  # fmt: skip
        found = 0
        if choice.path is not None and choice.checkpoint is not None:
            found = self.number_in(Path(choice.checkpoint.store.url), choice.checkpoint.name)
        if found != wanted:
            self.fail(what, f"{wanted} is whole, chosen: {found}: {choice}")

    def newest(self, numbers: dict[str, int]) -> int:
        return max(numbers.values(), default=0)

    def stays(self, what: str, on_slow: dict[str, int]) -> None:
        """Compares what is on the slow tier with what was there."""
        raise NotImplementedError

    def fail(self, what: str, why: str) -> None:
        raise SystemExit(
            f"{self.folder}: killed {what}: {why}; on slow: {self.slow}, ended: {self.ended}"
        )

    def end(self) -> None:
        fast, slow = self.tiers
        recover(fast, slow, Settings(settle_s=SETTLE_S, keep=self.keep))
        left = _leftovers(fast) + _leftovers(slow)
        left += [path for tier in self.tiers for path in tier.rglob("*.penstock.half")]
        if left:
            raise SystemExit(f"{self.folder}: after recovery: {left}")


class _Last(_Other):
    """`last.ckpt` written in place as torch.save does, `last.pt` by a rename, on and on: what is
    whole anywhere never grows older than what was on the slow tier."""

    keep = Keep(fast=0, last=1, foreign=True)

    def write(self, fast: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
        data = _archive(number, SIZE_BYTES)
        if chance.random() < 0.3:
            (fast / "last.pt.tmp").write_bytes(data)
            yield "began", "last.pt"
            (fast / "last.pt.tmp").replace(fast / "last.pt")
            yield "ended", "last.pt"
            return
        yield "began", "last.ckpt"
        mode = "r+b" if (fast / "last.ckpt").exists() and chance.random() < 0.5 else "wb"
        with (fast / "last.ckpt").open(mode, buffering=0) as file:
            for start in range(0, len(data), 1 << 20):
                file.write(data[start : start + (1 << 20)])
                time.sleep(chance.random() ** 4 * 0.02)
        yield "ended", "last.ckpt"

    def number_in(self, tier: Path, name: str) -> int:
        return _number_in(tier / name)

    def look(self, what: str, numbers: dict[str, int]) -> None:
        fast, slow = self.tiers
        there = [_number_in(path) for path in slow.glob("last*")]
        for name, number in self.ended.items():
            if numbers.get(name) != number and max(there, default=0) < number:
                self.fail(what, f"{fast / name}: {number} is on no tier")

    def stays(self, what: str, on_slow: dict[str, int]) -> None:
        if max(on_slow.values(), default=0) < max(self.slow.values(), default=0):
            self.fail(what, f"the slow tier has {on_slow}")


class _Trainer(_Other):
    """A Trainer's folder: a model, written anew in place, a log, and checkpoints in folders below.

    A checkpoint goes from the slow tier for newer ones there, from the fast one if it is on the
    slow one or was; the model for a newer model, its folder and the log never while there are
    checkpoints in it."""

    keep = Keep(fast=1, last=3, foreign=True)

    def write(self, fast: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
        name = "out" if chance.random() < 0.3 else f"out/checkpoint-{number}"
        path = fast / name
        if name == "out":
            yield "began", name
        path.mkdir(parents=True, exist_ok=True)
        (fast / "out" / "runs").mkdir(exist_ok=True)
        with (fast / "out" / "runs" / "events").open("a") as log:
            log.write(f"{number}\n")
        (path / "config.json").write_text("{}")
        data = _archive(number, 300_000)
        with (path / "pytorch_model.bin").open("wb", buffering=0) as file:
            for start in range(0, len(data), 1 << 16):
                file.write(data[start : start + (1 << 16)])
                time.sleep(chance.random() ** 4 * 0.02)
        (path / "trainer_state.json").write_text(json.dumps({"global_step": number}))
        yield "ended", name

    def number_in(self, tier: Path, name: str) -> int:
        state = tier / name / "trainer_state.json"
        # A model beside checkpoints needs no state; empty: killed as it wrote that.
        is_ended = state.read_text() != "" if state.exists() else "checkpoint-" not in name
        return _number_in(tier / name / "pytorch_model.bin") if is_ended else 0

    def newest(self, numbers: dict[str, int]) -> int:
        """Those whose names tell a step come first."""
        steps = {name: number for name, number in numbers.items() if "checkpoint-" in name}
        return super().newest(steps) or super().newest(numbers)

    def look(self, what: str, numbers: dict[str, int]) -> None:
        fast, slow = self.tiers
        arrived = {one for name in ("out", "out.2") if (slow / name).exists()
                   for one in map(self._step, (slow / name).glob("checkpoint-*"))}  # fmt: skip
        saved = sorted(number for name, number in self.ended.items() if name != "out")
        for number in saved:
            name = f"out/checkpoint-{number}"
            if numbers.get(name) == number:
                continue
            newer = [one for one in arrived if one > number]
            assert self.keep.last is not None
            if number in saved[-self.keep.fast :]:
                self.fail(what, f"{fast / name}: is among the newest, and gone")
            if number not in arrived and len(newer) < self.keep.last:
                self.fail(what, f"{fast / name}: is gone, and the slow tier has {arrived}")
        if saved and "out" in self.ended and numbers.get("out") != self.ended["out"]:
            self.fail(what, f"{fast / 'out'}: the model is gone: {numbers}")
        if saved and not (fast / "out" / "runs" / "events").exists():
            self.fail(what, f"{fast / 'out'}: the log is gone")

    @staticmethod
    def _step(path: Path) -> int:
        return int(path.name.removeprefix("checkpoint-").partition(".")[0])

    def stays(self, what: str, on_slow: dict[str, int]) -> None:
        assert self.keep.last is not None
        for name, number in self.slow.items():
            newer = [n for other, n in on_slow.items() if n > number and "checkpoint-" in other]
            is_enough = len(newer) >= self.keep.last
            if "checkpoint-" not in name:  # a model goes for a model
                newer = [n for other, n in on_slow.items() if "checkpoint-" not in other]
                is_enough = max(newer, default=0) >= number
            if on_slow.get(name, 0) < number and not is_enough:
                self.fail(what, f"{self.tiers[1] / name}: {number} is gone: {on_slow}")
        is_holding = any(name.startswith("out/") for name in on_slow)
        if "out" in self.slow and "out" not in on_slow and is_holding:
            self.fail(what, f"{self.tiers[1] / 'out'}: the model is gone: {on_slow}")


def _forked(work: Callable[[], None], log: Any) -> int:
    """A child that does this until it is killed, or has ended; its words go to the log."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        work()
        status = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _archive(number: int, size_bytes: int) -> bytes:
    """As torch.save writes it: a zip archive with a checksum for each record."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", np.full(size_bytes // 8, number, "<f8").tobytes())
    return made.getvalue()


def _number_in(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            data = np.frombuffer(archive.read("archive/data/0"), "<f8")
            return int(data[0]) if archive.testzip() is None and (data == data[0]).all() else 0
    except (OSError, zipfile.BadZipFile, KeyError, EOFError, ValueError):
        return 0


# --- kills under a burst buffer -------------------------------------------------------------------


def burst(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """After each kill what was closed is at its path, whole, and nothing else is left there."""
    folder = _emptied("burst")
    fast, work = folder / "fast", folder / "work"
    for path in (fast, work):
        path.mkdir(parents=True)
    program = folder / "burst_loop"
    source = ROOT / "tests" / "workloads" / "burst_loop.c"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-o", program, source], check=True)
    saves = Saves(fast, work)
    done = dict.fromkeys(("program", "drain", "run", "all"), 0)
    for n in range(rounds):
        what = chance.choice(list(done))
        said = _ended_under_burst(program, saves, folder / "run", what, chance)
        try:
            saves.look(said)
        except AssertionError as error:
            raise SystemExit(f"{folder}: killed {what}, round {n}: {error}") from error
        done[what] += 1
        if n % 50 == 49:
            print(f"burst: {n + 1} kills: {done}, save {saves.first}", flush=True)
    time.sleep(1.1)  # what came home before its drain was killed is kept for a second
    saves.end()
    shutil.rmtree(folder)
    print(f"burst: {rounds} ({done}), {saves.torn} put aside as torn, nothing lost, no leftovers")
    counts = {f"of the {what}": times for what, times in done.items() if what != "all"}
    return {"": {"kills": rounds, **counts, "of all": done["all"], "torn": saves.torn}}


def _ended_under_burst(
    program: Path, saves: Saves, run: Path, what: str, chance: random.Random
) -> list[str]:
    """Starts it and kills what was chosen, then the program; what that said."""
    shutil.rmtree(run, ignore_errors=True)
    words = [PENSTOCK, "run", "-q", "-o", run, "--burst-buffer", saves.fast, "--", program]
    with tempfile.TemporaryFile("w+") as said:
        started = subprocess.Popen([*words, str(SIZE), str(saves.first)], cwd=saves.work,
                                   stdout=said, stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        end_s = time.monotonic() + ENDED_WITHIN_S
        children: dict[str, int] = {}
        while len(children) < 2 or not os.fstat(said.fileno()).st_size:
            if time.monotonic() > end_s:
                raise SystemExit(f"burst: {words}: saved nothing in {ENDED_WITHIN_S:.0f} s")
            children = _children_under_burst(started.pid)
            time.sleep(0.001)
        time.sleep(chance.random() ** 2)
        doomed = {"run": started.pid} | children
        for one in doomed if what == "all" else (what, "program"):
            with suppress(ProcessLookupError):
                os.kill(doomed[one], signal.SIGKILL)
            time.sleep(chance.random() / 20)
        for pid in children.values():
            _await_end(pid)
        started.wait()
        said.seek(0)
        return list(said)


def _children_under_burst(pid: int) -> dict[str, int]:
    """The program and the drain that `penstock run` has started."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"burst_loop"):
                found["program"] = int(child)
            elif b"drain" in words:
                found["drain"] = int(child)
    return found


# --- damage ---------------------------------------------------------------------------------------


def damage(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """Every flipped bit, zeroed block, zeroed tail and cut is found at level full."""
    folder = _emptied("damage")
    part = begin(folder, 1)
    part.write("model.pt", [os.urandom(SIZE_BYTES)])
    part.write("small.json", [b'{"step": 1}'])
    path = commit(part)
    files = {name: (path / name).read_bytes() for name in ("model.pt", "small.json", INSIDE)}
    found = dict.fromkeys(("flip", "zeros", "tail", "cut"), 0)
    for _ in range(rounds):
        how, name = chance.choice(list(found)), chance.choice(list(files))
        damaged = _damaged(files[name], how, chance)
        if damaged == files[name]:
            continue
        (path / name).write_bytes(damaged)
        if latest_valid(folder, level="full").path is not None:
            raise SystemExit(f"{path / name}: {how} was not found")
        found[how] += 1
        (path / name).write_bytes(files[name])
    if latest_valid(folder, level="full").path != path:
        raise SystemExit(f"{path}: was said to be damaged, and is not")
    shutil.rmtree(folder)
    print(f"damage: {sum(found.values())} of {sum(found.values())} found ({found})")
    return {"": {"damaged": sum(found.values())} | found}


def _damaged(data: bytes, how: str, chance: random.Random) -> bytes:
    made, place = bytearray(data), chance.randrange(len(data))
    if how == "flip":
        made[place] ^= 1 << chance.randrange(8)
    elif how == "zeros":
        made[place : place + 4096] = bytes(len(made[place : place + 4096]))
    elif how == "tail":
        made[place:] = bytes(len(made) - place)
    else:
        del made[place:]
    return bytes(made)


# --- power ----------------------------------------------------------------------------------------


def power(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """A file system in a file; its image copied t seconds after the commit is what a power cut
    leaves.  The journal is replayed, and what was committed has to be there.

    Then the same without a single fsync: a check that cannot fail would find those whole too.
    """
    why = _not_permitted()
    if why:
        print(f"power: not done: {why}")
        return {}
    done = {}
    for kind in _kinds("ext4", "xfs"):
        if not shutil.which(f"mkfs.{kind}"):
            print(f"power: {kind}: not done: there is no mkfs.{kind}")
            continue
        times = [POWER_S * n / max(1, rounds - 1) for n in range(rounds)]
        with ThreadPoolExecutor(POWER_AT_ONCE) as pool:
            found = list(pool.map(lambda after_s, kind=kind: _cut(kind, after_s), times))
        for after_s, step in zip(times, found, strict=True):
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


def _kinds(*known: str) -> tuple[str, ...]:
    """Those that the command line leaves."""
    wanted = [word for word in sys.argv[1:] if word in known]
    return tuple(wanted) or known


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
    """An image's file system; kind: what to make of it first, or empty."""
    at.mkdir(exist_ok=True)
    if kind:
        with image.open("wb") as file:
            file.truncate(320 << 20)  # xfs wants 300 MB
        # Nothing is kept back for root, whom a full disk would not stop.
        force = ["-F", "-m", "0"] if kind == "ext4" else ["-f"]
        subprocess.run([f"mkfs.{kind}", "-q", *force, image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def _copy_of_a_moment(image: Path, cut: Path) -> None:
    """As a power cut leaves it: what is equal afterwards was not written while it was copied."""
    for _ in range(20):
        subprocess.run(["cp", "--sparse=always", image, cut], check=True)
        if not subprocess.run(["cmp", "-s", image, cut]).returncode:
            return
    raise AssertionError(f"{image}: written on and on; no copy is of one moment")


def _cut(kind: str, after_s: float) -> int | None:
    """The step that is chosen after the cut."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="penstock-power-") as place:
        image, cut = Path(place) / "image", Path(place) / "cut"
        with _mounted(kind, image, Path(place) / "mount") as mount:
            for step in (1, 2):
                _save(mount / "tier", step)
            time.sleep(after_s)
            _copy_of_a_moment(image, cut)
        with _mounted("", cut, Path(place) / "mount") as mount:
            choice = latest_valid(mount / "tier", level="full")
            is_right = choice.path is not None and _is_what_was_saved(choice.path, choice.step or 0)
            return choice.step if is_right else None


# --- full -----------------------------------------------------------------------------------------


def full(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """A tier that is full after any part of the next checkpoint: an error that names it, the older
    one whole, and after the next start neither leftovers nor an obstacle."""
    why = _not_permitted()
    if why:
        print(f"full: not done: {why}")
        return {}
    done = {}
    for kind in _kinds("tmpfs", "ext4", "xfs"):
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
    _save(tier, step)


def _by_checkpointer(tier: Path, other: Path, step: int) -> None:
    with Checkpointer(tier, keep=Keep(last=9), on_error="warn") as ckpt:
        ckpt.save(step, {"x": np.full(N_NUMBERS, step, "f8")}).local.result()


def _by_drain(tier: Path, other: Path, step: int) -> None:
    _save(other, step)
    with Drainer(other, tier, Settings(settle_s=0, tries=1)) as working:
        failed = working.once()
    if failed:
        raise PenstockError(str(failed))


FILLING: dict[str, Callable[[Path, Path, int], None]] = {
    "commit": _by_commit,
    "Checkpointer": _by_checkpointer,
    "drain": _by_drain,
}


def _filled(mount: Path, other: Path, writer: str, chance: random.Random) -> str:
    """One save into what room is left, and one into enough.  Returns the error, if there was."""
    tier, ballast = mount / "tier", mount / "ballast"
    for old in (tier, other):
        shutil.rmtree(old, ignore_errors=True)
    _save(tier, 1)
    other.mkdir()
    room = int(chance.random() * 1.1 * SIZE_BYTES)
    free = os.statvfs(mount)
    with ballast.open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - room))
    error = ""
    try:
        FILLING[writer](tier, other, 2)
    except PenstockError as found:
        error = str(found)
    told = f"{mount}, {room:,} bytes of room, {writer}: {error or 'no error'}"
    words = ("no room", "full", "No space left")
    if error and not (any(word in error for word in words) and str(mount) in error):
        raise SystemExit(f"full: the error names neither place nor cause: {told}")
    choice = latest_valid(tier, level="full")
    if choice.step != (1 if error else 2) or choice.path is None:
        raise SystemExit(f"full: {choice}: {told}")
    ballast.unlink()
    shutil.rmtree(other)
    recover(tier, other, Settings(settle_s=0))
    if left := _leftovers(tier) + _leftovers(other):
        raise SystemExit(f"full: after the next start: {left}: {told}")
    _save(tier, 3)
    if latest_valid(tier, level="full").step != 3:
        raise SystemExit(f"full: the next save: {told}")
    return error


# --- gone -----------------------------------------------------------------------------------------


def gone(chance: random.Random, seconds: int) -> dict[str, dict[str, Any]]:
    """The slow tier goes away in the middle of a drain and comes back after so many seconds, while
    the training goes on to save.  Everything arrives, and the fast tier gave nothing up before."""
    folder = _emptied("gone")
    fast, slow, away = folder / "fast", folder / "slow", folder / "away"
    for tier in (fast, slow):
        tier.mkdir(parents=True)
    keep = Keep(fast=1)
    drain = Drain(fast, slow, limit_bps=8 * SIZE_BYTES, keep=keep)
    drain.start()
    try:
        n_saves, end_s = 0, time.monotonic() + ENDED_WITHIN_S
        while (said := read_status(fast)) is None or said.state == "starting":
            if time.monotonic() > end_s or not drain.is_alive():
                raise SystemExit(f"gone: {folder}: the drain did not begin: {said}")
            time.sleep(0.05)
        _save(fast, 1)
        time.sleep(2 * chance.random())
        slow.rename(away)
        slow.write_text("")  # no folder: what a mount that is gone looks like to a program
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(max(0.0, min(seconds / 20, end_s - time.monotonic())))
            n_saves += 1
            _save(fast, n_saves + 1)
        # Once a pause of a busy machine is over, the drain says what is gone.
        end_s = time.monotonic() + ENDED_WITHIN_S
        while not (said := read_status(fast)) or not said.error:
            if time.monotonic() > end_s or not drain.is_alive():
                raise SystemExit(f"gone: {folder}: the drain says {said}")
            time.sleep(0.05)
        here = {one.step for one in find(LocalStore(fast))}
        memory = _memory_bytes(drain)
        if not drain.is_alive():
            raise SystemExit(f"gone: {folder}: the drain has ended; it said {said}")
        if missing := set(range(2, n_saves + 2)) - here:
            raise SystemExit(f"gone: {folder}: given up before they were drained: {missing}")
        slow.unlink()
        away.rename(slow)
        end_s = time.monotonic() + 180
        while {one.step for one in find(LocalStore(slow))} != set(range(1, n_saves + 2)):
            if time.monotonic() > end_s:
                raise SystemExit(f"gone: {folder}: 180 s after it came back: {read_status(fast)}")
            time.sleep(0.5)
    finally:
        drain.stop()
    for one in find(LocalStore(slow)):
        if not verify(one, "full").is_whole or not _is_what_was_saved(
            slow / one.name, one.step or 0
        ):
            raise SystemExit(f"gone: {one.where}: not what was saved")
    shutil.rmtree(folder)
    print(f"gone: {seconds} s, {n_saves} saves meanwhile, all arrived; it said: {said.error}")
    return {
        "": {"times": 1, "most seconds": seconds, "saves meanwhile": n_saves,
             "most MB of the drain": memory // 10**6}
    }  # fmt: skip


def _memory_bytes(drain: Drain) -> int:
    assert drain._process is not None
    pages = Path(f"/proc/{drain._process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


FAILED = "soaks that failed"
# The rows that there should be: what counts in them, and how many of it the soak does unless told.
WANTED = {
    "kills": ("kills", 1000), "damage": ("damaged", 1000), "power ext4": ("cuts", 36),
    "power xfs": ("cuts", 36), "full tmpfs": ("rounds", 200), "full ext4": ("rounds", 200),
    "full xfs": ("rounds", 200), "gone": ("most seconds", 3600), "burst": ("kills", 1000),
}  # fmt: skip
SOAKS: dict[str, tuple[Callable[[random.Random, int], dict[str, dict[str, Any]]], int]] = {
    "kills": (kills, 1000),
    "burst": (burst, 1000),
    "damage": (damage, 1000),
    "power": (power, 36),
    "full": (full, 200),
    "gone": (gone, 3600),
}


if __name__ == "__main__":
    main()
