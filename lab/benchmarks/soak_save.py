"""Ends of a save, a drain, a prune or a recovery, a thousand times; cut power; damaged bytes.

    python lab/benchmarks/soak_save.py kills [ROUNDS]  SIGKILL at random moments; default: 1,000,
                                                       a third of them beside another program
    python lab/benchmarks/soak_save.py burst [ROUNDS]  kills of programs under --burst-buffer, of
                                                       their drain and of `penstock run`; 1,000
    python lab/benchmarks/soak_save.py power [ROUNDS]      a loop device copied 0 to 33 s after the
                                                       commit; ext4 and xfs, 36 each; needs root
    python lab/benchmarks/soak_save.py damage [ROUNDS]     flips, zeros, cuts at level full; 1,000
    python lab/benchmarks/soak_save.py full [ROUNDS]       a tier with room for a part of the next
                                                       checkpoint; 200 on each of three file systems
    python lab/benchmarks/soak_save.py gone [SECONDS]      a missing slow tier; default: 3,600
    python lab/benchmarks/soak_save.py                     all parts

A third word after power and full names a file system, after kills it is `own` or `foreign`.  The
first difference ends the soak with the folder of the difference.  SEED repeats the choices.
--record adds the results to docs/save-soak.json, the source of a table in docs/save.md; several
pieces add up while the code of saving stays unchanged.  A failed soak is recorded too, and stays on
record for the code.  `code` prints the digests of the present code.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from bars import PENSTOCK, ROOT
from soak_beside import FOREIGN, Last, TrainerFolder
from soak_disks import full, power
from soak_own import (
    ENDED_WITHIN_S,
    HEAD,
    N_NUMBERS,
    SIZE_BYTES,
    await_end,
    emptied,
    is_what_was_saved,
    kinds,
    leftovers,
    save,
)
from soak_record import FAILED, code_of, record

from penstock.errors import PenstockError
from penstock.places.stores import LocalStore
from penstock.save.commit import begin, commit
from penstock.save.drain.beside import Drain
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings, DrainStatus, read_status
from penstock.save.find.formats import find, find_file
from penstock.save.manifest import INSIDE
from penstock.save.verify import WHOLE, latest_valid, verify

sys.path.insert(0, str(ROOT / "tests"))
from burstkills import SIZE, Saves

__all__ = ["burst", "damage", "full", "gone", "kills", "power"]
KEPT = 3

# Each program prints a promise, before a kill in the next action is possible.
PROGRAM = """
    import os, signal, sys, threading, time
    from penstock.save.drain import drainer as drain, retention
    from penstock.save.drain import recover
    from penstock.save.commit import begin, commit, sweep
    from penstock.save.drain.working import DrainSettings
    import struct
    from penstock.places.stores import LocalStore
    fast, slow, what, delay, step = sys.argv[1:6]
    def die():
        time.sleep(float(delay))
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, b"ready\\n")
    threading.Thread(target=die, daemon=True).start()
    keep = retention.Keep(fast=1, last=3)
    settings = DrainSettings(settle_s=0, tries=1, keep=keep)
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
            recover.recover(fast, slow, settings)
        else:
            with drain.Drainer(fast, slow, settings) as working:
                working.once()
""".replace("{head}", repr(HEAD)).replace("{n}", str(N_NUMBERS))

# A training: the Checkpointer has a writer and a drain, each a separate process.  A process of the
# three, or all, are killed.
TRAINING = """
    import os, random, signal, sys, threading, time
    import numpy as np
    from penstock.save.training.checkpointer import Checkpointer, Keep
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
        print(f"burst {code_of('burst')}, the others {code_of('kills')}")
        return
    if wanted not in ("all", *SOAKS):
        raise SystemExit(f"{wanted}: no such soak; there are: {', '.join(SOAKS)}")
    for name, (soak, usual) in SOAKS.items():
        if wanted in ("all", name):
            chance = random.Random(seed)
            try:
                rows = soak(chance, int(words[1]) if len(words) > 1 else usual)
            except (SystemExit, AssertionError, PenstockError) as ended:
                if is_recorded:
                    record(name, seed, {"": {FAILED: 1}}, str(ended).replace(f"{ROOT}/", ""))
                raise
            if is_recorded:
                record(name, seed, rows)


