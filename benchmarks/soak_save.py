"""What ends a save, a drain, a prune or a recovery, a thousand times; cut power; damaged bytes.

    python benchmarks/soak_save.py kills [ROUNDS]      SIGKILL at random moments; 1,000 unless told
    python benchmarks/soak_save.py power [ROUNDS]      a loop device copied t s after the commit;
                                                       ext4 and xfs, 36 each; needs root
    python benchmarks/soak_save.py damage [ROUNDS]     flips, zeros, cuts at level full; 1,000
    python benchmarks/soak_save.py                     all three

The first difference ends the soak with the folder that shows it.  SEED repeats the choices.
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
from pathlib import Path

from bars import scratch

from penstock.save.commit import begin, commit
from penstock.save.drain import Settings, recover
from penstock.save.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE
from penstock.save.verify import latest_valid, verify
from penstock.stores import LocalStore

__all__ = ["damage", "kills", "power"]

SIZE_BYTES = 2 * CHUNK_BYTES + 12_345
KEPT = 3

# Each prints what it promises, before it can be killed for the next thing.
PROGRAM = """
    import os, signal, sys, threading, time
    from penstock.save import drain, retention
    from penstock.save.commit import begin, commit, sweep
    from penstock.stores import LocalStore
    fast, slow, what, delay, step = sys.argv[1:6]
    def die():
        time.sleep(float(delay))
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, b"ready\\n")
    threading.Thread(target=die, daemon=True).start()
    keep = retention.Keep(fast=1, last=3)
    settings = drain.Settings(settle_s=0, tries=1, keep=keep)
    while True:
        if what == "save":
            part = begin(fast, int(step))
            part.write("model.pt", [b"%016d" % int(step) * ({size} // 16)])
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
""".replace("{size}", str(SIZE_BYTES))


def main() -> None:
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    chance = random.Random(seed)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what in ("kills", "all"):
        kills(scratch("soak-save"), chance, rounds or 1000)
    if what in ("damage", "all"):
        damage(scratch("soak-save"), chance, rounds or 1000)
    if what in ("power", "all"):
        power(chance, rounds or 36)


# --- kills ----------------------------------------------------------------------------------------


def kills(folder: Path, chance: random.Random, rounds: int) -> None:
    """After each kill the newest that was durable, or a newer one, is chosen, and is its bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    fast, slow = folder / "fast", folder / "slow"
    fast.mkdir(parents=True)
    newest, done = 0, dict.fromkeys(("save", "drain", "prune", "recover"), 0)
    for n in range(rounds):
        what = chance.choices(list(done), (4, 4, 1, 2))[0] if newest else "save"
        delay_s = chance.random() ** 2 * (0.15 if what == "save" else 0.5)
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), fast, slow, what, delay_s]
        finished = subprocess.run(
            list(map(str, [*command, newest + 1])), capture_output=True, text=True
        )
        if finished.returncode != -signal.SIGKILL:
            raise SystemExit(f"{folder}: {what} ended by itself: {finished.stderr[-2000:]}")
        done[what] += 1
        for line in finished.stdout.splitlines():
            newest = max(newest, int(line.split()[1])) if line.startswith("durable ") else newest
        newest = _still_there(folder, fast, slow, newest, what)
        if n % 50 == 49:
            print(f"{n + 1} kills: {done}, step {newest}", flush=True)
    choice, failed = recover(fast, slow, Settings(settle_s=0))
    left = [path for path in (*fast.rglob("*"), *slow.rglob("*")) if "part" in path.name]
    if (choice.step or 0) < newest or failed or left:
        raise SystemExit(f"{folder}: after recovery: step {choice.step}, {failed}, {left}")
    shutil.rmtree(folder)
    print(f"kills: {sum(done.values())} ({done}), nothing durable was lost, no leftovers")


def _still_there(folder: Path, fast: Path, slow: Path, newest: int, what: str) -> int:
    choice = latest_valid(fast, slow, "full")
    if not newest and choice.path is None:
        return 0
    if choice.path is None or (choice.step or 0) < newest:
        raise SystemExit(f"{folder}: killed in {what}: step {newest} was durable, and {choice}")
    data = (choice.path / "model.pt").read_bytes()
    if data != b"%016d" % choice.step * (SIZE_BYTES // 16):
        raise SystemExit(f"{choice.path}: killed in {what}: other bytes than were saved")
    for one in find(LocalStore(slow)):
        verdict = verify(one, "full")
        if not verdict.is_whole:
            raise SystemExit(f"{one.where}: committed on the slow tier, {verdict.problems}")
    return choice.step or 0


# --- damage ---------------------------------------------------------------------------------------


def damage(folder: Path, chance: random.Random, rounds: int) -> None:
    """Every flipped bit, zeroed block, zeroed tail and cut is found at level full."""
    shutil.rmtree(folder, ignore_errors=True)
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


def power(chance: random.Random, rounds: int) -> None:
    """A file system in a file; its image copied t seconds after the commit is what a power cut
    leaves.  The journal is replayed, and what was committed has to be there."""
    why = _not_permitted()
    if why:
        print(f"power: not done: {why}")
        return
    for kind in ("ext4", "xfs"):
        if not shutil.which(f"mkfs.{kind}"):
            print(f"power: {kind}: not done: there is no mkfs.{kind}")
            continue
        for n in range(rounds):
            _cut(kind, chance, n, rounds)
        print(f"power: {kind}: {rounds} of {rounds} cuts left the new checkpoint whole")


def _not_permitted() -> str:
    if os.geteuid() != 0:
        return "loop devices and mounts are for root"
    if (
        not shutil.which("losetup")
        or subprocess.run(["losetup", "-f"], capture_output=True).returncode
    ):
        return "there is no loop device here"
    return ""


def _cut(kind: str, chance: random.Random, n: int, rounds: int) -> None:
    after_s = 33 * n / max(1, rounds - 1) if chance.random() < 0.3 else chance.random()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="penstock-power-") as place:
        image, cut, mount = Path(place) / "image", Path(place) / "cut", Path(place) / "mount"
        mount.mkdir()
        with image.open("wb") as file:
            file.truncate(320 << 20)  # xfs wants 300 MB
        force = ["-F"] if kind == "ext4" else ["-f"]
        subprocess.run([f"mkfs.{kind}", "-q", *force, image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, mount], check=True)
        try:
            for step in (1, 2):
                part = begin(mount / "tier", step)
                part.write("model.pt", [b"%016d" % step * (SIZE_BYTES // 16)])
                # By another program, which syncs nothing.
                (part.path / "state.json").write_text("{}" * 5000)
                commit(part)
            time.sleep(after_s)
            subprocess.run(["cp", "--sparse=always", image, cut], check=True)
        finally:
            subprocess.run(["umount", mount], check=True)
        subprocess.run(["mount", "-o", "loop", cut, mount], check=True)
        try:
            choice = latest_valid(mount / "tier", level="full")
            if choice.step != 2:
                raise SystemExit(f"power: {kind}, {after_s:.2f} s after: {choice}")
        finally:
            subprocess.run(["umount", mount], check=True)


if __name__ == "__main__":
    main()