# --- the record -----------------------------------------------------------------------------------


# --- kills ----------------------------------------------------------------------------------------


def kills(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """Check after each kill: the newest durable checkpoint, or a newer one, is chosen, with its
    bytes."""
    folder = emptied("kills")
    fast, slow = folder / "fast", folder / "slow"
    fast.mkdir(parents=True)
    others = [TrainerFolder(folder / "trainer"), Last(folder / "last")]
    _adopt_orphans()
    newest = 0
    own = dict.fromkeys(("save", "drain", "prune", "recover", "training"), 0)
    foreign = dict.fromkeys(FOREIGN, 0)
    wanted = kinds("own", "foreign")
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
    choice, failed = recover(fast, slow, DrainSettings(settle_s=0))
    left = leftovers(fast) + leftovers(slow)
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
    """Start a program, kill it, and check.  Return the newest durable step."""
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
    """Become the parent of a writer or a drain that outlives its training, whoever started the
    process."""
    import ctypes

    set_child_subreaper = 36  # linux/prctl.h
    if ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0):
        raise SystemExit("the kernel gives us no orphans to wait for")


def _await_orphans() -> None:
    """Wait for a drain started again after a kill, just before the training ended."""
    end_s = time.monotonic() + ENDED_WITHIN_S
    with suppress(ChildProcessError):  # there is none left
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if time.monotonic() > end_s:
                    raise SystemExit(
                        f"a writer or a drain: alive {ENDED_WITHIN_S:.0f} s after its training"
                    )
                time.sleep(0.02)


def _still_there(folder: Path, fast: Path, slow: Path, newest: int, what: str) -> int:
    choice = latest_valid(fast, slow, "full")
    if not newest and choice.path is None:
        return 0
    if choice.path is None or (choice.step or 0) < newest:
        raise SystemExit(f"{folder}: killed in {what}: step {newest} was durable, and {choice}")
    assert choice.step is not None
    if not is_what_was_saved(choice.path, choice.step):
        raise SystemExit(f"{choice.path}: killed in {what}: other bytes than were saved")
    for checkpoint in find(LocalStore(slow)):
        verdict = verify(checkpoint, "full")
        if not verdict.is_whole:
            raise SystemExit(f"{checkpoint.where}: committed on the slow tier, {verdict.problems}")
    return choice.step


# --- kills under a burst buffer -------------------------------------------------------------------


def burst(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """Check after each kill: each closed file is at its path, whole, and nothing else is left
    there."""
    folder = emptied("burst")
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
    time.sleep(1.1)  # a file home before the kill of its drain is kept for a second
    saves.end()
    shutil.rmtree(folder)
    print(f"burst: {rounds} ({done}), {saves.torn} put aside as torn, nothing lost, no leftovers")
    counts = {f"of the {what}": times for what, times in done.items() if what != "all"}
    return {"": {"kills": rounds, **counts, "of all": done["all"], "torn": saves.torn}}


def _ended_under_burst(
    program: Path, saves: Saves, run: Path, what: str, chance: random.Random
) -> list[str]:
    """Start the program and kill the chosen process, then the program; return the words of the
    program."""
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
        for victim in doomed if what == "all" else (what, "program"):
            with suppress(ProcessLookupError):
                os.kill(doomed[victim], signal.SIGKILL)
            time.sleep(chance.random() / 20)
        for pid in children.values():
            await_end(pid)
        started.wait()
        said.seek(0)
        return list(said)


def _children_under_burst(pid: int) -> dict[str, int]:
    """Return the program and the drain started by `penstock run`."""
    children = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"burst_loop"):
                children["program"] = int(child)
            elif b"drain" in words:
                children["drain"] = int(child)
    return children


# --- damage ---------------------------------------------------------------------------------------


def damage(chance: random.Random, rounds: int) -> dict[str, dict[str, Any]]:
    """Find every flipped bit, zeroed block, zeroed tail and cut at level full; then damage HDF5
    files, which have no manifest."""
    folder = emptied("damage")
    part = begin(folder, 1)
    part.write("model.pt", [os.urandom(SIZE_BYTES)])
    part.write("small.json", [b'{"step": 1}'])
    path = commit(part)
    files = {name: (path / name).read_bytes() for name in ("model.pt", "small.json", INSIDE)}
    counts = dict.fromkeys(("flip", "zeros", "tail", "cut"), 0)
    for _ in range(rounds):
        how, name = chance.choice(list(counts)), chance.choice(list(files))
        damaged = _damaged(files[name], how, chance)
        if damaged == files[name]:
            continue
        (path / name).write_bytes(damaged)
        if latest_valid(folder, level="full").path is not None:
            raise SystemExit(f"{path / name}: {how} was not found")
        counts[how] += 1
        (path / name).write_bytes(files[name])
    if latest_valid(folder, level="full").path != path:
        raise SystemExit(f"{path}: was said to be damaged, and is not")
    shutil.rmtree(folder)
    print(f"damage: {sum(counts.values())} of {sum(counts.values())} found ({counts})")
    of_hdf5 = _damage_hdf5(chance, max(1, rounds * 3 // 10))
    return {"": {"damaged": sum(counts.values())} | counts, "hdf5": of_hdf5}


def _damage_hdf5(chance: random.Random, rounds: int) -> dict[str, Any]:
    """Damage weights in Keras's layout, without a manifest.  The format has no checksum of data:
    Penstock must find each cut, and each lost block that makes the HDF5 library refuse the file."""
    folder = emptied("damage-hdf5")
    path = folder / "model.weights.h5"
    folder.mkdir(parents=True)
    data, n_values, shape = b"", 0, (31, 17)
    counts = {"damaged": 0, "not readable": 0, "without a checksum, not found": 0}
    for n in range(rounds):
        if n % 20 == 0:
            data, n_values = _hdf5(path, chance, shape)
        how = chance.choice(("flip", "zeros", "tail", "cut", "cut"))
        damaged = _damaged(data, how, chance)
        if damaged == data:
            continue
        path.write_bytes(damaged)
        state = _read_hdf5(path, n_values)
        checkpoint = find_file(LocalStore(folder), path.name)
        assert checkpoint is not None
        verdict = verify(checkpoint, "full")
        # A flipped bit in a name or a type has no checksum in Keras's version of the format.
        is_to_find = how == "cut" or (state and how != "flip")
        if verdict.state == WHOLE or (verdict.is_whole and is_to_find):
            (folder / "why").write_text(f"{how}: {state}")
            raise SystemExit(f"{path}: {how}, {state or 'readable'}: {verdict.state}")
        counts["damaged"] += 1
        counts["not readable"] += bool(state)
        counts["without a checksum, not found"] += verdict.is_whole
        counts[how] = counts.get(how, 0) + 1
    shutil.rmtree(folder)
    print(f"damage: hdf5: {counts}")
    return counts


def _hdf5(path: Path, chance: random.Random, shape: tuple[int, int]) -> tuple[bytes, int]:
    """Write weights; return the bytes of the file, and the count of numbers in the file."""
    import h5py

    path.unlink(missing_ok=True)
    # Keras writes by "earliest".  Of "latest", Penstock follows no group with many links.
    version, most = chance.choice((("earliest", 12), ("earliest", 3), ("latest", 3)))
    n = chance.randint(1, most)
    with h5py.File(path, "w", libver=version) as file:
        for layer in range(n):
            group = file.create_group(f"layers/dense_{layer}/vars")
            group["0"], group["1"] = np.full(shape, layer, "f4"), np.full(shape[1:], layer, "f4")
    return path.read_bytes(), n * (shape[0] + 1) * shape[1]


def _read_hdf5(path: Path, n_values: int) -> str:
    """Return the reason if HDF5's library cannot read a file or a part is missing.  In a damaged
    file the library may hang or crash."""
    import h5py

    pid = os.fork()
    if not pid:
        signal.alarm(20)
        n = -1
        with suppress(Exception), h5py.File(path) as file:
            names = list[str]()
            file.visit(names.append)
            n = sum(file[name][()].size for name in names if isinstance(file[name], h5py.Dataset))
        os._exit(0 if n == n_values else 2 if n >= 0 else 1)
    _, status = os.waitpid(pid, 0)
    ends = {0: "", 1: "the library cannot read it", 2: "the library finds a part of it"}
    return ends.get(os.waitstatus_to_exitcode(status), "the library hangs or dies")


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


# --- gone -----------------------------------------------------------------------------------------


def gone(chance: random.Random, seconds: int) -> dict[str, dict[str, Any]]:
    """The slow tier goes away in the middle of a drain and comes back after so many seconds, while
    the training goes on to save.  Everything arrives, and the fast tier gave nothing up before."""
    folder = emptied("gone")
    fast, slow, away = folder / "fast", folder / "slow", folder / "away"
    for tier in (fast, slow):
        tier.mkdir(parents=True)
    keep = Keep(fast=1)
    drain = Drain(fast, slow, limit_bps=8 * SIZE_BYTES, keep=keep)
    drain.start()
    try:
        where = f"gone: {folder}"
        _await_status(
            drain, lambda said: said.state != "starting", f"{where}: the drain did not begin:"
        )
        save(fast, 1)
        time.sleep(2 * chance.random())
        slow.rename(away)
        slow.write_text("")  # no folder: a program sees a missing mount so
        n_saves = _saves_meanwhile(fast, seconds)
        # After a pause of a busy machine, the drain reports the missing tier.
        said = _await_status(drain, lambda said: bool(said.error), f"{where}: the drain says")
        on_fast = _steps_on(fast)
        memory = _memory_bytes(drain)
        if not drain.is_alive():
            raise SystemExit(f"{where}: the drain has ended; it said {said}")
        if missing := set(range(2, n_saves + 2)) - on_fast:
            raise SystemExit(f"{where}: given up before they were drained: {missing}")
        slow.unlink()
        away.rename(slow)
        end_s = time.monotonic() + 180
        while _steps_on(slow) != set(range(1, n_saves + 2)):
            if time.monotonic() > end_s:
                raise SystemExit(f"{where}: 180 s after it came back: {read_status(fast)}")
            time.sleep(0.5)
    finally:
        drain.stop()
    for checkpoint in find(LocalStore(slow)):
        if not verify(checkpoint, "full").is_whole or not is_what_was_saved(
            slow / checkpoint.name, checkpoint.step or 0
        ):
            raise SystemExit(f"gone: {checkpoint.where}: not what was saved")
    shutil.rmtree(folder)
    print(f"gone: {seconds} s, {n_saves} saves meanwhile, all arrived; it said: {said.error}")
    return {
        "": {"times": 1, "most seconds": seconds, "saves meanwhile": n_saves,
             "most MB of the drain": memory // 10**6}
    }  # fmt: skip


def _await_status(drain: Drain, is_awaited: Callable[[DrainStatus], bool], why: str) -> DrainStatus:
    """Return the first status of the drain that is awaited.  The soak ends with the reason, and
    with the status, if no such status comes in time or the drain ends."""
    end_s = time.monotonic() + ENDED_WITHIN_S
    while not (said := read_status(drain.fast)) or not is_awaited(said):
        if time.monotonic() > end_s or not drain.is_alive():
            raise SystemExit(f"{why} {said}")
        time.sleep(0.05)
    return said


def _saves_meanwhile(fast: Path, seconds: int) -> int:
    """Save, from step 2 on, until so many seconds have passed; return the number of saves."""
    n_saves, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(max(0.0, min(seconds / 20, end_s - time.monotonic())))
        n_saves += 1
        save(fast, n_saves + 1)
    return n_saves


def _steps_on(tier: Path) -> set[int | None]:
    return {checkpoint.step for checkpoint in find(LocalStore(tier))}


def _memory_bytes(drain: Drain) -> int:
    assert drain._process is not None
    pages = Path(f"/proc/{drain._process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


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
